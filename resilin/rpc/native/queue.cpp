#include <algorithm>
#include <cerrno>
#include <cmath>

#include <unistd.h>

#include "inbox.hpp"

namespace resilin::rpc {
namespace {

constexpr double SPIN_S = 150e-6;   // longer than a call with a tensor takes there and back
// A spin that ends so late was interrupted: somebody else wants the core, and who sleeps gets it back sooner than who
// has used up his share. None is tried for a while then, twice as long each time, shorter again while they end in time.
constexpr double LATE_S = 500e-6, SHORTEST_PAUSE_S = 10e-3, LONGEST_PAUSE_S = 300e-3;
constexpr double PERIOD_S = 0.5e-3; // after so long without a look at it a queue's messages are taken by who watches
constexpr int IDLE_PERIODS = 8;     // without messages, until nobody watches
constexpr double SIGNALS_S = 1.0;   // a signal that comes just before a thread sleeps does not wake it

// Spinning on the only core keeps away whom it waits for. Where this process has one of several, the peer may have another.
bool several_cores() { return sysconf(_SC_NPROCESSORS_ONLN) > 1; }

thread_local std::weak_ptr<Queue> out_with; // the queue 0 whose messages this thread is out with

} // namespace

// While it lives, this thread, which is out with messages of queue 0, waits elsewhere: it is not about to be back.
class Queue::Apart {
  public:
    explicit Apart(const Queue *elsewhere) : from_(out_with.lock()) {
        if (from_.get() == elsewhere) from_.reset();
        if (!from_) return;
        Bell &bell = from_->bell_;
        const bool last = bell.out.fetch_sub(1, std::memory_order_seq_cst) == 1;
        if (last && bell.sleepers.load(std::memory_order_seq_cst) != 0 && from_->more()) call(bell);
    }
    ~Apart() {
        if (!from_) return;
        from_->last_.store(dist::now(), std::memory_order_relaxed);
        from_->bell_.out.fetch_add(1, std::memory_order_seq_cst);
    }
    Apart(const Apart &) = delete;
    Apart &operator=(const Apart &) = delete;

  private:
    std::shared_ptr<Queue> from_;
};

class Queue::Asleep {
  public:
    explicit Asleep(Bell &bell) : bell_(bell) { bell_.sleepers.fetch_add(1, std::memory_order_seq_cst); }
    ~Asleep() {
        bell_.waking.store(0, std::memory_order_seq_cst); // before this thread looks: who rings now need not wake another
        bell_.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    }
    Asleep(const Asleep &) = delete;
    Asleep &operator=(const Asleep &) = delete;

