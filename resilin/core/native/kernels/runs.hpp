// Copies of arrays by runs: along every dimension the result shows runs of evenly spaced places of the source, or nothing
// of it. Rolled, padded, repeated, turned and thinned out arrays are all of this kind.
#pragma once
#include "binding/array.hpp"

#include <cstdint>
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

// The elements in C order; `fill` is one element, null for zeros.
void copy_runs(const char *x, Runs runs, int64_t bytes, const char *fill, char *y);

void bind_runs(nb::module_ &m);

} // namespace resilin
