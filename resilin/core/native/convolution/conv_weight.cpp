// The gradient of a convolution's weight without columns: lanes are input channels, and each place of the kernel reads a
// piece's copy, in which channels lie side by side, at an offset of its own.
#include "conv_direct.hpp"
#include "conv_images.hpp"
#include "side_by_side.hpp"
#include "kernels/halves.hpp"
#include "memory/parallel.hpp"
#include "memory/scratch.hpp"
#include "matmul/pairs.hpp"
#include "matmul/panels.hpp"
#include "matmul/subnormals.hpp"
#include "matmul/tiles.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

namespace resilin::conv {
namespace {

constexpr int64_t BLOCK_DEPTH = 384;         // positions of a chain of float32
constexpr int64_t TOGETHER = 256, TILE = 512; // positions of a piece of several samples, of one
constexpr int64_t SUMS = 8, SUMS_BYTES = 32 << 20; // partial sums, at most, and their memory

// As interleave(), of pairs: elements 4 i and 4 i + 2, 4 i + 1 and 4 i + 3, and so on. `elements` is a multiple of four.
RESILIN_SIMD void interleave_pairs(const BFloat *from, int64_t apart, int64_t channels, int64_t elements, float *to) {
    constexpr int64_t STEPS = 2 * SIDE;
    for (int64_t e = 0; e < elements; e += STEPS) {
        const int64_t n = std::min(STEPS, elements - e);
        Pairs x[SIDE], y[SIDE];
        for (int64_t c = 0; c < SIDE; c++) std::memcpy(&x[c], from + std::min(c, channels - 1) * apart + e, sizeof(Pairs));
        transpose_pairs(x); // x[q]: elements 2 q and 2 q + 1 of each channel
        for (int64_t j = 0; j < SIDE; j += 2) {
            y[j] = x[j] << 16 | (x[j + 1] & 0xFFFFu);
            y[j + 1] = (x[j] & 0xFFFF0000u) | x[j + 1] >> 16;
        }
        std::memcpy(to + e / 2 * SIDE, y, static_cast<size_t>(n / 2) * sizeof(Pairs));
    }
}

// dw (channels, places) of one output = the runs' sums (places, channels filled up to SIDE), `apart`, ascending.
template <class T>
RESILIN_INLINE void finish_row(const float *sums, int64_t apart, int64_t runs, int64_t channels, int64_t places, float *total, T *dw) {
    const int64_t row = ceil_div(channels, SIDE) * SIDE;
    const auto add = [=](const float *from, float *to) __attribute__((always_inline)) {
        resilin::Lanes sum = load(from);
        for (int64_t run = 1; run < runs; run++) sum += load(from + run * apart);
        std::memcpy(to, &sum, sizeof(sum));
    };
    if (places == 1) { // nothing to turn
        for (int64_t c = 0; c < channels; c += SIDE) add(sums + c, total + c);
        return put_rows(total, 0, 1, channels, dw, 0, 1);
    }
    for (int64_t c = 0; c < channels; c += SIDE) {
        for (int64_t t = 0; t < places; t++) add(sums + t * row + c, total + t * SIDE);
        separate(total, places, std::min(SIDE, channels - c), dw + c * places, places, 1);
    }
}
RESILIN_SIMD void finish(const float *sums, int64_t apart, int64_t runs, int64_t channels, int64_t places, float *total, float *dw) {
    finish_row(sums, apart, runs, channels, places, total, dw);
}
RESILIN_SIMD void finish(const float *sums, int64_t apart, int64_t runs, int64_t channels, int64_t places, float *total, BFloat *dw) {
    finish_row(sums, apart, runs, channels, places, total, dw);
}

template <class T> class Gradient {
  public:
    Gradient(const Shape &s, const T *g, const T *x, T *dw)
        : s_(s), tiles_(spread_tiles<T>()), g_(g), x_(x), dw_(dw), panels_(Panels::of_rows(s.outputs(), tiles_.height)),
          cut_(s.N, s.P, s.Q, TOGETHER, TILE), images_(axis(s.P, s.H, s.KH, s.sh, s.ph, s.dh), axis(s.Q, s.W, s.KW, s.sw, s.pw, s.dw), cut_, FLOATS, 4) {}

    void run() {
        const int64_t wide = s_.O * places() * vectors() * SIDE, room = std::max<int64_t>(1, SUMS_BYTES / 4 / wide);
        const int64_t runs = std::min({SUMS, room, cut_.count()});
        const int64_t parts = parts_of(runs, panels_.count * s_.G), slots = std::min<int64_t>(num_threads(), runs * parts);
        const int64_t size = copy_size() + image_size() + gradient_size();
        static thread_local Scratch<float> scratch;
        float *sums = scratch.of(runs * wide + slots * size), *own = sums + runs * wide;
        const int64_t all = panels_.count * s_.G;
        parallel_slots(runs * parts, slots, size * s_.outputs(), [&](int64_t slot, int64_t i) {
            const int64_t run = i / parts, part = i % parts, first = edge(cut_.count(), runs, run);
            std::vector<Steps> steps;
            for (int64_t t = first; t < edge(cut_.count(), runs, run + 1); t++) {
                if (t == first || !same_steps(cut_[t - 1], cut_[t])) steps = steps_of(cut_[t]);
                tile(cut_[t], steps, edge(all, parts, part), edge(all, parts, part + 1), t > first, own + slot * size, sums + run * wide);
            }
        });
        const int64_t each = places() * vectors() * SIDE;
        parallel_rows(s_.O, each * runs, [&](int64_t begin, int64_t end) {
            std::vector<float> total(static_cast<size_t>((std::max(places(), vectors()) + SIDE) * SIDE)); // more are read
            for (int64_t o = begin; o < end; o++) finish(sums + o * each, wide, runs, s_.channels(), places(), total.data(), dw_ + o * s_.depth());
        });
    }

  private:
    static constexpr bool FLOATS = std::is_same_v<T, float>;
    static Axis axis(int64_t count, int64_t length, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
        Axis axis{count, stride, length, {}};
        for (int64_t k = 0; k < kernel; k++) axis.at.push_back(k * dilation - padding);
        return axis;
    }
    int64_t places() const { return s_.KH * s_.KW; }
    int64_t vectors() const { return ceil_div(s_.channels(), SIDE); }
    bool pairs() const { return tiles_.layout == Layout::pairs; }
    int64_t per_float() const { return pairs() ? 2 : 1; }
    // Floats of scratch: channels' copies as they are, and side by side, and the output's gradient.
    int64_t copy_size() const { return SIDE * images_.channel() + 64; }
    int64_t image_size() const { return vectors() * SIDE * images_.channel() / per_float() + 64; }
    int64_t gradient_size() const { return s_.outputs() * (cut_.positions() + SIDE) * (FLOATS ? 1 : 2) + 64; }

    // The steps of a piece, block by block: of all places, or of float32 of each one, without those that read padding there.
    struct Steps {
        std::vector<Step> all;
        std::vector<int64_t> edges; // of blocks
    };

    void tile(const Piece &piece, const std::vector<Steps> &steps, int64_t begin, int64_t end, bool add, float *copy, float *sums) const {
        float *image = copy + copy_size(), *gradient = image + image_size();
        [[maybe_unused]] const Subnormals<T> subnormals;
        for (int64_t group = begin / panels_.count; group * panels_.count < end; group++) {
            bring(piece, group, copy, image);
            const int64_t from = std::max(begin - group * panels_.count, int64_t(0)), to = std::min(end - group * panels_.count, panels_.count);
            for (int64_t i = from; i < to; i++) {
                const Rows a = rows(piece, group, i, gradient);
                multiply(a, piece, steps, image, add, panels_.used(i),
                         sums + (group * s_.outputs() + panels_.begin(i)) * places() * vectors() * SIDE);
            }
        }
    }

    int64_t blocks(const Piece &piece) const { return FLOATS ? ceil_div(piece.positions(), BLOCK_DEPTH) : 1; }
    // Vectors of one place; two of them share a tile, so that their steps are the same.
    int64_t units() const { return vectors() * (SIDE / tiles_.lanes); }
    bool skips() const { return FLOATS && units() % 2 == 0; }

    static bool same_steps(const Piece &a, const Piece &b) {
        return a.samples() == b.samples() && a.p0 == b.p0 && a.p1 == b.p1 && a.q0 == b.q0 && a.q1 == b.q1;
    }
    // Where positions are, in the order (sample, row, column); of bfloat16 in that of tiles.
    std::vector<Steps> steps_of(const Piece &piece) const {
        std::vector<Steps> lists(static_cast<size_t>(skips() ? places() : 1));
        for (size_t t = 0; t < lists.size(); t++) list(piece, static_cast<int64_t>(t), lists[t]);
        return lists;
    }
    void list(const Piece &piece, int64_t t, Steps &to) const {
        const int64_t length = piece.positions(), down = t / s_.KW * s_.dh - s_.ph, across = t % s_.KW * s_.dw - s_.pw;
        const auto inside = [](int64_t at, int64_t size) { return at >= 0 && at < size; };
        std::vector<int64_t> at;
        for (int64_t n = 0; n < piece.samples(); n++)
            for (int64_t p = piece.p0; p < piece.p1; p++)
                for (int64_t q = piece.q0; q < piece.q1; q++) {
                    const int64_t l = static_cast<int64_t>(at.size()), block = static_cast<int64_t>(to.edges.size());
                    at.push_back(images_.place(n, p - piece.p0, q - piece.q0) * SIDE);
                    if (!FLOATS) continue;
                    if (l == edge(length, blocks(piece), block)) to.edges.push_back(static_cast<int64_t>(to.all.size()));
                    if (!skips() || (inside(p * s_.sh + down, s_.H) && inside(q * s_.sw + across, s_.W))) to.all.push_back({l, at.back()});
                }
        for (int64_t first = 0; first < length && !FLOATS; first += GROUP_STEPS)
            for (int64_t chain = 0; chain < 2; chain++)
                for (int64_t l = first + chain; l < std::min(first + GROUP_STEPS, length); l += 2 * per_float()) {
                    const int64_t place = at[static_cast<size_t>(l)];
                    to.all.push_back({static_cast<int64_t>(to.all.size()), pairs() ? (place - chain * SIDE) / 2 + chain * SIDE : place});
                }
        if (!FLOATS) to.edges.push_back(0);
        to.edges.push_back(static_cast<int64_t>(to.all.size()));
    }

    // A group's channels of a piece, side by side.
    void bring(const Piece &piece, int64_t group, float *copy, float *image) const {
        const int64_t size = s_.H * s_.W, elements = images_.channel();
        for (int64_t v = 0; v < vectors(); v++) {
            const int64_t channels = std::min(SIDE, s_.channels() - v * SIDE);
            const T *x = x_ + (piece.n0 * s_.C + group * s_.channels() + v * SIDE) * size;
            float *to = image + v * SIDE * elements / per_float();
            if constexpr (FLOATS) {
                images_.copy(x, {s_.C * size, size}, piece, channels, false, copy);
                interleave(copy, elements, channels, elements, copy + copy_size(), to);
            } else {
                BFloat *bits = reinterpret_cast<BFloat *>(copy);
                images_.copy(x, {s_.C * size, size}, piece, channels, bits);
                if (pairs()) interleave_pairs(bits, elements, channels, elements, to);
                else interleave(bits, elements, channels, elements, bits + 2 * copy_size(), to);
            }
        }
    }

    struct Rows {
        const float *data;
        int64_t lane, step;
    };
    // Rows of the output's gradient, as tiles read them.
    Rows rows(const Piece &piece, int64_t group, int64_t panel, float *scratch) const {
        const int64_t row = panels_.begin(panel), used = panels_.used(panel), L = s_.positions(), length = piece.positions();
        const T *from = g_ + (piece.n0 * s_.O + group * s_.outputs() + row) * L + piece.p0 * s_.Q + piece.q0;
        const bool run = piece.samples() == 1 && (piece.columns() == s_.Q || piece.rows() == 1);
        int64_t lane = L;
        if (!run || (FLOATS && crowded<T>(L))) {
            lane = length + SIDE;
            T *to = reinterpret_cast<T *>(scratch);
            for (int64_t i = 0; i < used; i++)
                for (int64_t n = 0; n < piece.samples(); n++)
                    for (int64_t p = 0; p < piece.rows(); p++)
                        std::copy_n(from + (n * s_.O + i) * L + p * s_.Q, piece.columns(), to + i * lane + (n * piece.rows() + p) * piece.columns());
            from = to;
        }
        if constexpr (FLOATS) return {from, lane, 1};
        else {
            float *to = scratch + used * (length + SIDE);
            if (pairs()) pack_pairs(from, lane, 1, used, used, length, false, to);
            else pack_split(from, lane, 1, used, used, length, to);
            return {to, 1, used};
        }
    }

    void multiply(const Rows &a, const Piece &piece, const std::vector<Steps> &steps, const float *image, bool add, int64_t used, float *sums) const {
        const int64_t lanes = tiles_.lanes, all = places() * units(), elements = images_.channel() / per_float();
        const int64_t length = piece.positions(), step = 2 * per_float();
        Spread<float> of{};
        of.a = a.data, of.a_lane = a.lane, of.a_step = a.step;
        of.repeats = 1;
        of.groups = length / GROUP_STEPS, of.steps = GROUP_STEPS / step;
        of.last_groups = length % GROUP_STEPS ? 1 : 0, of.last_steps = length % GROUP_STEPS / step;
        of.ldc = places() * vectors() * SIDE;
        of.columns[0] = of.columns[1] = lanes;
        for (int64_t block = 0; block < blocks(piece); block++) {
            of.add = add || block > 0;
            for (int64_t u = 0; u < all; u += 2) {
                const Steps &list = steps[static_cast<size_t>(skips() ? u / units() : 0)];
                of.at = list.all.data() + list.edges[static_cast<size_t>(block)];
                of.depth = list.edges[static_cast<size_t>(block) + 1] - list.edges[static_cast<size_t>(block)];
                for (int64_t j = 0; j < 2; j++) { // lanes of channels, of vectors of them, of places
                    const int64_t unit = std::min(u + j, all - 1), vector = unit * lanes / SIDE, sub = unit * lanes % SIDE;
                    const int64_t place = images_.offset[static_cast<size_t>(vector / vectors())] / per_float();
                    of.b[j] = image + (vector % vectors() * elements + place) * SIDE + sub;
                    of.c[j] = sums + unit * lanes;
                }
                (u + 1 < all ? tiles_.two : tiles_.one)[used - 1](of);
            }
        }
    }

    const Shape &s_;
    const SpreadTiles<float> &tiles_;
    const T *const g_, *const x_;
    T *const dw_;
    const Panels panels_;
    const Cut cut_;
    const Images images_;
};

constexpr int64_t FEW = 128; // positions of all samples, too few to turn sums of large weights for

} // namespace

template <> bool has_direct_weight<float>(const Shape &s) {
    return s.channels() >= 8 && 2 * s.channels() >= ceil_div(s.channels(), SIDE) * SIDE && s.N * s.positions() >= FEW;
}
// positions in whole fours, wherever the copies of a row begin
template <> bool has_direct_weight<BFloat>(const Shape &s) { return has_direct_weight<float>(s) && s.Q % 4 == 0; }

template <class T> void direct_weight(const Shape &s, const T *g, const T *x, T *dw) { Gradient<T>(s, g, x, dw).run(); }
template void direct_weight(const Shape &, const float *, const float *, float *);
template void direct_weight(const Shape &, const BFloat *, const BFloat *, BFloat *);

namespace {
RESILIN_SIMD float sum_row(const BFloat *g, int64_t n) {
    float total = 0, wide[256];
    for (int64_t i = 0; i < n; i += 256) {
        const int64_t length = std::min<int64_t>(256, n - i);
        for (int64_t j = 0; j < length; j++) wide[j] = from_bfloat(g[i + j].bits);
        total += sum_of(wide, length);
    }
    return total;
}
RESILIN_SIMD void round_sum(float sum, BFloat *to) { to->bits = bfloat_of(sum); }
} // namespace

void direct_bias(const Shape &s, const BFloat *g, BFloat *db) {
    const int64_t L = s.positions();
    parallel_rows(s.O, s.N * L, [&](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; o++) {
            float sum = 0;
            for (int64_t n = 0; n < s.N; n++) sum += sum_row(g + (n * s.O + o) * L, L);
            round_sum(sum, db + o);
        }
    });
}

} // namespace resilin::conv
