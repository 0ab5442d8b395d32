// Vectors of 64 bytes in registers that the CPU has. Without AVX-512 a vector of 64 bytes would be one in memory.
#pragma once
#include "kernels/simd.hpp"

#include <type_traits>

namespace resilin {

// RESILIN_BY_REGISTERS(name, T, parameters, arguments): a function `name` of T, which calls name_of<T, BYTES> with the
// longest registers that the CPU has.
#ifdef RESILIN_CHOOSES_ISA
inline const bool has_wide_registers = __builtin_cpu_supports("x86-64-v4");
#define RESILIN_BY_REGISTERS(name, T, parameters, arguments)                                                           \
    __attribute__((target("arch=x86-64-v4"))) static void name##_wide parameters { name##_of<T, 64> arguments; }       \
    __attribute__((target_clones("arch=x86-64-v3", "default"))) static void name##_narrow parameters {                 \
        name##_of<T, 32> arguments;                                                                                    \
    }                                                                                                                  \
    void name parameters { has_wide_registers ? name##_wide arguments : name##_narrow arguments; }
#else
constexpr bool has_wide_registers = false;
#define RESILIN_BY_REGISTERS(name, T, parameters, arguments) void name parameters { name##_of<T, 32> arguments; }
#endif

// A register of BYTES; EACH of them hold 64.
template <class T, int64_t BYTES> struct Register {
    typedef std::conditional_t<std::is_same_v<T, float>, int32_t, int64_t> Integer;
    typedef T type __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
    typedef Integer Integers __attribute__((vector_size(BYTES)));
    static constexpr int64_t LANES = BYTES / static_cast<int64_t>(sizeof(T)), EACH = 64 / BYTES;

    static RESILIN_INLINE type load(const T *x) {
        type v;
        std::memcpy(&v, x, sizeof(v));
        return v;
    }
    static RESILIN_INLINE void store(T *x, type v) { std::memcpy(x, &v, sizeof(v)); }
    // By lanes: `x - type{}` is taken apart before functions are inlined into those with wide registers.
    static RESILIN_INLINE type all(T x) {
        T lanes[LANES];
        for (T &lane : lanes) lane = x;
        return load(lanes);
    }
    // the first n elements, the others 0, whatever they are
    static RESILIN_INLINE type load_first(const T *x, int64_t n) {
        Integers lane;
        for (int64_t i = 0; i < LANES; i++) lane[i] = static_cast<Integer>(i);
        return lane < static_cast<Integer>(n) ? load(x) : type{};
    }
};

} // namespace resilin
