// Weighted sums of elements along one dimension: every row of the result takes a few elements of the source, in order.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <cstring>
#include <vector>

namespace resilin {
namespace {

// Terms first[r] to first[r + 1] make row r: weights[k] times element columns[k], or the element itself.
struct Taps {
    std::vector<int64_t> first;
    std::vector<int32_t> columns;
    const float *weights;
    int64_t each = 0; // how many terms every row has; 0 where they differ

    int64_t size() const { return static_cast<int64_t>(first.size()) - 1; }
};

// False unless rows ascend from 0 to below `size` and columns lie in [0, length).
bool read(const int64_t *rows, const int64_t *columns, int64_t count, int64_t size, int64_t length, Taps &taps) {
    taps.first.assign(static_cast<size_t>(size) + 1, 0);
    taps.columns.resize(static_cast<size_t>(count));
    for (int64_t k = 0; k < count; k++) {
        if (rows[k] < 0 || rows[k] >= size || (k && rows[k] < rows[k - 1]) || columns[k] < 0 || columns[k] >= length)
            return false;
        taps.first[static_cast<size_t>(rows[k]) + 1]++;
        taps.columns[static_cast<size_t>(k)] = static_cast<int32_t>(columns[k]);
    }
    taps.each = size ? taps.first[1] : 0;
    for (size_t r = 1; r < taps.first.size(); r++) {
        if (taps.first[r] != taps.each) taps.each = 0;
        taps.first[r] += taps.first[r - 1];
    }
    return true;
}

// One line of elements: y[r] for all r. With `Each` terms a row, or as many as `first` says.
template <int Each, bool Weighted> RESILIN_INLINE void line(const float *x, const Taps &taps, float *y) {
    const int64_t *first = taps.first.data(), size = taps.size();
    const int32_t *columns = taps.columns.data();
    const float *weights = taps.weights;
    for (int64_t r = 0; r < size; r++) {
        const int64_t begin = Each ? r * Each : first[r], end = Each ? begin + Each : first[r + 1];
        float sum = begin == end ? 0.0f : Weighted ? weights[begin] * x[columns[begin]] : x[columns[begin]];
        for (int64_t k = begin + 1; k < end; k++) sum += Weighted ? weights[k] * x[columns[k]] : x[columns[k]];
        y[r] = sum;
    }
}

RESILIN_SIMD void lines(const float *x, const Taps &taps, int64_t length, int64_t count, float *y) {
    const int64_t size = taps.size();
    for (int64_t i = 0; i < count; i++, x += length, y += size) {
        if (!taps.weights && taps.each == 1) line<1, false>(x, taps, y);
        else if (!taps.weights) line<0, false>(x, taps, y);
        else if (taps.each == 2) line<2, true>(x, taps, y);
        else if (taps.each == 4) line<4, true>(x, taps, y);
        else line<0, true>(x, taps, y);
    }
}

RESILIN_SIMD void scaled(const float *x, float weight, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = weight * x[i];
}
RESILIN_SIMD void add_scaled(const float *x, float weight, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] += weight * x[i];
}
RESILIN_SIMD void add_plain(const float *x, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

// Row r of slices of `inner` elements.
void slice(const float *x, const Taps &taps, int64_t r, int64_t inner, float *y) {
    const int64_t begin = taps.first[static_cast<size_t>(r)], end = taps.first[static_cast<size_t>(r) + 1];
    const size_t bytes = static_cast<size_t>(inner) * sizeof(float);
    if (begin == end) std::memset(y, 0, bytes);
    for (int64_t k = begin; k < end; k++) {
        const float *from = x + taps.columns[static_cast<size_t>(k)] * inner;
        if (taps.weights) (k == begin ? scaled : add_scaled)(from, taps.weights[k], inner, y);
        else if (k == begin) std::memcpy(y, from, bytes);
        else add_plain(from, inner, y);
    }
}

nb::object resample(Array x, Array rows, Array columns, Array weights, int64_t size, int64_t axis) {
    if (!x.is<float>() || !rows.is<int64_t>() || !columns.is<int64_t>() || !weights.is_or_none<float>() || size < 0 ||
        axis < 0 || axis >= x.ndim() || rows.size() != columns.size() || (weights && weights.size() != rows.size()))
        return nb::none();
    std::vector<npy_intp> dims(PyArray_DIMS(x.array), PyArray_DIMS(x.array) + x.ndim());
    int64_t outer = 1, inner = 1;
    const int64_t length = dims[static_cast<size_t>(axis)];
    for (int i = 0; i < x.ndim(); i++) (i < axis ? outer : inner) *= i == axis ? 1 : x.dim(i);
    Taps taps;
    taps.weights = weights.data<float>();
    if (length > INT32_MAX || !read(rows.data<int64_t>(), columns.data<int64_t>(), rows.size(), size, length, taps))
        return nb::none();
    dims[static_cast<size_t>(axis)] = size;
    NewArray<float> y(x.ndim(), dims.data());
    nb::object made = y.object;
    WithoutGil free(outer * size * inner);
    if (inner == 1) {
        parallel_rows(outer, std::max(size, rows.size()), [&](int64_t begin, int64_t end) {
            lines(x.data<float>() + begin * length, taps, length, end - begin, y.data + begin * size);
        });
        return made;
    }
    parallel_rows(outer * size, inner, [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; at++)
            slice(x.data<float>() + at / size * length * inner, taps, at % size, inner, y.data + at * inner);
    });
    return made;
}

} // namespace

void bind_resample(nb::module_ &m) {
    m.def("resample", &resample, nb::arg("x"), nb::arg("rows"), nb::arg("columns"), nb::arg("weights").none(),
          nb::arg("size"), nb::arg("axis"));
}

} // namespace resilin
