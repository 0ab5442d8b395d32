#include "library.hpp"

#include <dlfcn.h>

#include <stdexcept>

namespace resilin::cuda {

Library::Library(std::string path) : path_(std::move(path)), handle_(dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_) {
        const char *why = dlerror();
        throw std::runtime_error(path_ + " cannot be opened: " + (why ? why : "the loader says no more"));
    }
}

void *Library::found(const char *name) const { return dlsym(handle_, name); }

void *Library::required(const char *name) const {
    void *address = found(name);
    if (!address)
        throw std::runtime_error(path_ + " has no symbol " + name +
                                 ": it is too old, or not the library of that name. NVIDIA's driver and CUDA 12.0 or "
                                 "newer have it");
    return address;
}

void Library::check_version(int version, int least, const char *what_to_do) const {
    if (version >= least) return;
    const auto text = [](int number) {
        return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
    };
    throw std::runtime_error(path_ + " is of version " + text(version) + "; " + text(least) +
                             " or newer is needed: " + what_to_do);
}

} // namespace resilin::cuda
