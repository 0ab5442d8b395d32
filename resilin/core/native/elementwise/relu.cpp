// The rectifier; NaN passes through.
#include "binding/kernels.hpp"
#include "kernels/simd.hpp"
#include "kernels/spans.hpp"

namespace resilin {
namespace {

RESILIN_SIMD void forward_span(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) y[i] = x[i] < 0.0f ? 0.0f : x[i];
}

RESILIN_SIMD void backward_span(const float *g, const float *y, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) dx[i] = y[i] <= 0.0f ? 0.0f : g[i];
}

nb::object forward(Array x) { return forward_by(forward_span, x); }

nb::object backward(Array g, Array y) { return backward_by(backward_span, g, y); }

} // namespace

void bind_relu(nb::module_ &m) {
    m.def("relu_forward", &forward);
    m.def("relu_backward", &backward);
}

} // namespace resilin
