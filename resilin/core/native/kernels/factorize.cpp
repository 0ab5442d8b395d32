// LU factors with exchanges of rows, and systems with triangles, of contiguous float32 and float64; batches share the
// threads, a single matrix's products do.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/scratch.hpp"
#include "triangular.hpp"

#include <cmath>
#include <utility>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t PANEL = 32;

// One panel of `width` columns from (j, j) on of an m x n matrix, rows n apart: column by column, in a copy whose columns
// are contiguous. The pivots are rows counted from 1, `zero` is the number of the first that is zero.
template <class T> void factorize_panel(T *a, int64_t m, int64_t n, int64_t j, int64_t width, bool pivot, int32_t *pivots, int32_t &zero) {
    static thread_local Scratch<T> scratch;
    const int64_t rows = m - j;
    T *p = scratch.of(rows * width);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < width; c++) p[c * rows + r] = a[(j + r) * n + j + c];
    for (int64_t k = 0; k < std::min(width, rows); k++) {
        T *column = p + k * rows;
        int64_t best = k;
        if (pivot)
            for (int64_t r = k + 1; r < rows; r++)
                if (std::fabs(column[r]) > std::fabs(column[best]) || (column[r] != column[r] && column[best] == column[best]))
                    best = r;
        pivots[j + k] = static_cast<int32_t>(j + best + 1);
        if (best != k)
            for (int64_t c = 0; c < width; c++) std::swap(p[c * rows + k], p[c * rows + best]);
        const T head = column[k];
        if (head == 0 && !zero) zero = static_cast<int32_t>(j + k + 1);
        if (head != 0)
            for (int64_t r = k + 1; r < rows; r++) column[r] /= head;
        for (int64_t c = k + 1; c < width; c++) {
            T *other = p + c * rows;
            const T factor = other[k];
            for (int64_t r = k + 1; r < rows; r++) other[r] -= column[r] * factor;
        }
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < width; c++) a[(j + r) * n + j + c] = p[c * rows + r];
}

template <class T> int32_t factorize(T *a, int64_t m, int64_t n, bool pivot, int32_t *pivots, bool threads) {
    int32_t zero = 0;
    const int64_t k = std::min(m, n);
    static thread_local Scratch<T> scratch;
    for (int64_t j = 0; j < k; j += PANEL) {
        const int64_t width = std::min(PANEL, k - j), right = n - j - width, below = m - j - width;
        factorize_panel(a, m, n, j, width, pivot, pivots, zero);
        for (int64_t i = j; i < j + width; i++) {
            const int64_t other = pivots[i] - 1;
            if (other == i) continue;
            std::swap_ranges(a + i * n, a + i * n + j, a + other * n);
            std::swap_ranges(a + i * n + j + width, a + (i + 1) * n, a + other * n + j + width);
        }
        if (!right) continue;
        T *corner = a + j * n + j;
        solve_triangle(corner, n, width, false, true, corner + width, right, n, threads);
        if (!below) continue;
        T *turned = scratch.of(below * width), *left = corner + width * n;
        for (int64_t r = 0; r < below; r++)
            for (int64_t c = 0; c < width; c++) turned[r * width + c] = -left[r * n + c];
        Product<T> product{below, right, width, {turned, width, 1}, {corner + width, n, 1}, left + width, n, left + width, n};
        multiply(product, threads);
    }
    return zero;
}

template <class T> nb::object lu_of(const Array &x, bool pivot) {
    const int64_t m = x.dim(x.ndim() - 2), n = x.last(), k = std::min(m, n), count = m && n ? x.size() / (m * n) : 0;
    if (!count) return nb::none();
    NewArray<T> packed(x);
    std::vector<npy_intp> dims(PyArray_DIMS(x.array), PyArray_DIMS(x.array) + x.ndim() - 1);
    NewArray<int32_t> info(x.ndim() - 2, dims.data());
    dims.back() = k;
    NewArray<int32_t> pivots(x.ndim() - 1, dims.data());
    nb::object made = nb::make_tuple(packed.object, pivots.object, info.object);
    WithoutGil free(x.size() * 8);
    std::copy_n(x.data<T>(), x.size(), packed.data);
    const bool batch = count >= 2 * num_threads();
    auto some = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++)
            info.data[i] = factorize(packed.data + i * m * n, m, n, pivot, pivots.data + i * k, !batch);
    };
    if (batch) parallel_rows(count, m * n * k / 4, some);
    else some(0, count);
    return made;
}

// (packed, pivots, info); None for what numpy factorizes
nb::object lu(Array x, bool pivot) {
    if (!x || x.ndim() < 2) return nb::none();
    if (x.is<float>()) return lu_of<float>(x, pivot);
    return x.is<double>() ? lu_of<double>(x, pivot) : nb::none();
}

template <class T> void solve(const Array &t, T *b, int64_t columns, bool upper, bool unit) {
    const int64_t n = t.last(), count = t.size() / (n * n);
    const bool batch = count >= 2 * num_threads();
    auto some = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++)
            solve_triangle(t.data<T>() + i * n * n, n, n, upper, unit, b + i * n * columns, columns, columns, !batch);
    };
    if (batch) parallel_rows(count, n * n * columns / 2, some);
    else some(0, count);
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
    if (single) solve(t, b.data<float>(), b.last(), upper, unit);
    else solve(t, b.data<double>(), b.last(), upper, unit);
    return true;
}

} // namespace

void bind_factorize(nb::module_ &m) {
    m.def("lu", &lu);
    m.def("substitute", &substitute);
}

} // namespace resilin
