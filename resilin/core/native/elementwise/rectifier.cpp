// Functions made of pieces: limits, lines, an exponential below 0, a parabola around it. NaN passes through.
#include "binding/kernels.hpp"
#include "elementwise/double_exponentials.hpp"
#include "kernels/simd.hpp"
#include "kernels/spans.hpp"

namespace resilin {
namespace {

template <class T> RESILIN_INLINE T limited(T x, T low, T high) {
    const T z = x < low ? low : x;
    return z > high ? high : z;
}
RESILIN_FORWARD(clip, 2, limited(x, p, q))
// the gradient passes from low to high, both included, and not at NaN
RESILIN_BACKWARD(clip_back, 2, (x >= p) & (x <= q) ? g : 0)
// the gradient passes between low and high, and at NaN
RESILIN_BACKWARD(between_back, 2, (x <= p) | (x >= q) ? 0 : g)

RESILIN_FORWARD(leaky, 1, x > 0 ? x : x * p)
RESILIN_BACKWARD(leaky_back, 1, x > 0 ? g : g * p)

RESILIN_FORWARD(hardswish, 0, x * (limited<decltype(x + x)>(x + 3, 0, 6) / 6))
RESILIN_BACKWARD(hardswish_back, 0, x <= -3 ? 0 : g * (x < 3 ? x / 3 + decltype(x + x)(0.5) : 1))

RESILIN_INLINE float expm1_below(float x) { return expm1_low(x); }
RESILIN_INLINE double expm1_below(double x) { return expm1_(x); }
RESILIN_INLINE float exp_below(float x) { return exp_low(x); }
RESILIN_INLINE double exp_below(double x) { return exp_(x); }

template <class T>
RESILIN_INLINE void elu_of(const T *x, int64_t begin, int64_t end, T *y, T alpha, T scale, T inner) {
    const T below = alpha * scale;
    _Pragma("omp simd") for (int64_t i = begin; i < end; i++) {
        const T low = expm1_below((x[i] > 0 ? 0 : x[i]) * inner) * below;
        y[i] = x[i] > 0 ? x[i] * scale : low;
    }
}
template <class T>
RESILIN_INLINE void elu_slope(const T *g, const T *x, int64_t begin, int64_t end, T *dx, T alpha, T scale, T inner) {
    const T below = alpha * scale * inner;
    _Pragma("omp simd") for (int64_t i = begin; i < end; i++) {
        const T low = exp_below((x[i] > 0 ? 0 : x[i]) * inner) * below;
        dx[i] = g[i] * (x[i] <= 0 ? low : scale);
    }
}
#define RESILIN_ELU(T)                                                                                                 \
    RESILIN_SIMD void elu_##T(const T *x, int64_t begin, int64_t end, T *y, T alpha, T scale, T inner) {               \
        elu_of(x, begin, end, y, alpha, scale, inner);                                                                 \
    }                                                                                                                  \
    RESILIN_SIMD void elu_back_##T(const T *g, const T *x, int64_t begin, int64_t end, T *dx, T alpha, T scale,        \
                                   T inner) {                                                                          \
        elu_slope(g, x, begin, end, dx, alpha, scale, inner);                                                          \
    }
RESILIN_ELU(float)
RESILIN_ELU(double)
constexpr Both elu{elu_float, elu_double};
constexpr Both elu_back{elu_back_float, elu_back_double};

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

nb::object clip_forward(ExactArray x, Number low, Number high) {
    return forward_with(clip, x, {}, low, high);
}
nb::object clip_backward(ExactArray g, ExactArray x, Number low, Number high) { return backward_with(clip_back, g, x, low, high); }
nb::object between_backward(ExactArray g, ExactArray x, Number low, Number high) {
    return backward_with(between_back, g, x, low, high);
}
nb::object leaky_forward(ExactArray x, Number slope, ExactArray out) { return forward_with(leaky, x, out, slope); }
nb::object leaky_backward(ExactArray g, ExactArray x, Number slope) { return backward_with(leaky_back, g, x, slope); }
nb::object hardswish_forward(ExactArray x, ExactArray out) { return forward_with(hardswish, x, out); }
nb::object hardswish_backward(ExactArray g, ExactArray x) { return backward_with(hardswish_back, g, x); }

// None for an exponential that could grow.
nb::object elu_forward(ExactArray x, Number alpha, Number scale, Number inner, ExactArray out) {
    return inner.value > 0.0f ? forward_with(elu, x, out, alpha, scale, inner) : nb::none();
}
nb::object elu_backward(ExactArray g, ExactArray x, Number alpha, Number scale, Number inner) {
    return inner.value > 0.0f ? backward_with(elu_back, g, x, alpha, scale, inner) : nb::none();
}

nb::object smooth_forward(ExactArray x, Number beta) { return forward_with(smooth_span, x, beta); }
nb::object smooth_backward(ExactArray g, ExactArray x, Number beta) { return backward_with(smooth_back, g, x, beta); }

} // namespace

void bind_rectifier(nb::module_ &m) {
    m.def("clip_forward", &clip_forward);
    m.def("clip_backward", &clip_backward);
    m.def("between_backward", &between_backward);
    m.def("leaky_forward", &leaky_forward, nb::arg(), nb::arg(), nb::arg("out") = nb::none());
    m.def("leaky_backward", &leaky_backward);
    m.def("hardswish_forward", &hardswish_forward, nb::arg(), nb::arg("out") = nb::none());
    m.def("hardswish_backward", &hardswish_backward);
    m.def("elu_forward", &elu_forward, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg("out") = nb::none());
    m.def("elu_backward", &elu_backward);
    m.def("smooth_forward", &smooth_forward);
    m.def("smooth_backward", &smooth_backward);
}

} // namespace resilin
