// Variances over the last dimensions of contiguous arrays, in the steps of `reduce.py`: the mean, the mean of what that
// leaves, the squares of what both leave, each summed in pairwise order without an array for it. Rows by their size.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "kernels/rows.hpp"
#include "pairwise.hpp"
#include "trailing.hpp"

#include <cmath>
#include <limits>
#include <vector>

namespace resilin {
namespace {

template <class T>
RESILIN_INLINE void centre(const T *x, int64_t rows, int64_t length, const T *mean, const T *rest, T *y) {
    for (int64_t row = 0; row < rows; row++) {
        const T m = mean[row], r = rest ? rest[row] : T(0);
        for (int64_t i = row * length; i < (row + 1) * length; i++) y[i] = (x[i] - m) - r;
    }
}
RESILIN_SIMD void centred(const float *x, int64_t rows, int64_t length, const float *mean, const float *rest, float *y) {
    centre(x, rows, length, mean, rest, y);
}
RESILIN_SIMD void centred(const double *x, int64_t rows, int64_t length, const double *mean, const double *rest, double *y) {
    centre(x, rows, length, mean, rest, y);
}

// False where squares may have left the range on the way, as `_well_in_range` of reduce.py says
template <class T> bool variances(const T *x, int64_t rows, int64_t length, T count, bool root, T *y) {
    std::vector<T> mean(static_cast<size_t>(rows)), rest(static_cast<size_t>(rows));
    pairwise_rows([=](int64_t begin, int64_t, T *) { return x + begin; }, rows, length, 1, Summed::elements, mean.data());
    for (T &m : mean) m /= static_cast<T>(length);
    // elements from `begin` on are whole rows, or a part of one
    const auto read = [&](const T *second) {
        return [&, second](int64_t begin, int64_t end, T *scratch) -> const T * {
            const int64_t row = begin / length, count = (end - begin) / length;
            const int64_t some = count ? count : 1, each = count ? length : end - begin;
            centred(x + begin, some, each, mean.data() + row, second ? second + row : nullptr, scratch);
            return scratch;
        };
    };
    pairwise_rows(read(nullptr), rows, length, 1, Summed::elements, rest.data());
    for (T &r : rest) r /= static_cast<T>(length);
    pairwise_rows(read(rest.data()), rows, length, 1, Summed::squares, y);
    const T high = std::numeric_limits<T>::max() / T(1024), low = std::numeric_limits<T>::min() * T(int64_t{1} << 60);
    bool fine = true;
    for (int64_t row = 0; row < rows; row++) {
        const T found = y[row] / count;
        fine = fine && found < high && found > low;
        y[row] = root ? std::sqrt(found) : found;
    }
    return fine;
}

template <class T> nb::object variance_of(const ExactArray &x, uint64_t named, bool keepdims, double correction, bool root) {
    int64_t rows;
    NewArray<T> y = without_trailing<T>(x, named, keepdims, rows);
    nb::object made = y.object;
    const int64_t length = x.size() / rows;
    const double count = static_cast<double>(length) - correction;
    bool fine;
    {
        WithoutGil free(x.size());
        fine = variances(x.data<T>(), rows, length, static_cast<T>(count > 0 ? count : 0), root, y.data);
    }
    return fine ? made : nb::none();
}

// The variance over the last dimensions, or its root
template <bool root> nb::object spread_last(ExactArray x, nb::handle axis, double correction, bool keepdims) {
    if ((!x.is<float>() && !x.is<double>()) || !x.size()) return nb::none();
    uint64_t named;
    if (!trailing(axis, x, named)) return nb::none();
    return x.is<float>() ? variance_of<float>(x, named, keepdims, correction, root)
                         : variance_of<double>(x, named, keepdims, correction, root);
}

#define RESILIN_SCALED_ROWS(T)                                                                                         \
    RESILIN_SIMD void scaled_rows(const T *x, const T *scale, const T *w, int64_t rows, int64_t length, T *y) {        \
        for (int64_t row = 0; row < rows; row++, x += length, y += length) {                                           \
            const T s = scale[row];                                                                                    \
            _Pragma("omp simd") for (int64_t i = 0; i < length; i++) y[i] = w ? x[i] * s * w[i] : x[i] * s;            \
        }                                                                                                              \
    }
RESILIN_SCALED_ROWS(float)
RESILIN_SCALED_ROWS(double)

template <class T> nb::object root_normalized(const Floats &x, const Floats &w, int64_t length, T eps) {
    const int64_t rows = x.size() / length;
    nb::object made = new_like(x);
    WithoutGil free(2 * x.size());
    const Opened<T> from(x);
    const Rounded<T> to(made, x);
    const Beside<T> weight(w);
    std::vector<T> scale(static_cast<size_t>(rows));
    const auto read = [&](int64_t begin, int64_t end, T *scratch) { return from.at(begin, end - begin, scratch); };
    pairwise_rows(read, rows, length, 1, Summed::squares, scale.data());
    for (T &s : scale) s = T(1) / std::sqrt(s / static_cast<T>(length) + eps);
    parallel_rows(rows, length, [&](int64_t begin, int64_t end) {
        std::vector<T> block(static_cast<size_t>(from.half() ? rows_abreast(length) * length : 0));
        few_at_a_time(length, begin, end, [&](int64_t row, int64_t some) {
            const int64_t at = row * length, n = some * length;
            T *y = to.at(at, block.data());
            scaled_rows(from.at(at, n, block.data()), scale.data() + row, weight.data, some, length, y);
            to.close(at, n, y);
        });
    });
    return made;
}

// Rows of `length` elements by the root of the mean of their squares and eps, times w; 16-bit floats are rounded once
nb::object rms_norm(Floats x, Floats w, int64_t length, double eps) {
    if (!x.known() || x.copy.ptr() || length < 1 || !x.size() || x.size() % length || !w.fits(x, length))
        return nb::none();
    return x.type() == NPY_DOUBLE ? root_normalized<double>(x, w, length, eps)
                                  : root_normalized<float>(x, w, length, static_cast<float>(eps));
}

} // namespace

void bind_moments(nb::module_ &m) {
    m.def("var_last", &spread_last<false>, nb::arg("x"), nb::arg("axis").none(), nb::arg("correction"), nb::arg("keepdims"));
    m.def("std_last", &spread_last<true>, nb::arg("x"), nb::arg("axis").none(), nb::arg("correction"), nb::arg("keepdims"));
    m.def("rms_norm", &rms_norm, nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
}

} // namespace resilin
