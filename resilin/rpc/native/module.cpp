// The native module of resilin.rpc: messages through memory that processes of one host share.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include <cmath>
#include <cstring>
#include <vector>

#include <sys/syscall.h>
#include <unistd.h>

#include "gil.hpp"
#include "inbox.hpp"
#include "link.hpp"

namespace nb = nanobind;
using namespace resilin;
using namespace resilin::rpc;

void resilin::rpc::check_signals() {
    if (syscall(SYS_gettid) != getpid()) return; // handlers run in the main thread: others need not ask for Python's lock
    const WithGil gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

namespace {

constexpr size_t COPIED_BYTES = 16 << 10; // parts up to this are copied: longer ones are views of the message

PyObject *message_class = nullptr, *source_name = nullptr, *parts_name = nullptr; // guarded by the GIL; outlive the module

// A long message, for Python: its parts are views of it.
struct Whole {
    Arrived message;
};

int view_of_whole(PyObject *self, Py_buffer *view, int flags) {
    const Arrived &message = nb::inst_ptr<Whole>(self)->message;
    return PyBuffer_FillInfo(view, self, message.bytes.get(), static_cast<Py_ssize_t>(message.size), 0, flags);
}

PyType_Slot whole_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(view_of_whole)}, {0, nullptr}};

nb::object checked(PyObject *made) {
    if (!made) throw nb::python_error();
    return nb::steal(made);
}

nb::object parts_of(Arrived &arrived) {
    nb::object parts = checked(PyTuple_New(arrived.parts)), view;
    const char *bytes = arrived.bytes.get();
    size_t at = arrived.parts * sizeof(uint64_t);
    if (arrived.size > COPIED_BYTES) {
        const nb::object whole = nb::cast(Whole{std::move(arrived)}, nb::rv_policy::move);
        view = checked(PyMemoryView_FromObject(whole.ptr()));
    }
    for (Py_ssize_t part = 0; part < PyTuple_GET_SIZE(parts.ptr()); part++) {
        uint64_t size;
        std::memcpy(&size, bytes + static_cast<size_t>(part) * sizeof size, sizeof size);
        nb::object made = view.is_valid() && size > COPIED_BYTES
                              ? checked(PySequence_GetSlice(view.ptr(), static_cast<Py_ssize_t>(at), static_cast<Py_ssize_t>(at + size)))
                              : checked(PyBytes_FromStringAndSize(bytes + at, static_cast<Py_ssize_t>(size)));
        PyTuple_SET_ITEM(parts.ptr(), part, made.release().ptr());
        at += size;
    }
    return parts;
}

// A frozen dataclass with slots, made without its __init__, which costs as much as the rest of a message.
nb::object message_of(Arrived &arrived) {
    auto *type = reinterpret_cast<PyTypeObject *>(message_class);
    const nb::object source = checked(PyLong_FromLong(arrived.source)), parts = parts_of(arrived);
    nb::object message = checked(type->tp_alloc(type, 0));
    if (PyObject_GenericSetAttr(message.ptr(), source_name, source.ptr()) != 0 ||
        PyObject_GenericSetAttr(message.ptr(), parts_name, parts.ptr()) != 0)
        throw nb::python_error();
    return message;
}

nb::object list_of(Batch &batch) {
    nb::object list = checked(PyList_New(static_cast<Py_ssize_t>(batch.size())));
    Py_ssize_t at = 0;
    for (void *object : batch.local) PyList_SET_ITEM(list.ptr(), at++, static_cast<PyObject *>(object)); // its reference, too
    batch.local.clear();
    for (Arrived &arrived : batch.arrived) PyList_SET_ITEM(list.ptr(), at++, message_of(arrived).release().ptr());
    return list;
}

nb::object take(Queue &self, double timeout_s, size_t most) {
    if (most == 0) throw nb::value_error("take: most is at least 1");
    Batch batch;
    if (!self.take_now(batch, most)) {
        const WithoutGil free;
        self.take(batch, most, timeout_s < 0 ? INFINITY : dist::now() + timeout_s);
    }
    return list_of(batch);
}

void put(Queue &self, nb::object message) {
    bool busy = true, calls = false;
    bool kept = self.put(message.ptr(), busy, calls);
    if (busy) { // without the lock: who holds the queue may copy a lot
        const WithoutGil free;
        busy = false;
        kept = self.put(message.ptr(), busy, calls);
    }
    if (kept) message.release();
    if (calls) { // else who wakes would wait for the lock, and have to be woken again
        const WithoutGil free;
        self.wake_one();
    }
}

