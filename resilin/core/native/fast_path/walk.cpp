// The short way through a backward: nodes of the CPU whose rules give arrays of their inputs' shapes and dtypes. Whatever
// else a node or a gradient is, and errors, are left to the way in Python (core/autograd/engine.py: `Run.step`, `give`,
// `add` and `finish`), which says what they mean, before anything was done to them.
#include "binding/kernels.hpp"
#include "binding/tensors.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace resilin {
namespace {

// Set once, when resilin.core is imported, and kept for the life of the process.
struct {
    PyTypeObject *impl, *meta, *product;
    Py_ssize_t grads, keep, targets, capture, sums, uses, spans; // offsets of a run's slots
    Py_ssize_t vjp, residual, wide, adds;                    // of an implementation's
    Py_ssize_t meta_shape, meta_dtype;                       // of a Meta's
    Py_ssize_t product_shape, product_dtype;                 // of a Product's
    Py_ssize_t before_hooks, frame;                          // of a node's
    Py_ssize_t grad, hooks, grad_slot;                       // of a tensor's
    PyObject *hooked, *raised;                               // the dict of nodes with hooks; raises an explained error
    PyObject *acquire, *release;                             // of the lock of leaves
    PyObject *step, *give, *add, *finish, *hand_on, *saves_any, *whole, *next, *leaf; // names
} c;

void configure(nb::type_object run, nb::type_object impl, nb::type_object meta, nb::type_object product,
               nb::object hooked, nb::object lock, nb::object raised) {
    auto type = [](nb::type_object &object) { return reinterpret_cast<PyTypeObject *>(object.release().ptr()); };
    PyTypeObject *of_run = type(run);
    c.impl = type(impl), c.meta = type(meta), c.product = type(product);
    c.grads = offset_of(of_run, "grads"), c.keep = offset_of(of_run, "keep"), c.targets = offset_of(of_run, "targets");
    c.capture = offset_of(of_run, "capture"), c.sums = offset_of(of_run, "sums"), c.uses = offset_of(of_run, "uses");
    c.spans = offset_of(of_run, "spans");
    c.vjp = offset_of(c.impl, "vjp"), c.residual = offset_of(c.impl, "residual"), c.wide = offset_of(c.impl, "wide");
    c.adds = offset_of(c.impl, "adds");
    c.meta_shape = offset_of(c.meta, "shape"), c.meta_dtype = offset_of(c.meta, "dtype");
    c.product_shape = offset_of(c.product, "shape"), c.product_dtype = offset_of(c.product, "dtype");
    c.before_hooks = offset_of(classes.node, "_pre");
    c.frame = offset_of(classes.node, "frame");
    c.grad = offset_of(classes.tensor, "_grad"), c.hooks = offset_of(classes.tensor, "_hooks");
    c.grad_slot = offset_of(classes.tensor, "_grad_slot");
    c.acquire = nb::getattr(lock, "acquire").release().ptr(), c.release = nb::getattr(lock, "release").release().ptr();
    c.hooked = hooked.release().ptr(), c.raised = raised.release().ptr();
    c.step = PyUnicode_InternFromString("step"), c.give = PyUnicode_InternFromString("give");
    c.add = PyUnicode_InternFromString("add"), c.finish = PyUnicode_InternFromString("finish");
    c.hand_on = PyUnicode_InternFromString("hand_on"), c.saves_any = PyUnicode_InternFromString("saves_any");
    c.whole = PyUnicode_InternFromString("whole"), c.next = PyUnicode_InternFromString("next");
    c.leaf = PyUnicode_InternFromString("leaf");
}

bool is_node(PyObject *edge) { return PyObject_TypeCheck(edge, classes.node); }

// A method of `self` that gives nothing; false with an error set.
template <class... Args> bool call_method(PyObject *self, PyObject *name, Args *...args) {
    PyObject *all[] = {self, args...};
    PyObject *done = PyObject_VectorcallMethod(name, all, 1 + sizeof...(args), nullptr);
    Py_XDECREF(done);
    return done;
}

// Adds `by` to the number that a dict has for `key`, 0 without one; what it is then, or -1 with an error set.
long counted(PyObject *dict, PyObject *key, long by) {
    PyObject *found = PyDict_GetItemWithError(dict, key);
    if (!found && PyErr_Occurred()) return -1;
    const long count = (found ? PyLong_AsLong(found) : 0) + by;
    PyObject *next = PyLong_FromLong(count);
    const bool done = next && PyDict_SetItem(dict, key, next) == 0;
    Py_XDECREF(next);
    return done ? count : -1;
}

// All nodes that `roots` lead to, latest first; adds how often each leaf is used to `uses`.
nb::object reachable(nb::sequence roots, nb::dict uses) {
    const nb::object found = nb::steal(PySet_New(nullptr)), all = nb::steal(PySequence_Fast(roots.ptr(), "roots"));
    if (!found.is_valid() || !all.is_valid()) throw nb::python_error();
    std::vector<std::pair<long long, PyObject *>> nodes; // held by `found`
    std::vector<PyObject *> stack;
    const auto reach = [&](PyObject *edge) {
        if (edge == Py_None) return;
        if (is_node(edge)) stack.push_back(edge);
        else if (counted(uses.ptr(), edge, 1) < 0) throw nb::python_error();
    };
    const auto reach_all = [&](PyObject *edges) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(edges); i++) reach(PySequence_Fast_GET_ITEM(edges, i));
    };
    reach_all(all.ptr());
    while (!stack.empty()) {
        PyObject *node = stack.back();
        stack.pop_back();
        const Py_ssize_t before = PySet_GET_SIZE(found.ptr());
        if (PySet_Add(found.ptr(), node) < 0) throw nb::python_error();
        if (PySet_GET_SIZE(found.ptr()) == before) continue;
        nodes.emplace_back(PyLong_AsLongLong(slot(node, classes.seq)), node);
        const nb::object edges = nb::steal(PySequence_Fast(slot(node, classes.edges), "edges"));
        if (!edges.is_valid()) throw nb::python_error();
        reach_all(edges.ptr());
    }
    std::sort(nodes.begin(), nodes.end(), [](const auto &a, const auto &b) { return a.first > b.first; });
    nb::list order;
    for (const auto &[seq, node] : nodes) order.append(nb::handle(node));
    return order;
}

