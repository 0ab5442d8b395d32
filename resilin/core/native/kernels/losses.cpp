// Losses of two arrays, and of scores and classes, with their reduction in one pass. What is summed is made a piece at
// a time, in the steps of the functions of several steps, so that the bits are theirs; 16-bit floats in float32, rounded
// once.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "elementwise/double_logarithms.hpp"
#include "elementwise/half_blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "kernels/halves.hpp"
#include "kernels/spans.hpp"
#include "reduce/pairwise.hpp"
#include "simd.hpp"

#include <atomic>
#include <limits>
#include <vector>

namespace resilin {
namespace {

enum Reduction { NONE, MEAN, SUM };
enum Kind { SQUARE, ABSOLUTE, SMOOTH, LOGITS, MARGIN };

RESILIN_INLINE float size_of(float x) { return __builtin_fabsf(x); }
RESILIN_INLINE double size_of(double x) { return __builtin_fabs(x); }

// log(1 + e^-|z|); log(1 + e) is corrected for the rounding of 1 + e
RESILIN_INLINE float beyond_of(float z) {
    const float e = exp_low(-__builtin_fabsf(z)), one = 1.0f + e, rest = one - 1.0f;
    return rest == 0.0f ? e : log_(one) * e / rest; // NaN: e is
}
RESILIN_INLINE double beyond_of(double z) { return log1p_(exp_(-__builtin_fabs(z)), 0.0); }

template <class T> RESILIN_INLINE void logit_losses_of(const T *x, const T *t, int64_t n, T *out) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = (x[i] > T(0) ? x[i] : T(0)) - x[i] * t[i] + beyond_of(x[i]);
}
template <class T> RESILIN_INLINE void margin_losses_of(const T *x, const T *t, int64_t n, T *out) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const T z = -t[i] * x[i];
        out[i] = (z > T(0) ? z : T(0)) + beyond_of(z);
    }
}

// Of differences of x and t; of logits x and probabilities t; of margins of scores x and signs t. Smooth ones are square
// below `beta`.
template <class T> RESILIN_INLINE void losses_of(int kind, const T *x, const T *t, int64_t n, T beta, T scale, T *out) {
    const T half = T(0.5) / beta;
    if (kind == SQUARE) {
        for (int64_t i = 0; i < n; i++) out[i] = (x[i] - t[i]) * (x[i] - t[i]);
    } else if (kind == ABSOLUTE) {
        for (int64_t i = 0; i < n; i++) out[i] = size_of(x[i] - t[i]);
    } else if (kind == LOGITS) {
        logit_losses_of(x, t, n, out);
    } else if (kind == MARGIN) {
        margin_losses_of(x, t, n, out);
    } else {
        for (int64_t i = 0; i < n; i++) {
            const T size = size_of(x[i] - t[i]), small = size > beta ? beta : size;
            out[i] = (small * small * half + (size - small)) * scale;
        }
    }
}
RESILIN_SIMD void losses(int kind, const float *x, const float *t, int64_t n, float beta, float scale, float *out) {
    losses_of(kind, x, t, n, beta, scale, out);
}
RESILIN_SIMD void losses(int kind, const double *x, const double *t, int64_t n, double beta, double scale, double *out) {
    losses_of(kind, x, t, n, beta, scale, out);
}

bool is_float(int type) { return type == NPY_FLOAT || type == NPY_DOUBLE || type == NPY_HALF || type == bfloat16_type; }
bool is_plain(const ExactArray &x) { return x && PyArray_ISCARRAY_RO(x.array) && PyArray_ISNOTSWAPPED(x.array); }

// A new array of x's dtype
nb::object like(const ExactArray &x, int ndim, const npy_intp *dims) {
    PyArray_Descr *descr = PyArray_DESCR(x.array);
    Py_INCREF(descr);
    nb::object made = nb::steal(PyArray_NewFromDescr(&PyArray_Type, descr, ndim, dims, nullptr, nullptr, 0, nullptr));
    if (!made.ptr()) throw nb::python_error();
    return made;
}
template <class T> T *elements(const nb::object &made) {
    return static_cast<T *>(PyArray_DATA(reinterpret_cast<PyArrayObject *>(made.ptr())));
}

