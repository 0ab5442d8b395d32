// Cross entropy against class numbers, straight from the logits.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "kernels/rows.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace resilin {
namespace {

// N samples, C classes
template <class T> struct Task {
    const T *z;
    const int64_t *target;
    const T *w; // null: all ones
    int64_t C, ignore;
    T smoothing;
};

template <class T> T weight_sum(const Task<T> &t) {
    if (!t.w) return static_cast<T>(t.C);
    T sum = T(0);
    for (int64_t c = 0; c < t.C; c++) sum += t.w[c];
    return sum;
}

// The log-sum-exp of a row is kept in two parts, (largest logit, rest): their sum would lose the digits of the rest
// where logits are large.
constexpr int64_t NARROW = LANES, SIDE = 16; // classes of rows that are short, and how many of these lie side by side

// That of short rows, in the lanes of vectors: the sums' order is the one of sum_of.
RESILIN_SIMD void narrow_lse(const Task<float> &t, int64_t begin, int64_t end, float *lse) {
    float z[NARROW][SIDE] = {}, top[SIDE];
    for (int64_t n = begin; n < end; n += SIDE) {
        const int64_t rows = end - n < SIDE ? end - n : SIDE;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < t.C; c++) z[c][r] = t.z[(n + r) * t.C + c];
        for (int64_t r = 0; r < SIDE; r++) top[r] = -std::numeric_limits<float>::infinity();
        for (int64_t c = 0; c < t.C; c++)
            for (int64_t r = 0; r < SIDE; r++) top[r] = z[c][r] > top[r] ? z[c][r] : top[r];
        for (int64_t c = 0; c < t.C; c++)
            for (int64_t r = 0; r < SIDE; r++) z[c][r] = exp_low(z[c][r] - top[r]);
        for (int64_t c = t.C; c < NARROW; c++)
            for (int64_t r = 0; r < SIDE; r++) z[c][r] = 0.0f;
        for (int64_t width = NARROW / 2; width > 0; width /= 2)
            for (int64_t c = 0; c < width; c++)
                for (int64_t r = 0; r < SIDE; r++) z[c][r] += z[c + width][r];
        for (int64_t r = 0; r < rows; r++) {
            lse[2 * (n + r)] = top[r];
            lse[2 * (n + r) + 1] = std::log(z[0][r]);
        }
    }
}

template <class T>
RESILIN_INLINE void forward_of(const Task<T> &t, T w_sum, int64_t begin, int64_t end, bool narrow, T *loss, T *lse, T *scratch) {
    const int64_t few = exponentials_abreast(t.C);
    for (int64_t n = begin; n < end; n++) {
        const T *row = t.z + n * t.C;
        if (!narrow && (n - begin) % few == 0) {
            const int64_t rows = std::min(few, end - n);
            for (int64_t r = 0; r < rows; r++) {
                const T highest = lse[2 * (n + r)] = top_of(row + r * t.C, t.C);
                for (int64_t c = r * t.C; c < (r + 1) * t.C; c++) scratch[c] = row[c] - highest;
            }
            for (int64_t i = 0; i < rows * t.C; i++) scratch[i] = exponential(scratch[i]);
            for (int64_t r = 0; r < rows; r++) lse[2 * (n + r) + 1] = std::log(row_sum(scratch + r * t.C, t.C));
        }
        const T top = lse[2 * n], rest = lse[2 * n + 1];
        const int64_t hit = t.target[n];
        if (hit == t.ignore) {
            loss[n] = T(0);
            continue;
        }
        loss[n] = (rest - (row[hit] - top)) * (t.w ? t.w[hit] : T(1));
        if (t.smoothing != T(0)) {
            for (int64_t c = 0; c < t.C; c++) scratch[c] = row[c] - top;
            const T weighted = t.w ? row_dot(scratch, t.w, t.C) : row_sum(scratch, t.C);
            const T smooth = rest * w_sum - weighted;
            loss[n] = (T(1) - t.smoothing) * loss[n] + t.smoothing / static_cast<T>(t.C) * smooth;
        }
    }
}

template <class T>
RESILIN_INLINE void backward_of(const Task<T> &t, T w_sum, const T *g, const T *lse, int64_t begin, int64_t end, T *dz) {
    const T share = t.smoothing / static_cast<T>(t.C);
    const int64_t few = exponentials_abreast(t.C);
    for (int64_t n = begin; n < end; n++) {
        T *out = dz + n * t.C;
        if ((n - begin) % few == 0) {
            const int64_t rows = std::min(few, end - n);
            for (int64_t r = 0; r < rows; r++) {
                const T *row = t.z + (n + r) * t.C;
                const T top = lse[2 * (n + r)], rest = lse[2 * (n + r) + 1];
                for (int64_t c = 0; c < t.C; c++) out[r * t.C + c] = row[c] - top - rest;
            }
            for (int64_t i = 0; i < rows * t.C; i++) out[i] = exponential(out[i]);
        }
        const int64_t hit = t.target[n];
        if (hit == t.ignore) {
            std::memset(out, 0, static_cast<size_t>(t.C) * sizeof(T));
            continue;
        }
        const T on_hit = g[n] * (T(1) - t.smoothing) * (t.w ? t.w[hit] : T(1));
        const T on_all = g[n] * share, total = on_hit + on_all * w_sum;
        for (int64_t c = 0; c < t.C; c++) out[c] *= total;
        out[hit] -= on_hit;
        if (t.smoothing != T(0))
            for (int64_t c = 0; c < t.C; c++) out[c] -= on_all * (t.w ? t.w[c] : T(1));
    }
}

