// Elements added to places along one dimension, compared with what is there, or written, in the order of the places.
// 16-bit floats are added in float32 and rounded once.
#include "binding/kernels.hpp"
#include "masks.hpp"
#include "places.hpp"
#include "stored.hpp"

#include <algorithm>
#include <memory>

namespace resilin {
namespace {

struct Add {
    template <class T> static RESILIN_INLINE T merged(T known, T x) {
        if constexpr (std::is_same_v<T, int64_t>) return static_cast<T>(static_cast<uint64_t>(known) + static_cast<uint64_t>(x));
        else return known + x;
    }
};
// x replaces what is there where it is larger (or smaller), or not a number; that stays.
struct Largest {
    template <class T> static RESILIN_INLINE T merged(T known, T x) { return x > known || x != x ? x : known; }
};
struct Smallest {
    template <class T> static RESILIN_INLINE T merged(T known, T x) { return x < known || x != x ? x : known; }
};
struct Put {
    template <class T> static RESILIN_INLINE T merged(T, T x) { return x; }
};

template <class E, class Op>
RESILIN_INLINE void merge_all(const typename E::Stored *x, int64_t n, typename E::Computed *out) {
    for (int64_t i = 0; i < n; i++) out[i] = Op::template merged<typename E::Computed>(out[i], E::open(x[i]));
}
#define RESILIN_MERGE(E, Op)                                                                                           \
    RESILIN_SIMD void merge_row(E, Op, const E::Stored *x, int64_t n, E::Computed *out) { merge_all<E, Op>(x, n, out); }
#define RESILIN_FOR_KIND(E) RESILIN_MERGE(E, Add) RESILIN_MERGE(E, Largest) RESILIN_MERGE(E, Smallest)
RESILIN_FOR_KIND(Whole<float>)
RESILIN_FOR_KIND(Whole<double>)
RESILIN_FOR_KIND(Whole<int64_t>)
RESILIN_FOR_KIND(Half)
RESILIN_FOR_KIND(Bfloat)
#undef RESILIN_FOR_KIND
template <class T> void merge_row(Whole<T>, Put, const T *x, int64_t n, T *out) {
    std::memcpy(out, x, static_cast<size_t>(n) * sizeof(T));
}

// One element after the other. By value: what is written could be what lengths are kept in, as far as compilers know.
template <class E, class Op>
void merge_line(const typename E::Stored *x, const int64_t *index, int64_t n, int64_t length, typename E::Computed *out) {
    using C = typename E::Computed;
#pragma GCC unroll 4
    for (int64_t i = 0; i < n; i++) {
        C &at = out[from_front(index[i], length)];
        at = Op::template merged<C>(at, E::open(x[i]));
    }
}

// What is merged: an element of `x` for each place of `index`, or with `slices` a slice for each.
template <class E> struct Given {
    const typename E::Stored *x;
    const int64_t *index;
    int64_t n; // places along the dimension
    bool slices;
};

// Into `out`, in order. Threads share the outer dimensions, or else the elements of a slice, LINES at least: who merges an
// element does not change the order of what is merged there.
constexpr int64_t LINES = 32;
int64_t parts_of(const Split &to) { return to.outer > 1 ? 1 : std::clamp<int64_t>(to.inner / LINES, 1, num_threads()); }
template <class E, class Op> void merge(E kind, Op op, const Given<E> &given, const Split &to, typename E::Computed *out) {
    using C = typename E::Computed;
    const int64_t parts = parts_of(to);
    const int64_t n = given.n, inner = to.inner, length = to.length;
    parallel_rows(to.outer * parts, n * inner / parts, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const int64_t o = row / parts, first = inner * (row % parts) / parts, last = inner * (row % parts + 1) / parts;
            const int64_t *index = given.slices ? given.index : given.index + o * n * inner;
            const typename E::Stored *x = given.x + o * n * inner;
            C *target = out + o * length * inner;
            if (inner == 1) {
                merge_line<E, Op>(x, index, n, length, target);
            } else if (given.slices) {
                for (int64_t i = 0; i < n; i++)
                    merge_row(kind, op, x + i * inner + first, last - first, target + from_front(index[i], length) * inner + first);
            } else {
                for (int64_t i = 0; i < n; i++, index += inner, x += inner)
                    for (int64_t j = first; j < last; j++) {
                        C &at = target[from_front(index[j], length) * inner + j];
                        at = Op::template merged<C>(at, E::open(x[j]));
                    }
            }
        }
    });
}

