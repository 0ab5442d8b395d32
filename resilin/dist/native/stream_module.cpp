// Streams for Python. `walk` releases the GIL.
#include "stream_module.hpp"

#include <deque>

#include <nanobind/stl/vector.h>

#include "held.hpp"
#include "stream.hpp"

namespace nb = nanobind;

namespace resilin::dist {
namespace {

// from (step, peer, buffer, combine) each
std::vector<Move> moves(nb::list list, bool writable, std::deque<Held> &held) {
    std::vector<Move> found;
    for (nb::handle item : list) {
        nb::tuple t = nb::borrow<nb::tuple>(item);
        const Held &memory = held.emplace_back(t[2], writable);
        found.push_back({nb::cast<int64_t>(t[0]), nb::cast<int>(t[1]), memory.at(), memory.size(), nb::cast<bool>(t[3])});
    }
    return found;
}

nb::tuple walk(Streams &self, nb::list sends, nb::list receives, int dtype, int op, double deadline) {
    std::deque<Held> held;
    const std::vector<Move> out = moves(sends, false, held), in = moves(receives, true, held);
    FlowEnd end;
    {
        nb::gil_scoped_release release;
        end = self.walk(out, in, dtype, static_cast<Op>(op), deadline);
    }
    return nb::make_tuple(static_cast<int>(end.status), end.to, end.source);
}

} // namespace

void bind_streams(nb::module_ &m) {
    nb::class_<Streams>(m, "Streams")
        .def(nb::init<std::vector<int>>(), nb::arg("sockets"))
        .def("walk", &walk, nb::arg("sends"), nb::arg("receives"), nb::arg("dtype"), nb::arg("op"), nb::arg("deadline"))
        .def("stop", &Streams::stop)
        .def("end", &Streams::end, nb::arg("peer"), nb::arg("total"))
        .def("sent", &Streams::sent, nb::arg("peer"))
        .def("received", &Streams::received, nb::arg("peer"));
}

} // namespace resilin::dist
