#include "memory.hpp"

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace resilin::rpc {
namespace {

constexpr int SEALS = F_SEAL_SHRINK | F_SEAL_GROW;

char *mapped(int fd, size_t size) {
    void *at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? nullptr : static_cast<char *>(at);
}

} // namespace

std::shared_ptr<Memory> Memory::make(const char *name, size_t size) {
    const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    char *at = nullptr;
    if (fd >= 0 && ftruncate(fd, static_cast<off_t>(size)) == 0 && fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL) == 0)
        at = mapped(fd, size);
    if (!at) {
        const std::string why = std::strerror(errno);
        if (fd >= 0) close(fd);
        throw std::runtime_error("no memory to share with peers: " + why);
    }
    return std::shared_ptr<Memory>(new Memory(at, size, fd));
}

std::shared_ptr<Memory> Memory::map(int fd, size_t size) {
    struct stat info;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS) throw std::invalid_argument("its memory is not sealed: it could be cut short");
    if (fstat(fd, &info) != 0 || info.st_size < 0 || static_cast<size_t>(info.st_size) != size)
        throw std::invalid_argument("its memory has another size than this version's");
    char *at = mapped(fd, size);
    if (!at) throw std::invalid_argument(std::string("its memory cannot be mapped: ") + std::strerror(errno));
    return std::shared_ptr<Memory>(new Memory(at, size, -1));
}

void Memory::release() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
}

Memory::~Memory() {
    release();
    munmap(at_, size_);
}

} // namespace resilin::rpc
