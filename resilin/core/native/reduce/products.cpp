// Products over the last dimensions of contiguous arrays. Of floats in float64: PRODUCTS of them with every PRODUCTS-th
// element, folded in a tree, and pieces of PIECE elements ascending. Integers wrap around.
#include "binding/array.hpp"
#include "eights.hpp"
#include "memory/parallel.hpp"
#include "pairwise.hpp"
#include "trailing.hpp"

#include <algorithm>
#include <type_traits>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t PRODUCTS = 32, PIECE = 1 << 16;

template <class T> RESILIN_INLINE double multiply_all(const T *x, int64_t n) {
    constexpr DoubleFour ONES = {1.0, 1.0, 1.0, 1.0};
    DoubleEight a{ONES, ONES}, b = a, c = a, d = a;
    int64_t i = 0;
    for (; i + PRODUCTS <= n; i += PRODUCTS) {
        a = a * wide_eight(x + i), b = b * wide_eight(x + i + 8);
        c = c * wide_eight(x + i + 16), d = d * wide_eight(x + i + 24);
    }
    if (i == n) { // the same tree
        const DoubleEight all = (a * c) * (b * d);
        const DoubleFour four = all.low * all.high;
        return (four[0] * four[2]) * (four[1] * four[3]);
    }
    double all[PRODUCTS];
    const DoubleEight lanes[4] = {a, b, c, d};
    static_assert(sizeof(lanes) == sizeof(all));
    std::memcpy(all, lanes, sizeof(all));
    for (int64_t k = 0; i + k < n; k++) all[k] *= static_cast<double>(x[i + k]);
    for (int64_t width = PRODUCTS / 2; width > 0; width /= 2)
        for (int64_t k = 0; k < width; k++) all[k] *= all[k + width];
    return all[0];
}
RESILIN_INLINE uint64_t multiply_all(const int64_t *x, int64_t n) {
    uint64_t lanes[4] = {1, 1, 1, 1};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) lanes[k] *= static_cast<uint64_t>(x[i + k]);
    for (; i < n; i++) lanes[0] *= static_cast<uint64_t>(x[i]);
    return (lanes[0] * lanes[1]) * (lanes[2] * lanes[3]);
}

// What products of T are kept in
template <class T> using Kept = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;

// of `rows` rows of n elements, `step` apart
#define RESILIN_PRODUCTS(T)                                                                                            \
    RESILIN_SIMD void products_of(const T *x, int64_t rows, int64_t n, int64_t step, Kept<T> *y) {                     \
        for (int64_t row = 0; row < rows; row++) y[row] = multiply_all(x + row * step, n);                             \
    }
RESILIN_PRODUCTS(float)
RESILIN_PRODUCTS(double)
RESILIN_PRODUCTS(int64_t)

template <class T> nb::object product_of_type(ExactArray x, uint64_t named, bool keepdims) {
    int64_t rows;
    NewArray<T> y = without_trailing<T>(x, named, keepdims, rows);
    nb::object made = y.object;
    WithoutGil free(x.size());
    const int64_t length = x.size() / rows;
    // pieces that threads can share; those of integers may have any length
    const int64_t most = std::is_integral_v<T> ? PIECE / 4 : PIECE, pieces = (length + most - 1) / most;
    std::vector<Kept<T>> parts(static_cast<size_t>(rows * pieces));
    parallel_rows(rows * pieces, std::min(length, most), [&](int64_t begin, int64_t end) {
        if (pieces == 1) return products_of(x.data<T>() + begin * length, end - begin, length, length, parts.data() + begin);
        for (int64_t i = begin; i < end; i++) {
            const int64_t at = i % pieces * most;
            products_of(x.data<T>() + i / pieces * length + at, 1, std::min(most, length - at), 0, parts.data() + i);
        }
    });
    for (int64_t row = 0; row < rows; row++) {
        Kept<T> all = parts[static_cast<size_t>(row * pieces)];
        for (int64_t i = 1; i < pieces; i++) all *= parts[static_cast<size_t>(row * pieces + i)];
        y.data[row] = static_cast<T>(all);
    }
    return made;
}

nb::object product_last(ExactArray x, nb::handle axis, bool keepdims) {
    uint64_t named;
    if (!x || !x.size() || !trailing(axis, x, named)) return nb::none();
    if (x.is<float>()) return product_of_type<float>(x, named, keepdims);
    if (x.is<double>()) return product_of_type<double>(x, named, keepdims);
    return x.is<int64_t>() ? product_of_type<int64_t>(x, named, keepdims) : nb::none();
}

} // namespace

void bind_products(nb::module_ &m) {
    m.def("product_last", &product_last, nb::arg("x"), nb::arg("axis").none(), nb::arg("keepdims"));
}

} // namespace resilin
