// Maximum pooling of images (N, C, H, W) and its gradient. Twin: kernels/cuda/pool.py; reference: kernels/pool.py. One
// thread an element of the result; an element's windows are added in ascending order, so the same input gives the same
// bits.

#include "elements.cuh"

// y = the maximum of each window, at = its flat position in the image; NaN wins, the first maximum counts. A window of
// nothing but padding gives -infinity and -1.
template <typename T, typename A>
__global__ void max_pool_forward(const T* __restrict__ x, T* __restrict__ y, long long* __restrict__ at, long long size,
                                 int H, int W, int P, int Q, int KH, int KW, int sh, int sw, int ph, int pw, int dh,
                                 int dw) {
    for (long long place = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x; place < size;
         place += gridDim.x * static_cast<long long>(THREADS)) {
        const int q = static_cast<int>(place % Q), p = static_cast<int>(place / Q % P);
        const T* image = x + place / Q / P * H * W;
        long long found = -1;
        A best = -Numbers<A>::infinity();
        for (int kh = 0; kh < KH; ++kh) {
            const int h = p * sh - ph + kh * dh;
            if (h < 0 || h >= H) continue;
            for (int kw = 0; kw < KW; ++kw) {
                const int w = q * sw - pw + kw * dw;
                if (w < 0 || w >= W) continue;
                const long long here = static_cast<long long>(h) * W + w;
                const A v = widened(image[here]);
                if (found < 0 || v > best || (v != v && best == best)) {
                    best = v;
                    found = here;
                }
            }
        }
        y[place] = Narrow<T>::of(best);
        at[place] = found;
    }
}

// dx = the sum of g over the windows whose maximum lies there.
template <typename T, typename A>
__global__ void max_pool_backward(const T* __restrict__ g, const long long* __restrict__ at, T* __restrict__ dx,
                                  long long size, int H, int W, int P, int Q, int KH, int KW, int sh, int sw, int ph,
                                  int pw, int dh, int dw) {
    for (long long place = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x; place < size;
         place += gridDim.x * static_cast<long long>(THREADS)) {
        const int w = static_cast<int>(place % W), h = static_cast<int>(place / W % H);
        const long long windows = place / W / H * P * Q, here = static_cast<long long>(h) * W + w;
        const int above = h + ph - (KH - 1) * dh, left = w + pw - (KW - 1) * dw;
        A sum = 0;
        for (int p = above > 0 ? (above + sh - 1) / sh : 0; p < P && p * sh <= h + ph; ++p)
            for (int q = left > 0 ? (left + sw - 1) / sw : 0; q < Q && q * sw <= w + pw; ++q) {
                const long long window = windows + static_cast<long long>(p) * Q + q;
                if (at[window] == here) sum += widened(g[window]);
            }
        dx[place] = Narrow<T>::of(sum);
    }
}
