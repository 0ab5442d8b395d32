// The ring's writer, and the recorder that Python calls.
#include "recorder.hpp"

#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "binding/tensors.hpp"
#include "tracing/python_calls.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace resilin::tracing {

std::atomic<Ring *> active{nullptr};
PyObject *listener = nullptr;

namespace {

constexpr size_t HEAD_BYTES = 4096, SIZES_AT = 8, WRITTEN_AT = 32;
constexpr size_t KNOWN_ARGS = 1024; // a step of a program has some hundred different ones
constexpr uint64_t READY_BYTES = 64 << 10; // 1000 operations

std::atomic<uint64_t> next_epoch{1};

struct Thread {
    uint64_t epoch;
    uint32_t number;
};
__thread Thread this_thread; // see counting

} // namespace

Ring::Ring(char *memory, size_t bytes, bool shapes, bool memory_events, bool modules)
    : shapes(shapes), memory_events(memory_events), modules(modules), epoch(next_epoch++) {
    uint64_t sizes[3];
    std::memcpy(sizes, memory + SIZES_AT, sizeof sizes);
    count_ = sizes[0], room_ = sizes[1], name_room_ = sizes[2];
    if (!count_ || !room_ || HEAD_BYTES + count_ * sizeof(Record) + room_ + name_room_ > bytes)
        throw nb::value_error("trace buffer: its head speaks of more than is there");
    records_ = reinterpret_cast<Record *>(memory + HEAD_BYTES);
    args_ = memory + HEAD_BYTES + count_ * sizeof(Record);
    names_ = args_ + room_;
    auto *written = reinterpret_cast<std::atomic<uint64_t> *>(memory + WRITTEN_AT);
    written_ = written, args_written_ = written + 1, names_written_ = written + 2, names_lost_ = written + 3;
    known_ = PyDict_New();
    if (!known_) throw nb::python_error();
    PyObject *text = PyUnicode_FromString("[memory]");
    if (text) memory_name = name(text);
    Py_XDECREF(text);
}

void Ring::get_ready() {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto take = [page](void *start, uint64_t bytes) { // where it cannot be had now, it is had when it is written
        const uintptr_t at = reinterpret_cast<uintptr_t>(start) / page * page;
        madvise(reinterpret_cast<void *>(at), std::min<uint64_t>(bytes, READY_BYTES), MADV_POPULATE_WRITE);
    };
    take(records_, count_ * sizeof(Record));
    if (shapes) take(args_, room_);
}

Ring::~Ring() { Py_XDECREF(known_); }

inline uint32_t Ring::thread() { return this_thread.epoch == epoch ? this_thread.number : name_thread(); }

void Ring::fill(Record &record, const Open &span, int64_t end, int64_t value) {
    record.mark.store(0, std::memory_order_relaxed); // readers leave it out until it is whole
    std::atomic_thread_fence(std::memory_order_release);
    record.start = span.start, record.end = end, record.link = span.link, record.value = value;
    record.args_at = span.args.at, record.args_bytes = span.args.length;
    record.name = span.name, record.thread = span.thread;
    record.kind = span.kind, record.flags = span.flags;
    record.mark.store(span.number + 1, std::memory_order_release);
}

inline Open Ring::open_by(uint32_t by, int64_t start, uint32_t name, uint8_t kind, int64_t link, Args args, uint8_t flags) {
    Open span;
    span.thread = by;
    span.number = written_->fetch_add(1, std::memory_order_relaxed);
    span.name = name, span.kind = kind, span.link = link, span.args = args, span.flags = flags;
    span.start = start;
    fill(at(span.number), span, 0, 0);
    return span;
}

Open Ring::open(uint32_t name, uint8_t kind, int64_t link, Args args, uint8_t flags) {
    const uint32_t by = thread(); // the first time it takes a while
    return open_by(by, now(), name, kind, link, args, flags);
}

