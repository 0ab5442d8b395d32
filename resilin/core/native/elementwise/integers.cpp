// Integers: extremes and bits beside one number, shifts, and divisions. Quotients are those of floats, which are exact
// where they hold both numbers and their product with the divisor: of float32 for up to 16 bits, of float64 for 32 and,
// in blocks whose numbers are below 2^51, for 64. The divisor is not 0: who calls looks for one first.
#include "elementwise/integers.hpp"
#include "elementwise/named_loops.hpp"
#include "elementwise/doubles.hpp"
#include "binding/kernels.hpp"
#include "kernels/spans.hpp"

#include <atomic>
#include <cstring>

namespace resilin {
namespace {

#define RESILIN_LOOPS_2(name, result)                                                                                  \
    RESILIN_LOOP_2(name, int8_t, static_cast<int8_t>(result))                                                          \
    RESILIN_LOOP_2(name, uint8_t, static_cast<uint8_t>(result))                                                        \
    RESILIN_LOOP_2(name, int16_t, static_cast<int16_t>(result))                                                        \
    RESILIN_LOOP_2(name, int32_t, static_cast<int32_t>(result))                                                        \
    RESILIN_LOOP_2(name, int64_t, static_cast<int64_t>(result))

RESILIN_LOOPS_2(maximum, x > y ? x : y)
RESILIN_LOOPS_2(minimum, x < y ? x : y)
RESILIN_LOOPS_2(bitwise_and, x & y)
RESILIN_LOOPS_2(bitwise_or, x | y)
RESILIN_LOOPS_2(bitwise_xor, x ^ y)
RESILIN_LOOPS_2(heaviside, x == 0 ? y : x > 0)

// as numpy's: by the width or more, or a negative number, nothing but the sign is left
template <class T> RESILIN_INLINE T moved_left(T x, T y) {
    constexpr int BITS = 8 * sizeof(T);
    const bool inside = (y >= 0) & (y < BITS);
    return inside ? static_cast<T>(static_cast<std::make_unsigned_t<T>>(x) << (y & (BITS - 1))) : T(0);
}
template <class T> RESILIN_INLINE T moved_right(T x, T y) {
    constexpr int BITS = 8 * sizeof(T);
    const bool inside = (y >= 0) & (y < BITS);
    return static_cast<T>(x >> (inside ? y & (BITS - 1) : BITS - 1)) & (inside || x < 0 ? T(-1) : T(0));
}
RESILIN_LOOPS_2(left_shift, moved_left(x, y))
RESILIN_LOOPS_2(right_shift, moved_right(x, y))

RESILIN_INLINE float whole(float x) { return __builtin_truncf(x); }
RESILIN_INLINE double whole(double x) { return __builtin_trunc(x); }

// of floats that are whole: the quotient's whole part, and what is left
template <class F> struct Divided {
    F quotient, rest;
};
template <class F> RESILIN_INLINE Divided<F> divided(F x, F y) {
    const F quotient = whole(x / y);
    return {quotient, x - quotient * y};
}
// whether a rest, which is not 0, has another sign than its divisor
RESILIN_INLINE bool opposed(float rest, float y) { return rest * y < 0; }
RESILIN_INLINE bool opposed(double rest, double y) { return rest * y < 0; }
bool opposed(int64_t rest, int64_t y) { return rest != 0 && (rest < 0) != (y < 0); }

template <class T> struct As { // floats that hold T, and how one becomes T again, of which larger numbers keep the low bits
    using Float = float;
    RESILIN_INLINE static float of(T x) { return static_cast<float>(x); }
    RESILIN_INLINE static T back(float x) { return static_cast<T>(static_cast<int32_t>(x)); }
};
template <> struct As<int32_t> {
    using Float = double;
    RESILIN_INLINE static double of(int32_t x) { return static_cast<double>(x); }
    RESILIN_INLINE static int32_t back(double x) { return static_cast<int32_t>(bit_cast<int64_t>(x + WHOLE)); }
};
template <> struct As<int64_t> {
    using Float = double;
    RESILIN_INLINE static double of(int64_t x) { return bit_cast<double>(x + WHOLE_BITS) - WHOLE; }
    RESILIN_INLINE static int64_t back(double x) { return bit_cast<int64_t>(x + WHOLE) - WHOLE_BITS; }
};
constexpr int64_t LARGE = int64_t{1} << 51;

// One element of 64 bits, of any size. Beside -1 the quotient may overflow, and stays what it is.
struct Whole {
    int64_t quotient, rest;
};
Whole divided_exactly(int64_t x, int64_t y) {
    if (y == -1) return {static_cast<int64_t>(-static_cast<uint64_t>(x)), 0};
    return {x / y, x % y};
}

#define RESILIN_DIVISION_OF(name, T, result)                                                                           \
    RESILIN_SIMD void name##_##T(const T *X, const T *Y, int64_t n, T *out) {                                          \
        using A = As<T>;                                                                                               \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                          \
            const A::Float y = A::of(Y[i]);                                                                            \
            const auto d = divided(A::of(X[i]), y);                                                                    \
            (void)y;                                                                                                   \
            out[i] = A::back(result);                                                                                  \
        }                                                                                                              \
    }
