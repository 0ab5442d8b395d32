// What the kernel files offer one another and the module.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>

namespace resilin {

// out[i] = the sum over blocks, ascending, of partial[block * stride + i], i < n
inline void add_partials(const float *partial, int64_t blocks, int64_t stride, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = blocks ? partial[i] : 0.0f;
    for (int64_t b = 1; b < blocks; b++)
        for (int64_t i = 0; i < n; i++) out[i] += partial[b * stride + i];
}

void bind_attention(nanobind::module_ &m);
void bind_batch_norm(nanobind::module_ &m);
void bind_conv2d(nanobind::module_ &m);
void bind_cross_entropy(nanobind::module_ &m);
void bind_embedding(nanobind::module_ &m);
void bind_gelu(nanobind::module_ &m);
void bind_layer_norm(nanobind::module_ &m);
void bind_memory(nanobind::module_ &m);
void bind_optimizers(nanobind::module_ &m);
void bind_pack(nanobind::module_ &m);
void bind_philox(nanobind::module_ &m);
void bind_pool(nanobind::module_ &m);
void bind_reduce_rows(nanobind::module_ &m);
void bind_relu(nanobind::module_ &m);
void bind_silu(nanobind::module_ &m);
void bind_softmax(nanobind::module_ &m);

} // namespace resilin
