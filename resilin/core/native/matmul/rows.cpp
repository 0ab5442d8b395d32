// One row times a matrix of 16-bit floats that is read once, along memory: packing it would take longer. Compiled with
// -ffp-contract=fast: the compiler fuses a * b + c where the CPU can; where it cannot, a product of two 16-bit floats is
// exact all the same.
#include "kernels/halves.hpp"
#include "memory/parallel.hpp"
#include "memory/scratch.hpp"
#include "pairs.hpp"
#include "panels.hpp"
#include "subnormals.hpp"

#include <cstring>

namespace resilin {
namespace {

constexpr int64_t COLUMNS = 128; // of one piece of work: eight vectors of sums
constexpr int64_t AHEAD = 12;    // rows that are fetched ahead where columns lie side by side

typedef uint16_t Bits __attribute__((vector_size(32)));

// the lower 16 bits as float32
RESILIN_INLINE Lanes widened(BFloat, Pairs bits) { return reinterpret_cast<Lanes>(bits << 16); }
RESILIN_INLINE Lanes widened(Half, Pairs bits) { // as from_half()
    const Pairs shifted = (bits & 0x7FFFu) << 13, e = shifted & (0x7C00u << 13), normal = shifted + (112u << 23);
    const Lanes small = reinterpret_cast<Lanes>(normal + (1u << 23)) - bit_cast<float>(113u << 23);
    const Pairs finite = e == 0 ? reinterpret_cast<Pairs>(small) : normal;
    return reinterpret_cast<Lanes>((e == (0x7C00u << 13) ? normal + (112u << 23) : finite) | (bits & 0x8000u) << 16);
}

// Columns side by side: sums[g] += x[p] * row p of the matrix, p ascending, for 16 * Vectors columns.
template <class From, int Vectors>
RESILIN_INLINE void add_rows(const float *x, const From *b, int64_t step, int64_t depth, Lanes *sums) {
    Lanes sum[Vectors];
    for (int g = 0; g < Vectors; g++) sum[g] = sums[g];
    for (int64_t p = 0; p < depth; p++) {
        const From *row = b + p * step;
#pragma GCC unroll 8
        for (int g = 0; g < Vectors; g++) {
            if (g % 2 == 0) __builtin_prefetch(row + AHEAD * step + g * LANES);
            Bits bits;
            std::memcpy(&bits, row + g * LANES, sizeof(bits));
            sum[g] = widened(From{}, __builtin_convertvector(bits, Pairs)) * x[p] + sum[g];
        }
    }
    for (int g = 0; g < Vectors; g++) sums[g] = sum[g];
}

// Steps [from, 32) of 16 * Vectors columns, in which they lie side by side. Vectors are summed together, as one waits for
// its own sums.
template <class From, int Vectors, bool Whole>
RESILIN_INLINE void add_steps(const float *x, const From *b, int64_t lane, int64_t from, Lanes *sum) {
    Pairs turned[Vectors][LANES];
    for (int g = 0; g < Vectors; g++) {
        for (int64_t i = 0; i < LANES; i++) std::memcpy(&turned[g][i], b + (g * LANES + i) * lane, sizeof(Pairs));
        transpose_pairs(turned[g]);
    }
#pragma GCC unroll 16
    for (int64_t q = 0; q < LANES; q++) {
        if (Whole || 2 * q >= from)
#pragma GCC unroll 2
            for (int g = 0; g < Vectors; g++) sum[g] = widened(From{}, turned[g][q] & 0xFFFFu) * x[2 * q] + sum[g];
        if (Whole || 2 * q + 1 >= from)
#pragma GCC unroll 2
            for (int g = 0; g < Vectors; g++) sum[g] = widened(From{}, turned[g][q] >> 16) * x[2 * q + 1] + sum[g];
    }
}

// bfloat16: sums[g] += two chains, of the group's even steps and of its odd ones, added to one another.
template <int Vectors> RESILIN_INLINE void add_group_rows(const float *x, const BFloat *b, int64_t step, int64_t steps, Lanes *sums) {
    Lanes even[Vectors] = {};
    for (int64_t first = 0; first < 2; first++) {
        Lanes sum[Vectors] = {};
        for (int64_t p = first; p < steps; p += 2) {
            const BFloat *row = b + p * step;
#pragma GCC unroll 8
            for (int g = 0; g < Vectors; g++) {
                if (g % 2 == 0) __builtin_prefetch(row + AHEAD * step + g * LANES);
                Bits bits;
                std::memcpy(&bits, row + g * LANES, sizeof(bits));
                sum[g] = widened(BFloat{}, __builtin_convertvector(bits, Pairs)) * x[p] + sum[g];
            }
        }
        for (int g = 0; g < Vectors; g++) {
            if (first) sums[g] = sums[g] + (even[g] + sum[g]);
            else even[g] = sum[g];
        }
    }
}
template <int Vectors> RESILIN_INLINE void add_group_columns(const float *x, const BFloat *b, int64_t lane, int64_t steps, Lanes *sums) {
    Lanes even[Vectors] = {}, odd[Vectors] = {};
    if (steps == GROUP_STEPS) {
        Pairs turned[Vectors][LANES];
        for (int g = 0; g < Vectors; g++) {
            for (int64_t i = 0; i < LANES; i++) std::memcpy(&turned[g][i], b + (g * LANES + i) * lane, sizeof(Pairs));
            transpose_pairs(turned[g]);
        }
#pragma GCC unroll 16
        for (int64_t q = 0; q < LANES; q++)
#pragma GCC unroll 2
            for (int g = 0; g < Vectors; g++) {
                even[g] = widened(BFloat{}, turned[g][q]) * x[2 * q] + even[g];
                odd[g] = reinterpret_cast<Lanes>(turned[g][q] & 0xFFFF0000u) * x[2 * q + 1] + odd[g];
            }
    } else {
        for (int64_t p = 0; p < steps; p++)
            for (int g = 0; g < Vectors; g++) {
                Pairs bits;
                for (int64_t i = 0; i < LANES; i++) bits[i] = b[(g * LANES + i) * lane + p].bits;
                Lanes &sum = p % 2 ? odd[g] : even[g];
                sum = widened(BFloat{}, bits) * x[p] + sum;
            }
    }
    for (int g = 0; g < Vectors; g++) sums[g] = sums[g] + (even[g] + odd[g]);
}

// sums[g] += the products of x and 16 columns, for Vectors times 16. The last steps are read with some before them.
template <class From, int Vectors>
RESILIN_INLINE void add_columns(const float *x, const From *b, int64_t lane, int64_t depth, Lanes *sums) {
    constexpr int64_t STEPS = 2 * LANES;
    Lanes sum[Vectors];
    for (int g = 0; g < Vectors; g++) sum[g] = sums[g];
    int64_t p = 0;
    for (; p + STEPS <= depth; p += STEPS) add_steps<From, Vectors, true>(x + p, b + p, lane, 0, sum);
    const int64_t last = depth - STEPS;
    if (p < depth && last >= 0) {
        add_steps<From, Vectors, false>(x + last, b + last, lane, p - last, sum);
        p = depth;
    }
    for (; p < depth; p++)
        for (int g = 0; g < Vectors; g++) {
            Pairs bits;
            for (int64_t i = 0; i < LANES; i++) bits[i] = b[(g * LANES + i) * lane + p].bits;
            sum[g] = widened(From{}, bits) * x[p] + sum[g];
        }
    for (int g = 0; g < Vectors; g++) sums[g] = sum[g];
}

// Columns [begin, end), whole vectors of them, at most COLUMNS.
RESILIN_INLINE void some_columns(const Product<float, BFloat> &of, const float *x, int64_t begin, int64_t end, BFloat *out) {
    const int64_t vectors = (end - begin) / LANES;
    Lanes sums[COLUMNS / LANES] = {};
    for (int64_t g = 0; g < vectors && of.plus; g++) sums[g] = load(of.plus + begin + g * LANES);
    for (int64_t p = 0; p < of.depth; p += GROUP_STEPS) {
        const BFloat *b = of.b.data + begin * of.b.column + p * of.b.row;
        const int64_t steps = std::min(GROUP_STEPS, of.depth - p);
        if (of.b.column != 1) {
            int64_t g = 0; // of crowded lines the first cache holds those of one vector
            for (; g + 2 <= vectors && !crowded<BFloat>(of.b.column); g += 2)
                add_group_columns<2>(x + p, b + g * LANES * of.b.column, of.b.column, steps, sums + g);
            for (; g < vectors; g++) add_group_columns<1>(x + p, b + g * LANES * of.b.column, of.b.column, steps, sums + g);
        } else if (vectors == COLUMNS / LANES) {
            add_group_rows<COLUMNS / LANES>(x + p, b, of.b.row, steps, sums);
        } else {
            for (int64_t g = 0; g < vectors; g++) add_group_rows<1>(x + p, b + g * LANES, of.b.row, steps, sums + g);
        }
    }
    float row[COLUMNS];
    std::memcpy(row, sums, static_cast<size_t>(vectors) * sizeof(Lanes));
    round_row(row, end - begin, out + begin);
}
template <class From>
RESILIN_INLINE void some_columns(const Product<float, From> &of, const float *x, int64_t blocks, int64_t begin, int64_t end, From *out) {
    const int64_t vectors = (end - begin) / LANES;
    Lanes total[COLUMNS / LANES];
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t p = edge(of.depth, blocks, block), depth = edge(of.depth, blocks, block + 1) - p;
        const From *b = of.b.data + begin * of.b.column + p * of.b.row;
        Lanes sums[COLUMNS / LANES] = {};
        if (of.b.column != 1) {
            int64_t g = 0; // of crowded lines the first cache holds those of one vector
            for (; g + 2 <= vectors && !crowded<From>(of.b.column); g += 2) add_columns<From, 2>(x + p, b + g * LANES * of.b.column, of.b.column, depth, sums + g);
            for (; g < vectors; g++) add_columns<From, 1>(x + p, b + g * LANES * of.b.column, of.b.column, depth, sums + g);
        } else if (vectors == COLUMNS / LANES) {
            add_rows<From, COLUMNS / LANES>(x + p, b, of.b.row, depth, sums);
        } else {
            for (int64_t g = 0; g < vectors; g++) add_rows<From, 1>(x + p, b + g * LANES, of.b.row, depth, sums + g);
        }
        for (int64_t g = 0; g < vectors; g++)
            total[g] = block ? total[g] + sums[g] : of.plus ? load(of.plus + begin + g * LANES) + sums[g] : sums[g];
    }
    float row[COLUMNS];
    std::memcpy(row, total, static_cast<size_t>(vectors) * sizeof(Lanes));
    round_row(row, end - begin, out + begin);
}
RESILIN_SIMD void some(const Product<float, BFloat> &of, const float *x, int64_t, int64_t begin, int64_t end, BFloat *out) {
    some_columns(of, x, begin, end, out);
}
RESILIN_SIMD void some(const Product<float, Half> &of, const float *x, int64_t blocks, int64_t begin, int64_t end, Half *out) {
    some_columns(of, x, blocks, begin, end, out);
}

} // namespace

template <class From> int64_t multiply_row(const Product<float, From> &of, int64_t blocks, From *out, bool threads) {
    if (of.b.column != 1 && of.b.row != 1) return 0;
    static thread_local Scratch<float> scratch;
    float *x = scratch.of(of.depth);
    pack(of.a.data, 0, of.a.column, 1, 1, of.depth, x);
    const int64_t whole = of.columns / LANES * LANES, pieces = ceil_div(whole, COLUMNS);
    auto piece = [&](int64_t i) {
        [[maybe_unused]] const Subnormals<From> subnormals;
        some(of, x, blocks, i * COLUMNS, std::min(whole, (i + 1) * COLUMNS), out);
    };
    if (threads && of.flops() >= SHARED_FLOPS) run_blocks(pieces, piece);
    else
        for (int64_t i = 0; i < pieces; i++) piece(i);
    return whole;
}
template int64_t multiply_row(const Product<float, BFloat> &, int64_t, BFloat *, bool);
template int64_t multiply_row(const Product<float, Half> &, int64_t, Half *, bool);

} // namespace resilin
