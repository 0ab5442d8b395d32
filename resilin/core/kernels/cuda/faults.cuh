// A fault that a kernel notes in the device's word. kernels/cuda/faults.py reads it, and says how it is made up.

// `value` is what was found wrong; what lies beyond the word's bits for it is cut off at their bounds. Of the faults of
// several kernels the first one stays.
__device__ __forceinline__ void note(long long* fault, long long code, long long value) {
    constexpr long long MOST = (1ll << 43) - 1;
    if (fault[0] == 0) fault[0] = code + (value > MOST ? MOST : value < -MOST ? -MOST : value);
}
