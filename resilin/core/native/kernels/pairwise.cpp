// Sums over the last dimensions of contiguous arrays, in numpy's pairwise order: at most 128 elements in eight
// interleaved sums, these in a tree, then the remainder one by one; more as two halves, the first a multiple of eight.
// Four such runs at a time hide the latency of the addition. Of the elements, or of their squares.
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"
#include "trailing.hpp"

#include <cmath>
#include <limits>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t RUN = 128;

int64_t first_half(int64_t n) { return n / 2 - n / 2 % 8; }

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
    for (int64_t i = 8; i < common; i += 8)
        for (int k = 0; k < 4; k++) eight[k] += term<Squared>(*reinterpret_cast<const Eight<T> *>(x + starts[k] + i));
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

// One after the other, four at a time where they have eight elements and more.
template <bool Squared, class T>
RESILIN_INLINE void add_all(const T *x, const int64_t *starts, int64_t begin, int64_t end, T *sums) {
    for (int64_t i = begin; i < end;) {
        if (i + 4 <= end && starts[end] - starts[begin] >= 8 * RUN) { // of so many elements no run is short
            add_unequal<Squared>(x, starts + i, sums + i);
            i += 4;
        } else {
            const T *at[1] = {x + starts[i]};
            add_runs<Squared, T, 1>(at, starts[i + 1] - starts[i], sums + i);
            i++;
        }
    }
}

template <bool Squared, class T> RESILIN_INLINE void add_rows(const T *x, int64_t length, int64_t run, int64_t n, T *sums) {
    const int64_t starts[4] = {run, run + length, run + 2 * length, run + 3 * length};
    add_four<Squared>(x, starts, n, sums);
}

#define RESILIN_RUNS(T)                                                                                                \
    RESILIN_SIMD void runs_of(bool squared, const T *x, const int64_t *starts, int64_t begin, int64_t end, T *sums) {  \
        if (squared) add_all<true>(x, starts, begin, end, sums);                                                       \
        else add_all<false>(x, starts, begin, end, sums);                                                              \
    }                                                                                                                  \
    RESILIN_SIMD void run_of_rows(bool squared, const T *x, int64_t length, int64_t run, int64_t n, T *sums) {         \
        if (squared) add_rows<true>(x, length, run, n, sums);                                                          \
        else add_rows<false>(x, length, run, n, sums);                                                                 \
    }
RESILIN_RUNS(float)
RESILIN_RUNS(double)

// Where the runs of a sum over n elements start, and where the last one ends.
void cut(int64_t n, std::vector<int64_t> &starts) {
    if (n <= RUN) {
        starts.push_back(starts.back() + n);
        return;
    }
    cut(first_half(n), starts);
    cut(n - first_half(n), starts);
}

// The sum over n elements from the sums of its runs, `step` apart.
template <class T> T joined(int64_t n, const T *&sums, int64_t step) {
    if (n <= RUN) {
        const T sum = *sums;
        sums += step;
        return sum;
    }
    const T first = joined(first_half(n), sums, step);
    return first + joined(n - first_half(n), sums, step);
}

template <class T> void sum_rows_of(const T *x, int64_t rows, int64_t length, bool squared, T *y) {
    std::vector<int64_t> starts{0};
    cut(length, starts);
    const int64_t runs = static_cast<int64_t>(starts.size()) - 1, fours = rows / 4;
    parallel_rows(fours, 4 * length, [&](int64_t begin, int64_t end) {
        std::vector<T> sums(static_cast<size_t>(4 * runs));
        for (int64_t row = 4 * begin; row < 4 * end; row += 4) {
            for (int64_t i = 0; i < runs; i++)
                run_of_rows(squared, x + row * length, length, starts[i], starts[i + 1] - starts[i], sums.data() + 4 * i);
            for (int64_t k = 0; k < 4; k++) {
                const T *at = sums.data() + k;
                y[row + k] = joined(length, at, 4);
            }
        }
    });
    std::vector<T> sums(static_cast<size_t>(runs));
    for (int64_t row = 4 * fours; row < rows; row++) {
        parallel_rows(runs, RUN, [&](int64_t begin, int64_t end) {
            runs_of(squared, x + row * length, starts.data(), begin, end, sums.data());
        });
        const T *at = sums.data();
        y[row] = joined(length, at, 1);
    }
}

template <class T> nb::object sum_of_type(ExactArray x, uint64_t named, bool keepdims, bool squared) {
    int64_t rows;
    NewArray<T> y = without_trailing<T>(x, named, keepdims, rows);
    nb::object made = y.object;
    WithoutGil free(x.size());
    sum_rows_of(x.data<T>(), rows, x.size() / rows, squared, y.data);
    return made;
}

