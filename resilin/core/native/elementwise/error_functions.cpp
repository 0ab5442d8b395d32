#include "elementwise/error_functions.hpp"
#include "kernels/simd.hpp"

namespace resilin {
namespace {

// exp(x ** 2) erfc(x) (1 + 2 x) by Chebyshev polynomials of 8 / (4 + x) - 1: the first terms of ERFCX in
// chebyshev_tables.py, whose rest is below 1e-8.
constexpr int TERMS = 13;
constexpr float SERIES[TERMS] = {
    1.177483201e+00f, 7.260796620e-03f, -8.126512324e-02f, -6.009212804e-02f,
    -2.875393558e-02f, -1.059566336e-02f, -3.136927295e-03f, -7.456494373e-04f,
    -1.369696503e-04f, -1.718386160e-05f, -7.158364623e-07f, 2.426139944e-07f,
    5.576570940e-08f};

// erfc(x + low) for a small `low`, within 8 ulp: the exponent's rounding error is multiplied on
RESILIN_INLINE float erfc_near(float x, float low) {
    const float whole = __builtin_fabsf(x), size = whole > 30.0f ? 30.0f : whole, rest = x < 0.0f ? -low : low;
    const float one = fma(2.0f, size, 1.0f), four = 4.0f + size, by = 1.0f / (one * four);
    const float t = fma(16.0f * one, by, -2.0f); // twice the argument, which goes from 1 to -1
    float last = 0.0f, before = 0.0f;
#pragma GCC unroll 12
    for (int k = TERMS - 1; k > 0; k--) {
        const float next = fma(t, last, SERIES[k] - before);
        before = last;
        last = next;
    }
    const float series = fma(0.5f * t, last, SERIES[0] - before) * (four * by);
    const float square = size * size, missing = fma(size, size, -square) + 2.0f * size * rest;
    // in two factors: the square goes to where the exponential alone would be subnormal
    const float half = exp_low(-0.5f * square), found = half * (half * fma(-missing, series, series));
    return x < 0.0f ? 2.0f - found : found;
}

} // namespace

RESILIN_SIMD void erfc_of_floats(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) y[i] = erfc_near(x[i], 0.0f);
}

RESILIN_SIMD void ndtr_of_floats(const float *x, int64_t begin, int64_t end, float *y) {
    const float high = -0.707106769f, low = -1.21016175e-8f; // of -sqrt(1/2)
    for (int64_t i = begin; i < end; i++) {
        const float z = x[i] * high, inside = __builtin_fabsf(z) > 30.0f ? 0.0f : fma(x[i], high, -z) + x[i] * low;
        y[i] = 0.5f * erfc_near(z, inside);
    }
}

// M. Giles, "Approximating the erfinv function" (2010)
RESILIN_SIMD void erfinv_of_floats(const float *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) {
        const float size = __builtin_fabsf(x[i]), rest = (1.0f - size) * (1.0f + size);
        const float w = -log_(rest > 1e-30f ? rest : 1e-30f);
        const bool near = w < 5.0f;
        const float v = near ? w - 2.5f : __builtin_sqrtf(near ? 5.0f : w) - 3.0f;
        float p = near ? 2.81022636e-08f : -0.000200214257f;
        p = fma(p, v, near ? 3.43273939e-07f : 0.000100950558f);
        p = fma(p, v, near ? -3.5233877e-06f : 0.00134934322f);
        p = fma(p, v, near ? -4.39150654e-06f : -0.00367342844f);
        p = fma(p, v, near ? 0.00021858087f : 0.00573950773f);
        p = fma(p, v, near ? -0.00125372503f : -0.0076224613f);
        p = fma(p, v, near ? -0.00417768164f : 0.00943887047f);
        p = fma(p, v, near ? 0.246640727f : 1.00167406f);
        p = fma(p, v, near ? 1.50140941f : 2.83297682f);
        const float found = p * x[i];
        const float ended = __builtin_copysignf(std::numeric_limits<float>::infinity(), x[i]);
        const float beyond = size == 1.0f ? ended : std::numeric_limits<float>::quiet_NaN();
        y[i] = size < 1.0f ? found : beyond;
    }
}

} // namespace resilin
