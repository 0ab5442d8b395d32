// Eight elements at a time, in vectors that AVX2 has: wider ones GCC takes to pieces by way of memory.
#pragma once
#include "kernels/simd.hpp"

namespace resilin {

typedef float FloatEight __attribute__((vector_size(32), aligned(4), may_alias));
typedef float FloatFour __attribute__((vector_size(16), aligned(4), may_alias));
typedef double DoubleFour __attribute__((vector_size(32), aligned(8), may_alias));

struct DoubleEight {
    DoubleFour low, high;
};
RESILIN_INLINE DoubleEight operator+(const DoubleEight &a, const DoubleEight &b) { return {a.low + b.low, a.high + b.high}; }
RESILIN_INLINE DoubleEight operator*(const DoubleEight &a, const DoubleEight &b) { return {a.low * b.low, a.high * b.high}; }

RESILIN_INLINE FloatEight load_eight(const float *x) { return *reinterpret_cast<const FloatEight *>(x); }
RESILIN_INLINE DoubleEight load_eight(const double *x) {
    return {*reinterpret_cast<const DoubleFour *>(x), *reinterpret_cast<const DoubleFour *>(x + 4)};
}
RESILIN_INLINE DoubleEight wide_eight(const double *x) { return load_eight(x); }
RESILIN_INLINE DoubleEight wide_eight(const float *x) {
    return {__builtin_convertvector(*reinterpret_cast<const FloatFour *>(x), DoubleFour),
            __builtin_convertvector(*reinterpret_cast<const FloatFour *>(x + 4), DoubleFour)};
}

// a[0] + a[1], a[2] + a[3], ..., then b's
RESILIN_INLINE FloatEight neighbours(const FloatEight &a, const FloatEight &b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14) + __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
}
RESILIN_INLINE DoubleFour neighbours(const DoubleFour &a, const DoubleFour &b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
}

// The sums of each eight: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))
RESILIN_INLINE void fold_eights(const FloatEight &a, const FloatEight &b, const FloatEight &c, const FloatEight &d, float *sums) {
    const FloatEight fours = neighbours(neighbours(a, b), neighbours(c, d)), found = neighbours(fours, fours);
    for (int k = 0; k < 4; k++) sums[k] = found[k];
}
RESILIN_INLINE void fold_eights(const DoubleEight &a, const DoubleEight &b, const DoubleEight &c, const DoubleEight &d,
                                double *sums) {
    const DoubleFour first = neighbours(neighbours(a.low, a.high), neighbours(b.low, b.high));
    const DoubleFour second = neighbours(neighbours(c.low, c.high), neighbours(d.low, d.high));
    *reinterpret_cast<DoubleFour *>(sums) = neighbours(first, second);
}

} // namespace resilin
