#include "elementwise/ufunc_loops.hpp"
#include "binding/callables.hpp"
#include "binding/kernels.hpp"
#include "elementwise/half_blocks.hpp"
#include "elementwise/half_loops.hpp"
#include "elementwise/integers.hpp"
#include "elementwise/single_loops.hpp"

#define PY_UFUNC_UNIQUE_SYMBOL resilin_core_ufunc
#define NO_IMPORT_UFUNC
#include <numpy/ufuncobject.h>

#include <cstring>
#include <string>

namespace resilin {

int bfloat16_type = NPY_NOTYPE;

namespace {

constexpr int TYPES[] = {NPY_BOOL, NPY_BYTE,     NPY_UBYTE,     NPY_SHORT, NPY_USHORT, NPY_INT,    NPY_UINT,  NPY_LONG,
                         NPY_ULONG, NPY_LONGLONG, NPY_ULONGLONG, NPY_FLOAT, NPY_DOUBLE, NPY_CFLOAT, NPY_CDOUBLE};

char kind_of(int type) {
    if (type == NPY_BOOL) return 'b';
    if (PyTypeNum_ISUNSIGNED(type)) return 'u';
    return PyTypeNum_ISINTEGER(type) ? 'i' : PyTypeNum_ISCOMPLEX(type) ? 'c' : 'f';
}

// How many additions an element takes about as long as, for those functions that take several.
int64_t cost_of(const std::string &name) {
    for (const char *slow : {"power", "arctan2", "hypot", "fmod", "remainder", "floor_divide", "tan", "arcsin", "arccos",
                             "arctan", "sinh", "cosh", "tanh", "trunc_divide", "arcsinh", "arccosh", "arctanh", "logaddexp", "expm1", "log1p"})
        if (name == slow) return 8;
    for (const char *slow : {"exp", "exp2", "log", "log2", "log10", "sin", "cos", "sqrt", "divide", "rsqrt"})
        if (name == slow) return 3;
    return 1;
}

bool is_half(int type) { return type == NPY_HALF || type == bfloat16_type; }

template <class T> void repeat_as(char *at, npy_intp n, npy_intp step) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    if (step == sizeof(T)) std::fill_n(reinterpret_cast<T *>(at), n, value);
    else
        for (npy_intp i = 0; i < n; i++, at += step) std::memcpy(at, &value, sizeof(T));
}

// inner(pointers, n, steps), of a result whose elements have `bytes`: once, and the result repeated, where one element of
// each input is met by all of it, as a gradient of a sum is.
template <class Inner>
void run_or_repeat(const Inner &inner, char **at, npy_intp n, const npy_intp *steps, int inputs, npy_intp bytes) {
    const bool one = !steps[0] && !steps[inputs - 1] && n > 1 && bytes <= 8;
    inner(at, one ? 1 : n, steps);
    if (!one) return;
    if (bytes == 8) repeat_as<uint64_t>(at[inputs], n, steps[inputs]);
    else if (bytes == 4) repeat_as<uint32_t>(at[inputs], n, steps[inputs]);
    else if (bytes == 2) repeat_as<uint16_t>(at[inputs], n, steps[inputs]);
    else repeat_as<uint8_t>(at[inputs], n, steps[inputs]);
}

} // namespace

