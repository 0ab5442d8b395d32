// Kernels that compute each element from those at its place: a loop over a span of elements, shared among threads.
#pragma once
#include "array.hpp"
#include "parallel.hpp"

namespace resilin {

using ForwardSpan = void (*)(const float *x, int64_t begin, int64_t end, float *y);
using BackwardSpan = void (*)(const float *g, const float *kept, int64_t begin, int64_t end, float *dx);

// y of the shape of x; None for what is not float32.
inline nb::object forward_by(ForwardSpan span, const Array &x) {
    if (!x.is<float>()) return nb::none();
    NewArray<float> y(x);
    {
        WithoutGil free(x.size());
        parallel_rows(x.size(), 1, [&](int64_t begin, int64_t end) { span(x.data<float>(), begin, end, y.data); });
    }
    return y.object;
}

// dx from the gradient g and what the forward kept, its input or its output; None where they are not float32 of one
// shape.
inline nb::object backward_by(BackwardSpan span, const Array &g, const Array &kept) {
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

} // namespace resilin
