// Sums of arrays that are not contiguous, in the order of their copies, without these: of vectors and of rows whose
// elements lie apart, of diagonals, of whole arrays whose first dimension is stretched. 16-bit floats in float32.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "elementwise/blocks.hpp"
#include "elementwise/half_blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "kernels/simd.hpp"
#include "pairwise.hpp"
#include "trailing.hpp"

#include <type_traits>

namespace resilin {
namespace {

// Each of n elements added to itself, `times` of them
#define RESILIN_REPEATED(T)                                                                                            \
    RESILIN_SIMD void repeated(const T *x, int64_t n, int64_t times, T *y) {                                           \
        for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];                                                            \
        for (int64_t k = 2; k < times; k++)                                                                            \
            for (int64_t i = 0; i < n; i++) y[i] += x[i];                                                              \
    }
RESILIN_REPEATED(float)
RESILIN_REPEATED(double)

// Rows of `length` elements that are `step` bytes apart; the rows lie `row_step` bytes apart. Each has a sum of its own,
// or all together have one.
struct Rows {
    const char *data = nullptr;
    int64_t rows = 0, length = 0;
    npy_intp row_step = 0, step = 0;
    bool together = false;

    int64_t sums() const { return together ? 1 : rows; }
    int64_t terms() const { return together ? rows * length : length; }
};

// Elements begin to end, one after the other
template <class S> const S *gathered_rows(const Rows &x, int64_t begin, int64_t end, S *scratch) {
    if (end - begin <= x.length - begin % x.length)
        return gathered(x.data + begin / x.length * x.row_step + begin % x.length * x.step, x.step, end - begin, scratch);
    S *to = scratch;
    for (int64_t at = begin; at < end;) {
        const int64_t i = at % x.length, count = std::min(x.length - i, end - at);
        const char *from = x.data + at / x.length * x.row_step + i * x.step;
        const S *found = gathered(from, x.step, count, to);
        if (found != to) std::memcpy(to, found, static_cast<size_t>(count) * sizeof(S));
        to += count, at += count;
    }
    return scratch;
}

template <class T> void sum_gathered(const Rows &x, T *y) {
    const auto read = [&](int64_t begin, int64_t end, T *scratch) { return gathered_rows(x, begin, end, scratch); };
    pairwise_rows(read, x.sums(), x.terms(), 1, Summed::elements, y);
}
void sum_gathered_halves(const Rows &x, bool float16, float *y) {
    const auto read = [&](int64_t begin, int64_t end, float *scratch) -> const float * {
        uint16_t block[SCRATCH];
        (float16 ? unpack_half : unpack_bfloat)(gathered_rows(x, begin, end, block), 0, end - begin, scratch);
        return scratch;
    };
    pairwise_rows(read, x.sums(), x.terms(), 1, Summed::elements, y);
}
void sum_gathered_integers(const Rows &x, int64_t *y) {
    uint64_t sum = 0;
    for (int64_t row = 0; row < x.rows; row++) {
        const char *at = x.data + row * x.row_step;
        for (int64_t i = 0; i < x.length; i++, at += x.step) sum += *reinterpret_cast<const uint64_t *>(at);
        y[x.together ? 0 : row] = static_cast<int64_t>(sum);
        if (!x.together) sum = 0;
    }
}

// Sums, or means, into `made`, which has a place for each row
void sum_rows_apart(const Rows &x, int type, bool mean, nb::object &made) {
    void *y = PyArray_DATA(reinterpret_cast<PyArrayObject *>(made.ptr()));
    WithoutGil free(x.rows * x.length);
    const auto divide = [&](auto *sums) {
        for (int64_t row = 0; mean && row < x.sums(); row++)
            sums[row] /= static_cast<std::remove_reference_t<decltype(*sums)>>(x.terms());
    };
    if (type == NPY_FLOAT) sum_gathered(x, static_cast<float *>(y)), divide(static_cast<float *>(y));
    else if (type == NPY_DOUBLE) sum_gathered(x, static_cast<double *>(y)), divide(static_cast<double *>(y));
    else if (type == NPY_INT64) sum_gathered_integers(x, static_cast<int64_t *>(y));
    else {
        std::vector<float> sums(static_cast<size_t>(x.sums()));
        sum_gathered_halves(x, type == NPY_HALF, sums.data());
        divide(sums.data());
        (type == NPY_HALF ? pack_half : pack_bfloat)(sums.data(), 0, x.sums(), static_cast<uint16_t *>(y));
    }
}

bool is_summed(const ExactArray &x, bool mean) {
    if (!PyArray_ISALIGNED(x.array) || !PyArray_ISNOTSWAPPED(x.array)) return false;
    const int type = PyArray_TYPE(x.array);
    return type == NPY_FLOAT || type == NPY_DOUBLE || type == NPY_HALF || type == bfloat16_type || (type == NPY_INT64 && !mean);
}

// How often the elements of an array are repeated that is contiguous but for its first dimension, which is stretched; 0
// of others
int64_t repetitions(const ExactArray &x) {
    int place = 0;
    while (place < x.ndim() && x.dim(place) == 1) place++;
    if (place == x.ndim() || PyArray_STRIDE(x.array, place) != 0) return 0;
    int64_t step = PyArray_ITEMSIZE(x.array);
    for (int i = x.ndim() - 1; i > place; i--) {
        if (x.dim(i) != 1 && PyArray_STRIDE(x.array, i) != step) return 0;
        step *= x.dim(i);
    }
    return x.dim(place);
}

template <class T> void sum_repeated(const ExactArray &x, int64_t times, bool mean, T *y) {
    const T *from = static_cast<const T *>(PyArray_DATA(x.array));
    auto read = [=](int64_t begin, int64_t end, T *scratch) -> const T * {
        repeated(from + begin, end - begin, times, scratch);
        return scratch;
    };
    pairwise_rows(read, 1, x.size() / times, 1, Summed::elements, y);
    if (mean) *y /= static_cast<T>(x.size());
}

// The whole array whose first dimension is stretched: that one first, but of 16-bit floats as of their copy in float32
nb::object sum_stretched(const ExactArray &x, bool keepdims, bool mean) {
    const int type = PyArray_TYPE(x.array);
    const int64_t times = repetitions(x);
    if (times < 2 || type == NPY_INT64) return nb::none();
    if (type == NPY_HALF || type == bfloat16_type) {
        const int64_t n = x.size() / times;
        const Rows whole{static_cast<const char *>(PyArray_DATA(x.array)), 1, x.size(), 0, 0};
        nb::object made = without_axes(x, ~uint64_t{0}, keepdims);
        float sum;
        {
            WithoutGil free(x.size());
            const auto unpack = type == NPY_HALF ? unpack_half : unpack_bfloat;
            const auto read = [&](int64_t begin, int64_t end, float *scratch) -> const float * {
                for (int64_t at = begin; at < end;) {
                    const int64_t i = at % n, count = std::min(n - i, end - at);
                    unpack(reinterpret_cast<const uint16_t *>(whole.data), i, i + count, scratch + (at - begin) - i);
                    at += count;
                }
                return scratch;
            };
            pairwise_rows(read, 1, whole.length, 1, Summed::elements, &sum);
            if (mean) sum /= static_cast<float>(whole.length);
        }
        (type == NPY_HALF ? pack_half : pack_bfloat)(&sum, 0, 1, static_cast<uint16_t *>(PyArray_DATA(
                                                                      reinterpret_cast<PyArrayObject *>(made.ptr()))));
        return made;
    }
    if (times > FAN) return nb::none();
    nb::object made = without_axes(x, ~uint64_t{0}, keepdims);
    void *y = PyArray_DATA(reinterpret_cast<PyArrayObject *>(made.ptr()));
    WithoutGil free(x.size());
    if (type == NPY_FLOAT) sum_repeated(x, times, mean, static_cast<float *>(y));
    else sum_repeated(x, times, mean, static_cast<double *>(y));
    return made;
}

// A part of an array, as rows that have one sum; none where they lie along more dimensions
Rows rows_of_part(const ExactArray &x) {
    Rows rows{static_cast<const char *>(PyArray_DATA(x.array)), 1, 1, 0, PyArray_ITEMSIZE(x.array), true};
    bool split = false; // whether `rows` are counted already, not the elements of one
    for (int i = x.ndim() - 1; i >= 0; i--) {
        const npy_intp n = x.dim(i), step = PyArray_STRIDE(x.array, i);
        if (n == 1) continue;
        if (rows.length == 1) rows.length = n, rows.step = step;
        else if (!split && step == rows.step * rows.length) rows.length *= n;
        else if (!split) rows.rows = n, rows.row_step = step, split = true;
        else if (step == rows.row_step * rows.rows) rows.rows *= n;
        else return {};
    }
    return rows;
}

// Whether a step along a dimension leads beyond all elements of those behind it, as in parts of arrays of more dimensions
bool descends(const ExactArray &x) {
    npy_intp extent = PyArray_ITEMSIZE(x.array);
    for (int i = x.ndim() - 1; i >= 0; i--) {
        if (x.dim(i) == 1) continue;
        if (PyArray_STRIDE(x.array, i) < extent) return false;
        extent += PyArray_STRIDE(x.array, i) * (x.dim(i) - 1);
    }
    return true;
}

// The sum of a matrix's diagonal
nb::object sum_diagonal(ExactArray x) {
    if (!x || x.ndim() != 2 || !x.size() || !is_summed(x, false)) return nb::none();
    const npy_intp step = PyArray_STRIDE(x.array, 0) + PyArray_STRIDE(x.array, 1);
    const Rows line{static_cast<const char *>(PyArray_DATA(x.array)), 1, std::min(x.dim(0), x.dim(1)), 0, step};
    nb::object made = without_axes(x, ~uint64_t{0}, false);
    sum_rows_apart(line, PyArray_TYPE(x.array), false, made);
    return made;
}

} // namespace

