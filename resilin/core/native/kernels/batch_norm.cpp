// Batch normalization: channels are independent, positions are summed in fixed lanes, samples one after
// another in double.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <cmath>

namespace resilin {
namespace {

// N samples, C channels, L positions
struct Shape {
    int64_t N, C, L;
};

RESILIN_SIMD void forward_channels(const float *x, const float *w, const float *b, float eps, Shape s, int64_t begin,
                                   int64_t end, float *y, float *mean_C, float *var_C) {
    const double inv = 1.0 / static_cast<double>(s.N * s.L);
    for (int64_t c = begin; c < end; c++) {
        double sum = 0.0, square = 0.0;
        for (int64_t n = 0; n < s.N; n++) sum += sum_of(x + (n * s.C + c) * s.L, s.L);
        const float mean = static_cast<float>(sum * inv);
        for (int64_t n = 0; n < s.N; n++) {
            const float *row = x + (n * s.C + c) * s.L;
            float *out = y + (n * s.C + c) * s.L;
            for (int64_t i = 0; i < s.L; i++) out[i] = row[i] - mean;
            square += dot_of(out, out, s.L);
        }
        const float var = static_cast<float>(square * inv);
        const float scale = 1.0f / std::sqrt(var + eps) * (w ? w[c] : 1.0f), shift = b ? b[c] : 0.0f;
        for (int64_t n = 0; n < s.N; n++) {
            float *out = y + (n * s.C + c) * s.L;
            for (int64_t i = 0; i < s.L; i++) out[i] = out[i] * scale + shift;
        }
        mean_C[c] = mean;
        var_C[c] = var;
    }
}

struct Saved {
    const float *mean, *var;
    float eps;
};

RESILIN_SIMD void backward_channels(const float *g, const float *x, const float *w, Saved saved, Shape s,
                                    int64_t begin, int64_t end, float *dx, float *dw, float *db) {
    const double inv = 1.0 / static_cast<double>(s.N * s.L);
    for (int64_t c = begin; c < end; c++) {
        const float mean = saved.mean[c], rstd = 1.0f / std::sqrt(saved.var[c] + saved.eps);
        double sum = 0.0, dot = 0.0;
        for (int64_t n = 0; n < s.N; n++) {
            const int64_t at = (n * s.C + c) * s.L;
            float *hat = dx + at;
            for (int64_t i = 0; i < s.L; i++) hat[i] = (x[at + i] - mean) * rstd;
            sum += sum_of(g + at, s.L);
            dot += dot_of(g + at, hat, s.L);
        }
        dw[c] = static_cast<float>(dot);
        db[c] = static_cast<float>(sum);
        const float scale = rstd * (w ? w[c] : 1.0f);
        const float mean_g = static_cast<float>(sum * inv), mean_dot = static_cast<float>(dot * inv);
        for (int64_t n = 0; n < s.N; n++) {
            const int64_t at = (n * s.C + c) * s.L;
            for (int64_t i = 0; i < s.L; i++) dx[at + i] = (g[at + i] - mean_g - dx[at + i] * mean_dot) * scale;
        }
    }
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
        parallel_rows(s.C, s.N * s.L, [&](int64_t begin, int64_t end) {
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
        const Saved saved{mean.data<float>(), var.data<float>(), eps};
        parallel_rows(s.C, s.N * s.L, [&](int64_t begin, int64_t end) {
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
