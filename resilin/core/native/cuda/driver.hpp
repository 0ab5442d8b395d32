// The CUDA driver, of which a stable part is used. Its prototypes are written out, so that it is built without CUDA.
#pragma once
#include <cstddef>
#include <string>
#include <utility>

#include "library.hpp"

namespace resilin::cuda {

using Status = int; // CUresult

constexpr Status INVALID_VALUE = 1, INVALID_CONTEXT = 201;

struct Driver {
    explicit Driver(const std::string &path); // std::runtime_error: library, symbol or version

    Library library;
    int version = 0; // 12040 is CUDA 12.4

    Status (*init)(unsigned flags) = nullptr;
    Status (*driver_version)(int *version) = nullptr;
    Status (*error_name)(Status, const char **) = nullptr;
    Status (*error_string)(Status, const char **) = nullptr;
    Status (*current_context)(void **context) = nullptr;
    Status (*set_current_context)(void *context) = nullptr;
    Status (*launch_kernel)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                            void **extra) = nullptr;
    Status (*synchronize_stream)(void *stream) = nullptr;
    // where a parameter lies and how long it is; null before CUDA 12.4
    Status (*parameter_info)(void *function, std::size_t index, std::size_t *offset, std::size_t *size) = nullptr;

    // CUDA's name of an error, and its description
    std::pair<std::string, std::string> describe(Status status) const;
};

} // namespace resilin::cuda
