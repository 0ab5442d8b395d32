#include "side_by_side.hpp"

#include "kernels/halves.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace resilin::conv {
namespace {

// to (elements, SIDE) of what row(lane, e) gives: SIDE elements of a lane from the e-th on
template <class Row> RESILIN_INLINE void turn_rows(int64_t elements, float *to, Row row) {
    for (int64_t e = 0; e < elements; e += SIDE) {
        Pairs x[SIDE];
        for (int64_t lane = 0; lane < SIDE; lane++) x[lane] = row(lane, e);
        transpose_pairs(x);
        std::memcpy(to + e * SIDE, x, static_cast<size_t>(std::min(SIDE, elements - e)) * sizeof(Pairs));
    }
}

// Elements [e, e + Width) of each lane. Where lanes lie one behind another, what is written too much is written again.
template <int64_t Width, class T>
RESILIN_INLINE void put_lanes(const Pairs *x, int64_t e, int64_t elements, int64_t used, T *to, int64_t apart, int64_t step) {
    const int64_t n = std::min(Width, elements - e);
    const bool adjacent = step == 1 && apart == elements && elements <= Width;
    for (int64_t lane = 0; lane < used; lane++) {
        T *into = to + lane * apart + e * step, made[Width];
        std::memcpy(made, &x[lane], sizeof(made));
        if (step == 1 && (n == Width || (adjacent && lane * apart + Width <= used * apart))) std::memcpy(into, made, sizeof(made));
        else
            for (int64_t i = 0; i < n; i++) into[i * step] = made[i];
    }
}

} // namespace

RESILIN_SIMD void interleave(const float *from, int64_t apart, int64_t used, int64_t elements, const float *limit, float *to) {
    turn_rows(elements, to, [=](int64_t lane, int64_t e) __attribute__((always_inline)) {
        return read<Pairs>(from + std::min(lane, used - 1) * apart + e, limit);
    });
}
RESILIN_SIMD void interleave_pairs(const BFloat *from, int64_t apart, int64_t behind, int64_t elements, const BFloat *limit, float *to) {
    turn_rows(elements, to, [=](int64_t lane, int64_t e) __attribute__((always_inline)) {
        const BFloat *at = from + lane * apart + e;
        return upper(at, limit) | upper(at + behind, limit) >> 16;
    });
}
RESILIN_SIMD void interleave(const BFloat *from, int64_t apart, int64_t used, int64_t elements, const BFloat *limit, float *to) {
    turn_rows(elements, to, [=](int64_t lane, int64_t e) __attribute__((always_inline)) {
        return upper(from + std::min(lane, used - 1) * apart + e, limit);
    });
}
RESILIN_SIMD void separate(const float *from, int64_t elements, int64_t used, float *to, int64_t apart, int64_t step) {
    for (int64_t e = 0; e < elements; e += SIDE) {
        Pairs x[SIDE];
        std::memcpy(x, from + e * SIDE, sizeof(x));
        transpose_pairs(x);
        put_lanes<SIDE>(x, e, elements, used, to, apart, step);
    }
}
// Pairs of neighbouring elements are turned, rounded: half as many, and twice as much of a lane is written at a time.
RESILIN_SIMD void separate(const float *from, int64_t elements, int64_t used, BFloat *to, int64_t apart, int64_t step) {
    for (int64_t e = 0; e < elements; e += 2 * SIDE) {
        Pairs x[SIDE];
        for (int64_t k = 0; k < SIDE; k++) {
            uint32_t pairs[SIDE];
            const float *row = from + std::min(e + 2 * k, elements - 1) * SIDE;
            for (int64_t i = 0; i < SIDE; i++) pairs[i] = bfloat_of(row[i]) | static_cast<uint32_t>(bfloat_of(row[SIDE + i])) << 16;
            std::memcpy(&x[k], pairs, sizeof(pairs));
        }
        transpose_pairs(x);
        put_lanes<2 * SIDE>(x, e, elements, used, to, apart, step);
    }
}

} // namespace resilin::conv
