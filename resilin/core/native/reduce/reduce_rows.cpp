// Column sums of matrices: FAN rows ascending, then FAN of these sums, and so on. 16-bit floats are summed in float32.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "elementwise/half_blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "memory/parallel.hpp"
#include "pairwise.hpp"
#include "kernels/simd.hpp"
#include "trailing.hpp"

#include <type_traits>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t BLOCK_ROWS = FAN * FAN; // rows of one partial sum: two levels of the order
constexpr int64_t TILE = 1024;            // columns at a time: their two rows of sums stay in the first cache
constexpr int64_t HALF_TILE = 256;        // the same of 16-bit floats: FAN rows as float32 stay in it, too

// sum[i] = the sum of x[n * D + i], i < width, over at most FAN rows n, ascending
template <class T> RESILIN_INLINE void add_rows(const T *x, int64_t D, int64_t width, int64_t rows, T *sum) {
    if (rows == FAN) { // all at once: the sums stay in registers
        for (int64_t i = 0; i < width; i++) {
            T s = x[i];
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
template <class T>
RESILIN_INLINE void add_block_of(const T *x, int64_t D, int64_t width, int64_t rows, T *__restrict sum) {
    T part[TILE];
    add_rows(x, D, width, std::min(rows, FAN), sum);
    for (int64_t n = FAN; n < rows; n += FAN) {
        add_rows(x + n * D, D, width, std::min(rows - n, FAN), part);
        for (int64_t i = 0; i < width; i++) sum[i] += part[i];
    }
}
RESILIN_SIMD void add_block(const float *x, int64_t D, int64_t width, int64_t rows, float *sum) {
    add_block_of(x, D, width, rows, sum);
}
RESILIN_SIMD void add_block(const double *x, int64_t D, int64_t width, int64_t rows, double *sum) {
    add_block_of(x, D, width, rows, sum);
}
RESILIN_SIMD void add_block(const uint64_t *x, int64_t D, int64_t width, int64_t rows, uint64_t *sum) {
    add_block_of(x, D, width, rows, sum);
}
RESILIN_SIMD void add_to(float *sum, const float *part, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += part[i];
}
void add_halves(const uint16_t *x, bool float16, int64_t D, int64_t width, int64_t rows, float *sum) {
    alignas(64) float wide[FAN * HALF_TILE], part[HALF_TILE];
    for (int64_t first = 0; first < rows; first += FAN) {
        const int64_t count = std::min(rows - first, FAN);
        const auto unpack = float16 ? unpack_half : unpack_bfloat;
        if (width == D) unpack(x + first * D, 0, count * D, wide);
        for (int64_t n = 0; n < count && width != D; n++) unpack(x + (first + n) * D, 0, width, wide + n * width);
        add_block(wide, width, width, count, first ? part : sum);
        if (first) add_to(sum, part, width);
    }
}

// y (matrices, D) = the sums over the rows of x (matrices, N, D); add(first element, width, rows, sums) does one tile
template <class T, class Add>
void sum_matrices(const Add &add, int64_t matrices, int64_t N, int64_t D, int64_t tile, T *y) {
    const int64_t blocks = (N + BLOCK_ROWS - 1) / BLOCK_ROWS, tiles = (D + tile - 1) / tile;
    std::vector<T> partial(static_cast<size_t>(blocks > 1 ? matrices * blocks * D : 0));
    T *sums = blocks == 1 ? y : partial.data();
    // what is divided: the tiles of all blocks of all matrices
    const int64_t tasks = matrices * blocks * tiles, task_size = std::min(N, BLOCK_ROWS) * std::min(D, tile);
    parallel_rows(tasks, task_size, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++) {
            const int64_t at = task / tiles, n = at % blocks * BLOCK_ROWS, i = task % tiles * tile;
            add((at / blocks * N + n) * D + i, std::min(tile, D - i), std::min(BLOCK_ROWS, N - n), sums + at * D + i);
        }
    });
    for (int64_t m = 0; m < matrices && blocks != 1; m++)
        add_partials(partial.data() + m * blocks * D, blocks, D, D, y + m * D);
}
template <class T> void sum_matrices_of(const T *x, int64_t matrices, int64_t N, int64_t D, T *y) {
    const auto add = [&](int64_t at, int64_t width, int64_t rows, T *sums) { add_block(x + at, D, width, rows, sums); };
    sum_matrices<T>(add, matrices, N, D, TILE, y);
}

// The same of one matrix whose rows of D elements begin `step` elements apart
template <class T> void sum_matrix_part(const T *x, int64_t N, int64_t D, int64_t step, T *y) {
    const auto add = [&](int64_t at, int64_t width, int64_t rows, T *sums) {
        add_block(x + at / D * step + at % D, step, width, rows, sums);
    };
    sum_matrices<T>(add, 1, N, D, TILE, y);
}

template <class T> nb::object sum_rows_of(const Array &x) {
    std::vector<npy_intp> dims(PyArray_DIMS(x.array), PyArray_DIMS(x.array) + x.ndim() - 2);
    int64_t matrices = 1;
    for (npy_intp n : dims) matrices *= n;
    dims.push_back(x.last());
    NewArray<T> y(static_cast<int>(dims.size()), dims.data());
    nb::object made = y.object;
    WithoutGil free(x.size());
    sum_matrices_of(x.data<T>(), matrices, x.dim(x.ndim() - 2), x.last(), y.data);
    return made;
}

nb::object sum_rows(Array x) {
    if (x.ndim() < 2) return nb::none();
    if (x.is<float>()) return sum_rows_of<float>(x);
    return x.is<double>() ? sum_rows_of<double>(x) : nb::none();
}

// A contiguous array as (before, summed, kept, behind), where dimensions before are kept and those behind are summed.
struct Dimensions {
    int64_t before = 1, summed = 1, kept = 1, behind = 1;
    bool known = false;

    Dimensions(const ExactArray &x, uint64_t named) {
        int64_t *const groups[4] = {&behind, &kept, &summed, &before}; // from the end on, every second is summed
        int group = 0;
        for (int i = x.ndim() - 1; i >= 0; i--) {
            const bool sums = named >> i & 1;
            if (sums == (group % 2 != 0)) group++;
            if (group > 3) return;
            *groups[group] *= x.dim(i);
        }
        known = true;
    }
};

template <class T, class S> void sum_groups(const S *x, int type, const Dimensions &d, T *y) {
    if (d.behind == 1) {
        if constexpr (std::is_same_v<S, T>) return sum_matrices_of<T>(x, d.before, d.summed, d.kept, y);
        else {
            const auto add = [&](int64_t at, int64_t width, int64_t rows, float *sums) {
                add_halves(x + at, type == NPY_HALF, d.kept, width, rows, sums);
            };
            return sum_matrices<T>(add, d.before, d.summed, d.kept, HALF_TILE, y);
        }
    }
    std::vector<T> sums(static_cast<size_t>(d.before * d.summed * d.kept));
    pairwise_sums(x, type, d.before * d.summed * d.kept, d.behind, sums.data());
    sum_matrices_of<T>(sums.data(), d.before, d.summed, d.kept, y);
}

// Sums over dimensions that are not the last ones alone; None where numpy sums in its own order: few elements, and sums
// of few over several groups of dimensions.
nb::object sum_over(const ExactArray &x, nb::handle axis, bool keepdims, bool mean) {
    if (!x || !PyArray_ISCARRAY_RO(x.array) || !PyArray_ISNOTSWAPPED(x.array)) return nb::none();
    const int type = PyArray_TYPE(x.array);
    const bool half = type == NPY_HALF || type == bfloat16_type;
    uint64_t named = 0;
    const bool integers = type == NPY_INT64 && !mean;
    if ((!half && !integers && type != NPY_FLOAT && type != NPY_DOUBLE) || !named_axes(axis, x.ndim(), named))
        return nb::none();
    const Dimensions d(x, named);
    if (integers && d.behind > 1) return nb::none();
    const int64_t terms = d.summed * d.behind, rows = d.before * d.kept;
    if (!d.known || d.kept < 2 || d.before * d.summed * d.kept * d.behind <= SMALL || (terms <= FAN && d.behind > 1))
        return nb::none();
    nb::object made = without_axes(x, named, keepdims);
    void *y = PyArray_DATA(reinterpret_cast<PyArrayObject *>(made.ptr()));
    WithoutGil free(x.size());
    if (integers) { // they wrap around
        sum_matrices_of(x.data<uint64_t>(), d.before, d.summed, d.kept, static_cast<uint64_t *>(y));
        return made;
    }
    if (type == NPY_DOUBLE) {
        auto *to = static_cast<double *>(y);
        sum_groups(x.data<double>(), type, d, to);
        for (int64_t i = 0; mean && i < rows; i++) to[i] /= static_cast<double>(terms);
        return made;
    }
    std::vector<float> wide(static_cast<size_t>(half ? rows : 0));
    auto *to = half ? wide.data() : static_cast<float *>(y);
    if (half) sum_groups(x.data<uint16_t>(), type, d, to);
    else sum_groups(x.data<float>(), type, d, to);
    for (int64_t i = 0; mean && i < rows; i++) to[i] /= static_cast<float>(terms);
    if (half) (type == NPY_HALF ? pack_half : pack_bfloat)(to, 0, rows, static_cast<uint16_t *>(y));
    return made;
}

// The sum, or mean, over the rows of a matrix that is a part of another, in the order of its copy
template <class T> nb::object sum_part_of(const ExactArray &x, bool keepdims, bool mean) {
    nb::object made = without_axes(x, 1, keepdims);
    T *y = static_cast<T *>(PyArray_DATA(reinterpret_cast<PyArrayObject *>(made.ptr())));
    WithoutGil free(x.size());
    sum_matrix_part(static_cast<const T *>(PyArray_DATA(x.array)), x.dim(0), x.dim(1),
                    PyArray_STRIDE(x.array, 0) / static_cast<npy_intp>(sizeof(T)), y);
    for (int64_t i = 0; mean && i < x.dim(1); i++) y[i] /= static_cast<T>(x.dim(0));
    return made;
}
nb::object sum_part(const ExactArray &x, nb::handle axis, bool keepdims, bool mean) {
    uint64_t named = 0;
    if (!x || x.ndim() != 2 || !named_axes(axis, 2, named) || named != 1) return nb::none();
    const npy_intp item = PyArray_ITEMSIZE(x.array), step = PyArray_STRIDE(x.array, 0);
    if (x.size() <= SMALL || x.dim(1) < 2 || PyArray_STRIDE(x.array, 1) != item || step < item * x.dim(1) || step % item ||
        !PyArray_ISALIGNED(x.array) || !PyArray_ISNOTSWAPPED(x.array))
        return nb::none();
    const int type = PyArray_TYPE(x.array);
    if (type == NPY_FLOAT) return sum_part_of<float>(x, keepdims, mean);
    if (type == NPY_DOUBLE) return sum_part_of<double>(x, keepdims, mean);
    return type == NPY_INT64 && !mean ? sum_part_of<uint64_t>(x, keepdims, mean) : nb::none();
}

template <bool mean> nb::object sum_axes(ExactArray x, nb::handle axis, bool keepdims) {
    return as_it_lies(x, axis, keepdims, [](const ExactArray &of, nb::handle over, bool keep) {
        nb::object found = sum_last(of, over, keep, mean);
        if (found.is_none()) found = sum_over(of, over, keep, mean);
        return found.is_none() ? sum_part(of, over, keep, mean) : found;
    });
}

} // namespace

void bind_reduce_rows(nb::module_ &m) {
    m.def("sum_rows", &sum_rows);
    m.def("sum_axes", &sum_axes<false>, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
    m.def("mean_axes", &sum_axes<true>, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
}

} // namespace resilin
