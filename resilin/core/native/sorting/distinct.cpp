// Distinct elements and distinct rows, ascending: by sorting, and integers of a narrow range by counting. NaN is
// distinct from NaN; of equal elements the first one counts.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "items.hpp"

#include <optional>
#include <type_traits>

namespace resilin {
namespace {

constexpr int64_t SMALL_TABLE = 2048; // counters of which there are several sets, so that equal neighbours do not wait
constexpr int SETS = 4;

struct Counter {
    using type = uint32_t;
    static RESILIN_INLINE void count(uint32_t &times) { times++; }
};
struct Seen {
    using type = uint8_t;
    static RESILIN_INLINE void count(uint8_t &times) { times = 1; }
};

// table[v - least] for each element v
template <class How, class T>
void count_some(const T *x, int64_t n, T least, int64_t span, typename How::type *table, typename How::type *sets) {
    const auto place = [=](T v) { return static_cast<uint64_t>(v) - static_cast<uint64_t>(least); };
    int64_t i = 0;
    if (sets) {
        for (; i + SETS <= n; i += SETS)
            for (int set = 0; set < SETS; set++)
                How::count(sets[set * span + static_cast<int64_t>(place(x[i + set]))]);
        for (int set = 0; set < SETS; set++)
            for (int64_t v = 0; v < span; v++)
                table[v] = static_cast<typename How::type>(table[v] + sets[set * span + v]);
    }
    for (; i < n; i++) How::count(table[place(x[i])]);
}

// How often each of `span` integers occurs among n from `least` on, or whether it does at all.
template <class How, class T>
std::vector<typename How::type> occurrences(const T *x, int64_t n, T least, int64_t span) {
    using Times = typename How::type;
    const bool in_sets = std::is_same_v<How, Counter> && span <= SMALL_TABLE && n > SETS * span;
    const int64_t pieces = std::clamp<int64_t>(n / std::max(SORT_PIECE, 8 * span), 1, num_threads());
    std::vector<std::vector<Times>> tables(static_cast<size_t>(pieces));
    run_pieces(pieces, [&](int64_t i) {
        std::vector<Times> &table = tables[static_cast<size_t>(i)];
        std::vector<Times> sets(static_cast<size_t>(in_sets ? SETS * span : 0));
        table.resize(static_cast<size_t>(span));
        const int64_t begin = n * i / pieces, end = n * (i + 1) / pieces;
        count_some<How>(x + begin, end - begin, least, span, table.data(), in_sets ? sets.data() : nullptr);
    });
    for (size_t i = 1; i < tables.size(); i++)
        for (size_t v = 0; v < static_cast<size_t>(span); v++)
            tables[0][v] = static_cast<Times>(tables[0][v] + tables[i][v]);
    return std::move(tables[0]);
}

struct Asked {
    bool first, inverse, counts;
};
template <class T> nb::object made_or_none(const std::optional<NewArray<T>> &array) {
    return array ? array->object : nb::none();
}
std::optional<NewArray<int64_t>> if_asked(bool asked, int64_t n) {
    std::optional<NewArray<int64_t>> made;
    if (asked) made.emplace(std::initializer_list<npy_intp>{static_cast<npy_intp>(n)});
    return made;
}

template <class How, class T> nb::object by_counting(const Array &x, T least, int64_t span, Asked asked) {
    const T *data = x.data<T>();
    const int64_t n = x.size();
    std::vector<typename How::type> times;
    int64_t found = 0;
    {
        WithoutGil free(n);
        times = occurrences<How>(data, n, least, span);
        for (const auto often : times) found += often != 0;
    }
    NewArray<T> values({static_cast<npy_intp>(found)});
    const auto inverse = if_asked(asked.inverse, n), counts = if_asked(asked.counts, found);
    nb::object made = nb::make_tuple(values.object, nb::none(), made_or_none(inverse), made_or_none(counts));
    WithoutGil free(n);
    std::vector<int32_t> numbers(static_cast<size_t>(asked.inverse ? span : 0));
    for (int64_t v = 0, m = 0; v < span; v++) {
        const auto often = times[static_cast<size_t>(v)];
        if (asked.inverse) numbers[static_cast<size_t>(v)] = static_cast<int32_t>(m);
        if (!often) continue;
        values.data[m] = static_cast<T>(static_cast<uint64_t>(least) + static_cast<uint64_t>(v));
        if (asked.counts) counts->data[m] = often;
        m++;
    }
    if (!asked.inverse) return made;
    parallel_rows(n, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++)
            inverse->data[i] = numbers[static_cast<uint64_t>(data[i]) - static_cast<uint64_t>(least)];
    });
    return made;
}

