// Products of matrices of integers, which wrap around. The right one is copied to panels of a few columns; a group of rows
// meets one panel at a time, its sums in registers.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "kernels/simd.hpp"
#include "memory/parallel.hpp"

#include <algorithm>
#include <type_traits>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t GROUP = 4, VECTORS = 2; // rows at a time, and vectors of a panel's row

template <class T> struct Matrix {
    const T *data;
    int64_t row, column; // steps, in elements
};

template <class T> struct Panels {
    using U = std::make_unsigned_t<T>; // whose overflow is defined
    typedef U Vector __attribute__((vector_size(64), aligned(sizeof(T)), may_alias));
    static constexpr int64_t LANES = 64 / sizeof(T), WIDTH = VECTORS * LANES;
};

template <class T, int64_t rows>
RESILIN_INLINE void multiply_group(Matrix<T> a, const T *panel, int64_t depth, int64_t columns, T *c, int64_t ldc) {
    using P = Panels<T>;
    using U = typename P::U;
    typename P::Vector sums[rows][VECTORS] = {};
    for (int64_t k = 0; k < depth; k++) {
        const auto *b = reinterpret_cast<const typename P::Vector *>(panel + k * P::WIDTH);
        for (int64_t i = 0; i < rows; i++) {
            const U factor = static_cast<U>(a.data[i * a.row + k * a.column]);
            for (int64_t v = 0; v < VECTORS; v++) sums[i][v] += b[v] * factor;
        }
    }
    for (int64_t i = 0; i < rows; i++)
        std::memcpy(c + i * ldc, &sums[i][0], static_cast<size_t>(std::min(columns, P::WIDTH)) * sizeof(T));
}

#define RESILIN_MULTIPLY(T)                                                                                            \
    RESILIN_SIMD void multiply_##T(Matrix<T> a, const T *panels, int64_t rows, int64_t depth, int64_t columns, T *c) { \
        const int64_t width = Panels<T>::WIDTH;                                                                        \
        for (int64_t j = 0; j < columns; j += width) {                                                                 \
            const T *panel = panels + j * depth;                                                                       \
            int64_t i = 0;                                                                                             \
            for (; i + GROUP <= rows; i += GROUP)                                                                      \
                multiply_group<T, GROUP>({a.data + i * a.row, a.row, a.column}, panel, depth, columns - j,             \
                                         c + i * columns + j, columns);                                                \
            for (; i < rows; i++)                                                                                      \
                multiply_group<T, 1>({a.data + i * a.row, a.row, a.column}, panel, depth, columns - j,                 \
                                     c + i * columns + j, columns);                                                    \
        }                                                                                                              \
    }
RESILIN_MULTIPLY(int64_t)
RESILIN_MULTIPLY(int32_t)

template <class T> Matrix<T> matrix_of(const ExactArray &x) {
    const auto size = static_cast<int64_t>(sizeof(T));
    return {x.data<T>(), PyArray_STRIDE(x.array, 0) / size, PyArray_STRIDE(x.array, 1) / size};
}

template <class T, class Multiply> nb::object product(const ExactArray &a, const ExactArray &b, Multiply multiply) {
    const int64_t rows = a.dim(0), depth = a.dim(1), columns = b.dim(1), width = Panels<T>::WIDTH;
    NewArray<T> y({static_cast<npy_intp>(rows), static_cast<npy_intp>(columns)});
    nb::object made = y.object;
    const Matrix<T> left = matrix_of<T>(a), right = matrix_of<T>(b);
    std::vector<T> panels(static_cast<size_t>((columns + width - 1) / width * width * depth));
    WithoutGil free(rows * depth * columns);
    for (int64_t j = 0; j < columns; j++) {
        T *panel = panels.data() + j / width * width * depth + j % width;
        for (int64_t k = 0; k < depth; k++) panel[k * width] = right.data[k * right.row + j * right.column];
    }
    const int64_t groups = (rows + GROUP - 1) / GROUP;
    parallel_rows(groups, GROUP * depth * columns / 8 + 1, [&](int64_t begin, int64_t end) {
        const int64_t first = begin * GROUP, last = std::min(rows, end * GROUP);
        multiply({left.data + first * left.row, left.row, left.column}, panels.data(), last - first, depth, columns,
                 y.data + first * columns);
    });
    return made;
}

bool is_plain(const ExactArray &x, int type) {
    return x && x.ndim() == 2 && PyArray_TYPE(x.array) == type && PyArray_ISALIGNED(x.array) && PyArray_ISNOTSWAPPED(x.array) &&
           PyArray_STRIDE(x.array, 0) % PyArray_ITEMSIZE(x.array) == 0 && PyArray_STRIDE(x.array, 1) % PyArray_ITEMSIZE(x.array) == 0;
}

// None for all but two matrices of int64 or int32 that fit.
nb::object matmul(ExactArray a, ExactArray b) {
    if (!a) return nb::none();
    const int type = PyArray_TYPE(a.array);
    if (!is_plain(a, type) || !is_plain(b, type) || a.dim(1) != b.dim(0)) return nb::none();
    if (type == NPY_INT64) return product<int64_t>(a, b, multiply_int64_t);
    return type == NPY_INT32 ? product<int32_t>(a, b, multiply_int32_t) : nb::none();
}

} // namespace

void bind_integer_products(nb::module_ &m) { m.def("matmul_of_integers", &matmul); }

} // namespace resilin
