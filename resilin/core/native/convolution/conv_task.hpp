// What the ways without columns share: a convolution as products of its weights with what each place of the kernel reads.
#pragma once
#include "conv_images.hpp"

#include <cstdint>
#include <vector>

namespace resilin::conv {

// Weights as rows of a product: of output `o`, channel `c` and place `t` at w[o * output + c * channel + place[t]]. They are
// `size` elements in all.
struct Weights {
    int64_t output, channel, size;
    std::vector<int64_t> place;
};

// One convolution of images whose channels lie one after another into images that lie `y` apart (with columns).
struct Task {
    int64_t samples, groups, channels, outputs; // channels and outputs of a group
    Axis down, across;
    Weights weights;
    int64_t weights_group = 0;                  // from one group's weights to the next one's
    int64_t y_sample, y_channel, y_row, y_column;

    int64_t places() const { return static_cast<int64_t>(weights.place.size()); }
    int64_t positions() const { return down.count * across.count; }
    int64_t x_channel() const { return down.length * across.length; }
    int64_t x_sample() const { return groups * channels * x_channel(); }
};

// Does the task of as many of its first samples as fill vectors of samples, where that is worth while: returns how many.
template <class T> int64_t by_samples(const Task &task, const T *x, const T *w, const std::vector<float> &bias, T *y);

} // namespace resilin::conv
