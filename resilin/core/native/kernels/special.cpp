// Special functions of one argument by the formulas of gamma.py, bessel.py and ops/special.py, in float64.
//
// A block of elements goes through a formula's steps one after another, so that its series are loops over the block,
// which the compiler vectorizes. Every value of a block is computed alike, wherever it lies.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t BLOCK = 64;
constexpr int64_t COST = 32; // of an element, beside an addition's
constexpr double PI = 3.141592653589793, SQRT_PI = 1.7724538509055159, SQRT_HALF = 0.7071067811865476;
constexpr double SQRT_TWO = 1.4142135623730951, INF = std::numeric_limits<double>::infinity();
constexpr double NOT_A_NUMBER = std::numeric_limits<double>::quiet_NaN();
constexpr double HALF_LOG_TWO_PI = 0.9189385332046727;
constexpr double DIGAMMA_ROOT = 1.4616321449683622, DIGAMMA_ROOT_REST = 9.549995429965697e-17;
// the even Bernoulli numbers over 2 k (2 k - 1) and over 2 k
constexpr double BERNOULLI[] = {1.0 / 6,   -1.0 / 30,      1.0 / 42, -1.0 / 30,
                                5.0 / 66,  -691.0 / 2730,  7.0 / 6,  -3617.0 / 510};

// Chebyshev coefficients by their names in chebyshev_tables.py, which hands them over once.
struct Tables {
    std::vector<double> lgamma, digamma, erfcx, i0_near, i0_far, i1_near, i1_far;
} tables;

constexpr int SHORT = 16; // terms of the series of erfc that float32 needs: the rest is below 1e-10
double short_erfcx[SHORT];

using Block = double[BLOCK];

RESILIN_SIMD void chebyshev(const double *c, int64_t count, const double *x, double low, double high, double *y) {
    Block t, last = {}, before = {};
    for (int64_t i = 0; i < BLOCK; i++) t[i] = (2 * x[i] - (low + high)) / (high - low);
    for (int64_t k = count - 1; k > 0; k--)
        for (int64_t i = 0; i < BLOCK; i++) {
            const double next = c[k] + 2 * t[i] * last[i] - before[i];
            before[i] = last[i];
            last[i] = next;
        }
    for (int64_t i = 0; i < BLOCK; i++) y[i] = c[0] + t[i] * last[i] - before[i];
}
void chebyshev(const std::vector<double> &c, const double *x, double low, double high, double *y) {
    chebyshev(c.data(), static_cast<int64_t>(c.size()), x, low, high, y);
}

template <class Fn> RESILIN_INLINE void each(Fn fn) {
    for (int64_t i = 0; i < BLOCK; i++) fn(i);
}

// log Gamma(x) - ((x - 1/2) log x - x + log(2 pi) / 2) for x >= 10
double stirling(double x) {
    const double square = 1 / (x * x);
    double total = 0;
    for (int k = 8; k > 0; k--) total = total * square + BERNOULLI[k - 1] / (2 * k * (2 * k - 1));
    return total / x;
}

void lgamma(const double *x, double *out) {
    Block up, y, before, product, series;
    each([&](int64_t i) {
        up[i] = x[i] < 0 ? 1 - x[i] : x[i];
        const bool tiny = up[i] < 0.5;
        y[i] = tiny ? up[i] + 1 : up[i] > 13 ? 13.0 : up[i];
        before[i] = tiny ? up[i] : y[i] - 1; // y - 1, exact also where adding 1 rounds
        product[i] = 1;
        while (y[i] > 3) {
            y[i] -= 1;
            before[i] -= 1;
            product[i] *= y[i];
        }
    });
    chebyshev(tables.lgamma, y, 0.5, 3, series);
    each([&](int64_t i) {
        double found;
        if (up[i] < 13) {
            found = before[i] * (before[i] - 1) * series[i];
            found = up[i] < 0.5 ? found - std::log(up[i]) : product[i] == 1 ? found : found + std::log(product[i]);
        } else {
            found = (up[i] - 0.5) * (std::log(up[i]) - 1) + (HALF_LOG_TWO_PI - 0.5) + stirling(up[i]);
        }
        if (x[i] < 0) found = std::log(PI / std::fabs(std::sin(PI * (x[i] - std::rint(x[i]))))) - found;
        out[i] = std::isinf(x[i]) || x[i] == 0 ? INF : found;
    });
}

