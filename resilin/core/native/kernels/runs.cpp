#include "runs.hpp"

#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace resilin {
namespace {

constexpr int64_t STRETCH = 16 << 10; // elements of a row that are copied at a time: long rows are shared by threads

constexpr int64_t MICROCODED = 1 << 10; // bytes from which the C library may copy by such a loop

struct Bytes16 {
    uint64_t half[2];
};

#define RESILIN_COPY_RUN(T)                                                                                            \
    RESILIN_SIMD void copy_run(const char *from, int64_t step, int64_t n, T *__restrict y) {                           \
        const T *x = reinterpret_cast<const T *>(from);                                                                \
        if (step == static_cast<int64_t>(sizeof(T))) {                                                                 \
            copy_bytes(from, n * static_cast<int64_t>(sizeof(T)), reinterpret_cast<char *>(y));                        \
        } else if (step == -static_cast<int64_t>(sizeof(T))) {                                                         \
            for (int64_t i = 0; i < n; i++) y[i] = x[-i];                                                              \
        } else if (!step) {                                                                                            \
            const T value = *x;                                                                                        \
            for (int64_t i = 0; i < n; i++) y[i] = value;                                                              \
        } else if (step == 2 * static_cast<int64_t>(sizeof(T))) {                                                      \
            for (int64_t i = 0; i < n; i++) y[i] = x[2 * i];                                                           \
        } else {                                                                                                       \
            for (int64_t i = 0; i < n; i++) y[i] = *reinterpret_cast<const T *>(from + i * step);                      \
        }                                                                                                              \
    }
RESILIN_COPY_RUN(uint8_t)
RESILIN_COPY_RUN(uint16_t)
RESILIN_COPY_RUN(uint32_t)
RESILIN_COPY_RUN(uint64_t)
RESILIN_COPY_RUN(Bytes16)

// By vectors; the barrier keeps the compiler from making memcpy of it.
RESILIN_SIMD void copy_vectors(const char *from, int64_t bytes, char *to) {
    int64_t i = 0;
    for (; i + 128 <= bytes; i += 128) {
        std::memcpy(to + i, from + i, 128);
        __asm__ volatile("" ::: "memory");
    }
    std::memcpy(to + i, from + i, static_cast<size_t>(bytes - i));
}

int64_t length_of(const std::vector<Run> &runs) {
    int64_t n = 0;
    for (const Run &run : runs) n += run.count;
    return n;
}

// Where element i lies along one dimension, or NOWHERE.
int64_t place_of(const std::vector<Run> &runs, int64_t i) {
    for (const Run &run : runs) {
        if (i < run.count) return run.from == NOWHERE ? NOWHERE : run.from + i * run.step;
        i -= run.count;
    }
    return NOWHERE;
}

// Elements [begin, end) of a row.
template <class T> void copy_row(const char *x, const std::vector<Run> &runs, int64_t begin, int64_t end, const T &fill, T *y) {
    for (const Run &run : runs) {
        const int64_t a = std::max<int64_t>(begin, 0), b = std::min(end, run.count);
        begin -= run.count, end -= run.count;
        if (a >= b) continue;
        const bool nothing = run.from == NOWHERE;
        const char *from = nothing ? reinterpret_cast<const char *>(&fill) : x + run.from + a * run.step;
        if (b - a == 1) std::memcpy(y, from, sizeof(T));
        else copy_run(from, nothing ? 0 : run.step, b - a, y);
        y += b - a;
        if (end <= 0) return;
    }
}

template <class T> void copy_all(const char *x, const Runs &runs, const T &fill, T *y) {
    const std::vector<Run> &last = runs.back();
    const size_t outer = runs.size() - 1;
    std::vector<int64_t> lengths;
    int64_t rows = 1;
    for (const auto &dim : runs) lengths.push_back(length_of(dim));
    for (size_t d = 0; d < outer; d++) rows *= lengths[d];
    const int64_t n = lengths.back(), parts = (n + STRETCH - 1) / STRETCH;
    const std::vector<Run> nothing = {{NOWHERE, 0, n}};
    parallel_rows(rows * parts, std::min(n, STRETCH), [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++) {
            const int64_t row = task / parts, first = task % parts * STRETCH;
            int64_t rest = row, from = 0;
            for (size_t d = outer; d-- > 0; rest /= lengths[d]) {
                const int64_t place = place_of(runs[d], rest % lengths[d]);
                from = place == NOWHERE || from == NOWHERE ? NOWHERE : from + place;
            }
            copy_row(from == NOWHERE ? nullptr : x + from, from == NOWHERE ? nothing : last, first, std::min(n, first + STRETCH),
                     fill, y + row * n + first);
        }
    });
}

// Dimensions whose runs go on from one row to the next become one with the last.
void join_dimensions(Runs &runs, int64_t bytes) {
    while (runs.size() > 1) {
        const std::vector<Run> &last = runs.back();
        std::vector<Run> &before = runs[runs.size() - 2];
        const int64_t n = last[0].count;
        if (last.size() != 1 || last[0].from || last[0].step != bytes) return;
        for (const Run &run : before)
            if (run.from != NOWHERE && run.count > 1 && run.step != n * bytes) return;
        for (Run &run : before) run = {run.from, bytes, run.count * n};
        runs.pop_back();
    }
}

