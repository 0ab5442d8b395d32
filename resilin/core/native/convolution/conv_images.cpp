#include "conv_images.hpp"

#include "kernels/halves.hpp"
#include "matmul/panels.hpp"

#include <cstring>

namespace resilin::conv {
namespace {

constexpr int64_t COPY_STEPS = 8; // of a tile, which a copied row costs beside its vectors

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

namespace {

// Whether vectors that rows do not fill cost less than a copy for each place along a row: in steps of a tile, per row.
bool better_shared(const Axis &down, const Axis &across, int64_t columns, int64_t outputs, int64_t lanes) {
    const int64_t places = static_cast<int64_t>(across.at.size());
    const double steps = static_cast<double>(outputs) * static_cast<double>(down.at.size() * across.at.size()) / 2;
    const int64_t whole = ceil_div(columns, lanes);
    const double gap = static_cast<double>(whole) - static_cast<double>(columns) / static_cast<double>(lanes);
    return places > 1 && gap * steps <= static_cast<double>((places - 1) * (COPY_STEPS + 2 * whole));
}

} // namespace

Images::Images(const Axis &down, const Axis &across, const Cut &cut, int64_t outputs, int64_t lanes)
    : Images(down, across, cut, better_shared(down, across, cut.columns, outputs, lanes), lanes) {}

Images::Images(const Axis &down, const Axis &across, const Cut &cut, bool shared, int64_t lanes)
    : down_(down), across_(across), lanes_(lanes), shared_(shared), rows_(down, true),
      columns_(across, shared_), most_rows_(cut.rows + rows_.most()),
      by_sample_(cut.samples == 1 || (!shared_ && cut.rows * cut.columns % lanes == 0)), each_(cut.columns + columns_.most()),
      row_(by_sample_ ? each_ : cut.samples * each_), sample_(by_sample_ ? most_rows_ * each_ : each_),
      copy_(cut.samples * most_rows_ * each_),
      channel_(copy_ * static_cast<int64_t>(rows_.first.size() * columns_.first.size())) {
    for (size_t i = 0; i < down.at.size(); i++)
        for (size_t j = 0; j < across.at.size(); j++) {
            const size_t copy = rows_.copy[i] * columns_.first.size() + columns_.copy[j];
            offset.push_back(static_cast<int64_t>(copy) * copy_ + rows_.shift[i] * row_ + columns_.shift[j]);
        }
}

std::vector<Lanes> Images::lanes(const Piece &piece, bool aside, int64_t y_row) const {
    std::vector<Lanes> all;
    auto run = [&](int64_t from, int64_t to, int64_t length) {
        for (int64_t i = 0; i < length; i += lanes_) all.push_back({from + i, to + i, std::min(lanes_, length - i)});
    };
    const int64_t N = piece.samples(), P = piece.rows(), Q = piece.columns();
    const bool gapless = !shared_ && Q == each_;
    const Apart to = aside ? matrix(piece) : Apart{0, y_row};
    if (gapless && by_sample_ && to.next == Q) { // vectors of several rows
        for (int64_t n = 0; n < N; n++) run(n * sample_, n * to.sample, P * Q);
    } else if (gapless && !by_sample_ && N * Q == row_) {
        run(0, 0, P * row_);
    } else {
        for (int64_t p = 0; p < P; p++)
            for (int64_t n = 0; n < N; n++) run(p * row_ + n * sample_, p * to.next + n * to.sample, Q);
    }
    return all;
}

bool Images::keeps_rows(const Piece &piece) const {
    if (!by_sample_ || shared_ || down_.step > 1 || across_.step > 1 || piece.columns() != across_.length) return false;
    const auto [least, most] = std::minmax_element(columns_.first.begin(), columns_.first.end());
    return *least > -across_.length && *most < across_.length && piece.p0 + rows_.first[0] < down_.length;
}

// Where the elements of a channel's row that a copy's positions read are: `length` positions, of which [begin, end) are
// inside, from `first` on.
struct Span {
    int64_t first, length, begin, end;
    Span(int64_t first, int64_t step, int64_t length, int64_t width)
        : first(first), length(length), begin(first < 0 ? std::min(length, (-first + step - 1) / step) : 0),
          end(std::max(begin, first < width ? std::min(length, (width - first - 1) / step + 1) : 0)) {}
};

struct Copying {
    static constexpr int64_t V = 16; // elements that are copied at a time, of which the last may be too many: they are written again
    static constexpr int64_t AHEAD = 6; // rows that are fetched ahead, of a channel or of the next one
    template <class S> static RESILIN_INLINE void fetch(const S *row, int64_t width) {
        for (int64_t j = 0; j < width; j += 64 / static_cast<int64_t>(sizeof(S))) __builtin_prefetch(row + j);
    }
    template <class S, bool Pairs, class D> static RESILIN_INLINE void value(const S *x, const S *later, D *to) {
        if constexpr (std::is_same_v<S, D>) {
            *to = *x;
        } else if constexpr (Pairs) {
            const uint32_t pair = static_cast<uint32_t>(x->bits) << 16 | later->bits;
            std::memcpy(to, &pair, sizeof(pair));
        } else {
            *to = from_bfloat(x->bits);
        }
    }
    template <class S, bool Pairs, class D> static RESILIN_INLINE void several(const S *x, const S *later, D *to) {
        if constexpr (std::is_same_v<S, D>) {
            std::memcpy(to, x, V * sizeof(S));
            return;
        }
        S from[V], behind[V];
        D made[V];
        std::memcpy(from, x, sizeof(from));
        if (Pairs) std::memcpy(behind, later, sizeof(behind));
        for (int64_t v = 0; v < V; v++) value<S, Pairs, D>(from + v, behind + v, made + v);
        std::memcpy(to, made, sizeof(made));
    }
    template <class S, bool Pairs, class D>
    static RESILIN_INLINE void fill(const S *x, const S *later, const Span &span, int64_t step, const S *limit, D *to) {
        for (int64_t j = 0; j < span.begin; j++) to[j] = D{};
        const int64_t n = span.end - span.begin;
        x += span.first + span.begin * step, later += span.first + span.begin * step;
        D *into = to + span.begin;
        if (step == 1 && (Pairs ? later : x) + (n + V) <= limit) {
            for (int64_t j = 0; j < n; j += V)
                several<S, Pairs, D>(x + j, later + j, into + j);
        } else if (step == 2) {
            for (int64_t j = 0; j < n; j++) value<S, Pairs, D>(x + 2 * j, later + 2 * j, into + j);
        } else {
            for (int64_t j = 0; j < n; j++) value<S, Pairs, D>(x + j * step, later + j * step, into + j);
        }
        for (int64_t j = span.end; j < span.length; j++) to[j] = D{};
    }
    // Rows that lie one after another in both, `first` elements apart from where they are read: as one run, whose ends of rows
    // that belong to no window are cleared.
    template <class S, bool Pairs, class D>
    static RESILIN_INLINE void fill_block(const S *x, const S *later, int64_t first, int64_t begin, int64_t rows, int64_t end, int64_t width, const S *limit,
                                          D *to) {
        std::fill(to, to + begin * width, D{});
        const int64_t skipped = std::max<int64_t>(-first, 0), n = rows * width - std::max(first, -first);
        D *into = to + begin * width;
        const S *from = x + std::max<int64_t>(first, 0), *behind = later + std::max<int64_t>(first, 0);
        if ((Pairs ? behind : from) + (n + V) <= limit)
            for (int64_t j = 0; j < n; j += V)
                several<S, Pairs, D>(from + j, behind + j, into + skipped + j);
        else
            for (int64_t j = 0; j < n; j++) value<S, Pairs, D>(from + j, behind + j, into + skipped + j);
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = 0; j < -first; j++) into[i * width + j] = D{};
            for (int64_t j = width - std::max<int64_t>(first, 0); j < width; j++) into[i * width + j] = D{};
        }
        std::fill(into + rows * width, to + end * width, D{});
    }
    template <class S, bool Pairs, class D>
    static RESILIN_INLINE void copy_blocks(const Images &of, const S *x, const Apart &from, const Piece &piece, int64_t channels, D *to) {
        const int64_t width = of.across_.length, h = piece.p0 + of.rows_.first[0], all = piece.rows() + of.rows_.extra[0];
        const int64_t begin = std::clamp<int64_t>(-h, 0, all), rows = std::clamp<int64_t>(of.down_.length - h, begin, all) - begin;
        const S *limit = x + (piece.samples() - 1) * from.sample + channels * from.next;
        for (int64_t c = 0; c < channels; c++) {
            if (Pairs && c % 4 >= 2) continue;
            for (size_t b = 0; b < of.columns_.first.size(); b++)
                for (int64_t n = 0; n < piece.samples(); n++) {
                    const S *image = x + c * from.next + n * from.sample + (h + begin) * width;
                    fill_block<S, Pairs, D>(image, image + (Pairs ? 2 * from.next : 0), of.columns_.first[b], begin, rows, all, width, limit,
                                         to + static_cast<int64_t>(b) * of.copy_ + n * of.sample_);
                }
            to += of.channel_;
        }
    }
    template <class S, bool Pairs, class D>
    static RESILIN_INLINE void copy(const Images &of, const S *x, const Apart &from, const Piece &piece, int64_t channels, D *to) {
        if (of.keeps_rows(piece)) return copy_blocks<S, Pairs, D>(of, x, from, piece, channels, to);
        const int64_t columns = static_cast<int64_t>(of.columns_.first.size()), step = of.down_.step, width = of.across_.length;
        const S *limit = x + (piece.samples() - 1) * from.sample + channels * from.next; // of the elements that are there
        std::vector<Span> spans;
        for (int64_t b = 0; b < columns; b++) {
            const size_t k = static_cast<size_t>(b);
            spans.emplace_back(piece.q0 * of.across_.step + of.columns_.first[k], of.across_.step, piece.columns() + of.columns_.extra[k], width);
        }
        for (int64_t c = 0; c < channels; c++) {
            if (Pairs && c % 4 >= 2) continue;
            for (size_t a = 0; a < of.rows_.first.size(); a++) {
                const int64_t rows = piece.rows() + of.rows_.extra[a];
                for (int64_t b = 0; b < columns; b++) {
                    D *copy = to + (static_cast<int64_t>(a) * columns + b) * of.copy_;
                    auto row = [&](int64_t i, int64_t n) __attribute__((always_inline)) {
                        const int64_t h = (piece.p0 + i) * step + of.rows_.first[a];
                        D *into = copy + i * of.row_ + n * of.sample_;
                        if (h < 0 || h >= of.down_.length) {
                            std::fill_n(into, of.each_, D{});
                            return;
                        }
                        const S *line = x + c * from.next + n * from.sample + h * width;
                        const int64_t behind = Pairs && c % 4 == 1 ? 3 : 1; // the channel that is copied next
                        if (b == 0) fetch(line + (i + AHEAD < rows ? AHEAD * step * width : behind * from.next + (AHEAD - rows) * step * width), width);
                        fill<S, Pairs, D>(line, line + (Pairs ? 2 * from.next : 0), spans[static_cast<size_t>(b)], of.across_.step, limit, into);
                    };
                    // in the order of memory: what is copied too many is written again
                    const int64_t outer = of.by_sample_ ? piece.samples() : rows, inner = of.by_sample_ ? rows : piece.samples();
                    for (int64_t k = 0; k < outer; k++)
                        for (int64_t l = 0; l < inner; l++) row(of.by_sample_ ? l : k, of.by_sample_ ? k : l);
                }
            }
            to += of.channel_;
        }
    }
};

