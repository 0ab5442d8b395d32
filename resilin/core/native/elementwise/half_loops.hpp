// Simple functions of 16-bit floats by the CPU's own conversions: eight elements are widened, computed with and rounded
// in registers. The bits are those of HalfBlocks.
#pragma once
#include "elementwise/ufunc_loops.hpp"

namespace resilin {

// The loop of function `name` of `inputs` inputs; null where there is none, or the CPU does not convert.
DirectHalf direct_half(const char *name, int inputs);

} // namespace resilin
