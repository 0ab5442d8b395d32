// Copies between ranks' memory.
#pragma once

#include <cstddef>

namespace resilin::dist {

// dst[0..size) = src[0..size). `stream`: past the caches, which saves reading what is overwritten; for more than caches hold.
// The two do not overlap, or are one.
void copy(char *dst, const char *src, size_t size, bool stream);

} // namespace resilin::dist
