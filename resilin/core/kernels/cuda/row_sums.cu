// Rows of g added into rows of out, repeated ones in the order of g: what undoes indexing. Twin: kernels/cuda/row_sums.py.
// T is the type of the elements, A the one that a sum is kept in. One thread sums one column of one run of equal rows,
// so nothing is atomic and the same input gives the same bits. A row of out that is none is noted in `fault`.

#include "elements.cuh"
#include "faults.cuh"

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
        note(fault, code, row);
        return;
    }
    A sum = 0;
    for (long long i = first; i < N && target[i] == row; ++i) sum += widened(g[order[i] * D + column]);
    out[row * D + column] = Narrow<T>::of(sum);
}
