// The C interface between jaxlib and this library: argument blocks, plain structs and the numbers of the entry points.
//
// Declared here by name, order and type, from the published interface (API 0.95); names are this project's. Every block
// starts with its size and an extension chain. A caller built for an older interface passes shorter blocks, so fields
// that were added late are guarded with `covers`.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace neuron {

struct Error;
struct Event;
struct Client;
struct Device;
struct Memory;
struct Buffer;
struct Topology;
struct Executable;
struct LoadedExecutable;

constexpr int kApiMajor = 0;
constexpr int kApiMinor = 95;
constexpr int kSlots = 131;  // entry points up to AddressableDeviceLogicalIds
constexpr int kDeclaredSlots = 130;

struct Head {
  size_t size;
  void* extensions;
};

// Whether the caller's block reaches beyond `field`.
#define COVERS(args, field) \
  ((args)->head.size >= offsetof(std::remove_reference_t<decltype(*(args))>, field) + sizeof((args)->field))

using EventCallback = void (*)(Error*, void*);
using Deleter = void (*)(void*);

enum Code {
  kOk = 0,
  kCancelled = 1,
  kInvalidArgument = 3,
  kNotFound = 5,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kUnimplemented = 12,
  kInternal = 13,
};

enum ElementType {
  kInvalidType = 0,
  kPred = 1,
  kToken = 23,
  kElementTypes = 32,
};

enum ValueKind { kText = 0, kInteger = 1, kIntegers = 2, kReal = 3, kFlag = 4 };

struct NamedValue {
  Head head;
  const char* name;
  size_t name_size;
  int kind;
  union {
    const char* text;
    int64_t integer;
    const int64_t* integers;
    float real;
    bool flag;
  };
  size_t value_size;
};

struct Program {
  Head head;
  char* code;
  size_t code_size;
  const char* format;
  size_t format_size;
};

struct ExecuteOptions {
  Head head;
  void* send_callbacks;
  void* receive_callbacks;
  size_t num_send;
  size_t num_receive;
  int launch_id;
  const int64_t* non_donatable;
  size_t num_non_donatable;
};

struct TiledLayout {
  Head head;
  const int64_t* minor_to_major;
  size_t rank;
  const int64_t* tile_dims;
  const size_t* tile_dim_sizes;
  size_t num_tiles;
};

struct StridedLayout {
  Head head;
  const int64_t* byte_strides;
  size_t rank;
};

struct HostLayout {
  Head head;
  union {
    TiledLayout tiled;
    StridedLayout strided;
  };
  int kind;  // 0 tiled, 1 strided
};

// Extensions: a chain of these.
struct ExtensionBase {
  size_t size;
  int type;
  ExtensionBase* next;
};

constexpr int kProfilerExtension = 1;
constexpr int kLayoutsExtension = 4;
constexpr int kShardingsExtension = 19;

// Argument blocks -------------------------------------------------------------------------------------------------