void digamma(const double *x, double *out) {
    Block up, y, shift, series;
    each([&](int64_t i) {
        up[i] = x[i] < 0 ? 1 - x[i] : x[i];
        const bool tiny = up[i] < 1;
        y[i] = tiny ? up[i] + 1 : up[i] > 10 ? 10.0 : up[i];
        shift[i] = tiny ? -1 / up[i] : 0.0;
        for (int step = 0; step < 8; step++) {
            const bool above = y[i] > 2;
            y[i] = above ? y[i] - 1 : y[i];
            shift[i] = above ? shift[i] + 1 / y[i] : shift[i];
        }
    });
    chebyshev(tables.digamma, y, 1, 2, series);
    each([&](int64_t i) {
        double found = (y[i] - DIGAMMA_ROOT - DIGAMMA_ROOT_REST) * series[i] + shift[i];
        if (!(up[i] < 10)) {
            const double square = 1 / (up[i] * up[i]);
            double rest = 0;
            for (int k = 8; k > 0; k--) rest = (rest + BERNOULLI[k - 1] / (2 * k)) * square;
            found = std::log(up[i]) - 0.5 / up[i] - rest;
        }
        if (x[i] < 0) {
            const double part = x[i] - std::rint(x[i]);
            found = part == 0 ? NOT_A_NUMBER : found - PI / std::tan(PI * part);
        }
        out[i] = x[i] == 0 ? std::copysign(INF, -x[i]) : found;
    });
}

// -- Bessel functions

void scaled_i0(const double *x, double *out) {
    Block inside, beyond, near, far;
    each([&](int64_t i) {
        const double size = std::fabs(x[i]);
        inside[i] = size > 8 ? 8 : size;
        beyond[i] = 8 / (size < 8 ? 8 : size);
    });
    chebyshev(tables.i0_near, inside, 0, 8, near);
    chebyshev(tables.i0_far, beyond, 0, 1, far);
    each([&](int64_t i) {
        const double size = std::fabs(x[i]);
        out[i] = size <= 8 ? near[i] / std::sqrt(1 + size) : far[i] / std::sqrt(size);
    });
}

void scaled_i1(const double *x, double *out) {
    Block inside, beyond, near, far;
    each([&](int64_t i) {
        const double size = std::fabs(x[i]);
        inside[i] = size > 8 ? 8 : size;
        beyond[i] = 8 / (size < 8 ? 8 : size);
    });
    chebyshev(tables.i1_near, inside, 0, 8, near);
    chebyshev(tables.i1_far, beyond, 0, 1, far);
    each([&](int64_t i) {
        const double size = std::fabs(x[i]);
        out[i] = size <= 8 ? near[i] / (1 + size) * x[i] : std::copysign(far[i] / std::sqrt(size), x[i]);
    });
}

// times exp(|x|), in two steps where one would overflow before the product does
void grow(const double *x, double *out) {
    each([&](int64_t i) {
        const double size = std::fabs(x[i]), half = std::exp(size / 2);
        const double grown = size < 700 ? out[i] * std::exp(size) : out[i] * half * half;
        out[i] = std::isinf(size) ? std::copysign(INF, out[i]) : grown;
    });
}

void i0(const double *x, double *out) {
    scaled_i0(x, out);
    grow(x, out);
}

void i1(const double *x, double *out) {
    scaled_i1(x, out);
    grow(x, out);
}

// -- error functions

