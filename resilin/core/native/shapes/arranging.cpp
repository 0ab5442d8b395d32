// Copies whose elements are those of one array, in another order or place: turned, rolled, repeated, padded, as windows.
// The arguments are those of the functions of tensors; None for what they have to look at, errors among it.
#include "shapes.hpp"

#include "indexing/places.hpp"
#include "kernels/runs.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace resilin {

nb::object view_of(PyArrayObject *x, int ndim, const npy_intp *dims, const npy_intp *steps, char *data) {
    PyArray_Descr *descr = PyArray_DESCR(x);
    Py_INCREF(descr);
    const int flags = PyArray_FLAGS(x) & (NPY_ARRAY_WRITEABLE | NPY_ARRAY_ALIGNED);
    nb::object y = nb::steal(PyArray_NewFromDescr(&PyArray_Type, descr, ndim, dims, steps, data, flags, nullptr));
    if (!y.is_valid() || PyArray_SetBaseObject(reinterpret_cast<PyArrayObject *>(y.ptr()), Py_NewRef(x)) < 0)
        throw nb::python_error();
    return y;
}

namespace {

nb::object copy_of_view(const ExactArray &x, int ndim, const npy_intp *dims, const npy_intp *steps, char *data) {
    const nb::object seen = view_of(x.array, ndim, dims, steps, data);
    PyObject *made = contiguous_copy(array_in(seen).array);
    return made ? nb::steal(made) : nb::none();
}

// What an array looks like, to be changed.
struct Layout {
    npy_intp dims[NPY_MAXDIMS], steps[NPY_MAXDIMS];
    char *data;
    explicit Layout(const ExactArray &x) : data(PyArray_BYTES(x.array)) {
        std::copy_n(PyArray_DIMS(x.array), x.ndim(), dims);
        std::copy_n(PyArray_STRIDES(x.array), x.ndim(), steps);
    }
    void turn(int64_t axis) {
        data += (dims[axis] - 1) * steps[axis];
        steps[axis] = -steps[axis];
    }
};

nb::object flip(ExactArray x, nb::args axes) {
    const Ints of = ints_of(axes);
    if (!x || !x.size() || !x.ndim() || !of.known || !axes.size()) return nb::none();
    Layout y(x);
    bool turned[NPY_MAXDIMS] = {};
    for (int i = 0; i < of.count; i++) {
        const int64_t axis = axis_of(x, of.at[i]);
        if (axis < 0 || turned[axis]) return nb::none();
        turned[axis] = true;
        y.turn(axis);
    }
    return copy_of_view(x, x.ndim(), y.dims, y.steps, y.data);
}

nb::object rot90(ExactArray x, int64_t k, nb::handle dims) {
    const Ints of(dims);
    if (!x || !x.size() || !of.known || of.count != 2) return nb::none();
    const int64_t a = axis_of(x, of.at[0]), b = axis_of(x, of.at[1]), turns = k & 3;
    if (a < 0 || b < 0 || a == b) return nb::none();
    Layout y(x);
    if (turns & 1) {
        std::swap(y.dims[a], y.dims[b]);
        std::swap(y.steps[a], y.steps[b]);
    }
    if (turns == 1 || turns == 2) y.turn(a);
    if (turns >= 2) y.turn(b);
    return copy_of_view(x, x.ndim(), y.dims, y.steps, y.data);
}

// All windows of `size` elements along a dimension, `step` apart, as a new last dimension.
nb::object windows(ExactArray x, int64_t dimension, int64_t size, int64_t step) {
    const int64_t axis = x && x.size() ? axis_of(x, dimension) : -1;
    if (axis < 0 || x.ndim() == 32 || size < 1 || step < 1 || size > x.dim(static_cast<int>(axis))) return nb::none();
    Layout y(x);
    const int last = x.ndim();
    y.dims[last] = size, y.steps[last] = y.steps[axis];
    y.dims[axis] = (y.dims[axis] - size) / step + 1;
    if (y.dims[axis] > 1) y.steps[axis] *= step; // of one window, no step is taken
    return copy_of_view(x, last + 1, y.dims, y.steps, y.data);
}

// -- blocks of images

// A copy of x with dimensions `split`, taken in the order `order` of these, as an array of `dims`.
nb::object rearranged(const ExactArray &x, std::initializer_list<int64_t> split, std::initializer_list<int> order,
                      int ndim, const npy_intp *dims) {
    npy_intp lengths[NPY_MAXDIMS], steps[NPY_MAXDIMS], from[NPY_MAXDIMS], apart = PyArray_ITEMSIZE(x.array);
    for (size_t i = split.size(); i-- > 0;) from[i] = apart, apart *= split.begin()[i];
    int at = 0;
    for (const int d : order) lengths[at] = split.begin()[d], steps[at++] = from[d];
    const nb::object made = copy_of_view(x, at, lengths, steps, PyArray_BYTES(x.array));
    if (made.is_none()) return made;
    PyArray_Dims wanted{const_cast<npy_intp *>(dims), ndim};
    nb::object y = nb::steal(PyArray_Newshape(array_in(made).array, &wanted, NPY_CORDER));
    if (!y.is_valid()) throw nb::python_error();
    return y;
}

bool is_plain(const ExactArray &x) { return x && x.size() && x.ndim() > 2 && PyArray_IS_C_CONTIGUOUS(x.array); }

nb::object channel_shuffle(ExactArray x, int64_t groups) {
    if (!is_plain(x) || groups < 1 || x.dim(1) % groups) return nb::none();
    const int64_t N = x.dim(0), C = x.dim(1);
    return rearranged(x, {N, groups, C / groups, x.size() / (N * C)}, {0, 2, 1, 3}, x.ndim(), PyArray_DIMS(x.array));
}

nb::object pixel_shuffle(ExactArray x, int64_t r) {
    if (!is_plain(x) || r < 1 || r > 1024 || x.dim(x.ndim() - 3) % (r * r)) return nb::none();
    const int d = x.ndim() - 3;
    const int64_t C = x.dim(d) / (r * r), H = x.dim(d + 1), W = x.dim(d + 2);
    Layout y(x);
    y.dims[d] = C, y.dims[d + 1] = H * r, y.dims[d + 2] = W * r;
    return rearranged(x, {x.size() / (C * r * r * H * W), C, r, r, H, W}, {0, 1, 4, 2, 5, 3}, x.ndim(), y.dims);
}

nb::object pixel_unshuffle(ExactArray x, int64_t r) {
    if (!is_plain(x) || r < 1 || x.dim(x.ndim() - 2) % r || x.dim(x.ndim() - 1) % r) return nb::none();
    const int d = x.ndim() - 3;
    const int64_t C = x.dim(d), H = x.dim(d + 1) / r, W = x.dim(d + 2) / r;
    Layout y(x);
    y.dims[d] = C * r * r, y.dims[d + 1] = H, y.dims[d + 2] = W;
    return rearranged(x, {x.size() / (C * r * r * H * W), C, H, r, W, r}, {0, 1, 3, 5, 2, 4}, x.ndim(), y.dims);
}

// -- runs of places along each dimension

// Builds the runs of one dimension of `length`, from numbers of places.
struct Along {
    std::vector<Run> &runs;
    npy_intp apart;
    void add(int64_t first, int64_t step, int64_t count) {
        if (count > 0) runs.push_back({first * apart, step * apart, count});
    }
    void fill(int64_t count) {
        if (count > 0) runs.push_back({NOWHERE, 0, count});
    }
};

Runs dimensions(int ndim) { return Runs(static_cast<size_t>(ndim)); }
Along along(Runs &runs, const ExactArray &x, int d) { return {runs[static_cast<size_t>(d)], PyArray_STRIDE(x.array, d)}; }

// `dims` None: of the elements one after the other.
nb::object roll(ExactArray x, nb::handle shifts, nb::handle dims) {
    if (!x || !x.size() || !x.ndim() || !has_runs(x.array)) return nb::none();
    const Ints by(shifts);
    int64_t shift[NPY_MAXDIMS] = {};
    if (dims.is_none()) {
        if (!PyLong_CheckExact(shifts.ptr()) || !by.known || !PyArray_IS_C_CONTIGUOUS(x.array)) return nb::none();
        const npy_intp n = x.size(), first = (n - by.at[0] % n) % n, bytes = PyArray_ITEMSIZE(x.array);
        nb::object y = new_array(x, x.ndim(), PyArray_DIMS(x.array), false);
        WithoutGil free(n);
        copy_runs(PyArray_BYTES(x.array), {{{first * bytes, bytes, n - first}, {0, bytes, first}}}, bytes, nullptr,
                  PyArray_BYTES(array_in(y).array));
        return y;
    }
    const Ints of(dims);
    if (!by.known || !of.known || by.count != of.count) return nb::none();
    for (int i = 0; i < of.count; i++) {
        const int64_t axis = axis_of(x, of.at[i]);
        if (axis < 0) return nb::none();
        const int64_t n = x.dim(static_cast<int>(axis));
        shift[axis] = ((shift[axis] + by.at[i] % n) % n + n) % n;
    }
    Runs runs = dimensions(x.ndim());
    for (int d = 0; d < x.ndim(); d++) {
        Along to = along(runs, x, d);
        to.add(x.dim(d) - shift[d], 1, shift[d]);
        to.add(0, 1, x.dim(d) - shift[d]);
    }
    return arranged(x.array, std::move(runs), nullptr);
}

constexpr int64_t FEW_TIMES = 64; // many short copies are numpy's

nb::object tile(ExactArray x, nb::args reps) {
    const Ints times = ints_of(reps);
    if (!x || !x.ndim() || !has_runs(x.array) || !times.known || times.count < x.ndim()) return nb::none();
    int64_t all = 0;
    for (int i = 0; i < times.count; i++) {
        if (times.at[i] < 0 || times.at[i] > FEW_TIMES) return nb::none();
        all += times.at[i];
    }
    if (all > FEW_TIMES) return nb::none();
    Runs runs = dimensions(times.count);
    for (int i = 0; i < times.count; i++) {
        const int d = i - (times.count - x.ndim());
        Along to{runs[static_cast<size_t>(i)], d < 0 ? 0 : PyArray_STRIDE(x.array, d)};
        for (int64_t k = 0; k < times.at[i]; k++) to.add(0, 1, d < 0 ? 1 : x.dim(d));
    }
    return arranged(x.array, std::move(runs), nullptr);
}

// One dimension with `before` and `after` elements around it, negative ones cut; false where it does not allow that.
bool pad_nothing(Along to, int64_t n, int64_t before, int64_t after) {
    const int64_t first = std::max<int64_t>(-before, 0), last = n - std::max<int64_t>(-after, 0);
    if (n + std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0) < 0) return false;
    to.fill(before);
    to.add(first, 1, last - first);
    to.fill(after);
    return true;
}
bool pad_inside(Along to, int64_t n, int64_t before, int64_t after, bool mirror) {
    const int64_t begin = -before, end = n + after, most = mirror ? n - 1 : INT64_MAX;
    if (n < 1 || before > most || after > most || end <= begin) return false;
    if (mirror) to.add(-begin, -1, std::min<int64_t>(end, 0) - begin);
    else to.add(0, 0, std::min<int64_t>(end, 0) - begin);
    const int64_t first = std::max<int64_t>(begin, 0);
    to.add(first, 1, std::min(end, n) - first);
    const int64_t behind = std::max(begin, n);
    if (mirror) to.add(2 * (n - 1) - behind, -1, end - behind);
    else to.add(n - 1, 0, end - behind);
    return true;
}
bool pad_around(Along to, int64_t n, int64_t before, int64_t after) {
    const int64_t first = std::max<int64_t>(-before, 0), last = n - std::max<int64_t>(-after, 0), kept = last - first;
    if (kept < 1 || before > kept || after > kept) return false;
    to.add(last - before, 1, before);
    to.add(first, 1, kept);
    to.add(first, 1, after);
    return true;
}

