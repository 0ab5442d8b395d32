// Vectors as wide as the registers: a compiler keeps vectors of 64 bytes in memory where registers hold 32.
#pragma once
#include "kernels/simd.hpp"

// A function that is compiled once per instruction set as with RESILIN_SIMD, and told how many floats a register holds:
// RESILIN_BY_WIDTH(void, name, (parameters), body<Width>(..))
#ifdef RESILIN_CHOOSES_ISA
#define RESILIN_BY_WIDTH(result, name, parameters, ...)                                                                \
    __attribute__((target("arch=x86-64-v4"))) result name parameters {                                                 \
        constexpr int Width = 16;                                                                                      \
        __VA_ARGS__;                                                                                                   \
    }                                                                                                                  \
    __attribute__((target("arch=x86-64-v3"))) result name parameters {                                                 \
        constexpr int Width = 8;                                                                                       \
        __VA_ARGS__;                                                                                                   \
    }                                                                                                                  \
    __attribute__((target("default"))) result name parameters {                                                        \
        constexpr int Width = 8;                                                                                       \
        __VA_ARGS__;                                                                                                   \
    }
#else
#define RESILIN_BY_WIDTH(result, name, parameters, ...)                                                                \
    result name parameters {                                                                                           \
        constexpr int Width = 8;                                                                                       \
        __VA_ARGS__;                                                                                                   \
    }
#endif

namespace resilin {

// Vectors of `Width` lanes: 16, or 8 where registers are that wide.
template <int Width> struct VectorsOf;
template <> struct VectorsOf<16> {
    typedef float Floats __attribute__((vector_size(64), may_alias));
    typedef uint32_t Pairs __attribute__((vector_size(64), may_alias));
    typedef uint16_t Bits __attribute__((vector_size(32)));
};
template <> struct VectorsOf<8> {
    typedef float Floats __attribute__((vector_size(32), may_alias));
    typedef uint32_t Pairs __attribute__((vector_size(32), may_alias));
    typedef uint16_t Bits __attribute__((vector_size(16)));
};
template <int Width> using Floats = typename VectorsOf<Width>::Floats;
template <int Width> using PairsOf = typename VectorsOf<Width>::Pairs;

template <int Width> RESILIN_INLINE Floats<Width> floats_at(const float *x) {
    Floats<Width> v;
    std::memcpy(&v, x, sizeof(v));
    return v;
}

} // namespace resilin
