// Waiting for a word in shared memory to change: awake for a moment, then asleep in the kernel.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace resilin::dist {

inline double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// sleep while *word == expected, until the absolute deadline; returns errno (0, EAGAIN, EINTR, ETIMEDOUT)
inline int futex_wait(std::atomic<uint32_t> *word, uint32_t expected, double deadline) {
    timespec at, *limit = nullptr;
    if (std::isfinite(deadline)) {
        at.tv_sec = static_cast<time_t>(deadline);
        at.tv_nsec = static_cast<long>((deadline - std::floor(deadline)) * 1e9);
        limit = &at;
    }
    const long r = syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, limit, nullptr, FUTEX_BITSET_MATCH_ANY);
    return r == 0 ? 0 : errno;
}

// wakes so many of those who sleep on the word; returns how many there were
inline long futex_wake(std::atomic<uint32_t> *word, int most = INT_MAX) {
    return syscall(SYS_futex, word, FUTEX_WAKE, most, nullptr, nullptr, 0);
}

// Spinning pays only while peers run at the same time. Each failure halves the next spin, a success restores the full
// time. Peers that have put each other to sleep would stay so, each too late for the other's short spin: so the full time
// is tried again, after one more wait, and after twice as many each time that it fails.
class Spinner {
  public:
    // true once `done()`; false after `longest_s`, or less, or once `over()`
    template <class Done, class Over> bool spin(double longest_s, Done done, Over over) {
        const bool whole = share_ == 1.0 || ++waits_ >= gap_;
        const double until = now() + (whole ? longest_s : longest_s * share_);
        do {
            for (int i = 0; i < SPINS_PER_LOOK; i++) {
                if (done()) {
                    share_ = 1.0;
                    gap_ = 1;
                    return true;
                }
                relax();
            }
            if (over()) return false;
        } while (now() < until);
        share_ = std::max(share_ / 2, SHORTEST_SHARE);
        if (whole) {
            gap_ = std::min(2 * gap_, LONGEST_GAP);
            waits_ = 0;
        }
        return false;
    }

  private:
    static constexpr int SPINS_PER_LOOK = 64; // turns between two looks at the clock
    static constexpr uint64_t LONGEST_GAP = 32;
    static constexpr double SHORTEST_SHARE = 1.0 / 16;

    static void relax() {
#if defined(__x86_64__)
        _mm_pause();
#else
        std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
    }

    double share_ = 1.0; // of the longest spin, for the next one
    uint64_t waits_ = 0, gap_ = 1; // since the full time has failed, and until it is tried again
};

// Where ranks outnumber cores, who waits keeps the very peer from running that it waits for: so it gives the core away,
// again and again. That costs a fifth of a sleep and a wake-up, as long as nobody but ranks that wait wants the core: any
// other program keeps it for a whole slice. A turn that comes back late says so, and then none is tried for a while,
// twice as long each time; while turns come back soon, that becomes shorter again.
class Yielder {
  public:
    // true once `done()`; false after `longest_s`, a late turn, or once `over()`
    template <class Done, class Over> bool yield(double longest_s, Done done, Over over) {
        double at = now();
        if (at < not_before_) return false;
        for (const double until = at + longest_s; at < until && !over();) {
            if (done()) {
                pause_s_ = std::max(pause_s_ * (1 - 1.0 / SUCCESSES), SHORTEST_PAUSE_S);
                return true;
            }
            sched_yield();
            const double back = now();
            if (back - at > LATE_S) {
                not_before_ = back + pause_s_;
                pause_s_ = std::min(2 * pause_s_, LONGEST_PAUSE_S);
                break;
            }
            at = back;
        }
        return done();
    }

  private:
    static constexpr double LATE_S = 1000e-6; // a peer's share of a small call is shorter, a slice of the scheduler longer
    static constexpr double SHORTEST_PAUSE_S = 10e-3, LONGEST_PAUSE_S = 300e-3;
    static constexpr int SUCCESSES = 64; // so many of them shorten the pause to about a third

    double pause_s_ = SHORTEST_PAUSE_S, not_before_ = 0;
};

// Waiting without sleeping, as suits the number of ranks.
class Awake {
  public:
    template <class Done, class Over> bool wait(bool crowded, double longest_s, Done done, Over over) {
        if (longest_s <= 0) return false;
        return crowded ? yielder_.yield(longest_s, done, over) : spinner_.spin(longest_s, done, over);
    }

  private:
    Spinner spinner_;
    Yielder yielder_;
};

} // namespace resilin::dist
