// Keys of many elements at once.
#include "order_keys.hpp"

namespace resilin {

#define RESILIN_KEYS(T)                                                                                                \
    RESILIN_SIMD RangeOf<T> key_range(const T *x, int64_t n, bool largest) { return range_among(x, n, largest); }      \
    RESILIN_SIMD void pack_items(const T *x, int64_t begin, int64_t end, const RangeOf<T> &range, int lowered,         \
                                 uint64_t *items) {                                                                    \
        const RangeOf<T> keys = range;                                                                                 \
        for (int64_t i = begin; i < end; i++)                                                                          \
            items[i] = static_cast<uint64_t>(keys.of(x[i])) >> lowered << 32 | static_cast<uint32_t>(i);               \
    }
RESILIN_KEYS(float)
RESILIN_KEYS(double)
RESILIN_KEYS(int64_t)
RESILIN_KEYS(int32_t)

} // namespace resilin
