// Messages between two ranks of one host: an inbox per rank in the control segment, after the slots.
//
//   sender                                         receiver
//   put: a cell of the receiver's inbox,  ── bell ──>  take: cells in the order they were claimed
//        with the bytes, or where they lie            fetch: copy from the sender's arena
//   done(ticket)                          <── bell ──  ack: the sender's ticket is free again
//
// Who finds no cell leaves a mark and is told by whoever takes one. Who has no ticket left for a receiver leaves another:
// a receiver that waits for a message that may not have been announced copies what it has been told of (post.py).
//
// A cell is claimed by moving `tail`, filled, then handed over by its turn: no lock that a dead rank could hold. A rank
// that dies between the two keeps later messages from being taken; its death ends the group anyway.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "segment.hpp"

namespace resilin::dist {

constexpr size_t CELL_BYTES = 4096; // messages up to this travel in the cell: the sender waits for nobody
constexpr uint64_t CELLS = 64;
constexpr uint32_t TICKETS = 256; // messages of one rank that lie in its own memory until they are copied

struct Cell {
    std::atomic<uint64_t> turn; // 2 * lap: free in that lap; 2 * lap + 1: to be taken
    int32_t source, tag;
    Descriptor descriptor;
    uint64_t arena, offset, size; // arena IN_SLOT: in `payload`
    uint64_t number;              // of the message, counted by its sender
    uint32_t ticket;
    alignas(64) char payload[CELL_BYTES];
};

struct Inbox {
    alignas(64) std::atomic<uint64_t> tail; // cells claimed so far
    alignas(64) std::atomic<uint32_t> bell; // futex: changes with every message and acknowledgement
    std::atomic<uint32_t> sleepers;         // on the bell: a hint, too high after a kill, never too low
    std::atomic<uint32_t> watchers;         // threads of the owner that look after the inbox by themselves
    std::atomic<uint32_t> pending;          // receives and sends of the owner that wait without a watcher, perhaps
    std::atomic<uint32_t> called;           // 1: somebody has told the owner's control thread to look
    std::atomic<uint32_t> withdrawn;        // 1: the owner no longer keeps the memory of its messages as it was
    std::atomic<uint32_t> crowded;          // 1: a rank has messages for the owner and found no cell, see `wants_cell`
    std::atomic<uint32_t> shortages;        // ranks that `lacks_tickets`: a hint, too high after a kill, never too low
    std::atomic<uint8_t> wants_cell[MAX_RANKS];    // 1: to be told when a cell is free
    std::atomic<uint8_t> lacks_tickets[MAX_RANKS]; // 1: has more messages for the owner than it may announce
    alignas(64) std::atomic<uint64_t> acks[TICKETS]; // number of the last message with that ticket that was copied
    alignas(64) Cell cells[CELLS];
};

enum Put : int { DONE = 0, CALL = 1, FULL = 2 }; // CALL, done or FULL: the owner must be told over its control socket
enum class Fetch { DONE, MISSING, WITHDRAWN }; // MISSING: the arena has not arrived yet

class Post {
  public:
    // keeps the segment's memory mapped, whatever becomes of the segment
    explicit Post(Segment &segment);

    // Put flags. FULL: nothing was put; this rank's bell rings, or it is called, when a cell is free.
    int put(int to, int tag, const Descriptor &what, const Piece &piece, uint64_t number, uint32_t ticket);
    // say that messages for `to` wait for a ticket, or no longer; true: as CALL
    bool lack(int to, bool lacking);
    bool lacks(int rank) const { return own().lacks_tickets[rank].load(std::memory_order_seq_cst) != 0; }
    bool shortage() const { return own().shortages.load(std::memory_order_seq_cst) != 0; } // whether some rank lacks tickets
    // after `release`: wake those that found no cell. Whom to call over the control socket.
    std::vector<int> relieve();
    // the oldest message, or null; it must be released before the next `take`. One thread at a time.
    Cell *take();
    void release(Cell *cell);
    // copy a message from `rank`'s arena; WITHDRAWN: what was copied may be anything
    Fetch fetch(int rank, uint64_t arena, uint64_t offset, char *into, size_t size);
    bool ack(int rank, uint32_t ticket, uint64_t number); // true: as CALL
    bool acked(uint32_t ticket, uint64_t number) const;

    // this rank's own inbox
    uint32_t bell() const { return own().bell.load(std::memory_order_seq_cst); }
    bool wait(uint32_t seen, double deadline, double spin_s); // until the bell is not `seen`; false at the deadline
    void ring();                                              // wakes this rank's waits
    void watch(int change) { own().watchers.fetch_add(static_cast<uint32_t>(change), std::memory_order_seq_cst); }
    void expect(int change) { own().pending.fetch_add(static_cast<uint32_t>(change), std::memory_order_seq_cst); }
    void heard() { own().called.store(0, std::memory_order_seq_cst); }
    void withdraw() { own().withdrawn.store(1, std::memory_order_seq_cst); }

  private:
    Inbox &own() const { return inboxes_[rank_]; }
    bool notify(Inbox &inbox);
    Cell *claim(Inbox &inbox, uint64_t &lap);

    Segment &segment_;
    std::shared_ptr<Mapping> mapping_;
    Inbox *inboxes_;
    int rank_, ranks_;
    uint64_t taken_ = 0;
};

} // namespace resilin::dist