template <class T> void copy_all(const T *x, int64_t size, T *out) {
    parallel_rows(size, 1, [&](int64_t begin, int64_t end) {
        std::memcpy(out + begin, x + begin, static_cast<size_t>(end - begin) * sizeof(T));
    });
}

// fn(memory that holds the elements `from`), which becomes `out`: zeros where `from` is null, as `out` is then.
template <class E, class Fn>
void merged_into(E, const typename E::Stored *from, typename E::Stored *out, int64_t size, Fn fn) {
    if constexpr (std::is_same_v<typename E::Stored, typename E::Computed>) {
        if (from && from != out) copy_all(from, size, out);
        fn(out);
    } else {
        const std::unique_ptr<float[]> wide(new float[static_cast<size_t>(size)]);
        parallel_rows(size, 1, [&](int64_t begin, int64_t end) {
            if (from) E::unpack(from, begin, end, wide.get());
            else std::fill(wide.get() + begin, wide.get() + end, 0.0f);
        });
        fn(wide.get());
        parallel_rows(size, 1, [&](int64_t begin, int64_t end) { E::pack(wide.get(), begin, end, out); });
    }
}

// What to do with an operation of arrays: `x` merged at `places` along `axis` into `out`, which begins as `from` (null:
// as zeros).
struct Task {
    ExactArray from, out, x;
    const int64_t *index;
    int64_t n, axis;
    bool slices;
    Split split() const { return Split(out.ndim(), PyArray_DIMS(out.array), axis); }
};

template <class Op> bool run(const Task &task, Op op) {
    return by_kind(PyArray_TYPE(task.out.array), [&](auto kind) {
        using E = decltype(kind);
        using S = typename E::Stored;
        const Given<E> given{task.x.data<S>(), task.index, task.n, task.slices};
        WithoutGil free(task.x.size() + task.out.size());
        merged_into(kind, task.from.data<S>(), task.out.data<S>(), task.out.size(),
                    [&](auto *out) { merge(kind, op, given, task.split(), out); });
    });
}

template <> bool run(const Task &task, Put op) {
    return by_size(PyArray_ITEMSIZE(task.out.array), [&](auto element) {
        using T = decltype(element);
        const Given<Whole<T>> given{task.x.data<T>(), task.index, task.n, task.slices};
        WithoutGil free(task.x.size() + task.out.size());
        if (task.from.data<T>() != task.out.data<T>()) copy_all(task.from.data<T>(), task.out.size(), task.out.data<T>());
        merge(Whole<T>{}, op, given, task.split(), task.out.data<T>());
    });
}

enum class Merge { add, largest, smallest, put };
bool run(const Task &task, Merge how) {
    switch (how) {
    case Merge::add: return run(task, Add{});
    case Merge::largest: return run(task, Largest{});
    case Merge::smallest: return run(task, Smallest{});
    default: return run(task, Put{});
    }
}

bool can_merge(const ExactArray &out, const ExactArray &x, Merge how) {
    if (!plain(out) || !plain(x) || !same_dtype(out, x)) return false;
    return how == Merge::put ? by_size(PyArray_ITEMSIZE(x.array), [](auto) {}) : has_kind(PyArray_TYPE(x.array));
}

// Whether `x` has the shape of `out` but `at` in place of `axis`.
bool slices_fit(const ExactArray &x, int ndim, const npy_intp *dims, const ExactArray &at, int64_t axis) {
    if (axis < 0 || axis >= ndim || x.ndim() != ndim - 1 + at.ndim()) return false;
    for (int i = 0; i < ndim; i++)
        if (i != axis && x.dim(i < axis ? i : i - 1 + at.ndim()) != dims[i]) return false;
    for (int i = 0; i < at.ndim(); i++)
        if (x.dim(static_cast<int>(axis) + i) != at.dim(i)) return false;
    return true;
}

