// The largest or smallest element over the last dimensions of contiguous arrays; NaN wins.
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "kernels/simd.hpp"
#include "trailing.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace resilin {
namespace {

template <class T> using Limits = std::numeric_limits<T>;
template <class T> constexpr T END = Limits<T>::has_infinity ? Limits<T>::infinity() : Limits<T>::max();
template <class T> constexpr T LOW_END = Limits<T>::has_infinity ? -END<T> : Limits<T>::lowest();

// of n >= 1 elements
template <class T> RESILIN_INLINE T largest_of(const T *x, int64_t n) {
    T best = LOW_END<T>;
    int unordered = 0;
#pragma omp simd reduction(max : best) reduction(| : unordered)
    for (int64_t i = 0; i < n; i++) {
        best = x[i] > best ? x[i] : best;
        unordered |= x[i] != x[i];
    }
    return unordered ? std::numeric_limits<T>::quiet_NaN() : best;
}
template <class T> RESILIN_INLINE T smallest_of(const T *x, int64_t n) {
    T best = END<T>;
    int unordered = 0;
#pragma omp simd reduction(min : best) reduction(| : unordered)
    for (int64_t i = 0; i < n; i++) {
        best = x[i] < best ? x[i] : best;
        unordered |= x[i] != x[i];
    }
    return unordered ? std::numeric_limits<T>::quiet_NaN() : best;
}

#define RESILIN_EXTREMES(T)                                                                                            \
    RESILIN_SIMD void largest_of_rows(const T *x, int64_t n, int64_t begin, int64_t end, T *y) {                       \
        for (int64_t row = begin; row < end; row++) y[row] = largest_of(x + row * n, n);                               \
    }                                                                                                                  \
    RESILIN_SIMD void smallest_of_rows(const T *x, int64_t n, int64_t begin, int64_t end, T *y) {                      \
        for (int64_t row = begin; row < end; row++) y[row] = smallest_of(x + row * n, n);                              \
    }
RESILIN_EXTREMES(float)
RESILIN_EXTREMES(double)
RESILIN_EXTREMES(int64_t)

constexpr int64_t PART = 1 << 15; // elements of one long row that a thread takes

template <class T> nb::object extremes_of_type(const ExactArray &x, uint64_t named, bool keepdims, bool largest) {
    int64_t rows;
    NewArray<T> y = without_trailing<T>(x, named, keepdims, rows);
    nb::object made = y.object;
    WithoutGil free(x.size());
    const auto of_rows = [largest](const T *from, int64_t n, int64_t begin, int64_t end, T *to) {
        if (largest) largest_of_rows(from, n, begin, end, to);
        else smallest_of_rows(from, n, begin, end, to);
    };
    const int64_t n = x.size() / rows, parts = rows == 1 ? n / PART : 0;
    if (parts < 2) {
        parallel_rows(rows, n, [&](int64_t begin, int64_t end) { of_rows(x.data<T>(), n, begin, end, y.data); });
        return made;
    }
    std::vector<T> found(static_cast<size_t>(parts));
    parallel_rows(parts, PART, [&](int64_t begin, int64_t end) {
        of_rows(x.data<T>(), PART, begin, std::min(end, parts - 1), found.data());
        if (end == parts) // the last one has what is left
            of_rows(x.data<T>() + (parts - 1) * PART, n - (parts - 1) * PART, 0, 1, found.data() + parts - 1);
    });
    of_rows(found.data(), parts, 0, 1, y.data);
    return made;
}

nb::object extreme_last(nb::handle given, nb::handle axis, bool keepdims, bool largest) {
    if (!PyArray_CheckExact(given.ptr())) return nb::none();
    const ExactArray x{reinterpret_cast<PyArrayObject *>(given.ptr())};
    uint64_t named;
    if (!x.size() || !trailing(axis, x, named)) return nb::none();
    if (x.is<float>()) return extremes_of_type<float>(x, named, keepdims, largest);
    if (x.is<double>()) return extremes_of_type<double>(x, named, keepdims, largest);
    return x.is<int64_t>() ? extremes_of_type<int64_t>(x, named, keepdims, largest) : nb::none();
}

nb::object largest_last(nb::handle x, nb::handle axis, bool keepdims) { return extreme_last(x, axis, keepdims, true); }
nb::object smallest_last(nb::handle x, nb::handle axis, bool keepdims) { return extreme_last(x, axis, keepdims, false); }

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

// Whether all elements are in [low, high)
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
    m.def("integers_within", &integers_within);
    m.def("integer_range", &integer_range);
    m.def("extreme_last", &extreme_last, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"), nb::arg("largest"));
    m.def("largest_last", &largest_last, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
    m.def("smallest_last", &smallest_last, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
}

} // namespace resilin
