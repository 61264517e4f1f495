// The only way into Python: compile, execute, serialize, profile, and what else needs the compiler.
//
// `configure` hands over the callables; none of them is called once the interpreter is being finalized, which it is
// after all functions registered with atexit have run. Every entry keeps the exception that may be pending in its
// thread. Objects released by threads that do not hold Python's lock wait in a list for the next entry.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <map>

#include "objects.h"

// exported by every CPython, missing from the headers of the limited interface
extern "C" int PyGILState_Check(void);

namespace neuron {

namespace {

enum Callable {
  kCompile,
  kDeserialize,
  kSerialize,
  kExecute,
  kCost,
  kOptimized,
  kStartProfile,
  kStopProfile,
  kCollectProfile,
  kCallables
};
const char* const kNames[kCallables] = {"compile",   "deserialize",   "serialize",    "execute",        "cost",
                                        "optimized", "start_profile", "stop_profile", "collect_profile"};

PyObject* callables[kCallables] = {};
std::atomic<bool> configured{false};
std::mutex trash_mutex;
std::vector<PyObject*> trash;
std::atomic<bool> has_trash{false};

void empty_trash() {
  if (!has_trash) return;
  std::vector<PyObject*> taken;
  {
    std::lock_guard<std::mutex> lock(trash_mutex);
    taken.swap(trash);
    has_trash = false;
  }
  for (PyObject* each : taken) Py_DECREF(each);
}

// CPython counts as initialized until its exit functions have run; the question needs no lock.
bool running() { return configured && Py_IsInitialized(); }

class Python {
 public:
  Python() {
    if (!running()) throw Failure{kFailedPrecondition, "the interpreter is shutting down"};
    state_ = PyGILState_Ensure();
    PyErr_Fetch(&type_, &value_, &trace_);
    empty_trash();
  }
  ~Python() {
    PyErr_Restore(type_, value_, trace_);
    PyGILState_Release(state_);
  }
  Python(const Python&) = delete;
  Python& operator=(const Python&) = delete;

 private:
  PyGILState_STATE state_;
  PyObject *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

struct Reference {
  PyObject* object;
  explicit Reference(PyObject* owned) : object(owned) {}
  Reference(Reference&& other) noexcept : object(other.object) { other.object = nullptr; }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  ~Reference() { Py_XDECREF(object); }
  operator PyObject*() const { return object; }
};

std::string text_of(PyObject* object) {
  Py_ssize_t size = 0;
  const char* text = object ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
  if (text) return std::string(text, static_cast<size_t>(size));
  PyErr_Clear();
  return "";
}

// Turns the pending Python exception into a Failure: the code is its `pjrt_code`, or follows from its class.
[[noreturn]] void fail() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  Reference keep_type(type), keep_value(value), keep_trace(trace);
  Failure failure{kInternal, "an unknown Python error"};
  if (value) {
    static const std::pair<PyObject**, int> kinds[] = {
        {&PyExc_NotImplementedError, kUnimplemented}, {&PyExc_MemoryError, kResourceExhausted},
        {&PyExc_KeyboardInterrupt, kCancelled},       {&PyExc_ValueError, kInvalidArgument},
        {&PyExc_TypeError, kInvalidArgument},
    };
    for (auto [kind, code] : kinds) {
      if (PyErr_GivenExceptionMatches(value, *kind)) {
        failure.code = code;
        break;
      }
    }
    Reference code(PyObject_GetAttrString(value, "pjrt_code"));
    if (code) {
      long number = PyLong_AsLong(code);
      if (number > 0) failure.code = static_cast<int>(number);
    }
    PyErr_Clear();
    Reference message(PyObject_Str(value));
    failure.message = text_of(message);
    if (failure.message.empty()) failure.message = "an error without a message";
  }
  PyErr_Clear();
  throw failure;
}

PyObject* checked(PyObject* result) {
  if (!result) fail();
  return result;
}

Reference call(Callable which, std::initializer_list<PyObject*> arguments) {
  Reference tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(arguments.size()))));
  Py_ssize_t at = 0;
  for (PyObject* argument : arguments) PyTuple_SetItem(tuple, at++, checked(argument));
  return Reference(checked(PyObject_CallObject(callables[which], tuple)));
}

Reference field(PyObject* object, const char* name) { return Reference(checked(PyObject_GetAttrString(object, name))); }

std::string read_text(PyObject* object) {
  if (PyBytes_Check(object)) {
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(object, &data, &size) < 0) fail();
    return std::string(data, static_cast<size_t>(size));
  }
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &size);
  if (!text) fail();
  return std::string(text, static_cast<size_t>(size));
}

