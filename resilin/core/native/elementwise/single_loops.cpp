#include "elementwise/single_loops.hpp"
#include "elementwise/blocks.hpp"
#include "elementwise/single_functions.hpp"

#include <cmath>

namespace resilin {
namespace {

// The output may be one of the inputs, so that the loop's iterations are independent, which the compiler cannot know.
#define RESILIN_OF_ONE(name, function)                                                                                 \
    RESILIN_SIMD void name(const float *x, int64_t n, float *out) {                                                    \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) out[i] = static_cast<float>(single::function(x[i]));       \
    }
#define RESILIN_OF_TWO(name, function)                                                                                 \
    RESILIN_SIMD void name(const float *x, const float *y, int64_t n, float *out) {                                    \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) out[i] = static_cast<float>(single::function(x[i], y[i])); \
    }
RESILIN_OF_ONE(log, log_)
RESILIN_OF_ONE(log2, log2_)
RESILIN_OF_ONE(log10, log10_)
RESILIN_OF_ONE(log1p, log1p_)
RESILIN_OF_ONE(expm1, expm1_)
RESILIN_OF_ONE(sinh, sinh_)
RESILIN_OF_ONE(cosh, cosh_)
RESILIN_OF_ONE(arcsinh, asinh_)
RESILIN_OF_ONE(arccosh, acosh_)
RESILIN_OF_ONE(arctanh, atanh_)
RESILIN_OF_ONE(arcsin, asin_)
RESILIN_OF_ONE(arccos, acos_)
RESILIN_OF_ONE(arctan, atan_)
RESILIN_OF_TWO(arctan2, atan2_)
RESILIN_OF_TWO(any_power, pow_)
RESILIN_OF_TWO(logaddexp, logaddexp_)

constexpr float LARGE = 1e6f; // from here on a quotient by a quarter of a turn needs more digits: libm's

RESILIN_SIMD bool tan_block(const float *x, int64_t n, float *out) {
    int large = 0;
    _Pragma("omp simd reduction(| : large)") for (int64_t i = 0; i < n; i++) {
        out[i] = static_cast<float>(single::tan_(x[i]));
        large |= !(__builtin_fabsf(x[i]) < LARGE);
    }
    return large;
}
void tan(const float *x, int64_t n, float *out) {
    alignas(64) float found[BLOCK_ELEMENTS]; // `out` may be the input, which is looked at again
    for (int64_t first = 0; first < n; first += BLOCK_ELEMENTS) {
        const int64_t count = std::min<int64_t>(BLOCK_ELEMENTS, n - first);
        if (tan_block(x + first, count, found))
            for (int64_t i = 0; i < count; i++)
                if (!(std::fabs(x[first + i]) < LARGE)) found[i] = std::tan(x[first + i]);
        std::memcpy(out + first, found, static_cast<size_t>(count) * sizeof(float));
    }
}

// Whether a base is not positive, or a number not finite: then all are computed with what C99 says of those.
RESILIN_SIMD bool power_block(const float *x, const float *y, int64_t n, float *out) {
    constexpr float infinite = std::numeric_limits<float>::infinity();
    int special = 0;
    _Pragma("omp simd reduction(| : special)") for (int64_t i = 0; i < n; i++) {
        out[i] = static_cast<float>(single::pow_plain(x[i], y[i]));
        special |= !(x[i] > 0.0f) | !(x[i] < infinite) | !(__builtin_fabsf(y[i]) < infinite);
    }
    return special;
}
void power(const float *x, const float *y, int64_t n, float *out) {
    alignas(64) float found[BLOCK_ELEMENTS];
    for (int64_t first = 0; first < n; first += BLOCK_ELEMENTS) {
        const int64_t count = std::min<int64_t>(BLOCK_ELEMENTS, n - first);
        if (power_block(x + first, y + first, count, found)) any_power(x + first, y + first, count, found);
        std::memcpy(out + first, found, static_cast<size_t>(count) * sizeof(float));
    }
}

struct Named {
    const char *name;
    int inputs;
    Loop loop;
};
#define RESILIN_ONE(name)                                                                                              \
    { #name, 1, loop_of_one<float, float, name> }
#define RESILIN_TWO(name)                                                                                              \
    { #name, 2, loop_of_two<float, float, name> }
const Named LOOPS[] = {
    RESILIN_ONE(log),     RESILIN_ONE(log2),    RESILIN_ONE(log10),   RESILIN_ONE(log1p),  RESILIN_ONE(expm1),
    RESILIN_ONE(sinh),    RESILIN_ONE(cosh),    RESILIN_ONE(tan),     RESILIN_ONE(arcsinh), RESILIN_ONE(arccosh),
    RESILIN_ONE(arctanh), RESILIN_ONE(arcsin),  RESILIN_ONE(arccos),  RESILIN_ONE(arctan), RESILIN_TWO(arctan2),
    RESILIN_TWO(power),   RESILIN_TWO(logaddexp),
};

} // namespace

TypeLoop single_loop(const char *name, int type, int &inputs) {
    if (type != NPY_FLOAT) return {};
    for (const Named &named : LOOPS)
        if (!std::strcmp(named.name, name)) {
            inputs = named.inputs;
            return {named.loop, nullptr, type, true};
        }
    return {};
}

} // namespace resilin
