// 16-bit floats in the places of 32-bit ones, two in each.
#pragma once
#include "kernels/registers.hpp"

namespace resilin {

// Vectors of `Width` lanes, of as many floats, pairs or single 16-bit floats.
template <int Width> using FloatsOf = typename Register<float, 4 * Width>::type;
template <int Width> struct SixteenBits {
    typedef uint32_t Pairs __attribute__((vector_size(4 * Width), may_alias));
    typedef uint16_t Singles __attribute__((vector_size(2 * Width)));
};
template <int Width> using PairsOf = typename SixteenBits<Width>::Pairs;

void transpose_by_halves(PairsOf<16> *x); // what follows, for registers of 32 bytes

// 16 pairs of neighbouring 16-bit floats of 16 lanes: x[q] = the q-th pair of each lane, from x[i] = all pairs of lane i.
// Every step is one that AVX-512 has an instruction of two operands for.
using Pairs = PairsOf<16>;
typedef uint64_t Fours __attribute__((vector_size(64), may_alias));
RESILIN_INLINE void transpose_pairs(Pairs *x) {
    if (!has_wide_registers) {
        Pairs turned[16]; // so that x need not have an address
        for (int i = 0; i < 16; i++) turned[i] = x[i];
        transpose_by_halves(turned);
        for (int i = 0; i < 16; i++) x[i] = turned[i];
        return;
    }
    Fours y[16], z[16];
    for (int i = 0; i < 16; i += 2) {
        y[i] = reinterpret_cast<Fours>(
            __builtin_shufflevector(x[i], x[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29));
        y[i + 1] = reinterpret_cast<Fours>(
            __builtin_shufflevector(x[i], x[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31));
    }
    for (int i = 0; i < 16; i += 4)
        for (int k = 0; k < 2; k++) { // steps 2k and 2k + 1 of every four, of lanes i to i + 3
            z[i + 2 * k] = __builtin_shufflevector(y[i + k], y[i + 2 + k], 0, 8, 2, 10, 4, 12, 6, 14);
            z[i + 2 * k + 1] = __builtin_shufflevector(y[i + k], y[i + 2 + k], 1, 9, 3, 11, 5, 13, 7, 15);
        }
    for (int i = 0; i < 16; i += 8)
        for (int k = 0; k < 4; k++) { // step k of the first and third four, and of the others, of lanes i to i + 7
            y[i + k] = __builtin_shufflevector(z[i + k], z[i + 4 + k], 0, 1, 4, 5, 8, 9, 12, 13);
            y[i + 4 + k] = __builtin_shufflevector(z[i + k], z[i + 4 + k], 2, 3, 6, 7, 10, 11, 14, 15);
        }
    for (int k = 0; k < 8; k++) {
        x[k] = reinterpret_cast<Pairs>(__builtin_shufflevector(y[k], y[8 + k], 0, 1, 4, 5, 8, 9, 12, 13));
        x[8 + k] = reinterpret_cast<Pairs>(__builtin_shufflevector(y[k], y[8 + k], 2, 3, 6, 7, 10, 11, 14, 15));
    }
}

// The same of 8 pairs of 8 lanes, for CPUs whose registers have 32 bytes.
using HalfPairs = PairsOf<8>;
typedef uint64_t HalfFours __attribute__((vector_size(32), may_alias));
RESILIN_INLINE void transpose_pairs(HalfPairs *x) {
    HalfFours y[8], z[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        y[i] = reinterpret_cast<HalfFours>(__builtin_shufflevector(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13));
        y[i + 1] = reinterpret_cast<HalfFours>(__builtin_shufflevector(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
        for (int k = 0; k < 2; k++) { // pairs 2k and 2k + 1 of every four, of lanes i to i + 3
            z[i + 2 * k] = __builtin_shufflevector(y[i + k], y[i + 2 + k], 0, 4, 2, 6);
            z[i + 2 * k + 1] = __builtin_shufflevector(y[i + k], y[i + 2 + k], 1, 5, 3, 7);
        }
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        x[k] = reinterpret_cast<HalfPairs>(__builtin_shufflevector(z[k], z[4 + k], 0, 1, 4, 5));
        x[4 + k] = reinterpret_cast<HalfPairs>(__builtin_shufflevector(z[k], z[4 + k], 2, 3, 6, 7));
    }
}

} // namespace resilin
