// The weights of a convolution as tiles without columns read them.
#pragma once
#include "conv_task.hpp"
#include "matmul/panels.hpp"
#include "matmul/tiles.hpp"

#include <cstdint>
#include <type_traits>
#include <vector>

namespace resilin::conv {

// A place of the kernel, and where it is in a channel's copy.
struct Tap {
    int64_t place, at;
};

// The weights of a task as tiles read them, and the lists of steps that belong to these. T is the type of the operands.
template <class T> class WeightRows {
  public:
    WeightRows(const Task &task, const T *w);

    const Panels panels;
    // Channels whose sums are one chain: even parts of all. (bfloat16: all.)
    const int64_t block;
    // channels whose elements lie in the place of one float
    static int64_t per_float() { return spread_tiles<T>().layout == Layout::pairs ? 2 : 1; }

    // Weights that only one piece reads are packed panel by panel, by whoever is about to read it.
    void pack_when_read() { when_read_ = true; }
    // Floats that the packed weights take, of all (0: they are read where they lie) and of each thread.
    int64_t size() const { return packs_ && !when_read_ ? task_.groups * task_.outputs * depth() : 0; }
    int64_t own_size() const { return packs_ && when_read_ ? ceil_div(task_.outputs, panels.count) * depth() : 0; }
    void pack(float *to);
    // The steps of `channels` channels, whose copies are `elements` apart, at some places.
    std::vector<Step> steps(const std::vector<Tap> &taps, int64_t channels, int64_t elements) const;
    // A panel's weights, of which a row is a lane and a column a step. `own` is the thread's memory.
    View<float> panel(int64_t group, int64_t i, float *own) const;
    // Lets a tile read them from a channel on, by such a list of so many taps.
    void set(Spread<float> &of, const View<float> &panel, int64_t rows, int64_t channel, int64_t channels,
             const std::vector<Step> &list, int64_t taps, int64_t elements) const;

  private:
    static constexpr bool FLOATS = std::is_same_v<T, float>;
    // whether the weights of an output lie in the order of its sum
    bool together() const {
        const Weights &of = task_.weights;
        bool together = of.output == task_.channels * task_.places();
        together &= of.channel == task_.places() || task_.channels == 1;
        for (int64_t t = 0; t < task_.places(); t++) together &= of.place[static_cast<size_t>(t)] == t;
        return together;
    }
    int64_t depth() const { return task_.channels * task_.places() / per_float(); } // floats of a row
    void pack(int64_t group, int64_t panel, float *to) const;

    const Task &task_;
    const T *const w_;
    const bool packs_;
    bool when_read_ = false;
    float *packed_ = nullptr;
};

} // namespace resilin::conv