// Whether the shape of `array` is `shape`, a tuple.
bool has_shape(PyArrayObject *array, PyObject *shape) {
    if (!PyTuple_Check(shape) || PyTuple_GET_SIZE(shape) != PyArray_NDIM(array)) return false;
    for (int i = 0; i < PyArray_NDIM(array); i++)
        if (PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, i)) != PyArray_DIM(array, i)) return false;
    return true;
}

bool same_value(PyObject *a, PyObject *b) { return a == b || PyObject_RichCompareBool(a, b, Py_EQ) == 1; }

// What a rule gets for an input that was not saved
PyObject *meta_of(PyObject *pair) {
    PyObject *made = c.meta->tp_alloc(c.meta, 0);
    if (!made) return nullptr;
    slot(made, c.meta_shape) = Py_NewRef(PyTuple_GET_ITEM(pair, 0));
    slot(made, c.meta_dtype) = Py_NewRef(PyTuple_GET_ITEM(pair, 1));
    return made;
}

enum class Done { no, yes, failed };

// The arguments of a rule, owned.
class Arguments {
public:
    Arguments() { all_.reserve(16); }
    Arguments(const Arguments &) = delete;
    ~Arguments() { clear(); }
    void add(PyObject *borrowed) { all_.push_back(Py_NewRef(borrowed)); }
    void take(PyObject *owned) { all_.push_back(owned); }
    void clear() {
        for (PyObject *each : all_) Py_DECREF(each);
        all_.clear();
    }
    PyObject *gradient() const { return all_[2]; }
    PyObject *call(PyObject *function) const { return PyObject_Vectorcall(function, all_.data(), all_.size(), nullptr); }

private:
    std::vector<PyObject *> all_;
};

// Adds what `node` saved of its inputs, as `Node.arrays` gives it; no when it cannot be had here.
Done add_saved(PyObject *node, Arguments &arguments) {
    PyObject *saved = slot(node, classes.saved), *versions = slot(node, classes.saved_versions), *metas = slot(node, classes.metas);
    for (PyObject *each : {saved, versions, metas})
        if (!PyTuple_CheckExact(each) && !PyList_CheckExact(each)) return Done::no;
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(saved);
    if (PySequence_Fast_GET_SIZE(versions) != count || PySequence_Fast_GET_SIZE(metas) != count) return Done::no;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *value = PySequence_Fast_GET_ITEM(saved, i), *meta = PySequence_Fast_GET_ITEM(metas, i);
        if (meta != Py_None && (!PyTuple_CheckExact(meta) || PyTuple_GET_SIZE(meta) != 2)) return Done::no;
        if (Py_TYPE(value) == classes.tensor || Py_TYPE(value) == classes.parameter) {
            PyObject *counter = slot(value, classes.versions), *array = slot(value, classes.array);
            if (counter != Py_None && (!PyList_Check(counter) || !PyList_GET_SIZE(counter) ||
                                       !same_value(PyList_GET_ITEM(counter, 0), PySequence_Fast_GET_ITEM(versions, i))))
                return Done::no;
            if (!array || !PyArray_CheckExact(array)) return Done::no;
            if (meta != Py_None && !has_shape(reinterpret_cast<PyArrayObject *>(array), PyTuple_GET_ITEM(meta, 0)))
                return Done::no;
            arguments.add(array);
        } else if (PyObject_TypeCheck(value, classes.tensor)) {
            return Done::no;
        } else if (value == Py_None && meta != Py_None) {
            PyObject *made = meta_of(meta);
            if (!made) return Done::failed;
            arguments.take(made);
        } else {
            arguments.add(value);
        }
    }
    return Done::yes;
}

