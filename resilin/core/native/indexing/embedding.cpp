// Sums of bags of rows, and gradients of rows that were looked up: rows are added in ascending position, 16-bit floats in
// float32. Threads share bags, or the columns of what is added: who adds an element does not change the order of its sum.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "places.hpp"
#include "kernels/simd.hpp"
#include "stored.hpp"

#include <algorithm>

namespace resilin {
namespace {

bool are_rows(const ExactArray &index, int64_t num) {
    return all_inside(index.data<int64_t>(), index.size(), num, Places::from_front);
}

#define RESILIN_FOR_KIND(E)                                                                                            \
    RESILIN_SIMD void add_row(E, const E::Stored *g, int64_t D, E::Computed *out) {                                    \
        for (int64_t i = 0; i < D; i++) out[i] += E::open(g[i]);                                                       \
    }
RESILIN_FOR_KIND(Whole<float>)
RESILIN_FOR_KIND(Whole<double>)
RESILIN_FOR_KIND(Half)
RESILIN_FOR_KIND(Bfloat)
#undef RESILIN_FOR_KIND
RESILIN_SIMD void divide_row(float *x, int64_t D, float by) {
    for (int64_t i = 0; i < D; i++) x[i] /= by;
}
RESILIN_SIMD void divide_row(double *x, int64_t D, double by) {
    for (int64_t i = 0; i < D; i++) x[i] /= by;
}

// fn(E{}) with the kind of floats; false for other types.
template <class Fn> bool by_float(int type, Fn fn) {
    if (type == NPY_INT64) return false;
    return by_kind(type, [&](auto kind) {
        if constexpr (!std::is_same_v<decltype(kind), Whole<int64_t>>) fn(kind);
    });
}

// fn(first, last) for parts of D columns of `rows` rows, LEAST columns at least
constexpr int64_t LEAST = 32;
template <class Fn> void by_columns(int64_t rows, int64_t D, Fn fn) {
    const int64_t parts = std::clamp<int64_t>(D / LEAST, 1, num_threads());
    parallel_rows(parts, rows * D / parts, [&](int64_t begin, int64_t end) { fn(D * begin / parts, D * end / parts); });
}

nb::object backward(Array g, Array index, int64_t num, int64_t padding) {
    if (!g.is<float>() || !index.is<int64_t>() || g.ndim() < 1 || g.size() != index.size() * g.last() ||
        !are_rows(index, num))
        return nb::none();
    const int64_t D = g.last();
    NewArray<float> dw({static_cast<npy_intp>(num), static_cast<npy_intp>(D)}, true);
    {
        WithoutGil free(g.size());
        by_columns(index.size(), D, [&](int64_t first, int64_t last) {
            for (int64_t i = 0; i < index.size(); i++) {
                const int64_t row = index.data<int64_t>()[i];
                if (row != padding) add_row(Whole<float>{}, g.data<float>() + i * D + first, last - first, dw.data + row * D + first);
            }
        });
    }
    return dw.object;
}

// Whether bags of `index` begin at `starts`, from 0 on, ascending, and all rows are in a table of `num`.
bool are_bags(Array index, Array starts, int64_t num) {
    if (!index.is<int64_t>() || index.ndim() != 1 || !starts.is<int64_t>() || starts.ndim() != 1 || starts.size() < 1) return false;
    const int64_t *at = starts.data<int64_t>();
    for (int64_t b = 0; b < starts.size(); b++)
        if (at[b] < (b ? at[b - 1] : 0) || at[b] > (b ? index.size() : 0)) return false;
    return are_rows(index, num);
}
// fn(bag, first index, behind the last one)
template <class Fn> void each_bag(Array index, Array starts, Fn fn) {
    const int64_t *at = starts.data<int64_t>(), bags = starts.size();
    for (int64_t b = 0; b < bags; b++) fn(b, at[b], b + 1 < bags ? at[b + 1] : index.size());
}

constexpr int64_t AHEAD = 8; // rows that are asked for before they are added
constexpr int64_t LINE = 64; // bytes of a cache line

// Sums, or means, of the rows of bags from `begin` to `end`.
template <class E>
void sum_bags(E kind, const typename E::Stored *rows, int64_t D, const int64_t *index, int64_t size, const int64_t *starts,
              int64_t bags, bool mean, int64_t begin, int64_t end, typename E::Stored *y) {
    using C = typename E::Computed;
    constexpr bool WHOLE = std::is_same_v<C, typename E::Stored>;
    std::vector<C> own(WHOLE ? 0 : static_cast<size_t>(D));
    const int64_t bytes = D * static_cast<int64_t>(sizeof(typename E::Stored));
    for (int64_t bag = begin; bag < end; bag++) {
        C *sum;
        if constexpr (WHOLE) sum = y + bag * D;
        else sum = own.data();
        std::fill_n(sum, D, C(0));
        const int64_t first = starts[bag], last = bag + 1 < bags ? starts[bag + 1] : size;
        for (int64_t i = first; i < last; i++) {
            if (i + AHEAD < size && bytes <= AHEAD * 2 * LINE)
                for (int64_t at = 0; at < bytes; at += LINE)
                    __builtin_prefetch(reinterpret_cast<const char *>(rows + index[i + AHEAD] * D) + at);
            add_row(kind, rows + index[i] * D, D, sum);
        }
        if (mean && last > first) divide_row(sum, D, static_cast<C>(last - first));
        if constexpr (!WHOLE) E::pack(sum, 0, D, y + bag * D);
    }
}

nb::object bags_forward(ExactArray weight, Array index, Array starts, bool mean) {
    if (!plain(weight) || weight.ndim() != 2 || !are_bags(index, starts, weight.dim(0))) return nb::none();
    const int64_t D = weight.dim(1), bags = starts.size();
    const npy_intp dims[2] = {static_cast<npy_intp>(bags), static_cast<npy_intp>(D)};
    nb::object y = new_array(weight, 2, dims, false);
    const bool done = by_float(PyArray_TYPE(weight.array), [&](auto kind) {
        using S = typename decltype(kind)::Stored;
        WithoutGil free(index.size() * D);
        parallel_rows(bags, (index.size() / bags + 1) * D, [&](int64_t begin, int64_t end) {
            sum_bags(kind, weight.data<S>(), D, index.data<int64_t>(), index.size(), starts.data<int64_t>(), bags, mean, begin,
                     end, data_of<S>(y));
        });
    });
    return done ? y : nb::none();
}

// The gradient of a table of `num` rows.
template <class T> nb::object rows_gradient(const ExactArray &g, Array index, Array starts, bool mean, int64_t num) {
    const int64_t D = g.dim(1);
    NewArray<T> dw({static_cast<npy_intp>(num), static_cast<npy_intp>(D)}, true), share(g);
    {
        WithoutGil free(index.size() * D);
        by_columns(index.size(), D, [&](int64_t first, int64_t last) {
            each_bag(index, starts, [&](int64_t bag, int64_t begin, int64_t end) {
                T *row = share.data + bag * D + first;
                std::copy_n(g.data<T>() + bag * D + first, last - first, row);
                if (mean && end > begin) divide_row(row, last - first, static_cast<T>(end - begin));
                for (int64_t i = begin; i < end; i++)
                    add_row(Whole<T>{}, row, last - first, dw.data + index.data<int64_t>()[i] * D + first);
            });
        });
    }
    return dw.object;
}
nb::object bags_backward(Array g, Array index, Array starts, bool mean, int64_t num) {
    if (!g || g.ndim() != 2 || g.dim(0) != starts.size() || num < 0 || !are_bags(index, starts, num)) return nb::none();
    if (g.is<float>()) return rows_gradient<float>(g, index, starts, mean, num);
    return g.is<double>() ? rows_gradient<double>(g, index, starts, mean, num) : nb::none();
}

} // namespace

void bind_embedding(nb::module_ &m) {
    m.def("embedding_backward", &backward);
    m.def("bags_forward", &bags_forward);
    m.def("bags_backward", &bags_backward);
    m.def("are_bags", &are_bags);
}

} // namespace resilin
