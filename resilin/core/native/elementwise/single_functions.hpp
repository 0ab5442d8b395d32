// Elementary functions for results of float32, in vectors: by way of float64, in which few terms suffice (doubles.hpp's
// SINGLE), so that a result is the nearest float32 but for some that lie next to the middle of two: within 0.51 ulp.
// Arguments are numbers of float32. Polynomials are Chebyshev interpolants on the intervals given.
#pragma once
#include "elementwise/double_logarithms.hpp"

namespace resilin::single {

constexpr double LN2 = 0.6931471805599453;

// log(1 + f) for 1 + f within [sqrt(1/2), sqrt(2)): with s = f / (2 + f), 2 s + s^3 P(s^2), in error by 4e-11 of it
RESILIN_INLINE double log_of_mantissa(double f) {
    const double s = f * inverse<SINGLE>(2.0 + f), z = s * s;
    const double p = polynomial(z, 0.2333291280436864, 0.2855073084477381, 0.4000012263369878, 0.6666666655352537);
    return s * fma(z, p, 2.0);
}

RESILIN_INLINE Normal parts_of(double x) { // of a positive number, which is a normal one of float64
    const int64_t e = exponent_of(x);
    return {bit_cast<double>(bit_cast<int64_t>(x) - (e << 52)), bit_cast<double>(e + WHOLE_BITS) - WHOLE};
}

RESILIN_INLINE double log_(double x) {
    const Normal p = parts_of(x);
    return log_edges(x, fma(p.power, LN2, log_of_mantissa(p.mantissa - 1.0)));
}
RESILIN_INLINE double log2_(double x) {
    const Normal p = parts_of(x);
    return log_edges(x, fma(log_of_mantissa(p.mantissa - 1.0), 1.4426950408889634, p.power));
}
RESILIN_INLINE double log10_(double x) {
    const Normal p = parts_of(x);
    return log_edges(x, fma(p.power, 0.30102999566398120, log_of_mantissa(p.mantissa - 1.0) * 0.4342944819032518));
}

// log(1 + x), also of an x that 1 + x does not show
RESILIN_INLINE double log1p_(double x) {
    const double u = 1.0 + x, lost = x - (u - 1.0);
    const Normal p = parts_of(u);
    const double f = p.mantissa - 1.0, near = p.power == 0.0 ? f + lost : f;
    return select(x == 0.0, x, log_edges(u, fma(p.power, LN2, log_of_mantissa(near))));
}

// e^x - 1: (e^r - 1 - r) / r^2 on [-ln2 / 2, ln2 / 2], in error by 5e-13
RESILIN_INLINE double expm1_(double x) {
    const double inside = x > 100.0 ? 100.0 : x < -50.0 ? -50.0 : x; // NaN stays
    const double t = fma(inside, 1.4426950408889634074, WHOLE), k = t - WHOLE;
    const double r = fma(k, -LN2_LOW, fma(k, -LN2_HIGH, inside));
    const double p = polynomial(r, 2.7617564785876086e-06, 2.4867870179687727e-05, 0.00019841224599656011,
                                0.0013888839110572009, 0.00833333334420298, 0.04166666678626573, 0.16666666666662586,
                                0.4999999999995511);
    const double scale = bit_cast<double>((bit_cast<int64_t>(t) - WHOLE_BITS + 1023) << 52);
    return select(x == 0.0, x, fma(scale, fma(p, r * r, r), scale - 1.0));
}

// with q = e^|x| - 1
RESILIN_INLINE double sinh_(double x) {
    const double q = expm1_(__builtin_fabs(x));
    return __builtin_copysign(0.5 * fma(q, inverse<SINGLE>(q + 1.0), q), x);
}
RESILIN_INLINE double cosh_(double x) {
    const double size = __builtin_fabs(x), e = exp_<SINGLE>(size > 100.0 ? 100.0 : size);
    return 0.5 * (e + inverse<SINGLE>(e));
}

RESILIN_INLINE double asinh_(double x) {
    const double a = __builtin_fabs(x), square = a * a, root = __builtin_sqrt(1.0 + square);
    const double found = log1p_(a + square / (1.0 + root));
    return __builtin_copysign(select(a < INFINITE, found, a), x);
}
RESILIN_INLINE double acosh_(double x) {
    const double t = x - 1.0, found = log1p_(t + __builtin_sqrt(t * (t + 2.0)));
    return select(x < 1.0, UNDEFINED, found);
}
RESILIN_INLINE double atanh_(double x) {
    const double a = __builtin_fabs(x), found = 0.5 * log1p_(2.0 * a / (1.0 - a));
    return __builtin_copysign(select(a < 1.0, found, a == 1.0 ? INFINITE : UNDEFINED), x);
}

// log(e^a + e^b)
RESILIN_INLINE double logaddexp_(double a, double b) {
    const double apart = __builtin_fabs(a - b), found = log1p_(exp_<SINGLE>(apart > 200.0 ? -200.0 : -apart));
    return select(a == b, a + LN2, (a > b ? a : b) + found); // NaN: `found` is
}

constexpr double QUARTER = 1.5707963267948966; // of a turn

// asin(t) / t on [0, 1/2], of z = t^2: in error by 2e-11
RESILIN_INLINE double arcsine_slope(double z) {
    return fma(z,
               polynomial(z, 0.02930523970533579, 0.0054431851027481075, 0.019306260869368045, 0.022132443623426794,
                          0.030397634130580702, 0.044642358484883196, 0.07500000598829049, 0.16666666665495086),
               1.0);
}
// From 1/2 on by the arcsine of sqrt((1 - |x|) / 2), half the angle beside a quarter
RESILIN_INLINE double asin_(double x) {
    const double a = __builtin_fabs(x);
    const bool far = a > 0.5;
    const double z = far ? 0.5 - 0.5 * a : a * a, t = far ? __builtin_sqrt(z) : a, angle = t * arcsine_slope(z);
    return __builtin_copysign(far ? QUARTER - 2.0 * angle : angle, x);
}
RESILIN_INLINE double acos_(double x) {
    const double a = __builtin_fabs(x);
    const bool far = a > 0.5;
    const double z = far ? 0.5 - 0.5 * a : x * x, t = far ? __builtin_sqrt(z) : x, angle = t * arcsine_slope(z);
    const double beside = x < 0.0 ? 2.0 * QUARTER - 2.0 * angle : 2.0 * angle;
    return far ? beside : QUARTER - angle;
}

// The angle whose tangent is small / large, for 0 <= small <= large: (atan(t) / t - 1) / t^2 on [0, 1], in error by 7e-11
RESILIN_INLINE double angle_of(double small, double large) {
    const double t = small / large, z = t * t;
    const double p = polynomial(z, 0.0005930437556365282, -0.0042216579909296476, 0.014072923344697239,
                                -0.02991311194551696, 0.047294798621813336, -0.06246315194128317, 0.0758665283364667,
                                -0.09073553118976409, 0.11109392308322223, -0.14285624891483525, 0.19999998154086215,
                                -0.3333333332694414);
    return fma(t * z, p, t);
}
RESILIN_INLINE double atan_(double x) {
    const double a = __builtin_fabs(x);
    const bool above = a > 1.0;
    const double found = angle_of(above ? 1.0 : a, above ? a : 1.0);
    return __builtin_copysign(above ? QUARTER - found : found, x);
}
RESILIN_INLINE double atan2_(double y, double x) {
    const double a = __builtin_fabs(x), b = __builtin_fabs(y);
    const bool above = b > a, mirrored = bit_cast<int64_t>(x) < 0;
    const double most = above ? b : a, least = above ? a : b;
    const double large = (most == 0.0) | (most == INFINITE) ? 1.0 : most;
    const double small = most == INFINITE ? (least == INFINITE ? 1.0 : 0.0) : least;
    const double found = angle_of(small, large), upright = above ? QUARTER - found : found;
    const double whole = __builtin_copysign(mirrored ? 2.0 * QUARTER - upright : upright, y);
    return select((x == x) & (y == y), whole, x + y);
}

// The tangent for |x| < 1e6: of what is left beside the nearest quarter of a turn, sine by cosine; in error by 1e-11
RESILIN_INLINE double tan_(double x) {
    const double t = fma(x, 0.6366197723675814, WHOLE), k = t - WHOLE;
    const double r = fma(k, -6.077100506506192e-11, fma(k, -1.5707963267341256, x)), z = r * r;
    const double sine = r * fma(z,
                                polynomial(z, 2.724992580305979e-06, -0.00019840086735384846, 0.008333331874710208,
                                           -0.1666666666385529),
                                1.0);
    const double cosine = fma(z,
                              polynomial(z, -2.7237140418016e-07, 2.4799862190148396e-05, -0.00138888850913992,
                                         0.04166666663739607, -0.4999999999996389),
                              1.0);
    const bool odd = bit_cast<int64_t>(t) & 1;
    return (odd ? -cosine : sine) / (odd ? sine : cosine);
}

// x^y for finite x > 0 and y
RESILIN_INLINE double pow_plain(double x, double y) {
    const double product = log_normal<SINGLE>(x) * y;
    return exp_<SINGLE>(product > 200.0 ? 200.0 : product < -200.0 ? -200.0 : product);
}
RESILIN_INLINE double pow_(double x, double y) {
    const double a = __builtin_fabs(x);
    return whole_power(x, y, pow_plain((a > 0.0) & (a < INFINITE) ? a : 1.0, y));
}

} // namespace resilin::single

