#include "elementwise/single_loops.hpp"
#include "elementwise/named_loops.hpp"
#include "elementwise/single_functions.hpp"

#include <cmath>

namespace resilin {
namespace {

// Computed in float64 and rounded once.
#define RESILIN_SINGLE(name, function) RESILIN_LOOP(name, float, static_cast<float>(single::function(x)))
#define RESILIN_SINGLE_2(name, function) RESILIN_LOOP_2(name, float, static_cast<float>(single::function(x, y)))
RESILIN_SINGLE(log, log_)
RESILIN_SINGLE(log2, log2_)
RESILIN_SINGLE(log10, log10_)
RESILIN_SINGLE(log1p, log1p_)
RESILIN_SINGLE(expm1, expm1_)
RESILIN_SINGLE(sinh, sinh_)
RESILIN_SINGLE(cosh, cosh_)
RESILIN_SINGLE(arcsinh, asinh_)
RESILIN_SINGLE(arccosh, acosh_)
RESILIN_SINGLE(arctanh, atanh_)
RESILIN_SINGLE(arcsin, asin_)
RESILIN_SINGLE(arccos, acos_)
RESILIN_SINGLE(arctan, atan_)
RESILIN_SINGLE_2(arctan2, atan2_)
RESILIN_SINGLE_2(any_power, pow_)
RESILIN_SINGLE_2(logaddexp, logaddexp_)

// For results of 16 bits
#define RESILIN_NARROW(name, function) RESILIN_LOOP(narrow_##name, float, narrow::function(x))
RESILIN_NARROW(log, log_)
RESILIN_NARROW(log2, log2_)
RESILIN_NARROW(log10, log10_)
RESILIN_NARROW(log1p, log1p_)
RESILIN_NARROW(arctanh, atanh_)

constexpr float LARGE = 1e6f; // from here on a quotient by a quarter of a turn needs more digits: libm's

RESILIN_SIMD bool tan_block(const float *x, int64_t n, float *out) {
    int large = 0;
    _Pragma("omp simd reduction(| : large)") for (int64_t i = 0; i < n; i++) {
        out[i] = static_cast<float>(single::tan_(x[i]));
        large |= !(__builtin_fabsf(x[i]) < LARGE);
    }
    return large;
}
void tan_float(const float *x, int64_t n, float *out) {
    alignas(64) float found[BLOCK_ELEMENTS]; // `out` may be the input, which is looked at again
    for (int64_t first = 0; first < n; first += BLOCK_ELEMENTS) {
        const int64_t count = std::min<int64_t>(BLOCK_ELEMENTS, n - first);
        if (tan_block(x + first, count, found))
            for (int64_t i = 0; i < count; i++)
                if (!(std::fabs(x[first + i]) < LARGE)) found[i] = std::tan(x[first + i]);
        std::memcpy(out + first, found, static_cast<size_t>(count) * sizeof(float));
    }
}

// x^y, of negative x as whole y say. Whether a base is zero or a number not finite: then all are computed with what C99
// says of those.
RESILIN_SIMD bool power_block(const float *x, const float *y, int64_t n, float *out) {
    constexpr float infinite = std::numeric_limits<float>::infinity(), units = 8388608.0f; // 2^23: from here on all are whole
    int special = 0;
    _Pragma("omp simd reduction(| : special)") for (int64_t i = 0; i < n; i++) {
        const float size = __builtin_fabsf(x[i]), power = __builtin_fabsf(y[i]);
        const float found = static_cast<float>(single::pow_plain(size, y[i]));
        const float shifted = power < units ? power + units : power; // its last bit is that of ones, below 2^24
        const float whole = power < units ? shifted - units : power;
        const int32_t odd = power < 2.0f * units ? bit_cast<int32_t>(shifted) << 31 : 0;
        const float mirrored = bit_cast<float>(bit_cast<int32_t>(found) ^ odd);
        const float real = whole == power ? mirrored : std::numeric_limits<float>::quiet_NaN();
        out[i] = x[i] < 0.0f ? real : found;
        special |= !(size > 0.0f) | !(size < infinite) | !(power < infinite);
    }
    return special;
}
void power_float(const float *x, const float *y, int64_t n, float *out) {
    alignas(64) float found[BLOCK_ELEMENTS];
    for (int64_t first = 0; first < n; first += BLOCK_ELEMENTS) {
        const int64_t count = std::min<int64_t>(BLOCK_ELEMENTS, n - first);
        if (power_block(x + first, y + first, count, found)) any_power_float(x + first, y + first, count, found);
        std::memcpy(out + first, found, static_cast<size_t>(count) * sizeof(float));
    }
}

const NamedLoop LOOPS[] = {
    RESILIN_NAMED(log, float), RESILIN_NAMED(log2, float), RESILIN_NAMED(log10, float), RESILIN_NAMED(log1p, float),
    RESILIN_NAMED(expm1, float), RESILIN_NAMED(sinh, float), RESILIN_NAMED(cosh, float),
    RESILIN_NAMED(arcsinh, float), RESILIN_NAMED(arccosh, float), RESILIN_NAMED(arctanh, float),
    RESILIN_NAMED(arcsin, float), RESILIN_NAMED(arccos, float), RESILIN_NAMED(arctan, float),
    RESILIN_NAMED(tan, float), RESILIN_NAMED_2(arctan2, float), RESILIN_NAMED_2(logaddexp, float),
    RESILIN_NAMED_2(power, float),
};

#define RESILIN_NAMED_NARROW(name)                                                                                     \
    { #name, NPY_FLOAT, 1, loop_of_one<float, float, narrow_##name##_float> }
const NamedLoop NARROW[] = {
    RESILIN_NAMED_NARROW(log),   RESILIN_NAMED_NARROW(log2),    RESILIN_NAMED_NARROW(log10),
    RESILIN_NAMED_NARROW(log1p), RESILIN_NAMED_NARROW(arctanh),
};

} // namespace

TypeLoop single_loop(const char *name, int type, int &inputs) { return found_in(LOOPS, name, type, inputs); }
TypeLoop narrow_loop(const char *name) {
    int inputs = 1;
    return found_in(NARROW, name, NPY_FLOAT, inputs);
}

} // namespace resilin
