// Elements repeated in place, and numbers of classes as rows of zeros with a one.
#include "binding/kernels.hpp"
#include "indexing/places.hpp"
#include "reduce/extremes.hpp"

#include <algorithm>

namespace resilin {
namespace {

template <int64_t Count, class T> void repeat_each(const T *x, int64_t n, T *y) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < Count; k++) y[i * Count + k] = x[i];
}

template <class T> void repeat_slices(const T *x, int64_t begin, int64_t end, int64_t count, int64_t inner, T *y) {
    if (inner == 1 && count == 2) return repeat_each<2>(x + begin, end - begin, y + begin * count);
    if (inner == 1 && count == 3) return repeat_each<3>(x + begin, end - begin, y + begin * count);
    if (inner == 1 && count == 4) return repeat_each<4>(x + begin, end - begin, y + begin * count);
    for (int64_t i = begin; i < end; i++) {
        T *to = y + i * count * inner;
        if (inner == 1) std::fill_n(to, count, x[i]);
        else
            for (int64_t k = 0; k < count; k++)
                std::memcpy(to + k * inner, x + i * inner, static_cast<size_t>(inner) * sizeof(T));
    }
}

// Each slice along a dimension `count` times; each element of the flattened array where `dim` is None.
nb::object repeat_interleave(ExactArray x, int64_t count, nb::handle dim) {
    if (!plain(x) || !x.ndim() || count < 0 || (!dim.is_none() && !PyLong_CheckExact(dim.ptr()))) return nb::none();
    npy_intp dims[NPY_MAXDIMS];
    int ndim = 1;
    int64_t inner = 1, axis = 0;
    dims[0] = x.size();
    if (!dim.is_none()) {
        const Py_ssize_t named = PyLong_AsSsize_t(dim.ptr());
        if (named == -1 && PyErr_Occurred()) PyErr_Clear();
        axis = axis_of(x, named);
        if (axis < 0) return nb::none();
        ndim = x.ndim();
        std::copy_n(PyArray_DIMS(x.array), ndim, dims);
        inner = Split(ndim, dims, axis).inner;
    }
    if (!inner || !x.size() || count > INT64_MAX / 16 / x.size()) return nb::none();
    dims[axis] *= count;
    nb::object y = new_array(x, ndim, dims, false);
    const int64_t slices = x.size() / inner;
    const bool done = by_size(PyArray_ITEMSIZE(x.array), [&](auto kind) {
        using T = decltype(kind);
        WithoutGil free(x.size() * count);
        parallel_rows(slices, inner * count, [&](int64_t begin, int64_t end) {
            repeat_slices(x.data<T>(), begin, end, count, inner, data_of<T>(y));
        });
    });
    return done ? y : nb::none();
}

constexpr int64_t ZEROED_AT_ONCE = 2048; // elements, which the ones then find in the first-level cache

// int64: a new last dimension with 1 at the class number, else 0; of as many classes as there are where `classes` is -1.
nb::object one_hot(ExactArray x, int64_t classes) {
    if (!x.is<int64_t>() || !x.size() || classes < -1 || x.ndim() >= 32) return nb::none();
    const int64_t *at = x.data<int64_t>(), n = x.size();
    if (classes == -1) {
        int64_t most;
        largest_of_rows(at, n, 0, 1, &most);
        if (most < 0 || most > (int64_t{1} << 40)) return nb::none();
        classes = most + 1;
    }
    if (!all_inside(at, n, classes, Places::from_front)) return nb::none();
    npy_intp dims[NPY_MAXDIMS];
    std::copy_n(PyArray_DIMS(x.array), x.ndim(), dims);
    dims[x.ndim()] = classes;
    NewArray<int64_t> y(x.ndim() + 1, dims);
    WithoutGil free(n * classes);
    const int64_t step = std::max<int64_t>(ZEROED_AT_ONCE / std::max<int64_t>(classes, 1), 1);
    parallel_rows(n, classes, [&](int64_t begin, int64_t end) {
        for (int64_t first = begin; first < end; first += step) {
            const int64_t last = std::min(first + step, end);
            std::memset(y.data + first * classes, 0, static_cast<size_t>((last - first) * classes) * sizeof(int64_t));
            for (int64_t i = first; i < last; i++) y.data[i * classes + at[i]] = 1;
        }
    });
    return y.object;
}

} // namespace

void bind_repeats(nb::module_ &m) {
    m.def("repeat_interleave", &repeat_interleave, nb::arg(), nb::arg(), nb::arg() = nb::none());
    m.def("one_hot", &one_hot, nb::arg(), nb::arg() = -1);
}

} // namespace resilin
