// Small squares of elements with their rows as columns, in vectors of 16 bytes, which every instruction set has.
#pragma once
#include "simd.hpp"

#include <cstdint>
#include <cstring>
#include <utility>

namespace resilin {

template <class T> constexpr int SQUARE = 16 / sizeof(T); // rows and columns

namespace squares {

template <class T> struct alignas(16) Row {
    typedef T Type __attribute__((vector_size(16)));
};

// The first or the last halves of two rows, by turns.
template <class V, int... I> RESILIN_INLINE V low_halves(V a, V b, std::integer_sequence<int, I...>) {
    constexpr int n = sizeof...(I);
    return __builtin_shufflevector(a, b, (I % 2 * n + I / 2)...);
}
template <class V, int... I> RESILIN_INLINE V high_halves(V a, V b, std::integer_sequence<int, I...>) {
    constexpr int n = sizeof...(I);
    return __builtin_shufflevector(a, b, (I % 2 * n + n / 2 + I / 2)...);
}

} // namespace squares

// Row i of `from`, which lies at i * from_ld bytes, becomes column i of `to`, whose rows are to_ld elements apart.
template <class T> RESILIN_INLINE void turn_small_square(const char *from, int64_t from_ld, T *to, int64_t to_ld) {
    constexpr int W = SQUARE<T>;
    using V = typename squares::Row<T>::Type;
    constexpr auto places = std::make_integer_sequence<int, W>();
    V a[W], b[W];
    for (int i = 0; i < W; i++) std::memcpy(&a[i], from + i * from_ld, sizeof(V));
    for (int width = 1; width < W; width *= 2) {
        for (int i = 0; i < W / 2; i++) {
            b[2 * i] = squares::low_halves(a[i], a[i + W / 2], places);
            b[2 * i + 1] = squares::high_halves(a[i], a[i + W / 2], places);
        }
        for (int i = 0; i < W; i++) a[i] = b[i];
    }
    for (int i = 0; i < W; i++) std::memcpy(to + i * to_ld, &a[i], sizeof(V));
}

} // namespace resilin
