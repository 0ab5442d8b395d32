// The control segment that the ranks of one host share: who has arrived where, what each rank called, and whether the
// group is aborted. It lives in a memfd without a name, so it ends with its last holder. No locks: a rank may be killed
// between any two instructions and the others still notice (their control sockets close) and abort.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "reduce.hpp"
#include "waiting.hpp"

namespace resilin::dist {

constexpr size_t INLINE_BYTES = 64 << 10; // the most that travels in a slot: one barrier instead of two
constexpr size_t STAGE_BYTES = 512 << 10; // what peers cannot map passes through a stage in pieces of this size, two in turn
constexpr int MAX_REGIONS = MAX_RANKS + 64;
constexpr size_t DESCRIPTOR_BYTES = 80;
constexpr size_t GUARD_BYTES = 256 << 10; // peers' memory is written in blocks of this size, the abort word read before each
constexpr double SETTLE_S = 0.05;         // how long a rank that leaves a failed call waits for blocks in flight

// as wire/frames.py packs it: sequence, kind, dtype, op, number of dimensions, root, shape
struct Descriptor {
    uint64_t sequence;
    uint8_t kind, dtype, op, ndim;
    int32_t root;
    int64_t shape[8];
};
static_assert(sizeof(Descriptor) == DESCRIPTOR_BYTES);

// What one rank publishes for one call. Two sides in turn: a slow reader of call n is never overtaken, because a writer
// of call n+2 has passed a barrier that the reader entered after reading.
struct Region {
    uint64_t arena, offset, size; // arena IN_SLOT: `offset` counts in the payload
    uint64_t expected;            // all_to_all: bytes that this rank expects from the one whose number the region has
};
constexpr uint64_t IN_SLOT = ~uint64_t{0};

enum Shared : uint32_t { IN_SLOTS, IN_ARENA, IN_STAGE }; // IN_STAGE: 2 * STAGE_BYTES that stand for the tensor

struct Side {
    Descriptor descriptor;
    uint32_t n_regions;
    uint32_t shared; // Shared: where the regions lie; outside the slot nobody may change them before a second barrier
    Region regions[MAX_REGIONS];
    alignas(64) char payload[INLINE_BYTES];
};

// One tensor of this rank that peers read or write in a call: in an arena that they have been sent, or copied to the slot.
struct Piece {
    char *data;
    size_t size;
    uint64_t arena, offset;
    size_t expected = 0; // as in Region
    bool in_slot() const { return arena == IN_SLOT; }
};

struct alignas(64) Slot {
    std::atomic<uint64_t> arrived;  // number of the last barrier this rank entered
    std::atomic<uint32_t> touching; // 1 while this rank writes a block into peers' memory
    alignas(64) Side side[2];
};

struct Header {
    uint32_t magic, ranks;
    uint64_t inline_bytes; // what all ranks send in their slots, at most INLINE_BYTES
    alignas(64) std::atomic<uint32_t> event;    // futex: changes with every completed barrier and with an abort
    std::atomic<uint32_t> sleepers;             // a hint: too high after a kill, never too low
    alignas(64) std::atomic<uint64_t> arrivals; // of all ranks in all barriers so far
    alignas(64) std::atomic<uint64_t> epoch;    // number of the last complete barrier
    alignas(64) std::atomic<uint64_t> abort;    // 0, or code << 32 | rank + 1; the first writer wins
};

enum Status : int { OK, ABORTED, TIMEOUT, MISMATCH, MISSING };
constexpr uint32_t STOPPED = 2; // cause in the abort word: a rank of this host gave up (backends/shm/collectives.py names the others)

// Memory of another process, mapped until its last user is done with it.
struct Mapping {
    char *at;
    size_t size;
    Mapping(char *at, size_t size) : at(at), size(size) {}
    ~Mapping();
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;
    bool holds(uint64_t offset, size_t bytes) const { return offset <= size && bytes <= size - offset; }
};

// One rank's end. Collective calls come from one thread at a time; `abort` and `add_arena` from any.
//
// A call that returns ABORTED or TIMEOUT has set the abort word, after which no rank starts another block in anybody's
// memory, and has waited until no rank is inside one, at most SETTLE_S. What is left: a rank that is stopped (a signal,
// a debugger) or starved in the middle of a block for longer than that still writes the rest of this block, at most
// GUARD_BYTES of what it was reducing, when it runs again. A dead rank writes nothing and is not waited for.
class Segment {
  public:
    // maps `fd` (stays the caller's). Who creates it says how much travels in slots; 0: map what a peer has created.
    Segment(int fd, int rank, int ranks, size_t inline_bytes);
    ~Segment();
    Segment(const Segment &) = delete;
    Segment &operator=(const Segment &) = delete;
    static size_t bytes(int ranks);
    static size_t inboxes_at(int ranks); // where the messages' part begins: post.hpp

