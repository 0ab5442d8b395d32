// Softmax and log-softmax of contiguous rows.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <cmath>

namespace resilin {
namespace {

// N rows, D elements each
RESILIN_SIMD void forward_rows(const float *x, int64_t D, int64_t begin, int64_t end, float *y) {
    for (int64_t n = begin; n < end; n++) {
        const float *row = x + n * D;
        float *out = y + n * D;
        const float top = max_of(row, D);
        for (int64_t i = 0; i < D; i++) out[i] = exp_low(row[i] - top);
        const float inv = 1.0f / sum_of(out, D);
        for (int64_t i = 0; i < D; i++) out[i] *= inv;
    }
}

RESILIN_SIMD void backward_rows(const float *g, const float *y, int64_t D, int64_t begin, int64_t end, float *dx) {
    for (int64_t n = begin; n < end; n++) {
        const float *gr = g + n * D, *yr = y + n * D;
        float *out = dx + n * D;
        const float dot = dot_of(gr, yr, D);
        for (int64_t i = 0; i < D; i++) out[i] = yr[i] * (gr[i] - dot);
    }
}

RESILIN_SIMD void log_forward_rows(const float *x, int64_t D, int64_t begin, int64_t end, float *y) {
    for (int64_t n = begin; n < end; n++) {
        const float *row = x + n * D;
        float *out = y + n * D;
        const float top = max_of(row, D);
        for (int64_t i = 0; i < D; i++) out[i] = exp_low(row[i] - top);
        const float log_sum = std::log(sum_of(out, D));
        for (int64_t i = 0; i < D; i++) out[i] = row[i] - top - log_sum;
    }
}

RESILIN_SIMD void log_backward_rows(const float *g, const float *y, int64_t D, int64_t begin, int64_t end, float *dx) {
    for (int64_t n = begin; n < end; n++) {
        const float *gr = g + n * D, *yr = y + n * D;
        float *out = dx + n * D;
        const float sum = sum_of(gr, D);
        for (int64_t i = 0; i < D; i++) out[i] = gr[i] - exp_low(yr[i]) * sum;
    }
}

using Forward = void(const float *, int64_t, int64_t, int64_t, float *);
using Backward = void(const float *, const float *, int64_t, int64_t, int64_t, float *);

template <Forward *rows> nb::object forward(Array x) {
    if (!x.is<float>()) return nb::none();
    NewArray<float> y(x);
    {
        WithoutGil free(x.size());
        parallel_rows(x.rows(), x.last(),
                      [&](int64_t begin, int64_t end) { rows(x.data<float>(), x.last(), begin, end, y.data); });
    }
    return y.object;
}

template <Backward *rows> nb::object backward(Array g, Array y) {
    if (!g.is<float>() || !y.is<float>() || !g.same_shape(y)) return nb::none();
    NewArray<float> dx(y);
    {
        WithoutGil free(y.size());
        parallel_rows(y.rows(), y.last(), [&](int64_t begin, int64_t end) {
            rows(g.data<float>(), y.data<float>(), y.last(), begin, end, dx.data);
        });
    }
    return dx.object;
}

} // namespace

void bind_softmax(nb::module_ &m) {
    m.def("softmax_forward", &forward<forward_rows>);
    m.def("softmax_backward", &backward<backward_rows>);
    m.def("log_softmax_forward", &forward<log_forward_rows>);
    m.def("log_softmax_backward", &backward<log_backward_rows>);
}

} // namespace resilin
