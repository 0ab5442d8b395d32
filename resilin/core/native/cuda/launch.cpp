#include "launch.hpp"

#include <numpy/arrayscalars.h>

#include <cstring>

#include "binding/callables.hpp"

namespace resilin::cuda {
namespace {

constexpr Py_ssize_t MOST = 512; // parameters of a kernel: CUDA gives them 4 KiB

struct Kernel : Callable {
    static constexpr const char *NAME = "resilin.core._native.CudaKernel";
    static constexpr int REFERENCES = 5;
    PyObject *driver; // keeps what `calls` points to
    PyObject *name, *stream, *failed;
    const Driver *calls;
    void *function, *context; // the context that was current when it was made: threads that have none get it
    bool waits;
    Py_ssize_t parameters;        // how many it takes; -1 where the driver does not say
    unsigned char lengths[MOST]; // of each, in bytes
};

PyObject *interned(const char *text) { return PyUnicode_InternFromString(text); }

// Both return null with Python's error set.
PyObject *data_of(PyObject *array) {
    static PyObject *data = interned("data");
    return PyObject_GetAttr(array, data);
}

bool read_pointer(PyObject *holder, uintptr_t &address) {
    static PyObject *ptr = interned("ptr");
    PyObject *number = PyObject_GetAttr(holder, ptr);
    if (!number) return false;
    address = static_cast<uintptr_t>(PyLong_AsUnsignedLongLong(number));
    Py_DECREF(number);
    return !(address == static_cast<uintptr_t>(-1) && PyErr_Occurred());
}

bool read_address(PyObject *array, uintptr_t &address) {
    PyObject *data = data_of(array);
    if (!data) return false;
    const bool done = read_pointer(data, address);
    Py_DECREF(data);
    return done;
}

bool read_stream(PyObject *current, uintptr_t &address) {
    PyObject *stream = PyObject_CallNoArgs(current);
    if (!stream) return false;
    const bool done = read_pointer(stream, address);
    Py_DECREF(stream);
    return done;
}

// The bytes of an argument; their number, or -1 with Python's error set.
int read_argument(PyObject *value, unsigned char *bytes) {
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyLongArrType_Type) {
        std::memcpy(bytes, &PyArrayScalar_VAL(value, Long), sizeof(npy_long));
        return sizeof(npy_long);
    }
    if (type == &PyFloatArrType_Type) {
        std::memcpy(bytes, &PyArrayScalar_VAL(value, Float), sizeof(npy_float));
        return sizeof(npy_float);
    }
    if (PyArray_IsScalar(value, Generic)) {
        PyArray_Descr *descr = PyArray_DescrFromScalar(value);
        if (!descr) return -1;
        const auto length = PyDataType_ELSIZE(descr);
        Py_DECREF(descr);
        if (length > 8) {
            PyErr_Format(PyExc_TypeError, "a scalar of %zd bytes; kernels take up to 8", static_cast<Py_ssize_t>(length));
            return -1;
        }
        PyArray_ScalarAsCtype(value, bytes);
        return static_cast<int>(length);
    }
    uintptr_t address;
    if (!read_address(value, address)) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError))
            PyErr_Format(PyExc_TypeError, "a %s; kernels take arrays of the device and numpy's scalars", type->tp_name);
        return -1;
    }
    std::memcpy(bytes, &address, sizeof address);
    return sizeof address;
}

bool read_extent(PyObject *tuple, unsigned (&extent)[3]) {
    extent[0] = extent[1] = extent[2] = 1;
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) > 3) {
        PyErr_SetString(PyExc_TypeError, "grid and block are tuples of up to three numbers");
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        const unsigned long value = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(tuple, i));
        if (value == static_cast<unsigned long>(-1) && PyErr_Occurred()) return false;
        extent[i] = static_cast<unsigned>(value);
    }
    return true;
}

// Adds which kernel and argument it is to a TypeError that is set.
void name_argument(const Kernel *self, Py_ssize_t index) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return;
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_Format(PyExc_TypeError, "%U: argument %zd is %S", self->name, index, error ? error : Py_None);
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
}

