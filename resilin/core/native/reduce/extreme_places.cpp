// Where the largest or smallest elements along a dimension of contiguous arrays are: the first of equals; NaN wins.
#include "binding/array.hpp"
#include "elementwise/half_blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "extremes.hpp"
#include "kernels/simd.hpp"
#include "memory/parallel.hpp"

#include <algorithm>
#include <type_traits>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t PART = 1 << 14; // elements of a row that are looked through at once
constexpr int64_t TILE = 256;     // columns at a time

// The first element of a row that equals `best`, or that is NaN where that is
template <class T> RESILIN_INLINE int64_t place_of(const T *x, int64_t n, T best) {
    constexpr int64_t BLOCK = 32;
    const bool unordered = best != best;
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t count = std::min(BLOCK, n - first);
        int found = 0;
        for (int64_t i = 0; i < count; i++) found |= unordered ? x[first + i] != x[first + i] : x[first + i] == best;
        for (int64_t i = 0; found && i < count; i++)
            if (unordered ? x[first + i] != x[first + i] : x[first + i] == best) return first + i;
    }
    return 0;
}
// Whether `a` comes before `b`, which stands behind it
template <class T> bool wins(T a, T b, bool largest) { return a != a || (b == b && (largest ? a >= b : a <= b)); }

// The best of `width` columns after row `i` of them
template <bool Largest, class T, class Place>
RESILIN_INLINE void better(const T *x, int64_t width, Place i, T *best, Place *place) {
    for (int64_t j = 0; j < width; j++) {
        const bool more = Largest ? x[j] > best[j] : x[j] < best[j];
        const bool take = (more | (x[j] != x[j])) & (best[j] == best[j]);
        best[j] = take ? x[j] : best[j];
        place[j] = take ? i : place[j];
    }
}
// Places as wide as the elements, which a vector has as many of
template <class T> using Place = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
#define RESILIN_PLACES(T)                                                                                              \
    RESILIN_SIMD int64_t first_of(const T *x, int64_t n, T best) { return place_of(x, n, best); }                      \
    RESILIN_SIMD void larger(const T *x, int64_t width, Place<T> i, T *best, Place<T> *place) {                        \
        better<true>(x, width, i, best, place);                                                                        \
    }                                                                                                                  \
    RESILIN_SIMD void smaller(const T *x, int64_t width, Place<T> i, T *best, Place<T> *place) {                       \
        better<false>(x, width, i, best, place);                                                                       \
    }
RESILIN_PLACES(float)
RESILIN_PLACES(double)
RESILIN_PLACES(int64_t)

// read(begin, end, scratch): elements in their place or in `scratch`
template <class T, class Read>
void places_in_rows(const Read &read, int64_t rows, int64_t n, bool largest, int64_t *y) {
    const int64_t parts = (n + PART - 1) / PART;
    std::vector<T> best(static_cast<size_t>(rows * parts));
    std::vector<int64_t> places(static_cast<size_t>(rows * parts));
    parallel_rows(rows * parts, std::min(n, PART), [&](int64_t begin, int64_t end) {
        std::vector<T> scratch;
        for (int64_t i = begin; i < end; i++) {
            const int64_t at = i % parts * PART, count = std::min(PART, n - at), from = i / parts * n + at;
            const T *x = read(from, from + count, scratch);
            T found;
            if (largest) largest_of_rows(x, count, 0, 1, &found);
            else smallest_of_rows(x, count, 0, 1, &found);
            best[static_cast<size_t>(i)] = found;
            places[static_cast<size_t>(i)] = at + first_of(x, count, found);
        }
    });
    for (int64_t row = 0; row < rows; row++) {
        int64_t found = row * parts;
        for (int64_t i = found + 1; i < (row + 1) * parts; i++)
            if (!wins(best[static_cast<size_t>(found)], best[static_cast<size_t>(i)], largest)) found = i;
        y[row] = places[static_cast<size_t>(found)];
    }
}

