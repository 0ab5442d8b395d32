// Activations of several steps in one pass: those with a logarithm or exponential, and those that shrink or cut.
#include "binding/kernels.hpp"
#include "kernels/simd.hpp"
#include "kernels/spans.hpp"

namespace resilin {
namespace {

// log(1 + e) for 0 <= e <= 1, corrected for the rounding of 1 + e
RESILIN_INLINE float log_of_one_and(float e) {
    const float one = 1.0f + e, rest = one - 1.0f;
    return rest == 0.0f ? e : log_(one) * e / rest;
}

RESILIN_SIMD void softplus_span(const float *x, int64_t begin, int64_t end, float *y, float beta, float threshold) {
    for (int64_t i = begin; i < end; i++) {
        const float z = x[i] * beta, found = ((z > 0.0f ? z : 0.0f) + log_of_one_and(exp_low(-__builtin_fabsf(z)))) / beta;
        y[i] = z > threshold ? x[i] : found;
    }
}
RESILIN_SIMD void softplus_back(const float *g, const float *x, int64_t begin, int64_t end, float *dx, float beta,
                                float threshold) {
    for (int64_t i = begin; i < end; i++) {
        const float z = x[i] * beta;
        dx[i] = g[i] * (z > threshold ? 1.0f : logistic(z).value);
    }
}

RESILIN_SIMD void log_sigmoid_span(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++)
        y[i] = (x[i] < 0.0f ? x[i] : 0.0f) - log_of_one_and(exp_low(-__builtin_fabsf(x[i])));
}
RESILIN_SIMD void log_sigmoid_back(const float *g, const float *x, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) dx[i] = g[i] * logistic(x[i]).rest;
}

// tanh(log(1 + e^x)) and what it lacks of 1, by n / (n + 2) with n = (1 + e^x)^2 - 1
struct Mish {
    float value, rest;
};
RESILIN_INLINE Mish tanh_of_softplus(float x) {
    const float e = exp_low(-__builtin_fabsf(x)), twice = 2.0f * e;
    const bool positive = x > 0.0f;
    const float top = positive ? 1.0f + twice : e * (e + 2.0f), missing = positive ? twice * e : 2.0f;
    const float by = 1.0f / (top + missing);
    return {top * by, missing * by};
}
RESILIN_SIMD void mish_span(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) y[i] = x[i] * tanh_of_softplus(x[i]).value;
}
RESILIN_SIMD void mish_back(const float *g, const float *x, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) {
        const Mish m = tanh_of_softplus(x[i]);
        dx[i] = g[i] * (m.value + x[i] * logistic(x[i]).value * (m.rest * (1.0f + m.value)));
    }
}

RESILIN_SIMD void softsign_span(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) y[i] = x[i] / (1.0f + __builtin_fabsf(x[i]));
}
RESILIN_SIMD void softsign_back(const float *g, const float *x, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) {
        const float size = __builtin_fabsf(x[i]), whole = 1.0f + size;
        dx[i] = g[i] / (whole * whole) + 0.0f * size; // NaN at infinity, as the function
    }
}

RESILIN_SIMD void hardsigmoid_span(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) {
        float z = x[i] + 3.0f;
        z = z < 0.0f ? 0.0f : z;
        y[i] = (z > 6.0f ? 6.0f : z) / 6.0f;
    }
}
RESILIN_SIMD void hardsigmoid_back(const float *g, const float *x, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) dx[i] = (x[i] > -3.0f) & (x[i] < 3.0f) ? g[i] / 6.0f : 0.0f;
}

RESILIN_SIMD void hardshrink_span(const float *x, int64_t begin, int64_t end, float *y, float limit) {
    for (int64_t i = begin; i < end; i++) y[i] = __builtin_fabsf(x[i]) <= limit ? 0.0f : x[i];
}
RESILIN_SIMD void softshrink_span(const float *x, int64_t begin, int64_t end, float *y, float limit) {
    for (int64_t i = begin; i < end; i++) {
        const float inside = x[i] < -limit ? x[i] + limit : x[i] * 0.0f;
        y[i] = x[i] > limit ? x[i] - limit : inside;
    }
}
RESILIN_SIMD void shrink_back(const float *g, const float *x, int64_t begin, int64_t end, float *dx, float limit) {
    for (int64_t i = begin; i < end; i++) dx[i] = __builtin_fabsf(x[i]) <= limit ? 0.0f : g[i];
}

RESILIN_SIMD void threshold_span(const float *x, int64_t begin, int64_t end, float *y, float limit, float value) {
    for (int64_t i = begin; i < end; i++) y[i] = x[i] <= limit ? value : x[i];
}
RESILIN_SIMD void threshold_back(const float *g, const float *x, int64_t begin, int64_t end, float *dx, float limit, float) {
    for (int64_t i = begin; i < end; i++) dx[i] = x[i] <= limit ? 0.0f : g[i];
}

template <auto span> nb::object forward(Array x) { return forward_by(span, x); }
template <auto span> nb::object backward(Array g, Array x) { return backward_by(span, g, x); }
template <auto span> nb::object forward_of_one(Array x, Number p) { return forward_with(span, x, p); }
template <auto span> nb::object backward_of_one(Array g, Array x, Number p) { return backward_with(span, g, x, p); }
template <auto span> nb::object forward_of_two(Array x, Number p, Number q) { return forward_with(span, x, p, q); }
template <auto span> nb::object backward_of_two(Array g, Array x, Number p, Number q) {
    return backward_with(span, g, x, p, q);
}

} // namespace

void bind_activations(nb::module_ &m) {
    m.def("softplus_forward", &forward_of_two<softplus_span>);
    m.def("softplus_backward", &backward_of_two<softplus_back>);
    m.def("log_sigmoid_forward", &forward<log_sigmoid_span>);
    m.def("log_sigmoid_backward", &backward<log_sigmoid_back>);
    m.def("mish_forward", &forward<mish_span>);
    m.def("mish_backward", &backward<mish_back>);
    m.def("softsign_forward", &forward<softsign_span>);
    m.def("softsign_backward", &backward<softsign_back>);
    m.def("hardsigmoid_forward", &forward<hardsigmoid_span>);
    m.def("hardsigmoid_backward", &backward<hardsigmoid_back>);
    m.def("hardshrink_forward", &forward_of_one<hardshrink_span>);
    m.def("softshrink_forward", &forward_of_one<softshrink_span>);
    m.def("shrink_backward", &backward_of_one<shrink_back>);
    m.def("threshold_forward", &forward_of_two<threshold_span>);
    m.def("threshold_backward", &backward_of_two<threshold_back>);
}

} // namespace resilin
