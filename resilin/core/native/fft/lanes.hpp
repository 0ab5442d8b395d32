// Discrete Fourier transforms of several signals side by side, one in each lane of a vector: every loop is over lanes.
#pragma once
#include <cstdint>
#include <vector>

namespace resilin {

template <class T> constexpr int64_t LANES_OF = 64 / sizeof(T);
constexpr int64_t LARGEST_RADIX = 127; // prime factors up to it are steps of their own: p operations for a point, a chirp's take more

// One step: for all p < m, q < s it takes the points q + s (p + m j), j < radix, to q + s (radix p + k), k < radix: the
// transform of length `radix`, times w^(p k), w = exp(-2 pi i / (radix m)).
template <class T> struct LaneStep {
    int64_t radix, m, s;
    int64_t twiddles; // where they begin in the table: radix - 1 complex numbers for each p
    int64_t roots;    // of radices without a step of their own: cos and sin of 2 pi j / radix
};

// The transform of length n, forward, by Stockham's steps: radix 4 first, then 2, 3, 5, ... A point is LANES real parts
// and LANES imaginary ones.
template <class T> class LaneTransform {
  public:
    explicit LaneTransform(int64_t n);
    int64_t length() const { return n_; }
    // from `a` by way of `b`; where the result lies is returned, one of both
    T *run(T *a, T *b) const;

  private:
    int64_t n_;
    std::vector<LaneStep<T>> steps_;
    std::vector<T> table_;
};

// exp(-2 pi i k / n), rounded once
template <class T> void root_of_unity(int64_t k, int64_t n, T &re, T &im);

bool only_small_factors(int64_t n);

// A square of LANES x LANES elements, its rows `from_ld` apart, with its rows as columns.
template <class T> void turn_square(const T *from, int64_t from_ld, T *to, int64_t to_ld);

// `points` times LANES complex numbers, `step` elements apart, to the parts of points and, times `scale`, back.
template <class T> void pairs_to_lanes(const T *from, int64_t step, int64_t points, T *re, T *im);
template <class T> void lanes_to_pairs(const T *re, const T *im, int64_t points, T scale, T *to, int64_t step);

// Rows of `length` real numbers each, `ld` apart, to lanes and back: element j of row i is lane i of vector j. `rows` may
// be fewer than there are lanes; the other lanes are zeros, and are not written back. Back times `scale`, by way of lanes.
template <class T> void rows_to_lanes(const T *rows, int64_t ld, int64_t count, int64_t length, T *lanes);
template <class T> void lanes_to_rows(T *lanes, int64_t count, int64_t length, T *rows, int64_t ld, T scale);

} // namespace resilin
