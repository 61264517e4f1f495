// Buffers: allocation, copies between host and devices (any strides), deletion.

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "objects.h"

namespace neuron {

namespace {


const Type kTypes[kElementTypes] = {
    {nullptr, 0}, {"pred", 1},  {"s8", 1},         {"s16", 2},    {"s32", 4},    {"s64", 8},           {"u8", 1},
    {"u16", 2},   {"u32", 4},   {"u64", 8},        {"f16", 2},    {"f32", 4},    {"f64", 8},           {"bf16", 2},
    {"c64", 8},   {"c128", 16}, {"f8e5m2", 1},     {"f8e4m3fn", 1}, {"f8e4m3b11fnuz", 1}, {"f8e5m2fnuz", 1},
    {"f8e4m3fnuz", 1}, {"s4", 1}, {"u4", 1}, {"token", 0}, {"s2", 1}, {"u2", 1}, {"f8e4m3", 1}, {"f8e3m4", 1},
    {"f8e8m0fnu", 1}, {"f4e2m1fn", 1}, {nullptr, 0}, {nullptr, 0},
};

// Copies an array of `rank` dims between two places with byte strides.
void copy_strided(char* to, const int64_t* to_strides, const char* from, const int64_t* from_strides,
                  const int64_t* dims, size_t rank, size_t element) {
  if (rank == 0) {
    memcpy(to, from, element);
    return;
  }
  if (rank == 1) {
    int64_t step = to_strides[0], stride = from_strides[0], count = dims[0];
    auto size = static_cast<int64_t>(element);
    if (step == size && stride == size) {
      memcpy(to, from, static_cast<size_t>(count) * element);
    } else if (element == 4) {
      for (int64_t i = 0; i < count; i++) memcpy(to + i * step, from + i * stride, 4);
    } else if (element == 2) {
      for (int64_t i = 0; i < count; i++) memcpy(to + i * step, from + i * stride, 2);
    } else {
      for (int64_t i = 0; i < count; i++) memcpy(to + i * step, from + i * stride, element);
    }
    return;
  }
  for (int64_t i = 0; i < dims[0]; i++) {
    copy_strided(to + i * to_strides[0], to_strides + 1, from + i * from_strides[0], from_strides + 1, dims + 1,
                 rank - 1, element);
  }
}

std::vector<int64_t> dense_strides(const std::vector<int64_t>& dims, size_t element) {
  std::vector<int64_t> strides(dims.size());
  auto stride = static_cast<int64_t>(element);
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= dims[i];
  }
  return strides;
}

// Dims of one element and dims that both sides walk densely are merged; the rest is copied in nested loops.
void copy_array(char* to, std::vector<int64_t> to_strides, const char* from, std::vector<int64_t> from_strides,
                std::vector<int64_t> dims, size_t element) {
  std::vector<int64_t> size, a, b;
  for (size_t i = 0; i < dims.size(); i++) {
    if (dims[i] == 0) return;
    if (dims[i] == 1) continue;
    if (!size.empty() && a.back() == to_strides[i] * dims[i] && b.back() == from_strides[i] * dims[i]) {
      size.back() *= dims[i];
      a.back() = to_strides[i];
      b.back() = from_strides[i];
    } else {
      size.push_back(dims[i]);
      a.push_back(to_strides[i]);
      b.push_back(from_strides[i]);
    }
  }
  copy_strided(to, a.data(), from, b.data(), size.data(), size.size(), element);
}

Memory* place_of(Device* device, Memory* memory) {
  if (memory) return memory;
  if (device) return device->memory.get();
  throw Failure{kInvalidArgument, "a buffer needs a device or a memory"};
}

}  // namespace

const Type& type_of(int code) {
  if (code <= 0 || code >= kElementTypes || !kTypes[code].name) {
    throw Failure{kUnimplemented, "element type " + std::to_string(code) + " is not known"};
  }
  return kTypes[code];
}

std::string shape_text(int type, const std::vector<int64_t>& dims) {
  std::string text = std::string(type_of(type).name) + "[";
  for (size_t i = 0; i < dims.size(); i++) text += (i ? "," : "") + std::to_string(dims[i]);
  return text + "]";
}

size_t count_bytes(int type, const std::vector<int64_t>& dims) {
  size_t bytes = type_of(type).bytes;
  for (int64_t size : dims) {
    if (size < 0) throw Failure{kInvalidArgument, "a dimension is negative"};
    if (size && bytes > (size_t{1} << 60) / static_cast<size_t>(size)) {
      throw Failure{kResourceExhausted, shape_text(type, dims) + " is larger than any memory"};
    }
    bytes *= static_cast<size_t>(size);
  }
  return bytes;
}

Buffer::Buffer(int element_type, std::vector<int64_t> sizes, Memory* place)
    : type(element_type), dims(std::move(sizes)), memory(place) {}

size_t Buffer::bytes() const { return count_bytes(type, dims); }

