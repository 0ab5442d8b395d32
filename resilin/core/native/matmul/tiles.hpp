// The innermost part of a matrix product: one tile of C, per instruction set.
//
// Both operands are lanes (rows of A, columns of B) of some depth. An element of C is one chain of fused multiply-adds
// over the depth, ascending, whatever the tile's size, the strides and the instruction set: so every CPU that has a
// version here gives the same bits.
#pragma once
#include <cstdint>

namespace resilin {

// c (height, columns; rows ldc apart) = plus + scale * (a @ b). The sums come first, then `scale` where `scaled` says so, then
// `plus` (rows ld_plus apart; 0: the same for every row; null: nothing), each rounded. Lanes of `a` may lie anywhere, those of `b` side by side: all of the tile's width is
// read, only `columns` are written.
template <class T> struct Multiplicands {
    const T *a;
    int64_t a_lane, a_step;
    const T *b;
    int64_t b_step, depth;
    T *c;
    int64_t ldc, columns;
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
    bool pairs = false;    // whether a step is a pair of bfloat16, the earlier one in the upper half
};

// x86-64-v4, x86-64-v3 (on x86-64 only) and any CPU. One that has no fused multiply-add rounds twice.
const Tiles<float> &avx512_tiles(float);
const Tiles<double> &avx512_tiles(double);
const Tiles<float> &avx512_bf16_tiles(); // of pairs; x86-64-v4 with AVX512_BF16
const Tiles<float> &avx2_tiles(float);
const Tiles<double> &avx2_tiles(double);
const Tiles<float> &portable_tiles(float);
const Tiles<double> &portable_tiles(double);

} // namespace resilin
