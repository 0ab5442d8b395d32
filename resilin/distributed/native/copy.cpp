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
constexpr size_t PAGE_BYTES = 4096; // the processor's own fetching ends at each, so what comes next is fetched by us
constexpr size_t SIDE = 4;          // pages that are copied side by side: 10 to 25 % quicker at 100 MiB than one by one

// `dst` is aligned to a line
inline void stream_line(char *dst, const char *src) {
    const auto *from = reinterpret_cast<const __m128i *>(src);
    auto *to = reinterpret_cast<__m128i *>(dst);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
}

// whole lines, `side` pages at a time. Returns how many bytes were copied.
template <size_t side> size_t stream_pages(char *dst, const char *src, size_t size) {
    constexpr size_t all = side * PAGE_BYTES;
    size_t at = 0;
    for (; at + all <= size; at += all) {
        const bool more = at + 2 * all <= size; // of a piece of a message what follows is for the other core
        for (size_t line = at; line < at + PAGE_BYTES; line += LINE_BYTES) {
            for (size_t one = line; one < line + all; one += PAGE_BYTES) {
                if (more) _mm_prefetch(src + one + all, _MM_HINT_T0);
                stream_line(dst + one, src + one);
            }
        }
    }
    return at;
}

void stream_lines(char *dst, const char *src, size_t size) {
    size_t at = stream_pages<SIDE>(dst, src, size);
    at += stream_pages<1>(dst + at, src + at, size - at);
    for (; at < size; at += LINE_BYTES) stream_line(dst + at, src + at);
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
    const size_t whole = (size - head) / LINE_BYTES * LINE_BYTES, done = head + whole;
    stream_lines(dst + head, src + head, whole);
    std::memcpy(dst + done, src + done, size - done);
}
#else
void copy(char *dst, const char *src, size_t size, bool) {
    if (dst != src) std::memcpy(dst, src, size);
}
#endif

} // namespace resilin::dist
