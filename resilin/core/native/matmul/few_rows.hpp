// Products of a few rows, without packing the matrix.
#pragma once
#include "product.hpp"

namespace resilin {

// The product in `blocks` of its depth, with the bits of tiles; false, and nothing is written, where tiles are faster.
bool multiply_few(const Product<float> &product, int64_t blocks, bool threads);

} // namespace resilin
