// The innermost part of a matrix product: one tile of C from two packed panels, per instruction set.
//
// A panel holds some lanes (rows of A, or columns of B) of all depths: lane i at depth p is at p * lanes + i. An element
// of C is one chain of fused multiply-adds over the depth, ascending, whatever the tile's size and the instruction set:
// so every CPU that has a version here gives the same bits.
#pragma once
#include <cstdint>

namespace resilin {

// c (height, columns; rows ldc apart) = the products of panels a (height lanes) and b (width lanes) over `depth`, or c
// plus them where `add`. columns <= width: the rest of b's lanes is padding.
template <class T>
using Tile = void (*)(const T *a, const T *b, int64_t depth, T *c, int64_t ldc, int64_t columns, bool add);

template <class T> struct Tiles {
    int64_t height, width; // of the largest tile, which keeps all of its sums in registers
    const Tile<T> *wide;   // wide[h - 1]: tiles h <= height high and `width` wide
    const Tile<T> *narrow; // tiles half as wide
};

// x86-64-v4, x86-64-v3 (on x86-64 only) and any CPU. One that has no fused multiply-add rounds twice.
const Tiles<float> &avx512_tiles(float);
const Tiles<double> &avx512_tiles(double);
const Tiles<float> &avx2_tiles(float);
const Tiles<double> &avx2_tiles(double);
const Tiles<float> &portable_tiles(float);
const Tiles<double> &portable_tiles(double);

} // namespace resilin
