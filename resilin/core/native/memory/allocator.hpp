// One range of addresses is reserved at the start; arenas are mapped into it, so whether and where a pointer lies in an
// arena is arithmetic.
//
//   allocate: exact-size stack of cached blocks (last in, first out: warm pages)
//          -> smallest free span that fits, split
//          -> cached blocks merged back into spans, tried again
//          -> a new arena
//
// Memory lies in huge pages: fewer misses of the TLB are worth a fifth of a pass over memory, and up to half of a step.
// Those of a new block come before it is written, as long as the kernel has them ready, which then takes less than the
// faults that they save. What is in none moves there later, at most 2 MiB for every 2 MiB that were used again, first
// where they were, then everywhere else.
//
// Everything counts in pages. `Arena::length[page]` is the size of the block or span that starts (for spans: or ends)
// there; `Arena::state[page]` says which.
//
// A block that was lent is mapped privately here until it is freed: the kernel gives this process a copy of each page that
// it writes, and borrowers, who map the arena's file, keep seeing what was lent. Nothing is ever copied back, as no moment
// is known at which nobody writes. So such a block has no place to be located at, and once written it is not lent again.
// The other way round, a block that was located is not lent: who knows its place may write into the file meanwhile.
#pragma once

#include "binding/available.hpp"
#include "memory.hpp"
#include "windows.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace resilin::memory {

constexpr size_t SLOT_PAGES = 16384, SLOT = SLOT_PAGES * PAGE; // 64 MiB: smallest arena, unit of the address range
constexpr size_t RANGES[] = {size_t{1} << 40, size_t{1} << 36, size_t{1} << 33}; // address space may be limited
constexpr size_t GROW_MAX = size_t{1} << 30;
constexpr size_t UNIT = 512; // of a huge page
// Times as long as moving a unit took passes before the next move: 0.1 ms for a new one and 0.7 for one in use where
// huge pages are free, up to 10 where the kernel, or the host of a virtual machine, has to find them; whoever allocates
// waits. What is used again pays a quick move back soon; what only lives long, and slow moves, do so late.
constexpr int COLLAPSE_PAUSE = 4, COLLAPSE_PAUSE_LONG = 20;
constexpr auto COLLAPSE_SLOW = std::chrono::milliseconds(1); // more than the 512 faults take that a new unit saves
constexpr size_t LAZY_BLOCK = SLOT; // from here on new pages come as they are written, as often not all are
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 // Linux 6.1; works for shared memory whatever the system's default for huge pages is
#endif

enum Mark : uint8_t {
    UNMARKED,
    LOCATED, // others know its place, and may write there
    WANTED,  // the first page of a block that was to be lent, but copied, as most are sent but once
};
enum State : uint8_t { INSIDE, USED, CACHED, FREE };

struct Arena {
    int64_t id;
    char *base;
    size_t pages;
    int fd;      // -1: private memory, cannot be shared
    bool sealed;           // inherited by a fork: blocks are freed, none is handed out
    bool lent = false;     // anything of it, ever: others may keep its file open
    bool borrowed = false; // by a reader: pages that were not written here are still its parent's
    size_t used = 0;    // pages in use or cached
    size_t touched = 0; // all pages from here on were never handed out
    size_t huge = 0;    // up to here units were looked at and collapsed
    std::vector<uint32_t> length;
    std::vector<uint8_t> state;
    std::vector<uint8_t> marks; // of pages, until they are freed
    std::vector<uint32_t> born; // of the block that starts there: how many readers had been forked
};

struct Lent {
    size_t pages;
    size_t loans;
    bool ours; // still in use here, and mapped privately; else it is free with its last loan
    bool copied = false; // this process has copies of all pages
    uint32_t times = 0;    // it was lent
    size_t collapsed = 0;  // so many of its units were looked at by collapse_lent
};
constexpr size_t LENT_MAX = 8192; // the kernel allows 65530 mappings to a process