// The places of slices of `out`, for what is merged in place of them; false where they do not fit.
bool slices_of(const ExactArray &index, const ExactArray &x, int ndim, const npy_intp *dims, int64_t axis, Places places, Task &task) {
    if (!index.is<int64_t>() || !slices_fit(x, ndim, dims, index, axis)) return false;
    task.x = x, task.axis = axis, task.index = index.data<int64_t>(), task.n = index.size(), task.slices = true;
    return all_inside(task.index, task.n, dims[axis], places);
}

// The same for places of elements; those that were expanded from places of slices, which `kept` holds, are such.
bool elements_of(const ExactArray &index, const ExactArray &x, int ndim, const npy_intp *dims, int64_t axis, Places places,
                 SlicePlaces &kept, Task &task) {
    if (!goes_along(index, ndim, dims, axis) || !x.same_shape(index)) return false;
    kept = index.size() ? slice_places(index, axis) : SlicePlaces{};
    if (!kept.known && !index.is<int64_t>()) return false;
    task.x = x, task.axis = axis, task.slices = kept.known;
    task.index = kept.known ? kept.at : index.data<int64_t>();
    task.n = index.dim(static_cast<int>(axis));
    return all_inside(task.index, kept.known ? kept.n : index.size(), dims[axis], places);
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

// -- what kernels/places.py asks: None or False, with nothing written, for what is not handled

// Zeros of `shape` with g[:, i] added at index[i] along `axis`, i ascending: what undoes take_slices.
nb::object add_slices(ExactArray g, nb::handle shape, ExactArray index, int64_t axis) {
    npy_intp dims[NPY_MAXDIMS];
    const int ndim = lengths_of(shape, dims);
    Task task;
    if (!plain(g) || !has_kind(PyArray_TYPE(g.array)) || !slices_of(index, g, ndim, dims, axis, Places::both, task))
        return nb::none();
    nb::object out = new_array(g, ndim, dims, true);
    task.out = array_in(out);
    return run(task, Add{}) ? out : nb::none();
}

// Zeros of `shape` with g added at `index` along `axis`, positions there ascending: what undoes take_along.
nb::object add_along(ExactArray g, nb::handle shape, int64_t axis, ExactArray index) {
    npy_intp dims[NPY_MAXDIMS];
    const int ndim = lengths_of(shape, dims);
    Task task;
    SlicePlaces kept;
    if (!plain(g) || !has_kind(PyArray_TYPE(g.array)) || !elements_of(index, g, ndim, dims, axis, Places::both, kept, task))
        return nb::none();
    nb::object out = new_array(g, ndim, dims, true);
    task.out = array_in(out);
    return run(task, Add{}) ? out : nb::none();
}

bool merge_slices_into(const ExactArray &out, const ExactArray &x, const ExactArray &index, int64_t axis, Places places, Merge how) {
    Task task;
    if (!can_merge(out, x, how) || !plain_to_write(out)) return false;
    if (!slices_of(index, x, out.ndim(), PyArray_DIMS(out.array), axis, places, task)) return false;
    task.from = task.out = out;
    return run(task, how);
}
bool merge_along_into(const ExactArray &out, const ExactArray &x, const ExactArray &index, int64_t axis, Places places, Merge how) {
    Task task;
    SlicePlaces kept;
    if (!can_merge(out, x, how) || !plain_to_write(out)) return false;
    if (!elements_of(index, x, out.ndim(), PyArray_DIMS(out.array), axis, places, kept, task)) return false;
    task.from = task.out = out;
    return run(task, how);
}

bool add_slices_to(ExactArray out, ExactArray g, ExactArray index, int64_t axis) {
    return merge_slices_into(out, g, index, axis, Places::both, Merge::add);
}
bool pick_slices(ExactArray out, ExactArray index, ExactArray x, int64_t axis, bool largest) {
    return merge_slices_into(out, x, index, axis, Places::both, largest ? Merge::largest : Merge::smallest);
}
bool add_along_to(ExactArray out, ExactArray g, int64_t axis, ExactArray index) {
    return merge_along_into(out, g, index, axis, Places::both, Merge::add);
}
bool put_along(ExactArray out, ExactArray index, ExactArray value, int64_t axis) {
    return merge_along_into(out, value, index, axis, Places::both, Merge::put);
}
bool extreme_along(ExactArray out, ExactArray index, ExactArray value, int64_t axis, bool largest) {
    return merge_along_into(out, value, index, axis, Places::both, largest ? Merge::largest : Merge::smallest);
}

// -- what functions of tensors ask first, in the order of their parameters, `x` as it is or written in place

template <bool InPlace> using Answer = std::conditional_t<InPlace, bool, nb::object>;

// `x` with what the task merges, in place or in a new array.
template <bool InPlace> Answer<InPlace> done(const ExactArray &x, Task &task, Merge how) {
    task.from = task.out = x;
    if constexpr (InPlace) {
        return plain_to_write(x) && run(task, how);
    } else {
        nb::object out = new_array(x, x.ndim(), PyArray_DIMS(x.array), false);
        task.out = array_in(out);
        return run(task, how) ? out : nb::none();
    }
}
template <bool InPlace> Answer<InPlace> not_handled() {
    if constexpr (InPlace) return false;
    else return nb::none();
}

template <bool InPlace>
Answer<InPlace> elements(const ExactArray &x, int64_t dim, const ExactArray &index, const ExactArray &given, Merge how) {
    Task task;
    SlicePlaces kept;
    if (!x || !index || !given || !index.size() || !can_merge(x, given, how) ||
        !elements_of(index, given, x.ndim(), PyArray_DIMS(x.array), axis_of(x, dim), Places::from_front, kept, task))
        return not_handled<InPlace>();
    return done<InPlace>(x, task, how);
}
template <bool InPlace>
Answer<InPlace> slices(const ExactArray &x, int64_t dim, const ExactArray &index, const ExactArray &given, Places places, Merge how) {
    Task task;
    if (!x || !index || !given || !index.size() || !can_merge(x, given, how) ||
        !slices_of(index, given, x.ndim(), PyArray_DIMS(x.array), axis_of(x, dim), places, task))
        return not_handled<InPlace>();
    return done<InPlace>(x, task, how);
}

template <bool InPlace> Answer<InPlace> scatter(ExactArray x, int64_t dim, ExactArray index, ExactArray src) {
    return elements<InPlace>(x, dim, index, src, Merge::put);
}
template <bool InPlace> Answer<InPlace> scatter_add(ExactArray x, int64_t dim, ExactArray index, ExactArray src) {
    return elements<InPlace>(x, dim, index, src, Merge::add);
}
template <bool InPlace>
Answer<InPlace> scatter_reduce(ExactArray x, int64_t dim, ExactArray index, ExactArray src, nb::str reduce) {
    const char *name = reduce.c_str();
    if (!std::strcmp(name, "sum")) return elements<InPlace>(x, dim, index, src, Merge::add);
    if (!std::strcmp(name, "amax")) return elements<InPlace>(x, dim, index, src, Merge::largest);
    if (!std::strcmp(name, "amin")) return elements<InPlace>(x, dim, index, src, Merge::smallest);
    return not_handled<InPlace>();
}
template <bool InPlace> Answer<InPlace> index_add(ExactArray x, int64_t dim, ExactArray index, ExactArray source) {
    if (!index || index.ndim() != 1) return not_handled<InPlace>();
    return slices<InPlace>(x, dim, index, source, Places::from_front, Merge::add);
}
template <bool InPlace> Answer<InPlace> index_copy(ExactArray x, int64_t dim, ExactArray index, ExactArray source) {
    if (!index || index.ndim() != 1) return not_handled<InPlace>();
    return slices<InPlace>(x, dim, index, source, Places::from_front, Merge::put);
}
template <bool InPlace> Answer<InPlace> index_put(ExactArray x, ExactArray index, ExactArray values, bool accumulate) {
    return slices<InPlace>(x, 0, index, values, Places::both, accumulate ? Merge::add : Merge::put);
}

// Writes what other threads may write there, too.
template <class T> void put_whole(T with, T *to) { __atomic_store_n(to, with, __ATOMIC_RELAXED); }
void put_whole(Bytes16 with, Bytes16 *to) {
    for (int i = 0; i < 2; i++) put_whole(with.half[i], &to->half[i]);
}

// A number in the slices at `n` places. Threads share the places, or as merge() what a slice is made of.
template <class T> void fill_places(T with, const int64_t *at, int64_t n, const Split &to, T *target) {
    const int64_t inner = to.inner, length = to.length;
    if (inner == 1)
        return parallel_rows(n, to.outer, [&](int64_t begin, int64_t end) {
            for (int64_t o = 0; o < to.outer; o++)
                for (int64_t i = begin; i < end; i++) put_whole(with, target + o * length + from_front(at[i], length));
        });
    const int64_t parts = parts_of(to);
    parallel_rows(to.outer * parts, n * inner / parts, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const int64_t o = row / parts, first = inner * (row % parts) / parts, last = inner * (row % parts + 1) / parts;
            for (int64_t i = 0; i < n; i++)
                std::fill_n(target + (o * length + from_front(at[i], length)) * inner + first, last - first, with);
        }
    });
}

