// The public functions of resilin as callable objects: a call goes straight on to the Python function behind it unless
// an argument's class has `__tensor_function__` or PyTorch's name of it, or a mode is active; then resilin.core.public.dispatch.take_over gets it.
// A function that autocast lists goes to resilin.core.autocast.casting.run while autocast is enabled in some thread.
// Nothing else is decided here. The form in Python (dispatch.py, `_in_python`) does the same.
#include "kernels.hpp"

#include <structmember.h>

#include <cstddef>

namespace nb = nanobind;

namespace resilin {
namespace {

// Set once, when resilin.core is imported, and kept for the life of the process.
PyTypeObject *plain[2];                        // Tensor and Parameter, whose calls nobody takes over
PyObject *protocols[2];                        // the attribute's names, ours and PyTorch's
PyObject *disabled, *take_over;                // the value that says "not this class"; see above
PyObject *explain;                             // resilin.core.public.error_context.explain, asked what to raise for an error
PyObject *foreign;                             // resilin.core.public.dispatch.foreign, asked whether an operand is unknown
PyObject *meet;                                // resilin.core.public.device_check.meet, asked about tensors of several devices
Py_ssize_t device;                             // where a tensor has its device
Py_ssize_t modes;                              // modes active in any thread; guarded by the GIL
PyObject *cast_and_run;                        // resilin.core.autocast.casting.run, given calls of listed functions
Py_ssize_t casts;                              // threads in which autocast is enabled; guarded by the GIL

struct Function {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *raw;       // the function behind it
    PyObject *unnamed;   // the one for calls without numpy's keywords, often the same
    PyObject *reflected; // "__radd__" of `__add__`, and so on; null of all that are no operators
    PyObject *dict, *weak;
    bool listed; // by autocast
    bool data;   // its arguments are data: only modes take its calls over
};

bool overrides(PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    if (type == plain[0] || type == plain[1] || type == &PyLong_Type || type == &PyFloat_Type || value == Py_None)
        return false;
    for (PyObject *protocol : protocols) { // take_over asks which of both counts, where a class has two
        PyObject *found = _PyType_Lookup(type, protocol); // borrowed, from the type's cache; no error when absent
        if (found && found != disabled) return true;
    }
    return false;
}

// An argument, or an element of an argument that is a list or tuple.
bool any_overrides(PyObject *value) {
    if (PyList_Check(value) || PyTuple_Check(value)) {
        PyObject **items = PySequence_Fast_ITEMS(value);
        for (Py_ssize_t i = 0, n = PySequence_Fast_GET_SIZE(value); i < n; i++)
            if (overrides(items[i])) return true;
    }
    return overrides(value);
}

// Whether a plain tensor is on another device than `home`; the first one says what `home` is.
bool elsewhere(PyObject *value, PyObject *&home) {
    if (Py_TYPE(value) != plain[0] && Py_TYPE(value) != plain[1]) return false;
    PyObject *where = *reinterpret_cast<PyObject **>(reinterpret_cast<char *>(value) + device);
    if (!home) home = where;
    return where != home;
}

bool any_elsewhere(PyObject *value, PyObject *&home) {
    if (!PyList_Check(value) && !PyTuple_Check(value)) return elsewhere(value, home);
    bool found = false;
    PyObject **items = PySequence_Fast_ITEMS(value);
    for (Py_ssize_t i = 0, n = PySequence_Fast_GET_SIZE(value); i < n; i++) found |= elsewhere(items[i], home);
    return found;
}

// Asks whether the tensors among the arguments, of several devices, may meet; else an error is set.
bool may_meet(Function *self, PyObject *const *args, Py_ssize_t n) {
    PyObject *given = PyTuple_New(n);
    for (Py_ssize_t i = 0; given && i < n; i++) PyTuple_SET_ITEM(given, i, Py_NewRef(args[i]));
    PyObject *all[2] = {reinterpret_cast<PyObject *>(self), given};
    PyObject *answer = given ? PyObject_Vectorcall(meet, all, 2, nullptr) : nullptr;
    Py_XDECREF(given);
    Py_XDECREF(answer);
    return answer != nullptr;
}

// What `handler` makes of the call.
PyObject *hand_over(PyObject *handler, Function *self, PyObject *const *args, Py_ssize_t n, PyObject *names) {
    PyObject *positional = PyTuple_New(n), *named = PyDict_New(), *result = nullptr;
    bool ok = positional && named;
    for (Py_ssize_t i = 0; ok && i < n; i++) PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; ok && names && i < PyTuple_GET_SIZE(names); i++)
        ok = PyDict_SetItem(named, PyTuple_GET_ITEM(names, i), args[n + i]) == 0;
    if (ok) {
        PyObject *all[3] = {reinterpret_cast<PyObject *>(self), positional, named};
        result = PyObject_Vectorcall(handler, all, 3, nullptr);
    }
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return result;
}

// An operator that cannot take its operand says so, so that Python asks the operand, or says what does not go together.
PyObject *or_reflected(Function *self, PyObject *other, bool taken) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError) || !foreign) return nullptr;
    PyObject *kind, *error, *trace; // set aside: the question is asked without an error
    PyErr_Fetch(&kind, &error, &trace);
    PyObject *all[3] = {other, self->reflected, taken ? Py_True : Py_False};
    PyObject *answer = PyObject_Vectorcall(foreign, all, 3, nullptr);
    if (answer != Py_True) {
        Py_XDECREF(answer);
        PyErr_Clear(); // the question itself failed: the error stays what it is
        PyErr_Restore(kind, error, trace);
        return nullptr;
    }
    Py_DECREF(answer);
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    Py_RETURN_NOTIMPLEMENTED;
}

