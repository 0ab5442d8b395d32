// Depthwise convolution of narrow maps, several channels in one vector: what lies channel by channel is turned into
// blocks of one vector for each position, and back.
#include "depthwise.hpp"
#include "matmul/pairs.hpp"

#include <type_traits>

namespace resilin::depthwise {
namespace {

// A square of 16 x 16 elements of 32 bits turned: of so many bytes, and in the place of rows that lie anywhere.
template <int64_t BYTES, class From, class To> RESILIN_INLINE void turn(From from, To to) {
    if constexpr (BYTES == 64) {
        Pairs rows[16];
        for (int64_t i = 0; i < 16; i++) std::memcpy(&rows[i], from(i), sizeof(Pairs));
        transpose_pairs(rows);
        for (int64_t i = 0; i < 16; i++) std::memcpy(to(i), &rows[i], sizeof(Pairs));
    } else {
        for (int64_t down = 0; down < 16; down += 8)
            for (int64_t across = 0; across < 16; across += 8) {
                HalfPairs rows[8];
#pragma GCC unroll 8
                for (int64_t i = 0; i < 8; i++) std::memcpy(&rows[i], from(down + i) + across, sizeof(HalfPairs));
                transpose_pairs(rows);
#pragma GCC unroll 8
                for (int64_t i = 0; i < 8; i++) std::memcpy(to(across + i) + down, &rows[i], sizeof(HalfPairs));
            }
    }
}

// to[at[i] + c] = x[c * apart + i] for n positions of some channels; lanes without a channel repeat the last one.
template <class T, int64_t BYTES>
RESILIN_INLINE void interleave(const T *x, int64_t apart, int64_t channels, int64_t n, const int64_t *at, T *to) {
    if constexpr (std::is_same_v<T, float>) {
        for (int64_t i = 0; i < n && n >= 16; i += 16) {
            const int64_t begin = std::min(i, n - 16);
            turn<BYTES>([&](int64_t c) { return x + std::min(c, channels - 1) * apart + begin; },
                        [&](int64_t k) { return to + at[begin + k]; });
        }
        if (n >= 16) return;
    }
    for (int64_t c = 0; c < WIDTH<T>; c++) {
        const T *from = x + std::min(c, channels - 1) * apart;
        for (int64_t i = 0; i < n; i++) to[at[i] + c] = from[i];
    }
}

// y[c * apart + i] = from[at[i] + c]
template <class T, int64_t BYTES>
RESILIN_INLINE void separate(const T *from, const int64_t *at, int64_t channels, int64_t n, T *y, int64_t apart) {
    if constexpr (std::is_same_v<T, float>) {
        float spare[16];
        for (int64_t i = 0; i < n && n >= 16; i += 16) {
            const int64_t begin = std::min(i, n - 16);
            turn<BYTES>([&](int64_t k) { return from + at[begin + k]; },
                        [&](int64_t c) { return c < channels ? y + c * apart + begin : spare; });
        }
        if (n >= 16) return;
    }
    for (int64_t c = 0; c < channels; c++)
        for (int64_t i = 0; i < n; i++) y[c * apart + i] = from[at[i] + c];
}

// U outputs of a row, from the padded block at `from`.
template <class T, int64_t BYTES, int64_t U>
RESILIN_INLINE void convolve(const Narrow<T> &l, const T *from, const T *w, const T *bias, T *y) {
    using V = Register<T, BYTES>;
    typename V::type sum[U][V::EACH];
#pragma GCC unroll 4
    for (int64_t u = 0; u < U; u++)
#pragma GCC unroll 2
        for (int64_t e = 0; e < V::EACH; e++) sum[u][e] = V::load(bias + e * V::LANES);
    for (int64_t t = 0; t < l.s.places(); t++) {
        const T *at = from + l.offset[t];
#pragma GCC unroll 2
        for (int64_t e = 0; e < V::EACH; e++) {
            const typename V::type weight = V::load(w + t * WIDTH<T> + e * V::LANES);
#pragma GCC unroll 4
            for (int64_t u = 0; u < U; u++) sum[u][e] += weight * V::load(at + u * l.s.sw * WIDTH<T> + e * V::LANES);
        }
    }
#pragma GCC unroll 4
    for (int64_t u = 0; u < U; u++)
#pragma GCC unroll 2
        for (int64_t e = 0; e < V::EACH; e++) V::store(y + u * WIDTH<T> + e * V::LANES, sum[u][e]);
}

template <class T, int64_t BYTES>
RESILIN_INLINE void forward_group_of(const Narrow<T> &l, int64_t group, const T *x, const T *bias, T *block, T *y) {
    constexpr int64_t V = WIDTH<T>;
    const Shape &s = l.s;
    T *out = block + l.padded();
    const int64_t channels = l.channels(group);
    std::fill(block, block + l.padded(), T(0));
    interleave<T, BYTES>(x, s.H * s.W, channels, s.H * s.W, l.inside.data(), block);
    T plus[V] = {};
    for (int64_t c = 0; c < channels && bias; c++) plus[c] = bias[group * V + c];
    const T *w = l.weights.data() + group * s.places() * V;
    for (int64_t p = 0; p < s.P; p++) {
        const T *from = block + p * s.sh * l.width * V;
        T *row = out + p * s.Q * V;
        int64_t q = 0;
        for (; q + 4 <= s.Q; q += 4) convolve<T, BYTES, 4>(l, from + q * s.sw * V, w, plus, row + q * V);
        for (; q + 2 <= s.Q; q += 2) convolve<T, BYTES, 2>(l, from + q * s.sw * V, w, plus, row + q * V);
        if (q < s.Q) convolve<T, BYTES, 1>(l, from + q * s.sw * V, w, plus, row + q * V);
    }
    separate<T, BYTES>(out, l.dense.data(), channels, s.positions(), y, s.positions());
}

template <class T, int64_t BYTES>
RESILIN_INLINE void input_group_of(const Narrow<T> &l, int64_t group, const T *g, T *block, T *dx) {
    using R = Register<T, BYTES>;
    constexpr int64_t V = WIDTH<T>;
    const Shape &s = l.s;
    T *given = block + l.padded();
    const int64_t channels = l.channels(group);
    std::fill(block, block + l.padded(), T(0));
    interleave<T, BYTES>(g, s.positions(), channels, s.positions(), l.dense.data(), given);
    const T *w = l.weights.data() + group * s.places() * V;
    for (int64_t t = 0; t < s.places(); t++) {
        typename R::type weight[R::EACH];
#pragma GCC unroll 2
        for (int64_t e = 0; e < R::EACH; e++) weight[e] = R::load(w + t * V + e * R::LANES);
        for (int64_t p = 0; p < s.P; p++) {
            T *to = block + l.offset[t] + p * s.sh * l.width * V;
            const T *from = given + p * s.Q * V;
            for (int64_t q = 0; q < s.Q; q++, to += s.sw * V, from += V)
#pragma GCC unroll 2
                for (int64_t e = 0; e < R::EACH; e++)
                    R::store(to + e * R::LANES, R::load(to + e * R::LANES) + weight[e] * R::load(from + e * R::LANES));
        }
    }
    separate<T, BYTES>(block, l.inside.data(), channels, s.H * s.W, dx, s.H * s.W);
}

// dw of U places from `t` on.
template <class T, int64_t BYTES, int64_t U>
RESILIN_INLINE void correlate(const Narrow<T> &l, const T *given, const T *block, int64_t t, int64_t channels, double *dw) {
    using R = Register<T, BYTES>;
    constexpr int64_t V = WIDTH<T>;
    const Shape &s = l.s;
    typename R::type sum[U][R::EACH];
#pragma GCC unroll 9
    for (int64_t u = 0; u < U; u++)
#pragma GCC unroll 2
        for (int64_t e = 0; e < R::EACH; e++) sum[u][e] = typename R::type{};
    for (int64_t p = 0; p < s.P; p++) {
        const T *from = block + p * s.sh * l.width * V;
        for (int64_t q = 0; q < s.Q; q++, from += s.sw * V, given += V)
#pragma GCC unroll 2
            for (int64_t e = 0; e < R::EACH; e++) {
                const typename R::type v = R::load(given + e * R::LANES);
#pragma GCC unroll 9
                for (int64_t u = 0; u < U; u++) sum[u][e] += v * R::load(from + l.offset[t + u] + e * R::LANES);
            }
    }
#pragma GCC unroll 9
    for (int64_t u = 0; u < U; u++) {
        T lanes[V];
#pragma GCC unroll 2
        for (int64_t e = 0; e < R::EACH; e++) R::store(lanes + e * R::LANES, sum[u][e]);
        for (int64_t c = 0; c < channels; c++) dw[c * s.places() + t + u] += static_cast<double>(lanes[c]);
    }
}

template <class T, int64_t BYTES>
RESILIN_INLINE void weight_group_of(const Narrow<T> &l, int64_t group, const T *g, const T *x, T *block, double *dw) {
    const Shape &s = l.s;
    T *given = block + l.padded();
    const int64_t channels = l.channels(group);
    std::fill(block, block + l.padded(), T(0));
    interleave<T, BYTES>(x, s.H * s.W, channels, s.H * s.W, l.inside.data(), block);
    interleave<T, BYTES>(g, s.positions(), channels, s.positions(), l.dense.data(), given);
    int64_t t = 0;
    for (; BYTES == 64 && t + 9 <= s.places(); t += 9) correlate<T, BYTES, 9>(l, given, block, t, channels, dw);
    for (; t + 5 <= s.places(); t += 5) correlate<T, BYTES, 5>(l, given, block, t, channels, dw);
    for (; t + 4 <= s.places(); t += 4) correlate<T, BYTES, 4>(l, given, block, t, channels, dw);
    for (; t < s.places(); t++) correlate<T, BYTES, 1>(l, given, block, t, channels, dw);
}

} // namespace

template <class T>
Narrow<T>::Narrow(const Shape &shape, const T *w) : s(shape), width(s.W + 2 * s.pw), height(s.H + 2 * s.ph) {
    constexpr int64_t V = WIDTH<T>;
    for (int64_t h = 0; h < s.H; h++)
        for (int64_t x = 0; x < s.W; x++) inside.push_back(((h + s.ph) * width + x + s.pw) * V);
    for (int64_t i = 0; i < s.positions(); i++) dense.push_back(i * V);
    for (int64_t i = 0; i < s.KH; i++)
        for (int64_t j = 0; j < s.KW; j++) offset.push_back((i * s.dh * width + j * s.dw) * V);
    if (!w) return;
    weights.assign(static_cast<size_t>(groups() * s.places() * V), T(0));
    for (int64_t c = 0; c < s.C; c++)
        for (int64_t t = 0; t < s.places(); t++) weights[(c / V * s.places() + t) * V + c % V] = w[c * s.places() + t];
}
template struct Narrow<float>;
template struct Narrow<double>;

#define RESILIN_FOR_TYPE(T)                                                                                            \
    RESILIN_BY_REGISTERS(forward_group, T,                                                                               \
                       (const Narrow<T> &l, int64_t group, const T *x, const T *bias, T *scratch, T *y),               \
                       (l, group, x, bias, scratch, y))                                                                \
    RESILIN_BY_REGISTERS(input_group, T, (const Narrow<T> &l, int64_t group, const T *g, T *scratch, T *dx),             \
                       (l, group, g, scratch, dx))                                                                     \
    RESILIN_BY_REGISTERS(weight_group, T,                                                                                \
                       (const Narrow<T> &l, int64_t group, const T *g, const T *x, T *scratch, double *dw),            \
                       (l, group, g, x, scratch, dw))
RESILIN_FOR_TYPE(float)
RESILIN_FOR_TYPE(double)
#undef RESILIN_FOR_TYPE

} // namespace resilin::depthwise