Open Ring::open_at(int64_t start, uint32_t name, uint8_t kind, int64_t link, Args args, uint8_t flags) {
    return open_by(thread(), start, name, kind, link, args, flags);
}

void Ring::close(const Open &span, int64_t end) {
    Record &record = at(span.number);
    if (record.mark.load(std::memory_order_relaxed) == span.number + 1) {
        record.link = span.link;
        if (span.args.length) record.args_at = span.args.at, record.args_bytes = span.args.length;
        record.end = end;
        return;
    }
    write(span, end, 0); // others took its place; its thread stays the one that opened it
}

void Ring::put(uint32_t name, uint8_t kind, int64_t start, int64_t end, int64_t link, int64_t value, Args args,
               uint8_t flags) {
    Open span;
    span.thread = thread();
    span.name = name, span.kind = kind, span.link = link, span.args = args, span.flags = flags, span.start = start;
    write(span, end, value);
}

void Ring::write(Open span, int64_t end, int64_t value) {
    span.number = written_->fetch_add(1, std::memory_order_relaxed);
    fill(at(span.number), span, end, value);
}

Args Ring::append(const void *bytes, size_t length) {
    if (!length || length > room_ / 2) return {};
    uint64_t before = args_written_->load(std::memory_order_relaxed), place;
    do {
        const uint64_t left = room_ - before % room_; // in one piece
        place = length <= left ? before : before + left;
    } while (!args_written_->compare_exchange_weak(before, place + length, std::memory_order_relaxed));
    std::memcpy(args_ + place % room_, bytes, length);
    return {place, static_cast<uint32_t>(length)};
}

Args Ring::append_once(const void *bytes, size_t length) {
    if (!length) return {};
    uint64_t hash = length, word;
    const char *from = static_cast<const char *>(bytes);
    for (size_t i = 0; i + 8 <= length; i += 8) {
        std::memcpy(&word, from + i, 8);
        hash = (hash << 23 | hash >> 41) ^ word;
    }
    if (length >= 8) std::memcpy(&word, from + length - 8, 8), hash = (hash << 23 | hash >> 41) ^ word;
    hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15u;
    if (known_args_.empty()) known_args_.resize(KNOWN_ARGS);
    Args &known = known_args_[(hash >> 40) % KNOWN_ARGS];
    // a quarter of the ring later it is written anew, so that the records that name it go before it does
    if (known.length == length && args_written_->load(std::memory_order_relaxed) - known.at < room_ / 4 &&
        std::memcmp(args_ + known.at % room_, bytes, length) == 0)
        return known;
    return known = append(bytes, length);
}

uint32_t Ring::add_name(const char *text, size_t length) {
    const uint64_t at = names_written_->load(std::memory_order_relaxed);
    if (at + 4 + length > name_room_) {
        names_lost_->fetch_add(1, std::memory_order_relaxed);
        return 0;
    }
    const auto size = static_cast<uint32_t>(length);
    std::memcpy(names_ + at, &size, 4);
    std::memcpy(names_ + at + 4, text, length);
    names_written_->store(at + 4 + length, std::memory_order_release);
    return static_cast<uint32_t>(at + 1);
}

uint32_t Ring::name(PyObject *text) {
    PyObject *found = PyDict_GetItemWithError(known_, text);
    if (found) return static_cast<uint32_t>(PyLong_AsUnsignedLong(found));
    PyErr_Clear();
    PyObject *bytes = PyUnicode_Check(text) ? PyUnicode_AsEncodedString(text, "utf-8", "replace") : nullptr;
    if (!bytes) {
        PyErr_Clear();
        return 0;
    }
    const uint32_t number = add_name(PyBytes_AS_STRING(bytes), static_cast<size_t>(PyBytes_GET_SIZE(bytes)));
    Py_DECREF(bytes);
    PyObject *value = number ? PyLong_FromUnsignedLong(number) : nullptr;
    if (value && PyDict_SetItem(known_, text, value) != 0) PyErr_Clear();
    Py_XDECREF(value);
    return number;
}

