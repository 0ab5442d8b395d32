// The native module of resilin.core: one bind_* function per kernel file.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_native, m) {
    m.doc() = "Native CPU kernels and the caching allocator of resilin.core.";
}
