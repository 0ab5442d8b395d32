#include "transform.hpp"

#include "kernels/simd.hpp"
#include "memory/parallel.hpp"
#include "memory/scratch.hpp"

#include <algorithm>
#include <list>
#include <mutex>
#include <utility>

namespace resilin {
namespace {

constexpr int64_t SHORT = 256;             // below, rows share vectors: two buffers of so many points take 64 KiB
constexpr int64_t AWKWARD = 1024;          // below, they do so, too, where every split leaves half of its lanes empty
constexpr int64_t TABLE = 1 << 16;         // elements up to which all of `turns` are kept, 8 bytes each
constexpr int64_t KEPT = 32;               // plans
constexpr int64_t WORK = 16;               // operations for an element, roughly
constexpr int64_t LONGEST_KEPT = 1 << 20;  // numbers between the halves of a split row whose memory is used again

// The plan for a length; those of the last lengths are kept.
template <class Plan> std::shared_ptr<const Plan> kept_plan(int64_t n) {
    static std::mutex mutex; // guards `plans`, the last one first
    static std::list<std::shared_ptr<const Plan>> plans;
    {
        std::lock_guard<std::mutex> lock(mutex);
        for (auto i = plans.begin(); i != plans.end(); ++i)
            if ((*i)->n == n) {
                plans.splice(plans.begin(), plans, i);
                return plans.front();
            }
    }
    auto made = std::make_shared<const Plan>(n);
    std::lock_guard<std::mutex> lock(mutex);
    plans.push_front(made);
    if (static_cast<int64_t>(plans.size()) > KEPT) plans.pop_back();
    return made;
}

// LANES neighbours of `width` columns from interleaved complex numbers, or real ones, n2 apart.
template <class T>
RESILIN_INLINE void load_columns(const T *from, bool real, bool exchanged, int64_t points, int64_t step, int64_t width, T *to) {
    constexpr int64_t W = LANES_OF<T>;
    const int64_t re = exchanged ? W : 0, im = W - re;
    if (width == W && !real) return pairs_to_lanes(from, 2 * step, points, to + re, to + im);
    for (int64_t p = 0; p < points; p++, to += 2 * W) {
        if (width < W)
            for (int64_t l = 0; l < 2 * W; l++) to[l] = 0;
        T *__restrict a = to + re, *__restrict b = to + im;
        if (real) {
            const T *x = from + p * step;
            for (int64_t l = 0; l < width; l++) a[l] = x[l];
            for (int64_t l = 0; l < width; l++) b[l] = 0;
        } else {
            const T *x = from + 2 * p * step;
            for (int64_t l = 0; l < width; l++) a[l] = x[2 * l], b[l] = x[2 * l + 1];
        }
    }
}

template <class T>
RESILIN_INLINE void store_columns(const T *from, bool exchanged, int64_t points, int64_t step, int64_t width, T scale, T *to) {
    constexpr int64_t W = LANES_OF<T>;
    const int64_t re = exchanged ? W : 0, im = W - re;
    if (width == W) return lanes_to_pairs(from + re, from + im, points, scale, to, 2 * step);
    for (int64_t p = 0; p < points; p++, from += 2 * W) {
        const T *a = from + re, *b = from + im;
        T *__restrict x = to + 2 * p * step;
        for (int64_t l = 0; l < width; l++) x[2 * l] = a[l] * scale, x[2 * l + 1] = b[l] * scale;
    }
}

// Points k < n, W columns each, times `turns`; then the columns become points: blocks of W points are turned around, and
// the block of points k0 lies `block` after the one before.
template <class T> RESILIN_INLINE void turn_around(T *x, int64_t n, const T *turns, const T *bases, int64_t width, T *to, int64_t block) {
    constexpr int64_t W = LANES_OF<T>;
    for (int64_t k0 = 0; k0 < n; k0 += W, to += block) {
        const int64_t end = std::min(n, k0 + W);
        for (int64_t k = k0; k < end; k++) {
            T *__restrict re = x + 2 * W * k, *__restrict im = re + W;
            const T *c = turns + 2 * W * k, *s = c + W;
            if (bases) {
                const T u = bases[2 * k], v = bases[2 * k + 1];
                for (int64_t l = 0; l < W; l++) {
                    const T cosine = fma(c[l], u, -(s[l] * v)), sine = fma(c[l], v, s[l] * u), a = re[l], b = im[l];
                    re[l] = fma(a, cosine, -(b * sine));
                    im[l] = fma(a, sine, b * cosine);
                }
            } else {
                for (int64_t l = 0; l < W; l++) {
                    const T a = re[l], b = im[l];
                    re[l] = fma(a, c[l], -(b * s[l]));
                    im[l] = fma(a, s[l], b * c[l]);
                }
            }
        }
        for (int64_t part = 0; part < 2 * W; part += W) {
            const T *from = x + 2 * W * k0 + part;
            T *__restrict out = to + part;
            if (end - k0 == W && width == W) {
                turn_square(from, 2 * W, out, 2 * W);
                continue;
            }
            for (int64_t l = 0; l < width; l++)
                for (int64_t k = 0; k < W; k++) out[2 * W * l + k] = k < end - k0 ? from[2 * W * k + l] : T(0);
        }
    }
}

constexpr int64_t CHUNK = 8; // points of LANES frequencies that are taken apart at a time, at most

// exp(-2 pi i k / n) for `count` neighbours k.
template <class T> RESILIN_INLINE void turns_of(const Halves<T> &plan, int64_t first, int64_t count, T *cosines, T *sines) {
    if (!plan.cosines.empty()) {
        std::copy_n(plan.cosines.data() + first, count, cosines);
        std::copy_n(plan.sines.data() + first, count, sines);
        return;
    }
    const Roots &roots = plan.roots;
    for (int64_t i = 0; i < count; i++) {
        const double *u = roots.coarse.data() + 2 * ((first + i) / roots.step), *v = roots.fine.data() + 2 * ((first + i) % roots.step);
        cosines[i] = static_cast<T>(u[0] * v[0] - u[1] * v[1]);
        sines[i] = static_cast<T>(u[0] * v[1] + u[1] * v[0]);
    }
}

// X[k] of Z[k] and Z[h - k], without 1 / 2, and (`JOINS`) the opposite.
template <bool JOINS, class T> RESILIN_INLINE void combine(T a, T b, T d, T e, T c, T s, T &re, T &im) {
    const T even_re = a + d, even_im = b - e, rest_re = a - d, rest_im = b + e;
    if constexpr (JOINS) {
        re = even_re - fma(rest_im, c, -(rest_re * s));
        im = even_im + fma(rest_re, c, rest_im * s);
    } else {
        re = even_re + fma(rest_im, c, rest_re * s);
        im = even_im + fma(rest_im, s, -(rest_re * c));
    }
}

// Of the frequencies 0 < k < h of `from`, and of h - k, those of `to`, times `scale`.
template <bool JOINS, class T> RESILIN_INLINE void combine_all(const T *from, const Halves<T> &plan, T scale, T *to) {
    constexpr int64_t W = LANES_OF<T>, MOST = CHUNK * W;
    const int64_t h = plan.n / 2;
    alignas(64) T here[2 * MOST], there[2 * MOST], made[2 * MOST], cosines[MOST], sines[MOST];
    for (int64_t k = 1; k < h; k += MOST) {
        const int64_t count = std::min(MOST, h - k);
        turns_of(plan, k, count, cosines, sines);
        const int64_t points = count / W, some = points * W;
        for (int64_t i = some; i < count; i++) {
            const T *x = from + 2 * (k + i), *y = from + 2 * (h - k - i);
            T re, im;
            combine<JOINS>(x[0], x[1], y[0], y[1], cosines[i], sines[i], re, im);
            to[2 * (k + i)] = re * scale, to[2 * (k + i) + 1] = im * scale;
        }
        if (!points) continue;
        pairs_to_lanes(from + 2 * k, 2 * W, points, here, here + W);
        pairs_to_lanes(from + 2 * (h - k - some + 1), 2 * W, points, there, there + W);
        for (int64_t p = 0; p < points; p++) {
            const T *x = here + 2 * W * p, *y = there + 2 * W * (points - 1 - p), *c = cosines + W * p, *s = sines + W * p;
            T *z = made + 2 * W * p;
            for (int64_t l = 0; l < W; l++) combine<JOINS>(x[l], x[l + W], y[W - 1 - l], y[2 * W - 1 - l], c[l], s[l], z[l], z[l + W]);
        }
        lanes_to_pairs(made, made + W, points, scale, to + 2 * k, 2 * W);
    }
}

// X[k], k <= h, of a real signal of 2 h numbers, of the transform z of its pairs as complex numbers.
template <class T> RESILIN_INLINE void part_halves(const T *z, const Halves<T> &plan, T scale, T *x) {
    const int64_t h = plan.n / 2;
    combine_all<false>(z, plan, scale / 2, x);
    x[0] = (z[0] + z[1]) * scale, x[1] = 0;
    x[2 * h] = (z[0] - z[1]) * scale, x[2 * h + 1] = 0;
}

// The opposite: z, whose inverse is the signal's pairs, of X; the imaginary parts of X[0] and X[h] do not count.
template <class T> RESILIN_INLINE void join_halves(const T *x, const Halves<T> &plan, T *z) {
    const int64_t h = plan.n / 2;
    combine_all<true>(x, plan, T(1), z);
    z[0] = x[0] + x[2 * h];
    z[1] = x[0] - x[2 * h];
}

#define RESILIN_FOURIER(T)                                                                                             \
    RESILIN_SIMD void load_some_columns(const T *from, bool real, bool exchanged, int64_t points, int64_t step, int64_t width, T *to) { \
        load_columns(from, real, exchanged, points, step, width, to);                                                  \
    }                                                                                                                  \
    RESILIN_SIMD void store_some_columns(const T *from, bool exchanged, int64_t points, int64_t step, int64_t width, T scale, T *to) { \
        store_columns(from, exchanged, points, step, width, scale, to);                                                \
    }                                                                                                                  \
    RESILIN_SIMD void turn_some_around(T *x, int64_t n, const T *turns, const T *bases, int64_t width, T *to, int64_t block) { \
        turn_around(x, n, turns, bases, width, to, block);                                                             \
    }                                                                                                                  \
    RESILIN_SIMD void part(const T *z, const Halves<T> &plan, T scale, T *x) { part_halves(z, plan, scale, x); }       \
    RESILIN_SIMD void join(const T *x, const Halves<T> &plan, T *z) { join_halves(x, plan, z); }                       \
    RESILIN_SIMD void multiply_complex(const T *a, const T *b, int64_t n, T *out) {                                    \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const T re = a[2 * i], im = a[2 * i + 1], c = b[2 * i], s = b[2 * i + 1];                                  \
            out[2 * i] = fma(re, c, -(im * s));                                                                        \
            out[2 * i + 1] = fma(re, s, im * c);                                                                       \
        }                                                                                                              \
    }
RESILIN_FOURIER(float)
RESILIN_FOURIER(double)

int64_t up(int64_t n, int64_t width) { return (n + width - 1) / width; }

// The first factor of a length with small factors: both near its root, and wasting few lanes; 1 for rows in lanes.
template <class T> int64_t first_factor(int64_t n) {
    if (n < SHORT) return 1;
    int64_t best = 1, least = INT64_MAX, taken = 0;
    for (int64_t a = 2; a <= n / 2; a++) {
        if (n % a) continue;
        const int64_t b = n / a, waste = up(b, LANES_OF<T>) * a + up(a, LANES_OF<T>) * b, longer = std::max(a, b);
        const int64_t cost = waste * LANES_OF<T> + (longer > 4096 ? 4 : 1) * longer; // two buffers of 4096 points fill an L2 cache
        if (cost < least) least = cost, best = a, taken = waste * LANES_OF<T>;
        if (a > 8192) break;
    }
    return n < AWKWARD && taken > 4 * n ? 1 : best;
}

// The next length for which everything is fast.
int64_t good_length(int64_t n) {
    int64_t best = INT64_MAX;
    for (int64_t odd : {1, 3, 5, 9, 15, 25}) {
        int64_t m = 256 * odd;
        while (m < n) m *= 2;
        best = std::min(best, m);
    }
    return best;
}

// turns of columns [c0, c0 + W) of a long split: those of columns [0, W) times exp(-2 pi i k c0 / n), this is for all k.
template <class T> void bases_of(const Fourier<T> &plan, int64_t c0, T *to) {
    const Roots &roots = *plan.roots;
    for (int64_t k = 0; k < plan.a->length(); k++) {
        const double *u = roots.coarse.data() + 2 * (k * c0 / roots.step), *v = roots.fine.data() + 2 * (k * c0 % roots.step);
        to[2 * k] = static_cast<T>(u[0] * v[0] - u[1] * v[1]);
        to[2 * k + 1] = static_cast<T>(u[0] * v[1] + u[1] * v[0]);
    }
}

template <class T> void split_row(const Fourier<T> &plan, const T *from, bool real, T *to, bool inverse, T scale, bool threads) {
    constexpr int64_t W = LANES_OF<T>;
    const int64_t a = plan.a->length(), b = plan.b->length(), groups = up(b, W), blocks = up(a, W), block = 2 * W * b;
    static thread_local Scratch<T> kept;
    Scratch<T> once; // of a long row: a thread is not to hold on to so much
    T *middle = (blocks * block <= LONGEST_KEPT ? kept : once).of(blocks * block);
    auto first = [&](int64_t begin, int64_t end) {
        static thread_local Scratch<T> scratch;
        T *x = scratch.of(4 * W * a + 2 * a), *bases = x + 4 * W * a;
        for (int64_t group = begin; group < end; group++) {
            const int64_t c0 = group * W, width = std::min(W, b - c0);
            load_some_columns(from + c0 * (real ? 1 : 2), real, inverse, a, b, width, x);
            T *found = plan.a->run(x, x + 2 * W * a);
            const bool longer = plan.roots != nullptr;
            if (longer) bases_of(plan, c0, bases);
            turn_some_around(found, a, plan.turns.data() + (longer ? 0 : group * 2 * W * a), longer ? bases : nullptr, width,
                             middle + 2 * W * c0, block);
        }
    };
    auto second = [&](int64_t begin, int64_t end) {
        static thread_local Scratch<T> scratch;
        T *spare = scratch.of(block);
        for (int64_t i = begin; i < end; i++) {
            const int64_t k0 = i * W;
            const T *found = plan.b->run(middle + i * block, spare);
            store_some_columns(found, inverse, b, a, std::min(W, a - k0), scale, to + 2 * k0);
        }
    };
    if (threads) {
        parallel_rows(groups, W * a * WORK, first);
        parallel_rows(blocks, W * b * WORK, second);
    } else {
        first(0, groups);
        second(0, blocks);
    }
}

template <class T> void transform_row(const Fourier<T> &plan, const T *from, bool real, T *to, bool inverse, T scale, bool threads);

template <class T> void chirp_row(const Fourier<T> &plan, const T *from, bool real, T *to, bool inverse, T scale, bool threads) {
    const int64_t n = plan.n, m = plan.whole->n;
    std::vector<T> kept(static_cast<size_t>(2 * m));
    T *x = kept.data();
    for (int64_t i = 0; i < n; i++) {
        x[2 * i] = real ? from[i] : from[2 * i + (inverse ? 1 : 0)];
        x[2 * i + 1] = real ? T(0) : from[2 * i + (inverse ? 0 : 1)];
    }
    multiply_complex(x, plan.chirp.data(), n, x);
    transform_row(*plan.whole, x, false, x, false, T(1), threads);
    multiply_complex(x, plan.chirp_spectrum.data(), m, x);
    transform_row(*plan.whole, x, false, x, true, T(1), threads);
    multiply_complex(x, plan.chirp.data(), n, x);
    for (int64_t i = 0; i < n; i++) {
        to[2 * i] = x[2 * i + (inverse ? 1 : 0)] * scale;
        to[2 * i + 1] = x[2 * i + (inverse ? 0 : 1)] * scale;
    }
}

template <class T> void transform_row(const Fourier<T> &plan, const T *from, bool real, T *to, bool inverse, T scale, bool threads) {
    if (plan.way == Fourier<T>::Way::split) split_row(plan, from, real, to, inverse, scale, threads);
    else chirp_row(plan, from, real, to, inverse, scale, threads);
}

// Up to LANES rows of a short length.
template <class T> void transform_few(const LaneTransform<T> &plan, const T *from, bool real, T *to, int64_t count, bool inverse, T scale) {
    constexpr int64_t W = LANES_OF<T>;
    const int64_t n = plan.length();
    static thread_local Scratch<T> scratch;
    T *x = scratch.of(4 * W * n), *y = x + 2 * W * n;
    if (real) {
        rows_to_lanes(from, n, count, n, y);
        for (int64_t p = 0; p < n; p++) {
            std::copy_n(y + p * W, W, x + 2 * p * W);
            std::fill_n(x + 2 * p * W + W, W, T(0));
        }
    } else {
        rows_to_lanes(from, 2 * n, count, 2 * n, x);
    }
    auto exchange = [n](T *z) {
        for (int64_t p = 0; p < n; p++) std::swap_ranges(z + 2 * p * W, z + 2 * p * W + W, z + 2 * p * W + W);
    };
    if (inverse) exchange(x);
    T *found = plan.run(x, y);
    if (inverse) exchange(found);
    lanes_to_rows(found, count, 2 * n, to, 2 * n, scale);
}

} // namespace

