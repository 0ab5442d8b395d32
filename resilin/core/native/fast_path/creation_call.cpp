// The short way through functions that make tensors of one number or of a range: on the CPU, without a gradient, of
// sizes that are Python's integers. All else, and errors, take the way in Python (core/ops/creation.py), which says
// what a call means.
#include "binding/callables.hpp"
#include "binding/kernels.hpp"
#include "binding/tensors.hpp"
#include "elementwise/fill.hpp"
#include "tracing/operations.hpp"

#include <algorithm>
#include <cstring>

namespace resilin {
namespace {

constexpr int64_t MOST_ELEMENTS = int64_t{1} << 40; // more are refused, or counted, in Python
constexpr int MOST_DIMS = 32;

enum class Made { empty, zeros, ones, full, range };
constexpr struct {
    const char *name;
    Made made;
    bool like; // a tensor, which is the first argument
} KNOWN[] = {{"empty", Made::empty, false},     {"zeros", Made::zeros, false},     {"ones", Made::ones, false},
             {"full", Made::full, false},       {"arange", Made::range, false},    {"empty_like", Made::empty, true},
             {"zeros_like", Made::zeros, true}, {"ones_like", Made::ones, true},   {"full_like", Made::full, true}};

// Kept for the life of the process, and guarded by the GIL.
PyTypeObject *dtype_class;
Py_ssize_t numpys;           // where a dtype has numpy's
PyArray_Descr *default_real; // of floats; null until it is known
PyObject *default_device;    // a function of Python, once any thread has chosen a device; until then it is the CPU

struct Creation : Callable {
    static constexpr const char *NAME = "resilin.core._native.CreationCall";
    static constexpr int REFERENCES = 3;
    PyObject *otherwise; // the function of Python
    PyObject *choice;    // determinism.choice, which may want memory filled
    Made made;
    bool like;
};

struct Shape {
    int ndim = 0;
    npy_intp dims[MOST_DIMS];
};

bool lengths(PyObject *const *items, Py_ssize_t count, Shape &shape) {
    if (count > MOST_DIMS) return false;
    int64_t elements = 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!PyLong_CheckExact(items[i])) return false;
        int overflow = 0;
        const long long length = PyLong_AsLongLongAndOverflow(items[i], &overflow);
        if (overflow || length < 0 || length > MOST_ELEMENTS) return false;
        if (elements > MOST_ELEMENTS / std::max(length, 1LL)) return false;
        elements *= std::max(length, 1LL);
        shape.dims[i] = static_cast<npy_intp>(length);
    }
    shape.ndim = static_cast<int>(count);
    return true;
}

// Of `f(2, 3)`, `f((2, 3))` or `f([2, 3])`.
bool shape_of(PyObject *const *args, Py_ssize_t count, Shape &shape) {
    const bool listed = count == 1 && (PyTuple_Check(args[0]) || PyList_CheckExact(args[0]));
    if (!listed) return count > 0 && lengths(args, count, shape);
    return lengths(PySequence_Fast_ITEMS(args[0]), PySequence_Fast_GET_SIZE(args[0]), shape);
}

// The shape and the dtype, borrowed, of a plain tensor that no vmap follows.
bool like(PyObject *tensor, Shape &shape, PyArray_Descr *&descr) {
    PyObject *found;
    if (PyList_GET_SIZE(classes.active) || look(tensor, found) == Operand::other) return false;
    auto *array = reinterpret_cast<PyArrayObject *>(found);
    if (PyArray_NDIM(array) > MOST_DIMS || PyArray_SIZE(array) > MOST_ELEMENTS) return false;
    shape.ndim = PyArray_NDIM(array);
    std::copy_n(PyArray_DIMS(array), shape.ndim, shape.dims);
    descr = PyArray_DESCR(array);
    return true;
}

// Whether options are such as to make a plain tensor of the CPU; `descr` is the dtype, borrowed, where one is named.
// placed: the device is known to be the CPU where none is named.
bool options(PyObject *const *values, PyObject *names, PyArray_Descr *&descr, bool placed) {
    for (Py_ssize_t i = 0, all = names ? PyTuple_GET_SIZE(names) : 0; i < all; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i), *value = values[i];
        if (!PyUnicode_CompareWithASCIIString(name, "dtype")) {
            if (value == Py_None) continue;
            if (Py_TYPE(value) != dtype_class) return false;
            descr = reinterpret_cast<PyArray_Descr *>(slot(value, numpys));
        } else if (!PyUnicode_CompareWithASCIIString(name, "device")) {
            if (value == Py_None) continue;
            const bool named = PyUnicode_CheckExact(value) && !PyUnicode_CompareWithASCIIString(value, "cpu");
            if (!named && value != classes.cpu) return false;
            placed = true;
        } else if (PyUnicode_CompareWithASCIIString(name, "requires_grad") || value != Py_False) {
            return false;
        }
    }
    if (placed || !default_device) return true;
    PyObject *found = PyObject_CallNoArgs(default_device);
    Py_XDECREF(found); // devices live for ever
    return found == classes.cpu;
}

