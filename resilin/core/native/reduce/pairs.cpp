// Sums in pairwise order of what two contiguous arrays, or neighbours in one, make: products, distances, cosines,
// trapezoids; and
// their differences. 16-bit floats are computed in float32 and rounded once.
#include "binding/array.hpp"
#include "kernels/rows.hpp"
#include "pairwise.hpp"
#include "trailing.hpp"

#include <cmath>

namespace resilin {
namespace {

#define RESILIN_PAIRS(T)                                                                                               \
    RESILIN_SIMD void multiplied(const T *x, const T *y, int64_t n, T *out) {                                          \
        for (int64_t i = 0; i < n; i++) out[i] = x[i] * y[i];                                                          \
    }                                                                                                                  \
    RESILIN_SIMD void subtracted(const T *x, const T *y, int64_t n, T *out) {                                          \
        for (int64_t i = 0; i < n; i++) out[i] = x[i] - y[i];                                                          \
    }                                                                                                                  \
    RESILIN_SIMD void of_length_one(const T *x, const T *y, T length, T other, int64_t n, T *out) {                    \
        for (int64_t i = 0; i < n; i++) out[i] = x[i] / length * (y[i] / other);                                       \
    }
RESILIN_PAIRS(float)
RESILIN_PAIRS(double)
RESILIN_SIMD void subtracted(const int64_t *x, const int64_t *y, int64_t n, int64_t *out) {
    for (int64_t i = 0; i < n; i++) out[i] = static_cast<int64_t>(static_cast<uint64_t>(x[i]) - static_cast<uint64_t>(y[i]));
}

bool is_plain(const ExactArray &x) { return x && PyArray_ISCARRAY_RO(x.array) && PyArray_ISNOTSWAPPED(x.array); }
template <class T> T *data_of(const nb::object &array) {
    return static_cast<T *>(PyArray_DATA(reinterpret_cast<PyArrayObject *>(array.ptr())));
}
void rounded(float value, int type, const nb::object &to) {
    (type == NPY_HALF ? pack_half : pack_bfloat)(&value, 0, 1, data_of<uint16_t>(to));
}

template <class T> T dot_of(const T *x, const T *y, int64_t n) {
    T sum;
    if (n > RUN) {
        const auto chunk = [=](int64_t begin, int64_t end, T *) {
            return sum_of_products(x + begin, y + begin, end - begin);
        };
        pairwise_chunks(chunk, 1, n, 1, &sum);
        return sum;
    }
    const auto read = [=](int64_t begin, int64_t end, T *scratch) -> const T * {
        multiplied(x + begin, y + begin, end - begin, scratch);
        return scratch;
    };
    pairwise_rows(read, 1, n, 1, Summed::elements, &sum);
    return sum;
}
using MadeOfFloats = void(const float *, const float *, int64_t, float *);
// The sum of what `made` makes of 16-bit floats that were opened, or of its squares
float sum_of_opened(const uint16_t *x, const uint16_t *y, int64_t n, bool float16, Summed what, MadeOfFloats *made) {
    float sum;
    const auto unpack = float16 ? unpack_half : unpack_bfloat;
    const auto read = [=](int64_t begin, int64_t end, float *scratch) -> const float * {
        alignas(64) float other[SCRATCH];
        unpack(x + begin, 0, end - begin, scratch), unpack(y + begin, 0, end - begin, other);
        made(scratch, other, end - begin, scratch);
        return scratch;
    };
    pairwise_rows(read, 1, n, 1, what, &sum);
    return sum;
}
float dot_of(const uint16_t *x, const uint16_t *y, int64_t n, bool float16) {
    return sum_of_opened(x, y, n, float16, Summed::elements, multiplied);
}

// The product of two vectors of one type
nb::object dot(ExactArray x, ExactArray y) {
    if (!is_plain(x) || !is_plain(y) || x.ndim() != 1 || y.ndim() != 1 || x.dim(0) != y.dim(0) || !x.size() ||
        PyArray_TYPE(x.array) != PyArray_TYPE(y.array))
        return nb::none();
    const int type = PyArray_TYPE(x.array);
    const int64_t n = x.size();
    if (!is_half_type(type) && !x.is<float>() && !x.is<double>()) return nb::none();
    nb::object made = without_axes(x, ~uint64_t{0}, false);
    WithoutGil free(n);
    if (type == NPY_FLOAT) *data_of<float>(made) = dot_of(x.data<float>(), y.data<float>(), n);
    else if (type == NPY_DOUBLE) *data_of<double>(made) = dot_of(x.data<double>(), y.data<double>(), n);
    else rounded(dot_of(x.data<uint16_t>(), y.data<uint16_t>(), n, type == NPY_HALF), type, made);
    return made;
}

template <class T> T root_of_squares(const T *x, const T *y, int64_t n) {
    T sum;
    const auto read = [=](int64_t begin, int64_t end, T *scratch) -> const T * {
        subtracted(x + begin, y + begin, end - begin, scratch);
        return scratch;
    };
    pairwise_rows(read, 1, n, 1, Summed::squares, &sum);
    return std::sqrt(sum);
}

float root_of_squares(const uint16_t *x, const uint16_t *y, int64_t n, bool float16) {
    return std::sqrt(sum_of_opened(x, y, n, float16, Summed::squares, subtracted));
}

// The Euclidean norm of x - y
nb::object distance(ExactArray x, ExactArray y) {
    if (!is_plain(x) || !is_plain(y) || !x.size() || !x.same_shape(y)) return nb::none();
    const int type = PyArray_TYPE(x.array);
    const int64_t n = x.size();
    if (type != PyArray_TYPE(y.array) || !is_float_type(type)) return nb::none();
    nb::object made = without_axes(x, ~uint64_t{0}, false);
    WithoutGil free(n);
    if (type == NPY_FLOAT) *data_of<float>(made) = root_of_squares(x.data<float>(), y.data<float>(), n);
    else if (type == NPY_DOUBLE) *data_of<double>(made) = root_of_squares(x.data<double>(), y.data<double>(), n);
    else rounded(root_of_squares(x.data<uint16_t>(), y.data<uint16_t>(), n, type == NPY_HALF), type, made);
    return made;
}

// The lengths of rows, or `least` of shorter ones
template <class T> std::vector<T> lengths_of(const T *x, int64_t rows, int64_t n, T least) {
    std::vector<T> found(static_cast<size_t>(rows));
    const auto read = [=](int64_t begin, int64_t, T *) -> const T * { return x + begin; };
    pairwise_rows(read, rows, n, 1, n == 1 ? Summed::sizes : Summed::squares, found.data());
    for (T &length : found) {
        if (n > 1) length = std::sqrt(length);
        if (length < least) length = least;
    }
    return found;
}
template <class T> void cosines(const T *x, const T *y, int64_t rows, int64_t n, T least, T *out) {
    const std::vector<T> length = lengths_of(x, rows, n, least), other = lengths_of(y, rows, n, least);
    const T *by = length.data(), *and_by = other.data();
    const auto read = [=](int64_t begin, int64_t end, T *scratch) -> const T * {
        for (int64_t at = begin; at < end;) {
            const int64_t row = at / n, next = std::min(end, (row + 1) * n);
            of_length_one(x + at, y + at, by[row], and_by[row], next - at, scratch + (at - begin));
            at = next;
        }
        return scratch;
    };
    pairwise_rows(read, rows, n, 2, Summed::elements, out);
}

// The cosines of the angles between what x and y have along their last dimensions, `axis`
nb::object cosine_similarity(ExactArray x, ExactArray y, nb::handle axis, double least) {
    uint64_t named;
    if (!is_plain(x) || !is_plain(y) || !x.size() || !x.same_shape(y) || !trailing(axis, x, named)) return nb::none();
    if (!(x.is<float>() && y.is<float>()) && !(x.is<double>() && y.is<double>())) return nb::none();
    nb::object made = without_axes(x, named, false);
    int64_t n = 1;
    for (int i = 0; i < x.ndim(); i++) n *= named >> i & 1 ? x.dim(i) : 1;
    WithoutGil free(x.size());
    if (x.is<float>()) cosines(x.data<float>(), y.data<float>(), x.size() / n, n, static_cast<float>(least), data_of<float>(made));
    else cosines(x.data<double>(), y.data<double>(), x.size() / n, n, least, data_of<double>(made));
    return made;
}

// The integral of a vector of more than two samples, `step` apart: the sum of the inner ones and half of the ends
nb::object trapezoid(ExactArray y, double step) {
    if (!is_plain(y) || y.ndim() != 1 || y.dim(0) < 3) return nb::none();
    const int type = PyArray_TYPE(y.array);
    const int64_t last = y.dim(0) - 1;
    if (!is_half_type(type) && !y.is<float>() && !y.is<double>()) return nb::none();
    nb::object made = without_axes(y, ~uint64_t{0}, false);
    WithoutGil free(last);
    if (type == NPY_DOUBLE) {
        const double *at = y.data<double>();
        double sum;
        pairwise_sums(at + 1, type, 1, last - 1, &sum);
        *data_of<double>(made) = (sum + (at[0] + at[last]) / 2) * step;
        return made;
    }
    float sum, ends[2];
    if (type == NPY_FLOAT) {
        const float *at = y.data<float>();
        pairwise_sums(at + 1, type, 1, last - 1, &sum);
        ends[0] = at[0], ends[1] = at[last];
    } else {
        const uint16_t *at = y.data<uint16_t>();
        pairwise_sums(at + 1, type, 1, last - 1, &sum);
        const auto unpack = type == NPY_HALF ? unpack_half : unpack_bfloat;
        unpack(at, 0, 1, ends), unpack(at + last, 0, 1, ends + 1);
    }
    sum = (sum + (ends[0] + ends[1]) / 2) * static_cast<float>(step);
    if (type == NPY_FLOAT) *data_of<float>(made) = sum;
    else rounded(sum, type, made);
    return made;
}

template <class T> void subtract_behind(const T *x, int64_t outer, int64_t row, int64_t inner, T *y) {
    constexpr int64_t WHOLE = 16; // elements in whole vectors: what is left of a row would go one by one
    const int64_t count = row - inner, pieces = outer > 1 ? 1 : std::max<int64_t>(count >> 13, 1);
    parallel_rows(outer * pieces, count / pieces, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const int64_t first = count * (i % pieces) / pieces, some = count * (i % pieces + 1) / pieces - first;
            const T *at = x + i / pieces * row + first;
            T *to = y + i / pieces * count + first;
            const int64_t whole = some < WHOLE ? some : some - some % WHOLE;
            subtracted(at + inner, at, whole, to);
            if (whole < some) subtracted(at + some - WHOLE + inner, at + some - WHOLE, WHOLE, to + some - WHOLE); // some of them again
        }
    });
}
void subtract_halves(const uint16_t *x, int64_t outer, int64_t row, int64_t inner, bool float16, uint16_t *y) {
    constexpr int64_t BLOCK = 1024;
    const auto unpack = float16 ? unpack_half : unpack_bfloat;
    const auto pack = float16 ? pack_half : pack_bfloat;
    const int64_t count = row - inner, pieces = (count + BLOCK - 1) / BLOCK;
    parallel_rows(outer * pieces, std::min(count, BLOCK), [&](int64_t begin, int64_t end) {
        alignas(64) float ahead[BLOCK], behind[BLOCK];
        for (int64_t i = begin; i < end; i++) {
            const int64_t first = i % pieces * BLOCK, some = std::min(BLOCK, count - first);
            const uint16_t *at = x + i / pieces * row + first;
            unpack(at + inner, 0, some, ahead), unpack(at, 0, some, behind);
            subtracted(ahead, behind, some, ahead);
            pack(ahead, 0, some, y + i / pieces * count + first);
        }
    });
}

