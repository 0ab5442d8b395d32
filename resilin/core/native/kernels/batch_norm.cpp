// Batch normalization: channels are independent, positions are summed in fixed lanes, samples one after
// another in double.
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

// N samples, C channels, L positions
struct Shape {
    int64_t N, C, L;
};
Shape shape_of(const ExactArray &x) { return {x.dim(0), x.dim(1), x.size() / (x.dim(0) * x.dim(1))}; }

// Channels are taken in runs: of at least a cache line in each sample, so that no two threads write to one, and else of so
// many that all of it stays in a cache.
constexpr int64_t MOST = 64, LINE = 16, CACHED = 32 << 10;

int64_t run_of(Shape s) { return std::clamp<int64_t>(CACHED / (s.N * s.L), (LINE + s.L - 1) / s.L, MOST); }

// fn(first channel, number of channels) for the runs from `begin` to `end`
template <class Fn> RESILIN_INLINE void in_runs(Shape s, int64_t run, int64_t begin, int64_t end, Fn fn) {
    for (int64_t c = begin * run; c < std::min(end * run, s.C); c += run) fn(c, std::min(run, s.C - c));
}

// total[i] += what channel i of a run sums up to in one sample; a channel of one position is its own sum
template <class T> RESILIN_INLINE void add_sums(const T *x, int64_t run, int64_t L, double *total) {
    if (L == 1)
        for (int64_t i = 0; i < run; i++) total[i] += static_cast<double>(x[i]);
    else
        for (int64_t i = 0; i < run; i++) total[i] += static_cast<double>(row_sum(x + i * L, L));
}
template <class T> RESILIN_INLINE void add_dots(const T *x, const T *y, int64_t run, int64_t L, double *total) {
    if (L == 1)
        for (int64_t i = 0; i < run; i++) total[i] += static_cast<double>(x[i] * y[i]);
    else
        for (int64_t i = 0; i < run; i++) total[i] += static_cast<double>(row_dot(x + i * L, y + i * L, L));
}

// of(channel of the run) is what is done at each of its places in the run
template <class Of> RESILIN_INLINE void each_place(int64_t run, int64_t L, Of of) {
    if (L == 1) {
        for (int64_t i = 0; i < run; i++) of(i)(i);
        return;
    }
    for (int64_t i = 0; i < run; i++) {
        const auto place = of(i);
        for (int64_t at = i * L; at < (i + 1) * L; at++) place(at);
    }
}

// The moments of a run's channels, and by what they are scaled and shifted
template <class T> struct Moments {
    double sum[MOST] = {}, square[MOST] = {};
    T mean[MOST], scale[MOST], shift[MOST];

    RESILIN_INLINE void set_mean(int64_t run, double inv, T *mean_C) {
        for (int64_t i = 0; i < run; i++) mean_C[i] = mean[i] = static_cast<T>(sum[i] * inv);
    }
    RESILIN_INLINE void set_scale(const T *w, const T *b, T eps, int64_t c, int64_t run, double inv, T *var_C) {
        for (int64_t i = 0; i < run; i++) {
            var_C[i] = static_cast<T>(square[i] * inv);
            scale[i] = T(1) / std::sqrt(var_C[i] + eps) * (w ? w[c + i] : T(1));
            shift[i] = b ? b[c + i] : T(0);
        }
    }
};

// Runs of channels of several positions, of one sample
#define RESILIN_BATCH_NORM_RUNS(T)                                                                                     \
    RESILIN_SIMD void add_sums_of(const T *x, int64_t run, int64_t L, double *sum) { add_sums(x, run, L, sum); }       \
    RESILIN_SIMD void add_squares_of(const T *x, const T *mean, int64_t run, int64_t L, double *square) {              \
        for (int64_t i = 0; i < run; i++) square[i] += static_cast<double>(row_square(x + i * L, mean[i], L));          \
    }                                                                                                                  \
    RESILIN_SIMD void normalized_run(const T *x, const T *mean, const T *scale, const T *shift, int64_t run, int64_t L, T *y) { \
        for (int64_t i = 0; i < run; i++) {                                                                            \
            const T m = mean[i], a = scale[i], d = shift[i];                                                           \
            _Pragma("omp simd") for (int64_t at = i * L; at < (i + 1) * L; at++) y[at] = (x[at] - m) * a + d;          \
        }                                                                                                              \
    }
