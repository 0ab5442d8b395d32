// Row lookup and its gradient, rows added in ascending position.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "simd.hpp"

namespace resilin {
namespace {

bool all_inside(Array index, int64_t num) {
    const int64_t *at = index.data<int64_t>();
    for (int64_t i = 0; i < index.size(); i++)
        if (at[i] < 0 || at[i] >= num) return false;
    return true;
}

RESILIN_SIMD void add_row(const float *g, int64_t D, float *out) {
    for (int64_t i = 0; i < D; i++) out[i] += g[i];
}

nb::object forward(Array weight, Array index) {
    if (!weight.is<float>() || weight.ndim() != 2 || !index.is<int64_t>() || index.ndim() > 7 ||
        !all_inside(index, weight.dim(0)))
        return nb::none();
    npy_intp dims[8];
    for (int i = 0; i < index.ndim(); i++) dims[i] = index.dim(i);
    const int64_t D = dims[index.ndim()] = weight.dim(1);
    NewArray<float> y(index.ndim() + 1, dims);
    {
        WithoutGil free(index.size() * D);
        for (int64_t i = 0; i < index.size(); i++)
            std::memcpy(y.data + i * D, weight.data<float>() + index.data<int64_t>()[i] * D,
                        static_cast<size_t>(D) * sizeof(float));
    }
    return y.object;
}

nb::object backward(Array g, Array index, int64_t num, int64_t padding) {
    if (!g.is<float>() || !index.is<int64_t>() || g.ndim() < 1 || g.size() != index.size() * g.last() ||
        !all_inside(index, num))
        return nb::none();
    const int64_t D = g.last();
    NewArray<float> dw({static_cast<npy_intp>(num), static_cast<npy_intp>(D)}, true);
    {
        WithoutGil free(g.size());
        for (int64_t i = 0; i < index.size(); i++) {
            const int64_t row = index.data<int64_t>()[i];
            if (row != padding) add_row(g.data<float>() + i * D, D, dw.data + row * D);
        }
    }
    return dw.object;
}

} // namespace

void bind_embedding(nb::module_ &m) {
    m.def("embedding_forward", &forward);
    m.def("embedding_backward", &backward);
}

} // namespace resilin