// A number in the slices at a vector of places.
template <bool InPlace> Answer<InPlace> index_fill(ExactArray x, int64_t dim, ExactArray index, nb::handle value) {
    const int64_t axis = x ? axis_of(x, dim) : -1;
    double number[2]; // of the element's dtype
    if (axis < 0 || !plain(x) || !index.is<int64_t>() || index.ndim() != 1 || !index.size() || (InPlace && !plain_to_write(x)) ||
        !held_number(value.ptr(), PyArray_TYPE(x.array), number) ||
        !all_inside(index.data<int64_t>(), index.size(), x.dim(static_cast<int>(axis))))
        return not_handled<InPlace>();
    nb::object made = InPlace ? nb::none() : new_array(x, x.ndim(), PyArray_DIMS(x.array), false);
    const ExactArray out = InPlace ? x : array_in(made);
    const Split to(x.ndim(), PyArray_DIMS(x.array), axis);
    const int64_t *at = index.data<int64_t>(), n = index.size();
    by_size(PyArray_ITEMSIZE(x.array), [&](auto element) {
        using T = decltype(element);
        T with;
        std::memcpy(&with, number, sizeof(T));
        T *target = out.data<T>();
        WithoutGil free(x.size());
        if (!InPlace) copy_all(x.data<T>(), x.size(), target);
        fill_places(with, at, n, to, target);
    });
    if constexpr (InPlace) return true;
    else return made;
}

} // namespace

