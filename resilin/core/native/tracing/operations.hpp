// An operation as a span: what stands around the calls that fast_path/ makes while somebody records.
#pragma once
#include "recorder.hpp"

namespace resilin::tracing {

// The number of an operation's name in the ring that it was last asked for.
struct KnownName {
    uint64_t epoch = 0;
    uint32_t number = 0;
};

inline bool watched() { return listener != nullptr; }

// Opened with the call's arguments, closed with its result (null: it raised).
class OperationSpan {
  public:
    OperationSpan(KnownName &known, PyObject *name, PyObject *const *args, Py_ssize_t given);
    void finish(PyObject *result);

  private:
    Ring *ring_;
    uint64_t epoch_ = 0; // of the ring
    PyObject *listener_ = nullptr, *token_ = nullptr;
    Open span_;
};

} // namespace resilin::tracing
