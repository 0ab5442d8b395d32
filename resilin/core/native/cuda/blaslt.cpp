#include "blaslt.hpp"

#include <stdexcept>

namespace resilin::cuda {
namespace {

enum DescriptionAttribute { TRANSPOSES_A = 3, TRANSPOSES_B = 4, EPILOGUE = 7, EPILOGUE_VECTOR = 8 };
enum LayoutAttribute { BATCHES = 5, BATCH_STRIDE = 6 };
enum PreferenceAttribute { WORKSPACE_BYTES = 1, REDUCTIONS = 3, ALIGNMENTS = 5 }; // the last: of a, then b, c, d

constexpr int DOUBLE = 1; // CUDA_R_64F
constexpr const char *SET_DESCRIPTION = "cublasLtMatmulDescSetAttribute";

void check(const Blaslt &blaslt, BlasStatus status, const char *call) {
    if (status)
        throw std::runtime_error(blaslt.library.path() + ": " + call + " gave status " + std::to_string(status));
}

template <class Set, class T>
void set(const Blaslt &blaslt, Set *function, const char *call, void *object, int attribute, const T &value) {
    check(blaslt, function(object, attribute, &value, sizeof value), call);
}

void *layout(const Blaslt &blaslt, const Kind &kind, const Matrix &matrix) {
    void *made = nullptr;
    check(blaslt, blaslt.create_layout(&made, kind.type, matrix.rows, matrix.columns, matrix.leading),
          "cublasLtMatrixLayoutCreate");
    if (kind.batches > 1) {
        const char *call = "cublasLtMatrixLayoutSetAttribute";
        set(blaslt, blaslt.set_layout, call, made, BATCHES, kind.batches);
        set(blaslt, blaslt.set_layout, call, made, BATCH_STRIDE, matrix.batch_stride);
    }
    return made;
}

// Which of `choices_` operands at these addresses take: cuBLASLt's faster algorithms need 16 bytes of alignment.
std::size_t alignment_class(const void *a, const void *b, const void *out, const void *extra) {
    const auto bits = [](const void *address) { return reinterpret_cast<uintptr_t>(address); };
    return static_cast<std::size_t>(__builtin_ctzll(bits(a) | bits(b) | bits(out) | bits(extra) | 16));
}

} // namespace

Blaslt::Blaslt(const std::string &path) : library(path) {
    library.load(get_version, "cublasLtGetVersion");
    version = static_cast<int>(get_version());
    library.check_version(version / 10, 12000, "install the CUDA libraries of version 12 or 13 (resilin[cuda12])");
    library.load(create, "cublasLtCreate");
    library.load(create_description, "cublasLtMatmulDescCreate");
    library.load(set_description, "cublasLtMatmulDescSetAttribute");
    library.load(destroy_description, "cublasLtMatmulDescDestroy");
    library.load(create_layout, "cublasLtMatrixLayoutCreate");
    library.load(set_layout, "cublasLtMatrixLayoutSetAttribute");
    library.load(destroy_layout, "cublasLtMatrixLayoutDestroy");
    library.load(create_preference, "cublasLtMatmulPreferenceCreate");
    library.load(set_preference, "cublasLtMatmulPreferenceSetAttribute");
    library.load(destroy_preference, "cublasLtMatmulPreferenceDestroy");
    library.load(find, "cublasLtMatmulAlgoGetHeuristic");
    library.load(multiply, "cublasLtMatmul");
}

void Blaslt::start() { // never destroyed: plans use it until the process ends
    if (!handle) check(*this, create(&handle), "cublasLtCreate");
}

Plan::Plan(const Blaslt &blaslt, const Kind &kind, const Matrix &a, const Matrix &b, const Matrix &out)
    : Plan(blaslt, kind) { // so that what follows is given back where some of it fails
    check(blaslt, blaslt.create_description(&description_, kind.compute, kind.scale), "cublasLtMatmulDescCreate");
    const char *call = SET_DESCRIPTION;
    const int32_t transposes_a = a.transposed, transposes_b = b.transposed;
    const uint32_t epilogue = static_cast<uint32_t>(kind.epilogue);
    set(blaslt, blaslt.set_description, call, description_, TRANSPOSES_A, transposes_a);
    set(blaslt, blaslt.set_description, call, description_, TRANSPOSES_B, transposes_b);
    set(blaslt, blaslt.set_description, call, description_, EPILOGUE, epilogue);
    a_ = layout(blaslt, kind, a);
    b_ = layout(blaslt, kind, b);
    out_ = layout(blaslt, kind, out);
}

Plan::~Plan() {
    if (description_) blaslt_.destroy_description(description_);
    for (void *one : {a_, b_, out_})
        if (one) blaslt_.destroy_layout(one);
}

int64_t Plan::workspace_bytes(const void *a, const void *b, const void *out, const void *extra) const {
    return choices_[alignment_class(a, b, out, extra)].workspace_bytes.load(std::memory_order_acquire);
}

void Plan::prepare(const void *a, const void *b, const void *out, const void *extra) {
    const std::size_t place = alignment_class(a, b, out, extra);
    Choice &chosen = choices_[place];
    const std::lock_guard<std::mutex> guard(mutex_);
    if (chosen.workspace_bytes.load(std::memory_order_relaxed) != UNKNOWN) return;
    if (extra) // its alignment is read from the address
        set(blaslt_, blaslt_.set_description, SET_DESCRIPTION, description_, EPILOGUE_VECTOR, extra);
    void *preference = nullptr;
    check(blaslt_, blaslt_.create_preference(&preference), "cublasLtMatmulPreferenceCreate");
    const char *call = "cublasLtMatmulPreferenceSetAttribute";
    const uint32_t alignment = 1u << place;
    set(blaslt_, blaslt_.set_preference, call, preference, WORKSPACE_BYTES, kind_.workspace_bytes);
    set(blaslt_, blaslt_.set_preference, call, preference, REDUCTIONS, kind_.reductions);
    for (int operand = 0; operand < 4; operand++)
        set(blaslt_, blaslt_.set_preference, call, preference, ALIGNMENTS + operand, alignment);
    Answer answer = {};
    int found = 0;
    const BlasStatus status =
        blaslt_.find(blaslt_.handle, description_, a_, b_, out_, out_, preference, 1, &answer, &found);
    blaslt_.destroy_preference(preference);
    if (status != BLAS_NOT_SUPPORTED && status != BLAS_INVALID_VALUE)
        check(blaslt_, status, "cublasLtMatmulAlgoGetHeuristic");
    chosen.algorithm = answer.algorithm;
    const bool there = !status && found > 0 && !answer.status;
    chosen.workspace_bytes.store(there ? static_cast<int64_t>(answer.workspace_bytes) : NONE,
                                 std::memory_order_release);
}

BlasStatus Plan::run(const void *a, const void *b, void *out, const void *extra, void *workspace, void *stream) {
    static constexpr float one = 1, zero = 0;
    static constexpr double one_of_64 = 1, zero_of_64 = 0;
    const bool wide = kind_.scale == DOUBLE;
    const void *alpha = wide ? static_cast<const void *>(&one_of_64) : &one;
    const void *nothing = wide ? static_cast<const void *>(&zero_of_64) : &zero;
    Choice &chosen = choices_[alignment_class(a, b, out, extra)];
    const std::lock_guard<std::mutex> guard(mutex_);
    if (extra) set(blaslt_, blaslt_.set_description, SET_DESCRIPTION, description_, EPILOGUE_VECTOR, extra);
    const auto bytes = static_cast<std::size_t>(chosen.workspace_bytes.load(std::memory_order_relaxed));
    const BlasStatus status = blaslt_.multiply(blaslt_.handle, description_, alpha, a, a_, b, b_,
                                               kind_.adds ? alpha : nothing, out, out_, out, out_, &chosen.algorithm,
                                               workspace, bytes, stream);
    if (status == BLAS_NOT_SUPPORTED) chosen.workspace_bytes.store(NONE, std::memory_order_release);
    return status;
}

} // namespace resilin::cuda
