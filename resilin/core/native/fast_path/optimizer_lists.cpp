// What a step of an optimizer reads and writes beside its arithmetic: the arrays of plain parameters, of their gradients
// and of their states, in lists, and afterwards the counters and the count of writes. Everything unusual is left to the
// loops in Python (optim/lists.py), which say what is meant.
#include "binding/kernels.hpp"
#include "binding/tensors.hpp"

namespace resilin {
namespace {

Py_ssize_t gradient_offset() {
    static const Py_ssize_t offset = offset_of(classes.tensor, "_grad");
    return offset;
}

// The array of a plain tensor of the CPU, borrowed; null for anything else.
PyObject *plain_array(PyObject *value) {
    PyObject *array = nullptr;
    return value && look(value, array) != Operand::other ? array : nullptr;
}

// The memory of a counter: one number of float32. Null for anything else.
float *counter_of(PyObject *entry, nb::handle name) {
    PyObject *found = plain_array(PyDict_GetItem(entry, name.ptr()));
    auto *array = reinterpret_cast<PyArrayObject *>(found);
    const bool fits = array && !PyArray_NDIM(array) && PyArray_TYPE(array) == NPY_FLOAT && PyArray_ISBEHAVED(array);
    return fits ? static_cast<float *>(PyArray_DATA(array)) : nullptr;
}

// (parameters with gradients, their entries in `state`, the counters, lists of arrays: of parameters, of gradients, and of
// each state in `moments`). None unless all are plain, have all states, and have the same counters.
nb::object optimizer_lists(nb::list params, nb::dict state, nb::tuple counters, nb::tuple moments) {
    nb::list parameters, entries;
    std::vector<nb::list> lists(2 + moments.size());
    std::vector<float> values;
    const bool stateful = counters.size() + moments.size() > 0;
    for (nb::handle parameter : params) {
        PyObject *array = plain_array(parameter.ptr());
        if (!array) return nb::none();
        PyObject *gradient = slot(parameter.ptr(), gradient_offset());
        if (!gradient || gradient == Py_None) continue;
        PyObject *of_gradient = plain_array(gradient);
        PyObject *entry = stateful ? PyDict_GetItem(state.ptr(), parameter.ptr()) : nullptr;
        if (!of_gradient || (stateful && !(entry && PyDict_CheckExact(entry)))) return nb::none();
        for (size_t i = 0; i < counters.size(); i++) {
            const float *counter = counter_of(entry, counters[i]);
            if (!counter) return nb::none();
            if (values.size() == i) values.push_back(*counter);
            if (values[i] != *counter) return nb::none();
        }
        for (size_t i = 0; i < moments.size(); i++) {
            PyObject *found = plain_array(PyDict_GetItem(entry, moments[i].ptr()));
            if (!found) return nb::none();
            lists[2 + i].append(nb::borrow(found));
        }
        lists[0].append(nb::borrow(array));
        lists[1].append(nb::borrow(of_gradient));
        parameters.append(parameter);
        if (entry) entries.append(nb::borrow(entry));
    }
    if (!parameters.size()) return nb::none();
    nb::list numbers, all;
    for (float value : values) numbers.append(nb::float_(value));
    for (nb::list &list : lists) all.append(list);
    return nb::make_tuple(parameters, entries, numbers, all);
}

// Sets the counters of all entries and counts a write of each parameter; false, with nothing done, for what is unusual.
bool optimizer_advance(nb::list parameters, nb::list entries, nb::tuple counters, nb::tuple values) {
    for (nb::handle parameter : parameters)
        if (!plain_array(parameter.ptr())) return false;
    for (nb::handle entry : entries)
        for (nb::handle name : counters)
            if (!PyDict_CheckExact(entry.ptr()) || !counter_of(entry.ptr(), name)) return false;
    for (nb::handle entry : entries)
        for (size_t i = 0; i < counters.size(); i++)
            *counter_of(entry.ptr(), counters[i]) = static_cast<float>(nb::cast<double>(values[i]));
    for (nb::handle parameter : parameters)
        if (!count_write(parameter.ptr())) throw nb::python_error();
    return true;
}

} // namespace

void bind_optimizer_lists(nb::module_ &m) {
    m.def("optimizer_lists", &optimizer_lists);
    m.def("optimizer_advance", &optimizer_advance);
}

} // namespace resilin
