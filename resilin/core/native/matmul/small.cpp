// Compiled so that `sum += a * b` is fused wherever the CPU can, as in the tiles.
#include "small.hpp"

#include "kernels/simd.hpp"

#include <cstring>

namespace resilin {
namespace {

constexpr int64_t GROUP = 4; // rows at a time: their chains of additions do not wait for one another

template <class T, int64_t W> struct Row {
    typedef T type __attribute__((vector_size(W * sizeof(T)), may_alias));
};

template <int64_t W, int64_t Rows, class T> RESILIN_INLINE void multiply_rows(const Product<T> &p, int64_t first, const T *b, int64_t ld) {
    using V = typename Row<T, W>::type;
    V sum[Rows] = {};
    const T *a = p.a.data + first * p.a.row;
    const int64_t down = p.a.row, right = p.a.column;
    for (int64_t k = 0; k < p.depth; k++) {
        V other;
        std::memcpy(&other, b + k * ld, sizeof(V));
#pragma GCC unroll 4
        for (int64_t i = 0; i < Rows; i++) sum[i] += a[i * down + k * right] * other;
    }
#pragma GCC unroll 4
    for (int64_t i = 0; i < Rows; i++) {
        T *c = p.c + (first + i) * p.ldc;
        if (p.columns == W) std::memcpy(c, &sum[i], sizeof(V));
        else
            for (int64_t j = 0; j < p.columns; j++) c[j] = sum[i][j];
    }
}

// Up to W columns; B is copied where its rows are shorter, or are not contiguous.
template <int64_t W, class T> RESILIN_INLINE void multiply_columns(const Product<T> &p) {
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
    for (; i + GROUP <= p.rows; i += GROUP) multiply_rows<W, GROUP>(p, i, b, ld);
    for (; i < p.rows; i++) multiply_rows<W, 1>(p, i, b, ld);
}

template <class T> RESILIN_INLINE void multiply_any(const Product<T> &p) {
    if (p.columns <= 4) multiply_columns<4>(p);
    else if (p.columns <= 8) multiply_columns<8>(p);
    else multiply_columns<SMALL>(p);
}

} // namespace

RESILIN_SIMD void multiply_small(const Product<float> &product) { multiply_any(product); }
RESILIN_SIMD void multiply_small(const Product<double> &product) { multiply_any(product); }

} // namespace resilin
