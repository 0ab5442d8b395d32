// What optimizer steps share: the arrays of several lists lined up, cut into blocks and given to the threads.
#pragma once
#include "binding/array.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <algorithm>
#include <vector>

namespace resilin {

constexpr size_t MAX_LISTS = 5;
constexpr int64_t BLOCK = 16 << 10; // elements a thread takes at once

struct Piece {
    float *data[MAX_LISTS];
    int64_t n;
};

// The blocks of a step, and what must live as long as they are used.
struct Work {
    std::vector<Piece> pieces;
    std::vector<nb::object> copies; // strided gradients made contiguous
};

// Lines up the arrays of all lists and cuts them into blocks; false when one of them is not plain writable float32
// (gradients are only read: they may be strided).
inline bool line_up(const std::vector<nb::handle> &lists, Work &work) {
    std::vector<nb::object> fast;
    if (lists.size() > MAX_LISTS) return false;
    for (nb::handle list : lists)
        fast.push_back(list.is_none() ? nb::none() : nb::steal(PySequence_Fast(list.ptr(), "expected a sequence")));
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast[0].ptr());
    for (const nb::object &list : fast)
        if (!list.is_none() && PySequence_Fast_GET_SIZE(list.ptr()) != count) return false;
    for (Py_ssize_t i = 0; i < count; i++) {
        Piece piece{};
        for (size_t k = 0; k < fast.size(); k++) {
            if (fast[k].is_none()) continue;
            PyObject *item = PySequence_Fast_GET_ITEM(fast[k].ptr(), i);
            if (!PyArray_Check(item)) return false;
            ExactArray array{reinterpret_cast<PyArrayObject *>(item)};
            if (k == 1 && PyArray_TYPE(array.array) == NPY_FLOAT32 && !array.is<float>()) {
                work.copies.push_back(nb::steal(PyArray_FROM_OF(item, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_NOTSWAPPED)));
                if (!work.copies.back().ptr()) throw nb::python_error();
                array.array = reinterpret_cast<PyArrayObject *>(work.copies.back().ptr());
            }
            if (k == 1 ? !array.is<float>() : !array.is_writable<float>()) return false;
            if (k == 0)
                piece.n = array.size();
            else if (array.size() != piece.n)
                return false;
            piece.data[k] = array.data<float>();
        }
        for (int64_t at = 0; at < piece.n; at += BLOCK) {
            Piece block{};
            for (size_t k = 0; k < MAX_LISTS; k++) block.data[k] = piece.data[k] ? piece.data[k] + at : nullptr;
            block.n = std::min(BLOCK, piece.n - at);
            work.pieces.push_back(block);
        }
    }
    return true;
}

// Gradient of one element with its sign, and the penalty on the parameter. Without a penalty the parameter is left out:
// zero times infinity would make NaN of it.
RESILIN_INLINE float pull(float g, float p, float sign, float decay) {
    return decay == 0.0f ? sign * g : sign * g + decay * p;
}

template <class Step> void run(const std::vector<Piece> &pieces, Step step) {
    const auto blocks = static_cast<int64_t>(pieces.size());
    WithoutGil free(blocks * BLOCK);
    parallel_rows(blocks, BLOCK, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) step(pieces[static_cast<size_t>(i)]);
    });
}

} // namespace resilin
