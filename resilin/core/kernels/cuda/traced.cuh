// What generated kernels stand on besides elements.cuh: numpy's functions where CUDA's differ.

#include "elements.cuh"

// 0 of what is not a number, as PyTorch's.
template <typename A> __device__ __forceinline__ A sign_of(A v) { return v > 0 ? A(1) : v < 0 ? A(-1) : A(0); }
// Of the sign of the divisor, as numpy's.
__device__ __forceinline__ float c_remainder(float a, float b) { return fmodf(a, b); }
__device__ __forceinline__ double c_remainder(double a, double b) { return fmod(a, b); }
template <typename A> __device__ __forceinline__ A remainder_of(A a, A b) {
    const A left = c_remainder(a, b);
    if (left == 0) return b < 0 ? A(-0.0) : A(0.0);
    return (left < 0) != (b < 0) ? left + b : left;
}
