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

constexpr int64_t COLUMNS = 128; // of one piece of work
constexpr int64_t AHEAD = 12;    // rows that are fetched ahead where columns lie side by side
constexpr int TOGETHER = 8;      // vectors of sums: one waits for its own

// the lower 16 bits as float32
template <int Width> RESILIN_INLINE FloatsOf<Width> widened(BFloat, PairsOf<Width> bits) {
    return reinterpret_cast<FloatsOf<Width>>(bits << 16);
}
template <int Width> RESILIN_INLINE FloatsOf<Width> widened(Half, PairsOf<Width> bits) { // as from_half()
    using P = PairsOf<Width>;
    const P shifted = (bits & 0x7FFFu) << 13, e = shifted & (0x7C00u << 13), normal = shifted + (112u << 23);
    const auto small = reinterpret_cast<FloatsOf<Width>>(normal + (1u << 23)) - bit_cast<float>(113u << 23);
    const P finite = e == 0 ? reinterpret_cast<P>(small) : normal;
    return reinterpret_cast<FloatsOf<Width>>((e == (0x7C00u << 13) ? normal + (112u << 23) : finite) | (bits & 0x8000u) << 16);
}

// Row `row` of the matrix from its column g * Width on, and a line of it that is fetched ahead.
template <int Width, class From> RESILIN_INLINE FloatsOf<Width> part_of(const From *row, int64_t step, int g) {
    if (g * Width % (2 * LANES) == 0) __builtin_prefetch(row + AHEAD * step + g * Width);
    typename SixteenBits<Width>::Singles bits;
    std::memcpy(&bits, row + g * Width, sizeof(bits));
    return widened<Width>(From{}, __builtin_convertvector(bits, PairsOf<Width>));
}

// Columns side by side: sums[g] += x[p] * row p of the matrix, p ascending, for Width * Vectors columns.
template <int Width, int Vectors, class From>
RESILIN_INLINE void add_rows(const float *x, const From *b, int64_t step, int64_t depth, FloatsOf<Width> *sums) {
    FloatsOf<Width> sum[Vectors];
    for (int g = 0; g < Vectors; g++) sum[g] = sums[g];
    for (int64_t p = 0; p < depth; p++)
#pragma GCC unroll 8
        for (int g = 0; g < Vectors; g++) sum[g] = part_of<Width>(b + p * step, step, g) * x[p] + sum[g];
    for (int g = 0; g < Vectors; g++) sums[g] = sum[g];
}

// 2 * Width steps of Width columns from `b` on, in which they lie side by side, two in each place.
template <int Width, class From> RESILIN_INLINE void turned_at(const From *b, int64_t lane, PairsOf<Width> *turned) {
    for (int64_t i = 0; i < Width; i++) std::memcpy(&turned[i], b + i * lane, sizeof(PairsOf<Width>));
    transpose_pairs(turned);
}
// Step p of Width columns.
template <int Width, class From> RESILIN_INLINE FloatsOf<Width> step_of(const From *b, int64_t lane, int64_t p) {
    PairsOf<Width> bits;
    for (int64_t i = 0; i < Width; i++) bits[i] = b[i * lane + p].bits;
    return widened<Width>(From{}, bits);
}

// Steps [from, 2 * Width) of Width * Vectors columns, in which they lie side by side. Vectors are summed together, as one
// waits for its own sums.
template <int Width, int Vectors, bool Whole, class From>
RESILIN_INLINE void add_steps(const float *x, const From *b, int64_t lane, int64_t from, FloatsOf<Width> *sum) {
    PairsOf<Width> turned[Vectors][Width];
    for (int g = 0; g < Vectors; g++) turned_at<Width>(b + g * Width * lane, lane, turned[g]);
#pragma GCC unroll 16
    for (int64_t q = 0; q < Width; q++) {
        if (Whole || 2 * q >= from)
#pragma GCC unroll 2
            for (int g = 0; g < Vectors; g++) sum[g] = widened<Width>(From{}, turned[g][q] & 0xFFFFu) * x[2 * q] + sum[g];
        if (Whole || 2 * q + 1 >= from)
#pragma GCC unroll 2
            for (int g = 0; g < Vectors; g++) sum[g] = widened<Width>(From{}, turned[g][q] >> 16) * x[2 * q + 1] + sum[g];
    }
}

