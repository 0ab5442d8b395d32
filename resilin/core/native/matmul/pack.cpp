// float32 to and from the 16-bit floats, whole arrays.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "elementwise/half_blocks.hpp"
#include "kernels/halves.hpp"

#ifdef RESILIN_CHOOSES_ISA
#include <immintrin.h>
#endif

namespace resilin {
namespace {

RESILIN_SIMD void pack_by_steps(const float *x, int64_t begin, int64_t end, uint16_t *y) {
    for (int64_t i = begin; i < end; i++) y[i] = half_of(x[i]);
}
RESILIN_SIMD void unpack_by_steps(const uint16_t *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) y[i] = from_half(x[i]);
}

#ifdef RESILIN_CHOOSES_ISA
// The CPU's own conversions, eight at a time, with the same bits but for what NaNs carry: theirs are those of half_of.
__attribute__((target("avx2,f16c"))) void pack_at_once(const float *x, int64_t begin, int64_t end, uint16_t *y) {
    int64_t i = begin;
    for (; i + 8 <= end; i += 8) {
        const __m256 from = _mm256_loadu_ps(x + i), sign = _mm256_and_ps(from, _mm256_set1_ps(-0.0f));
        const __m256 nan = _mm256_or_ps(_mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)), sign);
        const __m256 clean = _mm256_blendv_ps(from, nan, _mm256_cmp_ps(from, from, _CMP_UNORD_Q));
        _mm_storeu_si128(reinterpret_cast<__m128i *>(y + i), _mm256_cvtps_ph(clean, _MM_FROUND_TO_NEAREST_INT));
    }
    for (; i < end; i++) y[i] = half_of(x[i]);
}
__attribute__((target("avx2,f16c"))) void unpack_at_once(const uint16_t *x, int64_t begin, int64_t end, float *y) {
    int64_t i = begin;
    for (; i + 8 <= end; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(x + i))));
    for (; i < end; i++) y[i] = from_half(x[i]);
}
// The same by sixteen.
__attribute__((target("avx512f"))) void pack_wide(const float *x, int64_t begin, int64_t end, uint16_t *y) {
    int64_t i = begin;
    for (; i + 16 <= end; i += 16) {
        const __m512i from = _mm512_loadu_si512(x + i), sign = _mm512_and_si512(from, _mm512_set1_epi32(INT32_MIN));
        const __mmask16 unordered = _mm512_cmp_ps_mask(_mm512_castsi512_ps(from), _mm512_castsi512_ps(from), _CMP_UNORD_Q);
        const __m512i clean = _mm512_mask_or_epi32(from, unordered, sign, _mm512_set1_epi32(0x7FC00000));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(y + i), _mm512_maskz_cvtps_ph(0xFFFF, _mm512_castsi512_ps(clean), _MM_FROUND_TO_NEAREST_INT));
    }
    for (; i < end; i++) y[i] = half_of(x[i]);
}
__attribute__((target("avx512f"))) void unpack_wide(const uint16_t *x, int64_t begin, int64_t end, float *y) {
    int64_t i = begin;
    for (; i + 16 <= end; i += 16)
        _mm512_storeu_ps(y + i, _mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(x + i))));
    for (; i < end; i++) y[i] = from_half(x[i]);
}
const bool converts_wide = __builtin_cpu_supports("avx512f");
const bool converts = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#endif

} // namespace

void pack_half(const float *x, int64_t begin, int64_t end, uint16_t *y) {
#ifdef RESILIN_CHOOSES_ISA
    if (converts_wide) return pack_wide(x, begin, end, y);
    if (converts) return pack_at_once(x, begin, end, y);
#endif
    pack_by_steps(x, begin, end, y);
}
void unpack_half(const uint16_t *x, int64_t begin, int64_t end, float *y) {
#ifdef RESILIN_CHOOSES_ISA
    if (converts_wide) return unpack_wide(x, begin, end, y);
    if (converts) return unpack_at_once(x, begin, end, y);
#endif
    unpack_by_steps(x, begin, end, y);
}
RESILIN_SIMD void pack_bfloat(const float *x, int64_t begin, int64_t end, uint16_t *y) {
    for (int64_t i = begin; i < end; i++) y[i] = bfloat_of(x[i]);
}
RESILIN_SIMD void unpack_bfloat(const uint16_t *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) y[i] = from_bfloat(x[i]);
}

namespace {

// From and To as stored: float or uint16_t (the bits of a 16-bit float)
template <class From, class To, void (*span)(const From *, int64_t, int64_t, To *)> nb::object convert(Array x) {
    if (!x.is<From>()) return nb::none();
    NewArray<To> y(x);
    {
        WithoutGil free(x.size());
        parallel_rows(x.size(), 1, [&](int64_t begin, int64_t end) { span(x.data<From>(), begin, end, y.data); });
    }
    return y.object;
}

} // namespace

void bind_pack(nb::module_ &m) {
    m.def("pack_float16", &convert<float, uint16_t, pack_half>);
    m.def("unpack_float16", &convert<uint16_t, float, unpack_half>);
    m.def("pack_bfloat16", &convert<float, uint16_t, pack_bfloat>);
    m.def("unpack_bfloat16", &convert<uint16_t, float, unpack_bfloat>);
}

} // namespace resilin
