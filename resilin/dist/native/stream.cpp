#include "stream.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <iterator>
#include <stdexcept>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "phases.hpp"
#include "signals.hpp"

namespace resilin::dist {
namespace {

constexpr size_t PIECE_BYTES = 256 << 10; // combined at once: stays in the second-level cache
constexpr size_t CALL_BYTES = 1 << 20;    // most per system call, so that both directions take turns
constexpr size_t WAKE_BYTES = 512 << 10;  // a receiver that sleeps is woken for this much, not for every packet
constexpr int LOOK_MS = 500;              // how often a sleeper looks for Python's signals

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// How many bytes at [at, at + size) lie before what is not done yet of another move, `done` bytes of which are.
size_t clear_of(const char *at, size_t size, const Move &other, size_t done) {
    if (other.at >= at + size || other.at + other.size <= at) return size;
    if (other.at > at) return static_cast<size_t>(other.at - at);
    const char *edge = other.at + done;
    return edge > at ? std::min(size, static_cast<size_t>(edge - at)) : 0;
}

std::vector<Move> without_empty(const std::vector<Move> &moves) {
    std::vector<Move> kept;
    std::copy_if(moves.begin(), moves.end(), std::back_inserter(kept), [](const Move &m) { return m.size > 0; });
    return kept;
}

} // namespace

Streams::Streams(std::vector<int> sockets) : count_(sockets.size()), peers_(new Peer[sockets.size()]) {
    for (size_t i = 0; i < count_; i++) peers_[i].socket = sockets[i];
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_ < 0) throw std::runtime_error("no descriptor for an eventfd");
}

Streams::~Streams() { close(wake_); }

void Streams::wake() {
    const uint64_t one = 1;
    if (write(wake_, &one, sizeof one) < 0) return; // full: readable already
}

void Streams::stop() {
    stopped_ = true;
    wake();
}

void Streams::end(int peer, int64_t total) {
    peers_[peer].ends = total;
    wake();
}

size_t Streams::sendable(const Cursor &c) const {
    if (c.s >= c.sends.size()) return 0;
    const Move &out = c.sends[c.s];
    size_t room = out.size - c.sent;
    for (size_t j = c.r; j < c.receives.size() && c.receives[j].step < out.step; j++)
        room = clear_of(out.at + c.sent, room, c.receives[j], j == c.r ? c.set : 0);
    return room;
}

size_t Streams::receivable(const Cursor &c) const {
    if (c.r >= c.receives.size()) return 0;
    const Move &in = c.receives[c.r];
    size_t room = in.size - c.got;
    for (size_t j = c.s; j < c.sends.size() && c.sends[j].step <= in.step; j++)
        room = clear_of(in.at + c.got, room, c.sends[j], j == c.s ? c.sent : 0);
    return room;
}

bool Streams::send_some(Cursor &c, size_t room, FlowEnd &end) {
    const Move &out = c.sends[c.s];
    Peer &peer = peers_[out.peer];
    if (peer.ends >= 0) {
        end = {Flow::GONE, out.peer, -1};
        return false;
    }
    const ssize_t n = send(peer.socket, out.at + c.sent, std::min(room, CALL_BYTES), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n <= 0) {
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
        end = {Flow::GONE, out.peer, -1};
        return false;
    }
    peer.sent += n;
    c.sent += static_cast<size_t>(n);
    if (c.sent == out.size) c.s++, c.sent = 0;
    return true;
}

