// The error functions and the normal distribution's, of float32 and float64, both computed in float64 (doubles.hpp).
#include "binding/kernels.hpp"
#include "kernels/double_spans.hpp"

namespace resilin {
namespace {

constexpr double ROOT_HALF = 0.7071067811865476, ROOT_PI = 1.7724538509055159;
constexpr double ENDLESS = std::numeric_limits<double>::infinity();
constexpr double ROOT_FIVE = 2.23606797749979, SINGLE_SPAN = 4.0 - ROOT_FIVE, DOUBLE_SPAN = 6.1 - ROOT_FIVE;
constexpr double BELOW_ONE = 0.99999999999999988898; // 1 - 2^-53

// The normal distribution function: half of erfc(-x / sqrt(2)), whose square is taken of x itself.
template <Digits digits> RESILIN_INLINE double ndtr_of(double x) {
    if constexpr (digits == SINGLE) return 0.5 * erfc_<SINGLE>(x * -ROOT_HALF);
    const double size = __builtin_fabs(x), v = size > 38.6 ? 38.6 : size, a = v * ROOT_HALF;
    const double far = 0.5 * scaled_tail<DOUBLE>(a) * exp_of_square(v, -0.5);
    const double inner = a < 0.5 ? x * ROOT_HALF : 0.0, near = 0.5 + 0.5 * fma(inner, erf_slope(inner * inner), inner);
    return select(a < 0.5, near, x < 0.0 ? far : 1.0 - far);
}

// Its logarithm: left of -1 without the exponential, and right of 0 as log(1 - ndtr(-x)) with what 1 rounds away. The
// tail's argument ends where its logarithm is less than half an ulp of the square, before rounding errors are all it has.
template <Digits digits> RESILIN_INLINE double log_ndtr_of(double x) {
    const double size = __builtin_fabs(x), v = size > 1e200 ? 1e200 : size, half = 0.5 * v * v;
    const double near_v = v > 1e10 ? 1e10 : v, tail = 0.5 * scaled_tail<digits>(near_v * ROOT_HALF);
    const double small = ndtr_of<digits>(-v), rest = 1.0 - small;
    const double found = log_(x < -1.0 ? tail : x < 0.0 ? small : rest);
    const double near = select(x < 0.0, found, found - (small - (1.0 - rest)) / rest);
    return select(x < -1.0, found - half, near);
}

// The logarithm of a positive normal number within 1e-8, by a division of float32
RESILIN_INLINE double short_log(double x) {
    const int64_t e = exponent_of(x);
    const double f = bit_cast<double>(bit_cast<int64_t>(x) - (e << 52)) - 1.0, half = 0.5 * f * f;
    const double s = f * static_cast<double>(1.0f / static_cast<float>(2.0 + f)), z = s * s;
    const double series = z * polynomial(z, 0.2333096405177204, 0.2855080255327671, 0.4000012200081688, 0.6666666655430018);
    return fma(bit_cast<double>(e + WHOLE_BITS) - WHOLE, 0.6931471805599453, f - half + s * (half + series));
}

// erfinv(x) / x for w = -log(1 - x * x) >= 5, of its root
template <Digits digits> RESILIN_INLINE double far_slope(double w) {
    if constexpr (digits == SINGLE) { // a root of float32, and a step of Newton's
        const float first = __builtin_sqrtf(static_cast<float>(w)), half = 0.5f / first;
        const double root = fma(fma(-static_cast<double>(first), first, w), half, first);
        return polynomial(fma(root, 2.0 / SINGLE_SPAN, -(4.0 + ROOT_FIVE) / SINGLE_SPAN), -9.294078592276114e-06,
                          4.107095459538949e-05, -4.346131068488864e-05, -0.00012858813452912738, 0.0006041117940890967,
                          -0.0013758006962071967, 0.0023489784340922164, -0.003709618948265188, 0.005569363392807631,
                          0.8851584581799093, 2.951328578343118);
    } else {
        const double root = __builtin_sqrt(w);
        return polynomial(fma(root, 2.0 / DOUBLE_SPAN, -(6.1 + ROOT_FIVE) / DOUBLE_SPAN), -0.000985160060659895,
                          0.001152656894825841, 0.0024424814828858323, -0.004215808589636679, 0.0012155040655989521,
                          -5.5099396951906074e-05, 0.0016263218215724884, -0.0024771465974720414, 0.0033449875991249153,
                          -0.004868206942306372, 0.0032520017434319723, 1.95099159139934, 4.009444665977673);
    }
}

// erfinv(x) / x by w = -log(1 - x * x): a polynomial of w to 5, beyond it (where `far`) of its root, in error by 5e-9; in DOUBLE a start
// in error by 5e-8 over all of float64, from which Halley's method takes one step, which makes three times the digits.
template <Digits digits, bool far> RESILIN_INLINE double erfinv_of(double x) {
    const double size = __builtin_fabs(x), inside = size > BELOW_ONE ? BELOW_ONE : size;
    const double beside = (1.0 - inside) * (1.0 + inside);
    const double w = digits == SINGLE ? -short_log(beside) : -log_normal<DOUBLE>(beside), near_w = w > 5.0 ? 5.0 : w;
    const double near = polynomial(fma(near_w, 0.4, -1.0), 4.455502041853586e-06, -3.333668023235368e-05,
                                   2.4390115560760592e-05, 0.0002840682437147928, -0.0008357945005424916,
                                   -0.00048434490177890003, 0.00852569234233724, -0.01957419535690098,
                                   -0.02610825025337576, 0.6166007235686378, 1.501409351110792);
    const double slope = far ? select(w > 5.0, far_slope<digits>(w > 5.0 ? w : 5.0), near) : near;
    double y = inside * slope;
    if constexpr (digits == DOUBLE) { // what erf(y) or, in the tail, erfc(y) is off, over erf's slope
        const double grown = 0.5 * ROOT_PI * exp_of_square(y, 1.0);
        const double low = fma(y, erf_slope(y * y), y) - inside;
        const double high = (1.0 - inside) - scaled_tail<DOUBLE>(y) * (0.5 * ROOT_PI) / grown;
        const double move = grown * select(y < 0.5, low, high);
        y -= move / fma(y, move, 1.0);
    }
    const double edge = (size >= 1.0 ? ENDLESS : 0.0) + (size > 1.0 ? std::numeric_limits<double>::quiet_NaN() : 0.0);
    return __builtin_copysign(y + edge, x);
}

RESILIN_SPANS(erfc_span, erfc_)
RESILIN_SPANS(ndtr_span, ndtr_of)

// Blocks without a number that is far out go without the terms of those, whose bits are the same.
constexpr int64_t ERFINV_BLOCK = 32;
constexpr double ALL_NEAR = 0.9966; // w < 5
template <Digits digits, class T> RESILIN_INLINE void erfinv_blocks(const T *X, int64_t begin, int64_t end, T *y) {
    for (int64_t first = begin; first < end; first += ERFINV_BLOCK) {
        const int64_t last = first + ERFINV_BLOCK < end ? first + ERFINV_BLOCK : end;
        T most = 0;
        _Pragma("omp simd reduction(max : most)") for (int64_t i = first; i < last; i++) {
            const T size = size_of(X[i]);
            most = size > most ? size : most;
        }
        if (static_cast<double>(most) < ALL_NEAR) {
            _Pragma("omp simd") for (int64_t i = first; i < last; i++)
                y[i] = static_cast<T>(erfinv_of<digits, false>(static_cast<double>(X[i])));
        } else {
            _Pragma("omp simd") for (int64_t i = first; i < last; i++)
                y[i] = static_cast<T>(erfinv_of<digits, true>(static_cast<double>(X[i])));
        }
    }
}
RESILIN_SIMD void erfinv_span_float(const float *x, int64_t begin, int64_t end, float *y) {
    erfinv_blocks<SINGLE>(x, begin, end, y);
}
RESILIN_SIMD void erfinv_span_double(const double *x, int64_t begin, int64_t end, double *y) {
    erfinv_blocks<DOUBLE>(x, begin, end, y);
}
constexpr Both erfinv_span{erfinv_span_float, erfinv_span_double};

RESILIN_SPANS(log_ndtr_span, log_ndtr_of)

} // namespace

void erfinv_doubles(const double *x, int64_t n, double *y) { erfinv_span_double(x, 0, n, y); }

void bind_error_functions(nb::module_ &m) {
    m.def("special_erfc", &spanned<erfc_span>);
    m.def("special_erfinv", &spanned<erfinv_span>);
    m.def("special_ndtr", &spanned<ndtr_span>);
    m.def("special_log_ndtr", &spanned<log_ndtr_span>);
}

} // namespace resilin
