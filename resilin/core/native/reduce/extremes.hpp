// The largest and smallest elements of rows of n >= 1 elements; NaN wins.
#pragma once
#include "binding/array.hpp"

#include <cstdint>

namespace resilin {

#define RESILIN_EXTREMES_OF_ROWS(T)                                                                                    \
    void largest_of_rows(const T *x, int64_t n, int64_t begin, int64_t end, T *y);                                     \
    void smallest_of_rows(const T *x, int64_t n, int64_t begin, int64_t end, T *y);
RESILIN_EXTREMES_OF_ROWS(float)
RESILIN_EXTREMES_OF_ROWS(double)
RESILIN_EXTREMES_OF_ROWS(int64_t)
RESILIN_EXTREMES_OF_ROWS(int32_t)
#undef RESILIN_EXTREMES_OF_ROWS

void bind_extreme_places(nb::module_ &m); // extreme_places.cpp

// Over dimensions that have others behind them (columns.cpp); None where there is no way.
nb::object extremes_of_columns(const ExactArray &x, nb::handle axis, bool keepdims, bool largest);
nb::object products_of_columns(const ExactArray &x, nb::handle axis, bool keepdims);

} // namespace resilin
