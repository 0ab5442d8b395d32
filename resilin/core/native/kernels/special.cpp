// Special functions of one argument by the formulas of gamma.py, bessel.py and ops/special.py, in float64.
//
// A block of elements goes through a formula's steps one after another, so that its series are loops over the block,
// which the compiler vectorizes. Every value of a block is computed alike, wherever it lies.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "elementwise/doubles.hpp"
#include "elementwise/error_functions.hpp"
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
    int64_t lgamma_of_float = 0;
} tables;

using Block = double[BLOCK];

typedef double Eight __attribute__((vector_size(64), aligned(8), may_alias));

// Clenshaw's recurrence; four vectors at a time hide the latency of its steps.
RESILIN_SIMD void chebyshev(const double *c, int64_t count, const double *x, double low, double high, double *y) {
    for (int64_t first = 0; first < BLOCK; first += 32) {
        Eight twice[4], t[4], last[4] = {}, before[4] = {};
        for (int j = 0; j < 4; j++) {
            t[j] = (2 * *reinterpret_cast<const Eight *>(x + first + 8 * j) - (low + high)) / (high - low);
            twice[j] = 2 * t[j];
        }
        for (int64_t k = count - 1; k > 0; k--)
            for (int j = 0; j < 4; j++) {
                const Eight next = c[k] + twice[j] * last[j] - before[j];
                before[j] = last[j];
                last[j] = next;
            }
        for (int j = 0; j < 4; j++) *reinterpret_cast<Eight *>(y + first + 8 * j) = c[0] + t[j] * last[j] - before[j];
    }
}
void chebyshev(const std::vector<double> &c, const double *x, double low, double high, double *y) {
    chebyshev(c.data(), static_cast<int64_t>(c.size()), x, low, high, y);
}

template <class Fn> RESILIN_INLINE void each(Fn fn) {
    for (int64_t i = 0; i < BLOCK; i++) fn(i);
}

// log Gamma(x) - ((x - 1/2) log x - x + log(2 pi) / 2) for x >= 10
RESILIN_INLINE double stirling(double x) {
    const double square = 1 / (x * x);
    double total = 0;
    for (int k = 8; k > 0; k--) total = total * square + BERNOULLI[k - 1] / (2 * k * (2 * k - 1));
    return total / x;
}

// What the reflection formulas make of `found`, which is of 1 - x, for x < 0.
double reflected_lgamma(double x, double found) {
    return std::log(PI / std::fabs(std::sin(PI * (x - std::rint(x))))) - found;
}
double reflected_digamma(double x, double found) {
    const double part = x - std::rint(x);
    return part == 0 ? NOT_A_NUMBER : found - PI / std::tan(PI * part);
}

struct Shifted {
    Block up, y, before, moved;
};

// y in [1/2, 3] or, where the series of large numbers is meant, above; before: y - 1, exact also where adding 1 rounds;
// moved: what Gamma(y) is to be multiplied with
RESILIN_SIMD void shift_lgamma(const double *x, Shifted &s) {
    for (int64_t i = 0; i < BLOCK; i++) {
        const double up = x[i] < 0 ? 1 - x[i] : x[i];
        double y = up < 0.5 ? up + 1 : up > 13 ? 13.0 : up, before = up < 0.5 ? up : y - 1, product = 1;
        for (int step = 0; step < 10; step++) {
            const bool above = y > 3;
            y = above ? y - 1 : y;
            before = above ? before - 1 : before;
            product = above ? product * y : product;
        }
        s.up[i] = up;
        s.y[i] = y;
        s.before[i] = before;
        s.moved[i] = product;
    }
}

RESILIN_SIMD void finish_lgamma(const double *x, const Shifted &s, const double *series, double *out) {
    for (int64_t i = 0; i < BLOCK; i++) {
        const double up = s.up[i], large = up < 13 ? 13.0 : up;
        const double logarithm = log_(select((up >= 0.5) & (up < 13), s.moved[i], up));
        const double near = s.before[i] * (s.before[i] - 1) * series[i];
        const double far = (large - 0.5) * (logarithm - 1) + (HALF_LOG_TWO_PI - 0.5) + stirling(large);
        const double found = select(up < 13, near + (up < 0.5 ? -logarithm : logarithm), far); // NaN: far
        out[i] = select((x[i] == 0) | (__builtin_fabs(x[i]) == INF), INF, found);
    }
}

void lgamma_by(int64_t terms, const double *x, double *out) {
    Shifted s;
    Block series, given;
    std::copy_n(x, BLOCK, given); // `out` may be x
    shift_lgamma(given, s);
    chebyshev(tables.lgamma.data(), terms, s.y, 0.5, 3, series);
    finish_lgamma(given, s, series, out);
    each([&](int64_t i) { out[i] = given[i] < 0 && !std::isinf(given[i]) ? reflected_lgamma(given[i], out[i]) : out[i]; });
}

// For results that are rounded to float32 the terms of the series above 1e-11.
void lgamma(const double *x, double *out) { lgamma_by(static_cast<int64_t>(tables.lgamma.size()), x, out); }
void lgamma_of_float(const double *x, double *out) { lgamma_by(tables.lgamma_of_float, x, out); }

