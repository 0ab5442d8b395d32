// Elements of 16 bits as float and back, and sums and maxima over a block. The 32 lanes of a warp are folded by exchanges
// at distance 16, 8, 4, 2, 1; the warps' results likewise by every warp.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = 256;  // of a block that works on a row; the twins launch as many
constexpr int WARPS = THREADS / 32;

__device__ __forceinline__ float widened(float v) { return v; }
__device__ __forceinline__ double widened(double v) { return v; }
__device__ __forceinline__ float widened(__half v) { return __half2float(v); }
__device__ __forceinline__ float widened(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename T> struct Narrow {
    template <typename A> __device__ __forceinline__ static T of(A v) { return static_cast<T>(v); }
};
template <> struct Narrow<__half> {
    __device__ __forceinline__ static __half of(float v) { return __float2half_rn(v); }
};
template <> struct Narrow<__nv_bfloat16> {
    __device__ __forceinline__ static __nv_bfloat16 of(float v) { return __float2bfloat16_rn(v); }
};

template <typename A> __device__ __forceinline__ A warp_sum(A v) {
    for (int distance = 16; distance > 0; distance >>= 1) v += __shfl_xor_sync(0xffffffffu, v, distance);
    return v;
}

// The sum of v over all threads of the block, in every thread.
template <typename A> __device__ __forceinline__ A block_sum(A v) {
    __shared__ A of_warp[WARPS];
    v = warp_sum(v);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    __syncthreads();  // an earlier sum has been read
    if (lane == 0) of_warp[warp] = v;
    __syncthreads();
    return warp_sum(lane < WARPS ? of_warp[lane] : A(0));
}

// The larger one; not a number where one of them is none.
template <typename A> __device__ __forceinline__ A larger(A a, A b) { return a != a || a > b ? a : b; }

template <typename A> __device__ __forceinline__ A warp_max(A v) {
    for (int distance = 16; distance > 0; distance >>= 1) v = larger(v, __shfl_xor_sync(0xffffffffu, v, distance));
    return v;
}

// The largest v of all threads of the block, in every thread.
template <typename A> __device__ __forceinline__ A block_max(A v) {
    __shared__ A of_warp[WARPS];
    v = warp_max(v);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    __syncthreads();  // an earlier one has been read
    if (lane == 0) of_warp[warp] = v;
    __syncthreads();
    return warp_max(of_warp[lane % WARPS]);
}
