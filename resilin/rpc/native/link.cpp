#include "link.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <sys/eventfd.h>
#include <unistd.h>

namespace resilin::rpc {
namespace {

constexpr size_t LINK_BYTES = 2 * RING_SPAN;
constexpr double SIGNALS_S = 1.0; // a signal that comes just before a thread sleeps does not wake it

} // namespace

Waker::Waker() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_ < 0) throw std::runtime_error(std::string("no eventfd: ") + std::strerror(errno));
}

Waker::~Waker() { close(); }

void Waker::close() {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

void Waker::wake() {
    const std::lock_guard<std::mutex> guard(mutex_);
    const uint64_t one = 1;
    if (fd_ >= 0 && write(fd_, &one, sizeof one) < 0) return; // it is full: whoever reads it wakes anyway
}

Link::Link(int peer, size_t max_bytes, std::shared_ptr<Waker> waker)
    : peer_(peer), waker_(std::move(waker)), max_bytes_(max_bytes), incoming_(Memory::make("resilin-rpc-rings", LINK_BYTES)),
      requests_(incoming_->at(), max_bytes), replies_(incoming_->at() + RING_SPAN, max_bytes) {}

void Link::attach(int bells, int rings, size_t max_bytes) {
    bells_ = Memory::map(bells, BELLS_BYTES);
    outgoing_ = Memory::map(rings, LINK_BYTES);
    max_bytes_ = std::min(max_bytes_, max_bytes);
    for (int i = 0; i < 2; i++) outs_[i].writer.emplace(outgoing_->at() + static_cast<size_t>(i) * RING_SPAN);
}

void Link::breaks(const char *why) {
    const char *none = "";
    why_.compare_exchange_strong(none, why);
    broken_.store(true, std::memory_order_release);
    waker_->wake();
}

void Link::end() {
    over_.store(true, std::memory_order_seq_cst);
    relieve();
}

void Link::relieve() {
    for (Out &out : outs_)
        if (out.writer) out.writer->disturb();
}

// One record. FULL: nothing was done.
Sent Link::put(Out &out, Outgoing &what, uint16_t queue, Kind kind, size_t size) {
    if (ended()) return Sent::OVER;
    const uint64_t total = what.total();
    const size_t before = kind == FIRST ? sizeof total : 0;
    Record *record = nullptr;
    switch (out.writer->reserve(before + size, record)) {
    case Writer::Room::BROKEN:
        breaks("it says that it has read what was not sent");
        end();
        return Sent::OVER;
    case Writer::Room::NO:
        return Sent::FULL;
    case Writer::Room::YES:
        break;
    }
    *record = Record{static_cast<uint32_t>(before + size), queue, kind, what.parts(), 0};
    char *to = reinterpret_cast<char *>(record + 1);
    if (before) std::memcpy(to, &total, before);
    what.copy(to + before, size);
    out.writer->publish();
    ring(bell(queue));
    return Sent::DONE;
}

Sent Link::send(Outgoing &what, uint16_t queue) {
    if (!bells_ || ended()) return Sent::OVER;
    if (what.bytes() > max_bytes_ || what.parts() > MAX_PARTS) return Sent::LONG;
    if (!open(queue)) return Sent::DONE;
    Out &ring = out(queue);
    if (what.total() > CHUNK_BYTES || !ring.mutex.try_lock()) return Sent::FULL;
    const std::lock_guard<std::timed_mutex> guard(ring.mutex, std::adopt_lock);
    return put(ring, what, queue, WHOLE, what.total());
}

Sent Link::put_in_time(Out &out, Outgoing &what, uint16_t queue, Kind kind, size_t size, double deadline) {
    for (;;) {
        const Sent sent = put(out, what, queue, kind, size);
        if (sent != Sent::FULL) return sent;
        if (!open(queue)) return Sent::DONE;
        const double at = dist::now();
        if (at >= deadline) return Sent::LATE;
        const int why = out.writer->wait(std::min(deadline, at + SIGNALS_S));
        if (why == EINTR || why == ETIMEDOUT) check_signals();
    }
}

// The ring is this message's until it is complete. One that is given up in the middle is dropped by the receiver when the
// next one comes.
Sent Link::send(Outgoing &what, uint16_t queue, double deadline) {
    if (!bells_) return Sent::OVER;
    Out &out = this->out(queue);
    std::unique_lock<std::timed_mutex> guard(out.mutex, std::defer_lock);
    for (;;) {
        const double left = std::min(deadline - dist::now(), SIGNALS_S);
        if (guard.try_lock_for(std::chrono::duration<double>(std::max(left, 0.0)))) break;
        check_signals();
        if (dist::now() >= deadline) return Sent::LATE;
    }
    what.rewind();
    if (what.total() <= CHUNK_BYTES) return put_in_time(out, what, queue, WHOLE, what.total(), deadline);
    Kind kind = FIRST;
    for (size_t left = what.total(); left > 0; kind = MORE) {
        const size_t size = std::min(left, CHUNK_BYTES);
        const Sent sent = put_in_time(out, what, queue, kind, size, deadline);
        if (sent != Sent::DONE) return sent;
        if (!open(queue)) return Sent::DONE;
        left -= size;
    }
    return Sent::DONE;
}

} // namespace resilin::rpc
