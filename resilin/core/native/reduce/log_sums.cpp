// Logarithms of sums of exponentials over the last dimensions of contiguous arrays, without an array for these: the
// largest element, the sum of the exponentials of what lies below it, in pairwise order. 16-bit floats in float32.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "elementwise/doubles.hpp"
#include "elementwise/half_blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "extremes.hpp"
#include "pairwise.hpp"
#include "trailing.hpp"

#include <cmath>

namespace resilin {
namespace {

constexpr int64_t EXPONENTIAL = 4;    // takes as long as that many additions
constexpr int64_t PART = 1 << 13;     // elements of a row that are looked through at once

RESILIN_INLINE float exponential(float x) { return exp_low(x); }
RESILIN_INLINE double exponential(double x) { return exp_(x); }

// of `rows` rows of `length` elements each, below the row's top
#define RESILIN_EXPONENTIALS(T)                                                                                        \
    RESILIN_SIMD void exponentials(const T *x, int64_t rows, int64_t length, const T *top, T *y) {                     \
        for (int64_t row = 0; row < rows; row++) {                                                                     \
            const T below = top[row];                                                                                  \
            for (int64_t i = row * length; i < (row + 1) * length; i++) y[i] = exponential(x[i] - below);              \
        }                                                                                                              \
    }
RESILIN_EXPONENTIALS(float)
RESILIN_EXPONENTIALS(double)

// y[row] = log(sum(exp(row))); read(begin, end, scratch) gives elements in their place or in `scratch`
template <class T, class Read> void log_sums(const Read &read, int64_t rows, int64_t length, T *y) {
    std::vector<T> top(static_cast<size_t>(rows));
    const int64_t parts = (length + PART - 1) / PART;
    std::vector<T> tops(static_cast<size_t>(rows * parts));
    parallel_rows(rows * parts, std::min(length, PART), [&](int64_t begin, int64_t end) {
        alignas(64) T scratch[PART];
        for (int64_t i = begin; i < end; i++) {
            const int64_t from = i / parts * length + i % parts * PART, n = std::min(PART, length - i % parts * PART);
            largest_of_rows(read(from, from + n, scratch), n, 0, 1, tops.data() + i);
        }
    });
    largest_of_rows(tops.data(), parts, 0, rows, top.data());
    const auto below = [&](int64_t begin, int64_t end, T *scratch) -> const T * {
        const int64_t row = begin / length, count = (end - begin) / length; // whole rows, or a part of one
        const T *x = read(begin, end, scratch);
        exponentials(x, count ? count : 1, count ? length : end - begin, top.data() + row, scratch);
        return scratch;
    };
    pairwise_rows(below, rows, length, EXPONENTIAL, Summed::elements, y);
    for (int64_t row = 0; row < rows; row++) {
        const T t = top[static_cast<size_t>(row)];
        y[row] = std::isfinite(t) ? t + std::log(y[row]) : t; // an infinity or NaN is the sum's, too
    }
}

nb::object log_sum_last(ExactArray x, nb::handle axis, bool keepdims) {
    uint64_t named;
    if (!x || !x.size() || !PyArray_ISCARRAY_RO(x.array) || !PyArray_ISNOTSWAPPED(x.array) || !trailing(axis, x, named))
        return nb::none();
    const int type = PyArray_TYPE(x.array);
    const bool half = type == NPY_HALF || type == bfloat16_type;
    if (!half && type != NPY_FLOAT && type != NPY_DOUBLE) return nb::none();
    nb::object made = without_axes(x, named, keepdims);
    void *y = PyArray_DATA(reinterpret_cast<PyArrayObject *>(made.ptr()));
    const int64_t rows = PyArray_SIZE(reinterpret_cast<PyArrayObject *>(made.ptr())), length = x.size() / rows;
    WithoutGil free(x.size());
    const auto in_place = [&x](int64_t begin, int64_t, auto *scratch) {
        return static_cast<const std::remove_pointer_t<decltype(scratch)> *>(PyArray_DATA(x.array)) + begin;
    };
    if (type == NPY_FLOAT) log_sums(in_place, rows, length, static_cast<float *>(y));
    else if (type == NPY_DOUBLE) log_sums(in_place, rows, length, static_cast<double *>(y));
    else {
        std::vector<float> found(static_cast<size_t>(rows));
        const auto unpack = type == NPY_HALF ? unpack_half : unpack_bfloat;
        const auto read = [&](int64_t begin, int64_t end, float *scratch) -> const float * {
            unpack(x.data<uint16_t>() + begin, 0, end - begin, scratch);
            return scratch;
        };
        log_sums(read, rows, length, found.data());
        (type == NPY_HALF ? pack_half : pack_bfloat)(found.data(), 0, rows, static_cast<uint16_t *>(y));
    }
    return made;
}

} // namespace

void bind_log_sums(nb::module_ &m) {
    m.def("log_sum_last", &log_sum_last, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
}

} // namespace resilin
