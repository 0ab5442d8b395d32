// Arrays seen with dimensions of length 1 stretched.
#include "binding/array.hpp"
#include "binding/kernels.hpp"

namespace resilin {
namespace {

// A read-only view of x; None where `shape`, a tuple of ints, does not fit.
nb::object broadcast_to(nb::handle given, nb::handle shape) {
    if (!PyArray_CheckExact(given.ptr()) || !PyTuple_CheckExact(shape.ptr())) return nb::none();
    const ExactArray x{reinterpret_cast<PyArrayObject *>(given.ptr())};
    const int ndim = static_cast<int>(PyTuple_GET_SIZE(shape.ptr())), extra = ndim - x.ndim();
    if (extra < 0 || ndim > NPY_MAXDIMS) return nb::none();
    npy_intp dims[NPY_MAXDIMS], strides[NPY_MAXDIMS];
    for (int i = 0; i < ndim; i++) {
        PyObject *length = PyTuple_GET_ITEM(shape.ptr(), i);
        int over = 0;
        dims[i] = PyLong_CheckExact(length) ? PyLong_AsLongAndOverflow(length, &over) : -1;
        if (over || dims[i] < 0) return nb::none();
        const npy_intp own = i < extra ? 1 : x.dim(i - extra);
        if (own != dims[i] && own != 1) return nb::none();
        strides[i] = i >= extra && own == dims[i] ? PyArray_STRIDE(x.array, i - extra) : 0;
    }
    PyArray_Descr *descr = PyArray_DESCR(x.array);
    Py_INCREF(descr);
    nb::object view = nb::steal(
        PyArray_NewFromDescr(&PyArray_Type, descr, ndim, dims, strides, PyArray_DATA(x.array), 0, nullptr));
    if (!view.ptr()) throw nb::python_error();
    auto *made = reinterpret_cast<PyArrayObject *>(view.ptr());
    if (PyArray_SetBaseObject(made, Py_NewRef(reinterpret_cast<PyObject *>(x.array))) < 0) throw nb::python_error();
    return view;
}

} // namespace

void bind_broadcast(nb::module_ &m) { m.def("broadcast_to", &broadcast_to, nb::arg("x"), nb::arg("shape").none()); }

} // namespace resilin
