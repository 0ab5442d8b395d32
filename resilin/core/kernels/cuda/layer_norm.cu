// Layer normalization over the last D elements of N rows. Twin: kernels/cuda/layer_norm.py; reference:
// kernels/layer_norm.py. T is the type of the elements, A the one that is computed in (float, or double for double).
//
// Order of sums. Along a row, thread t of THREADS adds elements t, t + THREADS, ... ascending; the 32 lanes of a warp are
// folded by exchanges at distance 16, 8, 4, 2, 1; the warps' sums likewise by every warp. Over rows (dw, db), thread
// (x, y) adds rows y, y + ROW_LANES, ... of its block of ROW_BLOCK rows, the ROW_LANES sums are added ascending, and so are
// the blocks' sums. Nothing is atomic: the same input gives the same bits.

#include "fold.cuh"

constexpr int ROW_LANES = 8;   // rows that a block of the sums over rows reads at once, 32 columns each
constexpr int ROW_BLOCK = 512; // rows of one partial sum

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

// dx = rstd * (dy - mean(dy) - hat * mean(dy * hat)) with dy = g * weight and hat = (x - mean) * rstd. One block a row.
template <typename T, typename A>
__global__ void layer_norm_backward(const T* __restrict__ g, const T* __restrict__ x, const A* __restrict__ weight,
                                    const A* __restrict__ mean, const A* __restrict__ rstd, T* __restrict__ dx,
                                    long long D) {
    const long long row = blockIdx.x;
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
        dx[row * D + i] = Narrow<T>::of((dy - mean_dy - hat * mean_inner) * r);
    }
}

// Partial sums over ROW_BLOCK rows of g (db) and of g * hat (dw): two arrays of (blocks, D). Blocks of (32, ROW_LANES)
// threads; blockIdx.x counts 32 columns, blockIdx.y the partial sums.
template <typename T, typename A>
__global__ void layer_norm_partials(const T* __restrict__ g, const T* __restrict__ x, const A* __restrict__ mean,
                                    const A* __restrict__ rstd, A* __restrict__ dw, A* __restrict__ db, long long N,
                                    long long D) {
    __shared__ A of_lane[2][ROW_LANES][32];
    const long long column = blockIdx.x * 32LL + threadIdx.x;
    const long long first = blockIdx.y * static_cast<long long>(ROW_BLOCK);
    const long long last = first + ROW_BLOCK < N ? first + ROW_BLOCK : N;
    A w = 0, b = 0;
    if (column < D) {
        for (long long row = first + threadIdx.y; row < last; row += ROW_LANES) {
            const A v = widened(g[row * D + column]);
            b += v;
            w += v * ((widened(x[row * D + column]) - mean[row]) * rstd[row]);
        }
    }
    of_lane[0][threadIdx.y][threadIdx.x] = w;
    of_lane[1][threadIdx.y][threadIdx.x] = b;
    __syncthreads();
    if (threadIdx.y != 0 || column >= D) return;
    for (int lane = 1; lane < ROW_LANES; ++lane) {
        w += of_lane[0][lane][threadIdx.x];
        b += of_lane[1][lane][threadIdx.x];
    }
    dw[blockIdx.y * D + column] = w;
    db[blockIdx.y * D + column] = b;
}

// The sums of `rows` rows of two arrays (rows, D), one after the other in memory, ascending: of the first (blockIdx.y 0)
// into dw, of the second into db. One thread a column.
template <typename A>
__global__ void layer_norm_total(const A* __restrict__ partial, A* __restrict__ dw, A* __restrict__ db, long long rows,
                                 long long D) {
    const long long column = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;
    if (column >= D) return;
    const A* of_rows = partial + blockIdx.y * rows * D;
    A sum = 0;
    for (long long row = 0; row < rows; ++row) sum += of_rows[row * D + column];
    (blockIdx.y == 0 ? dw : db)[column] = sum;
}
