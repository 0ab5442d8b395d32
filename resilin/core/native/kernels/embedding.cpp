// Row lookup, sums of bags of rows, and their gradients: rows are added in ascending position. Threads share the columns of
// what is added: who adds an element does not change the order of its sum.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <algorithm>

namespace resilin {
namespace {

bool all_inside(Array index, int64_t num) {
    const int64_t *at = index.data<int64_t>();
    for (int64_t i = 0; i < index.size(); i++)
        if (at[i] < 0 || at[i] >= num) return false;
    return true;
}

RESILIN_SIMD void add_row(const float *g, int64_t D, float *out) {
    for (int64_t i = 0; i < D; i++) out[i] += g[i];
}
RESILIN_SIMD void divide_row(float *x, int64_t D, float by) {
    for (int64_t i = 0; i < D; i++) x[i] /= by;
}

// fn(first, last) for parts of D columns of `rows` rows, LEAST columns at least
constexpr int64_t LEAST = 32;
template <class Fn> void by_columns(int64_t rows, int64_t D, Fn fn) {
    const int64_t parts = std::clamp<int64_t>(D / LEAST, 1, num_threads());
    parallel_rows(parts, rows * D / parts, [&](int64_t begin, int64_t end) { fn(D * begin / parts, D * end / parts); });
}

nb::object forward(Array weight, Array index) {
    if (!weight.is<float>() || weight.ndim() != 2 || !index.is<int64_t>() || index.ndim() > 7 ||
        !all_inside(index, weight.dim(0)))
        return nb::none();
    npy_intp dims[8];
    for (int i = 0; i < index.ndim(); i++) dims[i] = index.dim(i);
    const int64_t D = dims[index.ndim()] = weight.dim(1);
    NewArray<float> y(index.ndim() + 1, dims);
    {
        WithoutGil free(index.size() * D);
        parallel_rows(index.size(), D, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++)
                std::memcpy(y.data + i * D, weight.data<float>() + index.data<int64_t>()[i] * D,
                            static_cast<size_t>(D) * sizeof(float));
        });
    }
    return y.object;
}

nb::object backward(Array g, Array index, int64_t num, int64_t padding) {
    if (!g.is<float>() || !index.is<int64_t>() || g.ndim() < 1 || g.size() != index.size() * g.last() ||
        !all_inside(index, num))
        return nb::none();
    const int64_t D = g.last();
    NewArray<float> dw({static_cast<npy_intp>(num), static_cast<npy_intp>(D)}, true);
    {
        WithoutGil free(g.size());
        by_columns(index.size(), D, [&](int64_t first, int64_t last) {
            for (int64_t i = 0; i < index.size(); i++) {
                const int64_t row = index.data<int64_t>()[i];
                if (row != padding) add_row(g.data<float>() + i * D + first, last - first, dw.data + row * D + first);
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
    return all_inside(index, num);
}
// fn(bag, first index, behind the last one)
template <class Fn> void each_bag(Array index, Array starts, Fn fn) {
    const int64_t *at = starts.data<int64_t>(), bags = starts.size();
    for (int64_t b = 0; b < bags; b++) fn(b, at[b], b + 1 < bags ? at[b + 1] : index.size());
}

// Sums, or means, of the rows of each bag.
nb::object bags_forward(Array weight, Array index, Array starts, bool mean) {
    if (!weight.is<float>() || weight.ndim() != 2 || !are_bags(index, starts, weight.dim(0))) return nb::none();
    const int64_t D = weight.dim(1);
    NewArray<float> y({static_cast<npy_intp>(starts.size()), static_cast<npy_intp>(D)}, true);
    {
        WithoutGil free(index.size() * D);
        by_columns(index.size(), D, [&](int64_t first, int64_t last) {
            each_bag(index, starts, [&](int64_t bag, int64_t begin, int64_t end) {
                float *sum = y.data + bag * D + first;
                for (int64_t i = begin; i < end; i++)
                    add_row(weight.data<float>() + index.data<int64_t>()[i] * D + first, last - first, sum);
                if (mean && end > begin) divide_row(sum, last - first, static_cast<float>(end - begin));
            });
        });
    }
    return y.object;
}

// The gradient of a table of `num` rows.
nb::object bags_backward(Array g, Array index, Array starts, bool mean, int64_t num) {
    if (!g.is<float>() || g.ndim() != 2 || g.dim(0) != starts.size() || num < 0 || !are_bags(index, starts, num)) return nb::none();
    const int64_t D = g.dim(1);
    NewArray<float> dw({static_cast<npy_intp>(num), static_cast<npy_intp>(D)}, true), share(g);
    {
        WithoutGil free(index.size() * D);
        by_columns(index.size(), D, [&](int64_t first, int64_t last) {
            each_bag(index, starts, [&](int64_t bag, int64_t begin, int64_t end) {
                float *row = share.data + bag * D + first;
                std::copy_n(g.data<float>() + bag * D + first, last - first, row);
                if (mean && end > begin) divide_row(row, last - first, static_cast<float>(end - begin));
                for (int64_t i = begin; i < end; i++)
                    add_row(row, last - first, dw.data + index.data<int64_t>()[i] * D + first);
            });
        });
    }
    return dw.object;
}

} // namespace

void bind_embedding(nb::module_ &m) {
    m.def("embedding_forward", &forward);
    m.def("embedding_backward", &backward);
    m.def("bags_forward", &bags_forward);
    m.def("bags_backward", &bags_backward);
    m.def("are_bags", &are_bags);
}

} // namespace resilin