// What each element along `axis` but the first is more than the one before it
nb::object differences(ExactArray x, int64_t axis) {
    if (!is_plain(x) || axis < 0 || axis >= x.ndim() || !x.size()) return nb::none();
    const int type = PyArray_TYPE(x.array);
    if (!is_half_type(type) && !x.is<float>() && !x.is<double>() && !x.is<int64_t>()) return nb::none();
    npy_intp dims[NPY_MAXDIMS];
    int64_t outer = 1, inner = 1;
    for (int i = 0; i < x.ndim(); i++) {
        dims[i] = x.dim(i) - (i == axis);
        if (i != axis) (i < axis ? outer : inner) *= x.dim(i);
    }
    PyArray_Descr *descr = PyArray_DESCR(x.array);
    Py_INCREF(descr);
    nb::object made = nb::steal(PyArray_NewFromDescr(&PyArray_Type, descr, x.ndim(), dims, nullptr, nullptr, 0, nullptr));
    if (!made.is_valid()) throw nb::python_error();
    const int64_t row = x.dim(static_cast<int>(axis)) * inner;
    if (row == inner) return made;
    WithoutGil free(x.size());
    if (type == NPY_FLOAT) subtract_behind(x.data<float>(), outer, row, inner, data_of<float>(made));
    else if (type == NPY_DOUBLE) subtract_behind(x.data<double>(), outer, row, inner, data_of<double>(made));
    else if (type == NPY_INT64) subtract_behind(x.data<int64_t>(), outer, row, inner, data_of<int64_t>(made));
    else subtract_halves(x.data<uint16_t>(), outer, row, inner, type == NPY_HALF, data_of<uint16_t>(made));
    return made;
}

} // namespace

void bind_pairs(nb::module_ &m) {
    m.def("dot", &dot);
    m.def("distance", &distance);
    m.def("cosine_similarity", &cosine_similarity);
    m.def("trapezoid", &trapezoid);
    m.def("differences", &differences);
}

} // namespace resilin
