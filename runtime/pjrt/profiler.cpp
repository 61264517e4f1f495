// The profiler extension: jax.profiler asks for what the devices did between a start and a stop (an XSpace message).
//
// The blocks of this extension have a size and no extension chain. jaxlib registers it in every process that loads the
// library, so a session in which nothing ran must cost nothing.

#include <cstring>

#include "objects.h"

namespace neuron {

namespace {

struct ProfileErrorArgs {
  size_t size;
  void* unused;
  Error* error;
};

struct ProfileMessageArgs {
  size_t size;
  void* unused;
  Error* error;
  const char* text;
  size_t text_size;
};

struct ProfileCodeArgs {
  size_t size;
  void* unused;
  Error* error;
  int code;
};

struct Profile {
  int64_t session = -1;
  std::string bytes;
};

struct ProfileCreateArgs {
  size_t size;
  const char* options;
  size_t options_size;
  Profile* profile;
};

struct ProfileArgs {
  size_t size;
  Profile* profile;
};

struct ProfileCollectArgs {
  size_t size;
  Profile* profile;
  uint8_t* data;
  size_t bytes;
};

void error_destroy(ProfileErrorArgs* args) { delete args->error; }

void error_message(ProfileMessageArgs* args) {
  args->text = args->error->message.data();
  args->text_size = args->error->message.size();
}

Error* error_code(ProfileCodeArgs* args) {
  args->code = args->error->code;
  return nullptr;
}

Error* create(ProfileCreateArgs* args) {
  return guarded([&] { args->profile = new Profile; });
}

Error* destroy(ProfileArgs* args) {
  delete args->profile;
  return nullptr;
}

Error* start(ProfileArgs* args) {
  return guarded([&] { args->profile->session = start_profile(); });
}

Error* stop(ProfileArgs* args) {
  return guarded([&] {
    if (args->profile->session >= 0) stop_profile(args->profile->session);
  });
}

// The data stays with the profile; a caller that brings memory of its own has asked for the size before.
Error* collect(ProfileCollectArgs* args) {
  return guarded([&] {
    Profile& profile = *args->profile;
    if (profile.session >= 0) profile.bytes = collect_profile(profile.session);
    profile.session = -1;
    args->bytes = profile.bytes.size();
    if (args->data) {
      std::memcpy(args->data, profile.bytes.data(), profile.bytes.size());
    } else {
      args->data = reinterpret_cast<uint8_t*>(profile.bytes.data());
    }
  });
}

struct ProfilerTable {
  size_t size;
  void* unused;
  void (*error_destroy)(ProfileErrorArgs*);
  void (*error_message)(ProfileMessageArgs*);
  Error* (*error_code)(ProfileCodeArgs*);
  Error* (*create)(ProfileCreateArgs*);
  Error* (*destroy)(ProfileArgs*);
  Error* (*start)(ProfileArgs*);
  Error* (*stop)(ProfileArgs*);
  Error* (*collect)(ProfileCollectArgs*);
};

struct ProfilerExtension {
  ExtensionBase base;
  ProfilerTable* table;
  int64_t trace_context;
};

}  // namespace

ExtensionBase* profiler_extension() {
  static ProfilerTable table{sizeof(ProfilerTable), nullptr,        entry<error_destroy>, entry<error_message>,
                             entry<error_code>,     entry<create>,  entry<destroy>,       entry<start>,
                             entry<stop>,           entry<collect>};
  static ProfilerExtension extension{{sizeof(ProfilerExtension), kProfilerExtension, nullptr}, &table, 0};
  return &extension.base;
}

}  // namespace neuron