// The error that is set becomes what `explain` makes of it.
PyObject *explained(Function *self, PyObject *const *args, Py_ssize_t n) {
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace) PyException_SetTraceback(error, trace);
    PyObject *made = nullptr, *given = PyExceptionInstance_Check(error) ? PyTuple_New(n) : nullptr;
    if (given && PyErr_GivenExceptionMatches(error, PyExc_Exception)) {
        for (Py_ssize_t i = 0; i < n; i++) PyTuple_SET_ITEM(given, i, Py_NewRef(args[i]));
        PyObject *all[3] = {reinterpret_cast<PyObject *>(self), given, error};
        made = PyObject_Vectorcall(explain, all, 3, nullptr);
        if (made && !PyExceptionInstance_Check(made)) Py_CLEAR(made);
    }
    Py_XDECREF(given);
    PyErr_Clear(); // `explain` itself failed: the error stays what it is
    if (!made || made == error) {
        Py_XDECREF(made);
        PyErr_Restore(kind, error, trace);
        return nullptr;
    }
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    PyErr_Restore(Py_NewRef(reinterpret_cast<PyObject *>(Py_TYPE(made))), made, PyException_GetTraceback(made));
    return nullptr;
}

// Whether a keyword is one of numpy's names (public/numpy_names.py).
bool any_numpys(PyObject *names) {
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (!PyUnicode_CompareWithASCIIString(name, "axis") || !PyUnicode_CompareWithASCIIString(name, "keepdims"))
            return true;
    }
    return false;
}

PyObject *call(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    auto *self = reinterpret_cast<Function *>(object);
    const Py_ssize_t n = PyVectorcall_NARGS(flagged), all = n + (names ? PyTuple_GET_SIZE(names) : 0);
    bool taken = modes > 0;
    if (self->data && !taken) return PyObject_Vectorcall(self->raw, args, flagged, names);
    for (Py_ssize_t i = 0; i < all && !taken; i++) taken = any_overrides(args[i]);
    PyObject *home = nullptr;
    bool apart = false;
    for (Py_ssize_t i = 0; i < all && meet && !taken; i++) apart |= any_elsewhere(args[i], home);
    if (apart && !may_meet(self, args, all)) return nullptr;
    PyObject *handler = taken ? take_over : casts > 0 && self->listed ? cast_and_run : nullptr;
    PyObject *result = handler ? hand_over(handler, self, args, n, names)
                               : PyObject_Vectorcall(any_numpys(names) ? self->raw : self->unnamed, args, flagged, names);
    if (!result && self->reflected && n == 2) result = or_reflected(self, args[1], taken);
    return result || taken || !explain ? result : explained(self, args, all);
}

