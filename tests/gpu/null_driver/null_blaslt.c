/* The part of cuBLASLt that resilin uses, on the host's memory: it refuses what cuBLASLt refuses, and computes.
 *
 * Products of a depth of DEEP and more want a workspace. Compiled with -DNULL_BLASLT_VERSION=110803 it is too old. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef NULL_BLASLT_VERSION
#define NULL_BLASLT_VERSION 120801
#endif
#define DEEP 256
#define DEEP_WORKSPACE (1 << 20)
#define KEPT 64

int null_failure(void);
void null_heard(const char *name);

enum { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { FLOAT = 0, DOUBLE = 1, HALF = 2, BFLOAT16 = 14 };
enum { COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_TF32 = 77 };
enum { DEFAULT = 1, RELU = 2, BIAS = 4, GELU = 32, BGRADB = 512 };

struct Description {
    int compute, scale;
    int32_t transposes[2];
    uint32_t epilogue;
    void *vector;
};
struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t leading;
    int32_t batches;
    int64_t batch_stride;
};
struct Preference {
    size_t workspace_bytes;
    uint32_t reductions, alignments[4];
};
struct Algorithm {
    uint64_t data[8]; /* the alignment and the workspace that it needs */
};
struct Answer {
    struct Algorithm algorithm;
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
};
struct NullProduct {
    int type, compute, epilogue, batches, adds;
    uint64_t m, n, k;
    const void *a, *b, *out, *vector, *workspace, *stream;
    size_t workspace_bytes;
};

static struct NullProduct kept[KEPT];
static long multiplied, asked, created;
static uint32_t refused; /* epilogues for which there is no algorithm */
static int refuses_all, alive;

size_t cublasLtGetVersion(void) { return NULL_BLASLT_VERSION; }
int cublasLtCreate(void **handle) {
    created++;
    *handle = &kept;
    return SUCCESS;
}

static void *made(size_t bytes) {
    alive++;
    return calloc(1, bytes);
}
static int destroyed(void *object) {
    alive--;
    free(object);
    return SUCCESS;
}

int cublasLtMatmulDescCreate(void **description, int compute, int scale) {
    if (scale != (compute == COMPUTE_64F ? DOUBLE : FLOAT)) return INVALID_VALUE;
    struct Description *one = *description = made(sizeof *one);
    one->compute = compute;
    one->scale = scale;
    one->epilogue = DEFAULT;
    return SUCCESS;
}
int cublasLtMatmulDescDestroy(void *description) { return destroyed(description); }
int cublasLtMatmulDescSetAttribute(void *description, int attribute, const void *value, size_t bytes) {
    struct Description *one = description;
    void *const place = attribute == 3   ? (void *)&one->transposes[0]
                        : attribute == 4 ? (void *)&one->transposes[1]
                        : attribute == 7 ? (void *)&one->epilogue
                        : attribute == 8 ? (void *)&one->vector
                                         : NULL;
    if (!place || bytes != (attribute == 8 ? sizeof(void *) : sizeof(int32_t))) return INVALID_VALUE;
    memcpy(place, value, bytes);
    return SUCCESS;
}

int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    if (!rows || !columns || leading < (int64_t)rows) return INVALID_VALUE;
    struct Layout *one = *layout = made(sizeof *one);
    *one = (struct Layout){type, rows, columns, leading, 1, 0};
    return SUCCESS;
}
int cublasLtMatrixLayoutDestroy(void *layout) { return destroyed(layout); }
int cublasLtMatrixLayoutSetAttribute(void *layout, int attribute, const void *value, size_t bytes) {
    struct Layout *one = layout;
    if (attribute == 5 && bytes == sizeof one->batches) memcpy(&one->batches, value, bytes);
    else if (attribute == 6 && bytes == sizeof one->batch_stride) memcpy(&one->batch_stride, value, bytes);
    else return INVALID_VALUE;
    return SUCCESS;
}

int cublasLtMatmulPreferenceCreate(void **preference) {
    *preference = made(sizeof(struct Preference));
    return SUCCESS;
}
int cublasLtMatmulPreferenceDestroy(void *preference) { return destroyed(preference); }
int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t bytes) {
    struct Preference *one = preference;
    if (attribute == 1 && bytes == sizeof one->workspace_bytes) memcpy(&one->workspace_bytes, value, bytes);
    else if (attribute == 3 && bytes == sizeof one->reductions) memcpy(&one->reductions, value, bytes);
    else if (attribute >= 5 && attribute <= 8 && bytes == 4) memcpy(&one->alignments[attribute - 5], value, bytes);
    else return INVALID_VALUE;
    return SUCCESS;
}

