// Loops as a ufunc has them, made of functions over elements that lie one after the other: what does not is gathered into
// blocks first.
#pragma once
#include "binding/array.hpp"

#include <algorithm>
#include <cstring>

namespace resilin {

constexpr npy_intp BLOCK_ELEMENTS = 1024;

// n elements of type T, from `at` on in steps of `step` bytes, one after the other: themselves, or copied to `block`.
template <class T> inline const T *gathered(const char *at, npy_intp step, npy_intp n, T *block) {
    if (step == sizeof(T)) return reinterpret_cast<const T *>(at);
    if (!step) {
        T value;
        std::memcpy(&value, at, sizeof(T));
        std::fill_n(block, n, value);
        return block;
    }
    for (npy_intp i = 0; i < n; i++, at += step) std::memcpy(block + i, at, sizeof(T));
    return block;
}

template <class T> inline void scattered(const T *block, npy_intp n, char *at, npy_intp step) {
    for (npy_intp i = 0; i < n; i++, at += step) std::memcpy(at, block + i, sizeof(T));
}

// The loop of span(x, n, out), for inputs of type T and an output of type Out.
template <class T, class Out, void (*span)(const T *, int64_t, Out *)>
void loop_of_one(char **args, npy_intp const *dimensions, npy_intp const *steps, void *) {
    const npy_intp n = dimensions[0];
    if (steps[0] == sizeof(T) && steps[1] == sizeof(Out)) {
        span(reinterpret_cast<const T *>(args[0]), n, reinterpret_cast<Out *>(args[1]));
        return;
    }
    alignas(64) T x[BLOCK_ELEMENTS];
    alignas(64) Out out[BLOCK_ELEMENTS];
    for (npy_intp first = 0; first < n; first += BLOCK_ELEMENTS) {
        const npy_intp count = std::min(BLOCK_ELEMENTS, n - first);
        span(gathered(args[0] + first * steps[0], steps[0], count, x), count, out);
        scattered(out, count, args[1] + first * steps[1], steps[1]);
    }
}

// The loop of span(x, y, n, out). One number for all elements fills its block once.
template <class T, class Out, void (*span)(const T *, const T *, int64_t, Out *)>
void loop_of_two(char **args, npy_intp const *dimensions, npy_intp const *steps, void *) {
    const npy_intp n = dimensions[0];
    if (steps[0] == sizeof(T) && steps[1] == sizeof(T) && steps[2] == sizeof(Out)) {
        span(reinterpret_cast<const T *>(args[0]), reinterpret_cast<const T *>(args[1]), n, reinterpret_cast<Out *>(args[2]));
        return;
    }
    alignas(64) T x[BLOCK_ELEMENTS], y[BLOCK_ELEMENTS];
    alignas(64) Out block[BLOCK_ELEMENTS];
    for (npy_intp first = 0; first < n; first += BLOCK_ELEMENTS) {
        const npy_intp count = std::min(BLOCK_ELEMENTS, n - first);
        const T *a = !steps[0] && first ? x : gathered(args[0] + first * steps[0], steps[0], count, x);
        const T *b = !steps[1] && first ? y : gathered(args[1] + first * steps[1], steps[1], count, y);
        char *to = args[2] + first * steps[2];
        const bool direct = steps[2] == sizeof(Out);
        span(a, b, count, direct ? reinterpret_cast<Out *>(to) : block);
        if (!direct) scattered(block, count, to, steps[2]);
    }
}

} // namespace resilin
