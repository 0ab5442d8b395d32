// What the short way through an op (plain_call.cpp) leaves on the tape: `mark_view` and `record` of
// core/autograd/tape.py for their usual cases. Whatever is not usual is left to them.
#include "binding/kernels.hpp"
#include "binding/tensors.hpp"

#include <nanobind/stl/string.h>

#include <initializer_list>
#include <string>
#include <utility>

namespace resilin {

Classes classes;

Py_ssize_t offset_of(PyTypeObject *type, const char *name) {
    PyObject *found = PyDict_GetItemString(type->tp_dict, name);
    if (!found || Py_TYPE(found) != &PyMemberDescr_Type) throw nb::type_error(name);
    return reinterpret_cast<PyMemberDescrObject *>(found)->d_member->offset;
}

namespace {

PyObject *grad, *anomaly, *frame, *kept, *dict; // names of attributes

// The offsets of all slots of `type` but those `named`.
std::vector<Py_ssize_t> others(PyTypeObject *type, std::initializer_list<const char *> named) {
    std::vector<Py_ssize_t> found;
    for (nb::handle name : nb::borrow(PyDict_GetItemString(type->tp_dict, "__slots__"))) {
        const std::string text = nb::cast<std::string>(name);
        bool other = text != "__weakref__";
        for (const char *known : named) other = other && text != known;
        if (other) found.push_back(offset_of(type, text.c_str()));
    }
    return found;
}

void configure(nb::type_object tensor, nb::type_object parameter, nb::type_object view, nb::type_object node,
               nb::object mode, nb::object next_seq) {
    auto type = [](nb::type_object &object) { return reinterpret_cast<PyTypeObject *>(object.release().ptr()); };
    Classes &c = classes;
    c.tensor = type(tensor), c.parameter = type(parameter), c.view = type(view), c.node = type(node);
    c.array = offset_of(c.tensor, "_array"), c.dev = offset_of(c.tensor, "_dev"), c.rg = offset_of(c.tensor, "_rg");
    c.tensor_view = offset_of(c.tensor, "_view"), c.versions = offset_of(c.tensor, "_vc");
    c.tensor_node = offset_of(c.tensor, "_node");
    c.tensor_others = others(c.tensor, {"_array", "_dev", "_rg"});
    c.base = offset_of(c.view, "base"), c.chain = offset_of(c.view, "chain"), c.seen = offset_of(c.view, "seen");
    c.recorded = offset_of(c.view, "recorded");
    c.seq = offset_of(c.node, "seq"), c.op = offset_of(c.node, "op"), c.impl = offset_of(c.node, "impl");
    c.node_dev = offset_of(c.node, "dev"), c.edges = offset_of(c.node, "edges"), c.metas = offset_of(c.node, "metas");
    c.needs = offset_of(c.node, "needs"), c.params = offset_of(c.node, "params"), c.saved = offset_of(c.node, "saved");
    c.saved_versions = offset_of(c.node, "versions"), c.y = offset_of(c.node, "y");
    c.freed = offset_of(c.node, "freed"), c.outputs = offset_of(c.node, "outputs"), c.residual = offset_of(c.node, "residual");
    c.node_others = others(c.node, {"seq", "op", "impl", "dev", "edges", "metas", "needs", "params", "saved",
                                    "versions", "y", "freed", "outputs", "residual"});
    c.mode = mode.release().ptr();
    c.next_seq = next_seq.release().ptr();
    grad = PyUnicode_InternFromString("grad");
    anomaly = PyUnicode_InternFromString("anomaly");
    frame = PyUnicode_InternFromString("frame");
    kept = PyUnicode_InternFromString("kept");
    dict = PyUnicode_InternFromString("__dict__");
}

// What this thread has set of the mode, looked up at once; what it has not set is what its class says.
struct Settings {
    PyObject *own = PyObject_GetAttr(classes.mode, dict);
    Settings() = default;
    Settings(const Settings &) = delete;
    ~Settings() { Py_XDECREF(own); }
    bool is(PyObject *name, PyObject *value) const {
        PyObject *found = PyDict_GetItemWithError(own, name);
        return (found ? found : _PyType_Lookup(Py_TYPE(classes.mode), name)) == value; // both borrowed
    }
};

// Adds 1 to the number at the start of a list; false with an error set.
bool increment(PyObject *counter) {
    const long count = PyLong_AsLong(PyList_GET_ITEM(counter, 0));
    PyObject *next = count == -1 && PyErr_Occurred() ? nullptr : PyLong_FromLong(count + 1);
    return next && PyList_SetItem(counter, 0, next) == 0;
}

// The counter of writes of a tensor, made when there is none; null with an error set.
PyObject *share_version(PyObject *tensor) {
    PyObject *&versions = slot(tensor, classes.versions);
    if (versions == Py_None) {
        PyObject *made = Py_BuildValue("[i]", 0);
        if (!made) return nullptr;
        Py_SETREF(versions, made);
    }
    return versions;
}

// What the node is made of, until it is; whatever is left goes when it does not come to that.
struct Parts {
    PyObject *edges, *metas, *needs, *saved, *versions, *y = nullptr, *seq = nullptr, *node = nullptr;
    explicit Parts(int count)
        : edges(PyTuple_New(count)), metas(PyTuple_New(count)), needs(PyTuple_New(count)), saved(PyTuple_New(count)),
          versions(PyTuple_New(count)) {}
    Parts(const Parts &) = delete;
    ~Parts() {
        for (PyObject *part : {edges, metas, needs, saved, versions, y, seq, node}) Py_XDECREF(part);
    }
    bool complete() const { return edges && metas && needs && saved && versions; }
};

PyObject *given(PyObject *&part) { return std::exchange(part, nullptr); }

// Edges to the inputs that require gradients, with their shapes and dtypes.
bool connect(Parts &parts, PyObject *const *inputs, int count) {
    for (int i = 0; i < count; i++) {
        PyObject *value = inputs[i], *edge = Py_None, *meta = Py_NewRef(Py_None);
        const bool is_tensor = Py_TYPE(value) == classes.tensor || Py_TYPE(value) == classes.parameter;
        if (is_tensor && slot(value, classes.rg) == Py_True) {
            PyObject *node = slot(value, classes.tensor_node);
            edge = node == Py_None ? value : node;
            PyArrayObject *array = array_of(value);
            PyObject *shape = PyArray_IntTupleFromIntp(PyArray_NDIM(array), PyArray_DIMS(array));
            Py_SETREF(meta, shape ? PyTuple_Pack(2, shape, reinterpret_cast<PyObject *>(PyArray_DESCR(array))) : nullptr);
            Py_XDECREF(shape);
            if (!meta) return false;
        }
        PyTuple_SET_ITEM(parts.edges, i, Py_NewRef(edge));
        PyTuple_SET_ITEM(parts.metas, i, meta);
        PyTuple_SET_ITEM(parts.needs, i, Py_NewRef(edge == Py_None ? Py_False : Py_True));
    }
    return true;
}

bool any_needs(PyObject *needs) {
    bool any = false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(needs); i++) any |= PyTuple_GET_ITEM(needs, i) == Py_True;
    return any;
}

// The inputs that `keeps` (a tuple of bools) names, and how often they had been written.
bool save(Parts &parts, PyObject *const *inputs, int count, PyObject *keeps) {
    for (int i = 0; i < count; i++) {
        PyObject *value = inputs[i], *version = nullptr;
        const bool keep = PyTuple_GET_ITEM(keeps, i) == Py_True;
        if (keep && (Py_TYPE(value) == classes.tensor || Py_TYPE(value) == classes.parameter)) {
            PyObject *counter = slot(value, classes.versions);
            if (counter != Py_None) version = Py_NewRef(PyList_GET_ITEM(counter, 0));
        }
        if (!version && !(version = PyLong_FromLong(0))) return false;
        PyTuple_SET_ITEM(parts.versions, i, version);
        PyTuple_SET_ITEM(parts.saved, i, Py_NewRef(keep ? value : Py_None));
    }
    return true;
}

// Whether an in-place write has moved the base of a view in the graph since the view was recorded.
bool outdated(PyObject *view) {
    PyObject *base = slot(view, classes.base);
    return !PyObject_TypeCheck(base, classes.tensor) ||
           (slot(view, classes.recorded) != Py_False && slot(base, classes.tensor_node) != slot(view, classes.seen));
}

// Nothing is unusual: no checkpoint or hook is told of nodes, no input is an outdated view or of inference mode.
bool usual(const Settings &settings, PyObject *const *inputs, int count) {
    for (int i = 0; i < count; i++) {
        if (Py_TYPE(inputs[i]) != classes.tensor && Py_TYPE(inputs[i]) != classes.parameter) continue;
        PyObject *counter = slot(inputs[i], classes.versions);
        PyObject *view = slot(inputs[i], classes.tensor_view);
        if (view != Py_None && outdated(view)) return false;
        if (counter != Py_None && (!PyList_CheckExact(counter) || !PyList_GET_SIZE(counter))) return false;
    }
    return settings.is(anomaly, Py_False) && settings.is(frame, Py_None);
}

bool is_differentiable(PyObject *tensor) {
    const char kind = PyArray_DESCR(array_of(tensor))->kind;
    return kind == 'f' || kind == 'V' || kind == 'c';
}

} // namespace

