// Products of small matrices, many of them: each in registers, without packing.
#pragma once
#include "product.hpp"

namespace resilin {

constexpr int64_t SMALL = 16; // rows, columns and depth up to here

// The product's bits are those of `multiply`: each element one chain of fused multiply-adds, ascending. Nothing is added.
void multiply_small(const Product<float> &product);
void multiply_small(const Product<double> &product);

} // namespace resilin