// `fill(begin, end, out)` makes losses; stored, or reduced to one number
template <class T, class Fill> void reduce_or_store(const Fill &fill, int64_t n, int reduction, T *y) {
    if (reduction == NONE) return parallel_rows(n, 1, [&](int64_t begin, int64_t end) { fill(begin, end, y + begin); });
    auto read = [&](int64_t begin, int64_t end, T *scratch) -> const T * {
        fill(begin, end, scratch);
        return scratch;
    };
    pairwise_rows(read, 1, n, 2, Summed::elements, y);
    if (reduction == MEAN) *y /= static_cast<T>(n);
}

template <class T>
void of_type(int kind, const ExactArray &x, const ExactArray &t, T beta, T scale, int reduction, T *y) {
    const T *xs = x.data<T>(), *ts = t.data<T>();
    auto fill = [=](int64_t begin, int64_t end, T *out) {
        losses(kind, xs + begin, ts + begin, end - begin, beta, scale, out);
    };
    reduce_or_store(fill, x.size(), reduction, y);
}

void of_halves(int kind, const ExactArray &x, const ExactArray &t, bool float16, float beta, float scale, int reduction,
               uint16_t *y) {
    const uint16_t *xs = x.data<uint16_t>(), *ts = t.data<uint16_t>();
    const auto unpack = float16 ? unpack_half : unpack_bfloat;
    const auto pack = float16 ? pack_half : pack_bfloat;
    auto fill = [=](int64_t begin, int64_t end, float *out) {
        alignas(64) float a[AT_ONCE], b[AT_ONCE];
        for (int64_t i = begin; i < end; i += AT_ONCE) {
            const int64_t n = std::min(AT_ONCE, end - i);
            unpack(xs + i, 0, n, a);
            unpack(ts + i, 0, n, b);
            losses(kind, a, b, n, beta, scale, out + (i - begin));
        }
    };
    if (reduction != NONE) {
        float found;
        reduce_or_store(fill, x.size(), reduction, &found);
        return pack(&found, 0, 1, y);
    }
    parallel_rows(x.size(), 2, [&](int64_t begin, int64_t end) {
        alignas(64) float found[AT_ONCE];
        for (int64_t i = begin; i < end; i += AT_ONCE) {
            const int64_t n = std::min(AT_ONCE, end - i);
            fill(i, i + n, found);
            pack(found, 0, n, y + i);
        }
    });
}

nb::object loss_of_difference(int kind, ExactArray x, ExactArray t, Number beta, Number scale, int reduction) {
    if (!is_plain(x) || !is_plain(t) || !x.same_shape(t) || !x.size() || !beta.known || !scale.known) return nb::none();
    const int type = PyArray_TYPE(x.array);
    if (!is_float(type) || PyArray_TYPE(t.array) != type) return nb::none();
    nb::object made = like(x, reduction == NONE ? x.ndim() : 0, PyArray_DIMS(x.array));
    WithoutGil free(x.size());
    if (type == NPY_FLOAT) of_type<float>(kind, x, t, beta.value, scale.value, reduction, elements<float>(made));
    else if (type == NPY_DOUBLE) of_type<double>(kind, x, t, beta.exact, scale.exact, reduction, elements<double>(made));
    else of_halves(kind, x, t, type == NPY_HALF, beta.value, scale.value, reduction, elements<uint16_t>(made));
    return made;
}

RESILIN_SIMD void logit_losses(const float *x, const float *t, int64_t begin, int64_t end, float *out) {
    logit_losses_of(x + begin, t + begin, end - begin, out + begin);
}
RESILIN_SIMD void logit_losses_wide(const double *x, const double *t, int64_t begin, int64_t end, double *out) {
    logit_losses_of(x + begin, t + begin, end - begin, out + begin);
}
nb::object bce_with_logits(ExactArray x, ExactArray t) { return backward_by(logit_losses, logit_losses_wide, x, t); }

