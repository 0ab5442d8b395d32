#include "product.hpp"

#include "parallel.hpp"
#include "simd.hpp"
#include "tiles.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <thread>

namespace resilin {
namespace {

// One block of a panel of A stays in the first cache (32 kB or more) while panels of B stream past.
constexpr int64_t DEPTH_BYTES = 1536;
// At once packed of A and of B: up to so many elements, of up to so many blocks of the depth.
constexpr int64_t PACKED = 1 << 20, BLOCKS = 5;
// A piece of work is so many panels of A by so many of B (a block of these stays in the second cache), or less: a
// thread's share should be several pieces, as long as a piece is worth taking.
constexpr int64_t GROUP = 12, PIECES_PER_THREAD = 4;
constexpr double MIN_FLOPS = 1e6;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
// Where the i-th of `count` even parts of `length` begins.
constexpr int64_t edge(int64_t length, int64_t count, int64_t i) { return length * i / count; }

// Memory of the calling thread that its next product uses again.
template <class T> class Scratch {
  public:
    ~Scratch() { std::free(data_); }
    T *of(int64_t elements) {
        if (elements > size_) {
            std::free(data_);
            size_ = 0;
            data_ = static_cast<T *>(std::aligned_alloc(64, static_cast<size_t>(ceil_div(elements * static_cast<int64_t>(sizeof(T)), 64) * 64)));
            if (!data_) throw std::bad_alloc();
            size_ = elements;
        }
        return data_;
    }

  private:
    T *data_ = nullptr;
    int64_t size_ = 0;
};

// The rows of A or the columns of B (`lanes`), cut into panels.
struct Panels {
    int64_t lanes, width; // width 0: panels of even heights, `count` of them; else of `width`, the last half as wide
    int64_t count;        //   where that suffices, and padded

    static Panels of_rows(int64_t rows, int64_t height) { return {rows, 0, ceil_div(rows, height)}; }
    static Panels of_columns(int64_t columns, int64_t width) { return {columns, width, ceil_div(columns, width)}; }

    int64_t begin(int64_t i) const { return width ? std::min(i * width, lanes) : edge(lanes, count, i); }
    int64_t used(int64_t i) const { return begin(i + 1) - begin(i); }
    int64_t size(int64_t i) const { return !width ? used(i) : used(i) <= width / 2 ? width / 2 : width; }
    int64_t padded() const { return place(count - 1) + size(count - 1); }
    // lanes before panel i, with padding
    int64_t place(int64_t i) const { return width ? i * width : begin(i); }
    // where a block of panel i begins that starts at depth p and is `depth` deep
    int64_t offset(int64_t i, int64_t p, int64_t depth) const { return padded() * p + place(i) * depth; }
};

// Lanes lie side by side: to[p * size + i] = from[p * step + i] for `used` lanes. The usual numbers of lanes are copied
// without a loop.
template <class T, int64_t Used> RESILIN_INLINE void copy_lanes(const T *from, int64_t step, int64_t size, int64_t depth, T *to) {
    for (int64_t p = 0; p < depth; p++) std::memcpy(to + p * size, from + p * step, Used * sizeof(T));
}
template <class T>
RESILIN_INLINE void copy_lanes(const T *from, int64_t step, int64_t used, int64_t size, int64_t depth, T *to) {
    switch (used) {
    case 13: return copy_lanes<T, 13>(from, step, size, depth, to);
    case 14: return copy_lanes<T, 14>(from, step, size, depth, to);
    case 16: return copy_lanes<T, 16>(from, step, size, depth, to);
    case 32: return copy_lanes<T, 32>(from, step, size, depth, to);
    }
    for (int64_t p = 0; p < depth; p++) std::copy_n(from + p * step, used, to + p * size);
}

typedef float Four __attribute__((vector_size(16)));
typedef double Two __attribute__((vector_size(16)));

// to[q * size + i] = from[i * lane + q] for SQUARE steps of SQUARE lanes.
template <class T> constexpr int64_t SQUARE = 16 / sizeof(T);
RESILIN_INLINE void transpose(const float *from, int64_t lane, int64_t size, float *to) {
    Four x[4], y[4];
    for (int i = 0; i < 4; i++) std::memcpy(&x[i], from + i * lane, sizeof(Four));
    for (int i = 0; i < 2; i++) {
        y[i] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 4, 1, 5);
        y[i + 2] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 2, 6, 3, 7);
    }
    for (int i = 0; i < 2; i++) {
        x[2 * i] = __builtin_shufflevector(y[2 * i], y[2 * i + 1], 0, 1, 4, 5);
        x[2 * i + 1] = __builtin_shufflevector(y[2 * i], y[2 * i + 1], 2, 3, 6, 7);
    }
    for (int q = 0; q < 4; q++) std::memcpy(to + q * size, &x[q], sizeof(Four));
}
RESILIN_INLINE void transpose(const double *from, int64_t lane, int64_t size, double *to) {
    Two a, b;
    std::memcpy(&a, from, sizeof(Two));
    std::memcpy(&b, from + lane, sizeof(Two));
    const Two first = __builtin_shufflevector(a, b, 0, 2), second = __builtin_shufflevector(a, b, 1, 3);
    std::memcpy(to, &first, sizeof(Two));
    std::memcpy(to + size, &second, sizeof(Two));
}

