// LU factors with exchanges of rows, Cholesky factors, and what systems of equations come to with them, of contiguous
// float32 and float64; the matrices of a batch share the threads, a single matrix's products do.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "kernels/simd.hpp"
#include "memory/parallel.hpp"
#include "memory/scratch.hpp"
#include "triangular.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t PANEL = 16; // columns that are factorized one after the other, in a copy whose columns are contiguous

// The place of the pivot of a column: the first NaN, else the first of the largest by absolute value.
template <class T> RESILIN_INLINE int64_t largest(const T *x, int64_t n) {
    T most = 0;
    int32_t bad = 0;
#pragma omp simd reduction(max : most) reduction(| : bad)
    for (int64_t i = 0; i < n; i++) {
        const T size = x[i] < 0 ? -x[i] : x[i];
        most = size > most ? size : most;
        bad |= x[i] != x[i];
    }
    for (int64_t i = 0; i < n; i++)
        if (bad ? x[i] != x[i] : (x[i] == most || x[i] == -most)) return i;
    return 0;
}

// `width` columns of `rows` elements each; `exchanged` are places among these rows, `zero` the first zero pivot's or -1.
template <class T> RESILIN_INLINE void factorize_columns(T *p, int64_t rows, int64_t width, bool pivot, int64_t *exchanged, int64_t &zero) {
    for (int64_t k = 0; k < std::min(width, rows); k++) {
        T *column = p + k * rows;
        const int64_t best = pivot ? k + largest(column + k, rows - k) : k;
        exchanged[k] = best;
        if (best != k)
            for (int64_t c = 0; c < width; c++) std::swap(p[c * rows + k], p[c * rows + best]);
        const T head = column[k];
        if (head == 0 && zero < 0) zero = k;
        if (head != 0)
            for (int64_t r = k + 1; r < rows; r++) column[r] /= head;
        for (int64_t c = k + 1; c < width; c++) {
            T *other = p + c * rows;
            const T factor = -other[k];
            for (int64_t r = k + 1; r < rows; r++) other[r] = fma(factor, column[r], other[r]);
        }
    }
}
// A row and what is right of it in `n` rows of a symmetric matrix's upper triangle, `ld` apart: U of U^T U. The number of
// the first row whose diagonal is not positive, else -1.
template <class T> RESILIN_INLINE int64_t factorize_rows(T *a, int64_t n, int64_t ld) {
    for (int64_t k = 0; k < n; k++) {
        T *row = a + k * ld;
        if (!(row[k] > 0)) return k;
        const T root = std::sqrt(row[k]);
        row[k] = root;
        for (int64_t c = k + 1; c < n; c++) row[c] /= root;
        for (int64_t i = k + 1; i < n; i++) {
            const T factor = -row[i];
            for (int64_t c = i; c < n; c++) a[i * ld + c] = fma(factor, row[c], a[i * ld + c]);
        }
    }
    return -1;
}

#define RESILIN_FACTORIZES(T)                                                                                          \
    RESILIN_SIMD void columns_of(T *p, int64_t rows, int64_t width, bool pivot, int64_t *exchanged, int64_t &zero) {   \
        factorize_columns(p, rows, width, pivot, exchanged, zero);                                                     \
    }                                                                                                                  \
    RESILIN_SIMD int64_t rows_of(T *a, int64_t n, int64_t ld) { return factorize_rows(a, n, ld); }
RESILIN_FACTORIZES(float)
RESILIN_FACTORIZES(double)

