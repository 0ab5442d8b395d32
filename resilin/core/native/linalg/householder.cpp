// Q R by Householder's reflections, and the least squares that come to it, of contiguous float32 and float64: columns in
// blocks, whose reflections are applied to what is right of them as three matrix products (R. Schreiber and C. Van Loan,
// "A storage-efficient WY representation for products of Householder transformations", 1989). Signs as LAPACK's.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "kernels/simd.hpp"
#include "memory/parallel.hpp"
#include "memory/scratch.hpp"
#include "triangular.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t BLOCK = 32; // reflections of a block

// The sum of x[i] * y[i] in 32 lanes, folded in one tree.
template <class Sum, class T> RESILIN_INLINE Sum dot_in_lanes(const T *x, const T *y, int64_t n) {
    constexpr int64_t W = 32;
    Sum lanes[W] = {};
    int64_t i = 0;
    for (; i + W <= n; i += W)
        for (int64_t j = 0; j < W; j++) lanes[j] = fma(Sum(x[i + j]), Sum(y[i + j]), lanes[j]);
    for (int64_t j = 0; i + j < n; j++) lanes[j] = fma(Sum(x[i + j]), Sum(y[i + j]), lanes[j]);
    for (int64_t width = W / 2; width > 0; width /= 2)
        for (int64_t j = 0; j < width; j++) lanes[j] += lanes[j + width];
    return lanes[0];
}

// The length of a vector; of float32 in float64, of float64 scaled where squares would leave its range.
RESILIN_INLINE double length_of(const float *x, int64_t n) { return std::sqrt(dot_in_lanes<double>(x, x, n)); }
RESILIN_INLINE double length_of(const double *x, int64_t n) {
    const double sum = dot_in_lanes<double>(x, x, n);
    if (sum < 1e300 && sum > 1e-280) return std::sqrt(sum);
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = std::max(most, std::fabs(x[i]));
    if (!(most > 0) || std::isinf(most)) return sum == sum ? most : sum;
    double scaled = 0;
    for (int64_t i = 0; i < n; i++) scaled += x[i] / most * (x[i] / most);
    return most * std::sqrt(scaled);
}

// Reflections that make the first `width` columns of a matrix triangular: column j has `rows` elements from v + j * step
// on. Afterwards those from the diagonal up are R's, those below belong to v, whose first element is a one.
template <class T> RESILIN_INLINE void reflect_columns(T *v, int64_t rows, int64_t width, int64_t step, T *tau) {
    for (int64_t j = 0; j < width; j++) {
        T *x = v + j * step;
        tau[j] = 0;
        if (j >= rows) continue;
        const T head = x[j], tail = static_cast<T>(length_of(x + j + 1, rows - j - 1));
        if (tail == 0) continue;
        const T length = std::hypot(head, tail), diagonal = head < 0 ? length : -length;
        tau[j] = (diagonal - head) / diagonal;
        const T under = head - diagonal;
        for (int64_t i = j + 1; i < rows; i++) x[i] /= under;
        x[j] = 1;
        for (int64_t c = j + 1; c < width; c++) {
            T *other = v + c * step;
            const T factor = -tau[j] * dot_in_lanes<T>(x + j, other + j, rows - j);
            for (int64_t i = j; i < rows; i++) other[i] = fma(factor, x[i], other[i]);
        }
        x[j] = diagonal;
    }
}
RESILIN_SIMD void reflect(float *v, int64_t rows, int64_t width, int64_t step, float *tau) { reflect_columns(v, rows, width, step, tau); }
RESILIN_SIMD void reflect(double *v, int64_t rows, int64_t width, int64_t step, double *tau) { reflect_columns(v, rows, width, step, tau); }

