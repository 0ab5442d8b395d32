// Where elements would be inserted into sorted lines: halving without branches, several elements at a time, so that the
// waits for memory of one overlap those of the others. No NaN is before any, so that it is behind all; in lines, below.
#include "search.hpp"

#include "binding/array.hpp"
#include "kernels/simd.hpp"
#include "memory/parallel.hpp"

#include <algorithm>
#include <limits>

namespace resilin {
namespace {

constexpr int64_t TOGETHER = 16;
constexpr int64_t BLOCK = 512;
constexpr int64_t FEW = 256; // elements of a line within which all values are searched alike
constexpr int64_t STEP = 8; // operations for halving once, roughly

// 1 or 0, by arithmetic: a branch would be guessed wrong every other time.
template <class T> RESILIN_INLINE int64_t is_before(T a, T b) {
    return static_cast<int64_t>(a < b) | (static_cast<int64_t>(b != b) & static_cast<int64_t>(a == a));
}

// How many elements of a line are before (with `right`: not behind) each of `count` values.
template <bool RIGHT, class T>
RESILIN_INLINE void search_some(const T *line, int64_t n, const T *values, int64_t count, int64_t *found) {
    for (int64_t first = 0; first < count; first += TOGETHER) {
        const int64_t some = std::min(TOGETHER, count - first);
        T value[TOGETHER] = {};
        int64_t base[TOGETHER] = {};
        std::copy_n(values + first, some, value);
        auto passes = [&](int64_t k, int64_t at) __attribute__((always_inline)) {
            return RIGHT ? 1 - is_before(value[k], line[at]) : is_before(line[at], value[k]);
        };
        for (int64_t left = n; left > 1; left -= left / 2) {
            const int64_t half = left / 2;
            for (int64_t k = 0; k < TOGETHER; k++) base[k] += half & -passes(k, base[k] + half - 1);
        }
        for (int64_t k = 0; k < TOGETHER && n; k++) base[k] += passes(k, base[k]);
        std::copy_n(base, some, found + first);
    }
}

// Between the places of the least and the largest of a block: fewer halvings where its values are near one another, and
// memory that is near.
template <bool RIGHT, class T>
RESILIN_INLINE void search_blocks(const T *line, int64_t n, const T *values, int64_t count, int64_t *found) {
    using Limits = std::numeric_limits<T>;
    for (int64_t first = 0; first < count; first += BLOCK) {
        const int64_t some = std::min(BLOCK, count - first);
        const T *value = values + first;
        int64_t from = 0, to = n;
        if (some == BLOCK && n > FEW) {
            T least = Limits::has_infinity ? Limits::infinity() : Limits::max();
            T most = Limits::has_infinity ? -least : Limits::lowest();
            int unordered = 0;
            for (int64_t i = 0; i < BLOCK; i++) {
                least = value[i] < least ? value[i] : least;
                most = value[i] > most ? value[i] : most;
                unordered |= value[i] != value[i];
            }
            search_some<false>(line, n, &least, 1, &from);
            if (!unordered) search_some<true>(line, n, &most, 1, &to);
        }
        search_some<RIGHT>(line + from, to - from, value, some, found + first);
        for (int64_t i = 0; from && i < some; i++) found[first + i] += from;
    }
}

// A sorted line with NaN at its end is no sorted one for comparisons: its halves are those of PyTorch, whose results
// depend on them.
template <bool RIGHT, class T>
RESILIN_INLINE void search_to_nan(const T *line, int64_t n, const T *values, int64_t count, int64_t *found) {
    for (int64_t i = 0; i < count; i++) {
        int64_t start = 0, end = n;
        while (start < end) {
            const int64_t middle = start + (end - start) / 2;
            if (RIGHT ? line[middle] > values[i] : line[middle] >= values[i]) end = middle;
            else start = middle + 1;
        }
        found[i] = start;
    }
}

template <bool RIGHT, class T>
RESILIN_INLINE void search_line(const T *line, int64_t n, const T *values, int64_t count, int64_t *found) {
    if (line[n - 1] != line[n - 1]) search_to_nan<RIGHT>(line, n, values, count, found);
    else search_blocks<RIGHT>(line, n, values, count, found);
}

#define RESILIN_SEARCHES(T)                                                                                            \
    RESILIN_SIMD void search(const T *line, int64_t n, const T *values, int64_t count, bool right, int64_t *found) {   \
        if (right) search_line<true>(line, n, values, count, found);                                                   \
        else search_line<false>(line, n, values, count, found);                                                        \
    }
RESILIN_SEARCHES(float)
RESILIN_SEARCHES(double)
RESILIN_SEARCHES(int32_t)
RESILIN_SEARCHES(int64_t)

template <class T> nb::object found_in(const Array &lines, const Array &values, bool right) {
    NewArray<int64_t> places(values);
    const int64_t n = lines.last();
    int64_t steps = 1;
    while (n >> steps) steps++;
    const T *line = lines.data<T>(), *value = values.data<T>();
    WithoutGil free(values.size() * steps);
    if (lines.ndim() == 1) {
        parallel_rows(values.size(), steps * STEP, [&](int64_t begin, int64_t end) {
            search(line, n, value + begin, end - begin, right, places.data + begin);
        });
        return places.object;
    }
    const int64_t each = values.last();
    parallel_rows(lines.rows(), each * steps * STEP, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++)
            search(line + i * n, n, value + i * each, each, right, places.data + i * each);
    });
    return places.object;
}

// For a line for all values, or lines for values of the same dimensions before the last; None for what numpy searches.
nb::object search_sorted(Array lines, Array values, bool right) {
    if (!lines || !values || lines.ndim() < 1 || !lines.size() || !values.size()) return nb::none();
    if (lines.ndim() > 1) {
        if (lines.ndim() != values.ndim()) return nb::none();
        for (int d = 0; d < lines.ndim() - 1; d++)
            if (lines.dim(d) != values.dim(d)) return nb::none();
    }
    if (lines.is<float>() && values.is<float>()) return found_in<float>(lines, values, right);
    if (lines.is<double>() && values.is<double>()) return found_in<double>(lines, values, right);
    if (lines.is<int32_t>() && values.is<int32_t>()) return found_in<int32_t>(lines, values, right);
    return lines.is<int64_t>() && values.is<int64_t>() ? found_in<int64_t>(lines, values, right) : nb::none();
}

} // namespace

void bind_search(nb::module_ &m) { m.def("search_sorted", &search_sorted); }

} // namespace resilin
