#include "post.hpp"

#include <cstring>
#include <stdexcept>

#include "copy.hpp"
#include "waiting.hpp"

namespace resilin::dist {
namespace {

constexpr size_t STREAM_MIN_BYTES = 12 << 20; // more than caches hold of source and target

} // namespace

Post::Post(Segment &segment) : segment_(segment), mapping_(segment.mapping()), rank_(segment.rank()), ranks_(segment.ranks()) {
    if (!mapping_) throw std::runtime_error("the segment is closed");
    inboxes_ = reinterpret_cast<Inbox *>(mapping_->at + Segment::inboxes_at(ranks_));
}

// The bell is moved before watchers are counted, and a watcher looks into the inbox after it has left: nothing is missed.
bool Post::notify(Inbox &inbox) {
    inbox.bell.fetch_add(1, std::memory_order_seq_cst);
    if (inbox.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(&inbox.bell);
    const bool alone = inbox.watchers.load(std::memory_order_seq_cst) == 0 &&
                       (inbox.pending.load(std::memory_order_seq_cst) != 0 || inbox.crowded.load(std::memory_order_seq_cst) != 0);
    return alone && inbox.called.exchange(1, std::memory_order_seq_cst) == 0;
}

Cell *Post::claim(Inbox &inbox, uint64_t &lap) {
    uint64_t at = inbox.tail.load(std::memory_order_seq_cst);
    for (;;) {
        const uint64_t turn = inbox.cells[at % CELLS].turn.load(std::memory_order_seq_cst), free = at / CELLS * 2;
        if (turn < free) return nullptr;
        if (turn == free && inbox.tail.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) break;
        if (turn > free) at = inbox.tail.load(std::memory_order_seq_cst);
    }
    lap = at / CELLS;
    return &inbox.cells[at % CELLS];
}

// The mark is left before the second look, and `relieve` looks for marks after cells were freed: one of them sees the other.
int Post::put(int to, int tag, const Descriptor &what, const Piece &piece, uint64_t number, uint32_t ticket) {
    Inbox &inbox = inboxes_[to];
    uint64_t lap = 0;
    Cell *cell = claim(inbox, lap);
    if (!cell) {
        inbox.wants_cell[rank_].store(1, std::memory_order_seq_cst);
        inbox.crowded.store(1, std::memory_order_seq_cst);
        cell = claim(inbox, lap);
        if (!cell) return notify(inbox) ? FULL | CALL : FULL;
    }
    cell->source = rank_;
    cell->tag = tag;
    cell->descriptor = what;
    cell->arena = piece.arena;
    cell->offset = piece.offset;
    cell->size = piece.size;
    cell->number = number;
    cell->ticket = ticket;
    if (piece.in_slot() && piece.size) std::memcpy(cell->payload, piece.data, piece.size);
    cell->turn.store(lap * 2 + 1, std::memory_order_seq_cst);
    return notify(inbox) ? CALL : DONE;
}

bool Post::lack(int to, bool lacking) {
    Inbox &inbox = inboxes_[to];
    if ((inbox.lacks_tickets[rank_].exchange(lacking, std::memory_order_seq_cst) != 0) == lacking) return false;
    inbox.shortages.fetch_add(lacking ? 1u : ~0u, std::memory_order_seq_cst);
    return lacking && notify(inbox);
}

std::vector<int> Post::relieve() {
    std::vector<int> calls;
    if (own().crowded.load(std::memory_order_seq_cst) == 0) return calls;
    own().crowded.store(0, std::memory_order_seq_cst);
    for (int rank = 0; rank < ranks_; rank++)
        if (own().wants_cell[rank].exchange(0, std::memory_order_seq_cst) != 0 && notify(inboxes_[rank])) calls.push_back(rank);
    return calls;
}

Cell *Post::take() {
    Cell &cell = own().cells[taken_ % CELLS];
    return cell.turn.load(std::memory_order_seq_cst) == taken_ / CELLS * 2 + 1 ? &cell : nullptr;
}

void Post::release(Cell *cell) {
    cell->turn.store(taken_ / CELLS * 2 + 2, std::memory_order_seq_cst);
    taken_++;
}

Fetch Post::fetch(int rank, uint64_t arena, uint64_t offset, char *into, size_t size) {
    const std::shared_ptr<Mapping> from = segment_.arena(rank, arena);
    if (!from) return Fetch::MISSING;
    if (!from->holds(offset, size)) return Fetch::WITHDRAWN; // never was there
    copy(into, from->at + offset, size, size >= STREAM_MIN_BYTES);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return inboxes_[rank].withdrawn.load(std::memory_order_seq_cst) ? Fetch::WITHDRAWN : Fetch::DONE;
}

bool Post::ack(int rank, uint32_t ticket, uint64_t number) {
    inboxes_[rank].acks[ticket % TICKETS].store(number, std::memory_order_seq_cst);
    return notify(inboxes_[rank]);
}

bool Post::acked(uint32_t ticket, uint64_t number) const {
    return own().acks[ticket % TICKETS].load(std::memory_order_acquire) == number;
}

void Post::ring() {
    own().bell.fetch_add(1, std::memory_order_seq_cst);
    if (own().sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(&own().bell);
}

bool Post::wait(uint32_t seen, double deadline, double spin_s) {
    Inbox &inbox = own();
    static thread_local Spinner spinner;
    const auto rung = [&] { return inbox.bell.load(std::memory_order_acquire) != seen; };
    if (spin_s > 0 && spinner.spin(spin_s, rung, [] { return false; })) return true;
    inbox.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const int why = rung() ? 0 : futex_wait(&inbox.bell, seen, deadline);
    inbox.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    return why != ETIMEDOUT; // after a signal the caller looks again, and Python's handlers run
}

} // namespace resilin::dist
