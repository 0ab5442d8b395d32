// What generated kernels stand on: elements in the type that is computed in, and numpy's functions where CUDA's differ.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = 256;  // of a block; the twins launch as many

__device__ __forceinline__ float loaded(float v) { return v; }
__device__ __forceinline__ double loaded(double v) { return v; }
__device__ __forceinline__ bool loaded(bool v) { return v; }
__device__ __forceinline__ int loaded(int v) { return v; }
__device__ __forceinline__ long long loaded(long long v) { return v; }
__device__ __forceinline__ float loaded(__half v) { return __half2float(v); }
__device__ __forceinline__ float loaded(__nv_bfloat16 v) { return __bfloat162float(v); }

// Rounds once, to nearest even.
template <typename T> struct Stored {
    template <typename A> __device__ __forceinline__ static T of(A v) { return static_cast<T>(v); }
};
template <> struct Stored<__half> {
    __device__ __forceinline__ static __half of(float v) { return __float2half_rn(v); }
};
template <> struct Stored<__nv_bfloat16> {
    __device__ __forceinline__ static __nv_bfloat16 of(float v) { return __float2bfloat16_rn(v); }
};

template <typename A> struct Numbers {
    __device__ __forceinline__ static A infinity() {
        const A large = sizeof(A) == 4 ? static_cast<A>(3e38) : static_cast<A>(1e308);
        return large * large;
    }
    __device__ __forceinline__ static A nan() { return infinity() - infinity(); }
};

// Not a number where one of the two is none, as numpy's.
template <typename A> __device__ __forceinline__ A maximum(A a, A b) { return a != a || a > b ? a : b; }
template <typename A> __device__ __forceinline__ A minimum(A a, A b) { return a != a || a < b ? a : b; }

template <typename A> __device__ __forceinline__ A sign_of(A v) { return v > 0 ? A(1) : v < 0 ? A(-1) : v; }
// Of the sign of the divisor, as numpy's.
__device__ __forceinline__ float c_remainder(float a, float b) { return fmodf(a, b); }
__device__ __forceinline__ double c_remainder(double a, double b) { return fmod(a, b); }
template <typename A> __device__ __forceinline__ A remainder_of(A a, A b) {
    const A left = c_remainder(a, b);
    if (left == 0) return b < 0 ? A(-0.0) : A(0.0);
    return (left < 0) != (b < 0) ? left + b : left;
}
