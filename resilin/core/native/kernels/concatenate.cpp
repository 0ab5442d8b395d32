// Arrays of one dtype joined along a dimension: blocks of memory copied one after the other.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "runs.hpp"
#include "binding/tensors.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace resilin {
namespace {

struct Part {
    const char *data;
    int64_t bytes; // of one row: of what lies behind the place in the dimensions before `axis`
};

constexpr int64_t FEW_ROWS = 16, STRETCH = 64 << 10;
struct Stretch {
    const char *from;
    char *to;
    int64_t bytes;
};

// Whether x goes with `first`: contiguous, of its dtype, and of its shape but along `axis`.
bool goes_with(PyArrayObject *x, PyArrayObject *first, int axis) {
    if (PyArray_DESCR(x) != PyArray_DESCR(first) || PyArray_NDIM(x) != PyArray_NDIM(first) || !PyArray_ISCARRAY_RO(x))
        return false;
    for (int i = 0; i < PyArray_NDIM(x); i++)
        if (i != axis && PyArray_DIM(x, i) != PyArray_DIM(first, i)) return false;
    return true;
}

nb::object concatenate(nb::handle arrays, nb::handle along) {
    if (!PyList_CheckExact(arrays.ptr()) || !PyLong_CheckExact(along.ptr())) return nb::none();
    const nb::object kept = nb::steal(PyList_AsTuple(arrays.ptr())); // another thread may change the list meanwhile
    PyObject *const *items = PySequence_Fast_ITEMS(kept.ptr());
    const Py_ssize_t count = PyTuple_GET_SIZE(kept.ptr());
    if (!count || !PyArray_CheckExact(items[0])) return nb::none();
    auto *first = reinterpret_cast<PyArrayObject *>(items[0]);
    const int ndim = PyArray_NDIM(first);
    int over = 0;
    const long axis = PyLong_AsLongAndOverflow(along.ptr(), &over);
    if (over || axis < 0 || axis >= ndim || PyDataType_REFCHK(PyArray_DESCR(first))) return nb::none();
    npy_intp dims[NPY_MAXDIMS];
    int64_t rows = 1, row_bytes = 0;
    for (int i = 0; i < ndim; i++) dims[i] = i == axis ? 0 : PyArray_DIM(first, i);
    for (int i = 0; i < axis; i++) rows *= dims[i];
    std::vector<Part> parts;
    parts.reserve(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; i++) {
        auto *x = reinterpret_cast<PyArrayObject *>(items[i]);
        if (!PyArray_CheckExact(items[i]) || !goes_with(x, first, static_cast<int>(axis))) return nb::none();
        dims[axis] += PyArray_DIM(x, axis);
        const int64_t bytes = rows ? PyArray_NBYTES(x) / rows : 0;
        parts.push_back({PyArray_BYTES(x), bytes});
        row_bytes += bytes;
    }
    PyArray_Descr *descr = PyArray_DESCR(first);
    Py_INCREF(descr);
    nb::object y = nb::steal(PyArray_NewFromDescr(&PyArray_Type, descr, ndim, dims, nullptr, nullptr, 0, nullptr));
    if (!y.ptr()) throw nb::python_error();
    char *out = PyArray_BYTES(reinterpret_cast<PyArrayObject *>(y.ptr()));
    WithoutGil free(rows * row_bytes / 4);
    if (rows < FEW_ROWS) { // shared by threads in stretches
        std::vector<Stretch> stretches;
        for (int64_t row = 0; row < rows; row++)
            for (const Part &part : parts) {
                for (int64_t at = 0; at < part.bytes; at += STRETCH)
                    stretches.push_back({part.data + row * part.bytes + at, out + at, std::min(STRETCH, part.bytes - at)});
                out += part.bytes;
            }
        parallel_rows(static_cast<int64_t>(stretches.size()), STRETCH / 4, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) {
                const Stretch &of = stretches[static_cast<size_t>(i)];
                copy_bytes(of.from, of.bytes, of.to);
            }
        });
        return y;
    }
    parallel_rows(rows, row_bytes / 4, [&](int64_t begin, int64_t end) {
        char *to = out + begin * row_bytes;
        for (int64_t row = begin; row < end; row++)
            for (const Part &part : parts) {
                std::memcpy(to, part.data + row * part.bytes, static_cast<size_t>(part.bytes));
                to += part.bytes;
            }
    });
    return y;
}

// For a list or tuple of plain tensors with equally many dimensions, none of shape (0,): (the dimension that `dim` names
// counted from the front, the tensors' lengths there). None for everything else.
nb::object lengths_along(nb::handle tensors, nb::handle dim) {
    PyObject *given = tensors.ptr();
    if ((!PyList_CheckExact(given) && !PyTuple_CheckExact(given)) || !PyLong_CheckExact(dim.ptr())) return nb::none();
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(given);
    int over = 0, ndim = 0;
    long axis = PyLong_AsLongAndOverflow(dim.ptr(), &over);
    if (over || !count) return nb::none();
    nb::object lengths = nb::steal(PyTuple_New(count));
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *found = nullptr;
        if (look(PySequence_Fast_GET_ITEM(given, i), found) == Operand::other) return nb::none();
        auto *array = reinterpret_cast<PyArrayObject *>(found);
        if (i == 0) {
            ndim = PyArray_NDIM(array);
            if (axis < -ndim || axis >= ndim) return nb::none();
            axis += axis < 0 ? ndim : 0;
        }
        if (PyArray_NDIM(array) != ndim || (ndim == 1 && !PyArray_DIM(array, 0))) return nb::none();
        PyTuple_SET_ITEM(lengths.ptr(), i, PyLong_FromSsize_t(PyArray_DIM(array, static_cast<int>(axis))));
    }
    return nb::make_tuple(axis, lengths);
}

} // namespace

void bind_concatenate(nb::module_ &m) {
    m.def("concatenate", &concatenate, nb::arg("arrays"), nb::arg("axis").none());
    m.def("lengths_along", &lengths_along, nb::arg("tensors").none(), nb::arg("dim").none());
}

} // namespace resilin
