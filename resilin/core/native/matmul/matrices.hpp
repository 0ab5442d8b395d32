// The last two axes of an array as matrices, the axes before them as their numbers.
#pragma once
#include "binding/array.hpp"
#include "product.hpp"

#include <vector>

namespace resilin {

// The last two axes of an operand; false where its elements do not lie as a kernel can read them.
template <class T> bool view_of(const PyArrayObject *array, View<T> &view) {
    const int n = PyArray_NDIM(array);
    constexpr int64_t size = sizeof(T);
    const int64_t down = PyArray_STRIDE(array, n - 2), right = PyArray_STRIDE(array, n - 1);
    view = {static_cast<const T *>(PyArray_DATA(array)), down / size, right / size};
    return down % size == 0 && right % size == 0 && PyArray_ISALIGNED(array) && PyArray_ISNOTSWAPPED(array);
}

// A vector as a matrix of one row.
template <class T> bool view_of_row(const PyArrayObject *array, View<T> &view) {
    const int64_t step = PyArray_STRIDE(array, 0);
    view = {static_cast<const T *>(PyArray_DATA(array)), 0, step / static_cast<int64_t>(sizeof(T))};
    return step % static_cast<int64_t>(sizeof(T)) == 0 && PyArray_ISALIGNED(array) && PyArray_ISNOTSWAPPED(array);
}

// Leading axes of an operand, broadcast to those of the result: the byte offset of its i-th matrix.
inline int64_t offset_of(const PyArrayObject *array, const std::vector<npy_intp> &leading, int64_t i) {
    const int own = PyArray_NDIM(array) - 2;
    int64_t offset = 0;
    for (int axis = static_cast<int>(leading.size()) - 1, mine = own - 1; axis >= 0; axis--, mine--) {
        const int64_t at = i % leading[static_cast<size_t>(axis)];
        i /= leading[static_cast<size_t>(axis)];
        if (mine >= 0 && PyArray_DIM(array, mine) != 1) offset += at * PyArray_STRIDE(array, mine);
    }
    return offset;
}

} // namespace resilin
