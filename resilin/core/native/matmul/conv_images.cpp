#include "conv_images.hpp"

#include "kernels/halves.hpp"
#include "panels.hpp"

#include <cstring>

namespace resilin::conv {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -ceil_div(-a, b); }

} // namespace

Cut::Cut(int64_t N, int64_t P, int64_t Q, int64_t together, int64_t most)
    : N(N), P(P), Q(Q), samples(std::max<int64_t>(1, std::min(N, together / (P * Q)))), rows(P), columns(Q) {
    if (samples > 1) return;
    const int64_t parts = Q < 2 * most ? 1 : Q / most;
    columns = std::min(Q, ceil_div(ceil_div(Q, parts), 16) * 16);
    rows = ceil_div(P, ceil_div(P, std::max<int64_t>(1, most / columns)));
}

Piece Cut::operator[](int64_t i) const {
    const int64_t q = i % across() * columns, p = i / across() % down() * rows, n = i / across() / down() * samples;
    return {n, std::min(N, n + samples), p, std::min(P, p + rows), q, std::min(Q, q + columns)};
}

Images::Copies::Copies(const Axis &axis, bool shared) {
    for (size_t t = 0; t < axis.at.size(); t++) {
        const int64_t rest = axis.at[t] - floor_div(axis.at[t], axis.step) * axis.step;
        size_t found = first.size();
        for (size_t k = 0; k < first.size() && shared; k++)
            if (first[k] - floor_div(first[k], axis.step) * axis.step == rest) found = k;
        if (found == first.size()) first.push_back(axis.at[t]);
        first[found] = std::min(first[found], axis.at[t]);
        copy.push_back(found);
    }
    extra.assign(first.size(), 0);
    for (size_t t = 0; t < axis.at.size(); t++) {
        shift.push_back((axis.at[t] - first[copy[t]]) / axis.step);
        extra[copy[t]] = std::max(extra[copy[t]], shift[t]);
    }
}

Images::Images(const Axis &down, const Axis &across, const Cut &cut, int64_t lanes)
    : down_(down), across_(across), lanes_(lanes),
      // vectors that fill rows by 7/8 cost less than more copies
      shared_(across.at.size() > 1 && 7 * ceil_div(cut.columns, lanes) * lanes <= 8 * cut.columns), rows_(down, true),
      columns_(across, shared_), most_rows_(cut.rows), each_(cut.columns + columns_.most()), row_(cut.samples * each_) {
    for (const int64_t extra : rows_.extra) {
        begin_.push_back(channel_);
        channel_ += (cut.rows + extra) * row_ * static_cast<int64_t>(columns_.first.size());
    }
    for (size_t i = 0; i < down.at.size(); i++)
        for (size_t j = 0; j < across.at.size(); j++) {
            const size_t a = rows_.copy[i];
            const int64_t each = (cut.rows + rows_.extra[a]) * row_; // of a copy of the columns
            offset.push_back(begin_[a] + static_cast<int64_t>(columns_.copy[j]) * each + rows_.shift[i] * row_ + columns_.shift[j]);
        }
}

std::vector<Lanes> Images::lanes(const Piece &piece, bool aside, int64_t y_row) const {
    std::vector<Lanes> all;
    auto run = [&](int64_t from, int64_t to, int64_t length) {
        for (int64_t i = 0; i < length; i += lanes_) all.push_back({from + i, to + i, std::min(lanes_, length - i)});
    };
    const int64_t N = piece.samples(), Q = piece.columns();
    if (!aside) y_row = std::max(y_row, Q);
    else y_row = N * Q;
    if (!shared_ && N * Q == row_ && y_row == row_) {
        run(0, 0, piece.rows() * row_);
        return all;
    }
    for (int64_t p = 0; p < piece.rows(); p++) {
        if (!shared_ && N * each_ == N * Q) run(p * row_, p * y_row, N * Q);
        else
            for (int64_t n = 0; n < N; n++) run(p * row_ + n * each_, p * y_row + n * Q, Q);
    }
    return all;
}

