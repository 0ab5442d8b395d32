// Functions of one number computed in float64, of float32, float64 and 16-bit floats: see doubles.hpp's Digits.
#pragma once
#include "elementwise/doubles.hpp"
#include "kernels/spans.hpp"

namespace resilin {

#define RESILIN_SPAN(name, T, result)                                                                                  \
    RESILIN_SIMD void name##_##T(const T *X, int64_t begin, int64_t end, T *y) {                                       \
        _Pragma("omp simd") for (int64_t i = begin; i < end; i++) {                                                    \
            const double x = static_cast<double>(X[i]);                                                                \
            y[i] = static_cast<T>(result);                                                                             \
        }                                                                                                              \
    }
#define RESILIN_SPANS(name, of)                                                                                        \
    RESILIN_SPAN(name, float, of<SINGLE>(x))                                                                           \
    RESILIN_SPAN(name, double, of<DOUBLE>(x))                                                                          \
    constexpr Both name{name##_float, name##_double};

// 16-bit floats are computed as float32 and rounded again.
template <const auto &span> nb::object spanned(ExactArray x) {
    constexpr int64_t cost = 8; // of an element, beside an addition's
    const ExactArray *given[] = {&x};
    return walk_spans<1>(span.single, span.wide, given, {}, cost);
}

} // namespace resilin
