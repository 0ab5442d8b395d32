// Memory that two processes share: a memfd whose size nobody can change any more, so that no access to it can fail.
#pragma once

#include <cstddef>
#include <memory>

namespace resilin::rpc {

class Memory {
  public:
    // New memory, all zero. std::runtime_error when the kernel has none.
    static std::shared_ptr<Memory> make(const char *name, size_t size);
    // A peer's. std::invalid_argument unless it has that size and is sealed at it.
    static std::shared_ptr<Memory> map(int fd, size_t size);
    ~Memory();
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;

    char *at() const { return at_; }
    int fd() const { return fd_; } // of own memory, until it is released; -1
    void release();                // the descriptor: the mapping stays

  private:
    Memory(char *at, size_t size, int fd) : at_(at), size_(size), fd_(fd) {}

    char *at_;
    size_t size_;
    int fd_;
};

} // namespace resilin::rpc
