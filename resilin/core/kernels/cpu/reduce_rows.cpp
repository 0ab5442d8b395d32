// Column sums of a matrix: FAN rows ascending, then FAN of these sums, and so on.
#include "array.hpp"
#include "kernels.hpp"
#include "parallel.hpp"
#include "simd.hpp"

#include <vector>

namespace resilin {
namespace {

constexpr int64_t BLOCK_ROWS = FAN * FAN; // rows of one partial sum: two levels of the order
constexpr int64_t TILE = 1024;            // columns at a time: their two rows of sums stay in the first cache

// sum[i] = the sum of x[n * D + i], i < width, over at most FAN rows n, ascending
RESILIN_INLINE void add_rows(const float *x, int64_t D, int64_t width, int64_t rows, float *sum) {
    if (rows == FAN) { // all at once: the sums stay in registers
        for (int64_t i = 0; i < width; i++) {
            float s = x[i];
            for (int64_t n = 1; n < FAN; n++) s += x[n * D + i];
            sum[i] = s;
        }
        return;
    }
    for (int64_t i = 0; i < width; i++) sum[i] = x[i];
    for (int64_t n = 1; n < rows; n++)
        for (int64_t i = 0; i < width; i++) sum[i] += x[n * D + i];
}

// the same over the rows of one block
RESILIN_SIMD void add_block(const float *x, int64_t D, int64_t width, int64_t rows, float *__restrict sum) {
    float part[TILE];
    add_rows(x, D, width, std::min(rows, FAN), sum);
    for (int64_t n = FAN; n < rows; n += FAN) {
        add_rows(x + n * D, D, width, std::min(rows - n, FAN), part);
        for (int64_t i = 0; i < width; i++) sum[i] += part[i];
    }
}

nb::object sum_rows(Array x) {
    if (!x.is<float>() || x.ndim() != 2) return nb::none();
    const int64_t N = x.dim(0), D = x.dim(1);
    NewArray<float> y({static_cast<npy_intp>(D)});
    {
        WithoutGil free(x.size());
        const int64_t blocks = (N + BLOCK_ROWS - 1) / BLOCK_ROWS, tiles = (D + TILE - 1) / TILE;
        std::vector<float> partial(static_cast<size_t>(blocks * D));
        // rows of the division: blocks x tiles, each with the elements of a whole block
        parallel_rows(blocks * tiles, std::min(N, BLOCK_ROWS) * std::min(D, TILE), [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; task++) {
                const int64_t n = task / tiles * BLOCK_ROWS, i = task % tiles * TILE;
                add_block(x.data<float>() + n * D + i, D, std::min(TILE, D - i), std::min(BLOCK_ROWS, N - n),
                          partial.data() + task / tiles * D + i);
            }
        });
        add_partials(partial.data(), blocks, D, D, y.data);
    }
    return y.object;
}

} // namespace

void bind_reduce_rows(nb::module_ &m) { m.def("sum_rows", &sum_rows); }

} // namespace resilin
