// im2col and col2im. Columns are laid out [channel][kernel row][kernel column][sample][output row][output column], so
// that one matrix product serves all samples.
#include "array.hpp"
#include "kernels.hpp"
#include "parallel.hpp"
#include "simd.hpp"

#include <cstring>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t MAX_LENGTH = int64_t(1) << 28;

// N samples, C channels, H W input size, P Q output size, KH KW kernel size; s stride, p padding, d dilation
struct Window {
    int64_t N, C, H, W, KH, KW, sh, sw, ph, pw, dh, dw, P, Q;
    // Every product below stays inside int64, and a padded image is small enough to be held by each thread.
    bool fits() const {
        for (int64_t length : {N, C, H, W, KH, KW, sh, sw, ph, pw, dh, dw})
            if (length < 0 || length > MAX_LENGTH) return false;
        const double columns = 1.0 * N * C * KH * KW * (H + 2 * ph) * (W + 2 * pw);
        return columns < 1e18 && padded_height() * padded_width() <= MAX_LENGTH && KH > 0 && KW > 0 && sh > 0 && sw > 0 && dh > 0 && dw > 0 && ph >= 0 && pw >= 0 &&
               H + 2 * ph >= dh * (KH - 1) + 1 && W + 2 * pw >= dw * (KW - 1) + 1;
    }
    void set_output() {
        P = (H + 2 * ph - dh * (KH - 1) - 1) / sh + 1;
        Q = (W + 2 * pw - dw * (KW - 1) - 1) / sw + 1;
    }
    int64_t padded_height() const { return H + 2 * ph; }
    int64_t padded_width() const { return W + 2 * pw; }
};

// Copies or adds n elements; pieces of 8 have a fixed size, so that rows of small images cost a few instructions.
template <class T> RESILIN_INLINE void copy_row(const T *from, T *to, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) std::memcpy(to + i, from + i, 8 * sizeof(T));
    for (; i < n; i++) to[i] = from[i];
}
template <class T> RESILIN_INLINE void add_row(const T *from, T *to, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int64_t j = 0; j < 8; j++) to[i + j] += from[i + j];
    for (; i < n; i++) to[i] += from[i];
}

// All windows of one padded image: P * Q values for each kernel position, `step` elements apart.
template <class T> RESILIN_INLINE void gather(const T *padded, const Window &s, int64_t step, T *cols) {
    const int64_t wide = s.padded_width();
    for (int64_t i = 0; i < s.KH; i++)
        for (int64_t j = 0; j < s.KW; j++, cols += step)
            for (int64_t p = 0; p < s.P; p++) {
                const T *row = padded + (p * s.sh + i * s.dh) * wide + j * s.dw;
                if (s.sw == 1)
                    copy_row(row, cols + p * s.Q, s.Q);
                else
                    for (int64_t q = 0; q < s.Q; q++) cols[p * s.Q + q] = row[q * s.sw];
            }
}
RESILIN_SIMD void gather_windows(const float *x, const Window &s, int64_t step, float *cols) {
    gather(x, s, step, cols);
}
RESILIN_SIMD void gather_windows(const double *x, const Window &s, int64_t step, double *cols) {
    gather(x, s, step, cols);
}

template <class T> RESILIN_INLINE void scatter(const T *cols, const Window &s, int64_t step, T *padded) {
    const int64_t wide = s.padded_width();
    for (int64_t i = 0; i < s.KH; i++)
        for (int64_t j = 0; j < s.KW; j++, cols += step)
            for (int64_t p = 0; p < s.P; p++) {
                T *row = padded + (p * s.sh + i * s.dh) * wide + j * s.dw;
                if (s.sw == 1)
                    add_row(cols + p * s.Q, row, s.Q);
                else
                    for (int64_t q = 0; q < s.Q; q++) row[q * s.sw] += cols[p * s.Q + q];
            }
}
RESILIN_SIMD void scatter_windows(const float *cols, const Window &s, int64_t step, float *padded) {
    scatter(cols, s, step, padded);
}
RESILIN_SIMD void scatter_windows(const double *cols, const Window &s, int64_t step, double *padded) {
    scatter(cols, s, step, padded);
}

