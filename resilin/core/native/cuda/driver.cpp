#include "driver.hpp"

#include <stdexcept>

namespace resilin::cuda {

Driver::Driver(const std::string &path) : library(path) {
    library.load(init, "cuInit");
    library.load(driver_version, "cuDriverGetVersion");
    library.load(error_name, "cuGetErrorName");
    library.load(error_string, "cuGetErrorString");
    const auto check = [&](Status status, const char *call) {
        if (status) throw std::runtime_error(library.path() + ": " + call + " gave " + describe(status).first);
    };
    check(init(0), "cuInit");
    check(driver_version(&version), "cuDriverGetVersion");
    library.check_version(version, 12000, "install NVIDIA's driver 525 or newer");
    library.load(current_context, "cuCtxGetCurrent");
    library.load(set_current_context, "cuCtxSetCurrent");
    library.load(launch_kernel, "cuLaunchKernel");
    library.load(synchronize_stream, "cuStreamSynchronize");
    library.load_if_there(parameter_info, "cuFuncGetParamInfo");
}

std::pair<std::string, std::string> Driver::describe(Status status) const {
    const char *name = nullptr, *text = nullptr;
    if (error_name(status, &name) || !name) name = "an unknown error";
    if (error_string(status, &text) || !text) text = "the driver does not know it";
    return {name, text};
}

} // namespace resilin::cuda