// An m x n matrix, kept as the n x m one whose rows are its columns, made of reflections and R in place.
template <class T> class Reflections {
  public:
    Reflections(T *columns, int64_t m, int64_t n, bool threads)
        : a_(columns), m_(m), n_(n), k_(std::min(m, n)), threads_(threads), v_(static_cast<size_t>(std::min(k_, BLOCK) * m)),
          factors_(static_cast<size_t>((k_ + BLOCK - 1) / BLOCK * BLOCK * BLOCK)) {
        std::vector<T> tau(static_cast<size_t>(BLOCK));
        for (int64_t j = 0; j < k_; j += BLOCK) {
            const int64_t width = std::min(BLOCK, k_ - j);
            reflect(a_ + j * m_ + j, m_ - j, width, m_, tau.data());
            join(j, width, tau.data());
            if (j + width < n_) apply_block(j, a_ + (j + width) * m_ + j, n_ - j - width, m_, true);
        }
    }

    T r(int64_t i, int64_t j) const { return i <= j ? a_[j * m_ + i] : T(0); }

    // Q^T X (`back`) or Q X, for X of `columns` columns, each a row of `x`; those from row `first` on that have something.
    void apply(T *x, int64_t columns, bool back) {
        const int64_t blocks = (k_ + BLOCK - 1) / BLOCK;
        for (int64_t i = 0; i < blocks; i++) {
            const int64_t j = (back ? i : blocks - 1 - i) * BLOCK;
            apply_block(j, x + j, columns, m_, back);
        }
    }

    // The first `columns` columns of Q, as rows of `x`.
    void form(T *x, int64_t columns) {
        std::fill_n(x, columns * m_, T(0));
        for (int64_t i = 0; i < columns; i++) x[i * m_ + i] = T(1);
        for (int64_t j = (k_ - 1) / BLOCK * BLOCK; j >= 0; j -= BLOCK)
            apply_block(j, x + j * m_ + j, columns - j, m_, false); // those before are untouched by it
    }

  private:
    // v_: the block's vectors with their ones and zeros
    void unpack(int64_t j, int64_t width) {
        const int64_t rows = m_ - j;
        for (int64_t c = 0; c < width; c++) {
            T *v = v_.data() + c * rows;
            const T *x = a_ + (j + c) * m_ + j;
            std::fill_n(v, std::min(c, rows), T(0));
            if (c >= rows) continue;
            v[c] = T(1);
            std::copy(x + c + 1, x + rows, v + c + 1);
        }
    }

    // The block's upper triangle F, so that its reflections together are 1 - V F V^T.
    void join(int64_t j, int64_t width, const T *tau) {
        unpack(j, width);
        const int64_t rows = m_ - j;
        T inner[BLOCK * BLOCK], *f = factors_.data() + j * BLOCK;
        const T *v = v_.data();
        multiply<T>({width, width, rows, {v, rows, 1}, {v, 1, rows}, inner, width}, false);
        std::fill_n(f, BLOCK * BLOCK, T(0));
        for (int64_t c = 0; c < width; c++) {
            for (int64_t i = 0; i < c; i++) {
                T sum = 0;
                for (int64_t l = i; l < c; l++) sum = fma(f[i * BLOCK + l], inner[l * width + c], sum);
                f[i * BLOCK + c] = -tau[c] * sum;
            }
            f[c * BLOCK + c] = tau[c];
        }
    }

    // What block j makes of X, whose columns are rows of `x` from row j on, `ld` apart: X - V F V^T X, or with F^T (`back`).
    void apply_block(int64_t j, T *x, int64_t columns, int64_t ld, bool back) {
        const int64_t width = std::min(BLOCK, k_ - j), rows = m_ - j;
        unpack(j, width);
        T turned[BLOCK * BLOCK];
        const T *v = v_.data(), *f = factors_.data() + j * BLOCK;
        for (int64_t i = 0; i < width; i++)
            for (int64_t c = 0; c < width; c++) turned[i * width + c] = -(back ? f[i * BLOCK + c] : f[c * BLOCK + i]);
        inner_.resize(static_cast<size_t>(2 * columns * width));
        T *first = inner_.data(), *second = first + columns * width;
        multiply<T>({columns, width, rows, {x, ld, 1}, {v, 1, rows}, first, width}, threads_);
        multiply<T>({columns, width, width, {first, width, 1}, {turned, width, 1}, second, width}, threads_);
        multiply<T>({columns, rows, width, {second, width, 1}, {v, rows, 1}, x, ld, x, ld}, threads_);
    }

    T *a_;
    const int64_t m_, n_, k_;
    const bool threads_;
    std::vector<T> v_, factors_, inner_;
};

// to[j, i] = from[i, j]
template <class T> void turn(const T *from, int64_t rows, int64_t columns, int64_t ld, T *to, int64_t ld_to) {
    constexpr int64_t EDGE = 16;
    for (int64_t i0 = 0; i0 < rows; i0 += EDGE)
        for (int64_t j0 = 0; j0 < columns; j0 += EDGE)
            for (int64_t j = j0; j < std::min(columns, j0 + EDGE); j++)
                for (int64_t i = i0; i < std::min(rows, i0 + EDGE); i++) to[j * ld_to + i] = from[i * ld + j];
}

