// Unsigned numbers that are ordered as elements are: NaN after all others, -0 as 0.
#pragma once
#include "simd.hpp"

namespace resilin {

RESILIN_INLINE uint32_t order_key(float x) {
    const uint32_t bits = bit_cast<uint32_t>(x + 0.0f); // -0 becomes 0
    return x != x ? 0xFFFFFFFFu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
RESILIN_INLINE uint64_t order_key(double x) {
    const uint64_t bits = bit_cast<uint64_t>(x + 0.0), sign = uint64_t{1} << 63;
    return x != x ? ~uint64_t{0} : bits & sign ? ~bits : bits | sign;
}
RESILIN_INLINE uint64_t order_key(int64_t x) { return static_cast<uint64_t>(x) ^ uint64_t{1} << 63; }
RESILIN_INLINE uint32_t order_key(int32_t x) { return static_cast<uint32_t>(x) ^ uint32_t{1} << 31; }

} // namespace resilin
