// Whether two arrays are equal, and where their elements are close.
#include "binding/kernels.hpp"
#include "elementwise/blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "kernels/rows.hpp"
#include "kernels/simd.hpp"
#include "kernels/spans.hpp"

#include <atomic>

namespace resilin {
namespace {

#define RESILIN_EQUAL(T)                                                                                               \
    RESILIN_SIMD bool equal_##T(const T *x, const T *y, int64_t n) {                                                   \
        int unequal = 0;                                                                                               \
        _Pragma("omp simd reduction(| : unequal)") for (int64_t i = 0; i < n; i++) unequal |= x[i] != y[i];            \
        return !unequal;                                                                                               \
    }
RESILIN_EQUAL(uint8_t)
RESILIN_EQUAL(uint16_t)
RESILIN_EQUAL(uint32_t)
RESILIN_EQUAL(uint64_t)
RESILIN_EQUAL(float)
RESILIN_EQUAL(double)
// Of 16-bit floats, whose infinity has the bits `infinite`: equal bits of what is no NaN, or zeros of any sign.
RESILIN_SIMD bool equal_halves(const uint16_t *x, const uint16_t *y, int64_t n, uint16_t infinite) {
    int unequal = 0;
    _Pragma("omp simd reduction(| : unequal)") for (int64_t i = 0; i < n; i++) {
        const uint16_t size = x[i] & 0x7FFF;
        unequal |= (size > infinite) | ((x[i] != y[i]) & (((x[i] | y[i]) & 0x7FFF) != 0));
    }
    return !unequal;
}
bool equal_float16(const uint16_t *x, const uint16_t *y, int64_t n) { return equal_halves(x, y, n, 0x7C00); }
bool equal_bfloat16(const uint16_t *x, const uint16_t *y, int64_t n) { return equal_halves(x, y, n, 0x7F80); }

template <class T>
bool all_equal(bool (*equal)(const T *, const T *, int64_t), char **at, npy_intp n, const npy_intp *steps) {
    T blocks[2][BLOCK_ELEMENTS];
    for (npy_intp first = 0; first < n; first += BLOCK_ELEMENTS) {
        const npy_intp count = std::min(BLOCK_ELEMENTS, n - first);
        const T *x = gathered(at[0] + first * steps[0], steps[0], count, blocks[0]);
        if (!equal(x, gathered(at[1] + first * steps[1], steps[1], count, blocks[1]), count)) return false;
    }
    return true;
}

bool plan_both(Walk &walk, const ExactArray &x, const ExactArray &y) {
    Walked operands[2];
    operands[0].array = x.array;
    operands[1].array = y.array;
    for (const Walked &given : operands)
        if (!PyArray_ISALIGNED(given.array) || !PyArray_ISNOTSWAPPED(given.array)) return false;
    return walk.plan(operands, 2);
}

// Of arrays of one shape and dtype; None for dtypes that are not known here. NaN equals nothing.
nb::object equal_elements(ExactArray x, ExactArray y) {
    if (!x || !y || !x.same_shape(y)) return nb::none();
    const int type = PyArray_TYPE(x.array);
    const bool whole = PyTypeNum_ISINTEGER(type) || type == NPY_BOOL;
    if (type != PyArray_TYPE(y.array) || (!whole && !is_float_type(type))) return nb::none();
    Walk walk;
    if (!plan_both(walk, x, y)) return nb::none();
    if (!walk.size) return nb::bool_(true);
    walk.merge();
    std::atomic<bool> equal{true};
    {
        WithoutGil free(walk.size);
        const auto bytes = PyArray_ITEMSIZE(x.array);
        walk.run(1, [&](char **at, npy_intp n, const npy_intp *steps) {
            if (!equal.load(std::memory_order_relaxed)) return;
            const bool same = type == NPY_FLOAT    ? all_equal(equal_float, at, n, steps)
                              : type == NPY_DOUBLE ? all_equal(equal_double, at, n, steps)
                              : type == NPY_HALF   ? all_equal(equal_float16, at, n, steps)
                              : !whole             ? all_equal(equal_bfloat16, at, n, steps)
                              : bytes == 8         ? all_equal(equal_uint64_t, at, n, steps)
                              : bytes == 4         ? all_equal(equal_uint32_t, at, n, steps)
                              : bytes == 2         ? all_equal(equal_uint16_t, at, n, steps)
                                                   : all_equal(equal_uint8_t, at, n, steps);
            if (!same) equal.store(false, std::memory_order_relaxed);
        });
    }
    return nb::bool_(equal.load());
}

// numpy's isclose, step by step
#define RESILIN_CLOSE(T)                                                                                               \
    RESILIN_SIMD void close_##T(const T *X, const T *Y, int64_t n, uint8_t *out, T relative, T absolute, bool nans) {  \
        constexpr T MOST = std::numeric_limits<T>::max();                                                              \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                          \
            const T x = X[i], y = Y[i];                                                                                \
            const bool near = size_of(x - y) <= absolute + relative * size_of(y);                                      \
            out[i] = (near & (size_of(y) <= MOST)) | (x == y) | (nans & (x != x) & (y != y));                          \
        }                                                                                                              \
    }
RESILIN_CLOSE(float)
RESILIN_CLOSE(double)

template <class T, class Span>
void run_close(const Span &span, char **at, npy_intp n, const npy_intp *steps) {
    alignas(64) T blocks[2][BLOCK_ELEMENTS];
    uint8_t found[BLOCK_ELEMENTS];
    for (npy_intp first = 0; first < n; first += BLOCK_ELEMENTS) {
        const npy_intp count = std::min(BLOCK_ELEMENTS, n - first);
        const T *x = gathered(at[0] + first * steps[0], steps[0], count, blocks[0]);
        const T *y = gathered(at[1] + first * steps[1], steps[1], count, blocks[1]);
        char *to = at[2] + first * steps[2];
        const bool direct = steps[2] == 1;
        span(x, y, count, direct ? reinterpret_cast<uint8_t *>(to) : found);
        if (!direct) scattered(found, count, to, steps[2]);
    }
}

// Of float32 and float64, whose shapes broadcast; None for all else.
nb::object close_elements(ExactArray x, ExactArray y, Number relative, Number absolute, bool nans) {
    if (!x || !y || !relative.known || !absolute.known) return nb::none();
    if (PyArray_TYPE(x.array) != PyArray_TYPE(y.array)) return nb::none();
    const int type = PyArray_TYPE(x.array);
    if (type != NPY_FLOAT && type != NPY_DOUBLE) return nb::none();
    Walk walk;
    if (!plan_both(walk, x, y)) return nb::none();
    const auto single = [&](const float *a, const float *b, int64_t n, uint8_t *out) {
        close_float(a, b, n, out, relative.value, absolute.value, nans);
    };
    const auto wide = [&](const double *a, const double *b, int64_t n, uint8_t *out) {
        close_double(a, b, n, out, relative.exact, absolute.exact, nans);
    };
    PyArray_Descr *truth = PyArray_DescrFromType(NPY_BOOL); // which lives as long as the process
    Py_DECREF(truth);
    return walked_into_new(walk, truth, [&](char **at, npy_intp n, const npy_intp *steps) {
        if (type == NPY_FLOAT) run_close<float>(single, at, n, steps);
        else run_close<double>(wide, at, n, steps);
    });
}

} // namespace

void bind_closeness(nb::module_ &m) {
    m.def("equal_elements", &equal_elements);
    m.def("close_elements", &close_elements);
}

} // namespace resilin
