#include "product.hpp"

#include "few_rows.hpp"
#include "panels.hpp"
#include "memory/parallel.hpp"
#include "memory/scratch.hpp"
#include "subnormals.hpp"
#include "tiles.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <type_traits>

namespace resilin {
namespace {

// One block of a panel of A stays in the first cache (32 kB or more) while panels of B stream past.
constexpr int64_t DEPTH_BYTES = 1536;
// At once packed of A and of B: up to so many elements, of up to so many blocks of the depth.
constexpr int64_t PACKED = 1 << 20, BLOCKS = 5;
constexpr int64_t MATRIX_DEPTH = 1024; // of a block of tile registers, whose b streams from the second cache
constexpr int64_t LONGEST = 1024; // rows and columns whose sums, to be rounded, wait for another block: 4 MB
constexpr int64_t DIRECT_BYTES = 1 << 20, FEW = 4, LOW = 8; // see reads_columns()
// A piece of work is so many panels of A by so many of B (a block of these stays in the second cache), or less: a
// thread's share should be several pieces, as long as a piece is worth taking.
constexpr int64_t GROUP = 12, PIECES_PER_THREAD = 4;
constexpr double MIN_FLOPS = 1e6;

// Rows of A of which the first cache does not hold those of a tile.
template <class T> bool crowded(const View<T> &a) { return a.column == 1 && resilin::crowded<T>(a.row); }

// How high panels of A are: where they are read by few panels of B only, crowded ones are rather low than packed.
template <class T, class From> int64_t height_of(const Product<T, From> &product, const Tiles<T> &tiles) {
    if constexpr (std::is_same_v<T, From>)
        if (crowded(product.a) && product.columns <= tiles.width) return (tiles.height + 1) / 2;
    return tiles.height;
}

// Whether tiles read an operand where it lies. Rows of A: each along memory, and not crowded, or low. Columns of B: side
// by side, and read by few panels of A only, or small enough to stay in the second cache, where steps of whole pages
// share sets again. What is fetched of crowded columns drives out what is not yet used: low tiles, whose steps are short,
// wait for it. What must be converted is packed.
template <class T, class From> bool reads_rows(const Product<T, From> &product, const Tiles<T> &tiles) {
    const View<From> &a = product.a;
    if (!std::is_same_v<T, From>) return false;
    if (crowded(a)) return height_of(product, tiles) < tiles.height;
    return a.column == 1 || (a.row == 1 && product.depth <= 64);
}
template <class T, class From> bool reads_columns(const Product<T, From> &product, const Tiles<T> &tiles, int64_t block) {
    constexpr int64_t size = sizeof(T);
    const View<From> &b = product.b;
    if (!std::is_same_v<T, From> || b.column != 1) return false;
    const bool pages = b.row * size % 4096 == 0, waits = tiles.height <= LOW && resilin::crowded<T>(b.row);
    if (product.rows <= (waits && pages ? FEW / 2 : FEW) * tiles.height) return true;
    if (waits) return false;
    return product.depth * product.columns * size <= DIRECT_BYTES && (!pages || block <= 256);
}

// A product, or a chunk of one, whose shorter side is packed at once, for all threads. The panels of the longer side are
// cut into pieces of work: each packs its own, a block of the depth at a time, and multiplies it while it is in the cache.
template <class T, class From> class Chunk {
  public:
    // blocks [first, last) of the depth, of `blocks` of the whole product's; rounded into `out`, where there is one
    Chunk(const Product<T, From> &product, const Tiles<T> &tiles, int64_t blocks, int64_t first, int64_t last,
          From *out = nullptr, int64_t ld_out = 0)
        : product_(product), tiles_(tiles), blocks_(blocks), first_(first), last_(last), out_(out), ld_out_(ld_out),
          rows_{rows_of(product, tiles), product.a.row, product.a.column, product.a.data, reads_rows(product, tiles),
                tiles.layout, false},
          columns_{Panels::of_columns(product.columns, tiles.width), product.b.column, product.b.row, product.b.data,
                   reads_columns(product, tiles, ceil_div(product.depth, blocks)), tiles.layout, true},
          longer_(product.rows >= product.columns ? rows_ : columns_), shorter_(product.rows >= product.columns ? columns_ : rows_) {}

    void run(bool threads) const {
        static thread_local Scratch<T> scratch;
        T *shared = scratch.of(shorter_.stored(shorter_.panels.count) * before(last_));
        const double flops = product_.flops() * static_cast<double>(last_ - first_) / static_cast<double>(blocks_);
        const int64_t sharers = threads && flops >= SHARED_FLOPS ? num_threads() : 1, panels = longer_.panels.count;
        int64_t pieces = ceil_div(panels, GROUP);
        if (sharers > 1) {
            const int64_t worth = std::max<int64_t>(1, static_cast<int64_t>(flops / MIN_FLOPS));
            pieces = std::max(pieces, std::min({panels, worth, PIECES_PER_THREAD * sharers}));
        }
        const int64_t packs = sharers > 1 ? std::min(shorter_.panels.count, 2 * sharers) : 1;
        std::atomic<int64_t> packed{0};
        auto work = [&](int64_t i) {
            if (i < packs) {
                pack_shared(edge(shorter_.panels.count, packs, i), edge(shorter_.panels.count, packs, i + 1), shared);
                packed.fetch_add(1, std::memory_order_release);
                return;
            }
            // the work is handed out in order: whoever packs is at it already
            while (packed.load(std::memory_order_acquire) < packs) std::this_thread::yield();
            multiply_piece(edge(panels, pieces, i - packs), edge(panels, pieces, i - packs + 1), shared);
        };
        if (sharers > 1) return run_blocks(packs + pieces, work);
        for (int64_t i = 0; i < packs + pieces; i++) work(i);
    }

  private:
    int64_t at(int64_t block) const {
        if (std::is_same_v<From, BFloat>) // no group is cut
            return std::min(product_.depth, edge(groups_of(product_.depth), blocks_, block) * GROUP_STEPS);
        return edge(product_.depth, blocks_, block);
    }
    static Panels rows_of(const Product<T, From> &product, const Tiles<T> &tiles) {
        if (tiles.layout == Layout::matrix) return Panels::of_columns(product.rows, tiles.height); // padded, too
        return Panels::of_rows(product.rows, height_of(product, tiles));
    }
    int64_t steps(int64_t block) const { return rows_.steps(at(block + 1) - at(block)); }
    // steps of the chunk's blocks before that one
    int64_t before(int64_t block) const {
        int64_t sum = 0;
        for (int64_t i = first_; i < block; i++) sum += steps(i);
        return sum;
    }

    // where a block begins of what all threads share
    T *shared_at(T *shared, int64_t block) const { return shared + shorter_.stored(shorter_.panels.count) * before(block); }

    void pack_shared(int64_t begin, int64_t end, T *shared) const {
        for (int64_t block = first_; block < last_; block++) {
            const int64_t p = at(block), depth = at(block + 1) - p;
            shorter_.pack(begin, end, p, depth, shared_at(shared, block) + shorter_.stored(begin) * steps(block));
        }
    }

    void multiply_piece(int64_t begin, int64_t end, T *shared) const {
        static thread_local Scratch<T> scratch;
        const bool tall = &longer_ == &rows_;
        const int64_t i0 = tall ? begin : 0, i1 = tall ? end : rows_.panels.count;
        const int64_t j0 = tall ? 0 : begin, j1 = tall ? columns_.panels.count : end;
        int64_t most = 0; // steps of a block
        for (int64_t block = first_; block < last_; block++) most = std::max(most, steps(block));
        T *own = scratch.of((longer_.stored(end) - longer_.stored(begin)) * most);
        for (int64_t block = first_; block < last_; block++) {
            const int64_t p = at(block), depth = at(block + 1) - p;
            longer_.pack(begin, end, p, depth, own);
            const T *others = shared_at(shared, block);
            const int64_t group = i1 - i0 <= FEW ? 1 : GROUP;
            for (int64_t j = j0; j < j1; j += group)
                multiply_block(i0, i1, j, std::min(j + group, j1), block, tall ? begin : 0, tall ? own : others,
                               tall ? 0 : begin, tall ? others : own);
        }
    }

    // Tiles of rows [i0, i1) and columns [j0, j1); what is packed of A begins with panel `first_row`, of B with `first_column`.
    void multiply_block(int64_t i0, int64_t i1, int64_t j0, int64_t j1, int64_t block, int64_t first_row, const T *a,
                        int64_t first_column, const T *b) const {
        const int64_t p = at(block), depth = at(block + 1) - p, left_edge = columns_.panels.begin(j0);
        const T *plus = block > 0 ? product_.c : product_.plus;
        const int64_t ld_plus = block > 0 ? product_.ldc : product_.ld_plus;
        [[maybe_unused]] const Subnormals<From> subnormals;
        if (tiles_.enter) tiles_.enter();
        for (int64_t i = i0; i < i1; i++) {
            const View<T> left = rows_.at(i, p, depth, first_row, a);
            const int64_t row = rows_.panels.begin(i), height = rows_.panels.used(i);
            const Sums sums = sums_at(row, height, left_edge, columns_.panels.begin(j1) - left_edge);
            for (int64_t j = j0; j < j1; j++) {
                const View<T> right = columns_.at(j, p, depth, first_column, b);
                const int64_t column = columns_.panels.begin(j);
                const Tile<T> *tile = columns_.panels.size(j) == tiles_.width ? tiles_.wide : tiles_.narrow;
                tile[height - 1]({left.data, left.row, left.column, right.data, right.column, depth,
                                  sums.data + (column - left_edge), sums.ld, height, columns_.panels.used(j),
                                  plus ? plus + row * ld_plus + column : nullptr, ld_plus, product_.scaled, product_.scale});
            }
            if constexpr (!std::is_same_v<T, From>)
                for (int64_t k = 0; k < height && out_ && block == blocks_ - 1; k++)
                    round_row(sums.data + k * sums.ld, columns_.panels.begin(j1) - left_edge, out_ + (row + k) * ld_out_ + left_edge);
        }
        if (tiles_.leave) tiles_.leave();
    }

    // Where tiles put their sums: in c, or, where these are rounded at once, in memory that the first cache holds.
    struct Sums {
        T *data;
        int64_t ld;
    };
    Sums sums_at(int64_t row, int64_t height, int64_t column, int64_t width) const {
        if (std::is_same_v<T, From> || !out_ || blocks_ > 1) return {product_.c + row * product_.ldc + column, product_.ldc};
        static thread_local Scratch<T> scratch;
        return {scratch.of(height * width), width};
    }

    const Product<T, From> product_;
    const Tiles<T> &tiles_;
    const int64_t blocks_, first_, last_;
    From *const out_;
    const int64_t ld_out_;
    const Operand<T, From> rows_, columns_;
    const Operand<T, From> &longer_, &shorter_;
};

// Which tiles run: the best that this CPU has, unless a test has chosen others.
enum class Set { best, amx, avx512_bf16, avx512, avx2, portable };
std::atomic<Set> chosen{Set::best};

bool has(Set set) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
    if (set == Set::amx) return has(Set::avx512) && has_amx();
    if (set == Set::avx512_bf16) return has(Set::avx512) && __builtin_cpu_supports("avx512bf16");
    if (set == Set::avx512) return __builtin_cpu_supports("x86-64-v4");
    if (set == Set::avx2) return __builtin_cpu_supports("x86-64-v3");
#endif
    return set == Set::portable || set == Set::best;
}
// Whether the CPU multiplies pairs faster than it multiplies float32: Intel's do not, they keep their speed for AMX.
bool pairs_are_fast() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
    return has(Set::avx512_bf16) && !__builtin_cpu_is("intel");
#else
    return false;
#endif
}
Set running() {
    static const Set best = has(Set::amx)         ? Set::amx
                            : pairs_are_fast()    ? Set::avx512_bf16
                            : has(Set::avx512)    ? Set::avx512
                            : has(Set::avx2)      ? Set::avx2
                                                  : Set::portable;
    const Set set = chosen.load(std::memory_order_relaxed);
    return set == Set::best ? best : set;
}
// Of the registers in which few rows' matrices are turned.
int64_t register_bytes() {
    const Set set = running();
    return set == Set::portable ? 0 : set == Set::avx2 ? 32 : 64;
}
// For operands of type From.
template <class T, class From = T> const Tiles<T> &tiles() {
    [[maybe_unused]] const Set set = running();
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
    if constexpr (std::is_same_v<From, BFloat>) {
        if (set == Set::amx) return amx_tiles();
        if (set == Set::avx512_bf16) return avx512_bf16_tiles();
        if (set == Set::avx512) return avx512_split_tiles();
        if (set == Set::avx2) return avx2_split_tiles();
        return portable_split_tiles();
    }
    if (set == Set::amx || set == Set::avx512_bf16 || set == Set::avx512) return avx512_tiles(T());
    if (set == Set::avx2) return avx2_tiles(T());
#endif
    if constexpr (std::is_same_v<From, BFloat>) return portable_split_tiles();
    else return portable_tiles(T());
}

} // namespace

