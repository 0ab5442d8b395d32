// Memory for messages that have arrived. What is allocated and freed again for each message would be given to the kernel
// and fetched from it each time, page by page: blocks of middle size are kept for the next one, long ones come in huge pages.
#pragma once

#include <cstddef>
#include <utility>

namespace resilin::rpc {

// Null: there is no memory. Of any thread, freed by any thread.
char *take_buffer(size_t size);
void give_buffer(char *at, size_t size);

class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(size_t size) : at_(take_buffer(size)), size_(size) {}
    Buffer(Buffer &&other) noexcept : at_(other.at_), size_(other.size_) { other.at_ = nullptr; }
    Buffer &operator=(Buffer &&other) noexcept {
        std::swap(at_, other.at_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Buffer() {
        if (at_) give_buffer(at_, size_);
    }
    char *get() const { return at_; }
    explicit operator bool() const { return at_ != nullptr; }

  private:
    char *at_ = nullptr;
    size_t size_ = 0;
};

} // namespace resilin::rpc
