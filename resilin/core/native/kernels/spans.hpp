// Kernels that compute each element from those at its place: a loop over a span of elements, shared among threads.
#pragma once
#include "binding/array.hpp"
#include "memory/parallel.hpp"

namespace resilin {

// A parameter as a float: of a Python number. Anything else is not known, so that the declared form says what is wrong.
struct Number {
    float value = 0.0f;
    double exact = 0.0;
    bool known = false;

    template <class T> T as() const { return sizeof(T) == sizeof(float) ? static_cast<T>(value) : static_cast<T>(exact); }
};

// y of the shape of x by span(x, begin, end, y); None for what is not float32.
template <class Span> nb::object forward_by(Span span, const Array &x) {
    if (!x.is<float>()) return nb::none();
    NewArray<float> y(x);
    {
        WithoutGil free(x.size());
        parallel_rows(x.size(), 1, [&](int64_t begin, int64_t end) { span(x.data<float>(), begin, end, y.data); });
    }
    return y.object;
}

// The same of float64 too, by `wide`.
template <class Span, class Wide> nb::object forward_by(Span span, Wide wide, const Array &x) {
    if (!x.is<double>()) return forward_by(span, x);
    NewArray<double> y(x);
    nb::object made = y.object;
    WithoutGil free(x.size() * 4);
    parallel_rows(x.size(), 4, [&](int64_t begin, int64_t end) { wide(x.data<double>(), begin, end, y.data); });
    return made;
}

// dx from the gradient g and what the forward kept, its input or its output, by span(g, kept, begin, end, dx); None
// where they are not float32 of one shape.
template <class Span> nb::object backward_by(Span span, const Array &g, const Array &kept) {
    if (!g.is<float>() || !kept.is<float>() || !g.same_shape(kept)) return nb::none();
    NewArray<float> dx(kept);
    {
        WithoutGil free(kept.size());
        parallel_rows(kept.size(), 1, [&](int64_t begin, int64_t end) {
            span(g.data<float>(), kept.data<float>(), begin, end, dx.data);
        });
    }
    return dx.object;
}

// `span` with further arguments
template <class Span, class... More> auto with(Span span, More... more) {
    return [=](auto... given) { span(given..., more...); };
}

template <class Span, class... Numbers> nb::object forward_with(Span span, const Array &x, Numbers... more) {
    return (more.known && ...) ? forward_by(with(span, more.value...), x) : nb::none();
}
template <class Span, class... Numbers> nb::object backward_with(Span span, const Array &g, const Array &x, Numbers... more) {
    return (more.known && ...) ? backward_by(with(span, more.value...), g, x) : nb::none();
}

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
