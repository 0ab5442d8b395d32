// Elements taken from places along one dimension, and added to places there or compared, in the order of the places.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace resilin {
namespace {

// An array as (outer, length, inner) around one of its dimensions.
struct Split {
    int64_t outer = 1, length = 0, inner = 1;
    Split(int ndim, const npy_intp *dims, int64_t axis) : length(dims[axis]) {
        for (int i = 0; i < axis; i++) outer *= dims[i];
        for (int i = static_cast<int>(axis) + 1; i < ndim; i++) inner *= dims[i];
    }
    int64_t size() const { return outer * length * inner; }
};

RESILIN_SIMD bool all_inside(const int64_t *index, int64_t n, int64_t length) {
    const uint64_t lengths = static_cast<uint64_t>(length);
    uint64_t outside = 0; // its highest bit: the sign of a distance to either end
    for (int64_t i = 0; i < n; i++) {
        const uint64_t at = static_cast<uint64_t>(index[i]);
        outside |= (at + lengths) | (lengths - 1 - at);
    }
    return !(outside >> 63);
}

RESILIN_INLINE int64_t from_front(int64_t index, int64_t length) { return index < 0 ? index + length : index; }

struct Bytes16 {
    uint64_t half[2];
};

// fn(T{}) with a type of the elements' size, for what only moves them; false for other sizes.
template <class Fn> bool by_size(npy_intp bytes, Fn fn) {
    if (bytes == 1) fn(uint8_t{});
    else if (bytes == 2) fn(uint16_t{});
    else if (bytes == 4) fn(uint32_t{});
    else if (bytes == 8) fn(uint64_t{});
    else if (bytes == 16) fn(Bytes16{});
    else return false;
    return true;
}

// fn(T{}) with the elements' type, for what adds them; false for other types.
template <class Fn> bool by_type(int type, Fn fn) {
    if (type == NPY_FLOAT32) fn(float{});
    else if (type == NPY_FLOAT64) fn(double{});
    else if (type == NPY_INT64) fn(int64_t{});
    else return false;
    return true;
}

bool plain(const ExactArray &x) {
    return x && PyArray_ISCARRAY_RO(x.array) && PyArray_ISNOTSWAPPED(x.array) && !PyDataType_REFCHK(PyArray_DESCR(x.array));
}

nb::object new_array(const ExactArray &like, int ndim, npy_intp *dims, bool zeroed) {
    PyArray_Descr *descr = PyArray_DESCR(like.array);
    Py_INCREF(descr);
    nb::object made = nb::steal(zeroed ? PyArray_Zeros(ndim, dims, descr, 0) : PyArray_Empty(ndim, dims, descr, 0));
    if (!made.ptr()) throw nb::python_error();
    return made;
}

template <class T> T *data_of(const nb::object &array) {
    return static_cast<T *>(PyArray_DATA(reinterpret_cast<PyArrayObject *>(array.ptr())));
}

template <class T> void take_some(const T *x, const Split &from, const int64_t *index, int64_t n, T *y) {
    if (from.inner == 1) {
        const int64_t length = from.length;
        for (int64_t i = 0; i < n; i++) y[i] = x[from_front(index[i], length)];
        return;
    }
    for (int64_t i = 0; i < n; i++)
        std::memcpy(y + i * from.inner, x + from_front(index[i], from.length) * from.inner,
                    static_cast<size_t>(from.inner) * sizeof(T));
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
nb::object take_slices(ExactArray x, ExactArray index, int64_t axis) {
    if (!plain(x) || !index.is<int64_t>() || axis < 0 || axis >= x.ndim() || x.ndim() + index.ndim() > NPY_MAXDIMS)
        return nb::none();
    const Split from(x.ndim(), PyArray_DIMS(x.array), axis);
    const int64_t *at = index.data<int64_t>(), n = index.size();
    if (!all_inside(at, n, from.length)) return nb::none();
    npy_intp dims[NPY_MAXDIMS];
    int ndim = 0;
    for (int i = 0; i < axis; i++) dims[ndim++] = x.dim(i);
    for (int i = 0; i < index.ndim(); i++) dims[ndim++] = index.dim(i);
    for (int i = static_cast<int>(axis) + 1; i < x.ndim(); i++) dims[ndim++] = x.dim(i);
    nb::object y = new_array(x, ndim, dims, false);
    const bool done = by_size(PyArray_ITEMSIZE(x.array), [&](auto kind) {
        WithoutGil free(from.outer * n * from.inner);
        take(x.data<decltype(kind)>(), from, at, n, data_of<decltype(kind)>(y));
    });
    return done ? y : nb::none();
}

bool is_all(PyObject *part) {
    if (!PySlice_Check(part)) return false;
    auto *slice = reinterpret_cast<PySliceObject *>(part);
    return slice->start == Py_None && slice->stop == Py_None && slice->step == Py_None;
}

// x[index] for an index of one array of places, behind ":" for the dimensions before it. None for any other.
nb::object take_indexed(nb::handle given, nb::handle index) {
    if (!PyArray_CheckExact(given.ptr())) return nb::none();
    PyObject *places = index.ptr();
    int64_t axis = 0;
    if (PyTuple_CheckExact(places)) {
        axis = PyTuple_GET_SIZE(places) - 1;
        for (Py_ssize_t i = 0; i < axis; i++)
            if (!is_all(PyTuple_GET_ITEM(index.ptr(), i))) return nb::none();
        if (axis < 0) return nb::none();
        places = PyTuple_GET_ITEM(index.ptr(), axis);
    }
    if (!PyArray_CheckExact(places)) return nb::none();
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

RESILIN_SIMD void add_slice(const float *g, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] += g[i];
}
RESILIN_SIMD void add_slice(const double *g, int64_t n, double *out) {
    for (int64_t i = 0; i < n; i++) out[i] += g[i];
}
RESILIN_SIMD void add_slice(const int64_t *g, int64_t n, int64_t *out) {
    for (int64_t i = 0; i < n; i++) out[i] = static_cast<int64_t>(static_cast<uint64_t>(out[i]) + static_cast<uint64_t>(g[i]));
}

// x replaces what is there where it is larger (or smaller), or not a number; that stays.
template <bool Largest, class T> RESILIN_INLINE void pick(const T *x, int64_t n, T *out) {
    for (int64_t i = 0; i < n; i++) {
        const bool wins = Largest ? x[i] > out[i] : x[i] < out[i];
        out[i] = wins || x[i] != x[i] ? x[i] : out[i];
    }
}
#define RESILIN_FOR_TYPE(T)                                                                                            \
    RESILIN_SIMD void pick_largest(const T *x, int64_t n, T *out) { pick<true>(x, n, out); }                           \
    RESILIN_SIMD void pick_smallest(const T *x, int64_t n, T *out) { pick<false>(x, n, out); }
RESILIN_FOR_TYPE(float)
RESILIN_FOR_TYPE(double)
RESILIN_FOR_TYPE(int64_t)
#undef RESILIN_FOR_TYPE

// merge(slice of g, elements, where it goes) for each of n slices, in order. Threads share the outer dimensions, or else
// the elements of a slice, LINES at least: who merges an element does not change the order of what is merged there.
constexpr int64_t LINES = 32;
template <class T, class Merge>
void merge_slices(const T *g, const Split &to, const int64_t *index, int64_t n, T *out, Merge merge) {
    const int64_t parts = to.outer > 1 ? 1 : std::clamp<int64_t>(to.inner / LINES, 1, num_threads());
    parallel_rows(to.outer * parts, n * to.inner / parts, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const int64_t o = row / parts, first = to.inner * (row % parts) / parts, last = to.inner * (row % parts + 1) / parts;
            const T *from = g + o * n * to.inner + first;
            T *target = out + o * to.length * to.inner + first;
            for (int64_t i = 0; i < n; i++)
                merge(from + i * to.inner, last - first, target + from_front(index[i], to.length) * to.inner);
        }
    });
}

