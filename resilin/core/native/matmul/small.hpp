// Products of small matrices, many of them: each in registers, without packing.
#pragma once
#include "product.hpp"

namespace resilin {

constexpr int64_t SMALL = 16; // rows, columns and depth up to here

// The product's bits are those of `multiply`: each element one chain of fused multiply-adds, ascending. Nothing is added.
void multiply_small(const Product<float> &product);
void multiply_small(const Product<double> &product);
// The same of 16-bit floats; of BFloat while Subnormals<BFloat> lives.
void multiply_small(const Product<float, Half> &product, Half *out, int64_t ld_out);
void multiply_small(const Product<float, BFloat> &product, BFloat *out, int64_t ld_out);

} // namespace resilin