void bind_places_merged(nb::module_ &m) {
    m.def("add_slices", &add_slices);
    m.def("add_along", &add_along);
    m.def("add_along_to", &add_along_to);
    m.def("add_slices_to", &add_slices_to);
    m.def("put_along", &put_along);
    m.def("pick_slices", &pick_slices);
    m.def("extreme_along", &extreme_along);
#define RESILIN_BIND(name, ...)                                                                                        \
    m.def(#name, &name<false>, __VA_ARGS__);                                                                           \
    m.def(#name "_into", &name<true>, __VA_ARGS__)
    RESILIN_BIND(scatter, nb::arg(), nb::arg(), nb::arg(), nb::arg());
    RESILIN_BIND(scatter_add, nb::arg(), nb::arg(), nb::arg(), nb::arg());
    RESILIN_BIND(scatter_reduce, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
    RESILIN_BIND(index_add, nb::arg(), nb::arg(), nb::arg(), nb::arg());
    RESILIN_BIND(index_copy, nb::arg(), nb::arg(), nb::arg(), nb::arg());
    RESILIN_BIND(index_put, nb::arg(), nb::arg(), nb::arg(), nb::arg() = false);
    RESILIN_BIND(index_fill, nb::arg(), nb::arg(), nb::arg(), nb::arg());
#undef RESILIN_BIND
}

} // namespace resilin
