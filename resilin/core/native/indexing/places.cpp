// Elements taken from places along one dimension.
#include "binding/kernels.hpp"
#include "masks.hpp"
#include "places.hpp"

#include <algorithm>

namespace resilin {
namespace {

RESILIN_SIMD uint64_t outside_both(const int64_t *index, int64_t n, uint64_t length) {
    uint64_t outside = 0; // its highest bit: the sign of a distance to either end
    for (int64_t i = 0; i < n; i++) {
        const uint64_t at = static_cast<uint64_t>(index[i]);
        outside |= (at + length) | (length - 1 - at);
    }
    return outside;
}
RESILIN_SIMD uint64_t outside_front(const int64_t *index, int64_t n, uint64_t length) {
    uint64_t outside = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t at = static_cast<uint64_t>(index[i]);
        outside |= at | (length - 1 - at);
    }
    return outside;
}

// The place that `index` names, or -1.
template <Places From> RESILIN_INLINE int64_t place_of(int64_t index, int64_t length) {
    const int64_t place = From == Places::both ? from_front(index, length) : index;
    return static_cast<uint64_t>(place) < static_cast<uint64_t>(length) ? place : -1;
}

// y[i] = x[index[i]]; false where one is outside.
template <Places From, class T> RESILIN_INLINE bool take_line(const T *x, const int64_t *index, int64_t n, int64_t length, T *y) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < n; i++) {
        const int64_t place = place_of<From>(index[i], length);
        if (__builtin_expect(place < 0, 0)) return false;
        y[i] = x[place];
    }
    return true;
}

// y[i] = x[index[i], i] of slices of n elements; false where one is outside.
template <Places From, class T> RESILIN_INLINE bool take_across(const T *x, const int64_t *index, int64_t n, int64_t length, T *y) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < n; i++) {
        const int64_t place = place_of<From>(index[i], length);
        if (__builtin_expect(place < 0, 0)) return false;
        y[i] = x[place * n + i];
    }
    return true;
}

// One place per element of `y`, n of them along the dimension. False where one is outside.
template <Places From, class T> bool take_each(const T *x, const Split &from, const int64_t *index, int64_t n, T *y) {
    std::atomic<bool> inside{true};
    auto note = [&](bool well) {
        if (!well) inside.store(false, std::memory_order_relaxed);
        return well;
    };
    const int64_t length = from.length, inner = from.inner;
    if (inner > 1)
        parallel_rows(from.outer * n, inner, [&](int64_t begin, int64_t end) {
            for (int64_t line = begin; line < end; line++)
                if (!note(take_across<From>(x + line / n * length * inner, index + line * inner, inner, length, y + line * inner)))
                    return;
        });
    else if (from.outer > 1)
        parallel_rows(from.outer, n, [&](int64_t begin, int64_t end) {
            for (int64_t o = begin; o < end; o++)
                if (!note(take_line<From>(x + o * length, index + o * n, n, length, y + o * n))) return;
        });
    else
        parallel_rows(n, 1, [&](int64_t begin, int64_t end) {
            note(take_line<From>(x, index + begin, end - begin, length, y + begin));
        });
    return inside.load();
}

constexpr int64_t AHEAD = 8;          // slices that are asked for before they are copied
constexpr int64_t LINE = 64;          // bytes of a cache line
constexpr int64_t MOST_AHEAD = 1024; // bytes of a slice; memory's own look-ahead serves longer ones

template <class T> void take_some(const T *x, const Split &from, const int64_t *index, int64_t n, T *y) {
    const int64_t bytes = from.inner * static_cast<int64_t>(sizeof(T)), ahead = bytes > MOST_AHEAD ? 0 : bytes;
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) {
            const T *next = x + from_front(index[i + AHEAD], from.length) * from.inner;
            for (int64_t at = 0; at < ahead; at += LINE) __builtin_prefetch(reinterpret_cast<const char *>(next) + at);
        }
        std::memcpy(y + i * from.inner, x + from_front(index[i], from.length) * from.inner, static_cast<size_t>(bytes));
    }
}

// Neighbouring places one after the other, as padding has them: `count` places from `first` on.
struct Run {
    int64_t first, count;
};

std::vector<Run> runs_of(const Split &from, const int64_t *index, int64_t n) {
    std::vector<Run> runs;
    for (int64_t i = 0; i < n; i++) {
        const int64_t place = from_front(index[i], from.length);
        if (runs.empty() || place != runs.back().first + runs.back().count) runs.push_back({place, 0});
        runs.back().count++;
    }
    return runs;
}

