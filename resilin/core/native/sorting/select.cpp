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
constexpr int64_t COUNTED = 1 << 15; // elements of a row from which on counting is cheaper than partitions
constexpr int TOP = 16;            // bits of a key that are looked at first

// The order in the upper part, and the place in the lower one: no two are equal. As wide as the range of keys needs.
using Narrow = uint64_t;
using Wide = unsigned __int128;
template <class T> using Key = std::conditional_t<sizeof(T) == 4, Narrow, Wide>;
template <class T> RESILIN_INLINE Key<T> key_of(OrderKey<T> ordered, int64_t place) {
    return static_cast<Key<T>>(ordered) << (4 * sizeof(Key<T>)) | static_cast<uint32_t>(place);
}

// Writes what orders elements, and says which is the least.
template <class T> RESILIN_INLINE OrderKey<T> order_some(const T *x, int64_t n, bool largest, OrderKey<T> *keys) {
    OrderKey<T> least = static_cast<OrderKey<T>>(~OrderKey<T>{0});
    const OrderKey<T> turn = largest ? least : 0;
#pragma omp simd reduction(min : least)
    for (int64_t i = 0; i < n; i++) {
        const OrderKey<T> key = order_key(x[i]) ^ turn;
        keys[i] = key;
        least = key < least ? key : least;
    }
    return least;
}
#define RESILIN_ORDERS(T)                                                                                              \
    RESILIN_SIMD OrderKey<T> order_of(const T *x, int64_t n, bool largest, OrderKey<T> *keys) {                        \
        return order_some(x, n, largest, keys);                                                                        \
    }
RESILIN_ORDERS(float)
RESILIN_ORDERS(double)
RESILIN_ORDERS(int64_t)
RESILIN_ORDERS(int32_t)

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
    OrderKey<T> keys[BLOCK];
    int64_t count = 0;
    const auto bound = [&] { return static_cast<OrderKey<T>>(found[k - 1] >> (4 * sizeof(Key<T>))); };
    for (int64_t first = begin; first < end; first += BLOCK) {
        const int64_t n = std::min(BLOCK, end - first);
        const OrderKey<T> least = order_of(x + first, n, largest, keys);
        int64_t i = 0;
        for (; count < k && i < n; i++) {
            const Key<T> key = key_of<T>(keys[i], first + i);
            insert_few(&key, 1, k, count, found);
        }
        if (count < k || least >= bound()) continue; // of equal ones, those behind do not come first
        for (; i < n; i++) {
            if (keys[i] >= bound()) continue;
            const Key<T> key = key_of<T>(keys[i], first + i);
            insert_few(&key, 1, k, count, found);
        }
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
    for (int64_t i = 0; i < pieces; i++)
        insert_few(parts.data() + i * FEW, counts[static_cast<size_t>(i)], k, count, found);
}

// All keys of a row, of those of its elements within a range.
template <class T> void write_keys(const T *x, int64_t begin, int64_t end, const RangeOf<T> &range, Narrow *keys) {
    pack_items(x, begin, end, range, 0, keys - begin);
}
template <class T> void write_keys(const T *x, int64_t begin, int64_t end, const RangeOf<T> &range, Wide *keys) {
    for (int64_t i = begin; i < end; i++, keys++) *keys = Wide{range.of(x[i])} << 64 | static_cast<uint32_t>(i);
}

// The place of the k-th of `items`, keys without their `lowered` lowest bits.
template <class T>
uint32_t kth_among(std::vector<Narrow> &items, int64_t k, const T *x, const RangeOf<T> &range, int lowered) {
    std::nth_element(items.begin(), items.begin() + (k - 1), items.end());
    const Narrow found = items[static_cast<size_t>(k - 1)];
    if (!lowered) return static_cast<uint32_t>(found);
    std::vector<Wide> equal; // in the upper bits
    for (const Narrow item : items) {
        const auto place = static_cast<uint32_t>(item);
        if (item >> 32 == found >> 32) equal.push_back(Wide{range.of(x[place])} << 64 | place);
        else k -= item < found;
    }
    std::nth_element(equal.begin(), equal.begin() + (k - 1), equal.end());
    return static_cast<uint32_t>(equal[static_cast<size_t>(k - 1)]);
}

