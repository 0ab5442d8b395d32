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

constexpr int64_t ROWS = 64; // that are copied by one call

constexpr int64_t MICROCODED = 1 << 10; // bytes from which the C library may copy by such a loop

struct Bytes16 {
    uint64_t half[2];
};

// By vectors; the barrier keeps the compiler from making memcpy of it.
RESILIN_SIMD void copy_vectors(const char *from, int64_t bytes, char *to) {
    int64_t i = 0;
    for (; i + 128 <= bytes; i += 128) {
        std::memcpy(to + i, from + i, 128);
        __asm__ volatile("" ::: "memory");
    }
    std::memcpy(to + i, from + i, static_cast<size_t>(bytes - i));
}

// Backwards from x, by vectors; the last of them may lie over the one before it.
template <class V, int... I> RESILIN_INLINE V turned(V v, std::integer_sequence<int, I...>) {
    constexpr int last = sizeof...(I) - 1;
    return __builtin_shufflevector(v, v, (last - I)...);
}
template <int Bytes, class T> RESILIN_INLINE void copy_turned(const T *x, int64_t n, T *y) {
    typedef T V __attribute__((vector_size(Bytes)));
    constexpr int W = Bytes / sizeof(T);
    for (int64_t i = 0; i < n; i += W) {
        const int64_t at = std::min(i, n - W);
        V v;
        std::memcpy(&v, x - at - (W - 1), sizeof(V));
        v = turned(v, std::make_integer_sequence<int, W>());
        std::memcpy(y + at, &v, sizeof(V));
    }
}
template <class T> RESILIN_INLINE void copy_backwards(const T *x, int64_t n, T *y) {
    if constexpr (sizeof(T) <= 8) {
        if (n >= static_cast<int64_t>(32 / sizeof(T))) return copy_turned<32>(x, n, y);
        if (n >= static_cast<int64_t>(16 / sizeof(T))) return copy_turned<16>(x, n, y);
    }
    for (int64_t i = 0; i < n; i++) y[i] = x[-i];
}

template <class T> RESILIN_INLINE void copy_run(const char *from, int64_t step, int64_t n, T *__restrict y) {
    constexpr int64_t size = sizeof(T);
    const T *x = reinterpret_cast<const T *>(from);
    if (n == 1) {
        *y = *x;
    } else if (step == size) {
        if (n * size < MICROCODED) copy_short(from, n * size, reinterpret_cast<char *>(y));
        else copy_bytes(from, n * size, reinterpret_cast<char *>(y));
    } else if (step == -size) {
        copy_backwards(x, n, y);
    } else if (!step) {
        const T value = *x;
        for (int64_t i = 0; i < n; i++) y[i] = value;
    } else if (step == 2 * size) {
        for (int64_t i = 0; i < n; i++) y[i] = x[2 * i];
    } else {
        for (int64_t i = 0; i < n; i++) y[i] = *reinterpret_cast<const T *>(from + i * step);
    }
}

// Rows of the result that lie behind one another; places[i]: where row i begins in the source, NOWHERE where it is filled.
#define RESILIN_COPY_ROWS(T)                                                                                           \
    RESILIN_SIMD void copy_rows(const char *x, const int64_t *places, int64_t rows, const std::vector<Run> &runs,      \
                                int64_t n, const T &fill, T *y) {                                                      \
        const char *nothing = reinterpret_cast<const char *>(&fill);                                                   \
        for (int64_t i = 0; i < rows; i++) {                                                                           \
            if (places[i] == NOWHERE) {                                                                                \
                copy_run(nothing, 0, n, y);                                                                            \
                y += n;                                                                                                \
                continue;                                                                                              \
            }                                                                                                          \
            for (const Run &run : runs) {                                                                              \
                if (run.from == NOWHERE) copy_run(nothing, 0, run.count, y);                                           \
                else copy_run(x + places[i] + run.from, run.step, run.count, y);                                       \
                y += run.count;                                                                                        \
            }                                                                                                          \
        }                                                                                                              \
    }
RESILIN_COPY_ROWS(uint8_t)
RESILIN_COPY_ROWS(uint16_t)
RESILIN_COPY_ROWS(uint32_t)
RESILIN_COPY_ROWS(uint64_t)
RESILIN_COPY_ROWS(Bytes16)

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

