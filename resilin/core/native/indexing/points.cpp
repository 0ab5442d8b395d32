// Weighted sums of elements that lie anywhere: every point of every channel takes the same few places, by weights of the
// point. Place -1 is outside, where every channel is 0.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "kernels/simd.hpp"

#include <nanobind/stl/vector.h>

#ifdef RESILIN_CHOOSES_ISA
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
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

void take_one_by_one(const float *row, const int32_t *at, int64_t n, float *to) {
    for (int64_t p = 0; p < n; p++) to[p] = row[at[p]];
}
#ifdef RESILIN_CHOOSES_ISA
// Compilers do not gather by themselves: on some older CPUs it is slow.
__attribute__((target("arch=x86-64-v4"))) void take_many(const float *row, const int32_t *at, int64_t n, float *to) {
    int64_t p = 0;
    for (; p + 16 <= n; p += 16) _mm512_storeu_ps(to + p, _mm512_mask_i32gather_ps(_mm512_setzero_ps(), 0xFFFF, _mm512_loadu_si512(at + p), row, 4));
    for (; p < n; p++) to[p] = row[at[p]];
}
const auto take = __builtin_cpu_supports("x86-64-v4") ? take_many : take_one_by_one;
#else
constexpr auto take = take_one_by_one;
#endif

RESILIN_INLINE float kept(float x, int32_t mask) { return bit_cast<float>(bit_cast<int32_t>(x) & mask); }

// Up to TILE points of one sample: where their K places and weights begin, and how far those of the next k are.
struct Tile {
    const int64_t *places;
    const float *weights;
    int64_t step, K, count;
};

// Places made short once for all channels, with a mask for those outside: many are gathered at a time, without a branch.
RESILIN_SIMD void shorten(const Tile &t, int32_t *places) {
    for (int64_t k = 0; k < t.K; k++) {
        const int64_t *from = t.places + k * t.step;
        int32_t *at = places + 2 * k * TILE, *masks = at + TILE;
        for (int64_t p = 0; p < t.count; p++) at[p] = static_cast<int32_t>(from[p] < 0 ? 0 : from[p]);
        for (int64_t p = 0; p < t.count; p++) masks[p] = from[p] < 0 ? 0 : -1;
    }
}

// Channels [begin, end) of a sample, of L elements each: y[c * P + p] = the sum of its terms, k ascending.
RESILIN_SIMD void sum_tile(const Tile &t, int64_t begin, int64_t end, const float *x, int64_t L, float *y, int64_t P, const int32_t *places) {
    for (int64_t c = begin; c < end; c++) {
        const float *row = x + c * L;
        float *__restrict to = y + c * P;
        for (int64_t k = 0; k < t.K; k++) {
            const int32_t *__restrict at = places + 2 * k * TILE, *__restrict masks = at + TILE;
            const float *__restrict weights = t.weights + k * t.step;
            float found[TILE];
            take(row, at, t.count, found);
            if (k == 0)
                for (int64_t p = 0; p < t.count; p++) to[p] = kept(found[p], masks[p]) * weights[p];
            else
                for (int64_t p = 0; p < t.count; p++) to[p] += kept(found[p], masks[p]) * weights[p];
        }
    }
}

