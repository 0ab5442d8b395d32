// im2col and col2im. Columns are laid out [channel][kernel row][kernel column][sample][output row][output column], so
// that one matrix product serves all samples.
#include "array.hpp"
#include "kernels.hpp"
#include "parallel.hpp"

#include <cstring>

namespace resilin {
namespace {

// N samples, C channels, H W input size, P Q output size, KH KW kernel size; s stride, p padding, d dilation
struct Window {
    int64_t N, C, H, W, KH, KW, sh, sw, ph, pw, dh, dw, P, Q;
    bool fits() const {
        return KH > 0 && KW > 0 && sh > 0 && sw > 0 && dh > 0 && dw > 0 && ph >= 0 && pw >= 0 &&
               H + 2 * ph >= dh * (KH - 1) + 1 && W + 2 * pw >= dw * (KW - 1) + 1;
    }
    void set_output() {
        P = (H + 2 * ph - dh * (KH - 1) - 1) / sh + 1;
        Q = (W + 2 * pw - dw * (KW - 1) - 1) / sw + 1;
    }
    // output columns [first, last) whose input column q * sw + offset lies inside the image
    void inside(int64_t offset, int64_t &first, int64_t &last) const {
        first = offset >= 0 ? 0 : std::min(Q, (-offset + sw - 1) / sw);
        last = offset >= W ? first : std::max(first, std::min(Q, (W - 1 - offset) / sw + 1));
    }
};

// one kernel position of one channel of one sample: P * Q values
template <class T> void gather(const T *image, const Window &s, int64_t i, int64_t j, T *out) {
    const int64_t offset = j * s.dw - s.pw;
    int64_t first, last;
    s.inside(offset, first, last);
    for (int64_t p = 0; p < s.P; p++, out += s.Q) {
        const int64_t h = p * s.sh + i * s.dh - s.ph;
        if (h < 0 || h >= s.H) {
            std::memset(out, 0, static_cast<size_t>(s.Q) * sizeof(T));
            continue;
        }
        const T *row = image + h * s.W + offset;
        for (int64_t q = 0; q < first; q++) out[q] = T(0);
        if (s.sw == 1)
            for (int64_t q = first; q < last; q++) out[q] = row[q];
        else
            for (int64_t q = first; q < last; q++) out[q] = row[q * s.sw];
        for (int64_t q = last; q < s.Q; q++) out[q] = T(0);
    }
}

template <class T> void scatter(const T *cols, const Window &s, int64_t i, int64_t j, T *image) {
    const int64_t offset = j * s.dw - s.pw;
    int64_t first, last;
    s.inside(offset, first, last);
    for (int64_t p = 0; p < s.P; p++, cols += s.Q) {
        const int64_t h = p * s.sh + i * s.dh - s.ph;
        if (h < 0 || h >= s.H) continue;
        T *row = image + h * s.W + offset;
        if (s.sw == 1)
            for (int64_t q = first; q < last; q++) row[q] += cols[q];
        else
            for (int64_t q = first; q < last; q++) row[q * s.sw] += cols[q];
    }
}

template <class T> nb::object im2col_as(Array x, const Window &s) {
    const int64_t KK = s.KH * s.KW, L = s.P * s.Q;
    NewArray<T> cols({static_cast<npy_intp>(s.C * KK), static_cast<npy_intp>(s.N * L)});
    {
        WithoutGil free(s.C * KK * s.N * L);
        parallel_rows(s.C * KK, s.N * L, [&](int64_t begin, int64_t end) {
            for (int64_t k = begin; k < end; k++)
                for (int64_t n = 0; n < s.N; n++)
                    gather(x.data<T>() + (n * s.C + k / KK) * s.H * s.W, s, k % KK / s.KW, k % s.KW,
                           cols.data + (k * s.N + n) * L);
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
            for (int64_t cn = begin; cn < end; cn++) {
                const int64_t c = cn / s.N, n = cn % s.N;
                T *image = x.data + (n * s.C + c) * s.H * s.W;
                std::memset(image, 0, static_cast<size_t>(s.H * s.W) * sizeof(T));
                for (int64_t k = 0; k < KK; k++)
                    scatter(cols.data<T>() + ((c * KK + k) * s.N + n) * L, s, k / s.KW, k % s.KW, image);
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
