#include "lanes.hpp"

#include "kernels/simd.hpp"

#include <cmath>
#include <utility>

namespace resilin {

template <class T> void root_of_unity(int64_t k, int64_t n, T &re, T &im) {
    k %= n;
    // by the nearest multiple of a quarter turn: angles of at most an eighth keep their digits, and symmetries their bits
    const int64_t quarter = (8 * k + n) / (2 * n);                  // 0 ... 4
    const long double turns = static_cast<long double>(4 * k - quarter * n) / static_cast<long double>(4 * n);
    const long double angle = 2 * 3.14159265358979323846264338327950288L * turns;
    const long double c = std::cos(angle), s = std::sin(angle);
    const long double cosine[] = {c, -s, -c, s, c}, sine[] = {s, c, -s, -c, s};
    re = static_cast<T>(cosine[quarter]);
    im = static_cast<T>(-sine[quarter]);
}
template void root_of_unity(int64_t, int64_t, float &, float &);
template void root_of_unity(int64_t, int64_t, double &, double &);

bool only_small_factors(int64_t n) {
    for (int64_t p = 2; p <= LARGEST_RADIX; p++)
        while (n % p == 0) n /= p;
    return n == 1;
}

namespace {

template <class T> struct Complex {
    T re, im;
};
template <class T> RESILIN_INLINE Complex<T> operator+(Complex<T> a, Complex<T> b) { return {a.re + b.re, a.im + b.im}; }
template <class T> RESILIN_INLINE Complex<T> operator-(Complex<T> a, Complex<T> b) { return {a.re - b.re, a.im - b.im}; }
template <class T> RESILIN_INLINE Complex<T> times(Complex<T> a, T re, T im) {
    return {fma(a.re, re, -(a.im * im)), fma(a.re, im, a.im * re)};
}
template <class T> RESILIN_INLINE Complex<T> times_minus_i(Complex<T> a) { return {a.im, -a.re}; }

// The points of one butterfly: x[j], j < R, `from` apart, to y[k], `to` apart, each times its twiddle if `Turned`.
template <int R, bool Turned, class T> struct Butterfly;

#define RESILIN_LANE_LOOP _Pragma("GCC ivdep") for (int64_t l = 0; l < LANES_OF<T>; l++)

template <class T> RESILIN_INLINE Complex<T> point(const T *x, int64_t l) { return {x[l], x[l + LANES_OF<T>]}; }
template <class T> RESILIN_INLINE void put(T *y, int64_t l, Complex<T> a) { y[l] = a.re, y[l + LANES_OF<T>] = a.im; }
template <bool Turned, class T> RESILIN_INLINE void put(T *y, int64_t l, Complex<T> a, const T *w) {
    if constexpr (Turned) put(y, l, times(a, w[0], w[1]));
    else put(y, l, a);
}

template <bool Turned, class T> struct Butterfly<2, Turned, T> {
    static RESILIN_INLINE void run(const T *__restrict x, int64_t from, T *__restrict y, int64_t to, const T *w) {
        RESILIN_LANE_LOOP {
            const Complex<T> a = point(x, l), b = point(x + from, l);
            put(y, l, a + b);
            put<Turned>(y + to, l, a - b, w);
        }
    }
};
template <bool Turned, class T> struct Butterfly<3, Turned, T> {
    static RESILIN_INLINE void run(const T *__restrict x, int64_t from, T *__restrict y, int64_t to, const T *w) {
        constexpr T S = T(0.866025403784438646763723170752936183L);
        RESILIN_LANE_LOOP {
            const Complex<T> a = point(x, l), b = point(x + from, l), c = point(x + 2 * from, l);
            const Complex<T> sum = b + c, difference = b - c;
            const Complex<T> middle = {fma(T(-0.5), sum.re, a.re), fma(T(-0.5), sum.im, a.im)};
            const Complex<T> turned = {S * difference.im, -S * difference.re};
            put(y, l, a + sum);
            put<Turned>(y + to, l, middle + turned, w);
            put<Turned>(y + 2 * to, l, middle - turned, w + 2);
        }
    }
};
template <bool Turned, class T> struct Butterfly<4, Turned, T> {
    static RESILIN_INLINE void run(const T *__restrict x, int64_t from, T *__restrict y, int64_t to, const T *w) {
        RESILIN_LANE_LOOP {
            const Complex<T> a = point(x, l), b = point(x + from, l), c = point(x + 2 * from, l), d = point(x + 3 * from, l);
            const Complex<T> ac = a + c, a_c = a - c, bd = b + d, b_d = times_minus_i(b - d);
            put(y, l, ac + bd);
            put<Turned>(y + to, l, a_c + b_d, w);
            put<Turned>(y + 2 * to, l, ac - bd, w + 2);
            put<Turned>(y + 3 * to, l, a_c - b_d, w + 4);
        }
    }
};
template <bool Turned, class T> struct Butterfly<5, Turned, T> {
    static RESILIN_INLINE void run(const T *__restrict x, int64_t from, T *__restrict y, int64_t to, const T *w) {
        constexpr T C1 = T(0.309016994374947424102293417182819059L), C2 = T(-0.809016994374947424102293417182819059L);
        constexpr T S1 = T(0.951056516295153572116439333379382143L), S2 = T(0.587785252292473129168705954639072769L);
        RESILIN_LANE_LOOP {
            const Complex<T> a = point(x, l), b = point(x + from, l), c = point(x + 2 * from, l), d = point(x + 3 * from, l),
                             e = point(x + 4 * from, l);
            const Complex<T> be = b + e, b_e = b - e, cd = c + d, c_d = c - d;
            const Complex<T> p = {fma(C2, cd.re, fma(C1, be.re, a.re)), fma(C2, cd.im, fma(C1, be.im, a.im))};
            const Complex<T> q = {fma(C1, cd.re, fma(C2, be.re, a.re)), fma(C1, cd.im, fma(C2, be.im, a.im))};
            const Complex<T> u = {fma(S2, c_d.im, S1 * b_e.im), -fma(S2, c_d.re, S1 * b_e.re)};
            const Complex<T> v = {fma(-S1, c_d.im, S2 * b_e.im), -fma(-S1, c_d.re, S2 * b_e.re)};
            put(y, l, a + be + cd);
            put<Turned>(y + to, l, p + u, w);
            put<Turned>(y + 2 * to, l, q + v, w + 2);
            put<Turned>(y + 3 * to, l, q - v, w + 4);
            put<Turned>(y + 4 * to, l, p - u, w + 6);
        }
    }
};

// An odd radix r: pairs of points from both ends, whose sums get the cosines and whose differences the sines. Two pairs
// of results at a time, so that what is loaded serves both, and as many elements as stay in registers meanwhile.
template <class T> struct OddPoints {
    static constexpr int64_t W = LANES_OF<T>;
    T sums[LARGEST_RADIX / 2][2 * W], differences[LARGEST_RADIX / 2][2 * W], first[2 * W];
};

template <int Results, class T>
RESILIN_INLINE void odd_sums(const OddPoints<T> &points, int64_t r, const T *__restrict roots, int64_t k,
                             T (*__restrict evens)[2 * LANES_OF<T>], T (*__restrict odds)[2 * LANES_OF<T>]) {
    constexpr int64_t S = LANES_OF<T>;
    for (int64_t part = 0; part < 2 * S; part += S) {
        T even[Results][S], odd[Results][S];
        for (int n = 0; n < Results; n++)
            for (int64_t i = 0; i < S; i++) even[n][i] = points.first[part + i], odd[n][i] = 0;
        int64_t at[Results] = {};
        for (int64_t j = 0; j < r / 2; j++) {
            const T *sum = points.sums[j] + part, *difference = points.differences[j] + part;
            for (int n = 0; n < Results; n++) {
                at[n] += k + n;
                if (at[n] >= r) at[n] -= r;
                const T c = roots[2 * at[n]], s = roots[2 * at[n] + 1];
                for (int64_t i = 0; i < S; i++) even[n][i] = fma(c, sum[i], even[n][i]);
                for (int64_t i = 0; i < S; i++) odd[n][i] = fma(s, difference[i], odd[n][i]);
            }
        }
        for (int n = 0; n < Results; n++)
            for (int64_t i = 0; i < S; i++) evens[n][part + i] = even[n][i], odds[n][part + i] = odd[n][i];
    }
}

template <int Results, bool Turned, class T>
RESILIN_INLINE void odd_results(const OddPoints<T> &points, int64_t r, const T *__restrict roots, int64_t k, T *__restrict y,
                                int64_t to, const T *w) {
    alignas(64) T evens[Results][2 * LANES_OF<T>], odds[Results][2 * LANES_OF<T>];
    odd_sums<Results>(points, r, roots, k, evens, odds);
    for (int n = 0; n < Results; n++) {
        T *up = y + (k + n) * to, *down = y + (r - k - n) * to;
        RESILIN_LANE_LOOP {
            const Complex<T> e = point(evens[n], l), o = times_minus_i(point(odds[n], l));
            put<Turned>(up, l, e + o, w + 2 * (k + n - 1));
            put<Turned>(down, l, e - o, w + 2 * (r - k - n - 1));
        }
    }
}

template <bool Turned, class T>
RESILIN_INLINE void odd_butterfly(int64_t r, const T *__restrict roots, const T *__restrict x, int64_t from, T *__restrict y,
                                  int64_t to, const T *w) {
    constexpr int64_t W = LANES_OF<T>;
    alignas(64) OddPoints<T> points;
    alignas(64) T all[2 * W];
    for (int64_t i = 0; i < 2 * W; i++) points.first[i] = all[i] = x[i];
    for (int64_t j = 1; j <= r / 2; j++) {
        const T *a = x + j * from, *b = x + (r - j) * from;
        for (int64_t i = 0; i < 2 * W; i++) points.sums[j - 1][i] = a[i] + b[i];
        for (int64_t i = 0; i < 2 * W; i++) points.differences[j - 1][i] = a[i] - b[i];
        for (int64_t i = 0; i < 2 * W; i++) all[i] += points.sums[j - 1][i];
    }
    for (int64_t i = 0; i < 2 * W; i++) y[i] = all[i];
    int64_t k = 1;
    for (; k < r / 2; k += 2) odd_results<2, Turned>(points, r, roots, k, y, to, w);
    if (k == r / 2) odd_results<1, Turned>(points, r, roots, k, y, to, w);
}

template <int R, bool Turned, class T> RESILIN_INLINE void butterflies(const LaneStep<T> &step, const T *table, const T *x, T *y) {
    constexpr int64_t P = 2 * LANES_OF<T>; // elements of a point
    const int64_t from = step.s * step.m * P, to = step.s * P;
    for (int64_t p = 0; p < step.m; p++) {
        const T *w = table + step.twiddles + p * 2 * (step.radix - 1), *first = x + p * step.s * P;
        T *out = y + p * step.s * step.radix * P;
        for (int64_t q = 0; q < step.s; q++, first += P, out += P) {
            if constexpr (R) Butterfly<R, Turned, T>::run(first, from, out, to, w);
            else odd_butterfly<Turned>(step.radix, table + step.roots, first, from, out, to, w);
        }
    }
}

template <bool Turned, class T> RESILIN_INLINE void take_step(const LaneStep<T> &step, const T *table, const T *x, T *y) {
    switch (step.radix) {
    case 2: return butterflies<2, Turned>(step, table, x, y);
    case 3: return butterflies<3, Turned>(step, table, x, y);
    case 4: return butterflies<4, Turned>(step, table, x, y);
    case 5: return butterflies<5, Turned>(step, table, x, y);
    default: return butterflies<0, Turned>(step, table, x, y);
    }
}
RESILIN_SIMD void step_of(const LaneStep<float> &step, const float *table, const float *x, float *y) { 
    step.m > 1 ? take_step<true>(step, table, x, y) : take_step<false>(step, table, x, y);
}
RESILIN_SIMD void step_of(const LaneStep<double> &step, const double *table, const double *x, double *y) { 
    step.m > 1 ? take_step<true>(step, table, x, y) : take_step<false>(step, table, x, y);
}

} // namespace

template <class T> LaneTransform<T>::LaneTransform(int64_t n) : n_(n) {
    int64_t left = n, s = 1;
    auto add = [&](int64_t radix) {
        const int64_t m = left / radix;
        LaneStep<T> step{radix, m, s, static_cast<int64_t>(table_.size()), 0};
        for (int64_t p = 0; p < (m > 1 ? m : 0); p++)
            for (int64_t k = 1; k < radix; k++) {
                T re, im;
                root_of_unity(p * k, left, re, im);
                table_.push_back(re), table_.push_back(im);
            }
        step.roots = static_cast<int64_t>(table_.size());
        for (int64_t j = 0; j < (radix > 5 ? radix : 0); j++) {
            T re, im;
            root_of_unity(j, radix, re, im);
            table_.push_back(re), table_.push_back(-im);
        }
        steps_.push_back(step);
        left = m, s *= radix;
    };
    while (left % 4 == 0) add(4);
    for (int64_t radix = 2; left > 1; radix++)
        while (left % radix == 0) add(radix);
}

template <class T> T *LaneTransform<T>::run(T *a, T *b) const {
    for (const LaneStep<T> &step : steps_) {
        step_of(step, table_.data(), a, b);
        std::swap(a, b);
    }
    return a;
}
template class LaneTransform<float>;
template class LaneTransform<double>;

namespace {

// What only moves elements, by vectors of 64 bytes where the CPU has them: a square turned around is log2(W) rounds of
// interleaving its W rows.
template <class T> void turn_by_elements(const T *from, int64_t from_ld, T *to, int64_t to_ld) {
    for (int64_t i = 0; i < LANES_OF<T>; i++)
        for (int64_t j = 0; j < LANES_OF<T>; j++) to[j * to_ld + i] = from[i * from_ld + j];
}

#ifdef RESILIN_CHOOSES_ISA
#define RESILIN_WIDE __attribute__((target("arch=x86-64-v4")))
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Places __attribute__((vector_size(64)));
typedef double Doubles __attribute__((vector_size(64)));
typedef int64_t LongPlaces __attribute__((vector_size(64)));

template <class V, int W> struct Square {
    V rows[W];
};

RESILIN_WIDE void turn_wide(const float *from, int64_t from_ld, float *to, int64_t to_ld) {
    const Places low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
    const Places high = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    Square<Floats, 16> a, b;
    for (int i = 0; i < 16; i++) std::memcpy(&a.rows[i], from + i * from_ld, sizeof(Floats));
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 8; i++) {
            b.rows[2 * i] = __builtin_shuffle(a.rows[i], a.rows[i + 8], low);
            b.rows[2 * i + 1] = __builtin_shuffle(a.rows[i], a.rows[i + 8], high);
        }
        a = b;
    }
    for (int i = 0; i < 16; i++) std::memcpy(to + i * to_ld, &a.rows[i], sizeof(Floats));
}
RESILIN_WIDE void turn_wide(const double *from, int64_t from_ld, double *to, int64_t to_ld) {
    const LongPlaces low = {0, 8, 1, 9, 2, 10, 3, 11}, high = {4, 12, 5, 13, 6, 14, 7, 15};
    Square<Doubles, 8> a, b;
    for (int i = 0; i < 8; i++) std::memcpy(&a.rows[i], from + i * from_ld, sizeof(Doubles));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) {
            b.rows[2 * i] = __builtin_shuffle(a.rows[i], a.rows[i + 4], low);
            b.rows[2 * i + 1] = __builtin_shuffle(a.rows[i], a.rows[i + 4], high);
        }
        a = b;
    }
    for (int i = 0; i < 8; i++) std::memcpy(to + i * to_ld, &a.rows[i], sizeof(Doubles));
}
RESILIN_WIDE void pairs_to_lanes_wide(const float *from, int64_t step, int64_t points, float *re, float *im) {
    const Places even = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30}, odd = even + 1;
    for (int64_t p = 0; p < points; p++, from += step, re += 32, im += 32) {
        Floats a, b;
        std::memcpy(&a, from, sizeof(a)), std::memcpy(&b, from + 16, sizeof(b));
        const Floats x = __builtin_shuffle(a, b, even), y = __builtin_shuffle(a, b, odd);
        std::memcpy(re, &x, sizeof(x)), std::memcpy(im, &y, sizeof(y));
    }
}
RESILIN_WIDE void pairs_to_lanes_wide(const double *from, int64_t step, int64_t points, double *re, double *im) {
    const LongPlaces even = {0, 2, 4, 6, 8, 10, 12, 14}, odd = even + 1;
    for (int64_t p = 0; p < points; p++, from += step, re += 16, im += 16) {
        Doubles a, b;
        std::memcpy(&a, from, sizeof(a)), std::memcpy(&b, from + 8, sizeof(b));
        const Doubles x = __builtin_shuffle(a, b, even), y = __builtin_shuffle(a, b, odd);
        std::memcpy(re, &x, sizeof(x)), std::memcpy(im, &y, sizeof(y));
    }
}
RESILIN_WIDE void lanes_to_pairs_wide(const float *re, const float *im, int64_t points, float scale, float *to, int64_t step) {
    const Places low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23}, high = low + 8;
    for (int64_t p = 0; p < points; p++, to += step, re += 32, im += 32) {
        Floats x, y;
        std::memcpy(&x, re, sizeof(x)), std::memcpy(&y, im, sizeof(y));
        const Floats a = __builtin_shuffle(x, y, low) * scale, b = __builtin_shuffle(x, y, high) * scale;
        std::memcpy(to, &a, sizeof(a)), std::memcpy(to + 16, &b, sizeof(b));
    }
}
RESILIN_WIDE void lanes_to_pairs_wide(const double *re, const double *im, int64_t points, double scale, double *to, int64_t step) {
    const LongPlaces low = {0, 8, 1, 9, 2, 10, 3, 11}, high = low + 4;
    for (int64_t p = 0; p < points; p++, to += step, re += 16, im += 16) {
        Doubles x, y;
        std::memcpy(&x, re, sizeof(x)), std::memcpy(&y, im, sizeof(y));
        const Doubles a = __builtin_shuffle(x, y, low) * scale, b = __builtin_shuffle(x, y, high) * scale;
        std::memcpy(to, &a, sizeof(a)), std::memcpy(to + 8, &b, sizeof(b));
    }
}
const bool has_wide = __builtin_cpu_supports("x86-64-v4");
#endif

} // namespace

