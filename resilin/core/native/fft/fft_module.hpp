// Fourier transforms as functions of the native module.
#pragma once
#include <nanobind/nanobind.h>

namespace resilin {

void bind_fft(nanobind::module_ &m);

} // namespace resilin
