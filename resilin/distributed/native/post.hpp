// Messages between two ranks of one host: an inbox per rank in the control segment, after the slots.
//
//   sender                                          receiver
//   pack: a parcel of its own, or none
//   put: a cell of the receiver's inbox,   ── bell ──>  take: cells in the order they were claimed
//        with the bytes, or where they lie             fetch: copy from the sender's arena
//   help: copy other pieces of it          <── bell ──      while the sender waits, into the receiver's arena
//   the ticket is free again               <── bell ──  ack
//
// Who finds no cell leaves a mark and is told by whoever takes one. Who has no ticket left for a receiver leaves another:
// a receiver that waits for a message that may not have been announced copies what it has been told of (backends/shm/mailbox.py).
//
// A cell is claimed by moving `tail`, filled, then handed over by its turn: no lock that a dead rank could hold. A rank
// that dies between the two keeps later messages from being taken; its death ends the group anyway.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "segment.hpp"

namespace resilin::dist {

constexpr size_t CELL_BYTES = 4096; // messages up to this travel in the cell: the sender waits for nobody
constexpr uint64_t CELLS = 64;
constexpr size_t PARCEL_BYTES = 64 << 10; // the most that travels in a parcel of its sender, which waits for nobody either
constexpr int32_t PARCELS = 8;            // of each rank; the first empty one is taken, so few are ever touched
constexpr uint32_t TICKETS = 256;                // messages of one rank that lie in its own memory until they are copied
constexpr size_t SHARED_MIN_BYTES = 256 << 10;   // from here on both ends copy: below, the sender wakes too late to be of use
constexpr size_t PIECE_BYTES = 64 << 10;         // which one of them copies before it looks again

struct Head { // of a message
    int32_t source, tag;
    Descriptor descriptor;
    uint64_t arena, offset, size; // arena IN_SLOT: it travels with its bytes
    uint64_t number;              // of one that lies in its sender's memory; never used again, as its ticket (number % TICKETS) is
    uint32_t ticket;
    int32_t parcel; // of its sender, with its bytes; IN_CELL: they are in the cell
    bool carried() const { return arena == IN_SLOT; }
};
constexpr int32_t IN_CELL = -1;

struct Cell {
    std::atomic<uint64_t> turn; // 2 * lap: free in that lap; 2 * lap + 1: to be taken
    Head head;
    alignas(64) char payload[CELL_BYTES];
};

// A message that lies in its sender's memory: in the inbox of its sender.
struct alignas(64) Ticket {
    std::atomic<uint64_t> acked;    // number of the last message with it that was copied
    std::atomic<uint64_t> offered;  // number of the one whose sender may help to copy it, or 0
    uint64_t arena, offset;         // of the receiver: where the message that is `offered` goes
    std::atomic<uint64_t> next;     // its first piece that nobody copies yet
    std::atomic<uint32_t> helping;  // 1 while the sender writes a piece
};

struct Inbox {
    alignas(64) std::atomic<uint64_t> tail; // cells claimed so far
    alignas(64) std::atomic<uint32_t> bell; // futex: changes with every message, acknowledgement and offer
    std::atomic<uint32_t> sleepers;         // on the bell: a hint, too high after a kill, never too low
    std::atomic<uint32_t> watchers;         // threads of the owner that look after the inbox by themselves
    std::atomic<uint32_t> pending;          // receives and sends of the owner that wait without a watcher, perhaps
    std::atomic<uint32_t> called;           // 1: somebody has told the owner's control thread to look
    std::atomic<uint32_t> withdrawn;        // 1: the owner no longer keeps the memory of its messages as it was
    std::atomic<uint32_t> crowded;          // 1: a rank has messages for the owner and found no cell, see `wants_cell`
    std::atomic<uint32_t> shortages;        // ranks that `lacks_tickets`: a hint, too high after a kill, never too low
    std::atomic<uint8_t> wants_cell[MAX_RANKS];    // 1: to be told when a cell is free
    std::atomic<uint8_t> lacks_tickets[MAX_RANKS]; // 1: has more messages for the owner than it may announce
    std::atomic<uint8_t> packed[PARCELS];          // 1: the owner's parcel waits for its receiver
    Ticket tickets[TICKETS];
    alignas(64) Cell cells[CELLS];
    alignas(64) char parcels[PARCELS][PARCEL_BYTES]; // what the owner sends
};

enum Put : int { PLACED = 0, CALL = 1, FULL = 2 }; // CALL, placed or FULL: the owner must be told over its control socket
enum class Fetch { DONE, MISSING, WITHDRAWN, STUCK }; // MISSING: the arena has not arrived yet

struct Taken { // a message, out of the inbox
    Head head;
    std::string payload;
};

struct Wanted { // by a receive
    int source, tag;
    uint8_t dtype;
    char *into;
    size_t size;
    uint64_t arena, offset; // where `into` lies, for the sender to help; arena IN_SLOT: it cannot
};

// As backends/shm/mailbox.py has them. CALLED: received, and the sender must be told over its control socket; ELSE: the oldest message is
// another one, or something has happened that is not looked after here; LETTER: the message is taken, but not copied, or
// in part; STUCK: as that, for its sender stopped in a piece.
enum class Got { RECEIVED, CALLED, ELSE, LATE, LETTER, STUCK };

class Post {
  public:
    // keeps the segment's memory mapped, whatever becomes of the segment
    explicit Post(Segment &segment);

