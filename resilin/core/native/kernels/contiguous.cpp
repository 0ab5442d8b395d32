// Arrays copied into C order from an order in which another dimension than the last is the fastest: by square blocks,
// so that what is read along one dimension and written along the other stays in the first cache meanwhile. Arrays of all
// other orders are copied row by row.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "runs.hpp"
#include "squares.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t BLOCK = 16; // elements of 4 bytes in a line of the cache

struct Dim {
    int64_t length, from, to; // steps in bytes of the source, in elements of the copy
};

// The dimensions that matter, neighbours that lie behind one another in the source as one.
std::vector<Dim> dims_of(PyArrayObject *x) {
    std::vector<Dim> dims;
    for (int i = 0; i < PyArray_NDIM(x); i++) {
        const int64_t length = PyArray_DIM(x, i), step = PyArray_STRIDE(x, i);
        if (length == 1) continue;
        if (!dims.empty() && dims.back().from == step * length) dims.back() = {dims.back().length * length, step, 1};
        else dims.push_back({length, step, 1});
    }
    for (size_t i = dims.size(); i-- > 1;) dims[i - 1].to = dims[i].to * dims[i].length;
    return dims;
}

struct Bytes16 {
    uint64_t half[2];
};

template <class T> RESILIN_INLINE void copy_elements(const char *x, const Dim &a, const Dim &last, int64_t rows, int64_t columns, T *y) {
    for (int64_t j = 0; j < rows; j++)
        for (int64_t i = 0; i < columns; i++)
            y[j * a.to + i] = *reinterpret_cast<const T *>(x + j * a.from + i * last.from);
}

// Whole blocks of what lies side by side along `a`, forwards or backwards, are turned around by small squares.
template <class T> RESILIN_INLINE void copy_block(const char *x, const Dim &a, const Dim &last, int64_t rows, int64_t columns, T *y) {
    if constexpr (sizeof(T) <= 8) {
        constexpr int64_t bytes = sizeof(T), W = SQUARE<T>;
        if (rows == BLOCK && columns == BLOCK && (a.from == bytes || a.from == -bytes)) {
            const bool forwards = a.from > 0;
            const char *first = forwards ? x : x - (BLOCK - 1) * bytes;
            T *to = forwards ? y : y + (BLOCK - 1) * a.to;
            for (int64_t j = 0; j < BLOCK; j += W)
                for (int64_t i = 0; i < BLOCK; i += W)
                    turn_small_square(first + j * bytes + i * last.from, last.from, to + (forwards ? j : -j) * a.to + i,
                                      forwards ? a.to : -a.to);
            return;
        }
    }
    copy_elements(x, a, last, rows, columns, y);
}

// One matrix: dimension `a` from `begin` to `end`, and the last one.
template <class T> void copy_rows(const char *x, const Dim &a, const Dim &last, int64_t begin, int64_t end, T *y) {
    for (int64_t j = begin; j < end; j += BLOCK)
        for (int64_t i = 0; i < last.length; i += BLOCK)
            copy_block(x + j * a.from + i * last.from, a, last, std::min(BLOCK, end - j),
                       std::min(BLOCK, last.length - i), y + j * a.to + i);
}

// `others` are the dimensions but for `a` and the last.
template <class T> void copy_all(const char *x, const std::vector<Dim> &others, const Dim &a, const Dim &last, T *y) {
    int64_t matrices = 1;
    for (const Dim &dim : others) matrices *= dim.length;
    const int64_t strips = (a.length + BLOCK - 1) / BLOCK;
    parallel_rows(matrices * strips, std::min(BLOCK, a.length) * last.length, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++) {
            int64_t rest = task / strips, from = 0, to = 0;
            for (size_t k = others.size(); k-- > 0; rest /= others[k].length) {
                const int64_t at = rest % others[k].length;
                from += at * others[k].from, to += at * others[k].to;
            }
            const int64_t first = task % strips * BLOCK;
            copy_rows(x + from, a, last, first, std::min(first + BLOCK, a.length), y + to);
        }
    });
}

} // namespace

