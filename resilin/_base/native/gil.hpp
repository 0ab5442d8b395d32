// Python's lock, given up for a while by code that waits or computes, and taken by code that calls Python meanwhile.
//
// When the interpreter ends, Python ends a daemon thread that asks for the lock: pthread_exit unwinds its stack, which the
// `noexcept` of bindings turns into the end of the whole process by SIGABRT, whatever its exit code was to be. So the
// unwinding stops here, and the thread stays until the process is over (as in Python itself from 3.14 on).
#pragma once

#include <Python.h>

#include <cstdint>

#include <unistd.h>

namespace resilin {

[[noreturn]] inline void stay() {
    for (;;) pause();
}

// No lock for the rest of the scope; with `elements`, where those are enough work to pay for that.
class WithoutGil {
  public:
    explicit WithoutGil(int64_t elements = INT64_MAX) : state_(elements > 4096 ? PyEval_SaveThread() : nullptr) {}
    ~WithoutGil() {
        if (!state_) return;
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            stay();
        }
    }
    WithoutGil(const WithoutGil &) = delete;
    WithoutGil &operator=(const WithoutGil &) = delete;

  private:
    PyThreadState *state_;
};

// The lock for the rest of the scope, inside that of a WithoutGil.
class WithGil {
  public:
    WithGil() {
        try {
            state_ = PyGILState_Ensure();
        } catch (...) {
            stay();
        }
    }
    ~WithGil() { PyGILState_Release(state_); }
    WithGil(const WithGil &) = delete;
    WithGil &operator=(const WithGil &) = delete;

  private:
    PyGILState_STATE state_;
};

} // namespace resilin
