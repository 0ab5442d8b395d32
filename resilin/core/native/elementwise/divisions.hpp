// Remainders and floors of quotients, elements that lie one after the other.
#pragma once
#include <cstdint>

namespace resilin {

void fmod_float(const float *x, const float *y, int64_t n, float *out);
void fmod_double(const double *x, const double *y, int64_t n, double *out);
void remainder_float(const float *x, const float *y, int64_t n, float *out);
void remainder_double(const double *x, const double *y, int64_t n, double *out);
void floor_divide_float(const float *x, const float *y, int64_t n, float *out);
void floor_divide_double(const double *x, const double *y, int64_t n, double *out);

} // namespace resilin
