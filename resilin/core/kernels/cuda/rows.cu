// Softmax, attention's probabilities and cross entropy, row by row. Twin: kernels/cuda/rows.py. One block works on a row
// of D elements; T is the type of the elements, A the one that is computed in. Thread t takes elements t, t + THREADS,
// ... ascending, so the same input gives the same bits.

#include "faults.cuh"
#include "fold.cuh"

__device__ __forceinline__ float exponential(float v) { return expf(v); }
__device__ __forceinline__ double exponential(double v) { return exp(v); }
__device__ __forceinline__ float logarithm(float v) { return logf(v); }
__device__ __forceinline__ double logarithm(double v) { return log(v); }

// y = exp(x) / sum(exp(x)); of the logarithm where `of_log`.
template <typename T, typename A>
__global__ void softmax_forward(const T* __restrict__ x, T* __restrict__ y, long long D, int of_log) {
    const T* x_D = x + blockIdx.x * D;
    T* y_D = y + blockIdx.x * D;
    A top = -Numbers<A>::infinity();
    for (long long i = threadIdx.x; i < D; i += THREADS) top = maximum(top, widened(x_D[i]));
    top = block_folded<Maximum>(top);
    A sum = 0;
    for (long long i = threadIdx.x; i < D; i += THREADS) sum += exponential(widened(x_D[i]) - top);
    sum = block_folded<Sum>(sum);
    const A rest = logarithm(sum);
    for (long long i = threadIdx.x; i < D; i += THREADS) {
        const A below = widened(x_D[i]) - top;
        y_D[i] = Narrow<T>::of(of_log ? below - rest : exponential(below) / sum);
    }
}

// dx = y * (g - sum(g * y)); of the logarithm g - exp(y) * sum(g).
template <typename T, typename A>
__global__ void softmax_backward(const T* __restrict__ g, const T* __restrict__ y, T* __restrict__ dx, long long D,
                                 int of_log) {
    const T* g_D = g + blockIdx.x * D;
    const T* y_D = y + blockIdx.x * D;
    A inner = 0;
    for (long long i = threadIdx.x; i < D; i += THREADS)
        inner += of_log ? widened(g_D[i]) : widened(g_D[i]) * widened(y_D[i]);
    inner = block_folded<Sum>(inner);
    for (long long i = threadIdx.x; i < D; i += THREADS) {
        const A one = widened(g_D[i]), v = widened(y_D[i]);
        dx[blockIdx.x * D + i] = Narrow<T>::of(of_log ? one - exponential(v) * inner : v * (one - inner));
    }
}

// p = softmax(scores * scale), where with `causal` row t of T sees its first t + 1 elements; 0 elsewhere.
template <typename T, typename A>
__global__ void attention_weights(const T* __restrict__ scores, T* __restrict__ p, long long rows, long long D, A scale,
                                  int causal) {
    const long long t = blockIdx.x % rows;
    const long long seen = causal && t + 1 < D ? t + 1 : D;
    const T* s_D = scores + blockIdx.x * D;
    A top = -Numbers<A>::infinity();
    for (long long i = threadIdx.x; i < seen; i += THREADS) top = maximum(top, widened(s_D[i]) * scale);
    top = block_folded<Maximum>(top);
    const A shift = top == -Numbers<A>::infinity() ? A(0) : top;
    A sum = 0;
    for (long long i = threadIdx.x; i < seen; i += THREADS) sum += exponential(widened(s_D[i]) * scale - shift);
    sum = block_folded<Sum>(sum);
    const A total = sum == 0 ? A(1) : sum;
    for (long long i = threadIdx.x; i < D; i += THREADS)
        p[blockIdx.x * D + i] = Narrow<T>::of(i < seen ? exponential(widened(s_D[i]) * scale - shift) / total : A(0));
}

// ds = scale * p * (dp - sum(dp * p)); 0 for what is not seen, whatever dp holds there.
template <typename T, typename A>
__global__ void attention_weights_backward(const T* __restrict__ dp, const T* __restrict__ p, T* __restrict__ ds,
                                           long long rows, long long D, A scale, int causal) {
    const long long t = blockIdx.x % rows;
    const long long seen = causal && t + 1 < D ? t + 1 : D;
    const T* dp_D = dp + blockIdx.x * D;
    const T* p_D = p + blockIdx.x * D;
    A inner = 0;
    for (long long i = threadIdx.x; i < seen; i += THREADS) inner += widened(dp_D[i]) * widened(p_D[i]);
    inner = block_folded<Sum>(inner);
    for (long long i = threadIdx.x; i < D; i += THREADS) {
        const A v = i < seen ? widened(p_D[i]) * (widened(dp_D[i]) - inner) * scale : A(0);
        ds[blockIdx.x * D + i] = Narrow<T>::of(v);
    }
}

