// How tiles want their operands packed. It has no functions, as tiles_body.hpp asks.
#pragma once
#include <cstdint>

namespace resilin {

constexpr int64_t GROUP_STEPS = 32; // of the depth of bfloat16, see product.hpp

// All but `plain` are of bfloat16, by groups of the depth, and their sums start with `plus` or zero.
enum class Layout {
    plain,  // step after step
    split,  // as float32, first a group's even steps, then its odd ones
    pairs,  // the same, a step and the next one of its chain in the place of a float, the earlier one in the upper half
    matrix, // a group of 16 lanes fills a tile register, an even step and the odd one behind it in the place of a float
};

} // namespace resilin