template <class From> const SpreadTiles<float> &spread_tiles() {
    constexpr bool halves = std::is_same_v<From, BFloat>;
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
    const Set set = running();
    if (halves && set == Set::avx512_bf16) return avx512_bf16_spread_tiles();
    if (set == Set::amx || set == Set::avx512_bf16 || set == Set::avx512)
        return halves ? avx512_split_spread_tiles() : avx512_spread_tiles();
    if (set == Set::avx2) return halves ? avx2_split_spread_tiles() : avx2_spread_tiles();
#endif
    return halves ? portable_split_spread_tiles() : portable_spread_tiles();
}
template const SpreadTiles<float> &spread_tiles<float>();
template const SpreadTiles<float> &spread_tiles<BFloat>();

namespace {

// Tiles of matrix layout are set up for each product, and padded: a small one has the same bits sooner without.
constexpr double MATRIX_FLOPS = 3e4;
template <class From> const Tiles<float> &tiles_for(const Product<float, From> &product) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
    if constexpr (std::is_same_v<From, BFloat>)
        if (chosen.load(std::memory_order_relaxed) == Set::best && running() == Set::amx && product.flops() < MATRIX_FLOPS)
            return avx512_split_tiles();
#endif
    return tiles<float, From>();
}

} // namespace

bool use_tiles(const std::string &name) {
    const Set set = name == "amx"           ? Set::amx
                    : name == "avx512_bf16" ? Set::avx512_bf16
                    : name == "avx512"    ? Set::avx512
                    : name == "avx2"      ? Set::avx2
                    : name == "portable"  ? Set::portable
                                          : Set::best;
    if (has(set)) chosen.store(set);
    return has(set);
}

