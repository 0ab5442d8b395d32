// The part of attention between its matrix products: scale, mask, softmax, in place on the scores.
#include "array.hpp"
#include "kernels.hpp"
#include "parallel.hpp"
#include "simd.hpp"

#include <cmath>

namespace resilin {
namespace {

// R rows of scores in all, T queries per head, S keys
struct Mask {
    const float *data; // null: none
    int64_t stride;    // elements from one row of scores to the next in the mask, 0 when it is shared by all
    int64_t period;    // rows after which the mask repeats
};

// The first `seen` elements of a row count. Loops run up to the next multiple of the vector size: tails are slow.
RESILIN_INLINE int64_t whole_vectors(int64_t seen, int64_t S) { return std::min(S, (seen + LANES - 1) / LANES * LANES); }

RESILIN_SIMD void softmax_rows(float *s, Mask mask, bool causal, float scale, int64_t T, int64_t S, int64_t begin,
                               int64_t end) {
    const float inf = std::numeric_limits<float>::infinity();
    for (int64_t r = begin; r < end; r++) {
        float *row = s + r * S;
        const int64_t seen = causal ? std::min(S, r % T + 1) : S, n = whole_vectors(seen, S);
        float factor = scale;
        if (mask.data || scale <= 0.0f) {
            const float *added = mask.data ? mask.data + (r % mask.period) * mask.stride : nullptr;
            for (int64_t i = 0; i < seen; i++) row[i] = added ? row[i] * scale + added[i] : row[i] * scale;
            factor = 1.0f;
        }
        for (int64_t i = seen; i < n; i++) row[i] = -inf;
        float top = max_of(row, n);
        top = top == -inf ? 0.0f : top;
        for (int64_t i = 0; i < n; i++) row[i] = exp_low((row[i] - top) * factor);
        const float sum = sum_of(row, n);
        const float inv = sum == 0.0f ? 0.0f : 1.0f / sum;
        for (int64_t i = 0; i < n; i++) row[i] *= inv;
        for (int64_t i = n; i < S; i++) row[i] = 0.0f;
    }
}

RESILIN_SIMD void backward_rows(float *dp, const float *p, float scale, bool causal, int64_t T, int64_t S,
                                int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
        float *__restrict d = dp + r * S;
        const float *__restrict row = p + r * S;
        const int64_t seen = causal ? std::min(S, r % T + 1) : S, n = whole_vectors(seen, S);
        for (int64_t i = seen; i < n; i++) d[i] = 0.0f;
        const float dot = dot_of(d, row, n);
        for (int64_t i = 0; i < n; i++) d[i] = row[i] * (d[i] - dot) * scale;
        for (int64_t i = n; i < S; i++) d[i] = 0.0f;
    }
}

// The mask's last two axes are those of the scores; its leading axes are all 1 (one mask for all heads) or all full.
bool describe(const ExactArray &scores, const Array &mask, Mask &out) {
    out = Mask{nullptr, 0, 1};
    if (!mask) return true;
    const int n = scores.ndim(), k = mask.ndim();
    if (!mask.is<float>() || k < 2 || k > n || mask.dim(k - 1) != scores.dim(n - 1)) return false;
    const int64_t S = scores.dim(n - 1), T = scores.dim(n - 2);
    if (mask.dim(k - 2) != T) return false;
    if (mask.size() != T * S && !mask.same_shape(scores)) return false;
    out = Mask{mask.data<float>(), S, mask.size() / std::max<int64_t>(S, 1)};
    return true;
}

bool masked_softmax_(ExactArray s, Array added, bool causal, float scale) {
    Mask mask;
    if (!s.is_writable<float>() || s.ndim() < 2 || !describe(s, added, mask)) return false;
    if (s.size() == 0) return true;
    const int64_t S = s.last(), T = s.dim(s.ndim() - 2);
    WithoutGil free(s.size());
    parallel_rows(s.size() / S, S, [&](int64_t begin, int64_t end) {
        softmax_rows(s.data<float>(), mask, causal, scale, T, S, begin, end);
    });
    return true;
}

bool backward_(ExactArray dp, Array p, bool causal, float scale) {
    if (!dp.is_writable<float>() || !p.is<float>() || p.ndim() < 2 || !dp.same_shape(p)) return false;
    if (p.size() == 0) return true;
    const int64_t S = p.last(), T = p.dim(p.ndim() - 2);
    WithoutGil free(p.size());
    parallel_rows(p.size() / S, S, [&](int64_t begin, int64_t end) {
        backward_rows(dp.data<float>(), p.data<float>(), scale, causal, T, S, begin, end);
    });
    return true;
}

} // namespace

void bind_attention(nb::module_ &m) {
    m.def("masked_softmax_", &masked_softmax_, nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
    m.def("masked_softmax_backward_", &backward_);
}

} // namespace resilin