template <class T> nb::object im2col_as(Array x, const Window &s) {
    const int64_t KK = s.KH * s.KW, L = s.P * s.Q;
    NewArray<T> cols({static_cast<npy_intp>(s.C * KK), static_cast<npy_intp>(s.N * L)});
    {
        WithoutGil free(s.C * KK * s.N * L);
        parallel_rows(s.C * s.N, KK * L, [&](int64_t begin, int64_t end) {
            const bool bare = s.ph == 0 && s.pw == 0;
            std::vector<T> padded(bare ? 0 : static_cast<size_t>(s.padded_height() * s.padded_width()));
            for (int64_t cn = begin; cn < end; cn++) {
                const int64_t c = cn / s.N, n = cn % s.N;
                const T *image = x.data<T>() + (n * s.C + c) * s.H * s.W;
                for (int64_t h = 0; h < s.H && !bare; h++) // the border stays zero
                    copy_row(image + h * s.W, padded.data() + (h + s.ph) * s.padded_width() + s.pw, s.W);
                gather_windows(bare ? image : padded.data(), s, s.N * L, cols.data + (c * KK * s.N + n) * L);
            }
        });
    }
    return cols.object;
}

template <class T> nb::object col2im_as(Array cols, const Window &s) {
    const int64_t KK = s.KH * s.KW, L = s.P * s.Q;
    NewArray<T> x({static_cast<npy_intp>(s.N), static_cast<npy_intp>(s.C), static_cast<npy_intp>(s.H),
                   static_cast<npy_intp>(s.W)});
    {
        WithoutGil free(s.C * KK * s.N * L);
        parallel_rows(s.C * s.N, KK * L, [&](int64_t begin, int64_t end) {
            std::vector<T> padded(static_cast<size_t>(s.padded_height() * s.padded_width()));
            for (int64_t cn = begin; cn < end; cn++) {
                const int64_t c = cn / s.N, n = cn % s.N;
                std::fill(padded.begin(), padded.end(), T(0));
                scatter_windows(cols.data<T>() + (c * KK * s.N + n) * L, s, s.N * L, padded.data());
                T *image = x.data + (n * s.C + c) * s.H * s.W;
                for (int64_t h = 0; h < s.H; h++)
                    copy_row(padded.data() + (h + s.ph) * s.padded_width() + s.pw, image + h * s.W, s.W);
            }
        });
    }
    return x.object;
}

nb::object im2col(Array x, int64_t KH, int64_t KW, int64_t sh, int64_t sw, int64_t ph, int64_t pw, int64_t dh,
                  int64_t dw) {
    if (x.ndim() != 4) return nb::none();
    Window s{x.dim(0), x.dim(1), x.dim(2), x.dim(3), KH, KW, sh, sw, ph, pw, dh, dw, 0, 0};
    if (!s.fits()) return nb::none();
    s.set_output();
    return x.is<float>() ? im2col_as<float>(x, s) : x.is<double>() ? im2col_as<double>(x, s) : nb::none();
}

nb::object col2im(Array cols, int64_t N, int64_t C, int64_t H, int64_t W, int64_t KH, int64_t KW, int64_t sh,
                  int64_t sw, int64_t ph, int64_t pw, int64_t dh, int64_t dw) {
    Window s{N, C, H, W, KH, KW, sh, sw, ph, pw, dh, dw, 0, 0};
    if (!s.fits()) return nb::none();
    s.set_output();
    if (cols.size() != C * KH * KW * N * s.P * s.Q) return nb::none();
    return cols.is<float>() ? col2im_as<float>(cols, s) : cols.is<double>() ? col2im_as<double>(cols, s) : nb::none();
}

} // namespace

void bind_conv2d(nb::module_ &m) {
    m.def("im2col", &im2col);
    m.def("col2im", &col2im);
}

} // namespace resilin
