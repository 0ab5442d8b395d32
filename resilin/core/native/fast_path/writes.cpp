// The short ways through in-place operations of several steps, through copies and fills: outside the graph one pass
// writes the memory of a plain tensor. Everything else, and errors, take the way in Python
// (core/state/inplace.py, core/api/mathematics/one_pass.py), which says what a call means.
#include "binding/callables.hpp"
#include "binding/kernels.hpp"
#include "elementwise/fill.hpp"
#include "elementwise/fused.hpp"
#include "elementwise/walk.hpp"
#include "fast_path/plain_write.hpp"

#include <cmath>
#include <cstring>
#include <limits>

namespace resilin {
namespace {

constexpr int MOST_TENSORS = 3, MOST_NUMBERS = 2;

struct Given {
    PyArrayObject *arrays[MOST_TENSORS]; // the first is written
    PyObject *numbers[MOST_NUMBERS];     // null: not given
};
using Write = bool (*)(const Given &given); // false: nothing was written

// What calls look like: so many tensors by their places, then numbers by name, or by their places, too.
struct Form {
    const char *name;
    int tensors, numbers;
    const char *names[MOST_NUMBERS];
    bool by_place;
    Write write;
};

Number number_of(PyObject *object) {
    Number number;
    if (!object || (!PyFloat_CheckExact(object) && !PyLong_CheckExact(object))) return number;
    number.exact = PyFloat_AsDouble(object);
    number.value = static_cast<float>(number.exact);
    number.known = !PyErr_Occurred();
    PyErr_Clear(); // too large
    return number;
}
constexpr Number number(double value) { return {static_cast<float>(value), value, true}; }

Number or_else(PyObject *object, double otherwise) { return object ? number_of(object) : number(otherwise); }
Number limit_of(PyObject *object, double none) { return or_else(object == Py_None ? nullptr : object, none); }

bool add(const Given &given) {
    return fuse_into(Fused::add_scaled, given.arrays[0], given.arrays, 2, number_of(given.numbers[0]), number(0));
}
bool sub(const Given &given) {
    const Number alpha = number_of(given.numbers[0]);
    return alpha.known && fuse_into(Fused::add_scaled, given.arrays[0], given.arrays, 2, number(-alpha.exact), number(0));
}
bool addcmul(const Given &given) {
    return fuse_into(Fused::addcmul, given.arrays[0], given.arrays, 3, or_else(given.numbers[0], 1), number(0));
}
bool addcdiv(const Given &given) {
    return fuse_into(Fused::addcdiv, given.arrays[0], given.arrays, 3, or_else(given.numbers[0], 1), number(0));
}
bool lerp(const Given &given) { // from whichever end is nearer
    const Number weight = number_of(given.numbers[0]);
    if (!weight.known) return false;
    const bool near = std::fabs(weight.exact) < 0.5;
    return fuse_into(near ? Fused::lerp_from_start : Fused::lerp_from_end, given.arrays[0], given.arrays, 2,
                     number(near ? weight.exact : 1 - weight.exact), number(0));
}
bool clamp(const Given &given) {
    PyObject *low = given.numbers[0], *high = given.numbers[1];
    if ((!low || low == Py_None) && (!high || high == Py_None)) return false;
    constexpr double INF = std::numeric_limits<double>::infinity();
    return fuse_into(Fused::limit, given.arrays[0], given.arrays, 1, limit_of(low, -INF), limit_of(high, INF));
}

bool clamp_max(const Given &given) {
    Given turned = given;
    turned.numbers[0] = nullptr, turned.numbers[1] = given.numbers[0];
    return clamp(turned);
}

bool is_plain(PyArrayObject *array) {
    return PyArray_ISCARRAY(array) && PyArray_ISNOTSWAPPED(array) && !PyDataType_REFCHK(PyArray_DESCR(array));
}

bool copy(const Given &given) {
    PyArrayObject *out = given.arrays[0], *from = given.arrays[1];
    const ExactArray target{out}, source{from};
    if (PyArray_DESCR(out) != PyArray_DESCR(from) || !target.same_shape(source) || !keeps_elements(out, from)) return false;
    if (!is_plain(out) || !PyArray_ISCARRAY_RO(from)) {
        if (PyArray_CopyInto(out, from) == 0) return true;
        PyErr_Clear(); // the way in Python says what is wrong
        return false;
    }
    auto *into = static_cast<char *>(PyArray_DATA(out));
    const auto *read = static_cast<const char *>(PyArray_DATA(from));
    if (into == read) return true;
    const int64_t each = PyArray_ITEMSIZE(out), size = target.size();
    WithoutGil free(size);
    parallel_rows(size, 1, [&](int64_t begin, int64_t end) {
        std::memcpy(into + begin * each, read + begin * each, static_cast<size_t>((end - begin) * each));
    });
    return true;
}

bool zero(const Given &given) {
    PyArrayObject *out = given.arrays[0];
    if (!is_plain(out)) return false;
    auto *into = static_cast<char *>(PyArray_DATA(out));
    const int64_t size = PyArray_SIZE(out), each = PyArray_ITEMSIZE(out);
    WithoutGil free(size);
    parallel_rows(size, 1, [&](int64_t begin, int64_t end) {
        std::memset(into + begin * each, 0, static_cast<size_t>((end - begin) * each));
    });
    return true;
}

bool fill(const Given &given) {
    PyArrayObject *out = given.arrays[0];
    PyObject *number = given.numbers[0];
    if (!number || !is_plain(out)) return false;
    uint64_t element = 0;
    const int64_t each = PyArray_ITEMSIZE(out);
    if (each <= 8 && element_as(number, PyArray_TYPE(out), &element))
        return fill_run(PyArray_DATA(out), PyArray_SIZE(out), each, &element);
    return PyLong_CheckExact(number) && !PyObject_IsTrue(number) && zero(given); // others are looked at in Python
}

const Form FORMS[] = {
    {"add_", 2, 1, {"alpha"}, false, add},
    {"sub_", 2, 1, {"alpha"}, false, sub},
    {"subtract_", 2, 1, {"alpha"}, false, sub},
    {"addcmul_", 3, 1, {"value"}, false, addcmul},
    {"addcdiv_", 3, 1, {"value"}, false, addcdiv},
    {"lerp_", 2, 1, {"weight"}, true, lerp},
    {"clamp_", 1, 2, {"min", "max"}, true, clamp},
    {"clamp_min_", 1, 1, {"min"}, true, clamp},
    {"clamp_max_", 1, 1, {"max"}, true, clamp_max},
    {"clip_", 1, 2, {"min", "max"}, true, clamp},
    {"copy_", 2, 1, {"non_blocking"}, true, copy},
    {"fill_", 1, 1, {"value"}, true, fill},
    {"zero_", 1, 0, {}, false, zero},
};

struct WriteCall : Callable {
    static constexpr const char *NAME = "resilin.core._native.WriteCall";
    static constexpr int REFERENCES = 2;
    PyObject *otherwise; // the function of Python
    const Form *form;
};

// The tensors and numbers of a call, borrowed; false when this is no call of the form, or tensors are no plain ones.
bool understood(const Form &form, PyObject *const *args, Py_ssize_t count, PyObject *names, Given &given) {
    if (count < form.tensors || count > form.tensors + (form.by_place ? form.numbers : 0)) return false;
    for (int i = 0; i < MOST_NUMBERS; i++) given.numbers[i] = form.tensors + i < count ? args[form.tensors + i] : nullptr;
    for (Py_ssize_t n = 0, all = names ? PyTuple_GET_SIZE(names) : 0; n < all; n++) {
        int place = 0;
        while (place < form.numbers && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, n), form.names[place])) place++;
        if (place == form.numbers || given.numbers[place]) return false;
        given.numbers[place] = args[count + n];
    }
    PyObject *array = nullptr;
    if (look(args[0], array) == Operand::other || !alone(args[0])) return false;
    given.arrays[0] = reinterpret_cast<PyArrayObject *>(array);
    if (!PyArray_ISWRITEABLE(given.arrays[0])) return false;
    bool recorded = slot(args[0], classes.rg) == Py_True;
    for (int i = 1; i < form.tensors; i++) {
        if (look(args[i], array) == Operand::other) return false;
        given.arrays[i] = reinterpret_cast<PyArrayObject *>(array);
        recorded |= in_graph(args[i]);
    }
    return !recorded || !records();
}

PyObject *call(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    auto *self = reinterpret_cast<WriteCall *>(object);
    Given given;
    if (unobserved() && understood(*self->form, args, PyVectorcall_NARGS(flagged), names, given)) {
        if (self->form->write(given)) return count_write(args[0]) ? Py_NewRef(args[0]) : nullptr;
    }
    return PyObject_Vectorcall(self->otherwise, args, flagged, names);
}

// `otherwise`, the method `name`, with its short way in front; without one, itself.
nb::object write_call(nb::str name, nb::object otherwise) {
    const Form *form = nullptr;
    for (const Form &known : FORMS)
        if (!std::strcmp(known.name, name.c_str())) form = &known;
    if (!form) return otherwise;
    WriteCall *self = make_callable<WriteCall>(call);
    self->form = form;
    self->otherwise = otherwise.release().ptr();
    return finished(self);
}

} // namespace

void bind_writes(nb::module_ &m) {
    m.attr("WriteCall") = nb::borrow(reinterpret_cast<PyObject *>(callable_type<WriteCall>()));
    m.def("write_call", &write_call);
}

} // namespace resilin
