// One range of addresses is reserved at the start; arenas are mapped into it, so whether and where a pointer lies in an
// arena is arithmetic.
//
//   allocate: exact-size stack of cached blocks (last in, first out: warm pages)
//          -> smallest free span that fits, split
//          -> cached blocks merged back into spans, tried again
//          -> a new arena
//
// Memory that is used again and again moves into huge pages, 2 MiB for every 16 MiB that were: fewer misses of the TLB
// are worth some percent of a training step, and a process that ends soon pays nothing.
//
// Everything counts in pages. `Arena::length[page]` is the size of the block or span that starts (for spans: or ends)
// there; `Arena::state[page]` says which.
#pragma once

#include "available.hpp"
#include "memory.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

namespace resilin::memory {

constexpr size_t PAGE = 4096;
constexpr size_t SLOT_PAGES = 16384, SLOT = SLOT_PAGES * PAGE; // 64 MiB: smallest arena, unit of the address range
constexpr size_t RANGES[] = {size_t{1} << 40, size_t{1} << 36, size_t{1} << 33}; // address space may be limited
constexpr size_t GROW_MAX = size_t{1} << 30;
constexpr size_t UNIT = 512; // of a huge page
constexpr size_t REUSED_PER_UNIT = 8 * UNIT; // pages
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 // Linux 6.1; works for shared memory whatever the system's default for huge pages is
#endif

enum State : uint8_t { INSIDE, USED, CACHED, FREE };

struct Arena {
    int64_t id;
    char *base;
    size_t pages;
    int fd;      // -1: private memory, cannot be shared
    bool sealed;           // inherited by a fork: blocks are freed, none is handed out
    bool borrowed = false; // by a reader: pages that were not written here are still its parent's
    size_t used = 0;    // pages in use or cached
    size_t touched = 0; // all pages from here on were never handed out
    size_t huge = 0;    // up to here units were looked at and collapsed
    std::vector<uint32_t> length;
    std::vector<uint8_t> state;
    std::vector<uint32_t> born; // of the block that starts there: how many readers had been forked
};

class Allocator {
  public:
    Allocator() {
        for (size_t size : RANGES) {
            void *at = mmap(nullptr, size + SLOT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (at == MAP_FAILED) continue;
            base_ = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(at) + SLOT - 1) / SLOT * SLOT);
            slots_.resize(size / SLOT, nullptr);
            return;
        }
    }

    bool contains(const void *p) const {
        const auto distance = static_cast<size_t>(static_cast<const char *>(p) - base_);
        return distance < slots_.size() * SLOT;
    }

    // nullptr when no arena can be had (malloc is tried then); `fresh` says that the block was never written
    void *allocate(size_t size, bool &fresh) {
        const size_t pages = round_up(size);
        std::lock_guard<std::mutex> hold(mutex_);
        char *block = from_cache(pages);
        fresh = false;
        if (block) {
            stats_.hits++;
        } else {
            block = from_spans(pages, fresh);
            if (!block && cached_pages_ > 0) {
                merge_cache();
                block = from_spans(pages, fresh);
            }
            if (!block && !may_have(pages)) return nullptr;
            if (!block && add_arena(pages)) block = from_spans(pages, fresh);
            if (!block) return nullptr;
            stats_.misses++;
        }
        stats_.allocated += pages * PAGE;
        stats_.peak = std::max(stats_.peak, stats_.allocated);
        return block;
    }

    void release(void *p) {
        std::lock_guard<std::mutex> hold(mutex_);
        Arena &arena = *arena_of(p);
        const size_t page = page_of(arena, p);
        if (arena.sealed) return; // its pages go with the process
        if (arena.born[page] < newest_reader())
            parked_.push_back(static_cast<char *>(p));
        else
            recycle(arena, page);
    }

    int64_t begin_readers() {
        std::lock_guard<std::mutex> hold(mutex_);
        readers_[++last_readers_] = 0;
        return last_readers_;
    }

    void end_readers(int64_t readers) {
        std::lock_guard<std::mutex> hold(mutex_);
        if (readers_.erase(readers) == 0) return; // ended before, or those of the process that forked this one
        const uint32_t newest = newest_reader();
        const auto kept = std::remove_if(parked_.begin(), parked_.end(), [&](char *p) {
            Arena &arena = *arena_of(p);
            const size_t page = page_of(arena, p);
            if (arena.born[page] < newest) return false;
            recycle(arena, page);
            return true;
        });
        parked_.erase(kept, parked_.end());
    }

