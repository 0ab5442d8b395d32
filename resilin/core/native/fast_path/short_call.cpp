// A kernel in front of a function of tensors: for plain ones of the CPU that no graph, no vmap and no trace follows, it gets
// their arrays and all else as it is, in the order of the function's parameters, and answers an array, or for a write True.
// Whatever it does not take (None, False, a TypeError) goes to the function, which says what a call means.
#include "fast_path/short_call.hpp"

#include "binding/callables.hpp"
#include "binding/kernels.hpp"
#include "fast_path/plain_write.hpp"
#include "tracing/operations.hpp"

#include <numpy/ndarrayobject.h>

#include <algorithm>

namespace resilin {
namespace {

constexpr Py_ssize_t MOST = 8; // parameters

struct Short : Callable {
    static constexpr const char *NAME = "resilin.core._native.ShortCall";
    static constexpr int REFERENCES = 5;
    PyObject *kernel, *otherwise;
    PyObject *names;    // of the parameters, a tuple
    PyObject *defaults; // theirs, a tuple: an ellipsis for none
    bool writes;     // into the first one, which is the result
    bool lists;      // the second parameter is a sequence, here of one tensor
    bool sequence;   // the first parameter is a sequence of tensors, of whose arrays the kernel gets a tuple
    bool rest;       // the last name stands for all arguments from its place on, which have none
};

// The arguments by the places of their parameters; their number, or -1 where one without a default is missing, or unknown.
Py_ssize_t placed(Short *self, PyObject *const *args, Py_ssize_t given, PyObject *names, PyObject **found) {
    const Py_ssize_t total = PyTuple_GET_SIZE(self->names), named = names ? PyTuple_GET_SIZE(names) : 0;
    if (given < 1 || given > MOST || (self->rest ? named > 0 : given > total)) return -1;
    std::copy_n(args, given, found);
    if (!named) return given;
    Py_ssize_t end = given; // behind the last that was given
    std::fill_n(found + given, total - given, nullptr);
    for (Py_ssize_t i = 0; i < named; i++) {
        Py_ssize_t at = given;
        while (at < total && PyTuple_GET_ITEM(self->names, at) != PyTuple_GET_ITEM(names, i)) at++; // interned
        if (at == total || found[at]) return -1;
        found[at] = args[given + i];
        end = std::max(end, at + 1);
    }
    for (Py_ssize_t at = given; at < end; at++) {
        if (found[at]) continue;
        found[at] = PyTuple_GET_ITEM(self->defaults, at);
        if (found[at] == Py_Ellipsis) return -1;
    }
    return end;
}

// The arrays of a sequence of plain tensors as a tuple. Null without an error for others.
PyObject *arrays_of(PyObject *given, bool &tracked) {
    if (!PyTuple_CheckExact(given) && !PyList_CheckExact(given)) return nullptr;
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(given);
    PyObject *arrays = count ? PyTuple_New(count) : nullptr;
    for (Py_ssize_t i = 0; arrays && i < count; i++) {
        PyObject *array = nullptr;
        const Operand kind = look(PySequence_Fast_GET_ITEM(given, i), array);
        if (kind == Operand::other) Py_CLEAR(arrays);
        else PyTuple_SET_ITEM(arrays, i, Py_NewRef(array));
        tracked |= kind == Operand::tracked;
    }
    return arrays;
}

// Puts arrays in place of plain tensors; `kept` is what has to live as long as they are used. False for others.
bool opened(Short *self, PyObject **values, Py_ssize_t count, PyObject *&kept) {
    bool tracked = false;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *value = values[i];
        if (i == 0 && self->sequence) {
            if (!(kept = values[0] = arrays_of(value, tracked))) return false;
            continue;
        }
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
    PyObject *values[MOST], *made = nullptr, *kept = nullptr;
    const bool free = classes.cpu && unobserved() && !tracing::watched();
    const Py_ssize_t count = free ? placed(self, args, PyVectorcall_NARGS(flagged), names, values) : -1;
    if (count > 0 && (self->sequence || PyObject_TypeCheck(values[0], classes.tensor))) {
        PyObject *first = values[0];
        if (!self->writes) {
            made = opened(self, values, count, kept) ? result_of(self, values, count) : nullptr;
            Py_XDECREF(kept);
            if (made) return wrap(made, classes.cpu);
        } else if (alone(first) && opened(self, values, count, kept) && apart(values[0], values, count)) {
            made = result_of(self, values, count);
            Py_XDECREF(made);
            if (made) return count_write(first) ? Py_NewRef(first) : nullptr;
        }
        if (PyErr_Occurred()) return nullptr;
    }
    return PyObject_Vectorcall(self->otherwise, args, flagged, names);
}

nb::object short_call(nb::object kernel, nb::object otherwise, nb::tuple names, nb::tuple defaults, bool writes, bool lists,
                      bool sequence) {
    if (names.size() > MOST || defaults.size() != names.size()) throw nb::value_error("a default for each of at most 8 names");
    Short *self = make_callable<Short>(call);
    self->defaults = defaults.release().ptr();
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
    self->sequence = sequence;
    self->rest = names.size() && nb::cast<nb::str>(names[names.size() - 1]).c_str()[0] == '*';
    return finished(self);
}

} // namespace

void bind_short_call(nb::module_ &m) {
    m.attr("ShortCall") = nb::borrow(reinterpret_cast<PyObject *>(callable_type<Short>()));
    m.def("short_call", &short_call, nb::arg("kernel"), nb::arg("otherwise"), nb::arg("names"), nb::arg("defaults"),
          nb::arg("writes"), nb::arg("lists"), nb::arg("sequence") = false);
}

} // namespace resilin
