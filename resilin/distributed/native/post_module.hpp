#pragma once

#include <nanobind/nanobind.h>

namespace resilin::dist {

void bind_post(nanobind::module_ &m);

} // namespace resilin::dist
