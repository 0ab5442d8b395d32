// SiLU: x times its logistic function.
#include "binding/kernels.hpp"
#include "elementwise/doubles.hpp"
#include "kernels/spans.hpp"

namespace resilin {
namespace {

RESILIN_INLINE float silu_of(float x) { return x * logistic(x).value; }
RESILIN_INLINE double silu_of(double x) { return x * logistic(x); }
RESILIN_INLINE float slope_of(float x) {
    const Logistic s = logistic(x);
    return s.value * fma(x, s.rest, 1.0f);
}
RESILIN_INLINE double slope_of(double x) { // 1 - logistic(x) without cancellation
    const double e = exp_(-__builtin_fabs(x)), r = 1.0 / (1.0 + e), small = e * r;
    return (x > 0.0 ? r : small) * fma(x, x > 0.0 ? small : r, 1.0);
}

RESILIN_FORWARD(silu, 0, silu_of(x))
RESILIN_BACKWARD(silu_back, 0, g * slope_of(x))

nb::object forward(ExactArray x, ExactArray out) { return forward_with(silu, x, out); }

nb::object backward(ExactArray g, ExactArray x) { return backward_with(silu_back, g, x); }

} // namespace

void bind_silu(nb::module_ &m) {
    m.def("silu_forward", &forward, nb::arg(), nb::arg("out") = nb::none());
    m.def("silu_backward", &backward);
}

} // namespace resilin
