#pragma once

#include <nanobind/nanobind.h>

namespace resilin::dist {

// The memory of one contiguous Python buffer, held while this lives.
class Held {
  public:
    Held(nanobind::handle owner, bool writable) {
        if (PyObject_GetBuffer(owner.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) throw nanobind::python_error();
    }
    ~Held() { PyBuffer_Release(&view_); }
    Held(const Held &) = delete;
    Held &operator=(const Held &) = delete;
    char *at() const { return static_cast<char *>(view_.buf); }
    size_t size() const { return static_cast<size_t>(view_.len); }

  private:
    Py_buffer view_;
};

} // namespace resilin::dist