struct ErrorArgs {  // destroy
  Head head;
  Error* error;
};
struct ErrorMessageArgs {
  Head head;
  const Error* error;
  const char* message;
  size_t message_size;
};
struct ErrorCodeArgs {
  Head head;
  const Error* error;
  int code;
};
struct AttributesArgs {  // of the plug-in: no object
  Head head;
  const NamedValue* attributes;
  size_t num_attributes;
};
struct EventArgs {  // destroy, error, await
  Head head;
  Event* event;
};
struct EventReadyArgs {
  Head head;
  Event* event;
  bool ready;
};
struct EventOnReadyArgs {
  Head head;
  Event* event;
  EventCallback callback;
  void* user;
};
struct EventSetArgs {
  Head head;
  Event* event;
  int code;
  const char* message;
  size_t message_size;
};
struct ClientCreateArgs {
  Head head;
  const NamedValue* options;
  size_t num_options;
  void* kv_get;
  void* kv_get_user;
  void* kv_put;
  void* kv_put_user;
  Client* client;
};
struct ClientArgs {
  Head head;
  Client* client;
};
template <typename T>
struct TextArgs {  // an object's name, kind, version ...
  Head head;
  T* object;
  const char* text;
  size_t text_size;
};
template <typename T>
struct IntArgs {
  Head head;
  T* object;
  int value;
};
template <typename T>
struct SizeArgs {
  Head head;
  T* object;
  size_t value;
};
template <typename T>
struct Int64Args {
  Head head;
  T* object;
  int64_t value;
};
template <typename T>
struct FlagArgs {
  Head head;
  T* object;
  bool value;
};
template <typename T, typename R>
struct ObjectArgs {  // object -> another object
  Head head;
  T* object;
  R* result;
};
template <typename T, typename R>
struct ListArgs {  // object -> array
  Head head;
  T* object;
  R* items;
  size_t count;
};
struct LookupDeviceArgs {
  Head head;
  Client* client;
  int id;
  Device* device;
};
struct CompileArgs {
  Head head;
  Client* client;
  const Program* program;
  const char* options;
  size_t options_size;
  LoadedExecutable* executable;
};
struct TopologyCompileArgs {
  Head head;
  const Topology* topology;
  const Program* program;
  const char* options;
  size_t options_size;
  Client* client;
  Executable* executable;
};
struct DefaultAssignmentArgs {
  Head head;
  Client* client;
  int num_replicas;
  int num_partitions;
  size_t size;
  int* assignment;
};
struct FromHostArgs {
  Head head;
  Client* client;
  const void* data;
  int type;
  const int64_t* dims;
  size_t num_dims;
  const int64_t* byte_strides;
  size_t num_byte_strides;
  int semantics;
  Device* device;
  Memory* memory;
  void* device_layout;
  Event* done;
  Buffer* buffer;
};
struct UninitializedBufferArgs {
  Head head;
  Client* client;
  const int64_t* dims;
  size_t num_dims;
  int type;
  void* layout;
  Device* device;
  Memory* memory;
  Buffer* buffer;
};
struct ErrorBufferArgs {
  Head head;
  Client* client;
  int code;
  const char* message;
  size_t message_size;
  const int64_t* dims;
  size_t num_dims;
  int type;
  void* layout;
  Memory* memory;
  Buffer* buffer;
};
struct DescriptionAttributesArgs {
  Head head;
  void* description;
  size_t num_attributes;
  const NamedValue* attributes;
};
struct MemoryStatsArgs {
  Head head;
  Device* device;
  int64_t in_use;
  int64_t peak;
  bool peak_set;
  int64_t allocations;
  bool allocations_set;
  int64_t largest;
  bool largest_set;
  int64_t limit;
  bool limit_set;
  int64_t reserved;
  bool reserved_set;
  int64_t peak_reserved;
  bool peak_reserved_set;
  int64_t reservable;
  bool reservable_set;
  int64_t largest_free;
  bool largest_free_set;
  int64_t pool;
  bool pool_set;
  int64_t peak_pool;
  bool peak_pool_set;
};
struct CostArgs {
  Head head;
  Executable* executable;
  size_t num_properties;
  const NamedValue* properties;
};
struct OutputKindsArgs {
  Head head;
  Executable* executable;
  size_t num_outputs;
  const char* const* kinds;
  const size_t* kind_sizes;
};
struct OptimizedProgramArgs {
  Head head;
  Executable* executable;
  Program* program;
};
template <typename T>
struct SerializeArgs {
  Head head;
  T* object;
  const char* bytes;
  size_t size;
  void* holder;
  Deleter deleter;
};
struct ExecuteArgs {
  Head head;
  LoadedExecutable* executable;
  ExecuteOptions* options;
  Buffer* const* const* arguments;
  size_t num_devices;
  size_t num_args;
  Buffer** const* outputs;
  Event** complete_events;
  Device* execute_device;
};
struct DeserializeArgs {
  Head head;
  Client* client;
  const char* bytes;
  size_t size;
  LoadedExecutable* loaded;
  const char* options;
  size_t options_size;
};
struct ToHostArgs {
  Head head;
  Buffer* buffer;
  HostLayout* layout;
  void* target;
  size_t target_size;
  Event* event;
};
struct RawToHostArgs {
  Head head;
  Buffer* buffer;
  void* target;
  int64_t offset;
  int64_t size;
  Event* event;
};
struct CopyToDeviceArgs {
  Head head;
  Buffer* buffer;
  Device* device;
  Buffer* copy;
};
struct CopyToMemoryArgs {
  Head head;
  Buffer* buffer;
  Memory* memory;
  Buffer* copy;
};
struct PointerArgs {
  Head head;
  Buffer* buffer;
  void* pointer;
};
struct TopologyCreateArgs {
  Head head;
  const char* name;
  size_t name_size;
  const NamedValue* options;
  size_t num_options;
  Topology* topology;
};
struct TopologyDeserializeArgs {
  Head head;
  const char* bytes;
  size_t size;
  Topology* topology;
};
struct OutputDimensionsArgs {
  Head head;
  Executable* executable;
  size_t num_outputs;
  const int64_t* dims;
  const size_t* ranks;
};
struct CompiledMemoryArgs {
  Head head;
  Executable* executable;
  int64_t code;
  int64_t arguments;
  int64_t outputs;
  int64_t aliases;
  int64_t temporaries;
  int64_t host_code;
  int64_t host_arguments;
  int64_t host_outputs;
  int64_t host_aliases;
  int64_t host_temporaries;
  int64_t peak;
  int64_t total;
};
struct PlainArgs {
  Head head;
  void* object;
};
struct TrackingEventArgs {
  Head head;
  Device* device;
  const char* description;
  size_t description_size;
  void* event;
};
struct ClientLoadArgs {
  Head head;
  Client* client;
  Executable* executable;
  const char* options;
  size_t options_size;
  LoadedExecutable* loaded;
};
struct ShardingsArgs {
  Head head;
  Executable* executable;
  size_t count;
  const char* const* shardings;
  const size_t* sizes;
};

// A layout is handed out as its text, "{1,0}": dense, the last dimension minor.
using Layout = const std::string;
struct LayoutTextArgs {
  Head head;
  Layout* layout;
  const char* bytes;
  size_t size;
  void* holder;
  Deleter deleter;
};
template <typename T>
struct DefaultLayoutArgs {  // of a client or a topology
  Head head;
  T* object;
  int type;
  const int64_t* dims;
  size_t num_dims;
  Layout* layout;
};
struct LayoutsArgs {
  Head head;
  Executable* executable;
  size_t count;
  Layout* const* layouts;
};

// The table jaxlib reads: a header, then one pointer for each entry point.
struct Version {
  Head head;
  int major;
  int minor;
};
using EntryPoint = void (*)();
struct Api {
  Head head;
  Version version;
  EntryPoint slots[kSlots];
  EntryPoint beyond[96];  // zero: jaxlib reads some later entries without looking at the version
};
static_assert(offsetof(Api, slots) == 40);

}  // namespace neuron
