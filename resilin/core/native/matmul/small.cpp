// Compiled so that `sum += a * b` is fused wherever the CPU can, as in the tiles.
#include "small.hpp"

#include "elementwise/half_blocks.hpp"
#include "kernels/simd.hpp"

#include <cstring>

namespace resilin {
namespace {

constexpr int64_t GROUP = 4; // rows at a time: their chains of additions do not wait for one another

template <class T, int64_t W> struct Row {
    typedef T type __attribute__((vector_size(W * sizeof(T)), may_alias));
};

// Chains: of an element's sum, which take the steps in turn. One, or two that are added to zero in the end (bfloat16's group).
template <int64_t W, int64_t Chains, int64_t Rows, class T>
RESILIN_INLINE void multiply_rows(const Product<T> &p, int64_t first, const T *b, int64_t ld) {
    using V = typename Row<T, W>::type;
    V sums[Chains][Rows] = {};
    const T *a = p.a.data + first * p.a.row;
    const int64_t down = p.a.row, right = p.a.column;
    auto add = [&](V *sum, int64_t k) __attribute__((always_inline)) {
        V other;
        std::memcpy(&other, b + k * ld, sizeof(V));
#pragma GCC unroll 4
        for (int64_t i = 0; i < Rows; i++) sum[i] += a[i * down + k * right] * other;
    };
    int64_t k = 0;
    for (; k + Chains <= p.depth; k += Chains)
#pragma GCC unroll 2
        for (int64_t chain = 0; chain < Chains; chain++) add(sums[chain], k + chain);
    if (k < p.depth) add(sums[0], k);
    V *sum = sums[0];
    if (Chains == 2)
        for (int64_t i = 0; i < Rows; i++) sum[i] = V{} + (sum[i] + sums[Chains - 1][i]);
#pragma GCC unroll 4
    for (int64_t i = 0; i < Rows; i++) {
        T *c = p.c + (first + i) * p.ldc;
        if (p.columns == W) std::memcpy(c, &sum[i], sizeof(V));
        else
            for (int64_t j = 0; j < p.columns; j++) c[j] = sum[i][j];
    }
}

// Up to W columns; B is copied where its rows are shorter, or are not contiguous.
template <int64_t W, int64_t Chains, class T> RESILIN_INLINE void multiply_columns(const Product<T> &p) {
    alignas(64) T copy[SMALL * W];
    const T *b = p.b.data;
    int64_t ld = p.b.row;
    if (p.columns < W || p.b.column != 1) {
        for (int64_t k = 0; k < p.depth; k++)
            for (int64_t j = 0; j < W; j++) copy[k * W + j] = j < p.columns ? b[k * p.b.row + j * p.b.column] : T(0);
        b = copy;
        ld = W;
    }
    int64_t i = 0;
    for (; i + GROUP <= p.rows; i += GROUP) multiply_rows<W, Chains, GROUP>(p, i, b, ld);
    for (; i < p.rows; i++) multiply_rows<W, Chains, 1>(p, i, b, ld);
}

template <int64_t Chains, class T> RESILIN_INLINE void multiply_any(const Product<T> &p) {
    if (p.columns <= 4) multiply_columns<4, Chains>(p);
    else if (p.columns <= 8) multiply_columns<8, Chains>(p);
    else multiply_columns<SMALL, Chains>(p);
}
RESILIN_SIMD void multiply_by_two_chains(const Product<float> &product) { multiply_any<2>(product); }

// The elements of a matrix one row after the other: where they lie, or in `bits`.
template <class From> const uint16_t *in_rows(const View<From> &x, int64_t rows, int64_t columns, uint16_t *bits) {
    if (x.column == 1 && (x.row == columns || rows == 1)) return &x.data->bits;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) bits[i * columns + j] = x.data[i * x.row + j * x.column].bits;
    return bits;
}

constexpr int64_t MOST = SMALL * SMALL;

template <class From, class Multiply, class Unpack, class Pack>
void multiply_opened(const Product<float, From> &p, From *out, int64_t ld_out, Multiply multiply, Unpack unpack, Pack pack) {
    alignas(64) float a[MOST], b[MOST], c[MOST];
    uint16_t bits[MOST];
    unpack(in_rows(p.a, p.rows, p.depth, bits), 0, p.rows * p.depth, a);
    unpack(in_rows(p.b, p.depth, p.columns, bits), 0, p.depth * p.columns, b);
    multiply(Product<float>{p.rows, p.columns, p.depth, {a, p.depth, 1}, {b, p.columns, 1}, c, p.columns});
    const bool together = ld_out == p.columns || p.rows == 1;
    pack(c, 0, p.rows * p.columns, together ? &out->bits : bits);
    for (int64_t i = 0; !together && i < p.rows; i++)
        std::memcpy(static_cast<void *>(out + i * ld_out), bits + i * p.columns, static_cast<size_t>(p.columns) * sizeof(From));
}

} // namespace

RESILIN_SIMD void multiply_small(const Product<float> &product) { multiply_any<1>(product); }
RESILIN_SIMD void multiply_small(const Product<double> &product) { multiply_any<1>(product); }

void multiply_small(const Product<float, Half> &product, Half *out, int64_t ld_out) {
    const auto multiply = [](const Product<float> &wide) { multiply_small(wide); };
    multiply_opened(product, out, ld_out, multiply, unpack_half, pack_half);
}
void multiply_small(const Product<float, BFloat> &product, BFloat *out, int64_t ld_out) {
    multiply_opened(product, out, ld_out, multiply_by_two_chains, unpack_bfloat, pack_bfloat);
}

} // namespace resilin
