// The logistic function.
#include "binding/kernels.hpp"
#include "elementwise/doubles.hpp"
#include "kernels/spans.hpp"

namespace resilin {
namespace {

RESILIN_INLINE float value_of(float x) { return logistic(x).value; }
RESILIN_INLINE double value_of(double x) { return logistic(x); }

RESILIN_FORWARD(sigmoid, 0, value_of(x))
RESILIN_BACKWARD(sigmoid_back, 0, g * (x * (1 - x))) // x: what the forward gave
RESILIN_BACKWARD(gated, 0, g * value_of(x))          // g: what x lets through

nb::object forward(ExactArray x, ExactArray out) { return forward_with(sigmoid, x, out); }

nb::object backward(ExactArray g, ExactArray y) { return backward_with(sigmoid_back, g, y); }

} // namespace

void bind_sigmoid(nb::module_ &m) {
    m.def("sigmoid_forward", &forward, nb::arg(), nb::arg("out") = nb::none());
    m.def("sigmoid_backward", &backward);
    m.def("gated", [](ExactArray x, ExactArray gate) { return backward_with(gated, x, gate); });
}

} // namespace resilin
