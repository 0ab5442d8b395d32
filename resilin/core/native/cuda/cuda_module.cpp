// What resilin.core.backends.cuda_driver calls.
#include "binding/array.hpp"
#include "cuda_module.hpp"
#include "blaslt.hpp"
#include "driver.hpp"
#include "launch.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <tuple>
#include <unordered_map>

namespace resilin {
namespace {

using cuda::address_of;

// cuBLASLt, and where a product's workspace lies on each stream.
struct Products {
    cuda::Blaslt blaslt;
    nb::object stream;    // () -> the stream to launch on, an object with `ptr`
    nb::object workspace; // (stream's address) -> address of memory of `workspace_bytes` that stays
    nb::object failed;    // (name, stream's address, status): raises
    std::size_t workspace_bytes;
    std::unordered_map<uintptr_t, uintptr_t> workspaces;

    Products(const std::string &path, nb::object stream, nb::object workspace, nb::object failed, std::size_t bytes)
        : blaslt(path), stream(std::move(stream)), workspace(std::move(workspace)), failed(std::move(failed)),
          workspace_bytes(bytes) {}

    void *workspace_of(uintptr_t on) {
        const auto found = workspaces.find(on);
        if (found != workspaces.end()) return reinterpret_cast<void *>(found->second);
        const auto made = nb::cast<uintptr_t>(workspace(on));
        workspaces[on] = made;
        return reinterpret_cast<void *>(made);
    }
};

// A plan with what its launches need.
struct BoundPlan {
    Products &products; // kept by the binding
    cuda::Plan plan;

    bool run(nb::handle a, nb::handle b, nb::handle out, nb::handle extra) {
        const auto at = [](nb::handle array) { return reinterpret_cast<void *>(address_of(array.ptr())); };
        void *const A = at(a), *const B = at(b), *const D = at(out);
        void *const vector = extra.is_none() ? nullptr : at(extra);
        int64_t bytes = plan.workspace_bytes(A, B, D, vector);
        if (bytes == cuda::Plan::UNKNOWN) {
            {
                WithoutGil free;
                plan.prepare(A, B, D, vector);
            }
            bytes = plan.workspace_bytes(A, B, D, vector);
        }
        if (bytes == cuda::Plan::NONE) return false;
        const uintptr_t stream = cuda::stream_of(products.stream.ptr());
        void *const workspace = bytes ? products.workspace_of(stream) : nullptr;
        cuda::BlasStatus status;
        {
            WithoutGil free; // as launches of kernels
            status = plan.run(A, B, D, vector, workspace, reinterpret_cast<void *>(stream));
        }
        if (status == cuda::BLAS_NOT_SUPPORTED) return false;
        if (status) products.failed("cublasLtMatmul", stream, status);
        return true;
    }
};

using MatrixOfPython = std::tuple<uint64_t, uint64_t, int64_t, bool, int64_t>;

cuda::Matrix matrix_of(const MatrixOfPython &given) {
    const auto &[rows, columns, leading, transposed, batch_stride] = given;
    return {rows, columns, leading, transposed, batch_stride};
}

BoundPlan *make_plan(Products &products, int type, int compute, int scale, int epilogue,
                     uint32_t reductions, int32_t batches, bool adds, const MatrixOfPython &a, const MatrixOfPython &b,
                     const MatrixOfPython &out) {
    products.blaslt.start();
    const cuda::Kind kind = {type, compute, scale, epilogue, reductions, batches, adds, products.workspace_bytes};
    return new BoundPlan{products, {products.blaslt, kind, matrix_of(a), matrix_of(b), matrix_of(out)}};
}

} // namespace

void bind_cuda(nb::module_ &m) {
    using namespace nb::literals;
    nb::class_<cuda::Driver>(m, "CudaDriver", "CUDA's driver, opened from a file.")
        .def(nb::init<const std::string &>(), "path"_a)
        .def_prop_ro("path", [](const cuda::Driver &self) { return self.library.path(); })
        .def_ro("version", &cuda::Driver::version)
        .def("describe", &cuda::Driver::describe, "status"_a)
        .def(
            "kernel",
            [](nb::handle self, uintptr_t function, nb::str name, nb::object stream, nb::object failed, bool waits) {
                return cuda::make_kernel(self, function, std::move(name), std::move(stream), std::move(failed), waits);
            },
            "function"_a, "name"_a, "stream"_a, "failed"_a, "waits"_a);
    nb::class_<Products>(m, "CudaProducts", "cuBLASLt, opened from a file.")
        .def(nb::init<const std::string &, nb::object, nb::object, nb::object, std::size_t>(), "path"_a, "stream"_a,
             "workspace"_a, "failed"_a, "workspace_bytes"_a)
        .def_prop_ro("path", [](const Products &self) { return self.blaslt.library.path(); })
        .def_prop_ro("version", [](const Products &self) { return self.blaslt.version; })
        .def("plan", &make_plan, nb::rv_policy::take_ownership, nb::keep_alive<0, 1>(), "type"_a, "compute"_a,
             "scale"_a, "epilogue"_a, "reductions"_a, "batches"_a, "adds"_a, "a"_a, "b"_a, "out"_a);
    nb::class_<BoundPlan>(m, "CudaPlan", "A product of matrices; false where cuBLASLt has no algorithm for it.")
        .def("__call__", &BoundPlan::run, "a"_a, "b"_a, "out"_a, "extra"_a.none());
}

} // namespace resilin
