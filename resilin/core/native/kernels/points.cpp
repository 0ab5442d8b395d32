// Weighted sums of elements that lie anywhere: every point of every channel takes the same few places, by weights of the
// point. Place -1 is outside, where every channel is 0.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <cstring>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t TILE = 512; // points at a time

// N batch, C channels of L elements, P points, K places each
struct Points {
    const int64_t *places; // (K, N, P)
    const float *weights;  // (K, N, P)
    int64_t N, C, L, P, K;

    int64_t at(int64_t k, int64_t n, int64_t p) const { return (k * N + n) * P + p; }
};

RESILIN_INLINE float element(const float *row, int64_t place) { return place < 0 ? 0.0f : row[place < 0 ? 0 : place]; }

// One channel: y[p] = the sum of its terms, k ascending
RESILIN_SIMD void sum_channel(const Points &t, int64_t n, const float *row, float *y) {
    for (int64_t k = 0; k < t.K; k++) {
        const int64_t *places = t.places + t.at(k, n, 0);
        const float *weights = t.weights + t.at(k, n, 0);
        if (k == 0)
            for (int64_t p = 0; p < t.P; p++) y[p] = element(row, places[p]) * weights[p];
        else
            for (int64_t p = 0; p < t.P; p++) y[p] += element(row, places[p]) * weights[p];
    }
}

// One channel: g[p] times the weights added at the places, k ascending, points ascending for each
void spread_channel(const Points &t, int64_t n, const float *g, float *dx) {
    std::memset(dx, 0, static_cast<size_t>(t.L) * sizeof(float));
    for (int64_t k = 0; k < t.K; k++) {
        const int64_t *places = t.places + t.at(k, n, 0);
        const float *weights = t.weights + t.at(k, n, 0);
        for (int64_t p = 0; p < t.P; p++)
            if (places[p] >= 0) dx[places[p]] += g[p] * weights[p];
    }
}

// Gradients of the weights of some points: sums over channels, ascending, in float64
RESILIN_SIMD void sum_over_channels(const Points &t, int64_t n, int64_t k, int64_t begin, int64_t end, const float *x,
                                    const float *g, float *dw) {
    double sum[TILE];
    const int64_t *places = t.places + t.at(k, n, begin);
    const int64_t count = end - begin;
    for (int64_t p = 0; p < count; p++) sum[p] = 0.0;
    for (int64_t c = 0; c < t.C; c++) {
        const float *row = x + (n * t.C + c) * t.L, *from = g + (n * t.C + c) * t.P + begin;
        for (int64_t p = 0; p < count; p++) sum[p] += static_cast<double>(from[p]) * element(row, places[p]);
    }
    for (int64_t p = 0; p < count; p++) dw[t.at(k, n, begin) + p] = static_cast<float>(sum[p]);
}

bool accepts(const Array &x, const Array &weights, const Array &places, Points &t) {
    if (!x.is<float>() || x.ndim() != 3 || !weights.is<float>() || !places.is<int64_t>() || weights.ndim() != 3 ||
        !weights.same_shape(places) || places.dim(1) != x.dim(0) || !places.dim(0))
        return false;
    t = {places.data<int64_t>(), weights.data<float>(), x.dim(0), x.dim(1), x.dim(2), places.dim(2), places.dim(0)};
    for (int64_t i = 0; i < places.size(); i++)
        if (t.places[i] < -1 || t.places[i] >= t.L) return false;
    return true;
}

nb::object forward(Array x, Array weights, Array places) {
    Points t;
    if (!accepts(x, weights, places, t)) return nb::none();
    NewArray<float> y({static_cast<npy_intp>(t.N), static_cast<npy_intp>(t.C), static_cast<npy_intp>(t.P)});
    nb::object made = y.object;
    WithoutGil free(t.N * t.C * t.P);
    parallel_rows(t.N * t.C, t.K * t.P, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++)
            sum_channel(t, row / t.C, x.data<float>() + row * t.L, y.data + row * t.P);
    });
    return made;
}

// (dx, dweights), each None unless it is needed.
nb::object backward(Array g, Array x, Array weights, Array places, bool need_x, bool need_weights) {
    Points t;
    if (!accepts(x, weights, places, t) || !g.is<float>() || g.ndim() != 3 || g.dim(0) != t.N || g.dim(1) != t.C ||
        g.dim(2) != t.P)
        return nb::none();
    nb::object dx = nb::none(), dw = nb::none();
    float *to_x = nullptr, *to_w = nullptr;
    if (need_x) {
        NewArray<float> made(x);
        dx = made.object, to_x = made.data;
    }
    if (need_weights) {
        NewArray<float> made(weights);
        dw = made.object, to_w = made.data;
    }
    {
        WithoutGil free(g.size());
        parallel_rows(to_x ? t.N * t.C : 0, t.K * t.P, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; row++)
                spread_channel(t, row / t.C, g.data<float>() + row * t.P, to_x + row * t.L);
        });
        const int64_t tiles = (t.P + TILE - 1) / TILE;
        parallel_rows(to_w ? t.K * t.N * tiles : 0, t.C * std::min(t.P, TILE), [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; task++) {
                const int64_t first = task % tiles * TILE, kn = task / tiles;
                sum_over_channels(t, kn % t.N, kn / t.N, first, std::min(t.P, first + TILE), x.data<float>(),
                                  g.data<float>(), to_w);
            }
        });
    }
    return nb::make_tuple(dx, dw);
}

} // namespace

void bind_points(nb::module_ &m) {
    m.def("points_forward", &forward);
    m.def("points_backward", &backward);
}

} // namespace resilin