template <class T> void take_runs(const T *x, const Split &from, const std::vector<Run> &runs, T *y) {
    for (const Run &run : runs) {
        const int64_t count = run.count * from.inner;
        const T *source = x + run.first * from.inner;
        if (count == 1) *y = *source;
        else std::memcpy(y, source, static_cast<size_t>(count) * sizeof(T));
        y += count;
    }
}

template <class T> void take(const T *x, const Split &from, const int64_t *index, int64_t n, T *y) {
    if (!from.inner) return;
    if (from.outer == 1) {
        parallel_rows(n, from.inner, [&](int64_t begin, int64_t end) {
            take_some(x, from, index + begin, end - begin, y + begin * from.inner);
        });
        return;
    }
    std::vector<int64_t> places(static_cast<size_t>(n)); // the same for all, counted from the front once
    for (int64_t i = 0; i < n; i++) places[static_cast<size_t>(i)] = from_front(index[i], from.length);
    const int64_t *at = places.data();
    const std::vector<Run> runs = runs_of(from, at, n);
    const bool few = 4 * static_cast<int64_t>(runs.size()) <= n; // long enough to be copied as such
    parallel_rows(from.outer, n * from.inner, [&](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; o++) {
            const T *source = x + o * from.length * from.inner;
            T *target = y + o * n * from.inner;
            if (few) take_runs(source, from, runs, target);
            else if (from.inner > 1) take_some(source, from, at, n, target);
            else
#pragma GCC unroll 8
                for (int64_t i = 0; i < n; i++) target[i] = source[at[i]];
        }
    });
}

// y[:, i] = x[:, index[i]] along `axis`; `index` of any shape stands in its place. None for what is not handled.
nb::object taken_slices(const ExactArray &x, const ExactArray &index, int64_t axis, Places places) {
    if (!plain(x) || !index.is<int64_t>() || axis < 0 || axis >= x.ndim() || x.ndim() + index.ndim() > NPY_MAXDIMS)
        return nb::none();
    const Split from(x.ndim(), PyArray_DIMS(x.array), axis);
    const int64_t *at = index.data<int64_t>(), n = index.size();
    const bool single = from.outer == 1 && from.inner == 1; // looks at places as it takes
    if (!single && !all_inside(at, n, from.length, places)) return nb::none();
    npy_intp dims[NPY_MAXDIMS];
    int ndim = 0;
    for (int i = 0; i < axis; i++) dims[ndim++] = x.dim(i);
    for (int i = 0; i < index.ndim(); i++) dims[ndim++] = index.dim(i);
    for (int i = static_cast<int>(axis) + 1; i < x.ndim(); i++) dims[ndim++] = x.dim(i);
    nb::object y = new_array(x, ndim, dims, false);
    bool inside = true;
    const bool done = by_size(PyArray_ITEMSIZE(x.array), [&](auto kind) {
        using T = decltype(kind);
        WithoutGil free(from.outer * n * from.inner);
        if (!single) take(x.data<T>(), from, at, n, data_of<T>(y));
        else if (places == Places::both) inside = take_each<Places::both>(x.data<T>(), from, at, n, data_of<T>(y));
        else inside = take_each<Places::from_front>(x.data<T>(), from, at, n, data_of<T>(y));
    });
    return done && inside ? y : nb::none();
}

nb::object take_slices(ExactArray x, ExactArray index, int64_t axis) { return taken_slices(x, index, axis, Places::both); }

// x[..., index, ...] of one place per element; an index that was expanded from a place per slice is one of slices.
nb::object taken_along(const ExactArray &x, const ExactArray &index, int64_t axis, Places places) {
    if (!plain(x) || !goes_along(index, x.ndim(), PyArray_DIMS(x.array), axis)) return nb::none();
    const Split from(x.ndim(), PyArray_DIMS(x.array), axis);
    SlicePlaces slices;
    if (from.outer > 1 || from.inner > 1) slices = slice_places(index, axis); // of a vector, places are looked at as they are taken
    if (!slices.known && !index.is<int64_t>()) return nb::none();
    if (slices.known && !all_inside(slices.at, slices.n, from.length, places)) return nb::none();
    nb::object y = new_array(x, x.ndim(), PyArray_DIMS(index.array), false);
    const int64_t n = index.dim(static_cast<int>(axis));
    if (!index.size()) return y;
    bool inside = true;
    const bool done = by_size(PyArray_ITEMSIZE(x.array), [&](auto kind) {
        using T = decltype(kind);
        WithoutGil free(index.size());
        T *to = data_of<T>(y);
        if (slices.known) take(x.data<T>(), from, slices.at, n, to);
        else if (places == Places::both) inside = take_each<Places::both>(x.data<T>(), from, index.data<int64_t>(), n, to);
        else inside = take_each<Places::from_front>(x.data<T>(), from, index.data<int64_t>(), n, to);
    });
    return done && inside ? y : nb::none();
}

