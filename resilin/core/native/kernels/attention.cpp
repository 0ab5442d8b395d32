// Scaled dot-product attention: for each head, blocks of queries by the keys that they can see.
#include "binding/array.hpp"
#include "attention_rows.hpp"
#include "binding/kernels.hpp"
#include "matmul/matrices.hpp"
#include "matmul/panels.hpp"
#include "memory/parallel.hpp"
#include "matmul/product.hpp"
#include "memory/scratch.hpp"

#include <limits>
#include <vector>

namespace resilin {
namespace {

// Queries, or keys in the gradients of keys and values, that a product takes at once: of a few panels of tiles, and not
// too many, because a block computes all scores that any of its queries needs. Bits depend on it.
constexpr int64_t BLOCK = 56;

// One operand: a matrix per head.
struct Heads {
    View<float> first;
    const PyArrayObject *array;
    const std::vector<npy_intp> *leading;

    View<float> of(int64_t head) const {
        return {first.data + offset_of(array, *leading, head) / static_cast<int64_t>(sizeof(float)), first.row, first.column};
    }
    // where a result's rows from `row` on begin
    float *at(int64_t head, int64_t row) const { return const_cast<float *>(from(head, row).data); }
    View<float> from(int64_t head, int64_t row) const {
        const View<float> all = of(head);
        return {all.data + row * all.row, all.row, all.column};
    }
};

// A mask that broadcasts over heads and queries.
struct Masks {
    const PyArrayObject *array = nullptr; // null: none
    std::vector<npy_intp> leading;        // of the scores
    int64_t row = 0;

    // `scores` are (..., T, S); false where the mask is not laid out as rows are read
    bool take(const Array &mask, const ExactArray &scores) {
        const int n = scores.ndim(), k = mask ? mask.ndim() : 0;
        leading.assign(PyArray_DIMS(scores.array), PyArray_DIMS(scores.array) + n - 2);
        if (!mask) return true;
        if (!mask.is<float>() || k < 2 || k > n || mask.last() != scores.last()) return false;
        for (int i = 0; i < k - 1; i++)
            if (mask.dim(i) != 1 && mask.dim(i) != scores.dim(n - k + i)) return false;
        array = mask.array;
        row = mask.dim(k - 2) == 1 ? 0 : mask.last();
        return true;
    }
    Scores of(Scores scores, int64_t head) const {
        if (!array) return scores;
        const auto *first = static_cast<const float *>(PyArray_DATA(array));
        scores.mask = first + offset_of(array, leading, head) / static_cast<int64_t>(sizeof(float));
        scores.mask_row = row;
        return scores;
    }
};

View<float> transposed(const View<float> &a) { return {a.data, a.column, a.row}; }

// The shape of a call and how its work is cut.
struct Plan {
    Scores scores; // T queries, S keys
    int64_t D, E;  // widths of queries and keys, of values
    int64_t heads;
    std::vector<npy_intp> leading;

    int64_t blocks() const { return ceil_div(scores.T, BLOCK); }
    int64_t key_blocks() const { return ceil_div(scores.S, BLOCK); }
    int64_t end(int64_t block) const { return std::min(scores.T, (block + 1) * BLOCK); }
    // keys that queries before `query` see
    int64_t seen(int64_t query) const { return scores.causal ? std::min(scores.S, query) : scores.S; }
    double flops() const {
        return 2.0 * static_cast<double>(heads * scores.T) * static_cast<double>(scores.S) * static_cast<double>(D + E);
    }

    // fn(head, begin, end) over `blocks` blocks of every head: whole heads, where there are enough for all threads
    template <class Fn> void share(int64_t blocks, Fn fn) const {
        const bool threads = num_threads() > 1 && flops() >= SHARED_FLOPS;
        const int64_t parts = !threads || whole_heads() ? 1 : std::min<int64_t>(blocks, 4 * num_threads());
        auto part = [&](int64_t i) { fn(i / parts, edge(blocks, parts, i % parts), edge(blocks, parts, i % parts + 1)); };
        if (threads) return run_blocks(heads * parts, part);
        for (int64_t i = 0; i < heads * parts; i++) part(i);
    }
    bool whole_heads() const { return heads >= 2 * num_threads(); }