    // with the mutex held, before a fork: blocks in use now will be parked
    void expect_reader(int64_t readers) {
        const auto it = readers_.find(readers);
        if (it != readers_.end()) it->second = ++forked_readers_;
    }

    size_t capacity(const void *p) {
        std::lock_guard<std::mutex> hold(mutex_);
        const Arena &arena = *arena_of(p);
        return arena.length[page_of(arena, p)] * PAGE;
    }

    Place locate(const char *begin, size_t size) {
        if (!contains(begin)) return {};
        std::lock_guard<std::mutex> hold(mutex_);
        const Arena *arena = arena_of(begin);
        if (!arena || arena->fd < 0 || begin + size > arena->base + arena->pages * PAGE) return {};
        return {arena->id, begin - arena->base};
    }

    // calls found(arena) when `id` is one; gives -1 otherwise
    template <class Found> int64_t with_arena(int64_t id, Found found) {
        std::lock_guard<std::mutex> hold(mutex_);
        const auto it = arenas_.find(id);
        return it == arenas_.end() || it->second->fd < 0 ? -1 : found(*it->second);
    }

    Stats stats() {
        std::lock_guard<std::mutex> hold(mutex_);
        return stats_;
    }

    void empty_cache() {
        std::lock_guard<std::mutex> hold(mutex_);
        give_back();
    }

    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }

    // In a forked child, before anything else runs: each arena becomes private memory; unless this is a reader with a
    // copy of its blocks, for which the parent waits. Allocates nothing. Returns with the mutex free.
    void become_private(bool reader) {
        for (auto &entry : arenas_) {
            Arena &arena = *entry.second;
            arena.sealed = true;
            if (arena.borrowed) own_pages(arena); // parked for this process's parent, not for this process
            if (arena.fd < 0) continue;
            const int flags = MAP_FIXED | MAP_PRIVATE | MAP_NORESERVE | (reader ? 0 : MAP_ANONYMOUS);
            void *at =
                mmap(arena.base, arena.pages * PAGE, PROT_READ | PROT_WRITE, flags, reader ? arena.fd : -1, 0);
            if (at == MAP_FAILED) _exit(127); // the parent's memory must not be written by two processes
            arena.borrowed = reader;
            if (!reader) {
                madvise(at, arena.pages * PAGE, MADV_HUGEPAGE);
                each_used(arena, [&](size_t page, size_t pages) { copy_in(arena, page * PAGE, pages * PAGE); });
            }
            close(arena.fd);
            arena.fd = -1;
        }
        spans_.clear();
        for (auto &bin : cache_) bin.second.clear();
        cached_pages_ = 0;
        parked_.clear();
        readers_.clear();
        stats_ = Stats{};
        new (&mutex_) std::mutex;
    }

    // with the mutex held: whether a fork's child depends on its parent's stillness
    bool has_arenas() const { return !arenas_.empty(); }

  private:
    // sizes in steps of an eighth of the power of two below: at most 12.5% is lost, and freed blocks fit again
    static size_t round_up(size_t size) {
        size_t pages = (size + PAGE - 1) / PAGE;
        if (pages <= 16) return pages;
        const size_t step = size_t{1} << (63 - __builtin_clzll(pages) - 3);
        return (pages + step - 1) / step * step;
    }
    Arena *arena_of(const void *p) const {
        return slots_[static_cast<size_t>(static_cast<const char *>(p) - base_) / SLOT];
    }
    static size_t page_of(const Arena &arena, const void *p) {
        return static_cast<size_t>(static_cast<const char *>(p) - arena.base) / PAGE;
    }

    // of the forks that readers still live from; 0: none
    uint32_t newest_reader() const {
        uint32_t newest = 0;
        for (const auto &entry : readers_) newest = std::max(newest, entry.second);
        return newest;
    }

    void recycle(Arena &arena, size_t page) {
        const size_t pages = arena.length[page];
        stats_.allocated -= pages * PAGE;
        arena.state[page] = CACHED;
        cache_[pages].push_back(arena.base + page * PAGE);
        cached_pages_ += pages;
    }

    char *from_cache(size_t pages) {
        const auto bin = cache_.find(pages);
        if (bin == cache_.end() || bin->second.empty()) return nullptr;
        char *block = bin->second.back();
        bin->second.pop_back();
        cached_pages_ -= pages;
        Arena &arena = *arena_of(block);
        const size_t page = page_of(arena, block);
        arena.state[page] = USED;
        arena.born[page] = forked_readers_;
        reused_ += pages;
        if (collapses_ && arena.fd >= 0 && reused_ >= REUSED_PER_UNIT) collapse_next(arena);
        return block;
    }

    // The next unit into a huge page, where all its pages are there: nothing is made resident that was not.
    void collapse_next(Arena &arena) {
        if (arena.huge + UNIT > arena.touched) return;
        char *at = arena.base + arena.huge * PAGE;
        arena.huge += UNIT;
        reused_ = 0;
        unsigned char there[UNIT];
        if (mincore(at, UNIT * PAGE, there) != 0 || !std::all_of(there, there + UNIT, [](unsigned char c) { return c & 1; })) return;
        // a unit may be in the way of something at the moment; only a kernel that cannot do it at all ends the attempts
        if (madvise(at, UNIT * PAGE, MADV_COLLAPSE) != 0 && errno == EINVAL) collapses_ = false;
    }

    char *from_spans(size_t pages, bool &fresh) {
        const auto it = spans_.lower_bound({pages, nullptr});
        if (it == spans_.end()) return nullptr;
        char *block = it->second;
        Arena &arena = *arena_of(block);
        const size_t page = page_of(arena, block), length = it->first;
        spans_.erase(it);
        if (length > pages) add_span(arena, page + pages, length - pages);
        mark(arena, page, pages, USED);
        arena.born[page] = forked_readers_;
        arena.used += pages;
        fresh = page >= arena.touched;
        arena.touched = std::max(arena.touched, page + pages);
        return block;
    }

    static void mark(Arena &arena, size_t page, size_t pages, State state) {
        arena.length[page] = static_cast<uint32_t>(pages);
        arena.state[page] = state;
        if (state == FREE) { // the end mark lets the span after this one find it
            arena.length[page + pages - 1] = static_cast<uint32_t>(pages);
            arena.state[page + pages - 1] = FREE;
        } else if (pages > 1) {
            arena.state[page + pages - 1] = INSIDE;
        }
    }

    void add_span(Arena &arena, size_t page, size_t pages) {
        mark(arena, page, pages, FREE);
        spans_.insert({pages, arena.base + page * PAGE});
    }

    void free_span(Arena &arena, size_t page, size_t pages) {
        arena.used -= pages;
        if (page > 0 && arena.state[page - 1] == FREE) {
            const size_t before = arena.length[page - 1];
            spans_.erase({before, arena.base + (page - before) * PAGE});
            page -= before;
            pages += before;
        }
        const size_t next = page + pages;
        if (next < arena.pages && arena.state[next] == FREE) {
            const size_t after = arena.length[next];
            spans_.erase({after, arena.base + next * PAGE});
            pages += after;
        }
        add_span(arena, page, pages);
    }

    void merge_cache() {
        for (auto &bin : cache_) {
            for (char *block : bin.second) {
                Arena &arena = *arena_of(block);
                free_span(arena, page_of(arena, block), bin.first);
            }
            bin.second.clear();
        }
        cached_pages_ = 0;
    }

    // cached blocks are given back where that makes room
    bool may_have(size_t pages) {
        if (pages * PAGE < HUGE_BLOCK || has_memory(pages * PAGE)) return true;
        give_back();
        return has_memory(pages * PAGE);
    }

    void give_back() {
        merge_cache();
        for (auto it = arenas_.begin(); it != arenas_.end();) {
            Arena &arena = *it->second;
            if (arena.sealed) {
                ++it;
            } else if (arena.used == 0) {
                drop(arena);
                it = arenas_.erase(it);
            } else {
                punch_holes(arena);
                ++it;
            }
        }
    }

    // first run of free slots, or slots_.size()
    size_t find_slots(size_t count) const {
        size_t run = 0;
        for (size_t i = 0; i < slots_.size(); i++) {
            run = slots_[i] ? 0 : run + 1;
            if (run == count) return i + 1 - count;
        }
        return slots_.size();
    }

    bool add_arena(size_t pages) {
        const size_t grow = std::min(GROW_MAX, stats_.reserved / 4);
        const size_t slots = (std::max(pages * PAGE, grow) + SLOT - 1) / SLOT, size = slots * SLOT;
        const size_t first = find_slots(slots);
        if (first == slots_.size()) return false;
        char *at = base_ + first * SLOT;
        int fd = static_cast<int>(syscall(SYS_memfd_create, "resilin-arena", 1U /* MFD_CLOEXEC */));
        if (fd >= 0 && ftruncate(fd, static_cast<off_t>(size)) != 0) {
            close(fd);
            fd = -1;
        }
        const int flags = MAP_FIXED | MAP_NORESERVE | (fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
        if (mmap(at, size, PROT_READ | PROT_WRITE, flags, fd, 0) == MAP_FAILED) {
            if (fd >= 0) close(fd);
            return false;
        }
        madvise(at, size, MADV_HUGEPAGE); // advice: without huge pages for shared memory nothing is lost
        auto arena = std::make_unique<Arena>();
        arena->id = next_id_++;
        arena->base = at;
        arena->pages = size / PAGE;
        arena->fd = fd;
        arena->sealed = false;
        arena->length.resize(arena->pages);
        arena->state.resize(arena->pages, INSIDE);
        arena->born.resize(arena->pages);
        for (size_t i = 0; i < slots; i++) slots_[first + i] = arena.get();
        add_span(*arena, 0, arena->pages);
        stats_.reserved += size;
        stats_.arenas++;
        arenas_[arena->id] = std::move(arena);
        return true;
    }

    void drop(Arena &arena) {
        spans_.erase({arena.pages, arena.base});
        const size_t size = arena.pages * PAGE, first = static_cast<size_t>(arena.base - base_) / SLOT;
        // over the old mapping in one call: the address range stays ours
        mmap(arena.base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        if (arena.fd >= 0) close(arena.fd);
        for (size_t i = 0; i < size / SLOT; i++) slots_[first + i] = nullptr;
        stats_.reserved -= size;
        stats_.arenas--;
    }

    void punch_holes(Arena &arena) {
        for (size_t page = 0; page < arena.pages; page += arena.length[page])
            if (arena.state[page] == FREE)
                madvise(arena.base + page * PAGE, arena.length[page] * PAGE, arena.fd >= 0 ? MADV_REMOVE : MADV_DONTNEED);
    }

    template <class Found> static void each_used(const Arena &arena, Found found) {
        for (size_t page = 0; page < arena.pages; page += arena.length[page])
            if (arena.state[page] == USED) found(page, arena.length[page]);
    }

    // writing to a page of a private mapping gives this process a copy
    static void own_pages(Arena &arena) {
        each_used(arena, [&](size_t page, size_t pages) {
            for (size_t end = page + pages; page < end; page++) {
                volatile char *at = arena.base + page * PAGE;
                *at = *at;
            }
        });
        arena.borrowed = false;
    }

    static void copy_in(const Arena &arena, size_t offset, size_t size) {
        while (size > 0) {
            const ssize_t got = pread(arena.fd, arena.base + offset, size, static_cast<off_t>(offset));
            if (got <= 0) _exit(127);
            offset += static_cast<size_t>(got);
            size -= static_cast<size_t>(got);
        }
    }

    std::mutex mutex_;
    char *base_ = nullptr;        // immutable, as the size of slots_; everything below: guarded by mutex_
    std::vector<Arena *> slots_;
    std::map<int64_t, std::unique_ptr<Arena>> arenas_;
    std::unordered_map<size_t, std::vector<char *>> cache_;
    std::set<std::pair<size_t, char *>> spans_;
    size_t cached_pages_ = 0;
    std::map<int64_t, uint32_t> readers_; // group of readers: number of its latest fork, 0 before the first
    int64_t last_readers_ = 0;
    uint32_t forked_readers_ = 0;
    std::vector<char *> parked_; // freed, but older than the newest reader
    int64_t next_id_ = 0;
    size_t reused_ = 0; // pages, since the last unit was collapsed
    bool collapses_ = true;
    Stats stats_;
};

} // namespace resilin::memory
