// Softmax and log-softmax of contiguous rows.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace resilin {
namespace {

// N rows, D elements each
RESILIN_SIMD void forward_rows(const float *x, int64_t D, int64_t begin, int64_t end, float *y) {
    for (int64_t n = begin; n < end; n++) {
        const float *row = x + n * D;
        float *out = y + n * D;
        const float top = max_of(row, D);
        for (int64_t i = 0; i < D; i++) out[i] = exp_low(row[i] - top);
        const float inv = 1.0f / sum_of(out, D);
        for (int64_t i = 0; i < D; i++) out[i] *= inv;
    }
}

RESILIN_SIMD void backward_rows(const float *g, const float *y, int64_t D, int64_t begin, int64_t end, float *dx) {
    for (int64_t n = begin; n < end; n++) {
        const float *gr = g + n * D, *yr = y + n * D;
        float *out = dx + n * D;
        const float dot = dot_of(gr, yr, D);
        for (int64_t i = 0; i < D; i++) out[i] = yr[i] * (gr[i] - dot);
    }
}

RESILIN_SIMD void log_forward_rows(const float *x, int64_t D, int64_t begin, int64_t end, float *y) {
    for (int64_t n = begin; n < end; n++) {
        const float *row = x + n * D;
        float *out = y + n * D;
        const float top = max_of(row, D);
        for (int64_t i = 0; i < D; i++) out[i] = exp_low(row[i] - top);
        const float log_sum = std::log(sum_of(out, D));
        for (int64_t i = 0; i < D; i++) out[i] = row[i] - top - log_sum;
    }
}

RESILIN_SIMD void log_backward_rows(const float *g, const float *y, int64_t D, int64_t begin, int64_t end, float *dx) {
    for (int64_t n = begin; n < end; n++) {
        const float *gr = g + n * D, *yr = y + n * D;
        float *out = dx + n * D;
        const float sum = sum_of(gr, D);
        for (int64_t i = 0; i < D; i++) out[i] = gr[i] - exp_low(yr[i]) * sum;
    }
}

// -- along another dimension than the last: ACROSS neighbouring columns at a time, each with the sums of a row

constexpr int64_t ACROSS = 16;
struct Columns {
    float of[ACROSS];
};

RESILIN_INLINE void add(Columns &to, const Columns &more) {
    for (int64_t k = 0; k < ACROSS; k++) to.of[k] += more.of[k];
}

// The sums of D elements of each column, in the order of sum_of.
RESILIN_INLINE Columns sums_of(const Columns *e, int64_t D) {
    Columns lanes[4][LANES] = {};
    const int64_t fours = D - D % (4 * LANES), whole = D - D % LANES;
    for (int64_t i = 0; i < D; i++) add(lanes[i < fours ? i / LANES % 4 : i < whole ? 0 : 1][i % LANES], e[i]);
    for (int64_t lane = 0; lane < LANES; lane++) {
        add(lanes[0][lane], lanes[1][lane]);
        if (fours) add(lanes[2][lane], lanes[3][lane]);
        if (fours) add(lanes[0][lane], lanes[2][lane]);
    }
    for (int64_t width = LANES / 2; width > 0; width /= 2)
        for (int64_t lane = 0; lane < width; lane++) add(lanes[0][lane], lanes[0][lane + width]);
    return lanes[0][0];
}

// `count` <= ACROSS columns of D elements, which lie `inner` apart.
template <bool OfLog>
RESILIN_INLINE void some_columns(const float *x, int64_t D, int64_t inner, int64_t count, Columns *e, float *y) {
    Columns top, factor;
    for (int64_t k = 0; k < ACROSS; k++) top.of[k] = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < D; i++) {
        std::memcpy(e[i].of, x + i * inner, static_cast<size_t>(count) * sizeof(float));
        for (int64_t k = 0; k < ACROSS; k++) top.of[k] = e[i].of[k] > top.of[k] ? e[i].of[k] : top.of[k];
    }
    for (int64_t i = 0; i < D; i++)
        for (int64_t k = 0; k < ACROSS; k++) e[i].of[k] = exp_low(e[i].of[k] - top.of[k]);
    factor = sums_of(e, D);
    for (int64_t k = 0; k < ACROSS; k++) factor.of[k] = OfLog ? std::log(factor.of[k]) : 1.0f / factor.of[k];
    for (int64_t i = 0; i < D; i++) {
        if (OfLog) std::memcpy(e[i].of, x + i * inner, static_cast<size_t>(count) * sizeof(float));
        for (int64_t k = 0; k < ACROSS; k++)
            e[i].of[k] = OfLog ? e[i].of[k] - top.of[k] - factor.of[k] : e[i].of[k] * factor.of[k];
        std::memcpy(y + i * inner, e[i].of, static_cast<size_t>(count) * sizeof(float));
    }
}

