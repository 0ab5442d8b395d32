// Loops of functions that numpy has none for, or computes element by element. Results are numpy's own.
#include "elementwise/divisions.hpp"
#include "elementwise/double_logarithms.hpp"
#include "elementwise/double_loops.hpp"
#include "elementwise/integers.hpp"
#include "elementwise/named_loops.hpp"
#include "elementwise/single_loops.hpp"

#include <cmath>

namespace resilin {
namespace {

#define RESILIN_LOOPS(name, result) RESILIN_LOOP(name, float, result) RESILIN_LOOP(name, double, result)
#define RESILIN_LOOPS_2(name, result) RESILIN_LOOP_2(name, float, result) RESILIN_LOOP_2(name, double, result)

template <class T> RESILIN_INLINE T root(T x) { return sizeof(T) == 4 ? static_cast<T>(__builtin_sqrtf(static_cast<float>(x))) : static_cast<T>(__builtin_sqrt(static_cast<double>(x))); }
RESILIN_INLINE float whole_of(float x) { return __builtin_truncf(x); }
RESILIN_INLINE double whole_of(double x) { return __builtin_trunc(x); }

RESILIN_LOOPS(rsqrt, 1 / root(x))
RESILIN_LOOPS(reciprocal, 1 / x)
RESILIN_LOOPS(frac, x - whole_of(x))
RESILIN_LOOPS(sign, static_cast<decltype(x + x)>(x > 0 ? 1 : 0) - static_cast<decltype(x + x)>(x < 0 ? 1 : 0))
RESILIN_LOOPS(cube, x *x *x)
RESILIN_LOOPS(inverse_square, 1 / (x * x))
RESILIN_LOOPS_2(trunc_divide, whole_of(x / y))
RESILIN_LOOPS_2(prelu, x > 0 ? x : x * y)
RESILIN_LOOPS_2(fmax, (x >= y) | (y != y) ? x : y)
RESILIN_LOOPS_2(fmin, (x <= y) | (y != y) ? x : y)

RESILIN_LOOPS(relu, x < 0 ? 0 : x)
RESILIN_LOOPS(without_nan, x != x ? 0 : x)

// of 16-bit floats, whose first bit is the sign
RESILIN_LOOP(negative, uint16_t, static_cast<uint16_t>(x ^ 0x8000))
RESILIN_LOOP(absolute, uint16_t, static_cast<uint16_t>(x & 0x7FFF))
RESILIN_LOOP(absolute, float, __builtin_fabsf(x))
RESILIN_LOOP(absolute, double, __builtin_fabs(x))

// of complex numbers of float32, both of whose signs change; of float64
RESILIN_LOOP(negative, uint64_t, x ^ 0x8000000080000000)
struct Pair {
    uint64_t parts[2];
};
RESILIN_SIMD void negative_pair(const Pair *x, int64_t n, Pair *out) {
    const auto *from = reinterpret_cast<const uint64_t *>(x);
    auto *to = reinterpret_cast<uint64_t *>(out);
    _Pragma("omp simd") for (int64_t i = 0; i < 2 * n; i++) to[i] = from[i] ^ (uint64_t{1} << 63);
}

// x, moved by one in the order of all numbers, which is that of their bits but for the sign
template <class T, class Bits> RESILIN_INLINE T next_of(T x, T y) {
    const Bits bits = bit_cast<Bits>(x);
    const T smallest = y < 0 ? -std::numeric_limits<T>::denorm_min() : std::numeric_limits<T>::denorm_min();
    const T moved = bit_cast<T>(static_cast<Bits>((x < y) == (x > 0) ? bits + 1 : bits - 1));
    const T next = x == 0 ? smallest : moved;
    return (x != x) | (y != y) ? x + y : x == y ? y : next;
}
RESILIN_LOOP_2(nextafter, float, (next_of<float, int32_t>(x, y)))
RESILIN_LOOP_2(nextafter, double, (next_of<double, int64_t>(x, y)))

RESILIN_LOOP_2(hypot, float,
               (__builtin_fabsf(x) > std::numeric_limits<float>::max()) | (__builtin_fabsf(y) > std::numeric_limits<float>::max())
                   ? std::numeric_limits<float>::infinity()
                   : static_cast<float>(__builtin_sqrt(static_cast<double>(x) * x + static_cast<double>(y) * y)))

// log(e^a + e^b)
RESILIN_INLINE double log_of_sum(double a, double b) {
    const double beyond = log1p_(exp_(-__builtin_fabs(a - b)), 0.0);
    return select(a == b, a + 0.6931471805599453, (a > b ? a : b) + beyond); // NaN: `beyond` is
}
RESILIN_LOOP_2(logaddexp, double, log_of_sum(x, y))

RESILIN_LOOP_2(copysign, float, __builtin_copysignf(x, y))
RESILIN_LOOP_2(copysign, double, __builtin_copysign(x, y))
RESILIN_LOOP_2(copysign, uint16_t, static_cast<uint16_t>((x & 0x7FFF) | (y & 0x8000)))

// With both numbers scaled so that the larger lies in [1, 2), exactly, the root's rest is put back: within 1 ulp
// (correction: Borges, "An improved algorithm for hypot(a, b)").
RESILIN_INLINE double hypot_of(double x, double y) {
    const double a = __builtin_fabs(x), b = __builtin_fabs(y), most = a > b ? a : b, least = a > b ? b : a;
    int64_t power = (bit_cast<int64_t>(most) >> 52) - 1023; // of subnormal numbers, -1023, after which they stay small
    power = power < -1000 ? -1000 : power > 1022 ? 1022 : power;
    const double scale = bit_cast<double>((1023 - power) << 52), back = bit_cast<double>((1023 + power) << 52);
    const double p = most * scale, q = least * scale, root = __builtin_sqrt(fma(p, p, q * q));
    const double square = root * root, large = p * p;
    const double off = fma(-q, q, square - large) + fma(root, root, -square) - fma(p, p, -large);
    const double found = (root - select(root > 0.0, off / (2.0 * root), 0.0)) * back;
    const double infinite = std::numeric_limits<double>::infinity();
    return select((a == infinite) | (b == infinite), infinite, select((x == x) & (y == y), found, x + y));
}
RESILIN_LOOP_2(hypot, double, hypot_of(x, y))

// e^x within 1 ulp, for all x (polynomial: Cephes, expf): 2^n in two factors, of which neither overflows
RESILIN_INLINE float exp_of(float x) {
    const float inside = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x; // NaN stays
    const float shifter = 12582912.0f;                                 // 1.5 * 2^23: adding it rounds to an integer
    const float t = fma(inside, 1.44269504f, shifter), k = t - shifter;
    const float r = fma(k, 2.12194440e-4f, fma(k, -0.693359375f, inside));
    const float p = polynomial(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                               1.6666665459e-1f, 5.0000001201e-1f, 1.0f, 1.0f);
    const int32_t n = bit_cast<int32_t>(t) - 0x4B400000, half = n >> 1;
    return p * bit_cast<float>((half + 127) << 23) * bit_cast<float>((n - half + 127) << 23);
}
RESILIN_LOOP(exp, float, exp_of(x))

// 2^x within 1 ulp: e^(f ln 2) of what is left beside the nearest integer, with exp_of's polynomial
RESILIN_INLINE float exp2_of(float x) {
    const float inside = x > 129.0f ? 129.0f : x < -151.0f ? -151.0f : x; // NaN stays
    const float shifter = 12582912.0f, t = inside + shifter, r = (inside - (t - shifter)) * 0.693147181f;
    const float p = polynomial(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                               1.6666665459e-1f, 5.0000001201e-1f, 1.0f, 1.0f);
    const int32_t n = bit_cast<int32_t>(t) - 0x4B400000, half = n >> 1;
    return p * bit_cast<float>((half + 127) << 23) * bit_cast<float>((n - half + 127) << 23);
}
RESILIN_LOOP(exp2, float, exp2_of(x))

// x * 2^y, in float64, where neither the power nor the product leaves the range
RESILIN_SIMD bool whole_powers(const float *X, const float *Y, int64_t n, float *out) {
    int whole = 1;
    _Pragma("omp simd reduction(& : whole)") for (int64_t i = 0; i < n; i++) {
        const float y = Y[i] > 900.0f ? 900.0f : Y[i] < -900.0f ? -900.0f : Y[i];
        const int32_t power = static_cast<int32_t>(y);
        whole &= static_cast<float>(power) == y;
        out[i] = static_cast<float>(X[i] * bit_cast<double>(static_cast<int64_t>(power + 1023) << 52));
    }
    return whole;
}
double power_of_two(float y) {
    return std::exp2(y != y ? static_cast<double>(y) : std::fmin(std::fmax(y, -900.0), 900.0));
}
RESILIN_SIMD bool all_equal(const float *x, int64_t n) {
    int equal = 1;
    const float first = x[0];
    _Pragma("omp simd reduction(& : equal)") for (int64_t i = 0; i < n; i++) equal &= x[i] == first;
    return equal;
}
RESILIN_SIMD void scale_by(const float *x, double factor, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = static_cast<float>(x[i] * factor);
}
void ldexp_float(const float *X, const float *Y, int64_t n, float *out) {
    alignas(64) float found[BLOCK_ELEMENTS]; // `out` may be an input, which is looked at again
    float last = 0.0f;
    double power = 1.0;
    for (int64_t first = 0; first < n; first += BLOCK_ELEMENTS) {
        const int64_t count = std::min<int64_t>(BLOCK_ELEMENTS, n - first);
        const float *x = X + first, *y = Y + first;
        if (all_equal(y, count)) { // often one number for all
            if (first == 0 || y[0] != last) power = power_of_two(last = y[0]);
            scale_by(x, power, count, found);
        } else if (!whole_powers(x, y, count, found)) {
            for (int64_t i = 0; i < count; i++) found[i] = static_cast<float>(x[i] * power_of_two(y[i]));
        }
        std::memcpy(out + first, found, static_cast<size_t>(count) * sizeof(float));
    }
}

// -- circular functions of float64: pi / 2 in three parts, of which the first two times a quotient of 20 bits are exact
// (constants and polynomials: fdlibm); of larger numbers libm's

constexpr double LARGE = 1e6;

struct Turned {
    double sin, cos; // of what is left of x beside the nearest multiple of pi / 2
    int64_t quarter;
};
RESILIN_INLINE Turned turned(double x) {
    const double shifter = 6755399441055744.0; // 1.5 * 2^52: adding it rounds to an integer
    const double t = x * 6.36619772367581382433e-01 + shifter, q = t - shifter;
    const double first = x - q * 1.57079632673412561417e+00, second = first - q * 6.07710050630396597660e-11;
    const double r = second - q * 2.02226624879595063154e-21, z = r * r;
    double s = 1.58969099521155010221e-10;
    s = s * z - 2.50507602534068634195e-08;
    s = s * z + 2.75573137070700676789e-06;
    s = s * z - 1.98412698298579493134e-04;
    s = s * z + 8.33333333332248946124e-03;
    s = s * z - 1.66666666666666324348e-01;
    double c = -1.13596475577881948265e-11;
    c = c * z + 2.08757232129817482790e-09;
    c = c * z - 2.75573143513906633035e-07;
    c = c * z + 2.48015872894767294178e-05;
    c = c * z - 1.38888888888741095749e-03;
    c = c * z + 4.16666666666666019037e-02;
    const double half = 0.5 * z, one = 1.0 - half;
    return {r + r * z * s, one + ((1.0 - one - half) + z * z * c), bit_cast<int64_t>(t)};
}
RESILIN_INLINE double by_quarter(double sin, double cos, int64_t quarter) {
    const double found = quarter & 1 ? cos : sin;
    return quarter & 2 ? -found : found;
}

#define RESILIN_CIRCULAR(name, result, slow)                                                                           \
    RESILIN_SIMD double name##_block(const double *X, int64_t n, double *out) {                                        \
        double most = 0.0;                                                                                             \
        int unordered = 0;                                                                                             \
        _Pragma("omp simd reduction(max : most) reduction(| : unordered)") for (int64_t i = 0; i < n; i++) {           \
            const double x = X[i], size = __builtin_fabs(x);                                                           \
            const Turned t = turned(x);                                                                                \
            out[i] = result;                                                                                           \
            most = size > most ? size : most;                                                                          \
            unordered |= x != x;                                                                                       \
        }                                                                                                              \
        return unordered ? LARGE : most;                                                                               \
    }                                                                                                                  \
    void name##_double(const double *X, int64_t n, double *out) {                                                      \
        alignas(64) double found[BLOCK_ELEMENTS]; /* `out` may be the input, which is looked at again */               \
        for (int64_t first = 0; first < n; first += BLOCK_ELEMENTS) {                                                  \
            const int64_t count = std::min<int64_t>(BLOCK_ELEMENTS, n - first);                                        \
            if (name##_block(X + first, count, found) >= LARGE)                                                        \
                for (int64_t i = 0; i < count; i++)                                                                    \
                    if (!(std::fabs(X[first + i]) < LARGE)) found[i] = slow(X[first + i]);                             \
            std::memcpy(out + first, found, static_cast<size_t>(count) * sizeof(double));                              \
        }                                                                                                              \
    }
RESILIN_CIRCULAR(sin, by_quarter(t.sin, t.cos, t.quarter), std::sin)
RESILIN_CIRCULAR(cos, by_quarter(t.sin, t.cos, t.quarter + 1), std::cos)

// what is true of elements
#define RESILIN_TEST_2(name, T, result)                                                                                \
    RESILIN_SIMD void name##_##T(const T *X, const T *Y, int64_t n, uint8_t *out) {                                    \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                          \
            const bool x = X[i] != 0, y = Y[i] != 0;                                                                   \
            out[i] = result;                                                                                           \
        }                                                                                                              \
    }