bool read_arguments(const Kernel *self, PyObject *tuple, unsigned char (*bytes)[8], void **places) {
    const Py_ssize_t count = PyTuple_Check(tuple) ? PyTuple_GET_SIZE(tuple) : MOST + 1;
    if (count > MOST) {
        PyErr_Format(PyExc_TypeError, "%U: expected a tuple of at most %zd arguments", self->name, MOST);
        return false;
    }
    if (self->parameters >= 0 && count != self->parameters) {
        PyErr_Format(PyExc_TypeError, "%U takes %zd arguments but %zd were given", self->name, self->parameters, count);
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        const int length = read_argument(PyTuple_GET_ITEM(tuple, i), bytes[i]);
        if (length < 0) {
            name_argument(self, i);
            return false;
        }
        if (self->parameters >= 0 && length != self->lengths[i]) {
            PyErr_Format(PyExc_TypeError, "%U: argument %zd has %d bytes, the kernel takes %d", self->name, i, length,
                         static_cast<int>(self->lengths[i]));
            return false;
        }
        places[i] = bytes[i];
    }
    return true;
}

PyObject *launch(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    const auto *self = reinterpret_cast<Kernel *>(object);
    const Py_ssize_t given = PyVectorcall_NARGS(flagged);
    if (names || given < 3 || given > 4) {
        PyErr_Format(PyExc_TypeError, "%U: expected (grid, block, arguments, shared_bytes=0)", self->name);
        return nullptr;
    }
    unsigned grid[3], block[3];
    unsigned char bytes[MOST][8];
    void *places[MOST];
    uintptr_t stream = 0;
    if (!read_extent(args[0], grid) || !read_extent(args[1], block) || !read_arguments(self, args[2], bytes, places))
        return nullptr;
    const unsigned long shared = given > 3 ? PyLong_AsUnsignedLong(args[3]) : 0;
    if (PyErr_Occurred() || !read_stream(self->stream, stream)) return nullptr;
    const Driver &calls = *self->calls;
    Status status;
    {
        WithoutGil free; // a full queue makes the driver wait, and who frees it may need the lock
        const auto run = [&] {
            return calls.launch_kernel(self->function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                       static_cast<unsigned>(shared), reinterpret_cast<void *>(stream), places, nullptr);
        };
        status = run();
        if (status == INVALID_CONTEXT && self->context && !calls.set_current_context(self->context)) status = run();
        if (!status && self->waits) status = calls.synchronize_stream(reinterpret_cast<void *>(stream));
    }
    if (!status) Py_RETURN_NONE;
    return PyObject_CallFunction(self->failed, "OKi", self->name, static_cast<unsigned long long>(stream), status);
}

} // namespace

uintptr_t address_of(PyObject *array) {
    uintptr_t address;
    if (!read_address(array, address)) throw nb::python_error();
    return address;
}

uintptr_t stream_of(PyObject *current) {
    uintptr_t address;
    if (!read_stream(current, address)) throw nb::python_error();
    return address;
}

nb::object make_kernel(nb::handle driver, uintptr_t function, nb::str name, nb::object stream, nb::object failed,
                       bool waits) {
    auto *self = make_callable<Kernel>(launch);
    self->driver = driver.inc_ref().ptr();
    self->name = name.release().ptr();
    self->stream = stream.release().ptr();
    self->failed = failed.release().ptr();
    self->calls = nb::inst_ptr<Driver>(driver);
    self->function = reinterpret_cast<void *>(function);
    self->context = nullptr;
    if (self->calls->current_context(&self->context)) self->context = nullptr;
    self->waits = waits;
    self->parameters = -1;
    std::size_t offset, length;
    Status status = self->calls->parameter_info ? 0 : INVALID_VALUE;
    for (Py_ssize_t i = 0; !status && i < MOST; i++) {
        status = self->calls->parameter_info(self->function, static_cast<std::size_t>(i), &offset, &length);
        if (!status) self->lengths[i] = static_cast<unsigned char>(length);
        if (status == INVALID_VALUE) self->parameters = i; // there are no more; of another status the driver knows why
    }
    return finished(self);
}

} // namespace resilin::cuda
