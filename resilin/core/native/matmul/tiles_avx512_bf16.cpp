// Pairs of bfloat16, each in the place of a float: vdpbf16ps adds the product of the upper halves to the sum, then that of
// the lower ones, each by a fused multiply-add that takes subnormal numbers as zero and gives none.
#include "tiles.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,avx512bf16")

namespace resilin {
namespace {

template <class T> struct Vector;
template <> struct Vector<float> {
    using type = __m512;
    static constexpr int lanes = 16;
    static type load(const float *x) { return _mm512_loadu_ps(x); }
    static void store(float *x, type v) { _mm512_storeu_ps(x, v); }
    static type broadcast(float x) { return _mm512_set1_ps(x); }
    static type fma(type a, type b, type c) { return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b); }
    static type add(type a, type b) { return _mm512_add_ps(a, b); }
    static type multiply(type a, type b) { return _mm512_mul_ps(a, b); }
};

} // namespace

#include "tiles_body.hpp"

// as in tiles_avx512.cpp
const Tiles<float> &avx512_bf16_tiles() {
    using Wide = SplitHeights<float, 2, 2, 7, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;
    using Narrow = SplitHeights<float, 1, 2, 14, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;
    static constexpr Tiles<float> tiles{14, 32, Wide::of, Narrow::of, false, Layout::pairs};
    return tiles;
}
const SpreadTiles<float> &avx512_bf16_spread_tiles() {
    using Two = SplitSpreadHeights<float, 2, 1, 2, 3, 4, 5, 6, 7>;
    using One = SplitSpreadHeights<float, 1, 1, 2, 3, 4, 5, 6, 7>;
    static constexpr SpreadTiles<float> tiles{7, Vector<float>::lanes, Two::of, One::of, Layout::pairs};
    return tiles;
}
} // namespace resilin
#pragma GCC pop_options
#endif