namespace {
RESILIN_SIMD void copy_floats(const Images &of, const float *x, const Apart &from, const Piece &piece, int64_t channels, float *to) {
    Copying::copy<float, false>(of, x, from, piece, channels, to);
}
RESILIN_SIMD void copy_wide(const Images &of, const BFloat *x, const Apart &from, const Piece &piece, int64_t channels, float *to) {
    Copying::copy<BFloat, false>(of, x, from, piece, channels, to);
}
RESILIN_SIMD void copy_pairs(const Images &of, const BFloat *x, const Apart &from, const Piece &piece, int64_t channels, float *to) {
    Copying::copy<BFloat, true>(of, x, from, piece, channels, to);
}
RESILIN_SIMD void copy_bits(const Images &of, const BFloat *x, const Apart &from, const Piece &piece, int64_t channels, BFloat *to) {
    Copying::copy<BFloat, false>(of, x, from, piece, channels, to);
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

void Images::copy(const float *x, const Apart &from, const Piece &piece, int64_t channels, bool, float *to) const {
    copy_floats(*this, x, from, piece, channels, to);
}
void Images::copy(const BFloat *x, const Apart &from, const Piece &piece, int64_t channels, bool pairs, float *to) const {
    if (pairs) copy_pairs(*this, x, from, piece, channels, to);
    else copy_wide(*this, x, from, piece, channels, to);
}
void Images::copy(const BFloat *x, const Apart &from, const Piece &piece, int64_t channels, BFloat *to) const {
    copy_bits(*this, x, from, piece, channels, to);
}
RESILIN_SIMD void put_rows(const float *from, int64_t down, int64_t rows, int64_t width, float *to, int64_t row, int64_t column) {
    put_all(from, down, rows, width, to, row, column);
}
RESILIN_SIMD void put_rows(const float *from, int64_t down, int64_t rows, int64_t width, BFloat *to, int64_t row, int64_t column) {
    put_all(from, down, rows, width, to, row, column);
}

} // namespace resilin::conv
