// Moves a collective's bytes over connected stream sockets: one per peer, sending and receiving at once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "reduce.hpp"

namespace resilin::dist {

// Bytes to or from one peer, part of step `step` of a schedule.
struct Move {
    int64_t step;
    int peer;
    char *at;
    size_t size;
    const char *own; // what arrives is combined with this, which may be `at`; null: it replaces what is there
};

enum class Flow : int { DONE, GONE, LATE, STOPPED, STUCK, MISMATCH, MISFIT };

struct FlowEnd {
    Flow status;
    int to, source; // GONE: the peer that is gone; LATE, STOPPED: whom we wait for; -1: nobody
};

// What a rank says of its call before data moves, and what all have said.
struct Opening {
    std::vector<char> word;     // ranks must say the same
    std::vector<int64_t> sizes; // of an all_to_all: bytes for each rank, then bytes expected of each; else empty
    std::vector<char> heard;    // MISMATCH: the words of all ranks, one after the other; MISFIT: their sizes
};

// One rank's sockets by peer (-1: none, as for the rank itself). They are non-blocking and stay the caller's.
class Streams {
  public:
    explicit Streams(std::vector<int> sockets);
    ~Streams();
    Streams(const Streams &) = delete;
    Streams &operator=(const Streams &) = delete;

    // Walk through a schedule: the sends in their order and the receives in theirs, each as soon as its data allows.
    // A byte is sent once every receive of an earlier step has written it, and overwritten once every send of this step
    // or an earlier one has taken it: so steps overlap, and results are those of one step after the other. Where no move
    // touches what another one writes, only the order between two ranks counts: who waits then waits for all peers at
    // once. What is combined is combined in pieces at fixed places, own data first. Deadline: absolute CLOCK_MONOTONIC
    // seconds.
    FlowEnd walk(const std::vector<Move> &sends, const std::vector<Move> &receives, int dtype, Op op, double deadline);

    // As walk, once all ranks have said the same. Every rank tells every other its word, and right behind it sends what
    // it can: it says how many bytes, so that where words differ (MISMATCH) or sizes do not fit (MISFIT) all ranks, which
    // have all heard the same, throw these away, and the streams are as before. Nothing is written to `receives` then.
    FlowEnd open(Opening &opening, std::vector<Move> sends, const std::vector<Move> &receives, int dtype, Op op, double deadline);

    // End a running walk with STOPPED, and every later one. Any thread.
    void stop();
    // `peer` sends no more than `total` bytes over the life of this object, and takes none: past that it is gone. Any thread.
    void end(int peer, int64_t total);
    // bytes to and from `peer` so far; no walk is running
    int64_t sent(int peer) const { return peers_[peer].sent; }
    int64_t received(int peer) const { return peers_[peer].received; }

  private:
    struct Peer {
        int socket;
        int wanted = 1; // SO_RCVLOWAT
        int64_t sent = 0, received = 0;
        std::atomic<int64_t> ends{-1};
    };

    struct Cursor { // the progress of moves whose order counts
        const std::vector<Move> &sends, &receives;
        size_t needed;           // how many of the sends are to be done
        size_t s = 0, r = 0;     // the moves at work
        size_t sent = 0;         // bytes of sends[s]
        size_t got = 0, set = 0; // bytes of receives[r]: arrived, and in place
    };

    struct Talk; // what goes and comes before all ranks have agreed

    FlowEnd finish(std::vector<Cursor> &cursors, int dtype, Op op, double deadline);
    FlowEnd agree(Opening &opening, Talk &talk, double deadline);
    FlowEnd fit(Opening &opening, Talk &talk, double deadline);
    FlowEnd move_on(Talk &talk, std::vector<Move> receives, size_t sends, double deadline);
    FlowEnd throw_away(Talk &talk, Flow why, double deadline);
    size_t sendable(const Cursor &c) const;
    size_t receivable(const Cursor &c) const;
    bool send_some(Cursor &c, size_t room, FlowEnd &end);
    bool receive_some(Cursor &c, size_t room, int dtype, Op op, FlowEnd &end);
    bool wait(const std::vector<Cursor> &cursors, double deadline, FlowEnd &end);
    FlowEnd awaited(const std::vector<Cursor> &cursors, Flow why) const;
    void want(Peer &peer, size_t bytes);
    void wake();

    size_t count_;
    std::unique_ptr<Peer[]> peers_;
    std::vector<char> piece_; // what arrives to be combined, while it is in cache
    std::atomic<bool> stopped_{false};
    int wake_; // eventfd: readable once something other than a socket changed
};

} // namespace resilin::dist
