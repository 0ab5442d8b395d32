// Max and average pooling; planes (one channel of one sample) are independent.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace resilin {
namespace {

struct Window {
    int64_t H, W, P, Q, KH, KW, sh, sw, ph, pw, dh, dw;
};

// One kernel position after another over a whole row of outputs: no branches in the inner loop.
template <class T>
RESILIN_INLINE void plane(const T *__restrict x, const Window &s, T *__restrict y, int64_t *__restrict index) {
    for (int64_t p = 0; p < s.P; p++, y += s.Q, index += s.Q) {
        for (int64_t q = 0; q < s.Q; q++) {
            y[q] = -std::numeric_limits<T>::infinity(); // of a window of nothing but padding
            index[q] = -1;
        }
        for (int64_t i = 0; i < s.KH; i++) {
            const int64_t h = p * s.sh + i * s.dh - s.ph;
            if (h < 0 || h >= s.H) continue;
            for (int64_t j = 0; j < s.KW; j++) {
                const int64_t offset = j * s.dw - s.pw;
                const int64_t first = offset >= 0 ? 0 : (-offset + s.sw - 1) / s.sw;
                const int64_t last = offset >= s.W ? 0 : std::min(s.Q, (s.W - 1 - offset) / s.sw + 1);
                const T *row = x + h * s.W + offset;
                for (int64_t q = first; q < last; q++) {
                    const T v = row[q * s.sw], top = y[q];
                    const bool better = (index[q] < 0) | (v > top) | ((v != v) & (top == top)); // the first NaN wins
                    y[q] = better ? v : top;
                    index[q] = better ? h * s.W + offset + q * s.sw : index[q];
                }
            }
        }
    }
}
// Windows of two by two side by side, the commonest, four of a row at a time (compilers take wider vectors apart on
// older instruction sets). A pair of floats is loaded as one integer: its halves are the left and the right elements.
constexpr int64_t FOUR = 4;
typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint64_t Pairs __attribute__((vector_size(32)));
typedef int64_t Places __attribute__((vector_size(32)));

RESILIN_INLINE void load_pairs(const float *x, Floats &left, Floats &right) {
    Pairs pairs;
    std::memcpy(&pairs, x, sizeof(pairs));
    left = (Floats)__builtin_convertvector(pairs, Ints);
    right = (Floats)__builtin_convertvector(pairs >> 32, Ints);
}
// all ones where `b` takes the place of `a`: it is greater, or the first NaN
RESILIN_INLINE Ints wins(Floats b, Floats a) { return (b > a) | ((b != b) & (a == a)); }

// y and the places of four windows, the first of which starts at x[at]
RESILIN_INLINE void quarters(const float *x, int64_t at, int64_t W, float *y, int64_t *index) {
    Floats a, b, c, d;
    load_pairs(x + at, a, b);
    load_pairs(x + at + W, c, d);
    const Ints right = wins(b, a), low_right = wins(d, c); // true is -1
    const Floats high = right ? b : a, low = low_right ? d : c;
    const Ints lower = wins(low, high);
    const Floats best = lower ? low : high;
    const Ints step = Ints{0, 2, 4, 6} + (lower ? static_cast<int32_t>(W) - low_right : -right);
    const Places place = __builtin_convertvector(step, Places) + at;
    std::memcpy(y, &best, sizeof(best));
    std::memcpy(index, &place, sizeof(place));
}

// The last step of a row may do some windows again: the same values are written.
RESILIN_SIMD void quarter_planes(const float *x, const Window &s, int64_t planes, float *y, int64_t *index) {
    for (int64_t n = 0; n < planes; n++, x += s.H * s.W)
        for (int64_t p = 0; p < s.P; p++, y += s.Q, index += s.Q)
            for (int64_t done = 0; done < s.Q; done += FOUR) {
                const int64_t q = std::min(done, s.Q - FOUR);
                quarters(x, 2 * (p * s.W + q), s.W, y + q, index + q);
            }
}
bool is_quarter(const Window &s) {
    return s.KH == 2 && s.KW == 2 && s.sh == 2 && s.sw == 2 && s.ph == 0 && s.pw == 0 && s.dh == 1 && s.dw == 1 &&
           2 * s.P <= s.H && 2 * s.Q <= s.W && s.Q >= FOUR && s.W < (int64_t{1} << 30);
}

RESILIN_SIMD void forward_plane(const float *x, const Window &s, float *y, int64_t *index) { plane(x, s, y, index); }
RESILIN_SIMD void forward_plane(const double *x, const Window &s, double *y, int64_t *index) { plane(x, s, y, index); }

template <class T> nb::object forward_as(Array x, const Window &s) {
    const npy_intp dims[] = {static_cast<npy_intp>(x.dim(0)), static_cast<npy_intp>(x.dim(1)),
                             static_cast<npy_intp>(s.P), static_cast<npy_intp>(s.Q)};
    NewArray<T> y(4, dims);
    NewArray<int64_t> index(4, dims);
    {
        WithoutGil free(x.size());
        const int64_t L = s.P * s.Q;
        parallel_rows(x.dim(0) * x.dim(1), s.H * s.W, [&](int64_t begin, int64_t end) {
            if constexpr (std::is_same_v<T, float>) {
                if (is_quarter(s))
                    return quarter_planes(x.data<T>() + begin * s.H * s.W, s, end - begin, y.data + begin * L,
                                          index.data + begin * L);
            }
            for (int64_t n = begin; n < end; n++)
                forward_plane(x.data<T>() + n * s.H * s.W, s, y.data + n * L, index.data + n * L);
        });
    }
    return nb::make_tuple(y.object, index.object);
}

template <class T> nb::object backward_as(Array g, Array index, int64_t N, int64_t C, int64_t H, int64_t W) {
    NewArray<T> dx({static_cast<npy_intp>(N), static_cast<npy_intp>(C), static_cast<npy_intp>(H),
                    static_cast<npy_intp>(W)});
    {
        WithoutGil free(N * C * H * W);
        const int64_t planes = N * C, L = planes ? g.size() / planes : 0;
        parallel_rows(planes, H * W, [&](int64_t begin, int64_t end) {
            for (int64_t n = begin; n < end; n++) {
                T *out = dx.data + n * H * W;
                std::memset(out, 0, static_cast<size_t>(H * W) * sizeof(T));
                const T *gn = g.data<T>() + n * L;
                const int64_t *at = index.data<int64_t>() + n * L;
                for (int64_t i = 0; i < L; i++)
                    if (at[i] >= 0 && at[i] < H * W) out[at[i]] += gn[i];
            }
        });
    }
    return dx.object;
}

nb::object forward(Array x, int64_t P, int64_t Q, int64_t KH, int64_t KW, int64_t sh, int64_t sw, int64_t ph,
                   int64_t pw, int64_t dh, int64_t dw) {
    if (x.ndim() != 4) return nb::none();
    const Window s{x.dim(2), x.dim(3), P, Q, KH, KW, sh, sw, ph, pw, dh, dw};
    return x.is<float>() ? forward_as<float>(x, s) : x.is<double>() ? forward_as<double>(x, s) : nb::none();
}

nb::object backward(Array g, Array index, int64_t N, int64_t C, int64_t H, int64_t W) {
    if (!index.is<int64_t>() || !index.same_shape(g)) return nb::none();
    return g.is<float>()    ? backward_as<float>(g, index, N, C, H, W)
           : g.is<double>() ? backward_as<double>(g, index, N, C, H, W)
                            : nb::none();
}

// Averages. The windows of an axis are rows of (start, stop, divisor), which Python computed.
struct Windows {
    const int64_t *at;
    int64_t count;
    explicit Windows(const Array &array) : at(array.data<int64_t>()), count(array.dim(0)) {}
    int64_t start(int64_t i) const { return at[3 * i]; }
    int64_t stop(int64_t i) const { return at[3 * i + 1]; }
    int64_t divisor(int64_t i) const { return at[3 * i + 2]; }
};

bool are_windows(const Array &array, int64_t size) {
    if (!array.is<int64_t>() || array.ndim() != 2 || array.dim(1) != 3) return false;
    const Windows windows(array);
    for (int64_t i = 0; i < windows.count; i++)
        if (windows.start(i) < 0 || windows.start(i) > windows.stop(i) || windows.stop(i) > size) return false;
    return true;
}

// The rows of a window are added up to one line, which is then summed window by window.
template <class T>
RESILIN_INLINE void average(const T *__restrict x, int64_t W, Windows rows, Windows columns, T *__restrict line,
                            T *__restrict y) {
    for (int64_t p = 0; p < rows.count; p++, y += columns.count) {
        std::fill(line, line + W, T(0));
        for (int64_t h = rows.start(p); h < rows.stop(p); h++)
            for (int64_t w = 0; w < W; w++) line[w] += x[h * W + w];
        for (int64_t q = 0; q < columns.count; q++) {
            T sum = 0;
            for (int64_t w = columns.start(q); w < columns.stop(q); w++) sum += line[w];
            y[q] = sum / static_cast<T>(rows.divisor(p) * columns.divisor(q));
        }
    }
}

template <class T>
RESILIN_INLINE void spread(const T *__restrict g, int64_t H, int64_t W, Windows rows, Windows columns,
                           T *__restrict line, T *__restrict dx) {
    std::fill(dx, dx + H * W, T(0));
    for (int64_t p = 0; p < rows.count; p++, g += columns.count) {
        std::fill(line, line + W, T(0));
        for (int64_t q = 0; q < columns.count; q++) {
            const T share = g[q] / static_cast<T>(rows.divisor(p) * columns.divisor(q));
            for (int64_t w = columns.start(q); w < columns.stop(q); w++) line[w] += share;
        }
        for (int64_t h = rows.start(p); h < rows.stop(p); h++)
            for (int64_t w = 0; w < W; w++) dx[h * W + w] += line[w];
    }
}

RESILIN_SIMD void average_plane(const float *x, int64_t W, Windows rows, Windows columns, float *line, float *y) {
    average(x, W, rows, columns, line, y);
}
RESILIN_SIMD void average_plane(const double *x, int64_t W, Windows rows, Windows columns, double *line, double *y) {
    average(x, W, rows, columns, line, y);
}
RESILIN_SIMD void spread_plane(const float *g, int64_t H, int64_t W, Windows rows, Windows columns, float *line,
                               float *dx) {
    spread(g, H, W, rows, columns, line, dx);
}
RESILIN_SIMD void spread_plane(const double *g, int64_t H, int64_t W, Windows rows, Windows columns, double *line,
                               double *dx) {
    spread(g, H, W, rows, columns, line, dx);
}

// The flat place of each window's maximum: the first one, or the first NaN.
template <class T> nb::object largest_as(Array x, Windows rows, Windows columns) {
    const int64_t planes = x.dim(0) * x.dim(1), H = x.dim(2), W = x.dim(3), L = rows.count * columns.count;
    NewArray<int64_t> index({static_cast<npy_intp>(x.dim(0)), static_cast<npy_intp>(x.dim(1)),
                             static_cast<npy_intp>(rows.count), static_cast<npy_intp>(columns.count)});
    WithoutGil free(x.size());
    parallel_rows(planes, std::max(H * W, L), [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; n++) {
            const T *image = x.data<T>() + n * H * W;
            int64_t *at = index.data + n * L;
            for (int64_t p = 0; p < rows.count; p++)
                for (int64_t q = 0; q < columns.count; q++) {
                    int64_t best = rows.start(p) * W + columns.start(q);
                    for (int64_t h = rows.start(p); h < rows.stop(p); h++)
                        for (int64_t w = columns.start(q); w < columns.stop(q); w++) {
                            const T value = image[h * W + w], top = image[best];
                            if (value > top || (value != value && top == top)) best = h * W + w;
                        }
                    *at++ = best;
                }
        }
    });
    return index.object;
}