int64_t read_integer(PyObject* object) {
  long long number = PyLong_AsLongLong(object);
  if (number == -1 && PyErr_Occurred()) fail();
  return number;
}

template <typename Each>
void for_each(PyObject* sequence, Each each) {
  Py_ssize_t count = PySequence_Size(sequence);
  if (count < 0) fail();
  for (Py_ssize_t i = 0; i < count; i++) {
    Reference item(checked(PySequence_GetItem(sequence, i)));
    each(item.object);
  }
}

std::vector<int64_t> read_integers(PyObject* sequence) {
  std::vector<int64_t> numbers;
  for_each(sequence, [&](PyObject* item) { numbers.push_back(read_integer(item)); });
  return numbers;
}

void read_shardings(PyObject* program, const char* name, Texts& texts) {
  Reference list = field(program, name);
  if (list.object == Py_None) return;
  texts.known = true;
  for_each(list, [&](PyObject* item) { texts.values.push_back(read_text(item)); });
}

// Copies what jaxlib may ask about a program (driver.jax_backend.program.DeviceProgram) out of Python.
std::shared_ptr<Compiled> read_program(PyObject* program) {
  auto compiled = std::make_shared<Compiled>();
  compiled->name = read_text(field(program, "name"));
  compiled->fingerprint = read_text(field(program, "fingerprint"));
  compiled->options = read_text(field(program, "options"));
  compiled->assignment = read_text(field(program, "assignment"));
  compiled->num_replicas = static_cast<size_t>(read_integer(field(program, "num_replicas")));
  compiled->num_partitions = static_cast<size_t>(read_integer(field(program, "num_partitions")));
  compiled->num_params = static_cast<size_t>(read_integer(field(program, "num_parameters")));
  for (int64_t rank : read_integers(field(program, "parameter_ranks"))) {
    compiled->parameter_layouts.push_back(dense_layout(static_cast<size_t>(rank)));
  }
  for (int64_t id : read_integers(field(program, "device_ids"))) compiled->device_ids.push_back(static_cast<int>(id));
  for (int64_t id : read_integers(field(program, "donated"))) compiled->donated.push_back(static_cast<int>(id));
  for_each(field(program, "outputs"), [&](PyObject* item) {
    Compiled::Output output;
    output.type = static_cast<int>(read_integer(Reference(checked(PySequence_GetItem(item, 0)))));
    output.dims = read_integers(Reference(checked(PySequence_GetItem(item, 1))));
    output.kind = read_text(Reference(checked(PySequence_GetItem(item, 2))));
    output.donor = static_cast<int>(read_integer(Reference(checked(PySequence_GetItem(item, 3)))));
    compiled->outputs.push_back(std::move(output));
  });
  compiled->code_bytes = read_integer(field(program, "code_bytes"));
  compiled->constant_bytes = read_integer(field(program, "constant_bytes"));
  compiled->argument_bytes = read_integer(field(program, "argument_bytes"));
  compiled->output_bytes = read_integer(field(program, "output_bytes"));
  compiled->alias_bytes = read_integer(field(program, "alias_bytes"));
  compiled->temp_bytes = read_integer(field(program, "temp_bytes"));
  read_shardings(program, "parameter_shardings", compiled->parameter_shardings);
  read_shardings(program, "output_shardings", compiled->output_shardings);
  compiled->finish();
  Py_INCREF(program);
  compiled->python = program;
  return compiled;
}

PyObject* bytes_of(const char* data, size_t size) {
  return PyBytes_FromStringAndSize(data ? data : "", static_cast<Py_ssize_t>(size));
}

PyObject* shared(Compiled& compiled) {
  auto* object = static_cast<PyObject*>(compiled.python);
  Py_INCREF(object);
  return object;
}

// Lists of views of the bytes, valid during the call only.
PyObject* views(const std::vector<std::vector<std::shared_ptr<Storage>>>& rows, int access) {
  Reference lists(checked(PyList_New(static_cast<Py_ssize_t>(rows.size()))));
  for (size_t row = 0; row < rows.size(); row++) {
    Reference list(checked(PyList_New(static_cast<Py_ssize_t>(rows[row].size()))));
    for (size_t i = 0; i < rows[row].size(); i++) {
      const Storage& storage = *rows[row][i];
      PyObject* view = PyMemoryView_FromMemory(storage.data, static_cast<Py_ssize_t>(storage.size), access);
      PyList_SetItem(list, static_cast<Py_ssize_t>(i), checked(view));
    }
    PyList_SetItem(lists, static_cast<Py_ssize_t>(row), list.object);
    list.object = nullptr;
  }
  PyObject* made = lists.object;
  lists.object = nullptr;
  return made;
}

}  // namespace

