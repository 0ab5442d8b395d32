// Remainders of float32 in float64, where the product of the divisor and a quotient of up to 29 bits is exact, and so is
// the quotient's whole part; of float64 by a fused multiply-add, which is exact for quotients of up to 52 bits that may be
// one too large. Of larger quotients and of what is not finite, libm's fmod.
#include "elementwise/divisions.hpp"
#include "elementwise/blocks.hpp"
#include "kernels/simd.hpp"

#include <cmath>
#include <limits>

namespace resilin {
namespace {

template <class T> struct Divided {
    T rest;
    double quotient; // less than EXACT<T>, or the rest is wrong
};
template <class T> constexpr double EXACT = sizeof(T) == 4 ? double{1 << 29} : 4503599627370496.0;

RESILIN_INLINE Divided<float> divided(float x, float y) {
    const double a = x, b = y, quotient = __builtin_trunc(a / b);
    return {__builtin_copysignf(static_cast<float>(a - quotient * b), x), quotient};
}
RESILIN_INLINE Divided<double> divided(double x, double y) {
    const double quotient = __builtin_trunc(x / y), rest = __builtin_fma(-quotient, y, x);
    const bool over = (rest != 0) & ((bit_cast<int64_t>(rest) ^ bit_cast<int64_t>(x)) < 0);
    return {__builtin_copysign(over ? rest + __builtin_copysign(y, x) : rest, x), quotient};
}
template <class T> bool is_exact(T x, T y) {
    return std::fabs(divided(x, y).quotient) < EXACT<T> && std::fabs(y) <= std::numeric_limits<T>::max();
}

// whether one of both is below 0; for numbers that are not 0
RESILIN_INLINE bool signs_differ(float a, float b) { return (bit_cast<int32_t>(a) ^ bit_cast<int32_t>(b)) < 0; }
RESILIN_INLINE bool signs_differ(double a, double b) { return (bit_cast<int64_t>(a) ^ bit_cast<int64_t>(b)) < 0; }
RESILIN_INLINE float signed_as(float a, float b) { return __builtin_copysignf(a, b); }
RESILIN_INLINE double signed_as(double a, double b) { return __builtin_copysign(a, b); }
RESILIN_INLINE float below(float x) { return __builtin_floorf(x); }
RESILIN_INLINE double below(double x) { return __builtin_floor(x); }

template <class T> RESILIN_INLINE T rest_like_divisor(T rest, T y) {
    const T moved = signs_differ(rest, y) ? rest + y : rest;
    return rest != 0 ? moved : signed_as(T(0), y);
}
template <class T> RESILIN_INLINE T floored(T x, T y, T rest) {
    const T whole = (x - rest) / y, less = whole - T(1), quotient = (rest != 0) & signs_differ(rest, y) ? less : whole;
    const T low = below(quotient), nearest = quotient - low > T(0.5) ? low + T(1) : low;
    return quotient != 0 ? nearest : signed_as(T(0), x / y);
}

template <class T> T fmod_of(T, T, T rest) { return rest; }
template <class T> T remainder_of(T, T y, T rest) { return y == 0 || rest != rest ? rest : rest_like_divisor(rest, y); }
template <class T> T floor_divide_of(T x, T y, T rest) { return y == 0 ? x / y : floored(x, y, rest); }

} // namespace

#define RESILIN_DIVISION(name, T, fast)                                                                                \
    static RESILIN_SIMD bool name##_block(const T *X, const T *Y, int64_t n, T *out) {                                 \
        double most = 0.0; /* of the quotients */                                                                      \
        T divisor = 0;                                                                                                 \
        int unordered = 0;                                                                                             \
        _Pragma("omp simd reduction(max : most, divisor) reduction(| : unordered)") for (int64_t i = 0; i < n; i++) {  \
            const T x = X[i], y = Y[i], size = y < 0 ? -y : y;                                                         \
            const Divided<T> d = divided(x, y);                                                                        \
            const T rest = d.rest;                                                                                     \
            const double quotient = __builtin_fabs(d.quotient);                                                        \
            out[i] = fast;                                                                                             \
            most = quotient > most ? quotient : most;                                                                  \
            divisor = size > divisor ? size : divisor;                                                                 \
            unordered |= quotient != quotient;                                                                         \
        }                                                                                                              \
        return most < EXACT<T> && divisor <= std::numeric_limits<T>::max() && !unordered;                              \
    }                                                                                                                  \
    void name##_##T(const T *X, const T *Y, int64_t n, T *out) {                                                       \
        alignas(64) T found[BLOCK_ELEMENTS]; /* `out` may be an input, which is looked at again */                     \
        for (int64_t first = 0; first < n; first += BLOCK_ELEMENTS) {                                                  \
            const int64_t count = std::min<int64_t>(BLOCK_ELEMENTS, n - first);                                        \
            const T *x = X + first, *y = Y + first;                                                                    \
            if (!name##_block(x, y, count, found))                                                                     \
                for (int64_t i = 0; i < count; i++)                                                                    \
                    if (!is_exact(x[i], y[i])) found[i] = name##_of(x[i], y[i], std::fmod(x[i], y[i]));                \
            std::memcpy(out + first, found, static_cast<size_t>(count) * sizeof(T));                                   \
        }                                                                                                              \
    }

#define RESILIN_DIVISIONS(name, fast) RESILIN_DIVISION(name, float, fast) RESILIN_DIVISION(name, double, fast)
RESILIN_DIVISIONS(fmod, rest)
RESILIN_DIVISIONS(remainder, rest_like_divisor(rest, y))
RESILIN_DIVISIONS(floor_divide, floored(x, y, rest))

} // namespace resilin
