// Layer normalization over the last D elements of N rows. Twin: kernels/cuda/layer_norm.py; reference:
// kernels/layer_norm.py. T is the type of the elements, A the one that is computed in (float, or double for double).
//
// Order of sums. Along a row, thread t of THREADS adds elements t, t + THREADS, ... ascending; the 32 lanes of a warp are
// folded by exchanges at distance 16, 8, 4, 2, 1; the warps' sums likewise by every warp. Over rows (dw, db), lane y of a
// column adds rows y, y + ROW_LANES, ... of its block of ROW_BLOCK rows, the ROW_LANES sums are added ascending, and so are
// the blocks' sums, by whichever of them is done last. No sum is atomic: the same input gives the same bits.

#include "fold.cuh"

constexpr int COLUMNS = 32;    // that a block sums over rows
constexpr int ROW_LANES = 8;   // rows that it reads at once
constexpr int ROW_BLOCK = 512; // rows of one partial sum
static_assert(COLUMNS * ROW_LANES == THREADS);

__device__ __forceinline__ float inverse_root(float v) { return 1.0f / sqrtf(v); }
__device__ __forceinline__ double inverse_root(double v) { return 1.0 / sqrt(v); }

// y = (x - mean) * rstd * weight + bias; mean and rstd of each row. One block a row.
template <typename T, typename A>
__global__ void layer_norm_forward(const T* __restrict__ x, const A* __restrict__ weight, const A* __restrict__ bias,
                                   T* __restrict__ y, A* __restrict__ mean, A* __restrict__ rstd, long long D, A eps) {
    const long long row = blockIdx.x;
    const T* x_D = x + row * D;
    A sum = 0;
    for (long long i = threadIdx.x; i < D; i += THREADS) sum += widened(x_D[i]);
    const A m = block_folded<Sum>(sum) / A(D);
    A squares = 0;
    for (long long i = threadIdx.x; i < D; i += THREADS) {
        const A centred = widened(x_D[i]) - m;
        squares += centred * centred;
    }
    const A r = inverse_root(block_folded<Sum>(squares) / A(D) + eps);
    for (long long i = threadIdx.x; i < D; i += THREADS) {
        A v = (widened(x_D[i]) - m) * r;
        if (weight) v *= weight[i];
        if (bias) v += bias[i];
        y[row * D + i] = Narrow<T>::of(v);
    }
    if (threadIdx.x == 0) {
        mean[row] = m;
        rstd[row] = r;
    }
}

// One row of dx = rstd * (dy - mean(dy) - hat * mean(dy * hat)) with dy = g * weight and hat = (x - mean) * rstd, and of
// what is added to it.
template <typename T, typename A>
__device__ __forceinline__ void row_backward(long long row, const T* __restrict__ g, const T* __restrict__ x,
                                             const A* __restrict__ weight, const A* __restrict__ mean,
                                             const A* __restrict__ rstd, const T* __restrict__ more,
                                             T* __restrict__ dx, long long D) {
    const T* g_D = g + row * D;
    const T* x_D = x + row * D;
    const A m = mean[row], r = rstd[row];
    A sum = 0, inner = 0;
    for (long long i = threadIdx.x; i < D; i += THREADS) {
        const A dy = weight ? widened(g_D[i]) * weight[i] : widened(g_D[i]);
        sum += dy;
        inner += dy * ((widened(x_D[i]) - m) * r);
    }
    const A mean_dy = block_folded<Sum>(sum) / A(D);
    const A mean_inner = block_folded<Sum>(inner) / A(D);
    for (long long i = threadIdx.x; i < D; i += THREADS) {
        const A dy = weight ? widened(g_D[i]) * weight[i] : widened(g_D[i]);
        const A hat = (widened(x_D[i]) - m) * r;
        const A found = (dy - mean_dy - hat * mean_inner) * r;
        dx[row * D + i] = Narrow<T>::of(more ? found + widened(more[row * D + i]) : found);
    }
}

// The sums over rows of g (db) and of g * hat (dw) for COLUMNS columns, and ROW_BLOCK rows of the N.
template <typename T, typename A>
__device__ __forceinline__ void rows_summed(long long columns, long long part, long long parts,
                                            const T* __restrict__ g, const T* __restrict__ x,
                                            const A* __restrict__ mean, const A* __restrict__ rstd,
                                            volatile A* partial, unsigned* arrived, A* __restrict__ dw,
                                            A* __restrict__ db, long long N, long long D) {
    __shared__ A of_lane[2][ROW_LANES][COLUMNS];
    __shared__ bool is_last;
    const int lane = threadIdx.x / COLUMNS, place = threadIdx.x % COLUMNS;
    const long long column = columns * COLUMNS + place, first = part * ROW_BLOCK;
    const long long last = first + ROW_BLOCK < N ? first + ROW_BLOCK : N;
    A w = 0, b = 0;
    if (column < D) {
        for (long long row = first + lane; row < last; row += ROW_LANES) {
            const A v = widened(g[row * D + column]);
            b += v;
            w += v * ((widened(x[row * D + column]) - mean[row]) * rstd[row]);
        }
    }
    of_lane[0][lane][place] = w;
    of_lane[1][lane][place] = b;
    __syncthreads();
    const bool sums = lane < 2 && column < D; // lane 0 those of dw, lane 1 of db
    A total = 0;
    if (sums)
        for (int of = 0; of < ROW_LANES; ++of) total = of == 0 ? of_lane[lane][0][place] : total + of_lane[lane][of][place];
    if (parts > 1) {
        if (sums) partial[(lane * parts + part) * D + column] = total;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) is_last = atomicInc(arrived + columns, static_cast<unsigned>(parts - 1)) == parts - 1;
        __syncthreads();
        if (!is_last) return; // the block that comes last adds them all, whichever it is: in their order
        __threadfence();
        total = 0;
        if (sums)
            for (long long of = 0; of < parts; ++of) total += partial[(lane * parts + of) * D + column];
    }
    if (sums) (lane == 0 ? dw : db)[column] = total;
}

// dx (N, D), to which `more` (null: nothing) is added, and the sums over rows dw (D) and db (D). The first blocks make the
// sums, for COLUMNS columns and ROW_BLOCK rows each, the others a row of dx each. `partial`: (2, parts, D) of scratch;
// `arrived`: for each COLUMNS columns a zero, which is zero again afterwards.
template <typename T, typename A>
__global__ void layer_norm_backward(const T* __restrict__ g, const T* __restrict__ x, const A* __restrict__ weight,
                                    const A* __restrict__ mean, const A* __restrict__ rstd,
                                    const T* __restrict__ more, T* __restrict__ dx, A* partial, unsigned* arrived,
                                    A* __restrict__ dw, A* __restrict__ db, long long N, long long D,
                                    long long parts) {
    const long long groups = (D + COLUMNS - 1) / COLUMNS, block = blockIdx.x;
    if (block < groups * parts)
        rows_summed(block % groups, block / groups, parts, g, x, mean, rstd, partial, arrived, dw, db, N, D);
    else
        row_backward(block - groups * parts, g, x, weight, mean, rstd, more, dx, D);
}