  private:
    Bell &bell_;
};

Queue::Queue(std::shared_ptr<Inbox> inbox, uint16_t number)
    : inbox_(std::move(inbox)), number_(number), process_(getpid()), bell_(inbox_->bell(number)), spins_(several_cores()),
      pause_s_(SHORTEST_PAUSE_S) {
    const std::scoped_lock guard(inbox_->requests_, inbox_->replies_);
    inbox_->queues_[number] = this;
    bell_.out.store(0, std::memory_order_seq_cst);
    bell_.open.store(1, std::memory_order_seq_cst);
}

// --- taking what is there ---

bool Queue::pop(Batch &batch, size_t most, bool quick) {
    const auto own = [&] {
        for (; !local_.empty() && batch.size() < most; local_.pop_front()) batch.local.push_back(local_.front());
        local_size_.store(local_.size(), std::memory_order_relaxed);
    };
    bool chunks = false;
    local_first_ = !local_first_; // neither kind waits for ever
    if (local_first_) own();
    if (number_ == REQUESTS) {
        chunks = pop_requests(batch, most, quick);
    } else if (batch.size() < most) {
        if (arrived_.empty() && !quick) chunks = inbox_->sort_locked();
        for (; !arrived_.empty() && batch.size() < most; arrived_.pop_front()) batch.arrived.push_back(std::move(arrived_.front()));
    }
    own();
    if (batch.size() > 0) own_last_.store(batch.arrived.empty(), std::memory_order_relaxed);
    return chunks;
}

bool Queue::pop_requests(Batch &batch, size_t most, bool quick) {
    const auto &links = inbox_->links_;
    const size_t count = links.size(), first = inbox_->turn_;
    bool chunks = false, ended = false;
    for (size_t i = 0; i < count && batch.size() < most; i++) {
        const size_t at = (first + i) % count;
        Link &link = *links[at];
        Reader &reader = link.reader(REQUESTS);
        ended = ended || link.ended();
        if (reader.empty() || link.broken()) continue;
        inbox_->turn_ = at + 1; // peers take turns
        Reader::Found found = Reader::Found::NOTHING;
        Arrived message;
        while (batch.size() < most && (found = reader.next(message, quick)) == Reader::Found::MESSAGE) {
            message.source = link.peer();
            batch.arrived.push_back(std::move(message));
        }
        if (found == Reader::Found::BROKEN)
            link.breaks(reader.why());
        else
            reader.done();
        chunks = chunks || found == Reader::Found::CHUNKS;
    }
    if (ended) {
        const std::lock_guard<std::mutex> guard(inbox_->replies_);
        inbox_->sweep_locked();
    }
    return chunks;
}

bool Queue::skip() {
    const bool found = skip_;
    skip_ = false;
    return found;
}

bool Queue::more(bool at_once) {
    std::unique_lock<std::mutex> guard(mutex(), std::defer_lock);
    if (!at_once)
        guard.lock();
    else if (!guard.try_lock())
        return true;
    if (!local_.empty()) return true;
    for (const std::shared_ptr<Link> &link : inbox_->links_)
        if (!link->broken() && !link->reader(REQUESTS).empty()) return true;
    return false;
}

bool Queue::take_now(Batch &batch, size_t most) {
    returned();
    {
        std::unique_lock<std::mutex> guard(mutex(), std::try_to_lock);
        if (!guard || closed()) return closed();
        pop(batch, most, true);
        if (batch.size() == 0) return skip();
        skip_ = false;
    }
    left();
    return true;
}

// --- who serves queue 0 ---

void Queue::returned() {
    if (number_ != REQUESTS || out_with.lock().get() != this) return;
    out_with.reset();
    bell_.out.fetch_sub(1, std::memory_order_seq_cst);
}

void Queue::left() {
    if (number_ != REQUESTS) return;
    last_.store(dist::now(), std::memory_order_relaxed);
    out_with = weak_from_this();
    bell_.out.fetch_add(1, std::memory_order_seq_cst);
    if (bell_.sleepers.load(std::memory_order_seq_cst) == 0 || bell_.watched.load(std::memory_order_seq_cst) != 0) return;
    if (more(true)) call(bell_); // it watches
}

// Messages wait while others are out, who may be back any moment, or wait for something: this thread waits for them, and
// returns when it is its turn to look.
void Queue::watch(double deadline, uint64_t wakes) {
    if (bell_.out.load(std::memory_order_seq_cst) == 0 || bell_.watched.exchange(1, std::memory_order_seq_cst) != 0) return;
    {
        const Asleep asleep(bell_);
        for (int idle = 0; idle < IDLE_PERIODS;) {
            const double at = dist::now();
            if (closed() || wakes_.load() != wakes || at >= deadline || bell_.out.load(std::memory_order_seq_cst) == 0) break;
            double until = last_.load(std::memory_order_relaxed) + PERIOD_S;
            if (at >= until) {
                if (more()) break;
                idle++;
                until = at + PERIOD_S;
            }
            const uint32_t seen = bell_.rings.load(std::memory_order_seq_cst);
            dist::futex_wait(&bell_.rings, seen, std::min(until, deadline));
            bell_.waking.store(0, std::memory_order_seq_cst);
        }
        bell_.watched.store(0, std::memory_order_seq_cst); // before it looks
    }
}

// --- waiting ---

void Queue::rest(uint32_t seen, double deadline, uint64_t wakes) {
    const auto rung = [&] { return bell_.rings.load(std::memory_order_seq_cst) != seen; };
    const double begin = dist::now();
    const bool worth_it = spins_ && !own_last_.load(std::memory_order_relaxed) && begin >= spins_from_.load(std::memory_order_relaxed);
    if (worth_it && bell_.spinning.exchange(1, std::memory_order_seq_cst) == 0) {
        spinner_.spin(std::min(SPIN_S, deadline - begin), rung, [] { return false; });
        const double end = dist::now();
        const bool late = end - begin > LATE_S;
        if (late) spins_from_.store(end + pause_s_, std::memory_order_relaxed);
        pause_s_ = late ? std::min(2 * pause_s_, LONGEST_PAUSE_S) : std::max(pause_s_ * (1 - 1.0 / 64), SHORTEST_PAUSE_S);
        bell_.spinning.store(0, std::memory_order_seq_cst);
    }
    if (rung()) return;
    int why;
    {
        const Asleep asleep(bell_);
        why = dist::futex_wait(&bell_.rings, seen, std::min(deadline, dist::now() + SIGNALS_S));
    }
    if (why == EINTR || why == ETIMEDOUT) check_signals();
    if (why == 0 && number_ == REQUESTS) watch(deadline, wakes);
}

void Queue::take(Batch &batch, size_t most, double deadline) {
    const Apart apart(this);
    std::unique_lock<std::mutex> guard(mutex());
    const uint64_t wakes = wakes_.load();
    struct Count { // of those in here
        std::unique_lock<std::mutex> &guard;
        int &count;
        Count(std::unique_lock<std::mutex> &guard, int &count) : guard(guard), count(count) { count++; }
        ~Count() {
            if (!guard) guard.lock();
            count--;
            guard.unlock();
        }
    };
    {
        const Count counted(guard, waiting_);
        for (;;) {
            const uint32_t seen = bell_.rings.load(std::memory_order_seq_cst); // before it looks
            if (closed()) return;
            const bool chunks = pop(batch, most, false), skips = skip();
            if (batch.size() != 0) break;
            if (skips || wakes_.load() != wakes || dist::now() >= deadline) return;
            guard.unlock();
            if (!chunks) rest(seen, deadline, wakes);
            guard.lock();
        }
    }
    left();
}

// --- the owner's ---

bool Queue::put(void *object, bool &busy, bool &calls) {
    {
        std::unique_lock<std::mutex> guard(mutex(), std::defer_lock);
        if (!busy) {
            guard.lock();
        } else if (!guard.try_lock()) {
            return false;
        }
        busy = false;
        if (closed()) return false;
        local_.push_back(object);
        local_size_.store(local_.size(), std::memory_order_relaxed);
    }
    calls = rung(bell_);
    return true;
}

void Queue::wake() {
    {
        const std::lock_guard<std::mutex> guard(mutex());
        if (waiting_ == 0) skip_ = true;
        wakes_.fetch_add(1);
    }
    ring_for_all(bell_);
}

std::vector<void *> Queue::close() {
    std::vector<void *> dropped;
    if (getpid() != process_) { // a forked child that ends: the queue is its parent's
        closed_.store(true);
        return dropped;
    }
    {
        const std::scoped_lock guard(inbox_->requests_, inbox_->replies_);
        if (closed_.exchange(true)) return dropped;
        bell_.open.store(0, std::memory_order_seq_cst);
        inbox_->queues_.erase(number_);
        dropped.assign(local_.begin(), local_.end());
        local_.clear();
        local_size_.store(0, std::memory_order_relaxed);
        arrived_.clear();
        for (const std::shared_ptr<Link> &link : inbox_->links_) link->reader(number_).disturb(); // who waits for room drops it
    }
    ring_for_all(bell_);
    return dropped;
}

} // namespace resilin::rpc