// Fills in the arguments of the rule of `node` for the gradient `g`; no when that is not to be done here.
Done gather(PyObject *node, PyObject *g, Arguments &arguments) {
    PyObject *impl = slot(node, classes.impl), *y = slot(node, classes.y), *params = slot(node, classes.params);
    if (slot(node, classes.node_dev) != classes.cpu || Py_TYPE(impl) != c.impl || slot(impl, c.adds) != Py_False ||
        slot(node, classes.freed) != Py_False || slot(node, c.frame) != Py_None || !PyTuple_CheckExact(params))
        return Done::no;
    const auto *array = reinterpret_cast<PyArrayObject *>(g);
    if (slot(impl, c.wide) != Py_False && PyArray_ITEMSIZE(array) == 2) return Done::no;
    arguments.add(host_namespace);
    arguments.add(slot(node, classes.needs));
    arguments.add(g);
    if (y == Py_None) {
        arguments.add(y);
    } else {
        PyObject *counter = PyTuple_GET_ITEM(y, 1);
        if (!PyList_Check(counter) || !PyList_GET_SIZE(counter) ||
            !same_value(PyList_GET_ITEM(counter, 0), PyTuple_GET_ITEM(y, 2)))
            return Done::no;
        arguments.add(PyTuple_GET_ITEM(y, 0));
    }
    const int has_residual = PyObject_IsTrue(slot(impl, c.residual));
    if (has_residual < 0) return Done::failed;
    if (has_residual) arguments.add(slot(node, classes.residual));
    const Done done = add_saved(node, arguments);
    for (Py_ssize_t i = 0; done == Done::yes && i < PyTuple_GET_SIZE(params); i++)
        arguments.add(PyTuple_GET_ITEM(params, i));
    return done;
}

// Drops what a node saved, as `Node.free` does it.
bool free_saved(PyObject *node) {
    bool freed = slot(node, classes.y) != Py_None;
    if (!freed) {
        PyObject *any = PyObject_GetAttr(slot(node, classes.op), c.saves_any);
        const int is = any ? PyObject_IsTrue(any) : -1;
        Py_XDECREF(any);
        if (is < 0) return false;
        freed = is;
    }
    PyObject *left = Py_NewRef(Py_None);
    if (!freed) {
        const Py_ssize_t count = PyObject_Size(slot(node, classes.edges));
        Py_SETREF(left, count < 0 ? nullptr : PyTuple_New(count));
        if (!left) return false;
        for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(left, i, Py_NewRef(Py_None));
    }
    if (freed) Py_SETREF(slot(node, classes.freed), Py_NewRef(Py_True));
    Py_SETREF(slot(node, classes.y), Py_NewRef(Py_None));
    Py_SETREF(slot(node, classes.residual), Py_NewRef(Py_None));
    Py_SETREF(slot(node, c.frame), Py_NewRef(Py_None));
    Py_SETREF(slot(node, classes.saved), left);
    return true;
}

class Walk {
public:
    explicit Walk(PyObject *run)
        : run_(run), grads_(slot(run, c.grads)), sums_(slot(run, c.sums)), uses_(slot(run, c.uses)),
          targets_(slot(run, c.targets)), spans_(slot(run, c.spans)), keeps_(PyObject_IsTrue(slot(run, c.keep))),
          captures_(PyObject_IsTrue(slot(run, c.capture))) {}

    // Runs the rule of `node` and hands its gradients on; false with an error set.
    bool visit(PyObject *node) {
        PyObject *g = PyDict_GetItemWithError(grads_, node); // borrowed
        if (!g && PyErr_Occurred()) return false;
        Done done = Done::no;
        if (g && usual(node, g)) {
            Arguments arguments;
            done = gather(node, g, arguments);
            if (done == Done::yes)
                return PyDict_DelItem(grads_, node) == 0 && shown(c.next, node) && compute(node, arguments);
        }
        return done != Done::failed && call_method(run_, c.step, node);
    }

private:
    // Tells whoever records the backward what comes.
    template <class... Args> bool shown(PyObject *method, Args *...args) const {
        return spans_ == Py_None || call_method(spans_, method, args...);
    }