template <class T> nb::object qr_of(const Array &x, bool complete) {
    const int64_t m = x.dim(x.ndim() - 2), n = x.last(), k = std::min(m, n), wide = complete ? m : k, count = x.size() / (m * n);
    std::vector<npy_intp> dims(PyArray_DIMS(x.array), PyArray_DIMS(x.array) + x.ndim());
    dims[dims.size() - 2] = wide;
    NewArray<T> r(x.ndim(), dims.data());
    dims[dims.size() - 2] = m;
    dims.back() = wide;
    NewArray<T> q(x.ndim(), dims.data());
    nb::object made = nb::make_tuple(q.object, r.object);
    WithoutGil free(x.size() * 8);
    each_matrix(count, m * n * k, [&](int64_t i, bool threads) {
        static thread_local Scratch<T> scratch;
        T *columns = scratch.of((n + wide) * m), *formed = columns + n * m;
        turn(x.data<T>() + i * m * n, m, n, n, columns, m);
        Reflections<T> reflections(columns, m, n, threads);
        T *upper = r.data + i * wide * n;
        for (int64_t row = 0; row < wide; row++)
            for (int64_t c = 0; c < n; c++) upper[row * n + c] = reflections.r(row, c);
        reflections.form(formed, wide);
        turn(formed, wide, m, m, q.data + i * m * wide, wide);
    });
    return made;
}

// (Q, R); None for what numpy factorizes
nb::object qr(Array x, bool complete) {
    if (!x || x.ndim() < 2 || !x.size()) return nb::none();
    if (x.is<float>()) return qr_of<float>(x, complete);
    return x.is<double>() ? qr_of<double>(x, complete) : nb::none();
}

// The root of the sum of squares.
template <class T> double frobenius(const T *x, int64_t size) {
    double sum = 0;
    for (int64_t i = 0; i < size; i++) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    return std::sqrt(sum);
}

// Of a triangle R, k x k, whose columns are rows of `t`, with zeros: whether its smallest singular value is certainly
// more than `rtol` of its largest one. The Frobenius norms of R and of its inverse bound these two, and the roots of
// those of R^T R and of its inverse, which are closer.
template <class T> bool well_conditioned(const T *t, int64_t k, double rtol, bool threads) {
    std::vector<T> inverse(static_cast<size_t>(k * k));
    for (int64_t i = 0; i < k; i++) inverse[static_cast<size_t>(i * k + i)] = T(1);
    const int64_t first = 0;
    solve_triangle<T>({{t, k, 1}, false, false}, k, inverse.data(), k, k, threads, &first);
    const double bound = frobenius(t, k * k) * frobenius(inverse.data(), k * k) * rtol;
    if (!(bound < 0.5 * std::sqrt(static_cast<double>(k)))) return bound < 0.5; // false for NaN
    if (bound < 0.5) return true;
    std::vector<T> product(static_cast<size_t>(k * k));
    multiply<T>({k, k, k, {t, k, 1}, {t, 1, k}, product.data(), k}, threads);
    const double largest = std::sqrt(frobenius(product.data(), k * k));
    multiply<T>({k, k, k, {inverse.data(), k, 1}, {inverse.data(), 1, k}, product.data(), k}, threads);
    return largest * std::sqrt(frobenius(product.data(), k * k)) * rtol < 0.5;
}

// R^T of the reflections of a matrix, or of its transpose where it is wide: `lower`, k x k.
template <class T> void lower_of(const Reflections<T> &reflections, int64_t k, T *lower) {
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < k; j++) lower[i * k + j] = reflections.r(j, i);
}

template <class T> void identity(int64_t n, T *x) {
    std::fill_n(x, n * n, T(0));
    for (int64_t i = 0; i < n; i++) x[i * n + i] = T(1);
}

