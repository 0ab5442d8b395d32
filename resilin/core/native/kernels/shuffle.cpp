// A random order from random words: each place in turn takes one of those that are left (Fisher and Yates).
#include "binding/array.hpp"
#include "binding/kernels.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace resilin {
namespace {

constexpr int64_t AHEAD = 64; // exchanges whose places are fetched together: they lie anywhere

// Place i is exchanged with i + word * (n - i) / 2^64, the i-th word being made of two of `words`, the upper half first.
nb::object shuffled(ExactArray words) {
    if (!words.is<uint32_t>() || words.ndim() != 1 || words.size() % 2) return nb::none();
    const int64_t n = words.size() / 2;
    NewArray<int64_t> order({static_cast<npy_intp>(n)});
    nb::object made = order.object;
    WithoutGil free(n);
    int64_t *places = order.data;
    const uint32_t *word = words.data<uint32_t>();
    std::iota(places, places + n, int64_t{0});
    for (int64_t first = 0; first < n; first += AHEAD) {
        int64_t others[AHEAD];
        const int64_t count = std::min(AHEAD, n - first);
        for (int64_t i = 0; i < count; i++) {
            const int64_t at = first + i;
            const auto left = static_cast<uint64_t>(n - at);
            const uint64_t low = word[2 * at + 1] * left >> 32; // the product's upper 64 bits, by halves: n < 2^32
            others[i] = at + static_cast<int64_t>((word[2 * at] * left + low) >> 32);
            __builtin_prefetch(places + others[i], 1);
        }
        for (int64_t i = 0; i < count; i++) std::swap(places[first + i], places[others[i]]);
    }
    return made;
}

} // namespace

void bind_shuffle(nb::module_ &m) { m.def("shuffled", &shuffled); }

} // namespace resilin