    // Nobody but the rule is to see the gradient.
    bool usual(PyObject *node, PyObject *g) const {
        if (Py_TYPE(node) != classes.node || !PyArray_CheckExact(g) || slot(node, c.before_hooks) != Py_None) return false;
        if (PyDict_GET_SIZE(c.hooked) || seeks_anomalies()) return false;
        return !captures_ || targets_ == Py_None || PySet_Contains(targets_, node) == 0;
    }

    // Calls the rule with `arguments`, of which the third is the gradient, and hands on what it gives.
    bool compute(PyObject *node, Arguments &arguments) {
        PyObject *found = arguments.call(slot(slot(node, classes.impl), c.vjp));
        PyObject *parts = found ? PySequence_List(found) : nullptr; // a generator computes here
        Py_XDECREF(found);
        if (!parts) return explain(node, arguments);
        arguments.clear();
        const bool done = (keeps_ || free_saved(node)) && hand_on(node, parts);
        Py_DECREF(parts);
        return done;
    }

    // Has an error of the rule explained.
    bool explain(PyObject *node, const Arguments &arguments) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
        PyObject *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        PyErr_NormalizeException(&kind, &error, &trace);
        if (trace) PyException_SetTraceback(error, trace);
        PyObject *all[] = {error, node, arguments.gradient()};
        PyObject *never = PyObject_Vectorcall(c.raised, all, 3, nullptr);
        Py_XDECREF(never);
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        return false;
    }

    bool hand_on(PyObject *node, PyObject *parts) {
        const nb::object edges = nb::borrow(slot(node, classes.edges));
        const nb::object metas = nb::borrow(slot(node, classes.metas));
        const Py_ssize_t count = PySequence_Fast_GET_SIZE(edges.ptr());
        if (PyList_GET_SIZE(parts) < count) return call_method(run_, c.hand_on, node, parts); // an error
        std::vector<PyObject *> whole; // leaves, held by `edges`; their turn is after the node's
        for (Py_ssize_t i = 0; i < count; i++) {
            PyObject *edge = PySequence_Fast_GET_ITEM(edges.ptr(), i);
            if (edge == Py_None) continue;
            const Done done = give(node, i, edge, PySequence_Fast_GET_ITEM(metas.ptr(), i), parts);
            if (done == Done::failed) return false;
            if (done == Done::yes) whole.push_back(edge);
        }
        for (PyObject *leaf : whole)
            if (!finish(leaf)) return false;
        return true;
    }

    // Gives the input at `edge`, of which `meta` says shape and dtype, its part: yes if it is a leaf that has all now.
    Done give(PyObject *node, Py_ssize_t position, PyObject *edge, PyObject *meta, PyObject *parts) {
        PyObject *part = PyList_GET_ITEM(parts, position); // borrowed
        PyObject *waiting = is_node(edge) ? grads_ : sums_;
        if (part != Py_None) {
            const bool first = fits(edge, part, meta, waiting) && !PyDict_GetItemWithError(waiting, edge);
            if (PyErr_Occurred()) return Done::failed;
            if (!first) return give_in_python(node, position, edge, parts);
        }
        if (waiting == sums_ && targets_ != Py_None) {
            const int wanted = PySet_Contains(targets_, edge);
            if (wanted <= 0) return wanted == 0 ? Done::no : Done::failed;
        }
        if (part != Py_None) {
            const bool set = PyDict_SetItem(waiting, edge, part) == 0;
            PyList_SetItem(parts, position, Py_NewRef(Py_None));
            if (!set) return Done::failed;
        }
        if (waiting == grads_) return Done::no;
        const long left = counted(uses_, edge, -1);
        if (left < 0 && PyErr_Occurred()) return Done::failed;
        return left == 0 ? Done::yes : Done::no;
    }

    Done give_in_python(PyObject *node, Py_ssize_t position, PyObject *edge, PyObject *parts) {
        PyObject *place = PyLong_FromSsize_t(position);
        if (!place) return Done::failed;
        PyObject *all[] = {run_, node, place, edge, parts};
        PyObject *given = PyObject_VectorcallMethod(c.give, all, 5, nullptr);
        Py_DECREF(place);
        if (!given) return Done::failed;
        const bool whole = given == Py_True;
        Py_DECREF(given);
        return whole ? Done::yes : Done::no;
    }

    // Whether the part is an array as the input is, or a product of that kind that is all of a leaf's gradient.
    bool fits(PyObject *edge, PyObject *part, PyObject *meta, PyObject *waiting) const {
        if (!PyTuple_CheckExact(meta)) return false;
        if (Py_TYPE(part) == c.product) {
            PyObject *uses = waiting == sums_ ? PyDict_GetItemWithError(uses_, edge) : nullptr;
            return uses && PyLong_AsLong(uses) == 1 && slot(part, c.product_dtype) == PyTuple_GET_ITEM(meta, 1) &&
                   same_value(slot(part, c.product_shape), PyTuple_GET_ITEM(meta, 0));
        }
        if (!PyArray_CheckExact(part)) return false;
        auto *array = reinterpret_cast<PyArrayObject *>(part);
        return reinterpret_cast<PyObject *>(PyArray_DESCR(array)) == PyTuple_GET_ITEM(meta, 1) &&
               has_shape(array, PyTuple_GET_ITEM(meta, 0));
    }

    // The whole gradient of `leaf` is there: it becomes `leaf.grad`, where nobody else holds or wants it.
    bool finish(PyObject *leaf) {
        PyObject *g = PyDict_GetItemWithError(sums_, leaf);
        if (!g) return !PyErr_Occurred();
        const bool plain = Py_TYPE(leaf) == classes.tensor || Py_TYPE(leaf) == classes.parameter;
        Done done = Done::no;
        if (plain && !captures_ && slot(leaf, c.hooks) == Py_None && slot(leaf, classes.rg) == Py_True &&
            slot(leaf, classes.dev) == classes.cpu && (Py_TYPE(g) == c.product || alone(g)) && takes(leaf)) {
            if (!shown(c.leaf)) return false;
            PyObject *locked = PyObject_CallNoArgs(c.acquire);
            if (!locked) return false;
            Py_DECREF(locked);
            done = place(leaf, g);
            if (!unlock()) return false;
        }
        return done == Done::no ? call_method(run_, c.finish, leaf) : done == Done::yes;
    }

    // Lets the lock of leaves go; an error that is set stays as it is, since nothing may be called with one.
    static bool unlock() {
        PyObject *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        PyObject *released = PyObject_CallNoArgs(c.release);
        if (released) {
            Py_DECREF(released);
            PyErr_Restore(kind, error, trace);
            return true;
        }
        for (PyObject *each : {kind, error, trace}) Py_XDECREF(each);
        return false;
    }

    // Whether there is no gradient yet, and no memory for it.
    static bool takes(PyObject *leaf) { return slot(leaf, c.grad) == Py_None && slot(leaf, c.grad_slot) == Py_None; }

    // Takes `g` from the sums and lets it be `leaf.grad`.
    Done place(PyObject *leaf, PyObject *g) {
        if (!takes(leaf)) return Done::no;
        if (Py_TYPE(g) == c.product) {
            PyObject *array = PyObject_CallMethodNoArgs(g, c.whole);
            const bool set = array && PyDict_SetItem(sums_, leaf, array) == 0;
            Py_XDECREF(array);
            if (!set) return Done::failed;
            g = array; // held by the sums
            if (!alone(g)) return Done::no;
        }
        PyObject *made = wrap(Py_NewRef(g), classes.cpu);
        if (made && PyDict_DelItem(sums_, leaf) < 0) Py_CLEAR(made);
        if (!made) return Done::failed;
        Py_SETREF(slot(leaf, c.grad), made);
        return Done::yes;
    }

    static bool alone(PyObject *g) {
        if (!PyArray_CheckExact(g) || Py_REFCNT(g) != 1) return false;
        auto *array = reinterpret_cast<PyArrayObject *>(g);
        return PyArray_IS_C_CONTIGUOUS(array) && !PyArray_BASE(array);
    }

    PyObject *run_, *grads_, *sums_, *uses_, *targets_, *spans_;
    bool keeps_, captures_;
};

// Runs the rules of the nodes of `order`, a list or tuple, for the backward `run`, whose gradients are arrays.
void walk(nb::handle run, nb::sequence order) {
    const nb::object all = nb::steal(PySequence_Fast(order.ptr(), "order"));
    if (!all.is_valid()) throw nb::python_error();
    Walk walk(run.ptr());
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(all.ptr()); i++)
        if (!walk.visit(PySequence_Fast_GET_ITEM(all.ptr(), i))) throw nb::python_error();
}

} // namespace

void bind_walk(nb::module_ &m) {
    m.def("walk_configure", &configure);
    m.def("reachable", &reachable);
    m.def("walk", &walk);
}

} // namespace resilin
