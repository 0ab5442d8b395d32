#include "weight_rows.hpp"

#include "kernels/halves.hpp"
#include "memory/parallel.hpp"
#include "side_by_side.hpp"

#include <algorithm>

namespace resilin::conv {
namespace {

constexpr int64_t BLOCK_DEPTH = 384; // kernel positions of a block of channels: its panel of weights stays in the first cache
constexpr int64_t MANY = 512;        // positions that are worth packing crowded weights for

// The weights of one group packed as tiles read them: panels of rows, one after another.
template <int64_t Places> RESILIN_INLINE void pack_places(const float *w, const Weights &of, int64_t rows, int64_t channels, float *to) {
    const int64_t *place = of.place.data();
    const int64_t places = Places ? Places : static_cast<int64_t>(of.place.size());
    for (int64_t c = 0; c < channels; c++, to += rows * places)
        for (int64_t i = 0; i < rows; i++) {
            const float *from = w + c * of.channel + i * of.output;
            for (int64_t t = 0; t < places; t++) to[t * rows + i] = from[place[t]];
        }
}
RESILIN_SIMD void pack_weights(const float *w, const Weights &of, int64_t rows, int64_t channels, float *to) {
    switch (of.place.size()) { // the usual kernels without a loop
    case 4: return pack_places<4>(w, of, rows, channels, to);
    case 9: return pack_places<9>(w, of, rows, channels, to);
    default: return pack_places<0>(w, of, rows, channels, to);
    }
}
// Steps of pairs, element by element.
RESILIN_INLINE void pack_pair_steps(const BFloat *w, const Weights &of, int64_t rows, int64_t channels, uint32_t *to) {
    for (const int64_t place : of.place)
        for (int64_t chain = 0; chain < 2; chain++)
            for (int64_t c = chain; c < channels; c += 4) {
                const BFloat *from = w + c * of.channel + place;
                for (int64_t i = 0; i < rows; i++, from += of.output)
                    *to++ = static_cast<uint32_t>(from->bits) << 16 | from[2 * of.channel].bits;
            }
}
// A group of channels whose places lie side by side: vectors of them (of both chains, where these follow one another) of
// several channels' rows are turned together, so that a place's rows lie side by side, as they are wanted.
template <int64_t Rows> RESILIN_INLINE void pack_pair_group(const BFloat *w, const Weights &of, const BFloat *limit, uint32_t *to) {
    constexpr int64_t STEPS = GROUP_STEPS / 4, TOGETHER = SIDE / Rows;
    static_assert(STEPS % TOGETHER == 0);
    const int64_t places = static_cast<int64_t>(of.place.size()), columns = of.channel == places ? 2 * places : places;
    for (int64_t first = 0; first < 2 * places; first += columns)
        for (int64_t k = 0; k < STEPS; k += TOGETHER)
            for (int64_t j = 0; j < columns; j += SIDE) {
                const BFloat *from = w + (4 * k + (first ? 1 : 0)) * of.channel + of.place[0] + j;
                Pairs x[SIDE];
#pragma GCC unroll 16
                for (int64_t r = 0; r < SIDE; r++) {
                    const BFloat *at = from + std::min(r / Rows, TOGETHER - 1) * 4 * of.channel + r % Rows * of.output;
                    x[r] = upper(at, limit) | upper(at + 2 * of.channel, limit) >> 16;
                }
                transpose_pairs(x);
                for (int64_t column = j; column < std::min(j + SIDE, columns); column++) {
                    const int64_t at = first + column, step = (at >= places ? 2 * (at - places) + 1 : 2 * at) * STEPS + k;
                    std::memcpy(to + step * Rows, &x[column - j], TOGETHER * Rows * sizeof(uint32_t));
                }
            }
}
RESILIN_SIMD void pack_pair_weights(const BFloat *w, const Weights &of, int64_t rows, int64_t channels, const BFloat *limit, float *panel) {
    uint32_t *to = reinterpret_cast<uint32_t *>(panel);
    bool adjacent = true;
    for (size_t t = 1; t < of.place.size(); t++) adjacent &= of.place[t] == of.place[t - 1] + 1;
    const int64_t places = static_cast<int64_t>(of.place.size()), each = GROUP_STEPS / 2 * places * rows;
    for (int64_t c = 0; c < channels; c += GROUP_STEPS, w += GROUP_STEPS * of.channel, to += each)
        if (adjacent && channels - c >= GROUP_STEPS && rows == 7) pack_pair_group<7>(w, of, limit, to);
        else if (adjacent && channels - c >= GROUP_STEPS && rows == 6) pack_pair_group<6>(w, of, limit, to);
        else pack_pair_steps(w, of, rows, std::min(GROUP_STEPS, channels - c), to);
}
RESILIN_SIMD void pack_split_weights(const BFloat *w, const Weights &of, int64_t rows, int64_t channels, float *to) {
    for (int64_t first = 0; first < channels; first += GROUP_STEPS)
        for (const int64_t place : of.place)
            for (int64_t chain = 0; chain < 2; chain++)
                for (int64_t c = first + chain; c < std::min(first + GROUP_STEPS, channels); c += 2) {
                    const BFloat *from = w + c * of.channel + place;
                    for (int64_t i = 0; i < rows; i++) *to++ = from_bfloat(from[i * of.output].bits);
                }
}

template <class T> int64_t block_of(const Task &task) {
    if (!std::is_same_v<T, float>) return task.channels;
    const int64_t most = std::max<int64_t>(1, BLOCK_DEPTH / task.places()), blocks = ceil_div(task.channels, most);
    return ceil_div(task.channels, blocks);
}

} // namespace

template <class T>
WeightRows<T>::WeightRows(const Task &task, const T *w)
    : panels(Panels::of_rows(task.outputs, spread_tiles<T>().height)), block(block_of<T>(task)), task_(task), w_(w),
      packs_(!FLOATS || !together() || (crowded<float>(task.weights.output) && task.samples * task.positions() >= MANY)) {}

template <class T> void WeightRows<T>::pack(float *to) {
    packed_ = to;
    if (!packs_ || when_read_) return;
    parallel_rows(task_.groups * panels.count, task_.outputs * depth() / panels.count, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++)
            pack(i / panels.count, i % panels.count, packed_ + (i / panels.count * task_.outputs + panels.begin(i % panels.count)) * depth());
    });
}

