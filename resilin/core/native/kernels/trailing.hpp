// Reductions over the last dimensions of contiguous arrays, where rows of elements become one element each.
#pragma once
#include "binding/array.hpp"

namespace resilin {

// The first of the dimensions `axis` names, when these are the last ones; -1 when they are not.
inline int first_trailing(nb::handle axis, int ndim) {
    if (axis.is_none()) return 0;
    PyObject *const one = axis.ptr(), *const *items = &one;
    Py_ssize_t count = 1;
    if (PyTuple_CheckExact(one)) items = PySequence_Fast_ITEMS(one), count = PyTuple_GET_SIZE(one);
    uint64_t named = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int over = 0;
        const long given = PyLong_CheckExact(items[i]) ? PyLong_AsLongAndOverflow(items[i], &over) : ndim;
        const long place = given < 0 ? given + ndim : given;
        if (over || place < 0 || place >= ndim || named >> place & 1) return -1;
        named |= uint64_t{1} << place;
    }
    const int first = ndim - static_cast<int>(count);
    return count && named >> first == (uint64_t{1} << count) - 1 ? first : -1;
}

// A new array for one element per row of x, whose dimensions from `first` on are reduced; `rows` says how many.
template <class T> NewArray<T> without_trailing(const ExactArray &x, int first, bool keepdims, int64_t &rows) {
    npy_intp dims[NPY_MAXDIMS];
    rows = 1;
    for (int i = 0; i < x.ndim(); i++) {
        dims[i] = i < first ? x.dim(i) : 1;
        rows *= dims[i];
    }
    return NewArray<T>(keepdims ? x.ndim() : first, dims);
}

} // namespace resilin
