// A small pool of threads for row-parallel kernels.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>

namespace resilin {

void set_num_threads(int n);
int num_threads();
void run_blocks(int64_t blocks, const std::function<void(int64_t)> &block);
// The same in any order: each thread has a share of its own, the same one every time, as a part of it may still lie in
// the cache of the thread's core. Who is done with it takes from the others.
void run_shares(int64_t blocks, const std::function<void(int64_t)> &block);

// Below this many elements (about 30 us) a kernel runs in the calling thread: waking another one costs as much.
constexpr int64_t PARALLEL_MIN = 32 << 10;

// fn(begin, end) over [0, rows) in pieces of at least `grain` rows. Only for work whose rows do not depend on one
// another: the pieces depend on the number of threads, the result must not.
template <class Fn> void parallel_rows(int64_t rows, int64_t row_size, Fn fn) {
    const int threads = num_threads();
    if (threads == 1 || rows <= 1 || rows * row_size < PARALLEL_MIN) {
        if (rows > 0) fn(int64_t{0}, rows);
        return;
    }
    const int64_t pieces = std::min<int64_t>(rows, 4 * threads);
    run_shares(pieces, [&](int64_t i) { fn(rows * i / pieces, rows * (i + 1) / pieces); });
}

// fn(block, begin, end) over [0, rows) in blocks of exactly `size` rows (the last may be shorter): partial sums of
// blocks, combined in block order by the caller, are the same bits for any number of threads.
template <class Fn> void parallel_fixed(int64_t rows, int64_t size, int64_t row_size, Fn fn) {
    const int64_t blocks = (rows + size - 1) / size;
    auto block = [&](int64_t i) { fn(i, i * size, std::min(rows, (i + 1) * size)); };
    if (num_threads() == 1 || blocks <= 1 || rows * row_size < PARALLEL_MIN) {
        for (int64_t i = 0; i < blocks; i++) block(i);
        return;
    }
    run_blocks(blocks, block);
}

// fn(piece) for each of a few `pieces` of one work, which is large: their number may be that of the threads.
template <class Fn> void run_pieces(int64_t pieces, Fn fn) {
    if (pieces == 1) fn(int64_t{0});
    else run_blocks(pieces, fn);
}

// fn(slot, item) for each of `items`; no two run in one of `slots` at a time, so that a slot can own scratch memory.
template <class Fn> void parallel_slots(int64_t items, int64_t slots, int64_t item_size, Fn fn) {
    if (slots <= 1 || items <= 1 || items * item_size < PARALLEL_MIN) {
        for (int64_t item = 0; item < items; item++) fn(int64_t{0}, item);
        return;
    }
    std::atomic<int64_t> next{0};
    run_blocks(slots, [&](int64_t slot) {
        for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) fn(slot, item);
    });
}

} // namespace resilin