constexpr int64_t SMALL = 1024; // as in kernels/reduce_rows.py: so few are summed one after the other along any axis

// Sums along one dimension behind which others are, ascending.
template <class T> nb::object sum_few(ExactArray x, int axis, bool keepdims, bool squared) {
    int64_t rows, inner = 1;
    for (int i = axis + 1; i < x.ndim(); i++) inner *= x.dim(i);
    const int64_t n = x.dim(axis), outer = x.size() / (n * inner);
    if (inner < 2) return nb::none();
    NewArray<T> y = without_trailing<T>(x, uint64_t{1} << axis, keepdims, rows);
    const T *from = x.data<T>();
    for (int64_t i = 0; i < outer * n; i++, from += inner) {
        T *to = y.data + i / n * inner;
        const bool begins = i % n == 0;
        for (int64_t k = 0; k < inner; k++) {
            const T value = squared ? from[k] * from[k] : from[k];
            to[k] = begins ? value : to[k] + value;
        }
    }
    return y.object;
}

// The one dimension that `axis` names, or -1.
int single(nb::handle axis, int ndim) {
    PyObject *one = axis.ptr();
    if (PyTuple_CheckExact(one) && PyTuple_GET_SIZE(one) == 1) one = PyTuple_GET_ITEM(one, 0);
    int over = 0;
    const long given = PyLong_CheckExact(one) ? PyLong_AsLongAndOverflow(one, &over) : ndim;
    const long place = given < 0 ? given + ndim : given;
    return over || place < 0 || place >= ndim || ndim >= 64 ? -1 : static_cast<int>(place);
}

// Sums of whole numbers as int64, in which order is the same to all.
template <class T> nb::object sum_whole(ExactArray x, nb::handle axis, bool keepdims) {
    const uint64_t named = trailing(axis, x);
    if (!named) return nb::none();
    int64_t rows;
    NewArray<int64_t> y = without_trailing<int64_t>(x, named, keepdims, rows);
    const int64_t n = x.size() / rows;
    const T *from = x.data<T>();
    for (int64_t row = 0; row < rows; row++, from += n) {
        uint64_t sum = 0;
        for (int64_t i = 0; i < n; i++) sum += static_cast<uint64_t>(from[i]);
        y.data[row] = static_cast<int64_t>(sum);
    }
    return y.object;
}

constexpr int64_t WHOLE_MOST = 1 << 16; // more whole numbers are summed as fast by numpy

bool is_whole(const ExactArray &x, int type) {
    return x && PyArray_TYPE(x.array) == type && PyArray_ISCARRAY_RO(x.array) && PyArray_ISNOTSWAPPED(x.array);
}

nb::object sum_last(ExactArray x, nb::handle axis, bool keepdims, bool squared) {
    if (x && !squared && x.size() && x.size() <= WHOLE_MOST) {
        if (is_whole(x, NPY_INT64)) return sum_whole<int64_t>(x, axis, keepdims);
        if (is_whole(x, NPY_BOOL)) return sum_whole<uint8_t>(x, axis, keepdims);
    }
    if (x && x.ndim() == 1 && x.size() && x.size() <= SMALL && !PyArray_ISCARRAY_RO(x.array) && PyArray_ISALIGNED(x.array) &&
        PyArray_ISNOTSWAPPED(x.array) && (PyArray_TYPE(x.array) == NPY_FLOAT32 || PyArray_TYPE(x.array) == NPY_FLOAT64)) {
        nb::object copy = nb::steal(PyArray_NewCopy(x.array, NPY_CORDER)); // whose steps change no order
        if (!copy.is_valid()) throw nb::python_error();
        return sum_last({reinterpret_cast<PyArrayObject *>(copy.ptr())}, axis, keepdims, squared);
    }
    if ((!x.is<float>() && !x.is<double>()) || !x.size()) return nb::none();
    const uint64_t named = trailing(axis, x);
    if (!named) {
        const int place = x.size() <= SMALL ? single(axis, x.ndim()) : -1;
        if (place < 0) return nb::none();
        return x.is<float>() ? sum_few<float>(x, place, keepdims, squared) : sum_few<double>(x, place, keepdims, squared);
    }
    return x.is<float>() ? sum_of_type<float>(x, named, keepdims, squared) : sum_of_type<double>(x, named, keepdims, squared);
}

