// A function called with numpy's warnings off: what surrounds the forward function of an op (core/ops/guarding.py,
// `_computing` and `_quietly`).
#include "callables.hpp"
#include "kernels.hpp"
#include "tensors.hpp"

namespace resilin {

PyObject *call_silently(PyObject *variable, PyObject *silent, PyObject *function, PyObject *const *args, size_t flagged,
                        PyObject *names) {
    PyObject *token = PyContextVar_Set(variable, silent);
    if (!token) return nullptr;
    PyObject *value = PyObject_Vectorcall(function, args, flagged, names);
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    const bool restored = PyContextVar_Reset(variable, token) == 0;
    Py_DECREF(token);
    if (!restored) {
        Py_CLEAR(value);
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        return nullptr;
    }
    PyErr_Restore(kind, error, trace);
    return value;
}

namespace {

struct Quiet : Callable {
    static constexpr const char *NAME = "resilin.core._native.QuietCall";
    static constexpr int REFERENCES = 6;
    PyObject *forward, *general; // `general` takes tensors of 16-bit floats
    PyObject *variable, *silent; // numpy's context variable, and its value without warnings
    PyObject *bfloat16;          // the dtype
    int tensors;
    bool single; // float16 goes to `forward`, too
};

PyObject *call(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    auto *self = reinterpret_cast<Quiet *>(object);
    const Py_ssize_t given = PyVectorcall_NARGS(flagged);
    for (Py_ssize_t i = 1; i <= self->tensors && i < given; i++) {
        PyObject *arg = args[i];
        if (PyFloat_CheckExact(arg) || PyLong_CheckExact(arg) || arg == Py_None) continue;
        auto *array = reinterpret_cast<PyArrayObject *>(arg);
        if (!PyArray_Check(arg) ||  // another library's array: `general` asks it for its dtype
            reinterpret_cast<PyObject *>(PyArray_DESCR(array)) == self->bfloat16 ||
            (!self->single && PyArray_TYPE(array) == NPY_HALF))
            return PyObject_Vectorcall(self->general, args, flagged, names);
    }
    return call_silently(self->variable, self->silent, self->forward, args, flagged, names);
}

nb::object quiet_call(nb::object forward, nb::object general, nb::object variable, nb::object silent,
                      nb::object bfloat16, int tensors, bool single) {
    Quiet *self = make_callable<Quiet>(call);
    self->forward = forward.release().ptr();
    self->general = general.release().ptr();
    self->variable = variable.release().ptr();
    self->silent = silent.release().ptr();
    self->bfloat16 = bfloat16.release().ptr();
    self->tensors = tensors;
    self->single = single;
    return finished(self);
}

} // namespace

void bind_quiet_call(nb::module_ &m) { m.def("quiet_call", &quiet_call); }

} // namespace resilin
