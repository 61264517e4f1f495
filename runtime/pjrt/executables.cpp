// Executables: what jaxlib asks about compiled programs, and launching them on devices.

#include <algorithm>
#include <set>

#include "objects.h"

namespace neuron {

void Texts::finish() {
  pointers.clear();
  sizes.clear();
  for (const std::string& each : values) {
    pointers.push_back(each.c_str());
    sizes.push_back(each.size());
  }
}

Compiled::~Compiled() { drop_python(python); }

void Compiled::finish() {
  for (const Output& output : outputs) {
    output_types.push_back(output.type);
    output_ranks.push_back(output.dims.size());
    output_dims.insert(output_dims.end(), output.dims.begin(), output.dims.end());
    output_kinds.values.push_back(output.kind);
    output_layouts.push_back(dense_layout(output.dims.size()));
  }
  output_kinds.finish();
  parameter_shardings.finish();
  output_shardings.finish();
}

// The constants of a loaded program occupy HBM of each of its devices.
LoadedExecutable* load(std::shared_ptr<Compiled> compiled, Client* client) {
  auto loaded = std::make_unique<LoadedExecutable>();
  loaded->compiled = std::move(compiled);
  loaded->client = client;
  const Compiled& facts = *loaded->compiled;
  for (size_t i = 0; i < facts.device_ids.size(); i++) {
    int id = facts.device_ids[i];
    if (id < 0 || static_cast<size_t>(id) >= client->topology.devices.size()) {
      throw Failure{kInvalidArgument, "the program is for device " + std::to_string(id) + ", which is not there"};
    }
    loaded->devices.push_back(client->topology.devices[static_cast<size_t>(id)]);
    loaded->logical_ids.push_back(static_cast<int>(i / facts.num_partitions));
    loaded->logical_ids.push_back(static_cast<int>(i % facts.num_partitions));
  }
  size_t done = 0;
  try {
    for (; done < loaded->devices.size(); done++) {
      loaded->devices[done]->claim(facts.constant_bytes, "the constants of program " + facts.name);
    }
  } catch (const Failure&) {
    while (done-- > 0) loaded->devices[done]->release(facts.constant_bytes);
    throw;
  }
  loaded->claimed = true;
  return loaded.release();
}

void LoadedExecutable::unload() {
  if (deleted.exchange(true)) return;
  if (claimed) {
    for (Device* device : devices) device->release(compiled->constant_bytes);
  }
}

LoadedExecutable::~LoadedExecutable() { unload(); }

namespace {

// Scratch memory that a program needs while it runs, on each device.
struct Scratch {
  const std::vector<Device*>& devices;
  int64_t bytes;
  size_t claimed = 0;
  Scratch(const std::vector<Device*>& places, const Compiled& compiled)
      : devices(places), bytes(compiled.temp_bytes) {
    try {
      for (; claimed < devices.size(); claimed++) {
        devices[claimed]->claim(bytes, "the scratch memory of program " + compiled.name);
      }
    } catch (const Failure&) {
      give_back();
      throw;
    }
  }
  void give_back() {
    while (claimed > 0) devices[--claimed]->release(bytes);
  }
  ~Scratch() { give_back(); }
};

struct Arguments {
  const ExecuteArgs* args;
  std::vector<char> donates;  // by parameter
  const Error* failed = nullptr;

  Arguments(const ExecuteArgs* given, const Compiled& compiled) : args(given), donates(given->num_args) {
    for (int parameter : compiled.donated) {
      if (parameter >= 0 && static_cast<size_t>(parameter) < donates.size()) donates[parameter] = 1;
    }
    const ExecuteOptions* options = args->options;
    for (size_t i = 0; options && i < options->num_non_donatable; i++) {
      int64_t parameter = options->non_donatable[i];
      if (parameter >= 0 && static_cast<size_t>(parameter) < donates.size()) donates[parameter] = 0;
    }
  }

  // The bytes of one device's arguments. A failed argument is noted in `failed`.
  std::vector<std::shared_ptr<Storage>> collect(size_t row) {
    std::vector<std::shared_ptr<Storage>> storages(args->num_args);
    std::set<const Buffer*> given_up;
    for (size_t i = 0; i < args->num_args; i++) {
      if (donates[i] && !given_up.insert(args->arguments[row][i]).second) twice();
    }
    for (size_t i = 0; i < args->num_args; i++) {
      Buffer* buffer = args->arguments[row][i];
      if (!donates[i] && !given_up.empty() && given_up.count(buffer)) twice();
      std::lock_guard<std::mutex> lock(buffer->mutex);
      if (buffer->error) {
        failed = buffer->error.get();
        continue;
      }
      if (!buffer->storage) throw Failure{kInvalidArgument, "Array has been deleted."};
      storages[i] = buffer->storage;
    }
    return storages;
  }

