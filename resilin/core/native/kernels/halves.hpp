// float32 to and from the 16-bit floats in integer arithmetic, rounding to nearest even. Branch-free, so that it is
// vectorized without the CPU's own half-precision instructions. After F. Giesen, "Half to float done quic(k)".
#pragma once
#include "kernels/simd.hpp"

namespace resilin {

RESILIN_INLINE uint16_t half_of(float x) {
    const uint32_t u = bit_cast<uint32_t>(x), sign = u & 0x80000000u, a = u ^ sign;
    const uint32_t special = a > 0x7F800000u ? 0x7E00u : 0x7C00u; // NaN, infinity and what overflows to it
    const float magic = bit_cast<float>(126u << 23);              // 0.5: its addition rounds subnormals in place
    const uint32_t small = bit_cast<uint32_t>(bit_cast<float>(a) + magic) - (126u << 23);
    const uint32_t normal = (a + 0xC8000FFFu + (a >> 13 & 1u)) >> 13; // exponent 127 -> 15, round to even
    uint32_t h = a < 113u << 23 ? small : normal;
    h = a >= 143u << 23 ? special : h;
    return static_cast<uint16_t>(h | sign >> 16);
}

RESILIN_INLINE float from_half(uint16_t h) {
    const uint32_t exponent = 0x7C00u << 13;
    const uint32_t shifted = (h & 0x7FFFu) << 13, e = shifted & exponent;
    const uint32_t normal = shifted + (112u << 23);
    const float small = bit_cast<float>(normal + (1u << 23)) - bit_cast<float>(113u << 23);
    uint32_t u = e == 0 ? bit_cast<uint32_t>(small) : normal;
    u = e == exponent ? normal + (112u << 23) : u;
    return bit_cast<float>(u | static_cast<uint32_t>(h & 0x8000u) << 16);
}

RESILIN_INLINE uint16_t bfloat_of(float x) {
    const uint32_t u = bit_cast<uint32_t>(x);
    const uint32_t rounded = (u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
    return static_cast<uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? (u >> 16 | 0x40u) : rounded);
}

RESILIN_INLINE float from_bfloat(uint16_t h) { return bit_cast<float>(static_cast<uint32_t>(h) << 16); }

} // namespace resilin