// Logarithms in float32 alone, for results of 16 bits: of all of these floats they give what those above, rounded, give.
namespace resilin::narrow {

constexpr float INFINITE = std::numeric_limits<float>::infinity();
constexpr float UNDEFINED = std::numeric_limits<float>::quiet_NaN();

struct Parts {
    float mantissa, power; // within [sqrt(1/2), sqrt(2)), and what 2 is raised to
};
RESILIN_INLINE Parts parts_of(float x) { // of a positive number
    const bool tiny = x < std::numeric_limits<float>::min();
    const float y = tiny ? x * 4294967296.0f : x; // 2^32
    const int32_t e = (bit_cast<int32_t>(y) - 0x3F3504F3) >> 23;
    return {bit_cast<float>(bit_cast<int32_t>(y) - (e << 23)), static_cast<float>(e) - (tiny ? 32.0f : 0.0f)};
}

// log(1 + f) - f for 1 + f within [sqrt(1/2), sqrt(2)) (coefficients: Cephes, logf)
RESILIN_INLINE float log_rest(float f) {
    const float p = polynomial(f, 7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f,
                               1.4249322787e-1f, -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f,
                               3.3333331174e-1f);
    return f * f * fma(p, f, -0.5f);
}
RESILIN_INLINE float log_edges(float x, float found) {
    const float positive = x < INFINITE ? found : x; // infinity and NaN: themselves
    return x < 0.0f ? UNDEFINED : x == 0.0f ? -INFINITE : positive;
}

RESILIN_INLINE float log_sum(float f, float power) { // log((1 + f) 2^power)
    return fma(power, 0.693359375f, f + fma(power, -2.12194440e-4f, log_rest(f)));
}
RESILIN_INLINE float log_(float x) {
    const Parts p = parts_of(x);
    return log_edges(x, log_sum(p.mantissa - 1.0f, p.power));
}
RESILIN_INLINE float log2_(float x) {
    const Parts p = parts_of(x);
    const float f = p.mantissa - 1.0f, small = fma(log_rest(f), 1.44269504f, f * 1.92596299e-8f);
    return log_edges(x, p.power + fma(f, 1.44269504f, small));
}
RESILIN_INLINE float log10_(float x) {
    const Parts p = parts_of(x);
    const float f = p.mantissa - 1.0f, small = fma(p.power, 4.60503898e-6f, f * -1.01030881e-8f);
    const float fraction = fma(f, 0.434294482f, fma(log_rest(f), 0.434294482f, small));
    return log_edges(x, fma(p.power, 0.301025391f, fraction));
}
RESILIN_INLINE float log1p_(float x) {
    const float u = 1.0f + x, lost = x - (u - 1.0f);
    const Parts p = parts_of(u);
    const float f = p.mantissa - 1.0f, found = log_sum(p.power == 0.0f ? f + lost : f, p.power);
    return x == 0.0f ? x : log_edges(u, found);
}
RESILIN_INLINE float atanh_(float x) {
    const float a = __builtin_fabsf(x), found = 0.5f * log1p_(2.0f * a / (1.0f - a));
    return __builtin_copysignf(a < 1.0f ? found : a == 1.0f ? INFINITE : UNDEFINED, x);
}

} // namespace resilin::narrow
