// Products of a few rows, without packing the matrix.
#pragma once
#include "product.hpp"

namespace resilin {

// The product in `blocks` of its depth, with the bits of tiles; false, and nothing is written, where tiles are faster.
// Matrices are turned in registers of `register_bytes`: 64, 32 or none.
bool multiply_few(const Product<float> &product, int64_t blocks, int64_t register_bytes, bool threads);

} // namespace resilin
