// Running sums, products, extremes and sums of exponentials along a dimension, in float64.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "kernels/simd.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t ABREAST = 8;    // rows at a time, whose additions wait for one another no more
constexpr int64_t COLUMNS = 1024; // columns at a time: their sums stay in the first cache

// What sums and products of T are kept in: integers wrap around.
template <class T> struct Kept {
    using type = double;
};
template <> struct Kept<int64_t> {
    using type = uint64_t;
};

struct Sum {
    static constexpr int START = 0;
    template <class A> static A with(A all, A x) { return all + x; }
};
struct Product {
    static constexpr int START = 1;
    template <class A> static A with(A all, A x) { return all * x; }
};

// `Rows` rows of n elements, whose results stay in registers
template <class Op, int64_t Rows, class T> RESILIN_INLINE void scan_some(const T *x, int64_t n, bool reverse, T *y) {
    using A = typename Kept<T>::type;
    A all[Rows];
    for (A &start : all) start = Op::START;
    const int64_t first = reverse ? n - 1 : 0, step = reverse ? -1 : 1;
    for (int64_t k = 0, i = first; k < n; k++, i += step)
        for (int64_t row = 0; row < Rows; row++) {
            all[row] = Op::with(all[row], static_cast<A>(x[row * n + i]));
            y[row * n + i] = static_cast<T>(all[row]);
        }
}

template <class Op, class T> RESILIN_INLINE void scan_rows(const T *x, int64_t rows, int64_t n, bool reverse, T *y) {
    int64_t row = 0;
    for (; row + ABREAST <= rows; row += ABREAST) scan_some<Op, ABREAST>(x + row * n, n, reverse, y + row * n);
    for (; row < rows; row++) scan_some<Op, 1>(x + row * n, n, reverse, y + row * n);
}

// `width` <= COLUMNS columns of a matrix of n rows, D elements apart
template <class Op, class T>
RESILIN_INLINE void scan_columns(const T *x, int64_t n, int64_t D, int64_t width, bool reverse, T *y) {
    using A = typename Kept<T>::type;
    A all[COLUMNS];
    for (int64_t j = 0; j < width; j++) all[j] = Op::START;
    for (int64_t step = 0; step < n; step++) {
        const int64_t i = (reverse ? n - 1 - step : step) * D;
        for (int64_t j = 0; j < width; j++) {
            all[j] = Op::with(all[j], static_cast<A>(x[i + j]));
            y[i + j] = static_cast<T>(all[j]);
        }
    }
}

#define RESILIN_SCANS(T)                                                                                               \
    RESILIN_SIMD void sum_rows(const T *x, int64_t rows, int64_t n, bool reverse, T *y) {                              \
        scan_rows<Sum>(x, rows, n, reverse, y);                                                                        \
    }                                                                                                                  \
    RESILIN_SIMD void sum_columns(const T *x, int64_t n, int64_t D, int64_t width, bool reverse, T *y) {               \
        scan_columns<Sum>(x, n, D, width, reverse, y);                                                                 \
    }                                                                                                                  \
    RESILIN_SIMD void multiply_rows(const T *x, int64_t rows, int64_t n, bool reverse, T *y) {                         \
        scan_rows<Product>(x, rows, n, reverse, y);                                                                    \
    }                                                                                                                  \
    RESILIN_SIMD void multiply_columns(const T *x, int64_t n, int64_t D, int64_t width, bool reverse, T *y) {          \
        scan_columns<Product>(x, n, D, width, reverse, y);                                                             \
    }
RESILIN_SCANS(float)
RESILIN_SCANS(double)
RESILIN_SCANS(int64_t)

// How many lines lie before and behind `axis`, and how long they are.
struct Lines {
    int64_t outer = 1, n, inner = 1;
    Lines(const ExactArray &x, int64_t axis) : n(x.dim(static_cast<int>(axis))) {
        for (int i = 0; i < x.ndim(); i++) (i < axis ? outer : inner) *= i == axis ? 1 : x.dim(i);
    }
    // fn(offset of the first element) for each line, its elements `inner` apart; `cost` of an element beside a sum's
    template <class Fn> void each(int64_t cost, Fn fn) const {
        parallel_rows(outer * inner, n * cost, [&](int64_t begin, int64_t end) {
            for (int64_t line = begin; line < end; line++) fn(line / inner * n * inner + line % inner);
        });
    }
};

