#include "gemm.hpp"

#include "array.hpp"
#include "kernels.hpp"
#include "parallel.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace resilin {
namespace {

// CBLAS, with integers of 64 bits (as in numpy's wheels) or of 32
template <class T, class Int>
using Gemm = void (*)(int, int, int, Int, Int, Int, T, const T *, Int, const T *, Int, T, T *, Int);
constexpr int ROW_MAJOR = 101, AS_IT_IS = 111, TRANSPOSED = 112;

template <class T> struct Found {
    Gemm<T, int64_t> wide = nullptr;
    Gemm<T, int32_t> narrow = nullptr;
    void set(uintptr_t address, bool is_wide) {
        wide = is_wide ? reinterpret_cast<Gemm<T, int64_t>>(address) : nullptr;
        narrow = is_wide ? nullptr : reinterpret_cast<Gemm<T, int32_t>>(address);
    }
    void call(bool ta, bool tb, int64_t M, int64_t N, int64_t K, T alpha, const T *A, int64_t lda, const T *B,
              int64_t ldb, T beta, T *C, int64_t ldc) const {
        const int a = ta ? TRANSPOSED : AS_IT_IS, b = tb ? TRANSPOSED : AS_IT_IS;
        if (wide) return wide(ROW_MAJOR, a, b, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
        auto n = [](int64_t length) { return static_cast<int32_t>(length); };
        narrow(ROW_MAJOR, a, b, n(M), n(N), n(K), alpha, A, n(lda), B, n(ldb), beta, C, n(ldc));
    }
    // lengths beyond this do not fit the library's integers
    int64_t longest() const { return wide ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int32_t>::max(); }
};
Found<float> single_;
Found<double> double_;
template <class T> const Found<T> &found();
template <> const Found<float> &found<float>() { return single_; }
template <> const Found<double> &found<double>() { return double_; }

void use_blas(uintptr_t sgemm, uintptr_t dgemm, bool wide) {
    single_.set(sgemm, wide);
    double_.set(dgemm, wide);
}

// How a product is cut into pieces: by its shape alone, so that any number of threads gives the same bits. Large pieces
// spend less on packing their operands; there are at least PIECES of them where each still has MIN_FLOPS to do.
struct Pieces {
    static constexpr int64_t SIDE = 512, LEAST = 128, PIECES = 8, GRAIN = 16;
    static constexpr double MIN_FLOPS = 8e6;
    int64_t rows, columns; // how many

    Pieces(int64_t M, int64_t N, int64_t K, int64_t products) {
        rows = std::max<int64_t>(1, M / SIDE);
        columns = std::max<int64_t>(1, N / SIDE);
        while (products * rows * columns < PIECES && 2.0 * M * N * K / static_cast<double>(rows * columns) >= 2 * MIN_FLOPS) {
            const int64_t height = M / rows, width = N / columns;
            if (std::max(height, width) < 2 * LEAST) break;
            (height > width ? rows : columns) *= 2;
        }
    }
    static int64_t edge(int64_t length, int64_t count, int64_t i) {
        return i == count ? length : length * i / count / GRAIN * GRAIN;
    }
};

// The last two axes of an operand as BLAS takes them; `fits` says whether it can.
struct Layout {
    bool fits = true, transposed = false;
    int64_t ld = 1;

    Layout(const PyArrayObject *array, int64_t longest) {
        const int n = PyArray_NDIM(array);
        const int64_t size = PyArray_ITEMSIZE(array), rows = PyArray_DIM(array, n - 2), columns = PyArray_DIM(array, n - 1);
        const int64_t down = PyArray_STRIDE(array, n - 2), right = PyArray_STRIDE(array, n - 1);
        auto is_leading = [&](int64_t stride, int64_t length) {
            return stride % size == 0 && stride / size >= std::max<int64_t>(1, length) && stride / size <= longest;
        };
        if ((right == size || columns == 1) && (is_leading(down, columns) || rows == 1)) {
            ld = rows == 1 ? std::max<int64_t>(1, columns) : down / size;
        } else if ((down == size || rows == 1) && (is_leading(right, rows) || columns == 1)) {
            transposed = true;
            ld = columns == 1 ? std::max<int64_t>(1, rows) : right / size;
        } else {
            fits = false;
        }
        fits = fits && rows <= longest && columns <= longest && PyArray_ISALIGNED(array) && PyArray_ISNOTSWAPPED(array);
    }
};

// Leading axes of an operand, broadcast to those of the result: the byte offset of its i-th matrix.
int64_t offset_of(const PyArrayObject *array, const std::vector<npy_intp> &leading, int64_t i) {
    const int own = PyArray_NDIM(array) - 2;
    int64_t offset = 0;
    for (int axis = static_cast<int>(leading.size()) - 1, mine = own - 1; axis >= 0; axis--, mine--) {
        const int64_t at = i % leading[static_cast<size_t>(axis)];
        i /= leading[static_cast<size_t>(axis)];
        if (mine >= 0 && PyArray_DIM(array, mine) != 1) offset += at * PyArray_STRIDE(array, mine);
    }
    return offset;
}

bool broadcast_leading(const PyArrayObject *a, const PyArrayObject *b, std::vector<npy_intp> &leading) {
    const int da = PyArray_NDIM(a) - 2, db = PyArray_NDIM(b) - 2, n = std::max(da, db);
    for (int i = n; i > 0; i--) {
        const npy_intp x = i <= da ? PyArray_DIM(a, da - i) : 1, y = i <= db ? PyArray_DIM(b, db - i) : 1;
        if (x != y && x != 1 && y != 1) return false;
        leading.push_back(x == 1 ? y : x);
    }
    return true;
}

template <class T> nb::object product(PyArrayObject *a, PyArrayObject *b, PyArrayObject *out) {
    const int na = PyArray_NDIM(a), nb_ = PyArray_NDIM(b);
    const int64_t M = PyArray_DIM(a, na - 2), K = PyArray_DIM(a, na - 1), N = PyArray_DIM(b, nb_ - 1);
    std::vector<npy_intp> shape;
    if (K != PyArray_DIM(b, nb_ - 2) || !broadcast_leading(a, b, shape)) return nb::none();
    const std::vector<npy_intp> leading = shape;
    int64_t products = 1;
    for (npy_intp length : leading) products *= length;
    if (M < 2 || N < 2 || K < 1 || products < 1) return nb::none(); // numpy has functions for vectors
    const int64_t longest = found<T>().longest();
    const Layout la(a, longest), lb(b, longest);
    if (!la.fits || !lb.fits) return nb::none();
    shape.push_back(M);
    shape.push_back(N);
    nb::object made;
    if (!out) {
        made = NewArray<T>(static_cast<int>(shape.size()), shape.data()).object;
        out = reinterpret_cast<PyArrayObject *>(made.ptr());
    } else {
        if (PyArray_NDIM(out) != static_cast<int>(shape.size()) || !PyArray_ISWRITEABLE(out) ||
            !PyArray_CompareLists(PyArray_DIMS(out), shape.data(), PyArray_NDIM(out)))
            return nb::none();
        made = nb::borrow(reinterpret_cast<PyObject *>(out));
    }
    const Layout lo(out, longest);
    if (!lo.fits || lo.transposed) return nb::none();
    const Pieces pieces(M, N, K, products);
    auto piece = [&](int64_t i) {
        const int64_t column = i % pieces.columns, row = i / pieces.columns % pieces.rows;
        const int64_t number = i / pieces.columns / pieces.rows;
        const int64_t m0 = Pieces::edge(M, pieces.rows, row), m1 = Pieces::edge(M, pieces.rows, row + 1);
        const int64_t n0 = Pieces::edge(N, pieces.columns, column), n1 = Pieces::edge(N, pieces.columns, column + 1);
        const T *A = reinterpret_cast<const T *>(PyArray_BYTES(a) + offset_of(a, leading, number));
        const T *B = reinterpret_cast<const T *>(PyArray_BYTES(b) + offset_of(b, leading, number));
        T *C = reinterpret_cast<T *>(PyArray_BYTES(out) + offset_of(out, leading, number));
        gemm(la.transposed, lb.transposed, m1 - m0, n1 - n0, K, T(1), A + m0 * (la.transposed ? 1 : la.ld), la.ld,
             B + n0 * (lb.transposed ? lb.ld : 1), lb.ld, T(0), C + m0 * lo.ld + n0, lo.ld);
    };
    const double flops = 2.0 * M * N * K * static_cast<double>(products);
    const int64_t count = products * pieces.rows * pieces.columns;
    WithoutGil free(flops > 1e5 ? std::numeric_limits<int64_t>::max() : 0);
    if (num_threads() == 1 || count == 1 || flops < Pieces::MIN_FLOPS / 2)
        for (int64_t i = 0; i < count; i++) piece(i);
    else
        run_blocks(count, piece);
    return made;
}

// a @ b into `out` or a new array; None for what BLAS cannot take as it lies, and for vectors.
nb::object matmul(ExactArray a, ExactArray b, ExactArray out) {
    if (!have_gemm() || !a || !b || a.ndim() < 2 || b.ndim() < 2) return nb::none();
    const int type = PyArray_TYPE(a.array);
    if (PyArray_TYPE(b.array) != type || (out && PyArray_TYPE(out.array) != type)) return nb::none();
    if (type == NPY_FLOAT32) return product<float>(a.array, b.array, out.array);
    if (type == NPY_FLOAT64) return product<double>(a.array, b.array, out.array);
    return nb::none();
}

} // namespace

bool have_gemm() { return single_.wide || single_.narrow; }

void gemm(bool ta, bool tb, int64_t M, int64_t N, int64_t K, float alpha, const float *A, int64_t lda, const float *B,
          int64_t ldb, float beta, float *C, int64_t ldc) {
    single_.call(ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
}
void gemm(bool ta, bool tb, int64_t M, int64_t N, int64_t K, double alpha, const double *A, int64_t lda,
          const double *B, int64_t ldb, double beta, double *C, int64_t ldc) {
    double_.call(ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
}

void bind_gemm(nb::module_ &m) {
    m.def("use_blas", &use_blas);
    m.def("matmul", &matmul, nb::arg("a"), nb::arg("b"), nb::arg("out").none());
}

} // namespace resilin