enum class Padding { constant, reflect, replicate, circular };

bool padding_of(nb::handle name, Padding &mode) {
    if (!PyUnicode_CheckExact(name.ptr())) return false;
    int number = 0;
    for (const char *known : {"constant", "reflect", "replicate", "circular"}) {
        if (PyUnicode_CompareWithASCIIString(name.ptr(), known) == 0) {
            mode = static_cast<Padding>(number);
            return true;
        }
        number++;
    }
    return false;
}

// An element of x's dtype, null for zeros. False where there is no such element.
bool element_of(const ExactArray &x, nb::handle value, nb::object &element) {
    if (value.is_none()) return true;
    const bool number = PyFloat_CheckExact(value.ptr());
    if (number && PyFloat_AS_DOUBLE(value.ptr()) == 0.0 && !std::signbit(PyFloat_AS_DOUBLE(value.ptr()))) return true;
    element = new_array(x, 0, nullptr, true);
    if (PyArray_SETITEM(array_in(element).array, PyArray_BYTES(array_in(element).array), value.ptr()) == 0) return true;
    PyErr_Clear(); // who asks meets it again and says so
    return false;
}

// `widths`: (before, after) for each dimension.
nb::object padded(const ExactArray &x, const int64_t (*widths)[2], Padding mode, nb::handle value) {
    nb::object element;
    if (!x || !x.ndim() || !has_runs(x.array) || !element_of(x, value, element)) return nb::none();
    Runs runs = dimensions(x.ndim());
    for (int d = 0; d < x.ndim(); d++) {
        const int64_t n = x.dim(d), before = widths[d][0], after = widths[d][1];
        Along to = along(runs, x, d);
        const bool fits = !before && !after          ? (to.add(0, 1, n), true)
                          : mode == Padding::constant ? pad_nothing(to, n, before, after)
                          : mode == Padding::circular ? pad_around(to, n, before, after)
                                                      : pad_inside(to, n, before, after, mode == Padding::reflect);
        if (!fits) return nb::none();
    }
    return arranged(x.array, std::move(runs), element.is_valid() ? PyArray_BYTES(array_in(element).array) : nullptr);
}

