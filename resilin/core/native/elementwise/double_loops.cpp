#include "elementwise/double_loops.hpp"
#include "elementwise/blocks.hpp"
#include "elementwise/double_angles.hpp"
#include "elementwise/double_exponentials.hpp"
#include "elementwise/double_logarithms.hpp"

namespace resilin {
namespace {

// The output may be one of the inputs, so that the loop's iterations are independent, which the compiler cannot know.
#define RESILIN_OF_ONE(name, result)                                                                                   \
    RESILIN_SIMD void name(const double *X, int64_t n, double *out) {                                                  \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                          \
            const double x = X[i];                                                                                     \
            out[i] = result;                                                                                           \
        }                                                                                                              \
    }
#define RESILIN_OF_TWO(name, result)                                                                                   \
    RESILIN_SIMD void name(const double *X, const double *Y, int64_t n, double *out) {                                 \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                          \
            const double x = X[i], y = Y[i];                                                                           \
            out[i] = result;                                                                                           \
        }                                                                                                              \
    }
RESILIN_OF_ONE(exp, exp_(x))
RESILIN_OF_ONE(exp2, exp2_(x))
RESILIN_OF_ONE(expm1, expm1_(x))
RESILIN_OF_ONE(log, log_(x))
RESILIN_OF_ONE(log2, log2_(x))
RESILIN_OF_ONE(log10, log10_(x))
RESILIN_OF_ONE(log1p, log1p_all(x))
RESILIN_OF_ONE(sinh, sinh_(x))
RESILIN_OF_ONE(cosh, cosh_(x))
RESILIN_OF_ONE(tanh, tanh_(x))
RESILIN_OF_ONE(arctanh, atanh_(x))
RESILIN_OF_ONE(arcsin, asin_(x))
RESILIN_OF_ONE(arccos, acos_(x))
RESILIN_OF_ONE(arctan, atan_(x))
RESILIN_OF_TWO(arctan2, atan2_(x, y))
RESILIN_OF_TWO(power, pow_(x, y))

struct Named {
    const char *name;
    int inputs;
    Loop loop;
};
#define RESILIN_ONE(name)                                                                                              \
    { #name, 1, loop_of_one<double, double, name> }
#define RESILIN_TWO(name)                                                                                              \
    { #name, 2, loop_of_two<double, double, name> }
const Named LOOPS[] = {
    RESILIN_ONE(exp),    RESILIN_ONE(exp2),   RESILIN_ONE(expm1),  RESILIN_ONE(log),
    RESILIN_ONE(log2),   RESILIN_ONE(log10),  RESILIN_ONE(log1p),  RESILIN_ONE(sinh),
    RESILIN_ONE(cosh),   RESILIN_ONE(tanh),   RESILIN_ONE(arctanh), RESILIN_ONE(arcsin),
    RESILIN_ONE(arccos), RESILIN_ONE(arctan), RESILIN_TWO(arctan2), RESILIN_TWO(power),
};

} // namespace

TypeLoop double_loop(const char *name, int type, int &inputs) {
    if (type != NPY_DOUBLE) return {};
    for (const Named &named : LOOPS)
        if (!std::strcmp(named.name, name)) {
            inputs = named.inputs;
            return {named.loop, nullptr, type, true};
        }
    return {};
}

} // namespace resilin
