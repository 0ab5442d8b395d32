// Elementwise functions of several steps in one pass, for the short ways of in-place operations.
#pragma once
#include "kernels/spans.hpp"

namespace resilin {

enum class Fused { add_scaled, addcmul, addcdiv, lerp_from_start, lerp_from_end, limit };

// Writes the function of `count` arrays and two numbers into `out`; false, with nothing written, for what it is not for.
bool fuse_into(Fused function, PyArrayObject *out, PyArrayObject *const *inputs, int count, Number p, Number q);

} // namespace resilin
