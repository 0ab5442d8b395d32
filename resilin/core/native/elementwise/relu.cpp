// The rectifier; NaN passes through.
#include "binding/kernels.hpp"
#include "kernels/spans.hpp"

namespace resilin {
namespace {

RESILIN_FORWARD(relu, 0, x < 0 ? 0 : x)
RESILIN_BACKWARD(relu_back, 0, x <= 0 ? 0 : g) // x: what the forward gave

nb::object forward(ExactArray x, ExactArray out) { return forward_with(relu, x, out); }

nb::object backward(ExactArray g, ExactArray y) { return backward_with(relu_back, g, y); }

} // namespace

void bind_relu(nb::module_ &m) {
    m.def("relu_forward", &forward, nb::arg(), nb::arg("out") = nb::none());
    m.def("relu_backward", &backward);
}

} // namespace resilin
