// Eigenvalues of symmetric matrices and singular values of square ones, with their vectors, by Jacobi's rotations, of
// small contiguous float32 and float64. A vector of 64 bytes holds one element of as many matrices of a batch.
//
// A sweep turns every pair of columns once, in the order of a tournament's rounds: pairs of a round have no column in
// common, so that the CPU works on several at once. Sweeps follow until none turns anything. What a matrix comes to
// depends on it alone: where a pair is turned in another matrix only, it stays as it is. Singular values are the lengths
// of the columns that rotations from the right have made orthogonal (M. Hestenes, "Inversion of matrices by
// biorthogonalization and related results", 1958).
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "kernels/simd.hpp"
#include "memory/parallel.hpp"
#include "memory/scratch.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t SMALL = 8;   // rows; for one matrix LAPACK is faster from there on
constexpr int64_t SWEEPS = 40; // at most; six are usual
template <class T> constexpr int64_t LANES = 64 / static_cast<int64_t>(sizeof(T));
template <class T> constexpr T EPS = std::numeric_limits<T>::epsilon();

template <class T> struct Turn {
    alignas(64) T active[LANES<T>], c[LANES<T>], s[LANES<T>], t[LANES<T>];
};

// All pairs p < q of n columns: in round r column r plays the last one of an even number, r + i plays r - i.
struct Pairs {
    int64_t count = 0, p[SMALL * (SMALL - 1) / 2], q[SMALL * (SMALL - 1) / 2];
    explicit Pairs(int64_t n) {
        const int64_t around = n + n % 2 - 1;
        for (int64_t round = 0; round < around; round++)
            for (int64_t i = 0; i <= around / 2; i++) {
                const int64_t a = (round + i) % around, b = i ? (round - i + around) % around : around;
                if (std::max(a, b) >= n) continue;
                p[count] = std::min(a, b);
                q[count++] = std::max(a, b);
            }
    }
};

// The rotations that make `pq` zero beside `pp` and `qq`, in lanes that are active; none in the others.
template <class T> RESILIN_INLINE void find_turn(const T *pp, const T *qq, const T *pq, Turn<T> &turn) {
    for (int64_t l = 0; l < LANES<T>; l++) {
        const T twice = turn.active[l] != 0 ? pq[l] + pq[l] : T(1);
        const T tau = (qq[l] - pp[l]) / twice;
        const T t = turn.active[l] / (tau + std::copysign(std::sqrt(fma(tau, tau, T(1))), tau));
        const T c = T(1) / std::sqrt(fma(t, t, T(1)));
        turn.t[l] = t;
        turn.c[l] = c;
        turn.s[l] = t * c;
    }
}
template <class T> RESILIN_INLINE void apply_turn(const Turn<T> &turn, T *x, T *y) {
    for (int64_t l = 0; l < LANES<T>; l++) {
        const T left = x[l], right = y[l];
        x[l] = fma(turn.c[l], left, -(turn.s[l] * right));
        y[l] = fma(turn.c[l], right, turn.s[l] * left);
    }
}
// Whether `size` is something beside `product` ** 0.5 by `least`, and at all; in any lane.
template <class T>
RESILIN_INLINE bool find_active(const T *of, const T *pp, const T *qq, T least, T floor, Turn<T> &turn) {
    T most = 0;
#pragma omp simd reduction(max : most)
    for (int64_t l = 0; l < LANES<T>; l++) {
        const T square = of[l] * of[l], product = pp[l] * qq[l];
        const T limit = least * least * (product < 0 ? -product : product);
        const T least_square = limit > floor * floor ? limit : floor * floor;
        const T active = square > least_square ? T(1) : T(0);
        turn.active[l] = active;
        most = active > most ? active : most;
    }
    return most != 0;
}

