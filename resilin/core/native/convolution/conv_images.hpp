// Copies of pieces of images in which all places of a kernel are read by plain vectors, each at an offset of its own.
#pragma once
#include "matmul/product.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace resilin::conv {

// Along one axis, output position i reads i * step + at[t] for place t of the kernel: zero where that is not in [0, length).
struct Axis {
    int64_t count, step, length;
    std::vector<int64_t> at;
};

// Some samples; or of one some output rows, or parts of these.
struct Piece {
    int64_t n0, n1, p0, p1, q0, q1;
    int64_t samples() const { return n1 - n0; }
    int64_t rows() const { return p1 - p0; }
    int64_t columns() const { return q1 - q0; }
    int64_t positions() const { return samples() * rows() * columns(); }
};

// N samples of P rows of Q output positions in pieces: of several samples where these have at most `together`, else of about
// `most` positions.
struct Cut {
    int64_t N, P, Q, samples, rows, columns;

    Cut(int64_t N, int64_t P, int64_t Q, int64_t together, int64_t most);
    int64_t down() const { return (P + rows - 1) / rows; }
    int64_t across() const { return (Q + columns - 1) / columns; }
    int64_t count() const { return (N + samples - 1) / samples * down() * across(); }
    int64_t positions() const { return samples * rows * columns; } // of the largest piece
    Piece operator[](int64_t i) const;
};

// One vector of output positions: where it reads the first place of a kernel, where its outputs go, and how many these are.
struct Lanes {
    int64_t from, to, count;
};

// How many elements samples are apart, and channels or rows.
struct Apart {
    int64_t sample, next;
};

// Where things are in a piece's copy. A channel's rows are sorted by their remainder modulo the stride; so are its columns,
// with padding, where vectors of outputs fill rows; else each place along a row has a copy of its own, without gaps.
class Images {
  public:
    // for `outputs` output channels, vectors of `lanes`
    Images(const Axis &down, const Axis &across, const Cut &cut, int64_t outputs, int64_t lanes);
    // the same, columns being shared or not
    Images(const Axis &down, const Axis &across, const Cut &cut, bool shared, int64_t lanes);

    std::vector<int64_t> offset; // of each place of the kernel
    int64_t channel() const { return channel_; } // elements of one
    // Where a piece's outputs lie in one matrix of positions: samples, or their rows, one after another.
    Apart matrix(const Piece &piece) const {
        const int64_t Q = piece.columns();
        return by_sample_ ? Apart{piece.rows() * Q, Q} : Apart{Q, piece.samples() * Q};
    }
    // The vectors of a piece. Outputs go to such a matrix, or to an image with rows `y_row` apart.
    std::vector<Lanes> lanes(const Piece &piece, bool aside, int64_t y_row) const;
    // `channels` channels of a piece, `sample` and `channel` elements apart, of rows of `width`, `x` being the piece's first
    // sample. BFloat: as float32, or (`pairs`) channels c and c + 2 in the place of one float, c in its upper half, the
    // pairs of c = 0, 1, 4, 5, 8 ...
    void copy(const float *x, const Apart &from, const Piece &piece, int64_t channels, bool pairs, float *to) const;
    void copy(const BFloat *x, const Apart &from, const Piece &piece, int64_t channels, bool pairs, float *to) const;
    // as it is
    void copy(const BFloat *x, const Apart &from, const Piece &piece, int64_t channels, BFloat *to) const;
    // where position (sample, row, column) of a piece is in a channel's copy
    int64_t place(int64_t n, int64_t p, int64_t q) const { return n * sample_ + p * row_ + q; }

  private:
    friend struct Copying;
    struct Copies {
        std::vector<int64_t> first;       // of each copy: what position 0 reads
        std::vector<int64_t> extra;       // positions that it has beyond the outputs'
        std::vector<size_t> copy;         // of each place
        std::vector<int64_t> shift;
        Copies(const Axis &axis, bool shared);
        int64_t most() const { return *std::max_element(extra.begin(), extra.end()); }
    };
    // whether a channel's rows in the copy are the image's
    bool keeps_rows(const Piece &piece) const;

    Axis down_, across_;
    int64_t lanes_;
    bool shared_;
    Copies rows_, columns_;
    int64_t most_rows_;                // of a piece
    bool by_sample_;                   // samples lie one after another, else their rows side by side
    int64_t each_;                     // elements of a sample's row
    int64_t row_, sample_, copy_ = 0;  // from row to row, sample to sample, copy to copy
    int64_t channel_ = 0;
};

// Rows of sums into an image, rounded where it is BFloat.
void put_rows(const float *from, int64_t down, int64_t rows, int64_t width, float *to, int64_t row, int64_t column);
void put_rows(const float *from, int64_t down, int64_t rows, int64_t width, BFloat *to, int64_t row, int64_t column);

} // namespace resilin::conv