// y in [1, 2]; moved: the sum of 1 / (y + k) between it and x
RESILIN_SIMD void shift_digamma(const double *x, Shifted &s) {
    for (int64_t i = 0; i < BLOCK; i++) {
        const double up = x[i] < 0 ? 1 - x[i] : x[i];
        double y = up < 1 ? up + 1 : up > 10 ? 10.0 : up, shift = up < 1 ? -1 / up : 0.0;
        for (int step = 0; step < 8; step++) {
            const bool above = y > 2;
            y = above ? y - 1 : y;
            shift = above ? shift + 1 / y : shift;
        }
        s.up[i] = up;
        s.y[i] = y;
        s.moved[i] = shift;
    }
}

RESILIN_SIMD void finish_digamma(const double *x, const Shifted &s, const double *series, double *out) {
    for (int64_t i = 0; i < BLOCK; i++) {
        const double up = s.up[i], square = 1 / (up * up);
        double rest = 0;
        for (int k = 8; k > 0; k--) rest = (rest + BERNOULLI[k - 1] / (2 * k)) * square;
        const double near = (s.y[i] - DIGAMMA_ROOT - DIGAMMA_ROOT_REST) * series[i] + s.moved[i];
        const double found = select(up < 10, near, log_(up) - 0.5 / up - rest);
        out[i] = select(x[i] == 0, __builtin_copysign(INF, -x[i]), found);
    }
}

void digamma(const double *x, double *out) {
    Shifted s;
    Block series, given;
    std::copy_n(x, BLOCK, given); // `out` may be x
    shift_digamma(given, s);
    chebyshev(tables.digamma, s.y, 1, 2, series);
    finish_digamma(given, s, series, out);
    each([&](int64_t i) { out[i] = given[i] < 0 ? reflected_digamma(given[i], out[i]) : out[i]; });
}

// zeta(2, x) for x > 0 by Euler-Maclaurin from 12 on, as gamma.py's
RESILIN_INLINE double trigamma_right(double x) {
    double a = x, total = 0;
    for (int step = 0; step < 12; step++) {
        const bool near = a < 12;
        total += near ? 1 / (a * a) : 0.0;
        a = near ? a + 1 : a;
    }
    const double square = 1 / (a * a);
    double rest = 0; // the Bernoulli numbers over powers of a
    for (int k = 8; k > 0; k--) rest = (rest + BERNOULLI[k - 1]) * square;
    return total + (1 / a + (0.5 * square + rest / a));
}
RESILIN_SIMD void trigamma_block(const double *x, double *out) {
    for (int64_t i = 0; i < BLOCK; i++) out[i] = trigamma_right(x[i]);
}
void trigamma(const double *x, double *out) {
    Block given, right;
    std::copy_n(x, BLOCK, given); // `out` may be x
    each([&](int64_t i) { right[i] = given[i] < 0 ? given[i] - std::floor(given[i]) : given[i]; });
    trigamma_block(right, out);
    each([&](int64_t i) {
        const double a = given[i];
        if (a <= 0 && a == std::floor(a)) out[i] = INF;
        else if (a < 0) out[i] += trigamma_right(std::ceil(a) - a) - trigamma_right(1 - a);
        else if (a == INF) out[i] = 0;
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

// x >= 0 with erfc(x) = z <= 1: three steps of Newton's method for the logarithms, each of which doubles the digits
void erfc_inverse_right(const double *z, double *out) {
    Block scaled, logarithm;
    each([&](int64_t i) {
        logarithm[i] = std::log(z[i]);
        const double t = std::sqrt(-2 * std::log(z[i] / 2));
        const double top = 2.515517 + t * (0.802853 + t * 0.010328);
        const double bottom = 1 + t * (1.432788 + t * (0.189269 + t * 0.001308));
        out[i] = (t - top / bottom) / SQRT_TWO;
    });
    for (int step = 0; step < 3; step++) {
        erfcx(out, scaled);
        each([&](int64_t i) {
            const double off = std::log(scaled[i]) - out[i] * out[i] - logarithm[i];
            out[i] += off * scaled[i] * (SQRT_PI / 2);
        });
    }
    each([&](int64_t i) { out[i] = z[i] == 0 ? INF : z[i] < 0 ? NOT_A_NUMBER : out[i]; });
}

void ndtri(const double *p, double *out) {
    Block z, side, middle;
    each([&](int64_t i) {
        const double twice = 2 * p[i];
        z[i] = twice <= 1 ? twice : 2 - twice > 1 ? 1 : 2 - twice;
        middle[i] = std::fabs(1 - twice) < 0.5 ? 1 - twice : 0;
    });
    erfc_inverse_right(z, side);
    erfinv_doubles(middle, BLOCK, middle);
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
    for (const double c : tables.lgamma) tables.lgamma_of_float += std::fabs(c) > 1e-11;
}

} // namespace

void bind_special(nb::module_ &m) {
    m.def("special_tables", &take_tables);
    m.def("special_gammaln", &call<lgamma, lgamma_of_float>);
    m.def("special_digamma", &call<digamma>);
    m.def("special_trigamma", &call<trigamma>);
    m.def("special_erfcx", &call<erfcx>);
    m.def("special_ndtri", &call<ndtri>);
    m.def("special_i0", &call<i0>);
    m.def("special_i0e", &call<scaled_i0>);
    m.def("special_i1", &call<i1>);
    m.def("special_i1e", &call<scaled_i1>);
}

} // namespace resilin