RESILIN_BATCH_NORM_RUNS(float)
RESILIN_BATCH_NORM_RUNS(double)

template <class T>
void forward_runs(const Opened<T> &x, const T *w, const T *b, T eps, Shape s, int64_t begin, int64_t end, const Rounded<T> &y,
                  T *mean_C, T *var_C) {
    const double inv = 1.0 / static_cast<double>(s.N * s.L);
    const int64_t most = run_of(s);
    std::vector<T> block(static_cast<size_t>(x.half() ? 2 * most * s.L : 0));
    T *opened = block.data(), *made = block.data() + block.size() / 2;
    in_runs(s, most, begin, end, [&](int64_t c, int64_t run) {
        Moments<T> moments;
        auto each = [&](auto fn) {
            for (int64_t n = 0; n < s.N; n++) {
                const int64_t at = (n * s.C + c) * s.L;
                fn(x.at(at, run * s.L, opened), at);
            }
        };
        each([&](const T *row, int64_t) { add_sums_of(row, run, s.L, moments.sum); });
        moments.set_mean(run, inv, mean_C + c);
        each([&](const T *row, int64_t) { add_squares_of(row, moments.mean, run, s.L, moments.square); });
        moments.set_scale(w, b, eps, c, run, inv, var_C + c);
        each([&](const T *row, int64_t at) {
            normalized_run(row, moments.mean, moments.scale, moments.shift, run, s.L, y.at(at, made));
            y.close(at, run * s.L, made);
        });
    });
}

// Channels of one position, a cache line of them side by side
template <class T> constexpr int64_t WIDTH = 64 / sizeof(T);

template <int64_t MOST_COLUMNS, class T>
RESILIN_INLINE void columns_of(const T *x, const T *w, const T *b, T eps, int64_t N, int64_t C, int64_t c, int64_t run,
                               T *y, T *mean_C, T *var_C) {
    const double inv = 1.0 / static_cast<double>(N);
    Moments<T> moments;
    double sum[MOST_COLUMNS] = {}, square[MOST_COLUMNS] = {};
    T mean[MOST_COLUMNS], scale[MOST_COLUMNS], shift[MOST_COLUMNS];
    for (int64_t n = 0; n < N; n++)
        for (int64_t i = 0; i < run; i++) sum[i] += static_cast<double>(x[n * C + c + i]);
    std::copy(sum, sum + run, moments.sum);
    moments.set_mean(run, inv, mean_C + c);
    std::copy(moments.mean, moments.mean + run, mean);
    for (int64_t n = 0; n < N; n++)
        for (int64_t i = 0; i < run; i++) {
            const T d = x[n * C + c + i] - mean[i];
            square[i] += static_cast<double>(d * d);
        }
    std::copy(square, square + run, moments.square);
    moments.set_scale(w, b, eps, c, run, inv, var_C + c);
    std::copy(moments.scale, moments.scale + run, scale);
    std::copy(moments.shift, moments.shift + run, shift);
    for (int64_t n = 0; n < N; n++) {
#pragma omp simd
        for (int64_t i = 0; i < run; i++) y[n * C + c + i] = (x[n * C + c + i] - mean[i]) * scale[i] + shift[i];
    }
}

// Columns from `first` to `end`: two lines at a time, as a CPU fetches them, while there are so many
#define RESILIN_BATCH_NORM_COLUMNS(T)                                                                                  \
    RESILIN_SIMD void columns(const T *x, const T *w, const T *b, T eps, int64_t N, int64_t C, int64_t first,          \
                              int64_t end, T *y, T *mean_C, T *var_C) {                                                \
        constexpr int64_t LINE = WIDTH<T>;                                                                             \
        int64_t c = first;                                                                                             \
        for (; c + 2 * LINE <= end; c += 2 * LINE)                                                                     \
            columns_of<2 * LINE>(x, w, b, eps, N, C, c, 2 * LINE, y, mean_C, var_C);                                   \
        for (; c + LINE <= end; c += LINE) columns_of<LINE>(x, w, b, eps, N, C, c, LINE, y, mean_C, var_C);            \
        if (c < end) columns_of<LINE>(x, w, b, eps, N, C, c, end - c, y, mean_C, var_C);                               \
    }