namespace {

template <class T> int64_t blocks_of(int64_t depth) { return ceil_div(depth * static_cast<int64_t>(sizeof(T)), DEPTH_BYTES); }

// Whether a is a few rows and b's columns lie along memory, as in x @ w.T of a few samples: packing b would cost more than
// multiplying it. Rows become the lanes of one vector or two, which they should fill; all the more so where rows of b are
// crowded, of which low tiles are made, and where squares of b are turned faster.
template <class T> bool better_turned(const Product<T> &product) {
    if (product.b.row != 1 || product.b.column == 1 || product.columns <= product.rows || product.scaled) return false;
    const int64_t width = tiles<T>().width, rows = product.rows;
    if (4 * rows >= width && 2 * rows <= width) return true;
    const bool slow = resilin::crowded<T>(product.b.column) || 4 * rows == 3 * width;
    if (std::is_same_v<T, float> && slow && rows < width) return false;
    return 4 * rows >= 3 * width && rows <= width;
}

// The same sums as rows of the transposed product, for which b is read where it lies.
template <class T> void multiply_turned(const Product<T> &whole, bool threads) {
    static thread_local Scratch<T> scratch;
    const int64_t rows = whole.rows, columns = whole.columns;
    T *turned = scratch.of(rows * columns);
    if (whole.plus && whole.ld_plus == 0)
        for (int64_t j = 0; j < columns; j++) std::fill_n(turned + j * rows, rows, whole.plus[j]);
    else if (whole.plus)
        turn(whole.plus, whole.ld_plus, rows, rows, columns, turned);
    multiply<T>({columns, rows, whole.depth, {whole.b.data, whole.b.column, 1}, {whole.a.data, whole.a.column, whole.a.row},
                 turned, rows, whole.plus ? turned : nullptr, rows},
                threads);
    turn(turned, rows, columns, whole.ldc, rows, whole.c);
}

} // namespace