// An m x n matrix that becomes L (its ones left out) and U.
template <class T> struct Factors {
    T *a;
    int64_t m, n;
    bool pivot, threads;
    int32_t *pivots; // rows counted from 1, as LAPACK's
    int32_t zero = 0; // the number of the first pivot that is zero, from 1

    // Columns [j, end), from row j down; rows are exchanged in the whole matrix.
    void factorize(int64_t j, int64_t end) {
        const int64_t width = end - j;
        if (width <= PANEL) return factorize_panel(j, width);
        const int64_t middle = j + (width / 2 + PANEL - 1) / PANEL * PANEL, right = end - middle, below = m - middle;
        factorize(j, middle);
        T *corner = a + j * n + j, *beside = a + j * n + middle, *rest = a + middle * n + middle;
        solve_triangle<T>({{corner, n, 1}, false, true}, middle - j, beside, right, n, threads);
        if (below) {
            const int64_t depth = middle - j;
            static thread_local Scratch<T> scratch;
            T *turned = scratch.of(depth * right);
            for (int64_t k = 0; k < depth; k++)
                for (int64_t c = 0; c < right; c++) turned[k * right + c] = -beside[k * n + c];
            multiply<T>({below, right, depth, {a + middle * n + j, n, 1}, {turned, right, 1}, rest, n, rest, n}, threads);
        }
        if (middle < m) factorize(middle, end);
    }

    void factorize_panel(int64_t j, int64_t width) {
        static thread_local Scratch<T> scratch;
        const int64_t rows = m - j;
        T *p = scratch.of(rows * width);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < width; c++) p[c * rows + r] = a[(j + r) * n + j + c];
        int64_t exchanged[PANEL], empty = -1;
        columns_of(p, rows, width, pivot, exchanged, empty);
        if (empty >= 0 && !zero) zero = static_cast<int32_t>(j + empty + 1);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < width; c++) a[(j + r) * n + j + c] = p[c * rows + r];
        for (int64_t k = 0; k < std::min(width, rows); k++) {
            T *upper = a + (j + k) * n, *other = a + (j + exchanged[k]) * n;
            pivots[j + k] = static_cast<int32_t>(j + exchanged[k] + 1);
            if (upper == other) continue;
            std::swap_ranges(upper, upper + j, other);
            std::swap_ranges(upper + j + width, upper + n, other + j + width);
        }
    }
};

// What is right of the square in a wide matrix belongs to its last columns' step.
template <class T> int32_t factorize(T *a, int64_t m, int64_t n, bool pivot, int32_t *pivots, bool threads) {
    Factors<T> factors{a, m, n, pivot, threads, pivots};
    const int64_t k = std::min(m, n);
    factors.factorize(0, k);
    if (n > k) solve_triangle<T>({{a, n, 1}, false, true}, k, a + k, n - k, n, threads);
    return factors.zero;
}

int64_t count_of(const ExactArray &x) {
    const int64_t matrix = x.dim(x.ndim() - 2) * x.last();
    return matrix ? x.size() / matrix : 0;
}

template <class T> nb::object lu_of(const Array &x, bool pivot) {
    const int64_t m = x.dim(x.ndim() - 2), n = x.last(), k = std::min(m, n), count = count_of(x);
    if (!count) return nb::none();
    NewArray<T> packed(x);
    std::vector<npy_intp> dims(PyArray_DIMS(x.array), PyArray_DIMS(x.array) + x.ndim() - 1);
    NewArray<int32_t> info(x.ndim() - 2, dims.data());
    dims.back() = k;
    NewArray<int32_t> pivots(x.ndim() - 1, dims.data());
    nb::object made = nb::make_tuple(packed.object, pivots.object, info.object);
    WithoutGil free(x.size() * 8);
    std::copy_n(x.data<T>(), x.size(), packed.data);
    each_matrix(count, m * n * k / 4, [&](int64_t i, bool threads) {
        info.data[i] = factorize(packed.data + i * m * n, m, n, pivot, pivots.data + i * k, threads);
    });
    return made;
}

// (packed, pivots, info); None for what numpy factorizes
nb::object lu(Array x, bool pivot) {
    if (!x || x.ndim() < 2) return nb::none();
    if (x.is<float>()) return lu_of<float>(x, pivot);
    return x.is<double>() ? lu_of<double>(x, pivot) : nb::none();
}

// Of U's diagonal the sign of its product, turned by each exchange of rows; `heads`: absolute values.
template <class T> T sign_of_pivots(const T *diagonal, int64_t step, const int32_t *pivots, int64_t n, double *heads) {
    bool negative = false, zero = false, number = true;
    for (int64_t i = 0; i < n; i++) {
        const T head = diagonal[i * step];
        negative ^= (head < 0) != (pivots[i] != i + 1);
        zero |= head == 0;
        number &= head == head;
        heads[i] = static_cast<double>(std::fabs(head));
    }
    if (!number) return std::numeric_limits<T>::quiet_NaN();
    return zero ? T(0) : negative ? T(-1) : T(1);
}

