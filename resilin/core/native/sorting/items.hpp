// Sorting items of 64 bits, a number before the place that it comes from, by the number: stable.
#pragma once
#include "order_keys.hpp"

#include "memory/parallel.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace resilin {

constexpr int64_t SORT_PIECE = 1 << 15; // elements of a row that one thread looks at, at least

// Sorts n items whose numbers have so many bits; they lie in `items` or `spare` then, whichever is returned
// (items.cpp).
uint64_t *sort_items(uint64_t *items, uint64_t *spare, int64_t n, int bits, int64_t pieces);

// A sorted row: items as above, of keys without their `lowered` lowest bits.
template <class T> struct SortedRow {
    const T *x;
    uint64_t *items;
    RangeOf<T> range;
    int lowered;

    RESILIN_INLINE int64_t place(int64_t i) const { return static_cast<uint32_t>(items[i]); }
    // from its key where that tells it: elements lie anywhere
    RESILIN_INLINE T element(int64_t i) const {
        const OrderKey<T> key = range.turned(static_cast<OrderKey<T>>(range.least + (items[i] >> 32)));
        if (lowered || !tells_element(key, T{})) return x[place(i)];
        T found;
        element_of(key, found);
        return found;
    }
};

// Sorts by the lower bits what is equal in the upper ones, of the runs that start from `from` to `to`.
template <class T> void sort_runs(const SortedRow<T> &row, uint64_t *spare, int64_t from, int64_t to, int64_t n) {
    constexpr int64_t FEW = 24;
    const OrderKey<T> mask = static_cast<OrderKey<T>>((uint64_t{1} << row.lowered) - 1);
    uint64_t *items = row.items;
    for (int64_t begin = from, end; begin < to; begin = end) {
        const uint64_t upper = items[begin] >> 32;
        for (end = begin + 1; end < n && items[end] >> 32 == upper;) end++;
        if (end - begin == 1) continue;
        for (int64_t i = begin; i < end; i++) {
            const uint64_t lower = row.range.of(row.x[static_cast<uint32_t>(items[i])]) & mask;
            items[i] = lower << 32 | static_cast<uint32_t>(items[i]);
        }
        if (end - begin > FEW) {
            uint64_t *found = sort_items(items + begin, spare + begin, end - begin, row.lowered, 1);
            if (found != items + begin) std::copy_n(found, end - begin, items + begin);
            continue;
        }
        for (int64_t i = begin + 1; i < end; i++) {
            const uint64_t item = items[i];
            int64_t at = i;
            for (; at > begin && items[at - 1] > item; at--) items[at] = items[at - 1];
            items[at] = item;
        }
    }
}

// How many threads look at a row of n elements that has them all.
inline int64_t sort_pieces(int64_t n) { return std::clamp<int64_t>(n / SORT_PIECE, 1, num_threads()); }

// Sorts a row of n >= 1 elements in two buffers.
template <class T>
SortedRow<T> sort_row(const T *x, int64_t n, bool largest, int64_t pieces, uint64_t *items, uint64_t *spare) {
    std::vector<RangeOf<T>> ranges(static_cast<size_t>(pieces));
    run_pieces(pieces, [&](int64_t i) {
        const int64_t begin = n * i / pieces;
        ranges[static_cast<size_t>(i)] = key_range(x + begin, n * (i + 1) / pieces - begin, largest);
    });
    RangeOf<T> range = ranges[0];
    for (const RangeOf<T> &other : ranges) {
        range.least = std::min(range.least, other.least);
        range.most = std::max(range.most, other.most);
    }
    const int bits = range.bits(), lowered = std::max(0, bits - 32);
    run_pieces(pieces, [&](int64_t i) { pack_items(x, n * i / pieces, n * (i + 1) / pieces, range, lowered, items); });
    SortedRow<T> row{x, sort_items(items, spare, n, bits - lowered, pieces), range, lowered};
    if (!lowered) return row;
    std::vector<int64_t> ends(static_cast<size_t>(pieces + 1)); // of runs
    for (int64_t i = 1; i <= pieces; i++) {
        int64_t &end = ends[static_cast<size_t>(i)];
        for (end = n * i / pieces; end < n && row.items[end] >> 32 == row.items[end - 1] >> 32;) end++;
    }
    run_pieces(pieces, [&](int64_t i) {
        const size_t piece = static_cast<size_t>(i);
        sort_runs(row, row.items == items ? spare : items, ends[piece], ends[piece + 1], n);
    });
    return row;
}

} // namespace resilin
