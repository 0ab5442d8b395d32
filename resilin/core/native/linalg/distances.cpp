// Distances of all rows of two matrices without a matrix product: the sum of |a - b|, of its square or its cube, or the
// largest one. A vector holds some rows of the second matrix. A sum is one chain for BLOCK columns, ascending, from
// zero, and the blocks are added to one another, ascending.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "kernels/registers.hpp"
#include "matmul/panels.hpp"
#include "memory/parallel.hpp"
#include "memory/scratch.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace resilin {
namespace {

constexpr int64_t BLOCK = 128, ROWS = 4; // columns of a chain; rows of the first matrix whose sums are in registers
constexpr int64_t PIECE = 128;           // rows of it that one claim of a thread takes

enum class Norm { one, two, three, largest };

template <class T> struct Rows {
    int64_t count, ld, columns; // of the first matrix; columns of this block
    const T *x;
    const T *panel;             // 64 bytes of rows of the second matrix, column by column
    T *y;                       // `used` distances of each row, ld_y apart
    int64_t ld_y, used;
    bool first;                 // block: nothing is there to be added to
};

template <class V, class Integer> RESILIN_INLINE V magnitude(V v) {
    typedef std::make_unsigned_t<Integer> Bits __attribute__((vector_size(sizeof(V))));
    return reinterpret_cast<V>(reinterpret_cast<Bits>(v) & (~Bits{} >> 1));
}

// Of numbers without a sign: the order of their bits is theirs, and NaN is above all. By lanes, as vectors' comparisons are
// taken apart before functions are inlined into those with wide registers.
template <class V, class Integer> RESILIN_INLINE V larger(V a, V b) {
    Integer x[sizeof(V) / sizeof(Integer)], y[sizeof(V) / sizeof(Integer)];
    std::memcpy(x, &a, sizeof(a));
    std::memcpy(y, &b, sizeof(b));
    for (size_t i = 0; i < sizeof(V) / sizeof(Integer); i++) x[i] = y[i] > x[i] ? y[i] : x[i];
    std::memcpy(&a, x, sizeof(a));
    return a;
}
template <Norm norm, class V, class Integer> RESILIN_INLINE V joined(V sum, V size) {
    if constexpr (norm == Norm::one) return sum + size;
    else if constexpr (norm == Norm::two) return sum + size * size;
    else if constexpr (norm == Norm::three) return sum + size * size * size;
    else return larger<V, Integer>(sum, size);
}

// R rows by one panel
template <class T, int64_t BYTES, Norm norm, int64_t R> RESILIN_INLINE void some_rows(const Rows<T> &of, int64_t row) {
    using V = Register<T, BYTES>;
    constexpr int64_t W = V::EACH * V::LANES;
    typename V::type sum[R][V::EACH];
#pragma GCC unroll 4
    for (int64_t r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int64_t e = 0; e < V::EACH; e++) sum[r][e] = typename V::type{};
    const T *x = of.x + row * of.ld;
    for (int64_t k = 0; k < of.columns; k++) {
        typename V::type right[V::EACH];
#pragma GCC unroll 2
        for (int64_t e = 0; e < V::EACH; e++) right[e] = V::load(of.panel + k * W + e * V::LANES);
#pragma GCC unroll 4
        for (int64_t r = 0; r < R; r++) {
            const typename V::type left = V::all(x[r * of.ld + k]);
#pragma GCC unroll 2
            for (int64_t e = 0; e < V::EACH; e++) {
                const auto size = magnitude<typename V::type, typename V::Integer>(left - right[e]);
                sum[r][e] = joined<norm, typename V::type, typename V::Integer>(sum[r][e], size);
            }
        }
    }
#pragma GCC unroll 4
    for (int64_t r = 0; r < R; r++) {
        T lanes[W], *to = of.y + (row + r) * of.ld_y;
#pragma GCC unroll 2
        for (int64_t e = 0; e < V::EACH; e++) V::store(lanes + e * V::LANES, sum[r][e]);
        if (of.first) {
            std::memcpy(to, lanes, static_cast<size_t>(of.used) * sizeof(T));
        } else {
            for (int64_t i = 0; i < of.used; i++)
                if constexpr (norm == Norm::largest)
                    to[i] = lanes[i] > to[i] || lanes[i] != lanes[i] ? lanes[i] : to[i];
                else to[i] += lanes[i];
        }
    }
}
template <class T, int64_t BYTES, Norm norm> RESILIN_INLINE void all_rows(const Rows<T> &of) {
    int64_t row = 0;
    for (; row + ROWS <= of.count; row += ROWS) some_rows<T, BYTES, norm, ROWS>(of, row);
    for (; row < of.count; row++) some_rows<T, BYTES, norm, 1>(of, row);
}
template <class T, int64_t BYTES> RESILIN_INLINE void rows_by_panel_of(const Rows<T> &of, Norm norm) {
    if (norm == Norm::one) all_rows<T, BYTES, Norm::one>(of);
    else if (norm == Norm::two) all_rows<T, BYTES, Norm::two>(of);
    else if (norm == Norm::three) all_rows<T, BYTES, Norm::three>(of);
    else all_rows<T, BYTES, Norm::largest>(of);
}
RESILIN_BY_REGISTERS(rows_by_panel, float, (const Rows<float> &of, Norm norm), (of, norm))
RESILIN_BY_REGISTERS(rows_by_panel, double, (const Rows<double> &of, Norm norm), (of, norm))

template <class T> nb::object distances_of(const Array &a, const Array &b, Norm norm) {
    constexpr int64_t W = 64 / static_cast<int64_t>(sizeof(T));
    const int64_t batch = a.dim(0), P = a.dim(1), D = a.dim(2), R = b.dim(1);
    NewArray<T> y({static_cast<npy_intp>(batch), static_cast<npy_intp>(P), static_cast<npy_intp>(R)});
    const int64_t panels = ceil_div(R, W), pieces = ceil_div(P, PIECE);
    if (!batch || !panels || !pieces) return y.object;
    WithoutGil free(batch * P * R * D);
    parallel_rows(batch * panels * pieces, std::min(P, PIECE) * W * D / 8, [&](int64_t begin, int64_t end) {
        static thread_local Scratch<T> scratch;
        T *panel = scratch.of(BLOCK * W);
        for (int64_t item = begin; item < end; item++) {
            const int64_t i = item / (panels * pieces), right = item / pieces % panels * W, row = item % pieces * PIECE;
            const int64_t used = std::min(W, R - right);
            T *to = y.data + (i * P + row) * R + right;
            for (int64_t k = 0; k < D; k += BLOCK) {
                const int64_t columns = std::min(BLOCK, D - k);
                pack(b.data<T>() + (i * R + right) * D + k, D, 1, used, W, columns, panel);
                const T *x = a.data<T>() + (i * P + row) * D + k;
                rows_by_panel({std::min(PIECE, P - row), D, columns, x, panel, to, R, used, k == 0}, norm);
            }
        }
    });
    return y.object;
}

// Of x1 (B, P, D) and x2 (B, R, D), for p 1, 2, 3 (the sums before their roots) and infinity: (B, P, R). None for others.
nb::object row_distances(Array a, Array b, double p) {
    if (!a || !b || a.ndim() != 3 || b.ndim() != 3) return nb::none();
    if (a.dim(0) != b.dim(0) || a.dim(2) != b.dim(2) || a.dim(2) < 1) return nb::none();
    if (p != 1 && p != 2 && p != 3 && !(std::isinf(p) && p > 0)) return nb::none();
    const Norm norm = p == 1 ? Norm::one : p == 2 ? Norm::two : p == 3 ? Norm::three : Norm::largest;
    if (a.is<float>() && b.is<float>()) return distances_of<float>(a, b, norm);
    return a.is<double>() && b.is<double>() ? distances_of<double>(a, b, norm) : nb::none();
}

} // namespace

