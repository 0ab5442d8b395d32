// A few rows times a matrix of float32 that is read once, where it lies: packing it would take longer than multiplying it.
// Where its columns lie along memory, as in x @ w.T, 16 steps of 16 or 8 of them are turned in registers. Compiled with
// -ffp-contract=fast: the compiler fuses a * b + c where the CPU can, and this file has no other sums of products.
#include "few_rows.hpp"

#include "kernels/simd.hpp"
#include "memory/parallel.hpp"
#include "memory/scratch.hpp"
#include "pairs.hpp"
#include "panels.hpp"

#include <cstring>

namespace resilin {
namespace {

constexpr int64_t COLUMNS = 128; // of one piece of work

// Sums of all rows of `Vectors` times `Width` columns: of a chain that starts anew in every block of the depth.
template <int Width, int Rows, int Vectors> struct Sums {
    FloatsOf<Width> of[Rows][Vectors];
};

// Columns side by side: step p ascending, `x` has the rows' elements of a step side by side.
template <int Width, int Rows, int Vectors>
RESILIN_INLINE void add_along(const float *x, const float *b, int64_t step, int64_t depth, Sums<Width, Rows, Vectors> &sums) {
    constexpr int64_t AHEAD = 8; // steps that are fetched ahead
    for (int64_t p = 0; p < depth; p++, x += Rows, b += step) {
#pragma GCC unroll 8
        for (int g = 0; g < Vectors; g++) {
            if (g * Width % LANES == 0) __builtin_prefetch(b + AHEAD * step + g * Width);
            const FloatsOf<Width> right = Register<float, 4 * Width>::load(b + g * Width);
#pragma GCC unroll 8
            for (int i = 0; i < Rows; i++) sums.of[i][g] = right * x[i] + sums.of[i][g];
        }
    }
}

// Steps [from, 16) of Width columns, in which they lie side by side: a line of each, turned in squares.
template <int Width, int Rows, int Vectors, bool Whole>
RESILIN_INLINE void add_square(const float *x, const float *b, int64_t lane, int64_t from, int g,
                               Sums<Width, Rows, Vectors> &sums) {
    if (Vectors > 1) asm volatile("" : "+r"(x)); // else all of x would be kept from one square to the next, in memory
    if (Whole)
        for (int64_t i = 0; i < Width; i++) __builtin_prefetch(b + i * lane + 4 * LANES);
#pragma GCC unroll 2
    for (int64_t first = 0; first < LANES; first += Width) {
        PairsOf<Width> turned[Width];
#pragma GCC unroll 16
        for (int64_t i = 0; i < Width; i++) std::memcpy(&turned[i], b + i * lane + first, sizeof(turned[i]));
        transpose_pairs(turned);
#pragma GCC unroll 16
        for (int64_t q = 0; q < Width; q++)
            if (Whole || first + q >= from)
#pragma GCC unroll 12
                for (int i = 0; i < Rows; i++)
                    sums.of[i][g] = reinterpret_cast<FloatsOf<Width>>(turned[q]) * x[(first + q) * Rows + i] + sums.of[i][g];
    }
}

// The last steps are read with some before them.
template <int Width, int Rows, int Vectors>
RESILIN_INLINE void add_across(const float *x, const float *b, int64_t lane, int64_t depth, Sums<Width, Rows, Vectors> &sums) {
    int64_t p = 0;
    for (; p + LANES <= depth; p += LANES)
#pragma GCC unroll 4
        for (int g = 0; g < Vectors; g++)
            add_square<Width, Rows, Vectors, true>(x + p * Rows, b + g * Width * lane + p, lane, 0, g, sums);
    const int64_t last = depth - LANES;
    if (p < depth && last >= 0) {
#pragma GCC unroll 4
        for (int g = 0; g < Vectors; g++)
            add_square<Width, Rows, Vectors, false>(x + last * Rows, b + g * Width * lane + last, lane, p - last, g, sums);
        return;
    }
    for (; p < depth; p++)
#pragma GCC unroll 4
        for (int g = 0; g < Vectors; g++) {
            FloatsOf<Width> right;
            for (int64_t i = 0; i < Width; i++) right[i] = b[(g * Width + i) * lane + p];
            for (int i = 0; i < Rows; i++) sums.of[i][g] = right * x[p * Rows + i] + sums.of[i][g];
        }
}

// Width * Vectors columns from `column` on, of which the first `skipped` are not written.
template <int Width, int Rows, int Vectors, bool Along>
RESILIN_INLINE void some_columns(const Product<float> &of, const float *x, int64_t blocks, int64_t column, int64_t skipped) {
    Sums<Width, Rows, Vectors> total{};
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t p = edge(of.depth, blocks, block), depth = edge(of.depth, blocks, block + 1) - p;
        const float *b = of.b.data + column * of.b.column + p * of.b.row;
        Sums<Width, Rows, Vectors> sums{};
        if constexpr (Along) add_along(x + p * Rows, b, of.b.row, depth, sums);
        else add_across(x + p * Rows, b, of.b.column, depth, sums);
        for (int i = 0; i < Rows; i++)
            for (int g = 0; g < Vectors; g++) {
                const float *plus = of.plus + i * of.ld_plus + column + g * Width;
                const FloatsOf<Width> &now = sums.of[i][g];
                total.of[i][g] = block ? total.of[i][g] + now : of.plus ? Register<float, 4 * Width>::load(plus) + now : now;
            }
    }
    for (int i = 0; i < Rows; i++)
        for (int g = 0; g < Vectors; g++) {
            float *c = of.c + i * of.ldc + column + g * Width;
            if (skipped == 0) std::memcpy(c, &total.of[i][g], sizeof(total.of[i][g]));
            else
                for (int64_t j = skipped; j < Width; j++) c[j] = total.of[i][g][j];
        }
}

// Columns [begin, end), which fill whole vectors, or the last one overlaps those before it.
template <int Width, int Rows, int Vectors, bool Along>
RESILIN_INLINE void columns_of(const Product<float> &of, const float *x, int64_t blocks, int64_t begin, int64_t end) {
    int64_t j = begin;
    for (; j + Vectors * Width <= end; j += Vectors * Width) some_columns<Width, Rows, Vectors, Along>(of, x, blocks, j, 0);
    if constexpr (Vectors > 1)
        for (; j + Width <= end; j += Width) some_columns<Width, Rows, 1, Along>(of, x, blocks, j, 0);
    if (j < end) some_columns<Width, Rows, 1, Along>(of, x, blocks, end - Width, j - (end - Width));
}

using Some = void (*)(const Product<float> &, const float *, int64_t, int64_t, int64_t);

// Sums wait for themselves, and the matrix does not come faster: four or more vectors of them hide it.
template <class, int64_t BYTES>
RESILIN_INLINE void along_1_of(const Product<float> &of, const float *x, int64_t blocks, int64_t begin, int64_t end) {
    columns_of<BYTES / 4, 1, 256 / BYTES, true>(of, x, blocks, begin, end);
}
template <class, int64_t BYTES>
RESILIN_INLINE void along_2_of(const Product<float> &of, const float *x, int64_t blocks, int64_t begin, int64_t end) {
    columns_of<BYTES / 4, 2, 4, true>(of, x, blocks, begin, end);
}
RESILIN_BY_REGISTERS(along_1, float, (const Product<float> &of, const float *x, int64_t blocks, int64_t begin, int64_t end),
                     (of, x, blocks, begin, end))
RESILIN_BY_REGISTERS(along_2, float, (const Product<float> &of, const float *x, int64_t blocks, int64_t begin, int64_t end),
                     (of, x, blocks, begin, end))
constexpr Some ALONG[] = {along_1, along_2}; // with more rows tiles are faster

#ifdef RESILIN_CHOOSES_ISA // elsewhere squares are not turned in registers, and packing is faster
#define RESILIN_WIDE __attribute__((target("arch=x86-64-v4")))
#define RESILIN_NARROW __attribute__((target("arch=x86-64-v3")))
template <int Rows>
RESILIN_WIDE void across(const Product<float> &of, const float *x, int64_t blocks, int64_t begin, int64_t end) {
    columns_of<LANES, Rows, 1, false>(of, x, blocks, begin, end);
}
constexpr Some ACROSS[] = {across<1>, across<2>, across<3>, across<4>,  across<5>,  across<6>,
                           across<7>, across<8>, across<9>, across<10>, across<11>, across<12>}; // sums are registers
// A square takes half of the registers; sums of one row or two wait for themselves.
template <int Rows>
RESILIN_NARROW void across_narrow(const Product<float> &of, const float *x, int64_t blocks, int64_t begin, int64_t end) {
    columns_of<LANES / 2, Rows, (Rows <= 2 ? 2 : 1), false>(of, x, blocks, begin, end);
}
constexpr Some ACROSS_NARROW[] = {across_narrow<1>, across_narrow<2>, across_narrow<3>, across_narrow<4>,
                                  across_narrow<5>, across_narrow<6>, across_narrow<7>, across_narrow<8>};
#endif

template <size_t Most> Some one_of(const Some (&all)[Most], int64_t rows) {
    return rows <= static_cast<int64_t>(Most) ? all[rows - 1] : nullptr;
}
// What multiplies so many rows; null: nothing here.
Some some_of(const Product<float> &of, int64_t register_bytes) {
    if (of.scaled || of.columns < LANES || of.rows < 1) return nullptr;
    if (of.b.column == 1) return one_of(ALONG, of.rows);
#ifdef RESILIN_CHOOSES_ISA
    if (of.b.row == 1 && register_bytes == 64) return one_of(ACROSS, of.rows);
    // eight rows fill a vector of the turned product
    const bool fills = of.rows >= 8 && !crowded<float>(of.b.column);
    if (of.b.row == 1 && register_bytes == 32 && !fills) return one_of(ACROSS_NARROW, of.rows);
#endif
    return nullptr;
}

} // namespace

bool multiply_few(const Product<float> &of, int64_t blocks, int64_t register_bytes, bool threads) {
    const Some some = some_of(of, register_bytes);
    if (!some) return false;
    static thread_local Scratch<float> scratch;
    float *x = scratch.of(of.rows * of.depth);
    pack(of.a.data, of.a.row, of.a.column, of.rows, of.rows, of.depth, x);
    const int64_t pieces = ceil_div(of.columns - LANES + 1, COLUMNS); // none of less than a vector
    auto piece = [&](int64_t i) { some(of, x, blocks, i * COLUMNS, i + 1 == pieces ? of.columns : (i + 1) * COLUMNS); };
    if (threads && of.flops() >= SHARED_FLOPS) run_blocks(pieces, piece);
    else
        for (int64_t i = 0; i < pieces; i++) piece(i);
    return true;
}

} // namespace resilin