// exp(scale * x ** 2) for a power of 2 `scale`, without the square's rounding error
double exp_square(double x, double scale) {
    double head = static_cast<double>(static_cast<float>(x)); // 24 bits: its square is exact
    head = std::isfinite(head) ? head : x;
    const double tail = head == x || std::fabs(x) > 1000 ? 0.0 : (x - head) * (x + head);
    return std::exp(scale * head * head) * (tail == 0 ? 1.0 : std::exp(scale * tail));
}

// exp(x ** 2) erfc(x) for x >= 0
void scaled_erfc(const double *x, double *out) {
    Block t;
    each([&](int64_t i) { t[i] = 4 / (4 + x[i]); });
    chebyshev(tables.erfcx, t, 0, 1, out);
    each([&](int64_t i) { out[i] /= 1 + 2 * x[i]; });
}

void erfcx(const double *x, double *out) {
    Block size;
    each([&](int64_t i) { size[i] = std::fabs(x[i]); });
    scaled_erfc(size, out);
    each([&](int64_t i) { out[i] = x[i] < 0 ? 2 * exp_square(size[i], 1) - out[i] : out[i]; });
}

void erfc(const double *x, double *out) {
    each([&](int64_t i) { out[i] = std::erfc(x[i]); });
}

// the normal distribution function, of x >= -1 without a series
double upper_ndtr(double x) { return 0.5 * std::erfc(x * -SQRT_HALF); }

// of -x / sqrt(2) for x limited to what lies left of -1
void scaled_tail(const double *x, double *out) {
    Block left;
    each([&](int64_t i) { left[i] = (x[i] > -1 ? -1 : x[i]) * -SQRT_HALF; });
    scaled_erfc(left, out);
}

void ndtr(const double *x, double *out) {
    scaled_tail(x, out);
    each([&](int64_t i) { out[i] = x[i] < -1 ? 0.5 * out[i] * exp_square(x[i], -0.5) : upper_ndtr(x[i]); });
}

void log_ndtr(const double *x, double *out) {
    Block turned, above;
    each([&](int64_t i) { turned[i] = -(x[i] < -1 ? -1 : x[i]); });
    ndtr(turned, above);
    scaled_tail(x, out);
    each([&](int64_t i) {
        out[i] = x[i] < -1 ? std::log(out[i] * 0.5) - x[i] * x[i] * 0.5 : std::log1p(-above[i]);
    });
}

// x >= 0 with erfc(x) = z <= 1: steps of Newton's method for the logarithms, each of which doubles the digits; three
// for all of a double
template <int Steps> void erfc_inverse_right(const double *z, double *out) {
    Block scaled, logarithm;
    each([&](int64_t i) {
        logarithm[i] = std::log(z[i]);
        const double t = std::sqrt(-2 * std::log(z[i] / 2));
        const double top = 2.515517 + t * (0.802853 + t * 0.010328);
        const double bottom = 1 + t * (1.432788 + t * (0.189269 + t * 0.001308));
        out[i] = (t - top / bottom) / SQRT_TWO;
    });
    for (int step = 0; step < Steps; step++) {
        erfcx(out, scaled);
        each([&](int64_t i) {
            const double off = std::log(scaled[i]) - out[i] * out[i] - logarithm[i];
            out[i] += off * scaled[i] * (SQRT_PI / 2);
        });
    }
    each([&](int64_t i) { out[i] = z[i] == 0 ? INF : z[i] < 0 ? NOT_A_NUMBER : out[i]; });
}

// with a step less for float, whose digits there are then twice
template <int Steps> void erfinv(const double *y, double *out) {
    Block tail, rest;
    each([&](int64_t i) { rest[i] = std::fabs(y[i]) > 0.5 ? 1 - std::fabs(y[i]) : 0.5; });
    erfc_inverse_right<Steps + 1>(rest, tail);
    each([&](int64_t i) {
        const double size = std::fabs(y[i]), inner = size > 0.5 ? 0.5 : size, square = inner * inner;
        double x = inner * (SQRT_PI / 2) * (1 + square * (PI / 12 + square * (7 * (PI * PI) / 480 + square * 0.06)));
        for (int step = 0; step < Steps; step++) { // Halley's, which makes three digits of one
            const double move = (std::erf(x) - inner) * (SQRT_PI / 2) * std::exp(x * x);
            x -= move / (1 + x * move);
        }
        out[i] = std::copysign(size > 0.5 ? tail[i] : x, y[i]);
    });
}

