// Logarithms of float64 and powers, in vectors as doubles.hpp's: within 0.8 ulp, for all numbers.
#pragma once
#include "elementwise/double_exponentials.hpp"

namespace resilin {

constexpr double INFINITE = std::numeric_limits<double>::infinity();
constexpr double UNDEFINED = std::numeric_limits<double>::quiet_NaN();

// What a logarithm's formula found, or what it is at the ends and of what is no number
RESILIN_INLINE double log_edges(double x, double found) {
    const double positive = select(x < INFINITE, found, x); // infinity and NaN: themselves
    return select(x < 0.0, UNDEFINED, select(x == 0.0, -INFINITE, positive));
}

struct Normal {
    double mantissa, power; // of a positive number: within [sqrt(1/2), sqrt(2)), and what 2 is raised to
};
RESILIN_INLINE Normal normal_of(double x) {
    const bool tiny = x < 2.2250738585072014e-308;
    const double y = tiny ? x * 18014398509481984.0 : x; // 2^54
    const int64_t e = exponent_of(y);
    return {bit_cast<double>(bit_cast<int64_t>(y) - (e << 52)), bit_cast<double>(e + WHOLE_BITS) - WHOLE - (tiny ? 54.0 : 0.0)};
}

// log(1 + f + low) + k ln 2 with 1 + f within [sqrt(1/2), sqrt(2)) and `low` far below an ulp of 1
RESILIN_INLINE double log_of_near(double f, double low, double k) {
    const double half = 0.5 * f * f, by_slope = low * fma(f, fma(f, 1.0 - f, -1.0), 1.0); // low / (1 + f), about
    const double rest = fma(k, LN2_LOW, by_slope) - (half - log_tail(f, half));
    const double large = k * LN2_HIGH, sum = large + f;
    return sum + (((large - sum) + f) + rest);
}

// log(1 + x + low), for a `low` below an ulp of x
RESILIN_INLINE double log1p_(double x, double low) {
    const double u = 1.0 + x, rest = x > 1.0 ? 1.0 - (u - x) : x - (u - 1.0);
    const int64_t e = exponent_of(u);
    const double f = bit_cast<double>(bit_cast<int64_t>(u) - (e << 52)) - 1.0;
    const double back = bit_cast<double>((e < 1023 ? 1023 - e : 0) << 52), more = rest * back, sum = f + more;
    return log_of_near(sum, fma(low, back, (f - sum) + more), bit_cast<double>(e + WHOLE_BITS) - WHOLE);
}
RESILIN_INLINE double log1p_all(double x) { return select(x == 0.0, x, log_edges(1.0 + x, log1p_(x, 0.0))); }

// Half the logarithm of (1 + x) / (1 - x) = 1 + 2 x / (1 - x), the quotient with its remainder
RESILIN_INLINE double atanh_(double x) {
    const double a = __builtin_fabs(x), twice = 2.0 * a, below = 1.0 - a, off = (1.0 - below) - a, by = 1.0 / below;
    const double t = twice * by, rest = (fma(-t, below, twice) - t * off) * by;
    const double found = select(a < 1.0, 0.5 * log1p_(t, rest), a == 1.0 ? INFINITE : UNDEFINED);
    return __builtin_copysign(found, x);
}

// log(x) / log(base) for 1 / log(base) in two parts, and k log(2) / log(base) in two, of which the first is exact
RESILIN_INLINE double log_to_base(double x, double high, double low, double two_high, double two_low) {
    const Normal n = normal_of(x);
    const double f = n.mantissa - 1.0, half = 0.5 * f * f, first = f - half;
    const double second = ((f - first) - half) - fma(0.5 * f, f, -half) + log_tail(f, half);
    const double product = first * high, rest = fma(first, high, -product) + fma(first, low, second * high);
    const double large = n.power * two_high, sum = large + product;
    return log_edges(x, sum + (((large - sum) + product) + fma(n.power, two_low, rest)));
}
RESILIN_INLINE double log2_(double x) { return log_to_base(x, 1.4426950408889634, 2.0355273740931033e-17, 1.0, 0.0); }
RESILIN_INLINE double log10_(double x) {
    return log_to_base(x, 0.4342944819032518, 1.098319650216765e-17, 0.30102999566361177, 3.694239077158931e-13);
}

// The logarithm of a positive finite number to 66 bits: of s = (m - 1) / (m + 1) with its remainder, the series
// 2 s + 2/3 s^3 + s^5 P(s^2), of which the first terms are sums (P on [0, 0.0295], in error by 3e-17).
RESILIN_INLINE Sum log_sum(double x) {
    const Normal n = normal_of(x);
    const double top = n.mantissa - 1.0, bottom = n.mantissa + 1.0, off = (n.mantissa - bottom) + 1.0;
    const double lost = n.mantissa >= 1.0 ? off : (1.0 - bottom) + n.mantissa;
    const double by = 1.0 / bottom, s = top * by, s_low = (fma(-s, bottom, top) - s * lost) * by;
    const double z = s * s, z_low = fma(s, s, -z) + 2.0 * s * s_low;
    const double series = z * polynomial(z, 0.11723603622905411, 0.11706195689881364, 0.13334806212100603,
                                         0.15384594934597917, 0.1818181833565416, 0.22222222221654733, 0.2857142857142937,
                                         0.4);
    const double third = 0.6666666666666666, c = third + series;
    const double c_low = ((third - c) + series) + 3.700743415417188e-17;
    const double cube = z * s, cube_low = fma(z, s, -cube) + fma(z, s_low, z_low * s);
    const double tail = cube * c, tail_low = fma(cube, c, -tail) + fma(cube, c_low, cube_low * c);
    const double large = n.power * LN2_HIGH, twice = 2.0 * s, sum = large + twice, rest = (large - sum) + twice;
    const double high = sum + tail, second = (sum - high) + tail;
    const double low = second + (rest + (fma(n.power, LN2_LOW, tail_low) + 2.0 * s_low));
    const double found = high + low;
    return {found, (high - found) + low};
}

// x^y as C99 has it, from `found` = |x|^y, which counts where x is not 0 and both are finite
RESILIN_INLINE double whole_power(double x, double y, double found) {
    const double a = __builtin_fabs(x), b = __builtin_fabs(y), half = 0.5 * b;
    const bool integer = __builtin_floor(b) == b, odd = integer & (half != __builtin_floor(half)); // 2^53 and more: even
    const bool grows = (y > 0.0) == (a > 1.0), flat = (b == INFINITE) & (a == 1.0);
    const double ends = flat ? 1.0 : grows ? INFINITE : 0.0; // of x or y that are 0 or infinite
    const double size = select((a > 0.0) & (a < INFINITE) & (b < INFINITE), found, ends);
    const double sign = odd & (bit_cast<int64_t>(x) < 0) ? -size : size;
    const double real = select((x < 0.0) & (a < INFINITE) & !integer & (b < INFINITE), UNDEFINED, sign);
    const double known = select((x == x) & (y == y), real, x + y);
    return select((y == 0.0) | (x == 1.0), 1.0, known);
}

RESILIN_INLINE double pow_(double x, double y) {
    const double a = __builtin_fabs(x);
    const Sum l = log_sum((a > 0.0) & (a < INFINITE) ? a : 1.0);
    const double v = __builtin_fabs(y) > 1e300 ? __builtin_copysign(1e300, y) : y; // beyond, the result is 0, 1 or infinite
    const double product = l.high * v, limited = product > 800.0 ? 800.0 : product < -800.0 ? -800.0 : product;
    const double low = select(limited == product, fma(l.high, v, -product) + l.low * v, 0.0);
    return whole_power(x, y, exp_(limited, low));
}

} // namespace resilin
