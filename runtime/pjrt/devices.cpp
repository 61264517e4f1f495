// Client, devices, memories and topologies, and the accounting of each device's simulated HBM.

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "objects.h"

namespace neuron {

namespace {

constexpr int kCoresOfAChip = 2;
constexpr int kMostDevices = 128;
constexpr int64_t kHostKind = 1;

// What `initialize` in Python passes when it registers the plug-in; users' own options may arrive as text.
struct Options {
  int64_t devices = kCoresOfAChip;
  int64_t hbm_bytes = int64_t{16} << 30;
  std::string kind = "NeuronCore-v2", version = "unknown", error;
};

int64_t whole_number(const NamedValue& value) {
  if (value.kind == kInteger) return value.integer;
  if (value.kind == kText) {
    std::string text(value.text, value.value_size);
    char* end = nullptr;
    long long number = strtoll(text.c_str(), &end, 10);
    if (!text.empty() && *end == 0) return number;
  }
  throw Failure{kInvalidArgument,
                "the neuron plug-in's option " + std::string(value.name, value.name_size) + " takes a whole number"};
}

Options read_options(const NamedValue* values, size_t count) {
  Options options;
  for (size_t i = 0; i < count; i++) {
    const NamedValue& value = values[i];
    std::string name(value.name, value.name_size);
    if (name == "num_devices") {
      options.devices = whole_number(value);
    } else if (name == "hbm_bytes") {
      options.hbm_bytes = whole_number(value);
    } else if (name == "device_kind" && value.kind == kText) {
      options.kind.assign(value.text, value.value_size);
    } else if (name == "platform_version" && value.kind == kText) {
      options.version.assign(value.text, value.value_size);
    } else if (name == "error" && value.kind == kText) {
      options.error.assign(value.text, value.value_size);
    } else {
      throw Failure{kInvalidArgument, "the neuron plug-in has no option " + name +
                                          "; it has num_devices, hbm_bytes, device_kind, platform_version"};
    }
  }
  if (!options.error.empty()) throw Failure{kInvalidArgument, options.error};
  if (options.devices < 1 || options.devices > kMostDevices) {
    throw Failure{kInvalidArgument, "num_devices is " + std::to_string(options.devices) + ", expected 1 to " +
                                        std::to_string(kMostDevices)};
  }
  return options;
}

void append_varint(std::string& out, int field, uint64_t value) {
  out.push_back(static_cast<char>(field << 3));
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void append_text(std::string& out, int field, const std::string& text) {
  std::string length;
  append_varint(length, field, text.size());
  length[0] = static_cast<char>(field << 3 | 2);
  out += length + text;
}

Options parse_topology(const char* bytes, size_t size) {
  Options options;
  size_t at = 0;
  auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0; at < size && shift < 64; shift += 7) {
      auto byte = static_cast<unsigned char>(bytes[at++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw Failure{kInvalidArgument, "the serialized topology is damaged"};
  };
  while (at < size) {
    uint64_t key = varint(), value = varint();
    if ((key & 7) == 0) {
      if (key >> 3 == 1) options.devices = static_cast<int64_t>(value);
      if (key >> 3 == 2) options.hbm_bytes = static_cast<int64_t>(value);
    } else if ((key & 7) == 2 && value <= size - at) {
      if (key >> 3 == 3) options.version.assign(bytes + at, value);
      if (key >> 3 == 4) options.kind.assign(bytes + at, value);
      at += value;
    } else {
      throw Failure{kInvalidArgument, "the serialized topology is damaged"};
    }
  }
  if (options.devices < 1 || options.devices > kMostDevices) {
    throw Failure{kInvalidArgument, "the serialized topology is damaged"};
  }
  return options;
}

std::unique_ptr<Memory> make_memory(Device* device, int id, const std::string& kind, int kind_id) {
  std::unique_ptr<Memory> memory(new Memory{id, kind, kind_id, "", "", device});
  memory->debug = memory->text = kind + " of " + device->debug;
  return memory;
}

void build(Topology& topology, const Options& options) {
  topology.name = "neuron";
  topology.version = options.version;
  topology.hbm_bytes = options.hbm_bytes;
  topology.attributes.integer("num_devices", options.devices);
  topology.attributes.integer("hbm_bytes_per_device", options.hbm_bytes);
  append_varint(topology.serialized, 1, static_cast<uint64_t>(options.devices));
  append_varint(topology.serialized, 2, static_cast<uint64_t>(options.hbm_bytes));
  append_text(topology.serialized, 3, options.version);
  append_text(topology.serialized, 4, options.kind);
  for (int id = 0; id < options.devices; id++) {
    auto device = std::make_unique<Device>();
    device->id = id;
    device->kind = options.kind;
    device->limit = options.hbm_bytes;
    device->peers = options.devices;
    device->text = "NeuronCore(id=" + std::to_string(id) + ")";
    device->debug = "NEURON_" + std::to_string(id);
    device->attributes.integer("chip", id / kCoresOfAChip);
    device->attributes.integer("core_on_chip", id % kCoresOfAChip);
    device->attributes.integer("hbm_bytes", options.hbm_bytes);
    device->memory = make_memory(device.get(), 2 * id, "device", 0);
    device->host_memory = make_memory(device.get(), 2 * id + 1, "pinned_host", kHostKind);
    device->memories = {device->memory.get(), device->host_memory.get()};
    topology.devices.push_back(device.get());
    topology.owned.push_back(std::move(device));
  }
}

}  // namespace

void Device::claim(int64_t bytes, const std::string& what) {
  std::unique_lock<std::mutex> lock(mutex);
  if (bytes > limit - in_use) {
    std::string used = size_text(in_use);
    lock.unlock();
    throw Failure{kResourceExhausted,
                  "[NCC_EOOM002] out of device memory: " + debug + " has " + size_text(limit) + " of HBM, " + used +
                      " are in use, and " + what + " needs " + size_text(bytes) +
                      "; largest buffers: " + Storage::largest(this) +
                      " - delete arrays that are no longer needed, donate inputs, use a smaller batch, or shard"};
  }
  in_use += bytes;
  peak = std::max(peak, in_use);
  largest = std::max(largest, bytes);
  allocations++;
}

void Device::release(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex);
  in_use -= bytes;
}

namespace {

Error* client_create(ClientCreateArgs* args) {
  return guarded([&] {
    Options options = read_options(args->options, args->num_options);
    auto client = std::make_unique<Client>();
    build(client->topology, options);
    client->topology.lent = true;
    for (Device* device : client->topology.devices) {
      client->memories.insert(client->memories.end(), device->memories.begin(), device->memories.end());
    }
    args->client = client.release();
  });
}

// Buffers may outlive the client and account on its devices, so the few objects of a client are never freed.
Error* client_destroy(ClientArgs*) { return nullptr; }

Error* client_platform_name(TextArgs<Client>* args) {
  args->text = args->object->topology.name.c_str();
  args->text_size = args->object->topology.name.size();
  return nullptr;
}

Error* client_platform_version(TextArgs<Client>* args) {
  args->text = args->object->topology.version.c_str();
  args->text_size = args->object->topology.version.size();
  return nullptr;
}

Error* client_process_index(IntArgs<Client>* args) {
  args->value = 0;
  return nullptr;
}

Error* client_devices(ListArgs<Client, Device* const>* args) {
  args->items = args->object->topology.devices.data();
  args->count = args->object->topology.devices.size();
  return nullptr;
}

Error* client_memories(ListArgs<Client, Memory* const>* args) {
  args->items = args->object->memories.data();
  args->count = args->object->memories.size();
  return nullptr;
}

Error* lookup_device(LookupDeviceArgs* args) {
  return guarded([&] {
    auto& devices = args->client->topology.devices;
    if (args->id < 0 || static_cast<size_t>(args->id) >= devices.size()) {
      throw Failure{kInvalidArgument, "there is no device " + std::to_string(args->id)};
    }
    args->device = devices[static_cast<size_t>(args->id)];
  });
}

Error* default_assignment(DefaultAssignmentArgs* args) {
  return guarded([&] {
    size_t wanted = static_cast<size_t>(args->num_replicas) * static_cast<size_t>(args->num_partitions);
    if (wanted > args->client->topology.devices.size()) {
      throw Failure{kInvalidArgument, std::to_string(args->num_replicas) + " replicas of " +
                                          std::to_string(args->num_partitions) + " partitions need " +
                                          std::to_string(wanted) + " devices, there are " +
                                          std::to_string(args->client->topology.devices.size())};
    }
    if (args->size < wanted) throw Failure{kInvalidArgument, "the array for the device assignment is too small"};
    for (size_t i = 0; i < wanted; i++) args->assignment[i] = static_cast<int>(i);
  });
}

Error* client_topology(ObjectArgs<Client, Topology>* args) {
  args->result = &args->object->topology;
  return nullptr;
}

Error* device_id(IntArgs<Device>* args) {
  args->value = args->object->id;
  return nullptr;
}

Error* device_zero(IntArgs<Device>* args) {
  args->value = 0;
  return nullptr;
}

Error* device_attributes(DescriptionAttributesArgs* args) {
  auto* device = static_cast<Device*>(args->description);
  args->attributes = device->attributes.values.data();
  args->num_attributes = device->attributes.values.size();
  return nullptr;
}

template <std::string Device::* field>
Error* device_text(TextArgs<Device>* args) {
  args->text = (args->object->*field).c_str();
  args->text_size = (args->object->*field).size();
  return nullptr;
}

Error* device_description(ObjectArgs<Device, Device>* args) {
  args->result = args->object;
  return nullptr;
}

Error* device_addressable(FlagArgs<Device>* args) {
  args->value = true;
  return nullptr;
}

Error* device_memories(ListArgs<Device, Memory* const>* args) {
  args->items = args->object->memories.data();
  args->count = args->object->memories.size();
  return nullptr;
}

Error* device_default_memory(ObjectArgs<Device, Memory>* args) {
  args->result = args->object->memory.get();
  return nullptr;
}

Error* device_memory_stats(MemoryStatsArgs* args) {
  // the caller leaves the flags as they were
  size_t from = offsetof(MemoryStatsArgs, in_use);
  memset(reinterpret_cast<char*>(args) + from, 0, std::min(args->head.size, sizeof *args) - from);
  Device* device = args->device;
  int64_t left = host_bytes_left();
  std::lock_guard<std::mutex> lock(device->mutex);
  args->in_use = device->in_use;
  args->peak = device->peak;
  args->allocations = device->allocations;
  args->largest = device->largest;
  args->limit = device->limit;
  // the host stands in for the HBM of all devices
  args->reservable = left < 0 ? device->limit : std::min(device->limit, device->in_use + left / device->peers);
  args->peak_set = args->allocations_set = args->largest_set = args->limit_set = args->reservable_set = true;
  return nullptr;
}

Error* device_tracking_event(TrackingEventArgs* args) {
  args->event = nullptr;
  return nullptr;
}

Error* tracking_event_destroy(PlainArgs*) { return nullptr; }

Error* memory_id(IntArgs<Memory>* args) {
  args->value = args->object->id;
  return nullptr;
}

Error* memory_kind_id(IntArgs<Memory>* args) {
  args->value = args->object->kind_id;
  return nullptr;
}

template <std::string Memory::* field>
Error* memory_text(TextArgs<Memory>* args) {
  args->text = (args->object->*field).c_str();
  args->text_size = (args->object->*field).size();
  return nullptr;
}

Error* memory_devices(ListArgs<Memory, Device* const>* args) {
  args->items = &args->object->device;
  args->count = 1;
  return nullptr;
}

Error* topology_create(TopologyCreateArgs* args) {
  return guarded([&] {
    auto topology = std::make_unique<Topology>();
    build(*topology, read_options(args->options, args->num_options));
    args->topology = topology.release();
  });
}

Error* topology_destroy(ObjectArgs<Topology, void>* args) {
  if (args->object && !args->object->lent) delete args->object;
  return nullptr;
}

template <std::string Topology::* field>
Error* topology_text(TextArgs<Topology>* args) {
  args->text = (args->object->*field).c_str();
  args->text_size = (args->object->*field).size();
  return nullptr;
}

Error* topology_devices(ListArgs<Topology, Device* const>* args) {
  args->items = args->object->devices.data();
  args->count = args->object->devices.size();
  return nullptr;
}

Error* topology_serialize(SerializeArgs<Topology>* args) {
  return guarded([&] { hand_out(args, args->object->serialized); });
}

Error* topology_attributes(ListArgs<Topology, const NamedValue>* args) {
  args->items = args->object->attributes.values.data();
  args->count = args->object->attributes.values.size();
  return nullptr;
}

Error* topology_deserialize(TopologyDeserializeArgs* args) {
  return guarded([&] {
    auto topology = std::make_unique<Topology>();
    build(*topology, parse_topology(args->bytes, args->size));
    args->topology = topology.release();
  });
}

Error* update_process_info(ClientArgs*) { return nullptr; }

}  // namespace

void fill_devices(EntryPoint* slots) {
  put<client_create>(slots, 10);
  put<client_destroy>(slots, 11);
  put<client_platform_name>(slots, 12);
  put<client_process_index>(slots, 13);
  put<client_platform_version>(slots, 14);
  put<client_devices>(slots, 15);
  put<client_devices>(slots, 16);  // all of them are addressable
  put<lookup_device>(slots, 17);
  put<lookup_device>(slots, 18);
  put<client_memories>(slots, 19);
  put<default_assignment>(slots, 21);
  put<device_id>(slots, 23);
  put<device_zero>(slots, 24);  // process index
  put<device_attributes>(slots, 25);
  put<device_text<&Device::kind>>(slots, 26);
  put<device_text<&Device::debug>>(slots, 27);
  put<device_text<&Device::text>>(slots, 28);
  put<device_description>(slots, 29);
  put<device_addressable>(slots, 30);
  put<device_id>(slots, 31);  // local hardware id
  put<device_memories>(slots, 32);
  put<device_default_memory>(slots, 33);
  put<device_memory_stats>(slots, 34);
  put<memory_id>(slots, 35);
  put<memory_text<&Memory::kind>>(slots, 36);
  put<memory_text<&Memory::debug>>(slots, 37);
  put<memory_text<&Memory::text>>(slots, 38);
  put<memory_devices>(slots, 39);
  put<topology_create>(slots, 82);
  put<topology_destroy>(slots, 83);
  put<topology_text<&Topology::name>>(slots, 84);
  put<topology_text<&Topology::version>>(slots, 85);
  put<topology_devices>(slots, 86);
  put<topology_serialize>(slots, 87);
  put<topology_attributes>(slots, 88);
  put<client_topology>(slots, 95);
  put<memory_kind_id>(slots, 97);
  put<update_process_info>(slots, 113);
  put<topology_deserialize>(slots, 114);
  put<device_tracking_event>(slots, 122);
  put<tracking_event_destroy>(slots, 123);
}

}  // namespace neuron