// The upper triangles at a[(i * n + j) * LANES] become diagonal, and rows of `v`, if any, the vectors.
template <class T> RESILIN_INLINE void diagonalize_of(T *a, T *v, int64_t n) {
    constexpr int64_t L = LANES<T>;
    const Pairs pairs(n);
    bool any = true;
    for (int64_t sweep = 0; any && sweep < SWEEPS; sweep++) {
        any = false;
        for (int64_t pair = 0; pair < pairs.count; pair++) {
            const int64_t p = pairs.p[pair], q = pairs.q[pair];
            T *pp = a + (p * n + p) * L, *qq = a + (q * n + q) * L, *pq = a + (p * n + q) * L;
            Turn<T> turn;
            // the largest element of a matrix is about one: what is far below its rounding is nothing
            if (!find_active(pq, pp, qq, EPS<T> / 4, EPS<T> * EPS<T> / 16, turn)) continue;
            any = true;
            find_turn(pp, qq, pq, turn);
            for (int64_t l = 0; l < L; l++) {
                pp[l] = fma(-turn.t[l], pq[l], pp[l]);
                qq[l] = fma(turn.t[l], pq[l], qq[l]);
                pq[l] = turn.active[l] != 0 ? T(0) : pq[l];
            }
            for (int64_t r = 0; r < p; r++) apply_turn(turn, a + (r * n + p) * L, a + (r * n + q) * L);
            for (int64_t r = p + 1; r < q; r++) apply_turn(turn, a + (p * n + r) * L, a + (r * n + q) * L);
            for (int64_t r = q + 1; r < n; r++) apply_turn(turn, a + (p * n + r) * L, a + (q * n + r) * L);
            if (v)
                for (int64_t r = 0; r < n; r++) apply_turn(turn, v + (p * n + r) * L, v + (q * n + r) * L);
        }
    }
}

// The columns, which are rows g[(column * n + i) * LANES], become orthogonal, and what is done to them is done to rows
// of `v`, if any. `square`: the squares of their lengths.
template <class T> RESILIN_INLINE void orthogonalize_of(T *g, T *v, T *square, int64_t n) {
    constexpr int64_t L = LANES<T>;
    auto dot = [n](const T *x, const T *y, T *sum) __attribute__((always_inline)) {
        for (int64_t l = 0; l < L; l++) sum[l] = T(0);
        for (int64_t i = 0; i < n; i++)
            for (int64_t l = 0; l < L; l++) sum[l] = fma(x[i * L + l], y[i * L + l], sum[l]);
    };
    const Pairs pairs(n);
    bool any = true;
    for (int64_t sweep = 0; any && sweep < SWEEPS; sweep++) {
        any = false;
        for (int64_t p = 0; p < n; p++) dot(g + p * n * L, g + p * n * L, square + p * L);
        for (int64_t pair = 0; pair < pairs.count; pair++) {
            const int64_t p = pairs.p[pair], q = pairs.q[pair];
            T *left = g + p * n * L, *right = g + q * n * L, *pp = square + p * L, *qq = square + q * L;
            alignas(64) T pq[L];
            dot(left, right, pq);
            Turn<T> turn;
            if (!find_active(pq, pp, qq, 4 * EPS<T>, T(0), turn)) continue;
            any = true;
            find_turn(pp, qq, pq, turn);
            for (int64_t l = 0; l < L; l++) {
                pp[l] = fma(-turn.t[l], pq[l], pp[l]);
                qq[l] = fma(turn.t[l], pq[l], qq[l]);
            }
            for (int64_t i = 0; i < n; i++) apply_turn(turn, left + i * L, right + i * L);
            if (v)
                for (int64_t i = 0; i < n; i++) apply_turn(turn, v + (p * n + i) * L, v + (q * n + i) * L);
        }
    }
    for (int64_t p = 0; p < n; p++) dot(g + p * n * L, g + p * n * L, square + p * L);
}
RESILIN_SIMD void diagonalize(float *a, float *v, int64_t n) { diagonalize_of(a, v, n); }
RESILIN_SIMD void diagonalize(double *a, double *v, int64_t n) { diagonalize_of(a, v, n); }
RESILIN_SIMD void orthogonalize(float *g, float *v, float *square, int64_t n) { orthogonalize_of(g, v, square, n); }
RESILIN_SIMD void orthogonalize(double *g, double *v, double *square, int64_t n) { orthogonalize_of(g, v, square, n); }

