#include "triangular.hpp"

#include "kernels/simd.hpp"
#include "memory/parallel.hpp"
#include "memory/scratch.hpp"

#include <algorithm>

namespace resilin {
namespace {

template <class T> constexpr int64_t WIDTH = 256 / sizeof(T); // columns at a time: four vectors

// A few rows of a triangle in the order in which they are solved.
template <class T> struct Rows {
    T factors[FEW_ROWS][FEW_ROWS], pivots[FEW_ROWS];
    int64_t n;
    bool unit;
};

// Solves `width` columns, up to WIDTH, of rows that lie `step` elements apart in the order in which they are solved.
template <class T> RESILIN_INLINE void solve_columns(const Rows<T> &rows, T *b, int64_t step, int64_t width) {
    constexpr int64_t W = WIDTH<T>;
    alignas(64) T known[FEW_ROWS][W];
    for (int64_t i = 0; i < rows.n; i++) {
        T *x = b + i * step;
        alignas(64) T sum[W] = {};
        std::copy_n(x, width, sum);
        for (int64_t k = 0; k < i; k++) {
            const T factor = -rows.factors[i][k];
            for (int64_t c = 0; c < W; c++) sum[c] = fma(factor, known[k][c], sum[c]);
        }
        if (!rows.unit)
            for (int64_t c = 0; c < W; c++) sum[c] /= rows.pivots[i];
        for (int64_t c = 0; c < W; c++) known[i][c] = sum[c];
        std::copy_n(sum, width, x);
    }
}

template <class T> RESILIN_INLINE void solve_strips(const Rows<T> &rows, T *b, int64_t step, int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; c += WIDTH<T>) {
        if (end - c >= WIDTH<T>) solve_columns(rows, b + c, step, WIDTH<T>);
        else solve_columns(rows, b + c, step, end - c);
    }
}
RESILIN_SIMD void solve_all(const Rows<float> &rows, float *b, int64_t step, int64_t begin, int64_t end) {
    solve_strips(rows, b, step, begin, end);
}
RESILIN_SIMD void solve_all(const Rows<double> &rows, double *b, int64_t step, int64_t begin, int64_t end) {
    solve_strips(rows, b, step, begin, end);
}

// One column: each row's terms in the same order, in registers of one number.
template <class T> void solve_column(const Rows<T> &rows, T *b, int64_t step) {
    for (int64_t i = 0; i < rows.n; i++) {
        T sum = b[i * step];
        for (int64_t k = 0; k < i; k++) sum = fma(-rows.factors[i][k], b[k * step], sum);
        b[i * step] = rows.unit ? sum : sum / rows.pivots[i];
    }
}

template <class T> struct System {
    Triangle<T> triangle;
    T *b;
    int64_t columns, ld;
    bool threads;
    const int64_t *diagonal;

    // how many columns can have something else than zeros in the rows before `end`
    int64_t used(int64_t end) const { return diagonal ? std::clamp<int64_t>(end + *diagonal, 0, columns) : columns; }
    const T *at(int64_t row, int64_t column) const { return triangle.t.data + row * triangle.t.row + column * triangle.t.column; }

    void solve_few(int64_t first, int64_t end) const {
        Rows<T> rows;
        rows.n = end - first;
        rows.unit = triangle.unit;
        for (int64_t i = 0; i < rows.n; i++) {
            const int64_t row = triangle.upper ? end - 1 - i : first + i;
            for (int64_t k = 0; k < i; k++) rows.factors[i][k] = *at(row, triangle.upper ? end - 1 - k : first + k);
            rows.pivots[i] = triangle.unit ? T(1) : *at(row, row);
        }
        T *start = b + (triangle.upper ? end - 1 : first) * ld;
        const int64_t step = triangle.upper ? -ld : ld, width = used(end);
        if (width == 1) return solve_column(rows, start, step);
        const int64_t strips = (width + WIDTH<T> - 1) / WIDTH<T>;
        auto some = [&](int64_t from, int64_t to) {
            solve_all(rows, start, step, from * WIDTH<T>, std::min(width, to * WIDTH<T>));
        };
        if (threads) parallel_rows(strips, FEW_ROWS * WIDTH<T>, some);
        else some(0, strips);
    }

    // rows [far, far_end) less what the solved rows [near, near_end) give to them
    void subtract(int64_t far, int64_t far_end, int64_t near, int64_t near_end) const {
        const int64_t rows = far_end - far, depth = near_end - near, width = used(near_end);
        if (!width) return;
        static thread_local Scratch<T> scratch;
        T *turned = scratch.of(std::min(rows, width) * depth); // the smaller operand with its sign turned
        Product<T> product{rows, width, depth, {at(far, near), triangle.t.row, triangle.t.column}, {b + near * ld, ld, 1},
                           b + far * ld, ld, b + far * ld, ld};
        if (rows < width) {
            for (int64_t i = 0; i < rows; i++)
                for (int64_t k = 0; k < depth; k++) turned[i * depth + k] = -*at(far + i, near + k);
            product.a = {turned, depth, 1};
        } else {
            for (int64_t k = 0; k < depth; k++)
                for (int64_t c = 0; c < width; c++) turned[k * width + c] = -b[(near + k) * ld + c];
            product.b = {turned, width, 1};
        }
        multiply(product, threads);
    }

    void solve(int64_t first, int64_t end) const {
        if (end - first <= FEW_ROWS) {
            if (used(end)) solve_few(first, end);
            return;
        }
        const int64_t half = ((end - first) / 2 + FEW_ROWS - 1) / FEW_ROWS * FEW_ROWS, middle = first + half;
        if (triangle.upper) {
            solve(middle, end);
            subtract(first, middle, middle, end);
            solve(first, middle);
        } else {
            solve(first, middle);
            subtract(middle, end, first, middle);
            solve(middle, end);
        }
    }
};

} // namespace

template <class T>
void solve_triangle(const Triangle<T> &triangle, int64_t n, T *b, int64_t columns, int64_t ld, bool threads, const int64_t *diagonal) {
    if (!n || !columns) return;
    const double flops = static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(columns);
    const int64_t strips = std::min<int64_t>(columns / WIDTH<T>, 2 * num_threads());
    if (!threads || num_threads() == 1 || strips < 2 || flops < SHARED_FLOPS)
        return System<T>{triangle, b, columns, ld, threads, diagonal}.solve(0, n);
    // columns do not depend on one another: a thread solves some of them, without waiting for others
    run_blocks(strips, [&](int64_t i) {
        const int64_t begin = columns * i / strips, end = columns * (i + 1) / strips, moved = diagonal ? *diagonal - begin : 0;
        System<T>{triangle, b + begin, end - begin, ld, false, diagonal ? &moved : nullptr}.solve(0, n);
    });
}
template void solve_triangle(const Triangle<float> &, int64_t, float *, int64_t, int64_t, bool, const int64_t *);
template void solve_triangle(const Triangle<double> &, int64_t, double *, int64_t, int64_t, bool, const int64_t *);

} // namespace resilin
