// Elements in the type that is computed in and back, and numpy's choice between two. What all kernels stand on.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = 256;  // of a block; the twins launch as many

__device__ __forceinline__ float widened(float v) { return v; }
__device__ __forceinline__ double widened(double v) { return v; }
__device__ __forceinline__ bool widened(bool v) { return v; }
__device__ __forceinline__ int widened(int v) { return v; }
__device__ __forceinline__ long long widened(long long v) { return v; }
__device__ __forceinline__ float widened(__half v) { return __half2float(v); }
__device__ __forceinline__ float widened(__nv_bfloat16 v) { return __bfloat162float(v); }

// Rounds once, to nearest even.
template <typename T> struct Narrow {
    template <typename A> __device__ __forceinline__ static T of(A v) { return static_cast<T>(v); }
};
template <> struct Narrow<__half> {
    __device__ __forceinline__ static __half of(float v) { return __float2half_rn(v); }
};
template <> struct Narrow<__nv_bfloat16> {
    __device__ __forceinline__ static __nv_bfloat16 of(float v) { return __float2bfloat16_rn(v); }
};

// The part of many tensors that a block works on: elements [begin, end) of the one that `entry` is of. `table` has
// `columns` numbers for each tensor, of which the first two are its first block and the number of its elements.
constexpr long long PIECE = 4096;  // elements of a block; the twins count as many

struct Piece {
    const long long* entry;
    long long begin, end;

    __device__ __forceinline__ Piece(const long long* table, long long tensors, int columns) {
        const long long block = blockIdx.x;
        long long low = 0, high = tensors - 1;  // the last one that begins at this block, or before
        while (low < high) {
            const long long middle = (low + high + 1) / 2;
            if (table[middle * columns] <= block)
                low = middle;
            else
                high = middle - 1;
        }
        entry = table + low * columns;
        begin = (block - entry[0]) * PIECE;
        end = begin + PIECE < entry[1] ? begin + PIECE : entry[1];
    }
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
