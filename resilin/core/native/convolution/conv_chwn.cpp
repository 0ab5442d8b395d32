// Samples in lanes: channels' copies lie as (C, H, W, N), a vector is one position of several samples. So it reads either
// the image or nothing but padding at a place of the kernel, and skips the latter: of a 3 x 3 window, that saves a third
// on maps of 4 x 4 and more than half on 2 x 2. Sums are those of conv_direct.hpp: a product with padding adds a zero.
#include "conv_columns.hpp"
#include "weight_rows.hpp"

#include "matmul/subnormals.hpp"
#include "memory/parallel.hpp"
#include "memory/scratch.hpp"
#include "side_by_side.hpp"

#include <algorithm>
#include <vector>

namespace resilin::conv {
namespace {

constexpr int64_t CHUNK_BYTES = 384 << 10; // of the copy of channels that are read time and again: a part of a core's second cache
constexpr int64_t IMAGE_BYTES = 3 << 20;   // of a piece's whole copy, which each panel of weights reads once
constexpr int64_t CROWDED = 32;            // elements of a channel, of which a tile reads a few lines only
constexpr int64_t DEEP = 64;               // kernel positions of all channels, below which turning samples costs more than it saves
constexpr int64_t WIDE = 16;               // positions of a row, which fill vectors without samples,
constexpr double SAVED = 0.08;             //   unless so much of their products is padding

// Output positions along an axis that read the image at the same places of the kernel.
struct Alike {
    std::vector<int64_t> places, positions;
};
std::vector<Alike> alike(const Axis &axis, int64_t begin, int64_t end) {
    std::vector<Alike> all;
    for (int64_t i = begin; i < end; i++) {
        std::vector<int64_t> places;
        for (size_t t = 0; t < axis.at.size(); t++) {
            const int64_t at = i * axis.step + axis.at[t];
            if (at >= 0 && at < axis.length) places.push_back(static_cast<int64_t>(t));
        }
        const auto same = std::find_if(all.begin(), all.end(), [&](const Alike &other) { return other.places == places; });
        if (same != all.end()) same->positions.push_back(i);
        else all.push_back({places, {i}});
    }
    return all;
}
// How many pairs of a position and a place are inside.
int64_t inside(const Axis &axis) {
    const auto before = [&](int64_t at, int64_t end) { // positions that read an element before `end`
        return std::min(ceil_div(std::max<int64_t>(end - at, 0), axis.step), axis.count);
    };
    int64_t count = 0;
    for (const int64_t at : axis.at) count += before(at, axis.length) - before(at, 0);
    return count;
}

// Output rows [p0, p1), which read the image's rows [h0, h1), of `blocks` blocks of samples from the n0-th on.
struct Rows {
    int64_t p0, p1, h0, h1;
    int64_t rows() const { return p1 - p0; }
    Rows(const Axis &down, int64_t p0, int64_t p1) : p0(p0), p1(p1) {
        const auto [least, most] = std::minmax_element(down.at.begin(), down.at.end());
        h0 = std::clamp<int64_t>(p0 * down.step + *least, 0, down.length);
        h1 = std::clamp<int64_t>((p1 - 1) * down.step + *most + 1, h0, down.length);
    }
};

template <class T> class Chwn {
  public:
    Chwn(const Task &task, const T *x, const T *w, const std::vector<float> &bias, T *y)
        : task_(task), tiles_(spread_tiles<T>()), x_(x), y_(y), bias_(bias), weights_(task, w), panels_(weights_.panels),
          blocks_(task.samples >= 2 * SIDE && tiles_.lanes == SIDE ? 2 : 1), count_(task.samples / SIDE / blocks_),
          across_(alike(task.across, 0, task.across.count)) {
        rows_ = std::min(task.down.count, IMAGE_BYTES / 4 / (task.across.length * SIDE));
        while (rows_ > 0 && !fits(rows_)) rows_--;
        if (rows_ > 0) rows_ = ceil_div(task.down.count, down());
        if (rows_ == task.down.count && count_ == 1) weights_.pack_when_read();
    }
    // how many samples it can do
    int64_t samples() const { return rows_ > 0 ? count_ * blocks_ * SIDE : 0; }

    void run() {
        static thread_local Scratch<float> scratch;
        const int64_t items = count_ * down(), parts = parts_of(items, panels_.count * task_.groups);
        const int64_t slots = std::min<int64_t>(num_threads(), items * parts), copies = largest(rows_);
        const int64_t side = tiles_.height * rows_ * task_.across.count * blocks_ * SIDE + SIDE * SIDE;
        const int64_t size = copies + side + weights_.own_size();
        float *memory = scratch.of(weights_.size() + slots * size), *own = memory + weights_.size();
        weights_.pack(memory);
        parallel_slots(items * parts, slots, size * task_.outputs, [&](int64_t slot, int64_t i) {
            const int64_t item = i / parts, p0 = item % down() * rows_;
            const Rows rows(task_.down, p0, std::min(p0 + rows_, task_.down.count));
            float *copy = own + slot * size;
            piece(item / down(), rows, parts, i % parts, copy, copy + copies, copy + copies + side);
        });
    }

  private:
    static constexpr bool FLOATS = std::is_same_v<T, float>;
    static int64_t per_float() { return WeightRows<T>::per_float(); }
    int64_t down() const { return ceil_div(task_.down.count, rows_); }
    // Floats from a channel's copy of so many elements to the next one's: an odd number of lines, lest channels share a few
    // sets of the first cache.
    static int64_t apart(int64_t elements) { return (elements >= CROWDED ? elements | 1 : elements) * SIDE; }
    int64_t channel(const Rows &of) const { return apart((of.h1 - of.h0) * task_.across.length); }
    int64_t image(const Rows &of) const { return task_.channels / per_float() * channel(of); }
    // floats of the copy of so many output rows, wherever they are
    int64_t largest(int64_t rows) const { return task_.channels / per_float() * each(rows); }
    int64_t each(int64_t rows) const { // of a channel
        const auto [least, most] = std::minmax_element(task_.down.at.begin(), task_.down.at.end());
        const int64_t read = std::min(task_.down.length, (rows - 1) * task_.down.step + *most - *least + 1);
        return apart(read * task_.across.length) * blocks_;
    }
    // Channels whose sums are made at a time. Sums of bfloat16 go on where they stopped.
    int64_t chunk() const {
        if (FLOATS) return weights_.block;
        return std::max<int64_t>(1, CHUNK_BYTES / 4 * per_float() / each(rows_) / GROUP_STEPS) * GROUP_STEPS;
    }
    bool fits(int64_t rows) const {
        const int64_t together = FLOATS ? weights_.block : std::min(GROUP_STEPS, task_.channels);
        return largest(rows) <= IMAGE_BYTES / 4 && together / per_float() * each(rows) <= CHUNK_BYTES / 4;
    }

    // What positions of several rows and columns have in common: a list of steps.
    struct Class {
        const Alike *down, *across;
        std::vector<Step> steps;
        int64_t taps, first; // how many of the kernel's places, and where the first of them is
    };
    std::vector<Class> classes(const std::vector<Alike> &down, const Rows &rows) const {
        std::vector<Class> all;
        const int64_t width = task_.across.length, places = static_cast<int64_t>(task_.across.at.size());
        for (const Alike &i : down)
            for (const Alike &j : across_) {
                std::vector<Tap> taps;
                for (const int64_t a : i.places)
                    for (const int64_t b : j.places) {
                        const int64_t row = task_.down.at[static_cast<size_t>(a)], column = task_.across.at[static_cast<size_t>(b)];
                        taps.push_back({a * places + b, (row * width + column) * SIDE});
                    }
                const int64_t first = taps.empty() ? 0 : taps[0].at;
                for (Tap &tap : taps) tap.at -= first;
                all.push_back({&i, &j, weights_.steps(taps, task_.channels, channel(rows)), static_cast<int64_t>(taps.size()), first});
            }
        return all;
    }

    void piece(int64_t block, const Rows &rows, int64_t parts, int64_t part, float *copy, float *side, float *own) const {
        const std::vector<Alike> down = alike(task_.down, rows.p0, rows.p1);
        const std::vector<Class> all = classes(down, rows);
        const int64_t panels = task_.groups * panels_.count, begin = edge(panels, parts, part), end = edge(panels, parts, part + 1);
        [[maybe_unused]] const Subnormals<T> subnormals;
        for (int64_t i = begin; i < end; i++) {
            const int64_t group = i / panels_.count, n0 = block * blocks_ * SIDE;
            if (i == begin || i % panels_.count == 0)
                for (int64_t b = 0; b < blocks_; b++) bring(n0 + b * SIDE, group, rows, copy + b * image(rows));
            panel(all, rows, group, i % panels_.count, copy, side, own);
            put(n0, rows, group, i % panels_.count, side);
        }
    }

    // A group's channels of SIDE samples, side by side. Channels of which all rows are read lie one after another.
    void bring(int64_t n, int64_t group, const Rows &rows, float *to) const {
        const int64_t length = (rows.h1 - rows.h0) * task_.across.length, each = task_.x_channel(), channels = task_.channels;
        const T *x = x_ + n * task_.x_sample() + group * channels * each + rows.h0 * task_.across.length;
        const T *limit = x_ + task_.samples * task_.x_sample();
        const bool pairs = per_float() == 2;
        int64_t run = 1; // channels that are one run of elements
        if (channel(rows) == each * SIDE) run = pairs ? 2 : channels;
        for (int64_t c = 0; c < channels; c += run) {
            if (pairs && c % 4 >= 2) continue;
            if constexpr (FLOATS) interleave(x + c * each, task_.x_sample(), SIDE, run * length, limit, to);
            else if (pairs) interleave_pairs(x + c * each, task_.x_sample(), 2 * each, run * length, limit, to);
            else interleave(x + c * each, task_.x_sample(), SIDE, run * length, limit, to);
            to += run * channel(rows);
        }
    }

    // The sums of a panel's outputs, as (outputs, blocks, positions, SIDE).
    void panel(const std::vector<Class> &all, const Rows &rows, int64_t group, int64_t i, const float *image_of, float *side, float *own) const {
        const int64_t used = panels_.used(i), width = task_.across.length, lanes = tiles_.lanes, block = rows.rows() * task_.across.count * SIDE;
        Spread<float> of{};
        of.bias = bias_.empty() ? nullptr : bias_.data() + group * task_.outputs + panels_.begin(i);
        of.ldc = blocks_ * block;
        of.columns[0] = of.columns[1] = lanes;
        const View<float> weights = weights_.panel(group, i, own);
        const int64_t chunk = this->chunk();
        for (int64_t c = 0; c < task_.channels; c += chunk)
            for (const Class &same : all) {
                const int64_t channels = std::min(chunk, task_.channels - c);
                weights_.set(of, weights, used, c, channels, same.steps, same.taps, channel(rows));
                of.add = c > 0;
                int64_t waiting = 0;
                auto add = [&](int64_t from, int64_t to) {
                    of.b[waiting] = image_of + from, of.c[waiting] = side + to;
                    if (++waiting == 2) tiles_.two[used - 1](of), waiting = 0;
                };
                for (const int64_t p : same.down->positions)
                    for (const int64_t q : same.across->positions) {
                        const int64_t to = ((p - rows.p0) * task_.across.count + q) * SIDE;
                        const int64_t place = (p * task_.down.step - rows.h0) * width + q * task_.across.step;
                        const int64_t from = c / per_float() * channel(rows) + place * SIDE + same.first;
                        for (int64_t b = 0; b < blocks_; b++)
                            for (int64_t sub = 0; sub < SIDE; sub += lanes) add((same.taps ? from : 0) + b * image(rows) + sub, to + b * block + sub);
                    }
                if (waiting) tiles_.one[used - 1](of);
            }
    }

    void put(int64_t n, const Rows &rows, int64_t group, int64_t i, const float *side) const {
        const int64_t used = panels_.used(i), Q = task_.across.count, positions = rows.rows() * Q;
        T *to = y_ + n * task_.y_sample + (group * task_.outputs + panels_.begin(i)) * task_.y_channel + rows.p0 * task_.y_row;
        // what is one run in the image: rows, or all outputs
        const bool lines = task_.y_row == Q * task_.y_column, all = lines && blocks_ == 1 && task_.y_channel == positions * task_.y_column;
        const int64_t outputs = all ? 1 : used, each = lines ? 1 : rows.rows(), run = all ? used * positions : lines ? positions : Q;
        for (int64_t o = 0; o < outputs; o++)
            for (int64_t b = 0; b < blocks_; b++)
                for (int64_t p = 0; p < each; p++)
                    separate(side + ((o * blocks_ + b) * positions + p * Q) * SIDE, run, SIDE,
                             to + b * SIDE * task_.y_sample + o * task_.y_channel + p * task_.y_row, task_.y_sample, task_.y_column);
    }

    const Task &task_;
    const SpreadTiles<float> &tiles_;
    const T *const x_;
    T *const y_;
    const std::vector<float> &bias_;
    WeightRows<T> weights_;
    const Panels &panels_;
    const int64_t blocks_, count_; // blocks of samples of a piece, and such pieces
    const std::vector<Alike> across_;
    int64_t rows_; // output rows of a piece
};

} // namespace

template <class T> int64_t by_samples(const Task &task, const T *x, const T *w, const std::vector<float> &bias, T *y) {
    if (task.samples < SIDE || task.places() == 1 || task.channels * task.places() < DEEP) return 0;
    const int64_t all = task.positions() * task.places(), padding = all - inside(task.down) * inside(task.across);
    if (task.across.count >= WIDE && static_cast<double>(padding) < SAVED * static_cast<double>(all)) return 0;
    Chwn<T> chwn(task, x, w, bias, y);
    if (chwn.samples()) chwn.run();
    return chwn.samples();
}
template int64_t by_samples(const Task &, const float *, const float *, const std::vector<float> &, float *);
template int64_t by_samples(const Task &, const BFloat *, const BFloat *, const std::vector<float> &, BFloat *);

} // namespace resilin::conv
