// A kernel in front of a function of tensors (short_call.cpp).
#pragma once
#include "binding/array.hpp"

namespace resilin {

void bind_short_call(nb::module_ &m);

} // namespace resilin
