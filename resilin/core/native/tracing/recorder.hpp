// Spans into the ring that _base/trace_ring.py describes: the writer in C++.
#pragma once
#include <nanobind/nanobind.h>

#include "clock.hpp"

#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace resilin::tracing {

// As in _base/trace.py
enum Kind : uint8_t { OP = 1, BACKWARD = 2, PYTHON = 4, MEMORY = 5, MODULE = 13 };
enum Flag : uint8_t { OPERANDS = 1, INSTANT = 2 };

struct Record { // 64 bytes, as trace_ring.RECORD
    std::atomic<uint64_t> mark;
    int64_t start, end, link, value;
    uint64_t args_at;
    uint32_t name, thread, args_bytes;
    uint8_t kind, flags;
    uint8_t unused[2];
};
static_assert(sizeof(Record) == 64);

// Where arguments lie in their ring; of length 0: there are none, or they found no room.
struct Args {
    uint64_t at = 0;
    uint32_t length = 0;
};

// What a span needs to be closed, or written again when others took its place.
struct Open {
    uint64_t number = 0;
    int64_t start = 0, link = -1;
    Args args;
    uint32_t name = 0, thread = 0;
    uint8_t kind = 0, flags = 0;
};

class Ring {
  public:
    Open open(uint32_t name, uint8_t kind, int64_t link = -1, Args args = {}, uint8_t flags = 0);
    Open open_at(int64_t start, uint32_t name, uint8_t kind, int64_t link = -1, Args args = {}, uint8_t flags = 0);
    void close(const Open &span, int64_t end);
    void put(uint32_t name, uint8_t kind, int64_t start, int64_t end, int64_t link, int64_t value, Args args, uint8_t flags);
    Args append(const void *bytes, size_t length);
    Args append_once(const void *bytes, size_t length); // needs Python's lock; what is there already is not written again
    uint32_t name(PyObject *text);    // needs Python's lock; 0: there is no room for it
    const bool shapes, memory_events, modules;
    const uint64_t epoch; // no two rings have the same
    uint32_t memory_name = 0;

    // Takes the sizes from the head, which Python has written.
    Ring(char *memory, size_t bytes, bool shapes, bool memory_events, bool modules);
    ~Ring();
    Ring(const Ring &) = delete;
    void get_ready(); // takes the memory that the first spans would have to wait for

  private:
    Open open_by(uint32_t by, int64_t start, uint32_t name, uint8_t kind, int64_t link, Args args, uint8_t flags);
    uint32_t thread();      // this thread's number
    uint32_t name_thread(); // the same; names it where Python's lock is held
    Record &at(uint64_t number) { return records_[number % count_]; }
    void write(Open span, int64_t end, int64_t value); // under the next number
    void fill(Record &record, const Open &span, int64_t end, int64_t value);
    uint32_t add_name(const char *text, size_t length);

    std::vector<Args> known_args_; // by hash
    Record *records_;
    uint64_t count_, room_, name_room_;
    char *args_, *names_;
    std::atomic<uint64_t> *written_, *args_written_, *names_written_, *names_lost_; // in the head
    PyObject *known_; // dict: str -> number of the name
};

// Who records the operations now: null for nobody. Changed with Python's lock held; a ring that is no longer recorded into
// stays until its object goes, which the module's caller sees to.
extern std::atomic<Ring *> active;

// Recording by an object of Python's that is no Ring: its `begin` and `end` are called for operations.
extern PyObject *listener;

} // namespace resilin::tracing
