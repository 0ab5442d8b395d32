// The largest or smallest element over the last dimensions of contiguous arrays; NaN wins.
#include "extremes.hpp"
#include "binding/kernels.hpp"
#include "elementwise/ufunc_loops.hpp"
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

constexpr int64_t FEW = LANES - 1; // elements of a row that are not worth a vector

// of n >= 1 elements
template <class T, class Better> RESILIN_INLINE T best_of_few(const T *x, int64_t n, const Better &better) {
    T best = x[0];
    bool unordered = best != best;
    for (int64_t i = 1; i < n; i++) {
        best = better(x[i], best) ? x[i] : best;
        unordered |= x[i] != x[i];
    }
    return unordered ? std::numeric_limits<T>::quiet_NaN() : best;
}
template <class T> RESILIN_INLINE T larger(T best, const T *x, int64_t n, bool &nan) {
    int unordered = nan;
#pragma omp simd reduction(max : best) reduction(| : unordered)
    for (int64_t i = 0; i < n; i++) {
        best = x[i] > best ? x[i] : best;
        unordered |= x[i] != x[i];
    }
    nan = unordered;
    return best;
}
template <class T> RESILIN_INLINE T largest_of(const T *x, int64_t n) {
    if (n <= FEW) return best_of_few(x, n, [](T a, T b) { return a > b; });
    bool nan = false;
    T best = larger(LOW_END<T>, x, n - n % LANES, nan);
    if (n % LANES) best = larger(best, x + n - LANES, LANES, nan); // the last ones, some again
    return nan ? std::numeric_limits<T>::quiet_NaN() : best;
}
template <class T> RESILIN_INLINE T smaller(T best, const T *x, int64_t n, bool &nan) {
    int unordered = nan;
#pragma omp simd reduction(min : best) reduction(| : unordered)
    for (int64_t i = 0; i < n; i++) {
        best = x[i] < best ? x[i] : best;
        unordered |= x[i] != x[i];
    }
    nan = unordered;
    return best;
}
template <class T> RESILIN_INLINE T smallest_of(const T *x, int64_t n) {
    if (n <= FEW) return best_of_few(x, n, [](T a, T b) { return a < b; });
    bool nan = false;
    T best = smaller(END<T>, x, n - n % LANES, nan);
    if (n % LANES) best = smaller(best, x + n - LANES, LANES, nan); // the last ones, some again
    return nan ? std::numeric_limits<T>::quiet_NaN() : best;
}

// Numbers that are ordered as 16-bit floats are, -0 as 0, and back
RESILIN_INLINE int16_t ordered(uint16_t bits) {
    const int16_t sign = static_cast<int16_t>(static_cast<int16_t>(bits) >> 15);
    return static_cast<int16_t>(((bits & 0x7FFF) ^ sign) - sign);
}
RESILIN_INLINE uint16_t bits_of(int16_t key) { return static_cast<uint16_t>(key < 0 ? 0x8000 | -key : key); }

// `infinity` is that of the type; NaN lies beyond it, and becomes the quiet one without a sign
template <bool Largest> RESILIN_INLINE uint16_t extreme_of(const uint16_t *x, int64_t n, int16_t infinity) {
    int16_t best = -0x7FFF, size = 0;
#pragma omp simd reduction(max : size) reduction(max : best)
    for (int64_t i = 0; i < n; i++) {
        const int16_t key = ordered(x[i]), now = Largest ? key : static_cast<int16_t>(-key);
        const int16_t other = static_cast<int16_t>(x[i] & 0x7FFF);
        best = now > best ? now : best;
        size = other > size ? other : size;
    }
    if (size > infinity) return static_cast<uint16_t>(infinity == 0x7C00 ? 0x7E00 : 0x7FC0);
    return bits_of(Largest ? best : static_cast<int16_t>(-best));
}

} // namespace

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
RESILIN_EXTREMES(int32_t)

