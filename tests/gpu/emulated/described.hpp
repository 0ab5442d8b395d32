// What the null driver is told of a kernel: the sizes of its parameters, and what runs it.
#pragma once
#include "null_driver.h"

namespace emulated {
template <typename... Args> struct Sizes {
    static constexpr size_t of[sizeof...(Args) + 1] = {sizeof(Args)..., 0};
};
template <typename... Args>
constexpr NullFunction described(void (*)(Args...), const char* name, void (*run)(const unsigned*, void**)) {
    return {name, static_cast<int>(sizeof...(Args)), Sizes<Args...>::of, run};
}
}  // namespace emulated
