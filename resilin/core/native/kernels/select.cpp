// The places of the smallest or largest elements of each row, in order. Equal elements keep their order; NaN is the
// largest; -0 equals 0.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "order_keys.hpp"

#include <algorithm>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t FEW = 64; // up to here, an insertion into those found is cheaper than a partition of all

constexpr int64_t BLOCK = 1024;
constexpr int64_t PIECE = 1 << 16; // elements of a row whose first ones are found by themselves
constexpr int TOP = 16;            // bits of a key that are looked at first

// The order in the upper half, and the place in the lower one: no two are equal.
RESILIN_INLINE uint64_t key_of(float x, int64_t place, bool largest) {
    const uint32_t ordered = order_key(x);
    return static_cast<uint64_t>(largest ? ~ordered : ordered) << 32 | static_cast<uint32_t>(place);
}

RESILIN_SIMD void keys_of(const float *x, int64_t begin, int64_t end, bool largest, uint64_t *keys) {
    for (int64_t i = begin; i < end; i++) keys[i - begin] = key_of(x[i], i, largest);
}
RESILIN_SIMD uint64_t least_of(const uint64_t *keys, int64_t n) {
    uint64_t least = ~uint64_t{0};
#pragma omp simd reduction(min : least)
    for (int64_t i = 0; i < n; i++) least = keys[i] < least ? keys[i] : least;
    return least;
}

// Keeps the k first keys, in order, of those in `found` and n more.
void insert_few(const uint64_t *keys, int64_t n, int64_t k, int64_t &count, uint64_t *found) {
    for (int64_t i = 0; i < n; i++) {
        const uint64_t key = keys[i];
        if (count == k && key >= found[k - 1]) continue;
        int64_t at = count < k ? count++ : k - 1;
        for (; at > 0 && found[at - 1] > key; at--) found[at] = found[at - 1];
        found[at] = key;
    }
}

// The k first keys of the elements from `begin` to `end`, in order; their number.
int64_t few_first(const float *x, int64_t begin, int64_t end, int64_t k, bool largest, uint64_t *found) {
    uint64_t keys[BLOCK];
    int64_t count = 0;
    for (int64_t first = begin; first < end; first += BLOCK) {
        const int64_t n = std::min(BLOCK, end - first);
        keys_of(x, first, first + n, largest, keys);
        if (count < k || least_of(keys, n) < found[k - 1]) insert_few(keys, n, k, count, found);
    }
    return count;
}

// Of a long row, piece by piece on several threads, and then of what they found.
void few_first_of_pieces(const float *x, int64_t n, int64_t k, bool largest, uint64_t *found) {
    const int64_t pieces = (n + PIECE - 1) / PIECE;
    std::vector<uint64_t> parts(static_cast<size_t>(pieces * FEW));
    std::vector<int64_t> counts(static_cast<size_t>(pieces));
    parallel_rows(pieces, PIECE, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++)
            counts[static_cast<size_t>(i)] =
                few_first(x, i * PIECE, std::min(n, (i + 1) * PIECE), k, largest, parts.data() + i * FEW);
    });
    int64_t count = 0;
    for (int64_t i = 0; i < pieces; i++) insert_few(parts.data() + i * FEW, counts[static_cast<size_t>(i)], k, count, found);
}

// The k-th key of a row: its first bits by counting, then among those that share them.
uint64_t kth_of(const float *x, int64_t n, int64_t k, bool largest) {
    std::vector<uint32_t> counts(size_t{1} << TOP);
    uint64_t keys[BLOCK];
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t count = std::min(BLOCK, n - first);
        keys_of(x, first, first + count, largest, keys);
        for (int64_t i = 0; i < count; i++) counts[keys[i] >> (64 - TOP)]++;
    }
    uint64_t top = 0;
    int64_t rest = k;
    while (rest > counts[top]) rest -= counts[top++];
    std::vector<uint64_t> shared;
    shared.reserve(counts[top]);
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t count = std::min(BLOCK, n - first);
        keys_of(x, first, first + count, largest, keys);
        for (int64_t i = 0; i < count; i++)
            if (keys[i] >> (64 - TOP) == top) shared.push_back(keys[i]);
    }
    std::nth_element(shared.begin(), shared.begin() + (rest - 1), shared.end());
    return shared[static_cast<size_t>(rest - 1)];
}

void first_of(uint64_t *keys, int64_t n, int64_t k) {
    if (k < n) std::nth_element(keys, keys + k - 1, keys + n);
    std::sort(keys, keys + k);
}

// The places of the k first elements along the last dimension, or with `only` of the k-th alone.
nb::object select_places(Array x, int64_t k, bool largest, bool only) {
    if (!x.is<float>() || x.ndim() < 1 || k < 1 || k > x.last() || x.last() > UINT32_MAX) return nb::none();
    std::vector<npy_intp> dims(PyArray_DIMS(x.array), PyArray_DIMS(x.array) + x.ndim());
    const int64_t n = x.last(), kept = only ? 1 : k;
    dims.back() = kept;
    NewArray<int64_t> places(x.ndim(), dims.data());
    nb::object made = places.object;
    WithoutGil free(x.size());
    const float *data = x.data<float>();
    auto write = [&](int64_t row, const uint64_t *keys) {
        for (int64_t i = 0; i < kept; i++) places.data[row * kept + i] = static_cast<uint32_t>(keys[i]);
    };
    if (!only && k <= FEW && n >= 2 * PIECE) {
        uint64_t found[FEW];
        for (int64_t row = 0; row < x.rows(); row++) {
            few_first_of_pieces(data + row * n, n, k, largest, found);
            write(row, found);
        }
        return made;
    }
    parallel_rows(x.rows(), 4 * n, [&](int64_t begin, int64_t end) {
        const bool by_counting = only && n > PIECE, few = !only && k <= FEW;
        std::vector<uint64_t> keys(by_counting || few ? FEW : static_cast<size_t>(n));
        for (int64_t row = begin; row < end; row++) {
            const float *from = data + row * n;
            if (few) few_first(from, 0, n, k, largest, keys.data());
            else if (by_counting) keys[0] = kth_of(from, n, k, largest);
            else {
                keys_of(from, 0, n, largest, keys.data());
                if (only) {
                    std::nth_element(keys.begin(), keys.begin() + (k - 1), keys.end());
                    keys[0] = keys[static_cast<size_t>(k - 1)];
                } else {
                    first_of(keys.data(), n, k);
                }
            }
            write(row, keys.data());
        }
    });
    return made;
}

} // namespace

void bind_select(nb::module_ &m) { m.def("select_places", &select_places); }

} // namespace resilin
