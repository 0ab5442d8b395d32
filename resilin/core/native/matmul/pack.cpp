// float32 to and from the 16-bit floats, whole arrays.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "elementwise/half_blocks.hpp"
#include "kernels/halves.hpp"

namespace resilin {

RESILIN_SIMD void pack_half(const float *x, int64_t begin, int64_t end, uint16_t *y) {
    for (int64_t i = begin; i < end; i++) y[i] = half_of(x[i]);
}
RESILIN_SIMD void unpack_half(const uint16_t *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) y[i] = from_half(x[i]);
}
RESILIN_SIMD void pack_bfloat(const float *x, int64_t begin, int64_t end, uint16_t *y) {
    for (int64_t i = begin; i < end; i++) y[i] = bfloat_of(x[i]);
}
RESILIN_SIMD void unpack_bfloat(const uint16_t *x, int64_t begin, int64_t end, float *y) {
    for (int64_t i = begin; i < end; i++) y[i] = from_bfloat(x[i]);
}

namespace {

// From and To as stored: float or uint16_t (the bits of a 16-bit float)
template <class From, class To, void (*span)(const From *, int64_t, int64_t, To *)> nb::object convert(Array x) {
    if (!x.is<From>()) return nb::none();
    NewArray<To> y(x);
    {
        WithoutGil free(x.size());
        parallel_rows(x.size(), 1, [&](int64_t begin, int64_t end) { span(x.data<From>(), begin, end, y.data); });
    }
    return y.object;
}

} // namespace

void bind_pack(nb::module_ &m) {
    m.def("pack_float16", &convert<float, uint16_t, pack_half>);
    m.def("unpack_float16", &convert<uint16_t, float, unpack_half>);
    m.def("pack_bfloat16", &convert<float, uint16_t, pack_bfloat>);
    m.def("unpack_bfloat16", &convert<uint16_t, float, unpack_bfloat>);
}

} // namespace resilin