PyObject *bind(PyObject *self, PyObject *object, PyObject *) {
    return !object || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

int traverse(PyObject *object, visitproc visit, void *arg) {
    auto *self = reinterpret_cast<Function *>(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->raw);
    Py_VISIT(self->unnamed);
    Py_VISIT(self->reflected);
    Py_VISIT(self->dict);
    return 0;
}

int clear(PyObject *object) {
    auto *self = reinterpret_cast<Function *>(object);
    Py_CLEAR(self->dict);
    return 0; // `raw` stays: a call may be running
}

void dealloc(PyObject *object) {
    auto *self = reinterpret_cast<Function *>(object);
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->weak) PyObject_ClearWeakRefs(object);
    Py_CLEAR(self->raw);
    Py_CLEAR(self->unnamed);
    Py_CLEAR(self->reflected);
    Py_CLEAR(self->dict);
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject *attribute(PyObject *object, const char *name) { return PyObject_GetAttrString(object, name); }

PyObject *repr(PyObject *object) {
    PyObject *module = attribute(object, "__module__"), *name = attribute(object, "__qualname__"), *text = nullptr;
    if (module && name) text = PyUnicode_FromFormat("<function %S.%S>", module, name);
    Py_XDECREF(module);
    Py_XDECREF(name);
    return text;
}

PyObject *reduce(PyObject *object, PyObject *) { return attribute(object, "__qualname__"); } // pickled by its name

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Function, call), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(Function, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Function, weak), READONLY, nullptr},
    {"__wrapped__", T_OBJECT_EX, offsetof(Function, raw), READONLY, nullptr},
    {"is_listed", T_BOOL, offsetof(Function, listed), READONLY, nullptr},
    {"is_data", T_BOOL, offsetof(Function, data), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyGetSetDef attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyMethodDef methods[] = {{"__reduce__", reduce, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

template <class F> void *slot(F *function) { return reinterpret_cast<void *>(function); }

PyTypeObject *make_type() {
    PyType_Slot slots[] = {
        {Py_tp_call, slot(PyVectorcall_Call)}, {Py_tp_descr_get, slot(bind)}, {Py_tp_traverse, slot(traverse)},
        {Py_tp_clear, slot(clear)},            {Py_tp_dealloc, slot(dealloc)}, {Py_tp_repr, slot(repr)},
        {Py_tp_members, members},              {Py_tp_getset, attributes},    {Py_tp_methods, methods},
        {0, nullptr},
    };
    PyType_Spec spec = {"resilin.core._native.Function", sizeof(Function), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                            Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                        slots};
    return reinterpret_cast<PyTypeObject *>(PyType_FromSpec(&spec));
}

nb::object make_function(nb::object raw, nb::object reflected, nb::object unnamed, bool listed, bool data) {
    static PyTypeObject *type = make_type();
    auto *self = type ? PyObject_GC_New(Function, type) : nullptr;
    if (!self) throw nb::python_error();
    self->call = call;
    self->raw = raw.release().ptr();
    self->unnamed = unnamed.release().ptr();
    self->reflected = reflected.is_none() ? nullptr : Py_NewRef(reflected.ptr());
    self->dict = self->weak = nullptr;
    self->listed = listed;
    self->data = data;
    PyObject_GC_Track(self);
    return nb::steal(reinterpret_cast<PyObject *>(self));
}

void configure(nb::type_object tensor, nb::type_object parameter, nb::object off, nb::object handler) {
    plain[0] = reinterpret_cast<PyTypeObject *>(tensor.release().ptr());
    plain[1] = reinterpret_cast<PyTypeObject *>(parameter.release().ptr());
    protocols[0] = PyUnicode_InternFromString("__tensor_function__");
    protocols[1] = PyUnicode_InternFromString("__torch_function__");
    disabled = off.release().ptr();
    take_over = handler.release().ptr();
}

} // namespace

void bind_dispatch(nanobind::module_ &m) {
    m.def("function_make", &make_function, nb::arg("raw"), nb::arg("reflected").none(), nb::arg("unnamed"),
          nb::arg("listed"), nb::arg("data") = false);
    m.def("function_configure", &configure);
    m.def("function_explain", [](nb::object handler) { explain = handler.release().ptr(); });
    m.def("function_foreign", [](nb::object handler) { foreign = handler.release().ptr(); });
    m.def("function_meet", [](nb::object handler, nb::type_object tensor) {
        PyObject *found = PyDict_GetItemString(reinterpret_cast<PyTypeObject *>(tensor.ptr())->tp_dict, "_dev");
        if (!found || Py_TYPE(found) != &PyMemberDescr_Type) throw nb::type_error("_dev");
        device = reinterpret_cast<PyMemberDescrObject *>(found)->d_member->offset;
        meet = handler.release().ptr();
    });
    m.def("function_modes", [](int change) { modes += change; });
    m.def("function_cast_and_run", [](nb::object handler) { cast_and_run = handler.release().ptr(); });
    m.def("function_casts", [](int change) { casts += change; });
}

} // namespace resilin
