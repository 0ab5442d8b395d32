// Callable objects made in C: what stands in front of a function of Python, or in its place.
#pragma once
#include "array.hpp"

#include <structmember.h>

#include <cstddef>

namespace resilin {

// An object to call. Another class of them begins with it, lists all its references after `dict` one after the other,
// says by REFERENCES how many there are, `dict` among them, and by NAME what it is called.
struct Callable {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *weak;
    PyObject *dict; // what functools.update_wrapper says of it
};

template <class T> PyObject **references(T *self) { return &self->dict; }

template <class T> int traverse_callable(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    for (int i = 0; i < T::REFERENCES; i++) Py_VISIT(references(reinterpret_cast<T *>(object))[i]);
    return 0;
}

template <class T> int clear_callable(PyObject *object) {
    Py_CLEAR(reinterpret_cast<T *>(object)->dict);
    return 0; // the others stay: a call may be running
}

template <class T> void dealloc_callable(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    auto *self = reinterpret_cast<T *>(object);
    PyObject_GC_UnTrack(object);
    if (self->weak) PyObject_ClearWeakRefs(object);
    for (int i = 0; i < T::REFERENCES; i++) Py_CLEAR(references(self)[i]);
    type->tp_free(object);
    Py_DECREF(type);
}

inline PyObject *bind_callable(PyObject *self, PyObject *object, PyObject *) { // a method, where a class has it
    return !object || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

// The class of T, made when it is first asked for.
template <class T> PyTypeObject *callable_type() {
    static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Callable, call), READONLY, nullptr},
                                    {"__dictoffset__", T_PYSSIZET, offsetof(Callable, dict), READONLY, nullptr},
                                    {"__weaklistoffset__", T_PYSSIZET, offsetof(Callable, weak), READONLY, nullptr},
                                    {nullptr, 0, 0, 0, nullptr}};
    static PyGetSetDef attributes[] = {
        {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
        {nullptr, nullptr, nullptr, nullptr, nullptr}};
    static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
                                  {Py_tp_descr_get, reinterpret_cast<void *>(bind_callable)},
                                  {Py_tp_traverse, reinterpret_cast<void *>(traverse_callable<T>)},
                                  {Py_tp_clear, reinterpret_cast<void *>(clear_callable<T>)},
                                  {Py_tp_dealloc, reinterpret_cast<void *>(dealloc_callable<T>)},
                                  {Py_tp_members, members},
                                  {Py_tp_getset, attributes},
                                  {0, nullptr}};
    static PyType_Spec spec = {T::NAME, sizeof(T), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                                   Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               slots};
    static PyTypeObject *type = reinterpret_cast<PyTypeObject *>(PyType_FromSpec(&spec));
    if (!type) throw nb::python_error();
    return type;
}

// A new T that `function` answers for; its references are null, and the garbage collector does not know it yet.
template <class T> T *make_callable(vectorcallfunc function) {
    T *self = PyObject_GC_New(T, callable_type<T>());
    if (!self) throw nb::python_error();
    self->call = function;
    self->weak = nullptr;
    for (int i = 0; i < T::REFERENCES; i++) references(self)[i] = nullptr;
    return self;
}

template <class T> nb::object finished(T *self) {
    PyObject_GC_Track(self);
    return nb::steal(reinterpret_cast<PyObject *>(self));
}

} // namespace resilin
