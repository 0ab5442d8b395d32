// The steps of a recurrent layer, and the way back: each one product and one pass over gates, cells and state. The
// sequences of a batch do not depend on one another, so a thread runs all steps of some of them and waits for nobody.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "matmul/product.hpp"
#include "memory/scratch.hpp"
#include "simd.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <utility>

namespace resilin {
namespace {

// tanh within 2 ulp: a polynomial near 0 (coefficients: Cephes, tanhf), elsewhere by the logistic function of 2x
RESILIN_INLINE float tanh_(float x) {
    const float z = x * x;
    const float p = polynomial(z, -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,
                               -3.33332819422e-1f);
    const float e = exp_low(-2.0f * __builtin_fabsf(x));
    const float far = __builtin_copysignf((1.0f - e) / (1.0f + e), x);
    return z < 0.390625f ? fma(p * z, x, x) : far;
}

enum class Kind { lstm, gru, tanh, relu };

// The rows of one step and of some of its sequences; what a kind has not is null.
struct Rows {
    float *gates;       // (n, 4H: i, f, g, o), (n, 3H: r, u, candidate) or (n, H): before their functions, then after
    float *second;      // (n, H): lstm: tanh of the cells; gru: the candidate's share of the state
    float *before;      // (n, H): lstm: the cells before
    float *cell;        // (n, H): lstm: before, then after
    const float *state; // (n, H): gru: the state before
    float *h;           // (n, H): the state after
};

RESILIN_SIMD void lstm_rows(const Rows &s, int64_t n, int64_t H) {
    for (int64_t row = 0; row < n; row++) {
        float *z = s.gates + row * 4 * H, *before = s.before + row * H, *tanh_c = s.second + row * H;
        float *cell = s.cell + row * H, *h = s.h + row * H;
#pragma GCC ivdep
        for (int64_t j = 0; j < H; j++) {
            const float i = logistic(z[j]).value;
            const float f = logistic(z[H + j]).value;
            const float g = tanh_(z[2 * H + j]);
            const float o = logistic(z[3 * H + j]).value;
            const float c = fma(f, cell[j], i * g);
            const float t = tanh_(c);
            z[j] = i;
            z[H + j] = f;
            z[2 * H + j] = g;
            z[3 * H + j] = o;
            before[j] = cell[j];
            cell[j] = c;
            tanh_c[j] = t;
            h[j] = o * t;
        }
    }
}

RESILIN_SIMD void gru_rows(const Rows &s, int64_t n, int64_t H) {
    for (int64_t row = 0; row < n; row++) {
        float *z = s.gates + row * 3 * H, *h = s.h + row * H;
        const float *share = s.second + row * H, *before = s.state + row * H;
#pragma GCC ivdep
        for (int64_t j = 0; j < H; j++) {
            const float r = logistic(z[j]).value;
            const float u = logistic(z[H + j]).value;
            const float c = tanh_(fma(r, share[j], z[2 * H + j]));
            z[j] = r;
            z[H + j] = u;
            z[2 * H + j] = c;
            h[j] = fma(u, before[j] - c, c);
        }
    }
}

RESILIN_SIMD void tanh_rows(const Rows &s, int64_t n, int64_t H) {
#pragma GCC ivdep
    for (int64_t j = 0; j < n * H; j++) s.h[j] = s.gates[j] = tanh_(s.gates[j]);
}
RESILIN_SIMD void relu_rows(const Rows &s, int64_t n, int64_t H) {
#pragma GCC ivdep
    for (int64_t j = 0; j < n * H; j++) s.h[j] = s.gates[j] = s.gates[j] < 0.0f ? 0.0f : s.gates[j]; // NaN stays NaN
}

struct BackRows {
    const float *gates, *second, *before, *state; // as in Rows; the states' rows lie `state_apart`
    int64_t state_apart;
    float *dh;                                    // (n, H); gru: then what the state before gets besides its product
    float *dc;                                    // (n, H): of the cells after, then before
    float *out, *out_h;                           // the gates' gradients; gru: of the input's part and of the state's
    int64_t apart;                                // rows of these
};

RESILIN_SIMD void lstm_rows_back(const BackRows &s, int64_t n, int64_t H) {
    for (int64_t row = 0; row < n; row++) {
        const float *z = s.gates + row * 4 * H, *before = s.before + row * H;
        const float *tanh_c = s.second + row * H, *dh = s.dh + row * H;
        float *dc = s.dc + row * H, *out = s.out + row * s.apart;
#pragma GCC ivdep
        for (int64_t j = 0; j < H; j++) {
            const float i = z[j], f = z[H + j], g = z[2 * H + j], o = z[3 * H + j], t = tanh_c[j];
            const float d = dc[j] + dh[j] * o * (1.0f - t * t);
            out[j] = d * g * (i * (1.0f - i));
            out[H + j] = d * before[j] * (f * (1.0f - f));
            out[2 * H + j] = d * i * (1.0f - g * g);
            out[3 * H + j] = dh[j] * t * (o * (1.0f - o));
            dc[j] = d * f;
        }
    }
}

RESILIN_SIMD void gru_rows_back(const BackRows &s, int64_t n, int64_t H) {
    for (int64_t row = 0; row < n; row++) {
        const float *z = s.gates + row * 3 * H, *before = s.state + row * s.state_apart, *share = s.second + row * H;
        float *dh = s.dh + row * H, *out = s.out + row * s.apart, *out_h = s.out_h + row * s.apart;
#pragma GCC ivdep
        for (int64_t j = 0; j < H; j++) {
            const float r = z[j], u = z[H + j], c = z[2 * H + j];
            const float dn = dh[j] * (1.0f - u) * (1.0f - c * c);
            const float du = dh[j] * (before[j] - c) * (u * (1.0f - u));
            const float dr = dn * share[j] * (r * (1.0f - r));
            out[j] = out_h[j] = dr;
            out[H + j] = out_h[H + j] = du;
            out[2 * H + j] = dn;
            out_h[2 * H + j] = dn * r;
            dh[j] = dh[j] * u;
        }
    }
}

RESILIN_SIMD void tanh_rows_back(const BackRows &s, int64_t n, int64_t H) {
    for (int64_t row = 0; row < n; row++) {
        const float *z = s.gates + row * H, *dh = s.dh + row * H;
        float *out = s.out + row * s.apart;
#pragma GCC ivdep
        for (int64_t j = 0; j < H; j++) out[j] = dh[j] * (1.0f - z[j] * z[j]);
    }
}
RESILIN_SIMD void relu_rows_back(const BackRows &s, int64_t n, int64_t H) {
    for (int64_t row = 0; row < n; row++) {
        const float *z = s.gates + row * H, *dh = s.dh + row * H;
        float *out = s.out + row * s.apart;
#pragma GCC ivdep
        for (int64_t j = 0; j < H; j++) out[j] = dh[j] * (z[j] > 0.0f ? 1.0f : 0.0f);
    }
}

RESILIN_SIMD void add(const float *x, int64_t n, float *to) {
    for (int64_t i = 0; i < n; i++) to[i] += x[i];
}

struct Cell {
    Kind kind;
    int64_t gates;
    void (*rows)(const Rows &, int64_t n, int64_t H);
    void (*rows_back)(const BackRows &, int64_t n, int64_t H);
};
const Cell *cell_of(const std::string &name) {
    static const std::pair<const char *, Cell> cells[] = {{"lstm", {Kind::lstm, 4, lstm_rows, lstm_rows_back}},
                                                          {"gru", {Kind::gru, 3, gru_rows, gru_rows_back}},
                                                          {"tanh", {Kind::tanh, 1, tanh_rows, tanh_rows_back}},
                                                          {"relu", {Kind::relu, 1, relu_rows, relu_rows_back}}};
    for (const auto &[own, cell] : cells)
        if (name == own) return &cell;
    return nullptr;
}

// What both ways share.
struct Layer {
    const Cell &cell;
    int64_t B, H, P;
    int64_t steps;
    const int64_t *spans; // (steps, 2): first row and number of rows of each step, in the order in which they run

