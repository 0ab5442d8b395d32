// Searches in sorted lines as functions of the native module.
#pragma once
#include <nanobind/nanobind.h>

namespace resilin {

void bind_search(nanobind::module_ &m);

} // namespace resilin
