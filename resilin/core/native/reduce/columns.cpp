// Extremes and products over dimensions that have others behind them: row after row of these, ascending. Products of
// floats are rounded to their own type at every step (16 bits: to float32), those of integers wrap around.
#include "binding/array.hpp"
#include "extremes.hpp"
#include "indexing/stored.hpp"
#include "memory/parallel.hpp"
#include "trailing.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t TILE = 64;         // columns at a time
constexpr int64_t PART = 16 << 10;   // elements of a part of the rows, where parts do not change the result

struct Larger {
    static constexpr bool IN_PARTS = true;
    template <class T> static RESILIN_INLINE T of(T a, T b) { return (b > a) | (b != b) ? b : a; }
};
struct Smaller {
    static constexpr bool IN_PARTS = true;
    template <class T> static RESILIN_INLINE T of(T a, T b) { return (b < a) | (b != b) ? b : a; }
};
struct Product {
    static constexpr bool IN_PARTS = false;
    template <class T> static RESILIN_INLINE T of(T a, T b) {
        if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) * static_cast<std::make_unsigned_t<T>>(b));
        else return a * b;
    }
};

template <int64_t Width, class Rule, class E>
RESILIN_INLINE void fold(E, const typename E::Stored *x, int64_t rows, int64_t apart, int64_t given, typename E::Computed *y) {
    const int64_t width = Width ? Width : given;
    typename E::Computed kept[TILE];
    for (int64_t j = 0; j < width; j++) kept[j] = E::open(x[j]);
    for (int64_t i = 1; i < rows; i++)
        for (int64_t j = 0; j < width; j++) kept[j] = Rule::of(kept[j], E::open(x[i * apart + j]));
    for (int64_t j = 0; j < width; j++) y[j] = kept[j];
}
#define RESILIN_FOLDED(E, RULE)                                                                                                        \
    RESILIN_SIMD void folded(RULE, E kind, const E::Stored *x, int64_t rows, int64_t apart, int64_t width, E::Computed *y) {            \
        if (width == TILE) fold<TILE, RULE>(kind, x, rows, apart, width, y);                                                           \
        else fold<0, RULE>(kind, x, rows, apart, width, y);                                                                            \
    }
#define RESILIN_FOLDS(E) RESILIN_FOLDED(E, Larger) RESILIN_FOLDED(E, Smaller) RESILIN_FOLDED(E, Product)
RESILIN_FOLDS(Whole<float>)
RESILIN_FOLDS(Whole<double>)
RESILIN_FOLDS(Whole<int64_t>)
RESILIN_FOLDS(Half)
RESILIN_FOLDS(Bfloat)

// The dimensions `axis` names lie side by side, but for those of length 1: x is (outer, n, inner).
struct Columns {
    int64_t outer = 1, n = 1, inner = 1;
    uint64_t named = 0;
    bool among(nb::handle axis, const ExactArray &x) {
        if (!named_axes(axis, x.ndim(), named)) return false;
        int part = 0; // 0: outer, 1: n, 2: inner
        for (int i = 0; i < x.ndim(); i++) {
            if (x.dim(i) == 1) continue;
            const bool gone = named >> i & 1;
            if (gone && part == 2) return false;
            if (gone) part = 1;
            else if (part == 1) part = 2;
            (gone ? n : part == 2 ? inner : outer) *= x.dim(i);
        }
        return true;
    }
};

template <class Rule, class E> void fold_columns(E kind, const Columns &of, const typename E::Stored *x, typename E::Stored *y) {
    using Computed = typename E::Computed;
    const int64_t tiles = (of.inner + TILE - 1) / TILE, width = std::min(of.inner, TILE);
    const int64_t parts = Rule::IN_PARTS ? std::clamp<int64_t>(of.n * width / PART, 1, of.n) : 1;
    std::vector<Computed> found(static_cast<size_t>(of.outer * parts * of.inner));
    parallel_rows(of.outer * parts * tiles, std::max<int64_t>(1, of.n / parts) * width, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++) {
            const int64_t first = task % tiles * TILE, row = task / tiles;
            const int64_t from = of.n * (row % parts) / parts, to = of.n * (row % parts + 1) / parts;
            folded(Rule(), kind, x + (row / parts * of.n + from) * of.inner + first, to - from, of.inner, std::min(TILE, of.inner - first),
                   found.data() + row * of.inner + first);
        }
    });
    for (int64_t i = 0; i < of.outer; i++) {
        Computed *best = found.data() + i * parts * of.inner;
        for (int64_t part = 1; part < parts; part++)
            for (int64_t j = 0; j < of.inner; j++) best[j] = Rule::of(best[j], best[part * of.inner + j]);
        for (int64_t j = 0; j < of.inner && Rule::IN_PARTS; j++)
            if (best[j] != best[j]) best[j] = std::numeric_limits<Computed>::quiet_NaN();
        if constexpr (std::is_same_v<typename E::Stored, Computed>) std::copy_n(best, of.inner, y + i * of.inner);
        else E::pack(best, 0, of.inner, y + i * of.inner);
    }
}

template <class Rule> nb::object over_columns(const ExactArray &x, nb::handle axis, bool keepdims) {
    Columns of;
    if (!PyArray_ISCARRAY_RO(x.array) || !PyArray_ISNOTSWAPPED(x.array) || !has_kind(PyArray_TYPE(x.array)) || !of.among(axis, x)) return nb::none();
    nb::object made = without_axes(x, of.named, keepdims);
    void *y = PyArray_DATA(reinterpret_cast<PyArrayObject *>(made.ptr()));
    WithoutGil free(x.size());
    by_kind(PyArray_TYPE(x.array), [&](auto kind) {
        using Stored = typename decltype(kind)::Stored;
        fold_columns<Rule>(kind, of, static_cast<const Stored *>(PyArray_DATA(x.array)), static_cast<Stored *>(y));
    });
    return made;
}

} // namespace

nb::object extremes_of_columns(const ExactArray &x, nb::handle axis, bool keepdims, bool largest) {
    return largest ? over_columns<Larger>(x, axis, keepdims) : over_columns<Smaller>(x, axis, keepdims);
}
nb::object products_of_columns(const ExactArray &x, nb::handle axis, bool keepdims) { return over_columns<Product>(x, axis, keepdims); }

} // namespace resilin
