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
}

} // namespace

void bind_special(nb::module_ &m) {
    m.def("special_tables", &take_tables);
    m.def("special_gammaln", &call<lgamma>);
    m.def("special_digamma", &call<digamma>);
    m.def("special_erfc", &call<erfc>);
    m.def("special_erfcx", &call<erfcx>);
    m.def("special_erfinv", &call<erfinv<2>, erfinv<1>>);
    m.def("special_ndtr", &call<ndtr>);
    m.def("special_ndtri", &call<ndtri>);
    m.def("special_log_ndtr", &call<log_ndtr>);
    m.def("special_i0", &call<i0>);
    m.def("special_i0e", &call<scaled_i0>);
    m.def("special_i1", &call<i1>);
    m.def("special_i1e", &call<scaled_i1>);
}

} // namespace resilin