// np.take_along_axis; None for what is not handled.
nb::object take_along(ExactArray x, ExactArray index, int64_t axis) { return taken_along(x, index, axis, Places::both); }

// x[a, b, ...] for arrays of places of one shape along the first dimensions, which `parts` are. None for what is not
// handled.
nb::object take_points(const ExactArray &x, PyObject *const *parts, int count) {
    if (!plain(x) || count > x.ndim()) return nb::none();
    const int64_t *index[NPY_MAXDIMS];
    const ExactArray first{reinterpret_cast<PyArrayObject *>(parts[0])};
    for (int i = 0; i < count; i++) {
        const ExactArray part{reinterpret_cast<PyArrayObject *>(parts[i])};
        if (!PyArray_CheckExact(parts[i]) || !part.is<int64_t>() || !part.same_shape(first)) return nb::none();
        if (!all_inside(part.data<int64_t>(), part.size(), x.dim(i))) return nb::none();
        index[i] = part.data<int64_t>();
    }
    npy_intp dims[NPY_MAXDIMS];
    int ndim = first.ndim();
    if (!ndim || ndim + x.ndim() - count > 32) return nb::none();
    std::copy_n(PyArray_DIMS(first.array), ndim, dims);
    int64_t inner = 1;
    for (int i = count; i < x.ndim(); i++) inner *= dims[ndim++] = x.dim(i);
    nb::object y = new_array(x, ndim, dims, false);
    const bool done = by_size(PyArray_ITEMSIZE(x.array), [&](auto kind) {
        using T = decltype(kind);
        const T *source = x.data<T>();
        T *to = data_of<T>(y);
        WithoutGil free(first.size() * inner);
        parallel_rows(first.size(), inner * count, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) {
                int64_t place = 0;
                for (int d = 0; d < count; d++) place = place * x.dim(d) + from_front(index[d][i], x.dim(d));
                if (inner == 1) to[i] = source[place];
                else std::memcpy(to + i * inner, source + place * inner, static_cast<size_t>(inner) * sizeof(T));
            }
        });
    });
    return done ? y : nb::none();
}

bool is_all(PyObject *part) {
    if (!PySlice_Check(part)) return false;
    auto *slice = reinterpret_cast<PySliceObject *>(part);
    return slice->start == Py_None && slice->stop == Py_None && slice->step == Py_None;
}

// x[index] for an index of one array of places, behind ":" for the dimensions before it, for several of one shape, or for
// a mask of x's shape. None for any other.
nb::object take_indexed(nb::handle given, nb::handle index) {
    if (!PyArray_CheckExact(given.ptr())) return nb::none();
    PyObject *places = index.ptr();
    if (PyTuple_CheckExact(places) && PyTuple_GET_SIZE(places) > 1 && PyTuple_GET_SIZE(places) <= NPY_MAXDIMS &&
        PyArray_CheckExact(PyTuple_GET_ITEM(places, 0)))
        return take_points({reinterpret_cast<PyArrayObject *>(given.ptr())}, &PyTuple_GET_ITEM(places, 0),
                           static_cast<int>(PyTuple_GET_SIZE(places)));
    int64_t axis = 0;
    if (PyTuple_CheckExact(places)) {
        axis = PyTuple_GET_SIZE(places) - 1;
        for (Py_ssize_t i = 0; i < axis; i++)
            if (!is_all(PyTuple_GET_ITEM(index.ptr(), i))) return nb::none();
        if (axis < 0) return nb::none();
        places = PyTuple_GET_ITEM(index.ptr(), axis);
    }
    if (!PyArray_CheckExact(places)) return nb::none();
    if (!axis && PyArray_TYPE(reinterpret_cast<PyArrayObject *>(places)) == NPY_BOOL)
        return select_mask({reinterpret_cast<PyArrayObject *>(given.ptr())}, {reinterpret_cast<PyArrayObject *>(places)});
    return take_slices({reinterpret_cast<PyArrayObject *>(given.ptr())}, {reinterpret_cast<PyArrayObject *>(places)}, axis);
}