/* m, n, k of a product of layouts that fit; 0 where they do not. */
static int sizes(const struct Description *how, const struct Layout *a, const struct Layout *b, const struct Layout *d,
                 uint64_t found[3]) {
    const uint64_t m = how->transposes[0] ? a->columns : a->rows, k = how->transposes[0] ? a->rows : a->columns;
    const uint64_t n = how->transposes[1] ? b->rows : b->columns, k_of_b = how->transposes[1] ? b->columns : b->rows;
    found[0] = m, found[1] = n, found[2] = k;
    return k == k_of_b && d->rows == m && d->columns == n && a->batches == b->batches && a->batches == d->batches &&
           a->type == b->type && a->type == d->type;
}

static int takes(const struct Description *how, const struct Layout *a) {
    if (a->type == DOUBLE) return how->compute == COMPUTE_64F;
    if (a->type == FLOAT) return how->compute == COMPUTE_32F || how->compute == COMPUTE_TF32;
    return (a->type == HALF || a->type == BFLOAT16) && how->compute == COMPUTE_32F;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *description, void *a, void *b, void *c, void *d,
                                   void *preference, int most, struct Answer *answers, int *found) {
    const struct Description *how = description;
    const struct Preference *wish = preference;
    uint64_t mnk[3];
    *found = 0;
    asked++;
    if (handle != &kept || c != d || most < 1 || !sizes(how, a, b, d, mnk) || !takes(how, a)) return INVALID_VALUE;
    if (refuses_all || (how->epilogue & refused)) return NOT_SUPPORTED;
    for (int i = 0; i < 3; i++) { /* as far as its limits are known */
        const struct Layout *one = i == 0 ? a : i == 1 ? b : d;
        if (one->batches > 65535 || one->batch_stride < 0 || mnk[i] > 0x7fffffff) return INVALID_VALUE;
    }
    const size_t bytes = mnk[2] >= DEEP ? DEEP_WORKSPACE : 0;
    if (bytes > wish->workspace_bytes) return SUCCESS; /* none */
    memset(answers, 0, sizeof *answers);
    answers->algorithm.data[0] = wish->alignments[0];
    answers->algorithm.data[1] = bytes;
    answers->workspace_bytes = bytes;
    *found = 1;
    return SUCCESS;
}

static float of_bfloat16(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
static uint16_t to_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (value != value) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
static double element(int type, const void *base, int64_t place) {
    switch (type) {
    case DOUBLE: return ((const double *)base)[place];
    case HALF: return ((const _Float16 *)base)[place];
    case BFLOAT16: return of_bfloat16(((const uint16_t *)base)[place]);
    default: return ((const float *)base)[place];
    }
}
static void set_element(int type, void *base, int64_t place, double value) {
    switch (type) {
    case DOUBLE: ((double *)base)[place] = value; break;
    case HALF: ((_Float16 *)base)[place] = (_Float16)(float)value; break;
    case BFLOAT16: ((uint16_t *)base)[place] = to_bfloat16((float)value); break;
    default: ((float *)base)[place] = (float)value;
    }
}
static double rounded(int compute, double value) { /* TF32 keeps ten bits of the fraction */
    if (compute != COMPUTE_TF32) return value;
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, 4);
    bits = (bits + 0x1000) & ~0x1fffu;
    memcpy(&single, &bits, 4);
    return single;
}
static double gelu(double x) {
    const double y = 0.7978845608028654 * (x + 0.044715 * x * x * x);
    const double e = __builtin_exp(2 * y);
    return x * (1 - 1 / (e + 1));
}

