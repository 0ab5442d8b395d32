// The short way through an op: for plain tensors of the CPU, checks and conversions come to nothing, and what is left is
// the op's forward function and a Tensor around its result. Anything else takes the way in Python
// (core/ops/calling.py), which says what a call means, before anything was done; so do errors, to get their text.
#include "binding/callables.hpp"
#include "binding/kernels.hpp"
#include "binding/tensors.hpp"
#include "tracing/operations.hpp"

#include <cstdlib>

namespace resilin {

PyObject *host_namespace;

namespace {

// Set once, when resilin.core is imported, and kept for the life of the process.
PyObject *inference;      // the name of the mode's attribute
PyObject *wrap_in_python; // tensor.wrap, for inference mode
PyObject *cpu_name, *forward_name, *residual_name;

void configure(nb::object cpu, nb::object xp, nb::list active, nb::list logs, nb::object wrap) {
    classes.cpu = cpu.release().ptr();
    host_namespace = xp.release().ptr();
    classes.active = active.release().ptr();
    classes.logs = logs.release().ptr();
    wrap_in_python = wrap.release().ptr();
    inference = PyUnicode_InternFromString("inference");
    cpu_name = PyUnicode_InternFromString("cpu");
    forward_name = PyUnicode_InternFromString("forward");
    residual_name = PyUnicode_InternFromString("residual");
}

} // namespace

PyObject *wrap(PyObject *array, PyObject *dev) {
    PyObject *inside = PyObject_GetAttr(classes.mode, inference);
    if (inside != Py_False) {
        PyObject *made = inside ? PyObject_CallFunctionObjArgs(wrap_in_python, array, dev, nullptr) : nullptr;
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
    slot(made, classes.dev) = Py_NewRef(dev);
    slot(made, classes.rg) = Py_NewRef(Py_False);
    for (Py_ssize_t offset : classes.tensor_others) slot(made, offset) = Py_NewRef(Py_None);
    return made;
}

namespace {

// `tensor.wrap` as an object to call.
struct Wrap : Callable {
    static constexpr const char *NAME = "resilin.core._native.WrapCall";
    static constexpr int REFERENCES = 2;
    PyObject *otherwise; // the function of Python, for what has names, and until the classes are known
};

PyObject *call_wrap(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    const Py_ssize_t given = PyVectorcall_NARGS(flagged);
    if (names || given < 1 || given > 2 || !classes.cpu)
        return PyObject_Vectorcall(reinterpret_cast<Wrap *>(object)->otherwise, args, flagged, names);
    return wrap(Py_NewRef(args[0]), given == 2 ? args[1] : classes.cpu);
}

nb::object wrap_call(nb::object otherwise) {
    Wrap *self = make_callable<Wrap>(call_wrap);
    self->otherwise = otherwise.release().ptr();
    return finished(self);
}

constexpr Py_ssize_t MOST = 12; // arguments, the namespace among them

struct Plain : Callable {
    static constexpr const char *NAME = "resilin.core._native.PlainCall";
    static constexpr int REFERENCES = 10;
    PyObject *impls, *generic; // of the op: device type -> Impl, and the Impl of the others
    PyObject *defaults;        // tuple: the default of each parameter
    PyObject *op, *finish;     // finish(op, impl, out, inputs, params, None) marks views and records
    PyObject *impl, *forward;  // the last Impl that was found, and its function
    PyObject *otherwise;       // the way in Python; null: None is the answer
    PyObject *traced;          // the operation's name in traces
    tracing::KnownName known;
    int tensors;               // how many; -1: the first argument is a sequence of them
    bool one_dtype, floats, view, differentiable;
    bool residual; // whether `forward` gives one
};

PyArray_Descr *descr_of(PyObject *array) { return PyArray_DESCR(reinterpret_cast<PyArrayObject *>(array)); }

// The function to run: that of the Impl for the CPU. Null with an error set.
PyObject *forward_of(Plain *self) {
    PyObject *impl = PyDict_GetItemWithError(self->impls, cpu_name);
    if (!impl) impl = self->generic;
    if (impl == self->impl) return self->forward;
    Py_XSETREF(self->impl, Py_NewRef(impl));
    Py_CLEAR(self->forward);
    PyObject *residual = PyObject_GetAttr(impl, residual_name);
    if (!residual) return nullptr;
    self->residual = residual != Py_False;
    Py_DECREF(residual);
    return self->forward = PyObject_GetAttr(impl, forward_name);
}

// Whether integers of dtype `descr` hold a number; false of other dtypes.
bool holds(PyArray_Descr *descr, PyObject *number) {
    if (descr->kind != 'i' && descr->kind != 'u') return false;
    int over = 0;
    const long long value = PyLong_AsLongLongAndOverflow(number, &over);
    if (over) return false;
    const int bits = static_cast<int>(8 * PyDataType_ELSIZE(descr));
    if (descr->kind == 'u') return value >= 0 && (bits == 64 || value >> bits == 0);
    return bits == 64 || (value >= -(1LL << (bits - 1)) && value < 1LL << (bits - 1));
}

// Fills `arrays` from the tensors among `args`. False when this is no call of plain tensors.
bool gather(Plain *self, PyObject *const *args, PyObject **arrays, bool &tracked) {
    PyObject *first = nullptr;
    bool numbers = false, whole = true; // numbers beside them, and whether all of these are integers
    for (int i = 0; i < self->tensors; i++) {
        const Operand kind = look(args[i], arrays[i]);
        if (kind == Operand::other) {
            arrays[i] = args[i];
            if (args[i] == Py_None && first && !self->one_dtype) continue; // an optional one
            if (!self->one_dtype || !(PyFloat_CheckExact(args[i]) || PyLong_CheckExact(args[i]))) return false;
            numbers = true;
            whole &= PyLong_CheckExact(args[i]) != 0;
            continue;
        }
        tracked |= kind == Operand::tracked;
        auto *descr = descr_of(arrays[i]);
        if (self->floats && (descr->kind == 'i' || descr->kind == 'u' || descr->kind == 'b')) return false;
        if (first && self->one_dtype && descr != descr_of(first)) return false;
        if (!first) first = arrays[i];
    }
    if (!first || !numbers || descr_of(first)->kind == 'f') return first; // beside a float, a number is taken as it is
    for (int i = 0; i < self->tensors && whole; i++) whole = arrays[i] != args[i] || holds(descr_of(first), args[i]);
    return whole; // as is one beside integers that hold it
}

// The arrays of a sequence of tensors of one dtype as a list. Null without an error when they are not all such.
PyObject *arrays_of(PyObject *inputs, bool &tracked) {
    const Py_ssize_t count = PyTuple_GET_SIZE(inputs);
    PyObject *arrays = count ? PyList_New(count) : nullptr;
    for (Py_ssize_t i = 0; arrays && i < count; i++) {
        PyObject *array = nullptr;
        const Operand kind = look(PyTuple_GET_ITEM(inputs, i), array);
        if (kind == Operand::other || (i && descr_of(array) != descr_of(PyList_GET_ITEM(arrays, 0)))) {
            Py_CLEAR(arrays);
            break;
        }
        tracked |= kind == Operand::tracked;
        PyList_SET_ITEM(arrays, i, Py_NewRef(array));
    }
    return arrays;
}

// Whether `view` lies in the memory of `source`, as far as their bases say.
bool same_memory(PyObject *view, PyObject *source) {
    PyObject *base = PyArray_BASE(reinterpret_cast<PyArrayObject *>(view));
    return view == source || (base && (base == source || base == PyArray_BASE(reinterpret_cast<PyArrayObject *>(source))));
}

// The tensors that a call was given, and its parameters, all of them.
struct Given {
    PyObject *const *inputs;
    int count;
    PyObject *const *params;
    Py_ssize_t others;
};

// Marks the result as a view, and records how it was computed, where that is so: here, or else in Python.
bool finish(Plain *self, PyObject *out, const Given &given, PyObject *residual, bool tracked) {
    PyObject *rest = tuple_of(given.params, given.others);
    if (!rest) return false;
    bool here = true, done = true;
    if (self->view) {
        PyObject *source = given.inputs[0], *made = slot(out, classes.array);
        if (!PyArray_Check(made) || PyArray_BASE(reinterpret_cast<PyArrayObject *>(made)) || made == slot(source, classes.array)) {
            here = PyArray_Check(made) && same_memory(made, slot(source, classes.array));
            done = !here || mark_view(out, source, self->op, rest);
        } // else it had to copy
    }
    if (here && done && tracked && self->differentiable) {
        const Recorded recorded = record(out, given.inputs, given.count, self->op, self->impl, rest, residual);
        here = recorded != Recorded::no;
        done = recorded != Recorded::failed;
    }
    if (!here && done) {
        PyObject *inputs = tuple_of(given.inputs, given.count);
        PyObject *all[6] = {self->op, self->impl, out, inputs, rest, residual};
        PyObject *result = inputs ? PyObject_Vectorcall(self->finish, all, 6, nullptr) : nullptr;
        Py_XDECREF(inputs);
        Py_XDECREF(result);
        done = result;
    }
    Py_DECREF(rest);
    return done;
}

// What the forward function gives for `count` arguments, as an array. Null without an error when the way in Python is
// to be taken: it met an error that is to be named. What it gives beside the array becomes `residual`.
PyObject *value_of(Plain *self, PyObject *const *arguments, Py_ssize_t count, PyObject *&residual) {
    PyObject *forward = forward_of(self);
    if (!forward) return nullptr;
    const bool gives_residual = self->residual;
    Py_INCREF(forward); // what it calls may give the op another one
    PyObject *value = PyObject_Vectorcall(forward, arguments, static_cast<size_t>(count), nullptr);
    Py_DECREF(forward);
    if (!value && (PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_TypeError) ||
                   PyErr_ExceptionMatches(PyExc_IndexError)))
        PyErr_Clear();
    if (value && gives_residual) {
        if (!PyTuple_CheckExact(value) || PyTuple_GET_SIZE(value) != 2) { // the way in Python says what is wrong
            Py_DECREF(value);
            return nullptr;
        }
        Py_SETREF(residual, Py_NewRef(PyTuple_GET_ITEM(value, 1)));
        Py_SETREF(value, Py_NewRef(PyTuple_GET_ITEM(value, 0)));
    }
    if (!value || !PyArray_CheckScalar(value) || PyArray_Check(value)) return value;
    PyObject *array = PyArray_FromScalar(value, nullptr); // numpy gives scalars where 0-d arrays are meant
    Py_DECREF(value);
    return array;
}

// The op's result. Null without an error when the way in Python is to be taken.
PyObject *result_of(Plain *self, PyObject *const *args, Py_ssize_t given) {
    const bool sequence = self->tensors < 0;
    const int places = sequence ? 1 : self->tensors;
    const Py_ssize_t total = places + PyTuple_GET_SIZE(self->defaults);
    if (given < places || given > total || PyList_GET_SIZE(classes.active)) return nullptr;
    PyObject *all[MOST] = {host_namespace}, *inputs = nullptr;
    bool tracked = false;
    if (sequence) {
        if (!PyList_CheckExact(args[0]) && !PyTuple_CheckExact(args[0])) return nullptr;
        if (!(inputs = PySequence_Tuple(args[0]))) return nullptr;
        all[1] = arrays_of(inputs, tracked);
    }
    PyObject *out = nullptr, *residual = Py_NewRef(Py_None);
    if (sequence ? all[1] != nullptr : gather(self, args, all + 1, tracked)) {
        bool plain = true; // numpy's scalars become Python's numbers in the way in Python
        for (Py_ssize_t i = places; i < total; i++) {
            all[i + 1] = i < given ? args[i] : PyTuple_GET_ITEM(self->defaults, i - places);
            plain &= !PyArray_IsScalar(all[i + 1], Generic);
        }
        PyObject *value = plain ? value_of(self, all, total + 1, residual) : nullptr;
        out = value ? wrap(value, classes.cpu) : nullptr;
        if (out && (tracked || self->view)) {
            PyObject *const *tensors = sequence ? PySequence_Fast_ITEMS(inputs) : args;
            const int count = sequence ? static_cast<int>(PyTuple_GET_SIZE(inputs)) : places;
            if (!finish(self, out, {tensors, count, all + 1 + places, total - places}, residual, tracked)) Py_CLEAR(out);
        }
    }
    Py_DECREF(residual);
    if (sequence) Py_XDECREF(all[1]);
    Py_XDECREF(inputs);
    return out;
}

PyObject *answer(Plain *self, PyObject *const *args, size_t flagged, PyObject *names) {
    if (!names) {
        PyObject *out = result_of(self, args, PyVectorcall_NARGS(flagged));
        if (out || PyErr_Occurred()) return out;
    }
    if (self->otherwise) return PyObject_Vectorcall(self->otherwise, args, flagged, names);
    Py_RETURN_NONE;
}

PyObject *call(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    auto *self = reinterpret_cast<Plain *>(object);
    if (!tracing::watched()) return answer(self, args, flagged, names);
    tracing::OperationSpan span(self->known, self->traced, args, PyVectorcall_NARGS(flagged));
    PyObject *out = answer(self, args, flagged, names);
    span.finish(out);
    return out;
}

// None for an op with more arguments than this way takes
nb::object plain_call(nb::object op, nb::dict impls, nb::object generic, nb::tuple defaults, nb::object finish,
                      nb::object otherwise, nb::str traced, int tensors, bool one_dtype, bool floats, bool view, bool differentiable) {
    if (std::abs(tensors) + static_cast<Py_ssize_t>(defaults.size()) >= MOST) return nb::none();
    Plain *self = make_callable<Plain>(call);
    self->op = op.release().ptr();
    self->impls = impls.release().ptr();
    self->generic = generic.release().ptr();
    self->defaults = defaults.release().ptr();
    self->finish = finish.release().ptr();
    self->otherwise = otherwise.is_none() ? nullptr : otherwise.release().ptr();
    self->traced = traced.release().ptr();
    self->known = {};
    self->tensors = tensors;
    self->one_dtype = one_dtype, self->floats = floats;
    self->view = view, self->differentiable = differentiable;
    return finished(self);
}

} // namespace

void bind_plain_call(nb::module_ &m) {
    m.attr("PlainCall") = nb::borrow(reinterpret_cast<PyObject *>(callable_type<Plain>()));
    m.def("plain_configure", &configure);
    m.def("wrap_call", &wrap_call);
    m.def("plain_call", &plain_call, nb::arg("op"), nb::arg("impls"), nb::arg("generic"), nb::arg("defaults"),
          nb::arg("finish"), nb::arg("otherwise").none(), nb::arg("traced"), nb::arg("tensors"), nb::arg("one_dtype"), nb::arg("floats"),
          nb::arg("view"), nb::arg("differentiable"));
}

} // namespace resilin
