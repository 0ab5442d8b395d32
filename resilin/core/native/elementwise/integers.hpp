// Loops over integers that numpy's library goes through element by element (integers.cpp).
#pragma once
#include "elementwise/ufunc_loops.hpp"

namespace resilin {

// As own_loop().
TypeLoop integer_loop(const char *name, int type, int &inputs);

// Whether an element of an array of integers is 0.
bool has_zero(PyArrayObject *array);

} // namespace resilin
