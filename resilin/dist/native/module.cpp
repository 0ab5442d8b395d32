// The native module of resilin.dist: shared-memory collectives. Every call that waits or computes releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/ndarrayobject.h>

#include <cstring>

#include "flight.hpp"
#include "segment.hpp"
#include "signals.hpp"

namespace nb = nanobind;
using namespace resilin::dist;

void resilin::dist::check_signals() {
    nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

namespace {

// The caller (backends/shm.py) passes C-contiguous ndarrays only.
PyArrayObject *as_array(nb::handle array) { return reinterpret_cast<PyArrayObject *>(array.ptr()); }

Descriptor describe(PyArrayObject *array, uint64_t sequence, int kind, int dtype, int op, int root) {
    Descriptor d{};
    d.sequence = sequence;
    d.kind = static_cast<uint8_t>(kind);
    d.dtype = static_cast<uint8_t>(dtype);
    d.op = static_cast<uint8_t>(op);
    d.root = root;
    const int ndim = PyArray_NDIM(array);
    d.ndim = static_cast<uint8_t>(ndim);
    for (int i = 0; i < ndim && i < 8; i++) d.shape[i] = PyArray_DIMS(array)[i];
    for (int i = 8; i < ndim; i++) d.shape[7] *= PyArray_DIMS(array)[i];
    return d;
}

int all_reduce(Segment &self, nb::handle handle, uint64_t sequence, int kind, int dtype, int op, uint64_t arena,
               uint64_t offset, double deadline, double spin_s) {
    PyArrayObject *array = as_array(handle);
    const Descriptor mine = describe(array, sequence, kind, dtype, op, -1);
    char *data = PyArray_BYTES(array);
    const auto count = static_cast<size_t>(PyArray_SIZE(array));
    nb::gil_scoped_release release;
    return self.all_reduce(mine, data, count, arena, offset, deadline, spin_s);
}

int exchange(Segment &self, nb::bytes descriptor, nb::handle payload, double deadline, double spin_s) {
    if (descriptor.size() != sizeof(Descriptor)) throw nb::value_error("a descriptor has 80 bytes");
    Descriptor mine;
    std::memcpy(&mine, descriptor.c_str(), sizeof mine);
    PyArrayObject *array = as_array(payload);
    const auto size = static_cast<size_t>(PyArray_NBYTES(array));
    if (size > INLINE_BYTES) throw nb::value_error("the payload does not fit a slot");
    const char *data = PyArray_BYTES(array);
    nb::gil_scoped_release release;
    return self.exchange(mine, data, size, deadline, spin_s);
}

nb::object view(char *at, size_t size, bool writable) {
    if (!at) return nb::none();
    PyObject *memory = PyMemoryView_FromMemory(at, static_cast<Py_ssize_t>(size), writable ? PyBUF_WRITE : PyBUF_READ);
    if (!memory) throw nb::python_error();
    return nb::steal(memory);
}

// Arrays as the reductions take them: contiguous, `count` elements of the dtype each.
struct Operands {
    const char *srcs[MAX_RANKS];
    char *dsts[MAX_RANKS];
    int n_srcs, n_dsts;

    Operands(int dtype, nb::list sources, nb::list destinations, size_t count) {
        const auto bytes = static_cast<npy_intp>(count * item_size(dtype));
        if (sources.size() < 1 || sources.size() > MAX_RANKS || destinations.size() > MAX_RANKS) throw nb::value_error("1 to 256 arrays");
        n_srcs = static_cast<int>(sources.size());
        n_dsts = static_cast<int>(destinations.size());
        for (int i = 0; i < n_srcs; i++) {
            if (PyArray_NBYTES(as_array(sources[i])) != bytes) throw nb::value_error("sources differ in size");
            srcs[i] = PyArray_BYTES(as_array(sources[i]));
        }
        for (int i = 0; i < n_dsts; i++) {
            if (PyArray_NBYTES(as_array(destinations[i])) != bytes) throw nb::value_error("destinations differ in size");
            dsts[i] = PyArray_BYTES(as_array(destinations[i]));
        }
    }
};

void reduce_arrays(int dtype, int op, nb::list sources, nb::list destinations, size_t count) {
    const Operands x(dtype, sources, destinations, count);
    bool known;
    {
        nb::gil_scoped_release release;
        known = reduce(dtype, static_cast<Op>(op), x.srcs, x.n_srcs, x.dsts, x.n_dsts, count);
    }
    if (!known) throw nb::value_error("this reduction is not defined for this dtype");
}

int write_arrays(Segment &self, int dtype, int op, nb::list sources, nb::list destinations, size_t count) {
    const Operands x(dtype, sources, destinations, count);
    Status status;
    {
        nb::gil_scoped_release release;
        status = self.write(dtype, static_cast<Op>(op), x.srcs, x.n_srcs, x.dsts, x.n_dsts, count);
    }
    if (status == MISMATCH) throw nb::value_error("this reduction is not defined for this dtype");
    return status;
}

} // namespace

NB_MODULE(_native, m) {
    m.doc() = "Shared-memory collectives of resilin.dist.";
    if (_import_array() < 0) throw nb::python_error();
    m.attr("INLINE_BYTES") = INLINE_BYTES;
    m.attr("MAX_RANKS") = MAX_RANKS;
    m.def("reduce", &reduce_arrays, nb::arg("dtype"), nb::arg("op"), nb::arg("sources"), nb::arg("destinations"), nb::arg("count"));
    using Release = nb::call_guard<nb::gil_scoped_release>;
    bind_flight(m);
    nb::class_<Segment>(m, "Segment")
        .def(nb::init<int, int, int, bool>(), nb::arg("fd"), nb::arg("rank"), nb::arg("ranks"), nb::arg("create"))
        .def("barrier", [](Segment &s, double deadline, double spin_s) -> int { return s.barrier(deadline, spin_s); }, Release())
        .def("exchange", &exchange)
        .def_rw("compare", &Segment::compare)
        .def("all_reduce", &all_reduce)
        .def("resume", [](Segment &s, double deadline, double spin_s) -> int { return s.resume(deadline, spin_s); }, Release())
        .def("write", &write_arrays, nb::arg("dtype"), nb::arg("op"), nb::arg("sources"), nb::arg("destinations"), nb::arg("count"))
        .def("payload", [](Segment &s, int rank, size_t size) {
            return view(const_cast<char *>(s.side(rank).payload), size <= INLINE_BYTES ? size : INLINE_BYTES, false);
        })
        .def("descriptor", [](Segment &s, int rank) {
            return nb::bytes(reinterpret_cast<const char *>(&s.side(rank).descriptor), sizeof(Descriptor));
        })
        .def("mismatched", &Segment::mismatched)
        .def("missing", &Segment::missing)
        .def("late", &Segment::late)
        .def("aborted", &Segment::aborted)
        .def("abort", &Segment::abort, nb::arg("code"), nb::arg("rank"), nb::arg("dead") = -1)
        .def("close", &Segment::close)
        .def("add_arena", &Segment::add_arena, nb::arg("rank"), nb::arg("id"), nb::arg("fd"), nb::arg("size"), Release())
        .def("view", [](Segment &s, int rank, uint64_t id, uint64_t offset, size_t size) {
            return view(s.address(rank, id, offset, size), size, true);
        });
}
