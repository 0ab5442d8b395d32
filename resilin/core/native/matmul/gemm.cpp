#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "matrices.hpp"
#include "memory/parallel.hpp"
#include "product.hpp"

#include <limits>
#include <utility>
#include <vector>

namespace resilin {
namespace {

bool broadcast_leading(const PyArrayObject *a, const PyArrayObject *b, std::vector<npy_intp> &leading) {
    const int da = PyArray_NDIM(a) - 2, db = PyArray_NDIM(b) - 2, n = std::max(da, db);
    for (int i = n; i > 0; i--) {
        const npy_intp x = i <= da ? PyArray_DIM(a, da - i) : 1, y = i <= db ? PyArray_DIM(b, db - i) : 1;
        if (x != y && x != 1 && y != 1) return false;
        leading.push_back(x == 1 ? y : x);
    }
    return true;
}

// First byte and the one behind the last.
std::pair<const char *, const char *> extent(const PyArrayObject *array) {
    const char *low = PyArray_BYTES(array), *high = low + PyArray_ITEMSIZE(array);
    for (int i = 0; i < PyArray_NDIM(array); i++) {
        const npy_intp reach = (PyArray_DIM(array, i) - 1) * PyArray_STRIDE(array, i);
        (reach < 0 ? low : high) += reach;
    }
    return {low, high};
}
bool may_overlap(const PyArrayObject *a, const PyArrayObject *b) {
    const auto [a_low, a_high] = extent(a);
    const auto [b_low, b_high] = extent(b);
    return a_low < b_high && b_low < a_high;
}

bool takes(const PyArrayObject *out, const std::vector<npy_intp> &shape, const PyArrayObject *a, const PyArrayObject *b) {
    return PyArray_NDIM(out) == static_cast<int>(shape.size()) && PyArray_ISWRITEABLE(out) &&
           PyArray_CompareLists(PyArray_DIMS(out), shape.data(), PyArray_NDIM(out)) && !may_overlap(out, a) &&
           !may_overlap(out, b);
}

template <class T> nb::object product(PyArrayObject *a, PyArrayObject *b, PyArrayObject *out, const T *plus) {
    const int na = PyArray_NDIM(a), nb_ = PyArray_NDIM(b);
    const int64_t rows = PyArray_DIM(a, na - 2), depth = PyArray_DIM(a, na - 1), columns = PyArray_DIM(b, nb_ - 1);
    std::vector<npy_intp> shape;
    if (depth != PyArray_DIM(b, nb_ - 2) || !broadcast_leading(a, b, shape)) return nb::none();
    const std::vector<npy_intp> leading = shape;
    int64_t products = 1;
    for (npy_intp length : leading) products *= length;
    if (rows < 2 || columns < 2 || depth < 1 || products < 1) return nb::none(); // numpy has functions for vectors
    View<T> va, vb, vo;
    if (!view_of(a, va) || !view_of(b, vb)) return nb::none();
    shape.push_back(rows);
    shape.push_back(columns);
    if (out && !takes(out, shape, a, b)) return nb::none();
    nb::object made = out ? nb::borrow(reinterpret_cast<PyObject *>(out))
                          : NewArray<T>(static_cast<int>(shape.size()), shape.data()).object;
    out = reinterpret_cast<PyArrayObject *>(made.ptr());
    if (!view_of(out, vo) || vo.column != 1) return nb::none();
    const Product<T> first{rows, columns, depth, va, vb, static_cast<T *>(PyArray_DATA(out)), vo.row, plus};
    auto one = [&](int64_t i, bool threads) {
        Product<T> product = first;
        product.a.data += offset_of(a, leading, i) / static_cast<int64_t>(sizeof(T));
        product.b.data += offset_of(b, leading, i) / static_cast<int64_t>(sizeof(T));
        product.c += offset_of(out, leading, i) / static_cast<int64_t>(sizeof(T));
        multiply(product, threads);
    };
    const double flops = first.flops() * static_cast<double>(products);
    WithoutGil free(flops > 1e5 ? std::numeric_limits<int64_t>::max() : 0);
    if (products >= 2 * num_threads() && flops >= SHARED_FLOPS)
        run_blocks(products, [&](int64_t i) { one(i, false); });
    else
        for (int64_t i = 0; i < products; i++) one(i, true);
    return made;
}

// a @ b, plus the vector `plus`, into `out` or a new array; None for what has no kernel, and for vectors.
nb::object matmul(ExactArray a, ExactArray b, ExactArray out, ExactArray plus) {
    if (!a || !b || a.ndim() < 2 || b.ndim() < 2) return nb::none();
    const int type = PyArray_TYPE(a.array);
    if (PyArray_TYPE(b.array) != type || (out && PyArray_TYPE(out.array) != type)) return nb::none();
    if (plus && (plus.ndim() != 1 || plus.size() != b.last())) return nb::none();
    if (type == NPY_FLOAT32 && plus.is_or_none<float>()) return product(a.array, b.array, out.array, plus.data<float>());
    if (type == NPY_FLOAT64 && plus.is_or_none<double>()) return product(a.array, b.array, out.array, plus.data<double>());
    return nb::none();
}

template <class T> bool put(PyArrayObject *a, PyArrayObject *b, PyArrayObject *out, double factor, bool fresh) {
    const int64_t rows = PyArray_DIM(a, 0), depth = PyArray_DIM(a, 1), columns = PyArray_DIM(b, 1);
    View<T> va, vb, vo;
    if (depth != PyArray_DIM(b, 0) || rows < 2 || columns < 2 || !can_scale<T>(depth)) return false;
    if (!takes(out, {rows, columns}, a, b) || !view_of(a, va) || !view_of(b, vb) || !view_of(out, vo) || vo.column != 1) return false;
    T *c = static_cast<T *>(PyArray_DATA(out));
    const Product<T> product{rows, columns, depth, va, vb, c, vo.row, fresh ? nullptr : c, vo.row, true, static_cast<T>(factor)};
    WithoutGil free(product.flops() > 1e5 ? std::numeric_limits<int64_t>::max() : 0);
    multiply(product, true);
    return true;
}

// out = factor * (a @ b) where `fresh`, else out += factor * (a @ b), the product rounded before each; False, and nothing is
// written, for what has no kernel.
bool matmul_put(ExactArray a, ExactArray b, ExactArray out, double factor, bool fresh) {
    if (!a || !b || !out || a.ndim() != 2 || b.ndim() != 2 || out.ndim() != 2) return false;
    const int type = PyArray_TYPE(a.array);
    if (PyArray_TYPE(b.array) != type || PyArray_TYPE(out.array) != type) return false;
    if (type == NPY_FLOAT32) return put<float>(a.array, b.array, out.array, factor, fresh);
    return type == NPY_FLOAT64 && put<double>(a.array, b.array, out.array, factor, fresh);
}

} // namespace

void bind_gemm(nb::module_ &m) {
    m.def("matmul", &matmul, nb::arg("a"), nb::arg("b"), nb::arg("out").none(), nb::arg("plus").none());
    m.def("matmul_put", &matmul_put);
    m.def("use_tiles", [](const char *name) { return use_tiles(name); });
}

} // namespace resilin