bool Streams::receive_some(Cursor &c, size_t room, int dtype, Op op, FlowEnd &end) {
    const Move &in = c.receives[c.r];
    const size_t begin = c.set, stop = std::min(in.size, begin + PIECE_BYTES); // of the piece, where one is combined
    char *to = in.combine ? piece_.data() + (c.got - begin) : in.at + c.got;
    Peer &peer = peers_[in.peer];
    size_t most = in.combine ? std::min(room, stop - c.got) : std::min(room, CALL_BYTES);
    if (const int64_t ends = peer.ends; ends >= 0) most = std::min(most, static_cast<size_t>(std::max<int64_t>(0, ends - peer.received)));
    const ssize_t n = most ? recv(peer.socket, to, most, MSG_DONTWAIT) : 0;
    if (n <= 0) {
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
        end = {Flow::GONE, -1, in.peer};
        return false;
    }
    peer.received += n;
    c.got += static_cast<size_t>(n);
    if (!in.combine) {
        c.set = c.got;
    } else if (c.got == stop) {
        const char *sources[] = {in.at + begin, piece_.data()};
        char *destinations[] = {in.at + begin};
        reduce(dtype, op, sources, 2, destinations, 1, (stop - begin) / item_size(dtype));
        c.set = stop;
    }
    if (c.set == in.size) c.r++, c.got = c.set = 0;
    return true;
}

// Let poll() report `peer` readable once a fair part of these bytes is there: fewer, longer turns of a busy receiver.
void Streams::want(Peer &peer, size_t bytes) {
    const size_t fair = bytes >= 2 * WAKE_BYTES ? WAKE_BYTES : bytes >= WAKE_BYTES / 2 ? WAKE_BYTES / 4 : 1;
    const int least = static_cast<int>(fair);
    if (peer.wanted == least) return;
    if (setsockopt(peer.socket, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) == 0) peer.wanted = least;
}

bool Streams::wait(const Cursor &c, size_t out, size_t in, double deadline, FlowEnd &end) {
    pollfd fds[3] = {{wake_, POLLIN, 0}, {}, {}};
    nfds_t count = 1;
    if (out) fds[count++] = {peers_[c.sends[c.s].peer].socket, POLLOUT, 0};
    if (in) {
        Peer &peer = peers_[c.receives[c.r].peer];
        want(peer, in);
        fds[count++] = {peer.socket, POLLIN, 0};
    }
    const double left = deadline - now();
    if (count == 1 || left <= 0) {
        end = {count == 1 ? Flow::STUCK : Flow::LATE, out ? c.sends[c.s].peer : -1, in ? c.receives[c.r].peer : -1};
        return false;
    }
    const int ready = poll(fds, count, static_cast<int>(std::min<double>(std::ceil(left * 1e3), LOOK_MS)));
    if (ready <= 0) check_signals();
    uint64_t woken;
    if (fds[0].revents && read(wake_, &woken, sizeof woken) < 0) return true; // taken already
    return true;
}

FlowEnd Streams::walk(const std::vector<Move> &all_sends, const std::vector<Move> &all_receives, int dtype, Op op, double deadline) {
    const std::vector<Move> sends = without_empty(all_sends), receives = without_empty(all_receives);
    if (piece_.empty() && std::any_of(receives.begin(), receives.end(), [](const Move &m) { return m.combine; }))
        piece_.resize(PIECE_BYTES);
    Cursor c{sends, receives};
    const FlowEnd end = finish(c, dtype, op, deadline);
    for (const Move &in : receives) want(peers_[in.peer], 1); // others may wait on these sockets, too
    return end;
}

FlowEnd Streams::finish(Cursor &c, int dtype, Op op, double deadline) {
    FlowEnd end{Flow::DONE, -1, -1};
    while (c.s < c.sends.size() || c.r < c.receives.size()) {
        if (stopped_) return {Flow::STOPPED, sendable(c) ? c.sends[c.s].peer : -1, receivable(c) ? c.receives[c.r].peer : -1};
        bool moved = false;
        if (const size_t room = sendable(c)) moved = send_some(c, room, end);
        if (end.status != Flow::DONE) return end;
        if (const size_t room = receivable(c)) moved = receive_some(c, room, dtype, op, end) || moved;
        if (end.status != Flow::DONE) return end;
        if (moved) reached("data");
        if (!moved && !wait(c, sendable(c), receivable(c), deadline, end)) return end;
    }
    return end;
}

} // namespace resilin::dist
