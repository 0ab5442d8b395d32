// Depthwise convolution of narrow maps, several channels in one vector: what lies channel by channel is turned into
// blocks of one vector for each position, and back.
#include "depthwise.hpp"
#include "matmul/pairs.hpp"

#include <type_traits>

namespace resilin::depthwise {
namespace {

// to[at[i] + c] = x[c * apart + i] for n positions of some channels; lanes without a channel repeat the last one.
template <class T>
RESILIN_INLINE void interleave(const T *x, int64_t apart, int64_t channels, int64_t n, const int64_t *at, T *to) {
    if constexpr (std::is_same_v<T, float>) {
        constexpr int64_t SIDE = 16;
        for (int64_t i = 0; i < n && n >= SIDE; i += SIDE) {
            const int64_t begin = std::min(i, n - SIDE);
            Pairs rows[SIDE];
            for (int64_t c = 0; c < SIDE; c++) std::memcpy(&rows[c], x + std::min(c, channels - 1) * apart + begin, sizeof(Pairs));
            transpose_pairs(rows);
            for (int64_t k = 0; k < SIDE; k++) std::memcpy(to + at[begin + k], &rows[k], sizeof(Pairs));
        }
        if (n >= SIDE) return;
    }
    for (int64_t c = 0; c < WIDTH<T>; c++) {
        const T *from = x + std::min(c, channels - 1) * apart;
        for (int64_t i = 0; i < n; i++) to[at[i] + c] = from[i];
    }
}

// y[c * apart + i] = from[at[i] + c]
template <class T>
RESILIN_INLINE void separate(const T *from, const int64_t *at, int64_t channels, int64_t n, T *y, int64_t apart) {
    if constexpr (std::is_same_v<T, float>) {
        constexpr int64_t SIDE = 16;
        for (int64_t i = 0; i < n && n >= SIDE; i += SIDE) {
            const int64_t begin = std::min(i, n - SIDE);
            Pairs rows[SIDE];
            for (int64_t k = 0; k < SIDE; k++) std::memcpy(&rows[k], from + at[begin + k], sizeof(Pairs));
            transpose_pairs(rows);
            for (int64_t c = 0; c < channels; c++) std::memcpy(y + c * apart + begin, &rows[c], sizeof(Pairs));
        }
        if (n >= SIDE) return;
    }
    for (int64_t c = 0; c < channels; c++)
        for (int64_t i = 0; i < n; i++) y[c * apart + i] = from[at[i] + c];
}

// U outputs of a row, from the padded block at `from`.
template <class T, int64_t U>
RESILIN_INLINE void convolve(const Narrow<T> &l, const T *from, const T *w, const typename Vector<T>::type &bias, T *y) {
    typename Vector<T>::type sum[U];
    for (int64_t u = 0; u < U; u++) sum[u] = bias;
    for (int64_t t = 0; t < l.s.places(); t++) {
        const auto weight = load_vector(w + t * WIDTH<T>);
        for (int64_t u = 0; u < U; u++) sum[u] += weight * load_vector(from + l.offset[t] + u * l.s.sw * WIDTH<T>);
    }
    for (int64_t u = 0; u < U; u++) store_vector(y + u * WIDTH<T>, sum[u]);
}

template <class T>
RESILIN_INLINE void forward_group_of(const Narrow<T> &l, int64_t group, const T *x, const T *bias, T *block, T *y) {
    constexpr int64_t V = WIDTH<T>;
    const Shape &s = l.s;
    T *out = block + l.padded();
    const int64_t channels = l.channels(group);
    std::fill(block, block + l.padded(), T(0));
    interleave(x, s.H * s.W, channels, s.H * s.W, l.inside.data(), block);
    typename Vector<T>::type plus = {};
    for (int64_t c = 0; c < channels && bias; c++) plus[c] = bias[group * V + c];
    const T *w = l.weights.data() + group * s.places() * V;
    for (int64_t p = 0; p < s.P; p++) {
        const T *from = block + p * s.sh * l.width * V;
        T *row = out + p * s.Q * V;
        int64_t q = 0;
        for (; q + 4 <= s.Q; q += 4) convolve<T, 4>(l, from + q * s.sw * V, w, plus, row + q * V);
        for (; q + 2 <= s.Q; q += 2) convolve<T, 2>(l, from + q * s.sw * V, w, plus, row + q * V);
        if (q < s.Q) convolve<T, 1>(l, from + q * s.sw * V, w, plus, row + q * V);
    }
    separate(out, l.dense.data(), channels, s.positions(), y, s.positions());
}

template <class T> RESILIN_INLINE void input_group_of(const Narrow<T> &l, int64_t group, const T *g, T *block, T *dx) {
    constexpr int64_t V = WIDTH<T>;
    const Shape &s = l.s;
    T *given = block + l.padded();
    const int64_t channels = l.channels(group);
    std::fill(block, block + l.padded(), T(0));
    interleave(g, s.positions(), channels, s.positions(), l.dense.data(), given);
    const T *w = l.weights.data() + group * s.places() * V;
    for (int64_t t = 0; t < s.places(); t++) {
        const auto weight = load_vector(w + t * V);
        for (int64_t p = 0; p < s.P; p++) {
            T *to = block + l.offset[t] + p * s.sh * l.width * V;
            const T *from = given + p * s.Q * V;
            for (int64_t q = 0; q < s.Q; q++, to += s.sw * V, from += V)
                store_vector(to, load_vector(to) + weight * load_vector(from));
        }
    }
    separate(block, l.inside.data(), channels, s.H * s.W, dx, s.H * s.W);
}

// dw of U places from `t` on.
template <class T, int64_t U>
RESILIN_INLINE void correlate(const Narrow<T> &l, const T *given, const T *block, int64_t t, int64_t channels, double *dw) {
    constexpr int64_t V = WIDTH<T>;
    const Shape &s = l.s;
    typename Vector<T>::type sum[U] = {};
    for (int64_t p = 0; p < s.P; p++) {
        const T *from = block + p * s.sh * l.width * V;
        for (int64_t q = 0; q < s.Q; q++, from += s.sw * V, given += V) {
            const auto v = load_vector(given);
            for (int64_t u = 0; u < U; u++) sum[u] += v * load_vector(from + l.offset[t + u]);
        }
    }
    for (int64_t u = 0; u < U; u++)
        for (int64_t c = 0; c < channels; c++) dw[c * s.places() + t + u] += static_cast<double>(sum[u][c]);
}

template <class T>
RESILIN_INLINE void weight_group_of(const Narrow<T> &l, int64_t group, const T *g, const T *x, T *block, double *dw) {
    const Shape &s = l.s;
    T *given = block + l.padded();
    const int64_t channels = l.channels(group);
    std::fill(block, block + l.padded(), T(0));
    interleave(x, s.H * s.W, channels, s.H * s.W, l.inside.data(), block);
    interleave(g, s.positions(), channels, s.positions(), l.dense.data(), given);
    int64_t t = 0;
    for (; t + 9 <= s.places(); t += 9) correlate<T, 9>(l, given, block, t, channels, dw);
    for (; t + 4 <= s.places(); t += 4) correlate<T, 4>(l, given, block, t, channels, dw);
    for (; t < s.places(); t++) correlate<T, 1>(l, given, block, t, channels, dw);
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
    RESILIN_SIMD void forward_group(const Narrow<T> &l, int64_t group, const T *x, const T *bias, T *scratch, T *y) {         \
        forward_group_of(l, group, x, bias, scratch, y);                                                                  \
    }                                                                                                                  \
    RESILIN_SIMD void input_group(const Narrow<T> &l, int64_t group, const T *g, T *scratch, T *dx) {                \
        input_group_of(l, group, g, scratch, dx);                                                                         \
    }                                                                                                                  \
    RESILIN_SIMD void weight_group(const Narrow<T> &l, int64_t group, const T *g, const T *x, T *scratch,            \
                                      double *dw) {                                                                    \
        weight_group_of(l, group, g, x, scratch, dw);                                                                     \
    }
RESILIN_FOR_TYPE(float)
RESILIN_FOR_TYPE(double)
#undef RESILIN_FOR_TYPE

} // namespace resilin::depthwise