    // an empty parcel, filled, which goes with the next `put`; IN_CELL: there is none. One for a rank that has left is lost.
    int32_t pack(const char *data, size_t size);
    // Put flags. FULL: nothing was put; this rank's bell rings, or it is called, when a cell is free.
    int put(int to, int tag, const Descriptor &what, const Piece &piece, int32_t parcel);
    // As `put`, and the number, of a message that stays where it is until `settle`. FULL also for want of a ticket.
    // awaited: somebody may wait for its end, so who copies it calls this rank's control thread where nobody else looks.
    std::pair<int, uint64_t> announce(int to, int tag, const Descriptor &what, const Piece &piece, bool awaited);
    std::vector<uint64_t> acked();  // numbers of the messages that have been copied
    // wait for that, and settle; false: another thread has settled it, something else has come, or it is the deadline
    bool settled_within(uint64_t number, double deadline, double spin_s);
    void settle(uint64_t number);   // from now on nobody of this process reads the message
    bool lack(int to, bool lacking); // say that messages for `to` wait for a ticket, or no longer; true: as CALL
    bool lacks(int rank) const { return own().lacks_tickets[rank].load(std::memory_order_seq_cst) != 0; }
    bool shortage() const { return own().shortages.load(std::memory_order_seq_cst) != 0; } // whether some rank lacks tickets
    std::vector<int> relieve();     // after `take`: wake those that found no cell. Whom to call over the control socket.

    bool take(Taken &into); // the oldest message; false: there is none
    // copy a message from its sender's memory, with its help where `where` names a place; WITHDRAWN: what was copied may
    // be anything; STUCK: as that, at the deadline
    Fetch fetch(const Head &head, char *into, uint64_t arena, uint64_t offset, double deadline);
    bool ack(const Head &head); // true: as CALL
    // wait for a message and copy it, while nothing has changed since `changes()`
    Got receive(const Wanted &wanted, uint64_t since, double deadline, double spin_s, Taken &taken);
    uint64_t changes() const { return changes_.load(std::memory_order_seq_cst); } // messages taken, and calls of `disturb`
    void disturb();                                                              // ends every `receive` under way

    // this rank's own inbox
    uint32_t bell() const { return own().bell.load(std::memory_order_seq_cst); }
    // until the bell is not `seen`; false at the deadline. After a signal the caller looks again, and Python's handlers run.
    bool wait(uint32_t seen, double deadline, double spin_s) { return wait_for(seen, deadline, spin_s) != ETIMEDOUT; }
    void ring() { ring(own()); } // wakes this rank's waits
    void watch(int change) { own().watchers.fetch_add(static_cast<uint32_t>(change), std::memory_order_seq_cst); }
    void expect(int change) { own().pending.fetch_add(static_cast<uint32_t>(change), std::memory_order_seq_cst); }
    bool unattended() const; // whether somebody waits for what no watcher looks after
    void heard() { own().called.store(0, std::memory_order_seq_cst); }
    void gone(int rank) { gone_[static_cast<size_t>(rank)].store(true, std::memory_order_seq_cst); } // it copies no more
    void withdraw() { own().withdrawn.store(1, std::memory_order_seq_cst); }

  private:
    struct Lying { // a message of this rank, in its memory; number 0: the ticket is free
        uint64_t number;
        const char *data;
        size_t size;
        int to;
        bool busy; // a thread helps to copy it
        bool awaited;
    };

    struct Watch { // looks after the inbox while it lives
        explicit Watch(Post &post) : post(post) { post.watch(1); }
        ~Watch() { post.watch(-1); }
        Post &post;
    };

    Inbox &own() const { return inboxes_[rank_]; }
    static void ring(Inbox &inbox);
    bool notify(Inbox &inbox);
    Cell *claim(Inbox &inbox, uint64_t &lap);
    int put(int to, const Head &head, const char *payload);
    Cell *oldest();
    bool waiting(); // whether messages for this rank are to be looked after
    const char *payload(const Cell &cell) const;
    void release(Cell *cell);
    int sleep(uint32_t seen, double deadline, double spin_s);
    int wait_for(uint32_t seen, double deadline, double spin_s);
    bool lies(uint64_t number); // whether it has not been settled yet
    bool forget(uint64_t number);
    bool left(int rank) const { return gone_[static_cast<size_t>(rank)].load(std::memory_order_seq_cst); }
    bool withdrawn(int rank) const { return inboxes_[rank].withdrawn.load(std::memory_order_seq_cst) != 0; }
    bool find(const Wanted &wanted, uint64_t since, Taken &taken, Got &got);
    bool alone(Ticket &ticket, int rank, double deadline);
    void help();
    void help(uint32_t ticket, const Lying &mine);

    Segment &segment_;
    std::shared_ptr<Mapping> mapping_;
    Inbox *inboxes_;
    int rank_, ranks_;
    std::atomic<uint64_t> changes_{0};
    std::mutex taking_;
    uint64_t taken_ = 0; // guarded by taking_
    std::mutex lying_mutex_;
    std::array<Lying, TICKETS> lying_{};     // guarded by lying_mutex_
    std::vector<uint32_t> free_;             // guarded by lying_mutex_
    std::vector<uint32_t> announced_;        // guarded by lying_mutex_: tickets in use, by receiver
    uint64_t messages_ = 0;                  // guarded by lying_mutex_: how many were announced
    uint32_t share_;                         // of tickets; a rank that receives nothing has no more
    std::vector<std::atomic<bool>> gone_;
};

} // namespace resilin::dist
