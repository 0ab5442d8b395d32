// A function in front of which stands a span while somebody records: operations that fast_path/ has no call for.
#include "binding/callables.hpp"
#include "binding/kernels.hpp"
#include "tracing/operations.hpp"

namespace resilin {
namespace {

struct TracedCall : Callable {
    static constexpr const char *NAME = "resilin.core._native.TracedCall";
    static constexpr int REFERENCES = 4;
    PyObject *function, *traced; // what is called, and its name in traces
    PyObject *plain; // what is called instead without keywords, while nobody records; or null
    tracing::KnownName known;
};

PyObject *call(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    auto *self = reinterpret_cast<TracedCall *>(object);
    if (!tracing::watched())
        return PyObject_Vectorcall(!names && self->plain ? self->plain : self->function, args, flagged, names);
    tracing::OperationSpan span(self->known, self->traced, args, PyVectorcall_NARGS(flagged));
    PyObject *out = PyObject_Vectorcall(self->function, args, flagged, names);
    span.finish(out);
    return out;
}

nb::object traced_call(nb::object function, nb::str traced, nb::object plain) {
    TracedCall *self = make_callable<TracedCall>(call);
    self->plain = plain.is_none() ? nullptr : plain.release().ptr();
    self->function = function.release().ptr();
    self->traced = traced.release().ptr();
    self->known = {};
    return finished(self);
}

} // namespace

void bind_traced_call(nb::module_ &m) {
    m.attr("TracedCall") = nb::borrow(reinterpret_cast<PyObject *>(callable_type<TracedCall>()));
    m.def("traced_call", &traced_call, nb::arg("function"), nb::arg("traced"), nb::arg("plain") = nb::none());
}

} // namespace resilin
