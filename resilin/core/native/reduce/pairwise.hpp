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
constexpr int64_t SHARE = 8 * AT_ONCE; // elements of a long sum that one thread adds up, and another the next

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

// The sum over n elements from the sums of these parts, which `sums` passes; in line, a recursion is made of many copies.
template <class T> [[gnu::noinline]] T joined(int64_t n, int64_t most, const T *&sums) {
    if (n <= most) return *sums++;
    const T first = joined(first_half(n), most, sums);
    return first + joined(n - first_half(n), most, sums);
}

// The runs of a sum over at most AT_ONCE elements.
class Runs {
  public:
    explicit Runs(int64_t n) : n(n), count(0) {
        starts[0] = 0;
        add(n);
    }
    int64_t n, count, starts[AT_ONCE / 32]; // a run of several has more than RUN / 2 - 16 elements

  private:
    [[gnu::noinline]] void add(int64_t n) {
        if (n > RUN) {
            add(first_half(n));
            add(n - first_half(n));
            return;
        }
        starts[count + 1] = starts[count] + n;
        count++;
    }
};

// What is summed: elements, their squares, themselves but 0 for NaN, or their sizes
enum class Summed { elements, squares, known, sizes };

// The sum over n elements, of at most AT_ONCE and more than RUN.
float sum_of_runs(Summed what, const float *x, int64_t n);
double sum_of_runs(Summed what, const double *x, int64_t n);
// The same of such as are eight runs.
float sum_of_eight_runs(Summed what, const float *x, uint64_t n);
double sum_of_eight_runs(Summed what, const double *x, uint64_t n);
// Of the products of two arrays' elements
float sum_of_products(const float *x, const float *y, int64_t n);
double sum_of_products(const double *x, const double *y, int64_t n);
inline bool is_eight_runs(int64_t n) { return n >= 4 * (RUN + 8) && (n / 8 + 7) / 8 * 8 + n % 8 <= RUN; }
// The same of each row.
void sums_of_rows(Summed what, const float *x, int64_t rows, const Runs &runs, float *y);
void sums_of_rows(Summed what, const double *x, int64_t rows, const Runs &runs, double *y);

// The sum over the elements from begin to end, more than RUN; chunk(begin, end) gives that of at most AT_ONCE.
template <class T, class Chunk> T sum_of_chunks(const Chunk &chunk, int64_t begin, int64_t end) {
    if (end - begin <= AT_ONCE) return chunk(begin, end);
    const int64_t middle = begin + first_half(end - begin);
    const T first = sum_of_chunks<T>(chunk, begin, middle);
    return first + sum_of_chunks<T>(chunk, middle, end);
}

// y[row] = the sum over `length` > RUN elements of each of `rows` rows; chunk(begin, end, scratch) gives that of at most
// AT_ONCE of one row.
constexpr int64_t SCRATCH = 4 * AT_ONCE;
template <class T, class Chunk> void pairwise_chunks(const Chunk &chunk, int64_t rows, int64_t length, int64_t cost, T *y) {
    std::vector<int64_t> starts{0};
    cut(length, SHARE, starts);
    const int64_t parts = static_cast<int64_t>(starts.size()) - 1;
    std::vector<T> sums(static_cast<size_t>(rows * parts));
    parallel_rows(rows * parts, length / parts * cost, [&](int64_t begin, int64_t end) {
        alignas(64) T scratch[SCRATCH];
        const auto next = [&](int64_t from, int64_t to) { return chunk(from, to, scratch); };
        for (int64_t i = begin; i < end; i++) {
            const int64_t first = i / parts * length, *part = starts.data() + i % parts;
            sums[static_cast<size_t>(i)] = sum_of_chunks<T>(next, first + part[0], first + part[1]);
        }
    });
    const T *at = sums.data();
    for (int64_t row = 0; row < rows; row++) y[row] = joined(length, SHARE, at);
}

// y[row] = the sum over `length` elements of each of `rows` rows. read(begin, end, scratch) gives the elements from
// `begin` on, in their place or in `scratch`; it is called for at most `SCRATCH` at a time.
template <class T, class Read>
void pairwise_rows(const Read &read, int64_t rows, int64_t length, int64_t cost, Summed what, T *y) {
    if (length > AT_ONCE) {
        const auto chunk = [&](int64_t begin, int64_t end, T *scratch) {
            const T *x = read(begin, end, scratch);
            const int64_t n = end - begin;
            if (is_eight_runs(n)) return sum_of_eight_runs(what, x, static_cast<uint64_t>(n));
            return sum_of_runs(what, x, n);
        };
        return pairwise_chunks(chunk, rows, length, cost, y);
    }
    const int64_t group = std::max<int64_t>(SCRATCH / std::max<int64_t>(length, 1) / 4 * 4, 4);
    parallel_rows((rows + group - 1) / group, group * length * cost, [&](int64_t begin, int64_t end) {
        alignas(64) T scratch[SCRATCH];
        const Runs runs(length);
        for (int64_t i = begin; i < end; i++) {
            const int64_t row = i * group, count = std::min(group, rows - row);
            sums_of_rows(what, read(row * length, (row + count) * length, scratch), count, runs, y + row);
        }
    });
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
