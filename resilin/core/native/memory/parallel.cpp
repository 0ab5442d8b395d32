#include "parallel.hpp"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace resilin {
namespace {

constexpr int SPIN_US = 50; // waking a thread takes 5 to 50
thread_local int seat = 0;  // among the pool's threads; the caller's

class Pool {
  public:
    explicit Pool(int helpers) {
        for (int i = 0; i < helpers; i++) threads_.emplace_back([this, i] { seat = i + 1, work(); });
    }
    ~Pool() {
        {
            std::lock_guard<std::mutex> hold(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        for (auto &thread : threads_) thread.join();
    }

    void run(int64_t blocks, const std::function<void(int64_t)> &block) {
        {
            std::lock_guard<std::mutex> hold(mutex_);
            block_ = &block;
            blocks_ = blocks;
            next_.store(0, std::memory_order_relaxed);
            round_.store(round_ + 1, std::memory_order_release);
            open_ = true;
        }
        wake_.notify_all();
        drain(block, blocks);
        {
            std::lock_guard<std::mutex> hold(mutex_);
            open_ = false; // a thread that the system has not let run yet is not waited for: nothing is left for it
        }
        const bool done = spin([this] { return busy_.load(std::memory_order_acquire) == 0; });
        std::unique_lock<std::mutex> hold(mutex_);
        if (!done) done_.wait(hold, [this] { return busy_ == 0; });
        if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    }

  private:
    // A block that throws (out of memory) ends the blocks of its thread; run() throws it again, in the caller's.
    void drain(const std::function<void(int64_t)> &block, int64_t blocks) {
        try {
            for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < blocks;) block(i);
        } catch (...) {
            std::lock_guard<std::mutex> hold(mutex_);
            if (!error_) error_ = std::current_exception();
        }
    }
    // Looks for a while before it sleeps: kernels follow one another within microseconds, and waking takes longer.
    template <class Condition> static bool spin(Condition condition) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(SPIN_US);
        do
            for (int i = 0; i < 64; i++)
                if (condition()) return true;
        while (std::chrono::steady_clock::now() < end);
        return false;
    }
    void work() {
        uint64_t seen = 0;
        std::unique_lock<std::mutex> hold(mutex_);
        for (;;) {
            hold.unlock();
            spin([&] { return round_.load(std::memory_order_acquire) != seen; });
            hold.lock();
            wake_.wait(hold, [&] { return stop_ || round_ != seen; });
            if (stop_) return;
            seen = round_;
            if (!open_) continue;
            busy_++;
            const auto *block = block_;
            const int64_t blocks = blocks_;
            hold.unlock();
            drain(*block, blocks);
            hold.lock();
            if (--busy_ == 0) done_.notify_one();
        }
    }

    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    const std::function<void(int64_t)> *block_ = nullptr; // guarded by mutex_, as all below but the atomics
    int64_t blocks_ = 0;
    std::exception_ptr error_;
    std::atomic<uint64_t> round_{0};
    std::atomic<int> busy_{0}; // threads that take blocks now; more only while the round is open
    bool open_ = false, stop_ = false;
    std::atomic<int64_t> next_{0};
};

// One kernel at a time uses the pool; a kernel that finds it taken (another Python thread) runs its blocks itself.
struct Shared {
    std::mutex taken;
    std::unique_ptr<Pool> pool;
};
Shared *shared = new Shared; // never destroyed: kernels may run while the process exits
std::atomic<int> wanted{1};

void prepare_fork() { shared->taken.lock(); }
void after_fork_in_parent() { shared->taken.unlock(); }
void after_fork_in_child() {
    // the helpers exist in the parent only: forget them without joining
    shared->pool.release();
    shared = new Shared;
}

} // namespace

void set_num_threads(int n) {
    static const int registered = pthread_atfork(prepare_fork, after_fork_in_parent, after_fork_in_child);
    (void)registered;
    std::lock_guard<std::mutex> hold(shared->taken);
    wanted.store(n);
    shared->pool.reset(); // started again by the next kernel that wants it
}

int num_threads() { return wanted.load(std::memory_order_relaxed); }

void run_blocks(int64_t blocks, const std::function<void(int64_t)> &block) {
    std::unique_lock<std::mutex> hold(shared->taken, std::try_to_lock);
    const int threads = num_threads();
    if (!hold.owns_lock() || threads == 1) {
        for (int64_t i = 0; i < blocks; i++) block(i);
        return;
    }
    if (!shared->pool) shared->pool = std::make_unique<Pool>(threads - 1);
    shared->pool->run(blocks, block);
}

void run_shares(int64_t blocks, const std::function<void(int64_t)> &block) {
    const int64_t threads = num_threads();
    std::vector<std::atomic<bool>> taken(static_cast<size_t>(blocks));
    const auto take = [&](int64_t i) {
        if (!taken[static_cast<size_t>(i)].exchange(true, std::memory_order_relaxed)) block(i);
    };
    run_blocks(threads, [&](int64_t) {
        const int64_t own = std::min<int64_t>(seat, threads - 1), begin = blocks * own / threads;
        const int64_t end = blocks * (own + 1) / threads;
        for (int64_t i = begin; i < end; i++) take(i);
        for (int64_t i = begin - 1; i >= 0; i--) take(i);
        for (int64_t i = blocks - 1; i >= end; i--) take(i);
    });
}

} // namespace resilin
