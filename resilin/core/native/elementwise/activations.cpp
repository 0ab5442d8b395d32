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
    _Pragma("omp simd") for (int64_t i = begin; i < end; i++) {
        const float z = x[i] * beta, found = ((z > 0.0f ? z : 0.0f) + log_of_one_and(exp_low(-__builtin_fabsf(z)))) / beta;
        y[i] = z > threshold ? x[i] : found;
    }
}
RESILIN_SIMD void softplus_back_span(const float *g, const float *x, int64_t begin, int64_t end, float *dx, float beta,
                                float threshold) {
    for (int64_t i = begin; i < end; i++) {
        const float z = x[i] * beta;
        dx[i] = g[i] * (z > threshold ? 1.0f : logistic(z).value);
    }
}

RESILIN_SIMD void log_sigmoid_span(const float *x, int64_t begin, int64_t end, float *y) {
    _Pragma("omp simd") for (int64_t i = begin; i < end; i++)
        y[i] = (x[i] < 0.0f ? x[i] : 0.0f) - log_of_one_and(exp_low(-__builtin_fabsf(x[i])));
}
RESILIN_SIMD void log_sigmoid_back_span(const float *g, const float *x, int64_t begin, int64_t end, float *dx) {
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
    _Pragma("omp simd") for (int64_t i = begin; i < end; i++) y[i] = x[i] * tanh_of_softplus(x[i]).value;
}
RESILIN_SIMD void mish_back_span(const float *g, const float *x, int64_t begin, int64_t end, float *dx) {
    for (int64_t i = begin; i < end; i++) {
        const Mish m = tanh_of_softplus(x[i]);
        dx[i] = g[i] * (m.value + x[i] * logistic(x[i]).value * (m.rest * (1.0f + m.value)));
    }
}

RESILIN_FORWARD(softsign, 0, x / (1 + size_of(x)))
// NaN at infinity, as the function
RESILIN_BACKWARD(softsign_back, 0, g / ((1 + size_of(x)) * (1 + size_of(x))) + 0 * size_of(x))

template <class T> RESILIN_INLINE T within_six(T z) {
    const T positive = z < 0 ? 0 : z;
    return positive > 6 ? 6 : positive;
}
RESILIN_FORWARD(hardsigmoid, 0, within_six(x + 3) / 6)
RESILIN_BACKWARD(hardsigmoid_back, 0, (x > -3) & (x < 3) ? g / 6 : 0)

RESILIN_FORWARD(hardshrink, 1, size_of(x) <= p ? 0 : x)
RESILIN_FORWARD(softshrink, 1, x > p ? x - p : x < -p ? x + p : x * 0)
RESILIN_BACKWARD(shrink_back, 1, size_of(x) <= p ? 0 : g)

RESILIN_FORWARD(threshold, 2, x <= p ? q : x)
RESILIN_BACKWARD(threshold_back, 2, (void(q), x <= p) ? 0 : g)

template <const auto &span> nb::object forward(ExactArray x, ExactArray out) { return forward_with(span, x, out); }
template <const auto &span> nb::object backward(ExactArray g, ExactArray x) { return backward_with(span, g, x); }
template <const auto &span> nb::object forward_of_one(ExactArray x, Number p, ExactArray out) {
    return forward_with(span, x, out, p);
}
template <const auto &span> nb::object backward_of_one(ExactArray g, ExactArray x, Number p) {
    return backward_with(span, g, x, p);
}
template <const auto &span> nb::object forward_of_two(ExactArray x, Number p, Number q, ExactArray out) {
    return forward_with(span, x, out, p, q);
}
template <const auto &span> nb::object backward_of_two(ExactArray g, ExactArray x, Number p, Number q) {
    return backward_with(span, g, x, p, q);
}

constexpr Both softplus{softplus_span, NoWide{}};
constexpr Both softplus_back{softplus_back_span, NoWide{}};
constexpr Both log_sigmoid{log_sigmoid_span, NoWide{}};
constexpr Both log_sigmoid_back{log_sigmoid_back_span, NoWide{}};
constexpr Both mish{mish_span, NoWide{}};
constexpr Both mish_back{mish_back_span, NoWide{}};

} // namespace

void bind_activations(nb::module_ &m) {
    const auto out = [] { return nb::arg("out") = nb::none(); };
    m.def("softplus_forward", &forward_of_two<softplus>, nb::arg(), nb::arg(), nb::arg(), out());
    m.def("softplus_backward", &backward_of_two<softplus_back>);
    m.def("log_sigmoid_forward", &forward<log_sigmoid>, nb::arg(), out());
    m.def("log_sigmoid_backward", &backward<log_sigmoid_back>);
    m.def("mish_forward", &forward<mish>, nb::arg(), out());
    m.def("mish_backward", &backward<mish_back>);
    m.def("softsign_forward", &forward<softsign>, nb::arg(), out());
    m.def("softsign_backward", &backward<softsign_back>);
    m.def("hardsigmoid_forward", &forward<hardsigmoid>, nb::arg(), out());
    m.def("hardsigmoid_backward", &backward<hardsigmoid_back>);
    m.def("hardshrink_forward", &forward_of_one<hardshrink>, nb::arg(), nb::arg(), out());
    m.def("softshrink_forward", &forward_of_one<softshrink>, nb::arg(), nb::arg(), out());
    m.def("shrink_backward", &backward_of_one<shrink_back>);
    m.def("threshold_forward", &forward_of_two<threshold>, nb::arg(), nb::arg(), nb::arg(), out());
    m.def("threshold_backward", &backward_of_two<threshold_back>);
}

} // namespace resilin
