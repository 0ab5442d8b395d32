#include "stream.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <iterator>
#include <stdexcept>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "phases.hpp"
#include "signals.hpp"

namespace resilin::dist {
namespace {

constexpr size_t PIECE_BYTES = 256 << 10; // combined at once: stays in the second-level cache
constexpr size_t CALL_BYTES = 256 << 10;  // most per system call, so that both directions take turns while data is in cache
constexpr size_t WAKE_BYTES = 512 << 10;  // a receiver that sleeps is woken for this much, not for every packet
constexpr size_t AHEAD_BYTES = 256 << 10; // most that a peer is sent before all have agreed: what one latency takes
constexpr int LOOK_MS = 500;              // how often a sleeper looks for Python's signals

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

constexpr int64_t MOST_COMING = 64 << 20; // a peer that announces more before all have agreed talks nonsense

// How many bytes at [at, at + size) lie before what is not done yet of another move, `done` bytes of which are.
size_t clear_of(const char *at, size_t size, const Move &other, size_t done) {
    if (other.at >= at + size || other.at + other.size <= at) return size;
    if (other.at > at) return static_cast<size_t>(other.at - at);
    const char *edge = other.at + done;
    return edge > at ? std::min(size, static_cast<size_t>(edge - at)) : 0;
}

// How many bytes of `out`, `sent` of which are sent, lie before what receives of earlier steps have not written yet. The
// first of `receives` has `set` bytes in place.
size_t clear_to_send(const Move &out, size_t sent, const Move *receives, const Move *end, size_t set) {
    size_t room = out.size - sent;
    for (const Move *in = receives; in != end && in->step < out.step; in++) room = clear_of(out.at + sent, room, *in, in == receives ? set : 0);
    return room;
}

struct Lane {
    std::vector<Move> sends, receives;
};

std::vector<Move> without_empty(const std::vector<Move> &moves) {
    std::vector<Move> kept;
    std::copy_if(moves.begin(), moves.end(), std::back_inserter(kept), [](const Move &m) { return m.size > 0; });
    return kept;
}

// Whether nothing is received to where another move reads or writes.
bool independent(const std::vector<Move> &sends, std::vector<Move> receives) {
    const auto earlier = [](const Move &a, const Move &b) { return a.at < b.at; };
    std::sort(receives.begin(), receives.end(), earlier);
    const auto into_next = [](const Move &a, const Move &b) { return b.at < a.at + a.size; };
    if (std::adjacent_find(receives.begin(), receives.end(), into_next) != receives.end()) return false;
    if (std::any_of(receives.begin(), receives.end(), [](const Move &in) { return in.own != nullptr; })) return false;
    return std::none_of(sends.begin(), sends.end(), [&](const Move &out) {
        const auto beyond = std::lower_bound(receives.begin(), receives.end(), Move{0, 0, out.at + out.size, 0, nullptr}, earlier);
        return beyond != receives.begin() && std::prev(beyond)->at + std::prev(beyond)->size > out.at;
    });
}

// Moves by what their order counts for: those of each peer where they are independent, else all of them.
std::vector<Lane> lanes_of(const std::vector<Move> &sends, const std::vector<Move> &receives) {
    if (!independent(sends, receives)) return {{sends, receives}};
    std::vector<Lane> lanes;
    std::vector<int> peers;
    const auto lane_of = [&](int peer) -> Lane & {
        const auto found = std::find(peers.begin(), peers.end(), peer);
        if (found != peers.end()) return lanes[static_cast<size_t>(found - peers.begin())];
        peers.push_back(peer);
        return lanes.emplace_back();
    };
    for (const Move &out : sends) lane_of(out.peer).sends.push_back(out);
    for (const Move &in : receives) lane_of(in.peer).receives.push_back(in);
    return lanes;
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
    const Move *receives = c.receives.data();
    return clear_to_send(c.sends[c.s], c.sent, receives + c.r, receives + c.receives.size(), c.set);
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
    iovec parts[2] = {{out.at + c.sent, std::min(room, CALL_BYTES)}, {}};
    msghdr message{};
    message.msg_iov = parts, message.msg_iovlen = 1;
    if (c.s + 1 < c.sends.size() && parts[0].iov_len == out.size - c.sent) { // a word and what follows it: one packet
        const Move &next = c.sends[c.s + 1];
        if (next.peer == out.peer && next.step == out.step) parts[1] = {next.at, std::min(next.size, CALL_BYTES)}, message.msg_iovlen = 2;
    }
    const ssize_t n = sendmsg(peer.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n <= 0) {
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
        end = {Flow::GONE, out.peer, -1};
        return false;
    }
    peer.sent += n;
    c.sent += static_cast<size_t>(n);
    while (c.s < c.sends.size() && c.sent >= c.sends[c.s].size) c.sent -= c.sends[c.s++].size;
    return true;
}

bool Streams::receive_some(Cursor &c, size_t room, int dtype, Op op, FlowEnd &end) {
    const Move &in = c.receives[c.r];
    const size_t begin = c.set, stop = std::min(in.size, begin + PIECE_BYTES); // of the piece, where one is combined
    char *to = in.own ? piece_.data() + (c.got - begin) : in.at + c.got;
    Peer &peer = peers_[in.peer];
    size_t most = in.own ? std::min(room, stop - c.got) : std::min(room, CALL_BYTES);
    if (const int64_t ends = peer.ends; ends >= 0) most = std::min(most, static_cast<size_t>(std::max<int64_t>(0, ends - peer.received)));
    const ssize_t n = most ? recv(peer.socket, to, most, MSG_DONTWAIT) : 0;
    if (n <= 0) {
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
        end = {Flow::GONE, -1, in.peer};
        return false;
    }
    peer.received += n;
    c.got += static_cast<size_t>(n);
    if (!in.own) {
        c.set = c.got;
    } else if (c.got == stop) {
        const char *sources[] = {in.own + begin, piece_.data()};
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

bool Streams::wait(const std::vector<Cursor> &cursors, double deadline, FlowEnd &end) {
    std::vector<pollfd> fds{{wake_, POLLIN, 0}};
    for (const Cursor &c : cursors) {
        if (sendable(c)) fds.push_back({peers_[c.sends[c.s].peer].socket, POLLOUT, 0});
        if (const size_t in = receivable(c)) {
            Peer &peer = peers_[c.receives[c.r].peer];
            want(peer, in);
            fds.push_back({peer.socket, POLLIN, 0});
        }
    }
    const double left = deadline - now();
    if (fds.size() == 1 || left <= 0) {
        end = awaited(cursors, fds.size() == 1 ? Flow::STUCK : Flow::LATE);
        return false;
    }
    const int ready = poll(fds.data(), fds.size(), static_cast<int>(std::min<double>(std::ceil(left * 1e3), LOOK_MS)));
    if (ready <= 0) check_signals();
    uint64_t woken;
    if (fds[0].revents && read(wake_, &woken, sizeof woken) < 0) return true; // taken already
    return true;
}

// An end that names whom the first of `cursors` that is not done waits for.
FlowEnd Streams::awaited(const std::vector<Cursor> &cursors, Flow why) const {
    FlowEnd end{why, -1, -1};
    for (const Cursor &c : cursors) {
        if (end.to < 0 && sendable(c)) end.to = c.sends[c.s].peer;
        if (end.source < 0 && receivable(c)) end.source = c.receives[c.r].peer;
    }
    return end;
}

FlowEnd Streams::walk(const std::vector<Move> &all_sends, const std::vector<Move> &all_receives, int dtype, Op op, double deadline) {
    const std::vector<Move> sends = without_empty(all_sends), receives = without_empty(all_receives);
    if (piece_.empty() && std::any_of(receives.begin(), receives.end(), [](const Move &m) { return m.own != nullptr; }))
        piece_.resize(PIECE_BYTES);
    const std::vector<Lane> lanes = lanes_of(sends, receives);
    std::vector<Cursor> cursors;
    for (const Lane &lane : lanes) cursors.push_back({lane.sends, lane.receives, lane.sends.size()});
    const FlowEnd end = finish(cursors, dtype, op, deadline);
    for (const Move &in : receives) want(peers_[in.peer], 1); // others may wait on these sockets, too
    return end;
}

// Until all has arrived, and what must be sent has been.
FlowEnd Streams::finish(std::vector<Cursor> &cursors, int dtype, Op op, double deadline) {
    const auto is_left = [](const Cursor &c) { return c.s < c.needed || c.r < c.receives.size(); };
    FlowEnd end{Flow::DONE, -1, -1};
    while (std::any_of(cursors.begin(), cursors.end(), is_left)) {
        if (stopped_) return awaited(cursors, Flow::STOPPED);
        bool moved = false;
        for (Cursor &c : cursors) {
            if (const size_t room = sendable(c)) moved = send_some(c, room, end) || moved;
            if (end.status != Flow::DONE) return end;
            if (const size_t room = receivable(c)) moved = receive_some(c, room, dtype, op, end) || moved;
            if (end.status != Flow::DONE) return end;
        }
        if (moved) reached("data");
        if (!moved && !wait(cursors, deadline, end)) return end;
    }
    return end;
}

struct Streams::Talk {
    std::vector<int> peers;
    std::vector<Move> sends;                 // what is not sent yet: words, then what goes ahead
    std::vector<size_t> ahead;               // bytes of data that go ahead, by peer
    std::vector<int64_t> coming;             // bytes that follow a peer's word and have not been received, by peer
    std::vector<std::vector<char>> out, in;  // words, by peer
};

FlowEnd Streams::open(Opening &opening, std::vector<Move> sends, const std::vector<Move> &receives, int dtype, Op op, double deadline) {
    Talk talk{{}, {}, std::vector<size_t>(count_), std::vector<int64_t>(count_), std::vector<std::vector<char>>(count_), std::vector<std::vector<char>>(count_)};
    for (size_t p = 0; p < count_; p++)
        if (peers_[p].socket >= 0) talk.peers.push_back(static_cast<int>(p));
    const std::vector<Move> arriving = without_empty(receives);
    sends = without_empty(sends);
    std::vector<Move *> first(count_, nullptr);
    for (Move &out : sends) {
        if (first[out.peer]) continue;
        first[out.peer] = &out;
        talk.ahead[out.peer] = std::min(AHEAD_BYTES, clear_to_send(out, 0, arriving.data(), arriving.data() + arriving.size(), 0));
    }
    const size_t sizes_bytes = opening.sizes.size() * sizeof(int64_t);
    for (const int p : talk.peers) {
        const int64_t follow = static_cast<int64_t>(sizes_bytes + talk.ahead[p]);
        std::vector<char> &out = talk.out[p];
        out = opening.word;
        out.insert(out.end(), reinterpret_cast<const char *>(&follow), reinterpret_cast<const char *>(&follow + 1));
        out.insert(out.end(), reinterpret_cast<const char *>(opening.sizes.data()), reinterpret_cast<const char *>(opening.sizes.data()) + sizes_bytes);
        talk.sends.push_back({0, p, out.data(), out.size(), nullptr});
    }
    for (const int p : talk.peers)
        if (talk.ahead[p]) talk.sends.push_back({0, p, first[p]->at, talk.ahead[p], nullptr});
    if (const FlowEnd end = agree(opening, talk, deadline); end.status != Flow::DONE) return end;
    reached("agreed");
    for (const Move &left : talk.sends) talk.ahead[left.peer] -= left.size;
    for (const int p : talk.peers)
        if (first[p]) first[p]->at += talk.ahead[p], first[p]->size -= talk.ahead[p];
    return walk(sends, receives, dtype, op, deadline);
}

FlowEnd Streams::agree(Opening &opening, Talk &talk, double deadline) {
    const size_t word = opening.word.size();
    std::vector<Move> receives;
    for (const int p : talk.peers) {
        talk.in[p].resize(word + sizeof(int64_t));
        receives.push_back({0, p, talk.in[p].data(), talk.in[p].size(), nullptr});
    }
    if (const FlowEnd end = move_on(talk, receives, talk.peers.size(), deadline); end.status != Flow::DONE) return end;
    bool same = true;
    opening.heard.clear();
    for (size_t p = 0; p < count_; p++) {
        const std::vector<char> &said = peers_[p].socket >= 0 ? talk.in[p] : opening.word;
        opening.heard.insert(opening.heard.end(), said.begin(), said.begin() + static_cast<ptrdiff_t>(word));
        if (peers_[p].socket < 0) continue;
        same = same && std::memcmp(said.data(), opening.word.data(), word) == 0;
        std::memcpy(&talk.coming[p], said.data() + word, sizeof(int64_t));
    }
    if (!same) return throw_away(talk, Flow::MISMATCH, deadline);
    return opening.sizes.empty() ? FlowEnd{Flow::DONE, -1, -1} : fit(opening, talk, deadline);
}

// All have made the same all_to_all: let everybody see all sizes.
FlowEnd Streams::fit(Opening &opening, Talk &talk, double deadline) {
    const size_t sizes = opening.sizes.size();
    std::vector<int64_t> all(count_ * sizes);
    std::vector<Move> receives;
    for (size_t p = 0; p < count_; p++) {
        if (peers_[p].socket < 0) {
            std::copy(opening.sizes.begin(), opening.sizes.end(), all.begin() + static_cast<ptrdiff_t>(p * sizes));
            continue;
        }
        receives.push_back({0, static_cast<int>(p), reinterpret_cast<char *>(&all[p * sizes]), sizes * sizeof(int64_t), nullptr});
        talk.coming[p] -= static_cast<int64_t>(sizes * sizeof(int64_t));
    }
    if (const FlowEnd end = move_on(talk, receives, 0, deadline); end.status != Flow::DONE) return end;
    bool same = true;
    for (size_t from = 0; from < count_; from++)
        for (size_t to = 0; to < count_; to++) same = same && all[from * sizes + to] == all[to * sizes + count_ + from];
    if (same) return {Flow::DONE, -1, -1};
    opening.heard.assign(reinterpret_cast<const char *>(all.data()), reinterpret_cast<const char *>(all.data() + all.size()));
    return throw_away(talk, Flow::MISFIT, deadline);
}

// Receive all of `receives` and send the first `sends` of what is to be sent, the rest as far as it goes.
FlowEnd Streams::move_on(Talk &talk, std::vector<Move> receives, size_t sends, double deadline) {
    std::vector<Cursor> cursors{{talk.sends, receives, sends}};
    const Cursor &c = cursors[0];
    const FlowEnd end = finish(cursors, 0, Op::SUM, deadline);
    for (const Move &in : receives) want(peers_[in.peer], 1);
    talk.sends.erase(talk.sends.begin(), talk.sends.begin() + static_cast<ptrdiff_t>(c.s));
    if (c.sent) talk.sends[0].at += c.sent, talk.sends[0].size -= c.sent;
    return end;
}

// Ranks have not agreed: send what was announced, and receive what peers announced, to no end.
FlowEnd Streams::throw_away(Talk &talk, Flow why, double deadline) {
    std::vector<char> waste(PIECE_BYTES);
    std::vector<Move> receives;
    for (const int p : talk.peers) {
        if (talk.coming[p] < 0 || talk.coming[p] > MOST_COMING) return {Flow::GONE, -1, p}; // makes no sense
        for (size_t left = static_cast<size_t>(talk.coming[p]), n; left; left -= n) {
            n = std::min(left, waste.size());
            receives.push_back({0, p, waste.data(), n, nullptr});
        }
    }
    const FlowEnd end = move_on(talk, receives, talk.sends.size(), deadline);
    return end.status == Flow::DONE ? FlowEnd{why, -1, -1} : end;
}

} // namespace resilin::dist
