// Systems with a triangle, in blocks of rows: what other blocks give is a matrix product.
#pragma once
#include "matmul/product.hpp"
#include "memory/parallel.hpp"
#include "memory/scratch.hpp"

#include <algorithm>

namespace resilin {

constexpr int64_t TRIANGLE_BLOCK = 64, STRIP = 256; // rows of a block, and columns that one thread takes at a time

// X in place of B, T X = B: T the upper or lower triangle of `t` (n x n, rows ld_t apart), whose diagonal is ones if
// `unit`; B of n x columns, rows ld apart. An element's terms are subtracted from the nearest row of its block to the
// farthest, after the product of the others.
template <class T>
void solve_triangle(const T *t, int64_t ld_t, int64_t n, bool upper, bool unit, T *b, int64_t columns, int64_t ld, bool threads) {
    const int64_t blocks = (n + TRIANGLE_BLOCK - 1) / TRIANGLE_BLOCK;
    for (int64_t step = 0; step < blocks; step++) {
        const int64_t first = (upper ? blocks - 1 - step : step) * TRIANGLE_BLOCK, end = std::min(n, first + TRIANGLE_BLOCK);
        auto strip = [&](int64_t from, int64_t to) {
            for (int64_t i = 0; i < end - first; i++) {
                const int64_t row = upper ? end - 1 - i : first + i;
                T *x = b + row * ld;
                for (int64_t k = 1; k <= i; k++) {
                    const int64_t other = upper ? row + k : row - k;
                    const T factor = t[row * ld_t + other], *known = b + other * ld;
                    for (int64_t c = from; c < to; c++) x[c] -= factor * known[c];
                }
                if (unit) continue;
                const T pivot = t[row * ld_t + row];
                for (int64_t c = from; c < to; c++) x[c] /= pivot;
            }
        };
        const int64_t strips = (columns + STRIP - 1) / STRIP;
        auto some = [&](int64_t begin, int64_t last) {
            for (int64_t s = begin; s < last; s++) strip(s * STRIP, std::min(columns, (s + 1) * STRIP));
        };
        if (threads) parallel_rows(strips, TRIANGLE_BLOCK * std::min(columns, STRIP), some);
        else some(0, strips);
        const int64_t rest = upper ? first : n - end, row = upper ? 0 : end;
        if (!rest || end == first) continue;
        // what these rows give to the others: B - T X, of which the product's sign is turned by X
        static thread_local Scratch<T> scratch;
        T *turned = scratch.of((end - first) * columns);
        for (int64_t i = 0; i < end - first; i++)
            for (int64_t c = 0; c < columns; c++) turned[i * columns + c] = -b[(first + i) * ld + c];
        Product<T> product{rest, columns, end - first, {t + row * ld_t + first, ld_t, 1}, {turned, columns, 1}, b + row * ld, ld,
                           b + row * ld, ld};
        multiply(product, threads);
    }
}

} // namespace resilin