// Where `count` rows from `row` on begin: a row per place of all dimensions but the last.
void places_of_rows(const Runs &runs, const std::vector<int64_t> &lengths, int64_t row, int64_t count, int64_t *places) {
    const size_t outer = runs.size() - 1;
    if (!outer) *places = 0;
    while (outer && count) {
        const int64_t length = lengths[outer - 1];
        int64_t at = row % length, rest = row / length, from = 0;
        for (size_t d = outer - 1; d-- > 0; rest /= lengths[d]) {
            const int64_t place = place_of(runs[d], rest % lengths[d]);
            from = place == NOWHERE || from == NOWHERE ? NOWHERE : from + place;
        }
        const int64_t end = std::min(at + count, length);
        row += end - at, count -= end - at;
        int64_t first = 0; // of a run
        for (const Run &run : runs[outer - 1]) {
            for (; at < std::min(end, first + run.count); at++)
                *places++ = from == NOWHERE || run.from == NOWHERE ? NOWHERE : from + run.from + (at - first) * run.step;
            first += run.count;
        }
    }
}

// Elements [begin, end) of a row as runs.
std::vector<Run> part_of(const std::vector<Run> &runs, int64_t begin, int64_t end) {
    std::vector<Run> part;
    for (const Run &run : runs) {
        const int64_t a = std::max<int64_t>(begin, 0), b = std::min(end, run.count);
        begin -= run.count, end -= run.count;
        if (a < b) part.push_back({run.from == NOWHERE ? NOWHERE : run.from + a * run.step, run.step, b - a});
    }
    return part;
}

template <class T> void copy_all(const char *x, const Runs &runs, const T &fill, T *y) {
    std::vector<int64_t> lengths;
    int64_t rows = 1;
    for (const auto &dim : runs) lengths.push_back(length_of(dim));
    for (size_t d = 0; d + 1 < runs.size(); d++) rows *= lengths[d];
    const int64_t n = lengths.back(), parts = (n + STRETCH - 1) / STRETCH;
    parallel_rows(rows * parts, std::min(n, STRETCH), [&](int64_t begin, int64_t end) {
        int64_t places[ROWS];
        for (int64_t row = begin; row < end && parts == 1; row += ROWS) {
            const int64_t count = std::min(ROWS, end - row);
            places_of_rows(runs, lengths, row, count, places);
            copy_rows(x, places, count, runs.back(), n, fill, y + row * n);
        }
        for (int64_t task = begin; task < end && parts > 1; task++) {
            const int64_t row = task / parts, first = task % parts * STRETCH, last = std::min(n, first + STRETCH);
            places_of_rows(runs, lengths, row, 1, places);
            copy_rows(x, places, 1, part_of(runs.back(), first, last), last - first, fill, y + row * n + first);
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

bool has_runs(PyArrayObject *x) {
    return !PyDataType_REFCHK(PyArray_DESCR(x)) && has_runs(PyArray_ITEMSIZE(x)) && PyArray_ISALIGNED(x) && PyArray_ISNOTSWAPPED(x);
}

nb::object arranged(PyArrayObject *x, Runs runs, const char *fill) {
    npy_intp dims[NPY_MAXDIMS];
    double elements = 1;
    for (size_t d = 0; d < runs.size(); d++) elements *= static_cast<double>(dims[d] = length_of(runs[d]));
    if (elements > static_cast<double>(int64_t{1} << 40)) return nb::none(); // who asks meets it again and says so
    PyArray_Descr *descr = PyArray_DESCR(x);
    Py_INCREF(descr);
    nb::object y = nb::steal(PyArray_Empty(static_cast<int>(runs.size()), dims, descr, 0));
    if (!y.ptr()) throw nb::python_error();
    auto *made = reinterpret_cast<PyArrayObject *>(y.ptr());
    if (!PyArray_SIZE(made)) return y;
    WithoutGil free(PyArray_SIZE(made));
    copy_runs(PyArray_BYTES(x), std::move(runs), PyArray_ITEMSIZE(x), fill, PyArray_BYTES(made));
    return y;
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
}

} // namespace resilin