template <class T> void add(const T *g, const Split &to, const int64_t *index, int64_t n, T *out) {
    if (to.inner == 1)
        merge_slices(g, to, index, n, out, [](const T *from, int64_t, T *target) { *target += *from; });
    else
        merge_slices(g, to, index, n, out, [](const T *from, int64_t count, T *target) { add_slice(from, count, target); });
}

// The lengths that a tuple of ints says; their number, or -1 for anything else.
int lengths_of(nb::handle shape, npy_intp *dims) {
    if (!PyTuple_Check(shape.ptr()) || PyTuple_GET_SIZE(shape.ptr()) > NPY_MAXDIMS) return -1;
    const int ndim = static_cast<int>(PyTuple_GET_SIZE(shape.ptr()));
    for (int i = 0; i < ndim; i++) {
        PyObject *length = PyTuple_GET_ITEM(shape.ptr(), i);
        int over = 0;
        dims[i] = PyLong_CheckExact(length) ? PyLong_AsLongAndOverflow(length, &over) : -1;
        if (over || dims[i] < 0) return -1;
    }
    return ndim;
}

// Zeros of `shape` with g[:, i] added at index[i] along `axis`, i ascending: what undoes take_slices.
nb::object add_slices(ExactArray g, nb::handle shape, ExactArray index, int64_t axis) {
    npy_intp dims[NPY_MAXDIMS];
    const int ndim = lengths_of(shape, dims);
    if (!plain(g) || !index.is<int64_t>() || axis < 0 || axis >= ndim || g.ndim() != ndim - 1 + index.ndim())
        return nb::none();
    for (int i = 0; i < ndim; i++) // g has the shape of x but for the index in place of `axis`
        if (i != axis && g.dim(i < axis ? i : i - 1 + index.ndim()) != dims[i]) return nb::none();
    for (int i = 0; i < index.ndim(); i++)
        if (g.dim(static_cast<int>(axis) + i) != index.dim(i)) return nb::none();
    const Split to(ndim, dims, axis);
    const int64_t *at = index.data<int64_t>(), n = index.size();
    if (!all_inside(at, n, to.length)) return nb::none();
    nb::object out = new_array(g, ndim, dims, true);
    const bool done = by_type(PyArray_TYPE(g.array), [&](auto kind) {
        WithoutGil free(g.size());
        add(g.data<decltype(kind)>(), to, at, n, data_of<decltype(kind)>(out));
    });
    return done ? out : nb::none();
}

