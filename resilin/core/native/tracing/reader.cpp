// Spans out of a ring: what `trace_ring.spans_in` does, which says what must come out, in C++.
#include "recorder.hpp"

#include "binding/kernels.hpp"
#include "tracing/plain_json.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <structmember.h>

namespace nb = nanobind;

namespace resilin::tracing {
namespace {

constexpr size_t HEAD_BYTES = 4096, SIZES_AT = 8, WRITTEN_AT = 32;
constexpr int DEEPEST = 100; // lists in lists of operands; recorders write one level
constexpr const char *FIELDS[] = {"number", "name", "kind",  "start_ns", "end_ns",
                                  "thread", "link", "value", "args",     "instant"};
constexpr size_t FIELD_COUNT = std::size(FIELDS);

struct Fields { // of a record, as they lie in the ring
    uint64_t mark;
    int64_t start, end, link, value;
    uint64_t args_at;
    uint32_t name, thread, args_bytes;
    uint8_t kind, flags, unused[2];
};
static_assert(sizeof(Fields) == 64);

template <class T> T at(const char *place) {
    T found;
    std::memcpy(&found, place, sizeof found);
    return found;
}

nb::object checked(PyObject *made) {
    if (!made) throw nb::python_error();
    return nb::steal(made);
}

// Makes objects of a dataclass with slots without a call of its __init__.
template <size_t N> class Slotted {
  public:
    Slotted(nb::handle type, const char *const (&fields)[N]) : type_(reinterpret_cast<PyTypeObject *>(type.ptr())) {
        for (size_t i = 0; i < N; i++) {
            nb::object member = type.attr(fields[i]);
            if (Py_TYPE(member.ptr()) != &PyMemberDescr_Type) throw nb::type_error("trace reader: expected a class with slots");
            offsets_[i] = reinterpret_cast<PyMemberDescrObject *>(member.ptr())->d_member->offset;
        }
    }
    nb::object make(nb::object (&&values)[N]) const {
        nb::object made = checked(type_->tp_alloc(type_, 0));
        for (size_t i = 0; i < N; i++)
            *reinterpret_cast<PyObject **>(reinterpret_cast<char *>(made.ptr()) + offsets_[i]) = values[i].release().ptr();
        return made;
    }

  private:
    PyTypeObject *type_;
    std::array<Py_ssize_t, N> offsets_;
};

// `trace_ring.TensorInput`s.
class TensorInputs {
  public:
    explicit TensorInputs(nb::handle type) : type_(type, FIELDS) {}
    nb::object make(nb::object shape, nb::object strides, char kind, uint8_t item) {
        nb::object &dtype = dtypes_[static_cast<uint8_t>(kind) * 256 + item];
        if (!dtype.is_valid()) {
            const std::string code = kind + std::to_string(item);
            dtype = checked(PyUnicode_DecodeLatin1(code.data(), static_cast<Py_ssize_t>(code.size()), nullptr));
        }
        return type_.make({std::move(shape), std::move(strides), dtype});
    }

  private:
    static constexpr const char *FIELDS[] = {"shape", "strides", "dtype"};
    Slotted<3> type_;
    std::unordered_map<int, nb::object> dtypes_;
};

// The short form of operations' inputs, see `trace_ring.operands_of`. Null: it is none, or was overwritten meanwhile.
class Operands {
  public:
    Operands(const char *text, size_t length, TensorInputs &tensor_inputs)
        : at_(text), end_(text + length), tensor_inputs_(tensor_inputs) {}

    nb::object all() {
        nb::list found;
        while (at_ < end_) {
            nb::object one = next(0);
            if (!one.is_valid()) return {};
            found.append(one);
        }
        return found;
    }

