// Loops of float32 over 16-bit floats: a block of them is converted, computed with and rounded while it is in the cache.
#pragma once
#include "binding/array.hpp"

#include <cstdint>

namespace resilin {

constexpr npy_intp HALF_BLOCK = 1024;

// Whole runs, one after the other in memory (matmul/pack.cpp).
void pack_half(const float *x, int64_t begin, int64_t end, uint16_t *y);
void unpack_half(const uint16_t *x, int64_t begin, int64_t end, float *y);
void pack_bfloat(const float *x, int64_t begin, int64_t end, uint16_t *y);
void unpack_bfloat(const uint16_t *x, int64_t begin, int64_t end, float *y);

// `value` rounded once to a 16-bit float (float16, or bfloat16), as float32.
void round_to_half(double value, bool float16, float *out);

struct HalfBlocks {
    void (*loop)(char **args, npy_intp const *dimensions, npy_intp const *steps, void *data);
    void *data;
    int inputs;
    bool float16;  // else bfloat16
    bool rounds;   // the loop's result is float32, and is rounded; else it is stored as it comes
    bool wide[2];  // an input that is float32 already: a number

    void run(char **at, npy_intp n, const npy_intp *steps) const;
};

} // namespace resilin
