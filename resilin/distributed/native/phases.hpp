#pragma once

#include <atomic>

namespace resilin::dist {

// Where a call has got to, for distributed/wire/call_phases.py: tests plan faults there. It costs one look where nobody listens.
inline std::atomic<bool> listening{false};

// Takes the GIL and tells the listener; throws what it raises.
void tell_phase(const char *phase);

inline void reached(const char *phase) {
    if (listening.load(std::memory_order_relaxed)) tell_phase(phase);
}

} // namespace resilin::dist