RESILIN_SIMD void forward_rows(const Task<float> &t, float w_sum, int64_t begin, int64_t end, float *loss, float *lse,
                               float *scratch) {
    const bool narrow = t.C <= NARROW && end - begin >= SIDE;
    if (narrow) narrow_lse(t, begin, end, lse);
    forward_of(t, w_sum, begin, end, narrow, loss, lse, scratch);
}
RESILIN_SIMD void forward_rows(const Task<double> &t, double w_sum, int64_t begin, int64_t end, double *loss, double *lse,
                               double *scratch) {
    forward_of(t, w_sum, begin, end, false, loss, lse, scratch);
}
RESILIN_SIMD void backward_rows(const Task<float> &t, float w_sum, const float *g, const float *lse, int64_t begin, int64_t end,
                                float *dz) {
    backward_of(t, w_sum, g, lse, begin, end, dz);
}
RESILIN_SIMD void backward_rows(const Task<double> &t, double w_sum, const double *g, const double *lse, int64_t begin,
                                int64_t end, double *dz) {
    backward_of(t, w_sum, g, lse, begin, end, dz);
}

template <class T> bool accepts(const Array &z, const Array &target, const Array &w) {
    return z.is<T>() && z.ndim() == 2 && z.dim(1) > 0 && target.is<int64_t>() && target.ndim() == 1 &&
           target.dim(0) == z.dim(0) && w.is_or_none<T>() && (!w || w.size() == z.dim(1));
}

template <class T> int64_t first_wrong(const Task<T> &t, int64_t N) {
    for (int64_t n = 0; n < N; n++)
        if (t.target[n] != t.ignore && (t.target[n] < 0 || t.target[n] >= t.C)) return n;
    return -1;
}

// (loss_N, lse_N2), the number of the first row whose target is no class, or None
template <class T>
nb::object forward_in(const Array &z, const Array &target, const Array &w, int64_t ignore, double smoothing) {
    if (!accepts<T>(z, target, w)) return nb::none();
    const Task<T> t{z.data<T>(), target.data<int64_t>(), w.data<T>(), z.dim(1), ignore, static_cast<T>(smoothing)};
    const npy_intp N = z.dim(0);
    if (const int64_t wrong = first_wrong(t, N); wrong >= 0) return nb::int_(wrong);
    NewArray<T> loss({N}), lse({N, 2});
    {
        WithoutGil free(z.size());
        const T w_sum = weight_sum(t);
        parallel_rows(N, t.C, [&](int64_t begin, int64_t end) {
            std::vector<T> scratch(static_cast<size_t>(exponentials_abreast(t.C) * t.C));
            forward_rows(t, w_sum, begin, end, loss.data, lse.data, scratch.data());
        });
    }
    return nb::make_tuple(loss.object, lse.object);
}

nb::object forward(Floats z, Array target, Floats w, int64_t ignore, double smoothing) {
    if (z.is<double>()) return forward_in<double>(z, target, w, ignore, smoothing);
    return forward_in<float>(z, target, w, ignore, smoothing);
}

template <class T>
nb::object backward_in(const Array &g, const Array &z, const Array &target, const Array &lse, const Array &w, int64_t ignore,
                       double smoothing) {
    if (!accepts<T>(z, target, w) || !g.is<T>() || !lse.is<T>() || g.size() != z.dim(0) ||
        lse.size() != 2 * z.dim(0))
        return nb::none();
    const Task<T> t{z.data<T>(), target.data<int64_t>(), w.data<T>(), z.dim(1), ignore, static_cast<T>(smoothing)};
    if (first_wrong(t, z.dim(0)) >= 0) return nb::none();
    NewArray<T> dz(z);
    {
        WithoutGil free(z.size());
        const T w_sum = weight_sum(t);
        parallel_rows(z.dim(0), t.C, [&](int64_t begin, int64_t end) {
            backward_rows(t, w_sum, g.data<T>(), lse.data<T>(), begin, end, dz.data);
        });
    }
    return dz.object;
}

nb::object backward(Floats g, Floats z, Array target, Floats lse, Floats w, int64_t ignore, double smoothing) {
    if (z.is<double>()) return backward_in<double>(g, z, target, lse, w, ignore, smoothing);
    return backward_in<float>(g, z, target, lse, w, ignore, smoothing);
}

} // namespace

void bind_cross_entropy(nb::module_ &m) {
    m.def("cross_entropy_forward", &forward, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
    m.def("cross_entropy_backward", &backward, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
          nb::arg());
}

} // namespace resilin