// Up to LANES matrices of n x n side by side, and the power of two that each was multiplied by.
template <class T> class Group {
  public:
    static constexpr int64_t L = LANES<T>;
    Group(int64_t n, int64_t used, bool vectors) : n_(n), used_(used) {
        static thread_local Scratch<T> scratch;
        a = scratch.of((2 * n * n + n) * L);
        square = a + n * n * L;
        v = vectors ? square + n * L : nullptr;
        if (!vectors) return;
        std::fill_n(v, n * n * L, T(0));
        for (int64_t i = 0; i < n; i++) std::fill_n(v + (i * n + i) * L, L, T(1));
    }

    // Element (i, j) is that at x[i * row + j * column] where `seen(i, j)`. Whether all of these are finite.
    template <class Seen> bool load(const T *x, int64_t row, int64_t column, Seen seen) {
        bool finite = true;
        for (int64_t l = 0; l < L; l++) {
            const T *from = x + std::min(l, used_ - 1) * n_ * n_;
            T most = 0;
            for (int64_t i = 0; i < n_; i++)
                for (int64_t j = 0; j < n_; j++) {
                    if (!seen(i, j)) continue;
                    const T size = std::fabs(from[i * row + j * column]);
                    finite &= size <= std::numeric_limits<T>::max();
                    most = size > most ? size : most;
                }
            int exponent = 0;
            std::frexp(most, &exponent);
            exponent_[l] = most > 0 ? std::clamp(exponent, -limit, limit) : 0;
            const T scale = std::ldexp(T(1), -exponent_[l]);
            for (int64_t i = 0; i < n_; i++)
                for (int64_t j = 0; j < n_; j++)
                    a[(i * n_ + j) * L + l] = seen(i, j) ? from[i * row + j * column] * scale : T(0);
        }
        return finite;
    }
    T unscaled(T x, int64_t lane) const { return std::ldexp(x, exponent_[lane]); }

    T *a, *v, *square;

  private:
    static constexpr int limit = std::numeric_limits<T>::max_exponent - 2;
    int64_t n_, used_;
    int exponent_[L];
};

// fn(first, used) for groups of LANES of `count` matrices
template <class T, class Fn> void each_group(int64_t count, int64_t n, Fn fn) {
    const int64_t groups = (count + LANES<T> - 1) / LANES<T>;
    parallel_rows(groups, 32 * n * n * n, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) fn(i * LANES<T>, std::min(LANES<T>, count - i * LANES<T>));
    });
}

template <class T> nb::object eigen_of(const Array &x, bool lower, bool vectors) {
    constexpr int64_t L = LANES<T>;
    const int64_t n = x.last();
    NewArray<T> values(x.ndim() - 1, PyArray_DIMS(x.array)), made(vectors ? x.ndim() : 0, PyArray_DIMS(x.array));
    std::atomic<bool> finite{true};
    {
        WithoutGil free(x.size() * 64);
        each_group<T>(x.size() / (n * n), n, [&](int64_t first, int64_t used) {
            Group<T> group(n, used, vectors);
            const T *from = x.data<T>() + first * n * n;
            if (!group.load(from, lower ? 1 : n, lower ? n : 1, [](int64_t i, int64_t j) { return i <= j; })) {
                finite.store(false, std::memory_order_relaxed);
                return;
            }
            diagonalize(group.a, group.v, n);
            for (int64_t l = 0; l < used; l++) {
                int64_t order[SMALL];
                std::iota(order, order + n, int64_t{0});
                auto value = [&](int64_t i) { return group.a[(i * n + i) * L + l]; };
                std::stable_sort(order, order + n, [&](int64_t i, int64_t j) { return value(i) < value(j); });
                T *found = values.data + (first + l) * n;
                for (int64_t k = 0; k < n; k++) found[k] = group.unscaled(value(order[k]), l) + T(0);
                T *to = made.data + (first + l) * n * n;
                for (int64_t i = 0; vectors && i < n; i++)
                    for (int64_t k = 0; k < n; k++) to[i * n + k] = group.v[(order[k] * n + i) * L + l] + T(0);
            }
        });
    }
    if (!finite) return nb::none();
    return vectors ? nb::object(nb::make_tuple(values.object, made.object)) : values.object;
}

