// How a thread learns that its queue has messages: a bell for each queue of a worker, which its peers ring.
//
// A ring costs a system call only where somebody sleeps and nobody is about to look. Of several threads that serve a
// queue at most one spins, one is woken at a time, and while some are out with messages none is woken at all as long as
// one watches: those come back soon, and threads that are woken for each message would only fight for Python's lock.
// Who watches wakes by itself and takes what nobody has looked after (queue.cpp).
#pragma once

#include <atomic>
#include <cstdint>

#include "waiting.hpp"

namespace resilin::rpc {

constexpr size_t BELLS = 1 << 16; // queues of a worker

struct Bell {
    alignas(64) std::atomic<uint32_t> rings; // futex: changes with every message, after it was placed
    std::atomic<uint32_t> open;              // 0: messages for the queue are dropped, best before they are sent
    std::atomic<uint32_t> sleepers;          // on `rings`
    std::atomic<uint32_t> spinning;          // 1: somebody looks at `rings`
    std::atomic<uint32_t> waking;            // 1: somebody was woken who has not looked yet
    std::atomic<uint32_t> out;               // threads that took messages and have not come back for more
    std::atomic<uint32_t> watched;           // 1: a sleeper wakes by itself while something is left
};

constexpr size_t BELLS_BYTES = BELLS * sizeof(Bell);

// One of those who sleep is woken. A wake-up that met nobody is repeated if messages came meanwhile, whose senders
// relied on it. Who dies in the middle leaves `waking`: its receiver hears of the death and wakes everybody.
inline void call(Bell &bell) {
    for (uint32_t seen = bell.rings.load(std::memory_order_seq_cst); bell.waking.exchange(1, std::memory_order_seq_cst) == 0;) {
        if (dist::futex_wake(&bell.rings, 1) > 0) return;
        bell.waking.store(0, std::memory_order_seq_cst);
        const uint32_t latest = bell.rings.load(std::memory_order_seq_cst);
        if (latest == seen || bell.sleepers.load(std::memory_order_seq_cst) == 0) return;
        seen = latest;
    }
}

// A message has been placed. True: somebody sleeps who has to be called.
inline bool rung(Bell &bell) {
    bell.rings.fetch_add(1, std::memory_order_seq_cst);
    if (bell.spinning.load(std::memory_order_seq_cst) != 0 || bell.sleepers.load(std::memory_order_seq_cst) == 0) return false;
    return bell.out.load(std::memory_order_seq_cst) == 0 || bell.watched.load(std::memory_order_seq_cst) == 0;
}

inline void ring(Bell &bell) {
    if (rung(bell)) call(bell);
}

// Everybody looks.
inline void ring_for_all(Bell &bell) {
    bell.rings.fetch_add(1, std::memory_order_seq_cst);
    bell.waking.store(0, std::memory_order_seq_cst);
    dist::futex_wake(&bell.rings);
}

} // namespace resilin::rpc
