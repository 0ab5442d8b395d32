// The control segment that the ranks of one host share: who has arrived where, what each rank called, and whether the
// group is aborted. It lives in a memfd without a name, so it ends with its last holder. No locks: a rank may be killed
// between any two instructions and the others still notice (their control sockets close) and abort.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "reduce.hpp"

namespace resilin::dist {

constexpr size_t INLINE_BYTES = 4096; // payloads up to this travel in the slot: one barrier instead of two
constexpr size_t DESCRIPTOR_BYTES = 80;
constexpr size_t GUARD_BYTES = 256 << 10; // peers' memory is written in blocks of this size, the abort word read before each
constexpr double SETTLE_S = 0.05;         // how long a rank that leaves a failed call waits for blocks in flight

// as message.py packs it: sequence, kind, dtype, op, number of dimensions, root, shape
struct Descriptor {
    uint64_t sequence;
    uint8_t kind, dtype, op, ndim;
    int32_t root;
    int64_t shape[8];
};
static_assert(sizeof(Descriptor) == DESCRIPTOR_BYTES);

// What one rank publishes for one call. Two sides in turn: a slow reader of call n is never overtaken, because a writer
// of call n+2 has passed a barrier that the reader entered after reading.
struct Side {
    Descriptor descriptor;
    uint64_t arena, offset;
    char payload[INLINE_BYTES];
};

struct alignas(64) Slot {
    std::atomic<uint64_t> arrived;  // number of the last barrier this rank entered
    std::atomic<uint32_t> touching; // 1 while this rank writes a block into peers' memory
    alignas(64) Side side[2];
};

struct Header {
    uint32_t magic, ranks;
    alignas(64) std::atomic<uint32_t> event;    // futex: changes with every completed barrier and with an abort
    std::atomic<uint32_t> sleepers;             // a hint: too high after a kill, never too low
    alignas(64) std::atomic<uint64_t> arrivals; // of all ranks in all barriers so far
    alignas(64) std::atomic<uint64_t> epoch;    // number of the last complete barrier
    alignas(64) std::atomic<uint64_t> abort;    // 0, or code << 32 | rank + 1; the first writer wins
};

enum Status : int { OK, ABORTED, TIMEOUT, MISMATCH, MISSING };
constexpr uint32_t STOPPED = 2; // cause in the abort word: a rank of this host gave up (shm.py names the others)

// One rank's end. Collective calls come from one thread at a time; `abort` and `add_arena` from any.
//
// A call that returns ABORTED or TIMEOUT has set the abort word, after which no rank starts another block in anybody's
// memory, and has waited until no rank is inside one, at most SETTLE_S. What is left: a rank that is stopped (a signal,
// a debugger) or starved in the middle of a block for longer than that still writes the rest of this block, at most
// GUARD_BYTES of what it was reducing, when it runs again. A dead rank writes nothing and is not waited for.
class Segment {
  public:
    // maps `fd` (stays the caller's); `create` initialises it for `ranks` ranks
    Segment(int fd, int rank, int ranks, bool create);
    ~Segment();
    Segment(const Segment &) = delete;
    Segment &operator=(const Segment &) = delete;
    static size_t bytes(int ranks);

    // enter the next barrier and wait for all. Deadline: absolute CLOCK_MONOTONIC seconds.
    Status barrier(double deadline, double spin_s);
    // publish a descriptor with up to INLINE_BYTES of payload, meet all, compare descriptors
    Status exchange(const Descriptor &mine, const char *payload, size_t size, double deadline, double spin_s);
    // false only where benchmarks/dist_overhead.py measures what comparing costs: calls are not safe then
    bool compare = true;
    // reduce `data` over all ranks in place. Above INLINE_BYTES it lies at `offset` of this rank's arena `arena`, which
    // the peers have been sent. MISSING: an arena of a peer has not arrived yet; `resume` after it has.
    Status all_reduce(const Descriptor &mine, char *data, size_t count, uint64_t arena, uint64_t offset, double deadline, double spin_s);
    Status resume(double deadline, double spin_s);
    // reduce `count` elements per array into memory of peers; OK, ABORTED (partly done), MISMATCH: not defined
    Status write(int dtype, Op op, const char *const *srcs, int n_srcs, char *const *dsts, int n_dsts, size_t count);

    const Side &side(int rank) const { return slots_[rank].side[round_ & 1]; }
    int mismatched() const { return mismatched_; }            // after MISMATCH: a rank that differs from rank 0
    std::pair<int, uint64_t> missing() const { return missing_; } // after MISSING: rank and arena
    std::vector<int> late() const;                            // ranks that have not entered the current barrier
    uint64_t aborted() const { return header_->abort.load(std::memory_order_acquire); } // 0, or as in Header
    void abort(uint32_t code, int rank, int dead); // `rank`: whom to blame; `dead`: this slot's rank writes no more, or -1

    // map a peer's arena of `size` bytes behind `fd` (stays the caller's); false when the file is shorter
    bool add_arena(int rank, uint64_t id, int fd, size_t size);
    // address of [offset, offset + size) of a peer's arena, or null when it is not mapped or too short
    char *address(int rank, uint64_t id, uint64_t offset, size_t size);

    // unmap everything; no collective call is running. `abort` and `add_arena` do nothing from now on.
    void close();

  private:
    Status meet(const Descriptor &mine, const char *payload, size_t size, double deadline, double spin_s);
    Status enter(double deadline, double spin_s);
    Status settle(Status status);
    Status wait(uint64_t number, double deadline, double spin_s);
    bool spin(uint64_t number, double longest_s);
    void wake();
    bool same_descriptors();
    Status reduce_shared(double deadline, double spin_s);

    struct Pending { // the all_reduce that `resume` continues
        char *data;
        size_t count, size;
        int dtype;
        Op op;
    };

    int rank_, ranks_;
    size_t size_;
    Header *header_; // null after close: guarded by mutex_
    Slot *slots_;
    uint64_t count_ = 0; // barriers entered
    uint64_t round_ = 0; // descriptors published
    uint64_t spins_ = 0;
    double spin_share_ = 1.0; // of the longest spin, for the next one
    int mismatched_ = -1;
    std::pair<int, uint64_t> missing_{-1, 0};
    Pending pending_{};
    std::mutex mutex_;
    std::map<std::pair<int, uint64_t>, std::pair<char *, size_t>> arenas_; // guarded by mutex_
};

} // namespace resilin::dist
