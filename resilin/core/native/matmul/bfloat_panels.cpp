// Panels of bfloat16, packed as the tiles of each layout read them: by groups of the depth; the last may be short.
#include "kernels/halves.hpp"
#include "pairs.hpp"
#include "panels.hpp"

#include <cstring>

namespace resilin {
namespace {

typedef uint32_t Pair __attribute__((may_alias)); // where tiles read a float
typedef uint16_t Bits __attribute__((vector_size(32)));

constexpr int64_t SIDE = LANES;      // lanes that are transposed together
constexpr int SECOND_CACHE = 2;      // what __builtin_prefetch calls it
constexpr BFloat ZERO{0}, MINUS_ZERO{0x8000}; // a sum plus their product is the sum, -0 too

RESILIN_INLINE uint32_t pair_of(BFloat earlier, BFloat later) {
    return static_cast<uint32_t>(earlier.bits) << 16 | later.bits;
}

// Where step p of a group is: even steps first.
RESILIN_INLINE int64_t slot(int64_t p, int64_t steps) { return p % 2 ? split_even(steps) + p / 2 : p / 2; }

RESILIN_INLINE Pairs widened(const BFloat *x) {
    Bits bits;
    std::memcpy(&bits, x, sizeof(bits));
    return __builtin_convertvector(bits, Pairs);
}

// A group as pairs of a chain's neighbours.
RESILIN_INLINE void pair_group(const BFloat *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t steps,
                               BFloat behind, Pair *to) {
    for (int64_t chain = 0; chain < 2; chain++)
        for (int64_t p = chain; p < steps; p += 4, to += size)
            for (int64_t i = 0; i < used; i++) {
                const BFloat *earlier = from + i * lane + p * step;
                to[i] = pair_of(*earlier, p + 2 < steps ? earlier[2 * step] : behind);
            }
}
template <int64_t Used> RESILIN_INLINE void pair_rows(const BFloat *from, int64_t step, int64_t size, Pair *to) {
    for (int64_t chain = 0; chain < 2; chain++)
        for (int64_t p = chain; p < GROUP_STEPS; p += 4, to += size) {
            const BFloat *earlier = from + p * step, *later = earlier + 2 * step;
            for (int64_t i = 0; i < Used; i++) to[i] = pair_of(earlier[i], later[i]);
        }
}

// A whole group of lanes whose steps lie side by side. Beyond `size`, what is written is the next step's, which is
// written next.
RESILIN_INLINE void pair_lanes(const BFloat *from, int64_t lane, int64_t used, int64_t size, bool last, Pair *to) {
    for (int64_t first = 0; first < used; first += SIDE) {
        Pairs x[SIDE], y[SIDE];
        for (int64_t i = 0; i < SIDE; i++)
            std::memcpy(&x[i], from + std::min(first + i, used - 1) * lane, sizeof(Pairs));
        transpose_pairs(x);
        for (int64_t j = 0; j < SIDE / 2; j++) {
            y[j] = x[2 * j] << 16 | (x[2 * j + 1] & 0xFFFFu);
            y[SIDE / 2 + j] = (x[2 * j] & 0xFFFF0000u) | x[2 * j + 1] >> 16;
        }
        const int64_t width = std::min(SIDE, size - first);
        const int64_t whole = width == SIDE ? SIDE : size < SIDE / 2 ? 0 : SIDE - last;
        for (int64_t k = 0; k < whole; k++) std::memcpy(to + k * size + first, &y[k], sizeof(Pairs));
        for (int64_t k = whole; k < SIDE; k++)
            std::memcpy(to + k * size + first, &y[k], static_cast<size_t>(width) * sizeof(Pair));
    }
}

// One register of a matrix: 16 lanes of a group, `ByLane` lane after lane, else pair after pair.
template <bool ByLane>
RESILIN_INLINE void matrix_of(const BFloat *from, int64_t lane, int64_t step, int64_t lanes, int64_t steps, Pair *to) {
    Pairs x[SIDE];
    bool by_lane = true;
    if (steps == GROUP_STEPS && step == 1) {
        for (int64_t i = 0; i < SIDE; i++) {
            const BFloat *line = from + std::min(i, lanes - 1) * lane; // behind the last: read by nobody
            __builtin_prefetch(line + 4 * GROUP_STEPS, 0, SECOND_CACHE);
            std::memcpy(&x[i], line, sizeof(Pairs));
        }
    } else if (steps == GROUP_STEPS && lane == 1 && lanes == SIDE) {
        for (int64_t q = 0; q < SIDE; q++)
            x[q] = widened(from + 2 * q * step) | widened(from + (2 * q + 1) * step) << 16;
        by_lane = false;
    } else {
        BFloat gathered[SIDE][GROUP_STEPS];
        for (int64_t i = 0; i < SIDE; i++)
            for (int64_t p = 0; p < GROUP_STEPS; p++)
                gathered[i][p] =
                    p >= steps ? (ByLane ? MINUS_ZERO : ZERO) : from[std::min(i, lanes - 1) * lane + p * step];
        std::memcpy(x, gathered, sizeof(x));
    }
    if (by_lane != ByLane) transpose_pairs(x);
    std::memcpy(to, x, sizeof(x));
}

template <bool ByLane>
RESILIN_INLINE void pack_matrix(const BFloat *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth,
                                Pair *to) {
    for (int64_t p = 0; p < depth; p += GROUP_STEPS)
        for (int64_t first = 0; first < size; first += SIDE, to += SIDE * SIDE)
            matrix_of<ByLane>(from + first * lane + p * step, lane, step, std::min(SIDE, used - first),
                              std::min(GROUP_STEPS, depth - p), to);
}

} // namespace

RESILIN_SIMD void pack_split(const BFloat *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth,
                             float *to) {
    constexpr int64_t MOST = 32; // lanes of the widest tile
    for (int64_t p = 0; p < depth; p += GROUP_STEPS, from += GROUP_STEPS * step, to += GROUP_STEPS * size) {
        const int64_t steps = std::min(GROUP_STEPS, depth - p);
        if (step == 1 && used <= MOST) { // converted where they lie, into lines that the first cache holds
            float wide[MOST * GROUP_STEPS];
            for (int64_t i = 0; i < used; i++) {
                const BFloat *line = from + i * lane;
                if (steps == GROUP_STEPS) {
                    Pairs x;
                    std::memcpy(&x, line, sizeof(x));
                    const Pairs even = x << 16, odd = x & 0xFFFF0000u; // the earlier ones lie low
                    std::memcpy(wide + i * GROUP_STEPS, &even, sizeof(even));
                    std::memcpy(wide + i * GROUP_STEPS + SIDE, &odd, sizeof(odd));
                } else {
                    for (int64_t q = 0; q < steps; q++)
                        wide[i * GROUP_STEPS + slot(q, steps)] = from_bfloat(line[q].bits);
                }
            }
            pack(wide, GROUP_STEPS, 1, used, size, steps, to);
            continue;
        }
        for (int64_t q = 0; q < steps; q++) {
            float *row = to + slot(q, steps) * size;
            if (lane == 1)
                for (int64_t i = 0; i < used; i++) row[i] = from_bfloat(from[q * step + i].bits);
            else
                for (int64_t i = 0; i < used; i++) row[i] = from_bfloat(from[i * lane + q * step].bits);
            std::fill(row + used, row + size, 0.0f);
        }
    }
}

RESILIN_SIMD void pack_pairs(const BFloat *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth,
                             bool columns, float *panel) {
    Pair *to = reinterpret_cast<Pair *>(panel);
    for (int64_t q = 0; q < pair_steps(depth) && used < size; q++) std::fill(to + q * size + used, to + (q + 1) * size, 0);
    for (int64_t p = 0; p < depth; p += GROUP_STEPS, from += GROUP_STEPS * step, to += GROUP_STEPS / 2 * size) {
        const int64_t steps = std::min(GROUP_STEPS, depth - p);
        if (steps == GROUP_STEPS && step == 1) pair_lanes(from, lane, used, size, p + steps == depth, to);
        else if (steps == GROUP_STEPS && lane == 1 && used == 32) pair_rows<32>(from, step, size, to);
        else if (steps == GROUP_STEPS && lane == 1 && used == 16) pair_rows<16>(from, step, size, to);
        else if (steps == GROUP_STEPS && lane == 1 && used == 14) pair_rows<14>(from, step, size, to);
        else if (steps == GROUP_STEPS && lane == 1 && used == 13) pair_rows<13>(from, step, size, to);
        else pair_group(from, lane, step, used, size, steps, columns ? ZERO : MINUS_ZERO, to);
    }
}

RESILIN_SIMD void pack_matrix(const BFloat *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth,
                              bool columns, float *panel) {
    Pair *to = reinterpret_cast<Pair *>(panel);
    if (columns) pack_matrix<false>(from, lane, step, used, size, depth, to);
    else pack_matrix<true>(from, lane, step, used, size, depth, to);
}

} // namespace resilin
