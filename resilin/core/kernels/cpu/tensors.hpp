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
    Py_ssize_t saved, saved_versions, y, freed, outputs;
    std::vector<Py_ssize_t> node_others; // those that are None in a new node
    PyObject *mode;                      // grad_mode.mode
    PyObject *next_seq;                  // numbers the nodes
};
extern Classes classes;

inline PyObject *&slot(PyObject *object, Py_ssize_t offset) {
    return *reinterpret_cast<PyObject **>(reinterpret_cast<char *>(object) + offset);
}

// A field of a tensor's array
inline PyArrayObject *array_of(PyObject *tensor) {
    return reinterpret_cast<PyArrayObject *>(slot(tensor, classes.array));
}

PyObject *tuple_of(PyObject *const *items, Py_ssize_t count);

// Says that `out` is a view of `source`, a tensor that is none itself, made by `op` with parameters `params` (a tuple).
bool mark_view(PyObject *out, PyObject *source, PyObject *op, PyObject *params);

// Records that `impl` of `op` computed `out` from the tensors and numbers `inputs`, as `tape.record` does.
enum class Recorded { no, yes, failed };
Recorded record(PyObject *out, PyObject *const *inputs, int count, PyObject *op, PyObject *impl, PyObject *params);

} // namespace resilin
