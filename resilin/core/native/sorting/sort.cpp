// Sorts each row. Equal elements keep their order, so that there is one answer, whatever the way to it; NaN is the
// largest, -0 equals 0.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "items.hpp"

#include <cstring>
#include <memory>
#include <optional>

namespace resilin {
namespace {

// The sorted elements are written only where they are asked for: over the items, one after the other.
template <class T> void write_row(const SortedRow<T> &row, int64_t begin, int64_t end, T *values, int64_t *order) {
    for (int64_t i = begin; i < end; i++) {
        const int64_t place = row.place(i);
        if (values) {
            const T found = row.element(i);
            std::memcpy(static_cast<void *>(values + i), &found, sizeof(T));
        }
        order[i] = place;
    }
}

// (values or None, their places)
template <class T> nb::object sorted(const Array &x, bool largest, bool with_values) {
    NewArray<int64_t> order(x);
    std::optional<NewArray<T>> values;
    if (with_values) values.emplace(x);
    nb::object made = nb::make_tuple(values ? values->object : nb::none(), order.object);
    const int64_t n = x.last(), rows = x.rows();
    const bool values_are_spare = values && sizeof(T) == sizeof(uint64_t);
    const bool together = rows < num_threads() && sort_pieces(n) > 1;
    std::optional<NewArray<int64_t>> shared; // memory that is used again, for what is large
    if (together && !values_are_spare) shared.emplace(std::initializer_list<npy_intp>{static_cast<npy_intp>(n)});
    WithoutGil free(x.size());
    auto sort = [&](int64_t i, int64_t pieces, uint64_t *spare) {
        T *found = values ? values->data + i * n : nullptr;
        int64_t *places = order.data + i * n;
        const SortedRow<T> row =
            sort_row(x.data<T>() + i * n, n, largest, pieces, reinterpret_cast<uint64_t *>(places),
                     values_are_spare ? reinterpret_cast<uint64_t *>(found) : spare);
        run_pieces(pieces, [&](int64_t piece) {
            write_row(row, n * piece / pieces, n * (piece + 1) / pieces, found, places);
        });
    };
    if (together) {
        uint64_t *spare = shared ? reinterpret_cast<uint64_t *>(shared->data) : nullptr;
        for (int64_t i = 0; i < rows; i++) sort(i, sort_pieces(n), spare);
        return made;
    }
    parallel_rows(rows, 8 * n, [&](int64_t begin, int64_t end) {
        std::unique_ptr<uint64_t[]> spare(values_are_spare ? nullptr : new uint64_t[static_cast<size_t>(n)]);
        for (int64_t i = begin; i < end; i++) sort(i, 1, spare.get());
    });
    return made;
}

// None for dtypes without keys.
nb::object sort_last(Array x, bool largest, bool with_values) {
    if (!x || x.ndim() < 1 || x.last() > UINT32_MAX) return nb::none();
    if (x.is<float>()) return sorted<float>(x, largest, with_values);
    if (x.is<double>()) return sorted<double>(x, largest, with_values);
    if (x.is<int64_t>()) return sorted<int64_t>(x, largest, with_values);
    if (x.is<int32_t>()) return sorted<int32_t>(x, largest, with_values);
    return nb::none();
}

} // namespace

void bind_sort(nb::module_ &m) { m.def("sort_last", &sort_last); }

} // namespace resilin
