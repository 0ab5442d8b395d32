// Elementwise functions of several steps in one pass: float32 of one shape, into a new array or into one that is there.
// 16-bit floats are computed with in float32, a block at a time, and rounded once.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "elementwise/fused.hpp"
#include "elementwise/half_blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "memory/parallel.hpp"
#include "kernels/simd.hpp"

#include <limits>

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
RESILIN_SPAN(limit, x < p ? p : x > q ? q : x)

void run_halves(Span<float> span, const Given<float> &numbers, const uint16_t *const *inputs, int count, bool float16, int64_t begin,
                int64_t end, uint16_t *out) {
    alignas(64) float in[3][HALF_BLOCK], found[HALF_BLOCK];
    const auto convert = float16 ? unpack_half : unpack_bfloat;
    Given<float> given = numbers;
    given.x = in[0], given.y = count > 1 ? in[1] : in[0], given.z = count > 2 ? in[2] : in[0];
    for (int64_t first = begin; first < end; first += HALF_BLOCK) {
        const int64_t n = std::min<int64_t>(HALF_BLOCK, end - first);
        for (int i = 0; i < count; i++) convert(inputs[i] + first, 0, n, in[i]);
        span(given, 0, n, found);
        (float16 ? pack_half : pack_bfloat)(found, 0, n, out + first);
    }
}

template <class T>
void run_of_type(Span<T> span, const void *const *at, const Number *numbers, int64_t size, void *into) {
    const auto *x = static_cast<const T *>(at[0]), *y = static_cast<const T *>(at[1]), *z = static_cast<const T *>(at[2]);
    const Given<T> given{x, y ? y : x, z ? z : x, numbers[0].as<T>(), numbers[1].as<T>(), numbers[2].as<T>()};
    parallel_rows(size, 1, [&](int64_t begin, int64_t end) { span(given, begin, end, static_cast<T *>(into)); });
}

// Whether an array is one that runs can be of, contiguous and of type `type`.
bool is_plain(const ExactArray &x, int type) {
    return x && PyArray_TYPE(x.array) == type && PyArray_ISCARRAY_RO(x.array) && PyArray_ISNOTSWAPPED(x.array);
}

nb::object run(const Spans &spans, const ExactArray &out, std::initializer_list<const ExactArray *> inputs, Number p,
               Number q, Number r) {
    const ExactArray &first = **inputs.begin();
    if (!first || !p.known || !q.known || !r.known) return nb::none();
    const int type = PyArray_TYPE(first.array);
    const bool half = type == NPY_HALF || type == bfloat16_type, wide = type == NPY_DOUBLE && spans.wide;
    if (!half && !wide && type != NPY_FLOAT) return nb::none();
    if (out && !(is_plain(out, type) && PyArray_ISWRITEABLE(out.array))) return nb::none();
    const void *at[3] = {};
    int count = 0;
    for (const ExactArray *input : inputs) {
        if (!is_plain(*input, type) || !input->same_shape(first)) return nb::none();
        if (out && (!out.same_shape(*input) || !keeps_elements(out.array, input->array))) return nb::none();
        at[count++] = PyArray_DATA(input->array);
    }
    nb::object made;
    if (out) {
        made = nb::borrow(reinterpret_cast<PyObject *>(out.array));
    } else {
        PyArray_Descr *descr = PyArray_DESCR(first.array);
        Py_INCREF(descr);
        made = nb::steal(PyArray_NewFromDescr(&PyArray_Type, descr, first.ndim(), PyArray_DIMS(first.array), nullptr, nullptr,
                                              0, nullptr));
        if (!made.ptr()) throw nb::python_error();
    }
    void *into = PyArray_DATA(reinterpret_cast<PyArrayObject *>(made.ptr()));
    const Number numbers[3] = {p, q, r};
    WithoutGil free(first.size());
    if (wide) {
        run_of_type<double>(spans.wide, at, numbers, first.size(), into);
    } else if (!half) {
        run_of_type<float>(spans.single, at, numbers, first.size(), into);
    } else {
        const uint16_t *const bits[3] = {static_cast<const uint16_t *>(at[0]), static_cast<const uint16_t *>(at[1]),
                                         static_cast<const uint16_t *>(at[2])};
        const Given<float> given{nullptr, nullptr, nullptr, p.value, q.value, r.value};
        parallel_rows(first.size(), 2, [&](int64_t begin, int64_t end) {
            run_halves(spans.single, given, bits, count, type == NPY_HALF, begin, end, static_cast<uint16_t *>(into));
        });
    }
    return made;
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
    m.def("fused_limit", &limited, nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
}

} // namespace resilin
