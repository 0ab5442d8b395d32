// What the module has of CUDA's driver.
#pragma once
#include <nanobind/nanobind.h>

namespace resilin {

void bind_cuda(nanobind::module_ &m);

} // namespace resilin