PyObject *tuple_of(PyObject *const *items, Py_ssize_t count) {
    PyObject *made = PyTuple_New(count);
    for (Py_ssize_t i = 0; made && i < count; i++) PyTuple_SET_ITEM(made, i, Py_NewRef(items[i]));
    return made;
}

bool records() {
    const Settings settings;
    if (!settings.own) PyErr_Clear();
    return !settings.own || !settings.is(grad, Py_False);
}

bool seeks_anomalies() {
    const Settings settings;
    if (!settings.own) PyErr_Clear();
    return !settings.own || !settings.is(anomaly, Py_False);
}

bool count_write(PyObject *tensor) {
    PyObject *counter = share_version(tensor);
    if (!counter || !increment(counter)) return false;
    return PyList_GET_SIZE(counter) < 2 || increment(PyList_GET_ITEM(counter, 1));
}

bool mark_view(PyObject *out, PyObject *source, PyObject *op, PyObject *params) {
    PyObject *parent = slot(source, classes.tensor_view), *base = source;
    PyObject *versions = share_version(source), *recorded = versions ? PyObject_GetAttr(classes.mode, grad) : nullptr;
    PyObject *chain = recorded ? Py_BuildValue("((OO))", op, params) : nullptr;
    if (chain && parent != Py_None) { // a view of its base, too
        base = slot(parent, classes.base);
        if (slot(parent, classes.recorded) == Py_False) Py_SETREF(recorded, Py_NewRef(Py_False));
        Py_SETREF(chain, PySequence_Concat(slot(parent, classes.chain), chain));
    }
    PyObject *made = chain ? classes.view->tp_alloc(classes.view, 0) : nullptr;
    if (!made) {
        Py_XDECREF(recorded);
        Py_XDECREF(chain);
        return false;
    }
    slot(made, classes.base) = Py_NewRef(base);
    slot(made, classes.chain) = chain;
    slot(made, classes.seen) = Py_NewRef(slot(base, classes.tensor_node));
    slot(made, classes.recorded) = recorded;
    Py_SETREF(slot(out, classes.versions), Py_NewRef(versions));
    Py_SETREF(slot(out, classes.tensor_view), made);
    return true;
}

