// Runs a CUDA kernel whose threads never wait for one another: one after the other, without fibers. Compiles quickly.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
inline dim3 blockIdx, blockDim, gridDim, threadIdx;

inline int __float_as_int(float v) {
    int out;
    std::memcpy(&out, &v, 4);
    return out;
}
inline float __int_as_float(int v) {
    float out;
    std::memcpy(&out, &v, 4);
    return out;
}

namespace emulated {
template <typename T> struct Bare { using type = T; };
template <typename T> struct Bare<T&> { using type = T; };
template <int... I> struct Places {};
template <int N, int... I> struct Up : Up<N - 1, N - 1, I...> {};
template <int... I> struct Up<0, I...> { using type = Places<I...>; };

template <typename... Args, int... I>
void each(void (*kernel)(Args...), dim3 grid, dim3 block, void** values, Places<I...>) {
    gridDim = grid;
    blockDim = block;
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x)
            for (threadIdx.y = 0; threadIdx.y < block.y; ++threadIdx.y)
                for (threadIdx.x = 0; threadIdx.x < block.x; ++threadIdx.x)
                    kernel(*static_cast<typename Bare<Args>::type*>(values[I])...);
}
template <typename... Args> void launch(void (*kernel)(Args...), dim3 grid, dim3 block, void** values) {
    each(kernel, grid, block, values, typename Up<sizeof...(Args)>::type{});
}
}  // namespace emulated
