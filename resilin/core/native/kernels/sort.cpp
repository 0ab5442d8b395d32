// The places that sort each row. Equal elements keep their order, so that there is one answer, whatever the way to it;
// NaN is the largest, -0 equals 0. Long rows are sorted by their digits, the lowest first; short ones by comparing.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "order_keys.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t SHORT = 192;   // elements; below, comparing is faster
constexpr int DIGIT = 8;         // bits
constexpr int64_t VALUES = 1 << DIGIT;
constexpr int64_t PIECE = 1 << 16; // elements of a row that one thread looks at, at least

template <class Key> struct Place {
    Key key;
    uint32_t at;
};

template <class Key> void sort_short(Place<Key> *places, int64_t n) {
    std::sort(places, places + n, [](const Place<Key> &a, const Place<Key> &b) {
        return a.key < b.key || (a.key == b.key && a.at < b.at);
    });
}

// Moves places in the order of one digit; the pieces of the row in their order, so that equal ones keep theirs.
template <class Key>
void sort_by_digit(const Place<Key> *from, Place<Key> *to, int64_t n, int64_t pieces, int shift, std::vector<int64_t> &starts) {
    run_pieces(pieces, [&](int64_t piece) {
        int64_t *count = starts.data() + piece * VALUES;
        std::fill_n(count, VALUES, int64_t{0});
        for (int64_t i = n * piece / pieces; i < n * (piece + 1) / pieces; i++)
            count[from[i].key >> shift & (VALUES - 1)]++;
    });
    int64_t next = 0;
    for (int64_t value = 0; value < VALUES; value++)
        for (int64_t piece = 0; piece < pieces; piece++) {
            int64_t &start = starts[static_cast<size_t>(piece * VALUES + value)];
            next += start;
            start = next - start;
        }
    run_pieces(pieces, [&](int64_t piece) {
        int64_t *start = starts.data() + piece * VALUES;
        for (int64_t i = n * piece / pieces; i < n * (piece + 1) / pieces; i++)
            to[start[from[i].key >> shift & (VALUES - 1)]++] = from[i];
    });
}

// The sorted places lie in `places` or `spare`, whichever is returned.
template <class Key>
Place<Key> *sort_places(Place<Key> *places, Place<Key> *spare, int64_t n, int64_t pieces, std::vector<int64_t> &starts) {
    if (n < SHORT) {
        sort_short(places, n);
        return places;
    }
    Key ones = 0, all = ~Key{0};
    for (int64_t i = 0; i < n; i++) ones |= places[i].key, all &= places[i].key;
    const Key differing = ones ^ all;
    for (int shift = 0; shift < static_cast<int>(8 * sizeof(Key)); shift += DIGIT) {
        if (!(differing >> shift & (VALUES - 1))) continue; // one digit for all
        sort_by_digit(places, spare, n, pieces, shift, starts);
        std::swap(places, spare);
    }
    return places;
}

template <class T> nb::object order_of(const Array &x, bool largest) {
    using Key = decltype(order_key(T{}));
    NewArray<int64_t> order(x);
    nb::object made = order.object;
    const int64_t n = x.last(), rows = x.rows();
    WithoutGil free(x.size());
    const T *data = x.data<T>();
    auto sort_row = [&](int64_t row, int64_t pieces, Place<Key> *places, Place<Key> *spare, std::vector<int64_t> &starts) {
        for (int64_t i = 0; i < n; i++) {
            const Key key = order_key(data[row * n + i]);
            places[i] = {largest ? static_cast<Key>(~key) : key, static_cast<uint32_t>(i)};
        }
        const Place<Key> *sorted = sort_places(places, spare, n, pieces, starts);
        for (int64_t i = 0; i < n; i++) order.data[row * n + i] = sorted[i].at;
    };
    if (rows < num_threads() && n > 2 * PIECE) {
        const int64_t pieces = std::min<int64_t>(num_threads(), n / PIECE);
        std::vector<Place<Key>> places(static_cast<size_t>(2 * n));
        std::vector<int64_t> starts(static_cast<size_t>(pieces * VALUES));
        for (int64_t row = 0; row < rows; row++) sort_row(row, pieces, places.data(), places.data() + n, starts);
        return made;
    }
    parallel_rows(rows, 8 * n, [&](int64_t begin, int64_t end) {
        std::vector<Place<Key>> places(static_cast<size_t>(2 * n));
        std::vector<int64_t> starts(VALUES);
        for (int64_t row = begin; row < end; row++) sort_row(row, 1, places.data(), places.data() + n, starts);
    });
    return made;
}

// None for dtypes without keys.
nb::object sort_order(Array x, bool largest) {
    if (!x || x.ndim() < 1 || x.last() > UINT32_MAX) return nb::none();
    if (x.is<float>()) return order_of<float>(x, largest);
    if (x.is<double>()) return order_of<double>(x, largest);
    if (x.is<int64_t>()) return order_of<int64_t>(x, largest);
    if (x.is<int32_t>()) return order_of<int32_t>(x, largest);
    return nb::none();
}

} // namespace

void bind_sort(nb::module_ &m) { m.def("sort_order", &sort_order); }

} // namespace resilin
