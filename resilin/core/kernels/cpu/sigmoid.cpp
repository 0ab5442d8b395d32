// The logistic function.
#include "array.hpp"
#include "kernels.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace resilin {
namespace {

RESILIN_SIMD void forward_span(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) y[i] = logistic(x[i]).value;
}

RESILIN_SIMD void backward_span(const float *g, const float *y, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) dx[i] = g[i] * (y[i] * (1.0f - y[i]));
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

void bind_sigmoid(nb::module_ &m) {
    m.def("sigmoid_forward", &forward);
    m.def("sigmoid_backward", &backward);
}

} // namespace resilin
