// Copies of arrays by runs: along every dimension the result shows runs of evenly spaced places of the source, or nothing
// of it. Rolled, padded, repeated, turned and thinned out arrays are all of this kind.
#pragma once
#include "binding/array.hpp"
#include "simd.hpp"

#include <cstdint>
#include <cstring>
#include <vector>

namespace resilin {

struct Run {
    int64_t from, step; // in bytes of the source; `from` is NOWHERE where the result is filled
    int64_t count;
};
constexpr int64_t NOWHERE = INT64_MIN;

// What the result shows along its dimensions; of none of length 0. Elements of 1, 2, 4, 8 or 16 bytes.
using Runs = std::vector<std::vector<Run>>;
inline bool has_runs(int64_t bytes) { return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16; }

// memcpy, but that it is fast for any two places: the C library's copies of some kilobytes by a microcoded loop, which on
// some CPUs is an order of magnitude slower where both do not lie alike in their lines of cache.
void copy_bytes(const char *from, int64_t bytes, char *to);

// A few bytes, for copies that are too short for a call: by vectors, the last of which may lie over the one before it.
RESILIN_INLINE void copy_short(const char *from, int64_t bytes, char *to) {
    if (bytes >= 32) {
        for (int64_t i = 0; i < bytes - 32; i += 32) {
            std::memcpy(to + i, from + i, 32);
            __asm__ volatile("" ::: "memory"); // or the compiler makes memcpy of it
        }
        std::memcpy(to + bytes - 32, from + bytes - 32, 32);
    } else if (bytes >= 16) {
        std::memcpy(to, from, 16);
        std::memcpy(to + bytes - 16, from + bytes - 16, 16);
    } else if (bytes >= 8) {
        std::memcpy(to, from, 8);
        std::memcpy(to + bytes - 8, from + bytes - 8, 8);
    } else if (bytes >= 4) {
        std::memcpy(to, from, 4);
        std::memcpy(to + bytes - 4, from + bytes - 4, 4);
    } else {
        for (int64_t i = 0; i < bytes; i++) to[i] = from[i];
    }
}

// The elements in C order; `fill` is one element, null for zeros.
void copy_runs(const char *x, Runs runs, int64_t bytes, const char *fill, char *y);

// Of an array that has runs: a new array of what `runs` of its dimensions show; None for one of too many elements.
bool has_runs(PyArrayObject *x);
nb::object arranged(PyArrayObject *x, Runs runs, const char *fill);

void bind_runs(nb::module_ &m);

} // namespace resilin