#define RESILIN_DIVISION(name, result)                                                                                 \
    RESILIN_DIVISION_OF(name, int8_t, result)                                                                          \
    RESILIN_DIVISION_OF(name, uint8_t, result)                                                                         \
    RESILIN_DIVISION_OF(name, int16_t, result)                                                                         \
    RESILIN_DIVISION_OF(name, int32_t, result)                                                                         \
    RESILIN_DIVISION_OF(name##_small, int64_t, result)                                                                 \
    void name##_int64_t(const int64_t *X, const int64_t *Y, int64_t n, int64_t *out) {                                 \
        for (int64_t first = 0; first < n; first += BLOCK_ELEMENTS) {                                                  \
            const int64_t count = std::min<int64_t>(BLOCK_ELEMENTS, n - first), end = first + count;                   \
            if (all_small(X + first, count) && all_small(Y + first, count)) {                                          \
                name##_small_int64_t(X + first, Y + first, count, out + first);                                        \
                continue;                                                                                              \
            }                                                                                                          \
            for (int64_t i = first; i < end; i++) {                                                                    \
                const int64_t y = Y[i];                                                                                \
                const Whole d = divided_exactly(X[i], y);                                                              \
                (void)y;                                                                                               \
                out[i] = result;                                                                                       \
            }                                                                                                          \
        }                                                                                                              \
    }

RESILIN_SIMD bool all_small(const int64_t *x, int64_t n) {
    uint64_t outside = 0;
    _Pragma("omp simd reduction(| : outside)") for (int64_t i = 0; i < n; i++) {
        const int64_t sign = x[i] >> 63;
        outside |= static_cast<uint64_t>(x[i] ^ sign);
    }
    return outside < static_cast<uint64_t>(LARGE);
}

RESILIN_DIVISION(trunc_divide, d.quotient)
RESILIN_DIVISION(fmod, d.rest)
RESILIN_DIVISION(floor_divide, d.quotient - (opposed(d.rest, y) ? 1 : 0))
RESILIN_DIVISION(remainder, d.rest + (opposed(d.rest, y) ? y : 0))