  private:
    bool has(size_t size) const { return static_cast<size_t>(end_ - at_) >= size; }
    template <class T> T take() {
        const T found = at<T>(at_);
        at_ += sizeof(T);
        return found;
    }
    nb::object extents(uint8_t count) {
        nb::object found = checked(PyTuple_New(count));
        for (uint8_t i = 0; i < count; i++)
            PyTuple_SET_ITEM(found.ptr(), i, checked(PyLong_FromLongLong(take<int64_t>())).release().ptr());
        return found;
    }
    nb::object tensor() {
        if (!has(3)) return {};
        const char kind = take<char>();
        const auto item = take<uint8_t>(), dims = take<uint8_t>();
        if (!has(size_t{16} * dims)) return {};
        nb::object shape = extents(dims), strides = extents(dims);
        return tensor_inputs_.make(std::move(shape), std::move(strides), kind, item);
    }
    nb::object list(int depth) {
        if (!has(1) || depth > DEEPEST) return {};
        nb::list found;
        for (uint8_t count = take<uint8_t>(); count; count--) {
            nb::object one = next(depth + 1);
            if (!one.is_valid()) return {};
            found.append(one);
        }
        return found;
    }
    nb::object next(int depth) {
        if (!has(1)) return {};
        switch (take<char>()) {
        case 't': return tensor();
        case 'l': return list(depth);
        case 'i': return has(8) ? checked(PyLong_FromLongLong(take<int64_t>())) : nb::object();
        case 'f': return has(8) ? checked(PyFloat_FromDouble(take<double>())) : nb::object();
        case 'b': return has(1) ? nb::object(nb::bool_(take<uint8_t>() != 0)) : nb::object();
        case 's': {
            if (!has(1)) return {};
            const size_t length = take<uint8_t>(), there = std::min(length, static_cast<size_t>(end_ - at_));
            nb::object text = checked(PyUnicode_DecodeUTF8(at_, static_cast<Py_ssize_t>(there), "replace"));
            at_ += there;
            return text;
        }
        case 'n': return nb::none();
        case 'o': return nb::borrow(Py_Ellipsis);
        default: return {};
        }
    }

    const char *at_, *end_;
    TensorInputs &tensor_inputs_;
};

class Reader {
  public:
    Reader(const char *memory, size_t length, nb::handle tensor_input, nb::handle loads)
        : memory_(memory), tensor_inputs_(tensor_input), loads_(loads) {
        if (length < HEAD_BYTES) throw nb::value_error("trace buffer: too small");
        records_ = at<uint64_t>(memory + SIZES_AT), room_ = at<uint64_t>(memory + SIZES_AT + 8);
        name_room_ = at<uint64_t>(memory + SIZES_AT + 16), written_ = at<uint64_t>(memory + WRITTEN_AT);
        size_t left = length - HEAD_BYTES;
        if (!records_ || !room_ || records_ > left / sizeof(Fields)) fail();
        left -= records_ * sizeof(Fields);
        if (room_ > left || name_room_ > left - room_) fail();
        args_ = memory + HEAD_BYTES + records_ * sizeof(Fields), names_ = args_ + room_;
    }

    // The spans from number `first` on, of one thread (0: all), sorted as the reference sorts them, and how many
    // arguments were lost.
    nb::object spans(uint64_t first, uint32_t thread, nb::handle span_type, const std::array<PyObject *, 256> &kinds) {
        first = std::max(first, written_ > records_ ? written_ - records_ : 0);
        std::vector<Found> found;
        if (first < written_) found.reserve(written_ - first);
        uint64_t lost = 0;
        for (uint64_t number = first; number < written_; number++) {
            const char *place = memory_ + HEAD_BYTES + number % records_ * sizeof(Fields);
            const auto record = at<Fields>(place);
            if (record.mark != number + 1) continue; // being written, or taken over since
            if (thread && record.thread != thread) continue;
            nb::object args = arguments(record, lost);
            std::atomic_thread_fence(std::memory_order_acquire);
            if (at<uint64_t>(place) == record.mark && kinds[record.kind]) found.push_back({record, std::move(args)});
        }
        std::sort(found.begin(), found.end(), [](const Found &a, const Found &b) {
            const auto &one = a.record, &two = b.record;
            if (one.start != two.start) return one.start < two.start;
            if (one.end != two.end) return !one.end || (two.end && one.end > two.end); // open ones, then the longest
            return one.mark < two.mark;
        });
        nb::object made = checked(PyList_New(static_cast<Py_ssize_t>(found.size())));
        const Slotted<FIELD_COUNT> type(span_type, FIELDS);
        for (size_t i = 0; i < found.size(); i++)
            PyList_SET_ITEM(made.ptr(), i, span(found[i], type, kinds).release().ptr());
        return nb::make_tuple(made, lost);
    }

