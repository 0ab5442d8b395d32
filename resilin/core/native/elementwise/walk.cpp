#include "elementwise/walk.hpp"
#include "kernels/simd.hpp"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

namespace resilin {

bool Walk::plan(const Walked *operands, int count) {
    count_ = count;
    ndim_ = 0;
    flat_ = true;
    const Walked *first = nullptr;
    for (int o = 0; o < count; o++) {
        PyArrayObject *array = operands[o].array;
        data_[o] = array ? PyArray_BYTES(array) : static_cast<char *>(operands[o].data);
        bytes_[o] = array ? static_cast<npy_intp>(PyArray_ITEMSIZE(array)) : 0;
        if (!array) continue;
        ndim_ = std::max(ndim_, PyArray_NDIM(array));
        if (!first) first = &operands[o];
        flat_ = flat_ && PyArray_IS_C_CONTIGUOUS(array) && PyArray_NDIM(array) == PyArray_NDIM(first->array) &&
                PyArray_CompareLists(PyArray_DIMS(array), PyArray_DIMS(first->array), PyArray_NDIM(array));
    }
    if (ndim_ > WALK_DIMS) return false;
    if (flat_) {
        size = PyArray_SIZE(first->array);
        std::copy_n(PyArray_DIMS(first->array), ndim_, shape_);
        for (int o = 0; o < count; o++)
            strides_[o][0] = operands[o].array ? static_cast<npy_intp>(PyArray_ITEMSIZE(operands[o].array)) : 0;
        return true;
    }
    std::fill_n(shape_, ndim_, npy_intp{1});
    for (int o = 0; o < count; o++) {
        PyArrayObject *array = operands[o].array;
        const int dims = array ? PyArray_NDIM(array) : 0, less = ndim_ - dims;
        std::fill_n(strides_[o], less, npy_intp{0});
        for (int d = 0; d < dims; d++) {
            const npy_intp length = PyArray_DIM(array, d);
            npy_intp &whole = shape_[less + d];
            strides_[o][less + d] = length == 1 ? 0 : PyArray_STRIDE(array, d);
            if (length == 1 || length == whole) continue;
            if (whole != 1) return false;
            whole = length;
        }
    }
    size = 1;
    for (int d = 0; d < ndim_; d++) size *= shape_[d];
    order();
    return true;
}

// As numpy orders the dimensions of an iteration, and with them those of a result: by the operands' strides, in C order
// where they disagree.
void Walk::order() {
    int inner[WALK_DIMS]; // from the innermost to the outermost
    for (int i = 0; i < ndim_; i++) inner[i] = ndim_ - 1 - i;
    for (int i = 1; i < ndim_; i++) {
        int goes_to = i;
        for (int j = i - 1; j >= 0; j--) {
            bool known = false, swap = false;
            for (int o = 0; o < count_; o++) {
                const npy_intp outer = std::abs(strides_[o][inner[i]]), other = std::abs(strides_[o][inner[j]]);
                if (!outer || !other) continue;
                if (other <= outer) swap = false;
                else if (!known) swap = true;
                known = true;
            }
            if (!known) continue;
            if (!swap) break;
            goes_to = j;
        }
        std::rotate(inner + goes_to, inner + i, inner + i + 1);
    }
    c_order_ = true;
    for (int i = 0; i < ndim_; i++) {
        axis_[i] = inner[ndim_ - 1 - i];
        c_order_ = c_order_ && axis_[i] == i;
    }
}

PyObject *Walk::add_new(PyArray_Descr *descr) {
    npy_intp step = PyDataType_ELSIZE(descr), made_strides[WALK_DIMS];
    if (!flat_)
        for (int i = ndim_ - 1; i >= 0; i--) {
            made_strides[axis_[i]] = step;
            step *= std::max(shape_[axis_[i]], npy_intp{1});
        }
    else strides_[count_][0] = step;
    npy_intp *layout = flat_ || c_order_ ? nullptr : made_strides;
    PyObject *made = PyArray_NewFromDescr(&PyArray_Type, descr, ndim_, shape_, layout, nullptr, 0, nullptr);
    if (!made) return nullptr;
    if (!flat_) std::copy_n(made_strides, ndim_, strides_[count_]);
    bytes_[count_] = PyDataType_ELSIZE(descr);
    data_[count_++] = PyArray_BYTES(reinterpret_cast<PyArrayObject *>(made));
    return made;
}

void Walk::merge() {
    if (flat_) {
        ndim_ = 1;
        shape_[0] = size;
        return;
    }
    int merged = 0;
    npy_intp shape[WALK_DIMS], strides[WALK_OPERANDS][WALK_DIMS];
    for (int i = 0; i < ndim_; i++) {
        const int d = axis_[i];
        if (shape_[d] == 1) continue;
        bool joins = merged > 0;
        for (int o = 0; o < count_ && joins; o++) joins = strides[o][merged - 1] == strides_[o][d] * shape_[d];
        if (joins) shape[merged - 1] *= shape_[d];
        else shape[merged++] = shape_[d];
        for (int o = 0; o < count_; o++) strides[o][merged - 1] = strides_[o][d];
    }
    if (!merged) {
        shape[merged++] = 1;
        for (int o = 0; o < count_; o++) strides[o][0] = 0;
    }
    ndim_ = merged;
    std::copy_n(shape, merged, shape_);
    for (int o = 0; o < count_; o++) std::copy_n(strides[o], merged, strides_[o]);
}

void Walk::tile_rows(bool columns) {
    const int last = ndim_ - 1, up = last - 1, result = count_ - 1;
    if (ndim_ < 2 || size < TILED) return;
    const npy_intp length = shape_[last], most = *std::max_element(bytes_, bytes_ + count_);
    bool apart = false;
    for (int o = 0; o < count_; o++)
        apart |= strides_[o][last] && strides_[o][up] && strides_[o][up] != length * strides_[o][last];
    const npy_intp tile = apart ? APART_BYTES : TILE_BYTES;
    const npy_intp rows = std::min(tile / std::max(length * most, npy_intp{1}), shape_[up]);
    if (rows < 2 || strides_[result][last] != bytes_[result] || strides_[result][up] != length * bytes_[result]) return;
    Rows rows_of[WALK_OPERANDS] = {};
    for (int o = 0; o < count_; o++) {
        const npy_intp along = strides_[o][last], across = strides_[o][up];
        if (across == length * along) continue;
        if (!(bytes_[o] <= 8 || bytes_[o] == 16) || (!along && !columns)) return;
        const bool one = !across && std::all_of(strides_[o], strides_[o] + up, [](npy_intp step) { return !step; });
        if (!one && length > SHORT_ROW) return;
        rows_of[o] = one ? Rows::repeated : Rows::gathered;
    }
    row_ = length;
    for (int o = 0; o < count_; o++) {
        along_[o] = strides_[o][last], across_[o] = strides_[o][up];
        rows_of_[o] = rows_of[o];
        if (rows_of[o] == Rows::repeated) {
            repeated_[o].resize(static_cast<size_t>(rows * length * bytes_[o]));
            gather_rows(o, data_[o], rows, repeated_[o].data());
            data_[o] = repeated_[o].data();
        }
        strides_[o][up] = rows_of[o] == Rows::run ? along_[o] : bytes_[o];
    }
    chunk_ = rows * length;
    shape_[up] *= length;
    ndim_--;
}

namespace {

#define RESILIN_GATHER_ROWS(T)                                                                                         \
    RESILIN_SIMD void gather_##T(const char *from, npy_intp across, npy_intp along, npy_intp rows, npy_intp length,    \
                                 T *to) {                                                                              \
        for (npy_intp row = 0; row < rows; row++, from += across, to += length) {                                      \
            if (along == static_cast<npy_intp>(sizeof(T))) {                                                           \
                const char *const ahead = from + rows * across; /* the next tile: comes in while this one is computed */ \
                for (npy_intp i = 0; i < length; i += 64 / static_cast<npy_intp>(sizeof(T)))                           \
                    __builtin_prefetch(ahead + i * static_cast<npy_intp>(sizeof(T)));                                  \
                std::memcpy(to, from, static_cast<size_t>(length) * sizeof(T));                                        \
            } else if (!along) {                                                                                       \
                T value;                                                                                               \
                std::memcpy(&value, from, sizeof(T));                                                                  \
                for (npy_intp i = 0; i < length; i++) to[i] = value;                                                   \
            } else {                                                                                                   \
                for (npy_intp i = 0; i < length; i++) std::memcpy(to + i, from + i * along, sizeof(T));                \
            }                                                                                                          \
        }                                                                                                              \
    }
struct Sixteen {
    uint64_t halves[2];
};
RESILIN_GATHER_ROWS(uint8_t)
RESILIN_GATHER_ROWS(uint16_t)
RESILIN_GATHER_ROWS(uint32_t)
RESILIN_GATHER_ROWS(uint64_t)
RESILIN_GATHER_ROWS(Sixteen)

} // namespace