uint32_t Ring::name_thread() {
    if (!this_thread.number) this_thread.number = static_cast<uint32_t>(syscall(SYS_gettid));
    if (!PyGILState_Check()) return this_thread.number;
    this_thread.epoch = epoch;
    PyObject *type, *error, *trace; // an operation's error may be on its way
    PyErr_Fetch(&type, &error, &trace);
    PyObject *threading = PyImport_ImportModule("threading");
    PyObject *current = threading ? PyObject_CallMethod(threading, "current_thread", nullptr) : nullptr;
    PyObject *name = current ? PyObject_GetAttrString(current, "name") : nullptr;
    if (const char *text = name ? PyUnicode_AsUTF8(name) : nullptr) {
        const std::string line = std::string(1, '\0') + std::to_string(this_thread.number) + " " + text;
        add_name(line.data(), line.size());
    }
    Py_XDECREF(name);
    Py_XDECREF(current);
    Py_XDECREF(threading);
    PyErr_Restore(type, error, trace);
    return this_thread.number;
}

namespace {

// `trace.SpanRecorder`, whose spans go into the ring; holds the buffer.
class Recorder {
  public:
    Recorder(nb::object buffer, bool record_shapes, bool with_stack, bool profile_memory, bool with_modules)
        : with_stack_(with_stack) {
        if (PyObject_GetBuffer(buffer.ptr(), &view_, PyBUF_WRITABLE) != 0) throw nb::python_error();
        held_ = true;
        if (view_.len < static_cast<Py_ssize_t>(HEAD_BYTES)) throw nb::value_error("trace buffer: too small");
        ring_ = std::make_unique<Ring>(static_cast<char *>(view_.buf), static_cast<size_t>(view_.len), record_shapes,
                                       profile_memory, with_modules);
        ring_->get_ready();
        dumps_ = nb::module_::import_("json").attr("dumps");
        text_ = nb::module_::import_("builtins").attr("str");
    }
    ~Recorder() {
        if (active.load() == ring_.get()) active.store(nullptr);
        if (held_) PyBuffer_Release(&view_);
    }
    Recorder(const Recorder &) = delete;

    uint64_t begin(nb::handle name, nb::handle kind, int64_t link, nb::handle args) {
        const Open span = ring_->open(ring_->name(name.ptr()), number(kind), link, arguments(args));
        size_t place = open_.size();
        if (!free_.empty())
            place = free_.back(), free_.pop_back(), open_[place] = span;
        else if (place < MOST_PLACES)
            open_.push_back(span);
        else
            return NO_TOKEN; // a million that nobody closes: it stays open
        return span.number * MOST_PLACES + place;
    }

    void end(uint64_t token, nb::handle args) {
        const int64_t when = now();
        const size_t place = token % MOST_PLACES;
        if (place >= open_.size() || open_[place].number != token / MOST_PLACES) return;
        Open span = open_[place];
        open_[place].number = CLOSED, free_.push_back(place);
        if (!args.is_none()) span.args = arguments(args);
        ring_->close(span, when);
    }

    void complete(nb::handle name, nb::handle kind, int64_t start, int64_t end, int64_t link, nb::handle args) {
        ring_->put(ring_->name(name.ptr()), number(kind), start, end, link, 0, arguments(args), 0);
    }

    void instant(nb::handle name, nb::handle kind, int64_t link, int64_t value, nb::handle args) {
        const int64_t when = now();
        ring_->put(ring_->name(name.ptr()), number(kind), when, when, link, value, arguments(args), INSTANT);
    }

    Ring *ring() { return ring_.get(); }
    nb::object buffer() const { return nb::borrow(view_.obj); }
    bool with_stack() const { return with_stack_; }

