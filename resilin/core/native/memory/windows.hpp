// Memory that other processes have lent, where this one shows it to its arrays.
//
// A window is a mapping of a piece of a lender's arena, for one loan alone. It is private, so that the kernel gives this
// process a copy of every page that it writes; where the lender has given the piece away it is shared, as nobody else
// looks at it. A window that is closed without having been written stays mapped for the next loan of the same piece.
#pragma once

#include "written.hpp"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace resilin::memory {

constexpr size_t WINDOWS_MAX = 8192; // the kernel allows 65530 mappings to a process
constexpr size_t IDLE_MAX = 16;      // of one arena
constexpr size_t HUGE = size_t{2} << 20; // page
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct Mapping {
    char *at = nullptr;
    size_t offset = 0, size = 0; // of the arena, whole pages
    bool shared = false;
};

inline void unmap(const std::vector<Mapping> &mappings) {
    for (const Mapping &each : mappings) munmap(each.at, each.size);
}

// A lender's arena. Its file stays open as long as there are windows on it.
struct Source {
    Source(int file, size_t bytes) : fd(file), size(bytes) {}
    ~Source() {
        unmap(idle);
        if (fd >= 0) close(fd);
    }
    Source(const Source &) = delete;
    Source &operator=(const Source &) = delete;

    int fd;
    size_t size;
    std::vector<Mapping> idle; // the latest last; guarded by the allocator's mutex
};

// The numbers of windows that were closed. `fd` (an eventfd) can be read as soon as there are some.
class Returns {
  public:
    Returns() : fd(eventfd(0, EFD_CLOEXEC)) {}
    ~Returns() {
        if (fd >= 0) close(fd);
    }
    Returns(const Returns &) = delete;
    Returns &operator=(const Returns &) = delete;

    void put(uint64_t number) {
        std::lock_guard<std::mutex> hold(mutex_);
        numbers_.push_back(number);
        if (numbers_.size() == 1) wake();
    }
    std::vector<uint64_t> take() {
        std::lock_guard<std::mutex> hold(mutex_);
        return std::exchange(numbers_, {});
    }
    void wake() {
        const uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = write(fd, &one, sizeof one);
    }

    const int fd;

  private:
    std::mutex mutex_;
    std::vector<uint64_t> numbers_; // guarded by mutex_
};

struct Window {
    Mapping mapping;
    std::shared_ptr<Source> source;   // null in a forked child, whose window it is not
    std::shared_ptr<Returns> returns;
    uint64_t number = 0;
    char *own = nullptr;  // the block of this process that it shows, when it is the lender itself
    uint32_t born = 0;    // how many readers had been forked
    bool closed = false;  // but kept for readers
};

// All windows of the process. Every method: with the allocator's mutex held.
class Windows {
  public:
    size_t size() const { return all_.size(); }

    // nullptr when there are too many, or the kernel allows no more mappings
    char *open(const std::shared_ptr<Source> &source, size_t offset, size_t size, bool shared, Window window) {
        if (all_.size() >= WINDOWS_MAX) return nullptr;
        Mapping mapping{nullptr, offset, size, shared};
        auto &idle = source->idle;
        for (size_t i = idle.size(); i-- > 0;) {
            if (idle[i].offset != offset || idle[i].size != size || idle[i].shared != shared) continue;
            mapping = idle[i];
            idle.erase(idle.begin() + static_cast<ptrdiff_t>(i));
            break;
        }
        if (!mapping.at && !(mapping.at = map(source->fd, offset, size, shared))) return nullptr;
        window.mapping = mapping;
        window.source = source;
        all_[mapping.at] = std::move(window);
        return mapping.at;
    }

    Window *find(const char *at) {
        const auto it = all_.find(const_cast<char *>(at));
        return it == all_.end() ? nullptr : &it->second;
    }

    // Makes a window's pages this process's own from its next write on. False when the kernel refuses.
    static bool isolate(Window &window) {
        Mapping &m = window.mapping;
        if (!m.shared) return true;
        if (mmap(m.at, m.size, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_NORESERVE, window.source->fd,
                 static_cast<off_t>(m.offset)) == MAP_FAILED)
            return false;
        m.shared = false;
        return true;
    }

    // Copies what the windows that tell `returns` show, so that their lenders may do as they like. Other threads may
    // write there meanwhile. False when memory for that is missing.
    bool keep(const Returns *returns) {
        bool kept = true;
        for (auto &[at, window] : all_) {
            if (window.returns.get() != returns) continue;
            kept = isolate(window) && own(at, window.mapping.size) && kept;
        }
        return kept;
    }

    // Takes a window out; what is to be unmapped once the mutex is free is added to `old`.
    Window remove(char *at, PageTable &pages, std::vector<Mapping> &old) {
        const auto it = all_.find(at);
        Window window = std::move(it->second);
        all_.erase(it);
        const Mapping &m = window.mapping;
        if (!window.source || (!m.shared && pages.written(m.at, m.at + m.size))) {
            old.push_back(m);
            return window;
        }
        auto &idle = window.source->idle;
        idle.push_back(m);
        if (idle.size() > IDLE_MAX) {
            old.push_back(idle.front());
            idle.erase(idle.begin());
        }
        return window;
    }

    // closed windows that no reader lives from any more; `newest` is the number of the newest one's fork
    std::vector<char *> unneeded_after(uint32_t newest) const {
        std::vector<char *> found;
        for (const auto &[at, window] : all_)
            if (window.closed && window.born >= newest) found.push_back(at);
        return found;
    }

    // In a forked child: nothing of the lender's later writes may show. Whose parent waits copies now what it has not
    // written; a reader's parent keeps the loans. Returns false when the kernel refuses.
    bool become_private(bool reader) {
        for (auto &[at, window] : all_) {
            if (window.source && !isolate(window)) return false;
            if (!reader && !own(at, window.mapping.size)) return false;
        }
        for (auto &[at, window] : all_) {
            window.source.reset();
            window.returns.reset();
            window.own = nullptr;
        }
        return true;
    }

  private:
    static bool own(char *at, size_t size) {
        if (madvise(at, size, MADV_POPULATE_WRITE) == 0) return true;
        if (errno != EINVAL) return false;
        for (size_t offset = 0; offset < size; offset += PAGE) __atomic_fetch_or(at + offset, 0, __ATOMIC_RELAXED);
        return true; // before Linux 5.14
    }

    // At an address where huge pages of the file can be mapped whole.
    static char *map(int fd, size_t offset, size_t size, bool shared) {
        const size_t room = size < HUGE ? size : size + HUGE;
        void *found = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (found == MAP_FAILED) return nullptr;
        char *start = static_cast<char *>(found), *at = start;
        if (size >= HUGE) at += (offset - reinterpret_cast<uintptr_t>(start)) % HUGE;
        if (at > start) munmap(start, static_cast<size_t>(at - start));
        if (at + size < start + room) munmap(at + size, static_cast<size_t>(start + room - at - size));
        if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_NORESERVE | (shared ? MAP_SHARED : MAP_PRIVATE), fd,
                 static_cast<off_t>(offset)) == MAP_FAILED) {
            munmap(at, size);
            return nullptr;
        }
        if (size >= HUGE) madvise(at, size, MADV_HUGEPAGE);
        return at;
    }

    std::unordered_map<char *, Window> all_;
};

} // namespace resilin::memory
