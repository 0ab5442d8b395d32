// Error functions of float32, in float32.
#pragma once
#include <cstdint>

namespace resilin {

void erfc_of_floats(const float *x, int64_t begin, int64_t end, float *y);
void ndtr_of_floats(const float *x, int64_t begin, int64_t end, float *y);
void erfinv_of_floats(const float *x, int64_t begin, int64_t end, float *y);

} // namespace resilin
