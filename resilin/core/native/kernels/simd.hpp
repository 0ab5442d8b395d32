// SIMD by the compiler: loops are branch-free so that it can vectorize them, RESILIN_SIMD compiles a function once per
// instruction set and picks at load time. Multiply-adds are fused where fma() says so and nowhere else, so an element's
// bits depend neither on the instruction set nor on whether it fell into a vector or a loop's tail. RESILIN_ONE_ISA
// builds the version of the compiler's own options only: sanitizers cannot start functions chosen at load time.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__) && !defined(RESILIN_ONE_ISA)
#define RESILIN_CHOOSES_ISA 1
#define RESILIN_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define RESILIN_SIMD
#endif
#define RESILIN_INLINE inline __attribute__((always_inline))

namespace resilin {

template <class To, class From> RESILIN_INLINE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

RESILIN_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
RESILIN_INLINE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

// Horner: the coefficients from the highest power down
RESILIN_INLINE float polynomial(float, float c) { return c; }
template <class... Rest> RESILIN_INLINE float polynomial(float x, float c0, float c1, Rest... rest) {
    return polynomial(x, fma(c0, x, c1), rest...);
}

// e^x for x <= 0 (and x a rounding error above) within 1 ulp; 0 where the result would be subnormal; NaN stays NaN.
// Range reduction by ln 2 in two parts and a polynomial on [-ln2/2, ln2/2] (coefficients: Cephes, expf).
RESILIN_INLINE float exp_low(float x) {
    x = x < -88.0f ? -88.0f : x;
    const float shifter = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer, 0x4B400000 + n as bits
    const float t = fma(x, 1.44269504f, shifter);
    const float k = t - shifter;
    const float r = fma(k, 2.12194440e-4f, fma(k, -0.693359375f, x));
    const float p = polynomial(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                               1.6666665459e-1f, 5.0000001201e-1f, 1.0f, 1.0f);
    return p * bit_cast<float>(static_cast<uint32_t>(bit_cast<int32_t>(t) + 127) << 23);
}

// e^x - 1 for x <= 0, without cancellation near 0; NaN stays NaN. As exp_low, with the 1 left out of the polynomial.
RESILIN_INLINE float expm1_low(float x) {
    x = x < -88.0f ? -88.0f : x;
    const float shifter = 12582912.0f;
    const float t = fma(x, 1.44269504f, shifter);
    const float k = t - shifter;
    const float r = fma(k, 2.12194440e-4f, fma(k, -0.693359375f, x));
    const float p = polynomial(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                               1.6666665459e-1f, 5.0000001201e-1f);
    const float scale = bit_cast<float>(static_cast<uint32_t>(bit_cast<int32_t>(t) + 127) << 23); // 2^k
    return fma(scale, fma(p, r * r, r), scale - 1.0f);
}

struct Logistic {
    float value, rest; // of u: 1 / (1 + e^-u) and 1 - that, both without cancellation
};
RESILIN_INLINE Logistic logistic(float u) {
    const float e = exp_low(-__builtin_fabsf(u)), r = 1.0f / (1.0f + e);
    const bool positive = u > 0.0f;
    return {positive ? r : e * r, positive ? e * r : r};
}

// Natural logarithm of a positive normal number, within 2 ulp (coefficients: Cephes, logf).
RESILIN_INLINE float log_(float x) {
    const int32_t u = bit_cast<int32_t>(x);
    int32_t e = (u >> 23) - 126;
    float m = bit_cast<float>((u & 0x007FFFFF) | 0x3F000000); // [0.5, 1)
    const bool low = m < 0.707106781f;
    e = low ? e - 1 : e;
    m = (low ? m + m : m) - 1.0f;
    const float z = m * m;
    const float p = polynomial(m, 7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f,
                                   1.4249322787e-1f, -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f,
                                   3.3333331174e-1f);
    const float fe = static_cast<float>(e);
    const float y = fma(-0.5f, z, fma(fe, -2.12194440e-4f, p * m * z));
    return fma(fe, 0.693359375f, m + y);
}

// The error function, within 4 ulp: x * P(x^2) / Q(x^2) on [-4, 4] (coefficients: Eigen, erf for float).
RESILIN_INLINE float erf_(float x) {
    x = x > 4.0f ? 4.0f : x;
    x = x < -4.0f ? -4.0f : x;
    const float z = x * x;
    const float p = polynomial(z, -2.72614225801306e-10f, 2.77068142495902e-08f, -2.10102402082508e-06f,
                                   -5.69250639462346e-05f, -7.34990630326855e-04f, -2.95459980854025e-03f,
                                   -1.60960333262415e-02f);
    const float q = polynomial(z, -1.45660718464996e-05f, -2.13374055278905e-04f, -1.68282697438203e-03f,
                                   -7.37332916720468e-03f, -1.42647390514189e-02f);
    return x * p / q;
}

typedef float Lanes __attribute__((vector_size(64), aligned(4), may_alias));
constexpr int64_t LANES = 16;
RESILIN_INLINE Lanes load(const float *x) {
    Lanes v;
    std::memcpy(&v, x, sizeof(v));
    return v;
}

// Sums along rows in fixed lanes, 16 of float32 and eight of float64, four times, folded in one tree: the same bits for every
// instruction set. A vector of 64 bytes goes by way of memory where the instruction set has none, so lanes are two of 32.
typedef float EightFloats __attribute__((vector_size(32), aligned(4), may_alias));
typedef double FourDoubles __attribute__((vector_size(32), aligned(8), may_alias));
template <class T> struct Packed;
template <> struct Packed<float> {
    using Vector = EightFloats;
};
template <> struct Packed<double> {
    using Vector = FourDoubles;
};
RESILIN_INLINE float fold_half(const EightFloats &v) {
    const auto four = __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
    const auto two = __builtin_shufflevector(four, four, 0, 1) + __builtin_shufflevector(four, four, 2, 3);
    return two[0] + two[1];
}
RESILIN_INLINE double fold_half(const FourDoubles &v) {
    const auto two = __builtin_shufflevector(v, v, 0, 1) + __builtin_shufflevector(v, v, 2, 3);
    return two[0] + two[1];
}

// The sum of terms: of(vector of elements at i) for whole vectors, and of one element at the row's end.
template <class T, class Vectors, class One> RESILIN_INLINE T sum_terms(int64_t n, const Vectors &of, const One &one) {
    using Vector = typename Packed<T>::Vector;
    constexpr int64_t half = 32 / sizeof(T), lanes = 2 * half;
    Vector a = {}, a_ = {}, b = {}, b_ = {}, c = {}, c_ = {}, d = {}, d_ = {};
    int64_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
        a += of(i), a_ += of(i + half);
        b += of(i + lanes), b_ += of(i + lanes + half);
        c += of(i + 2 * lanes), c_ += of(i + 2 * lanes + half);
        d += of(i + 3 * lanes), d_ += of(i + 3 * lanes + half);
    }
    for (; i + lanes <= n; i += lanes) a += of(i), a_ += of(i + half);
    T rest = T(0);
    if constexpr (sizeof(T) == sizeof(double)) {
        for (; i < n; i++) rest += one(i);
    } else if (i < n) {
        T block[half] = {};
        Vector last = {};
        const bool full = i + half <= n;
        if (full) b += of(i), i += half;
        for (int64_t k = 0; i + k < n; k++) block[k] = one(i + k);
        if (i < n) std::memcpy(&last, block, sizeof(last));
        if (full) b_ += last;
        else b += last;
    }
    return fold_half(((a + b) + (c + d)) + ((a_ + b_) + (c_ + d_))) + rest;
}
template <class T> RESILIN_INLINE auto vector_at(const T *x) {
    return *reinterpret_cast<const typename Packed<T>::Vector *>(x);
}
template <class T> RESILIN_INLINE T row_sum(const T *x, int64_t n) {
    return sum_terms<T>(n, [=](int64_t i) __attribute__((always_inline)) { return vector_at(x + i); },
                        [=](int64_t i) __attribute__((always_inline)) { return x[i]; });
}
template <class T> RESILIN_INLINE T row_dot(const T *x, const T *y, int64_t n) {
    return sum_terms<T>(n, [=](int64_t i) __attribute__((always_inline)) { return vector_at(x + i) * vector_at(y + i); },
                        [=](int64_t i) __attribute__((always_inline)) { return x[i] * y[i]; });
}
// of (x - mean) ** 2
template <class T> RESILIN_INLINE T row_square(const T *x, T mean, int64_t n) {
    return sum_terms<T>(n, [=](int64_t i) __attribute__((always_inline)) { const auto d = vector_at(x + i) - mean; return d * d; },
                        [=](int64_t i) __attribute__((always_inline)) { return (x[i] - mean) * (x[i] - mean); });
}

RESILIN_INLINE float sum_of(const float *x, int64_t n) { return row_sum(x, n); }
RESILIN_INLINE float dot_of(const float *x, const float *y, int64_t n) { return row_dot(x, y, n); }

// largest element, NaN ignored; -inf for n == 0
RESILIN_INLINE float max_of(const float *x, int64_t n) {
    float m = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : m)
    for (int64_t i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
    return m;
}

} // namespace resilin
