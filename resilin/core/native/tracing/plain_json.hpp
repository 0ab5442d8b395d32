// JSON as recorders write most of it: objects and lists of plain texts, whole numbers, true, false and null.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace resilin::tracing {

class PlainJson {
  public:
    // What json.loads makes of `text`; invalid for anything less plain, and for what is none: that is for json.loads.
    nanobind::object parse(std::string_view text) {
        at_ = text.data(), end_ = at_ + text.size();
        nanobind::object found = value(0);
        blanks();
        return at_ == end_ ? found : nanobind::object();
    }

  private:
    static constexpr int DEEPEST = 20, MOST_DIGITS = 18;

    void blanks() {
        while (at_ < end_ && *at_ == ' ') at_++;
    }
    bool take(char letter) {
        blanks();
        return at_ < end_ && *at_ == letter && at_++;
    }
    nanobind::object word(const char *letters, PyObject *meaning) {
        const size_t length = std::strlen(letters);
        if (static_cast<size_t>(end_ - at_) < length || std::memcmp(at_, letters, length) != 0) return {};
        at_ += length;
        return nanobind::borrow(meaning);
    }
    nanobind::object value(int depth) {
        blanks();
        if (at_ == end_ || depth > DEEPEST) return {};
        switch (*at_) {
        case '"': return text();
        case '{': return object(depth);
        case '[': return list(depth);
        case 't': return word("true", Py_True);
        case 'f': return word("false", Py_False);
        case 'n': return word("null", Py_None);
        default: return number();
        }
    }
    nanobind::object number() {
        const bool negative = *at_ == '-';
        const char *digits = at_ += negative;
        int64_t found = 0;
        while (at_ < end_ && *at_ >= '0' && *at_ <= '9' && at_ - digits < MOST_DIGITS) found = found * 10 + (*at_++ - '0');
        const bool more = at_ < end_ && std::strchr(".eE0123456789", *at_);
        if (at_ == digits || more || (*digits == '0' && at_ - digits > 1)) return {};
        return made(PyLong_FromLongLong(negative ? -found : found));
    }
    nanobind::object text() {
        const char *start = ++at_;
        while (at_ < end_ && *at_ != '"' && *at_ != '\\' && *at_ >= ' ' && *at_ != 127) at_++; // a byte above is below 0
        if (at_ == end_ || *at_ != '"') return {};
        const std::string_view found(start, static_cast<size_t>(at_++ - start));
        if (found.size() > 40) return made(PyUnicode_FromStringAndSize(found.data(), static_cast<Py_ssize_t>(found.size())));
        const auto known = known_.find(found); // keys, and names of groups and types, come again
        if (known != known_.end()) return known->second;
        nanobind::object text = made(PyUnicode_FromStringAndSize(found.data(), static_cast<Py_ssize_t>(found.size())));
        if (known_.size() < 1000) known_.emplace(keep(found), text);
        return text;
    }
    nanobind::object list(int depth) {
        at_++;
        nanobind::list found;
        if (take(']')) return found;
        do {
            nanobind::object one = value(depth + 1);
            if (!one.is_valid()) return {};
            found.append(one);
        } while (take(','));
        return take(']') ? nanobind::object(found) : nanobind::object();
    }
    nanobind::object object(int depth) {
        at_++;
        nanobind::dict found;
        if (take('}')) return found;
        do {
            blanks();
            if (at_ == end_ || *at_ != '"') return {};
            nanobind::object key = text();
            if (!key.is_valid() || !take(':')) return {};
            nanobind::object one = value(depth + 1);
            if (!one.is_valid()) return {};
            found[key] = one;
        } while (take(','));
        return take('}') ? nanobind::object(found) : nanobind::object();
    }
    static nanobind::object made(PyObject *object) {
        if (!object) throw nanobind::python_error();
        return nanobind::steal(object);
    }
    std::string_view keep(std::string_view text) {
        kept_.push_back(std::make_unique<std::string>(text));
        return *kept_.back();
    }

    const char *at_ = nullptr, *end_ = nullptr;
    std::vector<std::unique_ptr<std::string>> kept_;
    std::unordered_map<std::string_view, nanobind::object> known_;
};

} // namespace resilin::tracing
