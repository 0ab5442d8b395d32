// Softmax and log-softmax along any dimension of contiguous arrays: of rows, or of columns, whose sums are made of FAN
// elements ascending, FAN of these sums, and the rest ascending.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "kernels/rows.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace resilin {
namespace {

// Several rows step by step: a row's steps wait for one another
template <bool OfLog, class T> RESILIN_INLINE void forward_rows_of(const T *x, int64_t D, int64_t rows, T *y) {
    T top[ABREAST], sum[ABREAST];
    for (int64_t first = 0; first < rows; first += ABREAST) {
        const int64_t count = std::min(rows - first, D <= 1024 ? ABREAST : 1), from = first * D;
        for (int64_t r = 0; r < count; r++) top[r] = top_of(x + from + r * D, D);
        if (exponentials_abreast(D) > 1) {
            for (int64_t r = 0; r < count; r++)
                for (int64_t i = from + r * D; i < from + (r + 1) * D; i++) y[i] = x[i] - top[r];
            for (int64_t i = from; i < from + count * D; i++) y[i] = exponential(y[i]);
        } else {
            for (int64_t r = 0; r < count; r++)
                for (int64_t i = from + r * D; i < from + (r + 1) * D; i++) y[i] = exponential(x[i] - top[r]);
        }
        for (int64_t r = 0; r < count; r++) sum[r] = row_sum(y + from + r * D, D);
        for (int64_t r = 0; r < count; r++) sum[r] = OfLog ? std::log(sum[r]) : T(1) / sum[r];
        for (int64_t r = 0; r < count; r++)
            for (int64_t i = from + r * D; i < from + (r + 1) * D; i++) y[i] = OfLog ? x[i] - top[r] - sum[r] : y[i] * sum[r];
        first += count - ABREAST;
    }
}
template <bool OfLog, class T>
RESILIN_INLINE void backward_rows_of(const T *g, const T *y, int64_t D, int64_t rows, T *dx) {
    const int64_t few = OfLog ? exponentials_abreast(D) : 1;
    for (int64_t n = 0; n < rows; n++) {
        const T *gr = g + n * D, *yr = y + n * D;
        T *out = dx + n * D;
        if (OfLog && few > 1) {
            if (n % few == 0)
                for (int64_t i = 0; i < std::min(few, rows - n) * D; i++) out[i] = exponential(yr[i]);
            const T sum = row_sum(gr, D);
            for (int64_t i = 0; i < D; i++) out[i] = gr[i] - out[i] * sum;
        } else if (OfLog) {
            const T sum = row_sum(gr, D);
            for (int64_t i = 0; i < D; i++) out[i] = gr[i] - exponential(yr[i]) * sum;
        } else {
            const T dot = row_dot(gr, yr, D);
            for (int64_t i = 0; i < D; i++) out[i] = yr[i] * (gr[i] - dot);
        }
    }
}

// Columns: `width` <= TILE of n elements, D apart
constexpr int64_t TILE = 256;

// sum[j] = the sum of term(i, j) over i < n
template <class T, class Term> RESILIN_INLINE void sum_columns(int64_t n, int64_t width, T *sum, const Term &term) {
    T part[TILE], block[TILE];
    for (int64_t j = 0; j < width; j++) sum[j] = block[j] = T(0);
    for (int64_t first = 0; first < n; first += FAN) {
        for (int64_t j = 0; j < width; j++) part[j] = term(first, j);
        for (int64_t i = first + 1; i < std::min(n, first + FAN); i++)
            for (int64_t j = 0; j < width; j++) part[j] += term(i, j);
        const bool last = first / FAN % FAN == FAN - 1 || first + FAN >= n;
        for (int64_t j = 0; j < width; j++) block[j] += part[j];
        for (int64_t j = 0; last && j < width; j++) sum[j] += block[j], block[j] = T(0);
    }
}
template <bool OfLog, class T>
RESILIN_INLINE void forward_columns_of(const T *x, int64_t n, int64_t D, int64_t width, T *__restrict y) {
    T top[TILE], sum[TILE];
    for (int64_t j = 0; j < width; j++) top[j] = -std::numeric_limits<T>::infinity();
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++) top[j] = x[i * D + j] > top[j] ? x[i * D + j] : top[j];
    sum_columns(n, width, sum, [&](int64_t i, int64_t j) __attribute__((always_inline)) {
        const T e = exponential(x[i * D + j] - top[j]);
        if (!OfLog) y[i * D + j] = e;
        return e;
    });
    for (int64_t j = 0; j < width; j++) sum[j] = OfLog ? std::log(sum[j]) : T(1) / sum[j];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++)
            y[i * D + j] = OfLog ? x[i * D + j] - top[j] - sum[j] : y[i * D + j] * sum[j];
}
template <bool OfLog, class T>
RESILIN_INLINE void backward_columns_of(const T *g, const T *y, int64_t n, int64_t D, int64_t width, T *__restrict dx) {
    T sum[TILE];
    sum_columns(n, width, sum, [&](int64_t i, int64_t j) __attribute__((always_inline)) {
        return OfLog ? g[i * D + j] : g[i * D + j] * y[i * D + j];
    });
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++) {
            const T gi = g[i * D + j], yi = y[i * D + j];
            dx[i * D + j] = OfLog ? gi - exponential(yi) * sum[j] : yi * (gi - sum[j]);
        }
}

