// Post for Python. What waits or copies releases the GIL.
#include "post_module.hpp"

#include <cstring>
#include <utility>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "gil.hpp"
#include "held.hpp"
#include "post.hpp"

namespace nb = nanobind;

namespace resilin::dist {
namespace {

using Place = std::pair<uint64_t, uint64_t>; // arena and offset

Place place_of(nb::handle place) { return place.is_none() ? Place{IN_SLOT, 0} : nb::cast<Place>(place); }

Descriptor described(const nb::bytes &packed) {
    Descriptor what;
    if (packed.size() != sizeof what) throw nb::value_error("a descriptor has 80 bytes");
    std::memcpy(&what, packed.c_str(), sizeof what);
    return what;
}

// the number of a parcel, or IN_CELL
int32_t pack(Post &self, nb::handle data) {
    const Held held(data, false);
    if (held.size() > PARCEL_BYTES) throw nb::value_error("the message does not fit a parcel");
    return self.pack(held.at(), held.size());
}

int put(Post &self, int to, int tag, nb::bytes descriptor, nb::handle data, int32_t parcel) {
    const Held held(data, false);
    if (parcel == IN_CELL && held.size() > CELL_BYTES) throw nb::value_error("the message does not fit a cell");
    return self.put(to, tag, described(descriptor), {held.at(), held.size(), IN_SLOT, 0}, parcel);
}

std::pair<int, uint64_t> announce(Post &self, int to, int tag, nb::bytes descriptor, nb::handle data, Place place,
                                  bool awaited) {
    const Held held(data, false); // the caller keeps it until its number is settled
    return self.announce(to, tag, described(descriptor), {held.at(), held.size(), place.first, place.second}, awaited);
}

// (source, tag, descriptor, size, bytes or None, (arena, offset), number, ticket)
nb::object letter(const Taken &taken) {
    const Head &head = taken.head;
    return nb::make_tuple(
        head.source, head.tag, nb::bytes(reinterpret_cast<const char *>(&head.descriptor), sizeof head.descriptor), head.size,
        head.carried() ? nb::object(nb::bytes(taken.payload.data(), taken.payload.size())) : nb::object(nb::none()),
        Place{head.arena, head.offset}, head.number, head.ticket);
}

// the oldest message, or None
nb::object take(Post &self) {
    Taken taken;
    return self.take(taken) ? letter(taken) : nb::object(nb::none());
}

int fetch(Post &self, int source, Place place, nb::handle into) {
    const Held held(into, true);
    Head head{};
    head.source = source;
    head.arena = place.first;
    head.offset = place.second;
    head.size = held.size();
    const WithoutGil free;
    return static_cast<int>(self.fetch(head, held.at(), IN_SLOT, 0, 0));
}

// Appends to `answer`, which the caller has even if a signal handler raises when this returns: Got, and the message in case
// of LETTER and STUCK. Nothing is appended when a handler raised in here, before a message was taken.
void receive(Post &self, int source, int tag, int dtype, nb::handle into, nb::handle place, uint64_t since, double deadline, double spin_s,
             nb::list answer) {
    const Held held(into, true);
    const Place where = place_of(place);
    const Wanted wanted{source, tag, static_cast<uint8_t>(dtype), held.at(), held.size(), where.first, where.second};
    Taken taken;
    Got got;
    {
        const WithoutGil free;
        got = self.receive(wanted, since, deadline, spin_s, taken);
    }
    const bool left = got == Got::LETTER || got == Got::STUCK;
    answer.append(static_cast<int>(got));
    answer.append(left ? letter(taken) : nb::object(nb::none()));
}

} // namespace

void bind_post(nb::module_ &m) {
    m.attr("CELL_BYTES") = CELL_BYTES;
    m.attr("PARCEL_BYTES") = PARCEL_BYTES;
    m.attr("IN_CELL") = IN_CELL;
    m.attr("SHARED_MIN_BYTES") = SHARED_MIN_BYTES;
    nb::class_<Post>(m, "Post")
        .def(nb::init<Segment &>(), nb::keep_alive<1, 2>())
        .def("pack", &pack)
        .def("put", &put)
        .def("announce", &announce)
        .def("acked", &Post::acked)
        .def("settled_within", &Post::settled_within, nb::call_guard<WithoutGil>())
        .def("settle", &Post::settle)
        .def("lack", &Post::lack)
        .def("lacks", &Post::lacks)
        .def("shortage", &Post::shortage)
        .def("relieve", &Post::relieve)
        .def("take", &take)
        .def("fetch", &fetch)
        .def("ack", [](Post &self, int source, uint32_t ticket, uint64_t number) {
            Head head{};
            head.source = source;
            head.ticket = ticket;
            head.number = number;
            return self.ack(head);
        })
        .def("receive", &receive, nb::arg("source"), nb::arg("tag"), nb::arg("dtype"), nb::arg("into"), nb::arg("place").none(),
             nb::arg("since"), nb::arg("deadline"), nb::arg("spin_s"), nb::arg("answer"))
        .def("changes", &Post::changes)
        .def("disturb", &Post::disturb)
        .def("bell", &Post::bell)
        .def("wait", &Post::wait, nb::call_guard<WithoutGil>())
        .def("ring", [](Post &self) { self.ring(); })
        .def("watch", &Post::watch)
        .def("expect", &Post::expect)
        .def("unattended", &Post::unattended)
        .def("heard", &Post::heard)
        .def("gone", &Post::gone)
        .def("withdraw", &Post::withdraw);
}

} // namespace resilin::dist
