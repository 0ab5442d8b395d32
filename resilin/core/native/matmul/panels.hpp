// The operands of a matrix product, cut into panels: the lanes (rows of A or columns of B) of one tile. A panel is read
// where it lies, or from a packed copy in which lane i at step p is at p * size + i; of bfloat16 as the tiles want it.
#pragma once
#include "layouts.hpp"
#include "product.hpp"

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace resilin {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
// Where the i-th of `count` even parts of `length` begins.
constexpr int64_t edge(int64_t length, int64_t count, int64_t i) { return length * i / count; }

// Whether lines of memory that lie `stride` elements apart share a few sets of the first cache: it does not hold many.
template <class T> constexpr bool crowded(int64_t stride) { return stride * static_cast<int64_t>(sizeof(T)) % 2048 == 0; }

// The rows of A or the columns of B (`lanes`), cut into panels.
struct Panels {
    int64_t lanes, width; // width 0: panels of even heights, `count` of them; else of `width`, the last half as wide
    int64_t count;        //   where that suffices, and padded

    static Panels of_rows(int64_t rows, int64_t height) { return {rows, 0, ceil_div(rows, height)}; }
    static Panels of_columns(int64_t columns, int64_t width) { return {columns, width, ceil_div(columns, width)}; }

    int64_t begin(int64_t i) const { return width ? std::min(i * width, lanes) : edge(lanes, count, i); }
    int64_t used(int64_t i) const { return begin(i + 1) - begin(i); }
    int64_t size(int64_t i) const { return !width ? used(i) : used(i) <= width / 2 ? width / 2 : width; }
    int64_t padded() const { return place(count - 1) + size(count - 1); }
    // lanes before panel i, with padding
    int64_t place(int64_t i) const { return width ? i * width : begin(i); }
};

// to[p * size + i] = from[i * lane + p * step] for `used` lanes of `depth`; the other lanes up to `size` are zero.
void pack(const float *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth, float *to);
void pack(const double *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth, double *to);
// to[p * size + i] = from[i * lane + p] for `used` lanes of `depth`; nothing else is written.
void turn(const float *from, int64_t lane, int64_t used, int64_t size, int64_t depth, float *to);
void turn(const double *from, int64_t lane, int64_t used, int64_t size, int64_t depth, double *to);
// As pack(), of 16-bit floats, as float32.
void pack(const BFloat *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth, float *to);
void pack(const Half *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth, float *to);
// The same of bfloat16 for tiles of layout split, pairs or matrix. Groups of the depth follow one another; lanes up to `size`
// may be anything finite, and what a group lacks of `columns` (of B, else rows of A) leaves a sum as it is.
void pack_split(const BFloat *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth, float *to);
void pack_pairs(const BFloat *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth, bool columns, float *to);
void pack_matrix(const BFloat *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth, bool columns, float *to);
constexpr int64_t split_even(int64_t steps) { return (steps + 1) / 2; } // as many of them are even
constexpr int64_t groups_of(int64_t depth) { return ceil_div(depth, GROUP_STEPS); }
// Floats per lane that so much of the depth takes.
constexpr int64_t pair_steps(int64_t depth) {
    const int64_t rest = depth % GROUP_STEPS;
    return depth / GROUP_STEPS * (GROUP_STEPS / 2) + ceil_div(split_even(rest), 2) + ceil_div(rest / 2, 2);
}
constexpr int64_t packed_steps(Layout layout, int64_t depth) {
    if (layout == Layout::pairs) return pair_steps(depth);
    return layout == Layout::matrix ? groups_of(depth) * (GROUP_STEPS / 2) : depth;
}

// y = x, rounded to nearest even; NaN stays NaN.
void round_row(const float *x, int64_t n, BFloat *y);
void round_row(const float *x, int64_t n, Half *y);

// The first columns of a product of one row, as many as there is a way for without packing (maybe 0), rounded into `out`.
template <class From> int64_t multiply_row(const Product<float, From> &product, int64_t blocks, From *out, bool threads);

// One operand: its panels, where they are in memory, and whether tiles read them there. A panel with padding is packed
// in any case.
template <class T, class From> struct Operand {
    Panels panels;
    int64_t lane, step; // strides of a lane and of a step in depth
    const From *data;
    bool direct;
    Layout layout;
    bool columns;

    bool is_direct(int64_t i) const { return direct && panels.used(i) == panels.size(i); }
    // packed lanes before panel i
    int64_t stored(int64_t i) const {
        if (!direct) return i < panels.count ? panels.place(i) : panels.padded();
        return i < panels.count || is_direct(i - 1) ? 0 : panels.size(i - 1);
    }
    // Floats that a lane takes of a block of the depth.
    int64_t steps(int64_t depth) const { return packed_steps(layout, depth); }
    // Packs a block that starts at depth p: panels [begin, end), one after another. Lanes that lie side by side are read
    // along memory: a few steps of all panels, then the next.
    void pack(int64_t begin, int64_t end, int64_t p, int64_t depth, T *to) const {
        const int64_t strip = lane == 1 ? STRIP : depth, start = stored(begin);
        for (int64_t q = 0; q < depth; q += strip)
            for (int64_t i = direct ? end - 1 : begin; i < end; i++)
                if (!is_direct(i))
                    pack_panel(data + panels.begin(i) * lane + (p + q) * step, panels.used(i), panels.size(i),
                               std::min(strip, depth - q), to + (stored(i) - start) * steps(depth) + steps(q) * panels.size(i));
    }
    // Panel i of a block that starts at depth p, for a tile: lane, step and first element. `packed` is what pack() made
    // of panels from `begin` on.
    View<T> at(int64_t i, int64_t p, int64_t depth, int64_t begin, const T *packed) const {
        if constexpr (std::is_same_v<T, From>)
            if (is_direct(i)) return {data + panels.begin(i) * lane + p * step, lane, step};
        return {packed + (stored(i) - stored(begin)) * steps(depth), 1, panels.size(i)};
    }

  private:
    static constexpr int64_t STRIP = std::is_same_v<From, BFloat> ? GROUP_STEPS : 16;
    void pack_panel(const From *from, int64_t used, int64_t size, int64_t depth, T *to) const {
        if constexpr (std::is_same_v<From, BFloat>) {
            if (layout == Layout::matrix) return pack_matrix(from, lane, step, used, size, depth, columns, to);
            if (layout == Layout::pairs) return pack_pairs(from, lane, step, used, size, depth, columns, to);
            pack_split(from, lane, step, used, size, depth, to);
        } else {
            resilin::pack(from, lane, step, used, size, depth, to);
        }
    }
};

} // namespace resilin