bool is_small(const Array &x) {
    return x && x.ndim() >= 2 && x.size() && x.dim(x.ndim() - 2) == x.last() && x.last() <= SMALL;
}

// Ascending eigenvalues of the lower or the upper triangles, or (these, vectors); None of others and of what is not
// finite.
nb::object small_eigen(Array x, bool lower, bool vectors) {
    if (!is_small(x)) return nb::none();
    if (x.is<float>()) return eigen_of<float>(x, lower, vectors);
    return x.is<double>() ? eigen_of<double>(x, lower, vectors) : nb::none();
}

template <class T> nb::object singular_of(const Array &x, bool vectors) {
    constexpr int64_t L = LANES<T>;
    const int64_t n = x.last(), count = x.size() / (n * n);
    NewArray<T> u(vectors ? x.ndim() : 0, PyArray_DIMS(x.array)), values(x.ndim() - 1, PyArray_DIMS(x.array));
    NewArray<T> vh(vectors ? x.ndim() : 0, PyArray_DIMS(x.array));
    std::atomic<bool> finite{true};
    std::vector<char> lower_rank(static_cast<size_t>(count));
    {
        WithoutGil free(x.size() * 64);
        each_group<T>(count, n, [&](int64_t first, int64_t used) {
            Group<T> group(n, used, vectors);
            if (!group.load(x.data<T>() + first * n * n, 1, n, [](int64_t, int64_t) { return true; })) {
                finite.store(false, std::memory_order_relaxed);
                return;
            }
            orthogonalize(group.a, group.v, group.square, n);
            for (int64_t l = 0; l < used; l++) {
                int64_t order[SMALL];
                T size[SMALL];
                std::iota(order, order + n, int64_t{0});
                for (int64_t k = 0; k < n; k++) size[k] = std::sqrt(group.square[k * L + l]);
                std::stable_sort(order, order + n, [&](int64_t i, int64_t j) { return size[i] > size[j]; });
                for (int64_t k = 0; k < n; k++) values.data[(first + l) * n + k] = group.unscaled(size[order[k]], l);
                if (!vectors) continue;
                const T least = 4 * static_cast<T>(n) * EPS<T> * size[order[0]];
                lower_rank[static_cast<size_t>(first + l)] = !(size[order[n - 1]] > least);
                T *left = u.data + (first + l) * n * n, *right = vh.data + (first + l) * n * n;
                for (int64_t k = 0; k < n; k++)
                    for (int64_t i = 0; i < n; i++) {
                        left[i * n + k] = group.a[(order[k] * n + i) * L + l] / size[order[k]] + T(0);
                        right[k * n + i] = group.v[(order[k] * n + i) * L + l] + T(0);
                    }
            }
        });
    }
    if (!finite) return nb::none();
    if (!vectors) return values.object;
    nb::list missing;
    for (int64_t i = 0; i < count; i++)
        if (lower_rank[static_cast<size_t>(i)]) missing.append(i);
    return nb::make_tuple(u.object, values.object, vh.object, missing);
}

// Descending singular values, or (U, these, Vh, matrices whose U is not whole, as their rank is lower); None as above.
nb::object small_singular(Array x, bool vectors) {
    if (!is_small(x)) return nb::none();
    if (x.is<float>()) return singular_of<float>(x, vectors);
    return x.is<double>() ? singular_of<double>(x, vectors) : nb::none();
}

} // namespace

void bind_jacobi(nb::module_ &m) {
    m.def("small_eigen", &small_eigen);
    m.def("small_singular", &small_singular);
}

} // namespace resilin
