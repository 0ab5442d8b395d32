// Post for Python. What waits or copies releases the GIL.
#include "post_module.hpp"

#include <cstring>
#include <utility>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "held.hpp"
#include "post.hpp"

namespace nb = nanobind;

namespace resilin::dist {
namespace {

int put(Post &self, int to, int tag, nb::bytes descriptor, nb::handle data, nb::handle place, uint64_t number, uint32_t ticket) {
    if (descriptor.size() != sizeof(Descriptor)) throw nb::value_error("a descriptor has 80 bytes");
    Descriptor what;
    std::memcpy(&what, descriptor.c_str(), sizeof what);
    const Held held(data, false);
    Piece piece{held.at(), held.size(), IN_SLOT, 0};
    if (!place.is_none()) {
        const auto where = nb::cast<std::pair<uint64_t, uint64_t>>(place);
        piece.arena = where.first;
        piece.offset = where.second;
    } else if (piece.size > CELL_BYTES) {
        throw nb::value_error("the message does not fit a cell");
    }
    return self.put(to, tag, what, piece, number, ticket);
}

// (source, tag, descriptor, size, bytes or None, arena, offset, number, ticket) of the oldest message, or None
nb::object take(Post &self) {
    Cell *cell = self.take();
    if (!cell) return nb::none();
    const bool here = cell->arena == IN_SLOT;
    if (here && cell->size > CELL_BYTES) throw nb::value_error("a message is larger than its cell");
    nb::object payload = here ? nb::object(nb::bytes(cell->payload, cell->size)) : nb::object(nb::none());
    nb::object made = nb::make_tuple(
        cell->source, cell->tag, nb::bytes(reinterpret_cast<const char *>(&cell->descriptor), sizeof(Descriptor)), cell->size,
        payload, cell->arena, cell->offset, cell->number, cell->ticket);
    self.release(cell);
    return made;
}

int fetch(Post &self, int rank, uint64_t arena, uint64_t offset, nb::handle into) {
    const Held held(into, true);
    nb::gil_scoped_release release;
    return static_cast<int>(self.fetch(rank, arena, offset, held.at(), held.size()));
}

} // namespace

void bind_post(nb::module_ &m) {
    m.attr("CELL_BYTES") = CELL_BYTES;
    m.attr("TICKETS") = TICKETS;
    nb::class_<Post>(m, "Post")
        .def(nb::init<Segment &>(), nb::keep_alive<1, 2>())
        .def("put", &put, nb::arg("to"), nb::arg("tag"), nb::arg("descriptor"), nb::arg("data"), nb::arg("place").none(), nb::arg("number"), nb::arg("ticket"))
        .def("lack", &Post::lack)
        .def("lacks", &Post::lacks)
        .def("shortage", &Post::shortage)
        .def("take", &take)
        .def("relieve", &Post::relieve)
        .def("fetch", &fetch)
        .def("ack", &Post::ack)
        .def("acked", &Post::acked)
        .def("bell", &Post::bell)
        .def("wait", &Post::wait, nb::call_guard<nb::gil_scoped_release>())
        .def("ring", &Post::ring)
        .def("watch", &Post::watch)
        .def("expect", &Post::expect)
        .def("heard", &Post::heard)
        .def("withdraw", &Post::withdraw);
}

} // namespace resilin::dist