void close_queue(Queue &self) {
    std::vector<void *> dropped;
    {
        const WithoutGil free;
        dropped = self.close();
    }
    for (void *object : dropped) Py_DECREF(static_cast<PyObject *>(object));
}

// The buffers of a message's parts, held while this lives.
class Parts {
  public:
    explicit Parts(nb::handle parts) : sequence_(checked(PySequence_Fast(parts.ptr(), "the parts of a message are a sequence"))) {
        const Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence_.ptr());
        PyObject **items = PySequence_Fast_ITEMS(sequence_.ptr());
        for (Py_ssize_t i = 0; i < count; i++) {
            if (PyBytes_CheckExact(items[i])) {
                what.add(PyBytes_AS_STRING(items[i]), static_cast<size_t>(PyBytes_GET_SIZE(items[i])));
                continue;
            }
            Py_buffer view;
            if (PyObject_GetBuffer(items[i], &view, PyBUF_SIMPLE) != 0) {
                release();
                throw nb::python_error();
            }
            views_.push_back(view);
            what.add(static_cast<const char *>(view.buf), static_cast<size_t>(view.len));
        }
    }
    ~Parts() { release(); }
    Parts(const Parts &) = delete;
    Parts &operator=(const Parts &) = delete;

    Outgoing what;

  private:
    void release() {
        for (Py_buffer &view : views_) PyBuffer_Release(&view);
        views_.clear();
    }

    nb::object sequence_;
    std::vector<Py_buffer> views_;
};

int send_now(Link &self, nb::handle parts, uint16_t queue) {
    Parts held(parts);
    return static_cast<int>(self.send(held.what, queue));
}

int send_waiting(Link &self, nb::handle parts, uint16_t queue, double left_s) {
    Parts held(parts);
    const WithoutGil free;
    return static_cast<int>(self.send(held.what, queue, left_s < 0 ? INFINITY : dist::now() + left_s));
}

std::shared_ptr<Queue> open_queue(const std::shared_ptr<Inbox> &inbox, uint16_t number) { return std::make_shared<Queue>(inbox, number); }

void set_message_class(nb::object type) {
    PyObject *before = message_class;
    message_class = type.release().ptr();
    Py_XDECREF(before);
}

} // namespace

NB_MODULE(_native, m) {
    source_name = PyUnicode_InternFromString("source");
    parts_name = PyUnicode_InternFromString("parts");
    m.attr("QUEUES") = BELLS;
    m.attr("RING_BYTES") = RING_BYTES;
    m.attr("CHUNK_BYTES") = CHUNK_BYTES;
    m.attr("MAX_PARTS") = MAX_PARTS;
    m.attr("DONE") = static_cast<int>(Sent::DONE);
    m.attr("FULL") = static_cast<int>(Sent::FULL);
    m.attr("OVER") = static_cast<int>(Sent::OVER);
    m.attr("LATE") = static_cast<int>(Sent::LATE);
    m.attr("LONG") = static_cast<int>(Sent::LONG);
    m.def("set_message_class", &set_message_class);
    nb::class_<Whole>(m, "Whole", nb::type_slots(whole_slots));
    nb::class_<Waker>(m, "Waker").def(nb::init<>()).def_prop_ro("fd", &Waker::fd).def("wake", &Waker::wake).def("close", &Waker::close);
    nb::class_<Link>(m, "Link")
        .def(nb::init<int, size_t, std::shared_ptr<Waker>>())
        .def_prop_ro("fd", &Link::fd)
        .def_prop_ro("why", &Link::why)
        .def("release", &Link::release)
        .def("attach", &Link::attach)
        .def("send", &send_now)
        .def("send_waiting", &send_waiting)
        .def("end", &Link::end);
    nb::class_<Queue>(m, "Queue")
        .def("take", &take)
        .def("put", &put)
        .def("wake", &Queue::wake, nb::call_guard<WithoutGil>())
        .def("close", &close_queue)
        .def_prop_ro("closed", &Queue::closed)
        .def_prop_ro("waiting", &Queue::waiting);
    nb::class_<Inbox>(m, "Inbox")
        .def(nb::init<>())
        .def_prop_ro("fd", &Inbox::fd)
        .def("open", &open_queue)
        .def("release", &Inbox::release)
        .def("add", &Inbox::add, nb::call_guard<WithoutGil>())
        .def("remove", &Inbox::remove, nb::call_guard<WithoutGil>())
        .def("finish", &Inbox::finish, nb::call_guard<WithoutGil>())
        .def("sort", &Inbox::sort, nb::call_guard<WithoutGil>())
        .def("sweep", &Inbox::sweep, nb::call_guard<WithoutGil>())
        .def("disturb", &Inbox::disturb, nb::call_guard<WithoutGil>());
}