nb::object mean_last(ExactArray x, nb::handle axis, bool keepdims) {
    nb::object sums = x.is<float>() || x.is<double>() ? sum_last(x, axis, keepdims, false) : nb::object(nb::none());
    if (sums.is_none()) return sums;
    auto *y = reinterpret_cast<PyArrayObject *>(sums.ptr());
    const npy_intp count = PyArray_SIZE(y), n = x.size() / count;
    const auto divide = [&](auto *at) {
        for (npy_intp i = 0; i < count; i++) at[i] /= static_cast<std::remove_reference_t<decltype(*at)>>(n);
    };
    if (x.is<float>()) divide(static_cast<float *>(PyArray_DATA(y)));
    else divide(static_cast<double *>(PyArray_DATA(y)));
    return sums;
}

// The root of the sum of squares.
nb::object norm_last(ExactArray x, nb::handle axis, bool keepdims) {
    nb::object sums = sum_last(x, axis, keepdims, true);
    if (sums.is_none()) return sums;
    auto *y = reinterpret_cast<PyArrayObject *>(sums.ptr());
    const npy_intp count = PyArray_SIZE(y);
    const auto root = [&](auto *at) {
        for (npy_intp i = 0; i < count; i++) at[i] = std::sqrt(at[i]);
    };
    if (x.is<float>()) root(static_cast<float *>(PyArray_DATA(y)));
    else root(static_cast<double *>(PyArray_DATA(y)));
    return sums;
}

// -- variances: of the elements less their mean, and less what the mean's rounding leaves, as kernels/reduce_rows.py has it

#define RESILIN_CENTRED(T)                                                                                             \
    RESILIN_SIMD void centred(const T *x, T mean, int64_t n, T *y) {                                                   \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] = x[i] - mean;                                        \
    }
RESILIN_CENTRED(float)
RESILIN_CENTRED(double)

template <class T> T spread_of(const T *x, int64_t n, T count, T *scratch) {
    T sum;
    const T *from = x;
    for (int i = 0; i < 2; i++, from = scratch) {
        sum_rows_of(from, 1, n, false, &sum);
        centred(from, sum / static_cast<T>(n), n, scratch);
    }
    sum_rows_of(scratch, 1, n, true, &sum);
    return sum / count;
}

// None, too, where one is so large or so small that squares on the way to it may have left the range.
template <class T> nb::object spread_of_type(ExactArray x, uint64_t named, double correction, bool keepdims, bool root) {
    int64_t rows;
    NewArray<T> y = without_trailing<T>(x, named, keepdims, rows);
    const int64_t n = x.size() / rows;
    const T high = std::numeric_limits<T>::max() / T(1 << 10), low = std::numeric_limits<T>::min() * T(1LL << 60);
    const T count = static_cast<T>(std::max(static_cast<double>(n) - correction, 0.0));
    bool inside = true;
    {
        WithoutGil free(x.size() * 4);
        std::vector<T> scratch(static_cast<size_t>(n));
        for (int64_t row = 0; row < rows && inside; row++) {
            const T found = spread_of(x.data<T>() + row * n, n, count, scratch.data());
            inside = found < high && found > low;
            y.data[row] = root ? std::sqrt(found) : found;
        }
    }
    return inside ? y.object : nb::object(nb::none());
}

constexpr int64_t SPREAD_MOST = 1 << 15; // elements of one thread; more is faster step by step, on all

// The variance over the last dimensions, or its root.
template <bool Root> nb::object spread_last(ExactArray x, nb::handle axis, double correction, bool keepdims) {
    if ((!x.is<float>() && !x.is<double>()) || !x.size() || x.size() > SPREAD_MOST) return nb::none();
    const uint64_t named = trailing(axis, x);
    if (!named) return nb::none();
    return x.is<float>() ? spread_of_type<float>(x, named, correction, keepdims, Root)
                         : spread_of_type<double>(x, named, correction, keepdims, Root);
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
    const uint64_t named = trailing(axis, x);
    if (!named) return nb::none();
    return x.is<float>() ? product_of_type<float>(x, named, keepdims) : product_of_type<double>(x, named, keepdims);
}

} // namespace

void bind_pairwise(nb::module_ &m) {
    m.def("sum_last", &sum_last, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"), nb::arg("squared") = false);
    m.def("mean_last", &mean_last, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
    m.def("norm_last", &norm_last, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
    m.def("var_last", &spread_last<false>, nb::arg("x"), nb::arg("axis").none(), nb::arg("correction"), nb::arg("keepdims"));
    m.def("std_last", &spread_last<true>, nb::arg("x"), nb::arg("axis").none(), nb::arg("correction"), nb::arg("keepdims"));
    m.def("product_last", &product_last, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
}

} // namespace resilin