template <class T> Fourier<T>::Fourier(int64_t length) : n(length) {
    constexpr int64_t W = LANES_OF<T>;
    if (!only_small_factors(n)) {
        way = Way::chirp;
        whole = fourier<T>(good_length(2 * n - 1));
        chirp.resize(static_cast<size_t>(2 * n));
        chirp_spectrum.assign(static_cast<size_t>(2 * whole->n), T(0));
        for (int64_t j = 0; j < n; j++) {
            T *c = chirp.data() + 2 * j;
            root_of_unity(static_cast<int64_t>(static_cast<__int128>(j) * j % (2 * n)), 2 * n, c[0], c[1]);
            for (int64_t at : {j, (whole->n - j) % whole->n}) {
                chirp_spectrum[static_cast<size_t>(2 * at)] = c[0];
                chirp_spectrum[static_cast<size_t>(2 * at + 1)] = -c[1];
            }
        }
        transform_row(*whole, chirp_spectrum.data(), false, chirp_spectrum.data(), false, T(1) / static_cast<T>(whole->n), false);
        return;
    }
    const int64_t factor = first_factor<T>(n);
    a = std::make_unique<LaneTransform<T>>(factor == 1 ? n : factor);
    if (factor == 1) return;
    way = Way::split;
    b = std::make_unique<LaneTransform<T>>(n / factor);
    const bool longer = n > TABLE;
    const int64_t groups = longer ? 1 : up(n / factor, W);
    turns.resize(static_cast<size_t>(groups * 2 * W * factor));
    for (int64_t group = 0; group < groups; group++)
        for (int64_t k = 0; k < factor; k++)
            for (int64_t l = 0; l < W; l++) {
                T *at = turns.data() + (group * factor + k) * 2 * W + l;
                root_of_unity(k * (group * W + l), n, at[0], at[W]);
            }
    if (longer) roots = std::make_unique<Roots>(n);
}

