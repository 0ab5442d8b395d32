// The native module of resilin.distributed: shared-memory collectives. Every call that waits or computes releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/ndarrayobject.h>

#include <cstring>

#include "collectives.hpp"
#include "flight.hpp"
#include "gil.hpp"
#include "phases.hpp"
#include "post_module.hpp"
#include "signals.hpp"
#include "stream_module.hpp"

namespace nb = nanobind;
using namespace resilin;
using namespace resilin::dist;

void resilin::dist::check_signals() {
    const WithGil gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

namespace {

PyObject *listener = nullptr; // guarded by the GIL; outlives the module

void hear_phases(nb::object told) {
    PyObject *before = listener;
    listener = told.is_none() ? nullptr : told.release().ptr();
    listening = listener != nullptr;
    Py_XDECREF(before);
}

} // namespace

void resilin::dist::tell_phase(const char *phase) {
    const WithGil gil;
    if (listener) nb::borrow<nb::object>(listener)(phase);
}

namespace {

// The caller (backends/shm/collectives.py) passes C-contiguous ndarrays only.
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
    if (ndim > 8) { // as wire/frames.py's pack
        uint64_t rest = 0;
        for (int i = 7; i < ndim; i++) rest = (rest * 1'000'003 + static_cast<uint64_t>(PyArray_DIMS(array)[i]) + 1) & ((uint64_t{1} << 48) - 1);
        d.shape[7] = -2 - static_cast<int64_t>(rest);
    }
    return d;
}

// Tensors with their places: (arena, offset), or None for what travels in the slot.
std::vector<Piece> pieces(Segment &segment, nb::list arrays, nb::list places) {
    if (arrays.size() != places.size() || arrays.size() > MAX_REGIONS) throw nb::value_error("too many arrays, or not one place for each");
    std::vector<Piece> made;
    made.reserve(arrays.size());
    size_t in_slot = 0;
    for (size_t i = 0; i < arrays.size(); i++) {
        PyArrayObject *array = as_array(arrays[i]);
        Piece piece{PyArray_BYTES(array), static_cast<size_t>(PyArray_NBYTES(array)), IN_SLOT, 0};
        if (places[i].is_none()) {
            in_slot += (piece.size + 63) / 64 * 64;
        } else {
            const auto place = nb::cast<std::pair<uint64_t, uint64_t>>(places[i]);
            piece.arena = place.first;
            piece.offset = place.second;
        }
        made.push_back(piece);
    }
    if (in_slot > segment.inline_bytes()) throw nb::value_error("the arrays do not fit the slot");
    return made;
}

// One collective. `like`: the array that ranks must agree on.
int run(Collectives &self, nb::handle like, uint64_t sequence, int kind, int dtype, int op, int root, nb::list inputs,
        nb::list places, nb::list outputs, double deadline, double spin_s, nb::handle stage, nb::object targets) {
    Job job;
    job.mine = describe(as_array(like), sequence, kind, dtype, op, root);
    job.inputs = pieces(self.segment(), inputs, places);
    if (!stage.is_none()) {
        if (static_cast<size_t>(PyArray_NBYTES(as_array(stage))) < 2 * STAGE_BYTES) throw nb::value_error("the stage is too small");
        job.stage = PyArray_BYTES(as_array(stage));
    }
    if (kind == ALL_TO_ALL) job.mine.shape[0] = -1; // rows may differ from pair to pair: wire/frames.py's ANY_EXTENT
    job.outputs.reserve(outputs.size());
    for (nb::handle output : outputs)
        job.outputs.push_back({PyArray_BYTES(as_array(output)), static_cast<size_t>(PyArray_NBYTES(as_array(output)))});
    if (!targets.is_none()) job.targets = pieces(self.segment(), outputs, nb::cast<nb::list>(targets));
    if (job.inputs.size() + job.targets.size() > MAX_REGIONS) throw nb::value_error("too many arrays");
    const WithoutGil free;
    return self.run(std::move(job), deadline, spin_s);
}

int exchange(Segment &self, nb::bytes descriptor, nb::list arrays, nb::list places, double deadline, double spin_s) {
    if (descriptor.size() != sizeof(Descriptor)) throw nb::value_error("a descriptor has 80 bytes");
    Descriptor mine;
    std::memcpy(&mine, descriptor.c_str(), sizeof mine);
    const std::vector<Piece> made = pieces(self, arrays, places);
    const WithoutGil free;
    return self.exchange(mine, made.data(), static_cast<int>(made.size()), deadline, spin_s);
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
        const WithoutGil free;
        known = reduce(dtype, static_cast<Op>(op), x.srcs, x.n_srcs, x.dsts, x.n_dsts, count);
    }
    if (!known) throw nb::value_error("this reduction is not defined for this dtype");
}

