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

// Of 16-bit floats with `infinity`, as their bits: y <= 0 is zero of either sign, and what is negative and no NaN.
RESILIN_SIMD void backward_bits(const uint16_t *g, const uint16_t *y, int64_t begin, int64_t end, int infinity, uint16_t *dx) {
    const uint16_t last = static_cast<uint16_t>(0x8000 | infinity);
    for (int64_t i = begin; i < end; i++) dx[i] = y[i] == 0 || (y[i] >= 0x8000 && y[i] <= last) ? uint16_t{0} : g[i];
}

nb::object backward(Array g, Array y) { return backward_by(backward_span, g, y); }

nb::object backward_of_bits(Array g, Array y, int infinity) {
    if (!g.is<uint16_t>() || !y.is<uint16_t>() || !g.same_shape(y)) return nb::none();
    NewArray<uint16_t> dx(y);
    {
        WithoutGil free(y.size());
        parallel_rows(y.size(), 1, [&](int64_t begin, int64_t end) {
            backward_bits(g.data<uint16_t>(), y.data<uint16_t>(), begin, end, infinity, dx.data);
        });
    }
    return dx.object;
}

} // namespace

void bind_relu(nb::module_ &m) {
    m.def("relu_forward", &forward);
    m.def("relu_backward", &backward);
    m.def("relu_backward_bits", &backward_of_bits);
}

} // namespace resilin
