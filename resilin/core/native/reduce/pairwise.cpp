// Sums over the last dimensions of contiguous arrays, in numpy's pairwise order (pairwise.hpp): of the elements, of their
// squares, of those that are no NaN; 16-bit floats in float32, rounded once. Four runs at a time hide the latency of the
// addition. Integers wrap around, booleans are counted.
#include "pairwise.hpp"
#include "binding/kernels.hpp"
#include "elementwise/half_blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "kernels/simd.hpp"
#include "trailing.hpp"

#include <cmath>

namespace resilin {
namespace {

template <class T> struct Vector {
    typedef T Eight __attribute__((vector_size(8 * sizeof(T)), aligned(sizeof(T)), may_alias));
};
template <class T> using Eight = typename Vector<T>::Eight;

// a[0] + a[1], a[2] + a[3], ..., then b's
template <class E> RESILIN_INLINE E neighbours(const E &a, const E &b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14) +
           __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
}

// x, or its square
template <bool Squared, class E> RESILIN_INLINE E term(const E &x) {
    if constexpr (Squared) return x * x;
    else return x;
}

// Sums of `Runs` (1 or 4) runs of the same length n <= RUN.
template <bool Squared, class T, int Runs> RESILIN_INLINE void add_runs(const T *const *x, int64_t n, T *sums) {
    const int64_t whole = n < 8 ? 0 : n - n % 8;
    Eight<T> eight[4];
    for (int k = 0; k < Runs; k++) eight[k] = whole ? term<Squared>(*reinterpret_cast<const Eight<T> *>(x[k])) : Eight<T>{};
    for (int64_t i = 8; i < whole; i += 8)
        for (int k = 0; k < Runs; k++) eight[k] += term<Squared>(*reinterpret_cast<const Eight<T> *>(x[k] + i));
    for (int k = Runs; k < 4; k++) eight[k] = eight[0];
    const Eight<T> fours = neighbours(neighbours(eight[0], eight[1]), neighbours(eight[2], eight[3]));
    const Eight<T> found = neighbours(fours, fours);
    for (int k = 0; k < Runs; k++) {
        T sum = whole ? found[k] : T(-0.0);
        for (int64_t i = whole; i < n; i++) sum += term<Squared>(x[k][i]);
        sums[k] = sum;
    }
}

template <bool Squared, class T> RESILIN_INLINE void add_four(const T *x, const int64_t *starts, int64_t n, T *sums) {
    const T *at[4] = {x + starts[0], x + starts[1], x + starts[2], x + starts[3]};
    add_runs<Squared, T, 4>(at, n, sums);
}

// Sums of four runs of any lengths: together as far as the shortest goes.
template <bool Squared, class T> RESILIN_INLINE void add_unequal(const T *x, const int64_t *starts, T *sums) {
    int64_t common = RUN;
    for (int k = 0; k < 4; k++) common = std::min(common, (starts[k + 1] - starts[k]) / 8 * 8);
    Eight<T> eight[4];
    for (int k = 0; k < 4; k++) eight[k] = term<Squared>(*reinterpret_cast<const Eight<T> *>(x + starts[k]));
    constexpr int64_t LINE = 64 / sizeof(T), AHEAD = 16 * RUN; // elements; so far ahead, memory answers in time
    for (int64_t i = 8; i < common; i += 8)
        for (int k = 0; k < 4; k++) {
            eight[k] += term<Squared>(*reinterpret_cast<const Eight<T> *>(x + starts[k] + i));
            if (i % LINE == 0) __builtin_prefetch(x + starts[k] + i + AHEAD); // a CPU does not see how four runs go on
        }
    for (int k = 0; k < 4; k++)
        for (int64_t i = common; i + 8 <= starts[k + 1] - starts[k]; i += 8)
            eight[k] += term<Squared>(*reinterpret_cast<const Eight<T> *>(x + starts[k] + i));
    const Eight<T> found = neighbours(neighbours(eight[0], eight[1]), neighbours(eight[2], eight[3]));
    const Eight<T> all = neighbours(found, found);
    for (int k = 0; k < 4; k++) {
        T sum = all[k];
        for (int64_t i = starts[k + 1] - (starts[k + 1] - starts[k]) % 8; i < starts[k + 1]; i++) sum += term<Squared>(x[i]);
        sums[k] = sum;
    }
}

// One after the other, and four at a time, which have eight elements and more: they are a sum's over more than 2 * RUN.
template <bool Squared, class T>
RESILIN_INLINE void add_all(const T *x, const int64_t *starts, int64_t begin, int64_t end, T *sums) {
    for (int64_t i = begin; i < end;) {
        if (i + 4 <= end) {
            add_unequal<Squared>(x, starts + i, sums + i);
            i += 4;
        } else {
            const T *at[1] = {x + starts[i]};
            add_runs<Squared, T, 1>(at, starts[i + 1] - starts[i], sums + i);
            i++;
        }
    }
}

// Rows of N < 8 elements, one by one
template <bool Squared, int N, class T> RESILIN_INLINE void add_short(const T *x, int64_t rows, T *y) {
    for (int64_t row = 0; row < rows; row++) {
        T sum = T(-0.0);
        for (int i = 0; i < N; i++) sum += term<Squared>(x[row * N + i]);
        y[row] = sum;
    }
}

template <bool Squared, class T> RESILIN_INLINE void add_rows(const T *x, int64_t rows, const Runs &runs, T *y) {
    switch (runs.n) {
    case 1: return add_short<Squared, 1>(x, rows, y);
    case 2: return add_short<Squared, 2>(x, rows, y);
    case 3: return add_short<Squared, 3>(x, rows, y);
    case 4: return add_short<Squared, 4>(x, rows, y);
    case 5: return add_short<Squared, 5>(x, rows, y);
    case 6: return add_short<Squared, 6>(x, rows, y);
    case 7: return add_short<Squared, 7>(x, rows, y);
    }
    T sums[AT_ONCE / 8];
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) {
        const T *four = x + row * runs.n;
        for (int64_t i = 0; i < runs.count; i++) {
            const int64_t run = runs.starts[i];
            const int64_t starts[4] = {run, run + runs.n, run + 2 * runs.n, run + 3 * runs.n};
            add_four<Squared>(four, starts, runs.starts[i + 1] - run, sums + 4 * i);
        }
        for (int64_t k = 0; k < 4; k++) {
            const T *at = sums + k;
            y[row + k] = runs.count == 1 ? *at : joined(runs.n, RUN, at, 4);
        }
    }
    for (; row < rows; row++) {
        add_all<Squared>(x + row * runs.n, runs.starts, 0, runs.count, sums);
        const T *at = sums;
        y[row] = joined(runs.n, RUN, at, 1);
    }
}