// g[:, i] added to what is in `out` at index[i] along `axis`, i ascending. False, with nothing written, for what is not
// handled.
bool add_slices_to(ExactArray out, ExactArray g, ExactArray index, int64_t axis) {
    if (!plain(out) || !PyArray_ISWRITEABLE(out.array) || !plain(g) || !index.is<int64_t>() || index.ndim() != 1 ||
        axis < 0 || axis >= out.ndim() || g.ndim() != out.ndim() || PyArray_DESCR(g.array) != PyArray_DESCR(out.array))
        return false;
    for (int i = 0; i < out.ndim(); i++)
        if (g.dim(i) != (i == axis ? index.size() : out.dim(i))) return false;
    const Split to(out.ndim(), PyArray_DIMS(out.array), axis);
    const int64_t *at = index.data<int64_t>(), n = index.size();
    if (!all_inside(at, n, to.length)) return false;
    return by_type(PyArray_TYPE(out.array), [&](auto kind) {
        WithoutGil free(g.size());
        add(g.data<decltype(kind)>(), to, at, n, out.data<decltype(kind)>());
    });
}

// out[:, index[i]] = the larger (or smaller) of it and x[:, i] along `axis`, i ascending. False, with nothing written, for
// what is not handled.
bool pick_slices(ExactArray out, ExactArray index, ExactArray x, int64_t axis, bool largest) {
    if (!plain(out) || !PyArray_ISWRITEABLE(out.array) || !plain(x) || !index.is<int64_t>() || index.ndim() != 1 ||
        axis < 0 || axis >= out.ndim() || x.ndim() != out.ndim() || PyArray_DESCR(x.array) != PyArray_DESCR(out.array))
        return false;
    for (int i = 0; i < out.ndim(); i++)
        if (x.dim(i) != (i == axis ? index.size() : out.dim(i))) return false;
    const Split to(out.ndim(), PyArray_DIMS(out.array), axis);
    const int64_t *at = index.data<int64_t>(), n = index.size();
    if (!all_inside(at, n, to.length)) return false;
    return by_type(PyArray_TYPE(out.array), [&](auto kind) {
        using T = decltype(kind);
        WithoutGil free(x.size());
        merge_slices(x.data<T>(), to, at, n, out.data<T>(), [=](const T *from, int64_t count, T *target) {
            largest ? pick_largest(from, count, target) : pick_smallest(from, count, target);
        });
    });
}