template <class T> using OverRows = void(const T *, int64_t, int64_t, bool, T *);
template <class T> using OverColumns = void(const T *, int64_t, int64_t, int64_t, bool, T *);

template <class T>
nb::object running(const Array &x, int64_t axis, bool reverse, OverRows<T> *rows, OverColumns<T> *columns) {
    const Lines lines(x, axis);
    const int64_t outer = lines.outer, n = lines.n, inner = lines.inner;
    NewArray<T> y(x);
    nb::object made = y.object;
    WithoutGil free(x.size());
    if (inner == 1) {
        const int64_t groups = (outer + ABREAST - 1) / ABREAST;
        parallel_rows(groups, ABREAST * n, [&](int64_t begin, int64_t end) {
            const int64_t first = begin * ABREAST, last = std::min(end * ABREAST, outer);
            rows(x.data<T>() + first * n, last - first, n, reverse, y.data + first * n);
        });
        return made;
    }
    const int64_t tiles = (inner + COLUMNS - 1) / COLUMNS;
    parallel_rows(outer * tiles, n * std::min(inner, COLUMNS), [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++) {
            const int64_t first = task % tiles * COLUMNS, at = task / tiles * n * inner + first;
            columns(x.data<T>() + at, n, inner, std::min(COLUMNS, inner - first), reverse, y.data + at);
        }
    });
    return made;
}

nb::object running_sum(Array x, int64_t axis, bool reverse) {
    if (axis < 0 || axis >= x.ndim()) return nb::none();
    if (x.is<float>()) return running<float>(x, axis, reverse, sum_rows, sum_columns);
    if (x.is<double>()) return running<double>(x, axis, reverse, sum_rows, sum_columns);
    return x.is<int64_t>() ? running<int64_t>(x, axis, reverse, sum_rows, sum_columns) : nb::none();
}
nb::object running_product(Array x, int64_t axis) {
    if (axis < 0 || axis >= x.ndim()) return nb::none();
    if (x.is<float>()) return running<float>(x, axis, false, multiply_rows, multiply_columns);
    if (x.is<double>()) return running<double>(x, axis, false, multiply_rows, multiply_columns);
    return x.is<int64_t>() ? running<int64_t>(x, axis, false, multiply_rows, multiply_columns) : nb::none();
}

// The last of equals and every NaN counts as a new extreme.
template <bool Largest, class T>
void extremes_of_line(const T *x, int64_t n, int64_t step, T *values, int64_t *places) {
    T best = n ? x[0] : T{};
    int64_t place = 0;
    for (int64_t i = 0; i < n; i++) {
        const T now = x[i * step];
        if (now != now || (Largest ? now >= best : now <= best)) { // rare, so that a guess saves waiting for it
            best = now;
            place = i;
        }
        values[i * step] = best;
        places[i * step] = place;
    }
}

template <class T> nb::object extremes_of(const Array &x, int64_t axis, bool largest) {
    const Lines lines(x, axis);
    NewArray<T> values(x);
    NewArray<int64_t> places(x);
    nb::object made = nb::make_tuple(values.object, places.object);
    WithoutGil free(x.size());
    lines.each(1, [&](int64_t at) {
        (largest ? extremes_of_line<true, T> : extremes_of_line<false, T>)(x.data<T>() + at, lines.n, lines.inner,
                                                                           values.data + at, places.data + at);
    });
    return made;
}

nb::object running_extreme(Array x, int64_t axis, bool largest) {
    if (axis < 0 || axis >= x.ndim()) return nb::none();
    if (x.is<float>()) return extremes_of<float>(x, axis, largest);
    if (x.is<double>()) return extremes_of<double>(x, axis, largest);
    if (x.is<int64_t>()) return extremes_of<int64_t>(x, axis, largest);
    return nb::none();
}

