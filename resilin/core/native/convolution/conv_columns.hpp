// The columns of a convolution (im2col): what the windows of some output positions read, one row per kernel position.
#pragma once
#include <algorithm>
#include <cstdint>

namespace resilin::conv {

constexpr int64_t MAX_LENGTH = int64_t(1) << 28;
constexpr int64_t TILE_POSITIONS = 256; // output positions that make a matrix product efficient

// N samples, C channels, H W input size, P Q output size, KH KW kernel size, O output channels, G groups;
// s stride, p padding, d dilation
struct Shape {
    int64_t N, C, H, W, O, G, KH, KW, sh, sw, ph, pw, dh, dw, P = 0, Q = 0;

    // Every product below stays inside int64, and there is at least one output position.
    bool fits() const {
        for (int64_t length : {N, C, H, W, O, KH, KW, sh, sw, ph, pw, dh, dw})
            if (length < 0 || length > MAX_LENGTH) return false;
        const double columns = 1.0 * N * C * KH * KW * (H + 2 * ph) * (W + 2 * pw);
        return columns < 1e18 && N > 0 && C > 0 && O > 0 && G > 0 && C % G == 0 && O % G == 0 && KH > 0 && KW > 0 &&
               sh > 0 && sw > 0 && dh > 0 && dw > 0 && H + 2 * ph >= dh * (KH - 1) + 1 &&
               W + 2 * pw >= dw * (KW - 1) + 1;
    }
    void set_output() {
        P = (H + 2 * ph - dh * (KH - 1) - 1) / sh + 1;
        Q = (W + 2 * pw - dw * (KW - 1) - 1) / sw + 1;
    }
    int64_t channels() const { return C / G; }           // of a group's input
    int64_t outputs() const { return O / G; }            // of a group's output
    int64_t depth() const { return channels() * KH * KW; } // of a group's columns
    int64_t positions() const { return P * Q; }
    // whether an output row reads whole input rows, one after another
    bool keeps_rows() const { return sh == 1 && sw == 1 && W == Q; }
    // whether a sample's columns are the sample itself
    bool pointwise() const { return KH == 1 && KW == 1 && sh == 1 && sw == 1 && ph == 0 && pw == 0; }
};

// Some samples, or some output rows of one sample.
struct Tile {
    int64_t n0, n1, p0, p1;
};

struct Tiles {
    const Shape &s;
    int64_t samples, rows, per_sample, count; // samples or rows of a tile; tiles of a sample; tiles

    explicit Tiles(const Shape &shape) : s(shape) {
        const int64_t L = s.positions();
        samples = std::max<int64_t>(1, std::min(s.N, TILE_POSITIONS / L));
        const int64_t pieces = samples > 1 ? 1 : std::clamp<int64_t>(L / TILE_POSITIONS, 1, s.P);
        rows = (s.P + pieces - 1) / pieces;
        per_sample = (s.P + rows - 1) / rows;
        count = (s.N + samples - 1) / samples * per_sample;
    }
    Tile operator[](int64_t i) const {
        const int64_t n = i / per_sample * samples, p = i % per_sample * rows;
        return {n, std::min(s.N, n + samples), p, std::min(s.P, p + rows)};
    }
    int64_t positions() const { return samples * rows * s.Q; } // of the largest tile
};

// In how many parts, of `most`, each of `items` is divided, so that there is as much work for every thread.
int64_t parts_of(int64_t items, int64_t most);

// cols (channels * KH * KW, positions of the tile; rows `ld` apart) = what the tile's windows read of the first `channels`
// of the image x; zero where they read padding.
void gather_tile(const float *x, const Shape &s, const Tile &tile, int64_t channels, int64_t ld, float *cols);
void gather_tile(const double *x, const Shape &s, const Tile &tile, int64_t channels, int64_t ld, double *cols);

// Adds cols to the places of the image x that they were read from. Overwrites what they hold of padding.
void scatter_tile(float *cols, const Shape &s, const Tile &tile, int64_t channels, int64_t ld, float *x);
void scatter_tile(double *cols, const Shape &s, const Tile &tile, int64_t channels, int64_t ld, double *x);

} // namespace resilin::conv
