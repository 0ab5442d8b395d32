// The places of the smallest or largest elements of each row, in order. Equal elements keep their order; NaN is the
// largest; -0 equals 0.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <algorithm>
#include <vector>

namespace resilin {
namespace {

constexpr int64_t FEW = 64; // up to here, an insertion into those found is cheaper than a partition of all

// An unsigned number that orders floats as they are ordered, in the upper half, and the place in the lower one.
RESILIN_INLINE uint64_t key_of(float x, int64_t place, bool largest) {
    const uint32_t bits = bit_cast<uint32_t>(x + 0.0f); // -0 becomes 0
    const uint32_t ordered = x != x ? 0xFFFFFFFFu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<uint64_t>(largest ? ~ordered : ordered) << 32 | static_cast<uint32_t>(place);
}

RESILIN_SIMD void keys_of(const float *x, int64_t n, bool largest, uint64_t *keys) {
    for (int64_t i = 0; i < n; i++) keys[i] = key_of(x[i], i, largest);
}

// The k first of n keys, in order, at their start.
void few_first(uint64_t *keys, int64_t n, int64_t k) {
    uint64_t found[FEW];
    std::copy(keys, keys + k, found);
    std::sort(found, found + k);
    for (int64_t i = k; i < n; i++) {
        const uint64_t key = keys[i];
        if (key >= found[k - 1]) continue;
        int64_t at = k - 1;
        for (; at > 0 && found[at - 1] > key; at--) found[at] = found[at - 1];
        found[at] = key;
    }
    std::copy(found, found + k, keys);
}

void first_of(uint64_t *keys, int64_t n, int64_t k) {
    if (k <= FEW) {
        few_first(keys, n, k);
        return;
    }
    if (k < n) std::nth_element(keys, keys + k - 1, keys + n);
    std::sort(keys, keys + k);
}

// The places of the k first elements along the last dimension, or with `only` of the k-th alone.
nb::object select_places(Array x, int64_t k, bool largest, bool only) {
    if (!x.is<float>() || x.ndim() < 1 || k < 1 || k > x.last() || x.last() > UINT32_MAX) return nb::none();
    std::vector<npy_intp> dims(PyArray_DIMS(x.array), PyArray_DIMS(x.array) + x.ndim());
    const int64_t n = x.last(), kept = only ? 1 : k;
    dims.back() = kept;
    NewArray<int64_t> places(x.ndim(), dims.data());
    nb::object made = places.object;
    WithoutGil free(x.size());
    parallel_rows(x.rows(), 4 * n, [&](int64_t begin, int64_t end) {
        std::vector<uint64_t> keys(static_cast<size_t>(n));
        for (int64_t row = begin; row < end; row++) {
            keys_of(x.data<float>() + row * n, n, largest, keys.data());
            if (only) std::nth_element(keys.begin(), keys.begin() + (k - 1), keys.end());
            else first_of(keys.data(), n, k);
            for (int64_t i = 0; i < kept; i++)
                places.data[row * kept + i] = static_cast<uint32_t>(keys[static_cast<size_t>(only ? k - 1 : i)]);
        }
    });
    return made;
}

} // namespace

void bind_select(nb::module_ &m) { m.def("select_places", &select_places); }

} // namespace resilin
