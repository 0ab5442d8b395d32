#include "panels.hpp"

#include "kernels/halves.hpp"
#include "pairs.hpp"

#include <cstring>

namespace resilin {
namespace {

// What is packed comes from far away: it is fetched ahead, by so many steps, or a panel.
constexpr int SECOND_CACHE = 2; // what __builtin_prefetch calls it
constexpr int64_t AHEAD = 16;

// Lanes lie side by side: to[p * size + i] = from[p * step + i] for `used` lanes. The usual numbers of lanes are copied
// without a loop.
template <class T, int64_t Used> RESILIN_INLINE void copy_lanes(const T *from, int64_t step, int64_t size, int64_t depth, T *to) {
    for (int64_t p = 0; p < depth; p++) {
        if (!crowded<T>(step)) __builtin_prefetch(from + (p + AHEAD) * step, 0, SECOND_CACHE);
        std::memcpy(to + p * size, from + p * step, Used * sizeof(T));
    }
}
template <class T>
RESILIN_INLINE void copy_lanes(const T *from, int64_t step, int64_t used, int64_t size, int64_t depth, T *to) {
    switch (used) {
    case 13: return copy_lanes<T, 13>(from, step, size, depth, to);
    case 14: return copy_lanes<T, 14>(from, step, size, depth, to);
    case 16: return copy_lanes<T, 16>(from, step, size, depth, to);
    case 32: return copy_lanes<T, 32>(from, step, size, depth, to);
    }
    for (int64_t p = 0; p < depth; p++) std::copy_n(from + p * step, used, to + p * size);
}

typedef float Four __attribute__((vector_size(16)));
typedef double Two __attribute__((vector_size(16)));

// to[q * size + i] = from[i * lane + q] for SQUARE steps of SQUARE lanes.
template <class T> constexpr int64_t SQUARE = 16 / sizeof(T);
RESILIN_INLINE void transpose(const float *from, int64_t lane, int64_t size, float *to) {
    Four x[4], y[4];
    for (int i = 0; i < 4; i++) std::memcpy(&x[i], from + i * lane, sizeof(Four));
    for (int i = 0; i < 2; i++) {
        y[i] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 4, 1, 5);
        y[i + 2] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 2, 6, 3, 7);
    }
    for (int i = 0; i < 2; i++) {
        x[2 * i] = __builtin_shufflevector(y[2 * i], y[2 * i + 1], 0, 1, 4, 5);
        x[2 * i + 1] = __builtin_shufflevector(y[2 * i], y[2 * i + 1], 2, 3, 6, 7);
    }
    for (int q = 0; q < 4; q++) std::memcpy(to + q * size, &x[q], sizeof(Four));
}
RESILIN_INLINE void transpose(const double *from, int64_t lane, int64_t size, double *to) {
    Two a, b;
    std::memcpy(&a, from, sizeof(Two));
    std::memcpy(&b, from + lane, sizeof(Two));
    const Two first = __builtin_shufflevector(a, b, 0, 2), second = __builtin_shufflevector(a, b, 1, 3);
    std::memcpy(to, &first, sizeof(Two));
    std::memcpy(to + size, &second, sizeof(Two));
}

// The same of eight, for CPUs whose registers have 32 bytes.
constexpr int64_t EIGHT = 8;
#ifdef RESILIN_CHOOSES_ISA
const bool turns_eight = __builtin_cpu_supports("x86-64-v3");
#else
constexpr bool turns_eight = false;
#endif
RESILIN_INLINE void transpose_eight(const float *from, int64_t lane, int64_t size, float *to) {
    HalfPairs x[EIGHT];
#pragma GCC unroll 8
    for (int i = 0; i < EIGHT; i++) std::memcpy(&x[i], from + i * lane, sizeof(x[i]));
    transpose_pairs(x);
#pragma GCC unroll 8
    for (int q = 0; q < EIGHT; q++) std::memcpy(to + q * size, &x[q], sizeof(x[q]));
}

// Steps [0, whole), lines of them, of at least Square lanes; the last squares may overlap those before.
template <int64_t Square, class T>
RESILIN_INLINE void transpose_lines(const T *from, int64_t lane, int64_t used, int64_t size, int64_t whole, T *to) {
    constexpr int64_t LINE = 64 / sizeof(T);
    auto lines = [&](int64_t i, int64_t p) { // of Square lanes, from lane i on
        const int64_t first = std::min(i, used - Square);
        for (int64_t q = p; q < p + LINE; q += Square) {
            if constexpr (Square == SQUARE<T>) transpose(from + first * lane + q, lane, size, to + q * size + first);
            else transpose_eight(from + first * lane + q, lane, size, to + q * size + first);
        }
    };
    auto fetch = [&](int64_t i, int64_t lanes, int64_t p) {
        for (int64_t end = i + lanes; i < end; i++) __builtin_prefetch(from + i * lane + p, 0, SECOND_CACHE);
    };
    if (crowded<T>(lane)) { // a few lanes at a time
        for (int64_t i = 0; i < used; i += Square)
            for (int64_t p = 0; p < whole; p += LINE) {
                fetch(i + Square, Square, p);
                lines(i, p);
            }
    } else {
        for (int64_t p = 0; p < whole; p += LINE) {
            fetch(used, used, p); // of the next panel
            for (int64_t i = 0; i < used; i += Square) lines(i, p);
        }
    }
}

