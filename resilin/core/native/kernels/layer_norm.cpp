// Layer normalization: one pass for the mean, one for the variance, one to write; weight gradients in fixed row blocks.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <cmath>
#include <vector>

namespace resilin {
namespace {

// N rows, D features
constexpr int64_t BLOCK_ROWS = 128; // rows summed into one partial weight gradient; part of the order of sums

RESILIN_SIMD void forward_rows(const float *x, const float *w, const float *b, float eps, int64_t D, int64_t begin,
                               int64_t end, float *y, float *mean_N, float *rstd_N) {
    const float inv = 1.0f / static_cast<float>(D);
    for (int64_t n = begin; n < end; n++) {
        const float *__restrict row = x + n * D;
        float *__restrict out = y + n * D;
        const float mean = sum_of(row, D) * inv;
        for (int64_t i = 0; i < D; i++) out[i] = row[i] - mean;
        const float square = dot_of(out, out, D);
        const float rstd = 1.0f / std::sqrt(square * inv + eps);
        mean_N[n] = mean;
        rstd_N[n] = rstd;
        if (w && b)
            for (int64_t i = 0; i < D; i++) out[i] = out[i] * rstd * w[i] + b[i];
        else if (w)
            for (int64_t i = 0; i < D; i++) out[i] = out[i] * rstd * w[i];
        else if (b)
            for (int64_t i = 0; i < D; i++) out[i] = out[i] * rstd + b[i];
        else
            for (int64_t i = 0; i < D; i++) out[i] = out[i] * rstd;
    }
}

// dx of rows [begin, end), of which nothing else is wanted; without a weight
RESILIN_SIMD void backward_plain(const float *g, const float *x, const float *mean_N, const float *rstd_N, int64_t D,
                                 int64_t begin, int64_t end, float *dx) {
    const float inv = 1.0f / static_cast<float>(D);
    for (int64_t n = begin; n < end; n++) {
        const float *__restrict gr = g + n * D, *__restrict xr = x + n * D;
        float *__restrict hat = dx + n * D;
        const float mean = mean_N[n], rstd = rstd_N[n];
        for (int64_t i = 0; i < D; i++) hat[i] = (xr[i] - mean) * rstd;
        const float sum = sum_of(gr, D) * inv;
        const float dot = dot_of(gr, hat, D) * inv;
        for (int64_t i = 0; i < D; i++) hat[i] = (gr[i] - sum - hat[i] * dot) * rstd;
    }
}

// dx of rows [begin, end); their weight gradients are added to dw and db (dw only when there is a weight)
RESILIN_SIMD void backward_rows(const float *g, const float *x, const float *w, const float *mean_N,
                                const float *rstd_N, int64_t D, int64_t begin, int64_t end, float *dx,
                                float *__restrict dw, float *__restrict db, float *__restrict hat) {
    const float inv = 1.0f / static_cast<float>(D);
    for (int64_t n = begin; n < end; n++) {
        const float *__restrict gr = g + n * D, *__restrict xr = x + n * D;
        float *__restrict out = dx + n * D;
        const float mean = mean_N[n], rstd = rstd_N[n];
        for (int64_t i = 0; i < D; i++) {
            const float h = (xr[i] - mean) * rstd;
            hat[i] = h;
            dw[i] += gr[i] * h;
            db[i] += gr[i];
        }
        if (w)
            for (int64_t i = 0; i < D; i++) out[i] = gr[i] * w[i];
        else
            for (int64_t i = 0; i < D; i++) out[i] = gr[i];
        const float sum = sum_of(out, D) * inv;
        const float dot = dot_of(out, hat, D) * inv;
        for (int64_t i = 0; i < D; i++) out[i] = (out[i] - sum - hat[i] * dot) * rstd;
    }
}

nb::object forward(Array x, Array w, Array b, float eps, int64_t D) {
    if (!x.is<float>() || !w.is_or_none<float>() || !b.is_or_none<float>() || D <= 0 || x.size() % D ||
        (w && w.size() != D) || (b && b.size() != D))
        return nb::none();
    const npy_intp N = x.size() / D;
    NewArray<float> y(x), mean({N}), rstd({N});
    {
        WithoutGil free(x.size());
        parallel_rows(N, D, [&](int64_t begin, int64_t end) {
            forward_rows(x.data<float>(), w.data<float>(), b.data<float>(), eps, D, begin, end, y.data, mean.data,
                         rstd.data);
        });
    }
    return nb::make_tuple(y.object, mean.object, rstd.object);
}

// `sums`: whether the gradients of weight and bias are wanted.
nb::object backward(Array g, Array x, Array w, Array mean, Array rstd, bool sums) {
    if (!g.is<float>() || !x.is<float>() || !w.is_or_none<float>() || !mean.is<float>() || !rstd.is<float>() ||
        mean.size() == 0 || x.size() != g.size() || rstd.size() != mean.size() || x.size() % mean.size())
        return nb::none();
    const int64_t N = mean.size(), D = x.size() / N;
    if (w && w.size() != D) return nb::none();
    NewArray<float> dx(x);
    if (!sums && !w) {
        WithoutGil free(x.size());
        parallel_rows(N, D, [&](int64_t begin, int64_t end) {
            backward_plain(g.data<float>(), x.data<float>(), mean.data<float>(), rstd.data<float>(), D, begin, end, dx.data);
        });
    }
    if (!sums && !w) return nb::make_tuple(dx.object, nb::none(), nb::none());
    const npy_intp width[] = {D};
    const int ndim = w ? w.ndim() : 1;
    const npy_intp *dims = w ? PyArray_DIMS(w.array) : width;
    NewArray<float> dw(ndim, dims), db(ndim, dims);
    {
        WithoutGil free(x.size());
        const int64_t blocks = (N + BLOCK_ROWS - 1) / BLOCK_ROWS;
        std::vector<float> partial(static_cast<size_t>(2 * blocks * D));
        parallel_fixed(N, BLOCK_ROWS, D, [&](int64_t block, int64_t begin, int64_t end) {
            std::vector<float> hat(static_cast<size_t>(D));
            float *sums = partial.data() + 2 * block * D;
            backward_rows(g.data<float>(), x.data<float>(), w.data<float>(), mean.data<float>(), rstd.data<float>(), D,
                          begin, end, dx.data, sums, sums + D, hat.data());
        });
        add_partials(partial.data(), blocks, 2 * D, D, dw.data);
        add_partials(partial.data() + D, blocks, 2 * D, D, db.data);
    }
    return nb::make_tuple(dx.object, w ? dw.object : nb::none(), db.object);
}

} // namespace

void bind_layer_norm(nb::module_ &m) {
    m.def("layer_norm_forward", &forward, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg());
    m.def("layer_norm_backward", &backward, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
}

} // namespace resilin
