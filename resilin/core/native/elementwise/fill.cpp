#include "elementwise/fill.hpp"

#include "binding/kernels.hpp"
#include "elementwise/half_blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "elementwise/walk.hpp"
#include "kernels/simd.hpp"
#include "memory/parallel.hpp"

#include <cmath>

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

template <class T, class Fill> bool fill_all(Fill fill, void *at, int64_t size, const void *value) {
    T bits;
    std::memcpy(&bits, value, sizeof(T));
    auto *x = static_cast<T *>(at);
    WithoutGil free(size);
    parallel_rows(size, 1, [&](int64_t begin, int64_t end) { fill(x, begin, end, bits); });
    return true;
}

// The number, which is an array of no dimensions of the same dtype; whether it was done.
bool fill_elements(ExactArray x, ExactArray number) {
    if (!x || !number || number.ndim() || PyArray_DESCR(x.array) != PyArray_DESCR(number.array)) return false;
    const bool one_run = PyArray_ISONESEGMENT(x.array), plain = PyArray_ISBEHAVED(x.array);
    if (!one_run || !plain || !PyArray_ISALIGNED(number.array) || PyDataType_REFCHK(PyArray_DESCR(x.array))) return false;
    return fill_run(PyArray_DATA(x.array), x.size(), PyArray_ITEMSIZE(x.array), PyArray_DATA(number.array));
}

} // namespace

bool fill_run(void *at, int64_t size, int64_t each, const void *value) {
    switch (each) {
    case 1: return fill_all<uint8_t>(fill_uint8_t, at, size, value);
    case 2: return fill_all<uint16_t>(fill_uint16_t, at, size, value);
    case 4: return fill_all<uint32_t>(fill_uint32_t, at, size, value);
    case 8: return fill_all<uint64_t>(fill_uint64_t, at, size, value);
    default: return false;
    }
}

bool element_as(PyObject *number, int type, void *data) {
    if (type == NPY_BOOL) {
        int64_t whole = number == Py_True;
        if (!PyBool_Check(number) && !number_as(number, NPY_LONG, &whole)) return false;
        *static_cast<npy_bool *>(data) = whole != 0;
        return true;
    }
    const bool half = type == NPY_HALF || type == bfloat16_type;
    if (!half && type != NPY_FLOAT && type != NPY_DOUBLE) return number_as(number, type, data);
    double exact;
    if (!number_as(number, NPY_DOUBLE, &exact) || !(std::fabs(exact) < (half ? 65504.0 : 1e38))) return false;
    if (!half) return number_as(number, type, data);
    float rounded = static_cast<float>(exact);
    if (rounded != exact) return false; // bfloat16 is rounded by way of float32 elsewhere
    (type == NPY_HALF ? pack_half : pack_bfloat)(&rounded, 0, 1, static_cast<uint16_t *>(data));
    return true;
}

void bind_fill(nb::module_ &m) { m.def("fill_elements", &fill_elements); }

} // namespace resilin
