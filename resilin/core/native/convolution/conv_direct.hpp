// Convolution without columns: a tile of the image is copied once, with its padding, and each place of the kernel reads it
// at an offset of its own (see Spread in tiles.hpp). The gradient of the input is the same of the output's gradient, one
// pass for each remainder of its positions by the stride. Many samples of small maps go with samples in lanes and skip
// padding (conv_chwn.cpp), with the same bits, but that a weight which is not finite makes no NaN of padding there.
//
// Sums. float32: input channels in blocks of at most 384 kernel positions (even parts of all, at least one channel); a block
// is one chain of fused multiply-adds from zero, by channel and kernel position, ascending; the output is the bias plus
// the blocks, ascending. bfloat16: the order of products (product.hpp), of a depth of blocks of 32 channels, in each the
// kernel positions, for each of these the channels; it is rounded once. The gradient of the input sums so over the output's
// channels and the kernel positions that reach it; that of the weight over positions in tiles, as conv2d.cpp says.
#pragma once
#include "conv_columns.hpp"
#include "matmul/product.hpp"

namespace resilin::conv {

// Whether there is a way for such shapes; T is float or BFloat. float32: all outputs but those of 1 x 1 windows, which are
// products already; gradients of the input unless few positions, few channels or few shared places make columns cheaper;
// of the weight from 8 channels and 128 positions on. bfloat16: numbers of channels that four divides, from 8 on, and for
// gradients of the weight such lengths of output rows; what is not, is computed in float32 and rounded.
template <class T> bool has_direct_forward(const Shape &s);
template <class T> bool has_direct_input(const Shape &s);
template <class T> bool has_direct_weight(const Shape &s);

template <class T> void direct_forward(const Shape &s, const T *x, const T *w, const T *bias, T *y);
template <class T> void direct_input(const Shape &s, const T *g, const T *w, T *dx);
template <class T> void direct_weight(const Shape &s, const T *g, const T *x, T *dw);
// Of the bias: samples ascending, of each the sum of a row in blocks of 256.
void direct_bias(const Shape &s, const BFloat *g, BFloat *db);

} // namespace resilin::conv
