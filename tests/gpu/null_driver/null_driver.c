/* The part of CUDA's driver that resilin uses, without a GPU: memory is the host's, a launch is noted and runs at once.
 *
 * A function handle is a `struct NullFunction`. Compiled with -DNULL_VERSION=11080 it is an old driver, with
 * -DWITHOUT_SYNCHRONIZE one that lacks a symbol. Tests steer it by the null_ functions at the end. */
#include "null_driver.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

#ifndef NULL_VERSION
#define NULL_VERSION 12040
#endif
#define KEPT 64         /* launches whose arguments are kept */
#define ARGUMENTS 4096  /* bytes of them: as many as CUDA takes */

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, ILLEGAL_ADDRESS = 700, NOT_SUPPORTED = 801 };

struct NullLaunch {
    const char *name;
    void *stream;
    unsigned grid[3], block[3], shared;
    int bytes;
    unsigned char arguments[ARGUMENTS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct NullLaunch kept[KEPT];
static long launched, synchronized;
static int fail_after = -1, fail_status, stuck;
static void (*listener)(const char *);
static int the_context;
static __thread void *context = &the_context;

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : SUCCESS; }
int cuDriverGetVersion(int *version) {
    *version = NULL_VERSION;
    return SUCCESS;
}
static const char *names[] = {"CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_OUT_OF_MEMORY"};
int cuGetErrorName(int status, const char **name) {
    *name = status >= 0 && status <= OUT_OF_MEMORY ? names[status]
            : status == INVALID_CONTEXT            ? "CUDA_ERROR_INVALID_CONTEXT"
            : status == ILLEGAL_ADDRESS            ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : status == NOT_SUPPORTED              ? "CUDA_ERROR_NOT_SUPPORTED"
                                                   : NULL;
    return *name ? SUCCESS : INVALID_VALUE;
}
int cuGetErrorString(int status, const char **text) {
    *text = status == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "an error of the null driver";
    return cuGetErrorName(status, &(const char *){0});
}
int cuCtxGetCurrent(void **current) {
    *current = context;
    return SUCCESS;
}
int cuCtxSetCurrent(void *current) {
    context = current;
    return SUCCESS;
}

int cuFuncGetParamInfo(void *handle, size_t index, size_t *offset, size_t *size) {
    const struct NullFunction *function = handle;
    if (index >= (size_t)function->parameters) return INVALID_VALUE;
    *size = function->sizes[index];
    *offset = 8 * index; /* not as CUDA packs them; nobody asks */
    return SUCCESS;
}

static void note(struct NullLaunch *launch, const struct NullFunction *function, void **values) {
    launch->name = function->name;
    launch->bytes = 0;
    for (int i = 0; i < function->parameters; i++) {
        memcpy(launch->arguments + launch->bytes, values[i], function->sizes[i]);
        launch->bytes += (int)function->sizes[i];
    }
}

/* 0, or what the launch that is due to fail gives: once, or where `stuck` ever after, as after an illegal address. */
static int failure(void) {
    if (fail_after < 0) return SUCCESS;
    if (fail_after > 0) {
        fail_after--;
        return SUCCESS;
    }
    if (!stuck) fail_after = -1;
    return fail_status;
}

int null_failure(void) { /* for null_blaslt.c */
    pthread_mutex_lock(&lock);
    const int status = failure();
    pthread_mutex_unlock(&lock);
    return status;
}

void null_heard(const char *name) {
    if (listener) listener(name);
}

int cuLaunchKernel(void *handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **values, void **extra) {
    const struct NullFunction *function = handle;
    if (!context) return INVALID_CONTEXT;
    if (!function || extra || !gx || !gy || !gz || !bx || !by || !bz || bx * by * bz > 1024) return INVALID_VALUE;
    if (gx > 0x7fffffffu || gy > 65535 || gz > 65535 || bz > 64 || shared > 48 << 10) return INVALID_VALUE;
    pthread_mutex_lock(&lock); /* one device: kernels run one after another */
    const int status = failure();
    if (!status) {
        struct NullLaunch *launch = &kept[launched++ % KEPT];
        const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz}, extents[4] = {gx, gy, bx, by};
        memcpy(launch->grid, grid, sizeof grid);
        memcpy(launch->block, block, sizeof block);
        launch->shared = shared;
        launch->stream = stream;
        note(launch, function, values);
        if (function->run) function->run(extents, values);
    }
    pthread_mutex_unlock(&lock);
    if (!status) null_heard(function->name);
    return status;
}

#ifndef WITHOUT_SYNCHRONIZE
int cuStreamSynchronize(void *stream) {
    (void)stream;
    synchronized++;
    return null_failure();
}
#endif

/* Tests. */
void null_reset(void) {
    launched = synchronized = 0;
    fail_after = -1;
    stuck = 0;
}
long null_launched(void) { return launched; }
long null_synchronized(void) { return synchronized; }
const struct NullLaunch *null_launch(long number) { return &kept[number % KEPT]; }
void null_fail(int after, int status, int ever_after) {
    fail_after = after;
    fail_status = status;
    stuck = ever_after;
}
void null_listen(void (*function)(const char *)) { listener = function; }
