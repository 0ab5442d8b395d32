// Gamma and Bessel functions of float64, in vectors as doubles.hpp's, within few ulps of their largest term. Where results
// are rounded to float32 the series are shorter (SINGLE).
#pragma once
#include "elementwise/double_logarithms.hpp"

namespace resilin {

// The even Bernoulli numbers
constexpr double BERNOULLI[] = {1.0 / 6,  -1.0 / 30,     1.0 / 42, -1.0 / 30,
                                5.0 / 66, -691.0 / 2730, 7.0 / 6,  -3617.0 / 510};
constexpr double HALF_LOG_TWO_PI = 0.9189385332046727;
constexpr double DIGAMMA_ROOT = 1.4616321449683622, DIGAMMA_ROOT_REST = 9.549995429965697e-17;

// log Gamma(x) for x >= 0: (y - 1) (y - 2) P(y) on [3/2, 5/2], the recurrence to 8, then Stirling's series (DLMF 5.11.1)
template <Digits digits> RESILIN_INLINE double lgamma_right(double x) {
    const bool low = x < 1.5, lowest = x < 0.5, high = x >= 8.0;
    double y = x < 8.0 ? x : 8.0, product = 1.0;
    for (int step = 0; step < 6; step++) {
        const bool above = y > 2.5;
        y = above ? y - 1.0 : y;
        product = above ? product * y : product;
    }
    const double d = lowest ? x : low ? x - 1.0 : y - 2.0, s = 2.0 * d; // what is taken off is exact
    const double moved = low ? (lowest ? fma(x, x, x) : x) : high ? x : product;
    double series;
    if constexpr (digits == SINGLE)
        series = polynomial(s, 4.337129492770297e-08, -1.8846365897778928e-07, 7.068065778296955e-07,
                            -3.142601284590938e-06, 1.430555576492715e-05, -6.589106416424973e-05,
                            0.0003124145707845688, -0.0015480218705677647, 0.00824125018045876, -0.05015865094515195,
                            0.42278433509846713);
    else
        series = polynomial(s, -1.898978828163449e-12, 7.990369468446903e-12, -2.516994654207127e-11,
                            1.0675378605998651e-10, -4.705349287416484e-10, 2.0111027037686157e-09,
                            -8.623333120923973e-09, 3.727207610683586e-08, -1.6229535443193606e-07,
                            7.130970249637601e-07, -3.169589006688405e-06, 1.4302764257949736e-05,
                            -6.5879088564671e-05, 0.0003124150728084608, -0.0015480240241712764, 0.008241250155288397,
                            -0.05015865083717696, 0.42278433509846713);
    const double logarithm = digits == SINGLE ? log_normal<SINGLE>(moved) : log_(moved);
    const double near = fma(d, d, d) * series, large = x < 8.0 ? 8.0 : x, by = inverse<digits>(large), square = by * by;
    double rest = 0.0;
    for (int k = digits == SINGLE ? 4 : 8; k > 0; k--) rest = fma(rest, square, BERNOULLI[k - 1] / (2 * k * (2 * k - 1)));
    const double far = fma(large - 0.5, logarithm - 1.0, HALF_LOG_TWO_PI - 0.5) + rest * by;
    return select(x < 8.0, near + (low ? -logarithm : logarithm), far); // NaN: far
}

// log |Gamma(x)|, below 0 by reflection: what sin(pi x) is near its zeros is exact
template <Digits digits> RESILIN_INLINE double lgamma_of(double x) {
    const double off = x - __builtin_rint(x), slope = __builtin_fabs(off) * sine_slope(off * off);
    const double found = lgamma_right<digits>(x < 0.0 ? 1.0 - x : x);
    const double both = select(x < 0.0, -log_(slope) - found, found);
    return select((x == 0.0) | (__builtin_fabs(x) == INFINITE), INFINITE, both);
}

// Gamma'(x) / Gamma(x) for x >= 0: (y - root) P(y) on [1, 2], the recurrence to 9, whose terms are one fraction, then the
// asymptotic series (DLMF 5.11.2)
template <Digits digits> RESILIN_INLINE double digamma_right(double x) {
    const bool low = x < 1.0;
    double y = low ? x + 1.0 : x < 9.0 ? x : 9.0, top = low ? -1.0 : 0.0, bottom = low ? x : 1.0;
    for (int step = 0; step < 7; step++) {
        const bool above = y > 2.0;
        y = above ? y - 1.0 : y;
        top = above ? fma(top, y, bottom) : top;
        bottom = above ? bottom * y : bottom;
    }
    const double s = 2.0 * y - 3.0, by = 1.0 / (x < 9.0 ? bottom : x), square = by * by;
    double series;
    if constexpr (digits == SINGLE)
        series = polynomial(s, 1.2522175932218505e-06, -3.758198459596138e-06, 7.212672638626898e-06,
                            -2.167232051468077e-05, 7.02783654631937e-05, -0.00021173308925270904,
                            0.0006367905202731382, -0.0019347740913417501, 0.005936807588976677, -0.01855065231918747,
                            0.06013562061877855, -0.21181370931628116, 0.9510558760318328);
    else
        series = polynomial(s, -8.25512972008104e-11, 2.4765474440031764e-10, -2.889363639216111e-10,
                            8.668257373761658e-10, -3.6788868183645545e-09, 1.10370884388543e-08,
                            -3.166618072027162e-08, 9.500926192924096e-08, -2.8628755280038686e-07,
                            8.591324222417666e-07, -2.578107848270217e-06, 7.741156881253708e-06,
                            -2.325823828431376e-05, 6.995020484160625e-05, -0.00021074841215733007,
                            0.000636888028319074, -0.0019350666647832667, 0.005936795278433826, -0.018550615381738605,
                            0.06013562106019355, -0.21181371064073026, 0.951055876031833);
    const double near = fma(y - DIGAMMA_ROOT - DIGAMMA_ROOT_REST, series, top * by);
    double rest = 0.0;
    for (int k = digits == SINGLE ? 4 : 8; k > 0; k--) rest = (rest + BERNOULLI[k - 1] / (2 * k)) * square;
    const double large = x < 9.0 ? 9.0 : x, logarithm = digits == SINGLE ? log_normal<SINGLE>(large) : log_(large);
    return select(x < 9.0, near, logarithm - 0.5 * by - rest);
}

// With what pi cot(pi x) is by the same series as sin(pi x)
template <Digits digits> RESILIN_INLINE double digamma_of(double x) {
    const double off = x - __builtin_rint(x), size = __builtin_fabs(off), beside = 0.5 - size;
    const double cosine = beside * sine_slope(beside * beside), sine = off * sine_slope(off * off);
    const double found = digamma_right<digits>(x < 0.0 ? 1.0 - x : x);
    const double below = select(off == 0.0, UNDEFINED, found - 3.141592653589793 * cosine / sine);
    const double both = select(x < 0.0, below, select(x < INFINITE, found, x));
    return select(x == 0.0, __builtin_copysign(INFINITE, -x), both);
}

// -- modified Bessel functions: series of x^2 to 8, and beyond of 16 / x - 1, of the function times exp(-|x|) sqrt(|x|)

template <Digits digits> RESILIN_INLINE double bessel_near(double size, bool one) {
    const double inside = size > 8.0 ? 8.0 : size, z = inside * inside;
    if (one)
        return inside *
               polynomial(z, 8.981482444757646e-48, 8.451495114097665e-45, 1.2946913102669577e-41,
                          1.562193110099688e-38, 1.702160175343996e-35, 1.633874200541939e-32, 1.372466242055085e-29,
                          9.991548836513359e-27, 6.23472666217639e-24, 3.291935672589579e-21, 1.4484516960428604e-18,
                          5.214426105738172e-16, 1.5017547184527815e-13, 3.363930569334215e-11, 5.651403356481481e-09,
                          6.781684027777778e-07, 5.425347222222222e-05, 0.0026041666666666665, 0.0625, 0.5);
    if constexpr (digits == SINGLE)
        return polynomial(z, 6.766620312697323e-28, 1.9604322484279707e-25, 1.574621386877568e-22,
                          7.180455851777184e-20, 2.900224692549785e-17, 9.384720979538419e-15, 2.4028403679402042e-12,
                          4.70949678755302e-10, 6.781684773388695e-08, 6.781683967928255e-06, 0.0004340277780652326,
                          0.01562499999928022, 0.2500000000007093, 0.9999999999998842);
    return polynomial(z, 3.660440470734804e-46, 3.171411673764443e-43, 4.671825983905341e-40, 5.309639024328794e-37,
                      5.4471185633335995e-34, 4.90160573853981e-31, 3.842906507620109e-28, 2.59780264969385e-25,
                      1.4963344006240256e-22, 7.242258479231362e-20, 2.8969033920954805e-17, 9.38596699032716e-15,
                      2.4028075495244686e-12, 4.709502797067899e-10, 6.781684027777778e-08, 6.781684027777777e-06,
                      0.00043402777777777775, 0.015625, 0.25, 1.0);
}
template <Digits digits> RESILIN_INLINE double bessel_far(double size, bool one) {
    const double beyond = size < 8.0 ? 8.0 : size, s = 16.0 / beyond - 1.0, root = __builtin_sqrt(beyond);
    if (one)
        return polynomial(s, 2.2421768596847442e-11, -9.491890392992048e-11, -1.6283264322621244e-10,
                          6.7727478454462e-10, 5.870664618471487e-10, -2.2624401109204446e-09, -1.5218214060680734e-09,
                          4.763780078020254e-09, 3.501765193290176e-09, -6.9444186339873875e-09,
                          -7.687251308765992e-09, 5.5720183980930355e-09, 1.4051746928735543e-08, 6.84757829926934e-09,
                          -8.432168972932417e-09, -2.3394122958362557e-08, -4.3128498031006734e-08,
                          -1.0001075046243961e-07, -3.4838563464253135e-07, -1.8349102493990178e-06,
                          -1.5038547198221758e-05, -0.00021923576383137776, -0.009749577193235765, 0.38939845902587233) / root;
    if constexpr (digits == SINGLE)
        return polynomial(s, -2.231763321753107e-09, -6.774380903780669e-09, -1.915811720182902e-09,
                          1.845898611005426e-08, 4.360187412703995e-08, 9.081434217159508e-08, 2.964281054214407e-07,
                          1.4833120990835022e-06, 1.114311087692272e-05, 0.00013621612188986423, 0.0033605519826046277,
                          0.4021765094443442) / root;
    return polynomial(s, -2.4421972688131832e-11, 9.114760157514253e-11, 1.7698085539456536e-10,
                      -6.494591114401118e-10, -6.327909921997027e-10, 2.163681278413876e-09, 1.6084886155781772e-09,
                      -4.5305710768621196e-09, -3.5862834111582305e-09, 6.522264862032271e-09, 7.600254486433509e-09,
                      -5.0175940345046716e-09, -1.3427511481900905e-08, -6.856484545962442e-09, 7.559364098665437e-09,
                      2.156780676115673e-08, 3.932512321137824e-08, 8.872014585661555e-08, 2.9735992084667734e-07,
                      1.4838476780922646e-06, 1.114303378845176e-05, 0.00013621607438951463, 0.0033605519836678913,
                      0.4021765094450081) / root;
}
// of order 0 or 1 by exp(-|x|)
template <Digits digits, bool one> RESILIN_INLINE double scaled_bessel(double x) {
    const double size = __builtin_fabs(x), inside = size > 8.0 ? 8.0 : size;
    const double decay = digits == SINGLE ? exp_<SINGLE>(-inside) : exp_(-inside);
    const double found = select(size <= 8.0, bessel_near<digits>(size, one) * decay, bessel_far<digits>(size, one));
    return one ? __builtin_copysign(found, x) : found; // NaN: far
}
// and themselves: e^|x| by 2^-10, so that it overflows no earlier than it must; of float32 what is beyond 200 does
template <Digits digits, bool one> RESILIN_INLINE double bessel(double x) {
    const double size = __builtin_fabs(x), far = bessel_far<digits>(size, one);
    double grown;
    if constexpr (digits == SINGLE) grown = far * exp_<SINGLE>(size > 200.0 ? 200.0 : size);
    else grown = far * exp_sum<false, 10>(size > 715.0 ? 715.0 : size).high * 1024.0;
    const double found = select(size <= 8.0, bessel_near<digits>(size, one), select(size > 715.0, INFINITE, grown));
    return one ? __builtin_copysign(found, x) : found;
}

} // namespace resilin
