// bfloat16 for the emulation: the upper half of a float, rounded to nearest even.
#pragma once
#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
    uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 v) {
    const uint32_t wide = static_cast<uint32_t>(v.bits) << 16;
    float out;
    std::memcpy(&out, &wide, 4);
    return out;
}
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
    uint32_t bits;
    std::memcpy(&bits, &v, 4);
    if (v != v) return {0x7fc0};
    bits += 0x7fff + ((bits >> 16) & 1);
    return {static_cast<uint16_t>(bits >> 16)};
}
