// Gradients divided by a loss's scale, and whether one of them was not finite. Twin: kernels/cuda/unscale.py.
//
// table: for each tensor its first block, the number of its elements, and where it lies. A block works on a piece of one
// tensor.

#include "elements.cuh"

// Each element times `factor`, rounded once; `found` is set where one was infinite or not a number.
template <typename T, typename A>
__global__ void unscale(const long long* __restrict__ table, long long tensors, A factor, int* __restrict__ found) {
    const Piece piece(table, tensors, 3);
    T* values = reinterpret_cast<T*>(piece.entry[2]);
    for (long long i = piece.begin + threadIdx.x; i < piece.end; i += THREADS) {
        const A v = widened(values[i]);
        if (!(v - v == 0)) *found = 1;
        values[i] = Narrow<T>::of(v * factor);
    }
}
