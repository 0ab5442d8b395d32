// Tensors, views and nodes of the tape as C sees them: objects whose slots are read and written directly.
#pragma once
#include "array.hpp"

#include <structmember.h>

#include <vector>

namespace resilin {

// Set once, when resilin.core is imported, and kept for the life of the process.
struct Classes {
    PyTypeObject *tensor, *parameter, *view, *node;
    Py_ssize_t array, dev, rg, tensor_view, versions, tensor_node;    // offsets of a tensor's slots
    std::vector<Py_ssize_t> tensor_others;                            // those that are None in a new tensor
    Py_ssize_t base, chain, seen, recorded;                           // of a view's
    Py_ssize_t seq, op, impl, node_dev, edges, metas, needs, params; // of a node's
    Py_ssize_t saved, saved_versions, y, freed, outputs, residual;
    std::vector<Py_ssize_t> node_others; // those that are None in a new node
    PyObject *mode;                      // grad_mode.mode
    PyObject *next_seq;                  // numbers the nodes
    PyObject *cpu;                       // the device
    PyObject *active;                    // the list of running vmaps
    PyObject *logs;                      // the list of logs that are told of writes before they happen (state/write_log.py)
};
extern Classes classes;
extern PyObject *host_namespace; // the array namespace that forward functions get on the CPU

inline PyObject *&slot(PyObject *object, Py_ssize_t offset) {
    return *reinterpret_cast<PyObject **>(reinterpret_cast<char *>(object) + offset);
}

// A field of a tensor's array
inline PyArrayObject *array_of(PyObject *tensor) {
    return reinterpret_cast<PyArrayObject *>(slot(tensor, classes.array));
}

PyObject *tuple_of(PyObject *const *items, Py_ssize_t count);

// Whether a tensor requires gradients, or is a view of one that does, or of one that is not known to be none.
inline bool in_graph(PyObject *tensor) {
    if (slot(tensor, classes.rg) == Py_True) return true;
    PyObject *view = slot(tensor, classes.tensor_view);
    if (view == Py_None) return false;
    PyObject *base = slot(view, classes.base);
    return !PyObject_TypeCheck(base, classes.tensor) || slot(base, classes.rg) != Py_False;
}

// What an argument is: no plain tensor of the CPU, or one, whose array is written to `array`; of the latter, whether it
// may be in the graph.
enum class Operand { other, array, tracked };
inline Operand look(PyObject *value, PyObject *&array) {
    if (Py_TYPE(value) != classes.tensor && Py_TYPE(value) != classes.parameter) return Operand::other;
    PyObject *found = slot(value, classes.array);
    if (slot(value, classes.dev) != classes.cpu || !found || !PyArray_CheckExact(found)) return Operand::other;
    array = found;
    return in_graph(value) ? Operand::tracked : Operand::array;
}

// Whether operations are recorded now.
bool records();

// Whether anomalies are looked for now.
bool seeks_anomalies();

// A Tensor on `dev` around `array`, whose reference it takes over; null with an error set.
PyObject *wrap(PyObject *array, PyObject *dev);

// Where the objects of `type` have the slot `name`. nb::type_error without one.
Py_ssize_t offset_of(PyTypeObject *type, const char *name);

// Says that a tensor's elements were written in place, as `Tensor._bump` does; false with an error set.
bool count_write(PyObject *tensor);

// `function` with numpy's warnings off: its context variable has the value `silent` meanwhile.
PyObject *call_silently(PyObject *variable, PyObject *silent, PyObject *function, PyObject *const *args, size_t flagged,
                        PyObject *names);

// Says that `out` is a view of `source`, made by `op` with parameters `params` (a tuple).
bool mark_view(PyObject *out, PyObject *source, PyObject *op, PyObject *params);

// Records that `impl` of `op` computed `out` from the tensors and numbers `inputs`, and gave `residual` or None with it, as
// `tape.record` does.
enum class Recorded { no, yes, failed };
Recorded record(PyObject *out, PyObject *const *inputs, int count, PyObject *op, PyObject *impl, PyObject *params,
                PyObject *residual);

} // namespace resilin
