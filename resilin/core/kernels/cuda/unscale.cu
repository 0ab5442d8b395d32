// Gradients divided by a loss's scale, and whether one of them was not finite. Twin: kernels/cuda/unscale.py.
//
// table: for each tensor the number of its elements, and where it lies. A row of blocks (blockIdx.y) works on the tensor
// `first` + its number.

#include "elements.cuh"

// Each element times `factor`, rounded once; `found` is set where one was infinite or not a number.
template <typename T, typename A>
__global__ void unscale(const long long* __restrict__ table, long long first, A factor, int* __restrict__ found) {
    const long long* entry = table + (first + blockIdx.y) * 2;
    T* values = reinterpret_cast<T*>(entry[1]);
    for (long long i = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x; i < entry[0];
         i += gridDim.x * static_cast<long long>(THREADS)) {
        const A v = widened(values[i]);
        if (!(v - v == 0)) *found = 1;
        values[i] = Narrow<T>::of(v * factor);
    }
}
