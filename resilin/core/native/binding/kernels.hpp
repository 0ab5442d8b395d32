// What the kernel files offer one another and the module.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>

namespace resilin {

// How many sums are added one after another; sums of more are made of sums of FAN (as in reduce_rows.py).
constexpr int64_t FAN = 16;

// out[i] = the sum over blocks of partial[block * stride + i], i < n: FAN neighbours ascending, then FAN of these sums,
// and so on. Overwrites `partial`.
template <class T> void add_partials(T *partial, int64_t blocks, int64_t stride, int64_t n, T *out) {
    for (int64_t step = 1; step < blocks; step *= FAN)
        for (int64_t first = 0; first < blocks; first += FAN * step) {
            const int64_t end = blocks - first < FAN * step ? blocks : first + FAN * step;
            T *sum = partial + first * stride;
            for (int64_t b = first + step; b < end; b += step)
                for (int64_t i = 0; i < n; i++) sum[i] += partial[b * stride + i];
        }
    for (int64_t i = 0; i < n; i++) out[i] = blocks ? partial[i] : T(0);
}

void bind_activations(nanobind::module_ &m);
void bind_attention(nanobind::module_ &m);
void bind_batch_norm(nanobind::module_ &m);
void bind_broadcast(nanobind::module_ &m);
void bind_channels(nanobind::module_ &m);
void bind_choose(nanobind::module_ &m);
void bind_closeness(nanobind::module_ &m);
void bind_contiguous(nanobind::module_ &m);
void bind_conv2d(nanobind::module_ &m);
void bind_convert(nanobind::module_ &m);
void bind_counts(nanobind::module_ &m);
void bind_creation_call(nanobind::module_ &m);
void bind_cross_entropy(nanobind::module_ &m);
void bind_ctc(nanobind::module_ &m);
void bind_depthwise(nanobind::module_ &m);
void bind_device_counter(nanobind::module_ &m);
void bind_distinct(nanobind::module_ &m);
void bind_dispatch(nanobind::module_ &m);
void bind_embedding(nanobind::module_ &m);
void bind_erf(nanobind::module_ &m);
void bind_extremes(nanobind::module_ &m);
void bind_factorize(nanobind::module_ &m);
void bind_fill(nanobind::module_ &m);
void bind_fused(nanobind::module_ &m);
void bind_gelu(nanobind::module_ &m);
void bind_gemm(nanobind::module_ &m);
void bind_guarded_call(nanobind::module_ &m);
void bind_householder(nanobind::module_ &m);
void bind_in_place(nanobind::module_ &m);
void bind_integer_products(nanobind::module_ &m);
void bind_integers(nanobind::module_ &m);
void bind_jacobi(nanobind::module_ &m);
void bind_layer_norm(nanobind::module_ &m);
void bind_losses(nanobind::module_ &m);
void bind_memory(nanobind::module_ &m);
void bind_moments(nanobind::module_ &m);
void bind_optimizer_rules(nanobind::module_ &m);
void bind_optimizers(nanobind::module_ &m);
void bind_optimizer_lists(nanobind::module_ &m);
void bind_pack(nanobind::module_ &m);
void bind_pairwise(nanobind::module_ &m);
void bind_philox(nanobind::module_ &m);
void bind_places(nanobind::module_ &m);
void bind_plain_call(nanobind::module_ &m);
void bind_points(nanobind::module_ &m);
void bind_pool(nanobind::module_ &m);
void bind_quiet_call(nanobind::module_ &m);
void bind_record(nanobind::module_ &m);
void bind_rectifier(nanobind::module_ &m);
void bind_recurrent(nanobind::module_ &m);
void bind_reduce_rows(nanobind::module_ &m);
void bind_relu(nanobind::module_ &m);
void bind_resample(nanobind::module_ &m);
void bind_scan(nanobind::module_ &m);
void bind_select(nanobind::module_ &m);
void bind_sigmoid(nanobind::module_ &m);
void bind_silu(nanobind::module_ &m);
void bind_softmax(nanobind::module_ &m);
void bind_traced_call(nanobind::module_ &m);
void bind_trace_reader(nanobind::module_ &m);
void bind_tracing(nanobind::module_ &m);
void bind_shuffle(nanobind::module_ &m);
void bind_sort(nanobind::module_ &m);
void bind_special(nanobind::module_ &m);
void bind_error_functions(nanobind::module_ &m);
void bind_ufunc_loops(nanobind::module_ &m);
void bind_walk(nanobind::module_ &m);
void bind_writes(nanobind::module_ &m);

} // namespace resilin
