// GELU. tanh form: 0.5 (1 + tanh u) is the logistic function of 2u, which loses no digits for negative x.
#include "binding/kernels.hpp"
#include "elementwise/doubles.hpp"
#include "simd.hpp"
#include "spans.hpp"

#include <cmath>

namespace resilin {
namespace {

constexpr float SQRT_HALF = 0.70710678118654752f, INV_SQRT_2PI = 0.39894228040143268f;
constexpr float SCALE = 0.79788456080286536f, CUBE = 0.044715f; // sqrt(2 / pi) and the paper's constant

RESILIN_INLINE float doubled_argument(float v) { return 2.0f * SCALE * v * fma(CUBE, v * v, 1.0f); }

RESILIN_SIMD void tanh_forward(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) y[i] = x[i] * logistic(doubled_argument(x[i])).value;
}

// The slope is 1 or 0 beyond 20, where the formula's powers may overflow.
RESILIN_INLINE float clamp(float v) {
    v = v > 20.0f ? 20.0f : v;
    return v < -20.0f ? -20.0f : v;
}

// Where the formula itself gives infinity * 0 (x infinite; for tanh also x * x infinite), so do we: NaN, otherwise 0.
RESILIN_INLINE float not_a_number_if_infinite(float v) { return v - v; }

RESILIN_SIMD void tanh_backward(const float *g, const float *x, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) {
        const float v = clamp(x[i]);
        const Logistic s = logistic(doubled_argument(v));
        const float inner = 2.0f * SCALE * fma(3.0f * CUBE, v * v, 1.0f);
        dx[i] = g[i] * (fma(v * s.value * s.rest, inner, s.value) + not_a_number_if_infinite(x[i] * x[i]));
    }
}

RESILIN_SIMD void exact_forward(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) y[i] = x[i] * fma(0.5f, erf_(x[i] * SQRT_HALF), 0.5f);
}

// Phi(-|x|) = phi(x) P(1 / (1 + 0.2316419 |x|)) shares its exponential with the density phi; absolute error 7.5e-8
// (Abramowitz and Stegun, 26.2.17)
RESILIN_SIMD void exact_backward(const float *g, const float *x, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) {
        const float v = clamp(x[i]);
        const float density = INV_SQRT_2PI * exp_low(-0.5f * v * v);
        const float t = 1.0f / fma(0.2316419f, std::fabs(v), 1.0f);
        const float tail = density * t *
                           polynomial(t, 1.330274429f, -1.821255978f, 1.781477937f, -0.356563782f, 0.319381530f);
        dx[i] = g[i] * (fma(v, density, v > 0.0f ? 1.0f - tail : tail) + not_a_number_if_infinite(x[i]));
    }
}

// x Phi(x) by erfc, which loses no digits for negative x
RESILIN_SIMD void exact_wide(const double *x, int64_t begin, int64_t end, double *y) {
    for (int64_t i = begin; i < end; i++) y[i] = 0.5 * x[i] * erfc_<DOUBLE>(x[i] * -0.7071067811865476);
}
RESILIN_SIMD void tanh_wide(const double *x, int64_t begin, int64_t end, double *y) {
    for (int64_t i = begin; i < end; i++)
        y[i] = x[i] * logistic(1.5957691216057308 * x[i] * fma(0.044715, x[i] * x[i], 1.0));
}

// Phi(x) + x phi(x)
RESILIN_SIMD void exact_wide_back(const double *g, const double *x, int64_t begin, int64_t end, double *dx) {
    for (int64_t i = begin; i < end; i++) {
        const double v = x[i] > 40.0 ? 40.0 : x[i] < -40.0 ? -40.0 : x[i];
        const double density = 0.3989422804014327 * exp_of_square(v, -0.5);
        dx[i] = g[i] * (fma(v, density, 0.5 * erfc_<DOUBLE>(v * -0.7071067811865476)) + (x[i] - x[i]));
    }
}
// of s = the logistic function of 2 u: s + x s (1 - s) 2 u'; powers of what is beyond 40 overflow, where the slope is flat
RESILIN_SIMD void tanh_wide_back(const double *g, const double *x, int64_t begin, int64_t end, double *dx) {
    for (int64_t i = begin; i < end; i++) {
        const double v = x[i] > 40.0 ? 40.0 : x[i] < -40.0 ? -40.0 : x[i], twice = 1.5957691216057308;
        const double u = twice * v * fma(0.044715, v * v, 1.0);
        const double e = exp_(-__builtin_fabs(u)), r = 1.0 / (1.0 + e), s = u > 0.0 ? r : e * r;
        const double slope = fma(v * (e * r * r), twice * fma(0.134145, v * v, 1.0), s);
        const double square = x[i] * x[i];
        dx[i] = g[i] * (slope + (square - square)); // NaN where the formula's powers are infinite, as in float32
    }
}

nb::object forward(ExactArray x, bool tanh) {
    return forward_by(tanh ? tanh_forward : exact_forward, tanh ? tanh_wide : exact_wide, x);
}

nb::object backward(ExactArray g, ExactArray x, bool tanh) {
    return backward_by(tanh ? tanh_backward : exact_backward, tanh ? tanh_wide_back : exact_wide_back, g, x);
}

} // namespace

void bind_gelu(nb::module_ &m) {
    m.def("gelu_forward", &forward);
    m.def("gelu_backward", &backward);
}

} // namespace resilin
