// Loops of functions that numpy has none for, or computes element by element. Results are numpy's own.
#include "elementwise/blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "kernels/simd.hpp"

#include <cmath>

namespace resilin {
namespace {

// The output may be one of the inputs, so that the loop's iterations are independent, which the compiler cannot know.
#define RESILIN_LOOP(name, T, result)                                                                                  \
    RESILIN_SIMD void name##_##T(const T *X, int64_t n, T *out) {                                                      \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                          \
            const T x = X[i];                                                                                          \
            out[i] = result;                                                                                           \
        }                                                                                                              \
    }
#define RESILIN_LOOP_2(name, T, result)                                                                                \
    RESILIN_SIMD void name##_##T(const T *X, const T *Y, int64_t n, T *out) {                                          \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                          \
            const T x = X[i], y = Y[i];                                                                                \
            out[i] = result;                                                                                           \
        }                                                                                                              \
    }
#define RESILIN_LOOPS(name, result) RESILIN_LOOP(name, float, result) RESILIN_LOOP(name, double, result)
#define RESILIN_LOOPS_2(name, result) RESILIN_LOOP_2(name, float, result) RESILIN_LOOP_2(name, double, result)

template <class T> RESILIN_INLINE T root(T x) { return sizeof(T) == 4 ? static_cast<T>(__builtin_sqrtf(static_cast<float>(x))) : static_cast<T>(__builtin_sqrt(static_cast<double>(x))); }
RESILIN_INLINE float whole_of(float x) { return __builtin_truncf(x); }
RESILIN_INLINE double whole_of(double x) { return __builtin_trunc(x); }

RESILIN_LOOPS(rsqrt, 1 / root(x))
RESILIN_LOOPS(reciprocal, 1 / x)
RESILIN_LOOPS(frac, x - whole_of(x))
RESILIN_LOOPS(sign, static_cast<decltype(x + x)>(x > 0 ? 1 : 0) - static_cast<decltype(x + x)>(x < 0 ? 1 : 0))
RESILIN_LOOPS_2(fmax, (x >= y) | (y != y) ? x : y)
RESILIN_LOOPS_2(fmin, (x <= y) | (y != y) ? x : y)

RESILIN_LOOP_2(hypot, float,
               (__builtin_fabsf(x) > std::numeric_limits<float>::max()) | (__builtin_fabsf(y) > std::numeric_limits<float>::max())
                   ? std::numeric_limits<float>::infinity()
                   : static_cast<float>(__builtin_sqrt(static_cast<double>(x) * x + static_cast<double>(y) * y)))

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
void ldexp_float(const float *X, const float *Y, int64_t n, float *out) {
    alignas(64) float found[BLOCK_ELEMENTS]; // `out` may be an input, which is looked at again
    float last = 0.0f;
    double power = 1.0;
    for (int64_t first = 0; first < n; first += BLOCK_ELEMENTS) {
        const int64_t count = std::min<int64_t>(BLOCK_ELEMENTS, n - first);
        const float *x = X + first, *y = Y + first;
        if (!whole_powers(x, y, count, found))
            for (int64_t i = 0; i < count; i++) {
                if (y[i] != last) { // often one number for all
                    last = y[i];
                    power = std::exp2(y[i] != y[i] ? static_cast<double>(y[i]) : std::fmin(std::fmax(y[i], -900.0), 900.0));
                }
                found[i] = static_cast<float>(x[i] * power);
            }
        std::memcpy(out + first, found, static_cast<size_t>(count) * sizeof(float));
    }
}

// -- remainders of float32, in float64, where the product of the divisor and a quotient of up to 29 bits is exact, and so
// is the quotient's whole part; of larger quotients and of what is not finite, libm's fmod

constexpr double EXACT = 1 << 29;

struct Divided {
    float rest;
    double quotient;
};
RESILIN_INLINE Divided divided(float x, float y) {
    const double a = x, b = y, quotient = __builtin_trunc(a / b);
    return {__builtin_copysignf(static_cast<float>(a - quotient * b), x), quotient};
}
bool is_exact(float x, float y) {
    return std::fabs(divided(x, y).quotient) < EXACT && std::fabs(y) <= std::numeric_limits<float>::max();
}

// whether one of both is below 0, as a mask; for numbers that are not 0
RESILIN_INLINE int32_t signs_differ(float a, float b) { return (bit_cast<int32_t>(a) ^ bit_cast<int32_t>(b)) >> 31; }
RESILIN_INLINE float where_set(int32_t mask, float x) { return bit_cast<float>(mask & bit_cast<int32_t>(x)); }

