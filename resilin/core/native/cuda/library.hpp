// A shared library that is opened when it is asked for, and the addresses of its C functions.
#pragma once
#include <string>
#include <type_traits>

namespace resilin::cuda {

// Stays open until the process ends: what it made may outlive whoever opened it.
class Library {
  public:
    // std::runtime_error names the file, and says what the loader said.
    explicit Library(std::string path);

    // `function` becomes the address of `name`; std::runtime_error names library and symbol where it has none.
    template <class F> void load(F *&function, const char *name) const {
        static_assert(std::is_function_v<F>);
        function = reinterpret_cast<F *>(required(name));
    }
    // the same; null where the library, which is older, has none
    template <class F> void load_if_there(F *&function, const char *name) const {
        static_assert(std::is_function_v<F>);
        function = reinterpret_cast<F *>(found(name));
    }
    // std::runtime_error names the library, its `version` as CUDA counts them and the `least` one, and what to do.
    void check_version(int version, int least, const char *what_to_do) const;

    const std::string &path() const { return path_; }

  private:
    void *found(const char *name) const;
    void *required(const char *name) const;

    std::string path_;
    void *handle_;
};

} // namespace resilin::cuda
