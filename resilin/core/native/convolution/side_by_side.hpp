// Lanes (channels or samples) that lie side by side, element by element, as vectors of them are read.
#pragma once
#include "matmul/pairs.hpp"
#include "matmul/product.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace resilin::conv {

constexpr int64_t SIDE = 16; // lanes that lie side by side

// SIDE elements, of which those from `limit` on are zero
template <class V, class T> RESILIN_INLINE V read(const T *from, const T *limit) {
    V x{};
    if (limit - from >= SIDE) std::memcpy(&x, from, sizeof(x));
    else std::memcpy(&x, from, static_cast<size_t>(std::max<int64_t>(0, limit - from)) * sizeof(T));
    return x;
}
// The same of bfloat16 as float32: the upper halves of pairs.
RESILIN_INLINE Pairs upper(const BFloat *from, const BFloat *limit) {
    return __builtin_convertvector(read<SixteenBits<SIDE>::Singles>(from, limit), Pairs) << 16;
}

// to (elements, SIDE) = from (SIDE lanes, elements; `apart`), of which `used` are there: the last one stands for the others.
// Nothing from `limit` on is read.
void interleave(const float *from, int64_t apart, int64_t used, int64_t elements, const float *limit, float *to);
// The same of pairs of bfloat16: an element, in the upper half, and the one that lies `behind` it.
void interleave_pairs(const BFloat *from, int64_t apart, int64_t behind, int64_t elements, const BFloat *limit, float *to);
// The same of bfloat16, as float32.
void interleave(const BFloat *from, int64_t apart, int64_t used, int64_t elements, const BFloat *limit, float *to);
// The way back, of `used` lanes: to[lane * apart + e * step] = from (elements, SIDE), rounded where it is BFloat. Up to SIDE
// elements behind the last of `from` are read, too.
void separate(const float *from, int64_t elements, int64_t used, float *to, int64_t apart, int64_t step);
void separate(const float *from, int64_t elements, int64_t used, BFloat *to, int64_t apart, int64_t step);

} // namespace resilin::conv
