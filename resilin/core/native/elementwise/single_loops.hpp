// Loops of float32 by functions of ours (single_functions.hpp): the same bits on every CPU.
#pragma once
#include "elementwise/ufunc_loops.hpp"

namespace resilin {

// As own_loop's, of float32 alone; none else.
TypeLoop single_loop(const char *name, int type, int &inputs);

} // namespace resilin
