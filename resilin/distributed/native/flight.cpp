#include "flight.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>

namespace nb = nanobind;

namespace resilin::dist {
namespace {

enum State : uint8_t { EMPTY, QUEUED, RUNNING, DONE, FAILED };
constexpr size_t MAX_LINES = 4096; // places remembered; a program that makes its functions anew would fill memory

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// What was stored before is in the file before what is stored after: the process may die, or a reader look, in between.
void in_order() { std::atomic_thread_fence(std::memory_order_release); }

template <typename T> void store(T &to, T value) {
    in_order();
    reinterpret_cast<volatile T &>(to) = value;
}

// The rest of `field` is zero already, or becomes so.
template <size_t N> void put(char (&field)[N], const char *text, size_t size) {
    const size_t kept = std::min(size, N);
    std::memcpy(field, text, kept);
    std::memset(field + kept, 0, N - kept);
}

// The library's UsageError, as flight_record.py raises it.
nb::python_error refused(const std::string &amiss) {
    const nb::object error = nb::module_::import_("resilin.errors").attr("UsageError");
    PyErr_SetString(error.ptr(), ("flight recorder: " + amiss + "; a reader would leave out the record").c_str());
    return nb::python_error();
}

nb::object made_by_python(PyObject *object) {
    if (!object) throw nb::python_error();
    return nb::steal(object);
}

} // namespace

Flight::Flight(nb::handle map, std::string inside, std::vector<std::string> kinds, std::vector<std::string> ops, nb::dict dtypes)
    : inside_(std::move(inside)), kinds_(std::move(kinds)), ops_(std::move(ops)), dtypes_(std::move(dtypes)) {
    if (PyObject_GetBuffer(map.ptr(), &map_, PyBUF_WRITABLE) != 0) throw nb::python_error();
    const auto size = static_cast<size_t>(map_.len);
    if (size < FLIGHT_HEADER_BYTES + sizeof(Record)) {
        PyBuffer_Release(&map_);
        throw nb::value_error("the file has no room for a record");
    }
    capacity_ = (size - FLIGHT_HEADER_BYTES) / sizeof(Record);
    records_ = reinterpret_cast<Record *>(static_cast<char *>(map_.buf) + FLIGHT_HEADER_BYTES);
}

Flight::~Flight() {
    forget_lines();
    PyBuffer_Release(&map_);
}

uint64_t Flight::begin(const Record &fresh, int64_t tag) {
    if (stopped_) return 0;
    const Caller called = caller();
    const uint64_t number = ++number_;
    Record &record = records_[(number - 1) % capacity_];
    store(record.number, uint64_t{0});
    in_order();
    std::memcpy(reinterpret_cast<char *>(&record) + sizeof record.number, reinterpret_cast<const char *>(&fresh) + sizeof fresh.number,
                offsetof(Record, line) - sizeof record.number);
    std::memcpy(record.line, called.from->text, sizeof record.line);
    record.tag = tag;
    record.shards = 0;
    std::memcpy(record.by, called.by, sizeof record.by);
    record.made = now();
    store(record.number, number);
    return number;
}

Record *Flight::held(uint64_t number) {
    if (stopped_ || number == 0 || number_ - number >= capacity_) return nullptr;
    return &records_[(number - 1) % capacity_];
}

void Flight::start(uint64_t number, int64_t sequence) {
    Record *record = held(number);
    if (!record) return;
    if (sequence < -1) throw refused("call number " + std::to_string(sequence) + ": expected 0 or more, or -1 for none");
    record->sequence = sequence;
    record->started = now();
    store(record->state, static_cast<uint8_t>(RUNNING));
}

void Flight::describe(uint64_t number, nb::handle dtype, nb::handle shape, nb::handle op, int root, int shards) {
    Record *record = held(number);
    if (!record) return;
    PyObject *name = dtype.is_none() ? nullptr : PyDict_GetItemWithError(dtypes_.ptr(), dtype.ptr());
    if ((!name && !dtype.is_none()) || !PyTuple_Check(shape.ptr())) throw nb::type_error("expected a dtype of dist, or None, and a tuple");
    const auto dims = std::min<Py_ssize_t>(PyTuple_GET_SIZE(shape.ptr()), 8);
    if (root < -1 || root >= record->size)
        throw refused("root " + std::to_string(root) + " in a group of " + std::to_string(record->size) + ": expected 0 to " +
                      std::to_string(record->size - 1) + ", or -1 for none");
    if (shards < 0) throw refused(std::to_string(shards) + " shards: expected 0 or more");
    int64_t extents[8];
    for (Py_ssize_t i = 0; i < dims; i++) {
        extents[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.ptr(), i));
        if (extents[i] == -1 && PyErr_Occurred()) throw nb::python_error();
        if (extents[i] < -1)
            throw refused("shape " + nb::cast<std::string>(nb::repr(shape)) + ": expected extents of 0 or more, or -1 for any");
    }
    if (record->described && (record->dtype[0] || !name)) return;
    std::memcpy(record->shape, extents, static_cast<size_t>(dims) * sizeof extents[0]);
    record->root = root;
    record->shards = shards;
    if (name) put(record->dtype, PyBytes_AS_STRING(name), static_cast<size_t>(PyBytes_GET_SIZE(name)));
    if (!op.is_none()) {
        const std::string &said = ops_.at(nb::cast<size_t>(op));
        put(record->op, said.data(), said.size());
    }
    store(record->described, static_cast<uint8_t>(1 + dims));
}

void Flight::end(uint64_t number, bool failed) {
    Record *record = held(number);
    if (!record) return;
    record->ended = now();
    store(record->state, static_cast<uint8_t>(failed ? FAILED : DONE));
}

