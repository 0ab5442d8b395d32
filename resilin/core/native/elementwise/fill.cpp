// One number in all elements of an array whose memory is one run.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "kernels/simd.hpp"
#include "memory/parallel.hpp"

namespace resilin {
namespace {

#define RESILIN_FILL(T)                                                                                                \
    RESILIN_SIMD void fill_##T(T *x, int64_t begin, int64_t end, T value) {                                            \
        for (int64_t i = begin; i < end; i++) x[i] = value;                                                            \
    }
RESILIN_FILL(uint8_t)
RESILIN_FILL(uint16_t)
RESILIN_FILL(uint32_t)
RESILIN_FILL(uint64_t)

template <class T, class Fill> void fill_all(Fill fill, PyArrayObject *array, const void *value) {
    T bits;
    std::memcpy(&bits, value, sizeof(T));
    auto *x = static_cast<T *>(PyArray_DATA(array));
    const int64_t size = PyArray_SIZE(array);
    WithoutGil free(size);
    parallel_rows(size, 1, [&](int64_t begin, int64_t end) { fill(x, begin, end, bits); });
}

// The number, which is an array of no dimensions of the same dtype; whether it was done.
bool fill_elements(ExactArray x, ExactArray number) {
    if (!x || !number || number.ndim() || PyArray_DESCR(x.array) != PyArray_DESCR(number.array)) return false;
    const bool one_run = PyArray_ISONESEGMENT(x.array), plain = PyArray_ISBEHAVED(x.array);
    if (!one_run || !plain || !PyArray_ISALIGNED(number.array) || PyDataType_REFCHK(PyArray_DESCR(x.array))) return false;
    const void *value = PyArray_DATA(number.array);
    switch (PyArray_ITEMSIZE(x.array)) {
    case 1: fill_all<uint8_t>(fill_uint8_t, x.array, value); return true;
    case 2: fill_all<uint16_t>(fill_uint16_t, x.array, value); return true;
    case 4: fill_all<uint32_t>(fill_uint32_t, x.array, value); return true;
    case 8: fill_all<uint64_t>(fill_uint64_t, x.array, value); return true;
    default: return false;
    }
}

} // namespace

void bind_fill(nb::module_ &m) { m.def("fill_elements", &fill_elements); }

} // namespace resilin