// y = the losses of log-probabilities (N, C, inner), one target for each (N, inner), from `begin` to `end`; gives how
// many count, -1 where a target is no class.
template <class T, class S, class Read>
int64_t likelihoods(const S *x, const int64_t *target, const S *weight, int64_t C, int64_t inner, int64_t ignore,
                    const Read &value, int64_t begin, int64_t end, T *y) {
    int64_t counted = 0, n = begin / inner, i = begin % inner;
    for (int64_t k = begin; k < end; k++) {
        const int64_t c = target[k];
        y[k] = T(0);
        if (c != ignore) {
            if (c < 0 || c >= C) return -1;
            y[k] = -(weight ? value(weight[c]) : T(1)) * value(x[(n * C + c) * inner + i]);
            counted++;
        }
        if (++i == inner) i = 0, n++;
    }
    return counted;
}

template <class T> T total_of(const std::vector<T> &x) {
    T sum = T(0);
    auto read = [&](int64_t begin, int64_t, T *) -> const T * { return x.data() + begin; };
    if (!x.empty()) pairwise_rows(read, 1, static_cast<int64_t>(x.size()), 1, Summed::elements, &sum);
    return sum;
}

constexpr int64_t FETCH = 4; // takes as long as that many additions: it is in no cache

// False where a target is no class
template <class T, class S, class Read, class Write>
bool nll_of(const ExactArray &x, const ExactArray &target, const ExactArray &weight, int64_t C, int64_t ignore, int reduction,
            const Read &value, const Write &write) {
    const int64_t count = target.size(), N = x.ndim() > 1 ? x.dim(0) : 1;
    std::vector<T> found(static_cast<size_t>(count));
    const int64_t inner = N ? count / N : 0, *classes = target.data<int64_t>();
    std::atomic<int64_t> counted{0};
    std::atomic<bool> known{true};
    parallel_rows(count, FETCH, [&](int64_t begin, int64_t end) {
        T *y = found.data();
        const int64_t some = likelihoods(x.data<S>(), classes, weight.data<S>(), C, inner, ignore, value, begin, end, y);
        if (some < 0) known.store(false, std::memory_order_relaxed);
        else counted.fetch_add(some, std::memory_order_relaxed);
    });
    if (!known) return false;
    if (reduction != NONE) {
        T total = total_of(found);
        if (reduction == MEAN && counted == 0) {
            total = std::numeric_limits<T>::quiet_NaN();
        } else if (reduction == MEAN && weight) {
            std::vector<T> weights;
            for (int64_t k = 0; k < count; k++)
                if (classes[k] != ignore) weights.push_back(value(weight.data<S>()[classes[k]]));
            total /= total_of(weights);
        } else if (reduction == MEAN) {
            total /= static_cast<T>(counted.load());
        }
        found.assign(1, total);
    }
    write(found);
    return true;
}

nb::object nll_loss(ExactArray x, ExactArray target, ExactArray weight, int64_t ignore, int reduction) {
    if (!is_plain(x) || !target.is<int64_t>() || x.ndim() < 1 || !x.size()) return nb::none();
    const int type = PyArray_TYPE(x.array), classes = x.ndim() > 1 ? 1 : 0;
    const int64_t C = x.dim(classes);
    if (!is_float(type) || target.ndim() != x.ndim() - 1) return nb::none();
    for (int i = 0, k = 0; i < x.ndim(); i++)
        if (i != classes && x.dim(i) != target.dim(k++)) return nb::none();
    if (weight && (!is_plain(weight) || PyArray_TYPE(weight.array) != type || weight.ndim() != 1 || weight.dim(0) != C))
        return nb::none();
    nb::object made = like(x, reduction == NONE ? target.ndim() : 0, PyArray_DIMS(target.array));
    bool known;
    auto store = [&](const auto &found) {
        std::copy(found.begin(), found.end(), elements<std::decay_t<decltype(found[0])>>(made));
    };
    auto itself = [](auto v) { return v; };
    if (type == NPY_FLOAT) {
        known = nll_of<float, float>(x, target, weight, C, ignore, reduction, itself, store);
    } else if (type == NPY_DOUBLE) {
        known = nll_of<double, double>(x, target, weight, C, ignore, reduction, itself, store);
    } else {
        const bool float16 = type == NPY_HALF;
        known = nll_of<float, uint16_t>(
            x, target, weight, C, ignore, reduction,
            [=](uint16_t v) { return float16 ? from_half(v) : from_bfloat(v); },
            [&](const std::vector<float> &found) {
                const auto pack = float16 ? pack_half : pack_bfloat;
                pack(found.data(), 0, static_cast<int64_t>(found.size()), elements<uint16_t>(made));
            });
    }
    return known ? made : nb::none();
}

