// Layer normalization: one pass for the mean, one for the variance, one to write; weight gradients in fixed row blocks.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "kernels/rows.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <cmath>
#include <vector>

namespace resilin {
namespace {

// N rows, D features
constexpr int64_t BLOCK_ROWS = 128; // rows summed into one partial weight gradient; part of the order of sums

// A few rows step by step: a row's steps wait for one another.
template <class T>
RESILIN_INLINE void forward_of(const T *x, const T *w, const T *b, T eps, int64_t D, int64_t rows, T *y, T *mean_N, T *rstd_N) {
    const T inv = T(1) / static_cast<T>(D);
    for (int64_t n = 0; n < rows; n++) mean_N[n] = row_sum(x + n * D, D) * inv;
    for (int64_t n = 0; n < rows; n++) rstd_N[n] = row_square(x + n * D, mean_N[n], D);
    for (int64_t n = 0; n < rows; n++) rstd_N[n] = T(1) / std::sqrt(rstd_N[n] * inv + eps);
    for (int64_t n = 0; n < rows; n++) {
        const T *row = x + n * D;
        T *out = y + n * D;
        const T mean = mean_N[n], rstd = rstd_N[n];
        if (w && b) {
#pragma omp simd
            for (int64_t i = 0; i < D; i++) out[i] = (row[i] - mean) * rstd * w[i] + b[i];
        } else if (w) {
#pragma omp simd
            for (int64_t i = 0; i < D; i++) out[i] = (row[i] - mean) * rstd * w[i];
        } else if (b) {
#pragma omp simd
            for (int64_t i = 0; i < D; i++) out[i] = (row[i] - mean) * rstd + b[i];
        } else {
#pragma omp simd
            for (int64_t i = 0; i < D; i++) out[i] = (row[i] - mean) * rstd;
        }
    }
}
RESILIN_SIMD void forward_rows(const float *x, const float *w, const float *b, float eps, int64_t D, int64_t rows, float *y,
                               float *mean_N, float *rstd_N) {
    forward_of(x, w, b, eps, D, rows, y, mean_N, rstd_N);
}
RESILIN_SIMD void forward_rows(const double *x, const double *w, const double *b, double eps, int64_t D, int64_t rows,
                               double *y, double *mean_N, double *rstd_N) {
    forward_of(x, w, b, eps, D, rows, y, mean_N, rstd_N);
}

// dx of rows [begin, end), of which nothing else is wanted; without a weight
template <class T>
RESILIN_INLINE void plain_of(const T *g, const T *x, const T *mean_N, const T *rstd_N, int64_t D, int64_t begin, int64_t end,
                             T *dx) {
    const T inv = T(1) / static_cast<T>(D);
    for (int64_t n = begin; n < end; n++) {
        const T *__restrict gr = g + n * D, *__restrict xr = x + n * D;
        T *__restrict hat = dx + n * D;
        const T mean = mean_N[n], rstd = rstd_N[n];
        for (int64_t i = 0; i < D; i++) hat[i] = (xr[i] - mean) * rstd;
        const T sum = row_sum(gr, D) * inv;
        const T dot = row_dot(gr, hat, D) * inv;
        for (int64_t i = 0; i < D; i++) hat[i] = (gr[i] - sum - hat[i] * dot) * rstd;
    }
}

// dx of rows [begin, end); their weight gradients are added to dw and db (dw only when there is a weight)
template <class T>
RESILIN_INLINE void backward_of(const T *g, const T *x, const T *w, const T *mean_N, const T *rstd_N, int64_t D, int64_t begin,
                                int64_t end, T *dx, T *__restrict dw, T *__restrict db, T *__restrict hat) {
    const T inv = T(1) / static_cast<T>(D);
    for (int64_t n = begin; n < end; n++) {
        const T *__restrict gr = g + n * D, *__restrict xr = x + n * D;
        T *__restrict out = dx + n * D;
        const T mean = mean_N[n], rstd = rstd_N[n];
        for (int64_t i = 0; i < D; i++) {
            const T h = (xr[i] - mean) * rstd;
            hat[i] = h;
            dw[i] += gr[i] * h;
            db[i] += gr[i];
        }
        if (w)
            for (int64_t i = 0; i < D; i++) out[i] = gr[i] * w[i];
        else
            for (int64_t i = 0; i < D; i++) out[i] = gr[i];
        const T sum = row_sum(out, D) * inv;
        const T dot = row_dot(out, hat, D) * inv;
        for (int64_t i = 0; i < D; i++) out[i] = (out[i] - sum - hat[i] * dot) * rstd;
    }
}

#define RESILIN_LAYER_NORM_BACKWARD(T)                                                                                 \
    RESILIN_SIMD void backward_plain(const T *g, const T *x, const T *mean_N, const T *rstd_N, int64_t D, int64_t begin, \
                                     int64_t end, T *dx) {                                                             \
        plain_of(g, x, mean_N, rstd_N, D, begin, end, dx);                                                             \
    }                                                                                                                  \
    RESILIN_SIMD void backward_rows(const T *g, const T *x, const T *w, const T *mean_N, const T *rstd_N, int64_t D,   \
                                    int64_t begin, int64_t end, T *dx, T *dw, T *db, T *hat) {                         \
        backward_of(g, x, w, mean_N, rstd_N, D, begin, end, dx, dw, db, hat);                                          \
    }
RESILIN_LAYER_NORM_BACKWARD(float)
RESILIN_LAYER_NORM_BACKWARD(double)

template <class T> nb::object forward_in(const Floats &x, const Floats &w, const Floats &b, T eps, int64_t D) {
    const npy_intp N = x.size() / D;
    nb::object y = new_like(x);
    NewArray<T> mean({N}), rstd({N});
    {
        WithoutGil free(x.size());
        const Opened<T> from(x);
        const Rounded<T> to(y, x);
        const Beside<T> weight(w), bias(b);
        parallel_rows(N, D, [&](int64_t begin, int64_t end) {
            std::vector<T> block(static_cast<size_t>(from.half() ? 2 * rows_abreast(D) * D : 0));
            few_at_a_time(D, begin, end, [&](int64_t n, int64_t rows) {
                T *made = block.data() + block.size() / 2;
                forward_rows(from.at(n * D, rows * D, block.data()), weight.data, bias.data, eps, D, rows,
                             to.at(n * D, made), mean.data + n, rstd.data + n);
                to.close(n * D, rows * D, made);
            });
        });
    }
    return nb::make_tuple(y, nb::make_tuple(mean.object, rstd.object));
}

// (y, (mean, rstd))
nb::object forward(Floats x, Floats w, Floats b, double eps, int64_t D) {
    if (!x.known() || D <= 0 || x.size() % D || !w.fits(x, D) || !b.fits(x, D)) return nb::none();
    return x.type() == NPY_DOUBLE ? forward_in<double>(x, w, b, eps, D) : forward_in<float>(x, w, b, static_cast<float>(eps), D);
}

template <class T>
nb::object backward_in(const Array &g, const Array &x, const Array &w, const Array &mean_N, const Array &rstd_N, bool sums) {
    if (!x.is<T>() || !w.is_or_none<T>() || !mean_N.is<T>() || !rstd_N.is<T>() || mean_N.size() == 0 || x.size() != g.size() ||
        rstd_N.size() != mean_N.size() || x.size() % mean_N.size())
        return nb::none();
    const int64_t N = mean_N.size(), D = x.size() / N;
    if (w && w.size() != D) return nb::none();
    const T *gs = g.data<T>(), *xs = x.data<T>(), *mean = mean_N.data<T>(), *rstd = rstd_N.data<T>();
    NewArray<T> dx(x);
    if (!sums && !w) {
        WithoutGil free(x.size());
        parallel_rows(N, D, [&](int64_t begin, int64_t end) { backward_plain(gs, xs, mean, rstd, D, begin, end, dx.data); });
    }
    if (!sums && !w) return nb::make_tuple(dx.object, nb::none(), nb::none());
    const npy_intp width[] = {D};
    const int ndim = w ? w.ndim() : 1;
    const npy_intp *dims = w ? PyArray_DIMS(w.array) : width;
    NewArray<T> dw(ndim, dims), db(ndim, dims);
    {
        WithoutGil free(x.size());
        const int64_t blocks = (N + BLOCK_ROWS - 1) / BLOCK_ROWS;
        std::vector<T> partial(static_cast<size_t>(2 * blocks * D));
        parallel_fixed(N, BLOCK_ROWS, D, [&](int64_t block, int64_t begin, int64_t end) {
            std::vector<T> hat(static_cast<size_t>(D));
            T *of_block = partial.data() + 2 * block * D;
            backward_rows(gs, xs, w.data<T>(), mean, rstd, D, begin, end, dx.data, of_block, of_block + D, hat.data());
        });
        add_partials(partial.data(), blocks, 2 * D, D, dw.data);
        add_partials(partial.data() + D, blocks, 2 * D, D, db.data);
    }
    return nb::make_tuple(dx.object, w ? dw.object : nb::none(), db.object);
}

// `sums`: whether the gradients of weight and bias are wanted.
nb::object backward(Floats g, Floats x, Floats w, Floats mean, Floats rstd, bool sums) {
    if (g.is<float>()) return backward_in<float>(g, x, w, mean, rstd, sums);
    return g.is<double>() ? backward_in<double>(g, x, w, mean, rstd, sums) : nb::none();
}

} // namespace

void bind_layer_norm(nb::module_ &m) {
    m.def("layer_norm_forward", &forward, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg());
    m.def("layer_norm_backward", &backward, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
}

} // namespace resilin