// bfloat16: sums[g] += two chains, of the group's even steps and of its odd ones, added to one another.
template <int Width, int Vectors>
RESILIN_INLINE void add_group_rows(const float *x, const BFloat *b, int64_t step, int64_t steps, FloatsOf<Width> *sums) {
    FloatsOf<Width> even[Vectors] = {};
    for (int64_t first = 0; first < 2; first++) {
        FloatsOf<Width> sum[Vectors] = {};
        for (int64_t p = first; p < steps; p += 2)
#pragma GCC unroll 8
            for (int g = 0; g < Vectors; g++) sum[g] = part_of<Width>(b + p * step, step, g) * x[p] + sum[g];
        for (int g = 0; g < Vectors; g++) {
            if (first) sums[g] = sums[g] + (even[g] + sum[g]);
            else even[g] = sum[g];
        }
    }
}
template <int Width, int Vectors>
RESILIN_INLINE void add_group_columns(const float *x, const BFloat *b, int64_t lane, int64_t steps, FloatsOf<Width> *sums) {
    FloatsOf<Width> even[Vectors] = {}, odd[Vectors] = {};
    if (steps == GROUP_STEPS) {
        for (int64_t p = 0; p < GROUP_STEPS; p += 2 * Width) {
            PairsOf<Width> turned[Vectors][Width];
            for (int g = 0; g < Vectors; g++) turned_at<Width>(b + g * Width * lane + p, lane, turned[g]);
#pragma GCC unroll 16
            for (int64_t q = 0; q < Width; q++)
#pragma GCC unroll 2
                for (int g = 0; g < Vectors; g++) {
                    even[g] = widened<Width>(BFloat{}, turned[g][q]) * x[p + 2 * q] + even[g];
                    odd[g] = reinterpret_cast<FloatsOf<Width>>(turned[g][q] & 0xFFFF0000u) * x[p + 2 * q + 1] + odd[g];
                }
        }
    } else {
        for (int64_t p = 0; p < steps; p++)
            for (int g = 0; g < Vectors; g++) {
                FloatsOf<Width> &sum = p % 2 ? odd[g] : even[g];
                sum = step_of<Width>(b + g * Width * lane, lane, p) * x[p] + sum;
            }
    }
    for (int g = 0; g < Vectors; g++) sums[g] = sums[g] + (even[g] + odd[g]);
}

// sums[g] += the products of x and Width columns, for Vectors times Width. The last steps are read with some before them.
template <int Width, int Vectors, class From>
RESILIN_INLINE void add_columns(const float *x, const From *b, int64_t lane, int64_t depth, FloatsOf<Width> *sums) {
    constexpr int64_t STEPS = 2 * Width;
    FloatsOf<Width> sum[Vectors];
    for (int g = 0; g < Vectors; g++) sum[g] = sums[g];
    int64_t p = 0;
    for (; p + STEPS <= depth; p += STEPS) add_steps<Width, Vectors, true>(x + p, b + p, lane, 0, sum);
    const int64_t last = depth - STEPS;
    if (p < depth && last >= 0) {
        add_steps<Width, Vectors, false>(x + last, b + last, lane, p - last, sum);
        p = depth;
    }
    for (; p < depth; p++)
        for (int g = 0; g < Vectors; g++) sum[g] = step_of<Width>(b + g * Width * lane, lane, p) * x[p] + sum[g];
    for (int g = 0; g < Vectors; g++) sums[g] = sum[g];
}