// A lane's steps lie side by side: to[p * size + i] = from[i * lane + p].
template <class T>
RESILIN_INLINE void transpose_lanes(const T *from, int64_t lane, int64_t used, int64_t size, int64_t depth, T *to) {
    constexpr int64_t LINE = 64 / sizeof(T); // a cache line of every lane, then the next
    int64_t p = 0;
    for (; used >= SQUARE<T> && p + LINE <= depth; p += LINE)
        for (int64_t i = 0; i < used; i += SQUARE<T>) {
            const int64_t first = std::min(i, used - SQUARE<T>);
            for (int64_t q = p; q < p + LINE; q += SQUARE<T>) transpose(from + first * lane + q, lane, size, to + q * size + first);
        }
    for (; p < depth; p++)
        for (int64_t i = 0; i < used; i++) to[p * size + i] = from[i * lane + p];
}

// to[p * size + i] = from[i * lane + p * step] for `used` lanes of `depth`; the other lanes up to `size` are zero.
template <class T>
RESILIN_INLINE void pack_panel(const T *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth, T *to) {
    if (used < size)
        for (int64_t p = 0; p < depth; p++) std::fill(to + p * size + used, to + (p + 1) * size, T(0));
    if (lane == 1) return copy_lanes(from, step, used, size, depth, to);
    if (step == 1) return transpose_lanes(from, lane, used, size, depth, to);
    for (int64_t p = 0; p < depth; p++)
        for (int64_t i = 0; i < used; i++) to[p * size + i] = from[i * lane + p * step];
}
RESILIN_SIMD void pack(const float *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth, float *to) {
    pack_panel(from, lane, step, used, size, depth, to);
}
RESILIN_SIMD void pack(const double *from, int64_t lane, int64_t step, int64_t used, int64_t size, int64_t depth, double *to) {
    pack_panel(from, lane, step, used, size, depth, to);
}

// One side of a product: A's rows or B's columns as panels, and where they are in memory.
template <class T> struct Side {
    Panels panels;
    int64_t lane, step; // strides of a lane and of a step in depth
    const T *data;

    // Packs a block that starts at depth p: panels [begin, end), one after another. Lanes that lie side by side are read
    // along memory: a few steps of all panels, then the next.
    void pack(int64_t begin, int64_t end, int64_t p, int64_t depth, T *to) const {
        const int64_t strip = lane == 1 ? 16 : depth, start = panels.place(begin);
        for (int64_t q = 0; q < depth; q += strip)
            for (int64_t i = begin; i < end; i++) {
                const int64_t size = panels.size(i);
                resilin::pack(data + panels.begin(i) * lane + (p + q) * step, lane, step, panels.used(i), size,
                              std::min(strip, depth - q), to + (panels.place(i) - start) * depth + q * size);
            }
    }
};

