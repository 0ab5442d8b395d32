// Elements where a mask is true: taken, counted, named and written, in their order. Blocks are counted first, so that
// threads know where what they find belongs.
#include "masks.hpp"

#include "binding/kernels.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "kernels/halves.hpp"
#include "places.hpp"

#include <algorithm>
#include <cmath>

namespace resilin {
namespace {

constexpr int64_t BLOCK = 1 << 14; // elements that a thread counts at a time
constexpr int64_t SUMMED = 128;    // bytes whose sum fits into a byte

RESILIN_SIMD int64_t count_bytes(const uint8_t *mask, int64_t n) {
    int64_t total = 0;
    for (int64_t first = 0; first < n; first += SUMMED) {
        const int64_t count = std::min(SUMMED, n - first);
        uint8_t sum = 0;
        for (int64_t i = 0; i < count; i++) sum = static_cast<uint8_t>(sum + (mask[first + i] != 0));
        total += sum;
    }
    return total;
}
int64_t count_true(const uint8_t *x, int64_t n) { return count_bytes(x, n); }
template <class T> int64_t count_true(const T *x, int64_t n) {
    int64_t total = 0;
    for (int64_t i = 0; i < n; i++) total += x[i] != 0;
    return total;
}

// Where what blocks of elements have, that are not 0, begins; last what all of them have.
template <class T> std::vector<int64_t> starts_of(const T *x, int64_t n) {
    const int64_t blocks = (n + BLOCK - 1) / BLOCK;
    std::vector<int64_t> starts(static_cast<size_t>(blocks + 1));
    parallel_rows(blocks, BLOCK, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; b++)
            starts[static_cast<size_t>(b) + 1] = count_true(x + b * BLOCK, std::min(BLOCK, n - b * BLOCK));
    });
    for (size_t b = 1; b < starts.size(); b++) starts[b] += starts[b - 1];
    return starts;
}

// fn(first element, behind the last, where what it has begins, and ends) for each block
template <class Fn> void each_block(const std::vector<int64_t> &starts, int64_t n, Fn fn) {
    parallel_rows(static_cast<int64_t>(starts.size()) - 1, BLOCK, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; b++) {
            const size_t at = static_cast<size_t>(b);
            fn(b * BLOCK, std::min(n, (b + 1) * BLOCK), starts[at], starts[at + 1]);
        }
    });
}

// write(i, at) for the elements from `begin` to `end` where `x` is not 0, `at` counted on from `first` to `last`. It is
// called for others, too, at the place that the next one overwrites: no branch depends on what nobody foresees.
constexpr int64_t AT_ONCE = 8;
template <class T, class Write>
RESILIN_INLINE void each_true(const T *x, int64_t begin, int64_t end, int64_t first, int64_t last, Write write) {
    int64_t at = first, i = begin;
    for (; i + AT_ONCE <= end && at + AT_ONCE <= last; i += AT_ONCE)
        for (int64_t k = i; k < i + AT_ONCE; k++) {
            write(k, at);
            at += x[k] != 0;
        }
    for (; at < last && i < end; i++) {
        if (x[i] == 0) continue;
        write(i, at++);
    }
}

bool is_mask_of(const ExactArray &mask, const ExactArray &x) {
    return plain(x) && mask && PyArray_TYPE(mask.array) == NPY_BOOL && plain(mask) && x.ndim() && x.same_shape(mask);
}

nb::object masked_select(ExactArray x, ExactArray mask) { return select_mask(x, mask); }

// x with the elements of `source`, in order, where `mask` is true. False for what is not handled.
bool put_source(const ExactArray &x, const ExactArray &mask, const ExactArray &source, const ExactArray &out) {
    const uint8_t *where = mask.data<uint8_t>();
    return by_size(PyArray_ITEMSIZE(x.array), [&](auto kind) {
        using T = decltype(kind);
        const T *from = x.data<T>(), *given = source.data<T>();
        T *to = out.data<T>();
        WithoutGil free(x.size());
        each_block(starts_of(where, x.size()), x.size(), [=](int64_t begin, int64_t end, int64_t at, int64_t last) {
            for (int64_t i = begin; i < end; i++) {
                if (at == last) { // nothing is left to be written
                    if (from != to) std::memcpy(to + i, from + i, static_cast<size_t>(end - i) * sizeof(T));
                    break;
                }
                const T *chosen = where[i] ? given + at : from + i;
                to[i] = *chosen;
                at += where[i] != 0;
            }
        });
    });
}
bool can_put(const ExactArray &x, const ExactArray &mask, const ExactArray &source) {
    return is_mask_of(mask, x) && plain(source) && same_dtype(x, source) && x.size() &&
           count_bytes(mask.data<uint8_t>(), mask.size()) <= source.size();
}
nb::object masked_scatter(ExactArray x, ExactArray mask, ExactArray source) {
    if (!can_put(x, mask, source)) return nb::none();
    nb::object made = new_array(x, x.ndim(), PyArray_DIMS(x.array), false);
    return put_source(x, mask, source, array_in(made)) ? made : nb::none();
}
bool masked_scatter_into(ExactArray x, ExactArray mask, ExactArray source) {
    return can_put(x, mask, source) && plain_to_write(x) && put_source(x, mask, source, x);
}