template <class T> void turn_square(const T *from, int64_t from_ld, T *to, int64_t to_ld) {
#ifdef RESILIN_CHOOSES_ISA
    if (has_wide) return turn_wide(from, from_ld, to, to_ld);
#endif
    turn_by_elements(from, from_ld, to, to_ld);
}
template void turn_square(const float *, int64_t, float *, int64_t);
template void turn_square(const double *, int64_t, double *, int64_t);

template <class T> void pairs_to_lanes(const T *from, int64_t step, int64_t points, T *re, T *im) {
    constexpr int64_t W = LANES_OF<T>;
#ifdef RESILIN_CHOOSES_ISA
    if (has_wide) return pairs_to_lanes_wide(from, step, points, re, im);
#endif
    for (int64_t p = 0; p < points; p++, from += step, re += 2 * W, im += 2 * W)
        for (int64_t l = 0; l < W; l++) re[l] = from[2 * l], im[l] = from[2 * l + 1];
}
template void pairs_to_lanes(const float *, int64_t, int64_t, float *, float *);
template void pairs_to_lanes(const double *, int64_t, int64_t, double *, double *);

template <class T> void lanes_to_pairs(const T *re, const T *im, int64_t points, T scale, T *to, int64_t step) {
    constexpr int64_t W = LANES_OF<T>;
#ifdef RESILIN_CHOOSES_ISA
    if (has_wide) return lanes_to_pairs_wide(re, im, points, scale, to, step);
#endif
    for (int64_t p = 0; p < points; p++, to += step, re += 2 * W, im += 2 * W)
        for (int64_t l = 0; l < W; l++) to[2 * l] = re[l] * scale, to[2 * l + 1] = im[l] * scale;
}
template void lanes_to_pairs(const float *, const float *, int64_t, float, float *, int64_t);
template void lanes_to_pairs(const double *, const double *, int64_t, double, double *, int64_t);

