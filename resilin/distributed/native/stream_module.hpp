#pragma once

#include <nanobind/nanobind.h>

namespace resilin::dist {

void bind_streams(nanobind::module_ &m);

} // namespace resilin::dist
