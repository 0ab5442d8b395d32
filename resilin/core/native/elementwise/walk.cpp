#include "elementwise/walk.hpp"

#include <cstdlib>
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

void Walk::repeat_rows() {
    const npy_intp length = shape_[1], rows = std::min(CHUNK / 2 / std::max(length, npy_intp{1}), shape_[0]);
    if (ndim_ != 2 || rows < 2 || size < CHUNK) return;
    for (int o = 0; o < count_; o++) {
        const npy_intp step = strides_[o][1], across = strides_[o][0];
        if (across != length * step && (across || step <= 0 || step > 16)) return; // neither one run nor one row
    }
    for (int o = 0; o < count_; o++) {
        const npy_intp step = strides_[o][1];
        if (strides_[o][0] == length * step) continue;
        repeats_[o] = true;
        for (npy_intp i = 0; i < rows; i++) rows_[o].insert(rows_[o].end(), data_[o], data_[o] + length * step);
        data_[o] = rows_[o].data();
    }
    chunk_ = rows * length;
    shape_[0] *= length;
    for (int o = 0; o < count_; o++) strides_[o][0] = strides_[o][1];
    ndim_ = 1;
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
