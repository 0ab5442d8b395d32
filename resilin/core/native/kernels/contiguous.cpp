// Arrays copied into C order from an order in which another dimension than the last is the fastest: by square blocks,
// so that what is read along one dimension and written along the other stays in the first cache meanwhile.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"

#include <cstdlib>
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

template <class T> void copy_block(const char *x, const Dim &a, const Dim &last, int64_t rows, int64_t columns, T *y) {
    for (int64_t j = 0; j < rows; j++)
        for (int64_t i = 0; i < columns; i++)
            y[j * a.to + i] = *reinterpret_cast<const T *>(x + j * a.from + i * last.from);
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
    if (dims.size() < 2 || !PyArray_SIZE(x) || PyDataType_REFCHK(PyArray_DESCR(x)) || !PyArray_ISALIGNED(x) ||
        !PyArray_ISNOTSWAPPED(x))
        return nullptr;
    const Dim last = dims.back();
    dims.pop_back();
    size_t fastest = 0;
    for (size_t i = 1; i < dims.size(); i++)
        if (dims[i].from && (!dims[fastest].from || std::abs(dims[i].from) < std::abs(dims[fastest].from))) fastest = i;
    const Dim a = dims[fastest];
    if (!a.from || std::abs(a.from) >= std::abs(last.from)) return nullptr; // numpy reads it in its order
    dims.erase(dims.begin() + static_cast<int64_t>(fastest));
    PyArray_Descr *descr = PyArray_DESCR(x);
    const npy_intp bytes = PyArray_ITEMSIZE(x);
    if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8 && bytes != 16) return nullptr;
    Py_INCREF(descr);
    PyObject *y = PyArray_Empty(PyArray_NDIM(x), PyArray_DIMS(x), descr, 0);
    if (!y) {
        PyErr_Clear(); // numpy meets it again and says so
        return nullptr;
    }
    void *data = PyArray_DATA(reinterpret_cast<PyArrayObject *>(y));
    const char *source = PyArray_BYTES(x);
    WithoutGil free(PyArray_SIZE(x));
    if (bytes == 1) copy_all(source, dims, a, last, static_cast<uint8_t *>(data));
    if (bytes == 2) copy_all(source, dims, a, last, static_cast<uint16_t *>(data));
    if (bytes == 4) copy_all(source, dims, a, last, static_cast<uint32_t *>(data));
    if (bytes == 8) copy_all(source, dims, a, last, static_cast<uint64_t *>(data));
    if (bytes == 16) copy_all(source, dims, a, last, static_cast<Bytes16 *>(data));
    return y;
}

void bind_contiguous(nb::module_ &m) {
    m.def("contiguous_copy", [](ExactArray x) {
        PyObject *y = x ? contiguous_copy(x.array) : nullptr;
        return y ? nb::steal(y) : nb::none();
    });
}

} // namespace resilin
