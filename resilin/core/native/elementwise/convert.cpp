// Arrays in another dtype: the conversions of C, as numpy has them; those between floats of 16 bits and others by way of
// float32.
#include "binding/kernels.hpp"
#include "elementwise/blocks.hpp"
#include "elementwise/fill.hpp"
#include "elementwise/half_blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "elementwise/walk.hpp"
#include "kernels/simd.hpp"

#include <limits>

namespace resilin {
namespace {

#define RESILIN_CONVERT(from, From, to, To)                                                                            \
    RESILIN_SIMD void from##_to_##to(const From *x, int64_t n, To *out) {                                              \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) out[i] = static_cast<To>(x[i]);                            \
    }
#define RESILIN_TO_BOOL(from, From)                                                                                    \
    RESILIN_SIMD void from##_to_bool(const From *x, int64_t n, uint8_t *out) {                                         \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) out[i] = x[i] != 0;                                        \
    }
#define RESILIN_FROM(from, From)                                                                                       \
    RESILIN_CONVERT(from, From, int8, int8_t)                                                                          \
    RESILIN_CONVERT(from, From, uint8, uint8_t)                                                                        \
    RESILIN_CONVERT(from, From, int16, int16_t)                                                                        \
    RESILIN_CONVERT(from, From, int32, int32_t)                                                                        \
    RESILIN_CONVERT(from, From, int64, int64_t)                                                                        \
    RESILIN_CONVERT(from, From, float32, float)                                                                        \
    RESILIN_CONVERT(from, From, float64, double)                                                                       \
    RESILIN_TO_BOOL(from, From)

RESILIN_FROM(bool, uint8_t)
RESILIN_FROM(int8, int8_t)
RESILIN_FROM(uint8, uint8_t)
RESILIN_FROM(int16, int16_t)
RESILIN_FROM(int32, int32_t)
RESILIN_FROM(int64, int64_t)
RESILIN_FROM(float32, float)
RESILIN_FROM(float64, double)

// int64 as float, which only AVX-512 has an instruction for: numbers of less than 51 bits by way of float64, exactly,
// whose last bits the integer becomes beside 1.5 * 2^52; a block with larger ones one by one.
RESILIN_SIMD bool small_to_float32(const int64_t *x, int64_t n, float *out) {
    uint64_t outside = 0;
    _Pragma("omp simd reduction(| : outside)") for (int64_t i = 0; i < n; i++) {
        outside |= static_cast<uint64_t>(x[i]) + (uint64_t{1} << 50);
        const uint64_t bits = static_cast<uint64_t>(x[i]) + 0x4338000000000000u;
        out[i] = static_cast<float>(bit_cast<double>(bits) - 6755399441055744.0);
    }
    return !(outside >> 51);
}
RESILIN_SIMD bool small_to_float64(const int64_t *x, int64_t n, double *out) {
    uint64_t outside = 0;
    _Pragma("omp simd reduction(| : outside)") for (int64_t i = 0; i < n; i++) {
        outside |= static_cast<uint64_t>(x[i]) + (uint64_t{1} << 50);
        out[i] = bit_cast<double>(static_cast<uint64_t>(x[i]) + 0x4338000000000000u) - 6755399441055744.0;
    }
    return !(outside >> 51);
}
template <class To, bool (*small)(const int64_t *, int64_t, To *), void (*any)(const int64_t *, int64_t, To *)>
void from_int64(const int64_t *x, int64_t n, To *out) {
    for (int64_t first = 0; first < n; first += BLOCK_ELEMENTS) {
        const int64_t count = std::min<int64_t>(BLOCK_ELEMENTS, n - first);
        if (!small(x + first, count, out + first)) any(x + first, count, out + first);
    }
}

struct Conversion {
    int from, to;
    Loop loop;
};

