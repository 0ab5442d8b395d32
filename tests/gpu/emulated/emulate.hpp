// Runs a CUDA kernel on the host: every thread of a block is a fiber, barriers and warp shuffles hand over to the next.
// Blocks run one after another. A barrier that not all threads reach ends the program with a message.
#pragma once
#undef _FORTIFY_SOURCE  // which takes a jump to another stack for a mistake
#include <csetjmp>
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

inline int __float_as_int(float v) {
    int out;
    std::memcpy(&out, &v, 4);
    return out;
}
inline float __int_as_float(int v) {
    float out;
    std::memcpy(&out, &v, 4);
    return out;
}

namespace emulated {
struct Barrier {
    unsigned members = 0, arrived = 0, generation = 0;
};
struct Fiber {
    ucontext_t context;
    jmp_buf place;  // where it goes on: a jump, unlike swapcontext, asks the kernel for nothing
    std::unique_ptr<char[]> stack;
    dim3 index;
    bool done = false;
};
inline std::vector<Fiber> fibers;
inline std::vector<Barrier> barriers;  // one for the block, then one for each warp
inline std::vector<double> slots;      // what each thread offers to its warp, 8 bytes
inline jmp_buf scheduler;
inline unsigned current = 0;
inline std::function<void()> body;

// In functions of their own, as what a function with a jump keeps in registers is lost.
[[gnu::noinline]] inline void give_way() {
    if (_setjmp(fibers[current].place) == 0) _longjmp(scheduler, 1);
}
[[gnu::noinline]] inline void begin(Fiber& fiber) {
    if (_setjmp(scheduler) == 0) setcontext(&fiber.context);
}
[[gnu::noinline]] inline void go_on(Fiber& fiber) {
    if (_setjmp(scheduler) == 0) _longjmp(fiber.place, 1);
}

inline void wait(Barrier& barrier) {
    const unsigned mine = barrier.generation;
    if (++barrier.arrived == barrier.members) {
        barrier.arrived = 0;
        ++barrier.generation;
        return;
    }
    while (barrier.generation == mine) give_way();
}
inline void leave() {  // a thread that is done no longer counts in its barriers
    for (Barrier* barrier : {&barriers[0], &barriers[1 + current / 32]}) {
        if (--barrier->members != 0 && barrier->arrived == barrier->members) {
            barrier->arrived = 0;
            ++barrier->generation;
        }
    }
    fibers[current].done = true;
}
inline void start() {  // one fiber for all blocks and launches
    for (;;) {
        body();
        leave();
        give_way();
    }
}
inline void make(Fiber& fiber) {
    constexpr std::size_t STACK = 32 << 10;
    fiber.stack.reset(new char[STACK]);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, start, 0);
}
}  // namespace emulated

inline dim3 blockIdx, blockDim, gridDim;
#define threadIdx (emulated::fibers[emulated::current].index)

inline void __syncthreads() { emulated::wait(emulated::barriers[0]); }
inline void __threadfence() {}
inline unsigned atomicInc(unsigned* at, unsigned most) {  // from 0 again after `most`
    const unsigned before = *at;
    *at = before >= most ? 0 : before + 1;
    return before;
}

template <typename T> T __shfl_xor_sync(unsigned, T value, int distance) {
    using namespace emulated;
    const unsigned lane = current;
    Barrier& warp = barriers[1 + lane / 32];
    std::memcpy(&slots[lane], &value, sizeof(T));
    wait(warp);
    T found;
    std::memcpy(&found, &slots[lane ^ static_cast<unsigned>(distance)], sizeof(T));
    wait(warp);
    return found;
}

namespace emulated {
inline void run(dim3 grid, dim3 block, std::function<void()> kernel) {
    const unsigned threads = block.x * block.y * block.z;
    gridDim = grid;
    blockDim = block;
    body = std::move(kernel);
    if (fibers.size() < threads) fibers.resize(threads);
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
        for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
            slots.assign(threads, 0);
            barriers.assign(1 + (threads + 31) / 32, {});
            barriers[0].members = threads;
            for (unsigned i = 0; i < threads; ++i) {
                ++barriers[1 + i / 32].members;
                Fiber& fiber = fibers[i];
                fiber.done = false;
                fiber.index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
            }
            for (unsigned left = threads, rounds = 0; left; ++rounds) {
                left = 0;
                for (current = 0; current < threads; ++current) {
                    if (fibers[current].done) continue;
                    Fiber& fiber = fibers[current];
                    if (fiber.stack) {
                        go_on(fiber);
                    } else {
                        make(fiber);
                        begin(fiber);
                    }
                    left += !fiber.done;
                }
                if (rounds > 100000) {
                    std::fprintf(stderr, "a barrier was not reached by all threads of its block or warp\n");
                    std::abort();
                }
            }
        }
    }
}

template <typename... Args, std::size_t... I>
void launch(void (*kernel)(Args...), dim3 grid, dim3 block, void** values, std::index_sequence<I...>) {
    run(grid, block, [=] { kernel(*static_cast<std::remove_reference_t<Args>*>(values[I])...); });
}
template <typename... Args> void launch(void (*kernel)(Args...), dim3 grid, dim3 block, void** values) {
    launch(kernel, grid, block, values, std::index_sequence_for<Args...>{});
}
}  // namespace emulated
