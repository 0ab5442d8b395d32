// Products over the last dimensions of contiguous arrays. Of floats in float64: PRODUCTS of them with every PRODUCTS-th
// element, folded in a tree, and pieces of PIECE elements ascending; 16-bit floats are rounded by way of
// float32. Integers wrap around.
#include "binding/array.hpp"
#include "eights.hpp"
#include "extremes.hpp"
#include "indexing/stored.hpp"
#include "memory/parallel.hpp"
#include "pairwise.hpp"
#include "trailing.hpp"

#include <algorithm>
#include <type_traits>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t PRODUCTS = 32, PIECE = 1 << 16, OPENED = 2048;

// n elements from x on, in their place or opened in `block`
template <class E>
RESILIN_INLINE const typename E::Computed *opened(E, const typename E::Stored *x, int64_t n, float *block) {
    if constexpr (std::is_same_v<typename E::Stored, typename E::Computed>) return x;
    else {
        E::unpack(x, 0, n, block);
        return block;
    }
}

// A short row: the same tree, of which the rest is ones
template <int64_t Width, class T> RESILIN_INLINE double multiply_few(const T *x, int64_t n) {
    double all[Width];
    for (int64_t k = 0; k < Width; k++) all[k] = k < n ? static_cast<double>(x[k]) : 1.0;
    for (int64_t width = Width / 2; width > 0; width /= 2)
        for (int64_t k = 0; k < width; k++) all[k] *= all[k + width];
    return all[0];
}

template <class E> RESILIN_INLINE double multiply_all(E kind, const typename E::Stored *x, int64_t n) {
    if (n <= 16) {
        float few[16];
        const auto *at = opened(kind, x, n, few);
        return n <= 2 ? multiply_few<2>(at, n) : n <= 4 ? multiply_few<4>(at, n) : n <= 8 ? multiply_few<8>(at, n) : multiply_few<16>(at, n);
    }
    constexpr DoubleFour ONES = {1.0, 1.0, 1.0, 1.0};
    DoubleEight a{ONES, ONES}, b = a, c = a, d = a;
    const int64_t whole = n / PRODUCTS * PRODUCTS;
    float block[OPENED];
    for (int64_t first = 0; first < whole; first += OPENED) {
        const int64_t count = std::min(OPENED, whole - first);
        const auto *at = opened(kind, x + first, count, block);
        for (int64_t i = 0; i < count; i += PRODUCTS) {
            a = a * wide_eight(at + i), b = b * wide_eight(at + i + 8);
            c = c * wide_eight(at + i + 16), d = d * wide_eight(at + i + 24);
        }
    }
    if (whole == n) { // the same tree
        const DoubleEight all = (a * c) * (b * d);
        const DoubleFour four = all.low * all.high;
        return (four[0] * four[2]) * (four[1] * four[3]);
    }
    double all[PRODUCTS];
    const DoubleEight lanes[4] = {a, b, c, d};
    static_assert(sizeof(lanes) == sizeof(all));
    std::memcpy(all, lanes, sizeof(all));
    const auto *rest = opened(kind, x + whole, n - whole, block);
    for (int64_t k = 0; whole + k < n; k++) all[k] *= static_cast<double>(rest[k]);
    for (int64_t width = PRODUCTS / 2; width > 0; width /= 2)
        for (int64_t k = 0; k < width; k++) all[k] *= all[k + width];
    return all[0];
}
RESILIN_INLINE uint64_t multiply_all(Whole<int64_t>, const int64_t *x, int64_t n) {
    uint64_t lanes[4] = {1, 1, 1, 1};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) lanes[k] *= static_cast<uint64_t>(x[i + k]);
    for (; i < n; i++) lanes[0] *= static_cast<uint64_t>(x[i]);
    return (lanes[0] * lanes[1]) * (lanes[2] * lanes[3]);
}

// What products are kept in
template <class E> using Kept = std::conditional_t<std::is_integral_v<typename E::Computed>, uint64_t, double>;

// of `rows` rows of n elements, `step` apart
#define RESILIN_PRODUCTS(E)                                                                                            \
    RESILIN_SIMD void products_of(E kind, const E::Stored *x, int64_t rows, int64_t n, int64_t step, Kept<E> *y) {     \
        for (int64_t row = 0; row < rows; row++) y[row] = multiply_all(kind, x + row * step, n);                       \
    }
RESILIN_PRODUCTS(Whole<float>)
RESILIN_PRODUCTS(Whole<double>)
RESILIN_PRODUCTS(Whole<int64_t>)
RESILIN_PRODUCTS(Half)
RESILIN_PRODUCTS(Bfloat)

template <class E> void products_of_rows(E kind, const void *elements, int64_t rows, int64_t length, void *made) {
    const auto *x = static_cast<const typename E::Stored *>(elements);
    auto *y = static_cast<typename E::Stored *>(made);
    // pieces that threads can share; those of integers may have any length
    constexpr bool WHOLE = std::is_same_v<typename E::Stored, typename E::Computed>;
    constexpr int64_t MOST = std::is_integral_v<typename E::Computed> ? PIECE / 4 : PIECE;
    const int64_t pieces = (length + MOST - 1) / MOST;
    std::vector<Kept<E>> parts(static_cast<size_t>(rows * pieces));
    parallel_rows(rows * pieces, std::min(length, MOST), [&](int64_t begin, int64_t end) {
        if (pieces == 1)
            return products_of(kind, x + begin * length, end - begin, length, length, parts.data() + begin);
        for (int64_t i = begin; i < end; i++) {
            const int64_t at = i % pieces * MOST;
            products_of(kind, x + i / pieces * length + at, 1, std::min(MOST, length - at), 0, parts.data() + i);
        }
    });
    for (int64_t row = 0; row < rows; row++) {
        Kept<E> all = parts[static_cast<size_t>(row * pieces)];
        for (int64_t i = 1; i < pieces; i++) all *= parts[static_cast<size_t>(row * pieces + i)];
        const auto found = static_cast<typename E::Computed>(all);
        if constexpr (WHOLE) y[row] = found;
        else E::pack(&found, 0, 1, y + row);
    }
}

nb::object product_over(const ExactArray &x, nb::handle axis, bool keepdims) {
    uint64_t named;
    if (!PyArray_ISCARRAY_RO(x.array) || !PyArray_ISNOTSWAPPED(x.array) || !has_kind(PyArray_TYPE(x.array)))
        return nb::none();
    if (!trailing(axis, x, named)) return products_of_columns(x, axis, keepdims);
    int64_t rows = 1;
    for (int i = 0; i < x.ndim(); i++) rows *= named >> i & 1 ? 1 : x.dim(i);
    nb::object made = without_axes(x, named, keepdims);
    WithoutGil free(x.size());
    by_kind(PyArray_TYPE(x.array), [&](auto kind) {
        products_of_rows(kind, PyArray_DATA(x.array), rows, x.size() / rows,
                         PyArray_DATA(reinterpret_cast<PyArrayObject *>(made.ptr())));
    });
    return made;
}

nb::object product_last(ExactArray x, nb::handle axis, bool keepdims) {
    return x && x.size() ? as_it_lies(x, axis, keepdims, product_over) : nb::none();
}

} // namespace

void bind_products(nb::module_ &m) {
    m.def("product_last", &product_last, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
}

} // namespace resilin
