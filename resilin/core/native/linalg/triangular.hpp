// Systems with a triangle: halves, until few rows are left; what one half gives to the other is a matrix product.
#pragma once
#include "matmul/product.hpp"
#include "memory/parallel.hpp"

#include <cstdint>

namespace resilin {

constexpr int64_t FEW_ROWS = 16; // a system of so many rows is solved row by row, for several columns in registers

// T, an upper or lower triangle of what `t` shows, with ones on its diagonal if `unit`.
template <class T> struct Triangle {
    View<T> t;
    bool upper, unit;
};

// X in place of B, T X = B: n rows, ld apart, of `columns`. An element is B's less its terms: those of a half that is
// solved before its own as one product, those of its own FEW_ROWS rows one after the other, in the order in which
// the rows are solved. With `diagonal`, lower triangles only, B has zeros right of its diagonal, which starts in column
// -`diagonal` (a negative number: further right), and so has X.
template <class T>
void solve_triangle(const Triangle<T> &triangle, int64_t n, T *b, int64_t columns, int64_t ld, bool threads,
                    const int64_t *diagonal = nullptr);

// fn(i, threads) for each of the matrices of a batch, of `size` operations each
template <class Fn> void each_matrix(int64_t count, int64_t size, Fn fn) {
    const bool batch = count >= 2 * num_threads();
    auto some = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) fn(i, !batch);
    };
    if (batch) parallel_rows(count, size, some);
    else some(0, count);
}

} // namespace resilin
