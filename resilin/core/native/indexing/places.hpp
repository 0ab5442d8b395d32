// Elements at places along one dimension: what taking them, adding to them and writing them have in common.
#pragma once
#include "binding/array.hpp"
#include "memory/parallel.hpp"
#include "kernels/simd.hpp"

#include <atomic>
#include <cstring>
#include <vector>

namespace resilin {

// An array as (outer, length, inner) around one of its dimensions.
struct Split {
    int64_t outer = 1, length = 0, inner = 1;
    Split(int ndim, const npy_intp *dims, int64_t axis) : length(dims[axis]) {
        for (int i = 0; i < axis; i++) outer *= dims[i];
        for (int i = static_cast<int>(axis) + 1; i < ndim; i++) inner *= dims[i];
    }
    int64_t size() const { return outer * length * inner; }
};

// Whether places count from the front alone, or from the end, too, where they are negative.
enum class Places { from_front, both };

// Whether all of n places are of a dimension of this length.
bool all_inside(const int64_t *index, int64_t n, int64_t length, Places places = Places::both);

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

inline bool plain(const ExactArray &x) {
    return x && PyArray_ISCARRAY_RO(x.array) && PyArray_ISNOTSWAPPED(x.array) && !PyDataType_REFCHK(PyArray_DESCR(x.array));
}
inline bool plain_to_write(const ExactArray &x) { return plain(x) && PyArray_ISWRITEABLE(x.array); }

inline bool same_dtype(const ExactArray &x, const ExactArray &y) { return PyArray_DESCR(x.array) == PyArray_DESCR(y.array); }

inline nb::object new_array(const ExactArray &like, int ndim, const npy_intp *dims, bool zeroed) {
    PyArray_Descr *descr = PyArray_DESCR(like.array);
    Py_INCREF(descr);
    auto *lengths = const_cast<npy_intp *>(dims);
    nb::object made = nb::steal(zeroed ? PyArray_Zeros(ndim, lengths, descr, 0) : PyArray_Empty(ndim, lengths, descr, 0));
    if (!made.ptr()) throw nb::python_error();
    return made;
}

inline ExactArray array_in(const nb::object &made) { return {reinterpret_cast<PyArrayObject *>(made.ptr())}; }

template <class T> T *data_of(const nb::object &array) { return array_in(array).data<T>(); }

// The dimension that `dim` names, which counts from the end where it is negative; -1 for none.
inline int64_t axis_of(const ExactArray &x, int64_t dim) {
    const int64_t axis = dim < 0 ? dim + x.ndim() : dim;
    return axis >= 0 && axis < x.ndim() ? axis : -1;
}

// Whether `index` has the lengths `dims` but along `axis`.
inline bool goes_along(const ExactArray &index, int ndim, const npy_intp *dims, int64_t axis) {
    if (!index || PyArray_TYPE(index.array) != NPY_INT64 || axis < 0 || axis >= ndim || index.ndim() != ndim) return false;
    for (int i = 0; i < ndim; i++)
        if (i != axis && index.dim(i) != dims[i]) return false;
    return true;
}

// The places of whole slices: those of a vector, or of an index of one place per element that was expanded from a place
// per slice. `known` is false for any other index.
struct SlicePlaces {
    bool known = false;
    int64_t n = 0;
    const int64_t *at = nullptr;
    std::vector<int64_t> own; // where they do not lie one after the other
};
inline SlicePlaces slice_places(const ExactArray &index, int64_t axis) {
    SlicePlaces found;
    if (!index || PyArray_TYPE(index.array) != NPY_INT64 || !PyArray_ISALIGNED(index.array) || !PyArray_ISNOTSWAPPED(index.array))
        return found;
    const int along = static_cast<int>(axis);
    for (int i = 0; i < index.ndim(); i++)
        if (i != along && index.dim(i) != 1 && PyArray_STRIDE(index.array, i) != 0) return found;
    found.known = true;
    found.n = index.dim(along);
    found.at = index.data<int64_t>();
    const npy_intp step = PyArray_STRIDE(index.array, along);
    if (step == sizeof(int64_t) || found.n < 2) return found;
    const char *from = PyArray_BYTES(index.array);
    found.own.resize(static_cast<size_t>(found.n));
    for (int64_t i = 0; i < found.n; i++) std::memcpy(&found.own[static_cast<size_t>(i)], from + i * step, sizeof(int64_t));
    found.at = found.own.data();
    return found;
}

void bind_places_merged(nb::module_ &m);
void bind_repeats(nb::module_ &m);

} // namespace resilin
