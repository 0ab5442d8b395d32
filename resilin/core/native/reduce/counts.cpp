// Counts: of elements over the last dimensions that are not 0, and of elements between edges.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "kernels/rows.hpp"
#include "kernels/simd.hpp"
#include "trailing.hpp"

#include <algorithm>
#include <vector>

namespace resilin {
namespace {

// 16-bit floats are 0 whose bits but for the sign are
struct HalfBits {
    uint16_t bits;
};
RESILIN_INLINE bool operator!=(HalfBits x, HalfBits zero) { return ((x.bits | zero.bits) & 0x7FFF) != 0; }

// In counters as wide as the elements, which a vector has as many of
template <class T, class C> RESILIN_INLINE int64_t others_than_zero(const T *x, int64_t n) {
    C count = 0;
    for (int64_t i = 0; i < n; i++) count = static_cast<C>(count + (x[i] != T{0} ? 1 : 0));
    return static_cast<int64_t>(count);
}
RESILIN_SIMD int64_t not_zero(const float *x, int64_t n) { return others_than_zero<float, int32_t>(x, n); }
RESILIN_SIMD int64_t not_zero(const double *x, int64_t n) { return others_than_zero<double, int64_t>(x, n); }
RESILIN_SIMD int64_t not_zero(const int64_t *x, int64_t n) { return others_than_zero<int64_t, int64_t>(x, n); }
RESILIN_SIMD int64_t not_zero(const HalfBits *x, int64_t n) { return others_than_zero<HalfBits, uint16_t>(x, n); }

constexpr int64_t PART = 8192; // which a counter of 16 bits holds

template <class T> nb::object count_of_type(const ExactArray &x, uint64_t named, bool keepdims) {
    int64_t rows;
    NewArray<int64_t> y = without_trailing<int64_t>(x, named, keepdims, rows);
    nb::object made = y.object;
    WithoutGil free(x.size());
    const int64_t length = x.size() / rows, parts = (length + PART - 1) / PART;
    std::vector<int64_t> counts(static_cast<size_t>(rows * parts));
    parallel_rows(rows * parts, std::min(length, PART), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const int64_t at = i % parts * PART;
            counts[static_cast<size_t>(i)] = not_zero(x.data<T>() + i / parts * length + at, std::min(PART, length - at));
        }
    });
    for (int64_t row = 0; row < rows; row++) {
        y.data[row] = 0;
        for (int64_t i = 0; i < parts; i++) y.data[row] += counts[static_cast<size_t>(row * parts + i)];
    }
    return made;
}

nb::object count_last(ExactArray x, nb::handle axis, bool keepdims) {
    uint64_t named;
    if (!x || !x.size() || !trailing(axis, x, named)) return nb::none();
    if (x.is<float>()) return count_of_type<float>(x, named, keepdims);
    if (x.is<double>()) return count_of_type<double>(x, named, keepdims);
    if (x.is<int64_t>()) return count_of_type<int64_t>(x, named, keepdims);
    const bool plain = PyArray_ISCARRAY_RO(x.array) && PyArray_ISNOTSWAPPED(x.array);
    return plain && is_half_type(PyArray_TYPE(x.array)) ? count_of_type<HalfBits>(x, named, keepdims) : nb::none();
}

// The bin is guessed from equal widths; the edges decide
template <class T> void add_to_bins(const T *x, int64_t n, const T *edges, int64_t bins, int64_t *counts) {
    const T low = edges[0], high = edges[bins];
    const double scale = static_cast<double>(bins) / (static_cast<double>(high) - static_cast<double>(low));
    for (int64_t i = 0; i < n; i++) {
        if (!(x[i] >= low && x[i] <= high)) continue;
        auto bin = static_cast<int64_t>((static_cast<double>(x[i]) - static_cast<double>(low)) * scale);
        bin = std::min(bin, bins - 1);
        bin -= x[i] < edges[bin];
        bin += x[i] >= edges[bin + 1] && bin != bins - 1;
        counts[bin]++;
    }
}

template <class T> nb::object bins_of_type(const ExactArray &x, const ExactArray &edges) {
    const int64_t bins = edges.size() - 1, parts = std::max<int64_t>(1, std::min<int64_t>(x.size() / PART, 64));
    NewArray<int64_t> y({bins});
    nb::object made = y.object;
    WithoutGil free(x.size() * 4);
    std::vector<int64_t> counts(static_cast<size_t>(parts * bins));
    parallel_rows(parts, x.size() / parts * 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const int64_t from = x.size() * i / parts, to = x.size() * (i + 1) / parts;
            add_to_bins(x.data<T>() + from, to - from, edges.data<T>(), bins, counts.data() + i * bins);
        }
    });
    for (int64_t bin = 0; bin < bins; bin++) {
        y.data[bin] = 0;
        for (int64_t i = 0; i < parts; i++) y.data[bin] += counts[static_cast<size_t>(i * bins + bin)];
    }
    return made;
}

// How many elements are in each bin of about equal widths; the last one has its upper edge, too
nb::object count_in_bins(ExactArray x, ExactArray edges) {
    if (!edges || edges.ndim() != 1 || edges.size() < 2 || edges.size() > PART) return nb::none();
    if (x.is<float>() && edges.is<float>()) return bins_of_type<float>(x, edges);
    return x.is<double>() && edges.is<double>() ? bins_of_type<double>(x, edges) : nb::none();
}

} // namespace

void bind_counts(nb::module_ &m) {
    m.def("count_last", &count_last, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
    m.def("count_in_bins", &count_in_bins);
}

} // namespace resilin