void ndtri(const double *p, double *out) {
    Block z, side, middle;
    each([&](int64_t i) {
        const double twice = 2 * p[i];
        z[i] = twice <= 1 ? twice : 2 - twice > 1 ? 1 : 2 - twice;
        middle[i] = std::fabs(1 - twice) < 0.5 ? 1 - twice : 0;
    });
    erfc_inverse_right<3>(z, side);
    erfinv<2>(middle, middle);
    each([&](int64_t i) {
        const double twice = 2 * p[i];
        out[i] = -SQRT_TWO * (std::fabs(1 - twice) < 0.5 ? middle[i] : twice <= 1 ? side[i] : -side[i]);
    });
}

// -- the same of float32, whose digits shorter series give, which are loops without calls

// e^x for x <= 0 within 1e-10; 0 for what float32 does not reach
RESILIN_INLINE double exp_near(double x) {
    x = x < -700.0 ? -700.0 : x;
    const double shifter = 6755399441055744.0; // 1.5 * 2^52: adding it rounds to an integer
    const double t = x * 1.4426950408889634 + shifter, r = x - (t - shifter) * 0.6931471805599453;
    double p = 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1;
    p = p * r + 1;
    return p * bit_cast<double>((bit_cast<int64_t>(t) + 1023) << 52);
}

// exp(x ** 2) erfc(x) (1 + 2 x) for x >= 0
RESILIN_INLINE double short_series(const double *c, double x) {
    const double t = 16 / (4 + x) - 2; // twice the argument, which goes from 1 to -1
    double last = 0, before = 0;
    for (int k = SHORT - 1; k > 0; k--) {
        const double next = c[k] + t * last - before;
        before = last;
        last = next;
    }
    return c[0] + t / 2 * last - before;
}

RESILIN_SIMD void erfc_by(const double *c, const double *x, double *out) {
    for (int64_t i = 0; i < BLOCK; i++) {
        const double whole = __builtin_fabs(x[i]), size = whole > 30 ? 30 : whole;
        const double found = short_series(c, size) / (1 + 2 * size) * exp_near(-size * size);
        out[i] = x[i] < 0 ? 2 - found : found;
    }
}
void erfc_of_float(const double *x, double *out) { erfc_by(short_erfcx, x, out); }

void ndtr_of_float(const double *x, double *out) {
    Block turned;
    each([&](int64_t i) { turned[i] = x[i] * -SQRT_HALF; });
    erfc_of_float(turned, out);
    each([&](int64_t i) { out[i] *= 0.5; });
}