RESILIN_BATCH_NORM_COLUMNS(float)
RESILIN_BATCH_NORM_COLUMNS(double)

template <class T>
void forward_columns(const T *x, const T *w, const T *b, T eps, Shape s, T *y, T *mean, T *var) {
    const int64_t width = s.C >= 2 * WIDTH<T> * num_threads() ? 2 * WIDTH<T> : WIDTH<T>;
    parallel_rows((s.C + width - 1) / width, width * s.N, [&](int64_t begin, int64_t end) {
        columns(x, w, b, eps, s.N, s.C, begin * width, std::min(end * width, s.C), y, mean, var);
    });
}

// The same of 16-bit floats, as many as a cache line has, which are opened at once
void forward_half_columns(const uint16_t *x, bool float16, const float *w, const float *b, float eps, Shape s,
                          uint16_t *y, float *mean, float *var) {
    constexpr int64_t MANY = 2 * WIDTH<float>;
    parallel_rows((s.C + MANY - 1) / MANY, MANY * s.N, [&](int64_t begin, int64_t end) {
        std::vector<float> block(static_cast<size_t>(MANY * s.N));
        for (int64_t c = begin * MANY; c < std::min(end * MANY, s.C); c += MANY) {
            const int64_t run = std::min(MANY, s.C - c);
            float *at = block.data();
            for (int64_t n = 0; n < s.N; n++)
                (float16 ? unpack_half : unpack_bfloat)(x + n * s.C + c, 0, run, at + n * run);
            columns(at, w ? w + c : w, b ? b + c : b, eps, s.N, run, 0, run, at, mean + c, var + c);
            for (int64_t n = 0; n < s.N; n++)
                (float16 ? pack_half : pack_bfloat)(at + n * run, 0, run, y + n * s.C + c);
        }
    });
}

template <class T> struct Saved {
    const T *mean, *var;
    T eps;
};

template <class T>
RESILIN_INLINE void backward_of(const T *g, const T *x, const T *w, Saved<T> saved, Shape s, int64_t begin, int64_t end, T *dx,
                                T *dw, T *db) {
    const double inv = 1.0 / static_cast<double>(s.N * s.L);
    in_runs(s, run_of(s), begin, end, [=](int64_t c, int64_t run) __attribute__((always_inline)) {
        double sum[MOST] = {}, dot[MOST] = {};
        T rstds[MOST], scales[MOST], means_g[MOST], means_dot[MOST];
        const T *mean = saved.mean + c, *rstd = rstds, *scale = scales, *mean_g = means_g, *mean_dot = means_dot;
        for (int64_t i = 0; i < run; i++) {
            rstds[i] = T(1) / std::sqrt(saved.var[c + i] + saved.eps);
            scales[i] = rstds[i] * (w ? w[c + i] : T(1));
        }
        for (int64_t n = 0; n < s.N; n++) {
            const int64_t first = (n * s.C + c) * s.L;
            const T *row = x + first;
            T *hat = dx + first;
            each_place(run, s.L, [=](int64_t i) __attribute__((always_inline)) {
                return [=, m = mean[i], r = rstd[i]](int64_t at) __attribute__((always_inline)) { hat[at] = (row[at] - m) * r; };
            });
            add_sums(g + first, run, s.L, sum);
            add_dots(g + first, hat, run, s.L, dot);
        }
        for (int64_t i = 0; i < run; i++) {
            dw[c + i] = static_cast<T>(dot[i]);
            db[c + i] = static_cast<T>(sum[i]);
            means_g[i] = static_cast<T>(sum[i] * inv);
            means_dot[i] = static_cast<T>(dot[i] * inv);
        }
        for (int64_t n = 0; n < s.N; n++) {
            const int64_t first = (n * s.C + c) * s.L;
            const T *given = g + first;
            T *out = dx + first;
            each_place(run, s.L, [=](int64_t i) __attribute__((always_inline)) {
                return [=, m = mean_g[i], d = mean_dot[i], a = scale[i]](int64_t at) __attribute__((always_inline)) {
                    out[at] = (given[at] - m - out[at] * d) * a;
                };
            });
        }
    });
}

