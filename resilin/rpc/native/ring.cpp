#include "ring.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/mman.h>

namespace resilin::rpc {
namespace {

constexpr int CHUNKS_AT_ONCE = 4;
constexpr size_t QUICK_BYTES = 16 << 10; // takes a microsecond
constexpr double STALL_S = 1e-3; // without anything taken: the receiver has other things to do

constexpr uint64_t aligned(uint64_t size) { return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }
constexpr uint64_t span(uint64_t size) { return sizeof(Record) + aligned(size); }

} // namespace

void Outgoing::copy(char *to, size_t size) {
    const size_t table = sizes_.size() * sizeof(uint64_t);
    if (table_ < table) {
        const size_t count = std::min(size, table - table_);
        std::memcpy(to, reinterpret_cast<const char *>(sizes_.data()) + table_, count);
        table_ += count;
        to += count;
        size -= count;
    }
    while (size > 0) {
        const Span &from = spans_[span_];
        const size_t count = std::min(size, from.size - offset_);
        if (count) std::memcpy(to, from.at + offset_, count);
        to += count;
        size -= count;
        offset_ += count;
        if (offset_ == from.size) {
            span_++;
            offset_ = 0;
        }
    }
}

// --- the sender's end ---

Writer::Room Writer::room(uint64_t needed) {
    const auto fits = [&] { return head_ != full_ && tail_ - head_ + needed <= (head_ == stalled_ ? RING_BYTES : WINDOW_BYTES); };
    if (fits()) return Room::YES;
    head_ = words_.head.load(std::memory_order_seq_cst);
    if (tail_ - head_ > RING_BYTES || head_ % ALIGNMENT != 0) return Room::BROKEN;
    if (fits()) return Room::YES;
    needed_ = needed;
    if (head_ == stalled_) full_ = head_;
    return Room::NO;
}

// What is in the ring begins at its start again, when there is nothing: so a ring that is never full stays in caches.
void Writer::restart() {
    if (words_.head.load(std::memory_order_acquire) != tail_) return;
    head_ = origin_ = tail_;
    words_.origin.store(origin_, std::memory_order_relaxed); // the receiver reads it after the next `tail`
    if (highest_ > 2 * WINDOW_BYTES) // what a long backlog took is given back
        madvise(data_ + WINDOW_BYTES, highest_ - WINDOW_BYTES, MADV_REMOVE);
    highest_ = 0;
    restart_ = RESTART_BYTES;
}

// A record lies in one piece: what is left at the end of the ring is skipped if it is too short.
Writer::Room Writer::reserve(size_t size, Record *&record) {
    if (at() < RESTART_BYTES) restart_ = RESTART_BYTES;
    if (at() >= restart_) {
        restart_ = at() + RESTART_BYTES;
        restart();
    }
    const uint64_t need = span(size), rest = RING_BYTES - at(), skip = need > rest ? rest : 0;
    const Room found = room(skip + need);
    if (found != Room::YES) return found;
    if (skip) {
        const Record over{static_cast<uint32_t>(skip - sizeof(Record)), 0, SKIP, 0, 0};
        std::memcpy(data_ + at(), &over, sizeof over);
    }
    record = reinterpret_cast<Record *>(data_ + (skip ? 0 : at()));
    next_ = tail_ + skip + need;
    highest_ = std::max(highest_, skip ? RING_BYTES : at() + need);
    return Room::YES;
}

void Writer::publish() {
    tail_ = next_;
    words_.tail.store(tail_, std::memory_order_seq_cst);
}

// The wish is left before the last look, and the receiver looks for it after it has moved `head`: one sees the other.
// A window is waited for as long as the receiver takes something, and half of it at once: it is woken seldom.
int Writer::wait(double deadline) {
    const bool stalled = head_ == stalled_;
    const uint64_t seen_head = head_, most = stalled ? std::min(RING_BYTES - needed_, tail_ - head_ - 1) : WINDOW_BYTES / 2;
    const uint32_t seen = words_.room.load(std::memory_order_seq_cst);
    words_.wanted.store(most + 1, std::memory_order_seq_cst);
    head_ = words_.head.load(std::memory_order_seq_cst);
    if (tail_ - head_ <= most) return 0;
    const double until = stalled ? deadline : std::min(deadline, dist::now() + STALL_S);
    const int why = dist::futex_wait(&words_.room, seen, until);
    if (why != ETIMEDOUT || stalled) return why;
    if (words_.head.load(std::memory_order_seq_cst) == seen_head) stalled_ = seen_head;
    return 0;
}

void Writer::disturb() {
    words_.room.fetch_add(1, std::memory_order_seq_cst);
    dist::futex_wake(&words_.room);
}

// --- the receiver's end ---

Reader::Found Reader::broken(const char *why) {
    why_ = why;
    return Found::BROKEN;
}

// The sender moves `origin` while the ring is empty only: what is left of it then is nothing.
void Reader::look() {
    const bool nothing = tail_ == head_;
    tail_ = words_.tail.load(std::memory_order_seq_cst);
    if (nothing) origin_ = words_.origin.load(std::memory_order_relaxed);
}

void Reader::finish() {
    if (!finished_) look();
    finished_ = true;
}

Reader::Found Reader::peek(Record &record, const char *&data) {
    for (;;) {
        if (tail_ == head_ && !finished_) look();
        const uint64_t filled = tail_ - head_, at = (head_ - origin_) % RING_BYTES;
        if (filled == 0) return Found::NOTHING;
        if (filled > RING_BYTES || filled % ALIGNMENT != 0 || at % ALIGNMENT != 0) return broken("its ring holds more than fits");
        uint64_t words[2]; // read once: the sender could change them between two looks
        for (int i = 0; i < 2; i++)
            words[i] = __atomic_load_n(reinterpret_cast<uint64_t *>(data_ + at) + i, __ATOMIC_RELAXED);
        std::memcpy(&record, words, sizeof record);
        const uint64_t length = span(record.size);
        if (length > filled || length > RING_BYTES - at) return broken("a record reaches beyond what was sent");
        if (record.kind != SKIP) {
            data = data_ + at + sizeof(Record);
            return Found::MESSAGE;
        }
        if (length != RING_BYTES - at) return broken("a record skips less than the rest of the ring");
        head_ += length;
    }
}

bool Reader::start(Arrived &into, const Record &record, uint64_t total) {
    const uint64_t table = record.parts * sizeof(uint64_t);
    if (record.parts > MAX_PARTS || total < table || total - table > max_bytes_) {
        why_ = "a message is longer than max_message_bytes";
        return false;
    }
    into.queue = record.queue;
    into.parts = record.parts;
    into.size = 0;
    into.bytes = Buffer(total);
    if (!into.bytes) why_ = "there is no memory for its message";
    return static_cast<bool>(into.bytes);
}

bool Reader::adds_up(const Arrived &message) const {
    uint64_t rest = message.size - message.parts * sizeof(uint64_t), size;
    for (uint32_t part = 0; part < message.parts; part++) {
        std::memcpy(&size, message.bytes.get() + part * sizeof size, sizeof size);
        if (size > rest) return false;
        rest -= size;
    }
    return rest == 0;
}

// A message that comes whole, or another one's first part, says that the sender has given up the one that is partial.
Reader::Found Reader::next(Arrived &into, bool quick) {
    if (why_) return Found::BROKEN;
    Record record;
    const char *data;
    for (int chunks = 0;; chunks++) {
        const Found found = peek(record, data);
        if (found != Found::MESSAGE) return found;
        if (quick && (record.kind != WHOLE || record.size > QUICK_BYTES)) return Found::CHUNKS;
        if (record.kind != WHOLE && chunks == CHUNKS_AT_ONCE) return Found::CHUNKS;
        size_t size = record.size;
        if (record.kind == WHOLE) {
            drop_partial();
            if (!start(into, record, size)) return Found::BROKEN;
            std::memcpy(into.bytes.get(), data, size);
            into.size = size;
        } else {
            if (record.kind == FIRST) {
                uint64_t total;
                if (size < sizeof total) return broken("the first part of a message is cut short");
                std::memcpy(&total, data, sizeof total);
                data += sizeof total;
                size -= sizeof total;
                if (!start(partial_, record, total)) return Found::BROKEN;
                expected_ = total;
            } else if (record.kind != MORE || !partial_.bytes || record.queue != partial_.queue) {
                return broken("a record is of no kind that can be there");
            }
            if (size > expected_ - partial_.size) return broken("the parts of a message are longer than it is");
            std::memcpy(partial_.bytes.get() + partial_.size, data, size);
            partial_.size += size;
        }
        head_ += span(record.size);
        if (record.kind != WHOLE) {
            done(); // the sender goes on meanwhile
            if (partial_.size < expected_) continue;
            into = std::move(partial_);
            drop_partial();
        }
        return adds_up(into) ? Found::MESSAGE : broken("the parts of a message do not add up to it");
    }
}

void Reader::done() {
    words_.head.store(head_, std::memory_order_seq_cst);
    const uint64_t wanted = words_.wanted.load(std::memory_order_seq_cst);
    if (wanted == 0 || words_.tail.load(std::memory_order_seq_cst) - head_ >= wanted) return;
    words_.wanted.store(0, std::memory_order_seq_cst);
    disturb();
}

void Reader::disturb() {
    words_.room.fetch_add(1, std::memory_order_seq_cst);
    dist::futex_wake(&words_.room);
}

} // namespace resilin::rpc
