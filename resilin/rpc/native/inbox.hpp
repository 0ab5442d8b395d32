// What one worker receives: its bells, the links that peers send through, and the queues that threads take from.
//
//   requests ring of each link ──────────────────────────────> queue 0: any number of threads
//   replies ring of each link ──> whoever looks first sorts ──> queue 1, 2, ...: a thread each
//
// Requests stay in their rings until they are taken, so a worker that is slow holds up those who send to it. Replies are
// sorted at once, whomever they are for: nobody's waits behind another's.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "bell.hpp"
#include "link.hpp"
#include "memory.hpp"

namespace resilin::rpc {

class Queue;

class Inbox {
  public:
    Inbox() : bells_(Memory::make("resilin-rpc-bells", BELLS_BYTES)) {}

    int fd() const { return bells_->fd(); }
    void release() { bells_->release(); } // the descriptor: no peer is connected any more
    Bell &bell(uint16_t number) const { return reinterpret_cast<Bell *>(bells_->at())[number]; }
    void add(const std::shared_ptr<Link> &link); // from now on its messages are looked for
    void remove(const Link *link);               // and what it has sent is dropped
    void finish(Link &link);                     // it is lost: what it has sent until now counts
    void sort();                                 // all replies that are there
    void sweep();                                // forget links that have ended and are empty
    void disturb();                              // everybody looks

  private:
    friend class Queue;

    bool sort_locked(); // true: part of a long message is left
    void sweep_locked();

    std::shared_ptr<Memory> bells_;
    std::mutex requests_, replies_; // in this order; nobody who holds one asks for Python's lock
    std::vector<std::shared_ptr<Link>> links_;       // changed under both, read under either
    size_t turn_ = 0;                                // guarded by requests_: the link that is looked at first
    std::unordered_map<uint16_t, Queue *> queues_;   // changed under both, read under either
};

// What `take` found: messages of peers, and Python objects that were put.
struct Batch {
    std::vector<Arrived> arrived;
    std::vector<void *> local;
    size_t size() const { return arrived.size() + local.size(); }
};

class Queue : public std::enable_shared_from_this<Queue> {
  public:
    Queue(std::shared_ptr<Inbox> inbox, uint16_t number);
    ~Queue() { close(); }

    // With Python's lock: what is there. False: nothing, or nobody knows at once.
    bool take_now(Batch &batch, size_t most);
    // Without it: waits.
    void take(Batch &batch, size_t most, double deadline);
    // False: it is closed; or, where the caller has said `busy` and that stays so, another thread is at it just now.
    // calls: somebody sleeps, and `wake_one` is to be called: without Python's lock, which whoever wakes asks for at once.
    bool put(void *object, bool &busy, bool &calls);
    void wake_one() { call(bell_); }
    void wake();
    std::vector<void *> close(); // what had been put
    bool closed() const { return closed_.load(std::memory_order_acquire); }
    size_t waiting() const { return local_size_.load(std::memory_order_relaxed); } // of those that were put

  private:
    friend class Inbox;
    class Apart;
    class Asleep;

    std::mutex &mutex() { return number_ == REQUESTS ? inbox_->requests_ : inbox_->replies_; }
    bool pop(Batch &batch, size_t most, bool quick); // the three: under the mutex. True: part of a long message is left
    bool pop_requests(Batch &batch, size_t most, bool quick);
    bool skip();
    bool more(bool at_once = false); // whether something is left, of queue 0; at once: also where that is not known
    void left();     // this thread goes with messages of queue 0
    void returned(); // and is back
    void rest(uint32_t seen, double deadline, uint64_t wakes);
    void watch(double deadline, uint64_t wakes);

    std::shared_ptr<Inbox> inbox_;
    const uint16_t number_;
    const int process_; // that has opened it
    Bell &bell_;
    dist::Spinner spinner_; // of whoever spins
    const bool spins_;
    double pause_s_; // of whoever spins: without spins, after the next one that is interrupted
    std::atomic<double> spins_from_{0};
    std::atomic<bool> own_last_{false}; // what came last was put by a thread of this process, which needs a core for that
    std::deque<Arrived> arrived_; // guarded by mutex()
    std::deque<void *> local_;    // guarded by mutex()
    std::atomic<size_t> local_size_{0};
    bool local_first_ = false;    // guarded by mutex()
    int waiting_ = 0;             // guarded by mutex(): threads in `take`
    bool skip_ = false;           // guarded by mutex(): the next `take` returns at once
    std::atomic<uint64_t> wakes_{0};
    std::atomic<double> last_{0}; // when a thread took messages of queue 0, or was back from a wait elsewhere
    std::atomic<bool> closed_{false};
};

} // namespace resilin::rpc
