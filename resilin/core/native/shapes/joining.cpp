// Arrays of one dtype joined along a dimension: blocks of memory copied one after the other.
#include "shapes.hpp"

#include "binding/tensors.hpp"
#include "indexing/places.hpp"
#include "kernels/runs.hpp"
#include "memory/parallel.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace resilin {
namespace {

struct Part {
    const char *data;
    int64_t bytes; // of one row: of what lies behind the place in the dimensions before `axis`
};

// Arrays that are joined: how often each gives a stretch of its memory, and how much is put behind one another then.
struct Joined {
    std::vector<Part> parts;
    int64_t rows = 1, row_bytes = 0;
    void add(PyArrayObject *x) {
        const int64_t bytes = rows ? PyArray_NBYTES(x) / rows : 0;
        parts.push_back({PyArray_BYTES(x), bytes});
        row_bytes += bytes;
    }
};

constexpr int64_t FEW_ROWS = 16, STRETCH = 64 << 10, SHORT = 1 << 10; // bytes
struct Stretch {
    const char *from;
    char *to;
    int64_t bytes;
};

void copy_few_rows(const Joined &of, char *out) { // shared by threads in stretches
    std::vector<Stretch> stretches;
    for (int64_t row = 0; row < of.rows; row++)
        for (const Part &part : of.parts) {
            for (int64_t at = 0; at < part.bytes; at += STRETCH)
                stretches.push_back({part.data + row * part.bytes + at, out + at, std::min(STRETCH, part.bytes - at)});
            out += part.bytes;
        }
    parallel_rows(static_cast<int64_t>(stretches.size()), STRETCH / 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const Stretch &stretch = stretches[static_cast<size_t>(i)];
            copy_bytes(stretch.from, stretch.bytes, stretch.to);
        }
    });
}

RESILIN_SIMD void copy_rows(const Joined &of, int64_t begin, int64_t end, char *to) {
    for (int64_t row = begin; row < end; row++)
        for (const Part &part : of.parts) {
            const char *from = part.data + row * part.bytes;
            if (part.bytes < SHORT) copy_short(from, part.bytes, to);
            else copy_bytes(from, part.bytes, to);
            to += part.bytes;
        }
}

// Single elements of each part by turns.
template <class T> void weave(const Joined &of, int64_t begin, int64_t end, T *y) {
    const int64_t count = static_cast<int64_t>(of.parts.size());
    auto data = [&](int64_t k) { return reinterpret_cast<const T *>(of.parts[static_cast<size_t>(k)].data); };
    if (count == 2) {
        const T *a = data(0), *b = data(1);
        for (int64_t i = begin; i < end; i++) y[2 * i] = a[i], y[2 * i + 1] = b[i];
        return;
    }
    constexpr int64_t BLOCK = 256; // rows whose lines stay in the first cache
    for (int64_t first = begin; first < end; first += BLOCK)
        for (int64_t k = 0; k < count; k++) {
            const T *x = data(k);
            for (int64_t i = first; i < std::min(end, first + BLOCK); i++) y[i * count + k] = x[i];
        }
}

void join(const Joined &of, int64_t element, char *out) {
    WithoutGil free(of.rows * of.row_bytes / 4);
    if (of.rows < FEW_ROWS) return copy_few_rows(of, out);
    const bool single = std::all_of(of.parts.begin(), of.parts.end(), [&](const Part &part) { return part.bytes == element; });
    parallel_rows(of.rows, std::max<int64_t>(1, of.row_bytes / 4), [&](int64_t begin, int64_t end) {
        const bool woven = single && by_size(element, [&](auto kind) {
            weave(of, begin, end, reinterpret_cast<decltype(kind) *>(out));
        });
        if (!woven) copy_rows(of, begin, end, out + begin * of.row_bytes);
    });
}

// Whether x goes with `first`: contiguous, of its dtype, and of its shape but along `axis`.
bool goes_with(PyArrayObject *x, PyArrayObject *first, int axis) {
    if (PyArray_DESCR(x) != PyArray_DESCR(first) || PyArray_NDIM(x) != PyArray_NDIM(first) || !PyArray_ISCARRAY_RO(x))
        return false;
    for (int i = 0; i < PyArray_NDIM(x); i++)
        if (i != axis && PyArray_DIM(x, i) != PyArray_DIM(first, i)) return false;
    return true;
}

