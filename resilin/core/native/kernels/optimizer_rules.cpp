// Steps of the elementwise optimizers. A rule is a formula over one block; its constants are computed by the Python twin
// and come in the order of the reference's arguments there (optimizer_rules.py).
#include "binding/kernels.hpp"
#include "optimizers.hpp"

#include <cmath>
#include <cstring>

namespace resilin {
namespace {

constexpr size_t MAX_CONSTANTS = 10;
using Rule = void (*)(const Piece &, const float *);

RESILIN_INLINE float sign_of(float x) { return (x > 0.0f ? 1.0f : 0.0f) - (x < 0.0f ? 1.0f : 0.0f); }

RESILIN_SIMD void adagrad(const Piece &x, const float *c) {
    const float sign = c[0], decay = c[1], rate = c[2], eps = c[3];
    float *__restrict p = x.data[0], *__restrict sum = x.data[2];
    const float *__restrict g = x.data[1];
    for (int64_t i = 0; i < x.n; i++) {
        const float d = pull(g[i], p[i], sign, decay);
        const float s = sum[i] + d * d;
        sum[i] = s;
        p[i] -= d / (std::sqrt(s) + eps) * rate;
    }
}

RESILIN_SIMD void adadelta(const Piece &x, const float *c) {
    const float sign = c[0], decay = c[1], keep = c[2], take = c[3], eps = c[4], lr = c[5];
    float *__restrict p = x.data[0], *__restrict square = x.data[2], *__restrict moved = x.data[3];
    const float *__restrict g = x.data[1];
    for (int64_t i = 0; i < x.n; i++) {
        const float d = pull(g[i], p[i], sign, decay);
        const float s = square[i] * keep + d * take * d;
        const float move = std::sqrt(moved[i] + eps) / std::sqrt(s + eps) * d;
        square[i] = s;
        moved[i] = moved[i] * keep + move * take * move;
        p[i] -= move * lr;
    }
}

RESILIN_SIMD void adamax(const Piece &x, const float *c) {
    const float sign = c[0], decay = c[1], take1 = c[2], keep2 = c[3], eps = c[4], rate = c[5];
    float *__restrict p = x.data[0], *__restrict m = x.data[2], *__restrict top = x.data[3];
    const float *__restrict g = x.data[1];
    for (int64_t i = 0; i < x.n; i++) {
        const float d = pull(g[i], p[i], sign, decay);
        const float m1 = m[i] + (d - m[i]) * take1;
        const float old = top[i] * keep2, now = std::fabs(d) + eps;
        const float t = old > now || old != old ? old : now; // the larger one; NaN when one of them is
        m[i] = m1;
        top[i] = t;
        p[i] -= m1 / t * rate;
    }
}

template <bool Centered, bool Momentum> RESILIN_INLINE void rmsprop_span(const Piece &x, const float *c) {
    const float sign = c[0], decay = c[1], keep = c[2], take = c[3], eps = c[4], momentum = c[5], lr = c[6];
    float *__restrict p = x.data[0], *__restrict square = x.data[2];
    float *__restrict mean = x.data[3], *__restrict buf = x.data[4];
    const float *__restrict g = x.data[1];
    for (int64_t i = 0; i < x.n; i++) {
        const float d = pull(g[i], p[i], sign, decay);
        const float s = square[i] * keep + d * take * d;
        square[i] = s;
        float spread = s;
        if (Centered) {
            const float a = mean[i] + (d - mean[i]) * take;
            mean[i] = a;
            spread = s - a * a;
        }
        float move = d / (std::sqrt(spread) + eps);
        if (Momentum) {
            move = buf[i] * momentum + move;
            buf[i] = move;
        }
        p[i] -= move * lr;
    }
}
RESILIN_SIMD void rmsprop_plain(const Piece &x, const float *c) { rmsprop_span<false, false>(x, c); }
RESILIN_SIMD void rmsprop_centered(const Piece &x, const float *c) { rmsprop_span<true, false>(x, c); }
RESILIN_SIMD void rmsprop_momentum(const Piece &x, const float *c) { rmsprop_span<false, true>(x, c); }
RESILIN_SIMD void rmsprop_both(const Piece &x, const float *c) { rmsprop_span<true, true>(x, c); }
void rmsprop(const Piece &x, const float *c) {
    if (x.data[3])
        x.data[4] ? rmsprop_both(x, c) : rmsprop_centered(x, c);
    else
        x.data[4] ? rmsprop_momentum(x, c) : rmsprop_plain(x, c);
}

RESILIN_SIMD void rprop(const Piece &x, const float *c) {
    const float sign = c[0], shrink = c[1], grow = c[2], low = c[3], high = c[4];
    float *__restrict p = x.data[0], *__restrict prev = x.data[2], *__restrict size = x.data[3];
    const float *__restrict g = x.data[1];
    for (int64_t i = 0; i < x.n; i++) {
        const float d = sign * g[i], turn = d * prev[i];
        const float s = size[i] * (turn > 0.0f ? grow : turn < 0.0f ? shrink : 1.0f);
        const float clipped = s < low ? low : s > high ? high : s;
        const float kept = turn < 0.0f ? 0.0f : d;
        size[i] = clipped;
        prev[i] = kept;
        p[i] -= sign_of(kept) * clipped;
    }
}

RESILIN_SIMD void nadam(const Piece &x, const float *c) {
    const float sign = c[0], decay = c[1], shrink = c[2], take1 = c[3], keep2 = c[4], take2 = c[5], inv_bias = c[6];
    const float eps = c[7], rate_g = c[8], rate_m = c[9];
    float *__restrict p = x.data[0], *__restrict m = x.data[2], *__restrict v = x.data[3];
    const float *__restrict g = x.data[1];
    for (int64_t i = 0; i < x.n; i++) {
        const float d = pull(g[i], p[i], sign, decay);
        const float m1 = m[i] + (d - m[i]) * take1;
        const float v1 = v[i] * keep2 + d * take2 * d;
        const float denom = std::sqrt(v1 * inv_bias) + eps;
        m[i] = m1;
        v[i] = v1;
        p[i] = p[i] * shrink - d / denom * rate_g - m1 / denom * rate_m;
    }
}

template <bool Adaptive> RESILIN_INLINE void radam_span(const Piece &x, const float *c) {
    const float sign = c[0], decay = c[1], shrink = c[2], take1 = c[3], keep2 = c[4], take2 = c[5], eps = c[6];
    const float rate = c[7];
    float *__restrict p = x.data[0], *__restrict m = x.data[2], *__restrict v = x.data[3];
    const float *__restrict g = x.data[1];
    for (int64_t i = 0; i < x.n; i++) {
        const float d = pull(g[i], p[i], sign, decay);
        const float m1 = m[i] + (d - m[i]) * take1;
        const float v1 = v[i] * keep2 + d * take2 * d;
        m[i] = m1;
        v[i] = v1;
        p[i] = p[i] * shrink - (Adaptive ? m1 / (std::sqrt(v1) + eps) : m1) * rate;
    }
}
RESILIN_SIMD void radam_adaptive(const Piece &x, const float *c) { radam_span<true>(x, c); }
RESILIN_SIMD void radam_plain(const Piece &x, const float *c) { radam_span<false>(x, c); }
void radam(const Piece &x, const float *c) { c[8] != 0.0f ? radam_adaptive(x, c) : radam_plain(x, c); }

RESILIN_SIMD void asgd(const Piece &x, const float *c) {
    const float sign = c[0], decay = c[1], shrink = c[2], eta = c[3], mu = c[4];
    float *__restrict p = x.data[0], *__restrict mean = x.data[2];
    const float *__restrict g = x.data[1];
    for (int64_t i = 0; i < x.n; i++) {
        const float q = p[i] * shrink - pull(g[i], p[i], sign, decay) * eta;
        mean[i] = mu == 1.0f ? q : mean[i] + (q - mean[i]) * mu;
        p[i] = q;
    }
}

RESILIN_SIMD void lion(const Piece &x, const float *c) {
    const float sign = c[0], shrink = c[1], take1 = c[2], take2 = c[3], lr = c[4];
    float *__restrict p = x.data[0], *__restrict m = x.data[2];
    const float *__restrict g = x.data[1];
    for (int64_t i = 0; i < x.n; i++) {
        const float d = sign * g[i];
        p[i] = p[i] * shrink - sign_of(m[i] + (d - m[i]) * take1) * lr;
        m[i] += (d - m[i]) * take2;
    }
}

struct Entry {
    const char *name;
    Rule rule;
    size_t lists, constants;
};
constexpr Entry RULES[] = {
    {"adagrad", adagrad, 3, 4}, {"adadelta", adadelta, 4, 6}, {"adamax", adamax, 4, 6},
    {"rmsprop", rmsprop, 5, 7}, {"rprop", rprop, 4, 5},       {"nadam", nadam, 4, 10},
    {"radam", radam, 4, 9},     {"asgd", asgd, 3, 5},         {"lion", lion, 3, 5},
};

// One step of the rule `name` over all arrays of `lists`; false when it was not done.
bool optimizer_rule(const char *name, nb::tuple lists, nb::tuple constants) {
    for (const Entry &entry : RULES) {
        if (std::strcmp(name, entry.name) != 0) continue;
        if (lists.size() != entry.lists || constants.size() != entry.constants) return false;
        std::vector<nb::handle> handles;
        for (nb::handle list : lists) handles.push_back(list);
        float c[MAX_CONSTANTS] = {};
        for (size_t i = 0; i < constants.size(); i++) c[i] = static_cast<float>(nb::cast<double>(constants[i]));
        Work work;
        if (!line_up(handles, work)) return false;
        run(work.pieces, [&](const Piece &x) { entry.rule(x, c); });
        return true;
    }
    return false;
}

} // namespace

void bind_optimizer_rules(nb::module_ &m) { m.def("optimizer_rule", &optimizer_rule); }

} // namespace resilin
