// numpy's side of the allocator: the NEP 49 handler and what resilin.core.machine.memory calls.
#include "array.hpp"
#include "kernels.hpp"
#include "memory.hpp"

#include <algorithm>

namespace resilin {
namespace {

void *numpy_malloc(void *, size_t size) { return memory::allocate(size); }
void *numpy_calloc(void *, size_t count, size_t size) {
    size_t total;
    return __builtin_mul_overflow(count, size, &total) ? nullptr : memory::allocate_zeroed(total);
}
void *numpy_realloc(void *, void *block, size_t size) { return memory::reallocate(block, size); }
void numpy_free(void *, void *block, size_t) { memory::release(block); } // numpy's size is not exact: not used

PyDataMem_Handler handler = {
    "resilin_arenas", 1, {nullptr, numpy_malloc, numpy_calloc, numpy_realloc, numpy_free}};

void install() {
    // numpy keeps a reference to the capsule in every array it allocates through it
    static PyObject *capsule = PyCapsule_New(&handler, "mem_handler", nullptr);
    if (!capsule) throw nb::python_error();
    PyObject *old = PyDataMem_SetHandler(capsule);
    if (!old) throw nb::python_error();
    Py_DECREF(old);
}

// (arena id, byte offset of the first element), or None unless the whole array lies in one arena
nb::object locate(ExactArray a) {
    if (a.size() == 0) return nb::none();
    auto *first = static_cast<const char *>(PyArray_DATA(a.array)), *low = first, *high = first;
    for (int i = 0; i < a.ndim(); i++) {
        const int64_t reach = (a.dim(i) - 1) * PyArray_STRIDE(a.array, i);
        (reach < 0 ? low : high) += reach;
    }
    high += PyArray_ITEMSIZE(a.array);
    const memory::Place place = memory::locate(low, static_cast<size_t>(high - low));
    if (place.arena < 0) return nb::none();
    return nb::make_tuple(place.arena, place.offset + (first - low));
}

// where the first element lies; None for what is no array of numpy's (its __array_interface__ takes 15 times as long)
nb::object address(nb::handle a) {
    if (!PyArray_Check(a.ptr())) return nb::none();
    return nb::int_(reinterpret_cast<uintptr_t>(PyArray_DATA(reinterpret_cast<PyArrayObject *>(a.ptr()))));
}

int64_t known(int64_t value, int64_t arena) {
    if (value < 0) throw nb::key_error(("no arena " + std::to_string(arena)).c_str());
    return value;
}

nb::dict stats() {
    const memory::Stats s = memory::stats();
    nb::dict out;
    out["allocated"] = s.allocated;
    out["peak"] = s.peak;
    out["reserved"] = s.reserved;
    out["hits"] = s.hits;
    out["misses"] = s.misses;
    out["arenas"] = s.arenas;
    return out;
}

} // namespace

void bind_memory(nb::module_ &m) {
    m.def("memory_install", &install);
    m.def("memory_locate", &locate);
    m.def("memory_address", &address);
    m.def("memory_arena_fd", [](int64_t arena) { return known(memory::arena_fd(arena), arena); });
    m.def("memory_arena_size", [](int64_t arena) { return known(memory::arena_size(arena), arena); });
    m.def("memory_begin_readers", &memory::begin_readers);
    m.def("memory_fork_readers", &memory::fork_readers);
    m.def("memory_end_readers", &memory::end_readers);
    m.def("memory_stats", &stats);
    m.def("memory_empty_cache", &memory::empty_cache);
}

} // namespace resilin
