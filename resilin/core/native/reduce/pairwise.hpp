// Sums in numpy's pairwise order: at most 128 elements in eight interleaved sums, these in a tree, then the remainder one
// by one; more as two halves, the first a multiple of eight. What is summed may be made on the way, a piece at a time.
#pragma once
#include "binding/array.hpp"
#include "memory/parallel.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace resilin {

constexpr int64_t RUN = 128;
constexpr int64_t SMALL = 256;    // elements that numpy sums, but along the last dimensions: as _SMALL of reduce_rows.py
constexpr int64_t AT_ONCE = 1024; // elements that are summed at once: made on the way, they stay in the first cache

inline int64_t first_half(int64_t n) { return n / 2 - n / 2 % 8; }

// Where the parts of a sum over n elements start, of at most `most` elements each, and where the last one ends.
inline void cut(int64_t n, int64_t most, std::vector<int64_t> &starts) {
    if (n <= most) {
        starts.push_back(starts.back() + n);
        return;
    }
    cut(first_half(n), most, starts);
    cut(n - first_half(n), most, starts);
}

// The sum over n elements from the sums of these parts, `step` apart.
template <class T> T joined(int64_t n, int64_t most, const T *&sums, int64_t step) {
    if (n <= most) {
        const T sum = *sums;
        sums += step;
        return sum;
    }
    const T first = joined(first_half(n), most, sums, step);
    return first + joined(n - first_half(n), most, sums, step);
}

// The runs of a sum over at most AT_ONCE elements.
class Runs {
  public:
    explicit Runs(int64_t n = 0) { set(n); }
    void set(int64_t n) {
        if (n == this->n) return;
        this->n = n, count = 0, starts[0] = 0;
        add(n, 0);
    }
    int64_t n = -1, count, starts[AT_ONCE / 32]; // a run of several has more than RUN / 2 - 16 elements

  private:
    void add(int64_t n, int depth) {
        if (n > RUN) {
            add(first_half(n), depth + 1);
            add(n - first_half(n), depth + 1);
            return;
        }
        starts[count + 1] = starts[count] + n;
        count++;
    }
};

// The sum of the elements, or of their squares, over one chunk.
float sum_of_chunk(bool squared, const float *x, const Runs &runs);
double sum_of_chunk(bool squared, const double *x, const Runs &runs);
// The same of each row.
void sums_of_rows(bool squared, const float *x, int64_t rows, const Runs &runs, float *y);
void sums_of_rows(bool squared, const double *x, int64_t rows, const Runs &runs, double *y);

// y[row] = the sum over `length` elements of each of `rows` rows. read(begin, end, scratch) gives the elements from
// `begin` on, in their place or in `scratch`; it is called for at most `SCRATCH` at a time.
constexpr int64_t SCRATCH = 4 * AT_ONCE;
template <class T, class Read>
void pairwise_rows(const Read &read, int64_t rows, int64_t length, int64_t cost, bool squared, T *y) {
    if (length <= AT_ONCE) {
        const int64_t group = std::max<int64_t>(SCRATCH / std::max<int64_t>(length, 1) / 4 * 4, 4);
        parallel_rows((rows + group - 1) / group, group * length * cost, [&](int64_t begin, int64_t end) {
            alignas(64) T scratch[SCRATCH];
            const Runs runs(length);
            for (int64_t i = begin; i < end; i++) {
                const int64_t row = i * group, count = std::min(group, rows - row);
                sums_of_rows(squared, read(row * length, (row + count) * length, scratch), count, runs, y + row);
            }
        });
        return;
    }
    std::vector<int64_t> starts{0};
    cut(length, AT_ONCE, starts);
    const int64_t chunks = static_cast<int64_t>(starts.size()) - 1;
    std::vector<T> sums(static_cast<size_t>(rows * chunks));
    parallel_rows(rows * chunks, length / chunks * cost, [&](int64_t begin, int64_t end) {
        alignas(64) T scratch[SCRATCH];
        Runs runs;
        for (int64_t i = begin; i < end; i++) {
            const int64_t from = starts[static_cast<size_t>(i % chunks)], to = starts[static_cast<size_t>(i % chunks) + 1];
            const int64_t first = i / chunks * length;
            runs.set(to - from);
            sums[static_cast<size_t>(i)] = sum_of_chunk(squared, read(first + from, first + to, scratch), runs);
        }
    });
    const T *at = sums.data();
    for (int64_t row = 0; row < rows; row++) y[row] = joined(length, AT_ONCE, at, 1);
}

// y[row] = the sum over row `row` of floats of numpy's type number `type`; float32 for 16-bit ones.
void pairwise_sums(const void *x, int type, int64_t rows, int64_t length, void *y);

// The sum, or mean, over the last dimensions; None over others. sum_strided: of arrays that are not contiguous.
nb::object sum_strided(const ExactArray &x, nb::handle axis, bool keepdims, bool mean);
nb::object sum_last(const ExactArray &x, nb::handle axis, bool keepdims, bool mean);

// What other files of this folder give to Python, by way of pairwise.cpp
void bind_log_sums(nb::module_ &m);
void bind_pairs(nb::module_ &m);
void bind_products(nb::module_ &m);
void bind_strided_sums(nb::module_ &m);

} // namespace resilin