template <class T> Halves<T>::Halves(int64_t length) : n(length), pairs(fourier<T>(length / 2)), roots(length) {
    for (int64_t k = 0; k <= (n <= TABLE ? n / 2 : -1); k++) {
        cosines.emplace_back(), sines.emplace_back();
        root_of_unity(k, n, cosines.back(), sines.back());
    }
}

Roots::Roots(int64_t n) {
    while (step * step < n) step *= 2;
    auto fill = [n](std::vector<double> &to, int64_t count, int64_t apart) {
        to.resize(static_cast<size_t>(2 * count));
        for (int64_t i = 0; i < count; i++) root_of_unity(i * apart, n, to[static_cast<size_t>(2 * i)], to[static_cast<size_t>(2 * i + 1)]);
    };
    fill(fine, step, 1);
    fill(coarse, up(n, step), step);
}

template <class T> std::shared_ptr<const Fourier<T>> fourier(int64_t n) { return kept_plan<Fourier<T>>(n); }
template <class T> std::shared_ptr<const Columns<T>> columns(int64_t n) { return kept_plan<Columns<T>>(n); }
template <class T> std::shared_ptr<const Halves<T>> halves(int64_t n) { return kept_plan<Halves<T>>(n); }
template std::shared_ptr<const Fourier<float>> fourier(int64_t);
template std::shared_ptr<const Fourier<double>> fourier(int64_t);
template std::shared_ptr<const Columns<float>> columns(int64_t);
template std::shared_ptr<const Columns<double>> columns(int64_t);
template std::shared_ptr<const Halves<float>> halves(int64_t);
template std::shared_ptr<const Halves<double>> halves(int64_t);

