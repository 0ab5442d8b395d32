// The short way through an in-place operation: outside the graph a ufunc of numpy, or a loop of ours, writes straight into
// the memory of a plain tensor; so do zeros and copies. Everything else, and errors, take the way in Python
// (core/state/inplace.py), which says what a call means.
#include "binding/callables.hpp"
#include "binding/kernels.hpp"
#include "binding/tensors.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "tracing/operations.hpp"

#include <cstring>

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

// Whether a write of this tensor concerns nobody but itself: it is no view whose base is in the graph, and its counter
// is a plain one.
bool alone(PyObject *tensor) {
    PyObject *view = slot(tensor, classes.tensor_view), *counter = slot(tensor, classes.versions);
    if (counter != Py_None && !PyList_CheckExact(counter)) return false;
    if (view == Py_None) return true;
    PyObject *base = slot(view, classes.base);
    return Py_TYPE(base) == classes.tensor && slot(base, classes.rg) == Py_False;
}

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
    const bool whole = kind == 'i' || kind == 'u';
    if ((kind != 'f' && kind != 'c' && !whole && PyArray_TYPE(array) != bfloat16_type) || !PyArray_ISWRITEABLE(array))
        return false;
    bool recorded = slot(target, classes.rg) == Py_True;
    found[1] = other;
    if (look(other, found[1]) != Operand::other) {
        auto *value = reinterpret_cast<PyArrayObject *>(found[1]);
        if (PyArray_DESCR(value) != PyArray_DESCR(array) || !fits(value, array)) return false;
        recorded |= in_graph(other);
    } else if (!PyLong_CheckExact(other) && (whole || !PyFloat_CheckExact(other))) {
        return false;
    }
    found[2] = found[0];
    return !recorded || !records();
}

bool half_type(PyObject *array) {
    return PyArray_DESCR(reinterpret_cast<PyArrayObject *>(array))->type_num == NPY_HALF;
}

// Whether `tensor` may be written here: a plain one that nobody records, logs or batches.
bool writable(PyObject *tensor, PyObject *&array) {
    if (PyList_GET_SIZE(classes.active) || PyList_GET_SIZE(classes.logs)) return false;
    if (look(tensor, array) == Operand::other || !alone(tensor)) return false;
    if (!PyArray_ISWRITEABLE(reinterpret_cast<PyArrayObject *>(array))) return false;
    return slot(tensor, classes.rg) != Py_True || !records();
}

// A function of the tensor alone.
PyObject *answer_one(InPlace *self, PyObject *const *args, size_t flagged, PyObject *names) {
    PyObject *array;
    if (!names && PyVectorcall_NARGS(flagged) == 1 && writable(args[0], array)) {
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
    if (!names && PyVectorcall_NARGS(flagged) == 2 && !PyList_GET_SIZE(classes.active) &&
        !PyList_GET_SIZE(classes.logs) && operands(args[0], args[1], given)) {
        auto *target = reinterpret_cast<PyArrayObject *>(given[0]);
        PyObject *done = self->loops.inputs ? loop_over(self->loops, given, target, "iufc", true) : nullptr;
        if (!done && PyErr_Occurred()) return nullptr;
        if (!done && (PyArray_TYPE(target) == bfloat16_type || PyTypeNum_ISINTEGER(PyArray_TYPE(target))))
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

// `zero_`, or `copy_` of a tensor of the same dtype and shape, which are no spans of traces.
struct Assign : Callable {
    static constexpr const char *NAME = "resilin.core._native.AssignCall";
    static constexpr int REFERENCES = 2;
    PyObject *otherwise;
    int given; // arguments
};

bool zeroed(PyArrayObject *array) {
    if (!PyArray_ISCARRAY(array) || !(PyArray_ISNUMBER(array) || PyArray_ISBOOL(array))) return false;
    std::memset(PyArray_DATA(array), 0, static_cast<size_t>(PyArray_NBYTES(array)));
    return true;
}

// Whether `source` was copied into `target`; false, without an error, where it is not to be copied here.
bool copied(PyArrayObject *target, PyObject *source) {
    PyObject *found;
    const Operand kind = look(source, found);
    if (kind == Operand::other || (kind == Operand::tracked && records())) return false;
    auto *from = reinterpret_cast<PyArrayObject *>(found);
    if (PyArray_DESCR(from) != PyArray_DESCR(target) || PyArray_NDIM(from) != PyArray_NDIM(target) ||
        !PyArray_CompareLists(PyArray_DIMS(from), PyArray_DIMS(target), PyArray_NDIM(target)))
        return false;
    if (PyArray_CopyInto(target, from) == 0) return true;
    PyErr_Clear();
    return false;
}

PyObject *call_assign(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    auto *self = reinterpret_cast<Assign *>(object);
    PyObject *array;
    if (!names && PyVectorcall_NARGS(flagged) == self->given && writable(args[0], array)) {
        auto *target = reinterpret_cast<PyArrayObject *>(array);
        if (self->given == 1 ? zeroed(target) : copied(target, args[1]))
            return count_write(args[0]) ? Py_NewRef(args[0]) : nullptr;
    }
    return PyObject_Vectorcall(self->otherwise, args, flagged, names);
}

nb::object assign_call(nb::object otherwise, int given) {
    Assign *self = make_callable<Assign>(call_assign);
    self->otherwise = otherwise.release().ptr();
    self->given = given;
    return finished(self);
}

} // namespace

void bind_in_place(nb::module_ &m) {
    m.attr("InPlaceCall") = nb::borrow(reinterpret_cast<PyObject *>(callable_type<InPlace>()));
    m.attr("AssignCall") = nb::borrow(reinterpret_cast<PyObject *>(callable_type<Assign>()));
    m.def("in_place_call", &in_place_call, nb::arg("ufunc").none(), nb::arg("otherwise"), nb::arg("variable"),
          nb::arg("silent"), nb::arg("traced"), nb::arg("loop") = "");
    m.def("assign_call", &assign_call, nb::arg("otherwise"), nb::arg("given"));
}

} // namespace resilin