    // An operand or a result of `rows` by `columns` per head; false where a kernel cannot read or write it.
    bool take(const ExactArray &given, int64_t rows, int64_t columns, Heads &heads_of, bool result = false) const {
        const int n = static_cast<int>(leading.size()) + 2;
        if (!given || PyArray_TYPE(given.array) != NPY_FLOAT32 || given.ndim() != n) return false;
        if (!PyArray_CompareLists(PyArray_DIMS(given.array), leading.data(), n - 2)) return false;
        if (given.dim(n - 2) != rows || given.dim(n - 1) != columns) return false;
        heads_of.array = given.array;
        heads_of.leading = &leading;
        if (!view_of(given.array, heads_of.first)) return false;
        return !result || (PyArray_ISWRITEABLE(given.array) && heads_of.first.column == 1);
    }
    // Scores, probabilities or dropout's factors: T by S per head, contiguous.
    bool fits(const ExactArray &given) const {
        return given.is<float>() && given.size() == heads * scores.T * scores.S && given.last() == scores.S;
    }
};

bool plan_of(const ExactArray &q, const ExactArray &k, const ExactArray &v, bool causal, float scale, Plan &plan) {
    if (!q || !k || !v || q.ndim() < 2 || k.ndim() != q.ndim() || v.ndim() != q.ndim()) return false;
    const int n = q.ndim();
    plan.scores = {q.dim(n - 2), k.dim(n - 2), causal, scale};
    plan.D = q.dim(n - 1);
    plan.E = v.dim(n - 1);
    plan.leading.assign(PyArray_DIMS(q.array), PyArray_DIMS(q.array) + n - 2);
    plan.heads = 1;
    for (npy_intp length : plan.leading) plan.heads *= length;
    return plan.heads > 0 && plan.scores.T > 0 && plan.scores.S > 0 && plan.D > 0 && plan.E > 0;
}

// Rows of `x` up to `rows`, transposed: read column by column they would be packed again for every block.
View<float> turned(const View<float> &x, int64_t rows, int64_t columns, float *to) {
    pack(x.data, x.row, x.column, rows, rows, columns, to);
    return {to, rows, 1};
}

// to = p * factors, rows of `columns` elements that lie `ld` apart in both.
void weigh(const float *p, const float *factors, int64_t rows, int64_t columns, int64_t ld, float *to, int64_t ld_to) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) to[i * ld_to + j] = p[i * ld + j] * factors[i * ld + j];
}

struct Forward {
    const Plan &plan;
    Heads q, k, v, y;
    Masks masks;
    float *p;
    const float *dropout; // null: none

    void operator()(int64_t head, int64_t first, int64_t last) const {
        static thread_local Scratch<float> scratch;
        const int64_t T = plan.scores.T, S = plan.scores.S, most = plan.seen(plan.end(last - 1));
        float *keys = scratch.of(most * plan.D + (dropout ? BLOCK * S : 0)), *kept = keys + most * plan.D;
        const View<float> keys_DS = turned(k.of(head), most, plan.D, keys), values = v.of(head);
        const Scores scores = masks.of(plan.scores, head);
        float *weights = p + head * T * S;
        for (int64_t block = first; block < last; block++) {
            const int64_t a = block * BLOCK, end = plan.end(block), rows = end - a, seen = plan.seen(end);
            multiply<float>({rows, seen, plan.D, q.from(head, a), keys_DS, weights + a * S, S}, false);
            softmax_rows(weights, scores, a, end);
            View<float> chosen{weights + a * S, S, 1};
            if (dropout) {
                weigh(chosen.data, dropout + (head * T + a) * S, rows, seen, S, kept, S);
                chosen.data = kept;
            }
            multiply<float>({rows, plan.E, seen, chosen, values, y.at(head, a), y.first.row}, false);
        }
    }
};

struct Backward {
    const Plan &plan;
    Heads g, q, k, v, dq, dk, dv;
    const float *p, *dropout;
    float *ds; // as large as p

    // gradients of the scores of blocks of queries, and of these queries
    void queries(int64_t head, int64_t first, int64_t last) const {
        static thread_local Scratch<float> scratch;
        const int64_t S = plan.scores.S, most = plan.seen(plan.end(last - 1)), at = head * plan.scores.T * S;
        const View<float> values_ES = turned(v.of(head), most, plan.E, scratch.of(most * plan.E)), keys = k.of(head);
        for (int64_t block = first; block < last; block++) {
            const int64_t a = block * BLOCK, end = plan.end(block), rows = end - a, seen = plan.seen(end);
            float *d = ds + at + a * S;
            multiply<float>({rows, seen, plan.E, g.from(head, a), values_ES, d, S}, false);
            if (dropout) weigh(d, dropout + at + a * S, rows, seen, S, d, S);
            softmax_backward_rows(ds + at, p + at, plan.scores, a, end);
            multiply<float>({rows, plan.D, seen, {d, S, 1}, keys, dq.at(head, a), dq.first.row}, false);
        }
    }

