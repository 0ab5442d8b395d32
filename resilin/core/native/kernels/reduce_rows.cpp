// Column sums of matrices: FAN rows ascending, then FAN of these sums, and so on.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
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
    if (!x.is<float>() || x.ndim() < 2) return nb::none();
    const int64_t N = x.dim(x.ndim() - 2), D = x.last();
    std::vector<npy_intp> dims(PyArray_DIMS(x.array), PyArray_DIMS(x.array) + x.ndim() - 2);
    int64_t matrices = 1;
    for (npy_intp n : dims) matrices *= n;
    dims.push_back(D);
    NewArray<float> y(static_cast<int>(dims.size()), dims.data());
    {
        WithoutGil free(x.size());
        const int64_t blocks = (N + BLOCK_ROWS - 1) / BLOCK_ROWS, tiles = (D + TILE - 1) / TILE;
        std::vector<float> partial(static_cast<size_t>(blocks > 1 ? matrices * blocks * D : 0));
        float *sums = blocks == 1 ? y.data : partial.data();
        // what is divided: the tiles of all blocks of all matrices
        const int64_t tasks = matrices * blocks * tiles, task_size = std::min(N, BLOCK_ROWS) * std::min(D, TILE);
        parallel_rows(tasks, task_size, [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; task++) {
                const int64_t at = task / tiles, n = at % blocks * BLOCK_ROWS, i = task % tiles * TILE;
                add_block(x.data<float>() + (at / blocks * N + n) * D + i, D, std::min(TILE, D - i),
                          std::min(BLOCK_ROWS, N - n), sums + at * D + i);
            }
        });
        for (int64_t m = 0; m < matrices && blocks != 1; m++)
            add_partials(partial.data() + m * blocks * D, blocks, D, D, y.data + m * D);
    }
    return y.object;
}

} // namespace

void bind_reduce_rows(nb::module_ &m) { m.def("sum_rows", &sum_rows); }

} // namespace resilin