#define RESILIN_SOFTMAX(T, name, of_log)                                                                               \
    RESILIN_SIMD void name##_rows(const T *x, int64_t D, int64_t rows, T *y) {                                         \
        forward_rows_of<of_log>(x, D, rows, y);                                                                        \
    }                                                                                                                  \
    RESILIN_SIMD void name##_columns(const T *x, int64_t n, int64_t D, int64_t width, T *y) {                          \
        forward_columns_of<of_log>(x, n, D, width, y);                                                                 \
    }                                                                                                                  \
    RESILIN_SIMD void name##_rows(const T *g, const T *y, int64_t D, int64_t rows, T *dx) {                            \
        backward_rows_of<of_log>(g, y, D, rows, dx);                                                                   \
    }                                                                                                                  \
    RESILIN_SIMD void name##_columns(const T *g, const T *y, int64_t n, int64_t D, int64_t width, T *dx) {             \
        backward_columns_of<of_log>(g, y, n, D, width, dx);                                                            \
    }
RESILIN_SOFTMAX(float, softmax, false)
RESILIN_SOFTMAX(double, softmax, false)
RESILIN_SOFTMAX(float, log_softmax, true)
RESILIN_SOFTMAX(double, log_softmax, true)

// rows(first element, count), or columns(first element, width), over all lines along `axis` of an array of x's shape
template <class T, class Rows, class Columns>
void each_line(const ExactArray &x, int64_t axis, const Rows &rows, const Columns &columns) {
    int64_t outer = 1, inner = 1;
    const int64_t n = x.dim(static_cast<int>(axis));
    for (int i = 0; i < x.ndim(); i++) (i < axis ? outer : inner) *= i == axis ? 1 : x.dim(i);
    if (inner == 1)
        return parallel_rows(outer, n, [&](int64_t begin, int64_t end) { rows(begin * n, n, end - begin); });
    int64_t tile = TILE; // narrower where there are few: threads share them
    while (tile > 32 && outer * ((inner + tile - 1) / tile) < 8) tile /= 2;
    const int64_t tiles = (inner + tile - 1) / tile;
    parallel_rows(outer * tiles, n * std::min(inner, tile), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const int64_t first = i % tiles * tile;
            columns(i / tiles * n * inner + first, n, inner, std::min(tile, inner - first));
        }
    });
}

