// Reductions over the last dimensions of contiguous arrays, where rows of elements become one element each.
#pragma once
#include "binding/array.hpp"

namespace resilin {

// The dimensions that `axis` names, a bit for each, when these are the last ones but for those of length 1, which are
// reduced or kept as they are; 0 when they are not, or there are none.
inline uint64_t trailing(nb::handle axis, const ExactArray &x) {
    const int ndim = x.ndim();
    if (ndim >= 64) return 0;
    if (axis.is_none()) return ndim ? (uint64_t{1} << ndim) - 1 : 1;
    uint64_t named = 0;
    PyObject *const one = axis.ptr(), *const *items = &one;
    Py_ssize_t count = 1;
    if (PyTuple_CheckExact(one)) items = PySequence_Fast_ITEMS(one), count = PyTuple_GET_SIZE(one);
    for (Py_ssize_t i = 0; i < count; i++) {
        int over = 0;
        const long given = PyLong_CheckExact(items[i]) ? PyLong_AsLongAndOverflow(items[i], &over) : ndim;
        const long place = given < 0 ? given + ndim : given;
        if (over || place < 0 || place >= ndim || named >> place & 1) return 0;
        named |= uint64_t{1} << place;
    }
    bool kept = false;
    for (int i = ndim - 1; i >= 0; i--) {
        if (x.dim(i) == 1) continue;
        if (kept && named >> i & 1) return 0;
        kept |= !(named >> i & 1);
    }
    return named;
}

// A new array for one element per row of x, of which the dimensions `named` are reduced; `rows` says how many.
template <class T> NewArray<T> without_trailing(const ExactArray &x, uint64_t named, bool keepdims, int64_t &rows) {
    npy_intp dims[NPY_MAXDIMS];
    int ndim = 0;
    rows = 1;
    for (int i = 0; i < x.ndim(); i++) {
        const bool reduced = named >> i & 1;
        if (!reduced || keepdims) dims[ndim++] = reduced ? 1 : x.dim(i);
        if (!reduced) rows *= x.dim(i);
    }
    return NewArray<T>(ndim, dims);
}

} // namespace resilin
