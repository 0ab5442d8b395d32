// Elementwise reductions over the ranks' buffers. Dtype and op codes are those of wire/reduce_op.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace resilin::dist {

enum Op : int { SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM };

constexpr int MAX_RANKS = 256;

// bytes of one element, 0 for an unknown code
size_t item_size(int dtype);

// dsts[j][0..count) = srcs[0] op srcs[1] op ... op srcs[n_srcs-1], elementwise, in that order; AVG divides by n_srcs.
// 16-bit floats are accumulated in float32 and rounded once. A destination may be one of the sources, but must not
// overlap one otherwise. Returns false when `op` is not defined for `dtype`.
bool reduce(int dtype, Op op, const char *const *srcs, int n_srcs, char *const *dsts, int n_dsts, size_t count);

} // namespace resilin::dist
