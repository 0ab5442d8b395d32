// The native module of resilin.dist: shared-memory collectives.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_native, m) {
    m.doc() = "Shared-memory collectives of resilin.dist.";
}
