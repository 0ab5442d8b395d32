#include "tiles.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")

namespace resilin {
namespace {

template <class T> struct Vector;
template <> struct Vector<float> {
    using type = __m256;
    static constexpr int lanes = 8;
    static type load(const float *x) { return _mm256_loadu_ps(x); }
    static void store(float *x, type v) { _mm256_storeu_ps(x, v); }
    static type broadcast(float x) { return _mm256_set1_ps(x); }
    static type fma(type a, type b, type c) { return _mm256_fmadd_ps(a, b, c); }
    static type add(type a, type b) { return _mm256_add_ps(a, b); }
    static type multiply(type a, type b) { return _mm256_mul_ps(a, b); }
};
template <> struct Vector<double> {
    using type = __m256d;
    static constexpr int lanes = 4;
    static type load(const double *x) { return _mm256_loadu_pd(x); }
    static void store(double *x, type v) { _mm256_storeu_pd(x, v); }
    static type broadcast(double x) { return _mm256_set1_pd(x); }
    static type fma(type a, type b, type c) { return _mm256_fmadd_pd(a, b, c); }
    static type add(type a, type b) { return _mm256_add_pd(a, b); }
    static type multiply(type a, type b) { return _mm256_mul_pd(a, b); }
};

} // namespace

#include "tiles_body.hpp"

// 16 registers: 12 sums, two vectors of b, one of a
template <class T> static const Tiles<T> &all() {
    using Wide = Heights<T, 2, 1, 2, 3, 4, 5, 6>;
    using Narrow = Heights<T, 1, 1, 2, 3, 4, 5, 6>;
    static constexpr Tiles<T> tiles{6, 2 * Vector<T>::lanes, Wide::of, Narrow::of, true};
    return tiles;
}
const Tiles<float> &avx2_tiles(float) { return all<float>(); }
const Tiles<double> &avx2_tiles(double) { return all<double>(); }
const Tiles<float> &avx2_split_tiles() {
    using Wide = SplitHeights<float, 2, 1, 0, 1, 2, 3, 4, 5, 6>;
    using Narrow = SplitHeights<float, 1, 1, 0, 1, 2, 3, 4, 5, 6>;
    static constexpr Tiles<float> tiles{6, 2 * Vector<float>::lanes, Wide::of, Narrow::of, false, Layout::split};
    return tiles;
}
const SpreadTiles<float> &avx2_spread_tiles() {
    using Two = SpreadHeights<float, 2, 1, 2, 3, 4, 5, 6>;
    using One = SpreadHeights<float, 1, 1, 2, 3, 4, 5, 6>;
    static constexpr SpreadTiles<float> tiles{6, Vector<float>::lanes, Two::of, One::of, Layout::plain};
    return tiles;
}
const SpreadTiles<float> &avx2_split_spread_tiles() {
    using Two = SplitSpreadHeights<float, 2, 1, 2, 3>;
    using One = SplitSpreadHeights<float, 1, 1, 2, 3>;
    static constexpr SpreadTiles<float> tiles{3, Vector<float>::lanes, Two::of, One::of, Layout::split};
    return tiles;
}
} // namespace resilin
#pragma GCC pop_options
#endif
