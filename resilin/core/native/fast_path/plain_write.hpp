// When the memory of a plain tensor may be written without more: what the short ways of in-place operations ask first.
#pragma once
#include "binding/tensors.hpp"

namespace resilin {

// Whether a write of this tensor concerns nobody but itself: it is no view whose base is in the graph, and its counter
// is a plain one.
inline bool alone(PyObject *tensor) {
    PyObject *view = slot(tensor, classes.tensor_view), *counter = slot(tensor, classes.versions);
    if (counter != Py_None && !PyList_CheckExact(counter)) return false;
    if (view == Py_None) return true;
    PyObject *base = slot(view, classes.base);
    return Py_TYPE(base) == classes.tensor && slot(base, classes.rg) == Py_False;
}

// Whether nobody has to be told of a write before it happens: no vmap runs, and there is no log.
inline bool unobserved() { return !PyList_GET_SIZE(classes.active) && !PyList_GET_SIZE(classes.logs); }

} // namespace resilin
