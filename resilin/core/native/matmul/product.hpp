// Matrix products of our own: packed panels and tiles in registers (K. Goto and R. van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication", 2008), as fast as the CPU multiplies.
//
// The depth is cut into blocks of at most DEPTH_BYTES by its length alone. An element of C is the sum of its blocks,
// ascending; a block is one chain of fused multiply-adds, ascending (of bfloat16: see below). So its bits depend on nothing else: not on the
// number of threads, the matrices' strides, the other rows and columns, or which x86-64 CPU it is.
//
// float16 multiplies as the float32 numbers that it is, in the same blocks and chains, and the sum is rounded once.
//
// bfloat16 has the order of AMX (tdpbf16ps), whatever tiles run: the sum starts with `plus` or zero; the depth is cut into
// groups of GROUP_STEPS, of which the last may be short; a group is one chain of fused multiply-adds, from zero, over its
// even steps and one over its odd ones, ascending, and (even + odd) is added to the sum. It is rounded once. As there,
// subnormal numbers count as zero and none is given. Of pairs for vdpbf16ps, which is two fused multiply-adds, the upper
// halves' first, both elements are of one chain.
#pragma once
#include <cstdint>
#include <string>

namespace resilin {

// 16-bit floats, as stored.
struct BFloat {
    uint16_t bits;
};
struct Half {
    uint16_t bits;
};

// A matrix that is only read: any strides, in elements.
template <class T> struct View {
    const T *data;
    int64_t row, column;
};

// c (rows, columns; each row contiguous, ldc apart) = scale * (a (rows, depth) @ b (depth, columns)) + plus (rows ld_plus
// apart; 0: one row for all; null: nothing). `plus` may be c. Only products that can_scale() are `scaled`: the product, its
// multiple and the sum are rounded one after the other. T is the type of the sums, From that of the operands.
template <class T, class From = T> struct Product {
    int64_t rows, columns, depth;
    View<From> a, b;
    T *c;
    int64_t ldc;
    const T *plus = nullptr;
    int64_t ld_plus = 0;
    bool scaled = false;
    T scale = 1;

    double flops() const { return 2.0 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(depth); }
};

// A product, or several together, of fewer operations stay in the calling thread: waking another one costs as much.
constexpr double SHARED_FLOPS = 4e6;

// In the calling thread alone, or on all of this library's threads where that is worth it. float and double.
template <class T> void multiply(const Product<T> &product, bool threads);

// The same of BFloat or Half, rounded into `out` (rows ld_out apart), and `product.c` is not used; `out` null: the sums as
// they are, in `product.c`.
template <class From> void multiply(const Product<float, From> &product, From *out, int64_t ld_out, bool threads);

// Whether products of this depth may be scaled: it is one block, and the CPU has tiles that do it.
template <class T> bool can_scale(int64_t depth);

// For tests: products use the tiles of instruction set `name` from now on ("amx" and "avx512_bf16", which are avx512
// but for bfloat16, "avx512", "avx2", "portable"; else the best).
// False, and nothing changes, where this CPU does not have it.
bool use_tiles(const std::string &name);

} // namespace resilin