// Elimination of L matrices side by side, element (i, j) of each at a[(i * n + j) * L]; `pivots` from 1. As
// factorize_columns(), so that bits are the same.
template <class T, int64_t L> RESILIN_INLINE void eliminate_of(T *a, int64_t n, int32_t *pivots) {
    for (int64_t k = 0; k < n; k++) {
        alignas(64) T most[L], best[L];
        for (int64_t l = 0; l < L; l++) most[l] = T(-1), best[l] = static_cast<T>(k);
        for (int64_t i = k; i < n; i++)
            for (int64_t l = 0; l < L; l++) {
                const T x = a[(i * n + k) * L + l], size = x < 0 ? -x : x;
                const bool more = (size > most[l]) | ((x != x) & (most[l] == most[l]));
                most[l] = more ? size : most[l];
                best[l] = more ? static_cast<T>(i) : best[l];
            }
        for (int64_t l = 0; l < L; l++) pivots[k * L + l] = static_cast<int32_t>(best[l]) + 1;
        for (int64_t i = k + 1; i < n; i++) {
            for (int64_t j = k; j < n; j++) {
                T *upper = a + (k * n + j) * L, *lower = a + (i * n + j) * L;
                for (int64_t l = 0; l < L; l++) {
                    const T x = upper[l], y = lower[l];
                    const bool here = best[l] == static_cast<T>(i);
                    upper[l] = here ? y : x;
                    lower[l] = here ? x : y;
                }
            }
        }
        for (int64_t i = k + 1; i < n; i++) {
            T *row = a + i * n * L, *head = a + k * n * L;
            for (int64_t l = 0; l < L; l++) {
                const T divisor = head[k * L + l];
                row[k * L + l] = row[k * L + l] / (divisor == 0 ? T(1) : divisor);
            }
            for (int64_t j = k + 1; j < n; j++)
                for (int64_t l = 0; l < L; l++) row[j * L + l] = fma(-head[j * L + l], row[k * L + l], row[j * L + l]);
        }
    }
}
RESILIN_SIMD void eliminate(float *a, int64_t n, int32_t *pivots) { eliminate_of<float, 16>(a, n, pivots); }
RESILIN_SIMD void eliminate(double *a, int64_t n, int32_t *pivots) { eliminate_of<double, 8>(a, n, pivots); }

// fn(i, sign, heads) for each matrix: see sign_of_pivots()
template <class T, class Fn> void each_pivots(const Array &x, Fn fn) {
    constexpr int64_t L = 64 / static_cast<int64_t>(sizeof(T));
    const int64_t n = x.last(), count = count_of(x);
    const bool small = n <= PANEL && count > 1;
    WithoutGil free(x.size() * 8);
    if (!small)
        return each_matrix(count, n * n * n / 4, [&](int64_t i, bool threads) {
            static thread_local Scratch<T> scratch;
            static thread_local Scratch<double> heads;
            std::vector<int32_t> pivots(static_cast<size_t>(n));
            T *packed = scratch.of(n * n);
            std::copy_n(x.data<T>() + i * n * n, n * n, packed);
            factorize(packed, n, n, true, pivots.data(), threads);
            fn(i, sign_of_pivots(packed, n + 1, pivots.data(), n, heads.of(n)), heads.of(n));
        });
    parallel_rows((count + L - 1) / L, n * n * n * 2, [&](int64_t begin, int64_t end) {
        alignas(64) T a[PANEL * PANEL * L];
        int32_t pivots[PANEL * L], own[PANEL];
        double heads[PANEL];
        for (int64_t first = begin * L; first < std::min(count, end * L); first += L) {
            for (int64_t l = 0; l < L; l++) {
                const T *from = x.data<T>() + std::min(first + l, count - 1) * n * n;
                for (int64_t i = 0; i < n * n; i++) a[i * L + l] = from[i];
            }
            eliminate(a, n, pivots);
            for (int64_t l = 0; l < std::min(L, count - first); l++) {
                for (int64_t k = 0; k < n; k++) own[k] = pivots[k * L + l];
                const T sign = sign_of_pivots(a + l, (n + 1) * L, own, n, heads);
                fn(first + l, sign, static_cast<const double *>(heads));
            }
        }
    });
}

template <class T> nb::object determinant_of(const Array &x) {
    NewArray<T> made(x.ndim() - 2, PyArray_DIMS(x.array));
    std::atomic<bool> exact{true};
    const int64_t n = x.last();
    each_pivots<T>(x, [&](int64_t i, T sign, const double *heads) {
        double product = 1;
        for (int64_t k = 0; k < n; k++) product *= heads[k];
        // else a product of some of them may have left the range
        const bool in_range = product > 1e-290 && product <= std::numeric_limits<double>::max();
        if (!in_range) exact.store(false, std::memory_order_relaxed);
        made.data[i] = static_cast<T>(static_cast<double>(sign) * product);
    });
    return exact ? made.object : nb::none();
}

