// Fourier transforms of contiguous complex64 and complex128 arrays along one dimension, and of real ones along the last.
#include "binding/array.hpp"
#include "fft_module.hpp"
#include "transform.hpp"

#include <complex>
#include <vector>

namespace resilin {

template <> inline constexpr int type_number<std::complex<float>> = NPY_COMPLEX64;
template <> inline constexpr int type_number<std::complex<double>> = NPY_COMPLEX128;

namespace {

std::vector<npy_intp> shape_with_last(const Array &x, int64_t last) {
    std::vector<npy_intp> dims(PyArray_DIMS(x.array), PyArray_DIMS(x.array) + x.ndim());
    dims.back() = last;
    return dims;
}

template <class T> nb::object complex_of(const Array &x, int axis, bool inverse, T scale) {
    int64_t outer = 1, inner = 1;
    for (int d = 0; d < axis; d++) outer *= x.dim(d);
    for (int d = axis + 1; d < x.ndim(); d++) inner *= x.dim(d);
    const int64_t n = x.dim(axis);
    const bool inside = inner > 1;
    if (inside && (n > LONGEST_COLUMN || 2 * inner < LANES_OF<T> || !only_small_factors(n))) return nb::none();
    NewArray<std::complex<T>> made(x);
    const T *from = reinterpret_cast<const T *>(x.data<std::complex<T>>());
    T *to = reinterpret_cast<T *>(made.data);
    WithoutGil free(x.size());
    if (!inside) transform_rows(*fourier<T>(n), from, false, to, outer, inverse, scale);
    else transform_columns(*columns<T>(n), from, to, outer, inner, inverse, scale);
    return made.object;
}

// The transform along `axis` times `scale`; None for what numpy transforms.
nb::object fft_complex(Array x, int axis, bool inverse, double scale) {
    if (!x || axis < 0 || axis >= x.ndim() || !x.size()) return nb::none();
    if (x.is<std::complex<float>>()) return complex_of<float>(x, axis, inverse, static_cast<float>(scale));
    return x.is<std::complex<double>>() ? complex_of<double>(x, axis, inverse, scale) : nb::none();
}

template <class T> nb::object real_of(const Array &x, T scale) {
    const int64_t n = x.last();
    NewArray<std::complex<T>> made(x.ndim(), shape_with_last(x, n / 2 + 1).data());
    WithoutGil free(x.size());
    transform_real_rows(n, x.data<T>(), reinterpret_cast<T *>(made.data), x.rows(), scale);
    return made.object;
}

// The first n / 2 + 1 frequencies of real rows; None for what numpy transforms.
nb::object fft_real(Array x, double scale) {
    if (!x || !x.ndim() || !x.size()) return nb::none();
    if (x.is<float>()) return real_of<float>(x, static_cast<float>(scale));
    return x.is<double>() ? real_of<double>(x, scale) : nb::none();
}

template <class T> nb::object real_columns_of(const Array &x, int axis, bool inverse, T scale) {
    int64_t outer = 1, inner = 1;
    for (int d = 0; d < axis; d++) outer *= x.dim(d);
    for (int d = axis + 1; d < x.ndim(); d++) inner *= x.dim(d);
    const int64_t n = x.dim(axis);
    if (n % 2 || n > LONGEST_COLUMN || 2 * inner < LANES_OF<T> || !only_small_factors(n / 2)) return nb::none();
    NewArray<std::complex<T>> made(x.ndim(), PyArray_DIMS(x.array));
    WithoutGil free(x.size());
    transform_real_columns(n, x.data<T>(), reinterpret_cast<T *>(made.data), outer, inner, inverse, scale);
    return made.object;
}

// All frequencies of real numbers along `axis`, not the last; None for what is transformed as complex numbers.
nb::object fft_real_columns(Array x, int axis, bool inverse, double scale) {
    if (!x || axis < 0 || axis >= x.ndim() - 1 || !x.size()) return nb::none();
    if (x.is<float>()) return real_columns_of<float>(x, axis, inverse, static_cast<float>(scale));
    return x.is<double>() ? real_columns_of<double>(x, axis, inverse, scale) : nb::none();
}

template <class T> nb::object to_real_of(const Array &x, int64_t n, T scale) {
    NewArray<T> made(x.ndim(), shape_with_last(x, n).data());
    WithoutGil free(x.size());
    transform_to_real_rows(n, reinterpret_cast<const T *>(x.data<std::complex<T>>()), made.data, x.rows(), scale);
    return made.object;
}

// Rows of n real numbers of their first n / 2 + 1 frequencies, the inverse; None for what numpy transforms.
nb::object fft_to_real(Array x, int64_t n, double scale) {
    if (!x || !x.ndim() || !x.size() || n < 1 || x.last() != n / 2 + 1) return nb::none();
    if (x.is<std::complex<float>>()) return to_real_of<float>(x, n, static_cast<float>(scale));
    return x.is<std::complex<double>>() ? to_real_of<double>(x, n, scale) : nb::none();
}

} // namespace

void bind_fft(nb::module_ &m) {
    m.def("fft_complex", &fft_complex);
    m.def("fft_real", &fft_real);
    m.def("fft_real_columns", &fft_real_columns);
    m.def("fft_to_real", &fft_to_real);
}

} // namespace resilin
