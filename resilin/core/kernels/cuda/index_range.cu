// Looks for indices out of range. Twin: kernels/cuda/index_range.py.

#include "elements.cuh"
#include "faults.cuh"

// Notes an index outside [low, high).
template <typename T>
__global__ void index_range(const T* __restrict__ index, long long n, long long low, long long high,
                            long long* __restrict__ fault, long long code) {
    for (long long i = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x; i < n;
         i += gridDim.x * static_cast<long long>(THREADS)) {
        const long long value = index[i];
        if (value < low || value >= high) note(fault, code, value);
    }
}
