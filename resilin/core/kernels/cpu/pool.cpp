// Max pooling; planes (one channel of one sample) are independent.
#include "array.hpp"
#include "kernels.hpp"
#include "parallel.hpp"
#include "simd.hpp"

#include <cstring>
#include <type_traits>

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
            y[q] = T(0);
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

} // namespace

void bind_pool(nb::module_ &m) {
    m.def("max_pool2d_forward", &forward);
    m.def("max_pool2d_backward", &backward);
}

} // namespace resilin
