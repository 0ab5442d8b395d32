// Depthwise convolution: every channel is convolved by itself, so there is no matrix product to be had. A channel is
// padded once, its columns sorted by their remainder modulo the stride: then each place of the kernel reads neighbours,
// and a vector of outputs stays in a register for all places. Sums follow from the shapes alone.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "depthwise.hpp"

#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace resilin {

using namespace depthwise;

namespace {

constexpr int64_t CLAIM = 128 << 10; // multiply-adds that are worth a thread's asking for them

// Where the places of the kernel read in a padded channel, for output position (0, 0).
std::vector<int64_t> offsets(const Shape &s) {
    std::vector<int64_t> offset;
    for (int64_t i = 0; i < s.KH; i++)
        for (int64_t j = 0; j < s.KW; j++) offset.push_back(i * s.dh * s.row + j * s.dw % s.sw * s.across + j * s.dw / s.sw);
    return offset;
}

// n elements by whole vectors, the last of which overlaps the one before it: a call for each short row costs more.
template <class T, int64_t BYTES> RESILIN_INLINE void copy_row(const T *x, int64_t n, T *to) {
    constexpr int64_t V = WIDTH<T>;
    if (n < V) {
        for (int64_t i = 0; i < n; i++) to[i] = x[i];
        return;
    }
    using R = Register<T, BYTES>;
    const auto vector = [&](int64_t i) __attribute__((always_inline)) {
        for (int64_t e = i; e < i + V; e += R::LANES) R::store(to + e, R::load(x + e));
    };
    for (int64_t i = 0; i + V < n; i += V) vector(i);
    vector(n - V);
}

// to[i] = x[i * step], the usual step as a constant
template <class T> RESILIN_INLINE void pick(const T *x, int64_t step, int64_t n, T *to) {
    if (step == 2)
        for (int64_t i = 0; i < n; i++) to[i] = x[2 * i];
    else
        for (int64_t i = 0; i < n; i++) to[i] = x[i * step];
}

template <class T, int64_t BYTES> RESILIN_INLINE void pad(const T *x, const Shape &s, T *to) {
    std::fill(to, to + s.padded<T>(), T(0));
    for (int64_t h = 0; h < s.H; h++) {
        T *row = to + (h + s.ph) * s.row;
        if (s.sw == 1)
            copy_row<T, BYTES>(x + h * s.W, s.W, row + s.pw);
        else
            for (int64_t first = 0; first < std::min(s.sw, s.W); first++)
                pick(x + h * s.W + first, s.sw, (s.W - first + s.sw - 1) / s.sw, row + s.column(first));
    }
}
template <class T, int64_t BYTES> RESILIN_INLINE void unpad(const T *from, const Shape &s, T *dx) {
    for (int64_t h = 0; h < s.H; h++) {
        const T *row = from + (h + s.ph) * s.row;
        if (s.sw == 1)
            copy_row<T, BYTES>(row + s.pw, s.W, dx + h * s.W);
        else
            for (int64_t first = 0; first < std::min(s.sw, s.W); first++) {
                const T *column = row + s.column(first);
                for (int64_t w = first; w < s.W; w += s.sw) dx[h * s.W + w] = *column++;
            }
    }
}

// U vectors of outputs of each of R rows, from `from` on; of the last vector of the last row, n elements are stored. What
// is written beyond a row's end, the next row writes anew.
template <class T, int64_t BYTES, int64_t R, int64_t U>
RESILIN_INLINE void convolve_vectors(const T *from, const T *w, const int64_t *offset, const Shape &s, T bias, T *y, int64_t n) {
    using V = Register<T, BYTES>;
    constexpr int64_t COUNT = U * V::EACH;
    typename V::type sum[R][COUNT];
    const int64_t places = s.places(), down = s.sh * s.row;
#pragma GCC unroll 4
    for (int64_t r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int64_t u = 0; u < COUNT; u++) sum[r][u] = V::all(bias);
    for (int64_t t = 0; t < places; t++) {
        const typename V::type weight = V::all(w[t]);
        const T *at = from + offset[t];
#pragma GCC unroll 4
        for (int64_t r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int64_t u = 0; u < COUNT; u++) sum[r][u] += weight * V::load(at + r * down + u * V::LANES);
    }
    const bool whole = n == WIDTH<T>;
    T rest[WIDTH<T>];
#pragma GCC unroll 4
    for (int64_t r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int64_t u = 0; u < COUNT; u++) {
            const bool last = r == R - 1 && u >= COUNT - V::EACH;
            V::store(last && !whole ? rest + (u - (COUNT - V::EACH)) * V::LANES : y + r * s.Q + u * V::LANES, sum[r][u]);
        }
    if (!whole) std::memcpy(y + (R - 1) * s.Q + (U - 1) * WIDTH<T>, rest, static_cast<size_t>(n) * sizeof(T));
}
// Rows from p on, R at a time, of which U vectors follow `first` elements (none unless R is 1); returns the first row that
// is left.
template <class T, int64_t BYTES, int64_t R, int64_t U>
RESILIN_INLINE int64_t convolve_rows(int64_t p, int64_t first, const T *padded, const T *w, const int64_t *offset, const Shape &s, T bias, T *y) {
    const auto fits = [&] { return p + R <= s.P && (R == 1 || (R - 2) * s.Q + U * WIDTH<T> <= (s.P - p) * s.Q); };
    for (; fits(); p += R) {
        const bool room = (s.P - p - R) * s.Q >= WIDTH<T>;
        for (int64_t q = 0; q < first; q += 4 * WIDTH<T>)
            convolve_vectors<T, BYTES, 1, 4>(padded + p * s.sh * s.row + q, w, offset, s, bias, y + p * s.Q + q, WIDTH<T>);
        convolve_vectors<T, BYTES, R, U>(padded + p * s.sh * s.row + first, w, offset, s, bias, y + p * s.Q + first, room ? WIDTH<T> : s.Q - first - (U - 1) * WIDTH<T>);
    }
    return p;
}
template <class T, int64_t BYTES>
RESILIN_INLINE void convolve(const T *padded, const T *w, const int64_t *offset, const Shape &s, T bias, T *y) {
    constexpr int64_t V = WIDTH<T>;
    const int64_t first = (s.Q - 1) / (4 * V) * (4 * V), vectors = (s.Q - first + V - 1) / V;
    int64_t p = 0; // as many sums at a time as an addition takes steps
    if (first == 0 && vectors == 1) p = convolve_rows<T, BYTES, 4, 1>(p, 0, padded, w, offset, s, bias, y);
    if (first == 0 && vectors == 2) p = convolve_rows<T, BYTES, 2, 2>(p, 0, padded, w, offset, s, bias, y);
    if (vectors == 1) convolve_rows<T, BYTES, 1, 1>(p, first, padded, w, offset, s, bias, y);
    else if (vectors == 2) convolve_rows<T, BYTES, 1, 2>(p, first, padded, w, offset, s, bias, y);
    else if (vectors == 3) convolve_rows<T, BYTES, 1, 3>(p, first, padded, w, offset, s, bias, y);
    else convolve_rows<T, BYTES, 1, 4>(p, first, padded, w, offset, s, bias, y);
}

// The gradient of one output channel, its rows filled up with zeros.
template <class T, int64_t BYTES> RESILIN_INLINE void fill_up(const T *g, const Shape &s, T *to) {
    const int64_t whole = s.whole<T>();
    for (int64_t p = 0; p < s.P; p++) {
        copy_row<T, BYTES>(g + p * s.Q, s.Q, to + p * whole);
        std::fill(to + p * whole + s.Q, to + (p + 1) * whole, T(0));
    }
}

// Adds the gradient `g` (filled up) of one output channel to a padded channel's, place by place.
template <class T, int64_t BYTES>
RESILIN_INLINE void spread(const T *g, const T *w, const int64_t *offset, const Shape &s, T *padded) {
    using V = Register<T, BYTES>;
    const int64_t whole = s.whole<T>();
    for (int64_t t = 0; t < s.places(); t++)
        for (int64_t p = 0; p < s.P; p++) {
            T *to = padded + p * s.sh * s.row + offset[t];
            const T weight = w[t];
            for (int64_t q = 0; q < whole; q += V::LANES) V::store(to + q, V::load(to + q) + weight * V::load(g + p * whole + q));
        }
}

// dw of U places: the sum over the output positions of g (filled up) times what the place reads.
template <class T, int64_t BYTES, int64_t U>
RESILIN_INLINE void correlate_places(const T *g, const T *padded, const int64_t *offset, const Shape &s, double *dw) {
    using V = Register<T, BYTES>;
    constexpr int64_t W = WIDTH<T>, EACH = V::EACH;
    const int64_t whole = s.whole<T>();
    typename V::type sum[U][EACH];
#pragma GCC unroll 9
    for (int64_t u = 0; u < U; u++)
#pragma GCC unroll 2
        for (int64_t e = 0; e < EACH; e++) sum[u][e] = typename V::type{};
    for (int64_t p = 0; p < s.P; p++) {
        const T *row = g + p * whole, *from = padded + p * s.sh * s.row;
        for (int64_t q = 0; q < s.Q; q += W)
#pragma GCC unroll 2
            for (int64_t e = 0; e < EACH; e++) {
                const int64_t at = q + e * V::LANES, left = s.Q - at;
                const typename V::type v = V::load(row + at);
                if (left >= V::LANES) {
#pragma GCC unroll 9
                    for (int64_t u = 0; u < U; u++) sum[u][e] += v * V::load(from + offset[u] + at);
                } else {
#pragma GCC unroll 9
                    for (int64_t u = 0; u < U; u++) sum[u][e] += v * V::load_first(from + offset[u] + at, left);
                }
            }
    }
#pragma GCC unroll 9
    for (int64_t u = 0; u < U; u++) {
        T lanes[W];
#pragma GCC unroll 2
        for (int64_t e = 0; e < EACH; e++) V::store(lanes + e * V::LANES, sum[u][e]);
        for (int64_t width = W / 2; width > 0; width /= 2)
            for (int64_t i = 0; i < width; i++) lanes[i] += lanes[i + width];
        dw[u] += static_cast<double>(lanes[0]);
    }
}
template <class T, int64_t BYTES>
RESILIN_INLINE void correlate(const T *g, const T *padded, const int64_t *offset, const Shape &s, double *dw) {
    int64_t t = 0;
    for (; BYTES == 64 && t + 9 <= s.places(); t += 9) correlate_places<T, BYTES, 9>(g, padded, offset + t, s, dw + t);
    for (; t + 5 <= s.places(); t += 5) correlate_places<T, BYTES, 5>(g, padded, offset + t, s, dw + t);
    for (; t + 4 <= s.places(); t += 4) correlate_places<T, BYTES, 4>(g, padded, offset + t, s, dw + t);
    for (; t + 2 <= s.places(); t += 2) correlate_places<T, BYTES, 2>(g, padded, offset + t, s, dw + t);
    for (; t < s.places(); t++) correlate_places<T, BYTES, 1>(g, padded, offset + t, s, dw + t);
}

// What one slot does for one channel.
template <class T, int64_t BYTES>
RESILIN_INLINE void forward_channel_of(const T *x, const T *w, const T *bias, const int64_t *offset, const Shape &s, T *scratch, T *y) {
    pad<T, BYTES>(x, s, scratch);
    for (int64_t m = 0; m < s.M; m++)
        convolve<T, BYTES>(scratch, w + m * s.places(), offset, s, bias ? bias[m] : T(0), y + m * s.positions());
}
template <class T, int64_t BYTES>
RESILIN_INLINE void input_channel_of(const T *g, const T *w, const int64_t *offset, const Shape &s, T *scratch, T *dx) {
    std::fill(scratch, scratch + s.padded<T>(), T(0));
    T *filled = scratch + s.padded<T>();
    for (int64_t m = 0; m < s.M; m++) {
        fill_up<T, BYTES>(g + m * s.positions(), s, filled);
        spread<T, BYTES>(filled, w + m * s.places(), offset, s, scratch);
    }
    unpad<T, BYTES>(scratch, s, dx);
}
template <class T, int64_t BYTES>
RESILIN_INLINE void weight_channel_of(const T *g, const T *x, const int64_t *offset, const Shape &s, T *scratch, double *dw) {
    pad<T, BYTES>(x, s, scratch);
    T *filled = scratch + s.padded<T>();
    for (int64_t m = 0; m < s.M; m++) {
        fill_up<T, BYTES>(g + m * s.positions(), s, filled);
        correlate<T, BYTES>(filled, scratch, offset, s, dw + m * s.places());
    }
}
#define RESILIN_FOR_TYPE(T)                                                                                            \
    RESILIN_BY_REGISTERS(forward_channel, T,                                                                             \
                       (const T *x, const T *w, const T *bias, const int64_t *offset, const Shape &s, T *scratch, T *y), \
                       (x, w, bias, offset, s, scratch, y))                                                            \
    RESILIN_BY_REGISTERS(input_channel, T,                                                                               \
                       (const T *g, const T *w, const int64_t *offset, const Shape &s, T *scratch, T *dx),             \
                       (g, w, offset, s, scratch, dx))                                                                 \
    RESILIN_BY_REGISTERS(weight_channel, T,                                                                              \
                       (const T *g, const T *x, const int64_t *offset, const Shape &s, T *scratch, double *dw),        \
                       (g, x, offset, s, scratch, dw))
RESILIN_FOR_TYPE(float)
RESILIN_FOR_TYPE(double)
#undef RESILIN_FOR_TYPE

// fn(slot's scratch, item) for each of `items`, each of which costs as much as `channels` channels. A thread asks for
// some at a time.
template <class T, class Fn> void each_item(const Shape &s, int64_t items, int64_t channels, int64_t size, Fn fn) {
    const int64_t cost = channels * s.M * s.positions() * s.places(), threads = num_threads();
    const int64_t most = (items + 4 * threads - 1) / (4 * threads), some = std::clamp<int64_t>(CLAIM / cost, 1, most);
    const int64_t claims = (items + some - 1) / some, slots = std::min<int64_t>(threads, claims);
    NewArray<T> scratch({static_cast<npy_intp>(slots * size)});
    WithoutGil free(items * cost);
    parallel_slots(claims, slots, some * cost, [&](int64_t slot, int64_t claim) {
        for (int64_t item = claim * some; item < std::min(items, (claim + 1) * some); item++) fn(scratch.data + slot * size, item);
    });
}
template <class T, class Fn> void each_channel(const Shape &s, int64_t items, int64_t channels, Fn fn) {
    each_item<T>(s, items, channels, s.padded<T>() + s.P * s.whole<T>(), fn);
}

template <class T> nb::object forward_as(Array x, Array w, Array bias, const Shape &s) {
    NewArray<T> y({static_cast<npy_intp>(s.N), static_cast<npy_intp>(s.C * s.M), static_cast<npy_intp>(s.P),
                   static_cast<npy_intp>(s.Q)});
    if (s.narrow<T>()) {
        const Narrow<T> narrow(s, w.data<T>());
        each_item<T>(s, s.N * narrow.groups(), WIDTH<T>, narrow.scratch(), [&](T *scratch, int64_t i) {
            const int64_t group = i % narrow.groups(), channel = i / narrow.groups() * s.C + group * WIDTH<T>;
            forward_group(narrow, group, x.data<T>() + channel * s.H * s.W, bias.data<T>(), scratch, y.data + channel * s.positions());
        });
        return y.object;
    }
    const std::vector<int64_t> offset = offsets(s);
    each_channel<T>(s, s.N * s.C, 1, [&](T *scratch, int64_t i) {
        const int64_t c = i % s.C;
        forward_channel(x.data<T>() + i * s.H * s.W, w.data<T>() + c * s.M * s.places(),
                        bias ? bias.data<T>() + c * s.M : nullptr, offset.data(), s, scratch,
                        y.data + i * s.M * s.positions());
    });
    return y.object;
}

// Whether the gradient of the input is a convolution of that of the output, whose padding is not negative.
bool turnable(const Shape &s) {
    return s.M == 1 && s.sh == 1 && s.sw == 1 && s.ph <= s.dh * (s.KH - 1) && s.pw <= s.dw * (s.KW - 1);
}

template <class T> nb::object input_gradient_as(Array g, Array w, const Shape &s) {
    NewArray<T> dx({static_cast<npy_intp>(s.N), static_cast<npy_intp>(s.C), static_cast<npy_intp>(s.H),
                    static_cast<npy_intp>(s.W)});
    if (s.narrow<T>()) {
        const Narrow<T> narrow(s, w.data<T>());
        each_item<T>(s, s.N * narrow.groups(), WIDTH<T>, narrow.scratch(), [&](T *scratch, int64_t i) {
            const int64_t group = i % narrow.groups(), channel = i / narrow.groups() * s.C + group * WIDTH<T>;
            input_group(narrow, group, g.data<T>() + channel * s.positions(), scratch, dx.data + channel * s.H * s.W);
        });
        return dx.object;
    }
    if (turnable(s)) { // a convolution of g: the sums are those of input_channel(), each in a register
        Shape back{s.N, s.C, 1, s.P, s.Q, s.KH, s.KW, 1, 1, s.dh * (s.KH - 1) - s.ph, s.dw * (s.KW - 1) - s.pw, s.dh, s.dw};
        back.set_output();
        std::vector<int64_t> offset = offsets(back);
        std::reverse(offset.begin(), offset.end());
        each_channel<T>(back, s.N * s.C, 1, [&](T *scratch, int64_t i) {
            forward_channel(g.data<T>() + i * s.positions(), w.data<T>() + i % s.C * s.places(), static_cast<const T *>(nullptr), offset.data(), back,
                            scratch, dx.data + i * s.H * s.W);
        });
        return dx.object;
    }
    const std::vector<int64_t> offset = offsets(s);
    each_channel<T>(s, s.N * s.C, 1, [&](T *scratch, int64_t i) {
        input_channel(g.data<T>() + i * s.M * s.positions(), w.data<T>() + i % s.C * s.M * s.places(), offset.data(), s,
                      scratch, dx.data + i * s.H * s.W);
    });
    return dx.object;
}

// A channel's samples are summed one after the other, in double.
template <class T> nb::object weight_gradient_as(Array g, Array x, const Shape &s) {
    NewArray<T> dw({static_cast<npy_intp>(s.C * s.M), 1, static_cast<npy_intp>(s.KH), static_cast<npy_intp>(s.KW)});
    const int64_t each = s.M * s.places();
    std::vector<double> sums(static_cast<size_t>(s.C * each), 0.0);
    if (s.narrow<T>()) {
        const Narrow<T> narrow(s);
        each_item<T>(s, narrow.groups(), WIDTH<T> * s.N, narrow.scratch(), [&](T *scratch, int64_t group) {
            const int64_t first = group * WIDTH<T> * each;
            for (int64_t n = 0; n < s.N; n++) {
                const int64_t channel = n * s.C + group * WIDTH<T>;
                weight_group(narrow, group, g.data<T>() + channel * s.positions(), x.data<T>() + channel * s.H * s.W,
                                scratch, sums.data() + first);
            }
            for (int64_t i = first; i < first + narrow.channels(group) * each; i++) dw.data[i] = static_cast<T>(sums[i]);
        });
        return dw.object;
    }
    const std::vector<int64_t> offset = offsets(s);
    each_channel<T>(s, s.C, s.N, [&](T *scratch, int64_t c) {
        double *sum = sums.data() + c * each;
        for (int64_t n = 0; n < s.N; n++)
            weight_channel(g.data<T>() + (n * s.C + c) * s.M * s.positions(), x.data<T>() + (n * s.C + c) * s.H * s.W,
                           offset.data(), s, scratch, sum);
        for (int64_t i = 0; i < each; i++) dw.data[c * each + i] = static_cast<T>(sum[i]);
    });
    return dw.object;
}

// The shape for x (N, C, H, W) and w (C * M, 1, KH, KW); false when there is no kernel for it.
bool shape_of(int64_t N, int64_t C, int64_t H, int64_t W, int64_t O, int64_t KH, int64_t KW, const Lengths &lengths,
              Shape &s) {
    const auto &[sh, sw, ph, pw, dh, dw] = lengths;
    if (C < 1 || O % C) return false;
    s = Shape{N, C, O / C, H, W, KH, KW, sh, sw, ph, pw, dh, dw};
    if (!s.fits()) return false;
    s.set_output();
    return true;
}
bool is_output(const ExactArray &g, const Shape &s) {
    return g.ndim() == 4 && g.dim(0) == s.N && g.dim(1) == s.C * s.M && g.dim(2) == s.P && g.dim(3) == s.Q;
}
template <class T> bool both(const ExactArray &a, const ExactArray &b) { return a.is<T>() && b.is<T>(); }

nb::object forward(Array x, Array w, Array bias, Lengths lengths) {
    Shape s;
    if (!x || !w || x.ndim() != 4 || w.ndim() != 4 || w.dim(1) != 1) return nb::none();
    if (!shape_of(x.dim(0), x.dim(1), x.dim(2), x.dim(3), w.dim(0), w.dim(2), w.dim(3), lengths, s)) return nb::none();
    if (bias && (bias.ndim() != 1 || bias.size() != s.C * s.M)) return nb::none();
    if (both<float>(x, w) && bias.is_or_none<float>()) return forward_as<float>(x, w, bias, s);
    if (both<double>(x, w) && bias.is_or_none<double>()) return forward_as<double>(x, w, bias, s);
    return nb::none();
}

nb::object input_gradient(Array g, Array w, int64_t C, int64_t H, int64_t W, Lengths lengths) {
    Shape s;
    if (!g || !w || g.ndim() != 4 || w.ndim() != 4 || w.dim(1) != 1) return nb::none();
    if (!shape_of(g.dim(0), C, H, W, w.dim(0), w.dim(2), w.dim(3), lengths, s) || !is_output(g, s)) return nb::none();
    if (both<float>(g, w)) return input_gradient_as<float>(g, w, s);
    if (both<double>(g, w)) return input_gradient_as<double>(g, w, s);
    return nb::none();
}

nb::object weight_gradient(Array g, Array x, int64_t KH, int64_t KW, Lengths lengths) {
    Shape s;
    if (!g || !x || g.ndim() != 4 || x.ndim() != 4) return nb::none();
    if (!shape_of(x.dim(0), x.dim(1), x.dim(2), x.dim(3), g.dim(1), KH, KW, lengths, s) || !is_output(g, s))
        return nb::none();
    if (both<float>(g, x)) return weight_gradient_as<float>(g, x, s);
    if (both<double>(g, x)) return weight_gradient_as<double>(g, x, s);
    return nb::none();
}

} // namespace

void bind_depthwise(nb::module_ &m) {
    m.def("depthwise_forward", &forward, nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
    m.def("depthwise_input_gradient", &input_gradient);
    m.def("depthwise_weight_gradient", &weight_gradient);
}

} // namespace resilin