int write_arrays(Segment &self, int dtype, int op, nb::list sources, nb::list destinations, size_t count) {
    const Operands x(dtype, sources, destinations, count);
    Status status;
    {
        const WithoutGil free;
        status = self.write(dtype, static_cast<Op>(op), x.srcs, x.n_srcs, x.dsts, x.n_dsts, count);
    }
    if (status == MISMATCH) throw nb::value_error("this reduction is not defined for this dtype");
    return status;
}

} // namespace

NB_MODULE(_native, m) {
    m.doc() = "Shared-memory collectives of resilin.distributed.";
    if (_import_array() < 0) throw nb::python_error();
    nb::set_leak_warnings(false);  // a fork's end leaves what threads held that it does not have
    m.attr("INLINE_BYTES") = INLINE_BYTES;
    m.attr("STAGE_BYTES") = STAGE_BYTES;
    m.attr("MAX_REGIONS") = MAX_REGIONS;
    m.attr("MAX_RANKS") = MAX_RANKS;
    m.def("reduce", &reduce_arrays, nb::arg("dtype"), nb::arg("op"), nb::arg("sources"), nb::arg("destinations"), nb::arg("count"));
    m.def("hear_phases", &hear_phases, nb::arg("told").none());
    using Release = nb::call_guard<WithoutGil>;
    bind_flight(m);
    bind_streams(m);
    nb::class_<Segment>(m, "Segment")
        .def(nb::init<int, int, int, size_t>(), nb::arg("fd"), nb::arg("rank"), nb::arg("ranks"), nb::arg("inline_bytes"))
        .def("barrier", [](Segment &s, double deadline, double spin_s) -> int { return s.barrier(deadline, spin_s); }, Release())
        .def("exchange", &exchange)
        .def_rw("compare", &Segment::compare)
        .def_rw("crowded", &Segment::crowded)
        .def("write", &write_arrays, nb::arg("dtype"), nb::arg("op"), nb::arg("sources"), nb::arg("destinations"), nb::arg("count"))
        .def("inline_bytes", &Segment::inline_bytes)
        .def("regions", [](Segment &s, int rank) { return s.side(rank).n_regions; })
        .def("region", [](Segment &s, int rank, size_t index) {
            return view(s.locate(rank, index), s.side(rank).regions[index].size, true);
        })
        .def("descriptor", [](Segment &s, int rank) {
            return nb::bytes(reinterpret_cast<const char *>(&s.side(rank).descriptor), sizeof(Descriptor));
        })
        .def("mismatched", &Segment::mismatched)
        .def("missing", &Segment::missing)
        .def("late", &Segment::late)
        .def("aborted", &Segment::aborted)
        .def("abort", &Segment::abort, nb::arg("code"), nb::arg("rank"), nb::arg("dead") = -1)
        .def("settle", [](Segment &s) { s.settle(); }, Release())
        .def("close", &Segment::close)
        .def("add_arena", &Segment::add_arena, nb::arg("rank"), nb::arg("id"), nb::arg("fd"), nb::arg("size"), Release())
        .def("adopt", &Segment::adopt, nb::arg("from"), nb::arg("ranks"), Release())
        .def("view", [](Segment &s, int rank, uint64_t id, uint64_t offset, size_t size) {
            return view(s.address(rank, id, offset, size), size, true);
        });
    nb::class_<Collectives>(m, "Collectives")
        .def(nb::init<Segment &>(), nb::keep_alive<1, 2>())
        .def("run", &run, nb::arg("like"), nb::arg("sequence"), nb::arg("kind"), nb::arg("dtype"), nb::arg("op"), nb::arg("root"),
             nb::arg("inputs"), nb::arg("places"), nb::arg("outputs"), nb::arg("deadline"), nb::arg("spin_s"), nb::arg("stage").none() = nb::none(),
             nb::arg("targets").none() = nb::none())
        .def("resume", [](Collectives &c, double deadline, double spin_s) -> int { return c.resume(deadline, spin_s); }, Release())
        .def("misfits", [](Collectives &c) {
            nb::list found;
            for (const auto &misfit : c.misfits()) found.append(nb::make_tuple(misfit.from, misfit.to, misfit.sent, misfit.expected));
            return found;
        });
    bind_post(m);
}