#define RESILIN_ROW(number, from, From)                                                                                \
    {number, NPY_BYTE, loop_of_one<From, int8_t, from##_to_int8>},                                                     \
        {number, NPY_UBYTE, loop_of_one<From, uint8_t, from##_to_uint8>},                                              \
        {number, NPY_SHORT, loop_of_one<From, int16_t, from##_to_int16>},                                              \
        {number, NPY_INT, loop_of_one<From, int32_t, from##_to_int32>},                                                \
        {number, NPY_LONG, loop_of_one<From, int64_t, from##_to_int64>},                                               \
        {number, NPY_FLOAT, loop_of_one<From, float, from##_to_float32>},                                              \
        {number, NPY_DOUBLE, loop_of_one<From, double, from##_to_float64>}, {                                          \
        number, NPY_BOOL, loop_of_one<From, uint8_t, from##_to_bool>                                                   \
    }

const Conversion CONVERSIONS[] = {
    {NPY_LONG, NPY_FLOAT, loop_of_one<int64_t, float, from_int64<float, small_to_float32, int64_to_float32>>},
    {NPY_LONG, NPY_DOUBLE, loop_of_one<int64_t, double, from_int64<double, small_to_float64, int64_to_float64>>},
    RESILIN_ROW(NPY_BOOL, bool, uint8_t),   RESILIN_ROW(NPY_BYTE, int8, int8_t),
    RESILIN_ROW(NPY_UBYTE, uint8, uint8_t), RESILIN_ROW(NPY_SHORT, int16, int16_t),
    RESILIN_ROW(NPY_INT, int32, int32_t),   RESILIN_ROW(NPY_LONG, int64, int64_t),
    RESILIN_ROW(NPY_FLOAT, float32, float), RESILIN_ROW(NPY_DOUBLE, float64, double),
};
static_assert(sizeof(npy_long) == sizeof(int64_t), "the names of dtypes above are those of 64-bit systems");

// float64 as float32 that rounds to the same float16: what it has beyond the digits of float32 becomes their last bit.
RESILIN_SIMD void rounded_to_odd(const double *x, int64_t n, float *out) {
    constexpr uint64_t BEYOND = (uint64_t{1} << 29) - 1;
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {
        const uint64_t bits = bit_cast<uint64_t>(x[i]), last = (bits & BEYOND) + BEYOND; // a carry, if there are any
        out[i] = static_cast<float>(bit_cast<double>((bits | last) & ~BEYOND));
    }
}

Loop conversion(int from, int to) {
    for (const Conversion &known : CONVERSIONS)
        if (known.from == from && known.to == to) return known.loop;
    return nullptr;
}

// float32 between: of `first`, if there is one, then `second`, if there is one; the outer ends may be of 16 bits.
struct Steps {
    Loop first, second;
    int from, to; // dtypes

    void run(char **at, npy_intp n, const npy_intp *steps) const {
        alignas(64) float between[HALF_BLOCK];
        const npy_intp size = sizeof(float);
        for (npy_intp start = 0; start < n; start += HALF_BLOCK) {
            npy_intp count = std::min(HALF_BLOCK, n - start);
            char *x = at[0] + start * steps[0], *y = at[1] + start * steps[1];
            const float *wide = between;
            if (first) {
                if (from == NPY_FLOAT) wide = gathered(x, steps[0], count, between);
                else {
                    char *ends[] = {x, reinterpret_cast<char *>(between)};
                    const npy_intp by[] = {steps[0], size};
                    first(ends, &count, by, nullptr);
                }
            } else {
                uint16_t bits[HALF_BLOCK];
                const uint16_t *narrow = gathered(x, steps[0], count, bits);
                (from == NPY_HALF ? unpack_half : unpack_bfloat)(narrow, 0, count, between);
            }
            if (second) {
                char *ends[] = {reinterpret_cast<char *>(between), y};
                const npy_intp by[] = {size, steps[1]};
                second(ends, &count, by, nullptr);
            } else {
                uint16_t bits[HALF_BLOCK];
                const bool direct = steps[1] == sizeof(uint16_t);
                uint16_t *narrow = direct ? reinterpret_cast<uint16_t *>(y) : bits;
                (to == NPY_HALF ? pack_half : pack_bfloat)(wide, 0, count, narrow);
                if (!direct) scattered(bits, count, y, steps[1]);
            }
        }
    }
};

bool is_half(int type) { return type == NPY_HALF || type == bfloat16_type; }

// None for what numpy has to convert.
nb::object convert_elements(ExactArray x, nb::handle dtype) {
    if (!x || !PyArray_DescrCheck(dtype.ptr()) || !PyArray_ISALIGNED(x.array) || !PyArray_ISNOTSWAPPED(x.array))
        return nb::none();
    auto *descr = reinterpret_cast<PyArray_Descr *>(dtype.ptr());
    const int from = PyArray_TYPE(x.array), to = descr->type_num;
    if (from == to) return nb::none();
    const bool narrow = is_half(from), narrows = is_half(to);
    const Loop whole = narrow || narrows ? nullptr : conversion(from, to);
    const Loop widened = to == NPY_HALF && from == NPY_DOUBLE ? loop_of_one<double, float, rounded_to_odd> : conversion(from, NPY_FLOAT);
    const Steps steps{narrow ? nullptr : widened, narrows ? nullptr : conversion(NPY_FLOAT, to), from, to};
    if (narrow || narrows ? (!narrow && !steps.first) || (!narrows && !steps.second) : !whole) return nb::none();
    Walked operand;
    operand.array = x.array;
    Walk walk;
    if (!walk.plan(&operand, 1)) return nb::none();
    return walked_into_new(walk, descr, [&](char **at, npy_intp n, const npy_intp *by) {
        if (whole) whole(at, &n, by, nullptr);
        else steps.run(at, n, by);
    });
}

// `steps` numbers from `first` to `last`, each counted from the nearer end in float64 and rounded (ops/creation.py).
#define RESILIN_LINE(T)                                                                                                \
    RESILIN_SIMD void near_##T(double first, double step, int64_t begin, int64_t end, T *out) {                        \
        for (int64_t i = begin; i < end; i++)                                                                          \
            out[i] = static_cast<T>(static_cast<double>(static_cast<int32_t>(i)) * step + first);                      \
    }                                                                                                                  \
    RESILIN_SIMD void far_##T(double last, double step, int64_t most, int64_t begin, int64_t end, T *out) {            \
        for (int64_t i = begin; i < end; i++)                                                                          \
            out[i] = static_cast<T>(last - static_cast<double>(static_cast<int32_t>(most - i)) * step);                \
    }
RESILIN_LINE(float)
RESILIN_LINE(double)

template <class T, class Near, class Far>
nb::object line_of(Near near, Far far, double first, double last, int64_t steps) {
    NewArray<T> made({static_cast<npy_intp>(steps)});
    const double step = (last - first) / static_cast<double>(steps - 1);
    const int64_t half = steps / 2;
    T *out = made.data;
    WithoutGil free(steps);
    parallel_rows(steps, 1, [=](int64_t begin, int64_t end) {
        near(first, step, begin, std::min(half, end), out);
        far(last, step, steps - 1, std::max(half, begin), end, out);
    });
    return made.object;
}

nb::object line(double first, double last, int64_t steps, bool wide) {
    if (steps < 2 || steps > std::numeric_limits<int32_t>::max()) return nb::none();
    if (wide) return line_of<double>(near_double, far_double, first, last, steps);
    return line_of<float>(near_float, far_float, first, last, steps);
}

RESILIN_SIMD void count_up(int64_t first, int64_t step, int64_t begin, int64_t end, int64_t *out) {
    for (int64_t i = begin; i < end; i++) out[i] = first + i * step;
}
RESILIN_SIMD void count_by_one(int64_t first, int64_t begin, int64_t end, int64_t *out) {
    for (int64_t i = begin; i < end; i++) out[i] = first + i;
}

void count_all(int64_t first, int64_t step, int64_t count, int64_t *out) {
    WithoutGil free(count);
    parallel_rows(count, 1, [=](int64_t begin, int64_t end) {
        if (step == 1) count_by_one(first, begin, end, out);
        else count_up(first, step, begin, end, out);
    });
}

// `count` integers from `first` on in steps of `step`, which int64 holds.
nb::object counted(int64_t first, int64_t step, int64_t count) {
    NewArray<int64_t> made({static_cast<npy_intp>(count)});
    count_all(first, step, count, made.data);
    return made.object;
}

} // namespace

void count_from_zero(int64_t *out, int64_t count) { count_all(0, 1, count, out); }

void bind_convert(nb::module_ &m) {
    m.def("convert_elements", &convert_elements);
    m.def("line", &line);
    m.def("counted", &counted);
}

} // namespace resilin