constexpr int64_t EXPONENTIAL = 16; // an exponential and a logarithm take as long as that many additions

// log(e^a + e^b), as numpy computes it
double log_of_sum(double a, double b) {
    if (a == b) return a + 0.693147180559945309417232121458176568; // infinities of one sign, too
    const double difference = a - b;
    if (difference > 0) return a + std::log1p(std::exp(-difference));
    if (difference <= 0) return b + std::log1p(std::exp(difference));
    return difference; // NaN
}

template <class T> void log_sums_of_line(const T *x, int64_t n, int64_t step, T *y) {
    double sum = n ? static_cast<double>(x[0]) : 0.0;
    for (int64_t i = 0; i < n; i++) {
        if (i) sum = log_of_sum(sum, static_cast<double>(x[i * step]));
        y[i * step] = static_cast<T>(sum);
    }
}

// The derivative of log(e^a + e^b) by b is the logistic function of b - a, by a the rest of 1. What comes to the sum
// of the first i elements is its own gradient and what the next one passes on.
template <class T> void log_sums_backward_of_line(const T *g, const T *x, int64_t n, int64_t step, T *dx) {
    std::vector<double> by_sum(static_cast<size_t>(n)), by_element(static_cast<size_t>(n), 1.0);
    double sum = n ? static_cast<double>(x[0]) : 0.0;
    for (int64_t i = 1; i < n; i++) {
        const double now = static_cast<double>(x[i * step]), difference = now - sum;
        const double e = std::exp(-std::fabs(difference)), large = 1.0 / (1.0 + e), small = e / (1.0 + e);
        by_element[static_cast<size_t>(i)] = difference > 0 ? large : small;
        by_sum[static_cast<size_t>(i)] = difference > 0 ? small : large;
        sum = log_of_sum(sum, now);
    }
    double passed = 0.0;
    for (int64_t i = n - 1; i >= 0; i--) {
        const double all = static_cast<double>(g[i * step]) + passed;
        dx[i * step] = static_cast<T>(all * by_element[static_cast<size_t>(i)]);
        passed = all * by_sum[static_cast<size_t>(i)];
    }
}

template <class T> nb::object log_sums(const Array &x, int64_t axis) {
    const Lines lines(x, axis);
    NewArray<T> y(x);
    nb::object made = y.object;
    WithoutGil free(x.size() * EXPONENTIAL);
    lines.each(EXPONENTIAL, [&](int64_t at) {
        log_sums_of_line(x.data<T>() + at, lines.n, lines.inner, y.data + at);
    });
    return made;
}

template <class T> nb::object log_sums_backward(const Array &g, const Array &x, int64_t axis) {
    const Lines lines(x, axis);
    NewArray<T> dx(x);
    nb::object made = dx.object;
    WithoutGil free(x.size() * EXPONENTIAL);
    lines.each(2 * EXPONENTIAL, [&](int64_t at) {
        log_sums_backward_of_line(g.data<T>() + at, x.data<T>() + at, lines.n, lines.inner, dx.data + at);
    });
    return made;
}

nb::object running_log_sum(Array x, int64_t axis) {
    if (axis < 0 || axis >= x.ndim()) return nb::none();
    if (x.is<float>()) return log_sums<float>(x, axis);
    return x.is<double>() ? log_sums<double>(x, axis) : nb::none();
}

nb::object running_log_sum_backward(Array g, Array x, int64_t axis) {
    if (axis < 0 || axis >= x.ndim() || !g.same_shape(x)) return nb::none();
    if (g.is<float>() && x.is<float>()) return log_sums_backward<float>(g, x, axis);
    return g.is<double>() && x.is<double>() ? log_sums_backward<double>(g, x, axis) : nb::none();
}

} // namespace

void bind_scan(nb::module_ &m) {
    m.def("running_sum", &running_sum);
    m.def("running_product", &running_product);
    m.def("running_extreme", &running_extreme);
    m.def("running_log_sum", &running_log_sum);
    m.def("running_log_sum_backward", &running_log_sum_backward);
}

} // namespace resilin