bool holds_gil() { return running() && PyGILState_Check(); }

namespace {
std::mutex prepared_mutex;
std::shared_ptr<Compiled> prepared;
}  // namespace

std::shared_ptr<Compiled> prepared_program() {
  std::lock_guard<std::mutex> lock(prepared_mutex);
  return prepared;
}

void drop_python(void* object) {
  if (!object || !running()) return;  // objects that outlive the interpreter are left to the end of the process
  std::lock_guard<std::mutex> lock(trash_mutex);
  trash.push_back(static_cast<PyObject*>(object));
  has_trash = true;
}

std::shared_ptr<Compiled> compile(const Program& program, const char* options, size_t size, const Topology& topology) {
  Python python;
  return read_program(call(
      kCompile, {bytes_of(program.code, program.code_size),
                 PyUnicode_FromStringAndSize(program.format, static_cast<Py_ssize_t>(program.format_size)),
                 bytes_of(options, size), PyLong_FromSize_t(topology.devices.size())}));
}

std::shared_ptr<Compiled> deserialize(const char* bytes, size_t size, const char* options, size_t options_size) {
  Python python;
  return read_program(call(kDeserialize, {bytes_of(bytes, size), bytes_of(options, options_size)}));
}

std::string serialize(Compiled& compiled) {
  Python python;
  return read_text(call(kSerialize, {shared(compiled)}));
}

void execute(Compiled& compiled, const Launch& launch) {
  Python python;
  Reference ids(checked(PyTuple_New(static_cast<Py_ssize_t>(launch.device_ids.size()))));
  for (size_t i = 0; i < launch.device_ids.size(); i++) {
    PyTuple_SetItem(ids, static_cast<Py_ssize_t>(i), checked(PyLong_FromLong(launch.device_ids[i])));
  }
  Py_INCREF(ids.object);
  call(kExecute, {shared(compiled), PyLong_FromLong(launch.launch_id), ids.object, views(launch.inputs, PyBUF_READ),
                  views(launch.outputs, PyBUF_WRITE)});
}

std::unique_ptr<Attributes> cost_of(Compiled& compiled) {
  Python python;
  Reference pairs = call(kCost, {shared(compiled)});
  auto attributes = std::make_unique<Attributes>();
  for_each(pairs, [&](PyObject* item) {
    std::string name = read_text(Reference(checked(PySequence_GetItem(item, 0))));
    double value = PyFloat_AsDouble(Reference(checked(PySequence_GetItem(item, 1))));
    if (PyErr_Occurred()) fail();
    attributes->real(name, static_cast<float>(value));
  });
  return attributes;
}

std::string optimized_program(Compiled& compiled) {
  Python python;
  return read_text(call(kOptimized, {shared(compiled)}));
}

int64_t start_profile() {
  Python python;
  return read_integer(call(kStartProfile, {}));
}

void stop_profile(int64_t session) {
  Python python;
  call(kStopProfile, {PyLong_FromLongLong(session)});
}

std::string collect_profile(int64_t session) {
  Python python;
  return read_text(call(kCollectProfile, {PyLong_FromLongLong(session)}));
}

namespace {

PyObject* configure(PyObject*, PyObject* functions) {
  for (int i = 0; i < kCallables; i++) {
    PyObject* function = PyDict_Check(functions) ? PyDict_GetItemString(functions, kNames[i]) : nullptr;
    if (!function) return PyErr_Format(PyExc_TypeError, "configure takes a dict with the key %s", kNames[i]);
    Py_INCREF(function);
    Py_XDECREF(callables[i]);
    callables[i] = function;
  }
  configured = true;
  Py_RETURN_NONE;
}

PyObject* prepare(PyObject*, PyObject* program) {
  try {
    auto made = program == Py_None ? nullptr : read_program(program);
    std::lock_guard<std::mutex> lock(prepared_mutex);
    prepared.swap(made);
  } catch (const Failure& failure) {
    return PyErr_Format(PyExc_RuntimeError, "%s", failure.message.c_str());
  }
  Py_RETURN_NONE;
}

PyObject* api_address(PyObject*, PyObject*) { return PyLong_FromVoidPtr(const_cast<Api*>(api())); }

PyMethodDef methods[] = {
    {"configure", configure, METH_O, "Hand over the functions that compile and execute: a dict by name."},
    {"prepare", prepare, METH_O, "The program that the next compilation for a topology gives; None for none."},
    {"api_address", api_address, METH_NOARGS, "Address of the PJRT table, for tests."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_pjrt", "Devices, buffers and executables of the JAX backend.", -1,
                          methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

}  // namespace neuron

PyMODINIT_FUNC PyInit__pjrt() { return PyModule_Create(&neuron::definition); }
