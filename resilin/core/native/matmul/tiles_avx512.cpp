#include "tiles.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")

namespace resilin {
namespace {

template <class T> struct Vector;
template <> struct Vector<float> {
    using type = __m512;
    static constexpr int lanes = 16;
    static type load(const float *x) { return _mm512_loadu_ps(x); }
    static void store(float *x, type v) { _mm512_storeu_ps(x, v); }
    static type broadcast(float x) { return _mm512_set1_ps(x); }
    static type fma(type a, type b, type c) { return _mm512_fmadd_ps(a, b, c); }
    static type add(type a, type b) { return _mm512_add_ps(a, b); }
    static type multiply(type a, type b) { return _mm512_mul_ps(a, b); }
};
template <> struct Vector<double> {
    using type = __m512d;
    static constexpr int lanes = 8;
    static type load(const double *x) { return _mm512_loadu_pd(x); }
    static void store(double *x, type v) { _mm512_storeu_pd(x, v); }
    static type broadcast(double x) { return _mm512_set1_pd(x); }
    static type fma(type a, type b, type c) { return _mm512_fmadd_pd(a, b, c); }
    static type add(type a, type b) { return _mm512_add_pd(a, b); }
    static type multiply(type a, type b) { return _mm512_mul_pd(a, b); }
};

} // namespace

#include "tiles_body.hpp"

// 32 registers: 28 sums, two vectors of b, one of a
template <class T> static const Tiles<T> &all() {
    using Wide = Heights<T, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;
    using Narrow = Heights<T, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;
    static constexpr Tiles<T> tiles{14, 2 * Vector<T>::lanes, Wide::of, Narrow::of, true};
    return tiles;
}
const Tiles<float> &avx512_tiles(float) { return all<float>(); }
const Tiles<double> &avx512_tiles(double) { return all<double>(); }
const Tiles<float> &avx512_split_tiles() {
    using Wide = SplitHeights<float, 2, 1, 7, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;
    using Narrow = SplitHeights<float, 1, 1, 14, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;
    static constexpr Tiles<float> tiles{14, 2 * Vector<float>::lanes, Wide::of, Narrow::of, false, Layout::split};
    return tiles;
}
const SpreadTiles<float> &avx512_spread_tiles() {
    using Two = SpreadHeights<float, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;
    using One = SpreadHeights<float, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;
    static constexpr SpreadTiles<float> tiles{14, Vector<float>::lanes, Two::of, One::of, Layout::plain};
    return tiles;
}
const SpreadTiles<float> &avx512_split_spread_tiles() {
    using Two = SplitSpreadHeights<float, 2, 1, 2, 3, 4, 5, 6, 7>;
    using One = SplitSpreadHeights<float, 1, 1, 2, 3, 4, 5, 6, 7>;
    static constexpr SpreadTiles<float> tiles{7, Vector<float>::lanes, Two::of, One::of, Layout::split};
    return tiles;
}
} // namespace resilin
#pragma GCC pop_options
#endif