template <class T> nb::object pivots_of(const Array &x) {
    const int64_t n = x.last();
    NewArray<T> signs(x.ndim() - 2, PyArray_DIMS(x.array));
    NewArray<double> all(x.ndim() - 1, PyArray_DIMS(x.array));
    each_pivots<T>(x, [&](int64_t i, T sign, const double *heads) {
        signs.data[i] = sign;
        std::copy_n(heads, n, all.data + i * n);
    });
    return nb::make_tuple(signs.object, all.object);
}

bool is_square(const Array &x) { return x && x.ndim() >= 2 && x.dim(x.ndim() - 2) == x.last() && x.size(); }

// Determinants, the pivots multiplied in float64, ascending; None of others and where a product may have left the range.
nb::object determinant(Array x) {
    if (!is_square(x)) return nb::none();
    if (x.is<float>()) return determinant_of<float>(x);
    return x.is<double>() ? determinant_of<double>(x) : nb::none();
}

// (signs of determinants, absolute values of all pivots in float64); None of others
nb::object pivots(Array x) {
    if (!is_square(x)) return nb::none();
    if (x.is<float>()) return pivots_of<float>(x);
    return x.is<double>() ? pivots_of<double>(x) : nb::none();
}

// Where each of m rows of L U comes from.
void permute(const int32_t *pivots, int64_t k, int64_t m, int64_t *rows) {
    std::iota(rows, rows + m, int64_t{0});
    for (int64_t j = 0; j < k; j++) std::swap(rows[j], rows[pivots[j] - 1]);
}

nb::object permutation(Array pivots, int64_t m) {
    if (!pivots.is<int32_t>() || pivots.ndim() < 1 || m < pivots.last()) return nb::none();
    const int64_t k = pivots.last(), count = pivots.rows();
    for (int64_t i = 0; i < pivots.size(); i++)
        if (pivots.data<int32_t>()[i] < 1 || pivots.data<int32_t>()[i] > m) return nb::none();
    if (!count) return nb::none();
    std::vector<npy_intp> dims(PyArray_DIMS(pivots.array), PyArray_DIMS(pivots.array) + pivots.ndim());
    dims.back() = m;
    NewArray<int64_t> rows(pivots.ndim(), dims.data());
    for (int64_t i = 0; i < count; i++) permute(pivots.data<int32_t>() + i * k, k, m, rows.data + i * m);
    return rows.object;
}

// X with A X = B, or inverses where `b` is null; the first zero pivot of A, whose X is not computed, else 0.
template <class T> int32_t solve_one(const T *a, const T *b, int64_t n, int64_t columns, T *x, bool threads) {
    static thread_local Scratch<T> scratch;
    std::vector<int32_t> pivots(static_cast<size_t>(n));
    std::vector<int64_t> rows(static_cast<size_t>(n));
    T *packed = scratch.of(2 * n * n), *work = packed + n * n;
    std::copy_n(a, n * n, packed);
    if (const int32_t zero = factorize(packed, n, n, true, pivots.data(), threads)) return zero;
    permute(pivots.data(), n, n, rows.data());
    T *y = b ? x : work;
    if (b) {
        for (int64_t i = 0; i < n; i++) std::copy_n(b + rows[static_cast<size_t>(i)] * columns, columns, y + i * columns);
    } else {
        std::fill_n(y, n * n, T(0));
        for (int64_t i = 0; i < n; i++) y[i * n + i] = T(1);
    }
    const int64_t first = 0;
    solve_triangle<T>({{packed, n, 1}, false, true}, n, y, columns, columns, threads, b ? nullptr : &first);
    solve_triangle<T>({{packed, n, 1}, true, false}, n, y, columns, columns, threads);
    for (int64_t i = 0; i < n && !b; i++) // inv(L U) takes the columns of A's exchanged rows
        for (int64_t j = 0; j < n; j++) x[i * n + rows[static_cast<size_t>(j)]] = y[i * n + j];
    return 0;
}

