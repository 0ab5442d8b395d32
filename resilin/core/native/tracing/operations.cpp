#include "operations.hpp"

#include "binding/tensors.hpp"

#include <algorithm>
#include <cstring>

namespace resilin::tracing {
namespace {

// The short form of operands, see trace_ring.operands_of. What does not fit is left out.
class Operands {
  public:
    void add(PyObject *value, bool nested = false) {
        if (Py_TYPE(value) == classes.tensor || Py_TYPE(value) == classes.parameter) // most are
            return array(slot(value, classes.array));
        if (value == Py_None) return letter('n');
        if (PyBool_Check(value)) return number('b', uint8_t{value == Py_True});
        if (PyLong_Check(value)) {
            int overflow = 0;
            const long long whole = PyLong_AsLongLongAndOverflow(value, &overflow);
            return overflow ? letter('o') : number('i', int64_t{whole});
        }
        if (PyFloat_Check(value)) return number('f', PyFloat_AS_DOUBLE(value));
        if (PyUnicode_Check(value)) return text(value);
        if (PyObject_TypeCheck(value, classes.tensor)) return array(slot(value, classes.array));
        if (PyArray_Check(value)) return array(value); // indices, targets and masks are given as they are
        if (!nested && (PyTuple_Check(value) || PyList_Check(value))) return list(value);
        letter('o');
    }
    const char *data() const { return bytes_; }
    size_t size() const { return used_; }

  private:
    bool room(size_t size) const { return used_ + size <= sizeof bytes_; }
    void letter(char c) {
        if (room(1)) bytes_[used_++] = c;
    }
    template <class T> void number(char c, T value) {
        if (!room(1 + sizeof value)) return;
        bytes_[used_++] = c;
        std::memcpy(bytes_ + used_, &value, sizeof value);
        used_ += sizeof value;
    }
    void text(PyObject *value) {
        Py_ssize_t length = 0;
        const char *found = PyUnicode_AsUTF8AndSize(value, &length);
        if (!found) PyErr_Clear();
        if (!found || length > 255 || !room(2 + static_cast<size_t>(length))) return letter('o');
        bytes_[used_++] = 's';
        bytes_[used_++] = static_cast<char>(length);
        std::memcpy(bytes_ + used_, found, static_cast<size_t>(length));
        used_ += static_cast<size_t>(length);
    }
    void list(PyObject *value) {
        const Py_ssize_t count = std::min<Py_ssize_t>(PySequence_Fast_GET_SIZE(value), 64);
        if (!room(2 + static_cast<size_t>(count))) return letter('o');
        bytes_[used_++] = 'l';
        const size_t counted = used_++;
        Py_ssize_t i = 0;
        for (; i < count && room(4); i++) add(PySequence_Fast_ITEMS(value)[i], true);
        bytes_[counted] = static_cast<char>(i);
    }
    void array(PyObject *value) {
        if (!value || !PyArray_Check(value)) return letter('o'); // of another library: its shape is not asked for
        auto *x = reinterpret_cast<PyArrayObject *>(value);
        const int dims = PyArray_NDIM(x), item = static_cast<int>(std::max<npy_intp>(PyArray_ITEMSIZE(x), 1));
        if (!room(4 + 16 * static_cast<size_t>(dims))) return letter('o');
        bytes_[used_++] = 't';
        bytes_[used_++] = PyArray_DESCR(x)->kind;
        bytes_[used_++] = static_cast<char>(item);
        bytes_[used_++] = static_cast<char>(dims);
        put(PyArray_DIMS(x), dims, 1);
        put(PyArray_STRIDES(x), dims, item);
    }
    void put(const npy_intp *values, int count, int by) {
        const bool shifts = (by & (by - 1)) == 0; // a division takes longer than all else here
        const int places = __builtin_ctz(static_cast<unsigned>(by));
        for (int i = 0; i < count; i++) {
            const int64_t value = shifts && (values[i] & (by - 1)) == 0 ? values[i] >> places : values[i] / by;
            std::memcpy(bytes_ + used_, &value, sizeof value);
            used_ += sizeof value;
        }
    }

    char bytes_[2048];
    size_t used_ = 0;
};

// The sequence number of the node that made `result`; -1 when there is none.
int64_t sequence_of(PyObject *result) {
    if (!result || (Py_TYPE(result) != classes.tensor && Py_TYPE(result) != classes.parameter)) return -1;
    PyObject *node = slot(result, classes.tensor_node);
    if (!node || node == Py_None || Py_TYPE(node) != classes.node) return -1;
    PyObject *number = slot(node, classes.seq);
    const long long found = number ? PyLong_AsLongLong(number) : -1;
    if (found == -1 && PyErr_Occurred()) PyErr_Clear();
    return found;
}

} // namespace

OperationSpan::OperationSpan(KnownName &known, PyObject *name, PyObject *const *args, Py_ssize_t given)
    : ring_(active.load(std::memory_order_relaxed)) {
    if (!ring_) {
        listener_ = Py_XNewRef(listener);
        token_ = listener_ ? PyObject_CallMethod(listener_, "begin", "Oi", name, static_cast<int>(OP)) : nullptr;
        if (!token_) PyErr_Clear();
        return;
    }
    epoch_ = ring_->epoch;
    if (known.epoch != epoch_) known.epoch = ring_->epoch, known.number = ring_->name(name);
    Args kept;
    if (ring_->shapes) {
        Operands operands;
        for (Py_ssize_t i = 0; i < given; i++) operands.add(args[i]);
        kept = ring_->append_once(operands.data(), operands.size());
    }
    span_ = ring_->open(known.number, OP, -1, kept, kept.length ? OPERANDS : uint8_t{0});
}

void OperationSpan::finish(PyObject *result) {
    if (!ring_) {
        if (token_) {
            PyObject *type, *error, *trace;
            PyErr_Fetch(&type, &error, &trace);
            PyObject *done = PyObject_CallMethod(listener_, "end", "O", token_);
            if (!done) PyErr_Clear();
            Py_XDECREF(done);
            PyErr_Restore(type, error, trace);
        }
        Py_XDECREF(token_);
        Py_XDECREF(listener_);
        return;
    }
    const int64_t end = now();
    const Ring *running = active.load(std::memory_order_relaxed);
    if (running != ring_ || running->epoch != epoch_) return; // recording ended meanwhile: the ring may be gone
    span_.link = sequence_of(result);
    ring_->close(span_, end);
}

} // namespace resilin::tracing