// x[index]: a view for integers and slices, a copy for places. None for single elements, which numpy gives as numbers.
nb::object indexed(nb::handle x, nb::handle index) {
    nb::object taken = take_indexed(x, index);
    if (!taken.is_none() || !PyArray_CheckExact(x.ptr())) return taken;
    nb::object found = nb::steal(PyObject_GetItem(x.ptr(), index.ptr()));
    if (!found.is_valid()) throw nb::python_error();
    return PyArray_CheckExact(found.ptr()) ? found : nb::object(nb::none());
}

// The elements in C order under another shape, which is all numbers: a view where the strides allow.
nb::object reshaped(nb::handle x, nb::handle shape) {
    if (!PyArray_CheckExact(x.ptr()) || !PyTuple_CheckExact(shape.ptr())) return nb::none();
    npy_intp lengths[NPY_MAXDIMS];
    PyArray_Dims dims{lengths, static_cast<int>(PyTuple_GET_SIZE(shape.ptr()))};
    if (dims.len > 32) return nb::none();
    for (int i = 0; i < dims.len; i++) {
        PyObject *length = PyTuple_GET_ITEM(shape.ptr(), i);
        if (!PyLong_CheckExact(length)) return nb::none();
        lengths[i] = PyLong_AsSsize_t(length);
    }
    if (PyErr_Occurred()) throw nb::python_error();
    nb::object made = nb::steal(PyArray_Newshape(reinterpret_cast<PyArrayObject *>(x.ptr()), &dims, NPY_CORDER));
    if (!made.is_valid()) throw nb::python_error();
    return made;
}

// -- what functions of tensors ask first, in the order of their parameters; places count from the front unless it is said

nb::object gather_elements(ExactArray x, int64_t dim, ExactArray index) {
    if (!x || !index || !index.size()) return nb::none();
    return taken_along(x, index, axis_of(x, dim), Places::from_front);
}

// Along a dimension, places may count from its end.
nb::object take_along_dim(ExactArray x, ExactArray index, int64_t dim) {
    if (!x || !index || !index.size()) return nb::none();
    return taken_along(x, index, axis_of(x, dim), Places::both);
}

nb::object index_select(ExactArray x, int64_t dim, ExactArray index) {
    if (!x || !index || index.ndim() != 1 || !index.size()) return nb::none();
    return taken_slices(x, index, axis_of(x, dim), Places::from_front);
}

// Of the flattened array; places may count from its end.
nb::object take_flat(ExactArray x, ExactArray index) {
    if (!plain(x) || !index || !index.size()) return nb::none();
    if (x.ndim() == 1) return taken_slices(x, index, 0, Places::both);
    npy_intp size = x.size();
    PyArray_Dims dims{&size, 1};
    nb::object flat = nb::steal(PyArray_Newshape(x.array, &dims, NPY_CORDER));
    if (!flat.is_valid()) throw nb::python_error();
    return taken_slices(array_in(flat), index, 0, Places::both);
}

// The rows of a table
nb::object embedding_rows(ExactArray index, ExactArray table) {
    if (!table || table.ndim() != 2 || !index || !index.size()) return nb::none();
    return taken_slices(table, index, 0, Places::from_front);
}

} // namespace

bool all_inside(const int64_t *index, int64_t n, int64_t length, Places places) {
    const auto outside = places == Places::both ? outside_both : outside_front;
    const uint64_t lengths = static_cast<uint64_t>(length);
    if (n < 2 * PARALLEL_MIN) return !(outside(index, n, lengths) >> 63);
    std::atomic<uint64_t> found{0};
    parallel_rows(n, 1, [&](int64_t begin, int64_t end) {
        found.fetch_or(outside(index + begin, end - begin, lengths), std::memory_order_relaxed);
    });
    return !(found.load() >> 63);
}

void bind_places(nb::module_ &m) {
    m.def("take_slices", &take_slices);
    m.def("take_along", &take_along);
    m.def("take_indexed", &take_indexed, nb::arg(), nb::arg().none());
    m.def("indexed", &indexed, nb::arg(), nb::arg().none());
    m.def("reshaped", &reshaped, nb::arg(), nb::arg());
    m.def("gather_elements", &gather_elements);
    m.def("take_along_dim", &take_along_dim);
    m.def("index_select", &index_select);
    m.def("take_flat", &take_flat);
    m.def("embedding_rows", &embedding_rows);
}

} // namespace resilin
