// One formula for every element. Twin: kernels/cuda/elementwise.py, which fills in what stands behind dollar signs.
// An input is read at the element's own place, at its first element, or at a place computed from the element's
// coordinates (k0, k1, ...), the last of which varies fastest. Products and sums are rounded one by one, as numpy's are.
//
// A thread reads several elements before it computes the first: memory answers late, and more so the smaller what is
// asked of it, so as many are under way as make AT_ONCE_BYTES of elementwise.py.

__global__ void $name(long long n$parameters) {
    const long long step = gridDim.x * static_cast<long long>(THREADS);
    for (long long first = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x; first < n;
         first += step * $count) {
        $arrays
        for (int u = 0; u < $count; ++u) {
            const long long i = first + u * step;
            if (i < n) {
                $coordinates
                $reads
            }
        }
        for (int u = 0; u < $count; ++u) {
            const long long i = first + u * step;
            if (i < n) {
                $places
                $loads
                $statements
                $stores
            }
        }
    }
}
