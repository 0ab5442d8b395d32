// Sums over the last dimensions of contiguous arrays, in numpy's pairwise order (pairwise.hpp): of the elements, of their
// squares, of those that are no NaN; 16-bit floats in float32, rounded once. Integers wrap around, booleans are counted.
#include "pairwise.hpp"
#include "binding/kernels.hpp"
#include "eights.hpp"
#include "elementwise/half_blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "kernels/simd.hpp"
#include "trailing.hpp"

#include <cmath>

namespace resilin {
namespace {

// What is summed, from a place on: elements, what is made of each, or products of two arrays' elements
template <Summed WHAT, class T> struct Made {
    const T *x;
    RESILIN_INLINE Made operator+(int64_t i) const { return {x + i}; }
};
template <Summed WHAT, class V> RESILIN_INLINE V made_of(const V &x) {
    if constexpr (WHAT == Summed::squares) return x * x;
    else if constexpr (WHAT == Summed::known) return x == x ? x : V{};
    else return x < V{} ? -x : x + V{}; // of -0.0, 0
}
template <Summed WHAT> RESILIN_INLINE DoubleEight made_of(const DoubleEight &x) {
    return {made_of<WHAT>(x.low), made_of<WHAT>(x.high)};
}
template <class T> struct Products {
    const T *x, *y;
    RESILIN_INLINE Products operator+(int64_t i) const { return {x + i, y + i}; }
};
template <class T> RESILIN_INLINE auto eight(const T *x) { return load_eight(x); }
template <Summed WHAT, class T> RESILIN_INLINE auto eight(const Made<WHAT, T> &of) { return made_of<WHAT>(load_eight(of.x)); }
template <class T> RESILIN_INLINE auto eight(const Products<T> &of) { return load_eight(of.x) * load_eight(of.y); }
template <class T> RESILIN_INLINE T one(const T *x, int64_t i) { return x[i]; }
template <Summed WHAT, class T> RESILIN_INLINE T one(const Made<WHAT, T> &of, int64_t i) { return made_of<WHAT>(of.x[i]); }
template <class T> RESILIN_INLINE T one(const Products<T> &of, int64_t i) { return of.x[i] * of.y[i]; }

// The `count` eights of one run, at least one
template <class Terms> RESILIN_INLINE auto add_eights(const Terms &x, int64_t count) {
    auto sum = eight(x);
    for (int64_t i = 1; i < count; i++) sum = sum + eight(x + 8 * i);
    return sum;
}
// The same without a loop, which costs more where the lengths of runs change
template <class Terms> RESILIN_INLINE auto add_some_eights(const Terms &x, uint64_t count) {
    const Terms end = x + static_cast<int64_t>(8 * count);
    auto sum = eight(x);
    switch (count) {
#define RESILIN_EIGHT(k)                                                                                               \
    case k: sum = sum + eight(end + -8 * (k - 1)); [[fallthrough]];
        RESILIN_EIGHT(16)
        RESILIN_EIGHT(15)
        RESILIN_EIGHT(14)
        RESILIN_EIGHT(13)
        RESILIN_EIGHT(12)
        RESILIN_EIGHT(11)
        RESILIN_EIGHT(10)
        RESILIN_EIGHT(9)
        RESILIN_EIGHT(8)
        RESILIN_EIGHT(7)
        RESILIN_EIGHT(6)
        RESILIN_EIGHT(5)
        RESILIN_EIGHT(4)
        RESILIN_EIGHT(3)
        RESILIN_EIGHT(2)
#undef RESILIN_EIGHT
    default: break;
    }
    return sum;
}
static_assert(RUN == 8 * 16);

// What is left of it, one by one
template <class T, class Terms> RESILIN_INLINE T add_rest(const Terms &x, int64_t n, T sum) {
    for (int64_t i = n - n % 8; i < n; i++) sum += one(x, i);
    return sum;
}

// The sums of four runs of at least eight elements, which follow one another. They are read in this order, as a CPU fetches
// ahead what is read in order, and it adds up several at a time all the same: none waits for another.
template <class T, class Terms> RESILIN_INLINE void add_four(const Terms &x, const int64_t *starts, T *sums) {
    const Terms p = x + starts[0], q = x + starts[1], r = x + starts[2], s = x + starts[3];
    const int64_t n[4] = {starts[1] - starts[0], starts[2] - starts[1], starts[3] - starts[2], starts[4] - starts[3]};
    const auto a = add_eights(p, n[0] >> 3), b = add_eights(q, n[1] >> 3);
    const auto c = add_eights(r, n[2] >> 3), d = add_eights(s, n[3] >> 3);
    fold_eights(a, b, c, d, sums);
    if (((n[0] | n[1] | n[2] | n[3]) & 7) == 0) return;
    sums[0] = add_rest(p, n[0], sums[0]), sums[1] = add_rest(q, n[1], sums[1]);
    sums[2] = add_rest(r, n[2], sums[2]), sums[3] = add_rest(s, n[3], sums[3]);
}

template <class T, class Terms> RESILIN_INLINE T add_one(const Terms &x, int64_t n) {
    const auto sum = add_eights(x, n / 8);
    T sums[4];
    fold_eights(sum, sum, sum, sum, sums);
    return add_rest(x, n, sums[0]);
}

// One after the other, and four at a time, which have eight elements and more.
template <class T, class Terms> RESILIN_INLINE void add_all(const Terms &x, const int64_t *starts, int64_t count, T *sums) {
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) add_four(x, starts + i, sums + i);
    for (; i < count; i++) sums[i] = add_one<T>(x + starts[i], starts[i + 1] - starts[i]);
}

// Rows of N < 8 elements, one by one
template <int N, class T, class Terms> RESILIN_INLINE void add_short(const Terms &x, int64_t rows, T *y) {
    for (int64_t row = 0; row < rows; row++) {
        T sum = T(-0.0);
        for (int i = 0; i < N; i++) sum += one(x, row * N + i);
        y[row] = sum;
    }
}

template <class T, class Terms> RESILIN_INLINE void add_rows(const Terms &x, int64_t rows, const Runs &runs, T *y) {
    switch (runs.n) {
    case 1: return add_short<1>(x, rows, y);
    case 2: return add_short<2>(x, rows, y);
    case 3: return add_short<3>(x, rows, y);
    case 4: return add_short<4>(x, rows, y);
    case 5: return add_short<5>(x, rows, y);
    case 6: return add_short<6>(x, rows, y);
    case 7: return add_short<7>(x, rows, y);
    }
    const int64_t count = runs.count;
    int64_t starts[AT_ONCE / 8 + 1]; // of four rows' runs
    for (int64_t i = 0; i < 4 * count; i++) starts[i] = i / count * runs.n + runs.starts[i % count];
    starts[4 * count] = 4 * runs.n;
    T sums[AT_ONCE / 8];
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) {
        if (count == 1) {
            add_four(x + row * runs.n, starts, y + row);
            continue;
        }
        add_all(x + row * runs.n, starts, 4 * count, sums);
        const T *at = sums;
        for (int64_t k = 0; k < 4; k++) y[row + k] = joined(runs.n, RUN, at);
    }
    for (; row < rows; row++) {
        add_all(x + row * runs.n, starts, count, sums);
        const T *at = sums;
        y[row] = joined(runs.n, RUN, at);
    }
}