// A product, or a chunk of one, whose shorter side is packed at once, for all threads. The panels of the longer side are
// cut into pieces of work: each packs its own, a block of the depth at a time, and multiplies it while it is in the cache.
template <class T> class Chunk {
  public:
    // blocks [first, last) of the depth, of `blocks` of the whole product's
    Chunk(const Product<T> &product, const Tiles<T> &tiles, int64_t blocks, int64_t first, int64_t last)
        : product_(product), tiles_(tiles), blocks_(blocks), first_(first), last_(last),
          rows_{Panels::of_rows(product.rows, tiles.height), product.a.row, product.a.column, product.a.data},
          columns_{Panels::of_columns(product.columns, tiles.width), product.b.column, product.b.row, product.b.data},
          longer_(product.rows >= product.columns ? rows_ : columns_), shorter_(product.rows >= product.columns ? columns_ : rows_) {}

    void run(bool threads) const {
        static thread_local Scratch<T> scratch;
        T *shared = scratch.of(shorter_.panels.padded() * (at(last_) - at(first_)));
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
    int64_t at(int64_t block) const { return edge(product_.depth, blocks_, block); }

    void pack_shared(int64_t begin, int64_t end, T *shared) const {
        for (int64_t block = first_; block < last_; block++) {
            const int64_t p = at(block), depth = at(block + 1) - p;
            shorter_.pack(begin, end, p, depth, shared + shorter_.panels.offset(begin, p - at(first_), depth));
        }
    }

    void multiply_piece(int64_t begin, int64_t end, const T *shared) const {
        static thread_local Scratch<T> scratch;
        const Panels &own = longer_.panels;
        const int64_t start = own.place(begin);
        T *packed = scratch.of((own.place(end) - start) * ceil_div(product_.depth, blocks_));
        const bool tall = &longer_ == &rows_;
        const int64_t i0 = tall ? begin : 0, i1 = tall ? end : rows_.panels.count;
        const int64_t j0 = tall ? 0 : begin, j1 = tall ? columns_.panels.count : end;
        for (int64_t block = first_; block < last_; block++) {
            const int64_t p = at(block), depth = at(block + 1) - p;
            longer_.pack(begin, end, p, depth, packed);
            const T *other = shared + shorter_.panels.padded() * (p - at(first_));
            const T *a = tall ? packed - start * depth : other, *b = tall ? other : packed - start * depth;
            for (int64_t j = j0; j < j1; j += GROUP) multiply_block(i0, i1, j, std::min(j + GROUP, j1), a, b, depth, product_.add || block > 0);
        }
    }

    void multiply_block(int64_t i0, int64_t i1, int64_t j0, int64_t j1, const T *a, const T *b, int64_t depth, bool add) const {
        const Panels &rows = rows_.panels, &columns = columns_.panels;
        for (int64_t i = i0; i < i1; i++)
            for (int64_t j = j0; j < j1; j++) {
                const Tile<T> *tile = columns.size(j) == tiles_.width ? tiles_.wide : tiles_.narrow;
                tile[rows.used(i) - 1](a + rows.place(i) * depth, b + columns.place(j) * depth, depth,
                                       product_.c + rows.begin(i) * product_.ldc + columns.begin(j), product_.ldc,
                                       columns.used(j), add);
            }
    }

    const Product<T> product_;
    const Tiles<T> &tiles_;
    const int64_t blocks_, first_, last_;
    const Side<T> rows_, columns_;
    const Side<T> &longer_, &shorter_;
};

} // namespace

namespace {

// Which tiles run: the best that this CPU has, unless a test has chosen others.
enum class Set { best, avx512, avx2, portable };
std::atomic<Set> chosen{Set::best};

bool has(Set set) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
    if (set == Set::avx512) return __builtin_cpu_supports("x86-64-v4");
    if (set == Set::avx2) return __builtin_cpu_supports("x86-64-v3");
#endif
    return set == Set::portable || set == Set::best;
}
template <class T> const Tiles<T> &tiles() {
    static const Set best = has(Set::avx512) ? Set::avx512 : has(Set::avx2) ? Set::avx2 : Set::portable;
    const Set set = chosen.load(std::memory_order_relaxed);
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
    if ((set == Set::best ? best : set) == Set::avx512) return avx512_tiles(T());
    if ((set == Set::best ? best : set) == Set::avx2) return avx2_tiles(T());
#endif
    return portable_tiles(T());
}

} // namespace

bool use_tiles(const std::string &name) {
    const Set set = name == "avx512" ? Set::avx512 : name == "avx2" ? Set::avx2 : name == "portable" ? Set::portable : Set::best;
    if (has(set)) chosen.store(set);
    return has(set);
}

template <class T> void multiply(const Product<T> &whole, bool threads) {
    const int64_t blocks = ceil_div(whole.depth * static_cast<int64_t>(sizeof(T)), DEPTH_BYTES);
    const int64_t chunks = ceil_div(blocks, BLOCKS), depth = ceil_div(whole.depth, chunks), longest = PACKED / depth;
    const int64_t down = ceil_div(whole.rows, longest), across = ceil_div(whole.columns, longest);
    for (int64_t column = 0; column < across; column++)
        for (int64_t row = 0; row < down; row++)
            for (int64_t chunk = 0; chunk < chunks; chunk++) {
                Product<T> part = whole;
                const int64_t m = edge(whole.rows, down, row), n = edge(whole.columns, across, column);
                part.rows = edge(whole.rows, down, row + 1) - m;
                part.columns = edge(whole.columns, across, column + 1) - n;
                part.a.data += m * whole.a.row;
                part.b.data += n * whole.b.column;
                part.c += m * whole.ldc + n;
                Chunk<T>(part, tiles<T>(), blocks, edge(blocks, chunks, chunk), edge(blocks, chunks, chunk + 1)).run(threads);
            }
}
template void multiply(const Product<float> &, bool);
template void multiply(const Product<double> &, bool);

} // namespace resilin
