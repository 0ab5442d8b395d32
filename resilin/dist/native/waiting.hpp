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

inline void futex_wake(std::atomic<uint32_t> *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

// Spinning pays only while peers run at the same time. Each failure halves the next spin, a success restores the full
// time, and one try in PROBE uses it whatever came before. When two ranks share a core (an overloaded machine), a spin
// keeps the very peer from running that it waits for.
class Spinner {
  public:
    // true once `done()`; false after `longest_s`, or less, or once `over()`
    template <class Done, class Over> bool spin(double longest_s, Done done, Over over) {
        const bool probe = ++spins_ % PROBE == 0;
        const double until = now() + (probe ? longest_s : longest_s * share_);
        do {
            for (int i = 0; i < SPINS_PER_LOOK; i++) {
                if (done()) {
                    share_ = 1.0;
                    return true;
                }
                relax();
            }
            if (over()) return false;
        } while (now() < until);
        share_ = std::max(share_ / 2, SHORTEST_SHARE);
        return false;
    }

  private:
    static constexpr int SPINS_PER_LOOK = 64; // turns between two looks at the clock
    static constexpr uint64_t PROBE = 32;
    static constexpr double SHORTEST_SHARE = 1.0 / 16;

    static void relax() {
#if defined(__x86_64__)
        _mm_pause();
#else
        std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
    }

    uint64_t spins_ = 0;
    double share_ = 1.0; // of the longest spin, for the next one
};

} // namespace resilin::dist
