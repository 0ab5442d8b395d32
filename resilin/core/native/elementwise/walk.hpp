// A walk over the elements of arrays that broadcast to one shape: runs of them, for loops like those of numpy's ufuncs.
// Runs are cut into chunks of a fixed size, which threads share: a loop sees the same chunks whatever their number.
#pragma once
#include "binding/array.hpp"
#include "memory/parallel.hpp"

#include <algorithm>
#include <vector>

namespace resilin {

constexpr int WALK_DIMS = 8, WALK_OPERANDS = 4;
constexpr npy_intp CHUNK = 8192;
constexpr npy_intp TILE_BYTES = 8 << 10; // of an array's part in a tile of short rows: all parts stay in the first cache
constexpr npy_intp APART_BYTES = 2 << 10; // of one whose rows lie apart: little, so that reading and computing take turns
constexpr npy_intp TILED = 2048;         // elements from which rows are walked by tiles
constexpr npy_intp SHORT_ROW = 256;       // elements; longer rows are worth a call of a loop each

// An array, or one number at `data` for all elements.
struct Walked {
    PyArrayObject *array = nullptr;
    void *data = nullptr;
};

class Walk {
  public:
    npy_intp size = 1;

    // False where the shapes do not fit, or have too many dimensions.
    bool plan(const Walked *operands, int count);
    // The result of dtype `descr`, whose reference it takes: of the layout that numpy would give it. Null: out of memory.
    PyObject *add_new(PyArray_Descr *descr);
    // Joins the dimensions that lie one after the other in all arrays; afterwards it can run.
    void merge();
    // After merge(): short rows are walked several at a time, where the last operand, the result, is one run. What lies
    // in no run of such rows is copied to one: a row or an element that several meet is repeated. Without `columns`,
    // elements that whole rows meet are left as they are, for loops that look at steps of 0.
    void tile_rows(bool columns = true);

    // inner(pointers, count, steps), of all operands in their order
    template <class Inner> void run(int64_t cost, Inner inner) const {
        const int last = ndim_ - 1;
        const npy_intp length = shape_[last], chunks = (length + chunk_ - 1) / chunk_;
        npy_intp steps[WALK_OPERANDS];
        for (int o = 0; o < count_; o++) steps[o] = strides_[o][last];
        parallel_rows(size / length * chunks, std::min(length, chunk_) * cost, [&](int64_t begin, int64_t end) {
            npy_intp place[WALK_DIMS], row = begin / chunks, chunk = begin % chunks;
            char *at[WALK_OPERANDS], *given[WALK_OPERANDS];
            alignas(64) char blocks[WALK_OPERANDS - 1][TILE_BYTES];
            for (int o = 0; o < count_; o++) at[o] = data_[o];
            for (int d = last - 1; d >= 0; d--) {
                place[d] = row % shape_[d];
                row /= shape_[d];
                for (int o = 0; o < count_; o++) at[o] += place[d] * strides_[o][d];
            }
            for (int64_t unit = begin; unit < end; unit++) {
                const npy_intp first = chunk * chunk_, n = std::min(chunk_, length - first);
                for (int o = 0; o < count_; o++) {
                    if (rows_of_[o] == Rows::run) given[o] = at[o] + first * steps[o];
                    else if (rows_of_[o] == Rows::repeated) given[o] = at[o];
                    else gather_rows(o, at[o] + first / row_ * across_[o], n / row_, given[o] = blocks[o]);
                }
                inner(given, n, steps);
                if (++chunk < chunks) continue;
                chunk = 0;
                for (int d = last - 1; d >= 0; d--) {
                    for (int o = 0; o < count_; o++) at[o] += strides_[o][d];
                    if (++place[d] < shape_[d]) break;
                    for (int o = 0; o < count_; o++) at[o] -= place[d] * strides_[o][d];
                    place[d] = 0;
                }
            }
        });
    }

  private:
    // How an operand's rows lie: one after the other; as a row that was repeated before; to be gathered.
    enum class Rows { run, repeated, gathered };

    void order();
    void gather_rows(int operand, const char *from, npy_intp rows, char *to) const;

    int count_ = 0, ndim_ = 0;
    bool flat_ = false, c_order_ = true;
    int axis_[WALK_DIMS]; // the dimensions, from the outermost to the innermost
    npy_intp shape_[WALK_DIMS], strides_[WALK_OPERANDS][WALK_DIMS];
    char *data_[WALK_OPERANDS];
    npy_intp bytes_[WALK_OPERANDS]; // of an element; 0: one number
    npy_intp chunk_ = CHUNK;
    npy_intp row_ = 1; // of tiles: the length of a row, the steps to the next one and within
    npy_intp across_[WALK_OPERANDS], along_[WALK_OPERANDS];
    Rows rows_of_[WALK_OPERANDS] = {};
    std::vector<char> repeated_[WALK_OPERANDS];
};

// Whether writing `out` element by element changes nothing of `x` that is still to be read: they are the same elements,
// or share no memory.
bool keeps_elements(PyArrayObject *out, PyArrayObject *x);

// A Python number as an element of dtype `type` at `data`; false for what does not fit or is no such number.
bool number_as(PyObject *number, int type, void *data);

// A new array of dtype `descr`, which inner(pointers, count, steps) writes, over the operands of a walk that is planned.
template <class Inner> nb::object walked_into_new(Walk &walk, PyArray_Descr *descr, Inner inner, int64_t cost = 1) {
    Py_INCREF(descr);
    nb::object made = nb::steal(walk.add_new(descr));
    if (!made.ptr()) throw nb::python_error();
    if (!walk.size) return made;
    walk.merge();
    walk.tile_rows();
    WithoutGil free(walk.size * cost);
    walk.run(cost, inner);
    return made;
}

} // namespace resilin
