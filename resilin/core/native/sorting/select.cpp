// The places of the smallest or largest elements of each row, in order. Equal elements keep their order; NaN is the
// largest; -0 equals 0.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "order_keys.hpp"

#include <algorithm>
#include <type_traits>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t FEW = 64; // up to here, an insertion into those found is cheaper than a partition of all

constexpr int64_t BLOCK = 1024;
constexpr int64_t PIECE = 1 << 16; // elements of a row whose first ones are found by themselves
constexpr int TOP = 16;            // bits of a key that are looked at first

// The order in the upper part, and the place in the lower one: no two are equal.
template <class T> using Key = std::conditional_t<sizeof(T) == 4, uint64_t, unsigned __int128>;
template <class T> RESILIN_INLINE Key<T> key_of(T x, int64_t place, bool largest) {
    const auto ordered = order_key(x);
    const Key<T> upper = largest ? static_cast<decltype(ordered)>(~ordered) : ordered;
    return upper << (4 * sizeof(upper)) | static_cast<uint32_t>(place);
}

RESILIN_SIMD void keys_of(const float *x, int64_t begin, int64_t end, bool largest, Key<float> *keys) {
    for (int64_t i = begin; i < end; i++) keys[i - begin] = key_of(x[i], i, largest);
}
template <class T> void keys_of(const T *x, int64_t begin, int64_t end, bool largest, Key<T> *keys) {
    for (int64_t i = begin; i < end; i++) keys[i - begin] = key_of(x[i], i, largest);
}
RESILIN_SIMD uint64_t least_of(const uint64_t *keys, int64_t n) {
    uint64_t least = ~uint64_t{0};
#pragma omp simd reduction(min : least)
    for (int64_t i = 0; i < n; i++) least = keys[i] < least ? keys[i] : least;
    return least;
}
unsigned __int128 least_of(const unsigned __int128 *keys, int64_t n) { return *std::min_element(keys, keys + n); }

// Keeps the k first keys, in order, of those in `found` and n more.
template <class K> void insert_few(const K *keys, int64_t n, int64_t k, int64_t &count, K *found) {
    for (int64_t i = 0; i < n; i++) {
        const K key = keys[i];
        if (count == k && key >= found[k - 1]) continue;
        int64_t at = count < k ? count++ : k - 1;
        for (; at > 0 && found[at - 1] > key; at--) found[at] = found[at - 1];
        found[at] = key;
    }
}

// The k first keys of the elements from `begin` to `end`, in order; their number.
template <class T> int64_t few_first(const T *x, int64_t begin, int64_t end, int64_t k, bool largest, Key<T> *found) {
    Key<T> keys[BLOCK];
    int64_t count = 0;
    for (int64_t first = begin; first < end; first += BLOCK) {
        const int64_t n = std::min(BLOCK, end - first);
        keys_of(x, first, first + n, largest, keys);
        if (count < k || least_of(keys, n) < found[k - 1]) insert_few(keys, n, k, count, found);
    }
    return count;
}

// Of a long row, piece by piece on several threads, and then of what they found.
template <class T> void few_first_of_pieces(const T *x, int64_t n, int64_t k, bool largest, Key<T> *found) {
    const int64_t pieces = (n + PIECE - 1) / PIECE;
    std::vector<Key<T>> parts(static_cast<size_t>(pieces * FEW));
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
template <class T> Key<T> kth_of(const T *x, int64_t n, int64_t k, bool largest) {
    constexpr int SHIFT = 8 * static_cast<int>(sizeof(Key<T>)) - TOP;
    std::vector<uint32_t> counts(size_t{1} << TOP);
    Key<T> keys[BLOCK];
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t count = std::min(BLOCK, n - first);
        keys_of(x, first, first + count, largest, keys);
        for (int64_t i = 0; i < count; i++) counts[static_cast<size_t>(keys[i] >> SHIFT)]++;
    }
    size_t top = 0;
    int64_t rest = k;
    while (rest > counts[top]) rest -= counts[top++];
    std::vector<Key<T>> shared;
    shared.reserve(counts[top]);
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t count = std::min(BLOCK, n - first);
        keys_of(x, first, first + count, largest, keys);
        for (int64_t i = 0; i < count; i++)
            if (static_cast<size_t>(keys[i] >> SHIFT) == top) shared.push_back(keys[i]);
    }
    std::nth_element(shared.begin(), shared.begin() + (rest - 1), shared.end());
    return shared[static_cast<size_t>(rest - 1)];
}

template <class K> void first_of(K *keys, int64_t n, int64_t k) {
    if (k < n) std::nth_element(keys, keys + k - 1, keys + n);
    std::sort(keys, keys + k);
}

template <class T> nb::object places_of(const Array &x, int64_t k, bool largest, bool only) {
    std::vector<npy_intp> dims(PyArray_DIMS(x.array), PyArray_DIMS(x.array) + x.ndim());
    const int64_t n = x.last(), kept = only ? 1 : k;
    dims.back() = kept;
    NewArray<int64_t> places(x.ndim(), dims.data());
    nb::object made = places.object;
    WithoutGil free(x.size());
    const T *data = x.data<T>();
    auto write = [&](int64_t row, const Key<T> *keys) {
        for (int64_t i = 0; i < kept; i++) places.data[row * kept + i] = static_cast<uint32_t>(keys[i]);
    };
    if (!only && k <= FEW && n >= 2 * PIECE) {
        Key<T> found[FEW];
        for (int64_t row = 0; row < x.rows(); row++) {
            few_first_of_pieces(data + row * n, n, k, largest, found);
            write(row, found);
        }
        return made;
    }
    parallel_rows(x.rows(), 4 * n, [&](int64_t begin, int64_t end) {
        const bool by_counting = only && n > PIECE, few = !only && k <= FEW;
        std::vector<Key<T>> keys(by_counting || few ? FEW : static_cast<size_t>(n));
        for (int64_t row = begin; row < end; row++) {
            const T *from = data + row * n;
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

// The places of the k first elements along the last dimension, or with `only` of the k-th alone.
nb::object select_places(Array x, int64_t k, bool largest, bool only) {
    if (!x || x.ndim() < 1 || k < 1 || k > x.last() || x.last() > UINT32_MAX) return nb::none();
    if (x.is<float>()) return places_of<float>(x, k, largest, only);
    if (x.is<double>()) return places_of<double>(x, k, largest, only);
    return x.is<int64_t>() ? places_of<int64_t>(x, k, largest, only) : nb::none();
}

} // namespace

void bind_select(nb::module_ &m) { m.def("select_places", &select_places); }

} // namespace resilin
