#include "conv_direct.hpp"

#include "conv_images.hpp"
#include "memory/parallel.hpp"
#include "memory/scratch.hpp"
#include "kernels/halves.hpp"
#include "matmul/panels.hpp"
#include "matmul/subnormals.hpp"
#include "matmul/tiles.hpp"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <vector>

namespace resilin::conv {
namespace {

constexpr int64_t BLOCK_DEPTH = 384;          // kernel positions of a block of channels: its panel of weights stays in the first cache
constexpr int64_t TILE = 1024, LEAST = 256;   // output positions of a tile: many, so that few rows are copied twice
constexpr int64_t IMAGE_BYTES = 512 << 10;    // of a tile's copy: half of a core's second cache
constexpr int64_t MANY = 512;                 // positions that are worth packing crowded weights for
constexpr int64_t FEW = 64;                   // positions of all samples that are not worth turning the weights for

// Weights as rows of a product: of output `o`, channel `c` and place `t` at w[o * output + c * channel + place[t]].
struct Weights {
    int64_t output, channel;
    std::vector<int64_t> place;
};

// One convolution of images that lie `x` apart (sample, channel, row) into images that lie `y` apart (with columns).
struct Task {
    int64_t samples, groups, channels, outputs; // channels and outputs of a group
    Axis down, across;
    Weights weights;
    int64_t weights_group = 0;                  // from one group's weights to the next one's
    int64_t y_sample, y_channel, y_row, y_column;