template <class T> bool can_scale(int64_t depth) { return depth > 0 && blocks_of<T>(depth) == 1 && tiles<T>().scales; }
template bool can_scale<float>(int64_t);
template bool can_scale<double>(int64_t);

namespace {

// fn(part, row, column, first block, last block) for parts of a product of which as much as `packed` is packed at once, and
// of at most `most` rows and columns and `together` blocks.
template <class T, class From, class Fn>
void each_chunk(const Product<T, From> &whole, int64_t blocks, int64_t most, int64_t packed, int64_t together, Fn fn) {
    const int64_t chunks = ceil_div(blocks, together), depth = ceil_div(whole.depth, chunks);
    const int64_t longest = std::min(most, packed / depth);
    const int64_t down = ceil_div(whole.rows, longest), across = ceil_div(whole.columns, longest);
    for (int64_t column = 0; column < across; column++)
        for (int64_t row = 0; row < down; row++)
            for (int64_t chunk = 0; chunk < chunks; chunk++) {
                Product<T, From> part = whole;
                const int64_t m = edge(whole.rows, down, row), n = edge(whole.columns, across, column);
                part.rows = edge(whole.rows, down, row + 1) - m;
                part.columns = edge(whole.columns, across, column + 1) - n;
                part.a.data += m * whole.a.row;
                part.b.data += n * whole.b.column;
                if (part.plus) part.plus += m * whole.ld_plus + n;
                fn(part, m, n, edge(blocks, chunks, chunk), edge(blocks, chunks, chunk + 1));
            }
}

} // namespace