// What is asked for of n places in order, of which those at `starts` are the first of their kind.
template <class Place>
void describe(const int64_t *starts, int64_t found, int64_t n, const Place &place, int64_t *first, int64_t *inverse,
              int64_t *counts) {
    parallel_rows(found, n / std::max<int64_t>(found, 1), [&](int64_t begin, int64_t end) {
        for (int64_t m = begin; m < end; m++) {
            const int64_t from = starts[m], to = m + 1 < found ? starts[m + 1] : n;
            if (first) first[m] = place(from);
            if (counts) counts[m] = to - from;
            if (inverse)
                for (int64_t i = from; i < to; i++) inverse[place(i)] = m;
        }
    });
}

template <class T> nb::object by_sorting(const Array &x, Asked asked) {
    const int64_t n = x.size();
    NewArray<int64_t> items({static_cast<npy_intp>(n)}), spare({static_cast<npy_intp>(n)});
    SortedRow<T> row{};
    int64_t found = 0, *starts;
    {
        WithoutGil free(n);
        auto *buffer = reinterpret_cast<uint64_t *>(items.data);
        row = sort_row(x.data<T>(), n, false, sort_pieces(n), buffer, reinterpret_cast<uint64_t *>(spare.data));
        starts = row.items == buffer ? spare.data : items.data;
        T before = row.element(0);
        starts[found++] = 0;
        for (int64_t i = 1; i < n; i++) {
            const T element = row.element(i);
            starts[found] = i;
            found += !(element == before);
            before = element;
        }
    }
    NewArray<T> values({static_cast<npy_intp>(found)});
    const auto first = if_asked(asked.first, found), inverse = if_asked(asked.inverse, n);
    const auto counts = if_asked(asked.counts, found);
    nb::object made =
        nb::make_tuple(values.object, made_or_none(first), made_or_none(inverse), made_or_none(counts));
    WithoutGil free(n);
    for (int64_t m = 0; m < found; m++) values.data[m] = row.element(starts[m]);
    if (asked.first || asked.inverse || asked.counts)
        describe(starts, found, n, [&](int64_t i) { return row.place(i); }, first ? first->data : nullptr,
                 inverse ? inverse->data : nullptr, counts ? counts->data : nullptr);
    return made;
}

template <class T> RangeOf<T> range_of(const Array &x) {
    WithoutGil free(x.size());
    return key_range(x.data<T>(), x.size(), false);
}
// How many counters are worth their memory for n elements
uint64_t largest_table(int64_t n) { return std::min<uint64_t>(4 * static_cast<uint64_t>(n) + 1024, INT32_MAX); }

template <class T> nb::object distinct_of(const Array &x, Asked asked) {
    if constexpr (std::is_integral_v<T>) {
        if (asked.first) return by_sorting<T>(x, asked);
        const RangeOf<T> range = range_of<T>(x);
        const uint64_t span = static_cast<uint64_t>(range.most - range.least);
        T least;
        element_of(range.least, least);
        if (span < largest_table(x.size()))
            return asked.counts ? by_counting<Counter>(x, least, static_cast<int64_t>(span) + 1, asked)
                                : by_counting<Seen>(x, least, static_cast<int64_t>(span) + 1, asked);
    }
    return by_sorting<T>(x, asked);
}

// (values, where each is first, which of them each element is, how often each occurs) of all elements; None for what is
// not asked for, and for dtypes without keys
nb::object distinct_elements(Array x, bool first, bool inverse, bool counts) {
    if (!x || !x.size() || x.size() > UINT32_MAX) return nb::none();
    const Asked asked{first, inverse, counts};
    if (x.is<float>()) return distinct_of<float>(x, asked);
    if (x.is<double>()) return distinct_of<double>(x, asked);
    if (x.is<int64_t>()) return distinct_of<int64_t>(x, asked);
    return x.is<int32_t>() ? distinct_of<int32_t>(x, asked) : nb::none();
}

