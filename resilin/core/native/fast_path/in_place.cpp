// The short way through an in-place operation: outside the graph a ufunc of numpy, or a loop of ours, writes straight into
// the memory of a plain tensor. Everything else, and errors, take the way in Python (core/state/inplace.py), which says what
// a call means.
#include "binding/callables.hpp"
#include "binding/kernels.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "fast_path/plain_write.hpp"
#include "tracing/operations.hpp"

namespace resilin {
namespace {

PyObject *in_dtype, *float32; // the name of the ufuncs' argument in a tuple, and its value

struct InPlace : Callable {
    static constexpr const char *NAME = "resilin.core._native.InPlaceCall";
    static constexpr int REFERENCES = 6;
    PyObject *ufunc, *otherwise; // the ufunc, None for a loop of ours, and the function of Python
    PyObject *variable, *silent; // numpy's context variable, and its value without warnings
    PyObject *traced;            // the operation's name in traces
    tracing::KnownName known;
    Loops loops; // the ufunc's
};

// Whether `shape` broadcasts to that of `target` without widening it.
bool fits(PyArrayObject *other, PyArrayObject *target) {
    const int less = PyArray_NDIM(target) - PyArray_NDIM(other);
    if (less < 0) return false;
    for (int i = 0; i < PyArray_NDIM(other); i++)
        if (PyArray_DIM(other, i) != 1 && PyArray_DIM(other, i) != PyArray_DIM(target, less + i)) return false;
    return true;
}

// The operands of the ufunc, borrowed; false when this is no call for it.
bool operands(PyObject *target, PyObject *other, PyObject **found) {
    if (look(target, found[0]) == Operand::other || !alone(target)) return false;
    auto *array = reinterpret_cast<PyArrayObject *>(found[0]);
    const char kind = PyArray_DESCR(array)->kind;
    const bool known = kind == 'f' || kind == 'c' || kind == 'i' || kind == 'u' || PyArray_TYPE(array) == bfloat16_type;
    if (!known || !PyArray_ISWRITEABLE(array)) return false;
    bool recorded = slot(target, classes.rg) == Py_True;
    found[1] = other;
    if (look(other, found[1]) != Operand::other) {
        auto *value = reinterpret_cast<PyArrayObject *>(found[1]);
        if (PyArray_DESCR(value) != PyArray_DESCR(array) || !fits(value, array)) return false;
        recorded |= in_graph(other);
    } else if (!PyFloat_CheckExact(other) && !PyLong_CheckExact(other)) {
        return false;
    }
    found[2] = found[0];
    return !recorded || !records();
}

bool half_type(PyObject *array) {
    return PyArray_DESCR(reinterpret_cast<PyArrayObject *>(array))->type_num == NPY_HALF;
}

// Whether `tensor` may be written here: a plain one that nobody records.
bool writable(PyObject *tensor, PyObject *&array) {
    if (look(tensor, array) == Operand::other || !alone(tensor)) return false;
    if (!PyArray_ISWRITEABLE(reinterpret_cast<PyArrayObject *>(array))) return false;
    return slot(tensor, classes.rg) != Py_True || !records();
}

// A function of the tensor alone.
PyObject *answer_one(InPlace *self, PyObject *const *args, size_t flagged, PyObject *names) {
    PyObject *array;
    if (!names && PyVectorcall_NARGS(flagged) == 1 && unobserved() && writable(args[0], array)) {
        PyObject *done = loop_over(self->loops, &array, reinterpret_cast<PyArrayObject *>(array), "f", false);
        if (!done && PyErr_Occurred()) return nullptr;
        Py_XDECREF(done);
        if (done) return count_write(args[0]) ? Py_NewRef(args[0]) : nullptr;
    }
    return PyObject_Vectorcall(self->otherwise, args, flagged, names);
}

PyObject *answer(InPlace *self, PyObject *const *args, size_t flagged, PyObject *names) {
    PyObject *given[4];
    if (self->loops.inputs == 1) return answer_one(self, args, flagged, names);
    if (!names && PyVectorcall_NARGS(flagged) == 2 && unobserved() && operands(args[0], args[1], given)) {
        auto *target = reinterpret_cast<PyArrayObject *>(given[0]);
        PyObject *done = self->loops.inputs ? loop_over(self->loops, given, target, "iufc", true) : nullptr;
        if (!done && PyErr_Occurred()) return nullptr;
        const bool whole = PyTypeNum_ISINTEGER(PyArray_TYPE(target)); // whose overflows and zeros Python looks for
        if (!done && (whole || PyArray_TYPE(target) == bfloat16_type))
            return PyObject_Vectorcall(self->otherwise, args, flagged, names);
        const bool half = given[1] == args[1] && half_type(given[0]); // float16 meets a number in float32
        given[3] = half ? float32 : nullptr;
        if (!done) done = call_silently(self->variable, self->silent, self->ufunc, given, 3, half ? in_dtype : nullptr);
        Py_XDECREF(done);
        if (done) return count_write(args[0]) ? Py_NewRef(args[0]) : nullptr;
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
        PyErr_Clear(); // nothing was written: the way in Python says what is wrong
    }
    return PyErr_Occurred() ? nullptr : PyObject_Vectorcall(self->otherwise, args, flagged, names);
}

PyObject *call(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    auto *self = reinterpret_cast<InPlace *>(object);
    if (!tracing::watched()) return answer(self, args, flagged, names);
    tracing::OperationSpan span(self->known, self->traced, args, PyVectorcall_NARGS(flagged));
    PyObject *out = answer(self, args, flagged, names);
    span.finish(out);
    return out;
}

// `ufunc` of two arguments, or the function `loop` of one.
nb::object in_place_call(nb::object ufunc, nb::object otherwise, nb::object variable, nb::object silent, nb::str traced,
                         const char *loop) {
    InPlace *self = make_callable<InPlace>(call);
    if (!in_dtype) {
        in_dtype = Py_BuildValue("(s)", "dtype");
        float32 = reinterpret_cast<PyObject *>(PyArray_DescrFromType(NPY_FLOAT));
        if (!in_dtype || !float32) throw nb::python_error();
    }
    self->loops = loops_of(ufunc.ptr(), *loop ? loop : nb::cast<const char *>(nb::getattr(ufunc, "__name__")));
    if (self->loops.inputs != (*loop ? 1 : 2)) self->loops.inputs = 0;
    self->ufunc = ufunc.release().ptr();
    self->otherwise = otherwise.release().ptr();
    self->variable = variable.release().ptr();
    self->silent = silent.release().ptr();
    self->traced = traced.release().ptr();
    self->known = {};
    return finished(self);
}

} // namespace

void bind_in_place(nb::module_ &m) {
    m.attr("InPlaceCall") = nb::borrow(reinterpret_cast<PyObject *>(callable_type<InPlace>()));
    m.def("in_place_call", &in_place_call, nb::arg("ufunc").none(), nb::arg("otherwise"), nb::arg("variable"),
          nb::arg("silent"), nb::arg("traced"), nb::arg("loop") = "");
}

} // namespace resilin