void Walk::gather_rows(int operand, const char *from, npy_intp rows, char *to) const {
    const npy_intp across = across_[operand], along = along_[operand];
    const auto gather = [&](auto span, auto *into) { span(from, across, along, rows, row_, into); };
    switch (bytes_[operand]) {
    case 1: return gather(gather_uint8_t, reinterpret_cast<uint8_t *>(to));
    case 2: return gather(gather_uint16_t, reinterpret_cast<uint16_t *>(to));
    case 4: return gather(gather_uint32_t, reinterpret_cast<uint32_t *>(to));
    case 8: return gather(gather_uint64_t, reinterpret_cast<uint64_t *>(to));
    default: return gather(gather_Sixteen, reinterpret_cast<Sixteen *>(to));
    }
}

namespace {

std::pair<const char *, const char *> extent(PyArrayObject *x) {
    const char *low = PyArray_BYTES(x), *high = low + PyArray_ITEMSIZE(x);
    for (int d = 0; d < PyArray_NDIM(x); d++) {
        const npy_intp reach = (PyArray_DIM(x, d) - 1) * PyArray_STRIDE(x, d);
        (reach < 0 ? low : high) += reach;
    }
    return {low, high};
}

} // namespace

bool keeps_elements(PyArrayObject *out, PyArrayObject *x) {
    if (!PyArray_SIZE(out) || !PyArray_SIZE(x)) return true;
    const auto [low, high] = extent(out);
    const auto [start, end] = extent(x);
    if (high <= start || end <= low) return true;
    return PyArray_DATA(out) == PyArray_DATA(x) && PyArray_TYPE(out) == PyArray_TYPE(x) &&
           PyArray_NDIM(out) == PyArray_NDIM(x) &&
           PyArray_CompareLists(PyArray_DIMS(out), PyArray_DIMS(x), PyArray_NDIM(x)) &&
           PyArray_CompareLists(PyArray_STRIDES(out), PyArray_STRIDES(x), PyArray_NDIM(x));
}

