// The monotonic clock, read quicker: from the processor's counter of time, set anew by the clock every millisecond.
#pragma once
#include <algorithm>
#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace resilin::tracing {

inline int64_t clock_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
}

#if defined(__x86_64__)

// How a thread makes nanoseconds of the counter. `span`: for how long, from `from` on; 0: not at all.
struct Counting {
    uint64_t from, span, ns_per_tick; // the last in 2^-32
    int64_t ns, last;
};
extern __thread Counting counting; // all 0 at first: what is said so is read without asking whether it is made already

int64_t count_anew(); // takes the clock's time, and sets `counting` by it

// Nanoseconds of the monotonic clock. Of one thread they never go back.
inline int64_t now() {
    Counting &by = counting;
    const uint64_t passed = __rdtsc() - by.from;
    if (passed >= by.span) return count_anew();
    const auto ns = by.ns + static_cast<int64_t>(static_cast<unsigned __int128>(passed) * by.ns_per_tick >> 32);
    return by.last = std::max(by.last, ns);
}

#else

inline int64_t now() { return clock_ns(); }

#endif

} // namespace resilin::tracing