    int64_t places() const { return static_cast<int64_t>(weights.place.size()); }
    int64_t positions() const { return down.count * across.count; }
};

RESILIN_INLINE uint32_t pair_of(uint16_t earlier, uint16_t later) { return static_cast<uint32_t>(earlier) << 16 | later; }

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
template <int64_t Rows> RESILIN_INLINE void pack_pair_rows(const BFloat *w, const Weights &of, int64_t given, int64_t channels, uint32_t *to) {
    const int64_t rows = Rows ? Rows : given, output = of.output, later = 2 * of.channel;
    for (int64_t first = 0; first < channels; first += GROUP_STEPS)
        for (const int64_t place : of.place)
            for (int64_t chain = 0; chain < 2; chain++)
                for (int64_t c = first + chain; c < std::min(first + GROUP_STEPS, channels); c += 4) {
                    const BFloat *from = w + c * of.channel + place;
#pragma GCC unroll 8
                    for (int64_t i = 0; i < rows; i++) *to++ = pair_of(from[i * output].bits, from[i * output + later].bits);
                }
}
RESILIN_SIMD void pack_pair_weights(const BFloat *w, const Weights &of, int64_t rows, int64_t channels, float *panel) {
    uint32_t *to = reinterpret_cast<uint32_t *>(panel);
    switch (rows) { // the usual heights without a loop
    case 7: return pack_pair_rows<7>(w, of, rows, channels, to);
    case 6: return pack_pair_rows<6>(w, of, rows, channels, to);
    default: return pack_pair_rows<0>(w, of, rows, channels, to);
    }
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

// What one call does; T is the type of its operands.
template <class T> class Direct {
  public:
    Direct(const Task &task, const T *x, const T *w, const T *bias, T *y)
        : task_(task), tiles_(spread_tiles<T>()), x_(x), w_(w), y_(y), panels_(Panels::of_rows(task.outputs, tiles_.height)),
          block_(block_of(task)), cut_(cut_of(task)), images_(task.down, task.across, cut_, task.outputs, tiles_.lanes) {
        for (int64_t o = 0; o < task.outputs * task.groups && bias; o++) bias_.push_back(value(bias[o]));
        set_offsets();
    }

    void run() {
        packs_ = !FLOATS || !together() || (crowded<float>(task_.weights.output) && task_.samples * task_.positions() >= MANY);
        static thread_local Scratch<float> scratch;
        const int64_t threads = num_threads(), items = cut_.count() * parts();
        const int64_t slots = std::min(threads, items), size = image_size() + side_size();
        float *memory = scratch.of((packs_ ? task_.groups * task_.outputs * depth() : 0) + slots * size);
        packed_ = memory;
        float *own = memory + (packs_ ? task_.groups * task_.outputs * depth() : 0);
        if (packs_)
            parallel_rows(task_.groups * panels_.count, task_.outputs * depth() / panels_.count, [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; i++) pack(i / panels_.count, i % panels_.count);
            });
        parallel_slots(items, slots, size * task_.outputs, [&](int64_t slot, int64_t i) { tile(i / parts(), i % parts(), own + slot * size); });
    }

  private:
    static constexpr bool FLOATS = std::is_same_v<T, float>;
    static float value(float x) { return x; }
    static float value(BFloat x) { return from_bfloat(x.bits); }

    // whether the weights of an output lie in the order of its sum
    bool together() const { return task_.weights.output == task_.channels * task_.places(); }

    static int64_t block_of(const Task &task) {
        if (!FLOATS) return task.channels;
        const int64_t most = std::max<int64_t>(1, BLOCK_DEPTH / task.places()), blocks = ceil_div(task.channels, most);
        return ceil_div(task.channels, blocks);
    }
    // Tiles: as large as their copies stay in the second cache.
    static Cut cut_of(const Task &task) {
        for (int64_t positions = TILE;; positions /= 2) {
            const Cut cut(task.samples, task.down.count, task.across.count, positions == TILE && task.samples > 1 ? LEAST : positions, positions);
            const Images images(task.down, task.across, cut, task.outputs, spread_tiles<T>().lanes);
            if (positions <= LEAST / 2 || images.channel() * ceil_div(block_of(task) * static_cast<int64_t>(sizeof(float)), per_float()) <= IMAGE_BYTES)
                return cut;
        }
    }
    // channels whose elements lie in the place of one float
    static int64_t per_float() { return spread_tiles<T>().layout == Layout::pairs ? 2 : 1; }
    // floats of a row of packed weights
    int64_t depth() const { return task_.channels * task_.places() / per_float(); }
    int64_t image_size() const { return images_.channel() * block_ / per_float() + 64; }
    bool aside() const { return !FLOATS || cut_.samples > 1 || task_.y_column != 1; }
    int64_t side_size() const { return aside() ? (FLOATS ? task_.outputs : tiles_.height) * cut_.positions() : 0; }
    // In how many parts the panels of each tile are divided among threads.
    int64_t parts() const {
        const int64_t threads = num_threads(), items = cut_.count();
        if (threads == 1 || items >= 4 * threads) return 1;
        return std::clamp<int64_t>(panels_.count * task_.groups, 1, threads / std::gcd(items, threads));
    }

    void set_offsets() {
        const int64_t channel = images_.channel();
        if constexpr (FLOATS) {
            for (int64_t c = 0; c < block_; c++)
                for (int64_t t = 0; t < task_.places(); t++) offsets_.push_back(c * channel + images_.offset[static_cast<size_t>(t)]);
            return;
        }
        const int64_t step = 2 * per_float(); // of a chain
        for (int64_t first = 0; first < task_.channels; first += GROUP_STEPS)
            for (int64_t t = 0; t < task_.places(); t++)
                for (int64_t chain = 0; chain < 2; chain++)
                    for (int64_t c = first + chain; c < std::min(first + GROUP_STEPS, task_.channels); c += step) {
                        // pairs of channels (c, c + 2) have two places in every four
                        const int64_t place = step == 4 ? c / 4 * 2 + chain : c;
                        offsets_.push_back(place * channel + images_.offset[static_cast<size_t>(t)]);
                    }
    }

    void pack(int64_t group, int64_t panel) {
        const int64_t row = panels_.begin(panel), rows = panels_.used(panel);
        const T *from = weights(group) + row * task_.weights.output;
        float *to = packed_ + (group * task_.outputs + row) * depth();
        if (FLOATS && together()) return resilin::pack(reinterpret_cast<const float *>(from), task_.weights.output, 1, rows, rows, depth(), to);
        if constexpr (FLOATS) pack_weights(from, task_.weights, rows, task_.channels, to);
        else if (tiles_.layout == Layout::pairs) pack_pair_weights(from, task_.weights, rows, task_.channels, to);
        else pack_split_weights(from, task_.weights, rows, task_.channels, to);
    }
    const T *weights(int64_t group) const { return w_ + group * task_.weights_group; }

    void tile(int64_t number, int64_t part, float *image) {
        const Piece piece = cut_[number];
        const int64_t all = task_.groups * panels_.count, begin = edge(all, parts(), part), end = edge(all, parts(), part + 1);
        float *side = image + image_size();
        std::vector<Lanes> lanes = images_.lanes(piece, aside(), task_.y_row);
        const int64_t length = piece.positions();
        [[maybe_unused]] const Subnormals<T> subnormals;
        for (int64_t group = begin / panels_.count; group * panels_.count < end; group++) {
            const int64_t from = std::max(begin - group * panels_.count, int64_t(0)), to = std::min(end - group * panels_.count, panels_.count);
            for (int64_t c = 0; c < task_.channels; c += block_) {
                const int64_t channels = std::min(block_, task_.channels - c);
                const int64_t size = task_.down.length * task_.across.length; // of a channel of x
                const T *x = x_ + piece.n0 * task_.groups * task_.channels * size + (group * task_.channels + c) * size;
                images_.copy(x, {task_.groups * task_.channels * size, size}, piece, channels, per_float() == 2, image);
                for (int64_t i = from; i < to; i++) panel(piece, lanes, group, i, c, channels, image, side, length);
            }
            if (FLOATS && aside())
                for (int64_t o = panels_.begin(from); o < panels_.begin(to); o++) put(piece, group, o, side + o * length);
        }
    }

    void panel(const Piece &piece, const std::vector<Lanes> &lanes, int64_t group, int64_t i, int64_t channel, int64_t channels, const float *image,
               float *side, int64_t length) {
        const int64_t row = panels_.begin(i), rows = panels_.used(i), places = task_.places();
        Spread<float> of{};
        if (packs_) {
            of.a = packed_ + (group * task_.outputs + row) * depth() + channel * places * rows;
            of.a_lane = 1, of.a_step = rows;
        } else if constexpr (FLOATS) {
            of.a = weights(group) + row * task_.weights.output + channel * places;
            of.a_lane = task_.weights.output, of.a_step = 1;
        }
        of.offset = offsets_.data();
        of.depth = channels * places;
        const int64_t rest = channels % GROUP_STEPS, step = 2 * per_float();
        of.groups = channels / GROUP_STEPS * places, of.steps = GROUP_STEPS / step;
        of.last_groups = rest ? places : 0, of.last_steps = rest / step;
        of.add = FLOATS && channel > 0;
        of.bias = bias_.empty() ? nullptr : bias_.data() + group * task_.outputs + row;
        float *to = side;
        of.ldc = length;
        if constexpr (FLOATS) {
            if (aside()) to = side + row * length;
            else to = y_ + output(piece, group, row), of.ldc = task_.y_channel;
        }
        for (size_t j = 0; j < lanes.size(); j += 2) {
            const size_t k = std::min(j + 1, lanes.size() - 1);
            of.b[0] = image + lanes[j].from, of.b[1] = image + lanes[k].from;
            of.c[0] = to + lanes[j].to, of.c[1] = to + lanes[k].to;
            of.columns[0] = lanes[j].count, of.columns[1] = lanes[k].count;
            (k > j ? tiles_.two : tiles_.one)[rows - 1](of);
        }
        for (int64_t o = 0; o < rows && !FLOATS; o++) put(piece, group, row + o, side + o * length);
    }

    // where the first position of an output is
    int64_t output(const Piece &piece, int64_t group, int64_t row) const {
        return piece.n0 * task_.y_sample + (group * task_.outputs + row) * task_.y_channel + piece.p0 * task_.y_row + piece.q0 * task_.y_column;
    }
    void put(const Piece &piece, int64_t group, int64_t row, const float *from) const {
        const int64_t width = piece.columns();
        T *to = y_ + output(piece, group, row);
        const Apart at = images_.matrix(piece);
        const bool run = task_.y_column == 1 && task_.y_row == width && at.next == width;
        for (int64_t n = 0; n < piece.samples(); n++, from += at.sample, to += task_.y_sample)
            if (run) put_rows(from, 0, 1, piece.rows() * width, to, 0, 1);
            else put_rows(from, at.next, piece.rows(), width, to, task_.y_row, task_.y_column);
    }

    const Task &task_;
    const SpreadTiles<float> &tiles_;
    const T *const x_, *const w_;
    T *const y_;
    const Panels panels_;
    const int64_t block_;
    const Cut cut_;
    const Images images_;
    std::vector<float> bias_;
    std::vector<int64_t> offsets_;
    bool packs_ = false;
    float *packed_ = nullptr;
};

// The places of a kernel along one axis as an output reads them.
Axis forward_axis(int64_t count, int64_t length, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
    Axis axis{count, stride, length, {}};
    for (int64_t k = 0; k < kernel; k++) axis.at.push_back(k * dilation - padding);
    return axis;
}
// Of the positions `rest`, rest + stride ... of the padded input: which outputs reach them, by which of the kernel's places.
struct Reached {
    Axis axis;
    int64_t first; // the first such position inside
    std::vector<int64_t> places;
    Reached(int64_t rest, int64_t length, int64_t outputs, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation)
        : axis{0, 1, outputs, {}}, first(rest - padding + ceil_div(std::max<int64_t>(padding - rest, 0), stride) * stride) {
        axis.count = first < length ? (length - first - 1) / stride + 1 : 0;
        for (int64_t k = 0; k < kernel; k++)
            if ((first + padding - k * dilation) % stride == 0) {
                axis.at.push_back((first + padding - k * dilation) / stride);
                places.push_back(k);
            }
    }
};

} // namespace

template <class T> void direct_forward(const Shape &s, const T *x, const T *w, const T *bias, T *y) {
    Weights weights{s.depth(), s.KH * s.KW, std::vector<int64_t>(static_cast<size_t>(s.KH * s.KW))};
    std::iota(weights.place.begin(), weights.place.end(), 0);
    const Task task{s.N, s.G, s.channels(), s.outputs(), forward_axis(s.P, s.H, s.KH, s.sh, s.ph, s.dh),
                    forward_axis(s.Q, s.W, s.KW, s.sw, s.pw, s.dw), weights, s.outputs() * s.depth(),
                    s.O * s.positions(), s.positions(), s.Q, 1};
    Direct<T>(task, x, w, bias, y).run();
}

template <class T> void direct_input(const Shape &s, const T *g, const T *w, T *dx) {
    const int64_t size = s.H * s.W;
    for (int64_t a = 0; a < s.sh; a++)
        for (int64_t b = 0; b < s.sw; b++) {
            const Reached down(a, s.H, s.P, s.KH, s.sh, s.ph, s.dh), across(b, s.W, s.Q, s.KW, s.sw, s.pw, s.dw);
            if (!down.axis.count || !across.axis.count) continue;
            T *to = dx + down.first * s.W + across.first;
            if (down.places.empty() || across.places.empty()) { // no window reaches them
                for (int64_t i = 0; i < s.N * s.C; i++)
                    for (int64_t h = 0; h < down.axis.count; h++)
                        for (int64_t v = 0; v < across.axis.count; v++) to[i * size + h * s.sh * s.W + v * s.sw] = T{};
                continue;
            }
            Weights weights{s.KH * s.KW, s.depth(), {}};
            for (const int64_t i : down.places)
                for (const int64_t j : across.places) weights.place.push_back(i * s.KW + j);
            const Task task{s.N, s.G, s.outputs(), s.channels(), down.axis, across.axis, weights, s.outputs() * s.depth(),
                            s.C * size, size, s.sh * s.W, s.sw};
            Direct<T>(task, g, w, nullptr, to).run();
        }
}

template <> bool has_direct_forward<float>(const Shape &s) { return !s.pointwise(); }
template <> bool has_direct_input<float>(const Shape &s) {
    // few channels leave most of a tile empty, and places of the kernel that no other position shares are not worth a pass
    const bool strided = s.sh * s.sw > 1;
    return !s.pointwise() && s.N * s.H * s.W >= FEW * s.sh * s.sw && (!strided || (s.channels() >= 8 && s.KH * s.KW > 2 * s.sh * s.sw));
}
// chains of pairs, of the same length
template <> bool has_direct_forward<BFloat>(const Shape &s) { return s.channels() % 4 == 0 && s.channels() >= 8; }
template <> bool has_direct_input<BFloat>(const Shape &s) {
    return s.outputs() % 4 == 0 && s.outputs() >= 8 && (s.pointwise() || has_direct_input<float>(s));
}

template void direct_forward(const Shape &, const float *, const float *, const float *, float *);
template void direct_forward(const Shape &, const BFloat *, const BFloat *, const BFloat *, BFloat *);
template void direct_input(const Shape &, const float *, const float *, float *);
template void direct_input(const Shape &, const BFloat *, const BFloat *, BFloat *);

} // namespace resilin::conv
