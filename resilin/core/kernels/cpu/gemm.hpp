// Matrix products by the BLAS that numpy brought along. One call runs in the calling thread: whoever has several
// threads gives each its own piece, cut so that the bits do not depend on how many there are.
#pragma once
#include <cstdint>

namespace resilin {

// Whether gemm() can be called: set once, when the module `resilin.core.blas` has found the functions.
bool have_gemm();

// C (M, N) = alpha * op(A) @ op(B) + beta * C, all row-major; op transposes where ta, tb say so.
void gemm(bool ta, bool tb, int64_t M, int64_t N, int64_t K, float alpha, const float *A, int64_t lda, const float *B,
          int64_t ldb, float beta, float *C, int64_t ldc);
void gemm(bool ta, bool tb, int64_t M, int64_t N, int64_t K, double alpha, const double *A, int64_t lda,
          const double *B, int64_t ldb, double beta, double *C, int64_t ldc);

} // namespace resilin
