// Exponentials of float64 and what is made of them, in vectors as doubles.hpp's: within 0.9 ulp, for all numbers. A result
// that is combined further is kept as an unevaluated sum of two numbers.
#pragma once
#include "elementwise/doubles.hpp"

namespace resilin {

struct Sum {
    double high, low; // low: within half an ulp of high, about
};

// e^x or, `less` one, times 2^-down, for -100 < x and results that do not overflow. ln 2 is taken off in two parts, whose
// rounding error is kept. (e^r - 1 - r) / r^2 on [-ln2 / 2, ln2 / 2]: in error by 3e-18.
template <bool less, int down> RESILIN_INLINE Sum exp_sum(double x) {
    constexpr double unit = 1.0 / (1 << down);
    const double t = fma(x, 1.4426950408889634074, WHOLE), k = t - WHOLE;
    const double first = fma(k, -LN2_HIGH, x), second = k * LN2_LOW, r = first - second, off = (first - r) - second;
    const double p = polynomial(r, 2.0914680780540263e-09, 2.5105208339987698e-08, 2.7557273657975953e-07,
                                2.7557255421023506e-06, 2.4801587325536023e-05, 0.00019841269874804214,
                                0.0013888888888883752, 0.00833333333332614, 0.04166666666666667, 0.1666666666666667, 0.5);
    const double small = fma(r * r, p, fma(off, r, off));
    const double scale = bit_cast<double>((bit_cast<int64_t>(t) - WHOLE_BITS + 1023 - down) << 52);
    const double large = less ? scale - unit : scale, rest = less ? (scale - large) - unit : 0.0;
    const double line = scale * r, sum = large + line, lost = (large - sum) + line;
    const double low = lost + fma(scale, small, rest), high = sum + low;
    return {high, (sum - high) + low};
}

RESILIN_INLINE double expm1_(double x) {
    const double inside = x > 709.782712893384 ? 709.782712893384 : x < -50.0 ? -50.0 : x;
    const Sum q = exp_sum<true, 1>(inside);
    const double found = select(x > 709.782712893384, std::numeric_limits<double>::infinity(), 2.0 * q.high);
    return select(__builtin_fabs(x) < 1e-17, x, found); // halves of subnormal numbers, -0
}

// 2^x: (2^f - 1) / f on [-1/2, 1/2], in error by 3e-17
RESILIN_INLINE double exp2_(double x) {
    x = x > 1025.0 ? 1025.0 : x < -1077.0 ? -1077.0 : x; // NaN stays
    const double t = x + WHOLE, f = x - (t - WHOLE);
    const double p = fma(f,
                         polynomial(f, 2.5729324177362305e-11, 4.4558179083360645e-10, 7.0548973041554995e-09,
                                    1.0178057087733941e-07, 1.3215486808705563e-06, 1.5252733841556773e-05,
                                    0.00015403530393370734, 0.001333355814640647, 0.00961812910762848,
                                    0.055504108664821625, 0.24022650695910072, 0.6931471805599453),
                         1.0);
    return times_power_of_two(p, bit_cast<int64_t>(t) - WHOLE_BITS);
}

// With q = e^2|x| - 1: q / (q + 2), the quotient corrected by its remainder
RESILIN_INLINE double tanh_(double x) {
    const double size = __builtin_fabs(x), inside = size > 20.0 ? 20.0 : size;
    const Sum q = exp_sum<true, 0>(2.0 * inside);
    const double two = 2.0 + q.high, large = q.high > 2.0 ? q.high : 2.0, less = q.high > 2.0 ? 2.0 : q.high;
    const double rest = ((large - two) + less) + q.low, by = 1.0 / two, z = q.high * by;
    const double found = fma(fma(-z, two, q.high) + (q.low - z * rest), by, z);
    return __builtin_copysign(found, x);
}

// With q = e^|x| - 1: (q + q / (q + 1)) / 2, all of it by a quarter
RESILIN_INLINE double sinh_(double x) {
    const double size = __builtin_fabs(x), inside = size > 710.6 ? 710.6 : size;
    const Sum q = exp_sum<true, 2>(inside);
    const double one = 0.25 + q.high, large = q.high > 0.25 ? q.high : 0.25, less = q.high > 0.25 ? 0.25 : q.high;
    const double rest = ((large - one) + less) + q.low, by = 1.0 / one, z = q.high * by;
    const double z_low = (fma(-z, one, q.high) + (q.low - z * rest)) * by, quarter = 0.25 * z;
    const double sum = q.high + quarter, lost = (q.high - sum) + quarter; // q is never the smaller
    const double found = 2.0 * (sum + (lost + fma(0.25, z_low, q.low)));
    return __builtin_copysign(select(size < 1e-8, size, found), x);
}

RESILIN_INLINE double cosh_(double x) {
    const double size = __builtin_fabs(x), inside = size > 710.6 ? 710.6 : size;
    const Sum e = exp_sum<false, 2>(inside);
    const double c = 0.0625 / e.high;
    return 2.0 * (e.high + (e.low + fma(-16.0 * c * c, e.low, c)));
}

} // namespace resilin
