// A kernel in front of a function of tensors: for plain ones of the CPU that no graph, no vmap and no trace follows, it gets
// their arrays and all else as it is, in the order of the function's parameters, and answers an array, or for a write True.
// Whatever it does not take (None, False, a TypeError) goes to the function, which says what a call means.
#include "fast_path/short_call.hpp"

#include "binding/callables.hpp"
#include "binding/kernels.hpp"
#include "fast_path/plain_write.hpp"
#include "tracing/operations.hpp"

#include <numpy/ndarrayobject.h>

namespace resilin {
namespace {

constexpr Py_ssize_t MOST = 8; // parameters

struct Short : Callable {
    static constexpr const char *NAME = "resilin.core._native.ShortCall";
    static constexpr int REFERENCES = 4;
    PyObject *kernel, *otherwise;
    PyObject *names; // of the parameters, a tuple
    bool writes;     // into the first one, which is the result
    bool lists;      // the second parameter is a sequence, here of one tensor
};

// The arguments by the places of their parameters; their number, or -1 where some are missing before others, or unknown.
Py_ssize_t placed(Short *self, PyObject *const *args, Py_ssize_t given, PyObject *names, PyObject **found) {
    const Py_ssize_t total = PyTuple_GET_SIZE(self->names), named = names ? PyTuple_GET_SIZE(names) : 0;
    if (given < 1 || given + named > total || given + named > MOST) return -1;
    std::copy_n(args, given, found);
    std::fill_n(found + given, named, nullptr);
    for (Py_ssize_t i = 0; i < named; i++) {
        Py_ssize_t at = given;
        while (at < given + named && PyTuple_GET_ITEM(self->names, at) != PyTuple_GET_ITEM(names, i)) at++; // interned
        if (at == given + named || found[at]) return -1;
        found[at] = args[given + i];
    }
    return given + named;
}

// Puts arrays in place of plain tensors. False for others.
bool opened(Short *self, PyObject **values, Py_ssize_t count) {
    bool tracked = false;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *value = values[i];
        if (i == 1 && self->lists) {
            if ((!PyTuple_CheckExact(value) && !PyList_CheckExact(value)) || PySequence_Fast_GET_SIZE(value) != 1) return false;
            value = PySequence_Fast_GET_ITEM(value, 0);
            if (!PyObject_TypeCheck(value, classes.tensor)) return false;
        }
        if (!PyObject_TypeCheck(value, classes.tensor)) {
            if (PyArray_Check(value)) return false; // no argument of such a function
            continue;
        }
        const Operand kind = look(value, values[i]);
        if (kind == Operand::other) return false;
        tracked |= kind == Operand::tracked;
    }
    return !tracked || !records();
}

// Whether an array may be written while the others are read: as far as their ends say, no other lies in its memory.
bool apart(PyObject *out, PyObject *const *values, Py_ssize_t count) {
    auto *array = reinterpret_cast<PyArrayObject *>(out);
    if (!PyArray_IS_C_CONTIGUOUS(array)) return false;
    const char *begin = PyArray_BYTES(array), *end = begin + PyArray_NBYTES(array);
    for (Py_ssize_t i = 1; i < count; i++) {
        if (!PyArray_Check(values[i])) continue;
        auto *other = reinterpret_cast<PyArrayObject *>(values[i]);
        const char *low = PyArray_BYTES(other), *high = low + PyDataType_ELSIZE(PyArray_DESCR(other));
        for (int d = 0; d < PyArray_NDIM(other); d++) {
            const npy_intp far = (PyArray_DIM(other, d) - 1) * PyArray_STRIDE(other, d);
            (far < 0 ? low : high) += far;
        }
        if (low < end && begin < high) return false;
    }
    return true;
}

// What the kernel says of these arguments; null, without an error, where the function has to be asked.
PyObject *result_of(Short *self, PyObject **values, Py_ssize_t count) {
    PyObject *made = PyObject_Vectorcall(self->kernel, values, static_cast<size_t>(count), nullptr);
    if (!made) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) PyErr_Clear(); // arguments that no kernel takes
        return nullptr;
    }
    if (made != Py_None && made != Py_False) return made;
    Py_DECREF(made);
    return nullptr;
}

PyObject *call(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    auto *self = reinterpret_cast<Short *>(object);
    PyObject *values[MOST], *made = nullptr;
    const bool free = classes.cpu && unobserved() && !tracing::watched();
    const Py_ssize_t count = free ? placed(self, args, PyVectorcall_NARGS(flagged), names, values) : -1;
    if (count > 0 && PyObject_TypeCheck(values[0], classes.tensor)) {
        PyObject *first = values[0];
        if (!self->writes) {
            made = opened(self, values, count) ? result_of(self, values, count) : nullptr;
            if (made) return wrap(made, classes.cpu);
        } else if (alone(first) && opened(self, values, count) && apart(values[0], values, count)) {
            made = result_of(self, values, count);
            Py_XDECREF(made);
            if (made) return count_write(first) ? Py_NewRef(first) : nullptr;
        }
        if (PyErr_Occurred()) return nullptr;
    }
    return PyObject_Vectorcall(self->otherwise, args, flagged, names);
}

nb::object short_call(nb::object kernel, nb::object otherwise, nb::tuple names, bool writes, bool lists) {
    Short *self = make_callable<Short>(call);
    self->names = PyTuple_New(static_cast<Py_ssize_t>(names.size()));
    if (!self->names) throw nb::python_error();
    for (size_t i = 0; i < names.size(); i++) {
        PyObject *name = nb::object(names[i]).release().ptr();
        PyUnicode_InternInPlace(&name);
        PyTuple_SET_ITEM(self->names, static_cast<Py_ssize_t>(i), name);
    }
    self->kernel = kernel.release().ptr();
    self->otherwise = otherwise.release().ptr();
    self->writes = writes;
    self->lists = lists;
    return finished(self);
}

} // namespace

void bind_short_call(nb::module_ &m) {
    m.attr("ShortCall") = nb::borrow(reinterpret_cast<PyObject *>(callable_type<Short>()));
    m.def("short_call", &short_call, nb::arg("kernel"), nb::arg("otherwise"), nb::arg("names"), nb::arg("writes"),
          nb::arg("lists"));
}

} // namespace resilin
