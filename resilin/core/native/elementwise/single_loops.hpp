// Loops of float32 by functions of ours (single_functions.hpp): the same bits on every CPU.
#pragma once
#include "elementwise/ufunc_loops.hpp"

namespace resilin {

// As own_loop's, of float32 alone; none else.
TypeLoop single_loop(const char *name, int type, int &inputs);
// Of one input, with fewer digits than float32 has; none where there is no shorter one.
TypeLoop narrow_loop(const char *name);

} // namespace resilin
