// All frequencies of columns of real numbers: a column of 2 h numbers is one of h complex numbers, pairs of neighbours.
#include "kernels/simd.hpp"
#include "memory/parallel.hpp"
#include "memory/scratch.hpp"
#include "transform.hpp"

#include <algorithm>

namespace resilin {
namespace {

constexpr int64_t WORK = 16; // operations for an element, roughly

// X[k] and X[2 h - k], its conjugate, of Z[k] and Z[h - k], 0 < k < h; W columns, without 1 / 2.
template <class T> RESILIN_INLINE void part_columns_of(const T *z, int64_t h, const T *cosines, const T *sines, T *x) {
    constexpr int64_t W = LANES_OF<T>;
    for (int64_t k = 1; k < h; k++) {
        const T *__restrict a = z + 2 * W * k, *__restrict b = z + 2 * W * (h - k);
        T *__restrict to = x + 2 * W * k, *__restrict mirror = x + 2 * W * (2 * h - k);
        const T c = cosines[k], s = sines[k];
        for (int64_t l = 0; l < W; l++) {
            const T even_re = a[l] + b[l], even_im = a[l + W] - b[l + W];
            const T rest_re = a[l] - b[l], rest_im = a[l + W] + b[l + W];
            const T re = even_re + fma(rest_im, c, rest_re * s), im = even_im + fma(rest_im, s, -(rest_re * c));
            to[l] = mirror[l] = re;
            to[l + W] = im;
            mirror[l + W] = -im;
        }
    }
    T *last = x + 2 * W * h;
    for (int64_t l = 0; l < W; l++) {
        const T re = z[l], im = z[l + W];
        x[l] = 2 * (re + im), x[l + W] = 0;
        last[l] = 2 * (re - im), last[l + W] = 0;
    }
}
RESILIN_SIMD void part_columns(const float *z, int64_t h, const float *cosines, const float *sines, float *x) {
    part_columns_of(z, h, cosines, sines, x);
}
RESILIN_SIMD void part_columns(const double *z, int64_t h, const double *cosines, const double *sines, double *x) {
    part_columns_of(z, h, cosines, sines, x);
}

} // namespace

template <class T>
void transform_real_columns(int64_t n, const T *from, T *to, int64_t outer, int64_t inner, bool inverse, T scale) {
    constexpr int64_t W = LANES_OF<T>;
    const int64_t h = n / 2, groups = (inner + W - 1) / W;
    const auto plan = halves<T>(n);
    const auto pairs = columns<T>(h);
    parallel_rows(outer * groups, W * n * WORK, [&](int64_t begin, int64_t end) {
        static thread_local Scratch<T> scratch;
        T *x = scratch.of(4 * W * h + 2 * W * n), *made = x + 4 * W * h;
        for (int64_t i = begin; i < end; i++) {
            const int64_t c0 = i % groups * W, width = std::min(W, inner - c0), at = i / groups * n * inner + c0;
            if (width < W) std::fill_n(x, 2 * W * h, T(0));
            for (int64_t row = 0; row < n; row++) std::copy_n(from + at + row * inner, width, x + row * W);
            part_columns(pairs->lanes.run(x, x + 2 * W * h), h, plan->cosines.data(), plan->sines.data(), made);
            for (int64_t k = 0; k < n; k++) { // the inverse's frequencies are those of the transform, backwards
                const T *found = made + 2 * W * (inverse && k ? n - k : k);
                T *out = to + 2 * (at + k * inner);
                if (width == W) {
                    lanes_to_pairs(found, found + W, 1, scale / 2, out, 2 * W);
                    continue;
                }
                for (int64_t l = 0; l < width; l++) {
                    out[2 * l] = found[l] * (scale / 2);
                    out[2 * l + 1] = found[l + W] * (scale / 2);
                }
            }
        }
    });
}
template void transform_real_columns(int64_t, const float *, float *, int64_t, int64_t, bool, float);
template void transform_real_columns(int64_t, const double *, double *, int64_t, int64_t, bool, double);

} // namespace resilin
