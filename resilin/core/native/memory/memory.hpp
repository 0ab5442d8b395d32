// A caching allocator whose large blocks lie in arenas that other processes can map.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace resilin::memory {

constexpr size_t ALIGNMENT = 64;
constexpr size_t HUGE_BLOCK = size_t{1} << 30; // from here on a block is refused that memory cannot hold
constexpr size_t ARENA_MIN_BLOCK = 4096; // smaller blocks come from malloc: a page each would waste memory

struct Stats {
    size_t allocated = 0, peak = 0, reserved = 0, hits = 0, misses = 0, arenas = 0, loans = 0, windows = 0;
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

// Lending to other processes; see lending.cpp. A place is that of a block's first byte; arena -1: it cannot be done.
struct Source;
class Returns;
Place lend(char *block, size_t offset, size_t size, bool again); // bytes of an array in use; `again`: not the first time
Place give(const void *from, size_t size); // a copy, which from then on is the borrower's alone
bool lend_again(Place block);              // what is on loan already
void end_loan(Place block);
void collapse_lent();    // blocks that were lent more than once, into huge pages
size_t drop_originals(); // what is under own copies of pages that are lent no more; how many blocks may have more later

// A piece of a lender's arena, for the loan `number`, which `returns` is told of once it is closed; nullptr: no room.
// `own`: the block of this process that lies there, whose loan ends with it.
char *open_window(const std::shared_ptr<Source> &source, size_t offset, size_t size, bool shared,
                  const std::shared_ptr<Returns> &returns, uint64_t number, Place own);
void close_window(char *window);
bool keep_windows(const Returns &returns); // copies what they show; false: not all
struct Shown {
    bool known = false, written = false;
    uint64_t number = 0;
    size_t offset = 0; // in the lender's arena
};
// What `size` bytes from `begin` in a window are. From then on the window is nobody else's to write.
Shown look_at_window(char *window, const char *begin, size_t size);

Stats stats();
void empty_cache();

} // namespace resilin::memory
