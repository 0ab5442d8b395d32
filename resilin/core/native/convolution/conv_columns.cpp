#include "conv_columns.hpp"

#include "kernels/simd.hpp"
#include "memory/parallel.hpp"

#include <cstring>
#include <numeric>

namespace resilin::conv {
namespace {

// Along one axis and for one place of the kernel: output positions [begin, end) read the input, from `first` on, the
// others its zero padding.
struct Span {
    int64_t begin, end, first;
    Span(int64_t from, int64_t to, int64_t place, int64_t stride, int64_t padding, int64_t dilation, int64_t length) {
        const int64_t offset = place * dilation - padding;
        begin = std::clamp<int64_t>(offset < 0 ? (-offset + stride - 1) / stride : 0, from, to);
        end = std::clamp<int64_t>(length > offset ? (length - offset - 1) / stride + 1 : 0, begin, to);
        first = begin * stride + offset;
    }
};

// n elements of each of `rows` rows, copied or added. Vectors have a fixed size, the last one of a row overlaps the one
// before it: rows of small images cost a few instructions.
template <class T> RESILIN_INLINE void copy_rows(const T *from, int64_t down, T *to, int64_t below, int64_t rows, int64_t n) {
    constexpr int64_t V = 64 / sizeof(T);
    for (int64_t r = 0; r < rows; r++, from += down, to += below) {
        if (n < V) {
            for (int64_t i = 0; i < n; i++) to[i] = from[i];
            continue;
        }
        for (int64_t i = 0; i + V < n; i += V) std::memcpy(to + i, from + i, V * sizeof(T));
        std::memcpy(to + n - V, from + n - V, V * sizeof(T));
    }
}
template <class T> RESILIN_INLINE void add_rows(const T *from, int64_t down, T *to, int64_t below, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++, from += down, to += below) {
        int64_t i = 0;
        for (; i + 8 <= n; i += 8)
            for (int64_t j = 0; j < 8; j++) to[i + j] += from[i + j];
        for (; i < n; i++) to[i] += from[i];
    }
}

// fn(down, right, image, cols) for each kernel position of each of some channels; `cols` advances by `ld` from one to the
// next.
template <class Image, class Cols, class Fn>
RESILIN_INLINE void each_place(const Shape &s, const Tile &tile, int64_t channels, int64_t ld, Image *image, Cols *cols, Fn fn) {
    for (int64_t c = 0; c < channels; c++, image += s.H * s.W)
        for (int64_t i = 0; i < s.KH; i++) {
            const Span down(tile.p0, tile.p1, i, s.sh, s.ph, s.dh, s.H);
            for (int64_t j = 0; j < s.KW; j++, cols += ld)
                fn(down, Span(0, s.Q, j, s.sw, s.pw, s.dw, s.W), image, cols);
        }
}

// Sets what follows the first n elements of each of `rows` rows to zero, the last row's rest apart: where a run of memory
// goes on from row to row, it belongs to no window.
template <class T> RESILIN_INLINE void clear_between(T *to, int64_t rows, int64_t n, int64_t width) {
    for (int64_t r = 0; r + 1 < rows; r++)
        for (int64_t q = n; q < width; q++) to[r * width + q] = T(0);
}
// to[q] = from[q * stride], or to[q * stride] += from[q]; the usual stride as a constant.
template <class T> RESILIN_INLINE void copy_spread(const T *from, int64_t stride, T *to, int64_t n) {
    if (stride == 2)
        for (int64_t q = 0; q < n; q++) to[q] = from[2 * q];
    else
        for (int64_t q = 0; q < n; q++) to[q] = from[q * stride];
}
template <class T> RESILIN_INLINE void add_spread(const T *from, T *to, int64_t stride, int64_t n) {
    if (stride == 2)
        for (int64_t q = 0; q < n; q++) to[2 * q] += from[q];
    else
        for (int64_t q = 0; q < n; q++) to[q * stride] += from[q];
}

template <class T> RESILIN_INLINE void gather(const T *x, const Shape &s, const Tile &tile, int64_t channels, int64_t ld, T *into) {
    each_place(s, tile, channels, ld, x, into, [&](const Span &down, const Span &right, const T *image, T *cols) __attribute__((always_inline)) {
        const int64_t rows = down.end - down.begin, n = right.end - right.begin, all = (tile.p1 - tile.p0) * s.Q;
        const int64_t at = (down.begin - tile.p0) * s.Q + right.begin;
        const T *from = image + down.first * s.W + right.first;
        if (s.keeps_rows() && rows > 0 && n > 0) { // rows follow one another in both: one run
            const int64_t run = (rows - 1) * s.Q + n;
            std::fill(cols, cols + at, T(0));
            std::memcpy(cols + at, from, static_cast<size_t>(run) * sizeof(T));
            std::fill(cols + at + run, cols + all, T(0));
            return clear_between(cols + at, rows, n, s.Q);
        }
        if (rows < tile.p1 - tile.p0 || n < s.Q) std::fill(cols, cols + all, T(0));
        if (s.sw == 1) return copy_rows(from, s.sh * s.W, cols + at, s.Q, rows, n);
        for (int64_t r = 0; r < rows; r++) copy_spread(from + r * s.sh * s.W, s.sw, cols + at + r * s.Q, n);
    });
}
// Overwrites what `cols` holds of windows outside the input.
template <class T> RESILIN_INLINE void scatter(T *from, const Shape &s, const Tile &tile, int64_t channels, int64_t ld, T *x) {
    each_place(s, tile, channels, ld, x, from, [&](const Span &down, const Span &right, T *image, T *cols) __attribute__((always_inline)) {
        const int64_t rows = down.end - down.begin, n = right.end - right.begin;
        T *of = cols + (down.begin - tile.p0) * s.Q + right.begin;
        T *to = image + down.first * s.W + right.first;
        if (s.keeps_rows() && rows > 0 && n > 0) {
            clear_between(of, rows, n, s.Q);
            return add_rows(of, 0, to, 0, 1, (rows - 1) * s.Q + n);
        }
        if (s.sw == 1) return add_rows(of, s.Q, to, s.sh * s.W, rows, n);
        for (int64_t r = 0; r < rows; r++) add_spread(of + r * s.Q, to + r * s.sh * s.W, s.sw, n);
    });
}

} // namespace

int64_t parts_of(int64_t items, int64_t most) {
    const int64_t threads = num_threads();
    if (threads == 1 || items >= 4 * threads) return 1;
    return std::clamp<int64_t>(most, 1, threads / std::gcd(items, threads));
}

RESILIN_SIMD void gather_tile(const float *x, const Shape &s, const Tile &tile, int64_t channels, int64_t ld, float *cols) {
    gather(x, s, tile, channels, ld, cols);
}
RESILIN_SIMD void gather_tile(const double *x, const Shape &s, const Tile &tile, int64_t channels, int64_t ld, double *cols) {
    gather(x, s, tile, channels, ld, cols);
}
RESILIN_SIMD void scatter_tile(float *cols, const Shape &s, const Tile &tile, int64_t channels, int64_t ld, float *x) {
    scatter(cols, s, tile, channels, ld, x);
}
RESILIN_SIMD void scatter_tile(double *cols, const Shape &s, const Tile &tile, int64_t channels, int64_t ld, double *x) {
    scatter(cols, s, tile, channels, ld, x);
}

} // namespace resilin::conv
