// Elementwise functions of several steps in one pass: floats of shapes that broadcast, into a new array or into one
// that is there. 16-bit floats are computed with in float32, a block at a time, and rounded once.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "elementwise/blocks.hpp"
#include "elementwise/fused.hpp"
#include "elementwise/half_blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "elementwise/walk.hpp"
#include "kernels/simd.hpp"

#include <limits>
#include <type_traits>

namespace resilin {
namespace {

template <class T> struct Given {
    const T *x, *y, *z; // y and z are x where a function has fewer arguments
    T p, q, r;          // its numbers
};
template <class T> using Span = void (*)(const Given<T> &, int64_t, int64_t, T *);
struct Spans {
    Span<float> single;
    Span<double> wide; // or null
};

// log(e^a + e^b); log(1 + e) is corrected for the rounding of 1 + e
RESILIN_INLINE float log_of_sum(float a, float b) {
    const float e = exp_low(-__builtin_fabsf(a - b)), one = 1.0f + e, rest = one - 1.0f;
    const float beyond = rest == 0.0f ? e : log_(one) * e / rest;
    return a == b ? a + 0.693147181f : (a > b ? a : b) + beyond; // infinities of one sign are equal
}

// The output may be one of the inputs, so that the loop's iterations are independent, which the compiler cannot know.
#define RESILIN_SPAN_OF(name, T, result)                                                                               \
    RESILIN_SIMD void name##_##T(const Given<T> &given, int64_t begin, int64_t end, T *out) {                          \
        constexpr T INF = std::numeric_limits<T>::infinity();                                                          \
        const T *X = given.x, *Y = given.y, *Z = given.z;                                                              \
        const T p = given.p, q = given.q, r = given.r;                                                                 \
        (void)p, (void)q, (void)r, (void)INF;                                                                          \
        _Pragma("omp simd") for (int64_t i = begin; i < end; i++) {                                                    \
            const T x = X[i], y = Y[i], z = Z[i];                                                                      \
            (void)x, (void)y, (void)z;                                                                                 \
            out[i] = result;                                                                                           \
        }                                                                                                              \
    }
#define RESILIN_SPAN(name, result)                                                                                     \
    RESILIN_SPAN_OF(name, float, result)                                                                               \
    RESILIN_SPAN_OF(name, double, result)                                                                              \
    constexpr Spans name{name##_float, name##_double};

RESILIN_INLINE float size_of(float x) { return __builtin_fabsf(x); }
RESILIN_INLINE double size_of(double x) { return __builtin_fabs(x); }

RESILIN_SPAN(add_scaled, x + y * p)
RESILIN_SPAN(addcmul, x + y * p * z)
RESILIN_SPAN(addcdiv, x + y * p / z)
RESILIN_SPAN(lerp, (size_of(z) >= 0.5f ? y : x) + (size_of(z) >= 0.5f ? z - 1 : z) * (y - x))
RESILIN_SPAN(lerp_from_start, x + p * (y - x))
RESILIN_SPAN(lerp_from_end, y - p * (y - x)) // p is what is left of the weight
RESILIN_SPAN(nan_to_num, x != x ? p : x == INF ? q : x == -INF ? r : x)
RESILIN_SPAN(heaviside, x == 0 ? y : static_cast<decltype(x + y)>(x > 0 ? 1 : 0))
RESILIN_SPAN_OF(logaddexp, float, log_of_sum(x, y))
constexpr Spans logaddexp{logaddexp_float, nullptr};
// x * 2 ** y of one number y for all: a power in float64, which three of float32 are the sum of; or as ldexp's steps
RESILIN_SPAN_OF(ldexp, float,
                static_cast<float>(x * (static_cast<double>(p) + static_cast<double>(q) + static_cast<double>(r))))
RESILIN_SPAN_OF(ldexp, double, x * p * p * p * q)
constexpr Spans scaled{ldexp_float, ldexp_double};
template <class T> RESILIN_INLINE T at_least(T x, T p) { return p > x ? p : x; } // one instruction each; NaN stays
template <class T> RESILIN_INLINE T at_most(T x, T q) { return q < x ? q : x; }
RESILIN_SPAN(limit, at_most(at_least(x, p), q))

// `span` over a run of elements, whose steps may be any: a block at a time, where they are not one after the other, or
// where they are 16-bit floats.
template <class T, class Stored>
void run_blocks_of(Span<T> span, Given<T> given, int count, bool float16, char **at, npy_intp n, const npy_intp *steps) {
    constexpr bool half = !std::is_same_v<T, Stored>;
    constexpr npy_intp BYTES = sizeof(Stored);
    alignas(64) T in[3][BLOCK_ELEMENTS], found[BLOCK_ELEMENTS];
    Stored bits[BLOCK_ELEMENTS];
    bool whole = !half;
    for (int i = 0; i <= count; i++) whole &= steps[i] == BYTES;
    const npy_intp length = whole ? n : BLOCK_ELEMENTS;
    for (npy_intp first = 0; first < n; first += length) {
        const npy_intp block = std::min(length, n - first);
        const T *x[3];
        for (int i = 0; i < count; i++) {
            x[i] = in[i];
            if (!steps[i] && first) continue; // one number, which is there
            const char *from = at[i] + first * steps[i];
            if constexpr (half)
                (float16 ? unpack_half : unpack_bfloat)(gathered(from, steps[i], block, bits), 0, block, in[i]);
            else x[i] = gathered(from, steps[i], block, in[i]);
        }
        given.x = x[0], given.y = x[count > 1 ? 1 : 0], given.z = x[count > 2 ? 2 : 0];
        char *to = at[count] + first * steps[count];
        const bool direct = steps[count] == BYTES;
        if constexpr (half) {
            span(given, 0, block, found);
            (float16 ? pack_half : pack_bfloat)(found, 0, block, direct ? reinterpret_cast<uint16_t *>(to) : bits);
            if (!direct) scattered(bits, block, to, steps[count]);
        } else {
            span(given, 0, block, direct ? reinterpret_cast<T *>(to) : found);
            if (!direct) scattered(found, block, to, steps[count]);
        }
    }
}

nb::object run(const Spans &spans, const ExactArray &out, std::initializer_list<const ExactArray *> inputs, Number p,
               Number q, Number r) {
    const ExactArray &first = **inputs.begin();
    if (!first || !p.known || !q.known || !r.known) return nb::none();
    const int type = PyArray_TYPE(first.array), count = static_cast<int>(inputs.size());
    const bool half = type == NPY_HALF || type == bfloat16_type, wide = type == NPY_DOUBLE && spans.wide;
    if (!half && !wide && type != NPY_FLOAT) return nb::none();
    if (out && (PyArray_TYPE(out.array) != type || !PyArray_ISBEHAVED(out.array))) return nb::none();
    Walked operands[WALK_OPERANDS];
    int found = 0;
    for (const ExactArray *input : inputs) {
        if (!*input || PyArray_TYPE(input->array) != type || !PyArray_ISALIGNED(input->array)) return nb::none();
        if (!PyArray_ISNOTSWAPPED(input->array)) return nb::none();
        if (out && (input->ndim() > out.ndim() || !keeps_elements(out.array, input->array))) return nb::none();
        operands[found++].array = input->array;
    }
    operands[count].array = out.array;
    Walk walk;
    if (!walk.plan(operands, count + (out ? 1 : 0)) || (out && walk.size != out.size())) return nb::none();
    const Given<float> single{nullptr, nullptr, nullptr, p.value, q.value, r.value};
    const Given<double> twice{nullptr, nullptr, nullptr, p.exact, q.exact, r.exact};
    const auto inner = [&](char **at, npy_intp n, const npy_intp *steps) {
        if (wide) run_blocks_of<double, double>(spans.wide, twice, count, false, at, n, steps);
        else if (half) run_blocks_of<float, uint16_t>(spans.single, single, count, type == NPY_HALF, at, n, steps);
        else run_blocks_of<float, float>(spans.single, single, count, false, at, n, steps);
    };
    const int64_t cost = half ? 3 : 1;
    if (!out) return walked_into_new(walk, PyArray_DESCR(first.array), inner, cost);
    if (walk.size) {
        walk.merge();
        walk.tile_rows();
        WithoutGil free(walk.size * cost);
        walk.run(cost, inner);
    }
    return nb::borrow(reinterpret_cast<PyObject *>(out.array));
}

constexpr Number NONE{0.0f, 0.0, true};

template <const Spans &span> nb::object of_two(ExactArray out, ExactArray x, ExactArray y) {
    return run(span, out, {&x, &y}, NONE, NONE, NONE);
}
template <const Spans &span> nb::object of_two_by(ExactArray out, ExactArray x, ExactArray y, Number p) {
    return run(span, out, {&x, &y}, p, NONE, NONE);
}
template <const Spans &span> nb::object of_three_by(ExactArray out, ExactArray x, ExactArray y, ExactArray z, Number p) {
    return run(span, out, {&x, &y, &z}, p, NONE, NONE);
}
nb::object of_three(ExactArray out, ExactArray x, ExactArray y, ExactArray z) {
    return run(lerp, out, {&x, &y, &z}, NONE, NONE, NONE);
}
nb::object limited(ExactArray out, ExactArray x, Number low, Number high) {
    return low.value <= high.value ? run(limit, out, {&x}, low, high, NONE) : nb::none(); // one after the other, they cross
}
nb::object replaced(ExactArray out, ExactArray x, Number nan, Number high, Number low) {
    return run(nan_to_num, out, {&x}, nan, high, low);
}
nb::object of_one_by_three(ExactArray out, ExactArray x, Number p, Number q, Number r) {
    return run(scaled, out, {&x}, p, q, r);
}

} // namespace

bool fuse_into(Fused function, PyArrayObject *out, PyArrayObject *const *inputs, int count, Number p, Number q) {
    static const Spans *const SPANS[] = {&add_scaled, &addcmul, &addcdiv, &lerp_from_start, &lerp_from_end, &limit};
    const Spans &spans = *SPANS[static_cast<int>(function)];
    const ExactArray into{out}, x{inputs[0]}, y{inputs[count > 1]}, z{inputs[count > 2 ? 2 : 0]};
    if (function == Fused::limit) return !limited(into, x, p, q).is_none();
    if (count == 2) return !run(spans, into, {&x, &y}, p, q, NONE).is_none();
    return !run(spans, into, {&x, &y, &z}, p, q, NONE).is_none();
}

void bind_fused(nb::module_ &m) {
    m.def("fused_add_scaled", &of_two_by<add_scaled>, nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
    m.def("fused_addcmul", &of_three_by<addcmul>, nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
    m.def("fused_addcdiv", &of_three_by<addcdiv>, nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
    m.def("fused_lerp", &of_three, nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
    m.def("fused_lerp_from_start", &of_two_by<lerp_from_start>, nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
    m.def("fused_lerp_from_end", &of_two_by<lerp_from_end>, nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
    m.def("fused_nan_to_num", &replaced, nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
    m.def("fused_heaviside", &of_two<heaviside>, nb::arg().none(), nb::arg(), nb::arg());
    m.def("fused_logaddexp", &of_two<logaddexp>, nb::arg().none(), nb::arg(), nb::arg());
    m.def("fused_ldexp", &of_one_by_three, nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
    m.def("fused_limit", &limited, nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
}

} // namespace resilin