// The same of a small matrix and few columns, with as many steps in the same order: a row is a vector, of which some is
// never looked at. False where a pivot is zero.
constexpr int64_t FEW = 8;
template <class T> RESILIN_INLINE bool solve_small_of(const T *a, const T *b, int64_t n, int64_t columns, T *x) {
    alignas(64) T u[FEW][FEW] = {}, l[FEW][FEW], y[FEW][FEW] = {};
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < n; c++) u[i][c] = a[i * n + c];
        for (int64_t c = 0; c < columns; c++) y[i][c] = b ? b[i * columns + c] : T(i == c);
    }
    for (int64_t k = 0; k < n; k++) {
        int64_t best = k;
        for (int64_t r = k; r < n; r++) {
            if (u[r][k] != u[r][k]) {
                best = r;
                break;
            }
            if (std::fabs(u[r][k]) > std::fabs(u[best][k])) best = r;
        }
        if (u[best][k] == 0) return false;
        if (best != k) {
            for (int64_t c = 0; c < FEW; c++) std::swap(u[k][c], u[best][c]), std::swap(y[k][c], y[best][c]);
            for (int64_t c = 0; c < k; c++) std::swap(l[k][c], l[best][c]);
        }
        for (int64_t r = k + 1; r < n; r++) {
            const T factor = l[r][k] = u[r][k] / u[k][k];
            for (int64_t c = 0; c < FEW; c++) u[r][c] = fma(-u[k][c], factor, u[r][c]);
        }
    }
    for (int64_t i = 1; i < n; i++)
        for (int64_t k = 0; k < i; k++)
            for (int64_t c = 0; c < FEW; c++) y[i][c] = fma(-l[i][k], y[k][c], y[i][c]);
    for (int64_t i = n - 1; i >= 0; i--) {
        for (int64_t k = n - 1; k > i; k--)
            for (int64_t c = 0; c < FEW; c++) y[i][c] = fma(-u[i][k], y[k][c], y[i][c]);
        for (int64_t c = 0; c < FEW; c++) y[i][c] /= u[i][i];
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < columns; c++) x[i * columns + c] = y[i][c];
    return true;
}
#define RESILIN_SOLVES_SMALL(T)                                                                                        \
    RESILIN_SIMD bool solve_small(const T *a, const T *b, int64_t n, int64_t columns, T *x) {                          \
        return solve_small_of(a, b, n, columns, x);                                                                    \
    }
RESILIN_SOLVES_SMALL(float)
RESILIN_SOLVES_SMALL(double)

template <class T> nb::object solved(const Array &a, const Array &b) {
    const int64_t n = a.last(), columns = b ? b.last() : n, count = count_of(a);
    NewArray<T> x(b ? b : a);
    NewArray<int32_t> info(a.ndim() - 2, PyArray_DIMS(a.array));
    {
        WithoutGil free(n * n * count * 8);
        each_matrix(count, n * n * (n + columns) / 4, [&](int64_t i, bool threads) {
            const T *right = b ? b.data<T>() + i * n * columns : nullptr;
            const T *left = a.data<T>() + i * n * n;
            T *to = x.data + i * n * columns;
            if (n <= FEW && columns <= FEW) info.data[i] = !solve_small(left, right, n, columns, to);
            else info.data[i] = solve_one(left, right, n, columns, to, threads);
        });
    }
    for (int64_t i = 0; i < count; i++)
        if (info.data[i]) return nb::none();
    return x.object;
}

// X with a X = b, or the inverses of `a` without `b`; None for what numpy solves, and where a pivot is zero.
nb::object solve(Array a, Array b) {
    const int dims = a ? a.ndim() : 0;
    if (dims < 2 || a.dim(dims - 2) != a.last() || !a.size()) return nb::none();
    if (b) {
        if (b.ndim() != dims || b.dim(dims - 2) != a.last() || !b.size()) return nb::none();
        for (int d = 0; d < dims - 2; d++)
            if (a.dim(d) != b.dim(d)) return nb::none();
    }
    if (a.is<float>() && b.is_or_none<float>()) return solved<float>(a, b);
    return a.is<double>() && b.is_or_none<double>() ? solved<double>(a, b) : nb::none();
}

template <class T> void substitute_each(const Array &t, T *b, int64_t columns, bool upper, bool unit) {
    const int64_t n = t.last();
    each_matrix(count_of(t), n * n * columns / 4, [&](int64_t i, bool threads) {
        solve_triangle<T>({{t.data<T>() + i * n * n, n, 1}, upper, unit}, n, b + i * n * columns, columns, columns, threads);
    });
}