template <class T> nb::object average_as(Array x, Windows rows, Windows columns) {
    const int64_t planes = x.dim(0) * x.dim(1), H = x.dim(2), W = x.dim(3), L = rows.count * columns.count;
    NewArray<T> y({static_cast<npy_intp>(x.dim(0)), static_cast<npy_intp>(x.dim(1)),
                   static_cast<npy_intp>(rows.count), static_cast<npy_intp>(columns.count)});
    {
        WithoutGil free(x.size());
        parallel_rows(planes, std::max(H * W, L), [&](int64_t begin, int64_t end) {
            std::vector<T> line(static_cast<size_t>(W));
            for (int64_t n = begin; n < end; n++)
                average_plane(x.data<T>() + n * H * W, W, rows, columns, line.data(), y.data + n * L);
        });
    }
    return y.object;
}

template <class T> nb::object spread_as(Array g, Windows rows, Windows columns, int64_t H, int64_t W) {
    const int64_t planes = g.dim(0) * g.dim(1), L = rows.count * columns.count;
    NewArray<T> dx({static_cast<npy_intp>(g.dim(0)), static_cast<npy_intp>(g.dim(1)), static_cast<npy_intp>(H),
                    static_cast<npy_intp>(W)});
    {
        WithoutGil free(planes * H * W);
        parallel_rows(planes, std::max(H * W, L), [&](int64_t begin, int64_t end) {
            std::vector<T> line(static_cast<size_t>(W));
            for (int64_t n = begin; n < end; n++)
                spread_plane(g.data<T>() + n * L, H, W, rows, columns, line.data(), dx.data + n * H * W);
        });
    }
    return dx.object;
}