// Arrays in a list or tuple, joined along `dim`, or stacked along a new one; None for others.
nb::object joined(nb::handle arrays, nb::handle along, bool stacked) {
    if (!PyList_CheckExact(arrays.ptr()) && !PyTuple_CheckExact(arrays.ptr())) return nb::none();
    const Ints dim(along);
    if (!dim.known || !PyLong_CheckExact(along.ptr())) return nb::none();
    const nb::object kept = nb::steal(PySequence_Tuple(arrays.ptr())); // another thread may change a list meanwhile
    PyObject *const *items = PySequence_Fast_ITEMS(kept.ptr());
    const Py_ssize_t count = PyTuple_GET_SIZE(kept.ptr());
    if (!count || !PyArray_CheckExact(items[0])) return nb::none();
    auto *first = reinterpret_cast<PyArrayObject *>(items[0]);
    const int old = PyArray_NDIM(first), ndim = old + stacked;
    const int64_t axis = dim.at[0] < 0 ? dim.at[0] + ndim : dim.at[0];
    if (axis < 0 || axis >= ndim || ndim > 32 || PyDataType_REFCHK(PyArray_DESCR(first))) return nb::none();
    npy_intp dims[NPY_MAXDIMS];
    std::copy_n(PyArray_DIMS(first), axis, dims);
    std::copy(PyArray_DIMS(first) + axis + !stacked, PyArray_DIMS(first) + old, dims + axis + 1);
    dims[axis] = 0;
    Joined of;
    of.parts.reserve(static_cast<size_t>(count));
    for (int i = 0; i < axis; i++) of.rows *= dims[i];
    for (Py_ssize_t i = 0; i < count; i++) {
        auto *x = reinterpret_cast<PyArrayObject *>(items[i]);
        if (!PyArray_CheckExact(items[i]) || !goes_with(x, first, stacked ? -1 : static_cast<int>(axis))) return nb::none();
        dims[axis] += stacked ? 1 : PyArray_DIM(x, axis);
        of.add(x);
    }
    const ExactArray like{first};
    nb::object y = new_array(like, ndim, dims, false);
    join(of, PyArray_ITEMSIZE(first), PyArray_BYTES(array_in(y).array));
    return y;
}
nb::object concatenate(nb::handle arrays, nb::handle dim) { return joined(arrays, dim, false); }
nb::object stack(nb::handle arrays, nb::handle dim) { return joined(arrays, dim, true); }

// A matrix with these matrices along its diagonal; a vector is a row.
nb::object block_diag(nb::args arrays) {
    struct Block {
        const char *data;
        int64_t row, before, bytes; // where it begins, and how long its rows are
    };
    std::vector<Block> blocks;
    npy_intp dims[2] = {0, 0};
    PyArrayObject *first = nullptr;
    for (nb::handle given : arrays) {
        auto *x = reinterpret_cast<PyArrayObject *>(given.ptr());
        if (!PyArray_CheckExact(given.ptr()) || PyArray_NDIM(x) > 2 || !PyArray_ISCARRAY_RO(x) ||
            PyDataType_REFCHK(PyArray_DESCR(x)) || (first && PyArray_DESCR(x) != PyArray_DESCR(first)))
            return nb::none();
        if (!first) first = x;
        const int ndim = PyArray_NDIM(x);
        const npy_intp columns = ndim ? PyArray_DIM(x, ndim - 1) : 1, bytes = PyArray_ITEMSIZE(x);
        blocks.push_back({PyArray_BYTES(x), dims[0], dims[1] * bytes, columns * bytes});
        dims[0] += ndim == 2 ? PyArray_DIM(x, 0) : 1, dims[1] += columns;
    }
    if (!first) return nb::none();
    nb::object y = new_array({first}, 2, dims, false);
    char *out = PyArray_BYTES(array_in(y).array);
    const int64_t width = dims[1] * PyArray_ITEMSIZE(first);
    WithoutGil free(dims[0] * dims[1]);
    parallel_rows(dims[0], dims[1], [&](int64_t begin, int64_t end) {
        size_t at = 0;
        for (int64_t row = begin; row < end; row++) {
            while (at + 1 < blocks.size() && blocks[at + 1].row <= row) at++; // of blocks without rows, the last
            const Block &block = blocks[at];
            char *to = out + row * width;
            std::memset(to, 0, static_cast<size_t>(block.before));
            copy_bytes(block.data + (row - block.row) * block.bytes, block.bytes, to + block.before);
            std::memset(to + block.before + block.bytes, 0, static_cast<size_t>(width - block.before - block.bytes));
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

void bind_joining(nb::module_ &m) {
    m.def("concatenate", &concatenate, nb::arg(), nb::arg().none() = 0);
    m.def("stack", &stack, nb::arg(), nb::arg().none() = 0);
    m.def("block_diag", &block_diag);
    m.def("lengths_along", &lengths_along, nb::arg("tensors").none(), nb::arg("dim").none());
}

} // namespace resilin