// X with t X = b in place of b, for batches of one shape; False, and nothing is written, for what numpy solves.
bool substitute(Array t, ExactArray b, bool upper, bool unit) {
    const int dims = t ? t.ndim() : 0;
    if (dims < 2 || !b || b.ndim() != dims || t.dim(dims - 2) != t.last() || b.dim(dims - 2) != t.last()) return false;
    for (int d = 0; d < dims - 2; d++)
        if (t.dim(d) != b.dim(d)) return false;
    if (!t.size() || !b.size()) return true;
    const bool single = t.is<float>() && b.is_writable<float>();
    if (!single && !(t.is<double>() && b.is_writable<double>())) return false;
    WithoutGil free(t.size() + b.size());
    if (single) substitute_each(t, b.data<float>(), b.last(), upper, unit);
    else substitute_each(t, b.data<double>(), b.last(), upper, unit);
    return true;
}

constexpr int64_t DIAGONAL = 32; // rows of a block on the diagonal of a Cholesky factor

// U with U^T U = a in the upper triangle of `u`, n x n, from the lower one of `a`; then L = U^T in place of `l`. The order
// of the first leading minor that is not positive definite, else 0.
template <class T> int32_t cholesky_one(const T *a, int64_t n, T *l, bool threads) {
    static thread_local Scratch<T> scratch, scratch_turned;
    T *u = scratch.of(n * n);
    constexpr int64_t EDGE = 16;
    auto transposed = [n](const T *from, T *to) { // lower triangle to upper one
        for (int64_t i0 = 0; i0 < n; i0 += EDGE)
            for (int64_t j0 = 0; j0 <= i0; j0 += EDGE)
                for (int64_t j = j0; j < std::min(n, j0 + EDGE); j++)
                    for (int64_t i = std::max(i0, j); i < std::min(n, i0 + EDGE); i++) to[j * n + i] = from[i * n + j];
    };
    transposed(a, u);
    for (int64_t first = 0; first < n; first += DIAGONAL) {
        const int64_t rows = std::min(DIAGONAL, n - first), right = n - first - rows;
        T *corner = u + first * n + first;
        if (first) {
            T *turned = scratch_turned.of(first * rows);
            for (int64_t k = 0; k < first; k++)
                for (int64_t i = 0; i < rows; i++) turned[k * rows + i] = -u[k * n + first + i];
            multiply<T>({rows, n - first, first, {turned, 1, rows}, {u + first, n, 1}, corner, n, corner, n}, threads);
        }
        if (const int64_t bad = rows_of(corner, rows, n); bad >= 0) return static_cast<int32_t>(first + bad + 1);
        if (right) solve_triangle<T>({{corner, 1, n}, false, false}, rows, corner + rows, right, n, threads);
    }
    for (int64_t i0 = 0; i0 < n; i0 += EDGE)
        for (int64_t j0 = 0; j0 <= i0; j0 += EDGE)
            for (int64_t i = i0; i < std::min(n, i0 + EDGE); i++)
                for (int64_t j = j0; j < std::min(i + 1, j0 + EDGE); j++) l[i * n + j] = u[j * n + i];
    for (int64_t i = 0; i < n; i++) std::fill(l + i * n + i + 1, l + (i + 1) * n, T(0));
    return 0;
}

template <class T> nb::object cholesky_of(const Array &x) {
    const int64_t n = x.last();
    NewArray<T> factor(x);
    NewArray<int32_t> info(x.ndim() - 2, PyArray_DIMS(x.array));
    nb::object made = nb::make_tuple(factor.object, info.object);
    WithoutGil free(x.size() * 8);
    each_matrix(count_of(x), n * n * n / 8, [&](int64_t i, bool threads) {
        info.data[i] = cholesky_one(x.data<T>() + i * n * n, n, factor.data + i * n * n, threads);
    });
    return made;
}

// (lower factors, the order of the first leading minor that is not positive definite or 0); None for what numpy factorizes
nb::object cholesky(Array x) {
    if (!x || x.ndim() < 2 || x.dim(x.ndim() - 2) != x.last() || !x.size()) return nb::none();
    if (x.is<float>()) return cholesky_of<float>(x);
    return x.is<double>() ? cholesky_of<double>(x) : nb::none();
}

} // namespace

void bind_distances(nb::module_ &m); // distances.cpp

void bind_factorize(nb::module_ &m) {
    bind_distances(m);
    m.def("lu", &lu);
    m.def("determinant", &determinant);
    m.def("pivots", &pivots);
    m.def("permutation", &permutation);
    m.def("solve", &solve, nb::arg().none(), nb::arg().none());
    m.def("substitute", &substitute);
    m.def("cholesky", &cholesky);
}

} // namespace resilin