void sum_channels(const Points &t, int64_t n, int64_t begin, int64_t end, const float *x, float *y, int32_t *places) {
    for (int64_t first = 0; first < t.P; first += TILE) {
        const int64_t at = t.at(0, n, first);
        const Tile tile{t.places + at, t.weights + at, t.N * t.P, t.K, std::min(TILE, t.P - first)};
        shorten(tile, places);
        sum_tile(tile, begin, end, x + n * t.C * t.L, t.L, y + n * t.C * t.P + first, t.P, places);
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
        !weights.same_shape(places) || places.dim(1) != x.dim(0) || !places.dim(0) || x.dim(2) > INT32_MAX)
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
        std::vector<int32_t> places(static_cast<size_t>(2 * t.K * TILE));
        for (int64_t row = begin; row < end;) {
            const int64_t n = row / t.C, last = std::min(end, (n + 1) * t.C);
            sum_channels(t, n, row - n * t.C, last - n * t.C, x.data<float>(), y.data, places.data());
            row = last;
        }
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

// -- grids: coordinates from -1 to 1 as places and weights

constexpr int MOST_AXES = 3;

// A dimension of the input and how coordinates along it are meant.
struct Axis {
    int64_t length;
    int padding; // 0: zeros, 1: the nearest element, 2: mirrored
    bool corners, nearest;
};

RESILIN_INLINE float mirrored(float place, float low, float span) {
    if (span == 0.0f) return place * 0.0f;
    const float away = std::fabs(place - low), rest = std::fmod(away, span);
    const bool even = std::fmod(std::floor(away / span), 2.0f) == 0.0f;
    const float value = (even ? rest : span - rest) + low, sign = even == (place >= low) ? 1.0f : -1.0f;
    return place * sign + (value - sign * place);
}

// What grids.py's _Axis.terms gives: the element before a coordinate (-1 outside) and the one behind it, and their weights.
template <bool Mirrored, bool Nearest> RESILIN_INLINE void along(const Axis axis, const float *coordinates, int64_t step, int64_t count,
                                                                 int32_t *__restrict elements, float *__restrict weights) {
    const float n = static_cast<float>(axis.length), last = n - 1.0f;
    for (int64_t p = 0; p < count; p++) {
        const float c = coordinates[p * step];
        float place = axis.corners ? (c + 1.0f) / 2.0f * last : ((c + 1.0f) * n - 1.0f) / 2.0f;
        if (Mirrored) place = mirrored(place, axis.corners ? 0.0f : -0.5f, axis.corners ? last : n);
        if (axis.padding) place = (place > 0.0f) & (place < last) ? place : (place >= last ? last : 0.0f);
        const float first = Nearest ? std::nearbyint(place) : std::floor(place), after = place - first;
        const float second = first + 1.0f;
        elements[p] = (first >= 0.0f) & (first < n) ? static_cast<int32_t>((first >= 0.0f) & (first < n) ? first : 0.0f) : -1;
        elements[TILE + p] = (second >= 0.0f) & (second < n) ? static_cast<int32_t>((second >= 0.0f) & (second < n) ? second : 0.0f) : -1;
        weights[p] = Nearest ? 1.0f : 1.0f - after;
        weights[TILE + p] = after;
    }
}
RESILIN_SIMD void terms_along(const Axis &axis, const float *coordinates, int64_t step, int64_t count, int32_t *elements, float *weights) {
    if (axis.padding == 2 && axis.nearest) along<true, true>(axis, coordinates, step, count, elements, weights);
    else if (axis.padding == 2) along<true, false>(axis, coordinates, step, count, elements, weights);
    else if (axis.nearest) along<false, true>(axis, coordinates, step, count, elements, weights);
    else along<false, false>(axis, coordinates, step, count, elements, weights);
}

// One neighbour per dimension together: its flat place, which counts where `good` is -1 and not 0, and its weight.
template <class T> RESILIN_INLINE void join_sides(const Axis *axes, int count_axes, int64_t k, const int32_t *elements, const float *weights,
                                                  int64_t count, T *__restrict at, int32_t *__restrict good, float *__restrict joined) {
    for (int d = 0; d < count_axes; d++) {
        const int64_t side = k >> (count_axes - 1 - d) & 1;
        const int32_t *element = elements + (2 * d + side) * TILE;
        const float *own = weights + (2 * d + side) * TILE;
        const T length = static_cast<T>(axes[d].length);
        if (d == 0)
            for (int64_t p = 0; p < count; p++) at[p] = element[p], good[p] = ~(element[p] >> 31), joined[p] = own[p];
        else
            for (int64_t p = 0; p < count; p++)
                at[p] = at[p] * length + element[p], good[p] &= ~(element[p] >> 31), joined[p] *= own[p];
    }
}
RESILIN_SIMD void join_terms(const Axis *axes, int count_axes, int64_t k, const int32_t *elements, const float *weights,
                             int64_t count, int64_t *__restrict places, float *__restrict joined) {
    int32_t good[TILE];
    join_sides(axes, count_axes, k, elements, weights, count, places, good, joined);
    for (int64_t p = 0; p < count; p++) places[p] = good[p] ? places[p] : -1;
}
// As `shorten` leaves them.
RESILIN_SIMD void join_short_terms(const Axis *axes, int count_axes, int64_t k, const int32_t *elements, const float *weights,
                                   int64_t count, int32_t *__restrict places, float *__restrict joined) {
    join_sides(axes, count_axes, k, elements, weights, count, places, places + TILE, joined);
    for (int64_t p = 0; p < count; p++) places[p] &= places[TILE + p];
}

// How coordinates of a grid are meant, for an input of these lengths.
struct Grid {
    Axis axes[MOST_AXES];
    int dims;
    bool nearest;
    int64_t K() const { return nearest ? 1 : int64_t{1} << dims; }
};

bool are_axes(const std::vector<int64_t> &lengths, bool nearest, int padding, bool corners, Grid &grid) {
    grid.dims = static_cast<int>(lengths.size());
    grid.nearest = nearest;
    if (grid.dims < 1 || grid.dims > MOST_AXES) return false;
    for (int d = 0; d < grid.dims; d++) {
        if (lengths[static_cast<size_t>(d)] < 1 || lengths[static_cast<size_t>(d)] > (1 << 24)) return false;
        grid.axes[d] = {lengths[static_cast<size_t>(d)], padding, corners, nearest};
    }
    return true;
}

// The neighbours along each dimension and their weights, of a tile whose coordinates are given.
struct Sides {
    int32_t elements[2 * MOST_AXES * TILE];
    float own[2 * MOST_AXES * TILE];
    Sides(const Grid &grid, const float *coordinates, int64_t count) {
        for (int d = 0; d < grid.dims; d++)
            terms_along(grid.axes[d], coordinates + grid.dims - 1 - d, grid.dims, count, elements + 2 * d * TILE, own + 2 * d * TILE);
    }
};

// (places, weights), both (K, N, P), for a grid (N, P, number of axes), whose last coordinate is that of the first axis;
// `nearest`: K is 1, else all pairs of neighbours, the last axis' varying fastest. None for what has no kernel.
nb::object grid_points(Array given, const std::vector<int64_t> &lengths, bool nearest, int padding, bool corners) {
    Grid grid;
    if (!are_axes(lengths, nearest, padding, corners, grid) || !given.is<float>() || given.ndim() != 3 || given.last() != grid.dims)
        return nb::none();
    const npy_intp N = given.dim(0), P = given.dim(1), K = grid.K();
    NewArray<int64_t> places({K, N, P});
    NewArray<float> weights({K, N, P});
    nb::object made = nb::make_tuple(places.object, weights.object);
    WithoutGil free(given.size() * K);
    const int64_t tiles = (P + TILE - 1) / TILE;
    parallel_rows(N * tiles, TILE * K, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++) {
            const int64_t n = task / tiles, first = task % tiles * TILE, at = n * P + first;
            const int64_t count = std::min<int64_t>(TILE, P - first);
            const Sides sides(grid, given.data<float>() + at * grid.dims, count);
            for (int64_t k = 0; k < K; k++)
                join_terms(grid.axes, grid.dims, k, sides.elements, sides.own, count, places.data + at + k * N * P,
                           weights.data + at + k * N * P);
        }
    });
    return made;
}

