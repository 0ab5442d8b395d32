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

// -- remainders of float32, in float64, where the product of the divisor and a quotient of up to 29 bits is exact, and so
// is the quotient's whole part; of larger quotients and of what is not finite, libm's fmod

constexpr double EXACT = 1 << 29;

struct Divided {
    float rest;
    bool exact;
};
RESILIN_INLINE Divided divided(float x, float y) {
    const double a = x, b = y, quotient = __builtin_trunc(a / b);
    const bool exact = (__builtin_fabs(quotient) < EXACT) & (__builtin_fabsf(y) <= std::numeric_limits<float>::max());
    return {__builtin_copysignf(static_cast<float>(a - quotient * b), x), exact};
}

RESILIN_INLINE float rest_like_divisor(float rest, float y) {
    const float moved = (y < 0) != (rest < 0) ? rest + y : rest;
    return rest != 0 ? moved : __builtin_copysignf(0.0f, y);
}
RESILIN_INLINE float floored(float x, float y, float rest) {
    float quotient = (x - rest) / y;
    quotient = (rest != 0) & ((y < 0) != (rest < 0)) ? quotient - 1.0f : quotient;
    const float below = __builtin_floorf(quotient), nearest = quotient - below > 0.5f ? below + 1.0f : below;
    return quotient != 0 ? nearest : __builtin_copysignf(0.0f, x / y);
}

float of_rest(float, float, float rest) { return rest; }
float remainder_of(float, float y, float rest) { return y == 0 || rest != rest ? rest : rest_like_divisor(rest, y); }
float floor_of(float x, float y, float rest) { return y == 0 ? x / y : floored(x, y, rest); }

#define RESILIN_DIVISION(name, fast, slow)                                                                             \
    RESILIN_SIMD int name##_block(const float *X, const float *Y, int64_t n, float *out) {                             \
        int all = 1;                                                                                                   \
        _Pragma("omp simd reduction(& : all)") for (int64_t i = 0; i < n; i++) {                                       \
            const float x = X[i], y = Y[i];                                                                            \
            const Divided d = divided(x, y);                                                                           \
            const float rest = d.rest;                                                                                 \
            out[i] = fast;                                                                                             \
            all &= d.exact;                                                                                            \
        }                                                                                                              \
        return all;                                                                                                    \
    }                                                                                                                  \
    void name##_float(const float *X, const float *Y, int64_t n, float *out) {                                         \
        alignas(64) float found[BLOCK_ELEMENTS]; /* `out` may be an input, which is looked at again */                 \
        for (int64_t first = 0; first < n; first += BLOCK_ELEMENTS) {                                                  \
            const int64_t count = std::min<int64_t>(BLOCK_ELEMENTS, n - first);                                        \
            const float *x = X + first, *y = Y + first;                                                                \
            if (!name##_block(x, y, count, found))                                                                     \
                for (int64_t i = 0; i < count; i++)                                                                    \
                    if (!divided(x[i], y[i]).exact) found[i] = slow(x[i], y[i], std::fmod(x[i], y[i]));                \
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