template <class T, class Read>
void places_in_columns(const Read &read, int64_t outer, int64_t n, int64_t inner, bool largest, int64_t *y) {
    int64_t tile = TILE; // narrower where there are few: threads share them
    while (tile > 32 && outer * ((inner + tile - 1) / tile) < 4) tile /= 2;
    const int64_t tiles = (inner + tile - 1) / tile;
    parallel_rows(outer * tiles, n * std::min(inner, tile), [&](int64_t begin, int64_t end) {
        std::vector<T> scratch;
        T best[TILE];
        Place<T> place[TILE];
        for (int64_t task = begin; task < end; task++) {
            const int64_t first = task % tiles * tile, width = std::min(tile, inner - first);
            const int64_t from = task / tiles * n * inner + first;
            std::copy_n(read(from, from + width, scratch), width, best);
            std::fill_n(place, width, Place<T>(0));
            for (int64_t i = 1; i < n; i++) {
                const T *x = read(from + i * inner, from + i * inner + width, scratch);
                if (largest) larger(x, width, static_cast<Place<T>>(i), best, place);
                else smaller(x, width, static_cast<Place<T>>(i), best, place);
            }
            std::copy_n(place, width, y + task / tiles * inner + first);
        }
    });
}

template <class T, class Read>
nb::object places_of(const ExactArray &x, int axis, bool keepdims, bool largest, const Read &read) {
    npy_intp dims[NPY_MAXDIMS];
    int ndim = 0;
    int64_t outer = 1, n = axis < 0 ? x.size() : x.dim(axis), inner = 1;
    for (int i = 0; i < x.ndim(); i++) {
        const bool gone = axis < 0 || i == axis;
        if (!gone || keepdims) dims[ndim++] = gone ? 1 : x.dim(i);
        if (!gone) (i < axis ? outer : inner) *= x.dim(i);
    }
    NewArray<int64_t> y(ndim, dims);
    nb::object made = y.object;
    WithoutGil free(x.size());
    if (inner == 1) places_in_rows<T>(read, outer, n, largest, y.data);
    else places_in_columns<T>(read, outer, n, inner, largest, y.data);
    return made;
}

template <class T> nb::object places_of_type(const ExactArray &x, int axis, bool keepdims, bool largest) {
    const T *from = x.data<T>();
    return places_of<T>(x, axis, keepdims, largest, [=](int64_t begin, int64_t, std::vector<T> &) { return from + begin; });
}

// axis: one dimension from the front, or None for the place in the flattened array
template <bool largest> nb::object extreme_place(ExactArray x, nb::handle axis, bool keepdims) {
    if (!x || !x.size() || !PyArray_ISCARRAY_RO(x.array) || !PyArray_ISNOTSWAPPED(x.array)) return nb::none();
    int place = -1;
    if (!axis.is_none()) {
        if (!PyLong_CheckExact(axis.ptr())) return nb::none();
        int over = 0;
        const long given = PyLong_AsLongAndOverflow(axis.ptr(), &over);
        if (over || given < 0 || given >= x.ndim()) return nb::none();
        place = static_cast<int>(given);
        if (x.dim(place) > INT32_MAX) return nb::none();
    }
    if (x.is<float>()) return places_of_type<float>(x, place, keepdims, largest);
    if (x.is<double>()) return places_of_type<double>(x, place, keepdims, largest);
    if (x.is<int64_t>()) return places_of_type<int64_t>(x, place, keepdims, largest);
    const int type = PyArray_TYPE(x.array);
    if (type != NPY_HALF && type != bfloat16_type) return nb::none();
    const auto unpack = type == NPY_HALF ? unpack_half : unpack_bfloat;
    const uint16_t *from = x.data<uint16_t>();
    return places_of<float>(x, place, keepdims, largest, [=](int64_t begin, int64_t end, std::vector<float> &scratch) {
        scratch.resize(static_cast<size_t>(std::max<int64_t>(end - begin, static_cast<int64_t>(scratch.size()))));
        unpack(from + begin, 0, end - begin, scratch.data());
        return static_cast<const float *>(scratch.data());
    });
}

} // namespace

void bind_extreme_places(nb::module_ &m) {
    m.def("largest_place", &extreme_place<true>, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
    m.def("smallest_place", &extreme_place<false>, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
}

} // namespace resilin