    int64_t width() const { return cell.gates * H; }
};

// A matrix (depth, columns) that every step multiplies by: where it lies; or, from so many steps on, as a copy cut into
// strips of STRIP columns, each of which is read along memory.
constexpr int64_t COPY_STEPS = 8, STRIP = 64;
constexpr int64_t FEW = 4; // so many rows take no longer than one: a chain of sums waits for itself, and for the weights
class Weights {
  public:
    Weights(const View<float> &lying, int64_t depth, int64_t columns, int64_t steps)
        : lying_(lying), depth_(depth), columns_(columns),
          strips_(lying.data && steps >= COPY_STEPS ? ceil_div(columns, STRIP) : 0) {
        float *to = copy_.of(strips_ * depth * STRIP);
        for (int64_t i = 0; i < strips_; i++)
            pack(lying.data + i * STRIP * lying.column, lying.column, lying.row, used(i), STRIP, depth, to + i * depth * STRIP);
        strip_ = to;
    }
    explicit operator bool() const { return lying_.data; }

    // c = a (n, depth) @ these weights + plus, as a Product
    void multiply(int64_t n, const View<float> &a, float *c, int64_t ldc, const float *plus, int64_t ld_plus,
                  bool threads) const {
        if (!strips_) return resilin::multiply<float>({n, columns_, depth_, a, lying_, c, ldc, plus, ld_plus}, threads);
        auto one = [&](int64_t i) {
            resilin::multiply<float>({n, used(i), depth_, a, {strip_ + i * depth_ * STRIP, STRIP, 1}, c + i * STRIP, ldc,
                                      plus ? plus + i * STRIP : nullptr, ld_plus}, false);
        };
        const double flops = 2.0 * static_cast<double>(std::max(n, FEW) * columns_) * static_cast<double>(depth_);
        if (threads && flops >= SHARED_FLOPS) return run_blocks(strips_, one);
        for (int64_t i = 0; i < strips_; i++) one(i);
    }