/* The operand as numbers, [outer][depth]: what is read many times is unpacked once. */
static double *unpacked(const struct Description *how, const struct Layout *x, const void *base, int64_t first,
                        int by_rows, int transposed, uint64_t outer, uint64_t depth) {
    double *out = malloc(sizeof(double) * outer * depth);
    for (uint64_t o = 0; o < outer; o++)
        for (uint64_t k = 0; k < depth; k++) {
            const uint64_t row = by_rows ? o : k, column = by_rows ? k : o;
            const int64_t place = transposed ? (int64_t)column + (int64_t)row * x->leading
                                             : (int64_t)row + (int64_t)column * x->leading;
            out[o * depth + k] = rounded(how->compute, element(x->type, base, first + place));
        }
    return out;
}

static void compute(const struct Description *how, const struct Layout *a, const void *A, const struct Layout *b,
                    const void *B, const struct Layout *d, void *D, int adds, const uint64_t mnk[3]) {
    const uint64_t m = mnk[0], n = mnk[1], depth = mnk[2];
    for (int batch = 0; batch < d->batches; batch++) {
        double *left = unpacked(how, a, A, batch * a->batch_stride, 1, how->transposes[0], m, depth);
        double *right = unpacked(how, b, B, batch * b->batch_stride, 0, how->transposes[1], n, depth);
        for (uint64_t j = 0; j < n; j++)
            for (uint64_t i = 0; i < m; i++) {
                const int64_t place = batch * d->batch_stride + (int64_t)(i + j * (uint64_t)d->leading);
                double sum = 0;
                for (uint64_t k = 0; k < depth; k++) sum += left[i * depth + k] * right[j * depth + k];
                if (adds) sum += element(d->type, D, place);
                if (how->epilogue & BIAS) sum += element(d->type, how->vector, (int64_t)i);
                if (how->epilogue & RELU) sum = sum > 0 || sum != sum ? sum : 0;
                if (how->epilogue & GELU) sum = gelu(sum);
                set_element(d->type, D, place, sum);
            }
        if (how->epilogue == BGRADB)
            for (uint64_t j = 0; j < n; j++) {
                double sum = 0;
                for (uint64_t k = 0; k < depth; k++) sum += right[j * depth + k];
                set_element(d->type, how->vector, (int64_t)j, sum);
            }
        free(left);
        free(right);
    }
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int cublasLtMatmul(void *handle, void *description, const void *alpha, const void *A, void *a, const void *B, void *b,
                   const void *beta, const void *C, void *c, void *D, void *d, const struct Algorithm *algorithm,
                   void *workspace, size_t workspace_bytes, void *stream) {
    const struct Description *how = description;
    const int wide = how->scale == DOUBLE;
    const double one = wide ? *(const double *)alpha : *(const float *)alpha;
    const double kept_part = wide ? *(const double *)beta : *(const float *)beta;
    uint64_t mnk[3];
    if (handle != &kept || c != d || C != D || one != 1 || !sizes(how, a, b, d, mnk)) return INVALID_VALUE;
    if ((how->epilogue & (BIAS | BGRADB)) && !how->vector) return INVALID_VALUE;
    const uintptr_t together = (uintptr_t)A | (uintptr_t)B | (uintptr_t)D;
    if (together % algorithm->data[0]) return EXECUTION_FAILED; /* less aligned than was promised */
    if (workspace_bytes < algorithm->data[1] || (algorithm->data[1] && !workspace)) return INVALID_VALUE;
    const int status = null_failure();
    if (status) return status;
    if (algorithm->data[1]) memset(workspace, 0xff, algorithm->data[1]);
    pthread_mutex_lock(&lock);
    const struct Layout *of_a = a, *of_d = d;
    kept[multiplied++ % KEPT] =
        (struct NullProduct){of_a->type, how->compute, (int)how->epilogue, of_d->batches, kept_part != 0,
                             mnk[0], mnk[1], mnk[2], A, B, D, how->vector, workspace, stream, workspace_bytes};
    compute(how, a, A, b, B, d, D, kept_part != 0, mnk);
    pthread_mutex_unlock(&lock);
    null_heard("matmul");
    return SUCCESS;
}

/* Tests. */
void null_blaslt_reset(void) {
    multiplied = asked = created = 0;
    refused = 0;
    refuses_all = 0;
}
long null_multiplied(void) { return multiplied; }
long null_asked(void) { return asked; }
long null_created(void) { return created; }
int null_alive(void) { return alive; }
const struct NullProduct *null_product(long number) { return &kept[number % KEPT]; }
void null_refuse(uint32_t epilogues, int all) {
    refused = epilogues;
    refuses_all = all;
}