// The place of the k-th element of a row: of a long one its first bits by counting, then among those that share them.
template <class T>
uint32_t kth_of(const T *x, int64_t n, int64_t k, const RangeOf<T> &range, std::vector<Narrow> &items) {
    const int bits = std::min(range.bits(), 32), lowered = range.bits() - bits, shift = 32 + std::max(0, bits - TOP);
    if (n < COUNTED) {
        items.resize(static_cast<size_t>(n));
        pack_items(x, 0, n, range, lowered, items.data());
        return kth_among(items, k, x, range, lowered);
    }
    std::vector<uint32_t> counts(size_t{1} << TOP);
    Narrow block[BLOCK];
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t end = std::min(first + BLOCK, n);
        pack_items(x, first, end, range, lowered, block - first);
        for (int64_t i = 0; i < end - first; i++) counts[static_cast<size_t>(block[i] >> shift)]++;
    }
    size_t top = 0;
    while (k > counts[top]) k -= counts[top++];
    items.clear();
    items.reserve(counts[top]);
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t end = std::min(first + BLOCK, n);
        pack_items(x, first, end, range, lowered, block - first);
        for (int64_t i = 0; i < end - first; i++) {
            if (static_cast<size_t>(block[i] >> shift) != top) continue;
            items.push_back(block[i]);
            if (bits <= TOP && --k == 0) return static_cast<uint32_t>(block[i]); // they differ by place alone
        }
    }
    return kth_among(items, k, x, range, lowered);
}

template <class K> void first_of(K *keys, int64_t n, int64_t k) {
    if (k < n) std::nth_element(keys, keys + k - 1, keys + n);
    std::sort(keys, keys + k);
}

// Writes the places of the k first elements of a row.
template <class K, class T>
void select_in_row(const T *x, int64_t n, int64_t k, const RangeOf<T> &range, std::vector<K> &keys, int64_t *places) {
    keys.resize(static_cast<size_t>(n));
    write_keys(x, 0, n, range, keys.data());
    first_of(keys.data(), n, k);
    for (int64_t i = 0; i < k; i++) places[i] = static_cast<uint32_t>(keys[static_cast<size_t>(i)]);
}

// Where the first NaN is; n where there is none.
template <class T> RESILIN_INLINE int64_t nan_among(const T *x, int64_t n) {
    int found = 0;
    for (int64_t i = 0; i < n; i++) found |= x[i] != x[i];
    return found ? std::find_if(x, x + n, [](T v) { return v != v; }) - x : n;
}
RESILIN_SIMD int64_t first_nan(const float *x, int64_t n) { return nan_among(x, n); }
RESILIN_SIMD int64_t first_nan(const double *x, int64_t n) { return nan_among(x, n); }
template <class Integer> int64_t first_nan(const Integer *, int64_t n) { return n; }

template <class T> nb::object places_of(const Array &x, int64_t k, bool largest, bool only, bool nan_wins) {
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
    if (!only && k <= FEW) {
        Key<T> found[FEW];
        for (int64_t row = 0; n >= 2 * PIECE && row < x.rows(); row++) {
            few_first_of_pieces(data + row * n, n, k, largest, found);
            write(row, found);
        }
        if (n >= 2 * PIECE) return made;
        parallel_rows(x.rows(), 4 * n, [&](int64_t begin, int64_t end) {
            Key<T> first[FEW];
            for (int64_t row = begin; row < end; row++) {
                few_first(data + row * n, 0, n, k, largest, first);
                write(row, first);
            }
        });
        return made;
    }
    parallel_rows(x.rows(), 4 * n, [&](int64_t begin, int64_t end) {
        std::vector<Narrow> narrow;
        std::vector<Wide> wide;
        for (int64_t row = begin; row < end; row++) {
            const T *from = data + row * n;
            int64_t *to = places.data + row * kept;
            if (nan_wins && (*to = first_nan(from, n)) < n) continue;
            RangeOf<T> range{0, static_cast<OrderKey<T>>(~OrderKey<T>{0}), largest}; // floats need all of 32 bits
            if (!std::is_same_v<T, float>) range = key_range(from, n, largest);
            if (only) *to = kth_of(from, n, k, range, narrow);
            else if (range.bits() <= 32) select_in_row(from, n, k, range, narrow, to);
            else select_in_row(from, n, k, range, wide, to);
        }
    });
    return made;
}

// The places of the k first elements along the last dimension, or with `only` of the k-th alone, and then with
// `nan_wins` of the first NaN where there is one.
nb::object select_places(Array x, int64_t k, bool largest, bool only, bool nan_wins) {
    if (!x || x.ndim() < 1 || k < 1 || k > x.last() || x.last() > UINT32_MAX) return nb::none();
    if (x.is<float>()) return places_of<float>(x, k, largest, only, nan_wins);
    if (x.is<double>()) return places_of<double>(x, k, largest, only, nan_wins);
    if (x.is<int32_t>()) return places_of<int32_t>(x, k, largest, only, nan_wins);
    return x.is<int64_t>() ? places_of<int64_t>(x, k, largest, only, nan_wins) : nb::none();
}

} // namespace

void bind_select(nb::module_ &m) { m.def("select_places", &select_places); }

} // namespace resilin