// fn(o, i, at, place) for every element of an index (outer, n, inner) into (outer, length, inner): `at` its own place,
// `place` the one it names. Elements of one `o` in order.
template <class Fn> void each_along(const Split &whole, const int64_t *index, int64_t n, Fn fn) {
    parallel_rows(whole.outer, n * whole.inner, [&](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; o++) {
            const int64_t start = o * whole.length * whole.inner;
            int64_t at = o * n * whole.inner;
            if (whole.inner == 1) {
                for (const int64_t stop = at + n; at < stop; at++) fn(at, start + from_front(index[at], whole.length));
                continue;
            }
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j < whole.inner; j++, at++)
                    fn(at, start + from_front(index[at], whole.length) * whole.inner + j);
        }
    });
}

// Whether `index` has the lengths `dims` but along `axis`.
bool goes_along(const ExactArray &index, int ndim, const npy_intp *dims, int64_t axis) {
    if (!index.is<int64_t>() || axis < 0 || axis >= ndim || index.ndim() != ndim) return false;
    for (int i = 0; i < ndim; i++)
        if (i != axis && index.dim(i) != dims[i]) return false;
    return all_inside(index.data<int64_t>(), index.size(), dims[axis]);
}

// np.take_along_axis; None for what is not handled.
nb::object take_along(ExactArray x, ExactArray index, int64_t axis) {
    if (!plain(x) || !goes_along(index, x.ndim(), PyArray_DIMS(x.array), axis)) return nb::none();
    const Split from(x.ndim(), PyArray_DIMS(x.array), axis);
    nb::object y = new_array(x, x.ndim(), PyArray_DIMS(index.array), false);
    const bool done = by_size(PyArray_ITEMSIZE(x.array), [&](auto kind) {
        using T = decltype(kind);
        const T *source = x.data<T>();
        T *target = data_of<T>(y);
        WithoutGil free(index.size());
        each_along(from, index.data<int64_t>(), index.dim(static_cast<int>(axis)),
                   [=](int64_t at, int64_t place) { target[at] = source[place]; });
    });
    return done ? y : nb::none();
}

// Zeros of `shape` with g added at `index` along `axis`, positions there ascending: what undoes take_along.
nb::object add_along(ExactArray g, nb::handle shape, int64_t axis, ExactArray index) {
    npy_intp dims[NPY_MAXDIMS];
    const int ndim = lengths_of(shape, dims);
    if (!plain(g) || !goes_along(index, ndim, dims, axis) || !g.same_shape(index)) return nb::none();
    const Split to(ndim, dims, axis);
    nb::object out = new_array(g, ndim, dims, true);
    const bool done = by_type(PyArray_TYPE(g.array), [&](auto kind) {
        using T = decltype(kind);
        const T *source = g.data<T>();
        T *target = data_of<T>(out);
        WithoutGil free(g.size());
        each_along(to, index.data<int64_t>(), index.dim(static_cast<int>(axis)),
                   [=](int64_t at, int64_t place) { target[place] += source[at]; });
    });
    return done ? out : nb::none();
}

