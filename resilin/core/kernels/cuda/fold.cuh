// One value of all threads of a block, folded by an operator. The 32 lanes of a warp are folded by exchanges at distance
// 16, 8, 4, 2, 1; the warps' results likewise at distance 4, 2, 1, by every warp.

#include "elements.cuh"

constexpr int WARPS = THREADS / 32;  // a power of two

struct Sum {
    template <typename A> __device__ __forceinline__ static A of(A a, A b) { return a + b; }
};
struct Maximum {  // not a number where one is none
    template <typename A> __device__ __forceinline__ static A of(A a, A b) { return maximum(a, b); }
};

template <typename Operator, int LANES, typename A> __device__ __forceinline__ A lanes_folded(A v) {
    for (int distance = LANES / 2; distance > 0; distance >>= 1)
        v = Operator::of(v, __shfl_xor_sync(0xffffffffu, v, distance));
    return v;
}

// In every thread.
template <typename Operator, typename A> __device__ __forceinline__ A block_folded(A v) {
    __shared__ A of_warp[WARPS];
    v = lanes_folded<Operator, 32>(v);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    __syncthreads();  // an earlier one has been read
    if (lane == 0) of_warp[warp] = v;
    __syncthreads();
    return lanes_folded<Operator, WARPS>(of_warp[lane % WARPS]);
}