template <class T> void transform_rows(const Fourier<T> &plan, const T *from, bool real, T *to, int64_t count, bool inverse, T scale) {
    constexpr int64_t W = LANES_OF<T>;
    const int64_t n = plan.n, wide = real ? n : 2 * n;
    if (plan.way == Fourier<T>::Way::rows) {
        parallel_rows(up(count, W), W * n * WORK, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin * W; i < std::min(count, end * W); i += W)
                transform_few(*plan.a, from + i * wide, real, to + 2 * i * n, std::min(W, count - i), inverse, scale);
        });
        return;
    }
    const bool batch = count >= num_threads();
    auto some = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) transform_row(plan, from + i * wide, real, to + 2 * i * n, inverse, scale, !batch);
    };
    if (batch) parallel_rows(count, n * WORK, some);
    else some(0, count);
}
template void transform_rows(const Fourier<float> &, const float *, bool, float *, int64_t, bool, float);
template void transform_rows(const Fourier<double> &, const double *, bool, double *, int64_t, bool, double);

template <class T>
void transform_columns(const Columns<T> &plan, const T *from, T *to, int64_t outer, int64_t inner, bool inverse, T scale) {
    constexpr int64_t W = LANES_OF<T>;
    const int64_t n = plan.n, groups = up(inner, W);
    parallel_rows(outer * groups, W * n * WORK, [&](int64_t begin, int64_t end) {
        static thread_local Scratch<T> scratch;
        T *x = scratch.of(4 * W * n);
        for (int64_t i = begin; i < end; i++) {
            const int64_t c0 = i % groups * W, width = std::min(W, inner - c0), at = 2 * (i / groups * n * inner + c0);
            load_some_columns(from + at, false, inverse, n, inner, width, x);
            store_some_columns(plan.lanes.run(x, x + 2 * W * n), inverse, n, inner, width, scale, to + at);
        }
    });
}
template void transform_columns(const Columns<float> &, const float *, float *, int64_t, int64_t, bool, float);
template void transform_columns(const Columns<double> &, const double *, double *, int64_t, int64_t, bool, double);

