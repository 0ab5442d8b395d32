// The short way through an op: for plain tensors of the CPU, checks and conversions come to nothing, and what is left is
// the op's forward function and a Tensor around its result. Anything else is answered with None, before anything was
// done, and takes the way in Python (core/ops/calling.py), which says what a call means; so do errors, to get their text.
//
// Also here: the switch of numpy's warnings around a forward function (core/ops/guarding.py, `_computing`).
#include "kernels.hpp"
#include "tensors.hpp"

#include <cstddef>

namespace resilin {
namespace {

// Set once, when resilin.core is imported, and kept for the life of the process.
PyObject *cpu, *namespace_; // the device, and the array namespace that forward functions get
PyObject *active;           // the list of running vmaps
PyObject *inference;        // the name of the mode's attribute
PyObject *wrap_in_python;   // tensor.wrap, for inference mode
PyObject *cpu_name, *forward_name, *residual_name;

void configure(nb::object cpu_, nb::object xp, nb::list active_, nb::object wrap) {
    cpu = cpu_.release().ptr();
    namespace_ = xp.release().ptr();
    active = active_.release().ptr();
    wrap_in_python = wrap.release().ptr();
    inference = PyUnicode_InternFromString("inference");
    cpu_name = PyUnicode_InternFromString("cpu");
    forward_name = PyUnicode_InternFromString("forward");
    residual_name = PyUnicode_InternFromString("residual");
}

// A Tensor around `array`, whose reference it takes over; null with an error set.
PyObject *wrap(PyObject *array) {
    PyObject *inside = PyObject_GetAttr(classes.mode, inference);
    if (inside != Py_False) {
        PyObject *made = inside ? PyObject_CallFunctionObjArgs(wrap_in_python, array, cpu, nullptr) : nullptr;
        Py_XDECREF(inside);
        Py_DECREF(array);
        return made;
    }
    Py_DECREF(inside);
    PyObject *made = classes.tensor->tp_alloc(classes.tensor, 0);
    if (!made) {
        Py_DECREF(array);
        return nullptr;
    }
    slot(made, classes.array) = array;
    slot(made, classes.dev) = Py_NewRef(cpu);
    slot(made, classes.rg) = Py_NewRef(Py_False);
    for (Py_ssize_t offset : classes.tensor_others) slot(made, offset) = Py_NewRef(Py_None);
    return made;
}

constexpr Py_ssize_t MOST = 12; // arguments, the namespace among them

struct Plain {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *impls, *generic; // of the op: device type -> Impl, and the Impl of the others
    PyObject *defaults;        // tuple: the default of each parameter
    PyObject *op, *finish;     // finish(op, impl, out, inputs, params, None) marks views and records
    PyObject *impl, *forward;  // the last Impl that was found, and its function; null when it gives a residual
    int tensors;
    bool one_dtype, floats, view, differentiable;
};

bool is_float(PyObject *array) {
    return PyArray_DESCR(reinterpret_cast<PyArrayObject *>(array))->kind == 'f';
}

// The function to run: that of the Impl for the CPU. Null when there is none for this way, or with an error set.
PyObject *forward_of(Plain *self) {
    PyObject *impl = PyDict_GetItemWithError(self->impls, cpu_name);
    if (!impl) impl = self->generic;
    if (impl == self->impl) return self->forward;
    Py_XSETREF(self->impl, Py_NewRef(impl));
    Py_CLEAR(self->forward);
    PyObject *residual = PyObject_GetAttr(impl, residual_name);
    if (residual == Py_False) self->forward = PyObject_GetAttr(impl, forward_name);
    Py_XDECREF(residual);
    return self->forward;
}

enum class Operand { other, array, tracked };

// What a tensor argument is; a plain one's array.
Operand look(PyObject *value, PyObject *&array) {
    if (Py_TYPE(value) != classes.tensor && Py_TYPE(value) != classes.parameter) return Operand::other;
    array = slot(value, classes.array);
    if (slot(value, classes.dev) != cpu || !array || !PyArray_CheckExact(array)) return Operand::other;
    return slot(value, classes.rg) == Py_True || slot(value, classes.tensor_view) != Py_None ? Operand::tracked : Operand::array;
}

// Fills `arrays` from the tensors among `args`. False when this is no call of plain tensors.
bool gather(Plain *self, PyObject *const *args, PyObject **arrays, bool &tracked) {
    PyObject *first = nullptr;
    bool numbers = false;
    for (int i = 0; i < self->tensors; i++) {
        const Operand kind = look(args[i], arrays[i]);
        if (kind == Operand::other) {
            arrays[i] = args[i];
            if (args[i] == Py_None && first && !self->one_dtype) continue; // an optional one
            if (!self->one_dtype || !(PyFloat_CheckExact(args[i]) || PyLong_CheckExact(args[i]))) return false;
            numbers = true;
            continue;
        }
        tracked |= kind == Operand::tracked;
        auto *descr = PyArray_DESCR(reinterpret_cast<PyArrayObject *>(arrays[i]));
        if (self->floats && (descr->kind == 'i' || descr->kind == 'u' || descr->kind == 'b')) return false;
        if (first && self->one_dtype && descr != PyArray_DESCR(reinterpret_cast<PyArrayObject *>(first))) return false;
        if (!first) first = arrays[i];
    }
    return first && (!numbers || is_float(first)); // beside a float, a number is taken as it is
}

// Whether `view` lies in the memory of `source`, as far as their bases say.
bool same_memory(PyObject *view, PyObject *source) {
    PyObject *base = PyArray_BASE(reinterpret_cast<PyArrayObject *>(view));
    return view == source || (base && (base == source || base == PyArray_BASE(reinterpret_cast<PyArrayObject *>(source))));
}

// Marks the result as a view, and records how it was computed, where that is so: here, or else in Python.
bool finish(Plain *self, PyObject *out, PyObject *const *args, PyObject *const *params, Py_ssize_t count, bool tracked) {
    PyObject *rest = tuple_of(params, count);
    if (!rest) return false;
    bool here = true, done = true;
    if (self->view) {
        here = slot(args[0], classes.tensor_view) == Py_None && same_memory(slot(out, classes.array), slot(args[0], classes.array));
        done = !here || mark_view(out, args[0], self->op, rest);
    }
    if (here && done && tracked && self->differentiable) {
        const Recorded recorded = record(out, args, self->tensors, self->op, self->impl, rest);
        here = recorded != Recorded::no;
        done = recorded != Recorded::failed;
    }
    if (!here && done) {
        PyObject *inputs = tuple_of(args, self->tensors);
        PyObject *all[6] = {self->op, self->impl, out, inputs, rest, Py_None};
        PyObject *result = inputs ? PyObject_Vectorcall(self->finish, all, 6, nullptr) : nullptr;
        Py_XDECREF(inputs);
        Py_XDECREF(result);
        done = result;
    }
    Py_DECREF(rest);
    return done;
}

PyObject *call(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    auto *self = reinterpret_cast<Plain *>(object);
    const Py_ssize_t given = PyVectorcall_NARGS(flagged), total = self->tensors + PyTuple_GET_SIZE(self->defaults);
    if (names || given < self->tensors || given > total || PyList_GET_SIZE(active)) Py_RETURN_NONE;
    PyObject *all[MOST] = {namespace_};
    bool tracked = false;
    if (!gather(self, args, all + 1, tracked)) Py_RETURN_NONE;
    for (Py_ssize_t i = self->tensors; i < total; i++)
        all[i + 1] = i < given ? args[i] : PyTuple_GET_ITEM(self->defaults, i - self->tensors);
    PyObject *forward = forward_of(self);
    if (!forward) {
        if (PyErr_Occurred()) return nullptr;
        Py_RETURN_NONE;
    }
    Py_INCREF(forward); // what it calls may give the op another one
    PyObject *value = PyObject_Vectorcall(forward, all, static_cast<size_t>(total + 1), nullptr);
    Py_DECREF(forward);
    if (!value) {
        if (!PyErr_ExceptionMatches(PyExc_ValueError) && !PyErr_ExceptionMatches(PyExc_TypeError) &&
            !PyErr_ExceptionMatches(PyExc_IndexError))
            return nullptr;
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (PyArray_CheckScalar(value) && !PyArray_Check(value)) { // numpy gives scalars where 0-d arrays are meant
        PyObject *scalar = value;
        value = PyArray_FromScalar(scalar, nullptr);
        Py_DECREF(scalar);
        if (!value) return nullptr;
    }
    PyObject *out = wrap(value);
    if (!out || (!tracked && !self->view)) return out;
    if (!finish(self, out, args, all + 1 + self->tensors, total - self->tensors, tracked)) Py_CLEAR(out);
    return out;
}

// Calls `forward` with numpy's warnings off.
struct Quiet {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *forward, *general; // `general` takes tensors of bfloat16
    PyObject *variable, *silent; // numpy's context variable, and its value without warnings
    PyObject *bfloat16;          // the dtype
    int tensors;
};

PyObject *call_quietly(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    auto *self = reinterpret_cast<Quiet *>(object);
    const Py_ssize_t given = PyVectorcall_NARGS(flagged);
    for (Py_ssize_t i = 1; i <= self->tensors && i < given; i++) {
        PyObject *arg = args[i];
        if (PyFloat_CheckExact(arg) || PyLong_CheckExact(arg) || arg == Py_None) continue;
        if (!PyArray_Check(arg) ||  // another library's array: `general` asks it for its dtype
            reinterpret_cast<PyObject *>(PyArray_DESCR(reinterpret_cast<PyArrayObject *>(arg))) == self->bfloat16)
            return PyObject_Vectorcall(self->general, args, flagged, names);
    }
    PyObject *token = PyContextVar_Set(self->variable, self->silent);
    if (!token) return nullptr;
    PyObject *value = PyObject_Vectorcall(self->forward, args, flagged, names);
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    const bool restored = PyContextVar_Reset(self->variable, token) == 0;
    Py_DECREF(token);
    if (!restored) {
        Py_CLEAR(value);
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        return nullptr;
    }
    PyErr_Restore(kind, error, trace);
    return value;
}

template <class T> PyObject **members(T *self);
template <> PyObject **members(Plain *self) { return &self->impls; }
template <> PyObject **members(Quiet *self) { return &self->forward; }
template <class T> constexpr int MEMBERS = 0;
template <> constexpr int MEMBERS<Plain> = 7;
template <> constexpr int MEMBERS<Quiet> = 5;

template <class T> int traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    for (int i = 0; i < MEMBERS<T>; i++) Py_VISIT(members(reinterpret_cast<T *>(object))[i]);
    return 0;
}

template <class T> void dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    for (int i = 0; i < MEMBERS<T>; i++) Py_CLEAR(members(reinterpret_cast<T *>(object))[i]);
    type->tp_free(object);
    Py_DECREF(type);
}

template <class T> T *make(const char *name, vectorcallfunc function) {
    static PyMemberDef attributes[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(T, call), READONLY, nullptr},
                                       {nullptr, 0, 0, 0, nullptr}};
    static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
                                  {Py_tp_traverse, reinterpret_cast<void *>(traverse<T>)},
                                  {Py_tp_dealloc, reinterpret_cast<void *>(dealloc<T>)},
                                  {Py_tp_members, attributes},
                                  {0, nullptr}};
    static PyType_Spec spec = {name, sizeof(T), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                                   Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               slots};
    static PyTypeObject *type = reinterpret_cast<PyTypeObject *>(PyType_FromSpec(&spec));
    T *self = type ? PyObject_GC_New(T, type) : nullptr;
    if (!self) throw nb::python_error();
    self->call = function;
    for (int i = 0; i < MEMBERS<T>; i++) members(self)[i] = nullptr;
    return self;
}

