// A function in front of which stands a look at its arguments: what most calls pass, and what a wrapper in Python says
// in full. Whatever does not pass goes to the wrapper.
#include "binding/callables.hpp"
#include "binding/kernels.hpp"
#include "binding/tensors.hpp"
#include "elementwise/ufunc_loops.hpp"

#include <cstring>

namespace resilin {
namespace {

struct Guarded : Callable {
    static constexpr const char *NAME = "resilin.core._native.GuardedCall";
    static constexpr int REFERENCES = 3;
    PyObject *function, *otherwise; // the function, None for one that only checks; and the wrapper
    bool (*passes)(PyObject *const *args, Py_ssize_t given, Py_ssize_t all);
};

bool is_tensor(PyObject *value) { return PyObject_TypeCheck(value, classes.tensor); }

// No tensor has 16-bit floats (api/mathematics/half_precision.py).
bool without_halves(PyObject *const *args, Py_ssize_t, Py_ssize_t all) {
    for (Py_ssize_t i = 0; i < all; i++) {
        if (!is_tensor(args[i])) continue;
        PyObject *array = slot(args[i], classes.array);
        if (!array || !PyArray_CheckExact(array)) return false;
        const int type = PyArray_TYPE(reinterpret_cast<PyArrayObject *>(array));
        if (type == NPY_HALF || type == bfloat16_type) return false;
    }
    return true;
}

// All tensors are the host's (api/conversion/through_host.py).
bool on_host(PyObject *const *args, Py_ssize_t, Py_ssize_t all) {
    for (Py_ssize_t i = 0; i < all; i++)
        if (is_tensor(args[i]) && slot(args[i], classes.dev) != classes.cpu) return false;
    return true;
}

// The first argument is a tensor with dimensions, and so are all others that are tensors (api/manipulation/indexing.py).
bool without_scalars(PyObject *const *args, Py_ssize_t given, Py_ssize_t all) {
    if (!given || !is_tensor(args[0])) return false;
    for (Py_ssize_t i = 0; i < all; i++) {
        PyObject *array = is_tensor(args[i]) ? slot(args[i], classes.array) : Py_None;
        if (array == Py_None) continue;
        if (!array || !PyArray_CheckExact(array) || !PyArray_NDIM(reinterpret_cast<PyArrayObject *>(array))) return false;
    }
    return true;
}

// All named arguments are plain tensors of the host (api/nn/neural.py).
bool plain_tensors(PyObject *const *args, Py_ssize_t given, Py_ssize_t all) {
    for (Py_ssize_t i = given; i < all; i++) {
        PyTypeObject *type = Py_TYPE(args[i]);
        if ((type != classes.tensor && type != classes.parameter) || slot(args[i], classes.dev) != classes.cpu) return false;
    }
    return true;
}

// All named arguments are Python's numbers (api/nn/neural.py).
bool numbers(PyObject *const *args, Py_ssize_t given, Py_ssize_t all) {
    for (Py_ssize_t i = given; i < all; i++)
        if (!PyFloat_CheckExact(args[i]) && !PyLong_CheckExact(args[i])) return false;
    return true;
}

// The second argument is a plain tensor of the host with real floats, and all named ones are numbers (api/nn/activations.py).
bool floats_and_numbers(PyObject *const *args, Py_ssize_t given, Py_ssize_t all) {
    PyObject *array;
    if (given != 2 || look(args[1], array) == Operand::other || !numbers(args, given, all)) return false;
    const int type = PyArray_TYPE(reinterpret_cast<PyArrayObject *>(array));
    return type == NPY_FLOAT || type == NPY_DOUBLE || type == NPY_HALF || type == bfloat16_type;
}

constexpr struct {
    const char *name;
    bool (*passes)(PyObject *const *, Py_ssize_t, Py_ssize_t);
} CHECKS[] = {{"without_halves", without_halves}, {"on_host", on_host}, {"without_scalars", without_scalars},
              {"plain_tensors", plain_tensors}, {"numbers", numbers}, {"floats_and_numbers", floats_and_numbers}};

PyObject *call(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    auto *self = reinterpret_cast<Guarded *>(object);
    const Py_ssize_t given = PyVectorcall_NARGS(flagged), all = given + (names ? PyTuple_GET_SIZE(names) : 0);
    if (!classes.cpu || !self->passes(args, given, all))
        return PyObject_Vectorcall(self->otherwise, args, flagged, names);
    if (self->function == Py_None) Py_RETURN_NONE;
    return PyObject_Vectorcall(self->function, args, flagged, names);
}

nb::object guarded_call(nb::object function, nb::object otherwise, const char *check) {
    for (const auto &known : CHECKS) {
        if (std::strcmp(known.name, check) != 0) continue;
        Guarded *self = make_callable<Guarded>(call);
        self->function = function.release().ptr();
        self->otherwise = otherwise.release().ptr();
        self->passes = known.passes;
        return finished(self);
    }
    throw nb::value_error(check);
}

// The arrays of a tuple of plain tensors of the host. None where a graph or vmap follows them, or one is none.
nb::object plain_arrays(nb::handle tensors) {
    if (!PyTuple_CheckExact(tensors.ptr()) || !classes.cpu || PyList_GET_SIZE(classes.active)) return nb::none();
    const Py_ssize_t count = PyTuple_GET_SIZE(tensors.ptr());
    nb::object arrays = nb::steal(PyTuple_New(count));
    if (!arrays.is_valid()) throw nb::python_error();
    bool tracked = false;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *array;
        const Operand kind = look(PyTuple_GET_ITEM(tensors.ptr(), i), array);
        if (kind == Operand::other) return nb::none();
        tracked |= kind == Operand::tracked;
        PyTuple_SET_ITEM(arrays.ptr(), i, Py_NewRef(array));
    }
    return tracked && records() ? nb::object(nb::none()) : arrays;
}

} // namespace

void bind_guarded_call(nb::module_ &m) {
    m.attr("GuardedCall") = nb::borrow(reinterpret_cast<PyObject *>(callable_type<Guarded>()));
    m.def("plain_arrays", &plain_arrays);
    m.def("guarded_call", &guarded_call, nb::arg("function").none(), nb::arg("otherwise"), nb::arg("check"));
}

} // namespace resilin