    // gradients of blocks of keys and of their values, once the scores' are there
    void keys(int64_t head, int64_t first, int64_t last) const {
        static thread_local Scratch<float> scratch;
        const int64_t T = plan.scores.T, S = plan.scores.S;
        for (int64_t block = first; block < last; block++) {
            const int64_t a = block * BLOCK, rows = std::min(S, a + BLOCK) - a;
            const int64_t from = plan.scores.causal ? std::min(a, T) : 0, depth = T - from, at = (head * T + from) * S + a;
            float *out_k = dk.at(head, a), *out_v = dv.at(head, a);
            if (depth == 0) { // no query sees these keys
                for (int64_t i = 0; i < rows; i++) {
                    std::fill_n(out_k + i * dk.first.row, plan.D, 0.0f);
                    std::fill_n(out_v + i * dv.first.row, plan.E, 0.0f);
                }
                continue;
            }
            View<float> weights{p + at, S, 1};
            if (dropout) {
                float *kept = scratch.of(depth * rows);
                weigh(p + at, dropout + at, depth, rows, S, kept, rows);
                weights = {kept, rows, 1};
            }
            multiply<float>({rows, plan.E, depth, transposed(weights), g.from(head, from), out_v, dv.first.row}, false);
            multiply<float>({rows, plan.D, depth, {ds + at, 1, S}, q.from(head, from), out_k, dk.first.row}, false);
        }
    }

    void operator()() const {
        auto first = [this](int64_t head, int64_t begin, int64_t end) { queries(head, begin, end); };
        auto then = [this](int64_t head, int64_t begin, int64_t end) { keys(head, begin, end); };
        if (!plan.whole_heads()) {
            plan.share(plan.blocks(), first);
            plan.share(plan.key_blocks(), then);
            return;
        }
        plan.share(1, [&](int64_t head, int64_t, int64_t) { // while the head's scores are in the cache
            first(head, 0, plan.blocks());
            then(head, 0, plan.key_blocks());
        });
    }
};

// Writes y and the probabilities p before dropout. False, and nothing is written, for what has no kernel.
bool attention(ExactArray q, ExactArray k, ExactArray v, Array mask, bool causal, float scale, Array dropout, ExactArray y,
               ExactArray p) {
    Plan plan;
    if (!plan_of(q, k, v, causal, scale, plan)) return false;
    const int64_t T = plan.scores.T, S = plan.scores.S;
    Forward forward{plan, {}, {}, {}, {}, {}, p.data<float>(), dropout.data<float>()};
    if (!plan.take(q, T, plan.D, forward.q) || !plan.take(k, S, plan.D, forward.k) || !plan.take(v, S, plan.E, forward.v) ||
        !plan.take(y, T, plan.E, forward.y, true) || !plan.fits(p) || !p.is_writable<float>() ||
        (dropout && !plan.fits(dropout)) || !forward.masks.take(mask, p))
        return false;
    WithoutGil free(plan.flops() > 1e5 ? std::numeric_limits<int64_t>::max() : 0);
    plan.share(plan.blocks(), forward);
    return true;
}

// Writes dq, dk and dv, and into ds the gradient of the scores. False, and nothing is written, for what has no kernel.
bool attention_backward(ExactArray g, ExactArray q, ExactArray k, ExactArray v, ExactArray p, bool causal, float scale,
                        Array dropout, ExactArray dq, ExactArray dk, ExactArray dv, ExactArray ds) {
    Plan plan;
    if (!plan_of(q, k, v, causal, scale, plan)) return false;
    const int64_t T = plan.scores.T, S = plan.scores.S;
    Backward backward{plan, {}, {}, {}, {}, {}, {}, {}, p.data<float>(), dropout.data<float>(), ds.data<float>()};
    if (!plan.take(g, T, plan.E, backward.g) || !plan.take(q, T, plan.D, backward.q) || !plan.take(k, S, plan.D, backward.k) ||
        !plan.take(v, S, plan.E, backward.v) || !plan.take(dq, T, plan.D, backward.dq, true) ||
        !plan.take(dk, S, plan.D, backward.dk, true) || !plan.take(dv, S, plan.E, backward.dv, true) || !plan.fits(p) ||
        !plan.fits(ds) || !ds.is_writable<float>() || (dropout && !plan.fits(dropout)))
        return false;
    WithoutGil free(plan.flops() > 1e5 ? std::numeric_limits<int64_t>::max() : 0);
    backward();
    return true;
}

} // namespace

void bind_attention(nb::module_ &m) {
    m.def("attention", &attention, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("mask").none(), nb::arg("causal"),
          nb::arg("scale"), nb::arg("dropout").none(), nb::arg("y"), nb::arg("p"));
    m.def("attention_backward", &attention_backward, nb::arg("g"), nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("p"),
          nb::arg("causal"), nb::arg("scale"), nb::arg("dropout").none(), nb::arg("dq"), nb::arg("dk"), nb::arg("dv"),
          nb::arg("ds"));
}

} // namespace resilin
