// One connection between this worker and a peer: two rings each way, one for requests and one for all that goes to other
// queues, so that replies never wait behind requests that nobody takes yet.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "bell.hpp"
#include "memory.hpp"
#include "ring.hpp"

namespace resilin::rpc {

constexpr uint16_t REQUESTS = 0; // the queue that worker threads serve
enum class Sent : int { DONE = 0, FULL = 1, OVER = 2, LATE = 3, LONG = 4 };

// What a thread polls that ends the connections of peers that have broken the rules.
class Waker {
  public:
    Waker();
    ~Waker();
    Waker(const Waker &) = delete;
    Waker &operator=(const Waker &) = delete;
    int fd() const { return fd_; }
    void wake();
    void close(); // links that are left wake nobody

  private:
    std::mutex mutex_; // the number may be another file's once it is closed
    int fd_;
};

// A system call was interrupted, or a second is over: run Python's signal handlers, throw what they raise.
void check_signals();

class Link {
  public:
    Link(int peer, size_t max_bytes, std::shared_ptr<Waker> waker);

    int fd() const { return incoming_->fd(); } // of the memory that the peer sends into
    void release() { incoming_->release(); }
    // The peer's bells, the memory that it receives from, and the longest message that it takes. std::invalid_argument
    // when they are not what they should be.
    void attach(int bells, int rings, size_t max_bytes);

    // At once: FULL when that would take waiting, or is too much to copy with Python's lock held.
    Sent send(Outgoing &what, uint16_t queue);
    Sent send(Outgoing &what, uint16_t queue, double deadline);
    void end(); // whoever sends returns OVER

    int peer() const { return peer_; }
    Reader &reader(uint16_t queue) { return queue == REQUESTS ? requests_ : replies_; }
    bool ended() const { return over_.load(std::memory_order_seq_cst); }
    bool broken() const { return broken_.load(std::memory_order_acquire); }
    const char *why() const { return broken() ? why_.load(std::memory_order_acquire) : ""; }
    void breaks(const char *why);
    void relieve(); // whoever waits for room looks again: the peer's queue may be closed

  private:
    struct Out { // one of the two rings that this worker writes
        std::timed_mutex mutex; // held for a message
        std::optional<Writer> writer;
    };

    Out &out(uint16_t queue) { return outs_[queue == REQUESTS ? 0 : 1]; }
    Sent put(Out &out, Outgoing &what, uint16_t queue, Kind kind, size_t size);
    Sent put_in_time(Out &out, Outgoing &what, uint16_t queue, Kind kind, size_t size, double deadline);
    bool open(uint16_t queue) const { return bell(queue).open.load(std::memory_order_relaxed) != 0; }
    Bell &bell(uint16_t queue) const { return reinterpret_cast<Bell *>(bells_->at())[queue]; }

    const int peer_;
    const std::shared_ptr<Waker> waker_;
    size_t max_bytes_; // of a message to the peer
    std::shared_ptr<Memory> incoming_, outgoing_, bells_;
    Reader requests_, replies_;
    Out outs_[2];
    std::atomic<bool> over_{false}, broken_{false};
    std::atomic<const char *> why_{""};
};

} // namespace resilin::rpc
