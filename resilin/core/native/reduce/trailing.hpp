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

// Whether the dimensions that `axis` names are the last ones but for those of length 1, which are reduced or kept as they
// are.
inline bool trailing(nb::handle axis, const ExactArray &x, uint64_t &named) {
    named = 0;
    if (!named_axes(axis, x.ndim(), named)) return false;
    bool kept = false;
    for (int i = x.ndim() - 1; i >= 0; i--) {
        if (x.dim(i) == 1) continue;
        if (kept && named >> i & 1) return false;
        kept |= !(named >> i & 1);
    }
    return true;
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

// A new array for one element per row of x, of which the dimensions `named` are reduced; `rows` says how many.
template <class T> NewArray<T> without_trailing(const ExactArray &x, uint64_t named, bool keepdims, int64_t &rows) {
    npy_intp dims[NPY_MAXDIMS];
    int ndim = 0;
    rows = 1;
    for (int i = 0; i < x.ndim(); i++) {
        const bool gone = named >> i & 1;
        if (!gone || keepdims) dims[ndim++] = gone ? 1 : x.dim(i);
        if (!gone) rows *= x.dim(i);
    }
    return NewArray<T>(ndim, dims);
}

// of(x, axis, keepdims); for a transposed array whose dimensions lie in reverse, of that one as it lies, turned back.
template <class Fn> nb::object as_it_lies(const ExactArray &x, nb::handle axis, bool keepdims, Fn of) {
    const int ndim = x.array ? x.ndim() : 0;
    if (ndim < 2 || PyArray_IS_C_CONTIGUOUS(x.array) || !PyArray_IS_F_CONTIGUOUS(x.array)) return of(x, axis, keepdims);
    uint64_t named = 0;
    if (!named_axes(axis, ndim, named)) return nb::none();
    nb::list axes;
    for (int i = 0; i < ndim; i++)
        if (named >> i & 1) axes.append(ndim - 1 - i);
    const nb::object turned = nb::steal(PyArray_Transpose(x.array, nullptr));
    if (!turned.ptr()) throw nb::python_error();
    nb::object made = of(ExactArray{reinterpret_cast<PyArrayObject *>(turned.ptr())}, nb::tuple(axes), keepdims);
    if (made.is_none() || PyArray_NDIM(reinterpret_cast<PyArrayObject *>(made.ptr())) < 2) return made;
    return nb::steal(PyArray_Transpose(reinterpret_cast<PyArrayObject *>(made.ptr()), nullptr));
}

} // namespace resilin
