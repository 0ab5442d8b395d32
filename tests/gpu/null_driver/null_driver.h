/* What a kernel of the null driver is: its parameters' sizes, and a function that runs it on the host. */
#ifndef RESILIN_NULL_DRIVER_H
#define RESILIN_NULL_DRIVER_H
#include <stddef.h>

struct NullFunction {
    const char *name;
    int parameters;
    const size_t *sizes;
    void (*run)(const unsigned *extents, void **values); /* grid x, y, block x, y; null: nothing happens */
};
#endif
