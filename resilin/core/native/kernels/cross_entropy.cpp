// Cross entropy against class numbers, straight from the logits.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <cmath>
#include <vector>

namespace resilin {
namespace {

// N samples, C classes
struct Task {
    const float *z;
    const int64_t *target;
    const float *w; // null: all ones
    int64_t C, ignore;
    float smoothing;
};

float weight_sum(const Task &t) {
    if (!t.w) return static_cast<float>(t.C);
    float sum = 0.0f;
    for (int64_t c = 0; c < t.C; c++) sum += t.w[c];
    return sum;
}

// The log-sum-exp of a row is kept in two parts, (largest logit, rest): their sum would lose the digits of the rest
// where logits are large.
constexpr int64_t NARROW = LANES, SIDE = 16; // classes of rows that are short, and how many of these lie side by side

// That of short rows, in the lanes of vectors: the sums' order is the one of sum_of.
RESILIN_SIMD void narrow_lse(const Task &t, int64_t begin, int64_t end, float *lse) {
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

RESILIN_SIMD void forward_rows(const Task &t, float w_sum, int64_t begin, int64_t end, float *loss, float *lse,
                               float *scratch) {
    const bool narrow = t.C <= NARROW && end - begin >= SIDE;
    if (narrow) narrow_lse(t, begin, end, lse);
    for (int64_t n = begin; n < end; n++) {
        const float *row = t.z + n * t.C;
        if (!narrow) {
            const float highest = max_of(row, t.C);
            for (int64_t c = 0; c < t.C; c++) scratch[c] = exp_low(row[c] - highest);
            lse[2 * n] = highest;
            lse[2 * n + 1] = std::log(sum_of(scratch, t.C));
        }
        const float top = lse[2 * n], rest = lse[2 * n + 1];
        const int64_t hit = t.target[n];
        if (hit == t.ignore) {
            loss[n] = 0.0f;
            continue;
        }
        loss[n] = (rest - (row[hit] - top)) * (t.w ? t.w[hit] : 1.0f);
        if (t.smoothing != 0.0f) {
            for (int64_t c = 0; c < t.C; c++) scratch[c] = row[c] - top;
            const float weighted = t.w ? dot_of(scratch, t.w, t.C) : sum_of(scratch, t.C);
            const float smooth = rest * w_sum - weighted;
            loss[n] = (1.0f - t.smoothing) * loss[n] + t.smoothing / static_cast<float>(t.C) * smooth;
        }
    }
}

RESILIN_SIMD void backward_rows(const Task &t, float w_sum, const float *g, const float *lse, int64_t begin,
                                int64_t end, float *dz) {
    const float share = t.smoothing / static_cast<float>(t.C);
    for (int64_t n = begin; n < end; n++) {
        const float *row = t.z + n * t.C;
        float *out = dz + n * t.C;
        const int64_t hit = t.target[n];
        if (hit == t.ignore) {
            std::memset(out, 0, static_cast<size_t>(t.C) * sizeof(float));
            continue;
        }
        const float on_hit = g[n] * (1.0f - t.smoothing) * (t.w ? t.w[hit] : 1.0f);
        const float on_all = g[n] * share, total = on_hit + on_all * w_sum;
        const float top = lse[2 * n], rest = lse[2 * n + 1];
        for (int64_t c = 0; c < t.C; c++) out[c] = exp_low(row[c] - top - rest) * total;
        out[hit] -= on_hit;
        if (t.smoothing != 0.0f)
            for (int64_t c = 0; c < t.C; c++) out[c] -= on_all * (t.w ? t.w[c] : 1.0f);
    }
}

bool accepts(Array z, Array target, Array w) {
    return z.is<float>() && z.ndim() == 2 && z.dim(1) > 0 && target.is<int64_t>() && target.ndim() == 1 &&
           target.dim(0) == z.dim(0) && w.is_or_none<float>() && (!w || w.size() == z.dim(1));
}

int64_t first_wrong(const Task &t, int64_t N) {
    for (int64_t n = 0; n < N; n++)
        if (t.target[n] != t.ignore && (t.target[n] < 0 || t.target[n] >= t.C)) return n;
    return -1;
}

// (loss_N, lse_N2), the number of the first row whose target is no class, or None
nb::object forward(Array z, Array target, Array w, int64_t ignore, float smoothing) {
    if (!accepts(z, target, w)) return nb::none();
    const Task t{z.data<float>(), target.data<int64_t>(), w.data<float>(), z.dim(1), ignore, smoothing};
    const npy_intp N = z.dim(0);
    if (const int64_t wrong = first_wrong(t, N); wrong >= 0) return nb::int_(wrong);
    NewArray<float> loss({N}), lse({N, 2});
    {
        WithoutGil free(z.size());
        const float w_sum = weight_sum(t);
        parallel_rows(N, t.C, [&](int64_t begin, int64_t end) {
            std::vector<float> scratch(static_cast<size_t>(t.C));
            forward_rows(t, w_sum, begin, end, loss.data, lse.data, scratch.data());
        });
    }
    return nb::make_tuple(loss.object, lse.object);
}

nb::object backward(Array g, Array z, Array target, Array lse, Array w, int64_t ignore, float smoothing) {
    if (!accepts(z, target, w) || !g.is<float>() || !lse.is<float>() || g.size() != z.dim(0) ||
        lse.size() != 2 * z.dim(0))
        return nb::none();
    const Task t{z.data<float>(), target.data<int64_t>(), w.data<float>(), z.dim(1), ignore, smoothing};
    if (first_wrong(t, z.dim(0)) >= 0) return nb::none();
    NewArray<float> dz(z);
    {
        WithoutGil free(z.size());
        const float w_sum = weight_sum(t);
        parallel_rows(z.dim(0), t.C, [&](int64_t begin, int64_t end) {
            backward_rows(t, w_sum, g.data<float>(), lse.data<float>(), begin, end, dz.data);
        });
    }
    return dz.object;
}

} // namespace

void bind_cross_entropy(nb::module_ &m) {
    m.def("cross_entropy_forward", &forward, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
    m.def("cross_entropy_backward", &backward, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
          nb::arg());
}

} // namespace resilin
