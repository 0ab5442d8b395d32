// Activations of several steps in one pass: those with a logarithm or exponential, and those that shrink or cut.
#include "binding/kernels.hpp"
#include "elementwise/double_logarithms.hpp"
#include "kernels/simd.hpp"
#include "kernels/spans.hpp"

namespace resilin {
namespace {

// log(1 + e) for 0 <= e <= 1, of float32 corrected for the rounding of 1 + e
RESILIN_INLINE float log_of_one_and(float e) {
    const float one = 1.0f + e, rest = one - 1.0f;
    return rest == 0.0f ? e : log_(one) * e / rest;
}
RESILIN_INLINE double log_of_one_and(double e) { return log1p_(e, 0.0); }

// e^-|x|
RESILIN_INLINE float exp_of_size(float x) { return exp_low(-__builtin_fabsf(x)); }
RESILIN_INLINE double exp_of_size(double x) { return exp_(-__builtin_fabs(x)); }

// the logistic function of x, and 1 - that
RESILIN_INLINE float logistic_of(float x) { return logistic(x).value; }
RESILIN_INLINE double logistic_of(double x) { return logistic(x); }
RESILIN_INLINE float logistic_rest(float x) { return logistic(x).rest; }
RESILIN_INLINE double logistic_rest(double x) { return logistic(-x); }

template <class T> RESILIN_INLINE T softplus_of(T x, T beta, T threshold) {
    const T z = x * beta, found = ((z > 0 ? z : 0) + log_of_one_and(exp_of_size(z))) / beta;
    return z > threshold ? x : found;
}
RESILIN_FORWARD(softplus, 2, softplus_of(x, p, q))
RESILIN_BACKWARD(softplus_back, 2, g * (x * p > q ? 1 : logistic_of(x * p)))

RESILIN_FORWARD(log_sigmoid, 0, (x < 0 ? x : 0) - log_of_one_and(exp_of_size(x)))
RESILIN_BACKWARD(log_sigmoid_back, 0, g *logistic_rest(x))

// tanh(log(1 + e^x)), by n / (n + 2) with n = (1 + e^x)^2 - 1, and 1 - tanh^2
template <class T> struct Mish {
    T value, slope;
};
template <class T> RESILIN_INLINE Mish<T> tanh_of_softplus(T x) {
    const T e = exp_of_size(x), twice = 2 * e;
    const bool positive = x > 0;
    const T top = positive ? 1 + twice : e * (e + 2), missing = positive ? twice * e : 2;
    const T by = 1 / (top + missing), value = top * by;
    return {value, missing * by * (1 + value)};
}
RESILIN_FORWARD(mish, 0, x *tanh_of_softplus(x).value)
RESILIN_BACKWARD(mish_back, 0,
                 g *(tanh_of_softplus(x).value + x * logistic_of(x) * tanh_of_softplus(x).slope))

// log(v) of float32 within 2 ulp, for all v; of float64 doubles.hpp's
RESILIN_INLINE float log_of(float v) {
    const bool tiny = v < 1.1754944e-38f;
    const float found = log_(tiny ? v * 33554432.0f : v) - (tiny ? 17.328679514f : 0.0f); // 2^25
    const float positive = v < std::numeric_limits<float>::infinity() ? found : v; // infinity and NaN: themselves
    const float low = v == 0.0f ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    return v <= 0.0f ? low : positive;
}
RESILIN_INLINE double log_of(double v) { return log_(v); }

RESILIN_FORWARD(logit, 0, log_of(x / (1 - x)))
// infinite at 0 and 1, NaN outside of them; -0 counts as 0
RESILIN_BACKWARD(logit_back, 0,
                 (x < 0) | (x > 1) ? std::numeric_limits<decltype(x + x)>::quiet_NaN() : g / ((x + 0) * (1 - x)))

// sin(pi x) / (pi x): x off the nearest whole number, and the even series of that (on [0, 1/4], of the square)
RESILIN_INLINE float rounded(float x) { return __builtin_rintf(x); }
RESILIN_INLINE double rounded(double x) { return __builtin_rint(x); }
RESILIN_INLINE float slope_of(float z) {
    return polynomial(z, -0.0022371786f, 0.0261174376f, -0.190747895f, 0.811742195f, -1.64493406f, 1.0f);
}
RESILIN_INLINE double slope_of(double z) { return sine_slope(z); }
template <class T> RESILIN_INLINE T sinc_of(T x) {
    const T k = rounded(x), off = x - k, half = T(0.5) * k, sign = half == rounded(half) ? T(1) : T(-1);
    return x == 0 ? T(1) : sign * (off / x) * slope_of(off * off);
}
RESILIN_FORWARD(sinc, 0, sinc_of(x))

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

// with limits there are other formulas
nb::object logit_forward(ExactArray x, nb::object limit, ExactArray out) {
    return limit.is_none() ? forward_with(logit, x, out) : nb::none();
}
nb::object logit_backward(ExactArray g, ExactArray x, nb::object limit) {
    return limit.is_none() ? backward_with(logit_back, g, x) : nb::none();
}

} // namespace

void bind_activations(nb::module_ &m) {
    const auto out = [] { return nb::arg("out") = nb::none(); };
    m.def("softplus_forward", &forward_of_two<softplus>, nb::arg(), nb::arg(), nb::arg(), out());
    m.def("softplus_backward", &backward_of_two<softplus_back>);
    m.def("log_sigmoid_forward", &forward<log_sigmoid>, nb::arg(), out());
    m.def("log_sigmoid_backward", &backward<log_sigmoid_back>);
    m.def("mish_forward", &forward<mish>, nb::arg(), out());
    m.def("mish_backward", &backward<mish_back>);
    m.def("logit_forward", &logit_forward, nb::arg(), nb::arg().none(), out());
    m.def("logit_backward", &logit_backward, nb::arg(), nb::arg(), nb::arg().none());
    m.def("sinc_forward", &forward<sinc>, nb::arg(), out());
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
