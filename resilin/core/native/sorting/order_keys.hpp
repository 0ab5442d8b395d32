// Unsigned numbers that are ordered as elements are: NaN after all others, -0 as 0.
#pragma once
#include "kernels/simd.hpp"

#include <algorithm>

namespace resilin {

RESILIN_INLINE uint32_t order_key(float x) {
    const uint32_t bits = bit_cast<uint32_t>(x + 0.0f); // -0 becomes 0
    return x != x ? 0xFFFFFFFFu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
RESILIN_INLINE uint64_t order_key(double x) {
    const uint64_t bits = bit_cast<uint64_t>(x + 0.0), sign = uint64_t{1} << 63;
    return x != x ? ~uint64_t{0} : bits & sign ? ~bits : bits | sign;
}
RESILIN_INLINE uint64_t order_key(int64_t x) { return static_cast<uint64_t>(x) ^ uint64_t{1} << 63; }
RESILIN_INLINE uint32_t order_key(int32_t x) { return static_cast<uint32_t>(x) ^ uint32_t{1} << 31; }

template <class T> using OrderKey = decltype(order_key(T{}));

// The element of a key, where that tells all of its bits: not of zeros and NaN.
RESILIN_INLINE bool tells_element(uint32_t key, float) { return key != 0x80000000u && key != 0xFFFFFFFFu; }
RESILIN_INLINE bool tells_element(uint64_t key, double) { return key != uint64_t{1} << 63 && key != ~uint64_t{0}; }
template <class Key, class Integer> RESILIN_INLINE bool tells_element(Key, Integer) { return true; }
RESILIN_INLINE void element_of(uint32_t key, float &x) {
    x = bit_cast<float>(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}
RESILIN_INLINE void element_of(uint64_t key, double &x) {
    const uint64_t sign = uint64_t{1} << 63;
    x = bit_cast<double>(key & sign ? key ^ sign : ~key);
}
RESILIN_INLINE void element_of(uint64_t key, int64_t &x) { x = static_cast<int64_t>(key ^ uint64_t{1} << 63); }
RESILIN_INLINE void element_of(uint32_t key, int32_t &x) { x = static_cast<int32_t>(key ^ uint32_t{1} << 31); }

// Keys of a row lie within [least, most]; `largest` turns their order round.
template <class Key> struct KeyRange {
    Key least, most;
    bool largest;

    RESILIN_INLINE Key turned(Key key) const { return largest ? static_cast<Key>(~key) : key; }
    // from 0 on
    template <class T> RESILIN_INLINE Key of(T x) const { return static_cast<Key>(turned(order_key(x)) - least); }
    int bits() const {
        const uint64_t span = static_cast<Key>(most - least);
        return span ? 64 - __builtin_clzll(span) : 0;
    }
};
template <class T> using RangeOf = KeyRange<OrderKey<T>>;

template <class T> RESILIN_INLINE RangeOf<T> range_among(const T *x, int64_t n, bool largest) {
    OrderKey<T> least = static_cast<OrderKey<T>>(~OrderKey<T>{0}), most = 0;
#pragma omp simd reduction(min : least) reduction(max : most)
    for (int64_t i = 0; i < n; i++) {
        const OrderKey<T> key = order_key(x[i]);
        least = key < least ? key : least;
        most = key > most ? key : most;
    }
    if (!largest) return {least, most, false};
    return {static_cast<OrderKey<T>>(~most), static_cast<OrderKey<T>>(~least), true};
}
// Of n >= 1 elements (order_keys.cpp)
RangeOf<float> key_range(const float *x, int64_t n, bool largest);
RangeOf<double> key_range(const double *x, int64_t n, bool largest);
RangeOf<int64_t> key_range(const int64_t *x, int64_t n, bool largest);
RangeOf<int32_t> key_range(const int32_t *x, int64_t n, bool largest);

// items[i] = the upper bits of a key, `lowered` fewer than it has, before the place: no two are equal.
#define RESILIN_PACKS(T)                                                                                               \
    void pack_items(const T *x, int64_t begin, int64_t end, const RangeOf<T> &range, int lowered, uint64_t *items);
RESILIN_PACKS(float)
RESILIN_PACKS(double)
RESILIN_PACKS(int64_t)
RESILIN_PACKS(int32_t)
#undef RESILIN_PACKS

} // namespace resilin