template <class T> RESILIN_INLINE T joined_eight(const T *sums) {
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Of eight runs, as most chunks are: their lengths are a few shifts
template <class T, class Terms> RESILIN_INLINE T add_eight_runs(const Terms &x, uint64_t n) {
    int64_t at = 0;
    const auto next = [&](uint64_t eights) __attribute__((always_inline)) {
        const auto sum = add_some_eights(x + at, eights);
        at += static_cast<int64_t>(8 * eights);
        return sum;
    };
    T sums[8];
#pragma GCC unroll 1
    for (int half = 0; half < 2; half++) {
        const uint64_t eights = half ? n / 8 - n / 16 : n / 16, low = eights / 2, high = eights - low;
        const auto a = next(low / 2), b = next(low - low / 2), c = next(high / 2), d = next(high - high / 2);
        fold_eights(a, b, c, d, sums + 4 * half);
    }
    for (; at != static_cast<int64_t>(n); at++) sums[7] += one(x, at);
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

template <class T, class Terms> RESILIN_INLINE T add_runs(const Terms &x, int64_t n) {
    const Runs runs(n);
    T sums[AT_ONCE / 32];
    add_all(x, runs.starts, runs.count, sums);
    const T *at = sums;
    return joined(n, RUN, at);
}

} // namespace

#define RESILIN_SUMMED(what, T, x, function, ...)                                                                      \
    switch (what) {                                                                                                    \
    case Summed::squares: return function<T>(Made<Summed::squares, T>{x}, __VA_ARGS__);                                \
    case Summed::known: return function<T>(Made<Summed::known, T>{x}, __VA_ARGS__);                                    \
    case Summed::sizes: return function<T>(Made<Summed::sizes, T>{x}, __VA_ARGS__);                                    \
    default: return function<T>(x, __VA_ARGS__);                                                                       \
    }
#define RESILIN_RUNS(T)                                                                                                \
    RESILIN_SIMD T sum_of_eight_runs(Summed what, const T *x, uint64_t n) {                                            \
        RESILIN_SUMMED(what, T, x, add_eight_runs, n)                                                                  \
    }                                                                                                                  \
    RESILIN_SIMD T sum_of_runs(Summed what, const T *x, int64_t n) { RESILIN_SUMMED(what, T, x, add_runs, n) }         \
    RESILIN_SIMD T sum_of_products(const T *x, const T *y, int64_t n) {                                                \
        const Products<T> products{x, y};                                                                              \
        return is_eight_runs(n) ? add_eight_runs<T>(products, static_cast<uint64_t>(n)) : add_runs<T>(products, n);    \
    }                                                                                                                  \
    RESILIN_SIMD void sums_of_rows(Summed what, const T *x, int64_t rows, const Runs &runs, T *y) {                    \
        RESILIN_SUMMED(what, T, x, add_rows, rows, runs, y)                                                            \
    }
RESILIN_RUNS(float)
RESILIN_RUNS(double)

namespace {

enum class Finish { sum, mean, root };

constexpr auto IN_PLACE = [](const auto *from, int64_t begin, int64_t, auto *) { return from + begin; };

// Sums of rows of T, or of the 16-bit floats that `convert` makes T
template <class T, class S, class Convert>
void sum_floats(const S *x, int64_t rows, int64_t length, Summed what, Finish finish, Convert convert, T *y) {
    auto read = [=](int64_t begin, int64_t end, T *scratch) -> const T * { return convert(x, begin, end, scratch); };
    pairwise_rows(read, rows, length, 1, what, y);
    if (finish == Finish::mean)
        for (int64_t row = 0; row < rows; row++) y[row] /= static_cast<T>(length);
    if (finish == Finish::root)
        for (int64_t row = 0; row < rows; row++) y[row] = std::sqrt(y[row]);
}

void sum_halves(const uint16_t *x, bool float16, int64_t rows, int64_t length, Summed what, Finish finish, float *y) {
    const auto unpack = float16 ? unpack_half : unpack_bfloat;
    auto convert = [=](const uint16_t *from, int64_t begin, int64_t end, float *scratch) -> const float * {
        unpack(from + begin, 0, end - begin, scratch);
        return scratch;
    };
    sum_floats(x, rows, length, what, finish, convert, y);
}

RESILIN_SIMD void add_integers(const int64_t *x, int64_t begin, int64_t end, int64_t length, int64_t *y) {
    for (int64_t row = begin; row < end; row++) {
        uint64_t sum = 0;
        for (int64_t i = 0; i < length; i++) sum += static_cast<uint64_t>(x[row * length + i]);
        y[row] = static_cast<int64_t>(sum);
    }
}
// Bytes of 0 and 1, as many as a byte can count at a time
RESILIN_SIMD void count_true(const uint8_t *x, int64_t begin, int64_t end, int64_t length, int64_t *y) {
    constexpr int64_t WIDTH = 64, TIMES = 255;
    for (int64_t row = begin; row < end; row++) {
        const uint8_t *at = x + row * length;
        int64_t sum = 0, i = 0;
        while (i + WIDTH <= length) {
            uint8_t counts[WIDTH] = {};
            for (int64_t k = 0; k < TIMES && i + WIDTH <= length; k++, i += WIDTH)
                for (int64_t j = 0; j < WIDTH; j++) counts[j] = static_cast<uint8_t>(counts[j] + at[i + j]);
            for (int64_t j = 0; j < WIDTH; j++) sum += counts[j];
        }
        for (; i < length; i++) sum += at[i];
        y[row] = sum;
    }
}
// Integers go in pieces that threads share: their order does not matter
template <class S>
void sum_integers(void add(const S *, int64_t, int64_t, int64_t, int64_t *), const S *x, int64_t rows, int64_t length,
                  int64_t *y) {
    constexpr int64_t PART = 8192;
    const int64_t parts = rows == 1 ? (length + PART - 1) / PART : 1;
    if (parts == 1) return parallel_rows(rows, length, [&](int64_t begin, int64_t end) { add(x, begin, end, length, y); });
    std::vector<int64_t> sums(static_cast<size_t>(parts));
    parallel_rows(parts, PART, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++)
            add(x + i * PART, 0, 1, std::min(PART, length - i * PART), sums.data() + i);
    });
    add_integers(sums.data(), 0, 1, parts, y);
}

