// Half precision for the emulation: the compiler's own type.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

struct __half {
    _Float16 value;
};
inline float __half2float(__half v) { return static_cast<float>(v.value); }
inline __half __float2half_rn(float v) { return {static_cast<_Float16>(v)}; }