#define RESILIN_TESTS_2(name, result)                                                                                  \
    RESILIN_TEST_2(name, float, result) RESILIN_TEST_2(name, double, result) RESILIN_TEST_2(name, int64_t, result)
RESILIN_TESTS_2(logical_and, x &y)
RESILIN_TESTS_2(logical_or, x | y)
RESILIN_TESTS_2(logical_xor, x ^ y)
RESILIN_SIMD void signbit_int64_t(const int64_t *x, int64_t n, uint8_t *out) {
    for (int64_t i = 0; i < n; i++) out[i] = x[i] < 0;
}

#define RESILIN_OWN(name) RESILIN_NAMED(name, float), RESILIN_NAMED(name, double)
#define RESILIN_OWN_2(name) RESILIN_NAMED_2(name, float), RESILIN_NAMED_2(name, double)
#define RESILIN_OWN_TEST(name)                                                                                         \
    {#name, NPY_FLOAT, 2, loop_of_two<float, uint8_t, name##_float>, NPY_BOOL},                                        \
        {#name, NPY_DOUBLE, 2, loop_of_two<double, uint8_t, name##_double>, NPY_BOOL}, {                               \
        #name, NPY_INT64, 2, loop_of_two<int64_t, uint8_t, name##_int64_t>, NPY_BOOL                                   \
    }

const NamedLoop OWN[] = {
    RESILIN_OWN_TEST(logical_and),
    RESILIN_OWN_TEST(logical_or),
    RESILIN_OWN_TEST(logical_xor),
    {"signbit", NPY_INT64, 1, loop_of_one<int64_t, uint8_t, signbit_int64_t>, NPY_BOOL},
    RESILIN_OWN(rsqrt),
    RESILIN_OWN(reciprocal),
    RESILIN_OWN(frac),
    RESILIN_OWN(sign),
    RESILIN_OWN(cube),
    RESILIN_OWN(inverse_square),
    RESILIN_OWN(relu),
    RESILIN_OWN(without_nan),
    {"negative", NPY_HALF, 1, loop_of_one<uint16_t, uint16_t, negative_uint16_t>},
    {"negative", NPY_CFLOAT, 1, loop_of_one<uint64_t, uint64_t, negative_uint64_t>},
    {"negative", NPY_CDOUBLE, 1, loop_of_one<Pair, Pair, negative_pair>},
    RESILIN_OWN_2(nextafter),
    {"absolute", NPY_HALF, 1, loop_of_one<uint16_t, uint16_t, absolute_uint16_t>},
    RESILIN_OWN(absolute),
    RESILIN_OWN_2(trunc_divide),
    RESILIN_OWN_2(prelu),
    RESILIN_OWN_2(fmax),
    RESILIN_OWN_2(fmin),
    RESILIN_NAMED(sin, double),
    RESILIN_NAMED(cos, double),
    RESILIN_NAMED(exp, float),
    RESILIN_NAMED(exp2, float),
    RESILIN_NAMED_2(ldexp, float),
    RESILIN_NAMED_2(hypot, float),
    RESILIN_NAMED_2(hypot, double),
    RESILIN_NAMED_2(logaddexp, double),
    {"copysign", NPY_HALF, 2, loop_of_two<uint16_t, uint16_t, copysign_uint16_t>},
    RESILIN_OWN_2(copysign),
    RESILIN_OWN_2(fmod),
    RESILIN_OWN_2(remainder),
    RESILIN_OWN_2(floor_divide),
};

} // namespace

TypeLoop own_loop(const char *name, int type, int &inputs) {
    TypeLoop found = found_in(OWN, name, type, inputs);
    for (const auto others : {single_loop, double_loop, integer_loop})
        if (!found.loop) found = others(name, type, inputs);
    return found;
}

} // namespace resilin
