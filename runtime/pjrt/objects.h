// The objects behind the handles that jaxlib holds: errors, events, devices, memories, storage, buffers, executables.
//
// All of them live without Python: jaxlib destroys handles while exceptions unwind and while the interpreter finishes.
// Only `python.cpp` enters Python.

#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "abi.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace neuron {

struct Error {
  int code;
  std::string message;
};

// Thrown inside the library; every entry point turns it into an Error.
struct Failure {
  int code;
  std::string message;
};

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = true;
  std::unique_ptr<Error> error;
  std::vector<std::pair<EventCallback, void*>> callbacks;

  static Event* failed(int code, const std::string& message);
  void set(std::unique_ptr<Error> outcome);
};

struct Type {
  const char* name;  // as HLO text spells it
  size_t bytes;      // of one element as it is exchanged: 4-bit integers take a byte
};
const Type& type_of(int code);  // raises Failure for a code that does not exist
std::string shape_text(int type, const std::vector<int64_t>& dims);

// What `attributes` calls return: values that point into this object.
struct Attributes {
  std::vector<std::string> texts;
  std::vector<NamedValue> values;
  void text(const char* name, const std::string& value);
  void integer(const char* name, int64_t value);
  void real(const std::string& name, float value);
  void integers(const char* name, const int64_t* values, size_t count);

 private:
  NamedValue& add(const std::string& name, ValueKind kind);
};

struct Storage;

struct Memory {
  int id;
  std::string kind;  // "device" or "pinned_host"
  int kind_id;
  std::string debug, text;
  Device* device;
};

// A device; also its description, which topologies hold without a client.
struct Device {
  int id;
  std::string kind, debug, text;
  Attributes attributes;
  std::unique_ptr<Memory> memory, host_memory;
  std::vector<Memory*> memories;

  // accounting of the simulated HBM
  std::mutex mutex;
  int64_t peers = 1;  // devices of its client
  int64_t limit = 0, in_use = 0, peak = 0, largest = 0, allocations = 0;

  void claim(int64_t bytes, const std::string& what);  // raises Failure when HBM is full
  void release(int64_t bytes);
};

std::string size_text(int64_t bytes);

// Bytes in a simulated memory. `device` is null for host memory, which is not accounted.
struct Storage {
  char* data = nullptr;
  size_t size;
  Device* device;
  std::string what;
  Storage *previous = nullptr, *next = nullptr;

  Storage(size_t bytes, Device* owner, std::string label);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  static std::string largest(const Device* device);  // what is allocated there, or anywhere for null
};

int64_t host_bytes_left();  // what may still be written; negative where the system does not tell

struct Buffer {
  int type;
  std::vector<int64_t> dims;
  Memory* memory;
  std::mutex mutex;
  std::shared_ptr<Storage> storage;  // null when deleted or failed
  std::unique_ptr<Error> error;      // what made it, failed
  bool deleted = false;

  Buffer(int element_type, std::vector<int64_t> sizes, Memory* place);
  size_t bytes() const;
  std::shared_ptr<Storage> content();  // raises Failure when deleted or failed
};

Layout* dense_layout(size_t rank);
size_t count_bytes(int type, const std::vector<int64_t>& dims);
Buffer* new_buffer(int type, std::vector<int64_t> dims, Memory* memory);
Buffer* failed_buffer(int type, std::vector<int64_t> dims, Memory* memory, int code, const std::string& message);

struct Topology {
  std::string name, version, serialized;
  Attributes attributes;
  std::vector<std::unique_ptr<Device>> owned;
  std::vector<Device*> devices;
  int64_t hbm_bytes = 0;
  bool lent = false;  // belongs to a client
};

struct Client {
  Topology topology;
  std::vector<Memory*> memories;
};

// A list of byte strings in the form the interface wants; `known` is false when there is nothing to say.
struct Texts {
  bool known = false;
  std::vector<std::string> values;
  std::vector<const char*> pointers;
  std::vector<size_t> sizes;
  void finish();
};

