// Convolution. Most of float32 and bfloat16 goes without columns (conv_direct.hpp); the rest is here:
// im2col and matrix products, tile by tile and some channels at a time: their columns stay in the cache of
// the core that made them, and no matrix of all columns is ever in memory. Tiles follow from the shapes alone. Where there
// are few, threads share one: each does some of its channels, whose sums are the same whoever does them. So the bits do not
// depend on the number of threads.
#include "binding/array.hpp"
#include "conv_columns.hpp"
#include "conv_direct.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "matmul/pairs.hpp"
#include "matmul/panels.hpp"
#include "matmul/product.hpp"

#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstring>

namespace resilin {

using namespace conv;

namespace {

constexpr int64_t BLOCK_DEPTH = 384;         // kernel positions of the channels whose columns are there at a time
constexpr int64_t BLOCK_ELEMENTS = 96 << 10; // and their columns: a part of a core's second cache
constexpr int64_t SUMS = 16;                 // partial sums of the weight's gradient, at most
constexpr int64_t SUMS_BYTES = 32 << 20;     // and the memory that they may take

RESILIN_SIMD float row_sum(const float *x, int64_t n) { return sum_of(x, n); }
double row_sum(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum;
}

constexpr int64_t LEAST_CHANNELS = 16; // of a tile: below, threads that make its columns twice gain nothing

// A matrix (rows, positions) with `ld` elements from row to row.
template <class T> struct Rows {
    T *data;
    int64_t ld;
};

// What the tiles of one call share; G groups are done one after the other inside a tile.
template <class T> struct Conv {
    const Shape &s;
    const Tiles tiles;

    explicit Conv(const Shape &shape) : s(shape), tiles(shape) {}

    int64_t length(const Tile &t) const { return (t.n1 - t.n0) * (t.p1 - t.p0) * s.Q; }
    const T *image(const T *x, int64_t n, int64_t group) const { return x + (n * s.C + group * s.channels()) * s.H * s.W; }
    T *image(T *x, int64_t n, int64_t group) const { return x + (n * s.C + group * s.channels()) * s.H * s.W; }
    int64_t output(int64_t n, int64_t group) const { return (n * s.O + group * s.outputs()) * s.positions(); }

    // whether a tile's columns are the image itself
    bool in_place(const Tile &t) const { return s.pointwise() && t.n1 - t.n0 == 1; }
    // Elements of the columns that are there at a time, at most.
    int64_t columns_size() const { return block() * s.KH * s.KW * tiles.positions(); }
    // How many channels' columns are there at a time: even parts of all.
    int64_t block() const {
        if (s.pointwise() && tiles.samples == 1) return s.channels();
        const int64_t most = std::min(BLOCK_DEPTH, BLOCK_ELEMENTS / tiles.positions()) / (s.KH * s.KW);
        const int64_t blocks = most < 1 ? s.channels() : (s.channels() + most - 1) / most;
        return (s.channels() + blocks - 1) / blocks;
    }

    // fn(channel, channels, place) for some of the channels [from, to) of a group at a time; `place` is the first one's row
    // of all columns.
    template <class Fn> void each_block(int64_t from, int64_t to, Fn fn) const {
        const int64_t places = s.KH * s.KW, step = block();
        for (int64_t c = from; c < to; c += step) fn(c, std::min(step, to - c), c * places);
    }
    // fn(group, from, to) for the groups of `each` channels that have some of the channels [begin, end), and which.
    template <class Fn> static void each_group(int64_t each, int64_t begin, int64_t end, Fn fn) {
        for (int64_t group = begin / each; group * each < end; group++)
            fn(group, std::max(begin - group * each, int64_t(0)), std::min(end - group * each, each));
    }
    // The columns of some channels of a tile: made in `scratch`, or the image itself.
    Rows<const T> columns(const T *x, const Tile &t, int64_t group, int64_t channel, int64_t channels, T *scratch) const {
        if (in_place(t)) return {image(x, t.n0, group) + channel * s.H * s.W + t.p0 * s.Q, s.positions()};
        const int64_t ld = length(t), each = (t.p1 - t.p0) * s.Q;
        for (int64_t n = t.n0; n < t.n1; n++)
            gather_tile(image(x, n, group) + channel * s.H * s.W, s, t, channels, ld, scratch + (n - t.n0) * each);
        return {scratch, ld};
    }
    // Outputs (or their gradients) of a tile as one matrix: where they lie, or with the samples side by side in `scratch`.
    template <class U> Rows<U> outputs(U *y, const Tile &t, int64_t group, U *scratch) const {
        if (t.n1 - t.n0 == 1) return {y + output(t.n0, group) + t.p0 * s.Q, s.positions()};
        return {scratch, length(t)};
    }
    // fn(place in all outputs, place among the tile's outputs side by side) for rows of outputs [from, to) of a group
    template <class Fn> void each_sample_row(const Tile &t, int64_t group, int64_t from, int64_t to, Fn fn) const {
        const int64_t L = s.positions();
        for (int64_t n = t.n0; n < t.n1; n++)
            for (int64_t o = from; o < to; o++) fn(output(n, group) + o * L, o * length(t) + (n - t.n0) * L);
    }
    // g's rows [from, to) of a group in a tile, as the first of a matrix; several samples are brought together in `scratch`
    Rows<const T> gradients(const T *g, const Tile &t, int64_t group, int64_t from, int64_t to, T *scratch) const {
        if (t.n1 - t.n0 > 1)
            each_sample_row(t, group, from, to, [&](int64_t at, int64_t place) {
                std::copy_n(g + at, s.positions(), scratch + place);
            });
        const Rows<const T> all = outputs<const T>(g, t, group, scratch);
        return {all.data + from * all.ld, all.ld};
    }

    // Output channels [begin, end) of a tile.
    void forward(const T *x, const T *w, const T *bias, const Tile &t, int64_t begin, int64_t end, T *scratch, T *y) const {
        T *side = scratch + columns_size();
        each_group(s.outputs(), begin, end, [&](int64_t group, int64_t from, int64_t to) {
            const Rows<T> all = outputs<T>(y, t, group, side), out{all.data + from * all.ld, all.ld};
            const int64_t first = group * s.outputs() + from;
            for (int64_t o = 0; o < to - from && bias; o++) std::fill_n(out.data + o * out.ld, length(t), bias[first + o]);
            each_block(0, s.channels(), [&](int64_t channel, int64_t channels, int64_t place) {
                const Rows<const T> cols = columns(x, t, group, channel, channels, scratch);
                const View<T> weights{w + first * s.depth() + place, s.depth(), 1};
                multiply<T>({to - from, length(t), channels * s.KH * s.KW, weights, {cols.data, cols.ld, 1}, out.data,
                             out.ld, bias || channel ? out.data : nullptr, out.ld},
                            false);
            });
            if (t.n1 - t.n0 > 1)
                each_sample_row(t, group, from, to, [&](int64_t at, int64_t place) {
                    std::copy_n(side + place, s.positions(), y + at);
                });
        });
    }

    // The gradient of input channels [begin, end) of the tile's samples: `dx` must be zero where windows do not reach.
    void input_gradient(const T *g, const T *w, const Tile &t, int64_t begin, int64_t end, T *scratch, T *dx) const {
        T *side = scratch + columns_size();
        each_group(s.channels(), begin, end, [&](int64_t group, int64_t from, int64_t to) {
            const Rows<const T> out = gradients(g, t, group, 0, s.outputs(), side);
            const int64_t l = length(t), each = (t.p1 - t.p0) * s.Q;
            each_block(from, to, [&](int64_t channel, int64_t channels, int64_t place) {
                const View<T> weights{w + group * s.outputs() * s.depth() + place, 1, s.depth()};
                T *into = in_place(t) ? image(dx, t.n0, group) + channel * s.H * s.W + t.p0 * s.Q : scratch;
                multiply<T>({channels * s.KH * s.KW, l, s.outputs(), weights, {out.data, out.ld, 1}, into,
                             in_place(t) ? s.positions() : l},
                            false);
                if (in_place(t)) return;
                for (int64_t n = t.n0; n < t.n1; n++)
                    scatter_tile(scratch + (n - t.n0) * each, s, t, channels, l, image(dx, n, group) + channel * s.H * s.W);
            });
        });
    }

    // Adds the tile's share to dw (each group: depth, O) and db (O); output channels [o0, o1) of each group.
    void weight_gradient(const T *g, const T *x, const Tile &t, int64_t o0, int64_t o1, T *scratch, T *dw, T *db) const {
        T *side = scratch + columns_size();
        for (int64_t group = 0; group < s.G; group++) {
            const Rows<const T> out = gradients(g, t, group, o0, o1, side);
            const int64_t O = s.outputs();
            const View<T> gradients_T{out.data, 1, out.ld};
            if (dw)
                each_block(0, s.channels(), [&](int64_t channel, int64_t channels, int64_t place) {
                    const Rows<const T> cols = columns(x, t, group, channel, channels, scratch);
                    T *sums = dw + (group * s.depth() + place) * O + o0;
                    multiply<T>({channels * s.KH * s.KW, o1 - o0, length(t), {cols.data, cols.ld, 1}, gradients_T, sums,
                                 O, sums, O},
                                false);
                });
            for (int64_t o = o0; o < o1 && db; o++) db[group * O + o] += row_sum(out.data + (o - o0) * out.ld, length(t));
        }
    }

    // dw and db of the only tile there is, where they lie: the same sums as weight_gradient(), which nobody has to turn.
    void weight_of_one(const T *g, const T *x, const Tile &t, int64_t o0, int64_t o1, T *scratch, T *dw, T *db) const {
        T *side = scratch + columns_size();
        for (int64_t group = 0; group < s.G; group++) {
            const Rows<const T> out = gradients(g, t, group, o0, o1, side);
            each_block(0, s.channels(), [&](int64_t channel, int64_t channels, int64_t place) {
                const Rows<const T> cols = columns(x, t, group, channel, channels, scratch);
                multiply<T>({o1 - o0, channels * s.KH * s.KW, length(t), {out.data, out.ld, 1}, {cols.data, 1, cols.ld},
                             dw + (group * s.outputs() + o0) * s.depth() + place, s.depth()},
                            false);
            });
            for (int64_t o = o0; o < o1 && db; o++) db[group * s.outputs() + o] = row_sum(out.data + (o - o0) * out.ld, length(t));
        }
    }
};

// Elements of scratch that one thread needs: columns, and outputs side by side where tiles have several samples.
template <class T> int64_t scratch_size(const Conv<T> &conv) {
    return conv.columns_size() + (conv.tiles.samples > 1 ? conv.s.outputs() * conv.tiles.positions() : 0);
}

template <class T> nb::object forward_as(Array x, Array w, Array bias, const Shape &s) {
    const Conv<T> conv(s);
    NewArray<T> y({static_cast<npy_intp>(s.N), static_cast<npy_intp>(s.O), static_cast<npy_intp>(s.P),
                   static_cast<npy_intp>(s.Q)});
    if constexpr (std::is_same_v<T, float>)
        if (has_direct_forward<float>(s)) {
            WithoutGil free(s.N * s.O * s.positions() * s.depth());
            direct_forward(s, x.data<float>(), w.data<float>(), bias.data<float>(), y.data);
            return y.object;
        }
    const int64_t parts = parts_of(conv.tiles.count, s.O / LEAST_CHANNELS), items = conv.tiles.count * parts;
    const int64_t size = scratch_size(conv), slots = std::min<int64_t>(num_threads(), items);
    NewArray<T> scratch({static_cast<npy_intp>(slots * size)});
    {
        WithoutGil free(s.N * s.O * s.positions() * s.depth());
        parallel_slots(items, slots, size * s.outputs(), [&](int64_t slot, int64_t i) {
            conv.forward(x.data<T>(), w.data<T>(), bias.data<T>(), conv.tiles[i / parts], edge(s.O, parts, i % parts),
                         edge(s.O, parts, i % parts + 1), scratch.data + slot * size, y.data);
        });
    }
    return y.object;
}

template <class T> nb::object input_gradient_as(Array g, Array w, const Shape &s) {
    const Conv<T> conv(s);
    NewArray<T> dx({static_cast<npy_intp>(s.N), static_cast<npy_intp>(s.C), static_cast<npy_intp>(s.H),
                    static_cast<npy_intp>(s.W)});
    if constexpr (std::is_same_v<T, float>)
        if (has_direct_input<float>(s)) {
            WithoutGil free(s.N * s.O * s.positions() * s.depth());
            direct_input(s, g.data<float>(), w.data<float>(), dx.data);
            return dx.object;
        }
    const int64_t runs = conv.tiles.count / conv.tiles.per_sample, parts = parts_of(runs, s.C / LEAST_CHANNELS);
    const int64_t size = scratch_size(conv), slots = std::min<int64_t>(num_threads(), runs * parts);
    NewArray<T> scratch({static_cast<npy_intp>(slots * size)});
    {
        WithoutGil free(s.N * s.O * s.positions() * s.depth());
        // all tiles of a sample's channel in one thread: neighbours add to the same rows
        parallel_slots(runs * parts, slots, size * s.outputs(), [&](int64_t slot, int64_t item) {
            const int64_t run = item / parts, begin = edge(s.C, parts, item % parts), end = edge(s.C, parts, item % parts + 1);
            const Tile first = conv.tiles[run * conv.tiles.per_sample];
            for (int64_t n = first.n0; n < first.n1 && !conv.in_place(first); n++)
                std::fill(dx.data + (n * s.C + begin) * s.H * s.W, dx.data + (n * s.C + end) * s.H * s.W, T(0));
            for (int64_t i = 0; i < conv.tiles.per_sample; i++)
                conv.input_gradient(g.data<T>(), w.data<T>(), conv.tiles[run * conv.tiles.per_sample + i], begin, end,
                                    scratch.data + slot * size, dx.data);
        });
    }
    return dx.object;
}

// dw (O, depth) of one group = the runs' sums (depth, O), turned, for depths [begin, end). Runs are `row` apart.
template <class T>
RESILIN_INLINE void add_turned(const T *sums, int64_t row, int64_t runs, const Shape &s, int64_t begin, int64_t end, T *dw) {
    constexpr int64_t SIDE = 16;
    const int64_t O = s.outputs(), depth = s.depth();
    for (int64_t k = begin; k < end; k += SIDE)
        for (int64_t o = 0; o < O; o += SIDE) {
            const T *from = sums + k * O + o;
            T *to = dw + o * depth + k;
            if constexpr (std::is_same_v<T, float>)
                if (k + SIDE <= end && o + SIDE <= O) {
                    Pairs square[SIDE];
                    for (int64_t i = 0; i < SIDE; i++) {
                        Lanes sum = load(from + i * O);
                        for (int64_t run = 1; run < runs; run++) sum += load(from + run * row + i * O);
                        std::memcpy(&square[i], &sum, sizeof(sum));
                    }
                    transpose_pairs(square);
                    for (int64_t i = 0; i < SIDE; i++) std::memcpy(to + i * depth, &square[i], sizeof(Pairs));
                    continue;
                }
            for (int64_t j = 0; j < std::min(SIDE, O - o); j++)
                for (int64_t i = 0; i < std::min(SIDE, end - k); i++) {
                    T sum = from[i * O + j];
                    for (int64_t run = 1; run < runs; run++) sum += from[run * row + i * O + j];
                    to[j * depth + i] = sum;
                }
        }
}
RESILIN_SIMD void turn(const float *sums, int64_t row, int64_t runs, const Shape &s, int64_t begin, int64_t end, float *dw) {
    add_turned(sums, row, runs, s, begin, end, dw);
}
RESILIN_SIMD void turn(const double *sums, int64_t row, int64_t runs, const Shape &s, int64_t begin, int64_t end, double *dw) {
    add_turned(sums, row, runs, s, begin, end, dw);
}
constexpr int64_t TURNED = 64; // depths that are turned at a time

// Tiles in runs that are summed one after the other; the runs' sums are added in order. Where there are few runs (large
// weights allow few partial sums), output channels are divided among the threads, too.
template <class T> nb::object weight_gradient_as(Array g, Array x, const Shape &s, bool weight, bool bias) {
    if constexpr (std::is_same_v<T, float>)
        if (weight && has_direct_weight<float>(s)) {
            NewArray<float> dw({static_cast<npy_intp>(s.O), static_cast<npy_intp>(s.channels()), static_cast<npy_intp>(s.KH),
                                static_cast<npy_intp>(s.KW)});
            {
                WithoutGil free(s.N * s.O * s.positions() * s.depth());
                direct_weight(s, g.data<float>(), x.data<float>(), dw.data);
            }
            if (!bias) return nb::make_tuple(dw.object, nb::none());
            const nb::object rest = weight_gradient_as<float>(g, x, s, false, true);
            return nb::make_tuple(dw.object, rest[1]);
        }
    const Conv<T> conv(s);
    const int64_t wide = weight ? s.O * s.depth() : 0, row = wide + s.O;
    const int64_t room = std::max<int64_t>(1, SUMS_BYTES / static_cast<int64_t>(sizeof(T)) / row);
    const int64_t runs = std::min({SUMS, room, conv.tiles.count});
    const int64_t slabs = parts_of(runs, s.outputs() / LEAST_CHANNELS);
    NewArray<T> dw({static_cast<npy_intp>(s.O), static_cast<npy_intp>(s.channels()), static_cast<npy_intp>(s.KH),
                    static_cast<npy_intp>(s.KW)});
    NewArray<T> db({static_cast<npy_intp>(s.O)});
    const int64_t size = scratch_size(conv), slots = std::min<int64_t>(num_threads(), runs * slabs);
    if (weight && conv.tiles.count == 1) {
        NewArray<T> own({static_cast<npy_intp>(slots * size)});
        {
            WithoutGil free(s.N * s.O * s.positions() * s.depth());
            parallel_slots(slabs, slots, size * s.outputs(), [&](int64_t slot, int64_t slab) {
                conv.weight_of_one(g.data<T>(), x.data<T>(), conv.tiles[0], edge(s.outputs(), slabs, slab), edge(s.outputs(), slabs, slab + 1),
                                   own.data + slot * size, dw.data, bias ? db.data : nullptr);
            });
        }
        return nb::make_tuple(dw.object, bias ? db.object : nb::none());
    }
    NewArray<T> scratch({static_cast<npy_intp>(slots * size)}), sums({static_cast<npy_intp>(runs * row)});
    {
        WithoutGil free(s.N * s.O * s.positions() * s.depth());
        std::fill(sums.data, sums.data + runs * row, T(0));
        parallel_slots(runs * slabs, slots, size * s.outputs(), [&](int64_t slot, int64_t i) {
            const int64_t run = i / slabs, slab = i % slabs;
            T *sum = sums.data + run * row;
            for (int64_t t = conv.tiles.count * run / runs; t < conv.tiles.count * (run + 1) / runs; t++)
                conv.weight_gradient(g.data<T>(), x.data<T>(), conv.tiles[t], s.outputs() * slab / slabs,
                                     s.outputs() * (slab + 1) / slabs, scratch.data + slot * size,
                                     weight ? sum : nullptr, bias ? sum + wide : nullptr);
        });
        const int64_t each = (s.depth() + TURNED - 1) / TURNED;
        if (weight)
            parallel_rows(s.G * each, TURNED * s.outputs() * runs, [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; i++) {
                    const int64_t at = i / each * s.outputs() * s.depth(), k = i % each * TURNED;
                    turn(sums.data + at, row, runs, s, k, std::min(s.depth(), k + TURNED), dw.data + at);
                }
            });
        for (int64_t o = 0; o < s.O && bias; o++) {
            T sum = sums.data[wide + o];
            for (int64_t run = 1; run < runs; run++) sum += sums.data[run * row + wide + o];
            db.data[o] = sum;
        }
    }
    return nb::make_tuple(weight ? dw.object : nb::none(), bias ? db.object : nb::none());
}

using Lengths = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>; // strides, paddings, dilations

// The shape of a convolution of x (N, C, H, W) with w (O, C / groups, KH, KW); false when there is no kernel for it.
bool shape_of(const int64_t *x, const int64_t *w, const Lengths &lengths, int64_t groups, Shape &s) {
    const auto &[sh, sw, ph, pw, dh, dw] = lengths;
    s = Shape{x[0], x[1], x[2], x[3], w[0], groups, w[2], w[3], sh, sw, ph, pw, dh, dw};
    if (!s.fits() || s.channels() != w[1]) return false;
    s.set_output();
    return true;
}
bool shape_of(const ExactArray &x, const ExactArray &w, const Lengths &lengths, int64_t groups, Shape &s) {
    const int64_t from[] = {x.dim(0), x.dim(1), x.dim(2), x.dim(3)}, with[] = {w.dim(0), w.dim(1), w.dim(2), w.dim(3)};
    return shape_of(from, with, lengths, groups, s);
}
bool is_output(const ExactArray &g, const Shape &s) {
    return g.ndim() == 4 && g.dim(0) == s.N && g.dim(1) == s.O && g.dim(2) == s.P && g.dim(3) == s.Q;
}
// bfloat16, as its bits.
nb::object bfloat_forward(Array x, Array w, Array bias, const Shape &s) {
    if (!has_direct_forward<BFloat>(s)) return nb::none();
    NewArray<uint16_t> y({static_cast<npy_intp>(s.N), static_cast<npy_intp>(s.O), static_cast<npy_intp>(s.P), static_cast<npy_intp>(s.Q)});
    {
        WithoutGil free(s.N * s.O * s.positions() * s.depth());
        direct_forward(s, x.data<BFloat>(), w.data<BFloat>(), bias.data<BFloat>(), reinterpret_cast<BFloat *>(y.data));
    }
    return y.object;
}
nb::object bfloat_input(Array g, Array w, const Shape &s) {
    if (!has_direct_input<BFloat>(s)) return nb::none();
    NewArray<uint16_t> dx({static_cast<npy_intp>(s.N), static_cast<npy_intp>(s.C), static_cast<npy_intp>(s.H), static_cast<npy_intp>(s.W)});
    {
        WithoutGil free(s.N * s.O * s.positions() * s.depth());
        direct_input(s, g.data<BFloat>(), w.data<BFloat>(), reinterpret_cast<BFloat *>(dx.data));
    }
    return dx.object;
}

nb::object bfloat_weight(Array g, Array x, const Shape &s, bool weight, bool bias) {
    if (!has_direct_weight<BFloat>(s)) return nb::none();
    NewArray<uint16_t> dw({static_cast<npy_intp>(s.O), static_cast<npy_intp>(s.channels()), static_cast<npy_intp>(s.KH), static_cast<npy_intp>(s.KW)});
    NewArray<uint16_t> db({static_cast<npy_intp>(s.O)});
    {
        WithoutGil free(s.N * s.O * s.positions() * s.depth());
        if (weight) direct_weight(s, g.data<BFloat>(), x.data<BFloat>(), reinterpret_cast<BFloat *>(dw.data));
        if (bias) direct_bias(s, g.data<BFloat>(), reinterpret_cast<BFloat *>(db.data));
    }
    return nb::make_tuple(weight ? dw.object : nb::none(), bias ? db.object : nb::none());
}

template <class T> bool all_are(const ExactArray &a, const ExactArray &b) { return a.is<T>() && b.is<T>(); }

nb::object forward(Array x, Array w, Array bias, Lengths lengths, int64_t groups) {
    Shape s;
    if (!x || !w || x.ndim() != 4 || w.ndim() != 4 || !shape_of(x, w, lengths, groups, s)) return nb::none();
    if (bias && (bias.ndim() != 1 || bias.size() != s.O)) return nb::none();
    if (all_are<float>(x, w) && bias.is_or_none<float>()) return forward_as<float>(x, w, bias, s);
    if (all_are<uint16_t>(x, w) && bias.is_or_none<uint16_t>()) return bfloat_forward(x, w, bias, s);
    if (all_are<double>(x, w) && bias.is_or_none<double>()) return forward_as<double>(x, w, bias, s);
    return nb::none();
}

nb::object input_gradient(Array g, Array w, int64_t H, int64_t W, Lengths lengths, int64_t groups) {
    Shape s;
    if (!g || !w || g.ndim() != 4 || w.ndim() != 4 || groups < 1 || groups > w.dim(0)) return nb::none();
    const int64_t from[] = {g.dim(0), w.dim(1) * groups, H, W}, with[] = {w.dim(0), w.dim(1), w.dim(2), w.dim(3)};
    if (!shape_of(from, with, lengths, groups, s) || !is_output(g, s)) return nb::none();
    if (all_are<float>(g, w)) return input_gradient_as<float>(g, w, s);
    if (all_are<uint16_t>(g, w)) return bfloat_input(g, w, s);
    if (all_are<double>(g, w)) return input_gradient_as<double>(g, w, s);
    return nb::none();
}

nb::object weight_gradient(Array g, Array x, int64_t KH, int64_t KW, Lengths lengths, int64_t groups, bool weight,
                           bool bias) {
    Shape s;
    if (!g || !x || g.ndim() != 4 || x.ndim() != 4 || groups < 1) return nb::none();
    const int64_t from[] = {x.dim(0), x.dim(1), x.dim(2), x.dim(3)}, with[] = {g.dim(1), x.dim(1) / groups, KH, KW};
    if (!shape_of(from, with, lengths, groups, s) || !is_output(g, s)) return nb::none();
    if (all_are<float>(g, x)) return weight_gradient_as<float>(g, x, s, weight, bias);
    if (all_are<uint16_t>(g, x)) return bfloat_weight(g, x, s, weight, bias);
    if (all_are<double>(g, x)) return weight_gradient_as<double>(g, x, s, weight, bias);
    return nb::none();
}

} // namespace

void bind_conv2d(nb::module_ &m) {
    m.def("conv2d_forward", &forward, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
    m.def("conv2d_input_gradient", &input_gradient);
    m.def("conv2d_weight_gradient", &weight_gradient);
}

} // namespace resilin
