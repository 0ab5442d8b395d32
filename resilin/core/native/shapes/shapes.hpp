// Arrays made anew or seen anew by their shapes alone.
#pragma once
#include "binding/array.hpp"

namespace resilin {

// Python's ints given one by one, or as one tuple or list. `known` is false for anything else.
struct Ints {
    bool known = true;
    int count = 0;
    int64_t at[NPY_MAXDIMS];

    explicit Ints(nb::handle given) {
        PyObject *value = given.ptr();
        if (PyLong_CheckExact(value)) take(&value, 1);
        else if (PyTuple_CheckExact(value) || PyList_CheckExact(value))
            take(PySequence_Fast_ITEMS(value), PySequence_Fast_GET_SIZE(value));
        else known = false;
    }

  private:
    void take(PyObject *const *items, Py_ssize_t given) {
        known = given <= NPY_MAXDIMS;
        for (Py_ssize_t i = 0; known && i < given; i++) {
            int over = 0;
            known = PyLong_CheckExact(items[i]);
            at[count++] = known ? PyLong_AsLongLongAndOverflow(items[i], &over) : 0;
            known &= !over;
        }
    }
};

// The arguments behind the first one: as one tuple, or one by one.
inline Ints ints_of(const nb::args &given) { return Ints(given.size() == 1 ? nb::handle(given[0]) : nb::handle(given)); }

// A view of x by lengths and steps in bytes, from `data` on.
nb::object view_of(PyArrayObject *x, int ndim, const npy_intp *dims, const npy_intp *steps, char *data);

void bind_shapes(nb::module_ &m); // arranging.cpp
void bind_joining(nb::module_ &m);
void bind_parts(nb::module_ &m);

} // namespace resilin
