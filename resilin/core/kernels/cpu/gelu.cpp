// GELU. tanh form: 0.5 (1 + tanh u) is the logistic function of 2u, which loses no digits for negative x.
#include "array.hpp"
#include "kernels.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace resilin {
namespace {

constexpr float SQRT_HALF = 0.70710678118654752f, INV_SQRT_2PI = 0.39894228040143268f;
constexpr float SCALE = 0.79788456080286536f, CUBE = 0.044715f; // sqrt(2 / pi) and the paper's constant

RESILIN_SIMD void tanh_forward(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) {
        const float v = x[i];
        y[i] = v / (1.0f + exp_(-2.0f * SCALE * (v + CUBE * v * v * v)));
    }
}

RESILIN_SIMD void tanh_backward(const float *g, const float *x, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) {
        float v = x[i];
        v = v > 20.0f ? 20.0f : v; // the slope is 1 or 0 out there; infinity would give 0 * inf
        v = v < -20.0f ? -20.0f : v;
        const float half = 1.0f / (1.0f + exp_(-2.0f * SCALE * (v + CUBE * v * v * v)));
        dx[i] = g[i] * (half + v * half * (1.0f - half) * (2.0f * SCALE) * (1.0f + 3.0f * CUBE * v * v));
    }
}

RESILIN_SIMD void exact_forward(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) y[i] = x[i] * (0.5f * (1.0f + erf_(x[i] * SQRT_HALF)));
}

RESILIN_SIMD void exact_backward(const float *g, const float *x, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) {
        float v = x[i];
        v = v > 20.0f ? 20.0f : v;
        v = v < -20.0f ? -20.0f : v;
        dx[i] = g[i] * (0.5f * (1.0f + erf_(v * SQRT_HALF)) + v * INV_SQRT_2PI * exp_(-0.5f * v * v));
    }
}

nb::object forward(Array x, bool tanh) {
    if (!x.is<float>()) return nb::none();
    NewArray<float> y(x);
    {
        WithoutGil free(x.size());
        auto *span = tanh ? tanh_forward : exact_forward;
        parallel_rows(x.size(), 1, [&](int64_t begin, int64_t end) { span(x.data<float>(), begin, end, y.data); });
    }
    return y.object;
}

nb::object backward(Array g, Array x, bool tanh) {
    if (!g.is<float>() || !x.is<float>() || !g.same_shape(x)) return nb::none();
    NewArray<float> dx(x);
    {
        WithoutGil free(x.size());
        auto *span = tanh ? tanh_backward : exact_backward;
        parallel_rows(x.size(), 1, [&](int64_t begin, int64_t end) {
            span(g.data<float>(), x.data<float>(), begin, end, dx.data);
        });
    }
    return dx.object;
}

} // namespace

void bind_gelu(nb::module_ &m) {
    m.def("gelu_forward", &forward);
    m.def("gelu_backward", &backward);
}

} // namespace resilin
