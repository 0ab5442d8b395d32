// Kernels that compute each element from those at its place: a loop over a span of elements, shared among threads.
#pragma once
#include "binding/array.hpp"
#include "elementwise/blocks.hpp"
#include "elementwise/half_blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "elementwise/walk.hpp"
#include "kernels/simd.hpp"

#include <type_traits>

namespace resilin {

// A parameter as a float: of a Python number. Anything else is not known, so that the declared form says what is wrong.
struct Number {
    float value = 0.0f;
    double exact = 0.0;
    bool known = false;

    template <class T> T as() const { return sizeof(T) == sizeof(float) ? static_cast<T>(value) : static_cast<T>(exact); }
};

// One loop for n elements of each of `inputs` arrays and of the result, whose steps may be any: span(inputs.., 0, n, out).
template <int inputs, class T, class Loop> void run_span(const Loop &span, char **at, npy_intp n, const npy_intp *steps) {
    alignas(64) T block[inputs][BLOCK_ELEMENTS], made[BLOCK_ELEMENTS];
    bool flat = true;
    for (int i = 0; i <= inputs; i++) flat &= steps[i] == static_cast<npy_intp>(sizeof(T));
    const npy_intp length = flat ? n : BLOCK_ELEMENTS;
    for (npy_intp first = 0; first < n; first += length) {
        const npy_intp count = std::min(length, n - first);
        const T *x[inputs];
        for (int i = 0; i < inputs; i++) x[i] = gathered(at[i] + first * steps[i], steps[i], count, block[i]);
        char *to = at[inputs] + first * steps[inputs];
        const bool direct = steps[inputs] == static_cast<npy_intp>(sizeof(T));
        T *y = direct ? reinterpret_cast<T *>(to) : made;
        if constexpr (inputs == 1) span(x[0], 0, count, y);
        else span(x[0], x[1], 0, count, y);
        if (!direct) scattered(made, count, to, steps[inputs]);
    }
}

// The same of 16-bit floats: a block of them is widened, computed with and rounded once.
template <int inputs, class Loop>
void run_half_span(const Loop &span, bool float16, char **at, npy_intp n, const npy_intp *steps) {
    alignas(64) float wide[inputs][HALF_BLOCK], made[HALF_BLOCK];
    uint16_t bits[HALF_BLOCK];
    for (npy_intp first = 0; first < n; first += HALF_BLOCK) {
        const npy_intp count = std::min(HALF_BLOCK, n - first);
        for (int i = 0; i < inputs; i++)
            (float16 ? unpack_half : unpack_bfloat)(gathered(at[i] + first * steps[i], steps[i], count, bits), 0, count, wide[i]);
        if constexpr (inputs == 1) span(wide[0], 0, count, made);
        else span(wide[0], wide[1], 0, count, made);
        char *to = at[inputs] + first * steps[inputs];
        const bool direct = steps[inputs] == static_cast<npy_intp>(sizeof(uint16_t));
        (float16 ? pack_half : pack_bfloat)(made, 0, count, direct ? reinterpret_cast<uint16_t *>(to) : bits);
        if (!direct) scattered(bits, count, to, steps[inputs]);
    }
}

struct NoWide {}; // where there is no loop of float64

// What span(inputs.., begin, end, out) makes of arrays of one dtype and shape, in a new array of their layout, or in
// `out`: of float32, of 16-bit floats by way of it, and of float64 by `wide`, if there is one. None for all else.
template <int inputs, class Single, class Wide>
nb::object walk_spans(const Single &single, const Wide &wide, const ExactArray *const *x, const ExactArray &out, int64_t cost) {
    constexpr bool has_wide = !std::is_same_v<Wide, NoWide>;
    if (!*x[0]) return nb::none();
    const int type = PyArray_TYPE(x[0]->array);
    const bool half = type == NPY_HALF || type == bfloat16_type;
    if (!half && type != NPY_FLOAT && !(has_wide && type == NPY_DOUBLE)) return nb::none();
    Walked operands[inputs + 1];
    for (int i = 0; i < inputs; i++) {
        if (!*x[i] || PyArray_TYPE(x[i]->array) != type || !x[i]->same_shape(*x[0]) || !PyArray_ISALIGNED(x[i]->array) ||
            !PyArray_ISNOTSWAPPED(x[i]->array) || (out && !keeps_elements(out.array, x[i]->array)))
            return nb::none();
        operands[i].array = x[i]->array;
    }
    if (out && (PyArray_TYPE(out.array) != type || !PyArray_ISBEHAVED(out.array) || !out.same_shape(*x[0]))) return nb::none();
    operands[inputs].array = out.array;
    Walk walk;
    if (!walk.plan(operands, inputs + (out ? 1 : 0))) return nb::none();
    auto inner = [&](char **at, npy_intp n, const npy_intp *steps) {
        if (half) return run_half_span<inputs>(single, type == NPY_HALF, at, n, steps);
        if constexpr (has_wide)
            if (type == NPY_DOUBLE) return run_span<inputs, double>(wide, at, n, steps);
        run_span<inputs, float>(single, at, n, steps);
    };
    if (!out) return walked_into_new(walk, PyArray_DESCR(x[0]->array), inner, cost);
    walk.merge();
    if (walk.size) {
        WithoutGil free(walk.size * cost);
        walk.run(cost, inner);
    }
    return nb::borrow(reinterpret_cast<PyObject *>(out.array));
}

// y of the shape of x by span(x, begin, end, y), and of float64 by `wide`.
template <class Single, class Wide = NoWide>
nb::object forward_by(const Single &span, const Wide &wide, const ExactArray &x, const ExactArray &out = {}) {
    const ExactArray *given[] = {&x};
    return walk_spans<1>(span, wide, given, out, 1);
}
template <class Single> nb::object forward_by(const Single &span, const ExactArray &x) { return forward_by(span, NoWide{}, x); }

// dx from the gradient g and what the forward kept, its input or its output, by span(g, kept, begin, end, dx).
template <class Single, class Wide>
nb::object backward_by(const Single &span, const Wide &wide, const ExactArray &g, const ExactArray &kept) {
    const ExactArray *given[] = {&g, &kept};
    return walk_spans<2>(span, wide, given, {}, 1);
}
template <class Single> nb::object backward_by(const Single &span, const ExactArray &g, const ExactArray &kept) {
    return backward_by(span, NoWide{}, g, kept);
}

// A loop over elements of both widths: by `name_float` and `name_double`.
template <class Single, class Wide> struct Both {
    Single single;
    Wide wide;
};
template <class Single, class Wide> Both(Single, Wide) -> Both<Single, Wide>;

// `span` with further arguments
template <class Span, class... More> auto with(Span span, More... more) {
    return [=](auto... given) { span(given..., more...); };
}

template <class Span, class... Numbers> nb::object forward_with(Span span, const ExactArray &x, Numbers... more) {
    return (more.known && ...) ? forward_by(with(span, more.value...), x) : nb::none();
}
template <class Span, class... Numbers>
nb::object backward_with(Span span, const ExactArray &g, const ExactArray &x, Numbers... more) {
    return (more.known && ...) ? backward_by(with(span, more.value...), g, x) : nb::none();
}
template <class Single, class Wide, class... Numbers>
nb::object forward_with(Both<Single, Wide> span, const ExactArray &x, const ExactArray &out, Numbers... more) {
    if (!(more.known && ...)) return nb::none();
    if constexpr (std::is_same_v<Wide, NoWide>) return forward_by(with(span.single, more.value...), NoWide{}, x, out);
    else return forward_by(with(span.single, more.value...), with(span.wide, more.exact...), x, out);
}
template <class Single, class Wide, class... Numbers>
nb::object backward_with(Both<Single, Wide> span, const ExactArray &g, const ExactArray &x, Numbers... more) {
    if (!(more.known && ...)) return nb::none();
    if constexpr (std::is_same_v<Wide, NoWide>) return backward_by(with(span.single, more.value...), NoWide{}, g, x);
    else return backward_by(with(span.single, more.value...), with(span.wide, more.exact...), g, x);
}

// A loop of x, or of g and x, with `count` numbers p and q, in float and double, as a `Both`. The output may be an input,
// so that the iterations are independent, which the compiler cannot know.
#define RESILIN_NUMBERS_0(T)
#define RESILIN_NUMBERS_1(T) , T p
#define RESILIN_NUMBERS_2(T) , T p, T q
#define RESILIN_FORWARD_OF(name, T, numbers, result)                                                                   \
    RESILIN_SIMD void name##_##T(const T *X, int64_t begin, int64_t end, T *y numbers) {                               \
        _Pragma("omp simd") for (int64_t i = begin; i < end; i++) {                                                    \
            const T x = X[i];                                                                                          \
            y[i] = result;                                                                                             \
        }                                                                                                              \
    }
