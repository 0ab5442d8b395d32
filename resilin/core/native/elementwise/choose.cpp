// where(condition, a, b): elements of any dtype, moved as they are.
#include "binding/kernels.hpp"
#include "elementwise/blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "elementwise/half_blocks.hpp"
#include "kernels/simd.hpp"

namespace resilin {
namespace {

#define RESILIN_CHOOSE(name, T)                                                                                        \
    RESILIN_SIMD void name(const uint8_t *C, const T *A, const T *B, int64_t n, T *out) {                              \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                          \
            const T a = A[i], b = B[i];                                                                                \
            out[i] = C[i] ? a : b;                                                                                     \
        }                                                                                                              \
    }
RESILIN_CHOOSE(choose_8, uint8_t)
RESILIN_CHOOSE(choose_16, uint16_t)
RESILIN_CHOOSE(choose_32, uint32_t)
RESILIN_CHOOSE(choose_64, uint64_t)

template <class T, void (*span)(const uint8_t *, const T *, const T *, int64_t, T *)>
void choose(char **at, npy_intp n, const npy_intp *steps) {
    alignas(64) T block[3][BLOCK_ELEMENTS];
    uint8_t conditions[BLOCK_ELEMENTS];
    const bool as_they_are = steps[0] == 1 && steps[1] == sizeof(T) && steps[2] == sizeof(T) && steps[3] == sizeof(T);
    const npy_intp length = as_they_are ? n : BLOCK_ELEMENTS;
    for (npy_intp first = 0; first < n; first += length) {
        const npy_intp count = std::min(length, n - first);
        const T *choices[2];
        for (int i = 0; i < 2; i++) {
            const npy_intp step = steps[i + 1];
            choices[i] = !step && first ? block[i] : gathered(at[i + 1] + first * step, step, count, block[i]);
        }
        char *to = at[3] + first * steps[3];
        const bool direct = steps[3] == sizeof(T);
        span(gathered(at[0] + first * steps[0], steps[0], count, conditions), choices[0], choices[1], count,
             direct ? reinterpret_cast<T *>(to) : block[2]);
        if (!direct) scattered(block[2], count, to, steps[3]);
    }
}

void choose_any(char **at, npy_intp n, const npy_intp *steps, size_t bytes) {
    char *out = at[3];
    const char *condition = at[0], *a = at[1], *b = at[2];
    for (npy_intp i = 0; i < n; i++, condition += steps[0], a += steps[1], b += steps[2], out += steps[3])
        std::memcpy(out, *condition ? a : b, bytes);
}

// None where numpy has to be asked: dtypes differ, or there is no array among the choices.
nb::object choose_elements(nb::handle condition, nb::handle a, nb::handle b) {
    const nb::handle given[] = {condition, a, b};
    Walked operands[3];
    PyArrayObject *first = nullptr;
    for (int i = 0; i < 3; i++) {
        if (!PyArray_CheckExact(given[i].ptr())) continue;
        auto *array = operands[i].array = reinterpret_cast<PyArrayObject *>(given[i].ptr());
        if (!PyArray_ISALIGNED(array) || !PyArray_ISNOTSWAPPED(array)) return nb::none();
        if (i && first && PyArray_TYPE(array) != PyArray_TYPE(first)) return nb::none();
        if (i && !first) first = array;
    }
    if (!first || !operands[0].array || PyArray_TYPE(operands[0].array) != NPY_BOOL) return nb::none();
    const int type = PyArray_TYPE(first);
    if ((type > NPY_CDOUBLE && type != NPY_HALF && type != bfloat16_type) || type == NPY_LONGDOUBLE) return nb::none();
    int64_t numbers[2];
    for (int i = 1; i < 3; i++)
        if (!operands[i].array) {
            if (!number_as(given[i].ptr(), type, &numbers[i - 1])) return nb::none();
            operands[i].data = &numbers[i - 1];
        }
    Walk walk;
    if (!walk.plan(operands, 3)) return nb::none();
    PyArray_Descr *descr = PyArray_DESCR(first);
    const auto bytes = static_cast<size_t>(PyDataType_ELSIZE(descr));
    return walked_into_new(walk, descr, [&](char **at, npy_intp n, const npy_intp *steps) {
        switch (bytes) {
        case 1: return choose<uint8_t, choose_8>(at, n, steps);
        case 2: return choose<uint16_t, choose_16>(at, n, steps);
        case 4: return choose<uint32_t, choose_32>(at, n, steps);
        case 8: return choose<uint64_t, choose_64>(at, n, steps);
        default: return choose_any(at, n, steps, bytes);
        }
    });
}

template <class T, void (*span)(const uint8_t *, const T *, const T *, int64_t, T *)>
void fill_chosen(char **at, npy_intp n, const npy_intp *steps) {
    char *given[] = {at[0], at[1], at[2], at[2]};
    const npy_intp by[] = {steps[0], steps[1], steps[2], steps[2]};
    choose<T, span>(given, n, by);
}

// Writes `number`, an array of one element, into `out` where `condition` holds, which broadcasts to it; whether it did.
bool fill_where(ExactArray out, ExactArray condition, ExactArray number) {
    if (!out || !condition || !number || number.size() != 1 || number.ndim() > out.ndim()) return false;
    if (PyArray_TYPE(condition.array) != NPY_BOOL) return false;
    if (PyArray_DESCR(number.array) != PyArray_DESCR(out.array)) return false;
    if (!PyArray_ISBEHAVED(out.array) || !PyArray_ISBEHAVED_RO(number.array)) return false;
    if (condition.ndim() > out.ndim() || PyDataType_REFCHK(PyArray_DESCR(out.array))) return false;
    if (!keeps_elements(out.array, condition.array) || !keeps_elements(out.array, number.array)) return false;
    Walked operands[3];
    operands[0].array = condition.array, operands[2].array = out.array;
    operands[1].data = PyArray_DATA(number.array);
    Walk walk;
    const auto bytes = static_cast<size_t>(PyArray_ITEMSIZE(out.array));
    if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8) return false;
    if (!walk.plan(operands, 3) || walk.size != out.size()) return false;
    if (!walk.size) return true;
    walk.merge();
    walk.tile_rows();
    WithoutGil free(walk.size);
    walk.run(1, [&](char **at, npy_intp n, const npy_intp *steps) {
        if (bytes == 1) fill_chosen<uint8_t, choose_8>(at, n, steps);
        else if (bytes == 2) fill_chosen<uint16_t, choose_16>(at, n, steps);
        else if (bytes == 4) fill_chosen<uint32_t, choose_32>(at, n, steps);
        else fill_chosen<uint64_t, choose_64>(at, n, steps);
    });
    return true;
}

} // namespace

void bind_choose(nb::module_ &m) {
    m.def("fill_where", &fill_where);
    m.def("choose_elements", &choose_elements);
    m.def("choose_else", [](nb::handle a, nb::handle b, nb::handle condition) { return choose_elements(condition, a, b); },
          nb::arg(), nb::arg(), nb::arg().none());
}

} // namespace resilin
