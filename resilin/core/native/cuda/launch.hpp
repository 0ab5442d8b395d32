// Kernels of the driver as objects to call.
#pragma once
#include "binding/array.hpp"
#include "driver.hpp"

namespace resilin::cuda {

// A callable (grid, block, arguments, shared_bytes=0), as CuPy's kernels are: arguments are arrays of the device, which
// have `data.ptr`, and numpy's scalars. `stream()` gives the stream to launch on, an object with `ptr`; `failed(name,
// stream, status)` raises what the driver answers. `waits`: each launch waits until the kernel is done.
nb::object make_kernel(nb::handle driver, uintptr_t function, nb::str name, nb::object stream, nb::object failed,
                       bool waits);

// The address of an array of a device, its `data.ptr`; nb::python_error where it has none.
uintptr_t address_of(PyObject *array);

// The address of the stream that `current()` gives; nb::python_error.
uintptr_t stream_of(PyObject *current);

} // namespace resilin::cuda