Loops loops_of(PyObject *given, const char *name) {
    Loops loops;
    const auto *ufunc = given && given != Py_None ? reinterpret_cast<PyUFuncObject *>(given) : nullptr;
    if (ufunc && (ufunc->nout != 1 || ufunc->nin > 2 || ufunc->core_enabled)) return loops;
    if (!std::strcmp(name, "spacing")) return loops; // not of 16 bits by way of float32
    loops.widens = std::strcmp(name, "nextafter");
    loops.columns = std::strcmp(name, "power");
    loops.cost = cost_of(name);
    for (const char *division : {"remainder", "fmod", "floor_divide", "trunc_divide"})
        loops.divides |= !std::strcmp(name, division);
    if (ufunc) loops.inputs = ufunc->nin;
    int of_bits = 0;
    loops.of_bits = own_loop(name, NPY_HALF, of_bits);
    for (int type : TYPES) {
        int inputs = loops.inputs;
        loops.of[type] = own_loop(name, type, inputs);
        loops.inputs = inputs;
        loops.of[type].own = loops.of[type].loop;
        if (loops.of[type].loop || !ufunc) continue;
        if (!std::strcmp(name, "power") && PyTypeNum_ISINTEGER(type)) continue; // raises errors, which takes Python's lock
        if (!std::strcmp(name, "reciprocal") && PyTypeNum_ISCOMPLEX(type)) continue; // not the bits of 1 / x
        for (int i = 0; i < ufunc->ntypes; i++) {
            const char *types = ufunc->types + i * ufunc->nargs;
            bool same = true;
            for (int arg = 0; arg < ufunc->nin; arg++) same = same && types[arg] == type;
            const int out = types[ufunc->nin];
            if (!same || out < 0 || out > NPY_CDOUBLE || out == NPY_LONGDOUBLE) continue;
            loops.of[type] = {ufunc->functions[i], ufunc->data ? ufunc->data[i] : nullptr, out, false};
            break;
        }
    }
    loops.direct = direct_half(name, loops.inputs);
    loops.narrow = narrow_loop(name);
    return loops;
}

namespace {

// A loop straight over 16-bit floats for n elements that lie one after the other, or are one for all; whether it was.
bool run_direct(DirectHalf::Run run, const HalfBlocks &blocks, char **at, npy_intp n, const npy_intp *steps) {
    const uint16_t *x[2] = {};
    float numbers[2] = {};
    for (int i = 0; i < blocks.inputs; i++) {
        if (blocks.wide[i]) std::memcpy(&numbers[i], at[i], sizeof(float));
        else if (steps[i] == sizeof(uint16_t)) x[i] = reinterpret_cast<const uint16_t *>(at[i]);
        else if (steps[i]) return false;
        else {
            const auto *number = reinterpret_cast<const uint16_t *>(at[i]);
            (blocks.float16 ? unpack_half : unpack_bfloat)(number, 0, 1, &numbers[i]);
        }
    }
    if (steps[blocks.inputs] != sizeof(uint16_t) || (!x[0] && !x[1])) return false;
    run(x[0], x[1], numbers, n, reinterpret_cast<uint16_t *>(at[blocks.inputs]));
    return true;
}

} // namespace

