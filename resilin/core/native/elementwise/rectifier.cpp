// Functions made of pieces: limits, lines, an exponential below 0, a parabola around it. NaN passes through.
#include "binding/kernels.hpp"
#include "kernels/simd.hpp"
#include "kernels/spans.hpp"

namespace resilin {
namespace {

RESILIN_SIMD void clip_span(const float *x, int64_t begin, int64_t end, float *y, float low, float high) {
    for (int64_t i = begin; i < end; i++) {
        const float z = x[i] < low ? low : x[i];
        y[i] = z > high ? high : z;
    }
}
// the gradient passes from low to high, both included, and not at NaN
RESILIN_SIMD void clip_back(const float *g, const float *x, int64_t begin, int64_t end, float *dx, float low, float high) {
    for (int64_t i = begin; i < end; i++) dx[i] = (x[i] >= low) & (x[i] <= high) ? g[i] : 0.0f;
}
// the gradient passes between low and high, and at NaN
RESILIN_SIMD void between_back(const float *g, const float *x, int64_t begin, int64_t end, float *dx, float low, float high) {
    for (int64_t i = begin; i < end; i++) dx[i] = (x[i] <= low) | (x[i] >= high) ? 0.0f : g[i];
}

RESILIN_SIMD void leaky_span(const float *x, int64_t begin, int64_t end, float *y, float slope) {
    for (int64_t i = begin; i < end; i++) y[i] = x[i] > 0.0f ? x[i] : x[i] * slope;
}
RESILIN_SIMD void leaky_back(const float *g, const float *x, int64_t begin, int64_t end, float *dx, float slope) {
    for (int64_t i = begin; i < end; i++) dx[i] = x[i] > 0.0f ? g[i] : g[i] * slope;
}

RESILIN_SIMD void hardswish_span(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) {
        float z = x[i] + 3.0f;
        z = z < 0.0f ? 0.0f : z;
        y[i] = x[i] * ((z > 6.0f ? 6.0f : z) / 6.0f);
    }
}
RESILIN_SIMD void hardswish_back(const float *g, const float *x, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) {
        const float slope = x[i] < 3.0f ? x[i] / 3.0f + 0.5f : 1.0f;
        dx[i] = x[i] <= -3.0f ? 0.0f : g[i] * slope;
    }
}

RESILIN_SIMD void elu_span(const float *x, int64_t begin, int64_t end, float *y, float alpha, float scale, float inner) {
    const float below = alpha * scale;
    for (int64_t i = begin; i < end; i++) {
        const float low = expm1_low((x[i] > 0.0f ? 0.0f : x[i]) * inner) * below;
        y[i] = x[i] > 0.0f ? x[i] * scale : low;
    }
}
RESILIN_SIMD void elu_back(const float *g, const float *x, int64_t begin, int64_t end, float *dx, float alpha,
                           float scale, float inner) {
    const float below = alpha * scale * inner;
    for (int64_t i = begin; i < end; i++) {
        const float low = exp_low((x[i] > 0.0f ? 0.0f : x[i]) * inner) * below;
        dx[i] = g[i] * (x[i] <= 0.0f ? low : scale);
    }
}

RESILIN_SIMD void smooth_span(const float *x, int64_t begin, int64_t end, float *y, float beta) {
    const float half = 0.5f / beta;
    for (int64_t i = begin; i < end; i++) {
        const float size = __builtin_fabsf(x[i]), small = size > beta ? beta : size;
        y[i] = small * small * half + (size - small);
    }
}
RESILIN_SIMD void smooth_back(const float *g, const float *x, int64_t begin, int64_t end, float *dx, float beta) {
    for (int64_t i = begin; i < end; i++) {
        const float z = x[i] < -beta ? -beta : x[i];
        dx[i] = g[i] * ((z > beta ? beta : z) / beta);
    }
}

nb::object clip_forward(Array x, Number low, Number high) { return forward_with(clip_span, x, low, high); }
nb::object clip_backward(Array g, Array x, Number low, Number high) { return backward_with(clip_back, g, x, low, high); }
nb::object between_backward(Array g, Array x, Number low, Number high) {
    return backward_with(between_back, g, x, low, high);
}
nb::object leaky_forward(Array x, Number slope) { return forward_with(leaky_span, x, slope); }
nb::object leaky_backward(Array g, Array x, Number slope) { return backward_with(leaky_back, g, x, slope); }
nb::object hardswish_forward(Array x) { return forward_by(hardswish_span, x); }
nb::object hardswish_backward(Array g, Array x) { return backward_by(hardswish_back, g, x); }

// None for an exponential that could grow.
nb::object elu_forward(Array x, Number alpha, Number scale, Number inner) {
    return inner.value > 0.0f ? forward_with(elu_span, x, alpha, scale, inner) : nb::none();
}
nb::object elu_backward(Array g, Array x, Number alpha, Number scale, Number inner) {
    return inner.value > 0.0f ? backward_with(elu_back, g, x, alpha, scale, inner) : nb::none();
}

nb::object smooth_forward(Array x, Number beta) { return forward_with(smooth_span, x, beta); }
nb::object smooth_backward(Array g, Array x, Number beta) { return backward_with(smooth_back, g, x, beta); }

} // namespace

void bind_rectifier(nb::module_ &m) {
    m.def("clip_forward", &clip_forward);
    m.def("clip_backward", &clip_backward);
    m.def("between_backward", &between_backward);
    m.def("leaky_forward", &leaky_forward);
    m.def("leaky_backward", &leaky_backward);
    m.def("hardswish_forward", &hardswish_forward);
    m.def("hardswish_backward", &hardswish_backward);
    m.def("elu_forward", &elu_forward);
    m.def("elu_backward", &elu_backward);
    m.def("smooth_forward", &smooth_forward);
    m.def("smooth_backward", &smooth_backward);
}

} // namespace resilin