  private:
    static constexpr uint64_t MOST_PLACES = 1 << 20, CLOSED = ~uint64_t{0}, NO_TOKEN = CLOSED >> 1;

    // Of an enum, too, which the caster for numbers takes only when it has tried all else.
    static uint8_t number(nb::handle kind) {
        const long found = PyLong_AsLong(kind.ptr());
        if (found == -1 && PyErr_Occurred()) throw nb::python_error();
        return static_cast<uint8_t>(found);
    }

    Args arguments(nb::handle args) {
        if (args.is_none() || !PyObject_IsTrue(args.ptr())) return {};
        recording = true;
        Args kept;
        try {
            nb::object text = dumps_(args, nb::arg("default") = text_);
            Py_ssize_t length = 0;
            if (const char *bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &length))
                kept = ring_->append(bytes, static_cast<size_t>(length));
            else
                PyErr_Clear();
        } catch (nb::python_error &) { // what JSON cannot say is left out: who records does not raise
        }
        recording = false;
        return kept;
    }

    Py_buffer view_{};
    bool held_ = false, with_stack_;
    std::unique_ptr<Ring> ring_;
    std::vector<Open> open_; // those of Python, guarded by its lock; a token says where, and which
    std::vector<size_t> free_;
    nb::object dumps_, text_;
};

struct Hash {
    size_t operator()(const std::pair<PyObject *, uint64_t> &key) const {
        return std::hash<PyObject *>()(key.first) * 31 + key.second;
    }
};
// The names of the nodes of ops, by what they lack. Ops are few, and stay; so do the names. Guarded by Python's lock.
std::unordered_map<std::pair<PyObject *, uint64_t>, PyObject *, Hash> names_of_nodes;
constexpr size_t MOST_NAMES_OF_NODES = 10000; // where a program makes ops without an end: their nodes are asked each time

PyObject *name_of_nodes(PyObject *op, uint64_t lacks) {
    const auto found = names_of_nodes.find({op, lacks});
    return found == names_of_nodes.end() ? nullptr : found->second;
}

void know_nodes(PyObject *op, uint64_t lacks, nb::object name) {
    if (names_of_nodes.size() >= MOST_NAMES_OF_NODES) return;
    if (names_of_nodes.emplace(std::pair{op, lacks}, name.ptr()).second) Py_INCREF(op), name.release();
}

// Backward as spans, one after the other: of nodes, and of leaves that take their gradients. What tracing.NodeSpans does.
class NodeSpans {
  public:
    // name_of: gives the name of a node, and whether the op has the same for all nodes that lack the same edges, and
    // the first parameter or not.
    NodeSpans(nb::object recorder, nb::object name_of, nb::object leaf)
        : recorder_(recorder), name_of_(name_of), leaf_(leaf), kept_(nb::cast<Recorder &>(recorder)) {}

    void next(nb::handle node) {
        const int64_t when = now();
        end_at(when);
        PyObject *number = Py_TYPE(node.ptr()) == classes.node ? slot(node.ptr(), classes.seq) : nullptr;
        nb::object asked;
        if (!number) asked = node.attr("seq"), number = asked.ptr();
        const int64_t link = PyLong_AsLongLong(number);
        if (link == -1 && PyErr_Occurred()) throw nb::python_error();
        span_ = kept_.ring()->open_at(when, name(node), BACKWARD, link);
        open_ = true;
    }

    void leaf() {
        const int64_t when = now();
        end_at(when);
        span_ = kept_.ring()->open_at(when, kept_.ring()->name(leaf_.ptr()), BACKWARD);
        open_ = true;
    }

    void end() {
        if (open_) end_at(now());
    }

  private:
    void end_at(int64_t when) {
        if (open_) kept_.ring()->close(span_, when);
        open_ = false;
    }

