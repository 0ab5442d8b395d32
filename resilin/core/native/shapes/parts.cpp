// A tensor's parts along one dimension, all at once: views that know what they are views of.
#include "shapes.hpp"

#include "binding/tensors.hpp"
#include "indexing/places.hpp"
#include "tracing/operations.hpp"

namespace resilin {
namespace {

// (:, ..., place), an index behind `axis` dimensions as the one parameter of the operation that views come from.
nb::object parameters(int64_t axis, nb::handle all, nb::object place) {
    nb::object index = nb::steal(PyTuple_New(axis + 1));
    if (!index.is_valid() || !place.is_valid()) throw nb::python_error();
    for (int64_t i = 0; i < axis; i++) PyTuple_SET_ITEM(index.ptr(), i, Py_NewRef(all.ptr()));
    PyTuple_SET_ITEM(index.ptr(), axis, place.release().ptr());
    return nb::make_tuple(index);
}

nb::object slice_of(int64_t begin, int64_t end) {
    const nb::object from = nb::steal(PyLong_FromLongLong(begin)), to = nb::steal(PyLong_FromLongLong(end));
    return nb::steal(PySlice_New(from.ptr(), to.ptr(), nullptr));
}

// The next `length` elements along `axis` from `begin` on, or, without the dimension, the one at `begin`.
nb::object view_along(const ExactArray &x, int64_t axis, int64_t begin, int64_t length, bool single) {
    npy_intp dims[NPY_MAXDIMS], steps[NPY_MAXDIMS];
    int ndim = 0;
    for (int d = 0; d < x.ndim(); d++) {
        if (d == axis && single) continue;
        dims[ndim] = d == axis ? length : x.dim(d);
        steps[ndim++] = PyArray_STRIDE(x.array, d);
    }
    return view_of(x.array, ndim, dims, steps, PyArray_BYTES(x.array) + begin * PyArray_STRIDE(x.array, static_cast<int>(axis)));
}

// Consecutive parts of these sizes, which fill the dimension; `single`: each without it. `op` is what gives such views one by
// one. None where a graph, vmap or trace follows, and for what is no plain tensor of the host.
nb::object parts(nb::handle tensor, int64_t axis, nb::list sizes, bool single, nb::handle op) {
    PyObject *found = nullptr;
    if (!classes.cpu || PyList_GET_SIZE(classes.active) || tracing::watched()) return nb::none();
    const Operand kind = look(tensor.ptr(), found);
    if (kind == Operand::other || (kind == Operand::tracked && records())) return nb::none();
    const ExactArray x{reinterpret_cast<PyArrayObject *>(found)};
    if (axis < 0 || axis >= x.ndim()) return nb::none();
    const nb::object all = nb::steal(PySlice_New(nullptr, nullptr, nullptr));
    nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(sizes.size())));
    if (!made.is_valid()) throw nb::python_error();
    int64_t begin = 0;
    for (size_t i = 0; i < sizes.size(); i++) {
        const int64_t length = PyLong_AsLongLong(PyList_GET_ITEM(sizes.ptr(), static_cast<Py_ssize_t>(i)));
        if (length < 0 || begin + length > x.dim(static_cast<int>(axis))) {
            PyErr_Clear();
            return nb::none();
        }
        nb::object place = single ? nb::steal(PyLong_FromLongLong(begin)) : slice_of(begin, begin + length);
        const nb::object params = parameters(axis, all, std::move(place));
        nb::object out = nb::steal(wrap(view_along(x, axis, begin, length, single).release().ptr(), classes.cpu));
        if (!out.is_valid() || !mark_view(out.ptr(), tensor.ptr(), op.ptr(), params.ptr())) throw nb::python_error();
        PyTuple_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i), out.release().ptr());
        begin += length;
    }
    return made;
}

} // namespace

void bind_parts(nb::module_ &m) { m.def("parts", &parts); }

} // namespace resilin