namespace {

template <class T> bool whole_as(PyObject *number, void *data) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow || value < static_cast<long long>(std::numeric_limits<T>::min()) ||
        (value > 0 && static_cast<unsigned long long>(value) > std::numeric_limits<T>::max()))
        return false;
    *static_cast<T *>(data) = static_cast<T>(value);
    return true;
}

} // namespace

bool number_as(PyObject *number, int type, void *data) {
    const bool whole = PyLong_CheckExact(number);
    if (!whole && !PyFloat_CheckExact(number)) return false;
    if (type == NPY_FLOAT || type == NPY_DOUBLE) {
        const double value = whole ? PyLong_AsDouble(number) : PyFloat_AS_DOUBLE(number);
        if (PyErr_Occurred()) {
            PyErr_Clear(); // too large
            return false;
        }
        if (type == NPY_FLOAT) *static_cast<float *>(data) = static_cast<float>(value);
        else *static_cast<double *>(data) = value;
        return true;
    }
    if (!whole) return false;
    switch (type) {
    case NPY_BYTE: return whole_as<int8_t>(number, data);
    case NPY_UBYTE: return whole_as<uint8_t>(number, data);
    case NPY_SHORT: return whole_as<int16_t>(number, data);
    case NPY_USHORT: return whole_as<uint16_t>(number, data);
    case NPY_INT: return whole_as<int32_t>(number, data);
    case NPY_UINT: return whole_as<uint32_t>(number, data);
    case NPY_LONG: return whole_as<npy_long>(number, data);
    case NPY_LONGLONG: return whole_as<npy_longlong>(number, data);
    default: return false; // unsigned ones of 64 bits, which few numbers reach, among them
    }
}

} // namespace resilin
