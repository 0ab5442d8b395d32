// 16-bit floats in the places of 32-bit ones, two in each.
#pragma once
#include "kernels/simd.hpp"

namespace resilin {

// 16 pairs of neighbouring 16-bit floats of 16 lanes: x[q] = the q-th pair of each lane, from x[i] = all pairs of lane i.
typedef uint32_t Pairs __attribute__((vector_size(64), may_alias));
RESILIN_INLINE void transpose_pairs(Pairs *x) {
    Pairs y[16];
    for (int i = 0; i < 16; i += 2) {
        y[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
        y[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    }
    for (int i = 0; i < 16; i += 4)
        for (int k = 0; k < 2; k++) { // steps 2k and 2k + 1 of every four, of lanes i to i + 3
            const Pairs &a = y[i + k], &b = y[i + 2 + k];
            x[i + 2 * k] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
            x[i + 2 * k + 1] = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
        }
    for (int k = 0; k < 4; k++) // step k of every four: fours of lanes, then fours of those
        for (int i = 0; i < 2; i++) {
            const Pairs &a = x[8 * i + k], &b = x[8 * i + 4 + k];
            y[8 * i + k] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
            y[8 * i + 4 + k] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
        }
    for (int k = 0; k < 8; k++) {
        const Pairs &a = y[k], &b = y[8 + k];
        x[k] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
        x[8 + k] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
}

} // namespace resilin