template <class T> void transform_real_rows(int64_t n, const T *from, T *to, int64_t count, T scale) {
    const int64_t h = n / 2, wide = 2 * (h + 1);
    std::unique_ptr<T[]> kept(new T[static_cast<size_t>(2 * count * (n % 2 ? n : h))]);
    T *z = kept.get();
    if (n % 2) {
        transform_rows(*fourier<T>(n), from, true, z, count, false, scale);
        for (int64_t i = 0; i < count; i++) {
            std::copy_n(z + 2 * i * n, wide, to + i * wide);
            to[i * wide + 1] = 0;
        }
        return;
    }
    const auto plan = halves<T>(n);
    transform_rows(*plan->pairs, from, false, z, count, false, T(1));
    parallel_rows(count, n, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) part(z + 2 * i * h, *plan, scale, to + i * wide);
    });
}
template void transform_real_rows(int64_t, const float *, float *, int64_t, float);
template void transform_real_rows(int64_t, const double *, double *, int64_t, double);

template <class T> void transform_to_real_rows(int64_t n, const T *from, T *to, int64_t count, T scale) {
    const int64_t h = n / 2, wide = 2 * (h + 1);
    if (n % 2 == 0) {
        const auto plan = halves<T>(n);
        parallel_rows(count, n, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) join(from + i * wide, *plan, to + i * n);
        });
        return transform_rows(*plan->pairs, to, false, to, count, true, scale);
    }
    std::unique_ptr<T[]> kept(new T[static_cast<size_t>(2 * count * n)]);
    T *z = kept.get();
    for (int64_t i = 0; i < count; i++) {
        const T *x = from + i * wide;
        T *whole = z + 2 * i * n;
        whole[0] = x[0], whole[1] = 0;
        for (int64_t k = 1; k <= h; k++) {
            whole[2 * k] = whole[2 * (n - k)] = x[2 * k];
            whole[2 * k + 1] = x[2 * k + 1], whole[2 * (n - k) + 1] = -x[2 * k + 1];
        }
    }
    transform_rows(*fourier<T>(n), z, false, z, count, true, scale);
    for (int64_t i = 0; i < count * n; i++) to[i] = z[2 * i];
}
template void transform_to_real_rows(int64_t, const float *, float *, int64_t, float);
template void transform_to_real_rows(int64_t, const double *, double *, int64_t, double);

} // namespace resilin
