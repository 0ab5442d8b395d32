// Loops over elements, made of a formula of each, and tables of them by the names of numpy's ufuncs.
#pragma once
#include "elementwise/blocks.hpp"
#include "elementwise/ufunc_loops.hpp"
#include "kernels/simd.hpp"

#include <cstddef>
#include <cstring>

// The function name_T of n elements, `result` of x, or of x and y. The output may be one of the inputs, so that the loop's
// iterations are independent, which the compiler cannot know.
#define RESILIN_LOOP(name, T, result)                                                                                  \
    RESILIN_SIMD void name##_##T(const T *X, int64_t n, T *out) {                                                      \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                          \
            const T x = X[i];                                                                                          \
            out[i] = result;                                                                                           \
        }                                                                                                              \
    }
#define RESILIN_LOOP_2(name, T, result)                                                                                \
    RESILIN_SIMD void name##_##T(const T *X, const T *Y, int64_t n, T *out) {                                          \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                          \
            const T x = X[i], y = Y[i];                                                                                \
            out[i] = result;                                                                                           \
        }                                                                                                              \
    }

// name_T in a table
#define RESILIN_NAMED(name, T)                                                                                         \
    { #name, type_number<T>, 1, loop_of_one<T, T, name##_##T> }
#define RESILIN_NAMED_2(name, T)                                                                                       \
    { #name, type_number<T>, 2, loop_of_two<T, T, name##_##T> }

namespace resilin {

struct NamedLoop {
    const char *name;
    int type, inputs;
    Loop loop;
    int out = NPY_NOTYPE; // `type`
};

// As own_loop's, from a table.
template <size_t N> TypeLoop found_in(const NamedLoop (&table)[N], const char *name, int type, int &inputs) {
    for (const NamedLoop &named : table)
        if (named.type == type && !std::strcmp(named.name, name)) {
            inputs = named.inputs;
            return {named.loop, nullptr, named.out == NPY_NOTYPE ? type : named.out, true};
        }
    return {};
}

} // namespace resilin