namespace {

// The smallest and the largest of n >= 1 elements
template <class T> RESILIN_INLINE void both_ends(const T *x, int64_t n, T *low, T *high) {
    T least = END<T>, most = LOW_END<T>;
    int unordered = 0;
#pragma omp simd reduction(min : least) reduction(max : most) reduction(| : unordered)
    for (int64_t i = 0; i < n; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
        unordered |= x[i] != x[i];
    }
    *low = unordered ? std::numeric_limits<T>::quiet_NaN() : least;
    *high = unordered ? std::numeric_limits<T>::quiet_NaN() : most;
}
RESILIN_SIMD void both_of_part(const float *x, int64_t n, float *low, float *high) { both_ends(x, n, low, high); }
RESILIN_SIMD void both_of_part(const double *x, int64_t n, double *low, double *high) { both_ends(x, n, low, high); }
RESILIN_SIMD void both_of_part(const int64_t *x, int64_t n, int64_t *low, int64_t *high) { both_ends(x, n, low, high); }

RESILIN_SIMD void halves_of_rows(const uint16_t *x, int64_t n, int64_t begin, int64_t end, bool largest,
                                 int16_t infinity, uint16_t *y) {
    for (int64_t row = begin; row < end; row++)
        y[row] = largest ? extreme_of<true>(x + row * n, n, infinity) : extreme_of<false>(x + row * n, n, infinity);
}

constexpr int64_t PART = 1 << 13; // elements of one long row that are looked through at once

// of_rows(x, n, begin, end, y): y[row] = the extreme of row `row`, of n elements
template <class T, class OfRows>
nb::object extremes_of_type(const ExactArray &x, uint64_t named, bool keepdims, const OfRows &of_rows) {
    nb::object made = without_axes(x, named, keepdims);
    T *y = static_cast<T *>(PyArray_DATA(reinterpret_cast<PyArrayObject *>(made.ptr())));
    const int64_t rows = PyArray_SIZE(reinterpret_cast<PyArrayObject *>(made.ptr()));
    WithoutGil free(x.size());
    const int64_t n = x.size() / rows, parts = rows == 1 ? n / PART : 0;
    if (parts < 2) {
        parallel_rows(rows, n, [&](int64_t begin, int64_t end) { of_rows(x.data<T>(), n, begin, end, y); });
        return made;
    }
    std::vector<T> found(static_cast<size_t>(parts));
    parallel_rows(parts, PART, [&](int64_t begin, int64_t end) {
        of_rows(x.data<T>(), PART, begin, std::min(end, parts - 1), found.data());
        if (end == parts) // the last one has what is left
            of_rows(x.data<T>() + (parts - 1) * PART, n - (parts - 1) * PART, 0, 1, found.data() + parts - 1);
    });
    of_rows(found.data(), parts, 0, 1, y);
    return made;
}
template <class T> nb::object extremes_of(const ExactArray &x, uint64_t named, bool keepdims, bool largest) {
    return extremes_of_type<T>(x, named, keepdims, [=](const T *from, int64_t n, int64_t begin, int64_t end, T *to) {
        if (largest) largest_of_rows(from, n, begin, end, to);
        else smallest_of_rows(from, n, begin, end, to);
    });
}

nb::object extreme_over(const ExactArray &x, nb::handle axis, bool keepdims, bool largest) {
    uint64_t named;
    if (!trailing(axis, x, named)) return extremes_of_columns(x, axis, keepdims, largest);
    if (x.is<float>()) return extremes_of<float>(x, named, keepdims, largest);
    if (x.is<double>()) return extremes_of<double>(x, named, keepdims, largest);
    if (x.is<int64_t>()) return extremes_of<int64_t>(x, named, keepdims, largest);
    if (x.is<int32_t>()) return extremes_of<int32_t>(x, named, keepdims, largest);
    const int type = PyArray_TYPE(x.array);
    if ((type != NPY_HALF && type != bfloat16_type) || !PyArray_ISCARRAY_RO(x.array) || !PyArray_ISNOTSWAPPED(x.array))
        return nb::none();
    const int16_t infinity = type == NPY_HALF ? 0x7C00 : 0x7F80;
    const auto of_rows = [=](const uint16_t *from, int64_t n, int64_t begin, int64_t end, uint16_t *to) {
        halves_of_rows(from, n, begin, end, largest, infinity, to);
    };
    return extremes_of_type<uint16_t>(x, named, keepdims, of_rows);
}

nb::object extreme_last(nb::handle given, nb::handle axis, bool keepdims, bool largest) {
    if (!PyArray_CheckExact(given.ptr())) return nb::none();
    const ExactArray x{reinterpret_cast<PyArrayObject *>(given.ptr())};
    if (!x.size()) return nb::none();
    return as_it_lies(x, axis, keepdims, [=](const ExactArray &of, nb::handle over, bool keep) { return extreme_over(of, over, keep, largest); });
}

// (smallest, largest) of the whole array: of each part both, while it is in the cache
template <class T, class OfPart, class OfRows>
nb::object both_of_type(const ExactArray &x, bool keepdims, const OfPart &of_part, const OfRows &of_rows) {
    nb::object low = without_axes(x, ~uint64_t{0}, keepdims), high = without_axes(x, ~uint64_t{0}, keepdims);
    {
        WithoutGil free(x.size());
        const int64_t parts = (x.size() + PART - 1) / PART;
        std::vector<T> found(static_cast<size_t>(2 * parts));
        T *lows = found.data(), *highs = lows + parts;
        parallel_rows(parts, PART, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) {
                const T *from = x.data<T>() + i * PART;
                const int64_t n = std::min(PART, x.size() - i * PART);
                of_part(from, n, lows + i, highs + i);
            }
        });
        of_rows(lows, parts, 0, 1, static_cast<T *>(PyArray_DATA(reinterpret_cast<PyArrayObject *>(low.ptr()))), false);
        of_rows(highs, parts, 0, 1, static_cast<T *>(PyArray_DATA(reinterpret_cast<PyArrayObject *>(high.ptr()))), true);
    }
    return nb::make_tuple(low, high);
}
template <class T> nb::object both_of(const ExactArray &x, bool keepdims) {
    const auto of_part = [](const T *from, int64_t n, T *low, T *high) { both_of_part(from, n, low, high); };
    const auto of_rows = [](const T *from, int64_t n, int64_t begin, int64_t end, T *to, bool largest) {
        if (largest) largest_of_rows(from, n, begin, end, to);
        else smallest_of_rows(from, n, begin, end, to);
    };
    return both_of_type<T>(x, keepdims, of_part, of_rows);
}
nb::object extremes(ExactArray x, bool keepdims) {
    if (!x || !x.size()) return nb::none();
    if (x.is<float>()) return both_of<float>(x, keepdims);
    if (x.is<double>()) return both_of<double>(x, keepdims);
    if (x.is<int64_t>()) return both_of<int64_t>(x, keepdims);
    const int type = PyArray_TYPE(x.array);
    if ((type != NPY_HALF && type != bfloat16_type) || !PyArray_ISCARRAY_RO(x.array) || !PyArray_ISNOTSWAPPED(x.array))
        return nb::none();
    const int16_t infinity = type == NPY_HALF ? 0x7C00 : 0x7F80;
    const auto of_rows = [=](const uint16_t *from, int64_t n, int64_t begin, int64_t end, uint16_t *to, bool largest) {
        halves_of_rows(from, n, begin, end, largest, infinity, to);
    };
    const auto of_part = [=](const uint16_t *from, int64_t n, uint16_t *low, uint16_t *high) {
        of_rows(from, n, 0, 1, low, false), of_rows(from, n, 0, 1, high, true);
    };
    return both_of_type<uint16_t>(x, keepdims, of_part, of_rows);
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
    bind_extreme_places(m);
    m.def("extremes", &extremes);
    m.def("integers_within", &integers_within);
    m.def("integer_range", &integer_range);
    m.def("extreme_last", &extreme_last, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"), nb::arg("largest"));
    m.def("largest_last", &largest_last, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
    m.def("smallest_last", &smallest_last, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
}

} // namespace resilin
