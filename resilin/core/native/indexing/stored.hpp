// Elements as they are stored, and as kernels compute with them: 16-bit floats in float32.
#pragma once
#include "binding/array.hpp"
#include "elementwise/half_blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "kernels/halves.hpp"

#include <type_traits>

namespace resilin {

template <class T> struct Whole {
    using Stored = T;
    using Computed = T;
    static RESILIN_INLINE T open(T x) { return x; }
};
struct Half {
    using Stored = uint16_t;
    using Computed = float;
    static RESILIN_INLINE float open(uint16_t x) { return from_half(x); }
    static constexpr auto unpack = unpack_half;
    static constexpr auto pack = pack_half;
};
struct Bfloat {
    using Stored = uint16_t;
    using Computed = float;
    static RESILIN_INLINE float open(uint16_t x) { return from_bfloat(x); }
    static constexpr auto unpack = unpack_bfloat;
    static constexpr auto pack = pack_bfloat;
};

// fn(E{}) with the elements' kind, for what computes with them; false for others.
template <class Fn> bool by_kind(int type, Fn fn) {
    if (type == NPY_FLOAT32) fn(Whole<float>{});
    else if (type == NPY_FLOAT64) fn(Whole<double>{});
    else if (type == NPY_INT64) fn(Whole<int64_t>{});
    else if (type == NPY_HALF) fn(Half{});
    else if (type == bfloat16_type) fn(Bfloat{});
    else return false;
    return true;
}
inline bool has_kind(int type) {
    return by_kind(type, [](auto) {});
}

} // namespace resilin
