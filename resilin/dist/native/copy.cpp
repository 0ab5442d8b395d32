#include "copy.hpp"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace resilin::dist {

#if defined(__x86_64__)
namespace {

constexpr size_t LINE_BYTES = 64;
constexpr size_t AHEAD_BYTES = 4096; // the processor's own fetching ends at each page: worth a sixth of one core's rate

// whole lines; `dst` is aligned to one
void stream_lines(char *dst, const char *src, size_t lines) {
    for (size_t i = 0; i < lines; i++, dst += LINE_BYTES, src += LINE_BYTES) {
        _mm_prefetch(src + AHEAD_BYTES, _MM_HINT_T0); // beyond the end it is ignored
        const auto *from = reinterpret_cast<const __m128i *>(src);
        auto *to = reinterpret_cast<__m128i *>(dst);
        const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
        const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
    _mm_sfence(); // before the barrier that tells the peers
}

} // namespace

void copy(char *dst, const char *src, size_t size, bool stream) {
    if (dst == src || size == 0) return;
    if (!stream || size < 2 * LINE_BYTES) {
        std::memcpy(dst, src, size);
        return;
    }
    const size_t head = (LINE_BYTES - reinterpret_cast<uintptr_t>(dst) % LINE_BYTES) % LINE_BYTES;
    std::memcpy(dst, src, head);
    const size_t lines = (size - head) / LINE_BYTES, done = head + lines * LINE_BYTES;
    stream_lines(dst + head, src + head, lines);
    std::memcpy(dst + done, src + done, size - done);
}
#else
void copy(char *dst, const char *src, size_t size, bool) {
    if (dst != src) std::memcpy(dst, src, size);
}
#endif

} // namespace resilin::dist
