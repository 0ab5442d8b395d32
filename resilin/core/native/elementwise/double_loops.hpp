// Loops of float64 by functions of ours (double_exponentials.hpp and its kin): the same bits on every CPU.
#pragma once
#include "elementwise/ufunc_loops.hpp"

namespace resilin {

// As own_loop's, of float64 alone; none else.
TypeLoop double_loop(const char *name, int type, int &inputs);

} // namespace resilin
