// Fourier transforms of rows and of columns of complex numbers, of any length.
#pragma once
#include "lanes.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace resilin {

constexpr int64_t LONGEST_COLUMN = 1 << 13; // points whose lanes lie in a cache; longer columns are turned into rows

// exp(-2 pi i k / n) for k < n: coarse[k / step] * fine[k % step].
struct Roots {
    explicit Roots(int64_t n);
    int64_t step = 1;
    std::vector<double> coarse, fine;
};

// How signals are transformed: by their length alone, so that a row's bits depend on no other row and on no thread.
// short: rows side by side in lanes. split: length a * b, b transforms of length a of what lies b apart, then a of length
// b, side by side in lanes, too. chirp: with a prime factor above LARGEST_RADIX, as a convolution (Bluestein) by transforms
// of a longer `whole`.
template <class T> struct Fourier {
    enum class Way { rows, split, chirp };
    explicit Fourier(int64_t n);

    int64_t n;
    Way way = Way::rows;
    std::unique_ptr<LaneTransform<T>> a, b; // a alone for Way::rows
    std::vector<T> turns;                   // of split: exp(-2 pi i k c / n), LANES columns c of every k < a; of long ones for LANES columns only
    std::unique_ptr<Roots> roots;           // of long splits
    std::shared_ptr<const Fourier> whole;   // of chirp, with exp(-pi i j^2 / n) and the transform of its conjugate
    std::vector<T> chirp, chirp_spectrum;
};

// The plan for a length; those of the last lengths are kept.
template <class T> std::shared_ptr<const Fourier<T>> fourier(int64_t n);

// The plan of columns of a length.
template <class T> struct Columns {
    explicit Columns(int64_t length) : n(length), lanes(length) {}
    int64_t n;
    LaneTransform<T> lanes;
};
template <class T> std::shared_ptr<const Columns<T>> columns(int64_t n);

// Real signals of an even length are complex ones of half the length: pairs of neighbours.
template <class T> struct Halves {
    explicit Halves(int64_t length);
    int64_t n;
    std::shared_ptr<const Fourier<T>> pairs;
    Roots roots;
    std::vector<T> cosines, sines; // of lengths that are not long, for k <= n / 2
};
template <class T> std::shared_ptr<const Halves<T>> halves(int64_t n);

// `count` rows of n complex numbers (of real ones if `real`), in place if `from` is `to`, times `scale`. The inverse is the
// transform with real and imaginary parts exchanged before and after.
template <class T> void transform_rows(const Fourier<T> &plan, const T *from, bool real, T *to, int64_t count, bool inverse, T scale);

// The middle dimension of outer x n x inner complex numbers, LANES columns at a time; only of lengths with small factors.
template <class T>
void transform_columns(const Columns<T> &plan, const T *from, T *to, int64_t outer, int64_t inner, bool inverse, T scale);

// All n frequencies, n even and of at most LONGEST_COLUMN points, of the middle dimension of outer x n x inner real
// numbers.
template <class T>
void transform_real_columns(int64_t n, const T *from, T *to, int64_t outer, int64_t inner, bool inverse, T scale);

// Rows of n real numbers to n / 2 + 1 complex ones, and rows of these, without scale, back to n real ones.
template <class T> void transform_real_rows(int64_t n, const T *from, T *to, int64_t count, T scale);
template <class T> void transform_to_real_rows(int64_t n, const T *from, T *to, int64_t count, T scale);

} // namespace resilin