struct Copying {
    // to[j] for `length` positions from `first` on
    template <class S, bool Pairs>
    static RESILIN_INLINE void fill(const S *x, const S *later, int64_t first, int64_t step, int64_t length, int64_t width, float *to) {
        int64_t begin = first < 0 ? std::min(length, (-first + step - 1) / step) : 0;
        int64_t end = first < width ? std::min(length, (width - first - 1) / step + 1) : 0;
        if (!x || begin >= end) begin = end = length;
        for (int64_t j = 0; j < begin; j++) to[j] = 0;
        if (begin == length) return;
        if (step == 1) values<S, Pairs>(x + first, later + first, begin, end, 1, to);
        else if (step == 2) values<S, Pairs>(x + first, later + first, begin, end, 2, to);
        else values<S, Pairs>(x + first, later + first, begin, end, step, to);
        for (int64_t j = end; j < length; j++) to[j] = 0;
    }
    template <class S, bool Pairs>
    static RESILIN_INLINE void values(const S *x, const S *later, int64_t begin, int64_t end, int64_t step, float *to) {
        if constexpr (Pairs) {
            uint32_t *pairs = reinterpret_cast<uint32_t *>(to);
            for (int64_t j = begin; j < end; j++) pairs[j] = static_cast<uint32_t>(x[j * step].bits) << 16 | later[j * step].bits;
        } else if constexpr (std::is_same_v<S, float>) {
            for (int64_t j = begin; j < end; j++) to[j] = x[j * step];
        } else {
            for (int64_t j = begin; j < end; j++) to[j] = from_bfloat(x[j * step].bits);
        }
    }
    template <class S, bool Pairs>
    static RESILIN_INLINE void copy(const Images &of, const S *x, int64_t sample, int64_t channel, int64_t width, const Piece &piece, int64_t channels,
                             float *to) {
        const int64_t columns = static_cast<int64_t>(of.columns_.first.size()), step = of.down_.step;
        for (int64_t c = 0; c < channels; c++) {
            if (Pairs && c % 4 >= 2) continue;
            for (size_t a = 0; a < of.rows_.first.size(); a++) {
                const int64_t rows = piece.rows() + of.rows_.extra[a];
                const int64_t copy = (of.most_rows_ + of.rows_.extra[a]) * of.row_; // of the columns
                for (int64_t b = 0; b < columns; b++)
                    for (int64_t i = 0; i < rows; i++) {
                        const int64_t h = (piece.p0 + i) * step + of.rows_.first[a];
                        const bool inside = h >= 0 && h < of.down_.length;
                        const size_t k = static_cast<size_t>(b);
                        const int64_t first = piece.q0 * of.across_.step + of.columns_.first[k];
                        float *row = to + of.begin_[a] + b * copy + i * of.row_;
                        for (int64_t n = 0; n < piece.samples(); n++) {
                            const S *from = inside ? x + n * sample + c * channel + h * width : nullptr;
                            fill<S, Pairs>(from, from && Pairs ? from + 2 * channel : from, first, of.across_.step, piece.columns() + of.columns_.extra[k], width,
                                           row + n * of.each_);
                        }
                    }
            }
            to += of.channel_;
        }
    }
};

namespace {
RESILIN_SIMD void copy_floats(const Images &of, const float *x, int64_t sample, int64_t channel, int64_t width, const Piece &piece, int64_t channels, float *to) {
    Copying::copy<float, false>(of, x, sample, channel, width, piece, channels, to);
}
RESILIN_SIMD void copy_wide(const Images &of, const BFloat *x, int64_t sample, int64_t channel, int64_t width, const Piece &piece, int64_t channels, float *to) {
    Copying::copy<BFloat, false>(of, x, sample, channel, width, piece, channels, to);
}
RESILIN_SIMD void copy_pairs(const Images &of, const BFloat *x, int64_t sample, int64_t channel, int64_t width, const Piece &piece, int64_t channels, float *to) {
    Copying::copy<BFloat, true>(of, x, sample, channel, width, piece, channels, to);
}
RESILIN_INLINE void put(const float *from, int64_t n, float *to, int64_t column) {
    for (int64_t j = 0; j < n; j++) to[j * column] = from[j];
}
RESILIN_INLINE void put(const float *from, int64_t n, BFloat *to, int64_t column) {
    for (int64_t j = 0; j < n; j++) to[j * column].bits = bfloat_of(from[j]);
}
template <class T> RESILIN_INLINE void put_all(const float *from, int64_t down, int64_t rows, int64_t width, T *to, int64_t row, int64_t column) {
    for (int64_t i = 0; i < rows; i++, from += down, to += row) {
        if (column == 1) put(from, width, to, 1);
        else if (column == 2) put(from, width, to, 2);
        else put(from, width, to, column);
    }
}
} // namespace

void Images::copy(const float *x, int64_t sample, int64_t channel, int64_t width, const Piece &piece, int64_t channels, bool, float *to) const {
    copy_floats(*this, x, sample, channel, width, piece, channels, to);
}
void Images::copy(const BFloat *x, int64_t sample, int64_t channel, int64_t width, const Piece &piece, int64_t channels, bool pairs, float *to) const {
    if (pairs) copy_pairs(*this, x, sample, channel, width, piece, channels, to);
    else copy_wide(*this, x, sample, channel, width, piece, channels, to);
}
RESILIN_SIMD void put_rows(const float *from, int64_t down, int64_t rows, int64_t width, float *to, int64_t row, int64_t column) {
    put_all(from, down, rows, width, to, row, column);
}
RESILIN_SIMD void put_rows(const float *from, int64_t down, int64_t rows, int64_t width, BFloat *to, int64_t row, int64_t column) {
    put_all(from, down, rows, width, to, row, column);
}

} // namespace resilin::conv
