// Errors, events, attributes, the plug-in's own entry points, and the table of all of them.

#include <cstring>
#include <type_traits>

#include "objects.h"

namespace neuron {

Event* Event::failed(int code, const std::string& message) {
  auto* event = new Event;
  event->error.reset(new Error{code, message});
  return event;
}

// Whoever waited may destroy the event as soon as its lock is free.
void Event::set(std::unique_ptr<Error> outcome) {
  std::vector<std::pair<EventCallback, void*>> waiting;
  std::unique_ptr<Error> told(outcome ? new Error(*outcome) : nullptr);
  {
    std::lock_guard<std::mutex> lock(mutex);
    ready = true;
    error = std::move(outcome);
    waiting.swap(callbacks);
    changed.notify_all();
  }
  for (auto& [callback, user] : waiting) {
    callback(told ? new Error(*told) : nullptr, user);
  }
}

NamedValue& Attributes::add(const std::string& name, ValueKind kind) {
  if (texts.capacity() == 0) {
    texts.reserve(64);  // values point into the strings
    values.reserve(64);
  }
  if (texts.size() + 2 > texts.capacity()) throw Failure{kInternal, "too many attributes"};
  texts.push_back(name);
  NamedValue value{};
  value.head.size = sizeof(NamedValue);
  value.name = texts.back().c_str();
  value.name_size = texts.back().size();
  value.kind = kind;
  value.value_size = 1;
  values.push_back(value);
  return values.back();
}

void Attributes::text(const char* name, const std::string& value) {
  NamedValue& added = add(name, kText);
  texts.push_back(value);
  added.text = texts.back().c_str();
  added.value_size = value.size();
}

void Attributes::integer(const char* name, int64_t value) { add(name, kInteger).integer = value; }

void Attributes::real(const std::string& name, float value) { add(name, kReal).real = value; }

void Attributes::integers(const char* name, const int64_t* items, size_t count) {
  NamedValue& added = add(name, kIntegers);
  added.integers = items;
  added.value_size = count;
}

namespace {

void error_destroy(ErrorArgs* args) { delete args->error; }

void error_message(ErrorMessageArgs* args) {
  args->message = args->error->message.c_str();
  args->message_size = args->error->message.size();
}

Error* error_code(ErrorCodeArgs* args) {
  args->code = args->error->code;
  return nullptr;
}

Error* plugin_initialize(Head*) { return nullptr; }

Error* plugin_attributes(AttributesArgs* args) {
  static const Attributes* attributes = [] {
    static const int64_t current[] = {1, 17, 0}, minimum[] = {0, 9, 0};
    auto* made = new Attributes;
    made->integer("xla_version", 2);
    made->integers("stablehlo_current_version", current, 3);
    made->integers("stablehlo_minimum_version", minimum, 3);
    return made;
  }();
  args->attributes = attributes->values.data();
  args->num_attributes = attributes->values.size();
  return nullptr;
}

Error* event_destroy(EventArgs* args) {
  delete args->event;
  return nullptr;
}

Error* event_is_ready(EventReadyArgs* args) {
  std::lock_guard<std::mutex> lock(args->event->mutex);
  args->ready = args->event->ready;
  return nullptr;
}

Error* event_error(EventArgs* args) {
  std::lock_guard<std::mutex> lock(args->event->mutex);
  if (!args->event->ready) return new Error{kFailedPrecondition, "the event is not ready"};
  return args->event->error ? new Error(*args->event->error) : nullptr;
}

Error* event_await(EventArgs* args) {
  std::unique_lock<std::mutex> lock(args->event->mutex);
  args->event->changed.wait(lock, [&] { return args->event->ready; });
  return args->event->error ? new Error(*args->event->error) : nullptr;
}

Error* event_on_ready(EventOnReadyArgs* args) {
  Event* event = args->event;
  {
    std::lock_guard<std::mutex> lock(event->mutex);
    if (!event->ready) {
      event->callbacks.emplace_back(args->callback, args->user);
      return nullptr;
    }
  }
  args->callback(event->error ? new Error(*event->error) : nullptr, args->user);
  return nullptr;
}

Error* event_create(EventArgs* args) {
  args->event = new Event;
  args->event->ready = false;
  return nullptr;
}

Error* event_set(EventSetArgs* args) {
  std::unique_ptr<Error> outcome;
  if (args->code != kOk) outcome.reset(new Error{args->code, std::string(args->message, args->message_size)});
  args->event->set(std::move(outcome));
  return nullptr;
}

Error* execute_context_create(PlainArgs* args) {
  args->object = new char;
  return nullptr;
}

Error* execute_context_destroy(PlainArgs* args) {
  delete static_cast<char*>(args->object);
  return nullptr;
}

template <int number>
Error* missing(void*) {
  return new Error{kUnimplemented, "entry point " + std::to_string(number) + " of the PJRT interface is not offered"};
}

template <int... numbers>
void fill_missing(EntryPoint* slots, std::integer_sequence<int, numbers...>) {
  ((slots[numbers] = reinterpret_cast<EntryPoint>(&missing<numbers>)), ...);
}

}  // namespace

void fill_basic(EntryPoint* slots) {
  fill_missing(slots, std::make_integer_sequence<int, kDeclaredSlots>());
  put<error_destroy>(slots, 0);
  put<error_message>(slots, 1);
  put<error_code>(slots, 2);
  put<plugin_initialize>(slots, 3);
  put<plugin_attributes>(slots, 4);
  put<event_destroy>(slots, 5);
  put<event_is_ready>(slots, 6);
  put<event_error>(slots, 7);
  put<event_await>(slots, 8);
  put<event_on_ready>(slots, 9);
  put<execute_context_create>(slots, 98);
  put<execute_context_destroy>(slots, 99);
  put<event_create>(slots, 126);
  put<event_set>(slots, 127);
  slots[128] = nullptr;  // device attributes come with the description
}

const Api* api() {
  static Api table = [] {
    Api made{};
    made.head.size = offsetof(Api, slots) + kDeclaredSlots * sizeof(EntryPoint);
    made.head.extensions = extensions();
    made.version.head.size = sizeof(Version);
    made.version.major = kApiMajor;
    made.version.minor = kApiMinor;
    fill_basic(made.slots);
    fill_devices(made.slots);
    fill_buffers(made.slots);
    fill_executables(made.slots);
    return made;
  }();
  return &table;
}

}  // namespace neuron

extern "C" __attribute__((visibility("default"))) const void* GetPjrtApi() { return neuron::api(); }
