#include "elementwise/double_loops.hpp"
#include "elementwise/double_angles.hpp"
#include "elementwise/double_exponentials.hpp"
#include "elementwise/double_logarithms.hpp"
#include "elementwise/named_loops.hpp"

namespace resilin {
namespace {

RESILIN_LOOP(exp, double, exp_(x))
RESILIN_LOOP(exp2, double, exp2_(x))
RESILIN_LOOP(expm1, double, expm1_(x))
RESILIN_LOOP(log, double, log_(x))
RESILIN_LOOP(log2, double, log2_(x))
RESILIN_LOOP(log10, double, log10_(x))
RESILIN_LOOP(log1p, double, log1p_all(x))
RESILIN_LOOP(sinh, double, sinh_(x))
RESILIN_LOOP(cosh, double, cosh_(x))
RESILIN_LOOP(tanh, double, tanh_(x))
RESILIN_LOOP(arctanh, double, atanh_(x))
RESILIN_LOOP(arcsin, double, asin_(x))
RESILIN_LOOP(arccos, double, acos_(x))
RESILIN_LOOP(arctan, double, atan_(x))
RESILIN_LOOP_2(arctan2, double, atan2_(x, y))
RESILIN_LOOP_2(power, double, pow_(x, y))

const NamedLoop LOOPS[] = {
    RESILIN_NAMED(exp, double), RESILIN_NAMED(exp2, double), RESILIN_NAMED(expm1, double), RESILIN_NAMED(log, double),
    RESILIN_NAMED(log2, double), RESILIN_NAMED(log10, double), RESILIN_NAMED(log1p, double),
    RESILIN_NAMED(sinh, double), RESILIN_NAMED(cosh, double), RESILIN_NAMED(tanh, double),
    RESILIN_NAMED(arctanh, double), RESILIN_NAMED(arcsin, double), RESILIN_NAMED(arccos, double),
    RESILIN_NAMED(arctan, double), RESILIN_NAMED_2(arctan2, double), RESILIN_NAMED_2(power, double),
};

} // namespace

TypeLoop double_loop(const char *name, int type, int &inputs) { return found_in(LOOPS, name, type, inputs); }

} // namespace resilin