int number_of(const char *name, std::initializer_list<const char *> names) {
    int number = 0;
    for (const char *known : names) {
        if (!std::strcmp(known, name)) return number;
        number++;
    }
    return -1;
}

// What torch.nn.functional.grid_sample gives, tile by tile: the same sums as those of grid_points and then forward.
nb::object grid_sample(Array x, Array given, nb::str mode, nb::str padding_mode, nb::handle align_corners) {
    const int how = number_of(mode.c_str(), {"bilinear", "nearest"});
    const int padding = number_of(padding_mode.c_str(), {"zeros", "border", "reflection"});
    if (how < 0 || padding < 0 || !x.is<float>() || !given.is<float>() || x.ndim() < 4 || x.ndim() > 5 || given.ndim() != x.ndim() ||
        given.dim(0) != x.dim(0) || given.last() != x.ndim() - 2 || (!PyBool_Check(align_corners.ptr()) && !align_corners.is_none()))
        return nb::none();
    std::vector<int64_t> lengths;
    std::vector<npy_intp> dims{x.dim(0), x.dim(1)};
    int64_t L = 1, P = 1;
    for (int d = 2; d < x.ndim(); d++) {
        lengths.push_back(x.dim(d));
        dims.push_back(given.dim(d - 1));
        L *= x.dim(d), P *= given.dim(d - 1);
    }
    Grid grid;
    if (!are_axes(lengths, how == 1, padding, align_corners.ptr() == Py_True, grid) || L > INT32_MAX / 2) return nb::none();
    NewArray<float> y(static_cast<int>(dims.size()), dims.data());
    const int64_t N = dims[0], C = dims[1], K = grid.K(), tiles = (P + TILE - 1) / TILE;
    WithoutGil free(N * C * P);
    parallel_rows(N * tiles, TILE * K * C, [&](int64_t begin, int64_t end) {
        int32_t places[2 * (1 << MOST_AXES) * TILE];
        float weights[(1 << MOST_AXES) * TILE];
        for (int64_t task = begin; task < end; task++) {
            const int64_t n = task / tiles, first = task % tiles * TILE, count = std::min<int64_t>(TILE, P - first);
            const Sides sides(grid, given.data<float>() + (n * P + first) * grid.dims, count);
            for (int64_t k = 0; k < K; k++)
                join_short_terms(grid.axes, grid.dims, k, sides.elements, sides.own, count, places + 2 * k * TILE, weights + k * TILE);
            const Tile tile{nullptr, weights, TILE, K, count};
            sum_tile(tile, 0, C, x.data<float>() + n * C * L, L, y.data + n * C * P + first, P, places);
        }
    });
    return y.object;
}

} // namespace

void bind_points(nb::module_ &m) {
    m.def("grid_points", &grid_points);
    m.def("grid_sample", &grid_sample, nb::arg(), nb::arg(), nb::arg() = "bilinear", nb::arg() = "zeros", nb::arg() = nb::none());
    m.def("points_forward", &forward);
    m.def("points_backward", &backward);
}

} // namespace resilin
