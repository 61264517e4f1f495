// Extensions of the interface: shardings of an executable's arguments and results, and layouts.
//
// Without them jaxlib asks for the optimised program of every executable, and parses it several times.

#include "objects.h"

namespace neuron {

namespace {

struct ShardingsExtension {
  ExtensionBase base;
  Error* (*parameters)(ShardingsArgs*);
  Error* (*outputs)(ShardingsArgs*);
};

struct LayoutsExtension {
  ExtensionBase base;
  Error* (*destroy)(LayoutTextArgs*);
  Error* (*serialize)(LayoutTextArgs*);
  Error* (*of_client)(DefaultLayoutArgs<Client>*);
  Error* (*of_buffer)(ObjectArgs<Buffer, Layout>*);
  Error* (*of_topology)(DefaultLayoutArgs<Topology>*);
  Error* (*outputs)(LayoutsArgs*);
  Error* (*parameters)(LayoutsArgs*);
};

Error* hand_shardings(ShardingsArgs* args, const Texts& shardings) {
  args->count = shardings.known ? shardings.values.size() : 0;
  args->shardings = shardings.known ? shardings.pointers.data() : nullptr;
  args->sizes = shardings.known ? shardings.sizes.data() : nullptr;
  return nullptr;
}

Error* parameter_shardings(ShardingsArgs* args) {
  return hand_shardings(args, args->executable->compiled->parameter_shardings);
}

Error* output_shardings(ShardingsArgs* args) {
  return hand_shardings(args, args->executable->compiled->output_shardings);
}

Error* layout_destroy(LayoutTextArgs*) { return nullptr; }  // layouts are shared and live for ever

Error* layout_serialize(LayoutTextArgs* args) {
  args->bytes = args->layout->data();
  args->size = args->layout->size();
  args->holder = nullptr;
  args->deleter = [](void*) {};
  return nullptr;
}

template <typename T>
Error* default_layout(DefaultLayoutArgs<T>* args) {
  return guarded([&] { args->layout = dense_layout(args->num_dims); });
}

Error* buffer_layout(ObjectArgs<Buffer, Layout>* args) {
  return guarded([&] { args->result = dense_layout(args->object->dims.size()); });
}

Error* output_layouts(LayoutsArgs* args) {
  const auto& layouts = args->executable->compiled->output_layouts;
  args->count = layouts.size();
  args->layouts = layouts.data();
  return nullptr;
}

Error* parameter_layouts(LayoutsArgs* args) {
  const auto& layouts = args->executable->compiled->parameter_layouts;
  args->count = layouts.size();
  args->layouts = layouts.data();
  return nullptr;
}

}  // namespace

Layout* dense_layout(size_t rank) {
  // never destroyed: jaxlib may ask while the process ends
  static std::mutex& mutex = *new std::mutex;
  static auto& texts = *new std::map<size_t, std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  std::string& text = texts[rank];
  if (text.empty()) {
    for (size_t dim = rank; dim-- > 0;) text += (text.empty() ? "" : ",") + std::to_string(dim);
    text = "{" + text + "}";
  }
  return &text;
}

ExtensionBase* extensions() {
  static LayoutsExtension layouts{{sizeof(LayoutsExtension), kLayoutsExtension, profiler_extension()},
                                  entry<layout_destroy>,
                                  entry<layout_serialize>,
                                  entry<default_layout<Client>>,
                                  entry<buffer_layout>,
                                  entry<default_layout<Topology>>,
                                  entry<output_layouts>,
                                  entry<parameter_layouts>};
  static ShardingsExtension shardings{{sizeof(ShardingsExtension), kShardingsExtension, &layouts.base},
                                      entry<parameter_shardings>,
                                      entry<output_shardings>};
  return &shardings.base;
}

}  // namespace neuron