namespace {

#define RESILIN_CROSS(T)                                                                                               \
    RESILIN_SIMD void cross_rows(const T *a, const T *b, int64_t begin, int64_t end, T *y) {                           \
        for (int64_t i = 3 * begin; i < 3 * end; i += 3) {                                                             \
            y[i] = a[i + 1] * b[i + 2] - a[i + 2] * b[i + 1];                                                          \
            y[i + 1] = a[i + 2] * b[i] - a[i] * b[i + 2];                                                              \
            y[i + 2] = a[i] * b[i + 1] - a[i + 1] * b[i];                                                              \
        }                                                                                                              \
    }
RESILIN_CROSS(float)
RESILIN_CROSS(double)

template <class T> nb::object cross_of(const ExactArray &a, const ExactArray &b) {
    NewArray<T> y(a);
    WithoutGil free(a.size());
    parallel_rows(a.size() / 3, 3, [&](int64_t begin, int64_t end) {
        cross_rows(a.data<T>(), b.data<T>(), begin, end, y.data);
    });
    return y.object;
}

// The cross products of the rows of contiguous arrays of one shape, whose last dimension has three elements
nb::object cross(ExactArray a, ExactArray b) {
    if (!a || !b || !a.size() || !a.ndim() || a.dim(a.ndim() - 1) != 3 || !a.same_shape(b)) return nb::none();
    if (a.is<float>() && b.is<float>()) return cross_of<float>(a, b);
    return a.is<double>() && b.is<double>() ? cross_of<double>(a, b) : nb::none();
}

} // namespace

void bind_distances(nb::module_ &m) {
    m.def("row_distances", &row_distances);
    m.def("cross", &cross);
}

} // namespace resilin
