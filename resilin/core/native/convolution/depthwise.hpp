// Depthwise convolution: the shape, the vectors, and the way of narrow maps.
#pragma once
#include "kernels/registers.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

namespace resilin::depthwise {

constexpr int64_t MAX_LENGTH = int64_t(1) << 24;
using Lengths = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>; // strides, paddings, dilations

// elements of 64 bytes
template <class T> constexpr int64_t WIDTH = 64 / static_cast<int64_t>(sizeof(T));

// N samples, C channels, M outputs of each, H W input size, P Q output size, KH KW kernel size; s stride, p padding,
// d dilation
struct Shape {
    int64_t N, C, M, H, W, KH, KW, sh, sw, ph, pw, dh, dw, P = 0, Q = 0, across = 0, row = 0;

    // Every product below stays inside int64, and there is at least one output position.
    bool fits() const {
        for (int64_t length : {N, C, M, H, W, KH, KW, sh, sw, dh, dw})
            if (length < 1 || length > MAX_LENGTH) return false;
        if (ph < 0 || pw < 0 || ph > MAX_LENGTH || pw > MAX_LENGTH) return false;
        return 1.0 * N * C * M * KH * KW * (H + 2 * ph) * (W + 2 * pw) < 1e15 && H + 2 * ph >= dh * (KH - 1) + 1 &&
               W + 2 * pw >= dw * (KW - 1) + 1;
    }
    void set_output() {
        P = (H + 2 * ph - dh * (KH - 1) - 1) / sh + 1;
        Q = (W + 2 * pw - dw * (KW - 1) - 1) / sw + 1;
        // columns of one remainder, and room for whole vectors: what is written beyond a row's end and read again as the
        // next row's start would wait for the write
        across = std::max((W + 2 * pw + sw - 1) / sw, (KW - 1) * dw / sw + whole<float>());
        row = across * sw;
    }
    int64_t places() const { return KH * KW; }
    int64_t positions() const { return P * Q; }
    // of a padded channel, and as much as the last vector reads beyond
    template <class T> int64_t padded() const { return (H + 2 * ph) * row + WIDTH<T>; }
    // of a row of an output's gradient, filled up with zeros to whole vectors
    template <class T> int64_t whole() const { return (Q + WIDTH<T> - 1) / WIDTH<T> * WIDTH<T>; }
    int64_t column(int64_t w) const { return (w + pw) % sw * across + (w + pw) / sw; }
    // Whether rows of outputs fill less of a vector than channels do.
    template <class T> bool narrow() const { return M == 1 && 2 * Q <= std::min(WIDTH<T>, C); }
};

// Narrow maps: a vector holds one position of up to WIDTH channels, of one sample. Where things are in blocks of such
// vectors, and the kernel's weights in that form.
template <class T> struct Narrow {
    const Shape &s;
    int64_t width, height;                   // of a padded map
    std::vector<int64_t> inside, dense;      // where an input position is in a padded block, an output position in its own
    std::vector<int64_t> offset;             // where the places of the kernel read, for output position (0, 0)
    std::vector<T> weights;                  // (groups of channels, places, WIDTH)

    explicit Narrow(const Shape &shape, const T *w = nullptr);
    int64_t groups() const { return (s.C + WIDTH<T> - 1) / WIDTH<T>; }
    int64_t channels(int64_t group) const { return std::min(WIDTH<T>, s.C - group * WIDTH<T>); }
    int64_t padded() const { return width * height * WIDTH<T>; }
    int64_t scratch() const { return padded() + (s.positions() + s.H * s.W) * WIDTH<T>; }
};

// A group of channels of one sample. Sums: of an output and of an input's gradient by kernel place, as everywhere; of
// a weight over the positions, ascending, which are added to `dw` (channels, places).
void forward_group(const Narrow<float> &, int64_t group, const float *x, const float *bias, float *scratch, float *y);
void forward_group(const Narrow<double> &, int64_t group, const double *x, const double *bias, double *scratch, double *y);
void input_group(const Narrow<float> &, int64_t group, const float *g, float *scratch, float *dx);
void input_group(const Narrow<double> &, int64_t group, const double *g, double *scratch, double *dx);
void weight_group(const Narrow<float> &, int64_t group, const float *g, const float *x, float *scratch, double *dw);
void weight_group(const Narrow<double> &, int64_t group, const double *g, const double *x, double *scratch, double *dw);

} // namespace resilin::depthwise
