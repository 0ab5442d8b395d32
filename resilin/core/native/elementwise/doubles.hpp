// Elementary functions of float64 without branches, so that the compiler vectorizes a loop over them, and what the error
// functions are made of. Multiply-adds are fused where fma() says so (simd.hpp). `Digits` chooses the length of a series:
// SINGLE for results that are rounded to float32 (within 1e-9), DOUBLE for all digits.
//
// Where no source is named a polynomial is the Chebyshev interpolant, on the interval given, of values of 40 digits.
#pragma once
#include "kernels/simd.hpp"

namespace resilin {

enum Digits { SINGLE, DOUBLE };

RESILIN_INLINE double polynomial(double, double c) { return c; }
template <class... Rest> RESILIN_INLINE double polynomial(double x, double c0, double c1, Rest... rest) {
    return polynomial(x, fma(c0, x, c1), rest...);
}

// `a` or `b`, both of which are computed: the compiler makes branches of other choices between long formulas
RESILIN_INLINE double select(bool first, double a, double b) {
    const int64_t mask = first ? -1 : 0;
    return bit_cast<double>((bit_cast<int64_t>(a) & mask) | (bit_cast<int64_t>(b) & ~mask));
}

constexpr double WHOLE = 6755399441055744.0; // 1.5 * 2^52: adding it rounds to an integer, WHOLE_BITS + n as bits
constexpr int64_t WHOLE_BITS = 0x4338000000000000;
constexpr double LN2_HIGH = 6.93147180369123816490e-01, LN2_LOW = 1.90821492927058770002e-10;

// 2^n times p in two factors, neither of which overflows, for -1080 < n < 1030
RESILIN_INLINE double times_power_of_two(double p, int64_t n) {
    const int64_t half = static_cast<int64_t>(static_cast<uint64_t>(n + 2048) >> 1) - 1024; // AVX2 shifts without sign only
    return p * bit_cast<double>((half + 1023) << 52) * bit_cast<double>((n - half + 1023) << 52);
}

// e^(x + rest) for a `rest` far below x, within 0.9 ulp; subnormal results too; polynomials on [-ln2 / 2, ln2 / 2], in error by 6e-11 and 4e-18.
template <Digits digits = DOUBLE> RESILIN_INLINE double exp_(double x, double rest = 0.0) {
    x = x > 710.0 ? 710.0 : x < -746.0 ? -746.0 : x; // NaN stays
    const double t = fma(x, 1.4426950408889634074, WHOLE), k = t - WHOLE;
    const double first = fma(k, -LN2_HIGH, x);
    double p;
    if constexpr (digits == SINGLE) {
        const double r = fma(k, -LN2_LOW, first) + rest;
        p = polynomial(r, 0.00019907569694023133, 0.0013948578671547215, 0.008333283538133252, 0.04166621831411108,
                       0.16666666786310658, 0.5000000107731032, 0.9999999999955089, 0.9999999999595608);
    } else {
        const double second = fma(k, LN2_LOW, -rest), r = first - second, off = (first - r) - second;
        p = 1.0 + (r + fma(r * r,
                           polynomial(r, 2.5110037940619665e-08, 2.7632640074237224e-07, 2.755724091767456e-06,
                                      2.4801485481152372e-05, 0.0001984126989004796, 0.0013888888952315874,
                                      0.008333333333319601, 0.04166666666648809, 0.1666666666666668, 0.5000000000000019),
                           off));
    }
    const int64_t n = bit_cast<int64_t>(t) - WHOLE_BITS;
    if constexpr (digits == SINGLE) return p * bit_cast<double>((n + 1023) << 52); // of -700 < x < 700
    return times_power_of_two(p, n);
}

// 1 / x; for SINGLE within 1e-13, of numbers in the range of float32, by a division of float32 and a step of Newton's
template <Digits digits> RESILIN_INLINE double inverse(double x) {
    if constexpr (digits == DOUBLE) return 1.0 / x;
    const double r = static_cast<double>(1.0f / static_cast<float>(x));
    return fma(r, fma(-x, r, 1.0), r);
}

// e of a positive normal number that lies within [sqrt(1/2), sqrt(2)) * 2^e
RESILIN_INLINE int64_t exponent_of(double x) {
    const uint64_t bits = bit_cast<uint64_t>(x) - 0x3FE6A09E667F3BCD + (uint64_t{1024} << 52);
    return static_cast<int64_t>(bits >> 52) - 1024; // AVX2 shifts without sign only
}

// log(1 + f) - (f - half) for half = f^2 / 2 and 1 + f within [sqrt(1/2), sqrt(2)), in SINGLE to 1e-12 (fdlibm, log)
template <Digits digits = DOUBLE> RESILIN_INLINE double log_tail(double f, double half) {
    const double s = digits == DOUBLE ? f / (2.0 + f) : f * inverse<digits>(2.0 + f), z = s * s;
    const double series = z * polynomial(z, 1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
                                         2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
                                         6.666666666666735130e-01);
    return s * (half + series);
}

// The natural logarithm of a positive normal number within 0.7 ulp, or 1e-12
template <Digits digits> RESILIN_INLINE double log_normal(double x, double more = 0.0) {
    const int64_t e = exponent_of(x);
    const double f = bit_cast<double>(bit_cast<int64_t>(x) - (e << 52)) - 1.0, half = 0.5 * f * f;
    const double k = bit_cast<double>(e + WHOLE_BITS) - WHOLE + more, large = k * LN2_HIGH, sum = large + f;
    return sum + (((large - sum) + f) + (fma(k, LN2_LOW, log_tail<digits>(f, half)) - half));
}

// The natural logarithm within 1 ulp, of subnormal numbers too; minus infinity at 0, NaN below.
RESILIN_INLINE double log_(double x) {
    const bool tiny = x < 2.2250738585072014e-308;
    const double found = log_normal<DOUBLE>(tiny ? x * 18014398509481984.0 : x, tiny ? -54.0 : 0.0); // 2^54
    const double infinite = std::numeric_limits<double>::infinity();
    const double positive = select(x < infinite, found, x); // infinity and NaN: themselves
    return select(x < 0.0, std::numeric_limits<double>::quiet_NaN(), select(x == 0.0, -infinite, positive));
}

// 1 / (1 + e^-x), without overflow
RESILIN_INLINE double logistic(double x) {
    const double e = exp_(-__builtin_fabs(x)), r = 1.0 / (1.0 + e);
    return x > 0.0 ? r : e * r;
}

// exp(x * x) erfc(x) for x >= 0: t R(t) with t = 1 / (4 + x), in error by 7e-10 and, for x >= 1/2, by 2e-20. What t is off
// is made good by the slope, 2 x f(x) - 2 / sqrt(pi): within 2 ulp.
template <Digits digits> RESILIN_INLINE double scaled_tail(double x) {
    const double sum = 4.0 + x, t = inverse<digits>(sum);
    if constexpr (digits == SINGLE) {
        return t * polynomial(fma(t, 8.0, -1.0), 1.4424081497086228e-05, 7.79373680400207e-06, -0.0001709544169474219,
                              -0.0004687757413534537, 0.00027704282258641757, 0.006120805718594161,
                              0.026371408901199263, 0.07637856482541351, 0.17401071273332686, 0.33085206917635407,
                              0.5408538453004195, 0.7732086725058595, 0.9765487289382442, 1.0959956613035187);
    } else {
        const double off = fma(-t, sum, 1.0) - t * (x - (sum - 4.0));
        const double found =
            t * polynomial(fma(t, 9.0, -1.0), -4.69857720139533e-12, -4.1957097052863464e-12, 6.345698937142023e-11,
                              7.181536701888201e-11, -5.319613956914362e-10, -8.850199197539785e-10,
                              3.7218965593926684e-09, 1.0343737987434844e-08, -2.0582751929636778e-08,
                              -1.1558795572944057e-07, 1.2215833423258726e-08, 1.1149539924506496e-06,
                              2.2432846713739695e-06, -6.071642390599247e-06, -4.280599883622333e-05,
                              -7.65350672834055e-05, 0.00023194008353011762, 0.0021894480722148796,
                              0.009263879017701456, 0.028579440402908635, 0.07184347773181617, 0.15427702364163642,
                              0.2902955223062336, 0.48609201231088334, 0.7316142313533135, 0.9963417395976176);
        return fma(off * sum, 1.1283791670955126 - 2.0 * x * found, found);
    }
}

// erf(x) / x - 1 for |x| <= 1/2: a polynomial of x^2, in error by 4e-18
RESILIN_INLINE double erf_slope(double square) {
    return polynomial(fma(square, 8.0, -1.0), 8.777299809787717e-14, -6.37686858732805e-12, 4.1270252134730293e-10,
                      -2.3472289797042594e-08, 1.151603779519474e-06, -4.762336934519552e-05, 0.0016130716680617082,
                      -0.043642058886697886, 0.0830752376761713);
}

// exp(scale * x * x) for scale = -1 and powers of 2 of it, without the square's rounding error
RESILIN_INLINE double exp_of_square(double x, double scale) {
    const double square = x * x;
    return exp_(scale * square, scale * fma(x, x, -square));
}

constexpr double ERFC_ENDS = 27.3, ERFC_OF_FLOAT_ENDS = 12.0; // where erfc is 0

// erf, within 2 ulp
RESILIN_INLINE double erf_(double x) {
    const double size = __builtin_fabs(x), a = size > ERFC_ENDS ? ERFC_ENDS : size;
    const double near = fma(a, erf_slope(a * a), a), far = 1.0 - scaled_tail<DOUBLE>(a) * exp_of_square(a, -1.0);
    return __builtin_copysign(select(size < 0.5, near, far), x);
}

// erfc, within 3 ulp and for `SINGLE` within 1e-9
template <Digits digits> RESILIN_INLINE double erfc_(double x) {
    constexpr double ENDS = digits == SINGLE ? ERFC_OF_FLOAT_ENDS : ERFC_ENDS;
    const double size = __builtin_fabs(x), a = size > ENDS ? ENDS : size;
    if constexpr (digits == SINGLE) {
        const double far = scaled_tail<SINGLE>(a) * exp_<SINGLE>(-a * a);
        return x < 0.0 ? 2.0 - far : far;
    } else {
        const double far = scaled_tail<DOUBLE>(a) * exp_of_square(a, -1.0);
        const double inner = size < 0.5 ? x : 0.0, near = (1.0 - inner) - inner * erf_slope(inner * inner);
        return select(size < 0.5, near, x < 0.0 ? 2.0 - far : far);
    }
}

// sin(pi r) / (pi r) for |r| <= 1/2, of the square of r: in error by 8e-18
RESILIN_INLINE double sine_slope(double square) {
    return polynomial(square, -7.0931258816238045e-09, 2.5300985563134005e-07, -6.975840829271595e-06,
                      0.0001484287872033628, -0.002346081034815316, 0.026147847817611935, -0.19075182412208255,
                      0.8117424252833536, -1.6449340668482264, 1.0);
}

} // namespace resilin