// A compiled program: everything jaxlib asks about it, copied out of Python, and the Python object that runs it.
struct Compiled {
  struct Output {
    int type;
    std::vector<int64_t> dims;
    std::string kind;
    int donor = -1;  // parameter whose memory the output takes over
  };
  std::string name, fingerprint, options, assignment;
  size_t num_replicas = 1, num_partitions = 1, num_params = 0;
  std::vector<int> device_ids;
  std::vector<Output> outputs;
  std::vector<int> donated;  // parameters
  int64_t code_bytes = 0, constant_bytes = 0, argument_bytes = 0, output_bytes = 0, alias_bytes = 0, temp_bytes = 0;
  Texts parameter_shardings, output_shardings;

  // arrays in the form the interface wants
  std::vector<int> output_types;
  std::vector<int64_t> output_dims;
  std::vector<size_t> output_ranks;
  Texts output_kinds;
  std::vector<Layout*> parameter_layouts, output_layouts;

  std::mutex mutex;  // of what is made on demand
  std::unique_ptr<Attributes> cost;
  std::string optimized;
  bool has_optimized = false;

  void* python = nullptr;  // strong reference
  Compiled() = default;
  ~Compiled();
  void finish();
};

struct Executable {
  std::shared_ptr<Compiled> compiled;
};

struct LoadedExecutable {
  std::shared_ptr<Compiled> compiled;
  Client* client;
  std::vector<Device*> devices;
  std::vector<int> logical_ids;
  std::atomic<bool> deleted{false};
  bool claimed = false;
  ~LoadedExecutable();
  void unload();
};

LoadedExecutable* load(std::shared_ptr<Compiled> compiled, Client* client);

// Python (python.cpp): each raises Failure --------------------------------------------------------------------------

struct Launch {
  int launch_id;
  std::vector<int> device_ids;
  std::vector<std::vector<std::shared_ptr<Storage>>> inputs, outputs;
};

std::shared_ptr<Compiled> compile(const Program& program, const char* options, size_t size, const Topology& topology);
std::shared_ptr<Compiled> deserialize(const char* bytes, size_t size, const char* options, size_t options_size);
std::string serialize(Compiled& compiled);
void execute(Compiled& compiled, const Launch& launch);
std::unique_ptr<Attributes> cost_of(Compiled& compiled);
std::string optimized_program(Compiled& compiled);
int64_t start_profile();
void stop_profile(int64_t session);
std::string collect_profile(int64_t session);
void drop_python(void* object);  // callable without the GIL
bool holds_gil();
std::shared_ptr<Compiled> prepared_program();

// Entry points ------------------------------------------------------------------------------------------------------

const Api* api();
ExtensionBase* extensions();
ExtensionBase* profiler_extension();
void fill_basic(EntryPoint* slots);
void fill_devices(EntryPoint* slots);
void fill_buffers(EntryPoint* slots);
void fill_executables(EntryPoint* slots);

// Runs the body of an entry point; a Failure becomes the Error it returns.
template <typename Body>
Error* guarded(Body body) {
  try {
    body();
    return nullptr;
  } catch (const Failure& failure) {
    return new Error{failure.code, failure.message};
  } catch (const std::bad_alloc&) {
    return new Error{kResourceExhausted, "the host ran out of memory"};
  } catch (const std::exception& problem) {
    return new Error{kInternal, problem.what()};
  }
}

// Callers order calls on one object by locks that the thread sanitizer does not see, since it sees no lock of jaxlib.
// Under it, calls that do not overlap in time count as ordered; what happens inside calls that overlap is looked at.
struct Ordered {
#ifdef __SANITIZE_THREAD__
  Ordered() { __tsan_acquire(&calls); }
  ~Ordered() { __tsan_release(&calls); }
  static inline char calls;
#else
  Ordered() {}
  ~Ordered() {}
#endif
};

template <auto function>
struct Entry;

template <typename Args, typename Result, Result (*function)(Args*)>
struct Entry<function> {
  static Result call(Args* args) {
    Ordered ordered;
    return function(args);
  }
};

template <auto function>
constexpr auto entry = &Entry<function>::call;

template <auto function>
void put(EntryPoint* slots, int number) {
  slots[number] = reinterpret_cast<EntryPoint>(entry<function>);
}

// Bytes handed out with a deleter.
template <typename Args>
void hand_out(Args* args, std::string bytes) {
  auto* holder = new std::string(std::move(bytes));
  args->bytes = holder->data();
  args->size = holder->size();
  args->holder = holder;
  args->deleter = [](void* held) {
    Ordered ordered;
    delete static_cast<std::string*>(held);
  };
}

}  // namespace neuron