// Within seven digits, of |y| < 1 (M. Giles, "Approximating the erfinv function", 2010).
RESILIN_SIMD void first_erfinv(const double *y, double *x) {
    for (int64_t i = 0; i < BLOCK; i++) {
        const double size = __builtin_fabs(y[i]);
        const float rest = static_cast<float>((1 - size) * (1 + size));
        const double w = -static_cast<double>(log_(rest > 1e-30f ? rest : 1e-30f));
        const double a = w - 2.5, b = __builtin_sqrt(w < 5 ? 5.0 : w) - 3;
        const bool near = w < 5;
        const double v = near ? a : b;
        double p = near ? 2.81022636e-08 : -0.000200214257;
        p = p * v + (near ? 3.43273939e-07 : 0.000100950558);
        p = p * v + (near ? -3.5233877e-06 : 0.00134934322);
        p = p * v + (near ? -4.39150654e-06 : -0.00367342844);
        p = p * v + (near ? 0.00021858087 : 0.00573950773);
        p = p * v + (near ? -0.00125372503 : -0.0076224613);
        p = p * v + (near ? -0.00417768164 : 0.00943887047);
        p = p * v + (near ? 0.246640727 : 1.00167406);
        p = p * v + (near ? 1.50140941 : 2.83297682);
        x[i] = p * size;
    }
}
// One step of Newton's method, which makes fourteen digits of seven.
RESILIN_SIMD void better_erfinv(const double *c, const double *y, const double *x, double *out) {
    for (int64_t i = 0; i < BLOCK; i++) {
        const double size = __builtin_fabs(y[i]), square = x[i] * x[i], falling = exp_near(-square);
        double sum = 1.0 / 9360;
        sum = sum * square - 1.0 / 1320;
        sum = sum * square + 1.0 / 216;
        sum = sum * square - 1.0 / 42;
        sum = sum * square + 1.0 / 10;
        sum = sum * square - 1.0 / 3;
        sum = sum * square + 1;
        const double middle = 2 / SQRT_PI * x[i] * sum - size, tail = 1 - size - short_series(c, x[i]) / (1 + 2 * x[i]) * falling;
        const double found = x[i] - (size > 0.5 ? tail : middle) * (SQRT_PI / 2) / falling;
        const double ended = size == 1 ? INF : size > 1 ? NOT_A_NUMBER : found;
        out[i] = __builtin_copysign(ended, y[i]);
    }
}
void erfinv_of_float(const double *y, double *out) {
    Block x;
    first_erfinv(y, x);
    better_erfinv(short_erfcx, y, x, out);
}

using Formula = void (*)(const double *, double *);

template <class T> void by_blocks(Formula formula, const T *x, int64_t begin, int64_t end, T *y) {
    Block in, out;
    for (int64_t first = begin; first < end; first += BLOCK) {
        const int64_t count = std::min(BLOCK, end - first);
        for (int64_t i = 0; i < BLOCK; i++) in[i] = i < count ? static_cast<double>(x[first + i]) : 1.0;
        formula(in, out);
        for (int64_t i = 0; i < count; i++) y[first + i] = static_cast<T>(out[i]);
    }
}

template <class T> nb::object apply(Formula formula, const Array &x) {
    NewArray<T> y(x);
    nb::object made = y.object;
    WithoutGil free(x.size() * COST);
    parallel_rows(x.size(), COST, [&](int64_t begin, int64_t end) {
        by_blocks(formula, x.data<T>(), begin, end, y.data);
    });
    return made;
}

template <Formula formula, Formula of_float = formula> nb::object call(Array x) {
    if (x.is<float>()) return apply<float>(of_float, x);
    return x.is<double>() ? apply<double>(formula, x) : nb::none();
}

std::vector<double> list_of(const nb::dict &given, const char *name) {
    std::vector<double> found;
    for (nb::handle value : given[name]) found.push_back(nb::cast<double>(value));
    return found;
}

void take_tables(const nb::dict &given) {
    tables = {list_of(given, "LGAMMA"),  list_of(given, "DIGAMMA"), list_of(given, "ERFCX"),  list_of(given, "I0_NEAR"),
              list_of(given, "I0_FAR"), list_of(given, "I1_NEAR"), list_of(given, "I1_FAR")};
    std::copy_n(tables.erfcx.begin(), std::min<size_t>(SHORT, tables.erfcx.size()), short_erfcx);
}

} // namespace

void bind_special(nb::module_ &m) {
    m.def("special_tables", &take_tables);
    m.def("special_gammaln", &call<lgamma>);
    m.def("special_digamma", &call<digamma>);
    m.def("special_erfc", &call<erfc, erfc_of_float>);
    m.def("special_erfcx", &call<erfcx>);
    m.def("special_erfinv", &call<erfinv<2>, erfinv_of_float>);
    m.def("special_ndtr", &call<ndtr, ndtr_of_float>);
    m.def("special_ndtri", &call<ndtri>);
    m.def("special_log_ndtr", &call<log_ndtr>);
    m.def("special_i0", &call<i0>);
    m.def("special_i0e", &call<scaled_i0>);
    m.def("special_i1", &call<i1>);
    m.def("special_i1e", &call<scaled_i1>);
}

} // namespace resilin