// Of several runs
template <bool Squared, class T> RESILIN_INLINE T add_chunk(const T *x, const Runs &runs) {
    T sums[AT_ONCE / 32];
    add_all<Squared>(x, runs.starts, 0, runs.count, sums);
    if (runs.count == 8) // of eight runs all are at one depth
        return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    const T *at = sums;
    return joined(runs.n, RUN, at, 1);
}

} // namespace

#define RESILIN_RUNS(T)                                                                                                \
    RESILIN_SIMD T sum_of_chunk(bool squared, const T *x, const Runs &runs) {                                          \
        return squared ? add_chunk<true>(x, runs) : add_chunk<false>(x, runs);                                         \
    }                                                                                                                  \
    RESILIN_SIMD void sums_of_rows(bool squared, const T *x, int64_t rows, const Runs &runs, T *y) {                   \
        if (squared) add_rows<true>(x, rows, runs, y);                                                                 \
        else add_rows<false>(x, rows, runs, y);                                                                        \
    }
RESILIN_RUNS(float)
RESILIN_RUNS(double)

namespace {

enum class Term { element, square, known }; // known: 0 for NaN
enum class Finish { sum, mean, root };

#define RESILIN_KNOWN(T)                                                                                               \
    RESILIN_SIMD void known_of(const T *x, int64_t n, T *y) {                                                          \
        for (int64_t i = 0; i < n; i++) y[i] = x[i] != x[i] ? T(0) : x[i];                                             \
    }
RESILIN_KNOWN(float)
RESILIN_KNOWN(double)

constexpr auto IN_PLACE = [](const auto *from, int64_t begin, int64_t, auto *) { return from + begin; };

// Sums of rows of T, or of the 16-bit floats that `convert` makes T
template <class T, class S, class Convert>
void sum_floats(const S *x, int64_t rows, int64_t length, Term term, Finish finish, Convert convert, T *y) {
    auto read = [=](int64_t begin, int64_t end, T *scratch) -> const T * {
        const T *found = convert(x, begin, end, scratch);
        if (term != Term::known) return found;
        known_of(found, end - begin, scratch);
        return scratch;
    };
    pairwise_rows(read, rows, length, 1, term == Term::square, y);
    if (finish == Finish::mean)
        for (int64_t row = 0; row < rows; row++) y[row] /= static_cast<T>(length);
    if (finish == Finish::root)
        for (int64_t row = 0; row < rows; row++) y[row] = std::sqrt(y[row]);
}

void sum_halves(const uint16_t *x, bool float16, int64_t rows, int64_t length, Term term, Finish finish, float *y) {
    const auto unpack = float16 ? unpack_half : unpack_bfloat;
    auto convert = [=](const uint16_t *from, int64_t begin, int64_t end, float *scratch) -> const float * {
        unpack(from + begin, 0, end - begin, scratch);
        return scratch;
    };
    sum_floats(x, rows, length, term, finish, convert, y);
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

// Each of n elements added to itself, `times` of them
#define RESILIN_REPEATED(T)                                                                                            \
    RESILIN_SIMD void repeated(const T *x, int64_t n, int64_t times, T *y) {                                           \
        for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];                                                            \
        for (int64_t k = 2; k < times; k++)                                                                            \
            for (int64_t i = 0; i < n; i++) y[i] += x[i];                                                              \
    }
RESILIN_REPEATED(float)
RESILIN_REPEATED(double)

// How often the elements of an array are repeated that is contiguous but for its first dimension, which is stretched; 0
// of others
int64_t repetitions(const ExactArray &x) {
    int place = 0;
    while (place < x.ndim() && x.dim(place) == 1) place++;
    if (place == x.ndim() || PyArray_STRIDE(x.array, place) != 0 || !PyArray_ISALIGNED(x.array)) return 0;
    int64_t step = PyArray_ITEMSIZE(x.array);
    for (int i = x.ndim() - 1; i > place; i--) {
        if (x.dim(i) != 1 && PyArray_STRIDE(x.array, i) != step) return 0;
        step *= x.dim(i);
    }
    return x.dim(place);
}

template <class T> void sum_repeated(const ExactArray &x, int64_t times, bool mean, T *y) {
    const T *from = static_cast<const T *>(PyArray_DATA(x.array));
    auto read = [=](int64_t begin, int64_t end, T *scratch) -> const T * {
        repeated(from + begin, end - begin, times, scratch);
        return scratch;
    };
    pairwise_rows(read, 1, x.size() / times, 1, false, y);
    if (mean) *y /= static_cast<T>(x.size());
}

// The sum, or mean, of a few elements that lie apart: of their copy, whose order is the same
nb::object reduced_apart(const ExactArray &x, nb::handle axis, bool keepdims, bool mean) {
    nb::object copy = nb::steal(PyArray_NewCopy(x.array, NPY_CORDER));
    if (!copy.is_valid()) throw nb::python_error();
    return sum_last({reinterpret_cast<PyArrayObject *>(copy.ptr())}, axis, keepdims, mean);
}

// The sum, or mean, of a whole array whose first dimension is stretched: that one first. Of few elements of a vector, too
nb::object reduced_repeated(const ExactArray &x, nb::handle axis, bool keepdims, bool mean) {
    const int type = PyArray_TYPE(x.array);
    if ((type != NPY_FLOAT && type != NPY_DOUBLE) || !PyArray_ISNOTSWAPPED(x.array)) return nb::none();
    if (x.size() <= SMALL) return x.ndim() == 1 ? reduced_apart(x, axis, keepdims, mean) : nb::none();
    uint64_t named = 0;
    if (!named_axes(axis, x.ndim(), named) || named + 1 != uint64_t{1} << x.ndim()) return nb::none();
    const int64_t times = repetitions(x);
    if (times < 2 || times > FAN) return nb::none();
    nb::object made = without_axes(x, ~uint64_t{0}, keepdims);
    void *y = PyArray_DATA(reinterpret_cast<PyArrayObject *>(made.ptr()));
    WithoutGil free(x.size());
    if (type == NPY_FLOAT) sum_repeated(x, times, mean, static_cast<float *>(y));
    else sum_repeated(x, times, mean, static_cast<double *>(y));
    return made;
}

template <Term term, Finish finish> nb::object reduced(ExactArray x, nb::handle axis, bool keepdims) {
    constexpr bool PLAIN = term == Term::element && finish == Finish::sum;
    if (!x || !x.size()) return nb::none();
    if (term == Term::element && !PyArray_ISCARRAY_RO(x.array))
        return reduced_repeated(x, axis, keepdims, finish == Finish::mean);
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
        sum_halves(x.data<uint16_t>(), type == NPY_HALF, rows, length, term, finish, sums.data());
        (type == NPY_HALF ? pack_half : pack_bfloat)(sums.data(), 0, rows, static_cast<uint16_t *>(y));
    } else if (type == NPY_FLOAT) {
        sum_floats(x.data<float>(), rows, length, term, finish, IN_PLACE, static_cast<float *>(y));
    } else if (type == NPY_DOUBLE) {
        sum_floats(x.data<double>(), rows, length, term, finish, IN_PLACE, static_cast<double *>(y));
    } else if (type == NPY_INT64) {
        sum_integers(add_integers, x.data<int64_t>(), rows, length, static_cast<int64_t *>(y));
    } else {
        sum_integers(count_true, x.data<uint8_t>(), rows, length, static_cast<int64_t *>(y));
    }
    return made;
}

