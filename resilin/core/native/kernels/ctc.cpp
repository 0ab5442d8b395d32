// Connectionist temporal classification: log-space sums over all alignments, one sample per task.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace resilin {
namespace {

// T time, N samples, C classes, L states (2 n + 1 for a target of n labels: blanks between and around them)
constexpr float NONE = -std::numeric_limits<float>::infinity();
constexpr int64_t PAD = 2; // states before the first, from which nothing comes
constexpr int64_t COST = 16; // elements of ordinary work that one state's exponentials and logarithm are worth

// out[s] = log(e^before[s] + e^before[s-1] + (skip[s] ? e^before[s-2] : 0)) + picked[s]; `before` has PAD ahead of it
RESILIN_SIMD void advance(const float *before, const float *skip, const float *picked, float *out, int64_t S) {
#pragma GCC ivdep
    for (int64_t s = 0; s < S; s++) {
        const float stay = before[s], step = before[s - 1], over = before[s - 2];
        const float two = skip[s] > 0.0f ? over : NONE;
        float top = stay > step ? stay : step;
        top = two > top ? two : top;
        const bool none = top == NONE;
        top = none ? 0.0f : top;
        const float sum = exp_low(stay - top) + exp_low(step - top) + exp_low(two - top);
        const float log = top + log_(sum);
        const float found = sum == sum ? log : sum;
        out[s] = (none && sum == 0.0f ? NONE : found) + picked[s];
    }
}

// How probable each state is, given the target; beta runs from the last state to the first
RESILIN_SIMD void shares(const float *alpha, const float *beta, const float *picked, float loss, float *out, int64_t S) {
    for (int64_t s = 0; s < S; s++) {
        const float a = alpha[s], b = beta[S - 1 - s];
        const float share = exp_low(a + b - picked[s] + loss);
        out[s] = a == NONE || b == NONE ? 0.0f : share;
    }
}

// e^x for any x; the last steps to infinity by a product
RESILIN_SIMD void exponentials(const float *x, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const bool large = x[i] > 80.0f;
        const float v = x[i] > 90.0f ? 90.0f : x[i];
        const float e = exp_low(large ? v - 2.0f : v);
        out[i] = large ? e * 7.38905610f : e;
    }
}

// One sample's states, in the order of time or turned round.
struct States {
    int64_t S;
    std::vector<int64_t> labels;
    std::vector<float> skip, picked, row; // row: PAD, then the sums that end in (or go on from) each state

    States(const int64_t *of, int64_t S, int64_t blank, bool turned)
        : S(S), labels(of, of + S), skip(S, 0.0f), picked(S), row(S + PAD, NONE) {
        if (turned) std::reverse(labels.begin(), labels.end());
        for (int64_t s = 2; s < S; s++) skip[s] = labels[s] != blank && labels[s] != labels[s - 2] ? 1.0f : 0.0f;
    }
    void pick(const float *log_probs) {
        for (int64_t s = 0; s < S; s++) picked[s] = log_probs[labels[s]];
    }
    // the sums at the first time; `next` is scratch
    void begin() {
        for (int64_t s = 0; s < S; s++) row[PAD + s] = s < 2 ? picked[s] : NONE;
    }
    void go_on(std::vector<float> &next) {
        advance(row.data() + PAD, skip.data(), picked.data(), next.data() + PAD, S);
        row.swap(next);
    }
};

struct Problem {
    int64_t T = 0, N = 0, C = 0, L = 0;
    const float *log_probs;
    const int64_t *labels, *sizes, *lengths;
    int64_t blank;

    // whether everything fits together, so that nothing is read outside of the arrays
    bool fits(const Array &log_probs_, const ExactArray &labels_, const ExactArray &sizes_, const ExactArray &lengths_) {
        if (!log_probs_.is<float>() || log_probs_.ndim() != 3 || !labels_.is<int64_t>() || labels_.ndim() != 2) return false;
        T = log_probs_.dim(0), N = log_probs_.dim(1), C = log_probs_.dim(2), L = labels_.dim(1);
        auto per_sample = [&](const ExactArray &a) { return a.is<int64_t>() && a.ndim() == 1 && a.dim(0) == N; };
        if (labels_.dim(0) != N || !per_sample(sizes_) || !per_sample(lengths_)) return false;
        log_probs = log_probs_.data<float>();
        labels = labels_.data<int64_t>(), sizes = sizes_.data<int64_t>(), lengths = lengths_.data<int64_t>();
        for (int64_t n = 0; n < N; n++)
            if (sizes[n] < 0 || 2 * sizes[n] + 1 > L || lengths[n] < 0 || lengths[n] > T) return false;
        return std::all_of(labels, labels + N * L, [&](int64_t label) { return label >= 0 && label < C; });
    }
    const float *at(int64_t t, int64_t n) const { return log_probs + (t * N + n) * C; }
    States states(int64_t n, bool turned) const { return {labels + n * L, 2 * sizes[n] + 1, blank, turned}; }
    int64_t work() const { return T * (L * COST + C); }
};