using Clock = std::chrono::steady_clock;

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
        set_marks(arena, page, arena.length[page], UNMARKED);
        const auto lent = lent_.find(arena.base + page * PAGE);
        if (lent != lent_.end()) {
            if (!map_pages(arena, page, lent->second.pages, MAP_SHARED)) return; // never used again
            lent->second.ours = false;
            if (lent->second.loans > 0) return;
            lent_.erase(lent);
        }
        retire(arena, page);
    }

    int64_t begin_readers() {
        std::lock_guard<std::mutex> hold(mutex_);
        readers_[++last_readers_] = 0;
        return last_readers_;
    }

    void end_readers(int64_t readers) {
        std::vector<Mapping> old;
        {
            std::lock_guard<std::mutex> hold(mutex_);
            if (readers_.erase(readers) == 0) return; // ended before, or those of the process that forked this one
            unpark();
            for (char *window : windows_.unneeded_after(newest_reader())) end_window(window, old);
        }
        unmap(old);
    }

    // --- lending ---

    // `again`: only if it was wanted before
    Place lend(char *block, size_t offset, size_t size, bool again) {
        if (!contains(block)) return {};
        std::lock_guard<std::mutex> hold(mutex_);
        Arena *arena = arena_of(block);
        if (!arena || arena->fd < 0) return {};
        const size_t page = page_of(*arena, block);
        if (block != arena->base + page * PAGE || arena->state[page] != USED) return {};
        const size_t pages = arena->length[page];
        if (offset + size > pages * PAGE) return {};
        auto lent = lent_.find(block);
        if (lent == lent_.end()) {
            if (lent_.size() >= LENT_MAX || is_located(*arena, page, pages)) return {};
            if (again && arena->marks[page] != WANTED) {
                arena->marks[page] = WANTED;
                return {};
            }
            if (!map_pages(*arena, page, pages, MAP_PRIVATE)) return {};
            lent = lent_.insert({block, Lent{pages, 0, true}}).first;
        } else if (page_table_.written(block + offset, block + offset + size)) {
            return {};
        }
        arena->lent = true;
        lent->second.loans++;
        lent->second.times++;
        stats_.loans++;
        return {arena->id, block - arena->base};
    }

    // a block in use here, whose place is given away
    Place give(char *block) {
        std::lock_guard<std::mutex> hold(mutex_);
        Arena &arena = *arena_of(block);
        if (arena.fd < 0) return {};
        lent_.insert({block, Lent{arena.length[page_of(arena, block)], 1, false}});
        arena.lent = true;
        stats_.loans++;
        return {arena.id, block - arena.base};
    }

    bool lend_again(Place place) {
        std::lock_guard<std::mutex> hold(mutex_);
        const auto lent = find_lent(place);
        if (lent == lent_.end() || lent->second.loans == 0) return false;
        lent->second.loans++;
        stats_.loans++;
        return true;
    }

    void end_loan(Place place) {
        std::lock_guard<std::mutex> hold(mutex_);
        end_loan_held(place);
    }

    char *open_window(const std::shared_ptr<Source> &source, size_t offset, size_t size, bool shared, Window window,
                      Place own) {
        std::lock_guard<std::mutex> hold(mutex_);
        window.born = forked_readers_;
        if (own.arena >= 0) window.own = arenas_.at(own.arena)->base + own.offset;
        return windows_.open(source, offset, size, shared, std::move(window));
    }

    void close_window(char *at) {
        std::vector<Mapping> old;
        Window last; // what it holds goes when the mutex is free
        {
            std::lock_guard<std::mutex> hold(mutex_);
            Window &window = *windows_.find(at);
            window.closed = true;
            if (window.born >= newest_reader()) last = end_window(at, old);
        }
        unmap(old);
    }

    // What lies under this process's own copies of the pages of blocks that are lent no more, nobody can see again: it is
    // freed. Returns how many such blocks have pages left that may yet be copied.
    size_t drop_originals() {
        size_t left = 0;
        char *next = nullptr;
        for (;;) { // one block at a time: others allocate meanwhile
            std::lock_guard<std::mutex> hold(mutex_);
            const auto it = lent_.upper_bound(next);
            if (it == lent_.end()) return left;
            next = it->first;
            Lent &lent = it->second;
            if (lent.loans > 0 || !lent.ours || lent.copied) continue;
            const Arena &arena = *arena_of(next);
            left++;
            char *end = next + lent.pages * PAGE;
            if (arena.born[page_of(arena, next)] < newest_reader() || !page_table_.written(next, end)) continue;
            size_t copied = 0;
            page_table_.written_runs(next, end, [&](char *first, char *last) {
                fallocate(arena.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, first - arena.base, last - first);
                copied += static_cast<size_t>(last - first);
            });
            lent.copied = copied == lent.pages * PAGE;
            left -= lent.copied;
        }
    }

    // Blocks that are lent again and again move into huge pages: what the kernel does for a loan takes as long as there are
    // pages that either side has touched. Others may allocate and lend meanwhile.
    void collapse_lent() {
        const char *last = nullptr;
        while (char *at = next_to_collapse(last))
            if (all_there(at) && madvise(at, UNIT * PAGE, MADV_COLLAPSE) != 0 && errno == EINVAL) return;
    }

    bool keep_windows(const Returns *returns) {
        std::lock_guard<std::mutex> hold(mutex_);
        return windows_.keep(returns);
    }

    Shown look_at_window(char *at, const char *begin, size_t size) {
        std::lock_guard<std::mutex> hold(mutex_);
        Window *window = windows_.find(at);
        if (!window || !window->source) return {};
        const Mapping &m = window->mapping;
        const bool written = m.shared ? !Windows::isolate(*window) : page_table_.written(begin, begin + size);
        return {true, written, window->number, m.offset + static_cast<size_t>(begin - at)};
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
        Arena *arena = arena_of(begin);
        if (!arena || arena->fd < 0 || begin + size > arena->base + arena->pages * PAGE) return {};
        if (!lent_.empty() && is_isolated(begin, begin + size)) return {};
        const size_t page = page_of(*arena, begin);
        set_marks(*arena, page, page_of(*arena, begin + size - 1) + 1 - page, LOCATED);
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
        stats_.windows = windows_.size();
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
            each_gap(arena, [&](size_t page, size_t pages) { // lent blocks are private already
                void *at = mmap(arena.base + page * PAGE, pages * PAGE, PROT_READ | PROT_WRITE, flags,
                                reader ? arena.fd : -1, reader ? static_cast<off_t>(page * PAGE) : 0);
                if (at == MAP_FAILED) _exit(127); // the parent's memory must not be written by two processes
            });
            arena.borrowed = reader;
            if (!reader) {
                madvise(arena.base, arena.pages * PAGE, MADV_HUGEPAGE);
                each_used(arena, [&](size_t page, size_t pages) {
                    const auto lent = lent_.find(arena.base + page * PAGE);
                    if (lent == lent_.end())
                        copy_in(arena, page * PAGE, pages * PAGE);
                    else if (lent->second.ours)
                        own_block(arena, page, pages);
                });
            }
            close(arena.fd);
            arena.fd = -1;
        }
        if (!windows_.become_private(reader)) _exit(127);
        lent_.clear();
        page_table_.reopen();
        spans_.clear();
        for (auto &bin : cache_) bin.second.clear();
        cached_pages_ = 0;
        parked_.clear();
        readers_.clear();
        stats_ = Stats{};
        new (&mutex_) std::mutex;
    }

    // with the mutex held: whether a fork's child depends on its parent's stillness
    bool has_arenas() const { return !arenas_.empty() || windows_.size() > 0; }

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

    void unpark() {
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

    Window end_window(char *at, std::vector<Mapping> &old) {
        Window window = windows_.remove(at, page_table_, old);
        if (window.own) end_loan_held(Place{arena_of(window.own)->id, window.own - arena_of(window.own)->base});
        if (window.returns) window.returns->put(window.number);
        return window;
    }

    std::map<char *, Lent>::iterator find_lent(Place place) {
        const auto it = arenas_.find(place.arena);
        return it == arenas_.end() ? lent_.end() : lent_.find(it->second->base + place.offset);
    }

    void end_loan_held(Place place) {
        const auto lent = find_lent(place);
        if (lent == lent_.end() || lent->second.loans == 0) return;
        stats_.loans--;
        if (--lent->second.loans > 0) return;
        char *block = lent->first;
        Arena &arena = *arena_of(block);
        if (lent->second.ours) return; // see drop_originals
        lent_.erase(lent);
        retire(arena, page_of(arena, block));
    }

    // whether anything from `begin` to `end` is mapped privately, having been lent
    bool is_isolated(const char *begin, const char *end) const {
        auto it = lent_.lower_bound(const_cast<char *>(end));
        while (it != lent_.begin()) {
            --it;
            if (it->first + it->second.pages * PAGE <= begin) return false;
            if (it->second.ours) return true;
        }
        return false;
    }

    static void set_marks(Arena &arena, size_t page, size_t pages, Mark mark) {
        std::memset(arena.marks.data() + page, mark, pages);
    }
    static bool is_located(const Arena &arena, size_t page, size_t pages) {
        return std::memchr(arena.marks.data() + page, LOCATED, pages) != nullptr;
    }

    static bool map_pages(const Arena &arena, size_t page, size_t pages, int how) {
        char *at = arena.base + page * PAGE;
        return mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_NORESERVE | how, arena.fd,
                    static_cast<off_t>(page * PAGE)) != MAP_FAILED;
    }

    // a block that nobody uses any more, but readers
    void retire(Arena &arena, size_t page) {
        if (arena.born[page] < newest_reader())
            parked_.push_back(arena.base + page * PAGE);
        else
            recycle(arena, page);
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
        if (collapses_ && arena.fd >= 0 && reused_ >= UNIT) collapse_next(arena);
        return block;
    }

    // nothing is made resident that was not
    static bool all_there(char *unit) {
        unsigned char there[UNIT];
        return mincore(unit, UNIT * PAGE, there) == 0 && std::all_of(there, there + UNIT, [](unsigned char c) { return c & 1; });
    }

    // A unit of a block that was lent before, unwritten; from the block after `last` on, nullptr: there is none.
    char *next_to_collapse(const char *&last) {
        std::lock_guard<std::mutex> hold(mutex_);
        for (auto it = lent_.lower_bound(const_cast<char *>(last)); it != lent_.end(); ++it) {
            Lent &lent = it->second;
            if (!lent.ours || lent.times < 2) continue;
            const Arena &arena = *arena_of(it->first);
            const size_t page = page_of(arena, it->first), first = (page + UNIT - 1) / UNIT;
            while ((first + lent.collapsed + 1) * UNIT <= page + lent.pages) {
                char *at = arena.base + (first + lent.collapsed++) * UNIT * PAGE;
                last = it->first;
                if (!page_table_.written(at, at + UNIT * PAGE)) return at;
            }
        }
        return nullptr;
    }

    // Whether a unit of it was not looked at yet.
    static bool has_unit(const Arena &arena) {
        return arena.fd >= 0 && !arena.sealed && arena.huge + UNIT <= arena.touched;
    }

    // The next unit into a huge page, where all its pages are there: of the arena whose memory was used again, then of
    // others, where what lives long is read again and again.
    void collapse_next(Arena &used) {
        const auto begin = Clock::now();
        if (begin < next_collapse_) return;
        reused_ = 0;
        Arena *arena = &used;
        if (!has_unit(used)) {
            if (begin < next_of_others_) return;
            const auto other = std::find_if(arenas_.begin(), arenas_.end(), [](auto &a) { return has_unit(*a.second); });
            if (other == arenas_.end()) return;
            arena = other->second.get();
        }
        char *at = arena->base + arena->huge * PAGE;
        arena->huge += UNIT;
        if ((!lent_.empty() && is_isolated(at, at + UNIT * PAGE)) || !all_there(at)) return;
        // a unit may be in the way of something at the moment; only a kernel that cannot do it at all ends the attempts
        if (madvise(at, UNIT * PAGE, MADV_COLLAPSE) != 0 && errno == EINVAL) collapses_ = false;
        const auto end = Clock::now();
        const auto took = end - begin;
        if (arena != &used) next_of_others_ = end + COLLAPSE_PAUSE_LONG * took;
        else next_collapse_ = end + (took > COLLAPSE_SLOW ? COLLAPSE_PAUSE_LONG : COLLAPSE_PAUSE) * took;
    }

    // A block up to page `end` is new from page `untouched` on: the units that begin there, which nobody uses yet,
    // become huge pages.
    void enter_units(Arena &arena, size_t untouched, size_t end) {
        for (size_t page = (untouched + UNIT - 1) / UNIT * UNIT; page < end && collapses_; page += UNIT) {
            const auto begin = Clock::now();
            if (begin < next_new_) return;
            char *at = arena.base + page * PAGE;
            static_cast<void>(*static_cast<volatile char *>(at)); // of units without any page none can be made
            const bool moved = madvise(at, UNIT * PAGE, MADV_COLLAPSE) == 0;
            if (!moved && errno == EINVAL) collapses_ = false;
            if (moved && arena.huge == page) arena.huge += UNIT;
            const auto now = Clock::now();
            const auto took = now - begin;
            if (!moved || took > COLLAPSE_SLOW) next_new_ = now + COLLAPSE_PAUSE_LONG * took;
        }
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
        const size_t untouched = std::exchange(arena.touched, std::max(arena.touched, page + pages));
        if (arena.fd >= 0 && pages * PAGE < LAZY_BLOCK) enter_units(arena, untouched, page + pages);
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
        arena->marks.resize(arena->pages);
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
        if (arena.lent) fallocate(arena.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size));
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
        each_used(arena, [&](size_t page, size_t pages) { own_block(arena, page, pages); });
        arena.borrowed = false;
    }
    static void own_block(const Arena &arena, size_t page, size_t pages) {
        for (size_t end = page + pages; page < end; page++) {
            volatile char *at = arena.base + page * PAGE;
            *at = *at;
        }
    }

    // what lies between the blocks of an arena that are mapped privately, having been lent
    template <class Found> void each_gap(const Arena &arena, Found found) const {
        size_t page = 0;
        for (auto it = lent_.lower_bound(arena.base); it != lent_.end() && it->first < arena.base + arena.pages * PAGE; ++it) {
            if (!it->second.ours) continue;
            const size_t next = page_of(arena, it->first);
            if (next > page) found(page, next - page);
            page = next + it->second.pages;
        }
        if (page < arena.pages) found(page, arena.pages - page);
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
    std::map<char *, Lent> lent_; // by block
    Windows windows_;
    PageTable page_table_;
    int64_t next_id_ = 0;
    size_t reused_ = 0; // pages, since the last unit was collapsed
    Clock::time_point next_collapse_{}, next_of_others_{}, next_new_{}; // not before
    bool collapses_ = true;
    Stats stats_;
};

} // namespace resilin::memory
