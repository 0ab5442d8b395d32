// numpy's own innermost loops over pieces of arrays, on several threads and without the way through a ufunc's call. A
// loop of ours stands in where numpy's goes element by element (own_loops.cpp). 16-bit floats are loaded as float32,
// a block at a time, and rounded once.
#pragma once
#include "elementwise/walk.hpp"

namespace resilin {

using Loop = void (*)(char **args, npy_intp const *dimensions, npy_intp const *steps, void *data);

struct TypeLoop {
    Loop loop = nullptr; // null: there is none
    void *data = nullptr;
    int out = NPY_NOTYPE;
    bool own = false; // one of ours
};

// Loops straight over bfloat16 and float16; inputs that are null are numbers. Null: there are none.
struct DirectHalf {
    using Run = void (*)(const uint16_t *x, const uint16_t *y, const float *numbers, int64_t n, uint16_t *out);
    Run by_kind[2] = {}; // of float16 the second
};

// Of one function: its loops whose operands are all of one dtype, by that dtype.
struct Loops {
    int inputs = 0; // 0: this is no function
    int64_t cost = 1;
    bool divides = false; // integers: what divides by 0 is an error, which is looked for elsewhere
    bool widens = true;   // 16-bit floats may be computed with in float32
    bool columns = true;  // whether one element for a row may come as a row; numpy looks at exponents of steps of 0
    TypeLoop of[NPY_CDOUBLE + 1];
    DirectHalf direct;
    TypeLoop narrow;  // of float32, for results that are rounded to 16 bits; or `of`
    TypeLoop of_bits; // of both kinds of 16-bit floats as they are stored
};

// Those of a ufunc, or of `name` of ours where it is None.
Loops loops_of(PyObject *ufunc, const char *name);

// Ours of function `name` for elements of dtype `type`, which take `inputs` arguments.
TypeLoop own_loop(const char *name, int type, int &inputs);

// The function's result of arrays of one dtype, or numbers beside them, in `out` or, where that is null, in a new array;
// null without an error where the ufunc has to be asked. `kinds`: the kinds of dtypes that are taken, as in numpy's
// dtype.kind. `wide`: a number beside 16-bit floats is used as float32.
PyObject *loop_over(const Loops &loops, PyObject *const *args, PyArrayObject *out, const char *kinds, bool wide);

extern int bfloat16_type; // numpy's number of the dtype

} // namespace resilin
