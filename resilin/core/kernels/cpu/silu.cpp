// SiLU: x times its logistic function.
#include "array.hpp"
#include "kernels.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace resilin {
namespace {

RESILIN_SIMD void forward_span(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) y[i] = x[i] * logistic(x[i]).value;
}

RESILIN_SIMD void backward_span(const float *g, const float *x, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) {
        const Logistic s = logistic(x[i]);
        dx[i] = g[i] * (s.value * fma(x[i], s.rest, 1.0f));
    }
}

nb::object forward(Array x) {
    if (!x.is<float>()) return nb::none();
    NewArray<float> y(x);
    {
        WithoutGil free(x.size());
        parallel_rows(x.size(), 1,
                      [&](int64_t begin, int64_t end) { forward_span(x.data<float>(), begin, end, y.data); });
    }
    return y.object;
}

nb::object backward(Array g, Array x) {
    if (!g.is<float>() || !x.is<float>() || !g.same_shape(x)) return nb::none();
    NewArray<float> dx(x);
    {
        WithoutGil free(x.size());
        parallel_rows(x.size(), 1, [&](int64_t begin, int64_t end) {
            backward_span(g.data<float>(), x.data<float>(), begin, end, dx.data);
        });
    }
    return dx.object;
}

} // namespace

void bind_silu(nb::module_ &m) {
    m.def("silu_forward", &forward);
    m.def("silu_backward", &backward);
}

} // namespace resilin
