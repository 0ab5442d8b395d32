// Each channel of (N, C, positions) scaled and shifted by numbers of its own, and the gradients.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "kernels/rows.hpp"
#include "memory/parallel.hpp"
#include "kernels/simd.hpp"

#include <cmath>
#include <vector>

namespace resilin {
namespace {

// N samples, C channels, L positions
struct Shape {
    int64_t N = 0, C = 0, L = 1;
    explicit Shape(const ExactArray &x) : N(x.dim(0)), C(x.dim(1)) {
        for (int i = 2; i < x.ndim(); i++) L *= x.dim(i);
    }
};

RESILIN_SIMD void scale_shift(const float *x, float scale, float shift, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale + shift;
}
RESILIN_SIMD void scale_only(const float *x, float scale, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale;
}
RESILIN_SIMD float sum_row(const float *g, int64_t n) { return sum_of(g, n); }
RESILIN_SIMD float dot_row(const float *g, const float *x, int64_t n) { return dot_of(g, x, n); }

bool fits(const Array &vector, int64_t C) { return !vector || (vector.is<float>() && vector.ndim() == 1 && vector.size() == C); }

// y = x * scale + shift, channel by channel; null is 1 and 0
void scale_channels(const float *x, const Shape &s, const float *scale, const float *shift, float *y) {
    parallel_rows(s.N * s.C, s.L, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const int64_t c = row % s.C, at = row * s.L;
            const float by = scale ? scale[c] : 1.0f;
            if (shift) scale_shift(x + at, by, shift[c], s.L, y + at);
            else scale_only(x + at, by, s.L, y + at);
        }
    });
}

nb::object forward(Array x, Array weight, Array bias) {
    if (!x.is<float>() || x.ndim() < 2 || !fits(weight, x.dim(1)) || !fits(bias, x.dim(1))) return nb::none();
    NewArray<float> y(x);
    nb::object made = y.object;
    WithoutGil free(x.size());
    scale_channels(x.data<float>(), Shape(x), weight.data<float>(), bias.data<float>(), y.data);
    return made;
}

// Samples of channels of one position, and channels of several
#define RESILIN_SCALED(T)                                                                                              \
    RESILIN_SIMD void scaled_samples(const T *x, const T *scale, const T *shift, int64_t samples, int64_t C, T *y) {    \
        for (int64_t n = 0; n < samples; n++) {                                                                        \
            _Pragma("omp simd") for (int64_t c = 0; c < C; c++) y[n * C + c] = x[n * C + c] * scale[c] + shift[c];     \
        }                                                                                                              \
    }                                                                                                                  \
    RESILIN_SIMD void scaled_channel(const T *x, T scale, T shift, int64_t n, T *y) {                                  \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale + shift;                               \
    }
RESILIN_SCALED(float)
RESILIN_SCALED(double)

template <class T>
nb::object normalize_in(const Floats &x, const Floats &mean_C, const Floats &var_C, const Floats &w, const Floats &b, T eps) {
    const Shape s(x);
    nb::object made = new_like(x);
    WithoutGil free(x.size());
    const Opened<T> from(x);
    const Rounded<T> to(made, x);
    const Beside<T> mean(mean_C), var(var_C), weight(w), bias(b);
    std::vector<T> scale(static_cast<size_t>(s.C)), shift(static_cast<size_t>(s.C));
    for (int64_t c = 0; c < s.C; c++) {
        const auto i = static_cast<size_t>(c);
        scale[i] = T(1) / std::sqrt(var.data[c] + eps);
        if (weight.data) scale[i] *= weight.data[c];
        const T moved = mean.data[c] * scale[i];
        shift[i] = bias.data ? bias.data[c] - moved : -moved;
    }
    const int64_t rows = s.L == 1 ? s.N : s.N * s.C, D = s.L == 1 ? s.C : s.L;
    parallel_rows(rows, D, [&](int64_t begin, int64_t end) {
        std::vector<T> block(static_cast<size_t>(from.half() ? 2 * rows_abreast(D) * D : 0));
        T *rounded = block.data() + block.size() / 2;
        few_at_a_time(D, begin, end, [&](int64_t row, int64_t count) {
            const T *given = from.at(row * D, count * D, block.data());
            T *y = to.at(row * D, rounded);
            if (s.L == 1) scaled_samples(given, scale.data(), shift.data(), count, D, y);
            for (int64_t i = 0; s.L != 1 && i < count; i++) {
                const auto c = static_cast<size_t>((row + i) % s.C);
                scaled_channel(given + i * D, scale[c], shift[c], D, y + i * D);
            }
            to.close(row * D, count * D, rounded);
        });
    });
    return made;
}