// The shortest X with least |A X - B|, B the identity without `b`; false where A may not have full rank.
template <class T> bool least_squares_one(const T *a, const T *b, int64_t m, int64_t n, int64_t right, double rtol, T *x, bool threads) {
    const int64_t k = std::min(m, n), longer = std::max(m, n);
    static thread_local Scratch<T> scratch;
    T *columns = scratch.of(k * longer + k * k + k * right + longer * right);
    T *lower = columns + k * longer, *y = lower + k * k, *z = y + k * right;
    if (m >= n) turn(a, m, n, n, columns, m);
    else std::copy_n(a, m * n, columns);
    Reflections<T> reflections(columns, longer, k, threads);
    lower_of(reflections, k, lower);
    if (!well_conditioned(lower, k, rtol, threads)) return false;
    if (m >= n) { // R X = Q^T B
        if (b) turn(b, m, right, right, z, m);
        else identity(m, z);
        reflections.apply(z, right, true);
        turn(z, right, k, m, x, right);
        solve_triangle<T>({{lower, 1, k}, true, false}, k, x, right, right, threads);
    } else { // X = Q Y, R^T Y = B
        if (b) std::copy_n(b, k * right, y);
        else identity(k, y);
        solve_triangle<T>({{lower, k, 1}, false, false}, k, y, right, right, threads);
        std::fill_n(z, longer * right, T(0));
        turn(y, k, right, right, z, longer);
        reflections.apply(z, right, false);
        turn(z, right, longer, longer, x, right);
    }
    return true;
}

template <class T> bool full_rank_one(const T *a, int64_t m, int64_t n, double rtol, bool threads) {
    const int64_t k = std::min(m, n), longer = std::max(m, n);
    static thread_local Scratch<T> scratch;
    T *columns = scratch.of(k * longer + k * k), *lower = columns + k * longer;
    if (m >= n) turn(a, m, n, n, columns, m);
    else std::copy_n(a, m * n, columns);
    lower_of(Reflections<T>(columns, longer, k, threads), k, lower);
    return well_conditioned(lower, k, rtol, threads);
}

template <class T> bool full_rank_of(const Array &a, double rtol) {
    const int64_t m = a.dim(a.ndim() - 2), n = a.last(), count = a.size() / (m * n);
    std::vector<char> done(static_cast<size_t>(count));
    WithoutGil free(a.size() * 8);
    each_matrix(count, m * n * n, [&](int64_t i, bool threads) {
        done[static_cast<size_t>(i)] = full_rank_one(a.data<T>() + i * m * n, m, n, rtol, threads);
    });
    return std::find(done.begin(), done.end(), 0) == done.end();
}

// Whether the singular values of all matrices are certainly more than `rtol` times the largest.
bool full_rank(Array a, double rtol) {
    if (!a || a.ndim() < 2 || !a.size()) return false;
    if (a.is<float>()) return full_rank_of<float>(a, rtol);
    return a.is<double>() && full_rank_of<double>(a, rtol);
}

template <class T> nb::object least_squares_of(const Array &a, const Array &b, double rtol) {
    const int64_t m = a.dim(a.ndim() - 2), n = a.last(), right = b ? b.last() : m, count = a.size() / (m * n);
    std::vector<npy_intp> dims(PyArray_DIMS(a.array), PyArray_DIMS(a.array) + a.ndim());
    dims[dims.size() - 2] = n;
    dims[dims.size() - 1] = right;
    NewArray<T> x(a.ndim(), dims.data());
    std::vector<char> done(static_cast<size_t>(count));
    {
        WithoutGil free(a.size() * 8);
        each_matrix(count, m * n * (n + right), [&](int64_t i, bool threads) {
            const T *of_b = b ? b.data<T>() + i * m * right : nullptr;
            done[static_cast<size_t>(i)] =
                least_squares_one(a.data<T>() + i * m * n, of_b, m, n, right, rtol, x.data + i * n * right, threads);
        });
    }
    if (std::find(done.begin(), done.end(), 0) != done.end()) return nb::none();
    return x.object;
}

// X, pseudo-inverses without `b`, of matrices that certainly have full rank: singular values of all are more than `rtol`
// times the largest; None of others.
nb::object least_squares(Array a, Array b, double rtol) {
    const int dims = a ? a.ndim() : 0;
    if (dims < 2 || !a.size()) return nb::none();
    if (b) {
        if (b.ndim() != dims || a.dim(dims - 2) != b.dim(dims - 2) || !b.size()) return nb::none();
        for (int d = 0; d < dims - 2; d++)
            if (a.dim(d) != b.dim(d)) return nb::none();
    }
    if (a.is<float>() && b.is_or_none<float>()) return least_squares_of<float>(a, b, rtol);
    return a.is<double>() && b.is_or_none<double>() ? least_squares_of<double>(a, b, rtol) : nb::none();
}

} // namespace

void bind_householder(nb::module_ &m) {
    m.def("qr", &qr);
    m.def("least_squares", &least_squares, nb::arg().none(), nb::arg().none(), nb::arg());
    m.def("full_rank", &full_rank);
}

} // namespace resilin