nb::object average_forward(Array x, Array rows, Array columns) {
    if (x.ndim() != 4 || !are_windows(rows, x.dim(2)) || !are_windows(columns, x.dim(3))) return nb::none();
    return x.is<float>()    ? average_as<float>(x, Windows(rows), Windows(columns))
           : x.is<double>() ? average_as<double>(x, Windows(rows), Windows(columns))
                            : nb::none();
}

// None for what has no kernel, and where a window is empty.
nb::object largest(Array x, Array rows, Array columns) {
    if (x.ndim() != 4 || !are_windows(rows, x.dim(2)) || !are_windows(columns, x.dim(3))) return nb::none();
    for (const Windows &windows : {Windows(rows), Windows(columns)})
        for (int64_t i = 0; i < windows.count; i++)
            if (windows.start(i) == windows.stop(i)) return nb::none();
    return x.is<float>()    ? largest_as<float>(x, Windows(rows), Windows(columns))
           : x.is<double>() ? largest_as<double>(x, Windows(rows), Windows(columns))
                            : nb::none();
}

nb::object average_backward(Array g, Array rows, Array columns, int64_t H, int64_t W) {
    if (g.ndim() != 4 || H < 0 || W < 0 || !are_windows(rows, H) || !are_windows(columns, W)) return nb::none();
    if (g.dim(2) != rows.dim(0) || g.dim(3) != columns.dim(0)) return nb::none();
    return g.is<float>()    ? spread_as<float>(g, Windows(rows), Windows(columns), H, W)
           : g.is<double>() ? spread_as<double>(g, Windows(rows), Windows(columns), H, W)
                            : nb::none();
}

} // namespace

void bind_pool(nb::module_ &m) {
    m.def("avg_pool2d_forward", &average_forward);
    m.def("avg_pool2d_backward", &average_backward);
    m.def("window_maxima", &largest);
    m.def("max_pool2d_forward", &forward);
    m.def("max_pool2d_backward", &backward);
}

} // namespace resilin
