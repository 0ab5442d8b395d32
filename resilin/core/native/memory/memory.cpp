// The process's allocator of array memory (allocator.hpp), and what a fork does to it.
//
// Fork. A child must not write what its parent shares, so its arenas become private mappings. There it would see the
// parent's later writes to pages that it has not written itself, hence one of two things:
//   any fork:         the child copies all blocks in use while the parent waits;
//   fork of a reader: nothing is copied. Blocks in use at the fork that the parent frees are parked, not reused, until
//                     `end_readers`; what the parent writes into them in place the child may see.
#include "allocator.hpp"

#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace resilin::memory {
namespace {

constexpr int COPY_DEADLINE_MS = 60000; // a parent waits this long for a forked child to copy its blocks

// --- fork: the parent holds still until the child has its copies ---

// The child sends a byte when it has copied. Its end closes when it dies; the parent's closes when the parent gave up.
int copied[2] = {-1, -1};
thread_local int64_t forks_readers = 0; // what this thread's next forks belong to; 0: they are ordinary ones

void prepare_fork();
void after_fork_in_parent();
void after_fork_in_child();

Allocator &allocator() {
    // never destroyed: arrays may be freed while the process exits
    static Allocator *instance = [] {
        auto *made = new Allocator;
        pthread_atfork(prepare_fork, after_fork_in_parent, after_fork_in_child);
        return made;
    }();
    return *instance;
}

void prepare_fork() {
    allocator().lock();
    copied[0] = copied[1] = -1;
    if (forks_readers)
        allocator().expect_reader(forks_readers);
    else if (allocator().has_arenas() && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, copied) != 0)
        copied[0] = copied[1] = -1;
}

// until there is something to read, the other end is closed, or the time is over; signals do not end it
void await_input(int fd, int deadline_ms) {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::milliseconds(deadline_ms);
    pollfd input{fd, POLLIN, 0};
    for (auto left = end - Clock::now(); left.count() > 0; left = end - Clock::now()) {
        const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count() + 1;
        if (poll(&input, 1, static_cast<int>(ms)) >= 0 || errno != EINTR) return;
    }
}

void after_fork_in_parent() {
    if (copied[0] >= 0) {
        close(copied[1]);
        await_input(copied[0], COPY_DEADLINE_MS);
        close(copied[0]);
    }
    allocator().unlock();
}

[[noreturn]] void end_child(const char *why) {
    [[maybe_unused]] const ssize_t told = write(STDERR_FILENO, why, std::strlen(why));
    _exit(127);
}

// A child whose parent did not hold still may have copied what the parent wrote meanwhile: it ends.
void after_fork_in_child() {
    const bool reader = forks_readers != 0;
    forks_readers = 0;
    if (!reader && copied[0] < 0 && allocator().has_arenas())
        end_child("resilin: a forked child ends: no descriptors were left to copy its tensors safely; raise ulimit -n\n");
    allocator().become_private(reader);
    if (copied[0] >= 0) {
        close(copied[0]);
        if (send(copied[1], "c", 1, MSG_NOSIGNAL) != 1)
            end_child("resilin: a forked child ends: its parent did not wait for the copy of its tensors\n");
        close(copied[1]);
    }
}

} // namespace

void *allocate(size_t size) {
    bool fresh;
    void *block = size < ARENA_MIN_BLOCK ? nullptr : allocator().allocate(size, fresh);
    if (!block && size >= HUGE_BLOCK && !has_memory(size)) return nullptr;
    return block ? block : std::malloc(std::max<size_t>(size, 1));
}

void *allocate_zeroed(size_t size) {
    bool fresh;
    void *block = size < ARENA_MIN_BLOCK ? nullptr : allocator().allocate(size, fresh);
    if (!block && size >= HUGE_BLOCK && !has_memory(size)) return nullptr;
    if (!block) return std::calloc(1, std::max<size_t>(size, 1));
    if (!fresh) std::memset(block, 0, size);
    return block;
}

void *reallocate(void *block, size_t size) {
    if (!block) return allocate(size);
    const bool in_arena = allocator().contains(block);
    if (!in_arena && size < ARENA_MIN_BLOCK) return std::realloc(block, std::max<size_t>(size, 1));
    const size_t old = in_arena ? allocator().capacity(block) : malloc_usable_size(block);
    if (in_arena && size <= old && size >= old / 2) return block;
    void *moved = allocate(size);
    if (!moved) return nullptr;
    std::memcpy(moved, block, std::min(old, size));
    release(block);
    return moved;
}

void release(void *block) {
    if (!block) return;
    if (allocator().contains(block))
        allocator().release(block);
    else
        std::free(block);
}

Place locate(const void *begin, size_t size) { return allocator().locate(static_cast<const char *>(begin), size); }
int arena_fd(int64_t id) {
    return static_cast<int>(allocator().with_arena(id, [](const Arena &a) { return int64_t{a.fd}; }));
}
int64_t arena_size(int64_t id) {
    return allocator().with_arena(id, [](const Arena &a) { return static_cast<int64_t>(a.pages * PAGE); });
}
int64_t begin_readers() { return allocator().begin_readers(); }
void fork_readers(int64_t readers) { forks_readers = readers; }
void end_readers(int64_t readers) { allocator().end_readers(readers); }

Place lend(char *block, size_t offset, size_t size, bool again) {
    return allocator().lend(block, offset, size, again);
}
Place give(const void *from, size_t size) {
    bool fresh;
    void *block = allocator().allocate(size, fresh);
    if (!block) return {};
    std::memcpy(block, from, size);
    const Place place = allocator().give(static_cast<char *>(block));
    if (place.arena < 0) allocator().release(block);
    return place;
}
bool lend_again(Place block) { return allocator().lend_again(block); }
void end_loan(Place block) { allocator().end_loan(block); }
void collapse_lent() { allocator().collapse_lent(); }
size_t drop_originals() { return allocator().drop_originals(); }
char *open_window(const std::shared_ptr<Source> &source, size_t offset, size_t size, bool shared,
                  const std::shared_ptr<Returns> &returns, uint64_t number, Place own) {
    Window window;
    window.returns = returns;
    window.number = number;
    return allocator().open_window(source, offset, size, shared, std::move(window), own);
}
void close_window(char *window) { allocator().close_window(window); }
bool keep_windows(const Returns &returns) { return allocator().keep_windows(&returns); }
Shown look_at_window(char *window, const char *begin, size_t size) {
    return allocator().look_at_window(window, begin, size);
}

Stats stats() { return allocator().stats(); }
void empty_cache() { allocator().empty_cache(); }

} // namespace resilin::memory