#define RESILIN_OWN(name)                                                                                              \
    {#name, NPY_INT8, 2, loop_of_two<int8_t, int8_t, name##_int8_t>},                                                  \
        {#name, NPY_UINT8, 2, loop_of_two<uint8_t, uint8_t, name##_uint8_t>},                                          \
        {#name, NPY_INT16, 2, loop_of_two<int16_t, int16_t, name##_int16_t>},                                          \
        {#name, NPY_INT32, 2, loop_of_two<int32_t, int32_t, name##_int32_t>}, {                                        \
        #name, NPY_INT64, 2, loop_of_two<int64_t, int64_t, name##_int64_t>                                             \
    }

const NamedLoop OWN[] = {
    RESILIN_OWN(maximum),     RESILIN_OWN(minimum),      RESILIN_OWN(bitwise_and),  RESILIN_OWN(bitwise_or),
    RESILIN_OWN(bitwise_xor), RESILIN_OWN(heaviside),    RESILIN_OWN(left_shift),   RESILIN_OWN(right_shift),
    RESILIN_OWN(fmod),        RESILIN_OWN(trunc_divide), RESILIN_OWN(floor_divide), RESILIN_OWN(remainder),
};

#define RESILIN_LIMIT(T)                                                                                               \
    RESILIN_SIMD void limit_##T(const T *X, int64_t begin, int64_t end, T *y, T low, T high) {                         \
        _Pragma("omp simd") for (int64_t i = begin; i < end; i++) {                                                    \
            const T z = X[i] < low ? low : X[i];                                                                       \
            y[i] = z > high ? high : z;                                                                                \
        }                                                                                                              \
    }
RESILIN_LIMIT(int8_t)
RESILIN_LIMIT(uint8_t)
RESILIN_LIMIT(int16_t)
RESILIN_LIMIT(int32_t)
RESILIN_LIMIT(int64_t)

template <class T, class Limit> nb::object limit_by(Limit limit, const ExactArray &x, nb::handle low, nb::handle high, const ExactArray &out) {
    T least = std::numeric_limits<T>::min(), most = std::numeric_limits<T>::max();
    const int type = PyArray_TYPE(x.array);
    if ((!low.is_none() && !number_as(low.ptr(), type, &least)) || (!high.is_none() && !number_as(high.ptr(), type, &most)))
        return nb::none();
    Walked operands[2];
    operands[0].array = x.array, operands[1].array = out.array;
    Walk walk;
    if (!walk.plan(operands, out ? 2 : 1)) return nb::none();
    const auto span = with(limit, least, most);
    auto inner = [&](char **at, npy_intp n, const npy_intp *steps) { run_span<1, T>(span, at, n, steps); };
    if (!out) return walked_into_new(walk, PyArray_DESCR(x.array), inner);
    walk.merge();
    if (walk.size) walk.run(1, inner);
    return nb::borrow(reinterpret_cast<PyObject *>(out.array));
}

// Integers within [low, high], None for no limit, in `out`, if it is given, which may be x; None for what has no loop.
nb::object limit_integers(ExactArray x, nb::object low, nb::object high, ExactArray out) {
    if (!x || !PyArray_ISALIGNED(x.array) || !PyArray_ISNOTSWAPPED(x.array)) return nb::none();
    const int type = PyArray_TYPE(x.array);
    if (out && (PyArray_TYPE(out.array) != type || !PyArray_ISBEHAVED(out.array) || !out.same_shape(x) || !keeps_elements(out.array, x.array)))
        return nb::none();
    switch (type) {
    case NPY_INT8: return limit_by<int8_t>(limit_int8_t, x, low, high, out);
    case NPY_UINT8: return limit_by<uint8_t>(limit_uint8_t, x, low, high, out);
    case NPY_INT16: return limit_by<int16_t>(limit_int16_t, x, low, high, out);
    case NPY_INT32: return limit_by<int32_t>(limit_int32_t, x, low, high, out);
    case NPY_INT64: return limit_by<int64_t>(limit_int64_t, x, low, high, out);
    default: return nb::none();
    }
}

template <class T> bool any_zero(const char *at, npy_intp n, npy_intp step) {
    T block[BLOCK_ELEMENTS];
    for (npy_intp first = 0; first < n; first += BLOCK_ELEMENTS) {
        const npy_intp count = std::min(BLOCK_ELEMENTS, n - first);
        const T *x = gathered(at + first * step, step, count, block);
        int found = 0;
        _Pragma("omp simd reduction(| : found)") for (npy_intp i = 0; i < count; i++) found |= x[i] == 0;
        if (found) return true;
    }
    return false;
}

} // namespace

TypeLoop integer_loop(const char *name, int type, int &inputs) { return found_in(OWN, name, type, inputs); }

bool has_zero(PyArrayObject *array) {
    Walked operand;
    operand.array = array;
    Walk walk;
    if (!walk.plan(&operand, 1)) return true;
    if (!walk.size) return false;
    walk.merge();
    std::atomic<bool> found{false};
    const auto bytes = PyArray_ITEMSIZE(array);
    walk.run(1, [&](char **at, npy_intp n, const npy_intp *steps) {
        if (bytes == 8    ? any_zero<uint64_t>(at[0], n, steps[0])
            : bytes == 4  ? any_zero<uint32_t>(at[0], n, steps[0])
            : bytes == 2  ? any_zero<uint16_t>(at[0], n, steps[0])
                          : any_zero<uint8_t>(at[0], n, steps[0]))
            found.store(true, std::memory_order_relaxed);
    });
    return found;
}

void bind_integers(nb::module_ &m) {
    m.def("limit_integers", &limit_integers, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg("out") = nb::none());
}

} // namespace resilin