RESILIN_INLINE float rest_like_divisor(float rest, float y) {
    const float moved = rest + where_set(signs_differ(rest, y), y);
    return rest != 0 ? moved : __builtin_copysignf(0.0f, y);
}
RESILIN_INLINE float floored(float x, float y, float rest) {
    float quotient = (x - rest) / y;
    quotient -= rest != 0 ? where_set(signs_differ(rest, y), 1.0f) : 0.0f;
    const float below = __builtin_floorf(quotient), nearest = quotient - below > 0.5f ? below + 1.0f : below;
    return quotient != 0 ? nearest : __builtin_copysignf(0.0f, x / y);
}

float of_rest(float, float, float rest) { return rest; }
float remainder_of(float, float y, float rest) { return y == 0 || rest != rest ? rest : rest_like_divisor(rest, y); }
float floor_of(float x, float y, float rest) { return y == 0 ? x / y : floored(x, y, rest); }

#define RESILIN_DIVISION(name, fast, slow)                                                                             \
    RESILIN_SIMD int name##_block(const float *X, const float *Y, int64_t n, float *out) {                             \
        double most = 0.0; /* of the quotients: NaN and infinity are more than EXACT */                                \
        float divisor = 0.0f;                                                                                          \
        int unordered = 0;                                                                                             \
        _Pragma("omp simd reduction(max : most, divisor) reduction(| : unordered)") for (int64_t i = 0; i < n; i++) {  \
            const float x = X[i], y = Y[i], size = __builtin_fabsf(y);                                                 \
            const Divided d = divided(x, y);                                                                           \
            const float rest = d.rest;                                                                                 \
            const double quotient = __builtin_fabs(d.quotient);                                                        \
            out[i] = fast;                                                                                             \
            most = quotient > most ? quotient : most;                                                                  \
            divisor = size > divisor ? size : divisor;                                                                 \
            unordered |= quotient != quotient;                                                                         \
        }                                                                                                              \
        return most < EXACT && divisor <= std::numeric_limits<float>::max() && !unordered;                             \
    }                                                                                                                  \
    void name##_float(const float *X, const float *Y, int64_t n, float *out) {                                         \
        alignas(64) float found[BLOCK_ELEMENTS]; /* `out` may be an input, which is looked at again */                 \
        for (int64_t first = 0; first < n; first += BLOCK_ELEMENTS) {                                                  \
            const int64_t count = std::min<int64_t>(BLOCK_ELEMENTS, n - first);                                        \
            const float *x = X + first, *y = Y + first;                                                                \
            if (!name##_block(x, y, count, found))                                                                     \
                for (int64_t i = 0; i < count; i++)                                                                    \
                    if (!is_exact(x[i], y[i])) found[i] = slow(x[i], y[i], std::fmod(x[i], y[i]));                \
            std::memcpy(out + first, found, static_cast<size_t>(count) * sizeof(float));                               \
        }                                                                                                              \
    }

RESILIN_DIVISION(fmod, rest, of_rest)
RESILIN_DIVISION(remainder, rest_like_divisor(rest, y), remainder_of)
RESILIN_DIVISION(floor_divide, floored(x, y, rest), floor_of)

struct Own {
    const char *name;
    int type, inputs;
    Loop loop;
};

#define RESILIN_OWN(name)                                                                                              \
    {#name, NPY_FLOAT, 1, loop_of_one<float, float, name##_float>}, {                                                  \
        #name, NPY_DOUBLE, 1, loop_of_one<double, double, name##_double>                                               \
    }
#define RESILIN_OWN_2(name)                                                                                            \
    {#name, NPY_FLOAT, 2, loop_of_two<float, float, name##_float>}, {                                                  \
        #name, NPY_DOUBLE, 2, loop_of_two<double, double, name##_double>                                               \
    }

const Own OWN[] = {
    RESILIN_OWN(rsqrt),
    RESILIN_OWN(reciprocal),
    RESILIN_OWN(frac),
    RESILIN_OWN(sign),
    RESILIN_OWN_2(fmax),
    RESILIN_OWN_2(fmin),
    {"exp", NPY_FLOAT, 1, loop_of_one<float, float, exp_float>},
    {"ldexp", NPY_FLOAT, 2, loop_of_two<float, float, ldexp_float>},
    {"hypot", NPY_FLOAT, 2, loop_of_two<float, float, hypot_float>},
    {"fmod", NPY_FLOAT, 2, loop_of_two<float, float, fmod_float>},
    {"remainder", NPY_FLOAT, 2, loop_of_two<float, float, remainder_float>},
    {"floor_divide", NPY_FLOAT, 2, loop_of_two<float, float, floor_divide_float>},
};

} // namespace

TypeLoop own_loop(const char *name, int type, int &inputs) {
    for (const Own &own : OWN)
        if (own.type == type && !std::strcmp(own.name, name)) {
            inputs = own.inputs;
            return {own.loop, nullptr, type};
        }
    return {};
}

} // namespace resilin