// Whether a number is one of floats of every width, so that it goes into an array of floats as it is.
bool fits(const ExactArray &x, nb::handle value) {
    constexpr double most = 65504; // of float16
    if (!PyFloat_CheckExact(value.ptr()) || PyArray_DESCR(x.array)->kind != 'f') return false;
    return std::fabs(PyFloat_AS_DOUBLE(value.ptr())) <= most;
}

// No array has as many elements.
bool far(int64_t distance) { return distance < -(int64_t{1} << 40) || distance > (int64_t{1} << 40); }

nb::object pad_constant(ExactArray x, nb::tuple given, nb::handle value) {
    int64_t widths[NPY_MAXDIMS][2];
    if (!x || given.size() != static_cast<size_t>(x.ndim())) return nb::none();
    for (int d = 0; d < x.ndim(); d++) {
        const Ints pair(given[static_cast<size_t>(d)]);
        if (!pair.known || pair.count != 2 || far(pair.at[0]) || far(pair.at[1])) return nb::none();
        std::copy_n(pair.at, 2, widths[d]);
    }
    return padded(x, widths, Padding::constant, value);
}

// `given`: (before, after) from the last dimension backwards.
nb::object pad(ExactArray x, nb::handle given, nb::handle mode, nb::handle value) {
    const Ints pairs(given);
    Padding how = Padding::constant;
    int64_t widths[NPY_MAXDIMS][2] = {};
    if (!x || !pairs.known || PyLong_CheckExact(given.ptr()) || !padding_of(mode, how)) return nb::none();
    if (pairs.count % 2 || pairs.count > 2 * x.ndim()) return nb::none();
    if (!value.is_none() && (how != Padding::constant || !fits(x, value))) return nb::none();
    for (int i = 0; i < pairs.count; i++) {
        if (far(pairs.at[i])) return nb::none();
        widths[x.ndim() - 1 - i / 2][i % 2] = pairs.at[i];
    }
    return padded(x, widths, how, value);
}