// The nearest frame outside the library, or the outermost, and the function of the library that it called.
Flight::Caller Flight::caller() {
    static const Line nowhere{};
    Caller found{&nowhere, {}};
    nb::object frame = nb::borrow(reinterpret_cast<PyObject *>(PyEval_GetFrame()));
    if (!frame) return found;
    for (;;) {
        auto *at = reinterpret_cast<PyFrameObject *>(frame.ptr());
        PyCodeObject *code = PyFrame_GetCode(at);
        Py_DECREF(code); // the frame holds it
        const Line &here = line(at, code);
        nb::object outer = nb::steal(here.inside ? reinterpret_cast<PyObject *>(PyFrame_GetBack(at)) : nullptr);
        if (!outer) {
            found.from = &here;
            return found;
        }
        std::memcpy(found.by, here.name, sizeof found.by); // `here` itself may be forgotten when the next line is added
        frame = std::move(outer);
    }
}

const Flight::Line &Flight::line(PyFrameObject *frame, PyCodeObject *code) {
    const Where where{code, PyFrame_GetLasti(frame)};
    const auto found = lines_.find(where);
    if (found != lines_.end()) return found->second;
    if (lines_.size() >= MAX_LINES) forget_lines();
    Line made{};
    const nb::object file = made_by_python(PyObject_GetAttrString(reinterpret_cast<PyObject *>(code), "co_filename"));
    const nb::object name = made_by_python(PyObject_GetAttrString(reinterpret_cast<PyObject *>(code), "co_qualname"));
    const nb::object text = made_by_python(PyUnicode_FromFormat("%U:%d %U", file.ptr(), PyFrame_GetLineNumber(frame), name.ptr()));
    const nb::object bytes = made_by_python(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "replace"));
    const char *at = PyBytes_AS_STRING(bytes.ptr());
    const auto size = static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr()));
    made.inside = size >= inside_.size() && std::memcmp(at, inside_.data(), inside_.size()) == 0;
    const size_t skipped = size - std::min(size, sizeof made.text); // the end says more than the beginning
    put(made.text, at + skipped, size - skipped);
    const nb::object called = made_by_python(PyUnicode_AsEncodedString(name.ptr(), "utf-8", "replace"));
    put(made.name, PyBytes_AS_STRING(called.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(called.ptr())));
    Py_INCREF(code);
    return lines_.emplace(where, made).first->second;
}

void Flight::forget_lines() {
    for (const auto &[where, line] : lines_) Py_DECREF(where.code);
    lines_.clear();
}

FlightLog::FlightLog(nb::object owner, nb::bytes group, uint64_t key, int64_t generation, int rank, int size)
    : owner_(std::move(owner)), flight_(nb::cast<Flight *>(owner_)) {
    fresh_.state = QUEUED;
    fresh_.rank = rank;
    fresh_.size = size;
    fresh_.root = -1;
    fresh_.generation = generation;
    fresh_.sequence = -1;
    fresh_.key = key;
    put(fresh_.group, group.c_str(), group.size());
}

FlightEntry FlightLog::collective(int kind) {
    const std::string &what = flight_->kind(kind);
    put(fresh_.what, what.data(), what.size());
    return {owner_, flight_, flight_->begin(fresh_)};
}

FlightEntry FlightLog::mark(nb::bytes what) {
    put(fresh_.what, what.c_str(), what.size());
    return {owner_, flight_, flight_->begin(fresh_)};
}

FlightEntry FlightLog::message(nb::bytes what, nb::handle array, int peer, int64_t tag) {
    put(fresh_.what, what.c_str(), what.size());
    const FlightEntry entry{owner_, flight_, flight_->begin(fresh_, tag)};
    flight_->describe(entry.number, array.attr("dtype"), array.attr("shape"), nb::none(), peer, 0);
    flight_->start(entry.number, -1);
    return entry;
}

void bind_flight(nb::module_ &m) {
    nb::class_<Flight>(m, "Flight")
        .def(nb::init<nb::handle, std::string, std::vector<std::string>, std::vector<std::string>, nb::dict>(), nb::arg("map"),
             nb::arg("inside"), nb::arg("kinds"), nb::arg("ops"), nb::arg("dtypes"))
        .def("stop", &Flight::stop);
    nb::class_<FlightEntry>(m, "FlightEntry")
        .def("start", [](FlightEntry &e, int64_t sequence) { e.flight->start(e.number, sequence); }, nb::arg("sequence") = -1)
        .def("describe", [](FlightEntry &e, nb::handle dtype, nb::handle shape, nb::handle op, int root, int shards) {
            e.flight->describe(e.number, dtype, shape, op, root, shards);
        }, nb::arg("dtype").none(), nb::arg("shape"), nb::arg("op").none(), nb::arg("root"), nb::arg("shards") = 0)
        .def("end", [](FlightEntry &e, bool failed) { e.flight->end(e.number, failed); }, nb::arg("failed"));
    nb::class_<FlightLog>(m, "FlightLog")
        .def(nb::init<nb::object, nb::bytes, uint64_t, int64_t, int, int>(), nb::arg("flight"), nb::arg("group"),
             nb::arg("key"), nb::arg("generation"), nb::arg("rank"), nb::arg("size"))
        .def("collective", &FlightLog::collective, nb::arg("kind"))
        .def("mark", &FlightLog::mark, nb::arg("what"))
        .def("message", &FlightLog::message, nb::arg("what"), nb::arg("array"), nb::arg("peer"), nb::arg("tag") = 0);
}

} // namespace resilin::dist
