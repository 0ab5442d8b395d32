// A function called with numpy's warnings off: what surrounds the forward function of an op (core/ops/errstate.py,
// `_computing` and `_quietly`). In front of it may stand a kernel, which is asked at once.
#include "binding/callables.hpp"
#include "binding/kernels.hpp"
#include "binding/tensors.hpp"
#include "elementwise/ufunc_loops.hpp"

#include <cstring>

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

constexpr npy_intp FEW = 1024; // elements; above, the conversions of kernels/pack.py are faster than numpy's
constexpr Py_ssize_t MOST = 4; // arguments of an op of two tensors, the namespace among them

struct Quiet : Callable {
    static constexpr const char *NAME = "resilin.core._native.QuietCall";
    static constexpr int REFERENCES = 7;
    PyObject *forward, *general; // `general` takes tensors of bfloat16, and where told float16; and of all kinds
    PyObject *variable, *silent; // numpy's context variable, and its value without warnings
    PyObject *bfloat16;          // the dtype
    PyObject *kernel;            // asked first, with all but the namespace: None is no answer; or null
    int tensors;
    bool single;       // float16 goes to `forward`, too
    bool wide_numbers; // but not beside a number, which numpy would round to float16
    Loops loops;       // that say all of what `forward` does, where there are such
    char kinds[8];     // of dtypes that they and `forward` are for
};

PyArray_Descr *descr_of(PyObject *array) { return PyArray_DESCR(reinterpret_cast<PyArrayObject *>(array)); }

// `value` of float32, an array or a scalar, as an array of `half`; anything else as it is. Takes the reference over.
PyObject *narrowed(PyObject *value, PyArray_Descr *half) {
    PyObject *array = value;
    if (!PyArray_Check(value) && PyArray_CheckScalar(value)) {
        array = PyArray_FromScalar(value, nullptr);
        Py_DECREF(value);
    }
    if (!array || !PyArray_Check(array) || descr_of(array)->type_num != NPY_FLOAT) return array;
    Py_INCREF(half);
    PyObject *made = PyArray_CastToType(reinterpret_cast<PyArrayObject *>(array), half, 0);
    Py_DECREF(array);
    return made;
}

// Few elements of float16 beside a number: computed in float32 and rounded once, as `general` does it.
PyObject *call_in_float32(Quiet *self, PyObject *const *args, Py_ssize_t given) {
    PyObject *wide[MOST] = {}, *value = nullptr;
    PyArray_Descr *half = nullptr;
    bool done = true;
    for (Py_ssize_t i = 0; i < given && done; i++) {
        if (PyArray_Check(args[i])) {
            half = descr_of(args[i]);
            wide[i] = PyArray_CastToType(reinterpret_cast<PyArrayObject *>(args[i]), PyArray_DescrFromType(NPY_FLOAT), 0);
        } else {
            wide[i] = Py_NewRef(args[i]);
        }
        done = wide[i];
    }
    PyObject *token = done ? PyContextVar_Set(self->variable, self->silent) : nullptr;
    if (token) {
        value = PyObject_Vectorcall(self->forward, wide, static_cast<size_t>(given), nullptr);
        if (value) value = narrowed(value, half);
        PyObject *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        const bool restored = PyContextVar_Reset(self->variable, token) == 0;
        Py_DECREF(token);
        if (!restored) Py_CLEAR(value);
        else PyErr_Restore(kind, error, trace);
    }
    for (Py_ssize_t i = 0; i < given; i++) Py_XDECREF(wide[i]);
    return value;
}

PyObject *call(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    auto *self = reinterpret_cast<Quiet *>(object);
    const Py_ssize_t given = PyVectorcall_NARGS(flagged);
    if (self->loops.inputs && given == self->loops.inputs + 1 && !names && args[0] == host_namespace) {
        PyObject *made = loop_over(self->loops, args + 1, nullptr, self->kinds, self->wide_numbers);
        if (made || PyErr_Occurred()) return made;
    }
    if (self->tensors && (!given || args[0] != host_namespace)) // a device's, or pretended: what `general` looks at
        return PyObject_Vectorcall(self->general, args, flagged, names);
    bool number = false, half = false, bfloat = false, few = given <= MOST && !names;
    for (Py_ssize_t i = 1; i <= self->tensors && i < given; i++) {
        PyObject *arg = args[i];
        if (PyFloat_CheckExact(arg) || PyLong_CheckExact(arg) || arg == Py_None) {
            number = true;
            continue;
        }
        if (!PyArray_Check(arg)) // another library's array: `general` asks it for its dtype
            return PyObject_Vectorcall(self->general, args, flagged, names);
        PyArray_Descr *descr = PyArray_DESCR(reinterpret_cast<PyArrayObject *>(arg));
        const char kind = descr->kind == 'V' ? 'f' : descr->kind; // bfloat16 is one to numpy
        if (!std::strchr(self->kinds, kind)) return PyObject_Vectorcall(self->general, args, flagged, names);
        bfloat |= reinterpret_cast<PyObject *>(descr) == self->bfloat16;
        half |= descr->type_num == NPY_HALF;
        few &= descr->type_num == NPY_HALF && PyArray_SIZE(reinterpret_cast<PyArrayObject *>(arg)) <= FEW;
    }
    if (half && !bfloat && self->wide_numbers && number)
        return few ? call_in_float32(self, args, given) : PyObject_Vectorcall(self->general, args, flagged, names);
    if (self->kernel && !names) { // which may take 16-bit floats as they are
        PyObject *made = PyObject_Vectorcall(self->kernel, args + 1, static_cast<size_t>(given - 1), nullptr);
        if (made ? made != Py_None : !PyErr_ExceptionMatches(PyExc_TypeError)) return made;
        Py_XDECREF(made);
        PyErr_Clear(); // arguments that no kernel takes
    }
    if (bfloat || (half && !self->single)) return PyObject_Vectorcall(self->general, args, flagged, names);
    return call_silently(self->variable, self->silent, self->forward, args, flagged, names);
}

nb::object quiet_call(nb::object forward, nb::object general, nb::object variable, nb::object silent,
                      nb::object bfloat16, int tensors, bool single, bool wide_numbers, nb::object ufunc,
                      const char *loop, const char *kinds, nb::object kernel) {
    Quiet *self = make_callable<Quiet>(call);
    self->loops = *loop ? loops_of(ufunc.ptr(), loop) : Loops{};
    std::strncpy(self->kinds, kinds, sizeof(self->kinds) - 1);
    self->kinds[sizeof(self->kinds) - 1] = '\0';
    self->forward = forward.release().ptr();
    self->general = general.release().ptr();
    self->variable = variable.release().ptr();
    self->silent = silent.release().ptr();
    self->bfloat16 = bfloat16.release().ptr();
    self->kernel = kernel.is_none() ? nullptr : kernel.release().ptr();
    self->tensors = tensors;
    self->single = single;
    self->wide_numbers = wide_numbers;
    return finished(self);
}

} // namespace

void bind_quiet_call(nb::module_ &m) {
    m.attr("QuietCall") = nb::borrow(reinterpret_cast<PyObject *>(callable_type<Quiet>()));
    m.def("quiet_call", &quiet_call, nb::arg("forward"), nb::arg("general"), nb::arg("variable"), nb::arg("silent"),
          nb::arg("bfloat16"), nb::arg("tensors"), nb::arg("single"), nb::arg("wide_numbers"),
          nb::arg("ufunc") = nb::none(), nb::arg("loop") = "", nb::arg("kinds") = "", nb::arg("kernel") = nb::none());
}

} // namespace resilin