template <class T> void WeightRows<T>::pack(int64_t group, int64_t panel, float *to) const {
    const int64_t row = panels.begin(panel), rows = panels.used(panel);
    const T *from = w_ + group * task_.weights_group + row * task_.weights.output;
    if constexpr (FLOATS) {
        if (together()) resilin::pack(from, task_.weights.output, 1, rows, rows, depth(), to);
        else pack_weights(from, task_.weights, rows, task_.channels, to);
    } else if (spread_tiles<T>().layout == Layout::pairs) {
        pack_pair_weights(from, task_.weights, rows, task_.channels, w_ + task_.weights.size, to);
    } else {
        pack_split_weights(from, task_.weights, rows, task_.channels, to);
    }
}

template <class T> std::vector<Step> WeightRows<T>::steps(const std::vector<Tap> &taps, int64_t channels, int64_t elements) const {
    std::vector<Step> list;
    if (FLOATS) {
        for (const Tap &tap : taps) list.push_back({tap.place, tap.at});
        return list;
    }
    const int64_t step = 2 * per_float(); // channels from one step of a chain to the next
    for (const int64_t length : {GROUP_STEPS, channels % GROUP_STEPS}) // of a whole group, and of what is left
        for (const Tap &tap : taps)
            for (int64_t chain = 0; chain < 2; chain++)
                for (int64_t k = 0; k < length / step; k++) {
                    // pairs of channels (c, c + 2) have two places in every four
                    const int64_t place = step == 4 ? 2 * k + chain : chain + step * k;
                    list.push_back({(2 * tap.place + chain) * (length / step) + k, place * elements + tap.at});
                }
    return list;
}

template <class T> View<float> WeightRows<T>::panel(int64_t group, int64_t i, float *own) const {
    const int64_t row = panels.begin(i);
    if constexpr (FLOATS)
        if (!packs_) return {w_ + group * task_.weights_group + row * task_.weights.output, task_.weights.output, 1};
    if (when_read_) pack(group, i, own);
    return {when_read_ ? own : packed_ + (group * task_.outputs + row) * depth(), 1, panels.used(i)};
}

template <class T>
void WeightRows<T>::set(Spread<float> &of, const View<float> &panel, int64_t rows, int64_t channel, int64_t channels, const std::vector<Step> &list,
                        int64_t taps, int64_t elements) const {
    const int64_t places = task_.places();
    of.a = panel.data + channel / per_float() * places * panel.column;
    of.a_lane = panel.row, of.a_step = panel.column;
    of.at = list.data();
    if (FLOATS) {
        of.repeats = channels, of.depth = taps;
        of.a_repeat = places * of.a_step, of.b_repeat = elements;
        return;
    }
    const int64_t step = 2 * per_float(), rest = channels % GROUP_STEPS;
    of.repeats = channels / GROUP_STEPS;
    of.a_repeat = GROUP_STEPS / per_float() * places * rows, of.b_repeat = GROUP_STEPS / per_float() * elements;
    of.groups = taps, of.steps = GROUP_STEPS / step;
    of.last_groups = rest ? taps : 0, of.last_steps = rest / step;
}

template class WeightRows<float>;
template class WeightRows<BFloat>;

} // namespace resilin::conv
