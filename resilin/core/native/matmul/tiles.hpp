// The innermost part of a matrix product: one tile of C, per instruction set.
//
// Both operands are lanes (rows of A, columns of B) of some depth. An element of C is one chain of fused multiply-adds
// over the depth, ascending, whatever the tile's size, the strides and the instruction set: so every CPU that has a
// version here gives the same bits. Of bfloat16 it is the sum of two chains per group of the depth (product.hpp).
#pragma once
#include "layouts.hpp"

namespace resilin {

// c (height, columns; rows ldc apart) = plus + scale * (a @ b). The sums come first, then `scale` where `scaled` says so, then
// `plus` (rows ld_plus apart; 0: the same for every row; null: nothing), each rounded. Lanes of `a` may lie anywhere, those of `b` side by side: all of the tile's width is
// read, only `columns` are written. Tiles of bfloat16 read both as they are packed: `a_lane` and `b_step` are theirs.
template <class T> struct Multiplicands {
    const T *a;
    int64_t a_lane, a_step;
    const T *b;
    int64_t b_step, depth;
    T *c;
    int64_t ldc, rows, columns;
    const T *plus;
    int64_t ld_plus;
    bool scaled;
    T scale;
};
template <class T> using Tile = void (*)(const Multiplicands<T> &);

template <class T> struct Tiles {
    int64_t height, width; // of the largest tile, which keeps all of its sums in registers
    const Tile<T> *wide;   // wide[h - 1]: tiles h <= height high and `width` wide
    const Tile<T> *narrow; // tiles half as wide
    bool scales;           // whether they take `scaled`
    Layout layout = Layout::plain;
    void (*enter)() = nullptr, (*leave)() = nullptr; // called before and after a thread's tiles, if not null
};

// A step of a tile of Spread: step `a` of its lanes of a, and what lies `b` elements behind each vector's first one.
struct Step {
    int64_t a, b;
};

// A tile whose vectors of b lie anywhere, one by one, and whose steps are listed. The list is walked `repeats` times, from
// time to time `a_repeat` and `b_repeat` elements further. c[j] (rows ldc apart) = c[j] where `add` says so, else the rows'
// `bias` (null: nothing), plus the sums; `columns[j]` elements of each row.
// Of layout `plain` all steps are one chain, `depth` of a time. Else a time has `groups` of two chains, of `steps` steps
// each: all of a group's even chain, then its odd one. Behind the last time are `last_groups` of `last_steps`, listed
// behind the others; and `a` has lanes side by side.
template <class T> struct Spread {
    const T *a;
    int64_t a_lane, a_step;
    const T *b[2];
    const Step *at;
    int64_t repeats, a_repeat, b_repeat;
    int64_t depth, groups, steps, last_groups, last_steps;
    T *c[2];
    int64_t ldc, columns[2];
    bool add;
    const T *bias;
};
template <class T> using SpreadTile = void (*)(const Spread<T> &);
template <class T> struct SpreadTiles {
    int64_t height, lanes;     // of the largest tile, and of a vector
    const SpreadTile<T> *two;  // two[h - 1]: tiles h <= height high of two vectors
    const SpreadTile<T> *one;
    Layout layout = Layout::plain;
};

// x86-64-v4, x86-64-v3 (on x86-64 only) and any CPU. One that has no fused multiply-add rounds twice.
const Tiles<float> &avx512_tiles(float);
const Tiles<double> &avx512_tiles(double);
const Tiles<float> &amx_tiles();         // matrix; AMX_BF16, once has_amx()
const Tiles<float> &avx512_bf16_tiles(); // pairs; x86-64-v4 with AVX512_BF16
const Tiles<float> &avx512_split_tiles();
const Tiles<float> &avx2_tiles(float);
const Tiles<double> &avx2_tiles(double);
const Tiles<float> &avx2_split_tiles();
const Tiles<float> &portable_tiles(float);
const Tiles<double> &portable_tiles(double);
const Tiles<float> &portable_split_tiles();

const SpreadTiles<float> &avx512_spread_tiles();
const SpreadTiles<float> &avx512_bf16_spread_tiles(); // pairs
const SpreadTiles<float> &avx512_split_spread_tiles();
const SpreadTiles<float> &avx2_spread_tiles();
const SpreadTiles<float> &avx2_split_spread_tiles();
const SpreadTiles<float> &portable_spread_tiles();
const SpreadTiles<float> &portable_split_spread_tiles();

// Those that run on this CPU for operands of type From (float or BFloat).
template <class From> const SpreadTiles<float> &spread_tiles();

// Whether the CPU has AMX for bfloat16 and the kernel lets this process use it: it is asked at the first call.
bool has_amx();

} // namespace resilin