template <class T>
RESILIN_INLINE void hinges_of(const T *x, const int64_t *target, int64_t rows, int64_t C, T margin, bool squared, T *y) {
    for (int64_t row = 0; row < rows; row++, x += C, y += C) {
        const T mine = x[target[row]];
        for (int64_t c = 0; c < C; c++) {
            const T over = x[c] - mine + margin, hinge = over < T(0) ? T(0) : over;
            y[c] = squared ? hinge * hinge : hinge;
        }
        y[target[row]] *= T(0); // NaN stays
    }
}
RESILIN_SIMD void hinges(const float *x, const int64_t *target, int64_t rows, int64_t C, float margin, bool squared, float *y) {
    hinges_of(x, target, rows, C, margin, squared, y);
}
RESILIN_SIMD void hinges(const double *x, const int64_t *target, int64_t rows, int64_t C, double margin, bool squared,
                         double *y) {
    hinges_of(x, target, rows, C, margin, squared, y);
}

template <class T>
nb::object margins_of(const ExactArray &x, const ExactArray &target, const ExactArray &weight, T margin, bool squared,
                      int reduction) {
    const int64_t N = x.dim(0), C = x.dim(1), *classes = target.data<int64_t>();
    nb::object made = like(x, reduction == NONE ? 1 : 0, PyArray_DIMS(target.array));
    T *y = elements<T>(made);
    const T *xs = x.data<T>(), *w = weight.data<T>();
    WithoutGil free(x.size());
    std::vector<T> found(static_cast<size_t>(N));
    auto read = [=](int64_t begin, int64_t end, T *scratch) -> const T * {
        hinges(xs + begin, classes + begin / C, (end - begin) / C, C, margin, squared, scratch);
        return scratch;
    };
    pairwise_rows(read, N, C, 1, Summed::elements, found.data());
    for (int64_t n = 0; n < N; n++) {
        found[static_cast<size_t>(n)] /= static_cast<T>(C);
        if (w) found[static_cast<size_t>(n)] *= w[classes[n]];
    }
    if (reduction == NONE) std::copy(found.begin(), found.end(), y);
    else *y = reduction == MEAN ? total_of(found) / static_cast<T>(N) : total_of(found);
    return made;
}

// Of scores (N, C), whose rows are summed at once, and classes (N,)
nb::object multi_margin_loss(ExactArray x, ExactArray target, ExactArray weight, bool squared, Number margin, int reduction) {
    if (!x || x.ndim() != 2 || !x.size() || x.dim(1) > AT_ONCE || !margin.known || !target.is<int64_t>()) return nb::none();
    if (target.ndim() != 1 || target.dim(0) != x.dim(0) || (weight && (weight.ndim() != 1 || weight.dim(0) != x.dim(1))))
        return nb::none();
    for (int64_t n = 0; n < x.dim(0); n++)
        if (target.data<int64_t>()[n] < 0 || target.data<int64_t>()[n] >= x.dim(1)) return nb::none();
    if (x.is<float>() && weight.is_or_none<float>())
        return margins_of<float>(x, target, weight, margin.value, squared, reduction);
    if (x.is<double>() && weight.is_or_none<double>())
        return margins_of<double>(x, target, weight, margin.exact, squared, reduction);
    return nb::none();
}

} // namespace

void bind_losses(nb::module_ &m) {
    m.def("loss_of_difference", &loss_of_difference);
    m.def("bce_with_logits_forward", &bce_with_logits, nb::arg("x"), nb::arg("target"));
    m.def("nll_loss", &nll_loss, nb::arg("x"), nb::arg("target"), nb::arg("weight").none(), nb::arg("ignore"),
          nb::arg("reduction"));
    m.def("multi_margin_loss", &multi_margin_loss, nb::arg("x"), nb::arg("target"), nb::arg("weight").none(),
          nb::arg("squared"), nb::arg("margin"), nb::arg("reduction"));
}

} // namespace resilin
