// The largest or smallest element over the last dimensions of contiguous arrays; NaN wins.
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"
#include "trailing.hpp"

#include <limits>

namespace resilin {
namespace {

// of n >= 1 elements
RESILIN_INLINE float largest_of(const float *x, int64_t n) {
    float best = -std::numeric_limits<float>::infinity();
    int unordered = 0;
#pragma omp simd reduction(max : best) reduction(| : unordered)
    for (int64_t i = 0; i < n; i++) {
        best = x[i] > best ? x[i] : best;
        unordered |= x[i] != x[i];
    }
    return unordered ? std::numeric_limits<float>::quiet_NaN() : best;
}
RESILIN_INLINE float smallest_of(const float *x, int64_t n) {
    float best = std::numeric_limits<float>::infinity();
    int unordered = 0;
#pragma omp simd reduction(min : best) reduction(| : unordered)
    for (int64_t i = 0; i < n; i++) {
        best = x[i] < best ? x[i] : best;
        unordered |= x[i] != x[i];
    }
    return unordered ? std::numeric_limits<float>::quiet_NaN() : best;
}

RESILIN_SIMD void largest_of_rows(const float *x, int64_t n, int64_t begin, int64_t end, float *y) {
    for (int64_t row = begin; row < end; row++) y[row] = largest_of(x + row * n, n);
}
RESILIN_SIMD void smallest_of_rows(const float *x, int64_t n, int64_t begin, int64_t end, float *y) {
    for (int64_t row = begin; row < end; row++) y[row] = smallest_of(x + row * n, n);
}

template <bool Largest> RESILIN_INLINE void whole_extremes(const int64_t *x, int64_t n, int64_t rows, int64_t *y) {
    for (int64_t row = 0; row < rows; row++, x += n) {
        int64_t best = x[0];
        for (int64_t i = 1; i < n; i++) best = (Largest ? x[i] > best : x[i] < best) ? x[i] : best;
        y[row] = best;
    }
}
RESILIN_SIMD void largest_whole(const int64_t *x, int64_t n, int64_t rows, int64_t *y) { whole_extremes<true>(x, n, rows, y); }
RESILIN_SIMD void smallest_whole(const int64_t *x, int64_t n, int64_t rows, int64_t *y) { whole_extremes<false>(x, n, rows, y); }

constexpr int64_t WHOLE_MOST = 1 << 16; // of more whole numbers numpy is as fast

nb::object whole_extreme(const ExactArray &x, nb::handle axis, bool keepdims, bool largest) {
    const uint64_t named = trailing(axis, x);
    if (!named) return nb::none();
    int64_t rows;
    NewArray<int64_t> y = without_trailing<int64_t>(x, named, keepdims, rows);
    (largest ? largest_whole : smallest_whole)(x.data<int64_t>(), x.size() / rows, rows, y.data);
    return y.object;
}

nb::object extreme_last(nb::handle given, nb::handle axis, bool keepdims, bool largest) {
    if (!PyArray_CheckExact(given.ptr())) return nb::none();
    const ExactArray x{reinterpret_cast<PyArrayObject *>(given.ptr())};
    if (x.is<int64_t>() && x.size() && x.size() <= WHOLE_MOST) return whole_extreme(x, axis, keepdims, largest);
    if (!x.is<float>() || !x.size()) return nb::none();
    const uint64_t named = trailing(axis, x);
    if (!named) return nb::none();
    int64_t rows;
    NewArray<float> y = without_trailing<float>(x, named, keepdims, rows);
    {
        WithoutGil free(x.size());
        const int64_t n = x.size() / rows;
        parallel_rows(rows, n, [&](int64_t begin, int64_t end) {
            (largest ? largest_of_rows : smallest_of_rows)(x.data<float>(), n, begin, end, y.data);
        });
    }
    return y.object;
}

nb::object largest_last(nb::handle given, nb::handle axis, bool keepdims) { return extreme_last(given, axis, keepdims, true); }
nb::object smallest_last(nb::handle given, nb::handle axis, bool keepdims) { return extreme_last(given, axis, keepdims, false); }

RESILIN_SIMD void range_of(const int64_t *x, int64_t n, int64_t *range) {
    int64_t low = x[0], high = x[0];
    for (int64_t i = 1; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    range[0] = low;
    range[1] = high;
}

// (smallest, largest) of the elements
nb::object integer_range(ExactArray x) {
    if (!x.is<int64_t>() || !x.size()) return nb::none();
    int64_t range[2];
    range_of(x.data<int64_t>(), x.size(), range);
    return nb::make_tuple(range[0], range[1]);
}

// Whether all elements are in [low, high).
nb::object integers_within(nb::handle given, int64_t low, int64_t high) {
    if (!PyArray_CheckExact(given.ptr())) return nb::none();
    const ExactArray x{reinterpret_cast<PyArrayObject *>(given.ptr())};
    if (!x.size() || !x.is<int64_t>()) return nb::none();
    int64_t range[2];
    range_of(x.data<int64_t>(), x.size(), range);
    return nb::bool_(range[0] >= low && range[1] < high);
}

} // namespace

void bind_extremes(nb::module_ &m) {
    m.def("largest_last", &largest_last, nb::arg(), nb::arg().none(), nb::arg());
    m.def("smallest_last", &smallest_last, nb::arg(), nb::arg().none(), nb::arg());
    m.def("integers_within", &integers_within);
    m.def("integer_range", &integer_range);
    m.def("extreme_last", &extreme_last, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"), nb::arg("largest"));
}

} // namespace resilin