// The sum, or mean: of a vector; over the last dimension of a matrix, where that has the smaller steps; of a whole array
// that is a part of another, or whose first dimension is stretched. None of others.
nb::object sum_strided(const ExactArray &x, nb::handle axis, bool keepdims, bool mean) {
    uint64_t named = 0;
    if (!is_summed(x, mean) || !named_axes(axis, x.ndim(), named)) return nb::none();
    const bool whole = named + 1 == uint64_t{1} << x.ndim();
    if (x.ndim() != 1 && x.size() <= SMALL) return nb::none();
    const char *data = static_cast<const char *>(PyArray_DATA(x.array));
    Rows rows;
    if (x.ndim() == 1 && whole) {
        rows = {data, 1, x.dim(0), 0, PyArray_STRIDE(x.array, 0)};
    } else if (x.ndim() == 2 && named == 2 && PyArray_STRIDE(x.array, 1) &&
               std::abs(PyArray_STRIDE(x.array, 0)) >= std::abs(PyArray_STRIDE(x.array, 1))) {
        rows = {data, x.dim(0), x.dim(1), PyArray_STRIDE(x.array, 0), PyArray_STRIDE(x.array, 1)};
    } else if (whole && descends(x)) {
        rows = rows_of_part(x);
        if (!rows.length) {
            const nb::object copy = nb::steal(PyArray_NewCopy(x.array, NPY_CORDER));
            if (!copy.is_valid()) throw nb::python_error();
            return sum_last(ExactArray{reinterpret_cast<PyArrayObject *>(copy.ptr())}, axis, keepdims, mean);
        }
    } else {
        return whole ? sum_stretched(x, keepdims, mean) : nb::none();
    }
    nb::object made = without_axes(x, named, keepdims);
    sum_rows_apart(rows, PyArray_TYPE(x.array), mean, made);
    return made;
}

void bind_strided_sums(nb::module_ &m) { m.def("sum_diagonal", &sum_diagonal); }

} // namespace resilin
