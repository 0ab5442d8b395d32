// Running sums along a dimension, from its start or from its end, added in float64.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <algorithm>

namespace resilin {
namespace {

constexpr int64_t ABREAST = 8;    // rows at a time, whose additions wait for one another no more
constexpr int64_t COLUMNS = 1024; // columns at a time: their sums stay in the first cache

// `rows` <= ABREAST rows of n elements
RESILIN_SIMD void scan_rows(const float *x, int64_t rows, int64_t n, bool reverse, float *y) {
    double sum[ABREAST] = {};
    for (int64_t step = 0; step < n; step++) {
        const int64_t i = reverse ? n - 1 - step : step;
        for (int64_t row = 0; row < rows; row++) {
            sum[row] += static_cast<double>(x[row * n + i]);
            y[row * n + i] = static_cast<float>(sum[row]);
        }
    }
}

// `width` <= COLUMNS columns of a matrix of n rows, D elements apart
RESILIN_SIMD void scan_columns(const float *x, int64_t n, int64_t D, int64_t width, bool reverse, float *y) {
    double sum[COLUMNS];
    for (int64_t j = 0; j < width; j++) sum[j] = 0.0;
    for (int64_t step = 0; step < n; step++) {
        const int64_t i = (reverse ? n - 1 - step : step) * D;
        for (int64_t j = 0; j < width; j++) {
            sum[j] += static_cast<double>(x[i + j]);
            y[i + j] = static_cast<float>(sum[j]);
        }
    }
}

nb::object running_sum(Array x, int64_t axis, bool reverse) {
    if (!x.is<float>() || axis < 0 || axis >= x.ndim()) return nb::none();
    int64_t outer = 1, inner = 1;
    const int64_t n = x.dim(static_cast<int>(axis));
    for (int i = 0; i < x.ndim(); i++) (i < axis ? outer : inner) *= i == axis ? 1 : x.dim(i);
    NewArray<float> y(x);
    nb::object made = y.object;
    WithoutGil free(x.size());
    if (inner == 1) {
        const int64_t groups = (outer + ABREAST - 1) / ABREAST;
        parallel_rows(groups, ABREAST * n, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin * ABREAST; row < std::min(end * ABREAST, outer); row += ABREAST)
                scan_rows(x.data<float>() + row * n, std::min(ABREAST, outer - row), n, reverse, y.data + row * n);
        });
        return made;
    }
    const int64_t tiles = (inner + COLUMNS - 1) / COLUMNS;
    parallel_rows(outer * tiles, n * std::min(inner, COLUMNS), [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++) {
            const int64_t first = task % tiles * COLUMNS, at = task / tiles * n * inner + first;
            scan_columns(x.data<float>() + at, n, inner, std::min(COLUMNS, inner - first), reverse, y.data + at);
        }
    });
    return made;
}

} // namespace

void bind_scan(nb::module_ &m) { m.def("running_sum", &running_sum); }

} // namespace resilin
