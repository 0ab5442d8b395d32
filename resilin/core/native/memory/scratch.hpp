// Memory for a kernel's intermediate results.
#pragma once
#include "matmul/panels.hpp"

#include <cstdint>
#include <cstdlib>
#include <new>

namespace resilin {

// Memory that its owner's next call uses again; as a static thread_local of a function, the calling thread's.
template <class T> class Scratch {
  public:
    ~Scratch() { std::free(data_); }
    T *of(int64_t elements) {
        if (elements > size_) {
            std::free(data_);
            size_ = 0;
            data_ = static_cast<T *>(std::aligned_alloc(64, static_cast<size_t>(ceil_div(elements * static_cast<int64_t>(sizeof(T)), 64) * 64)));
            if (!data_) throw std::bad_alloc();
            size_ = elements;
        }
        return data_;
    }

  private:
    T *data_ = nullptr;
    int64_t size_ = 0;
};

} // namespace resilin