// A lane's steps lie side by side: to[p * size + i] = from[i * lane + p].
template <class T>
RESILIN_INLINE void transpose_lanes(const T *from, int64_t lane, int64_t used, int64_t size, int64_t depth, T *to) {
    constexpr int64_t LINE = 64 / sizeof(T);
    const int64_t whole = used < SQUARE<T> ? 0 : depth / LINE * LINE;
    const bool eight = std::is_same_v<T, float> && turns_eight && used >= EIGHT;
    if constexpr (std::is_same_v<T, float>)
        if (eight) transpose_lines<EIGHT>(from, lane, used, size, whole, to);
    if (!eight) transpose_lines<SQUARE<T>>(from, lane, used, size, whole, to);
    int64_t p = whole;
    for (; p + SQUARE<T> <= depth && used >= SQUARE<T>; p += SQUARE<T>)
        for (int64_t i = 0; i < used; i += SQUARE<T>) {
            const int64_t first = std::min(i, used - SQUARE<T>);
            transpose(from + first * lane + p, lane, size, to + p * size + first);
        }
    for (; p < depth; p++)
        for (int64_t i = 0; i < used; i++) to[p * size + i] = from[i * lane + p];
}

// to[p * size + i] = from[i * lane + p * step] for `used` lanes of `depth`; the other lanes up to `size` are zero.
template <class T>
RESILIN_INLINE void pack_panel(const T *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth, T *to) {
    if (used < size)
        for (int64_t p = 0; p < depth; p++) std::fill(to + p * size + used, to + (p + 1) * size, T(0));
    if (lane == 1) return copy_lanes(from, step, used, size, depth, to);
    if (step == 1) return transpose_lanes(from, lane, used, size, depth, to);
    for (int64_t p = 0; p < depth; p++)
        for (int64_t i = 0; i < used; i++) to[p * size + i] = from[i * lane + p * step];
}
} // namespace

RESILIN_SIMD void pack(const float *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth, float *to) {
    pack_panel(from, lane, step, used, size, depth, to);
}
RESILIN_SIMD void pack(const double *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth, double *to) {
    pack_panel(from, lane, step, used, size, depth, to);
}
RESILIN_SIMD void turn(const float *from, int64_t lane, int64_t used, int64_t size, int64_t depth, float *to) {
    transpose_lanes(from, lane, used, size, depth, to);
}
RESILIN_SIMD void turn(const double *from, int64_t lane, int64_t used, int64_t size, int64_t depth, double *to) {
    transpose_lanes(from, lane, used, size, depth, to);
}

namespace {

RESILIN_INLINE float value_of(BFloat x) { return from_bfloat(x.bits); }
RESILIN_INLINE float value_of(Half x) { return from_half(x.bits); }

// Lanes whose steps lie side by side are converted where they lie, into a few lines that the first cache holds.
template <class From>
RESILIN_INLINE void widen_panel(const From *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth, float *to) {
    constexpr int64_t STRIP = 64, MOST = 32; // lanes of the widest tile
    if (step != 1 || used > MOST) {
        for (int64_t p = 0; p < depth; p++) {
            if (lane == 1)
                for (int64_t i = 0; i < used; i++) to[p * size + i] = value_of(from[p * step + i]);
            else
                for (int64_t i = 0; i < used; i++) to[p * size + i] = value_of(from[i * lane + p * step]);
            std::fill(to + p * size + used, to + (p + 1) * size, 0.0f);
        }
        return;
    }
    float wide[MOST * STRIP];
    for (int64_t p = 0; p < depth; p += STRIP) {
        const int64_t steps = std::min(STRIP, depth - p);
        for (int64_t i = 0; i < used; i++)
            for (int64_t q = 0; q < steps; q++) wide[i * STRIP + q] = value_of(from[i * lane + p + q]);
        pack_panel(wide, STRIP, 1, used, size, steps, to + p * size);
    }
}

} // namespace

RESILIN_SIMD void pack(const BFloat *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth, float *to) {
    widen_panel(from, lane, step, used, size, depth, to);
}
RESILIN_SIMD void pack(const Half *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth, float *to) {
    widen_panel(from, lane, step, used, size, depth, to);
}

RESILIN_SIMD void round_row(const float *x, int64_t n, BFloat *y) {
    for (int64_t i = 0; i < n; i++) y[i].bits = bfloat_of(x[i]);
}
RESILIN_SIMD void round_row(const float *x, int64_t n, Half *y) {
    for (int64_t i = 0; i < n; i++) y[i].bits = half_of(x[i]);
}

RESILIN_SIMD void transpose_by_halves(Pairs *x) {
    auto *rows = reinterpret_cast<HalfPairs *>(x); // two of each lane, then of each pair
    HalfPairs quarters[2][2][8];                   // by lanes and pairs
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) {
            for (int lane = 0; lane < 8; lane++) quarters[i][k][lane] = rows[2 * (8 * i + lane) + k];
            transpose_pairs(quarters[i][k]);
        }
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            for (int pair = 0; pair < 8; pair++) rows[2 * (8 * k + pair) + i] = quarters[i][k][pair];
}

} // namespace resilin
