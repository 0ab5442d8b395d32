// Column sums of a matrix: rows ascending inside blocks of fixed size, blocks ascending.
#include "array.hpp"
#include "kernels.hpp"
#include "parallel.hpp"
#include "simd.hpp"

#include <vector>

namespace resilin {
namespace {

constexpr int64_t BLOCK_ROWS = 128; // part of the order of sums

RESILIN_SIMD void add_rows(const float *x, int64_t D, int64_t begin, int64_t end, float *sum) {
    for (int64_t i = 0; i < D; i++) sum[i] = 0.0f;
    int64_t n = begin;
    for (; n + 4 <= end; n += 4) { // four rows a pass: the sums are loaded and stored a quarter as often
        const float *a = x + n * D, *b = a + D, *c = b + D, *d = c + D;
        for (int64_t i = 0; i < D; i++) sum[i] = (((sum[i] + a[i]) + b[i]) + c[i]) + d[i];
    }
    for (; n < end; n++)
        for (int64_t i = 0; i < D; i++) sum[i] += x[n * D + i];
}

nb::object sum_rows(Array x) {
    if (!x.is<float>() || x.ndim() != 2) return nb::none();
    const int64_t N = x.dim(0), D = x.dim(1);
    NewArray<float> y({static_cast<npy_intp>(D)});
    {
        WithoutGil free(x.size());
        const int64_t blocks = (N + BLOCK_ROWS - 1) / BLOCK_ROWS;
        std::vector<float> partial(static_cast<size_t>(blocks * D));
        parallel_fixed(N, BLOCK_ROWS, D, [&](int64_t block, int64_t begin, int64_t end) {
            add_rows(x.data<float>(), D, begin, end, partial.data() + block * D);
        });
        add_partials(partial.data(), blocks, D, D, y.data);
    }
    return y.object;
}

} // namespace

void bind_reduce_rows(nb::module_ &m) { m.def("sum_rows", &sum_rows); }

} // namespace resilin
