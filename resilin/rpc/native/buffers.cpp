#include "buffers.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>

#include <sys/mman.h>

namespace resilin::rpc {
namespace {

constexpr size_t KEPT_MIN_BYTES = 8 << 10, KEPT_CLASSES = 6; // 8 KiB to 256 KiB: more than a chunk
constexpr size_t KEPT_EACH = 8;
constexpr size_t HUGE_BYTES = 2 << 20;

struct Kept {
    std::mutex mutex;
    std::array<std::array<char *, KEPT_EACH>, KEPT_CLASSES> blocks; // guarded by mutex
    std::array<size_t, KEPT_CLASSES> counts{};                      // guarded by mutex
};
Kept &kept() {
    static Kept *all = new Kept; // never freed: threads may end after the module
    return *all;
}

// the smallest class that holds it; KEPT_CLASSES: none is for such a size
size_t class_of(size_t size) {
    if (size < KEPT_MIN_BYTES) return KEPT_CLASSES;
    size_t number = 0;
    while (number < KEPT_CLASSES && KEPT_MIN_BYTES << number < size) number++;
    return number;
}

} // namespace

char *take_buffer(size_t size) {
    const size_t number = class_of(size);
    if (number < KEPT_CLASSES) {
        {
            const std::lock_guard<std::mutex> guard(kept().mutex);
            if (kept().counts[number]) return kept().blocks[number][--kept().counts[number]];
        }
        size = KEPT_MIN_BYTES << number;
    }
    if (size < 2 * HUGE_BYTES) return static_cast<char *>(std::malloc(std::max<size_t>(size, 1)));
    const size_t whole = (size + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    auto *at = static_cast<char *>(std::aligned_alloc(HUGE_BYTES, whole));
    if (at) madvise(at, whole, MADV_HUGEPAGE); // advice
    return at;
}

void give_buffer(char *at, size_t size) {
    const size_t number = class_of(size);
    if (number < KEPT_CLASSES) {
        const std::lock_guard<std::mutex> guard(kept().mutex);
        if (kept().counts[number] < KEPT_EACH) {
            kept().blocks[number][kept().counts[number]++] = at;
            return;
        }
    }
    std::free(at);
}

} // namespace resilin::rpc
