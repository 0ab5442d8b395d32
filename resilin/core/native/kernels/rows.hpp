// Rows of floats for kernels that sum along them: of float32, of float64, and of 16-bit floats, which are opened to
// float32 a few rows at a time and rounded once.
#pragma once
#include "binding/array.hpp"
#include "elementwise/doubles.hpp"
#include "elementwise/half_blocks.hpp"
#include "kernels/simd.hpp"

#include <algorithm>
#include <vector>

namespace resilin {

extern int bfloat16_type;

inline bool is_half_type(int type) { return type == NPY_HALF || type == bfloat16_type; }
inline bool is_float_type(int type) { return type == NPY_FLOAT || type == NPY_DOUBLE || is_half_type(type); }

// An array argument that is only read: strided floats of any width are copied to contiguous ones.
struct Floats : Array {
    bool known() const {
        return array && is_float_type(PyArray_TYPE(array)) && PyArray_ISCARRAY_RO(array) && PyArray_ISNOTSWAPPED(array);
    }
    int type() const { return PyArray_TYPE(array); }
    // not there, or one of `count` elements of x's dtype, or of float32 beside 16 bits
    bool fits(const Floats &x, int64_t count) const {
        if (!array) return true;
        return known() && size() == count && (type() == x.type() || (is_half_type(x.type()) && type() == NPY_FLOAT));
    }
};

// A new array of x's dtype
inline nb::object new_like(const ExactArray &x, int ndim, const npy_intp *dims) {
    PyArray_Descr *descr = PyArray_DESCR(x.array);
    Py_INCREF(descr);
    nb::object made = nb::steal(PyArray_NewFromDescr(&PyArray_Type, descr, ndim, dims, nullptr, nullptr, 0, nullptr));
    if (!made.ptr()) throw nb::python_error();
    return made;
}
inline nb::object new_like(const ExactArray &x) { return new_like(x, x.ndim(), PyArray_DIMS(x.array)); }
template <class T> T *elements_of(const nb::object &made) {
    return static_cast<T *>(PyArray_DATA(reinterpret_cast<PyArrayObject *>(made.ptr())));
}

// The elements of an array as T, float or double: where they are, or n of them opened into a block.
template <class T> class Opened {
  public:
    explicit Opened(const ExactArray &x)
        : data_(x.array ? PyArray_DATA(x.array) : nullptr), type_(x.array ? PyArray_TYPE(x.array) : 0) {}
    explicit operator bool() const { return data_; }
    bool half() const { return is_half_type(type_); }
    const T *at(int64_t first, int64_t n, T *block) const {
        if constexpr (sizeof(T) == sizeof(float))
            if (half()) {
                (type_ == NPY_HALF ? unpack_half : unpack_bfloat)(static_cast<const uint16_t *>(data_) + first, 0, n, block);
                return block;
            }
        return static_cast<const T *>(data_) + first;
    }

  private:
    const void *data_;
    int type_;
};

// The same of a result: written where it belongs, or into a block that `close` rounds.
template <class T> class Rounded {
  public:
    Rounded(const nb::object &made, const ExactArray &like) : data_(elements_of<char>(made)), type_(PyArray_TYPE(like.array)) {}
    T *at(int64_t first, T *block) const {
        return is_half_type(type_) ? block : reinterpret_cast<T *>(data_) + first;
    }
    void close(int64_t first, int64_t n, const T *block) const {
        if constexpr (sizeof(T) == sizeof(float))
            if (is_half_type(type_))
                (type_ == NPY_HALF ? pack_half : pack_bfloat)(block, 0, n, reinterpret_cast<uint16_t *>(data_) + first);
    }

  private:
    char *data_;
    int type_;
};

// A vector of numbers beside rows, opened whole; null where it is not there.
template <class T> class Beside {
  public:
    explicit Beside(const ExactArray &x) : block_(static_cast<size_t>(x && is_half_type(PyArray_TYPE(x.array)) ? x.size() : 0)) {
        if (x) data = Opened<T>(x).at(0, x.size(), block_.data());
    }
    const T *data = nullptr;

  private:
    std::vector<T> block_;
};

// fn(first row, rows) for a few of the rows [begin, end) of D elements at a time, which stay in the first cache
constexpr int64_t ROWS_ABREAST = 16, ABREAST_ELEMENTS = 2048;
inline int64_t rows_abreast(int64_t D) {
    return std::clamp<int64_t>(ABREAST_ELEMENTS / std::max<int64_t>(D, 1), 1, ROWS_ABREAST);
}
template <class Fn> void few_at_a_time(int64_t D, int64_t begin, int64_t end, Fn fn) {
    const int64_t few = rows_abreast(D);
    for (int64_t n = begin; n < end; n += few) fn(n, std::min(few, end - n));
}

// The largest element, NaN ignored
template <class T> RESILIN_INLINE T top_of(const T *row, int64_t D) {
    T top = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < D; i++) top = row[i] > top ? row[i] : top;
    return top;
}
RESILIN_INLINE float exponential(float x) { return exp_low(x); } // of x <= 0
RESILIN_INLINE double exponential(double x) { return exp_(x); }

// Rows whose exponentials are made at once: what is left of each beside whole vectors would be made one by one.
constexpr int64_t ABREAST = 8;
inline int64_t exponentials_abreast(int64_t D) { return D % LANES && D <= 1024 ? ABREAST : 1; }

} // namespace resilin

namespace nanobind::detail {
template <> struct type_caster<resilin::Floats> {
    NB_TYPE_CASTER(resilin::Floats, const_name("numpy.ndarray | None"))
    bool from_python(handle source, uint32_t, cleanup_list *) noexcept {
        if (!source.is_none() && !PyArray_Check(source.ptr())) return false;
        value.array = source.is_none() ? nullptr : reinterpret_cast<PyArrayObject *>(source.ptr());
        if (!value.array || PyArray_ISCARRAY_RO(value.array) || !resilin::is_float_type(PyArray_TYPE(value.array))) return true;
        value.copy = steal(resilin::contiguous_copy(value.array));
        if (!value.copy.ptr()) value.copy = steal(PyArray_FROM_OF(source.ptr(), NPY_ARRAY_CARRAY_RO | NPY_ARRAY_NOTSWAPPED));
        if (!value.copy.ptr()) PyErr_Clear(); // out of memory, most likely: the reference meets it again and says so
        else value.array = reinterpret_cast<PyArrayObject *>(value.copy.ptr());
        return value.copy.ptr();
    }
    static handle from_cpp(const resilin::Floats &, rv_policy, cleanup_list *) noexcept { return handle(); }
};
} // namespace nanobind::detail
