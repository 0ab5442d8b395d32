// Elements where a mask is true.
#pragma once
#include "binding/array.hpp"

namespace resilin {

// x[mask] of a mask of x's shape; None for what is not handled.
nb::object select_mask(const ExactArray &x, const ExactArray &mask);

// A Python number as an element of dtype `type` at `data`, if elements of the dtype hold it: an integer exactly, a float as
// it is rounded to float32 or float64, which floats of 16 bits have to hold exactly.
bool held_number(PyObject *number, int type, void *data);

void bind_masks(nb::module_ &m);

} // namespace resilin
