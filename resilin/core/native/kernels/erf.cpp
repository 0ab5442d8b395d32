// The error function.
#include "binding/kernels.hpp"
#include "elementwise/doubles.hpp"
#include "simd.hpp"
#include "spans.hpp"

namespace resilin {
namespace {

// Below TINY the formula's first product is subnormal and loses digits, of which the quotient makes up none.
constexpr float TINY = 1e-36f, SLOPE = 1.12837917f; // 2 / sqrt(pi)

RESILIN_SIMD void forward_span(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) {
        const float found = erf_(x[i]), line = x[i] * SLOPE;
        y[i] = __builtin_fabsf(x[i]) < TINY ? line : found;
    }
}
RESILIN_SIMD void forward_wide(const double *x, int64_t begin, int64_t end, double *y) {
    for (int64_t i = begin; i < end; i++) y[i] = erf_(x[i]);
}
RESILIN_SIMD void backward_span(const float *g, const float *x, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) dx[i] = g[i] * SLOPE * exp_low(-x[i] * x[i]);
}

nb::object forward(ExactArray x) { return forward_by(forward_span, forward_wide, x); }

nb::object of_double(ExactArray x) {
    return x && PyArray_TYPE(x.array) == NPY_DOUBLE ? forward_by(forward_span, forward_wide, x) : nb::none();
}

nb::object backward(ExactArray g, ExactArray x) { return backward_by(backward_span, g, x); }

} // namespace

void bind_erf(nb::module_ &m) {
    m.def("erf_forward", &forward);
    m.def("special_erf", &of_double);
    m.def("erf_backward", &backward);
}

} // namespace resilin