    uint32_t name(nb::handle node) {
        PyObject *op = Py_TYPE(node.ptr()) == classes.node ? slot(node.ptr(), classes.op) : nullptr;
        uint64_t lacks = 1;
        if (op) {
            PyObject *edges = slot(node.ptr(), classes.edges), *params = slot(node.ptr(), classes.params);
            if (edges && PyTuple_Check(edges) && PyTuple_GET_SIZE(edges) < 60)
                for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(edges); i++)
                    lacks = lacks << 1 | (PyTuple_GET_ITEM(edges, i) == Py_None);
            else
                op = nullptr;
            if (params && PyTuple_Check(params) && PyTuple_GET_SIZE(params))
                lacks = lacks << 2 | 2 | (PyTuple_GET_ITEM(params, 0) == Py_None);
            else
                lacks <<= 2;
        }
        if (op)
            if (PyObject *known = name_of_nodes(op, lacks)) return kept_.ring()->name(known);
        recording = true;
        nb::object told;
        try {
            told = name_of_(node);
        } catch (...) {
            recording = false;
            throw;
        }
        recording = false;
        nb::object text = told[0];
        if (op && nb::cast<bool>(told[1])) know_nodes(op, lacks, text);
        return kept_.ring()->name(text.ptr());
    }

    nb::object recorder_, name_of_, leaf_;
    Recorder &kept_; // recorder_
    Open span_;
    bool open_ = false;
};

// Let `recorder` hear of operations from now on: a Recorder, or another object with its methods; None: nobody does.
void record_operations(nb::object recorder) {
    Recorder *native = nullptr;
    const bool ours = !recorder.is_none() && nb::try_cast<Recorder *>(recorder, native) && native;
    stop_python_calls();
    active.store(nullptr);
    Py_XSETREF(listener, recorder.is_none() ? nullptr : Py_NewRef(recorder.ptr())); // keeps a ring alive, too
    if (!ours) return;
    active.store(native->ring());
    if (native->with_stack()) start_python_calls(native->ring());
}

} // namespace
} // namespace resilin::tracing

namespace resilin {

void bind_tracing(nb::module_ &m) {
    using tracing::Recorder;
    nb::class_<Recorder>(m, "Recorder", "Spans into a ring of `_base.trace_ring`: a `trace.SpanRecorder`.")
        .def(nb::init<nb::object, bool, bool, bool, bool>(), nb::arg("buffer"), nb::arg("record_shapes") = false,
             nb::arg("with_stack") = false, nb::arg("profile_memory") = false, nb::arg("with_modules") = false)
        .def_prop_ro("buffer", &Recorder::buffer)
        .def_prop_ro("record_shapes", [](Recorder &self) { return self.ring()->shapes; })
        .def("begin", &Recorder::begin, nb::arg("name"), nb::arg("kind"), nb::arg("link") = -1,
             nb::arg("args") = nb::none())
        .def("end", &Recorder::end, nb::arg("token"), nb::arg("args") = nb::none())
        .def("complete", &Recorder::complete, nb::arg("name"), nb::arg("kind"), nb::arg("start_ns"), nb::arg("end_ns"),
             nb::arg("link") = -1, nb::arg("args") = nb::none())
        .def("instant", &Recorder::instant, nb::arg("name"), nb::arg("kind"), nb::arg("link") = -1,
             nb::arg("value") = 0, nb::arg("args") = nb::none());
    using tracing::NodeSpans;
    nb::class_<NodeSpans>(m, "NodeSpans", "Backward as spans of a Recorder: see core/autograd/tracing.py.")
        .def(nb::init<nb::object, nb::object, nb::object>(), nb::arg("recorder"), nb::arg("name_of"), nb::arg("leaf"))
        .def("next", &NodeSpans::next)
        .def("leaf", &NodeSpans::leaf)
        .def("end", &NodeSpans::end);
    m.def("record_operations", &tracing::record_operations, nb::arg("recorder").none());
    m.def("trace_this_thread", &tracing::trace_this_thread);
}

} // namespace resilin