template <class T> void rows_to_lanes(const T *rows, int64_t ld, int64_t count, int64_t length, T *lanes) {
    constexpr int64_t W = LANES_OF<T>;
    if (count < W)
        for (int64_t i = 0; i < length * W; i++) lanes[i] = 0;
    for (int64_t j0 = 0; j0 < length; j0 += W) { // blocks of lines of cache
        const int64_t end = j0 + W < length ? j0 + W : length;
        if (count == W && end - j0 == W) {
            turn_square(rows + j0, ld, lanes + j0 * W, W);
            continue;
        }
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = j0; j < end; j++) lanes[j * W + i] = rows[i * ld + j];
    }
}

template <class T> void lanes_to_rows(T *lanes, int64_t count, int64_t length, T *rows, int64_t ld, T scale) {
    constexpr int64_t W = LANES_OF<T>;
    for (int64_t i = 0; i < length * W && scale != 1; i++) lanes[i] *= scale;
    for (int64_t j0 = 0; j0 < length; j0 += W) {
        const int64_t end = j0 + W < length ? j0 + W : length;
        if (count == W && end - j0 == W) {
            turn_square(lanes + j0 * W, W, rows + j0, ld);
            continue;
        }
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = j0; j < end; j++) rows[i * ld + j] = lanes[j * W + i];
    }
}
template void rows_to_lanes(const float *, int64_t, int64_t, int64_t, float *);
template void rows_to_lanes(const double *, int64_t, int64_t, int64_t, double *);
template void lanes_to_rows(float *, int64_t, int64_t, float *, int64_t, float);
template void lanes_to_rows(double *, int64_t, int64_t, double *, int64_t, double);

} // namespace resilin
