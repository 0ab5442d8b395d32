// Rows of g added into rows of out, repeated ones in the order of g: what undoes indexing. Twin: kernels/cuda/row_sums.py.
// T is the type of the elements, A the one that a sum is kept in. One thread sums one column of one run of equal rows,
// so nothing is atomic and the same input gives the same bits. A row of out that is none is noted in `fault`.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = 256;

template <typename T, typename A> struct Element {
    __device__ __forceinline__ static A wide(T v) { return static_cast<A>(v); }
    __device__ __forceinline__ static T narrow(A v) { return static_cast<T>(v); }
};
template <> struct Element<__half, float> {
    __device__ __forceinline__ static float wide(__half v) { return __half2float(v); }
    __device__ __forceinline__ static __half narrow(float v) { return __float2half_rn(v); }
};
template <> struct Element<__nv_bfloat16, float> {
    __device__ __forceinline__ static float wide(__nv_bfloat16 v) { return __bfloat162float(v); }
    __device__ __forceinline__ static __nv_bfloat16 narrow(float v) { return __float2bfloat16_rn(v); }
};

// g (N, D); order (N,): the rows of g sorted stably by target; target (N,): the row of out that each of `order` belongs
// to; out (rows, D), written only where something is added. The thread where a run of equal targets begins sums it.
template <typename T, typename A>
__global__ void row_sums(const T* __restrict__ g, const long long* __restrict__ order,
                         const long long* __restrict__ target, T* __restrict__ out, long long* __restrict__ fault,
                         long long code, long long N, long long rows, long long D) {
    const long long place = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;
    if (place >= N * D) return;
    const long long first = place / D, column = place % D, row = target[first];
    if (first > 0 && target[first - 1] == row) return;
    if (row < 0 || row >= rows) {
        fault[0] = code + row;
        return;
    }
    A sum = 0;
    for (long long i = first; i < N && target[i] == row; ++i) sum += Element<T, A>::wide(g[order[i] * D + column]);
    out[row * D + column] = Element<T, A>::narrow(sum);
}
