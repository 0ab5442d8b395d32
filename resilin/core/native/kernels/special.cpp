// Special functions of one argument by the formulas of gamma.py, bessel.py and ops/special.py, in float64.
//
// A block of elements goes through a formula's steps one after another, so that its series are loops over the block,
// which the compiler vectorizes. Every value of a block is computed alike, wherever it lies.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "elementwise/double_gamma.hpp"
#include "elementwise/error_functions.hpp"
#include "memory/parallel.hpp"
#include "kernels/double_spans.hpp"
#include "simd.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t BLOCK = 64;
constexpr double SQRT_PI = 1.7724538509055159;
constexpr double SQRT_TWO = 1.4142135623730951, INF = std::numeric_limits<double>::infinity();
constexpr double NOT_A_NUMBER = std::numeric_limits<double>::quiet_NaN();

// Chebyshev coefficients by their names in chebyshev_tables.py, which hands them over once.
struct Tables {
    std::vector<double> erfcx;
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

RESILIN_SPANS(gammaln_span, lgamma_of)
RESILIN_SPANS(digamma_span, digamma_of)
template <Digits digits> RESILIN_INLINE double i0_of(double x) { return bessel<digits, false>(x); }
template <Digits digits> RESILIN_INLINE double i1_of(double x) { return bessel<digits, true>(x); }
template <Digits digits> RESILIN_INLINE double i0e_of(double x) { return scaled_bessel<digits, false>(x); }
template <Digits digits> RESILIN_INLINE double i1e_of(double x) { return scaled_bessel<digits, true>(x); }
RESILIN_SPANS(i0_span, i0_of)
RESILIN_SPANS(i1_span, i1_of)
RESILIN_SPANS(i0e_span, i0e_of)
RESILIN_SPANS(i1e_span, i1e_of)

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

template <Formula formula, class T> void blocks_of(const T *x, int64_t begin, int64_t end, T *y) {
    by_blocks(formula, x, begin, end, y);
}
template <Formula formula> constexpr Both by_formula{blocks_of<formula, float>, blocks_of<formula, double>};

std::vector<double> list_of(const nb::dict &given, const char *name) {
    std::vector<double> found;
    for (nb::handle value : given[name]) found.push_back(nb::cast<double>(value));
    return found;
}

void take_tables(const nb::dict &given) {
    tables = {list_of(given, "ERFCX")};
}

} // namespace

void bind_special(nb::module_ &m) {
    m.def("special_tables", &take_tables);
    m.def("special_gammaln", &spanned<gammaln_span>);
    m.def("special_digamma", &spanned<digamma_span>);
    m.def("special_trigamma", &spanned<by_formula<trigamma>>);
    m.def("special_erfcx", &spanned<by_formula<erfcx>>);
    m.def("special_ndtri", &spanned<by_formula<ndtri>>);
    m.def("special_i0", &spanned<i0_span>);
    m.def("special_i0e", &spanned<i0e_span>);
    m.def("special_i1", &spanned<i1_span>);
    m.def("special_i1e", &spanned<i1e_span>);
}

} // namespace resilin