Recorded record(PyObject *out, PyObject *const *inputs, int count, PyObject *op, PyObject *impl, PyObject *params,
                PyObject *residual) {
    const Settings settings;
    if (!settings.own) return Recorded::failed;
    const bool on = settings.is(grad, Py_True);
    if (on && !PyArray_Check(array_of(out))) return Recorded::no; // moved to a device of another library
    if (!on || !is_differentiable(out)) return Recorded::yes; // there is nothing to record
    if (!usual(settings, inputs, count)) return Recorded::no;
    Parts parts(count);
    if (!parts.complete() || !connect(parts, inputs, count)) return Recorded::failed;
    if (!any_needs(parts.needs)) return Recorded::yes; // views, made in no_grad mode, of what does
    PyObject *table = PyObject_GetAttr(impl, kept);
    if (!table) return Recorded::failed;
    PyObject *keeps = PyDict_GetItemWithError(table, parts.needs); // borrowed: (of each input, of the output)
    Py_DECREF(table);                                              // the Impl holds it
    if (!keeps) return PyErr_Occurred() ? Recorded::failed : Recorded::no; // the first time
    if (!save(parts, inputs, count, PyTuple_GET_ITEM(keeps, 0))) return Recorded::failed;
    if (PyTuple_GET_ITEM(keeps, 1) == Py_True) {
        PyObject *versions = share_version(out);
        if (versions) parts.y = PyTuple_Pack(3, slot(out, classes.array), versions, PyList_GET_ITEM(versions, 0));
    } else {
        parts.y = Py_NewRef(Py_None);
    }
    parts.seq = parts.y ? PyObject_CallNoArgs(classes.next_seq) : nullptr;
    parts.node = parts.seq ? classes.node->tp_alloc(classes.node, 0) : nullptr;
    PyObject *one = parts.node ? PyLong_FromLong(1) : nullptr;
    if (!one) return Recorded::failed;
    PyObject *node = parts.node;
    slot(node, classes.seq) = given(parts.seq);
    slot(node, classes.op) = Py_NewRef(op);
    slot(node, classes.impl) = Py_NewRef(impl);
    slot(node, classes.node_dev) = Py_NewRef(slot(out, classes.dev));
    slot(node, classes.edges) = given(parts.edges);
    slot(node, classes.metas) = given(parts.metas);
    slot(node, classes.needs) = given(parts.needs);
    slot(node, classes.params) = Py_NewRef(params);
    slot(node, classes.saved) = given(parts.saved);
    slot(node, classes.saved_versions) = given(parts.versions);
    slot(node, classes.y) = given(parts.y);
    slot(node, classes.freed) = Py_NewRef(Py_False);
    slot(node, classes.outputs) = one;
    slot(node, classes.residual) = Py_NewRef(residual);
    for (Py_ssize_t offset : classes.node_others) slot(node, offset) = Py_NewRef(Py_None);
    Py_SETREF(slot(out, classes.tensor_node), given(parts.node));
    Py_SETREF(slot(out, classes.rg), Py_NewRef(Py_True));
    return Recorded::yes;
}

void bind_record(nb::module_ &m) { m.def("record_configure", &configure); }

} // namespace resilin