// -- products, in float64: PRODUCTS of them with every PRODUCTS-th element, folded in a tree, and pieces of PIECE elements
// ascending

constexpr int64_t PRODUCTS = 32, PIECE = 1 << 16;

template <class T> RESILIN_INLINE double multiply_all(const T *x, int64_t n) {
    Eight<double> lanes[4];
    for (Eight<double> &lane : lanes) lane = Eight<double>{} + 1.0;
    int64_t i = 0;
    for (; i + PRODUCTS <= n; i += PRODUCTS)
        for (int k = 0; k < 4; k++)
            lanes[k] *= __builtin_convertvector(*reinterpret_cast<const Eight<T> *>(x + i + 8 * k), Eight<double>);
    if (i == n) { // the same tree
        const Eight<double> all = (lanes[0] * lanes[2]) * (lanes[1] * lanes[3]);
        return ((all[0] * all[4]) * (all[2] * all[6])) * ((all[1] * all[5]) * (all[3] * all[7]));
    }
    double all[PRODUCTS];
    std::memcpy(all, lanes, sizeof(all));
    for (int64_t k = 0; i + k < n; k++) all[k] *= static_cast<double>(x[i + k]);
    for (int64_t width = PRODUCTS / 2; width > 0; width /= 2)
        for (int64_t k = 0; k < width; k++) all[k] *= all[k + width];
    return all[0];
}
RESILIN_SIMD double product_of(const float *x, int64_t n) { return multiply_all(x, n); }
RESILIN_SIMD double product_of(const double *x, int64_t n) { return multiply_all(x, n); }