  private:
    int64_t used(int64_t i) const { return std::min(STRIP, columns_ - i * STRIP); }

    View<float> lying_;
    int64_t depth_, columns_, strips_;
    Scratch<float> copy_;
    const float *strip_;
};

// run(begin, end, threads) for ranges of the sequences: as many for every thread, of about ROWS (a tile's height) where
// there are enough. Of fewer than FEW for each thread, or of little work, all at once, and the products use the threads.
constexpr int64_t ROWS = 8, MOST = 4;
template <class Run> void over_sequences(const Layer &layer, Run run) {
    const int64_t B = layer.B, threads = num_threads(), ranges = threads * std::clamp<int64_t>(B / (ROWS * threads), 1, MOST);
    const double flops = 2.0 * static_cast<double>(layer.steps * B) * static_cast<double>(layer.width() * layer.P);
    if (threads == 1 || B < FEW * threads || layer.steps < COPY_STEPS || flops < SHARED_FLOPS) return run(0, B, true);
    run_blocks(ranges, [&](int64_t i) { run(edge(B, ranges, i), edge(B, ranges, i + 1), false); });
}

struct Forward : Layer {
    float *gates, *first, *second, *cells, *y; // rows of all steps
    int64_t first_apart;                       // rows of `first`
    float *state, *cell_state;                 // (B, P) and (B, H)
    Weights early, late, w_hr;                 // (P, gates * H), of a gru without the candidate; that; (H, P)
    const float *late_bias;

    void run(int64_t begin, int64_t end, bool threads) const {
        static thread_local Scratch<float> scratch;
        float *raw = w_hr ? scratch.of((end - begin) * H) : nullptr;
        for (int64_t step = 0; step < steps; step++) {
            const int64_t row = spans[2 * step] + begin, n = std::min(spans[2 * step + 1], end) - begin;
            if (n <= 0) continue;
            float *now = state + begin * P, *out = y + row * P;
            for (int64_t i = 0; i < n; i++) std::copy_n(now + i * P, P, first + (row + i) * first_apart);
            const View<float> before{first + row * first_apart, first_apart, 1};
            float *z = gates + row * width();
            early.multiply(n, before, z, width(), z, width(), threads);
            if (late) late.multiply(n, before, second + row * H, H, late_bias, 0, threads);
            cell.rows({z, second ? second + row * H : nullptr, cells ? cells + row * H : nullptr,
                       cell_state ? cell_state + begin * H : nullptr, now, raw ? raw : out}, n, H);
            if (raw) w_hr.multiply(n, {raw, H, 1}, out, P, nullptr, 0, threads);
            std::copy_n(out, n * P, now);
        }
    }
};

struct Backward : Layer {
    const float *gates, *first, *second, *cells, *gy; // rows of all steps
    int64_t first_apart;
    float *out, *out_h, *given;
    int64_t out_apart;      // rows of `out` and `out_h`
    float *dh, *dc;         // (B, P) and (B, H)
    bool wants_dh;          // before the first step
    Weights w_hh, w_hr;     // (gates * H, P) and (P, H)

