// numpy's side of the allocator: the NEP 49 handler and what resilin.core.machine.memory calls.
#include "array.hpp"
#include "kernels.hpp"
#include "memory/memory.hpp"
#include "memory/windows.hpp"
#include "tracing/recorder.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>

namespace resilin {
namespace {

// Says in a trace that `block` was taken (`bytes` above 0) or given back; returns it.
void *traced(void *block, int64_t bytes) {
    tracing::Ring *ring = tracing::active.load(std::memory_order_relaxed);
    if (ring && ring->memory_events && block) {
        const int64_t now = tracing::now();
        const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(block));
        ring->put(ring->memory_name, tracing::MEMORY, now, now, address, bytes, {}, tracing::INSTANT);
    }
    return block;
}

void *numpy_malloc(void *, size_t size) { return traced(memory::allocate(size), static_cast<int64_t>(size)); }
void *numpy_calloc(void *, size_t count, size_t size) {
    size_t total;
    if (__builtin_mul_overflow(count, size, &total)) return nullptr;
    return traced(memory::allocate_zeroed(total), static_cast<int64_t>(total));
}
void *numpy_realloc(void *, void *block, size_t size) {
    traced(block, -1);
    return traced(memory::reallocate(block, size), static_cast<int64_t>(size));
}
void numpy_free(void *, void *block, size_t size) { // numpy's size is not exact: only traces have it
    traced(block, -static_cast<int64_t>(std::max<size_t>(size, 1)));
    memory::release(block);
}

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

constexpr size_t SLOW_BYTES = size_t{8} << 20; // to copy or to map anew takes a millisecond: others may run meanwhile

using Source = std::shared_ptr<memory::Source>;
using Returns = std::shared_ptr<memory::Returns>;

nb::object place_or_none(memory::Place place) {
    return place.arena < 0 ? nb::none() : nb::object(nb::make_tuple(place.arena, place.offset));
}

// (arena id, byte offset) of the block that `owner` has, lent; None when that cannot be: it is no block's owner, was lent
// and written since, or the piece that is wanted is so small a part of it that a copy costs less; and, `again`, the first time
nb::object lend(ExactArray owner, uintptr_t begin, size_t size, bool again) {
    if (!PyArray_CHKFLAGS(owner.array, NPY_ARRAY_OWNDATA)) return nb::none();
    auto *block = static_cast<char *>(PyArray_DATA(owner.array));
    const size_t offset = begin - reinterpret_cast<uintptr_t>(block), whole = PyArray_NBYTES(owner.array);
    if (offset > whole || size > whole - offset || size < whole / 4) return nb::none();
    memory::Place place;
    {
        WithoutGil release(size < SLOW_BYTES ? 0 : INT64_MAX);
        place = memory::lend(block, offset, size, again);
    }
    return place_or_none(place);
}

nb::object give(uintptr_t begin, size_t size) {
    memory::Place place;
    {
        WithoutGil release(size < SLOW_BYTES ? 0 : INT64_MAX);
        place = memory::give(reinterpret_cast<const void *>(begin), size);
    }
    return place_or_none(place);
}

constexpr char WINDOW[] = "resilin.window";

void close_window(PyObject *capsule) { memory::close_window(static_cast<char *>(PyCapsule_GetPointer(capsule, WINDOW))); }

// `size` bytes from `offset` on of a lender's arena, as an array
nb::object open_window(const Source &source, size_t offset, size_t size, bool shared, const Returns &returns, uint64_t number,
                       int64_t own_arena, int64_t own_offset) {
    if (size == 0 || offset > source->size || size > source->size - offset)
        throw nb::value_error(("no " + std::to_string(size) + " bytes at " + std::to_string(offset) + " in an arena of " +
                               std::to_string(source->size))
                                  .c_str());
    const size_t first = offset / memory::PAGE * memory::PAGE;
    const size_t pages = (offset + size - first + memory::PAGE - 1) / memory::PAGE;
    char *at = memory::open_window(source, first, pages * memory::PAGE, shared, returns, number, {own_arena, own_offset});
    if (!at) return nb::none();
    nb::object capsule = nb::steal(PyCapsule_New(at, WINDOW, &close_window));
    if (!capsule) {
        memory::close_window(at);
        throw nb::python_error();
    }
    npy_intp length = static_cast<npy_intp>(size);
    nb::object array = nb::steal(PyArray_SimpleNewFromData(1, &length, NPY_UINT8, at + (offset - first)));
    if (!array) throw nb::python_error();
    if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject *>(array.ptr()), capsule.release().ptr()) != 0)
        throw nb::python_error();
    return array;
}

// (number, offset in the lender's arena, whether it was written) of what an array that lies in a window shows, else None
nb::object look_at_window(ExactArray owner, uintptr_t begin, size_t size) {
    PyObject *base = PyArray_BASE(owner.array);
    if (!base || !PyCapsule_IsValid(base, WINDOW)) return nb::none();
    auto *window = static_cast<char *>(PyCapsule_GetPointer(base, WINDOW));
    const memory::Shown shown = memory::look_at_window(window, reinterpret_cast<const char *>(begin), size);
    if (!shown.known) return nb::none();
    return nb::make_tuple(shown.number, shown.offset, shown.written);
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
    out["loans"] = s.loans;
    out["windows"] = s.windows;
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
    m.def("memory_lend", &lend);
    m.def("memory_give", &give);
    m.def("memory_lend_again", [](int64_t arena, int64_t offset) { return memory::lend_again({arena, offset}); });
    m.def("memory_end_loan", [](int64_t arena, int64_t offset) { memory::end_loan({arena, offset}); });
    m.def("memory_collapse_lent", [] {
        WithoutGil release;
        memory::collapse_lent();
    });
    m.def("memory_drop_originals", [] {
        WithoutGil release;
        return memory::drop_originals();
    });
    m.def("memory_open_window", &open_window);
    m.def("memory_keep_windows", [](const memory::Returns &returns) {
        WithoutGil release;
        return memory::keep_windows(returns);
    });
    m.def("memory_look_at_window", &look_at_window);
    nb::class_<memory::Source>(m, "LenderArena").def(nb::init<int, size_t>())
        .def_ro("fd", &memory::Source::fd)
        .def_ro("size", &memory::Source::size);
    nb::class_<memory::Returns>(m, "ClosedWindows")
        .def(nb::init<>())
        .def_ro("fd", &memory::Returns::fd)
        .def("put", &memory::Returns::put)
        .def("take", &memory::Returns::take)
        .def("wake", &memory::Returns::wake);
    m.def("memory_stats", &stats);
    m.def("memory_empty_cache", &memory::empty_cache);
}

} // namespace resilin
