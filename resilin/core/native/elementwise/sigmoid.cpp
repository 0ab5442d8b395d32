// The logistic function.
#include "binding/kernels.hpp"
#include "elementwise/doubles.hpp"
#include "kernels/simd.hpp"
#include "kernels/spans.hpp"

namespace resilin {
namespace {

RESILIN_SIMD void forward_span(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) y[i] = logistic(x[i]).value;
}

RESILIN_SIMD void forward_wide(const double *x, int64_t begin, int64_t end, double *y) {
    for (int64_t i = begin; i < end; i++) y[i] = logistic(x[i]);
}

RESILIN_SIMD void backward_span(const float *g, const float *y, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) dx[i] = g[i] * (y[i] * (1.0f - y[i]));
}

nb::object forward(Array x) { return forward_by(forward_span, forward_wide, x); }

nb::object backward(Array g, Array y) { return backward_by(backward_span, g, y); }

} // namespace

void bind_sigmoid(nb::module_ &m) {
    m.def("sigmoid_forward", &forward);
    m.def("sigmoid_backward", &backward);
}

} // namespace resilin
