// The rectifier; NaN passes through.
#include "array.hpp"
#include "kernels.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace resilin {
namespace {

RESILIN_SIMD void forward_span(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) y[i] = x[i] < 0.0f ? 0.0f : x[i];
}

RESILIN_SIMD void backward_span(const float *g, const float *y, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) dx[i] = y[i] <= 0.0f ? 0.0f : g[i];
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

nb::object backward(Array g, Array y) {
    if (!g.is<float>() || !y.is<float>() || !g.same_shape(y)) return nb::none();
    NewArray<float> dx(y);
    {
        WithoutGil free(y.size());
        parallel_rows(y.size(), 1, [&](int64_t begin, int64_t end) {
            backward_span(g.data<float>(), y.data<float>(), begin, end, dx.data);
        });
    }
    return dx.object;
}

} // namespace

void bind_relu(nb::module_ &m) {
    m.def("relu_forward", &forward);
    m.def("relu_backward", &backward);
}

} // namespace resilin