// sums += the products of x and `vectors` vectors of columns, over some steps: in groups (bfloat16), or of one chain.
template <int Width, class From>
RESILIN_INLINE void add_all(const float *x, const View<From> &b, int64_t steps, int64_t vectors, FloatsOf<Width> *sums) {
    constexpr bool groups = std::is_same_v<From, BFloat>;
    int64_t g = 0;
    if (b.column != 1) { // of crowded lines the first cache holds those of one vector
        for (; g + 2 <= vectors && !crowded<From>(b.column); g += 2) {
            const From *at = b.data + g * Width * b.column;
            if constexpr (groups) add_group_columns<Width, 2>(x, at, b.column, steps, sums + g);
            else add_columns<Width, 2>(x, at, b.column, steps, sums + g);
        }
        for (; g < vectors; g++) {
            const From *at = b.data + g * Width * b.column;
            if constexpr (groups) add_group_columns<Width, 1>(x, at, b.column, steps, sums + g);
            else add_columns<Width, 1>(x, at, b.column, steps, sums + g);
        }
        return;
    }
    for (; g + TOGETHER <= vectors; g += TOGETHER) {
        if constexpr (groups) add_group_rows<Width, TOGETHER>(x, b.data + g * Width, b.row, steps, sums + g);
        else add_rows<Width, TOGETHER>(x, b.data + g * Width, b.row, steps, sums + g);
    }
    for (; g < vectors; g++) {
        if constexpr (groups) add_group_rows<Width, 1>(x, b.data + g * Width, b.row, steps, sums + g);
        else add_rows<Width, 1>(x, b.data + g * Width, b.row, steps, sums + g);
    }
}

// Columns [begin, end), whole vectors of them, at most COLUMNS: a chain starts anew in every block of the depth.
template <int Width, class From>
RESILIN_INLINE void some_columns(const Product<float, From> &of, const float *x, int64_t blocks, int64_t begin, int64_t end, From *out) {
    const int64_t vectors = (end - begin) / Width;
    FloatsOf<Width> total[COLUMNS / Width] = {};
    const auto from = [&](int64_t p) __attribute__((always_inline)) {
        return View<From>{of.b.data + begin * of.b.column + p * of.b.row, of.b.row, of.b.column};
    };
    if constexpr (std::is_same_v<From, BFloat>) {
        for (int64_t g = 0; g < vectors && of.plus; g++) total[g] = Register<float, 4 * Width>::load(of.plus + begin + g * Width);
        for (int64_t p = 0; p < of.depth; p += GROUP_STEPS)
            add_all<Width>(x + p, from(p), std::min(GROUP_STEPS, of.depth - p), vectors, total);
    } else {
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t p = edge(of.depth, blocks, block), depth = edge(of.depth, blocks, block + 1) - p;
            FloatsOf<Width> sums[COLUMNS / Width] = {};
            add_all<Width>(x + p, from(p), depth, vectors, sums);
            for (int64_t g = 0; g < vectors; g++)
                total[g] = block     ? total[g] + sums[g]
                           : of.plus ? Register<float, 4 * Width>::load(of.plus + begin + g * Width) + sums[g]
                                     : sums[g];
        }
    }
    float row[COLUMNS];
    std::memcpy(row, total, static_cast<size_t>(vectors) * sizeof(FloatsOf<Width>));
    round_row(row, end - begin, out + begin);
}
template <class From, int64_t BYTES>
RESILIN_INLINE void some_of(const Product<float, From> &of, const float *x, int64_t blocks, int64_t begin, int64_t end, From *out) {
    some_columns<BYTES / 4>(of, x, blocks, begin, end, out);
}
RESILIN_BY_REGISTERS(some, BFloat,
                     (const Product<float, BFloat> &of, const float *x, int64_t blocks, int64_t begin, int64_t end, BFloat *out),
                     (of, x, blocks, begin, end, out))
RESILIN_BY_REGISTERS(some, Half,
                     (const Product<float, Half> &of, const float *x, int64_t blocks, int64_t begin, int64_t end, Half *out),
                     (of, x, blocks, begin, end, out))

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