// The rows and columns of places in the lower (or upper) triangle of a matrix, as the two rows of one array.
nb::object triangle(bool lower, int64_t rows, int64_t columns, int64_t offset) {
    if (rows < 0 || columns < 0 || rows >= 1 << 20 || columns >= 1 << 20 || far(offset)) return nb::none();
    const auto edge = [=](int64_t row) { return std::clamp<int64_t>(row + offset + lower, 0, columns); };
    int64_t count = 0;
    for (int64_t row = 0; row < rows; row++) count += lower ? edge(row) : columns - edge(row);
    NewArray<int64_t> y({2, static_cast<npy_intp>(count)});
    int64_t *to = y.data;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t first = lower ? 0 : edge(row), last = lower ? edge(row) : columns;
        for (int64_t column = first; column < last; column++, to++) to[0] = row, to[count] = column;
    }
    return y.object;
}

// A matrix with a vector as one of its diagonals.
nb::object diag(ExactArray x, int64_t diagonal) {
    if (!x || x.ndim() != 1 || !has_runs(x.array) || far(diagonal)) return nb::none();
    const npy_intp n = x.size(), side = n + std::abs(diagonal), dims[2] = {side, side};
    const npy_intp bytes = PyArray_ITEMSIZE(x.array), apart = PyArray_STRIDE(x.array, 0);
    if (side >= (1 << 20)) return nb::none(); // numpy says that there is not so much memory
    nb::object y = new_array(x, 2, dims, true);
    char *to = PyArray_BYTES(array_in(y).array) + (diagonal < 0 ? -diagonal * side : diagonal) * bytes;
    by_size(bytes, [&](auto kind) {
        for (npy_intp i = 0; i < n; i++)
            std::memcpy(to + i * (side + 1) * bytes, PyArray_BYTES(x.array) + i * apart, sizeof(kind));
    });
    return y;
}

} // namespace

void bind_shapes(nb::module_ &m) {
    m.def("flip", &flip);
    m.def("rot90", &rot90, nb::arg(), nb::arg() = 1, nb::arg() = nb::make_tuple(0, 1));
    m.def("windows", &windows);
    m.def("channel_shuffle", &channel_shuffle);
    m.def("pixel_shuffle", &pixel_shuffle);
    m.def("pixel_unshuffle", &pixel_unshuffle);
    m.def("roll", &roll, nb::arg(), nb::arg(), nb::arg() = nb::none());
    m.def("tile", &tile);
    m.def("pad_constant", &pad_constant, nb::arg(), nb::arg(), nb::arg().none());
    m.def("pad", &pad, nb::arg(), nb::arg(), nb::arg() = "constant", nb::arg() = nb::none());
    m.def("triangle", &triangle);
    m.def("diag", &diag, nb::arg(), nb::arg() = 0);
    bind_joining(m);
    bind_parts(m);
}

} // namespace resilin
