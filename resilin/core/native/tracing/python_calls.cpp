// The interpreter calls `profile` when a function of Python is entered and left.
#include "python_calls.hpp"

#include <cstring>
#include <string>
#include <vector>

namespace nb = nanobind;

namespace resilin::tracing {
namespace {

Ring *wanted = nullptr; // guarded by Python's lock, as all here
std::unordered_map<PyCodeObject *, uint32_t> names; // of `wanted`; holds its keys; 0: left out

constexpr uint32_t LEFT_OUT = 0;

struct Stack {
    uint64_t epoch = 0;
    std::vector<Open> open; // number of name LEFT_OUT: not written
};
thread_local Stack stack;

// Frames that say nothing of the program: of the engine, which is native code elsewhere, of the profiler, and of imports.
bool left_out(const char *file) {
    for (const char *part : {"/resilin/core/", "/resilin/_base/", "/resilin/profiler/", "/resilin/autograd/profiler",
                             "<frozen importlib", "/resilin/distributed/wire/trace_spans"})
        if (std::strstr(file, part)) return true;
    return false;
}

uint32_t name_of(PyCodeObject *code) {
    const auto found = names.find(code);
    if (found != names.end()) return found->second;
    uint32_t number = LEFT_OUT;
    const char *file = PyUnicode_AsUTF8(code->co_filename);
    PyObject *called = PyObject_GetAttrString(reinterpret_cast<PyObject *>(code), "co_qualname");
    const char *function = called ? PyUnicode_AsUTF8(called) : nullptr;
    if (file && function && !left_out(file)) {
        const std::string text = std::string(file) + "(" + std::to_string(code->co_firstlineno) + "): " + function;
        PyObject *line = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
        if (line) number = wanted->name(line);
        Py_XDECREF(line);
    }
    Py_XDECREF(called);
    PyErr_Clear();
    Py_INCREF(code);
    names.emplace(code, number);
    return number;
}

int profile(PyObject *, PyFrameObject *frame, int what, PyObject *) {
    if (recording) return 0;
    if (!wanted) {
        PyEval_SetProfile(nullptr, nullptr);
        return 0;
    }
    if (stack.epoch != wanted->epoch) {
        stack.open.clear();
        stack.epoch = wanted->epoch;
    }
    if (what == PyTrace_CALL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        const uint32_t name = name_of(code);
        Py_DECREF(code);
        stack.open.push_back(name == LEFT_OUT ? Open{} : wanted->open(name, PYTHON));
    } else if (what == PyTrace_RETURN && !stack.open.empty()) {
        if (stack.open.back().name != LEFT_OUT) wanted->close(stack.open.back(), now());
        stack.open.pop_back();
    }
    return 0;
}

} // namespace

thread_local bool recording = false;

void start_python_calls(Ring *ring) {
    wanted = ring;
    trace_this_thread();
}

void stop_python_calls() {
    if (!wanted) return;
    for (auto it = stack.open.rbegin(); it != stack.open.rend(); ++it)
        if (it->name != LEFT_OUT) wanted->close(*it, now());
    stack.open.clear();
    wanted = nullptr;
    for (auto &[code, number] : names) Py_DECREF(code);
    names.clear();
    PyEval_SetProfile(nullptr, nullptr);
}

void trace_this_thread() {
    if (!wanted) return;
    std::vector<PyFrameObject *> frames; // those that run already, from the outermost on
    for (PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get()); frame; frame = PyFrame_GetBack(frame))
        frames.push_back(frame);
    stack.open.clear();
    stack.epoch = wanted->epoch;
    for (auto it = frames.rbegin(); it != frames.rend(); ++it) {
        PyCodeObject *code = PyFrame_GetCode(*it);
        const uint32_t name = name_of(code);
        Py_DECREF(code);
        Py_DECREF(*it);
        stack.open.push_back(name == LEFT_OUT ? Open{} : wanted->open(name, PYTHON));
    }
    PyEval_SetProfile(profile, nullptr);
}

} // namespace resilin::tracing