template <bool of_log, class T> nb::object forward_of(const Floats &x, int64_t axis) {
    nb::object made = new_like(x);
    WithoutGil free(x.size());
    const Opened<T> from(x);
    const Rounded<T> to(made, x);
    each_line<T>(
        x, axis,
        [&](int64_t at, int64_t D, int64_t rows) {
            std::vector<T> block(static_cast<size_t>(from.half() ? 2 * rows_abreast(D) * D : 0));
            T *rounded = block.data() + block.size() / 2;
            auto some = [&](int64_t first, int64_t count) {
                const T *row = from.at(at + first * D, count * D, block.data());
                T *y = to.at(at + first * D, rounded);
                if (of_log) log_softmax_rows(row, D, count, y);
                else softmax_rows(row, D, count, y);
                to.close(at + first * D, count * D, rounded);
            };
            if (from.half()) few_at_a_time(D, 0, rows, some);
            else some(0, rows);
        },
        [&](int64_t at, int64_t n, int64_t D, int64_t width) {
            std::vector<T> block(static_cast<size_t>(from.half() ? 2 * n * width : 0));
            T *rounded = block.data() + block.size() / 2;
            const T *x_at = from.at(at, 0, block.data());
            T *y = to.at(at, rounded);
            for (int64_t i = 0; from.half() && i < n; i++) from.at(at + i * D, width, block.data() + i * width);
            const int64_t step = from.half() ? width : D;
            if (of_log) log_softmax_columns(x_at, n, step, width, y);
            else softmax_columns(x_at, n, step, width, y);
            for (int64_t i = 0; from.half() && i < n; i++) to.close(at + i * D, width, rounded + i * width);
        });
    return made;
}
template <bool of_log, class T> nb::object backward_of(const Array &g, const Array &y, int64_t axis) {
    NewArray<T> dx(y);
    nb::object made = dx.object;
    WithoutGil free(y.size());
    const T *gs = g.data<T>(), *ys = y.data<T>();
    each_line<T>(
        y, axis,
        [&](int64_t at, int64_t D, int64_t rows) {
            if (of_log) log_softmax_rows(gs + at, ys + at, D, rows, dx.data + at);
            else softmax_rows(gs + at, ys + at, D, rows, dx.data + at);
        },
        [&](int64_t at, int64_t n, int64_t D, int64_t width) {
            if (of_log) log_softmax_columns(gs + at, ys + at, n, D, width, dx.data + at);
            else softmax_columns(gs + at, ys + at, n, D, width, dx.data + at);
        });
    return made;
}

// `axis` from the front; -1 for one that is not there
int64_t front(const ExactArray &x, int64_t axis) {
    const int64_t place = axis < 0 ? axis + x.ndim() : axis;
    return place < x.ndim() ? place : -1;
}

template <bool of_log> nb::object forward(Floats x, int64_t axis) {
    if (!x.known() || (axis = front(x, axis)) < 0) return nb::none();
    return x.type() == NPY_DOUBLE ? forward_of<of_log, double>(x, axis) : forward_of<of_log, float>(x, axis);
}
template <bool of_log> nb::object backward(Floats g, Floats y, int64_t axis) {
    if ((axis = front(y, axis)) < 0 || !g.same_shape(y)) return nb::none();
    if (g.is<float>() && y.is<float>()) return backward_of<of_log, float>(g, y, axis);
    return g.is<double>() && y.is<double>() ? backward_of<of_log, double>(g, y, axis) : nb::none();
}

} // namespace

void bind_softmax(nb::module_ &m) {
    m.def("softmax_forward", &forward<false>, nb::arg("x"), nb::arg("axis") = -1);
    m.def("softmax_backward", &backward<false>, nb::arg("g"), nb::arg("y"), nb::arg("axis") = -1);
    m.def("log_softmax_forward", &forward<true>, nb::arg("x"), nb::arg("axis") = -1);
    m.def("log_softmax_backward", &backward<true>, nb::arg("g"), nb::arg("y"), nb::arg("axis") = -1);
}

} // namespace resilin