// loss of each row against its class, and lse (rows, 2): the largest logit and what the logarithm exceeds it by. A row
// whose class is `ignored` gets 0; a class that is none is noted in `fault`: `code`, with the class in its lower bits.
template <typename T, typename A>
__global__ void cross_entropy_forward(const T* __restrict__ logits, const long long* __restrict__ target,
                                      const A* __restrict__ weight, T* __restrict__ loss, A* __restrict__ lse,
                                      long long* __restrict__ fault, long long code, long long D, long long ignored,
                                      A smoothing) {
    const T* z_D = logits + blockIdx.x * D;
    const long long chosen = target[blockIdx.x];
    const bool known = chosen >= 0 && chosen < D;
    A top = -Numbers<A>::infinity();
    for (long long i = threadIdx.x; i < D; i += THREADS) top = maximum(top, widened(z_D[i]));
    top = block_folded<Maximum>(top);
    A sum = 0;
    for (long long i = threadIdx.x; i < D; i += THREADS) sum += exponential(widened(z_D[i]) - top);
    const A rest = logarithm(block_folded<Sum>(sum));
    A smooth = 0;
    if (smoothing != 0) {
        for (long long i = threadIdx.x; i < D; i += THREADS)
            smooth += (rest - (widened(z_D[i]) - top)) * (weight ? weight[i] : A(1));
        smooth = block_folded<Sum>(smooth);
    }
    if (threadIdx.x != 0) return;
    lse[2 * blockIdx.x] = top;
    lse[2 * blockIdx.x + 1] = rest;
    A value = 0;
    if (chosen != ignored && known) {
        value = rest - (widened(z_D[chosen]) - top);
        if (weight) value *= weight[chosen];
        if (smoothing != 0) value = (1 - smoothing) * value + smoothing / A(D) * smooth;
    } else if (chosen != ignored) {
        note(fault, code, chosen);
    }
    loss[blockIdx.x] = Narrow<T>::of(value);
}

// The logits' gradient for g, that of the losses, which has an element every `step`.
template <typename T, typename A>
__global__ void cross_entropy_backward(const T* __restrict__ g, long long step, const T* __restrict__ logits,
                                       const long long* __restrict__ target, const A* __restrict__ weight,
                                       const A* __restrict__ lse, T* __restrict__ dz, long long D, long long ignored,
                                       A smoothing) {
    const T* z_D = logits + blockIdx.x * D;
    const long long chosen = target[blockIdx.x];
    const bool counts = chosen != ignored && chosen >= 0 && chosen < D;
    const A top = lse[2 * blockIdx.x], rest = lse[2 * blockIdx.x + 1];
    A weights = 0;
    if (smoothing != 0) {
        for (long long i = threadIdx.x; i < D; i += THREADS) weights += weight ? weight[i] : A(1);
        weights = block_folded<Sum>(weights);
    }
    const A scale = counts ? widened(g[blockIdx.x * step]) : A(0);
    const A hit = scale * (1 - smoothing) * (weight && counts ? weight[chosen] : A(1));
    const A spread = scale * (smoothing / A(D));
    const A total = hit + spread * weights;
    for (long long i = threadIdx.x; i < D; i += THREADS) {
        A v = exponential(widened(z_D[i]) - top - rest) * total;
        if (i == chosen) v -= hit;
        if (smoothing != 0) v -= spread * (weight ? weight[i] : A(1));
        dz[blockIdx.x * D + i] = Narrow<T>::of(counts ? v : A(0));
    }
}

// out[row] = table[index[row]], rows of D elements of any kind (E: of their size); an index that is out of range gives
// zeros, and is noted in `fault`.
template <typename E>
__global__ void take_rows(const E* __restrict__ table, const long long* __restrict__ index, E* __restrict__ out,
                          long long* __restrict__ fault, long long code, long long count, long long length, long long D) {
    const long long place = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;
    if (place >= count * D) return;
    const long long row = place / D, from = index[row];
    const bool known = from >= 0 && from < length;
    if (!known) note(fault, code, from);
    out[place] = known ? table[from * D + place % D] : E(0);
}
