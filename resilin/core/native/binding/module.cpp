// The native module of resilin.core: one bind function per kernel file.
#define RESILIN_IMPORTS_NUMPY
#include "array.hpp"

#include "cuda/cuda_module.hpp"
#include "fft/fft_module.hpp"
#include "fast_path/short_call.hpp"
#include "kernels.hpp"
#include "memory/parallel.hpp"
#include "indexing/masks.hpp"
#include "indexing/places.hpp"
#include "sorting/search.hpp"
#include "kernels/simd.hpp"
#include "shapes/shapes.hpp"

namespace {

const char *isa() {
#ifdef RESILIN_CHOOSES_ISA
    // the order in which RESILIN_SIMD's versions are tried
    if (__builtin_cpu_supports("x86-64-v4")) return "AVX-512 (x86-64-v4)";
    if (__builtin_cpu_supports("x86-64-v3")) return "AVX2 (x86-64-v3)";
    return "SSE2 (x86-64)";
#else
    return "the compiler's default instruction set";
#endif
}

} // namespace

NB_MODULE(_native, m) {
    m.doc() = "Native CPU kernels and the caching allocator of resilin.core.";
    if (_import_array() < 0) throw nb::python_error();
    nb::set_leak_warnings(false);  // a fork's end leaves what threads held that it does not have
    m.def("isa", &isa);
    m.def("set_num_threads", &resilin::set_num_threads);
    m.def("num_threads", &resilin::num_threads);
    resilin::bind_activations(m);
    resilin::bind_attention(m);
    resilin::bind_batch_norm(m);
    resilin::bind_broadcast(m);
    resilin::bind_channels(m);
    resilin::bind_choose(m);
    resilin::bind_closeness(m);
    resilin::bind_contiguous(m);
    resilin::bind_conv2d(m);
    resilin::bind_convert(m);
    resilin::bind_counts(m);
    resilin::bind_creation_call(m);
    resilin::bind_cross_entropy(m);
    resilin::bind_ctc(m);
    resilin::bind_cuda(m);
    resilin::bind_depthwise(m);
    resilin::bind_device_counter(m);
    resilin::bind_distinct(m);
    resilin::bind_dispatch(m);
    resilin::bind_embedding(m);
    resilin::bind_erf(m);
    resilin::bind_extremes(m);
    resilin::bind_factorize(m);
    resilin::bind_fill(m);
    resilin::bind_fft(m);
    resilin::bind_fused(m);
    resilin::bind_gelu(m);
    resilin::bind_gemm(m);
    resilin::bind_guarded_call(m);
    resilin::bind_householder(m);
    resilin::bind_in_place(m);
    resilin::bind_integer_products(m);
    resilin::bind_integers(m);
    resilin::bind_writes(m);
    resilin::bind_jacobi(m);
    resilin::bind_layer_norm(m);
    resilin::bind_losses(m);
    resilin::bind_masks(m);
    resilin::bind_moments(m);
    resilin::bind_memory(m);
    resilin::bind_optimizer_rules(m);
    resilin::bind_optimizers(m);
    resilin::bind_optimizer_lists(m);
    resilin::bind_pack(m);
    resilin::bind_pairwise(m);
    resilin::bind_philox(m);
    resilin::bind_places(m);
    resilin::bind_places_merged(m);
    resilin::bind_plain_call(m);
    resilin::bind_points(m);
    resilin::bind_pool(m);
    resilin::bind_quiet_call(m);
    resilin::bind_record(m);
    resilin::bind_rectifier(m);
    resilin::bind_repeats(m);
    resilin::bind_recurrent(m);
    resilin::bind_reduce_rows(m);
    resilin::bind_relu(m);
    resilin::bind_resample(m);
    resilin::bind_scan(m);
    resilin::bind_search(m);
    resilin::bind_select(m);
    resilin::bind_sigmoid(m);
    resilin::bind_silu(m);
    resilin::bind_softmax(m);
    resilin::bind_shuffle(m);
    resilin::bind_shapes(m);
    resilin::bind_short_call(m);
    resilin::bind_sort(m);
    resilin::bind_special(m);
    resilin::bind_error_functions(m);
    resilin::bind_traced_call(m);
    resilin::bind_trace_reader(m);
    resilin::bind_tracing(m);
    resilin::bind_ufunc_loops(m);
    resilin::bind_walk(m);
}
