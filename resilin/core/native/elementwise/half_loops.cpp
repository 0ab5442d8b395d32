#include "elementwise/half_loops.hpp"
#include "kernels/halves.hpp"

#include <cstring>

#ifdef RESILIN_CHOOSES_ISA
#include <immintrin.h>
#define RESILIN_EIGHT __attribute__((target("avx2,f16c"), always_inline)) inline

namespace resilin {
namespace {

typedef float Eight __attribute__((vector_size(32), may_alias));

template <bool float16> RESILIN_EIGHT Eight widened(const uint16_t *x) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i *>(x));
    if constexpr (float16) return _mm256_cvtph_ps(bits);
    else return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// NaNs carry what those of half_of and bfloat_of do.
template <bool float16> RESILIN_EIGHT void rounded(Eight x, uint16_t *out) {
    const __m256 unordered = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    __m128i found;
    if constexpr (float16) {
        const __m256 sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0f));
        const __m256 nan = _mm256_or_ps(_mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)), sign);
        found = _mm256_cvtps_ph(_mm256_blendv_ps(x, nan, unordered), _MM_FROUND_TO_NEAREST_INT);
    } else {
        const __m256i bits = _mm256_castps_si256(x);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
        const __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
        const __m256i whole = _mm256_srli_epi32(_mm256_blendv_epi8(sum, nan, _mm256_castps_si256(unordered)), 16);
        found = _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i *>(out), found);
}

// at: arrays of n elements, or null for a number, which is in `numbers` (loop_over)
template <class Function, bool float16, bool number_x, bool number_y>
__attribute__((target("avx2,f16c"))) void run(const uint16_t *X, const uint16_t *Y, const float *numbers, int64_t n,
                                              uint16_t *out) {
    Eight x = _mm256_set1_ps(numbers[0]), y = _mm256_set1_ps(numbers[1]);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        if constexpr (!number_x) x = widened<float16>(X + i);
        if constexpr (!number_y && Function::INPUTS == 2) y = widened<float16>(Y + i);
        rounded<float16>(Function::of(x, y), out + i);
    }
    if (i == n) return;
    uint16_t rest[3][8] = {};
    const auto bytes = static_cast<size_t>(n - i) * sizeof(uint16_t);
    if constexpr (!number_x) {
        std::memcpy(rest[0], X + i, bytes);
        x = widened<float16>(rest[0]);
    }
    if constexpr (!number_y && Function::INPUTS == 2) {
        std::memcpy(rest[1], Y + i, bytes);
        y = widened<float16>(rest[1]);
    }
    rounded<float16>(Function::of(x, y), rest[2]);
    std::memcpy(out + i, rest[2], bytes);
}

template <class Function, bool float16>
void run_any(const uint16_t *x, const uint16_t *y, const float *numbers, int64_t n, uint16_t *out) {
    if (!x) return run<Function, float16, true, false>(x, y, numbers, n, out);
    if (!y) return run<Function, float16, false, true>(x, y, numbers, n, out);
    run<Function, float16, false, false>(x, y, numbers, n, out);
}

#define RESILIN_HALF(name, inputs, result)                                                                             \
    struct name {                                                                                                      \
        static constexpr int INPUTS = inputs;                                                                          \
        RESILIN_EIGHT static Eight of(Eight x, Eight y) {                                                              \
            (void)x, (void)y;                                                                                          \
            return result;                                                                                             \
        }                                                                                                              \
    };
// NaN wins, of the first operand before the second's
#define RESILIN_EXTREME(found) _mm256_blendv_ps(found, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q))
RESILIN_HALF(add, 2, x + y)
RESILIN_HALF(subtract, 2, x - y)
RESILIN_HALF(multiply, 2, x *y)
RESILIN_HALF(divide, 2, x / y)
RESILIN_HALF(maximum, 2, RESILIN_EXTREME(_mm256_max_ps(x, y)))
RESILIN_HALF(minimum, 2, RESILIN_EXTREME(_mm256_min_ps(x, y)))
// x where it is so beside y, or y is NaN
#define RESILIN_OR_OTHER(beside)                                                                                       \
    _mm256_blendv_ps(y, x, _mm256_or_ps(_mm256_cmp_ps(x, y, beside), _mm256_cmp_ps(y, y, _CMP_UNORD_Q)))
RESILIN_HALF(fmax, 2, RESILIN_OR_OTHER(_CMP_GE_OQ))
RESILIN_HALF(fmin, 2, RESILIN_OR_OTHER(_CMP_LE_OQ))
RESILIN_HALF(prelu, 2, _mm256_blendv_ps(x * y, x, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ)))
RESILIN_HALF(square, 1, x *x)
RESILIN_HALF(sqrt, 1, _mm256_sqrt_ps(x))
RESILIN_HALF(rsqrt, 1, _mm256_set1_ps(1.0f) / _mm256_sqrt_ps(x))
RESILIN_HALF(reciprocal, 1, _mm256_set1_ps(1.0f) / x)
RESILIN_HALF(floor, 1, _mm256_floor_ps(x))
RESILIN_HALF(ceil, 1, _mm256_ceil_ps(x))
RESILIN_HALF(trunc, 1, _mm256_round_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC))
RESILIN_HALF(rint, 1, _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
RESILIN_HALF(frac, 1, x - _mm256_round_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC))

struct Known {
    const char *name;
    int inputs;
    DirectHalf loop;
};
#define RESILIN_KNOWN(name)                                                                                            \
    { #name, name::INPUTS, {run_any<name, false>, run_any<name, true>} }
const Known KNOWN[] = {
    RESILIN_KNOWN(add),     RESILIN_KNOWN(subtract), RESILIN_KNOWN(multiply), RESILIN_KNOWN(divide),
    RESILIN_KNOWN(maximum), RESILIN_KNOWN(minimum),  RESILIN_KNOWN(square),   RESILIN_KNOWN(sqrt),
    RESILIN_KNOWN(rsqrt),   RESILIN_KNOWN(floor),    RESILIN_KNOWN(ceil),     RESILIN_KNOWN(reciprocal),
    RESILIN_KNOWN(trunc),   RESILIN_KNOWN(rint),     RESILIN_KNOWN(frac),     RESILIN_KNOWN(prelu),
    RESILIN_KNOWN(fmax),    RESILIN_KNOWN(fmin),
};

} // namespace

DirectHalf direct_half(const char *name, int inputs) {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("f16c")) return {};
    for (const Known &known : KNOWN)
        if (known.inputs == inputs && !std::strcmp(known.name, name)) return known.loop;
    return {};
}

} // namespace resilin
#else
namespace resilin {
DirectHalf direct_half(const char *, int) { return {}; }
} // namespace resilin
#endif