// Blocks of columns from `begin` to `end` of (outer, D, inner).
template <bool OfLog>
RESILIN_INLINE void all_columns(const float *x, int64_t D, int64_t inner, int64_t begin, int64_t end, float *y) {
    std::vector<Columns> e(static_cast<size_t>(D));
    const int64_t blocks = (inner + ACROSS - 1) / ACROSS;
    for (int64_t block = begin; block < end; block++) {
        const int64_t column = block % blocks * ACROSS, at = block / blocks * D * inner + column;
        some_columns<OfLog>(x + at, D, inner, std::min(ACROSS, inner - column), e.data(), y + at);
    }
}
RESILIN_SIMD void forward_columns(const float *x, int64_t D, int64_t inner, int64_t begin, int64_t end, float *y) {
    all_columns<false>(x, D, inner, begin, end, y);
}
RESILIN_SIMD void log_forward_columns(const float *x, int64_t D, int64_t inner, int64_t begin, int64_t end, float *y) {
    all_columns<true>(x, D, inner, begin, end, y);
}

using Forward = void(const float *, int64_t, int64_t, int64_t, float *);
using Backward = void(const float *, const float *, int64_t, int64_t, int64_t, float *);

template <Forward *rows> nb::object forward(Array x) {
    if (!x.is<float>()) return nb::none();
    NewArray<float> y(x);
    {
        WithoutGil free(x.size());
        parallel_rows(x.rows(), x.last(),
                      [&](int64_t begin, int64_t end) { rows(x.data<float>(), x.last(), begin, end, y.data); });
    }
    return y.object;
}

using Along = void(const float *, int64_t, int64_t, int64_t, int64_t, float *);

template <Forward *rows, Along *columns> nb::object forward_along(Array x, int64_t axis) {
    if (!x.is<float>() || axis < 0 || axis >= x.ndim()) return nb::none();
    if (axis == x.ndim() - 1) return forward<rows>(x);
    NewArray<float> y(x);
    if (!x.size()) return y.object;
    int64_t inner = 1;
    for (int i = static_cast<int>(axis) + 1; i < x.ndim(); i++) inner *= x.dim(i);
    const int64_t D = x.dim(static_cast<int>(axis)), blocks = (inner + ACROSS - 1) / ACROSS;
    WithoutGil free(x.size());
    parallel_rows(x.size() / (D * inner) * blocks, D * std::min(inner, ACROSS), [&](int64_t begin, int64_t end) {
        columns(x.data<float>(), D, inner, begin, end, y.data);
    });
    return y.object;
}

template <Backward *rows> nb::object backward(Array g, Array y) {
    if (!g.is<float>() || !y.is<float>() || !g.same_shape(y)) return nb::none();
    NewArray<float> dx(y);
    {
        WithoutGil free(y.size());
        parallel_rows(y.rows(), y.last(), [&](int64_t begin, int64_t end) {
            rows(g.data<float>(), y.data<float>(), y.last(), begin, end, dx.data);
        });
    }
    return dx.object;
}

} // namespace

void bind_softmax(nb::module_ &m) {
    m.def("softmax_forward", &forward<forward_rows>);
    m.def("softmax_along", &forward_along<forward_rows, forward_columns>);
    m.def("log_softmax_along", &forward_along<log_forward_rows, log_forward_columns>);
    m.def("softmax_backward", &backward<backward_rows>);
    m.def("log_softmax_forward", &forward<log_forward_rows>);
    m.def("log_softmax_backward", &backward<log_backward_rows>);
}

} // namespace resilin