RESILIN_SIMD void backward_channels(const float *g, const float *x, const float *w, Saved<float> saved, Shape s, int64_t begin,
                                    int64_t end, float *dx, float *dw, float *db) {
    backward_of(g, x, w, saved, s, begin, end, dx, dw, db);
}
RESILIN_SIMD void backward_channels(const double *g, const double *x, const double *w, Saved<double> saved, Shape s,
                                    int64_t begin, int64_t end, double *dx, double *dw, double *db) {
    backward_of(g, x, w, saved, s, begin, end, dx, dw, db);
}

template <class T> nb::object forward_in(const Floats &x, const Floats &w, const Floats &b, T eps, nb::handle stats) {
    const Shape s = shape_of(x);
    nb::object y = new_like(x);
    NewArray<T> mean({static_cast<npy_intp>(s.C)}), var({static_cast<npy_intp>(s.C)});
    {
        WithoutGil free(x.size());
        const Beside<T> weight(w), bias(b);
        if (s.L > 1) {
            const int64_t run = run_of(s);
            const Opened<T> from(x);
            const Rounded<T> to(y, x);
            parallel_rows((s.C + run - 1) / run, run * s.N * s.L, [&](int64_t begin, int64_t end) {
                forward_runs<T>(from, weight.data, bias.data, eps, s, begin, end, to, mean.data, var.data);
            });
        } else if (!is_half_type(x.type())) {
            forward_columns<T>(x.data<T>(), weight.data, bias.data, eps, s, elements_of<T>(y), mean.data, var.data);
        } else if constexpr (sizeof(T) == sizeof(float)) {
            forward_half_columns(x.data<uint16_t>(), x.type() == NPY_HALF, weight.data, bias.data, eps, s,
                                 elements_of<uint16_t>(y), mean.data, var.data);
        }
    }
    nb::object moments = nb::make_tuple(mean.object, var.object);
    if (PyList_Check(stats.ptr()) && PyList_SetSlice(stats.ptr(), 0, PyList_GET_SIZE(stats.ptr()), moments.ptr()))
        throw nb::python_error();
    return nb::make_tuple(y, moments);
}

// (y, (mean, var)); the list `stats`, if there is one, receives the moments, too
nb::object forward(Floats x, Floats w, Floats b, double eps, nb::object stats) {
    if (!x.known() || x.ndim() < 2 || !x.size() || !w.fits(x, x.dim(1)) || !b.fits(x, x.dim(1))) return nb::none();
    return x.type() == NPY_DOUBLE ? forward_in<double>(x, w, b, eps, stats)
                                  : forward_in<float>(x, w, b, static_cast<float>(eps), stats);
}

template <class T>
nb::object backward_in(const Array &g, const Array &x, const Array &w, const Array &mean, const Array &var, T eps) {
    if (!x.is<T>() || x.ndim() < 2 || !x.size() || g.size() != x.size() || !w.is_or_none<T>() || (w && w.size() != x.dim(1)) ||
        !mean.is<T>() || !var.is<T>() || mean.size() != x.dim(1) || var.size() != x.dim(1))
        return nb::none();
    const Shape s = shape_of(x);
    NewArray<T> dx(x), dw(mean), db(mean);
    {
        WithoutGil free(x.size());
        const int64_t run = run_of(s);
        const Saved<T> saved{mean.data<T>(), var.data<T>(), eps};
        parallel_rows((s.C + run - 1) / run, run * s.N * s.L, [&](int64_t begin, int64_t end) {
            backward_channels(g.data<T>(), x.data<T>(), w.data<T>(), saved, s, begin, end, dx.data, dw.data, db.data);
        });
    }
    return nb::make_tuple(dx.object, dw.object, db.object);
}

nb::object backward(Floats g, Floats x, Floats w, Floats mean, Floats var, double eps) {
    if (g.is<float>()) return backward_in<float>(g, x, w, mean, var, static_cast<float>(eps));
    return g.is<double>() ? backward_in<double>(g, x, w, mean, var, eps) : nb::none();
}

} // namespace

void bind_batch_norm(nb::module_ &m) {
    m.def("batch_norm_forward", &forward, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(),
          nb::arg().none() = nb::none());
    m.def("batch_norm_backward", &backward, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
}

} // namespace resilin
