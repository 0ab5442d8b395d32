// What the CPU does with subnormal numbers in a product of 16-bit floats.
#pragma once
#include "product.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace resilin {

// While this lives, the calling thread computes with them as ever, or (BFloat) takes them as zero and gives none.
template <class From> struct Subnormals {};
#if defined(__x86_64__)
template <> struct Subnormals<BFloat> {
    const unsigned before = _mm_getcsr();
    Subnormals() { _mm_setcsr(before | 0x8040); } // flush to zero, and denormals are zeros
    ~Subnormals() { _mm_setcsr(before); }
};
#endif

} // namespace resilin