#define RESILIN_BACKWARD_OF(name, T, numbers, result)                                                                  \
    RESILIN_SIMD void name##_##T(const T *G, const T *X, int64_t begin, int64_t end, T *dx numbers) {                  \
        _Pragma("omp simd") for (int64_t i = begin; i < end; i++) {                                                    \
            const T g = G[i], x = X[i];                                                                                \
            dx[i] = result;                                                                                            \
        }                                                                                                              \
    }
#define RESILIN_FORWARD(name, count, result)                                                                           \
    RESILIN_FORWARD_OF(name, float, RESILIN_NUMBERS_##count(float), result)                                            \
    RESILIN_FORWARD_OF(name, double, RESILIN_NUMBERS_##count(double), result)                                          \
    constexpr Both name{name##_float, name##_double};
#define RESILIN_BACKWARD(name, count, result)                                                                          \
    RESILIN_BACKWARD_OF(name, float, RESILIN_NUMBERS_##count(float), result)                                           \
    RESILIN_BACKWARD_OF(name, double, RESILIN_NUMBERS_##count(double), result)                                         \
    constexpr Both name{name##_float, name##_double};

RESILIN_INLINE float size_of(float x) { return __builtin_fabsf(x); }
RESILIN_INLINE double size_of(double x) { return __builtin_fabs(x); }

} // namespace resilin

namespace nanobind::detail {
template <> struct type_caster<resilin::Number> {
    NB_TYPE_CASTER(resilin::Number, const_name("float"))
    bool from_python(handle source, uint32_t, cleanup_list *) noexcept {
        if (!PyFloat_Check(source.ptr()) && !PyLong_Check(source.ptr())) return true;
        value.exact = PyFloat_AsDouble(source.ptr());
        value.value = static_cast<float>(value.exact);
        value.known = !PyErr_Occurred();
        PyErr_Clear(); // too large
        return true;
    }
    static handle from_cpp(const resilin::Number &, rv_policy, cleanup_list *) noexcept { return handle(); }
};
} // namespace nanobind::detail
