// Elementwise functions of several steps in one pass: float32 of one shape, into a new array or into one that is there.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"
#include "spans.hpp"

#include <limits>

namespace resilin {
namespace {

constexpr float INF = std::numeric_limits<float>::infinity();

struct Given {
    const float *x, *y, *z; // y and z are x where a function has fewer arguments
    float p, q, r;          // its numbers
};
using Span = void (*)(const Given &, int64_t, int64_t, float *);

// log(e^a + e^b); log(1 + e) is corrected for the rounding of 1 + e
RESILIN_INLINE float log_of_sum(float a, float b) {
    const float e = exp_low(-__builtin_fabsf(a - b)), one = 1.0f + e, rest = one - 1.0f;
    const float beyond = rest == 0.0f ? e : log_(one) * e / rest;
    return a == b ? a + 0.693147181f : (a > b ? a : b) + beyond; // infinities of one sign are equal
}

// The output may be one of the inputs, so that the loop's iterations are independent, which the compiler cannot know.
#define RESILIN_SPAN(name, result)                                                                                     \
    RESILIN_SIMD void name(const Given &given, int64_t begin, int64_t end, float *out) {                               \
        const float *X = given.x, *Y = given.y, *Z = given.z;                                                          \
        const float p = given.p, q = given.q, r = given.r;                                                             \
        (void)p, (void)q, (void)r;                                                                                     \
        _Pragma("omp simd") for (int64_t i = begin; i < end; i++) {                                                    \
            const float x = X[i], y = Y[i], z = Z[i];                                                                  \
            (void)x, (void)y, (void)z;                                                                                 \
            out[i] = result;                                                                                           \
        }                                                                                                              \
    }

RESILIN_SPAN(add_scaled, x + y * p)
RESILIN_SPAN(addcmul, x + y * p * z)
RESILIN_SPAN(addcdiv, x + y * p / z)
RESILIN_SPAN(lerp, (__builtin_fabsf(z) >= 0.5f ? y : x) + (__builtin_fabsf(z) >= 0.5f ? z - 1.0f : z) * (y - x))
RESILIN_SPAN(lerp_from_start, x + p * (y - x))
RESILIN_SPAN(lerp_from_end, y - p * (y - x)) // p is what is left of the weight
RESILIN_SPAN(nan_to_num, x != x ? p : x == INF ? q : x == -INF ? r : x)
RESILIN_SPAN(heaviside, x == 0.0f ? y : x > 0.0f ? 1.0f : 0.0f)
RESILIN_SPAN(logaddexp, log_of_sum(x, y))
RESILIN_SPAN(copysign, __builtin_copysignf(x, y))
RESILIN_SPAN(negative, -x)
RESILIN_SPAN(absolute, __builtin_fabsf(x))
RESILIN_SPAN(limit, x < p ? p : x > q ? q : x)
RESILIN_SPAN(rectify, x < 0.0f ? 0.0f : x)

// Whether writing `out` front to back, by several threads, changes nothing of `x` that is still to be read.
bool keeps(const ExactArray &out, const ExactArray &x) {
    const float *a = out.data<float>(), *b = x.data<float>();
    return a == b || a + out.size() <= b || b + x.size() <= a;
}

nb::object run(Span span, const ExactArray &out, std::initializer_list<const ExactArray *> inputs, Number p, Number q,
               Number r) {
    const ExactArray &first = **inputs.begin();
    if (!p.known || !q.known || !r.known || (out && !out.is_writable<float>())) return nb::none();
    for (const ExactArray *input : inputs) {
        if (!input->is<float>() || !input->same_shape(first)) return nb::none();
        if (out && (!out.same_shape(*input) || !keeps(out, *input))) return nb::none();
    }
    const float *at[3];
    int count = 0;
    for (const ExactArray *input : inputs) at[count++] = input->data<float>();
    for (; count < 3; count++) at[count] = at[0];
    const Given given{at[0], at[1], at[2], p.value, q.value, r.value};
    auto pass = [&](float *into) {
        WithoutGil free(first.size());
        parallel_rows(first.size(), 1, [&](int64_t begin, int64_t end) { span(given, begin, end, into); });
    };
    if (out) {
        pass(out.data<float>());
        return nb::borrow(reinterpret_cast<PyObject *>(out.array));
    }
    NewArray<float> made(first);
    pass(made.data);
    return made.object;
}

constexpr Number NONE{0.0f, true};

template <Span span> nb::object of_one(ExactArray out, ExactArray x) { return run(span, out, {&x}, NONE, NONE, NONE); }
template <Span span> nb::object of_two(ExactArray out, ExactArray x, ExactArray y) {
    return run(span, out, {&x, &y}, NONE, NONE, NONE);
}
template <Span span> nb::object of_two_by(ExactArray out, ExactArray x, ExactArray y, Number p) {
    return run(span, out, {&x, &y}, p, NONE, NONE);
}
template <Span span> nb::object of_three_by(ExactArray out, ExactArray x, ExactArray y, ExactArray z, Number p) {
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
    m.def("fused_copysign", &of_two<copysign>, nb::arg().none(), nb::arg(), nb::arg());
    m.def("fused_negative", &of_one<negative>, nb::arg().none(), nb::arg());
    m.def("fused_absolute", &of_one<absolute>, nb::arg().none(), nb::arg());
    m.def("fused_limit", &limited, nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
    m.def("fused_rectify", &of_one<rectify>, nb::arg().none(), nb::arg());
}

} // namespace resilin
