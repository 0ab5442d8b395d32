// One number, or numbers counted up, in memory that is one run.
#pragma once
#include "binding/array.hpp"

#include <cstdint>

namespace resilin {

// A Python number as an element of dtype `type` at `data`, as `number_as` and of booleans and 16-bit floats, too; false for
// what does not fit, is not finite, or is no such number.
bool element_as(PyObject *number, int type, void *data);

// An element of `each` bytes `size` times, one after the other; whether there are elements of so many.
bool fill_run(void *at, int64_t size, int64_t each, const void *value);

// 0, 1, ..., count - 1 (convert.cpp)
void count_from_zero(int64_t *out, int64_t count);

} // namespace resilin
