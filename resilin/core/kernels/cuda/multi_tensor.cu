// One step of an optimizer for many tensors at once. Twin: kernels/cuda/multi_tensor.py, which fills in what
// stands behind dollar signs from the rule of kernels/optimizer_rules.py.
//
// table: for each tensor the number of its elements, then where the parameter, its gradient and its states lie. A row of
// blocks (blockIdx.y) works on the tensor `first` + its number; its threads take every element once. Products and sums
// are rounded one by one, as numpy's are.

// Nothing is done where a kernel before noted a fault: what the gradients are made of is wrong.

__global__ void $name(const long long* __restrict__ fault, const long long* __restrict__ table,
                      long long first$constants) {
    if (fault[0] != 0) return;
    const long long* entry = table + (first + blockIdx.y) * $columns;
    const long long n = entry[0];
    $pointers
    for (long long i = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x; i < n;
         i += gridDim.x * static_cast<long long>(THREADS)) {
        $loads
        $statements
        $stores
    }
}