std::shared_ptr<Storage> Buffer::content() {
  std::lock_guard<std::mutex> lock(mutex);
  if (error) throw Failure{error->code, error->message};
  if (!storage) throw Failure{kInvalidArgument, "Array has been deleted."};
  return storage;
}

Buffer* new_buffer(int type, std::vector<int64_t> dims, Memory* memory) {
  size_t bytes = count_bytes(type, dims);
  Device* owner = memory->kind_id == 0 ? memory->device : nullptr;
  // composing names costs as much as a small allocation, and no small buffer is among the largest
  std::string label = bytes >= 65536 ? shape_text(type, dims) : "a small array";
  auto buffer = std::make_unique<Buffer>(type, std::move(dims), memory);
  buffer->storage = std::make_shared<Storage>(bytes, owner, std::move(label));
  return buffer.release();
}

Buffer* failed_buffer(int type, std::vector<int64_t> dims, Memory* memory, int code, const std::string& message) {
  auto buffer = std::make_unique<Buffer>(type, std::move(dims), memory);
  buffer->error.reset(new Error{code, message});
  return buffer.release();
}

namespace {

Error* from_host(FromHostArgs* args) {
  return guarded([&] {
    std::vector<int64_t> dims(args->dims, args->dims + args->num_dims);
    size_t element = type_of(args->type).bytes;
    std::unique_ptr<Buffer> buffer(new_buffer(args->type, dims, place_of(args->device, args->memory)));
    auto dense = dense_strides(dims, element);
    std::vector<int64_t> strides = dense;
    if (args->byte_strides) strides.assign(args->byte_strides, args->byte_strides + args->num_byte_strides);
    if (strides.size() != dims.size()) throw Failure{kInvalidArgument, "byte strides and dimensions differ in number"};
    copy_array(buffer->storage->data, dense, static_cast<const char*>(args->data), strides, dims, element);
    args->done = new Event;
    args->buffer = buffer.release();
  });
}

Error* uninitialized(UninitializedBufferArgs* args) {
  return guarded([&] {
    std::vector<int64_t> dims(args->dims, args->dims + args->num_dims);
    args->buffer = new_buffer(args->type, std::move(dims), place_of(args->device, args->memory));
    memset(args->buffer->storage->data, 0, args->buffer->storage->size);
  });
}

Error* error_buffer(ErrorBufferArgs* args) {
  return guarded([&] {
    std::vector<int64_t> dims(args->dims, args->dims + args->num_dims);
    args->buffer = failed_buffer(args->type, std::move(dims), args->memory, args->code,
                                 std::string(args->message, args->message_size));
  });
}

Error* buffer_destroy(ObjectArgs<Buffer, void>* args) {
  delete args->object;
  return nullptr;
}

Error* buffer_type(IntArgs<Buffer>* args) {
  args->value = args->object->type;
  return nullptr;
}

Error* buffer_dims(ListArgs<Buffer, const int64_t>* args) {
  args->items = args->object->dims.data();
  args->count = args->object->dims.size();
  return nullptr;
}

Error* dynamic_dims(ListArgs<Buffer, const size_t>* args) {
  args->items = nullptr;
  args->count = 0;
  return nullptr;
}

Error* buffer_bytes(SizeArgs<Buffer>* args) {
  return guarded([&] { args->value = args->object->bytes(); });
}

Error* buffer_device(ObjectArgs<Buffer, Device>* args) {
  args->result = args->object->memory->device;
  return nullptr;
}

Error* buffer_memory(ObjectArgs<Buffer, Memory>* args) {
  args->result = args->object->memory;
  return nullptr;
}

Error* buffer_delete(ObjectArgs<Buffer, void>* args) {
  std::shared_ptr<Storage> released;  // freed outside the lock
  std::lock_guard<std::mutex> lock(args->object->mutex);
  released.swap(args->object->storage);
  args->object->deleted = true;
  return nullptr;
}

Error* buffer_is_deleted(FlagArgs<Buffer>* args) {
  std::lock_guard<std::mutex> lock(args->object->mutex);
  args->value = args->object->deleted;
  return nullptr;
}

Error* buffer_on_cpu(FlagArgs<Buffer>* args) {
  args->value = false;
  return nullptr;
}

Error* buffer_ready(ObjectArgs<Buffer, Event>* args) {
  std::lock_guard<std::mutex> lock(args->object->mutex);
  const auto& error = args->object->error;
  args->result = error ? Event::failed(error->code, error->message) : new Event;
  return nullptr;
}

Buffer* copy_to(Buffer* source, Memory* memory) {
  {
    std::lock_guard<std::mutex> lock(source->mutex);
    if (source->error) {
      return failed_buffer(source->type, source->dims, memory, source->error->code, source->error->message);
    }
  }
  auto content = source->content();
  std::unique_ptr<Buffer> copy(new_buffer(source->type, source->dims, memory));
  memcpy(copy->storage->data, content->data, content->size);
  return copy.release();
}

Error* copy_to_device(CopyToDeviceArgs* args) {
  return guarded([&] { args->copy = copy_to(args->buffer, args->device->memory.get()); });
}

Error* copy_to_memory(CopyToMemoryArgs* args) {
  return guarded([&] { args->copy = copy_to(args->buffer, args->memory); });
}

std::vector<int64_t> host_strides(const Buffer& buffer, const HostLayout* layout, size_t element) {
  std::vector<int64_t> strides = dense_strides(buffer.dims, element);
  if (!layout) return strides;
  if (layout->kind == 1) {
    if (layout->strided.rank != strides.size()) throw Failure{kInvalidArgument, "the host layout has another rank"};
    strides.assign(layout->strided.byte_strides, layout->strided.byte_strides + layout->strided.rank);
    return strides;
  }
  if (layout->tiled.num_tiles) throw Failure{kUnimplemented, "tiled host layouts are not offered"};
  if (layout->tiled.rank != strides.size()) throw Failure{kInvalidArgument, "the host layout has another rank"};
  auto stride = static_cast<int64_t>(element);
  for (size_t i = 0; i < layout->tiled.rank; i++) {
    auto dim = static_cast<size_t>(layout->tiled.minor_to_major[i]);
    if (dim >= strides.size()) throw Failure{kInvalidArgument, "the host layout names a dimension that is not there"};
    strides[dim] = stride;
    stride *= buffer.dims[dim];
  }
  return strides;
}

Error* to_host(ToHostArgs* args) {
  return guarded([&] {
    Buffer& buffer = *args->buffer;
    if (!args->target) {
      args->target_size = buffer.bytes();
      return;
    }
    auto content = buffer.content();
    if (args->target_size < content->size) {
      throw Failure{kInvalidArgument, "the host buffer has " + std::to_string(args->target_size) + " bytes, " +
                                          shape_text(buffer.type, buffer.dims) + " needs " +
                                          std::to_string(content->size)};
    }
    size_t element = type_of(buffer.type).bytes;
    copy_array(static_cast<char*>(args->target), host_strides(buffer, args->layout, element), content->data,
               dense_strides(buffer.dims, element), buffer.dims, element);
    args->event = new Event;
  });
}

Error* raw_to_host(RawToHostArgs* args) {
  return guarded([&] {
    auto content = args->buffer->content();
    auto size = static_cast<int64_t>(content->size);
    if (args->offset < 0 || args->size < 0 || args->offset > size || args->size > size - args->offset) {
      throw Failure{kInvalidArgument, "bytes " + std::to_string(args->offset) + " to " +
                                          std::to_string(args->offset + args->size) + " are outside a buffer of " +
                                          std::to_string(size)};
    }
    memcpy(args->target, content->data + args->offset, static_cast<size_t>(args->size));
    args->event = new Event;
  });
}

Error* pointer_of(PointerArgs* args) {
  return guarded([&] { args->pointer = args->buffer->content()->data; });
}

// External references keep the bytes alive beyond Buffer_Delete.
std::mutex references_mutex;
std::map<Buffer*, std::vector<std::shared_ptr<Storage>>> references;

Error* add_reference(ObjectArgs<Buffer, void>* args) {
  return guarded([&] {
    auto content = args->object->content();
    std::lock_guard<std::mutex> lock(references_mutex);
    references[args->object].push_back(std::move(content));
  });
}

Error* drop_reference(ObjectArgs<Buffer, void>* args) {
  return guarded([&] {
    std::shared_ptr<Storage> released;
    std::lock_guard<std::mutex> lock(references_mutex);
    auto found = references.find(args->object);
    if (found == references.end()) throw Failure{kInvalidArgument, "the buffer has no external references"};
    released = std::move(found->second.back());
    found->second.pop_back();
    if (found->second.empty()) references.erase(found);
  });
}

}  // namespace

void fill_buffers(EntryPoint* slots) {
  put<from_host>(slots, 22);
  put<buffer_destroy>(slots, 58);
  put<buffer_type>(slots, 59);
  put<buffer_dims>(slots, 60);
  put<buffer_dims>(slots, 61);
  put<dynamic_dims>(slots, 62);
  put<buffer_bytes>(slots, 64);
  put<buffer_device>(slots, 65);
  put<buffer_memory>(slots, 66);
  put<buffer_delete>(slots, 67);
  put<buffer_is_deleted>(slots, 68);
  put<copy_to_device>(slots, 69);
  put<to_host>(slots, 70);
  put<buffer_on_cpu>(slots, 71);
  put<buffer_ready>(slots, 72);
  put<pointer_of>(slots, 73);
  put<add_reference>(slots, 74);
  put<drop_reference>(slots, 75);
  put<pointer_of>(slots, 76);
  put<copy_to_memory>(slots, 92);
  put<raw_to_host>(slots, 100);
  put<uninitialized>(slots, 112);
  put<error_buffer>(slots, 118);
}

}  // namespace neuron