    void run(int64_t begin, int64_t end, bool threads) const {
        static thread_local Scratch<float> scratch;
        float *raw = w_hr ? scratch.of((end - begin) * H) : nullptr;
        for (int64_t step = steps - 1; step >= 0; step--) {
            const int64_t row = spans[2 * step] + begin, n = std::min(spans[2 * step + 1], end) - begin;
            if (n <= 0) continue;
            float *now = dh + begin * P, *out_now = out_h + row * out_apart;
            if (gy) add(gy + row * P, n * P, now);
            if (given) std::copy_n(now, n * P, given + row * P);
            if (raw) w_hr.multiply(n, {now, P, 1}, raw, H, nullptr, 0, threads);
            cell.rows_back({gates + row * width(), second ? second + row * H : nullptr, cells ? cells + row * H : nullptr,
                            first + row * first_apart, first_apart, raw ? raw : now, dc ? dc + begin * H : nullptr,
                            out + row * out_apart, out_now, out_apart}, n, H);
            if (step == 0 && !wants_dh) return;
            const float *direct = cell.kind == Kind::gru ? now : nullptr;
            w_hh.multiply(n, {out_now, out_apart, 1}, now, P, direct, P, threads);
        }
    }
};

// float matrices of n rows and `width` columns
bool fits(const ExactArray &a, int64_t n, int64_t width) {
    return a.is<float>() && a.ndim() == 2 && a.dim(0) == n && a.dim(1) == width;
}
bool fits_to_write(const ExactArray &a, int64_t n, int64_t width) {
    return fits(a, n, width) && a.is_writable<float>();
}
// rows that may lie apart
bool fits_apart(const ExactArray &a, int64_t n, int64_t width) {
    constexpr int64_t size = sizeof(float);
    return a && PyArray_TYPE(a.array) == NPY_FLOAT32 && PyArray_ISBEHAVED(a.array) && a.ndim() == 2 && a.dim(0) == n &&
           a.dim(1) == width && (n == 0 || (PyArray_STRIDE(a.array, 1) == size && PyArray_STRIDE(a.array, 0) % size == 0));
}
int64_t apart(const ExactArray &a) { return PyArray_STRIDE(a.array, 0) / static_cast<int64_t>(sizeof(float)); }
// where it is not None
bool fits_or_none(const ExactArray &a, int64_t n, int64_t width) { return !a || fits(a, n, width); }

// Every step's rows are rows of the arrays, and sequences of the batch.
bool are_spans(const ExactArray &spans, int64_t N, int64_t B) {
    if (!spans.is<int64_t>() || spans.ndim() != 2 || spans.dim(1) != 2) return false;
    const int64_t *of = spans.data<int64_t>();
    for (int64_t i = 0; i < spans.dim(0); i++)
        if (of[2 * i] < 0 || of[2 * i + 1] < 0 || of[2 * i + 1] > B || of[2 * i] + of[2 * i + 1] > N) return false;
    return true;
}

bool forward(const std::string &kind, ExactArray spans, ExactArray gates, ExactArray first, ExactArray second,
             ExactArray cells, ExactArray y, ExactArray state, ExactArray cell_state, Array w_hh, Array w_hr, Array late_bias) {
    const Cell *cell = cell_of(kind);
    if (!cell || !gates || gates.ndim() != 2 || !state || state.ndim() != 2) return false;
    const int64_t N = gates.dim(0), B = state.dim(0), P = state.dim(1), width = gates.dim(1), H = width / cell->gates;
    const bool lstm = cell->kind == Kind::lstm, gru = cell->kind == Kind::gru;
    if (P < 1 || H < 1 || !are_spans(spans, N, B) || !fits_to_write(gates, N, cell->gates * H) || !fits_apart(first, N, P) ||
        !fits_to_write(y, N, P) || !fits_to_write(state, B, P) || !fits(w_hh, width, P) || (w_hr ? gru : P != H) ||
        !fits_or_none(w_hr, P, H) || ((lstm || gru) && !fits_to_write(second, N, H)) ||
        (lstm && (!fits_to_write(cells, N, H) || !fits_to_write(cell_state, B, H))) ||
        (late_bias && !(late_bias.is<float>() && late_bias.ndim() == 1 && late_bias.size() == H)))
        return false;
    const int64_t steps = spans.dim(0);
    WithoutGil free(N * width * P);
    const float *w = w_hh.data<float>();
    const int64_t early = gru ? 2 * H : width;
    const Forward layer{{*cell, B, H, P, steps, spans.data<int64_t>()}, gates.data<float>(), first.data<float>(),
                        second.data<float>(), cells.data<float>(), y.data<float>(), apart(first), state.data<float>(),
                        cell_state.data<float>(), {{w, 1, P}, P, early, steps},
                        {{gru ? w + early * P : nullptr, 1, P}, P, width - early, steps},
                        {{w_hr.data<float>(), 1, H}, H, P, steps}, late_bias.data<float>()};
    over_sequences(layer, [&](int64_t begin, int64_t end, bool threads) { layer.run(begin, end, threads); });
    return true;
}

bool backward(const std::string &kind, ExactArray spans, ExactArray gates, ExactArray first, ExactArray second,
              ExactArray cells, Array gy, ExactArray out, ExactArray out_h, ExactArray given, ExactArray dh, ExactArray dc,
              Array w_hh, Array w_hr, bool wants_dh) {
    const Cell *cell = cell_of(kind);
    if (!cell || !gates || gates.ndim() != 2 || !dh || dh.ndim() != 2) return false;
    const int64_t N = gates.dim(0), B = dh.dim(0), P = dh.dim(1), width = gates.dim(1), H = width / cell->gates;
    const bool lstm = cell->kind == Kind::lstm, gru = cell->kind == Kind::gru;
    if (P < 1 || H < 1 || !are_spans(spans, N, B) || !fits(gates, N, cell->gates * H) || !fits_apart(first, N, P) ||
        !fits_or_none(gy, N, P) || !fits_apart(out, N, width) || !fits_apart(out_h, N, width) ||
        apart(out) != apart(out_h) || (given && !fits_to_write(given, N, P)) || !fits_to_write(dh, B, P) ||
        !fits(w_hh, width, P) || (w_hr ? gru : P != H) || !fits_or_none(w_hr, P, H) ||
        ((lstm || gru) && !fits(second, N, H)) ||
        (lstm && (!fits(cells, N, H) || !fits_to_write(dc, B, H))))
        return false;
    const int64_t steps = spans.dim(0);
    WithoutGil free(N * width * P);
    const Backward layer{{*cell, B, H, P, steps, spans.data<int64_t>()}, gates.data<float>(), first.data<float>(),
                         second.data<float>(), cells.data<float>(), gy.data<float>(), apart(first), out.data<float>(),
                         out_h.data<float>(), given.data<float>(), apart(out), dh.data<float>(), dc.data<float>(), wants_dh,
                         {{w_hh.data<float>(), P, 1}, width, P, steps}, {{w_hr.data<float>(), H, 1}, P, H, steps}};
    over_sequences(layer, [&](int64_t begin, int64_t end, bool threads) { layer.run(begin, end, threads); });
    return true;
}

} // namespace

void bind_recurrent(nb::module_ &m) {
    m.def("recurrent_forward", &forward, nb::arg("kind"), nb::arg("spans"), nb::arg("gates"), nb::arg("first"),
          nb::arg("second").none(), nb::arg("cells").none(), nb::arg("y"), nb::arg("state"), nb::arg("cell_state").none(),
          nb::arg("w_hh"), nb::arg("w_hr").none(), nb::arg("late_bias").none());
    m.def("recurrent_backward", &backward, nb::arg("kind"), nb::arg("spans"), nb::arg("gates"), nb::arg("first"),
          nb::arg("second").none(), nb::arg("cells").none(), nb::arg("gy").none(), nb::arg("out"), nb::arg("out_h"),
          nb::arg("given").none(), nb::arg("dh"), nb::arg("dc").none(), nb::arg("w_hh"), nb::arg("w_hr").none(),
          nb::arg("wants_dh"));
}

} // namespace resilin
