#include "conv_direct.hpp"

#include "weight_rows.hpp"
#include "memory/parallel.hpp"
#include "memory/scratch.hpp"
#include "kernels/halves.hpp"
#include "matmul/subnormals.hpp"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <vector>

namespace resilin::conv {
namespace {

constexpr int64_t TILE = 1024, LEAST = 256;   // output positions of a tile: many, so that few rows are copied twice
constexpr int64_t IMAGE_BYTES = 512 << 10;    // of a tile's copy: half of a core's second cache
constexpr int64_t FEW = 64;                   // positions of all samples that are not worth turning the weights for

// What one call does; T is the type of its operands.
template <class T> class Direct {
  public:
    Direct(const Task &task, const T *x, const T *w, const std::vector<float> &bias, T *y)
        : task_(task), tiles_(spread_tiles<T>()), x_(x), y_(y), bias_(bias), weights_(task, w), panels_(weights_.panels),
          cut_(cut_of(task, weights_.block)), images_(task.down, task.across, cut_, task.outputs, tiles_.lanes) {
        for (int64_t t = 0; t < task.places(); t++) taps_.push_back({t, images_.offset[static_cast<size_t>(t)]});
        steps_ = weights_.steps(taps_, task.channels, images_.channel());
        if (cut_.count() == 1 && weights_.block >= task.channels) weights_.pack_when_read();
    }

    void run() {
        static thread_local Scratch<float> scratch;
        const int64_t threads = num_threads(), items = cut_.count() * parts();
        const int64_t slots = std::min(threads, items), size = image_size() + side_size() + weights_.own_size();
        float *memory = scratch.of(weights_.size() + slots * size), *own = memory + weights_.size();
        weights_.pack(memory);
        parallel_slots(items, slots, size * task_.outputs, [&](int64_t slot, int64_t i) { tile(i / parts(), i % parts(), own + slot * size); });
    }

  private:
    static constexpr bool FLOATS = std::is_same_v<T, float>;
    static int64_t per_float() { return WeightRows<T>::per_float(); }

    // Tiles: as large as their copies stay in the second cache.
    static Cut cut_of(const Task &task, int64_t block) {
        for (int64_t positions = TILE;; positions /= 2) {
            const Cut cut(task.samples, task.down.count, task.across.count, positions == TILE && task.samples > 1 ? LEAST : positions, positions);
            const Images images(task.down, task.across, cut, task.outputs, spread_tiles<T>().lanes);
            if (positions <= LEAST / 2 || images.channel() * ceil_div(block * static_cast<int64_t>(sizeof(float)), per_float()) <= IMAGE_BYTES)
                return cut;
        }
    }
    int64_t image_size() const { return images_.channel() * weights_.block / per_float() + 64; }
    bool aside() const { return !FLOATS || cut_.samples > 1 || task_.y_column != 1; }
    int64_t side_size() const { return aside() ? (FLOATS ? task_.outputs : tiles_.height) * cut_.positions() : 0; }
    // In how many parts the panels of each tile are divided among threads.
    int64_t parts() const { return parts_of(cut_.count(), panels_.count * task_.groups); }

    void tile(int64_t number, int64_t part, float *image) {
        const Piece piece = cut_[number];
        const int64_t all = task_.groups * panels_.count, begin = edge(all, parts(), part), end = edge(all, parts(), part + 1);
        float *side = image + image_size(), *own = side + side_size();
        std::vector<Lanes> lanes = images_.lanes(piece, aside(), task_.y_row);
        const int64_t length = piece.positions();
        [[maybe_unused]] const Subnormals<T> subnormals;
        for (int64_t group = begin / panels_.count; group * panels_.count < end; group++) {
            const int64_t from = std::max(begin - group * panels_.count, int64_t(0)), to = std::min(end - group * panels_.count, panels_.count);
            for (int64_t c = 0; c < task_.channels; c += weights_.block) {
                const int64_t channels = std::min(weights_.block, task_.channels - c);
                const T *x = x_ + piece.n0 * task_.x_sample() + (group * task_.channels + c) * task_.x_channel();
                images_.copy(x, {task_.x_sample(), task_.x_channel()}, piece, channels, per_float() == 2, image);
                for (int64_t i = from; i < to; i++) panel(piece, lanes, group, i, c, channels, image, side, length, own);
            }
            if (FLOATS && aside())
                for (int64_t o = panels_.begin(from); o < panels_.begin(to); o++) put(piece, group, o, side + o * length);
        }
    }

    void panel(const Piece &piece, const std::vector<Lanes> &lanes, int64_t group, int64_t i, int64_t channel, int64_t channels, const float *image,
               float *side, int64_t length, float *own) {
        const int64_t row = panels_.begin(i), rows = panels_.used(i);
        Spread<float> of{};
        weights_.set(of, weights_.panel(group, i, own), rows, channel, channels, steps_, task_.places(), images_.channel());
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
    const T *const x_;
    T *const y_;
    const std::vector<float> &bias_;
    WeightRows<T> weights_;
    const Panels &panels_;
    const Cut cut_;
    const Images images_;
    std::vector<Tap> taps_;
    std::vector<Step> steps_;
};

float value(float x) { return x; }
float value(BFloat x) { return from_bfloat(x.bits); }

template <class T> void run(Task &task, const T *x, const T *w, const T *bias, T *y) {
    std::vector<float> biases;
    for (int64_t o = 0; o < task.outputs * task.groups && bias; o++) biases.push_back(value(bias[o]));
    const int64_t done = by_samples(task, x, w, biases, y);
    if (done == task.samples) return;
    task.samples -= done;
    Direct<T>(task, x + done * task.x_sample(), w, biases, y + done * task.y_sample).run();
}

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
    Weights weights{s.depth(), s.KH * s.KW, s.O * s.depth(), std::vector<int64_t>(static_cast<size_t>(s.KH * s.KW))};
    std::iota(weights.place.begin(), weights.place.end(), 0);
    Task task{s.N, s.G, s.channels(), s.outputs(), forward_axis(s.P, s.H, s.KH, s.sh, s.ph, s.dh),
                    forward_axis(s.Q, s.W, s.KW, s.sw, s.pw, s.dw), weights, s.outputs() * s.depth(),
                    s.O * s.positions(), s.positions(), s.Q, 1};
    run(task, x, w, bias, y);
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
            Weights weights{s.KH * s.KW, s.depth(), s.O * s.depth(), {}};
            for (const int64_t i : down.places)
                for (const int64_t j : across.places) weights.place.push_back(i * s.KW + j);
            Task task{s.N, s.G, s.outputs(), s.channels(), down.axis, across.axis, weights, s.outputs() * s.depth(),
                            s.C * size, size, s.sh * s.W, s.sw};
            run<T>(task, g, w, nullptr, to);
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
