#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "matrices.hpp"
#include "memory/parallel.hpp"
#include "memory/scratch.hpp"
#include "panels.hpp"
#include "product.hpp"
#include "small.hpp"
#include "subnormals.hpp"

#include <limits>
#include <type_traits>
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

// A new array of the dtype of `like`.
nb::object new_array(const std::vector<npy_intp> &shape, PyArrayObject *like) {
    PyArray_Descr *descr = PyArray_DESCR(like);
    Py_INCREF(descr);
    nb::object made = nb::steal(PyArray_NewFromDescr(&PyArray_Type, descr, static_cast<int>(shape.size()), shape.data(), nullptr,
                                                     nullptr, 0, nullptr));
    if (!made.ptr()) throw nb::python_error();
    return made;
}

// a and b of type From, summed as T. numpy has functions for vectors of the types that it multiplies itself.
template <class T, class From = T> nb::object product(PyArrayObject *a, PyArrayObject *b, PyArrayObject *out, const T *plus) {
    constexpr bool rounds = !std::is_same_v<T, From>;
    constexpr int64_t size = sizeof(From), least = rounds ? 1 : 2;
    const int na = PyArray_NDIM(a), nb_ = PyArray_NDIM(b);
    const int64_t rows = PyArray_DIM(a, na - 2), depth = PyArray_DIM(a, na - 1), columns = PyArray_DIM(b, nb_ - 1);
    std::vector<npy_intp> shape;
    if (depth != PyArray_DIM(b, nb_ - 2) || !broadcast_leading(a, b, shape)) return nb::none();
    const std::vector<npy_intp> leading = shape;
    int64_t products = 1;
    for (npy_intp length : leading) products *= length;
    if (rows < least || columns < least || depth < 1 || products < 1) return nb::none();
    View<From> va, vb, vo;
    if (!view_of(a, va) || !view_of(b, vb)) return nb::none();
    shape.push_back(rows);
    shape.push_back(columns);
    if (out && !takes(out, shape, a, b)) return nb::none();
    nb::object made = out ? nb::borrow(reinterpret_cast<PyObject *>(out)) : new_array(shape, a);
    out = reinterpret_cast<PyArrayObject *>(made.ptr());
    if (!view_of(out, vo) || vo.column != 1) return nb::none();
    const Product<T, From> first{rows, columns, depth, va, vb, nullptr, vo.row, plus};
    auto one = [&](int64_t i, bool threads) {
        Product<T, From> product = first;
        product.a.data += offset_of(a, leading, i) / size;
        product.b.data += offset_of(b, leading, i) / size;
        From *to = static_cast<From *>(PyArray_DATA(out)) + offset_of(out, leading, i) / size;
        if constexpr (rounds) {
            multiply(product, to, vo.row, threads);
        } else {
            product.c = to;
            multiply(product, threads);
        }
    };
    const double flops = first.flops() * static_cast<double>(products);
    if (products > 1 && !plus && std::max({rows, columns, depth}) <= SMALL) {
        WithoutGil free(flops > 1e5 ? std::numeric_limits<int64_t>::max() : 0);
        parallel_rows(products, rows * columns * depth / 8, [&](int64_t begin, int64_t end) {
            [[maybe_unused]] const Subnormals<From> subnormals;
            for (int64_t i = begin; i < end; i++) {
                Product<T, From> one = first;
                one.a.data += offset_of(a, leading, i) / size;
                one.b.data += offset_of(b, leading, i) / size;
                From *to = static_cast<From *>(PyArray_DATA(out)) + offset_of(out, leading, i) / size;
                if constexpr (rounds) {
                    multiply_small(one, to, vo.row);
                } else {
                    one.c = to;
                    multiply_small(one);
                }
            }
        });
        return made;
    }
    WithoutGil free(flops > 1e5 ? std::numeric_limits<int64_t>::max() : 0);
    if (products >= 2 * num_threads() && flops >= SHARED_FLOPS)
        run_blocks(products, [&](int64_t i) { one(i, false); });
    else
        for (int64_t i = 0; i < products; i++) one(i, true);
    return made;
}

// The same of 16-bit floats, with `plus` of the same type.
template <class From> nb::object halves(PyArrayObject *a, PyArrayObject *b, PyArrayObject *out, const ExactArray &plus) {
    if (!plus) return product<float, From>(a, b, out, nullptr);
    View<From> bits;
    if (PyArray_TYPE(plus.array) != PyArray_TYPE(a) || !view_of_row(plus.array, bits)) return nb::none();
    static thread_local Scratch<float> scratch;
    float *wide = scratch.of(plus.size());
    pack(bits.data, bits.column, 0, plus.size(), plus.size(), 1, wide);
    return product<float, From>(a, b, out, wide);
}

// a @ b, plus the vector `plus`, into `out` or a new array; None for what has no kernel, and for vectors.
nb::object matmul(ExactArray a, ExactArray b, ExactArray out, ExactArray plus) {
    if (!a || !b || a.ndim() < 2 || b.ndim() < 2) return nb::none();
    const int type = PyArray_TYPE(a.array);
    if (PyArray_TYPE(b.array) != type || (out && PyArray_TYPE(out.array) != type)) return nb::none();
    if (plus && (plus.ndim() != 1 || plus.size() != b.last())) return nb::none();
    if (type == NPY_FLOAT32 && plus.is_or_none<float>()) return product(a.array, b.array, out.array, plus.data<float>());
    if (type == NPY_FLOAT64 && plus.is_or_none<double>()) return product(a.array, b.array, out.array, plus.data<double>());
    if (type == NPY_HALF) return halves<Half>(a.array, b.array, out.array, plus);
    // of dtypes that numpy was taught, bfloat16 is the only one of two bytes
    if (PyTypeNum_ISUSERDEF(type) && PyArray_ITEMSIZE(a.array) == sizeof(BFloat)) return halves<BFloat>(a.array, b.array, out.array, plus);
    return nb::none();
}

// out = a @ b + plus of bfloat16 and `plus` and `out` of float32, without rounding; False, and nothing is written, for what
// has no kernel.
bool matmul_wide(ExactArray a, ExactArray b, ExactArray out, ExactArray plus) {
    if (!a || !b || !out || a.ndim() != 2 || b.ndim() != 2 || out.ndim() != 2) return false;
    const int type = PyArray_TYPE(a.array);
    const int64_t rows = a.dim(0), depth = a.dim(1), columns = b.dim(1);
    if (!PyTypeNum_ISUSERDEF(type) || PyArray_ITEMSIZE(a.array) != sizeof(BFloat) || PyArray_TYPE(b.array) != type) return false;
    if (rows < 1 || columns < 1 || depth < 1 || depth != b.dim(0) || !out.is_writable<float>() || out.dim(0) != rows ||
        out.dim(1) != columns || !plus.is_or_none<float>() || (plus && (plus.ndim() != 1 || plus.size() != columns)))
        return false;
    View<BFloat> va, vb;
    if (!view_of(a.array, va) || !view_of(b.array, vb)) return false;
    const Product<float, BFloat> product{rows, columns, depth, va, vb, out.data<float>(), columns, plus.data<float>()};
    WithoutGil free(product.flops() > 1e5 ? std::numeric_limits<int64_t>::max() : 0);
    multiply(product, static_cast<BFloat *>(nullptr), 0, true);
    return true;
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
    m.def("matmul_wide", &matmul_wide, nb::arg("a"), nb::arg("b"), nb::arg("out"), nb::arg("plus").none());
    m.def("use_tiles", [](const char *name) { return use_tiles(name); });
}

} // namespace resilin