void forward_sample(const Problem &p, int64_t n, float *losses, float *alpha) {
    States own = p.states(n, false);
    std::vector<float> next(own.row);
    for (int64_t t = 0; t < p.T; t++) {
        float *row = alpha + (t * p.N + n) * p.L;
        if (t < p.lengths[n]) {
            own.pick(p.at(t, n));
            if (t == 0)
                own.begin();
            else
                own.go_on(next);
            std::copy(own.row.begin() + PAD, own.row.end(), row);
        }
        std::fill(row + (t < p.lengths[n] ? own.S : 0), row + p.L, NONE);
    }
    if (p.lengths[n] == 0) { // nothing was emitted: certain for an empty target, impossible for another
        losses[n] = p.sizes[n] ? -NONE : 0.0f;
        return;
    }
    const float last = own.row[PAD + own.S - 1];
    const float label = own.S > 1 ? own.row[PAD + own.S - 2] : NONE;
    const float top = std::max(last, label), low = std::min(last, label);
    if (last != last || label != label)
        losses[n] = std::numeric_limits<float>::quiet_NaN();
    else
        losses[n] = -(low == NONE ? top : top + std::log1p(std::exp(low - top)));
}

void backward_sample(const Problem &p, int64_t n, float g, float loss, const float *alpha, float *grad) {
    States own = p.states(n, false), turned = p.states(n, true);
    std::vector<float> next(turned.row), share(own.S);
    const int64_t length = p.lengths[n];
    const bool lost = std::isinf(loss) && g != 0.0f;
    for (int64_t t = p.T; t-- > 0;) {
        float *out = grad + (t * p.N + n) * p.C;
        if (t >= length || lost) {
            std::fill(out, out + p.C, t >= length ? 0.0f : std::numeric_limits<float>::quiet_NaN());
            continue;
        }
        own.pick(p.at(t, n));
        turned.pick(p.at(t, n));
        if (t == length - 1)
            turned.begin();
        else
            turned.go_on(next);
        shares(alpha + (t * p.N + n) * p.L, turned.row.data() + PAD, own.picked.data(), loss, share.data(), own.S);
        exponentials(p.at(t, n), out, p.C);
        for (int64_t s = 0; s < own.S; s++) out[own.labels[s]] -= share[s];
        for (int64_t c = 0; c < p.C; c++) out[c] *= g;
    }
}

// (losses (N,), sums (T, N, L)) of log_probs (T, N, C), the states' labels (N, L), targets' sizes and lengths (N,)
nb::object forward(Array log_probs, ExactArray labels, ExactArray sizes, ExactArray lengths, int64_t blank) {
    Problem p;
    p.blank = blank;
    if (!p.fits(log_probs, labels, sizes, lengths)) return nb::none();
    NewArray<float> losses({p.N}), alpha({p.T, p.N, p.L});
    {
        WithoutGil free(p.N * p.work());
        parallel_rows(p.N, p.work(), [&](int64_t begin, int64_t end) {
            for (int64_t n = begin; n < end; n++) forward_sample(p, n, losses.data, alpha.data);
        });
    }
    return nb::make_tuple(losses.object, alpha.object);
}

nb::object backward(Array g, Array losses, ExactArray alpha, Array log_probs, ExactArray labels, ExactArray sizes,
                    ExactArray lengths, int64_t blank) {
    Problem p;
    p.blank = blank;
    if (!p.fits(log_probs, labels, sizes, lengths)) return nb::none();
    auto per_sample = [&](const ExactArray &a) { return a.is<float>() && a.ndim() == 1 && a.dim(0) == p.N; };
    if (!per_sample(g) || !per_sample(losses) || !alpha.is<float>() || alpha.size() != p.T * p.N * p.L)
        return nb::none();
    NewArray<float> grad({p.T, p.N, p.C});
    {
        WithoutGil free(p.N * p.work());
        parallel_rows(p.N, p.work(), [&](int64_t begin, int64_t end) {
            for (int64_t n = begin; n < end; n++)
                backward_sample(p, n, g.data<float>()[n], losses.data<float>()[n], alpha.data<float>(), grad.data);
        });
    }
    return grad.object;
}

} // namespace

void bind_ctc(nb::module_ &m) {
    m.def("ctc_forward", &forward);
    m.def("ctc_backward", &backward);
}

} // namespace resilin