template <class T> nb::object product_of_type(ExactArray x, uint64_t named, bool keepdims) {
    int64_t rows;
    NewArray<T> y = without_trailing<T>(x, named, keepdims, rows);
    nb::object made = y.object;
    WithoutGil free(x.size());
    const int64_t length = x.size() / rows, pieces = (length + PIECE - 1) / PIECE;
    if (pieces == 1) {
        parallel_rows(rows, length, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; row++)
                y.data[row] = static_cast<T>(product_of(x.data<T>() + row * length, length));
        });
        return made;
    }
    std::vector<double> parts(static_cast<size_t>(rows * pieces));
    parallel_rows(rows * pieces, std::min(length, PIECE), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const int64_t at = i % pieces * PIECE;
            parts[static_cast<size_t>(i)] = product_of(x.data<T>() + i / pieces * length + at, std::min(PIECE, length - at));
        }
    });
    for (int64_t row = 0; row < rows; row++) {
        double all = 1.0;
        for (int64_t i = 0; i < pieces; i++) all *= parts[static_cast<size_t>(row * pieces + i)];
        y.data[row] = static_cast<T>(all);
    }
    return made;
}

nb::object product_last(ExactArray x, nb::handle axis, bool keepdims) {
    if ((!x.is<float>() && !x.is<double>()) || !x.size()) return nb::none();
    uint64_t named;
    if (!trailing(axis, x, named)) return nb::none();
    return x.is<float>() ? product_of_type<float>(x, named, keepdims) : product_of_type<double>(x, named, keepdims);
}

} // namespace

void pairwise_sums(const void *x, int type, int64_t rows, int64_t length, void *y) {
    constexpr Term ELEMENT = Term::element;
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
    return mean ? reduced<Term::element, Finish::mean>(x, axis, keepdims)
                : reduced<Term::element, Finish::sum>(x, axis, keepdims);
}

void bind_pairwise(nb::module_ &m) {
    const auto define = [&m](const char *name, auto *function) {
        m.def(name, function, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
    };
    define("known_sum_last", &reduced<Term::known, Finish::sum>);
    define("norm_last", &reduced<Term::square, Finish::root>);
    m.def("product_last", &product_last, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
}

} // namespace resilin
