// Windows of images as a matrix, and such a matrix added back to images. Twin: kernels/cuda/windows.py; reference: im2col
// and col2im of kernels/conv2d.py. Images (N, C, H, W), matrix (C, KH, KW, N, P, Q); one thread an element of the result.

#include "elements.cuh"

// E: a type of an element's size; what lies in the padding is 0.
template <typename E>
__global__ void im2col(const E* __restrict__ x, E* __restrict__ columns, long long size, int N, int C, int H, int W,
                       int KH, int KW, int P, int Q, int sh, int sw, int ph, int pw, int dh, int dw) {
    const long long place = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;
    if (place >= size) return;
    long long rest = place;
    const int q = static_cast<int>(rest % Q);
    rest /= Q;
    const int p = static_cast<int>(rest % P);
    rest /= P;
    const int n = static_cast<int>(rest % N);
    rest /= N;
    const int kw = static_cast<int>(rest % KW);
    rest /= KW;
    const int kh = static_cast<int>(rest % KH), c = static_cast<int>(rest / KH);
    const int h = p * sh - ph + kh * dh, w = q * sw - pw + kw * dw;
    const bool inside = h >= 0 && h < H && w >= 0 && w < W;
    columns[place] = inside ? x[((static_cast<long long>(n) * C + c) * H + h) * W + w] : E(0);
}

// Each element of an image is the sum of those of the windows that it is in, in ascending kernel position.
template <typename T, typename A>
__global__ void col2im(const T* __restrict__ columns, T* __restrict__ x, long long size, int N, int C, int H, int W,
                       int KH, int KW, int P, int Q, int sh, int sw, int ph, int pw, int dh, int dw) {
    const long long place = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;
    if (place >= size) return;
    const int w = static_cast<int>(place % W), h = static_cast<int>(place / W % H);
    const int c = static_cast<int>(place / W / H % C);
    const long long n = place / W / H / C;
    A sum = 0;
    for (int kh = 0; kh < KH; ++kh) {
        const int down = h + ph - kh * dh;
        if (down < 0 || down % sh != 0 || down / sh >= P) continue;
        for (int kw = 0; kw < KW; ++kw) {
            const int across = w + pw - kw * dw;
            if (across < 0 || across % sw != 0 || across / sw >= Q) continue;
            const long long row = (static_cast<long long>(c) * KH + kh) * KW + kw;
            sum += widened(columns[((row * N + n) * P + down / sh) * Q + across / sw]);
        }
    }
    x[place] = Narrow<T>::of(sum);
}