template <Summed what, Finish finish> nb::object reduced(ExactArray x, nb::handle axis, bool keepdims) {
    constexpr bool PLAIN = what == Summed::elements && finish == Finish::sum;
    if (!x || !x.size()) return nb::none();
    if (what == Summed::elements && !PyArray_ISCARRAY_RO(x.array))
        return sum_strided(x, axis, keepdims, finish == Finish::mean);
    if (!PyArray_ISCARRAY_RO(x.array) || !PyArray_ISNOTSWAPPED(x.array)) return nb::none();
    const int type = PyArray_TYPE(x.array);
    uint64_t named;
    const bool half = type == NPY_HALF || type == bfloat16_type, integers = type == NPY_INT64 || type == NPY_BOOL;
    if (!trailing(axis, x, named) || !(half || type == NPY_FLOAT || type == NPY_DOUBLE || (PLAIN && integers))) return nb::none();
    int64_t rows = 1;
    for (int i = 0; i < x.ndim(); i++) rows *= named >> i & 1 ? 1 : x.dim(i);
    nb::object made = without_axes(x, named, keepdims, integers);
    void *y = PyArray_DATA(reinterpret_cast<PyArrayObject *>(made.ptr()));
    const int64_t length = x.size() / rows;
    WithoutGil free(x.size());
    if (half) {
        std::vector<float> sums(static_cast<size_t>(rows));
        sum_halves(x.data<uint16_t>(), type == NPY_HALF, rows, length, what, finish, sums.data());
        (type == NPY_HALF ? pack_half : pack_bfloat)(sums.data(), 0, rows, static_cast<uint16_t *>(y));
    } else if (type == NPY_FLOAT) {
        sum_floats(x.data<float>(), rows, length, what, finish, IN_PLACE, static_cast<float *>(y));
    } else if (type == NPY_DOUBLE) {
        sum_floats(x.data<double>(), rows, length, what, finish, IN_PLACE, static_cast<double *>(y));
    } else if (type == NPY_INT64) {
        sum_integers(add_integers, x.data<int64_t>(), rows, length, static_cast<int64_t *>(y));
    } else {
        sum_integers(count_true, x.data<uint8_t>(), rows, length, static_cast<int64_t *>(y));
    }
    return made;
}

} // namespace