  private:
    struct Found {
        Fields record;
        nb::object args;
    };

    [[noreturn]] static void fail() { throw nb::value_error("trace buffer: its head speaks of more than is there"); }

    nb::object arguments(const Fields &record, uint64_t &lost) {
        if (!record.args_bytes) return nb::none();
        const uint64_t place = record.args_at % room_, length = record.args_bytes;
        if (length > room_ - place) return lost++, nb::none();
        text_.assign(args_ + place, length); // others may write there meanwhile
        std::atomic_thread_fence(std::memory_order_acquire);
        const auto written = at<uint64_t>(memory_ + WRITTEN_AT + 8);
        nb::object found;
        if (written <= record.args_at || written - record.args_at <= room_) found = parsed(record.flags);
        if (!found.is_valid() || found.is_none()) return lost++, nb::none();
        return found;
    }

    nb::object parsed(uint8_t flags) {
        if (flags & OPERANDS) {
            nb::object inputs = Operands(text_.data(), text_.size(), tensor_inputs_).all();
            if (!inputs.is_valid()) return {};
            nb::dict found;
            found["inputs"] = inputs;
            return found;
        }
        nb::object found = plain_.parse(text_);
        if (found.is_valid()) return found;
        try {
            return loads_(nb::bytes(text_.data(), text_.size()));
        } catch (nb::python_error &error) {
            if (error.matches(PyExc_ValueError) || error.matches(PyExc_RecursionError)) return {};
            throw;
        }
    }

    nb::object name(uint32_t number) {
        auto [found, is_new] = known_.try_emplace(number);
        if (is_new) {
            const char *text = "(unnamed)";
            uint64_t length = std::strlen(text), place = uint64_t{number} - 1;
            if (number && place + 4 <= name_room_) {
                length = std::min<uint64_t>(at<uint32_t>(names_ + place), name_room_ - place - 4);
                text = names_ + place + 4;
            }
            found->second = checked(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(length), "replace"));
        }
        return found->second;
    }

    nb::object span(const Found &one, const Slotted<FIELD_COUNT> &type, const std::array<PyObject *, 256> &kinds) {
        const Fields &record = one.record;
        const auto number = [](int64_t value) { return checked(PyLong_FromLongLong(value)); };
        return type.make({number(static_cast<int64_t>(record.mark - 1)), name(record.name),
                          nb::borrow(kinds[record.kind]), number(record.start),
                          record.end ? number(record.end) : nb::none(), number(record.thread), number(record.link),
                          number(record.value), one.args, nb::bool_((record.flags & INSTANT) != 0)});
    }

    const char *memory_, *args_, *names_;
    uint64_t records_, room_, name_room_, written_;
    TensorInputs tensor_inputs_;
    nb::handle loads_;
    PlainJson plain_;
    std::string text_;
    std::unordered_map<uint32_t, nb::object> known_;
};

nb::object spans_in(nb::handle buffer, uint64_t first, uint32_t thread, nb::handle span_type, nb::dict kinds,
                    nb::handle tensor_input, nb::handle loads) {
    Py_buffer view;
    if (PyObject_GetBuffer(buffer.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
    struct Release {
        Py_buffer *view;
        ~Release() { PyBuffer_Release(view); }
    } release{&view};
    std::array<PyObject *, 256> known{};
    for (auto [kind, object] : kinds) known[nb::cast<uint8_t>(kind)] = object.ptr();
    Reader reader(static_cast<const char *>(view.buf), static_cast<size_t>(view.len), tensor_input, loads);
    return reader.spans(first, thread, span_type, known);
}

} // namespace
} // namespace resilin::tracing

namespace resilin {

void bind_trace_reader(nb::module_ &m) {
    m.def("spans_in", &tracing::spans_in, nb::arg("buffer"), nb::arg("first"), nb::arg("thread"),
          nb::arg("span_type"), nb::arg("kinds"), nb::arg("tensor_input").none(), nb::arg("loads").none());
}

} // namespace resilin