// Whether row a comes before row b; equal rows by their places.
template <class T> bool comes_before(const T *x, int64_t width, uint32_t a, uint32_t b) {
    const T *one = x + a * width, *other = x + b * width;
    for (int64_t i = 1; i < width; i++) {
        const OrderKey<T> key = order_key(one[i]), other_key = order_key(other[i]);
        if (key != other_key) return key < other_key;
    }
    return a < b;
}

// By the first column, then by the others what is equal in it.
template <class T> nb::object rows_of(const Array &x) {
    const int64_t n = x.dim(0), width = x.dim(1);
    const T *data = x.data<T>();
    std::vector<int64_t> starts;
    NewArray<int64_t> inverse({static_cast<npy_intp>(n)});
    std::vector<uint32_t> order(static_cast<size_t>(n));
    {
        WithoutGil free(x.size());
        std::vector<T> column(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; i++) column[static_cast<size_t>(i)] = data[i * width];
        std::vector<uint64_t> buffers(static_cast<size_t>(2 * n));
        const SortedRow<T> row = sort_row(column.data(), n, false, sort_pieces(n), buffers.data(), buffers.data() + n);
        for (int64_t i = 0; i < n; i++) order[static_cast<size_t>(i)] = static_cast<uint32_t>(row.place(i));
        const auto key = [&](int64_t i) { return order_key(column[order[static_cast<size_t>(i)]]); };
        for (int64_t begin = 0, end; begin < n; begin = end) {
            for (end = begin + 1; end < n && key(end) == key(begin);) end++;
            if (end - begin > 1)
                std::sort(order.begin() + begin, order.begin() + end,
                          [&](uint32_t a, uint32_t b) { return comes_before(data, width, a, b); });
        }
        for (int64_t i = 0; i < n; i++) {
            const T *one = data + order[static_cast<size_t>(i)] * width;
            if (!i || !std::equal(one, one + width, data + order[static_cast<size_t>(i - 1)] * width))
                starts.push_back(i);
        }
    }
    const auto found = static_cast<npy_intp>(starts.size());
    NewArray<int64_t> first({found}), counts({found});
    const auto place = [&](int64_t i) { return order[static_cast<size_t>(i)]; };
    describe(starts.data(), found, n, place, first.data, inverse.data, counts.data);
    return nb::make_tuple(first.object, inverse.object, counts.object);
}

// (where each is first, which of them each row is, how often each occurs) of the rows of a matrix, in lexicographic
// order
nb::object distinct_rows(Array x) {
    if (!x || x.ndim() != 2 || !x.size() || x.dim(0) > UINT32_MAX) return nb::none();
    if (x.is<float>()) return rows_of<float>(x);
    if (x.is<double>()) return rows_of<double>(x);
    if (x.is<int64_t>()) return rows_of<int64_t>(x);
    return x.is<int32_t>() ? rows_of<int32_t>(x) : nb::none();
}

template <class T> nb::object counts_of(const Array &x, int64_t least_length) {
    const int64_t n = x.size();
    const RangeOf<T> range = range_of<T>(x);
    T least, most;
    element_of(range.least, least);
    element_of(range.most, most);
    if (least < 0 || static_cast<uint64_t>(most) >= largest_table(n)) return nb::none();
    const int64_t span = static_cast<int64_t>(most) + 1;
    NewArray<int64_t> counts({static_cast<npy_intp>(std::max(span, least_length))});
    nb::object made = counts.object;
    WithoutGil free(n);
    const std::vector<uint32_t> times = occurrences<Counter>(x.data<T>(), n, T(0), span);
    std::copy(times.begin(), times.end(), counts.data);
    std::fill(counts.data + span, counts.data + std::max(span, least_length), int64_t{0});
    return made;
}

// How often each number from 0 on occurs, so many at least; None for negative ones and for much larger ones than there
// are.
nb::object count_integers(Array x, int64_t least_length) {
    if (!x || x.ndim() != 1 || !x.size() || x.size() > UINT32_MAX) return nb::none();
    if (x.is<int64_t>()) return counts_of<int64_t>(x, least_length);
    return x.is<int32_t>() ? counts_of<int32_t>(x, least_length) : nb::none();
}

} // namespace

void bind_distinct(nb::module_ &m) {
    m.def("distinct_elements", &distinct_elements);
    m.def("distinct_rows", &distinct_rows);
    m.def("count_integers", &count_integers);
}

} // namespace resilin