  // Donated arguments belong to the program now.
  void give_up() {
    for (size_t row = 0; row < args->num_devices; row++) {
      for (size_t i = 0; i < args->num_args; i++) {
        if (!donates[i]) continue;
        Buffer* buffer = args->arguments[row][i];
        std::shared_ptr<Storage> released;
        std::lock_guard<std::mutex> lock(buffer->mutex);
        released.swap(buffer->storage);
        buffer->deleted = true;
      }
    }
  }

  [[noreturn]] static void twice() {
    throw Failure{kInvalidArgument, "Attempt to donate the same buffer twice in Execute(), or to donate a buffer that "
                                    "is also used otherwise in the same call"};
  }
};

Memory* memory_of_kind(Device* device, const std::string& kind) {
  return kind == device->host_memory->kind ? device->host_memory.get() : device->memory.get();
}

// An output takes over the memory of the argument donated for it, unless somebody else holds that memory.
std::unique_ptr<Buffer> make_output(const Compiled::Output& output, Device* device, const Arguments& arguments,
                                    size_t row, const std::vector<std::shared_ptr<Storage>>& inputs) {
  Memory* memory = memory_of_kind(device, output.kind);
  if (output.donor >= 0 && static_cast<size_t>(output.donor) < inputs.size() && arguments.donates[output.donor]) {
    const auto& donor = inputs[static_cast<size_t>(output.donor)];
    const Buffer* given = arguments.args->arguments[row][output.donor];
    // referenced by the argument's buffer and by `inputs`
    if (donor && donor.use_count() == 2 && given->memory == memory && given->type == output.type &&
        given->dims == output.dims) {
      auto buffer = std::make_unique<Buffer>(output.type, output.dims, memory);
      buffer->storage = donor;
      return buffer;
    }
  }
  return std::unique_ptr<Buffer>(new_buffer(output.type, output.dims, memory));
}

Error* execute_launch(ExecuteArgs* args) {
  return guarded([&] {
    LoadedExecutable& loaded = *args->executable;
    if (loaded.deleted) throw Failure{kFailedPrecondition, "the executable has been deleted"};
    Compiled& compiled = *loaded.compiled;
    if (args->num_args != compiled.num_params) {
      throw Failure{kInvalidArgument, "program " + compiled.name + " takes " + std::to_string(compiled.num_params) +
                                          " arguments, " + std::to_string(args->num_args) + " given"};
    }
    std::vector<Device*> devices = loaded.devices;
    if (args->execute_device) devices = {args->execute_device};
    if (devices.size() != args->num_devices) {
      throw Failure{kInvalidArgument, "program " + compiled.name + " runs on " + std::to_string(devices.size()) +
                                          " devices, arguments for " + std::to_string(args->num_devices) + " given"};
    }
    Arguments arguments(args, compiled);
    Launch launch;
    launch.launch_id = args->options ? args->options->launch_id : 0;
    for (size_t row = 0; row < devices.size(); row++) {
      launch.device_ids.push_back(devices[row]->id);
      launch.inputs.push_back(arguments.collect(row));
    }
    std::vector<std::vector<std::unique_ptr<Buffer>>> results(devices.size());
    if (arguments.failed) {
      for (size_t row = 0; row < devices.size(); row++) {
        for (const auto& output : compiled.outputs) {
          results[row].emplace_back(failed_buffer(output.type, output.dims, memory_of_kind(devices[row], output.kind),
                                                  arguments.failed->code, arguments.failed->message));
        }
      }
    } else {
      Scratch scratch(devices, compiled);
      for (size_t row = 0; row < devices.size(); row++) {
        launch.outputs.emplace_back();
        for (const auto& output : compiled.outputs) {
          results[row].push_back(make_output(output, devices[row], arguments, row, launch.inputs[row]));
          launch.outputs[row].push_back(results[row].back()->storage);
        }
      }
      try {
        execute(compiled, launch);
      } catch (Failure& failure) {
        arguments.give_up();  // results may have been written over them
        if (failure.code == kResourceExhausted) failure.message += "; largest buffers: " + Storage::largest(nullptr);
        throw;
      }
    }
    arguments.give_up();
    for (size_t row = 0; row < devices.size(); row++) {
      for (size_t i = 0; i < results[row].size(); i++) args->outputs[row][i] = results[row][i].release();
      if (args->complete_events) args->complete_events[row] = new Event;
    }
  });
}

Error* client_compile(CompileArgs* args) {
  return guarded([&] {
    auto compiled = compile(*args->program, args->options, args->options_size, args->client->topology);
    args->executable = load(std::move(compiled), args->client);
  });
}

Error* topology_compile(TopologyCompileArgs* args) {
  return guarded([&] {
    if (auto compiled = prepared_program()) {
      args->executable = new Executable{std::move(compiled)};
      return;
    }
    if (!holds_gil()) {
      // this jaxlib waits for the compilation with Python's lock held, so entering Python would never return
      throw Failure{kUnimplemented,
                    "this version of jaxlib cannot compile for a topology without its devices; compile for devices"};
    }
    auto compiled = compile(*args->program, args->options, args->options_size, *args->topology);
    args->executable = new Executable{std::move(compiled)};
  });
}

Error* client_load(ClientLoadArgs* args) {
  return guarded([&] { args->loaded = load(args->executable->compiled, args->client); });
}

Error* deserialize_and_load(DeserializeArgs* args) {
  return guarded([&] {
    const char* options = COVERS(args, options_size) ? args->options : nullptr;
    auto compiled = deserialize(args->bytes, args->size, options, options ? args->options_size : 0);
    args->loaded = load(std::move(compiled), args->client);
  });
}

Error* executable_destroy(ObjectArgs<Executable, void>* args) {
  delete args->object;
  return nullptr;
}

Error* executable_name(TextArgs<Executable>* args) {
  args->text = args->object->compiled->name.c_str();
  args->text_size = args->object->compiled->name.size();
  return nullptr;
}

Error* num_replicas(SizeArgs<Executable>* args) {
  args->value = args->object->compiled->num_replicas;
  return nullptr;
}

Error* num_partitions(SizeArgs<Executable>* args) {
  args->value = args->object->compiled->num_partitions;
  return nullptr;
}

Error* num_outputs(SizeArgs<Executable>* args) {
  args->value = args->object->compiled->outputs.size();
  return nullptr;
}

Error* code_bytes(Int64Args<Executable>* args) {
  args->value = args->object->compiled->code_bytes;
  return nullptr;
}

Error* cost_analysis(CostArgs* args) {
  return guarded([&] {
    Compiled& compiled = *args->executable->compiled;
    bool missing;
    {
      std::lock_guard<std::mutex> lock(compiled.mutex);
      missing = !compiled.cost;
    }
    auto cost = missing ? cost_of(compiled) : nullptr;
    std::lock_guard<std::mutex> lock(compiled.mutex);
    if (!compiled.cost) compiled.cost = std::move(cost);
    args->num_properties = compiled.cost->values.size();
    args->properties = compiled.cost->values.data();
  });
}

Error* output_kinds(OutputKindsArgs* args) {
  const Compiled& compiled = *args->executable->compiled;
  args->num_outputs = compiled.outputs.size();
  args->kinds = compiled.output_kinds.pointers.data();
  args->kind_sizes = compiled.output_kinds.sizes.data();
  return nullptr;
}

Error* output_types(ListArgs<Executable, int>* args) {
  args->items = args->object->compiled->output_types.data();
  args->count = args->object->compiled->output_types.size();
  return nullptr;
}

Error* output_dimensions(OutputDimensionsArgs* args) {
  const Compiled& compiled = *args->executable->compiled;
  args->num_outputs = compiled.outputs.size();
  args->dims = compiled.output_dims.data();
  args->ranks = compiled.output_ranks.data();
  return nullptr;
}

// Called twice: for the size, then for the bytes.
Error* optimized(OptimizedProgramArgs* args) {
  return guarded([&] {
    static const std::string format = "hlo_with_config";
    Compiled& compiled = *args->executable->compiled;
    std::string made;
    bool missing;
    {
      std::lock_guard<std::mutex> lock(compiled.mutex);
      missing = !compiled.has_optimized;
    }
    if (missing) made = optimized_program(compiled);
    std::lock_guard<std::mutex> lock(compiled.mutex);
    if (!compiled.has_optimized) {
      compiled.optimized = std::move(made);
      compiled.has_optimized = true;
    }
    args->program->format = format.c_str();
    args->program->format_size = format.size();
    if (args->program->code) {
      if (args->program->code_size < compiled.optimized.size()) throw Failure{kInvalidArgument, "too small a buffer"};
      std::copy(compiled.optimized.begin(), compiled.optimized.end(), args->program->code);
    }
    args->program->code_size = compiled.optimized.size();
  });
}

Error* executable_serialize(SerializeArgs<Executable>* args) {
  return guarded([&] { hand_out(args, serialize(*args->object->compiled)); });
}

Error* fingerprint(TextArgs<Executable>* args) {
  args->text = args->object->compiled->fingerprint.data();
  args->text_size = args->object->compiled->fingerprint.size();
  return nullptr;
}

Error* loaded_fingerprint(TextArgs<LoadedExecutable>* args) {
  args->text = args->object->compiled->fingerprint.data();
  args->text_size = args->object->compiled->fingerprint.size();
  return nullptr;
}

Error* compile_options(SerializeArgs<Executable>* args) {
  return guarded([&] { hand_out(args, args->object->compiled->options); });
}

Error* device_assignment(SerializeArgs<LoadedExecutable>* args) {
  return guarded([&] { hand_out(args, args->object->compiled->assignment); });
}

Error* compiled_memory(CompiledMemoryArgs* args) {
  const Compiled& compiled = *args->executable->compiled;
  args->code = compiled.code_bytes + compiled.constant_bytes;
  args->arguments = compiled.argument_bytes;
  args->outputs = compiled.output_bytes;
  args->aliases = compiled.alias_bytes;
  args->temporaries = compiled.temp_bytes;
  args->host_code = args->host_arguments = args->host_outputs = args->host_aliases = args->host_temporaries = 0;
  int64_t total = compiled.constant_bytes + compiled.argument_bytes + compiled.output_bytes - compiled.alias_bytes +
                  compiled.temp_bytes;
  if (COVERS(args, peak)) args->peak = total;
  if (COVERS(args, total)) args->total = total;
  return nullptr;
}

Error* loaded_destroy(ObjectArgs<LoadedExecutable, void>* args) {
  delete args->object;
  return nullptr;
}

Error* loaded_executable(ObjectArgs<LoadedExecutable, Executable>* args) {
  args->result = new Executable{args->object->compiled};
  return nullptr;
}

Error* loaded_devices(ListArgs<LoadedExecutable, Device* const>* args) {
  args->items = args->object->devices.data();
  args->count = args->object->devices.size();
  return nullptr;
}

Error* loaded_delete(ObjectArgs<LoadedExecutable, void>* args) {
  args->object->unload();
  return nullptr;
}

Error* loaded_is_deleted(FlagArgs<LoadedExecutable>* args) {
  args->value = args->object->deleted;
  return nullptr;
}

}  // namespace

void fill_executables(EntryPoint* slots) {
  put<client_compile>(slots, 20);
  put<executable_destroy>(slots, 40);
  put<executable_name>(slots, 41);
  put<num_replicas>(slots, 42);
  put<num_partitions>(slots, 43);
  put<num_outputs>(slots, 44);
  put<code_bytes>(slots, 45);
  put<cost_analysis>(slots, 46);
  put<output_kinds>(slots, 47);
  put<optimized>(slots, 48);
  put<executable_serialize>(slots, 49);
  put<loaded_destroy>(slots, 50);
  put<loaded_executable>(slots, 51);
  put<loaded_devices>(slots, 52);
  put<loaded_delete>(slots, 53);
  put<loaded_is_deleted>(slots, 54);
  put<execute_launch>(slots, 55);
  put<deserialize_and_load>(slots, 56);
  put<loaded_fingerprint>(slots, 57);
  put<topology_compile>(slots, 89);
  put<output_types>(slots, 90);
  put<output_dimensions>(slots, 91);
  put<fingerprint>(slots, 94);
  put<compiled_memory>(slots, 96);
  put<device_assignment>(slots, 117);
  put<compile_options>(slots, 124);
  put<client_load>(slots, 129);
}

}  // namespace neuron
