// Inverse circular functions of float64, in vectors as doubles.hpp's: within 0.8 ulp, for all numbers.
#pragma once
#include "elementwise/doubles.hpp"

namespace resilin {

constexpr double HALF_PI = 1.5707963267948966, HALF_PI_LOW = 6.123233995736766e-17;

// `turns` quarters of a turn and `times` the arcsine of |x| or, from 1/2 on, `far_times` the arcsine of t = sqrt((1 - |x|)
// / 2), half the angle beside pi / 2; what t is off is kept. asin(t) = t + t^3 R(t^2) for t <= 1/2, in error by 3e-17.
RESILIN_INLINE double arcsine_of(double x, double turns, double times, double far_turns, double far_times) {
    const double a = __builtin_fabs(x);
    const bool far = a >= 0.5;
    const double z = select(far, 0.5 - 0.5 * a, a * a), root = __builtin_sqrt(z), t = select(far, root, a);
    const double off = select(far & (root > 0.0), fma(-root, root, z) * 0.5 / root, 0.0);
    const double series = polynomial(z, 0.028757851367421566, -0.014851887071247204, 0.01740087944269402,
                                     0.005457506718640358, 0.01032281435018578, 0.011479177415184906, 0.013971212973552933,
                                     0.017352392720869973, 0.02237217294214989, 0.030381944138531247, 0.04464285714635543,
                                     0.07499999999998433, 0.16666666666666669);
    const double quarters = select(far, far_turns, turns), by = select(far, far_times, times);
    const double large = quarters * HALF_PI, line = by * t, sum = large + line, lost = (large - sum) + line;
    return sum + (lost + fma(quarters, HALF_PI_LOW, by * fma(t * z, series, off)));
}

RESILIN_INLINE double asin_(double x) { return __builtin_copysign(arcsine_of(x, 0.0, 1.0, 1.0, -2.0), x); }
RESILIN_INLINE double acos_(double x) {
    const bool below = x < 0.0;
    return arcsine_of(x, 1.0, below ? 1.0 : -1.0, below ? 2.0 : 0.0, below ? -2.0 : 2.0);
}

// The angle of (x, y) for finite x, y >= 0, of which the larger has an inverse, and of (x, y)
// mirrored: of the quotient of the smaller and the larger or, above tan(pi / 8), of (s - l) / (s + l), an eighth of a turn
// away. What the terms and the quotient are off is kept. (atan(t) / t - 1) / t^2 on [0, tan(pi / 8)^2]: in error by 2e-17.
RESILIN_INLINE double angle_of(double small, double large, bool swapped, bool mirrored) {
    const bool turned = small > 0.41421356237309503 * large;
    const double less = small - large, more = small + large;
    const double top = turned ? less : small, bottom = turned ? more : large;
    const double top_off = turned ? small - (less + large) : 0.0, bottom_off = turned ? small - (more - large) : 0.0;
    const double by = 1.0 / bottom, q = top * by;
    const double off = (fma(-q, bottom, top) + (top_off - q * bottom_off)) * by, z = q * q;
    const double series = polynomial(z, 0.016285183029865667, -0.034570044186095536, 0.04551573086664191,
                                     -0.052304498567092406, 0.05878928398517232, -0.06666424833613552, 0.07692296372129964,
                                     -0.09090908753400499, 0.11111111105153429, -0.14285714285659806, 0.19999999999999804,
                                     -0.3333333333333333);
    const double rest = fma(q * z, series, fma(-off, z, off));
    const double first = turned ? 1.0 : 0.0, second = swapped ? 2.0 - first : first; // eighths of a turn
    const double eighths = mirrored ? 4.0 - second : second, sign = swapped != mirrored ? -1.0 : 1.0;
    const double start = eighths * 0.7853981633974456, line = sign * q, sum = start + line; // a multiple is exact
    return sum + (((start - sum) + line) + fma(eighths, 2.6951514290790595e-15, sign * rest));
}

RESILIN_INLINE double atan_(double x) {
    const double size = __builtin_fabs(x), a = size > 1e300 ? 1e300 : size;
    const bool above = a > 1.0;
    return __builtin_copysign(angle_of(above ? 1.0 : a, above ? a : 1.0, above, false), x);
}

RESILIN_INLINE double atan2_(double y, double x) {
    const double a = __builtin_fabs(x), b = __builtin_fabs(y), infinite = std::numeric_limits<double>::infinity();
    const bool above = b > a, mirrored = bit_cast<int64_t>(x) < 0;
    const double most = above ? b : a, least = above ? a : b;
    const bool endless = most == infinite, empty = most == 0.0;
    const double large = endless | empty ? 1.0 : most;
    const double small = endless ? (least == infinite ? 1.0 : 0.0) : least;
    int64_t power = static_cast<int64_t>(bit_cast<uint64_t>(large) >> 52) - 1023; // to [1, 2); of subnormal numbers to more
    power = power < -1000 ? -1000 : power > 1000 ? 1000 : power;
    const double scale = bit_cast<double>((1023 - power) << 52);
    const double found = __builtin_copysign(angle_of(small * scale, large * scale, above, mirrored), y);
    return select((x == x) & (y == y), found, x + y);
}

} // namespace resilin