PyObject *loop_over(const Loops &loops, PyObject *const *args, PyArrayObject *out, const char *kinds, bool wide) {
    Walked operands[3];
    PyArrayObject *first = nullptr;
    for (int i = 0; i < loops.inputs; i++) {
        if (!PyArray_CheckExact(args[i])) continue;
        auto *array = operands[i].array = reinterpret_cast<PyArrayObject *>(args[i]);
        if (!PyArray_ISALIGNED(array) || !PyArray_ISNOTSWAPPED(array)) return nullptr;
        if (first && PyArray_TYPE(array) != PyArray_TYPE(first)) return nullptr;
        if (!first) first = array;
    }
    if (!first) return nullptr;
    const int type = PyArray_TYPE(first);
    const bool half = is_half(type);
    const int computed = half ? static_cast<int>(NPY_FLOAT) : type;
    if (computed < 0 || computed > NPY_CDOUBLE) return nullptr;
    const bool by_bits = half && loops.of_bits.loop;
    const TypeLoop &found = by_bits ? loops.of_bits : half && loops.narrow.loop ? loops.narrow : loops.of[computed];
    const char kind = kind_of(computed);
    if (!found.loop || (half && !by_bits && !loops.widens) || (kinds && !std::strchr(kinds, kind))) return nullptr;
    int64_t numbers[2];
    for (int i = 0; i < loops.inputs; i++) {
        if (operands[i].array) continue;
        if (!number_as(args[i], computed, &numbers[i])) return nullptr;
        if (half && !wide) round_to_half(PyFloat_CheckExact(args[i]) ? PyFloat_AS_DOUBLE(args[i]) : PyLong_AsDouble(args[i]),
                                         type == NPY_HALF, reinterpret_cast<float *>(&numbers[i]));
        operands[i].data = &numbers[i];
    }
    if (loops.divides && kind != 'f') { // by 0 is an error, which the ufunc's caller names
        if (operands[1].array ? !found.own || has_zero(operands[1].array) : PyObject_Not(args[1])) return nullptr;
    }
    const bool rounds = by_bits || (half && found.out == NPY_FLOAT);
    Walk walk;
    int count = loops.inputs;
    if (out) {
        if (PyArray_TYPE(out) != (rounds ? type : found.out) || !PyArray_ISBEHAVED(out)) return nullptr;
        for (int i = 0; i < loops.inputs; i++)
            if (operands[i].array && !keeps_elements(out, operands[i].array)) return nullptr;
        operands[count++].array = out;
    }
    if (!walk.plan(operands, count)) return nullptr;
    if (out && walk.size != PyArray_SIZE(out)) return nullptr;
    PyObject *made = out ? Py_NewRef(reinterpret_cast<PyObject *>(out)) : nullptr;
    if (!out) {
        PyArray_Descr *descr = rounds ? PyArray_DESCR(first) : PyArray_DescrFromType(found.out);
        if (rounds) Py_INCREF(descr);
        if (!(made = walk.add_new(descr))) return nullptr;
    }
    if (!walk.size) return made;
    walk.merge();
    walk.tile_rows(loops.columns);
    const npy_intp bytes = PyArray_ITEMSIZE(reinterpret_cast<PyArrayObject *>(made));
    WithoutGil free(walk.size * loops.cost);
    if (!half || by_bits) {
        const auto inner = [&](char **at, npy_intp n, const npy_intp *steps) { found.loop(at, &n, steps, found.data); };
        walk.run(loops.cost, [&](char **at, npy_intp n, const npy_intp *steps) {
            run_or_repeat(inner, at, n, steps, loops.inputs, bytes);
        });
        return made;
    }
    HalfBlocks blocks{found.loop, found.data, loops.inputs, type == NPY_HALF, rounds, {}};
    for (int i = 0; i < loops.inputs; i++) blocks.wide[i] = !operands[i].array;
    const auto direct = rounds ? loops.direct.by_kind[type == NPY_HALF] : nullptr;
    const auto inner = [&](char **at, npy_intp n, const npy_intp *steps) {
        if (!direct || !run_direct(direct, blocks, at, n, steps)) blocks.run(at, n, steps);
    };
    walk.run(loops.cost + 2, [&](char **at, npy_intp n, const npy_intp *steps) {
        run_or_repeat(inner, at, n, steps, loops.inputs, bytes);
    });
    return made;
}

namespace {

// A ufunc to be called with arrays, and an array to write into as the last; whatever its loops are not for goes to the
// ufunc itself, or, where there is none or they are asked alone, is answered with None.
struct Looped : Callable {
    static constexpr const char *NAME = "resilin.core._native.LoopedCall";
    static constexpr int REFERENCES = 2;
    PyObject *ufunc; // or null
    Loops loops;
};

PyObject *call(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names) {
    auto *self = reinterpret_cast<Looped *>(object);
    const Py_ssize_t given = PyVectorcall_NARGS(flagged), inputs = self->loops.inputs;
    if (!names && inputs && (given == inputs || (given == inputs + 1 && PyArray_CheckExact(args[inputs])))) {
        auto *out = given == inputs ? nullptr : reinterpret_cast<PyArrayObject *>(args[inputs]);
        PyObject *made = loop_over(self->loops, args, out, nullptr, false);
        if (made || PyErr_Occurred()) return made;
    }
    if (self->ufunc) return PyObject_Vectorcall(self->ufunc, args, flagged, names);
    Py_RETURN_NONE;
}

nb::object looped(nb::object ufunc, const char *name, bool alone) {
    Looped *self = make_callable<Looped>(call);
    self->loops = loops_of(ufunc.ptr(), name);
    self->ufunc = alone || ufunc.is_none() ? nullptr : ufunc.release().ptr();
    return finished(self);
}

} // namespace

void bind_ufunc_loops(nb::module_ &m) {
    m.def("looped", &looped, nb::arg("ufunc").none(), nb::arg("name"), nb::arg("alone") = false);
    m.def("set_bfloat16", [](nb::handle dtype) {
        bfloat16_type = reinterpret_cast<PyArray_Descr *>(dtype.ptr())->type_num;
    });
}

} // namespace resilin
