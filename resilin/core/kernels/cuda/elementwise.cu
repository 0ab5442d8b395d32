// One formula for every element. Twin: kernels/cuda/elementwise.py, which fills in what stands behind dollar signs.
// An input is read at the element's own place, at its first element, or at a place computed from the element's
// coordinates (k0, k1, ...), the last of which varies fastest. Products and sums are rounded one by one, as numpy's are.

__global__ void $name(long long n$parameters) {
    for (long long i = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x; i < n;
         i += gridDim.x * static_cast<long long>(THREADS)) {
        $coordinates
        $loads
        $statements
        $stores
    }
}
