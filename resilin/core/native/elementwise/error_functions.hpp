// The inverse error function of n numbers; `y` may be `x` (error_functions.cpp).
#pragma once
#include <cstdint>

namespace resilin {

void erfinv_doubles(const double *x, int64_t n, double *y);

} // namespace resilin
