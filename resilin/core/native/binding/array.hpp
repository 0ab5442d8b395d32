// numpy arrays as arguments and results. A kernel returns None for input that it does not handle.
#pragma once
#include <nanobind/nanobind.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL resilin_core_numpy
#ifndef RESILIN_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include <cstdint>
#include <initializer_list>

#include "gil.hpp"

namespace nb = nanobind;

namespace resilin {

template <class T> constexpr int type_number = NPY_NOTYPE;
template <> inline constexpr int type_number<float> = NPY_FLOAT32;
template <> inline constexpr int type_number<double> = NPY_FLOAT64;
template <> inline constexpr int type_number<int64_t> = NPY_INT64;
template <> inline constexpr int type_number<int32_t> = NPY_INT32;
template <> inline constexpr int type_number<uint64_t> = NPY_UINT64;
template <> inline constexpr int type_number<uint32_t> = NPY_UINT32;
template <> inline constexpr int type_number<uint16_t> = NPY_UINT16;

// An array argument as it is, for kernels that write into it; `array` is null for None.
struct ExactArray {
    PyArrayObject *array = nullptr;

    explicit operator bool() const { return array != nullptr; }
    int ndim() const { return PyArray_NDIM(array); }
    int64_t dim(int i) const { return PyArray_DIM(array, i); }
    int64_t size() const { return PyArray_SIZE(array); }
    // elements before the last axis, and along it
    int64_t last() const { return ndim() ? dim(ndim() - 1) : 1; }
    int64_t rows() const { return last() ? size() / last() : 0; }
    // there at all, C-contiguous, aligned, native byte order and of type T
    template <class T> bool is() const {
        return array && PyArray_TYPE(array) == type_number<T> && PyArray_ISCARRAY_RO(array) &&
               PyArray_ISNOTSWAPPED(array);
    }
    template <class T> bool is_or_none() const { return !array || is<T>(); }
    template <class T> bool is_writable() const { return is<T>() && PyArray_ISWRITEABLE(array); }
    template <class T> T *data() const { return array ? static_cast<T *>(PyArray_DATA(array)) : nullptr; }
    bool same_shape(const ExactArray &other) const {
        return ndim() == other.ndim() &&
               PyArray_CompareLists(PyArray_DIMS(array), PyArray_DIMS(other.array), ndim());
    }
};

// A new array of x's elements in C order, where a dimension other than the last is the fastest in x; null, without an
// error, for arrays that numpy copies as well.
PyObject *contiguous_copy(PyArrayObject *x);

// An array argument that is only read: a strided one of a type with kernels is copied to a contiguous one.
struct Array : ExactArray {
    nb::object copy;
};

// A new array and a pointer to its elements.
template <class T> struct NewArray {
    nb::object object;
    T *data;
    NewArray(int ndim, const npy_intp *dims, bool zeroed = false)
        : object(nb::steal(zeroed ? PyArray_ZEROS(ndim, const_cast<npy_intp *>(dims), type_number<T>, 0)
                                  : PyArray_SimpleNew(ndim, const_cast<npy_intp *>(dims), type_number<T>))) {
        if (!object.ptr()) throw nb::python_error();
        data = static_cast<T *>(PyArray_DATA(reinterpret_cast<PyArrayObject *>(object.ptr())));
    }
    explicit NewArray(const ExactArray &like) : NewArray(like.ndim(), PyArray_DIMS(like.array)) {}
    NewArray(std::initializer_list<npy_intp> dims, bool zeroed = false)
        : NewArray(static_cast<int>(dims.size()), dims.begin(), zeroed) {}
};

} // namespace resilin

namespace nanobind::detail {
template <> struct type_caster<resilin::ExactArray> {
    NB_TYPE_CASTER(resilin::ExactArray, const_name("numpy.ndarray | None"))
    bool from_python(handle source, uint32_t, cleanup_list *) noexcept {
        if (!source.is_none() && !PyArray_Check(source.ptr())) return false;
        value.array = source.is_none() ? nullptr : reinterpret_cast<PyArrayObject *>(source.ptr());
        return true;
    }
    static handle from_cpp(const resilin::ExactArray &, rv_policy, cleanup_list *) noexcept { return handle(); }
};

template <> struct type_caster<resilin::Array> {
    NB_TYPE_CASTER(resilin::Array, const_name("numpy.ndarray | None"))
    bool from_python(handle source, uint32_t, cleanup_list *) noexcept {
        if (!source.is_none() && !PyArray_Check(source.ptr())) return false;
        value.array = source.is_none() ? nullptr : reinterpret_cast<PyArrayObject *>(source.ptr());
        if (!value.array || PyArray_ISCARRAY_RO(value.array) || !has_kernels(PyArray_TYPE(value.array))) return true;
        value.copy = steal(resilin::contiguous_copy(value.array));
        if (!value.copy.ptr())
            value.copy = steal(PyArray_FROM_OF(source.ptr(), NPY_ARRAY_CARRAY_RO | NPY_ARRAY_NOTSWAPPED));
        if (!value.copy.ptr()) {
            PyErr_Clear(); // out of memory, most likely: the reference meets it again and says so
            return false;
        }
        value.array = reinterpret_cast<PyArrayObject *>(value.copy.ptr());
        return true;
    }
    static bool has_kernels(int type) {
        return type == NPY_FLOAT32 || type == NPY_INT64 || type == NPY_UINT16;
    }
    static handle from_cpp(const resilin::Array &, rv_policy, cleanup_list *) noexcept { return handle(); }
};
} // namespace nanobind::detail
