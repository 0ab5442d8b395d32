// SiLU: x times its logistic function.
#include "binding/kernels.hpp"
#include "elementwise/doubles.hpp"
#include "kernels/simd.hpp"
#include "kernels/spans.hpp"

namespace resilin {
namespace {

RESILIN_SIMD void forward_span(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) y[i] = x[i] * logistic(x[i]).value;
}

RESILIN_SIMD void forward_wide(const double *x, int64_t begin, int64_t end, double *y) {
    for (int64_t i = begin; i < end; i++) y[i] = x[i] * logistic(x[i]);
}

RESILIN_SIMD void backward_span(const float *g, const float *x, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) {
        const Logistic s = logistic(x[i]);
        dx[i] = g[i] * (s.value * fma(x[i], s.rest, 1.0f));
    }
}

nb::object forward(Array x) { return forward_by(forward_span, forward_wide, x); }

nb::object backward(Array g, Array x) { return backward_by(backward_span, g, x); }

} // namespace

void bind_silu(nb::module_ &m) {
    m.def("silu_forward", &forward);
    m.def("silu_backward", &backward);
}

} // namespace resilin
