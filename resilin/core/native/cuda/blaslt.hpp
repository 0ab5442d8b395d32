// Matrix products by cuBLASLt, of which a stable part is used. Its prototypes are written out, so that it is built
// without CUDA; matrices are column by column, as there.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "library.hpp"

namespace resilin::cuda {

using BlasStatus = int; // cublasStatus_t

constexpr BlasStatus BLAS_INVALID_VALUE = 7, BLAS_NOT_SUPPORTED = 15;

struct Algorithm { // cublasLtMatmulAlgo_t
    uint64_t data[8];
};
struct Answer { // cublasLtMatmulHeuristicResult_t
    Algorithm algorithm;
    std::size_t workspace_bytes;
    BlasStatus status;
    float waves;
    int reserved[4];
};

struct Blaslt {
    explicit Blaslt(const std::string &path); // std::runtime_error: library, symbol or version

    // Makes the handle, for the device that is current: not before something is multiplied, as only then it is chosen.
    void start();

    Library library;
    int version = 0; // 120103 is 12.1.3
    void *handle = nullptr;

    std::size_t (*get_version)() = nullptr;
    BlasStatus (*create)(void **handle) = nullptr;
    BlasStatus (*create_description)(void **made, int compute, int scale) = nullptr;
    BlasStatus (*set_description)(void *description, int attribute, const void *value, std::size_t bytes) = nullptr;
    BlasStatus (*destroy_description)(void *description) = nullptr;
    BlasStatus (*create_layout)(void **made, int type, uint64_t rows, uint64_t columns, int64_t leading) = nullptr;
    BlasStatus (*set_layout)(void *layout, int attribute, const void *value, std::size_t bytes) = nullptr;
    BlasStatus (*destroy_layout)(void *layout) = nullptr;
    BlasStatus (*create_preference)(void **made) = nullptr;
    BlasStatus (*set_preference)(void *preference, int attribute, const void *value, std::size_t bytes) = nullptr;
    BlasStatus (*destroy_preference)(void *preference) = nullptr;
    BlasStatus (*find)(void *handle, void *description, void *a, void *b, void *c, void *d, void *preference, int most,
                       Answer *answers, int *found) = nullptr;
    BlasStatus (*multiply)(void *handle, void *description, const void *alpha, const void *A, void *a, const void *B,
                           void *b, const void *beta, const void *C, void *c, void *D, void *d,
                           const Algorithm *algorithm, void *workspace, std::size_t workspace_bytes,
                           void *stream) = nullptr;
};

// A matrix, or `batches` of them with `batch_stride` elements from one to the next.
struct Matrix {
    uint64_t rows, columns;
    int64_t leading; // elements from one column to the next
    bool transposed; // in the product
    int64_t batch_stride;
};

struct Kind {
    int type, compute, scale; // cudaDataType_t of the elements, cublasComputeType_t, cudaDataType_t of alpha and beta
    int epilogue;             // cublasLtEpilogue_t
    uint32_t reductions;      // cublasLtReductionScheme_t, those that are allowed
    int32_t batches;
    bool adds; // to what `out` holds
    std::size_t workspace_bytes;
};

// A product of matrices of these shapes, dtypes and strides: what cuBLASLt has to be told once.
class Plan {
  public:
    Plan(const Blaslt &blaslt, const Kind &kind, const Matrix &a, const Matrix &b, const Matrix &out);
    ~Plan();
    Plan(const Plan &) = delete;
    Plan &operator=(const Plan &) = delete;

    // How long a workspace the product needs with operands that lie so; NONE where cuBLASLt has no algorithm for them,
    // UNKNOWN where nobody asked.
    static constexpr int64_t NONE = -1, UNKNOWN = -2;
    int64_t workspace_bytes(const void *a, const void *b, const void *out, const void *extra) const;
    // Asks cuBLASLt; both may wait for another thread's call.
    void prepare(const void *a, const void *b, const void *out, const void *extra);
    // Launches it. `extra`: the epilogue's vector, or null. BLAS_NOT_SUPPORTED where cuBLASLt has none after all.
    BlasStatus run(const void *a, const void *b, void *out, const void *extra, void *workspace, void *stream);

  private:
    Plan(const Blaslt &blaslt, const Kind &kind) : blaslt_(blaslt), kind_(kind) {}

    struct Choice {
        std::atomic<int64_t> workspace_bytes{UNKNOWN};
        Algorithm algorithm = {};
    };

    const Blaslt &blaslt_;
    Kind kind_;
    void *description_ = nullptr, *a_ = nullptr, *b_ = nullptr, *out_ = nullptr;
    std::array<Choice, 5> choices_; // by alignment of all operands: 1, 2, 4, 8, 16 bytes and more
    std::mutex mutex_;              // the description holds the vector of one call at a time
};

} // namespace resilin::cuda