template <class T> void multiply(const Product<T> &whole, bool threads) {
    const int64_t blocks = blocks_of<T>(whole.depth);
    if constexpr (std::is_same_v<T, float>)
        if (multiply_few(whole, blocks, register_bytes(), threads)) return;
    if (better_turned(whole)) return multiply_turned(whole, threads);
    each_chunk(whole, blocks, PACKED, PACKED, BLOCKS, [&](Product<T> &part, int64_t row, int64_t column, int64_t first, int64_t last) {
        part.c += row * whole.ldc + column;
        Chunk<T, T>(part, tiles<T>(), blocks, first, last).run(threads);
    });
}
template void multiply(const Product<float> &, bool);
template void multiply(const Product<double> &, bool);

template <class From> void multiply(const Product<float, From> &given, From *out, int64_t ld_out, bool threads) {
    Product<float, From> whole = given;
    if (out && whole.columns == 1 && whole.rows > 1 && ld_out == 1 && !whole.plus) { // a vector is rather the row than a column of 16
        whole = {1, given.rows, given.depth, {given.b.data, given.b.column, given.b.row}, {given.a.data, given.a.column, given.a.row},
                 nullptr, 0};
        ld_out = whole.columns;
    }
    static thread_local Scratch<float> scratch;
    const Tiles<float> &chosen_tiles = tiles_for(whole);
    const bool matrix = chosen_tiles.layout == Layout::matrix;
    const int64_t blocks = matrix ? ceil_div(whole.depth, MATRIX_DEPTH) : blocks_of<float>(whole.depth);
    const int64_t most = blocks > 1 ? LONGEST : PACKED, packed = matrix ? 2 * PACKED : PACKED, together = matrix ? 1 : BLOCKS;
    if (const int64_t done = out && whole.rows == 1 ? multiply_row(whole, blocks, out, threads) : 0) {
        whole.columns -= done;
        whole.b.data += done * whole.b.column;
        whole.plus = whole.plus ? whole.plus + done : nullptr;
        out += done;
    }
    each_chunk(whole, blocks, most, packed, together, [&](Product<float, From> &part, int64_t row, int64_t column, int64_t first, int64_t last) {
        if (!out) {
            part.c += row * whole.ldc + column;
            return Chunk<float, From>(part, chosen_tiles, blocks, first, last).run(threads);
        }
        part.ldc = part.columns + 16; // so that rows of a whole page do not share sets of the first cache
        part.c = blocks > 1 ? scratch.of(part.rows * part.ldc) : nullptr;
        Chunk<float, From>(part, chosen_tiles, blocks, first, last, out + row * ld_out + column, ld_out).run(threads);
    });
}
template void multiply(const Product<float, BFloat> &, BFloat *, int64_t, bool);
template void multiply(const Product<float, Half> &, Half *, int64_t, bool);

} // namespace resilin
