// A caching allocator whose large blocks lie in arenas that other processes can map.
#pragma once
#include <cstddef>
#include <cstdint>

namespace resilin::memory {

constexpr size_t ALIGNMENT = 64;
constexpr size_t HUGE_BLOCK = size_t{1} << 30; // from here on a block is refused that memory cannot hold
constexpr size_t ARENA_MIN_BLOCK = 4096; // smaller blocks come from malloc: a page each would waste memory

struct Stats {
    size_t allocated = 0, peak = 0, reserved = 0, hits = 0, misses = 0, arenas = 0;
};
struct Place {
    int64_t arena = -1; // -1: not in an arena
    int64_t offset = 0;
};

void *allocate(size_t size);
void *allocate_zeroed(size_t size);
void *reallocate(void *block, size_t size);
void release(void *block);

Place locate(const void *begin, size_t size);
int arena_fd(int64_t arena);       // -1: no such arena
int64_t arena_size(int64_t arena); // -1: no such arena

// Forks of children that read the parent's blocks in place; see memory.cpp. A group's number is never used again.
int64_t begin_readers();
void fork_readers(int64_t readers); // the calling thread's forks from now on belong to the group; 0: are ordinary
void end_readers(int64_t readers);  // all children of the group are gone

Stats stats();
void empty_cache();

} // namespace resilin::memory
