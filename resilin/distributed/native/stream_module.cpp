// Streams for Python. `walk` releases the GIL.
#include "stream_module.hpp"

#include <deque>

#include <nanobind/stl/vector.h>

#include "gil.hpp"
#include "held.hpp"
#include "stream.hpp"

namespace nb = nanobind;

namespace resilin::dist {
namespace {

// from (step, peer, buffer, buffer that it is combined with or None) each
std::vector<Move> moves(nb::list list, bool writable, std::deque<Held> &held) {
    std::vector<Move> found;
    for (nb::handle item : list) {
        nb::tuple t = nb::borrow<nb::tuple>(item);
        const Held &memory = held.emplace_back(t[2], writable);
        const char *own = t[3].is_none() ? nullptr : held.emplace_back(t[3], false).at();
        found.push_back({nb::cast<int64_t>(t[0]), nb::cast<int>(t[1]), memory.at(), memory.size(), own});
    }
    return found;
}

nb::tuple walk(Streams &self, nb::list sends, nb::list receives, int dtype, int op, double deadline) {
    std::deque<Held> held;
    const std::vector<Move> out = moves(sends, false, held), in = moves(receives, true, held);
    FlowEnd end;
    {
        const WithoutGil free;
        end = self.walk(out, in, dtype, static_cast<Op>(op), deadline);
    }
    return nb::make_tuple(static_cast<int>(end.status), end.to, end.source);
}

// as walk, after all have said the same; in the end also what they said, where they did not
nb::tuple open(Streams &self, nb::bytes word, std::vector<int64_t> sizes, nb::list sends, nb::list receives, int dtype, int op, double deadline) {
    std::deque<Held> held;
    const std::vector<Move> out = moves(sends, false, held), in = moves(receives, true, held);
    Opening opening{{word.c_str(), word.c_str() + word.size()}, std::move(sizes), {}};
    FlowEnd end;
    {
        const WithoutGil free;
        end = self.open(opening, out, in, dtype, static_cast<Op>(op), deadline);
    }
    return nb::make_tuple(static_cast<int>(end.status), end.to, end.source, nb::bytes(opening.heard.data(), opening.heard.size()));
}

} // namespace

void bind_streams(nb::module_ &m) {
    nb::class_<Streams>(m, "Streams")
        .def(nb::init<std::vector<int>>(), nb::arg("sockets"))
        .def("walk", &walk, nb::arg("sends"), nb::arg("receives"), nb::arg("dtype"), nb::arg("op"), nb::arg("deadline"))
        .def("open", &open, nb::arg("word"), nb::arg("sizes"), nb::arg("sends"), nb::arg("receives"), nb::arg("dtype"), nb::arg("op"), nb::arg("deadline"))
        .def("stop", &Streams::stop)
        .def("end", &Streams::end, nb::arg("peer"), nb::arg("total"))
        .def("sent", &Streams::sent, nb::arg("peer"))
        .def("received", &Streams::received, nb::arg("peer"));
}

} // namespace resilin::dist