void pairwise_sums(const void *x, int type, int64_t rows, int64_t length, void *y) {
    constexpr Summed ELEMENT = Summed::elements;
    if (type == NPY_DOUBLE) {
        auto *to = static_cast<double *>(y);
        return sum_floats(static_cast<const double *>(x), rows, length, ELEMENT, Finish::sum, IN_PLACE, to);
    }
    auto *to = static_cast<float *>(y);
    if (type == NPY_FLOAT)
        return sum_floats(static_cast<const float *>(x), rows, length, ELEMENT, Finish::sum, IN_PLACE, to);
    sum_halves(static_cast<const uint16_t *>(x), type == NPY_HALF, rows, length, ELEMENT, Finish::sum, to);
}

nb::object sum_last(const ExactArray &x, nb::handle axis, bool keepdims, bool mean) {
    return mean ? reduced<Summed::elements, Finish::mean>(x, axis, keepdims)
                : reduced<Summed::elements, Finish::sum>(x, axis, keepdims);
}

void bind_pairwise(nb::module_ &m) {
    const auto define = [&m](const char *name, auto *function) {
        m.def(name, function, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
    };
    bind_log_sums(m);
    bind_pairs(m);
    bind_products(m);
    bind_strided_sums(m);
    define("known_sum_last", &reduced<Summed::known, Finish::sum>);
    define("size_sum_last", &reduced<Summed::sizes, Finish::sum>);
    define("norm_last", &reduced<Summed::squares, Finish::root>);
}

} // namespace resilin