    // enter the next barrier and wait for all. Deadline: absolute CLOCK_MONOTONIC seconds. `moved`: bytes that a rank has
    // moved since the last one, at most: peers that are slower at that are waited for awake in proportion.
    Status barrier(double deadline, double spin_s, size_t moved = 0);
    // publish a descriptor and `n` pieces, meet all, compare descriptors. Those in the slot have at most inline_bytes()
    // together, each rounded up to a cache line.
    Status exchange(const Descriptor &mine, const Piece *pieces, int n, double deadline, double spin_s, Shared as = IN_ARENA);
    size_t inline_bytes() const { return header_->inline_bytes; }
    // where piece `index` of `rank` lies after `exchange`; null while its arena has not arrived, which `missing` then names
    char *locate(int rank, size_t index);
    // false only where benchmarks/dist_overhead.py measures what comparing costs: calls are not safe then
    bool compare = true;
    bool crowded = false; // ranks outnumber the cores that they have
    // reduce `count` elements per array into memory of peers; OK, ABORTED (partly done), MISMATCH: not defined
    Status write(int dtype, Op op, const char *const *srcs, int n_srcs, char *const *dsts, int n_dsts, size_t count);
    // copy into memory of a peer; OK, ABORTED (partly done)
    Status push(char *dst, const char *src, size_t size, bool stream);

    const Side &side(int rank) const { return slots_[rank].side[round_ & 1]; }
    int rank() const { return rank_; }
    int ranks() const { return ranks_; }
    int mismatched() const { return mismatched_; }                // after MISMATCH: a rank that differs from rank 0
    std::pair<int, uint64_t> missing() const { return missing_; } // rank and arena
    std::vector<int> late() const;                                // ranks that have not entered the current barrier
    uint64_t aborted() const { return header_->abort.load(std::memory_order_acquire); } // 0, or as in Header
    void abort(uint32_t code, int rank, int dead); // `rank`: whom to blame; `dead`: this slot's rank writes no more, or -1
    // this rank has left a call by an exception, and the abort word is set: wait until no rank is inside a block
    void settle();

    // map a peer's arena of `size` bytes behind `fd` (stays the caller's); false when the file is shorter
    bool add_arena(int rank, uint64_t id, int fd, size_t size);
    // take over the arenas of `from`; ranks[r]: who rank r of `from` is here, -1: left out. How many they are.
    size_t adopt(Segment &from, const std::vector<int> &ranks);
    // address of [offset, offset + size) of a peer's arena, or null when it is not mapped or too short
    char *address(int rank, uint64_t id, uint64_t offset, size_t size);
    // the whole arena, kept mapped; null when it has not arrived. Any thread.
    std::shared_ptr<Mapping> arena(int rank, uint64_t id);
    std::shared_ptr<Mapping> mapping() const { return mapping_; } // of this segment itself

    // unmap everything; no collective call is running. `abort` and `add_arena` do nothing from now on.
    void close();

  private:
    template <class Block> Status guarded(size_t count, size_t step, Block block);
    Status meet(const Descriptor &mine, const Piece *pieces, int n, double deadline, double spin_s, Shared as);
    Status enter(double deadline, double spin_s, Awake &awake);
    Status settle(Status status);
    Status wait(uint64_t number, double deadline, double spin_s, Awake &awake);
    void wake();
    bool same_descriptors();

    int rank_, ranks_;
    size_t size_;
    Header *header_; // null after close: guarded by mutex_
    Slot *slots_;
    uint64_t count_ = 0; // barriers entered
    uint64_t round_ = 0; // descriptors published
    Awake arriving_, leaving_; // how well waiting awake has paid at the beginnings of calls, and at their ends
    std::shared_ptr<Mapping> mapping_;
    int mismatched_ = -1;
    std::pair<int, uint64_t> missing_{-1, 0};
    std::mutex mutex_;
    std::map<std::pair<int, uint64_t>, std::shared_ptr<Mapping>> arenas_; // guarded by mutex_
};

} // namespace resilin::dist
