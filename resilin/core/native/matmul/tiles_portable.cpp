// Compiled with -ffp-contract=fast: the compiler fuses a * b + c where the CPU can, and this file has no other sums.
#include "tiles.hpp"

#include <cstring>

namespace resilin {
namespace {

template <class T> struct Vector {
    typedef T type __attribute__((vector_size(16)));
    static constexpr int lanes = 16 / sizeof(T);
    static type load(const T *x) {
        type v;
        std::memcpy(&v, x, sizeof(v));
        return v;
    }
    static void store(T *x, type v) { std::memcpy(x, &v, sizeof(v)); }
    static type broadcast(T x) { return x - type{}; }
    static type fma(type a, type b, type c) { return a * b + c; }
    static type add(type a, type b) { return a + b; }
    static type multiply(type a, type b) { return a * b; }
};

} // namespace

#include "tiles_body.hpp"

// 16 registers or more: 12 sums, two vectors of b, one of a
template <class T> static const Tiles<T> &all() {
    using Wide = Heights<T, 2, 1, 2, 3, 4, 5, 6>;
    using Narrow = Heights<T, 1, 1, 2, 3, 4, 5, 6>;
    static constexpr Tiles<T> tiles{6, 2 * Vector<T>::lanes, Wide::of, Narrow::of, false}; // scaled sums would be fused with `plus`
    return tiles;
}
const Tiles<float> &portable_tiles(float) { return all<float>(); }
const Tiles<double> &portable_tiles(double) { return all<double>(); }
const Tiles<float> &portable_split_tiles() {
    using Wide = SplitHeights<float, 2, 1, 0, 1, 2, 3, 4, 5, 6>;
    using Narrow = SplitHeights<float, 1, 1, 0, 1, 2, 3, 4, 5, 6>;
    static constexpr Tiles<float> tiles{6, 2 * Vector<float>::lanes, Wide::of, Narrow::of, false, Layout::split};
    return tiles;
}
const SpreadTiles<float> &portable_spread_tiles() {
    using Two = SpreadHeights<float, 2, 1, 2, 3, 4, 5, 6>;
    using One = SpreadHeights<float, 1, 1, 2, 3, 4, 5, 6>;
    static constexpr SpreadTiles<float> tiles{6, Vector<float>::lanes, Two::of, One::of, Layout::plain};
    return tiles;
}
const SpreadTiles<float> &portable_split_spread_tiles() {
    using Two = SplitSpreadHeights<float, 2, 1, 2, 3>;
    using One = SplitSpreadHeights<float, 1, 1, 2, 3>;
    static constexpr SpreadTiles<float> tiles{3, Vector<float>::lanes, Two::of, One::of, Layout::split};
    return tiles;
}
} // namespace resilin
