// Batch normalization: channels are independent, positions are summed in fixed lanes, samples one after
// another in double.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <algorithm>
#include <cmath>

namespace resilin {
namespace {

// N samples, C channels, L positions
struct Shape {
    int64_t N, C, L;
};

// Channels are taken in runs: of at least a cache line in each sample, so that no two threads write to one, and else of so
// many that all of it stays in a cache.
constexpr int64_t MOST = 64, LINE = 16, CACHED = 32 << 10;

int64_t run_of(Shape s) { return std::clamp<int64_t>(CACHED / (s.N * s.L), (LINE + s.L - 1) / s.L, MOST); }

// fn(first channel, number of channels) for the runs from `begin` to `end`
template <class Fn> RESILIN_INLINE void in_runs(Shape s, int64_t run, int64_t begin, int64_t end, Fn fn) {
    for (int64_t c = begin * run; c < std::min(end * run, s.C); c += run) fn(c, std::min(run, s.C - c));
}

// total[i] += what channel i of a run sums up to in one sample; a channel of one position is its own sum
RESILIN_INLINE void add_sums(const float *x, int64_t run, int64_t L, double *total) {
    if (L == 1)
        for (int64_t i = 0; i < run; i++) total[i] += static_cast<double>(x[i]);
    else
        for (int64_t i = 0; i < run; i++) total[i] += static_cast<double>(sum_of(x + i * L, L));
}

RESILIN_INLINE void add_dots(const float *x, const float *y, int64_t run, int64_t L, double *total) {
    if (L == 1)
        for (int64_t i = 0; i < run; i++) total[i] += static_cast<double>(x[i] * y[i]);
    else
        for (int64_t i = 0; i < run; i++) total[i] += static_cast<double>(dot_of(x + i * L, y + i * L, L));
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

RESILIN_SIMD void forward_channels(const float *x, const float *w, const float *b, float eps, Shape s, int64_t begin,
                                   int64_t end, float *y, float *mean_C, float *var_C) {
    const double inv = 1.0 / static_cast<double>(s.N * s.L);
    in_runs(s, run_of(s), begin, end, [=](int64_t c, int64_t run) __attribute__((always_inline)) {
        double sum[MOST] = {}, square[MOST] = {};
        float scale[MOST], shift[MOST];
        const float *mean = mean_C + c;
        for (int64_t n = 0; n < s.N; n++) add_sums(x + (n * s.C + c) * s.L, run, s.L, sum);
        for (int64_t i = 0; i < run; i++) mean_C[c + i] = static_cast<float>(sum[i] * inv);
        for (int64_t n = 0; n < s.N; n++) {
            const float *row = x + (n * s.C + c) * s.L;
            float *out = y + (n * s.C + c) * s.L;
            each_place(run, s.L, [=](int64_t i) __attribute__((always_inline)) {
                return [=, m = mean[i]](int64_t at) __attribute__((always_inline)) { out[at] = row[at] - m; };
            });
            add_dots(out, out, run, s.L, square);
        }
        for (int64_t i = 0; i < run; i++) {
            const float var = static_cast<float>(square[i] * inv);
            var_C[c + i] = var;
            scale[i] = 1.0f / std::sqrt(var + eps) * (w ? w[c + i] : 1.0f);
            shift[i] = b ? b[c + i] : 0.0f;
        }
        const float *by = scale, *plus = shift;
        for (int64_t n = 0; n < s.N; n++) {
            float *out = y + (n * s.C + c) * s.L;
            each_place(run, s.L, [=](int64_t i) __attribute__((always_inline)) {
                return [=, a = by[i], d = plus[i]](int64_t at) __attribute__((always_inline)) { out[at] = out[at] * a + d; };
            });
        }
    });
}

struct Saved {
    const float *mean, *var;
    float eps;
};

RESILIN_SIMD void backward_channels(const float *g, const float *x, const float *w, Saved saved, Shape s,
                                    int64_t begin, int64_t end, float *dx, float *dw, float *db) {
    const double inv = 1.0 / static_cast<double>(s.N * s.L);
    in_runs(s, run_of(s), begin, end, [=](int64_t c, int64_t run) __attribute__((always_inline)) {
        double sum[MOST] = {}, dot[MOST] = {};
        float rstds[MOST], scales[MOST], means_g[MOST], means_dot[MOST];
        const float *mean = saved.mean + c, *rstd = rstds, *scale = scales, *mean_g = means_g, *mean_dot = means_dot;
        for (int64_t i = 0; i < run; i++) {
            rstds[i] = 1.0f / std::sqrt(saved.var[c + i] + saved.eps);
            scales[i] = rstds[i] * (w ? w[c + i] : 1.0f);
        }
        for (int64_t n = 0; n < s.N; n++) {
            const int64_t first = (n * s.C + c) * s.L;
            const float *row = x + first;
            float *hat = dx + first;
            each_place(run, s.L, [=](int64_t i) __attribute__((always_inline)) {
                return [=, m = mean[i], r = rstd[i]](int64_t at) __attribute__((always_inline)) { hat[at] = (row[at] - m) * r; };
            });
            add_sums(g + first, run, s.L, sum);
            add_dots(g + first, hat, run, s.L, dot);
        }
        for (int64_t i = 0; i < run; i++) {
            dw[c + i] = static_cast<float>(dot[i]);
            db[c + i] = static_cast<float>(sum[i]);
            means_g[i] = static_cast<float>(sum[i] * inv);
            means_dot[i] = static_cast<float>(dot[i] * inv);
        }
        for (int64_t n = 0; n < s.N; n++) {
            const int64_t first = (n * s.C + c) * s.L;
            const float *given = g + first;
            float *out = dx + first;
            each_place(run, s.L, [=](int64_t i) __attribute__((always_inline)) {
                return [=, m = mean_g[i], d = mean_dot[i], a = scale[i]](int64_t at) __attribute__((always_inline)) {
                    out[at] = (given[at] - m - out[at] * d) * a;
                };
            });
        }
    });
}

bool accepts(Array x, Array w, Array b) {
    return x.is<float>() && x.ndim() >= 2 && x.size() > 0 && w.is_or_none<float>() && b.is_or_none<float>() &&
           (!w || w.size() == x.dim(1)) && (!b || b.size() == x.dim(1));
}

nb::object forward(Array x, Array w, Array b, float eps) {
    if (!accepts(x, w, b)) return nb::none();
    const Shape s{x.dim(0), x.dim(1), x.size() / (x.dim(0) * x.dim(1))};
    NewArray<float> y(x), mean({static_cast<npy_intp>(s.C)}), var({static_cast<npy_intp>(s.C)});
    {
        WithoutGil free(x.size());
        const int64_t run = run_of(s);
        parallel_rows((s.C + run - 1) / run, run * s.N * s.L, [&](int64_t begin, int64_t end) {
            forward_channels(x.data<float>(), w.data<float>(), b.data<float>(), eps, s, begin, end, y.data, mean.data,
                             var.data);
        });
    }
    return nb::make_tuple(y.object, mean.object, var.object);
}

nb::object backward(Array g, Array x, Array w, Array mean, Array var, float eps) {
    if (!accepts(x, w, w) || !g.is<float>() || g.size() != x.size() || !mean.is<float>() || !var.is<float>() ||
        mean.size() != x.dim(1) || var.size() != x.dim(1))
        return nb::none();
    const Shape s{x.dim(0), x.dim(1), x.size() / (x.dim(0) * x.dim(1))};
    NewArray<float> dx(x), dw(mean), db(mean);
    {
        WithoutGil free(x.size());
        const int64_t run = run_of(s);
        const Saved saved{mean.data<float>(), var.data<float>(), eps};
        parallel_rows((s.C + run - 1) / run, run * s.N * s.L, [&](int64_t begin, int64_t end) {
            backward_channels(g.data<float>(), x.data<float>(), w.data<float>(), saved, s, begin, end, dx.data,
                              dw.data, db.data);
        });
    }
    return nb::make_tuple(dx.object, dw.object, db.object);
}

} // namespace

void bind_batch_norm(nb::module_ &m) {
    m.def("batch_norm_forward", &forward, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg());
    m.def("batch_norm_backward", &backward, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
}

} // namespace resilin