template <class T> void copy_as(const char *x, const Runs &runs, const char *fill, char *y) {
    T value{};
    if (fill) std::memcpy(&value, fill, sizeof(T));
    copy_all(x, runs, value, reinterpret_cast<T *>(y));
}

// `runs`: rows of (dimension, first place, step, count), a first place of -1 for what is filled; None for what numpy copies.
nb::object arranged(ExactArray x, ExactArray of, ExactArray fill) {
    if (!x || !x.ndim() || !of.is<int64_t>() || of.ndim() != 2 || of.dim(1) != 4 || PyDataType_REFCHK(PyArray_DESCR(x.array)) ||
        !has_runs(PyArray_ITEMSIZE(x.array)) || !PyArray_ISALIGNED(x.array) || !PyArray_ISNOTSWAPPED(x.array) ||
        (fill && (PyArray_DESCR(fill.array) != PyArray_DESCR(x.array) || fill.size() != 1)))
        return nb::none();
    Runs runs(static_cast<size_t>(x.ndim()));
    std::vector<npy_intp> dims(static_cast<size_t>(x.ndim()), 0);
    for (int64_t i = 0; i < of.dim(0); i++) {
        const int64_t *row = of.data<int64_t>() + 4 * i, d = row[0], last = row[1] + row[2] * (row[3] - 1);
        if (d < 0 || d >= x.ndim() || row[3] < 0) return nb::none();
        if (row[3] == 0) continue;
        const int64_t length = x.dim(static_cast<int>(d)), apart = PyArray_STRIDE(x.array, static_cast<int>(d));
        if (row[1] >= 0 && (row[1] >= length || last < 0 || last >= length)) return nb::none();
        dims[static_cast<size_t>(d)] += row[3];
        runs[static_cast<size_t>(d)].push_back({row[1] < 0 ? NOWHERE : row[1] * apart, row[2] * apart, row[3]});
    }
    PyArray_Descr *descr = PyArray_DESCR(x.array);
    Py_INCREF(descr);
    nb::object y = nb::steal(PyArray_Empty(x.ndim(), dims.data(), descr, 0));
    if (!y.ptr()) throw nb::python_error();
    auto *made = reinterpret_cast<PyArrayObject *>(y.ptr());
    if (!PyArray_SIZE(made)) return y;
    WithoutGil free(PyArray_SIZE(made));
    copy_runs(PyArray_BYTES(x.array), std::move(runs), PyArray_ITEMSIZE(x.array), fill ? PyArray_BYTES(fill.array) : nullptr,
              PyArray_BYTES(made));
    return y;
}

} // namespace

void copy_bytes(const char *from, int64_t bytes, char *to) {
    const bool alike = (reinterpret_cast<uintptr_t>(from) - reinterpret_cast<uintptr_t>(to)) % 64 == 0;
    if (bytes < MICROCODED || alike) std::memcpy(to, from, static_cast<size_t>(bytes));
    else copy_vectors(from, bytes, to);
}

void copy_runs(const char *x, Runs runs, int64_t bytes, const char *fill, char *y) {
    join_dimensions(runs, bytes);
    if (bytes == 1) copy_as<uint8_t>(x, runs, fill, y);
    if (bytes == 2) copy_as<uint16_t>(x, runs, fill, y);
    if (bytes == 4) copy_as<uint32_t>(x, runs, fill, y);
    if (bytes == 8) copy_as<uint64_t>(x, runs, fill, y);
    if (bytes == 16) copy_as<Bytes16>(x, runs, fill, y);
}

namespace {

// Complex numbers of contiguous arrays of one shape and dtype, their real and imaginary parts; None for others.
template <class T> void interleave(const T *re, const T *im, int64_t n, T *y) {
    parallel_rows(n, 2, [=](int64_t begin, int64_t end) {
        const T *__restrict a = re, *__restrict b = im;
        T *__restrict to = y;
        for (int64_t i = begin; i < end; i++) to[2 * i] = a[i], to[2 * i + 1] = b[i];
    });
}

nb::object interleaved(ExactArray re, ExactArray im) {
    const bool wide = re.is<double>() && im.is<double>();
    if ((!wide && !(re.is<float>() && im.is<float>())) || !re.same_shape(im)) return nb::none();
    nb::object y = nb::steal(PyArray_SimpleNew(re.ndim(), PyArray_DIMS(re.array), wide ? NPY_COMPLEX128 : NPY_COMPLEX64));
    if (!y.ptr()) throw nb::python_error();
    void *to = PyArray_DATA(reinterpret_cast<PyArrayObject *>(y.ptr()));
    WithoutGil free(re.size());
    if (wide) interleave(re.data<double>(), im.data<double>(), re.size(), static_cast<double *>(to));
    else interleave(re.data<float>(), im.data<float>(), re.size(), static_cast<float *>(to));
    return y;
}

} // namespace

void bind_runs(nb::module_ &m) {
    m.def("interleaved", &interleaved);
    m.def("arranged", &arranged, nb::arg("x"), nb::arg("of"), nb::arg("fill").none());
}

} // namespace resilin