// None for an op with more arguments than this way takes
nb::object plain_call(nb::object op, nb::dict impls, nb::object generic, nb::tuple defaults, nb::object finish,
                      int tensors, bool one_dtype, bool floats, bool view, bool differentiable) {
    if (tensors + static_cast<Py_ssize_t>(defaults.size()) >= MOST) return nb::none();
    Plain *self = make<Plain>("resilin.core._native.PlainCall", call);
    self->op = op.release().ptr();
    self->impls = impls.release().ptr();
    self->generic = generic.release().ptr();
    self->defaults = defaults.release().ptr();
    self->finish = finish.release().ptr();
    self->tensors = tensors;
    self->one_dtype = one_dtype, self->floats = floats;
    self->view = view, self->differentiable = differentiable;
    PyObject_GC_Track(self);
    return nb::steal(reinterpret_cast<PyObject *>(self));
}

nb::object quiet_call(nb::object forward, nb::object general, nb::object variable, nb::object silent,
                      nb::object bfloat16, int tensors) {
    Quiet *self = make<Quiet>("resilin.core._native.QuietCall", call_quietly);
    self->forward = forward.release().ptr();
    self->general = general.release().ptr();
    self->variable = variable.release().ptr();
    self->silent = silent.release().ptr();
    self->bfloat16 = bfloat16.release().ptr();
    self->tensors = tensors;
    PyObject_GC_Track(self);
    return nb::steal(reinterpret_cast<PyObject *>(self));
}

} // namespace

void bind_plain_call(nb::module_ &m) {
    m.def("plain_configure", &configure);
    m.def("plain_call", &plain_call);
    m.def("quiet_call", &quiet_call);
}

} // namespace resilin