// Each channel normalized with a mean and a variance that are given: a multiple, and what is added to it.
nb::object normalize(Floats x, Floats mean, Floats var, Floats weight, Floats bias, double eps) {
    if (!x.known() || x.ndim() < 2 || !mean || !var) return nb::none();
    for (const Floats *vector : {&mean, &var, &weight, &bias})
        if (!vector->fits(x, x.dim(1)) || (*vector && vector->ndim() != 1)) return nb::none();
    return x.type() == NPY_DOUBLE ? normalize_in<double>(x, mean, var, weight, bias, eps)
                                  : normalize_in<float>(x, mean, var, weight, bias, static_cast<float>(eps));
}

// (dx, dweight, dbias), each None unless it is needed. Sums: rows in lanes, then samples by add_partials.
nb::object backward(Array g, Array x, Array weight, bool need_x, bool need_weight, bool need_bias) {
    if (!g.is<float>() || g.ndim() < 2 || !fits(weight, g.dim(1)) || (need_weight && (!x.is<float>() || !g.same_shape(x))))
        return nb::none();
    const Shape s(g);
    nb::object dx = nb::none(), dw = nb::none(), db = nb::none();
    float *to_x = nullptr, *to_w = nullptr, *to_b = nullptr;
    auto make = [](nb::object &object, float *&data, NewArray<float> made) { object = made.object, data = made.data; };
    if (need_x) make(dx, to_x, NewArray<float>(g));
    if (need_weight) make(dw, to_w, NewArray<float>({static_cast<npy_intp>(s.C)}));
    if (need_bias) make(db, to_b, NewArray<float>({static_cast<npy_intp>(s.C)}));
    {
        WithoutGil free(g.size());
        std::vector<float> of_w(static_cast<size_t>(to_w ? s.N * s.C : 0)), of_b(static_cast<size_t>(to_b ? s.N * s.C : 0));
        parallel_rows(s.N * s.C, s.L, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; row++) {
                const float *from = g.data<float>() + row * s.L;
                if (to_x) scale_only(from, weight ? weight.data<float>()[row % s.C] : 1.0f, s.L, to_x + row * s.L);
                if (to_w) of_w[static_cast<size_t>(row)] = dot_row(from, x.data<float>() + row * s.L, s.L);
                if (to_b) of_b[static_cast<size_t>(row)] = sum_row(from, s.L);
            }
        });
        if (to_w) add_partials(of_w.data(), s.N, s.C, s.C, to_w);
        if (to_b) add_partials(of_b.data(), s.N, s.C, s.C, to_b);
    }
    return nb::make_tuple(dx, dw, db);
}

} // namespace

void bind_channels(nb::module_ &m) {
    m.def("channels_forward", &forward, nb::arg("x"), nb::arg("weight").none(), nb::arg("bias").none());
    m.def("channels_normalize", &normalize, nb::arg("x"), nb::arg("mean"), nb::arg("var"), nb::arg("weight").none(),
          nb::arg("bias").none(), nb::arg("eps"));
    m.def("channels_backward", &backward, nb::arg("g"), nb::arg("x").none(), nb::arg("weight").none(), nb::arg("need_x"),
          nb::arg("need_weight"), nb::arg("need_bias"));
}

} // namespace resilin