// g added to what is in `out` at `index` along `axis`, positions there ascending. False, with nothing written, for what is
// not handled.
bool add_along_to(ExactArray out, ExactArray g, int64_t axis, ExactArray index) {
    if (!plain(out) || !PyArray_ISWRITEABLE(out.array) || !plain(g) || !g.same_shape(index) ||
        PyArray_DESCR(g.array) != PyArray_DESCR(out.array) || !goes_along(index, out.ndim(), PyArray_DIMS(out.array), axis))
        return false;
    const Split to(out.ndim(), PyArray_DIMS(out.array), axis);
    return by_type(PyArray_TYPE(out.array), [&](auto kind) {
        using T = decltype(kind);
        const T *source = g.data<T>();
        T *target = out.data<T>();
        WithoutGil free(index.size());
        each_along(to, index.data<int64_t>(), index.dim(static_cast<int>(axis)),
                   [=](int64_t at, int64_t place) { target[place] += source[at]; });
    });
}

// Writes `value` into `out` at `index` along `axis`; of several for one place the last stays. False, with nothing
// written, for what is not handled.
bool put_along(ExactArray out, ExactArray index, ExactArray value, int64_t axis) {
    if (!plain(out) || !PyArray_ISWRITEABLE(out.array) || !plain(value) || !value.same_shape(index) ||
        PyArray_DESCR(value.array) != PyArray_DESCR(out.array) ||
        !goes_along(index, out.ndim(), PyArray_DIMS(out.array), axis))
        return false;
    const Split to(out.ndim(), PyArray_DIMS(out.array), axis);
    return by_size(PyArray_ITEMSIZE(out.array), [&](auto kind) {
        using T = decltype(kind);
        const T *source = value.data<T>();
        T *target = out.data<T>();
        WithoutGil free(index.size());
        each_along(to, index.data<int64_t>(), index.dim(static_cast<int>(axis)),
                   [=](int64_t at, int64_t place) { target[place] = source[at]; });
    });
}

// Makes elements of `out` at `index` along `axis` the larger (or smaller) of themselves and of `value`, in order; NaN wins.
// False, with nothing written, for what is not handled.
bool extreme_along(ExactArray out, ExactArray index, ExactArray value, int64_t axis, bool largest) {
    if (!plain(out) || !PyArray_ISWRITEABLE(out.array) || !plain(value) || !value.same_shape(index) ||
        PyArray_DESCR(value.array) != PyArray_DESCR(out.array) ||
        !goes_along(index, out.ndim(), PyArray_DIMS(out.array), axis))
        return false;
    const Split to(out.ndim(), PyArray_DIMS(out.array), axis);
    return by_type(PyArray_TYPE(out.array), [&](auto kind) {
        using T = decltype(kind);
        const T *source = value.data<T>();
        T *target = out.data<T>();
        WithoutGil free(index.size());
        each_along(to, index.data<int64_t>(), index.dim(static_cast<int>(axis)), [=](int64_t at, int64_t place) {
            const T x = source[at], known = target[place];
            target[place] = (largest ? x > known : x < known) || x != x ? x : known;
        });
    });
}

} // namespace

void bind_places(nb::module_ &m) {
    m.def("take_slices", &take_slices);
    m.def("add_slices", &add_slices);
    m.def("take_along", &take_along);
    m.def("take_indexed", &take_indexed, nb::arg(), nb::arg().none());
    m.def("indexed", &indexed, nb::arg(), nb::arg().none());
    m.def("reshaped", &reshaped, nb::arg(), nb::arg());
    m.def("add_along", &add_along);
    m.def("add_slices_to", &add_slices_to);
    m.def("add_along_to", &add_along_to);
    m.def("put_along", &put_along);
    m.def("pick_slices", &pick_slices);
    m.def("extreme_along", &extreme_along);
}

} // namespace resilin
