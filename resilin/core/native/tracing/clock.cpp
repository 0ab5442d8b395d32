// When the processor's counter may be counted by, and how fast it goes.
#include "clock.hpp"

#if defined(__x86_64__)

#include <atomic>
#include <fstream>
#include <mutex>
#include <string>

#include <pthread.h>

namespace resilin::tracing {

__thread Counting counting;

namespace {

constexpr int64_t ANEW_NS = 1000000;        // what the clock is slewed by meanwhile is below its own resolution
constexpr int64_t LEAST_NS = 20000000;      // between two readings that tell the counter's speed: a millionth is 20 ns
constexpr int64_t MOST_NS = 1000000000;     // the speed is that of the last two seconds: clocks are slewed
constexpr int TRIES = 4;                    // a reading that is interrupted is none
constexpr uint64_t MOST_APART = 500;        // ticks that one takes: it is exact to half of that
constexpr uint64_t OFF_PER_MILLION = 2000;  // of the first speed: more, and the machine slept, or is another one now

struct Reading {
    uint64_t ticks = 0;
    int64_t ns = 0;
};

std::mutex lock;
Reading older, newer;   // guarded by lock, as all below
uint64_t first_speed = 0;

// Whether the kernel takes its time from the counter, too: then all cores have the same, and it never stops.
bool counter_is_the_clock() {
    std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    std::string name;
    return file >> name && name == "tsc";
}

// The nanoseconds of a tick in 2^-32; 0: not known.
uint64_t speed_at(const Reading &at) {
    const std::lock_guard<std::mutex> held(lock);
    if (!older.ns) older = newer = at;
    if (at.ns - newer.ns > MOST_NS) older = newer, newer = at;
    const int64_t passed_ns = at.ns - older.ns;
    if (passed_ns < LEAST_NS || at.ticks <= older.ticks) return 0;
    const auto speed = static_cast<uint64_t>((static_cast<unsigned __int128>(passed_ns) << 32) / (at.ticks - older.ticks));
    if (!first_speed) first_speed = speed;
    const uint64_t off = std::max(speed, first_speed) - std::min(speed, first_speed);
    if (off > first_speed / 1000000 * OFF_PER_MILLION) {
        older = newer = at, first_speed = 0;
        return 0;
    }
    return speed;
}

} // namespace

int64_t count_anew() {
    static const bool usable = counter_is_the_clock() &&
                               pthread_atfork([] { lock.lock(); }, [] { lock.unlock(); }, [] { lock.unlock(); }) == 0;
    Counting &by = counting;
    by.span = 0;
    Reading at;
    uint64_t apart = 0;
    int tries = usable ? TRIES : 1;
    do {
        const uint64_t before = __rdtsc();
        at.ns = clock_ns();
        apart = __rdtsc() - before;
        at.ticks = before + apart / 2;
    } while (apart > MOST_APART && --tries);
    by.last = std::max(by.last, at.ns);
    if (!usable || apart > MOST_APART) return by.last;
    if (const uint64_t speed = speed_at(at)) {
        by.from = at.ticks, by.ns = at.ns, by.ns_per_tick = speed;
        by.span = static_cast<uint64_t>((static_cast<unsigned __int128>(ANEW_NS) << 32) / speed);
    }
    return by.last;
}

} // namespace resilin::tracing

#endif