bool wants_filled(PyObject *choice) {
    PyObject *mode = PyObject_GetAttrString(choice, "mode");
    const bool wanted = !mode || PyObject_IsTrue(mode);
    Py_XDECREF(mode);
    return wanted;
}

// A new array, uninitialized or of zeros; null for an error.
PyObject *new_array(const Shape &shape, PyArray_Descr *descr, bool zeroed) {
    Py_INCREF(descr);
    auto *dims = const_cast<npy_intp *>(shape.dims);
    return (zeroed ? PyArray_Zeros : PyArray_Empty)(shape.ndim, dims, descr, 0);
}

// Null where the function of Python is to be called, with or without an error that it will meet again.
PyObject *filled(const Shape &shape, PyArray_Descr *descr, PyObject *number) {
    uint64_t element = 0;
    if (PyDataType_ELSIZE(descr) > 8 || !element_as(number, descr->type_num, &element)) return nullptr;
    PyObject *made = new_array(shape, descr, false);
    auto *array = reinterpret_cast<PyArrayObject *>(made);
    if (made) fill_run(PyArray_DATA(array), PyArray_SIZE(array), PyArray_ITEMSIZE(array), &element);
    return made;
}

PyObject *counted(const Shape &shape) {
    PyObject *made = new_array(shape, PyArray_DescrFromType(NPY_INT64), false);
    auto *array = reinterpret_cast<PyArrayObject *>(made);
    if (made) count_from_zero(static_cast<int64_t *>(PyArray_DATA(array)), shape.dims[0]);
    return made;
}

PyArray_Descr *descr_of_number(PyObject *number) {
    if (PyFloat_CheckExact(number)) return default_real;
    static PyArray_Descr *const of_integers = PyArray_DescrFromType(NPY_INT64);
    static PyArray_Descr *const of_truths = PyArray_DescrFromType(NPY_BOOL);
    return PyLong_CheckExact(number) ? of_integers : PyBool_Check(number) ? of_truths : nullptr;
}

PyObject *array_for(Creation *self, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    Shape shape;
    PyArray_Descr *descr = nullptr;
    if (self->like && (given != 1 + (self->made == Made::full) || !like(args[0], shape, descr))) return nullptr;
    if (!options(args + given, names, descr, self->like)) return nullptr;
    if (self->made == Made::range) return !descr && given == 1 && lengths(args, 1, shape) ? counted(shape) : nullptr;
    if (self->made == Made::full) {
        if (given != 2 || (!self->like && !shape_of(args, 1, shape))) return nullptr;
        if (!descr) descr = descr_of_number(args[1]);
        return descr ? filled(shape, descr, args[1]) : nullptr;
    }
    if (!self->like && !shape_of(args, given, shape)) return nullptr;
    if (!descr) descr = default_real;
    if (self->made == Made::zeros) return new_array(shape, descr, true);
    if (self->made == Made::empty) return wants_filled(self->choice) ? nullptr : new_array(shape, descr, false);
    static PyObject *const one = PyLong_FromLong(1);
    return filled(shape, descr, one);
}

PyObject *call(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    auto *self = reinterpret_cast<Creation *>(object);
    if (classes.cpu && default_real && dtype_class && !tracing::watched()) {
        PyObject *made = array_for(self, args, PyVectorcall_NARGS(flagged), names);
        if (made) return wrap(made, classes.cpu);
        PyErr_Clear();
    }
    return PyObject_Vectorcall(self->otherwise, args, flagged, names);
}

// `otherwise`, the function `name`, with its short way in front; without one, itself.
nb::object creation_call(const char *name, nb::object otherwise, nb::object choice) {
    for (const auto &known : KNOWN) {
        if (std::strcmp(known.name, name)) continue;
        Creation *self = make_callable<Creation>(call);
        self->otherwise = otherwise.release().ptr();
        self->choice = choice.release().ptr();
        self->made = known.made;
        self->like = known.like;
        return finished(self);
    }
    return otherwise;
}

} // namespace

void bind_creation_call(nb::module_ &m) {
    m.attr("CreationCall") = nb::borrow(reinterpret_cast<PyObject *>(callable_type<Creation>()));
    m.def("creation_call", &creation_call);
    m.def("creation_dtype", [](nb::handle dtype) { // the default one, of the class that all have
        dtype_class = reinterpret_cast<PyTypeObject *>(Py_NewRef(reinterpret_cast<PyObject *>(Py_TYPE(dtype.ptr()))));
        numpys = offset_of(dtype_class, "np");
        default_real = reinterpret_cast<PyArray_Descr *>(Py_NewRef(slot(dtype.ptr(), numpys)));
    });
    m.def("creation_device", [](nb::object asked) { default_device = asked.release().ptr(); });
}

} // namespace resilin