PyObject *contiguous_copy(PyArrayObject *x) {
    std::vector<Dim> dims = dims_of(x);
    const npy_intp bytes = PyArray_ITEMSIZE(x);
    if (!PyArray_SIZE(x) || !has_runs(bytes) || PyDataType_REFCHK(PyArray_DESCR(x)) || !PyArray_ISALIGNED(x) || !PyArray_ISNOTSWAPPED(x))
        return nullptr;
    if (dims.empty()) dims.push_back({1, bytes, 1});
    PyArray_Descr *descr = PyArray_DESCR(x);
    Py_INCREF(descr);
    PyObject *y = PyArray_Empty(PyArray_NDIM(x), PyArray_DIMS(x), descr, 0);
    if (!y) {
        PyErr_Clear(); // numpy meets it again and says so
        return nullptr;
    }
    void *data = PyArray_DATA(reinterpret_cast<PyArrayObject *>(y));
    const char *source = PyArray_BYTES(x);
    WithoutGil free(PyArray_SIZE(x));
    const Dim last = dims.back();
    size_t fastest = dims.size() - 1;
    for (size_t i = 0; i + 1 < dims.size(); i++)
        if (dims[i].from && std::abs(dims[i].from) < std::abs(dims[fastest].from)) fastest = i;
    if (fastest == dims.size() - 1 || last.from == -bytes) { // read in the order of the copy
        Runs runs;
        for (const Dim &dim : dims) runs.push_back({{0, dim.from, dim.length}});
        copy_runs(source, std::move(runs), bytes, nullptr, static_cast<char *>(data));
        return y;
    }
    const Dim a = dims[fastest];
    dims.pop_back();
    dims.erase(dims.begin() + static_cast<int64_t>(fastest));
    if (bytes == 1) copy_all(source, dims, a, last, static_cast<uint8_t *>(data));
    if (bytes == 2) copy_all(source, dims, a, last, static_cast<uint16_t *>(data));
    if (bytes == 4) copy_all(source, dims, a, last, static_cast<uint32_t *>(data));
    if (bytes == 8) copy_all(source, dims, a, last, static_cast<uint64_t *>(data));
    if (bytes == 16) copy_all(source, dims, a, last, static_cast<Bytes16 *>(data));
    return y;
}

namespace {

// Rows of matrices of m x n elements of `size` bytes: those on one side of a diagonal, zeros on the other.
void copy_triangles(const char *x, int64_t rows, int64_t m, int64_t n, int64_t size, int64_t diagonal, bool upper, char *y) {
    parallel_rows(rows, n, [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const int64_t edge = std::clamp<int64_t>(row % m + diagonal + (upper ? 0 : 1), 0, n) * size, whole = n * size;
            const char *from = x + row * whole;
            char *to = y + row * whole;
            if (upper) {
                std::memset(to, 0, static_cast<size_t>(edge));
                std::memcpy(to + edge, from + edge, static_cast<size_t>(whole - edge));
            } else {
                std::memcpy(to, from, static_cast<size_t>(edge));
                std::memset(to + edge, 0, static_cast<size_t>(whole - edge));
            }
        }
    });
}

// The upper or lower triangles of contiguous matrices; None for what numpy copies.
nb::object triangle(ExactArray x, int64_t diagonal, bool upper) {
    if (!x || x.ndim() < 2 || !x.size() || !PyArray_ISCARRAY_RO(x.array) || PyDataType_REFCHK(PyArray_DESCR(x.array))) return nb::none();
    const int64_t m = x.dim(x.ndim() - 2), n = x.last();
    if (diagonal < -m || diagonal > n) diagonal = diagonal < 0 ? -m : n;
    PyArray_Descr *descr = PyArray_DESCR(x.array);
    Py_INCREF(descr);
    nb::object made = nb::steal(PyArray_Empty(x.ndim(), PyArray_DIMS(x.array), descr, 0));
    if (!made.ptr()) throw nb::python_error();
    char *to = PyArray_BYTES(reinterpret_cast<PyArrayObject *>(made.ptr()));
    WithoutGil free(x.size());
    copy_triangles(PyArray_BYTES(x.array), x.rows(), m, n, PyArray_ITEMSIZE(x.array), diagonal, upper, to);
    return made;
}

} // namespace

void bind_contiguous(nb::module_ &m) {
    bind_runs(m);
    m.def("triangle", &triangle);
    m.def("contiguous_copy", [](ExactArray x) {
        PyObject *y = x ? contiguous_copy(x.array) : nullptr;
        return y ? nb::steal(y) : nb::none();
    });
}

} // namespace resilin
