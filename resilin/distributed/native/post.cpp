#include "post.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "copy.hpp"
#include "phases.hpp"
#include "signals.hpp"
#include "waiting.hpp"

namespace resilin::dist {
namespace {

constexpr size_t STREAM_MIN_BYTES = 12 << 20; // more than caches hold of source and target
constexpr double HELPER_SPIN_S = 50e-6;       // a helper is out of its piece in this time, unless its core is taken away

// A message, piece by piece.
struct Pieces {
    char *into;
    const char *from;
    size_t size;

    // false: there are no more
    bool copy(uint64_t index) const {
        const size_t at = index * PIECE_BYTES;
        if (at >= size) return false;
        dist::copy(into + at, from + at, std::min(PIECE_BYTES, size - at), size >= STREAM_MIN_BYTES);
        return true;
    }
};

} // namespace

Post::Post(Segment &segment)
    : segment_(segment), mapping_(segment.mapping()), rank_(segment.rank()), ranks_(segment.ranks()),
      announced_(static_cast<size_t>(ranks_)), share_(TICKETS / static_cast<uint32_t>(std::max(1, ranks_ - 1))),
      gone_(static_cast<size_t>(ranks_)) {
    if (!mapping_) throw std::runtime_error("the segment is closed");
    inboxes_ = reinterpret_cast<Inbox *>(mapping_->at + Segment::inboxes_at(ranks_));
    for (uint32_t ticket = 0; ticket < TICKETS; ticket++) free_.push_back(ticket);
}

void Post::ring(Inbox &inbox) {
    inbox.bell.fetch_add(1, std::memory_order_seq_cst);
    if (inbox.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(&inbox.bell);
}

// The bell is moved before watchers are counted, and a watcher looks into the inbox after it has left: nothing is missed.
bool Post::notify(Inbox &inbox) {
    ring(inbox);
    const bool alone = inbox.watchers.load(std::memory_order_seq_cst) == 0 &&
                       (inbox.pending.load(std::memory_order_seq_cst) != 0 || inbox.crowded.load(std::memory_order_seq_cst) != 0);
    return alone && inbox.called.exchange(1, std::memory_order_seq_cst) == 0;
}

bool Post::unattended() const {
    return own().pending.load(std::memory_order_seq_cst) != 0 || own().crowded.load(std::memory_order_seq_cst) != 0 || shortage();
}

void Post::disturb() {
    changes_.fetch_add(1, std::memory_order_seq_cst);
    ring();
}

// --- sending ---

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
int Post::put(int to, const Head &head, const char *payload) {
    Inbox &inbox = inboxes_[to];
    uint64_t lap = 0;
    Cell *cell = claim(inbox, lap);
    if (!cell) {
        inbox.wants_cell[rank_].store(1, std::memory_order_seq_cst);
        inbox.crowded.store(1, std::memory_order_seq_cst);
        cell = claim(inbox, lap);
        if (!cell) return notify(inbox) ? FULL | CALL : FULL;
    }
    cell->head = head;
    if (head.carried() && head.parcel == IN_CELL && head.size) std::memcpy(cell->payload, payload, head.size);
    cell->turn.store(lap * 2 + 1, std::memory_order_seq_cst);
    return notify(inbox) ? CALL : PLACED;
}

int32_t Post::pack(const char *data, size_t size) {
    for (int32_t parcel = 0; parcel < PARCELS; parcel++) {
        if (own().packed[parcel].exchange(1, std::memory_order_acquire) != 0) continue;
        std::memcpy(own().parcels[parcel], data, size);
        return parcel;
    }
    return IN_CELL;
}

int Post::put(int to, int tag, const Descriptor &what, const Piece &piece, int32_t parcel) {
    return put(to, Head{rank_, tag, what, IN_SLOT, 0, piece.size, 0, 0, parcel}, piece.data);
}

std::pair<int, uint64_t> Post::announce(int to, int tag, const Descriptor &what, const Piece &piece, bool awaited) {
    uint64_t number;
    {
        const std::lock_guard<std::mutex> guard(lying_mutex_);
        uint32_t &announced = announced_[static_cast<size_t>(to)];
        if (announced >= share_ || free_.empty()) return {lack(to, true) ? FULL | CALL : FULL, 0};
        number = ++messages_ * TICKETS + free_.back();
        free_.pop_back();
        announced++;
        lying_[number % TICKETS] = {number, piece.data, piece.size, to, false, awaited};
    }
    if (awaited) expect(1);
    const auto ticket = static_cast<uint32_t>(number % TICKETS);
    const int status = put(to, Head{rank_, tag, what, piece.arena, piece.offset, piece.size, number, ticket, IN_CELL}, nullptr);
    if (status & FULL) forget(number);
    return {status, number};
}

std::vector<uint64_t> Post::acked() {
    std::vector<uint64_t> found;
    const std::lock_guard<std::mutex> guard(lying_mutex_);
    for (uint32_t ticket = 0; ticket < TICKETS; ticket++) {
        const uint64_t number = lying_[ticket].number;
        if (number && own().tickets[ticket].acked.load(std::memory_order_acquire) == number) found.push_back(number);
    }
    return found;
}

bool Post::lies(uint64_t number) {
    const std::lock_guard<std::mutex> guard(lying_mutex_);
    return lying_[number % TICKETS].number == number;
}

bool Post::settled_within(uint64_t number, double deadline, double spin_s) {
    const Watch watch(*this);
    const uint64_t since = changes();
    for (double spin = spin_s;;) {
        const uint32_t seen = bell(); // before `lies`: whoever settles it rings afterwards
        if (!lies(number)) return false; // another thread has seen its end; the ticket may be another message's
        if (own().tickets[number % TICKETS].acked.load(std::memory_order_acquire) == number &&
            forget(number)) // before the watch ends: a rank that sends now need not call for what waits no more
            return true;
        if (changes() != since || waiting()) return false;
        const int why = wait_for(seen, deadline, spin);
        if (why == EINTR) check_signals();
        if (why == ETIMEDOUT) return false;
        spin = why ? 0.0 : spin_s;
    }
}

void Post::settle(uint64_t number) {
    forget(number);
    ring(); // whoever waits for it sleeps on the bell
}

// The ticket of a message for a rank that has left is never used again: that rank may still be copying.
// False: another thread was first.
bool Post::forget(uint64_t number) {
    const auto ticket = static_cast<uint32_t>(number % TICKETS);
    std::unique_lock<std::mutex> guard(lying_mutex_);
    Lying &mine = lying_[ticket];
    if (mine.number != number) return false;
    mine.number = 0;
    while (mine.busy) {
        guard.unlock();
        const timespec moment{0, 20'000};
        nanosleep(&moment, nullptr);
        guard.lock();
    }
    if (!left(mine.to)) {
        free_.push_back(ticket);
        announced_[static_cast<size_t>(mine.to)]--;
    }
    const bool awaited = mine.awaited;
    guard.unlock();
    if (awaited) expect(-1);
    return true;
}

bool Post::lack(int to, bool lacking) {
    Inbox &inbox = inboxes_[to];
    if ((inbox.lacks_tickets[rank_].exchange(lacking, std::memory_order_seq_cst) != 0) == lacking) return false;
    inbox.shortages.fetch_add(lacking ? 1u : ~0u, std::memory_order_seq_cst);
    return lacking && notify(inbox);
}

void Post::help() {
    for (uint32_t ticket = 0; ticket < TICKETS; ticket++) {
        std::unique_lock<std::mutex> guard(lying_mutex_);
        if (free_.size() == TICKETS) return;
        Lying &mine = lying_[ticket];
        if (!mine.number || mine.busy || own().tickets[ticket].offered.load(std::memory_order_seq_cst) != mine.number) continue;
        mine.busy = true;
        const Lying message = mine;
        guard.unlock();
        help(ticket, message);
        guard.lock();
        mine.busy = false;
    }
}

// `helping` is set before `offered` is read, and the receiver takes its offer back before it reads `helping`: one of the
// two sees the other.
void Post::help(uint32_t number, const Lying &message) {
    Ticket &ticket = own().tickets[number];
    const std::shared_ptr<Mapping> target = segment_.arena(message.to, ticket.arena);
    if (!target || !target->holds(ticket.offset, message.size)) return;
    const Pieces pieces{target->at + ticket.offset, message.data, message.size};
    for (bool more = true; more;) {
        ticket.helping.store(1, std::memory_order_seq_cst);
        more = ticket.offered.load(std::memory_order_seq_cst) == message.number && !withdrawn(rank_) && !left(message.to) &&
               pieces.copy(ticket.next.fetch_add(1, std::memory_order_relaxed));
        ticket.helping.store(0, std::memory_order_seq_cst);
    }
    ring(inboxes_[message.to]);
}

// --- receiving ---

std::vector<int> Post::relieve() {
    std::vector<int> calls;
    if (own().crowded.load(std::memory_order_seq_cst) == 0) return calls;
    own().crowded.store(0, std::memory_order_seq_cst);
    for (int rank = 0; rank < ranks_; rank++)
        if (own().wants_cell[rank].exchange(0, std::memory_order_seq_cst) != 0 && notify(inboxes_[rank])) calls.push_back(rank);
    return calls;
}

Cell *Post::oldest() {
    Cell &cell = own().cells[taken_ % CELLS];
    if (cell.turn.load(std::memory_order_seq_cst) != taken_ / CELLS * 2 + 1) return nullptr;
    const bool parcel = cell.head.parcel != IN_CELL;
    if (cell.head.carried() && cell.head.size > (parcel ? PARCEL_BYTES : CELL_BYTES))
        throw std::invalid_argument("a message is larger than what it travels in");
    return &cell;
}

// of a message that is carried
const char *Post::payload(const Cell &cell) const {
    const Head &head = cell.head;
    return head.parcel == IN_CELL ? cell.payload : inboxes_[head.source].parcels[head.parcel % PARCELS];
}

bool Post::waiting() {
    const std::lock_guard<std::mutex> guard(taking_);
    return oldest() != nullptr || shortage();
}

void Post::release(Cell *cell) {
    const Head &head = cell->head;
    if (head.parcel != IN_CELL) inboxes_[head.source].packed[head.parcel % PARCELS].store(0, std::memory_order_release);
    cell->turn.store(taken_ / CELLS * 2 + 2, std::memory_order_seq_cst);
    taken_++;
    changes_.fetch_add(1, std::memory_order_seq_cst);
}

bool Post::take(Taken &into) {
    const std::lock_guard<std::mutex> guard(taking_);
    Cell *cell = oldest();
    if (!cell) return false;
    into.head = cell->head;
    if (cell->head.carried()) into.payload.assign(payload(*cell), cell->head.size);
    release(cell);
    return true;
}

Fetch Post::fetch(const Head &head, char *into, uint64_t arena, uint64_t offset, double deadline) {
    const int rank = head.source;
    const std::shared_ptr<Mapping> from = segment_.arena(rank, head.arena);
    if (!from) return Fetch::MISSING;
    if (!from->holds(head.offset, head.size)) return Fetch::WITHDRAWN; // never was there
    const Pieces pieces{into, from->at + head.offset, head.size};
    Ticket &ticket = inboxes_[rank].tickets[head.ticket % TICKETS];
    std::atomic<uint64_t> here{0}, &next = arena == IN_SLOT ? here : ticket.next;
    if (arena != IN_SLOT) {
        ticket.arena = arena;
        ticket.offset = offset;
        ticket.next.store(0, std::memory_order_relaxed);
        ticket.offered.store(head.number, std::memory_order_seq_cst);
        ring(inboxes_[rank]);
    }
    while (!withdrawn(rank_) && pieces.copy(next.fetch_add(1, std::memory_order_relaxed))) {
    }
    if (arena != IN_SLOT && !alone(ticket, rank, deadline)) return Fetch::STUCK;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return withdrawn(rank) || withdrawn(rank_) ? Fetch::WITHDRAWN : Fetch::DONE;
}

// Takes the offer back and waits until the sender is out of its piece: false at the deadline. One that has left, or whose
// group has ended here, is waited for a moment only: what it was copying is copied again, or given up.
bool Post::alone(Ticket &ticket, int rank, double deadline) {
    ticket.offered.store(0, std::memory_order_seq_cst);
    double moment = 0;
    for (;;) {
        const uint32_t seen = bell();
        if (ticket.helping.load(std::memory_order_seq_cst) == 0) return true;
        const double begin = now();
        if (!moment && (left(rank) || withdrawn(rank_))) moment = begin + SETTLE_S;
        if (moment && begin >= moment) return true;
        if (begin >= deadline) return false;
        sleep(seen, moment ? std::min(moment, deadline) : deadline, HELPER_SPIN_S);
    }
}

bool Post::ack(const Head &head) {
    Inbox &inbox = inboxes_[head.source];
    inbox.tickets[head.ticket % TICKETS].acked.store(head.number, std::memory_order_seq_cst);
    return notify(inbox);
}

// Takes the wanted message out of the inbox. False: there is none; or another one comes first, which makes `got` ELSE.
bool Post::find(const Wanted &wanted, uint64_t since, Taken &taken, Got &got) {
    const std::lock_guard<std::mutex> guard(taking_);
    Cell *cell = oldest();
    const bool other = cell ? cell->head.source != wanted.source || cell->head.tag != wanted.tag : shortage();
    if (other || changes() != since) got = Got::ELSE;
    if (!cell || got == Got::ELSE) return false;
    const Head &head = taken.head = cell->head;
    const bool fits = head.size == wanted.size && head.descriptor.dtype == wanted.dtype;
    if (!fits) got = Got::LETTER;
    if (head.carried() && fits && head.size) std::memcpy(wanted.into, payload(*cell), head.size);
    if (head.carried() && !fits) taken.payload.assign(payload(*cell), head.size);
    release(cell);
    return true;
}

Got Post::receive(const Wanted &wanted, uint64_t since, double deadline, double spin_s, Taken &taken) {
    const Watch watch(*this);
    Got got = Got::RECEIVED;
    for (double spin = spin_s;;) {
        const uint32_t seen = bell();
        if (find(wanted, since, taken, got)) break;
        if (got == Got::ELSE) return got;
        const int why = wait_for(seen, deadline, spin);
        if (why == EINTR) check_signals();
        if (why == ETIMEDOUT) return Got::LATE;
        spin = why ? 0.0 : spin_s;
    }
    if (got == Got::LETTER || taken.head.carried()) return got;
    const bool shared = taken.head.size >= SHARED_MIN_BYTES;
    const Fetch fetched = fetch(taken.head, wanted.into, shared ? wanted.arena : IN_SLOT, wanted.offset, deadline);
    if (fetched != Fetch::DONE) return fetched == Fetch::STUCK ? Got::STUCK : Got::LETTER;
    return ack(taken.head) ? Got::CALLED : Got::RECEIVED;
}

// --- waiting ---

// 0, or why the bell may not have rung: EINTR, ETIMEDOUT
int Post::sleep(uint32_t seen, double deadline, double spin_s) {
    Inbox &inbox = own();
    static thread_local Awake awake;
    const auto rung = [&] { return inbox.bell.load(std::memory_order_acquire) != seen; };
    if (awake.wait(segment_.crowded, spin_s, rung, [] { return false; })) return 0;
    inbox.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const int why = rung() ? 0 : futex_wait(&inbox.bell, seen, deadline);
    inbox.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    return why == EAGAIN ? 0 : why;
}

int Post::wait_for(uint32_t seen, double deadline, double spin_s) {
    help(); // an offer may have come with what the caller has seen
    const int why = sleep(seen, deadline, spin_s);
    if (!why) help();
    return why;
}

} // namespace resilin::dist
