// Variances over the last dimensions of contiguous arrays, in the steps of `reduce.py`: the mean, the mean of what that
// leaves, the squares of what both leave, each summed in pairwise order without an array for it.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "pairwise.hpp"
#include "kernels/simd.hpp"
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
    pairwise_rows([=](int64_t begin, int64_t, T *) { return x + begin; }, rows, length, 1, false, mean.data());
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
    pairwise_rows(read(nullptr), rows, length, 1, false, rest.data());
    for (T &r : rest) r /= static_cast<T>(length);
    pairwise_rows(read(rest.data()), rows, length, 1, true, y);
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

} // namespace

void bind_moments(nb::module_ &m) {
    m.def("var_last", &spread_last<false>, nb::arg("x"), nb::arg("axis").none(), nb::arg("correction"), nb::arg("keepdims"));
    m.def("std_last", &spread_last<true>, nb::arg("x"), nb::arg("axis").none(), nb::arg("correction"), nb::arg("keepdims"));
}

} // namespace resilin