// The places of elements that differ from 0, one row each.
template <class T> nb::object nonzero_of(const ExactArray &x) {
    const T *from = x.data<T>();
    const int64_t n = x.size();
    const int ndim = x.ndim();
    std::vector<int64_t> starts;
    {
        WithoutGil free(n);
        starts = starts_of(from, n);
    }
    const npy_intp dims[2] = {starts.back(), ndim};
    NewArray<int64_t> places(2, dims);
    WithoutGil free(n);
    each_block(starts, n, [&](int64_t begin, int64_t end, int64_t at, int64_t last) {
        int64_t *to = places.data;
        if (ndim == 1) {
            each_true(from, begin, end, at, last, [=](int64_t i, int64_t place) { to[place] = i; });
            return;
        }
        int64_t place[NPY_MAXDIMS], row = begin / x.last();
        const int64_t width = x.last(), wide = ndim;
        for (int d = ndim - 2; d >= 0; d--) {
            place[d] = row % x.dim(d);
            row /= x.dim(d);
        }
        for (int64_t i = begin; i < end;) { // the rest of a row
            const int64_t start = i / width * width, stop = std::min(end, start + width), here = count_true(from + i, stop - i);
            each_true(from, i, stop, at, at + here, [=, &place](int64_t k, int64_t found) {
                for (int64_t d = 0; d < wide - 1; d++) to[found * wide + d] = place[d];
                to[found * wide + wide - 1] = k - start;
            });
            at += here;
            i = stop;
            for (int d = ndim - 2; d >= 0 && ++place[d] == x.dim(d); d--) place[d] = 0;
        }
    });
    return places.object;
}
nb::object nonzero(ExactArray x) {
    if (!x || !x.ndim() || !x.size() || !plain(x)) return nb::none();
    switch (PyArray_TYPE(x.array)) {
    case NPY_BOOL: return nonzero_of<uint8_t>(x);
    case NPY_INT32: return nonzero_of<int32_t>(x);
    case NPY_INT64: return nonzero_of<int64_t>(x);
    case NPY_FLOAT32: return nonzero_of<float>(x);
    case NPY_FLOAT64: return nonzero_of<double>(x);
    default: return nb::none();
    }
}

#define RESILIN_FILL(T)                                                                                                \
    RESILIN_SIMD void fill_where(const uint8_t *mask, int64_t n, T with, T *x) {                                       \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) x[i] = mask[i] ? with : x[i];                              \
    }
RESILIN_FILL(uint8_t)
RESILIN_FILL(uint16_t)
RESILIN_FILL(uint32_t)
RESILIN_FILL(uint64_t)
#undef RESILIN_FILL
void fill_where(const uint8_t *mask, int64_t n, Bytes16 with, Bytes16 *x) {
    for (int64_t i = 0; i < n; i++)
        if (mask[i]) x[i] = with;
}

// A number where the mask is true
bool masked_fill_into(ExactArray x, ExactArray mask, nb::handle value) {
    double number[2];
    if (!is_mask_of(mask, x) || !plain_to_write(x) || !held_number(value.ptr(), PyArray_TYPE(x.array), number)) return false;
    return by_size(PyArray_ITEMSIZE(x.array), [&](auto kind) {
        using T = decltype(kind);
        T with;
        std::memcpy(&with, number, sizeof(T));
        WithoutGil free(x.size());
        parallel_rows(x.size(), 1, [&](int64_t begin, int64_t end) {
            fill_where(mask.data<uint8_t>() + begin, end - begin, with, x.data<T>() + begin);
        });
    });
}

} // namespace

nb::object select_mask(const ExactArray &x, const ExactArray &mask) {
    if (!is_mask_of(mask, x) || !x.size()) return nb::none();
    const uint8_t *where = mask.data<uint8_t>();
    std::vector<int64_t> starts;
    {
        WithoutGil free(x.size());
        starts = starts_of(where, x.size());
    }
    const npy_intp found = starts.back();
    nb::object made = new_array(x, 1, &found, false);
    const bool done = by_size(PyArray_ITEMSIZE(x.array), [&](auto kind) {
        using T = decltype(kind);
        const T *from = x.data<T>();
        T *to = data_of<T>(made);
        WithoutGil free(x.size());
        each_block(starts, x.size(), [=](int64_t begin, int64_t end, int64_t at, int64_t last) {
            each_true(where, begin, end, at, last, [=](int64_t i, int64_t place) { to[place] = from[i]; });
        });
    });
    return done ? made : nb::none();
}

bool held_number(PyObject *number, int type, void *data) {
    const bool half = type == NPY_HALF || type == bfloat16_type;
    if (!half && type != NPY_FLOAT && type != NPY_DOUBLE) return PyTypeNum_ISINTEGER(type) && number_as(number, type, data);
    double value;
    if (!number_as(number, NPY_DOUBLE, &value) || !(std::fabs(value) <= 65504)) return false; // other dtypes may not hold it
    if (!half) return number_as(number, type, data);
    const float near = static_cast<float>(value);
    const uint16_t bits = type == NPY_HALF ? half_of(near) : bfloat_of(near);
    std::memcpy(data, &bits, sizeof(bits));
    return (type == NPY_HALF ? from_half(bits) : from_bfloat(bits)) == value;
}

void bind_masks(nb::module_ &m) {
    m.def("masked_select", &masked_select);
    m.def("masked_scatter", &masked_scatter);
    m.def("masked_scatter_into", &masked_scatter_into);
    m.def("masked_fill_into", &masked_fill_into);
    m.def("nonzero", &nonzero);
}

} // namespace resilin
