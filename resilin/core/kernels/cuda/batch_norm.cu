// Batch normalization of (N, C, L): each channel over its samples and positions. Twin: kernels/cuda/batch_norm.py;
// reference: kernels/batch_norm.py. One block works on a channel; thread t takes its elements t, t + THREADS, ... in the
// order of samples and positions, and the block's sums are those of fold.cuh: the same input gives the same bits.

#include "fold.cuh"

__device__ __forceinline__ float inverse_root(float v) { return 1.0f / sqrtf(v); }
__device__ __forceinline__ double inverse_root(double v) { return 1.0 / sqrt(v); }

// Where element i of the block's channel lies.
__device__ __forceinline__ long long at(long long i, long long C, long long L) {
    return (i / L * C + blockIdx.x) * L + i % L;
}

template <typename T, typename A>
__global__ void batch_norm_forward(const T* __restrict__ x, const A* __restrict__ weight, const A* __restrict__ bias,
                                   T* __restrict__ y, A* __restrict__ mean, A* __restrict__ var, long long N,
                                   long long C, long long L, A eps) {
    const long long count = N * L;
    A sum = 0;
    for (long long i = threadIdx.x; i < count; i += THREADS) sum += widened(x[at(i, C, L)]);
    const A m = block_folded<Sum>(sum) / A(count);
    A squares = 0;
    for (long long i = threadIdx.x; i < count; i += THREADS) {
        const A centred = widened(x[at(i, C, L)]) - m;
        squares += centred * centred;
    }
    const A v = block_folded<Sum>(squares) / A(count);
    const A scale = inverse_root(v + eps) * (weight ? weight[blockIdx.x] : A(1));
    const A shift = bias ? bias[blockIdx.x] : A(0);
    for (long long i = threadIdx.x; i < count; i += THREADS)
        y[at(i, C, L)] = Narrow<T>::of((widened(x[at(i, C, L)]) - m) * scale + shift);
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = m;
        var[blockIdx.x] = v;
    }
}

template <typename T, typename A>
__global__ void batch_norm_backward(const T* __restrict__ g, const T* __restrict__ x, const A* __restrict__ weight,
                                    const A* __restrict__ mean, const A* __restrict__ var, T* __restrict__ dx,
                                    A* __restrict__ dw, A* __restrict__ db, long long N, long long C, long long L,
                                    A eps) {
    const long long count = N * L;
    const A m = mean[blockIdx.x], r = inverse_root(var[blockIdx.x] + eps);
    A sum = 0, inner = 0;
    for (long long i = threadIdx.x; i < count; i += THREADS) {
        const A one = widened(g[at(i, C, L)]);
        sum += one;
        inner += one * ((widened(x[at(i, C, L)]) - m) * r);
    }
    sum = block_folded<Sum>(sum);
    inner = block_folded<Sum>(inner);
    const A scale = r * (weight ? weight[blockIdx.x] : A(1));
    for (long long i = threadIdx.x; i < count; i += THREADS) {
        const A hat = (widened(x[at(i, C, L)]) - m) * r;
        const A one = widened(g[at(i, C, L)]);
        dx[at(i, C, L)] = Narrow<T>::of((one - sum / A(count) - hat * (inner / A(count))) * scale);
    }
    if (threadIdx.x == 0) {
        dw[blockIdx.x] = inner;
        db[blockIdx.x] = sum;
    }
}
