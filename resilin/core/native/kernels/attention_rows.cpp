#include "attention_rows.hpp"

#include "simd.hpp"

#include <algorithm>
#include <cmath>

namespace resilin {
namespace {

// The first `seen` elements of a row count. Loops run up to the next multiple of the vector size: tails are slow.
RESILIN_INLINE int64_t whole_vectors(int64_t seen, int64_t S) { return std::min(S, (seen + LANES - 1) / LANES * LANES); }

} // namespace

RESILIN_SIMD void softmax_rows(float *s, const Scores &of, int64_t begin, int64_t end) {
    const float inf = std::numeric_limits<float>::infinity(), scale = of.scale;
    const int64_t S = of.S;
    for (int64_t r = begin; r < end; r++) {
        float *row = s + r * S;
        const int64_t seen = of.causal ? std::min(S, r + 1) : S, n = whole_vectors(seen, S);
        float factor = scale;
        if (of.mask || scale <= 0.0f) {
            const float *added = of.mask ? of.mask + r * of.mask_row : nullptr;
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

RESILIN_SIMD void softmax_backward_rows(float *d, const float *p, const Scores &of, int64_t begin, int64_t end) {
    const int64_t S = of.S;
    const float scale = of.scale;
    for (int64_t r = begin; r < end; r++) {
        float *__restrict row = d + r * S;
        const float *__restrict given = p + r * S;
        const int64_t seen = of.causal ? std::min(S, r + 1) : S, n = whole_vectors(seen, S);
        for (int64_t i = seen; i < n; i++) row[i] = 0.0f;
        const float dot = dot_of(row, given, n);
        for (int64_t i = 0; i < n; i++) row[i] = given[i] * (row[i] - dot) * scale;
        for (int64_t i = n; i < S; i++) row[i] = 0.0f;
    }
}

} // namespace resilin
