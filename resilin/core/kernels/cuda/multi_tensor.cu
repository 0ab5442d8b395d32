// One step of an optimizer for many tensors at once. Twin: kernels/cuda/multi_tensor.py, which fills in what
// stands behind dollar signs from the rule of kernels/optimizer_rules.py.
//
// table: for each tensor its first block and the number of its elements, then where the parameter, its gradient and its
// states lie. A block works on a piece of one tensor (`Piece` of elements.cuh); its threads take every element once.
// Products and sums are rounded one by one, as numpy's are.

// Nothing is done where a kernel before noted a fault: what the gradients are made of is wrong.

__global__ void $name(const long long* __restrict__ fault, const long long* __restrict__ table,
                      long long tensors$constants) {
    if (fault[0] != 0) return;
    const Piece piece(table, tensors, $columns);
    const long long* entry = piece.entry;
    $pointers
    for (long long i = piece.begin + threadIdx.x; i < piece.end; i += THREADS) {
        $loads
        $statements
        $stores
    }
}
