// Reductions over the last dimensions of contiguous arrays, where rows of elements become one element each.
#pragma once
#include "binding/array.hpp"

namespace resilin {

// Which dimensions `axis` names, a bit for each; false when it names one twice or one that is not there.
inline bool named_axes(nb::handle axis, int ndim, uint64_t &named) {
    if (axis.is_none()) {
        named = (uint64_t{1} << ndim) - 1;
        return true;
    }
    PyObject *const one = axis.ptr(), *const *items = &one;
    Py_ssize_t count = 1;
    if (PyTuple_CheckExact(one)) items = PySequence_Fast_ITEMS(one), count = PyTuple_GET_SIZE(one);
    for (Py_ssize_t i = 0; i < count; i++) {
        int over = 0;
        const long given = PyLong_CheckExact(items[i]) ? PyLong_AsLongAndOverflow(items[i], &over) : ndim;
        const long place = given < 0 ? given + ndim : given;
        if (over || place < 0 || place >= ndim || named >> place & 1) return false;
        named |= uint64_t{1} << place;
    }
    return count > 0;
}

// The first of the dimensions `axis` names, when these are the last ones; -1 when they are not.
inline int first_trailing(nb::handle axis, int ndim) {
    uint64_t named = 0;
    if (axis.is_none()) return 0;
    if (!named_axes(axis, ndim, named)) return -1;
    int first = ndim;
    while (first > 0 && named >> (first - 1) & 1) first--;
    return named >> first << first == named ? first : -1;
}

// A new array of x's dtype (or of int64) without the dimensions in `named`, or with these as length 1.
inline nb::object without_axes(const ExactArray &x, uint64_t named, bool keepdims, bool integers = false) {
    npy_intp dims[NPY_MAXDIMS];
    int ndim = 0;
    for (int i = 0; i < x.ndim(); i++) {
        const bool gone = named >> i & 1;
        if (!gone || keepdims) dims[ndim++] = gone ? 1 : x.dim(i);
    }
    PyArray_Descr *descr = integers ? PyArray_DescrFromType(NPY_INT64) : PyArray_DESCR(x.array);
    if (!integers) Py_INCREF(descr);
    nb::object made = nb::steal(PyArray_NewFromDescr(&PyArray_Type, descr, ndim, dims, nullptr, nullptr, 0, nullptr));
    if (!made.ptr()) throw nb::python_error();
    return made;
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
