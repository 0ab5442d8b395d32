// Messages from one process to another: a ring of bytes in memory that the receiver made and both have mapped.
//
//   sender: tail ──> [ record | record | skip ]  ──> head: receiver
//
// Only one process writes and one reads, so a process that dies leaves nothing that others wait for: what it has not
// published was never there. The receiver believes nothing: a record is copied out before it is looked at, and one that
// cannot be ends the connection. Messages longer than a chunk travel as several records, which the receiver puts together.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "buffers.hpp"
#include "waiting.hpp"

namespace resilin::rpc {

constexpr size_t RING_BYTES = 32 << 20;   // for a receiver that takes nothing for a while: pages are made when they are used
constexpr size_t WINDOW_BYTES = 1 << 20;  // while it takes, no more is under way, which stays in caches
constexpr size_t CHUNK_BYTES = 128 << 10; // of a message in one record
constexpr size_t RESTART_BYTES = 16 << 10;     // an empty ring is used from its start again after these: they stay in caches
constexpr size_t WORDS_BYTES = 4096;
constexpr size_t ALIGNMENT = 16;
constexpr uint32_t MAX_PARTS = 1 << 20;

struct Words {
    alignas(64) std::atomic<uint64_t> tail;    // bytes published so far; the sender's
    std::atomic<uint64_t> origin;              // the byte that lies at the start of the ring; moved while there is nothing in it
    alignas(64) std::atomic<uint64_t> head;    // bytes read so far; the receiver's
    alignas(64) std::atomic<uint64_t> wanted;  // the sender sleeps until less than this is under way; 0: it does not
    std::atomic<uint32_t> room;                // futex
};

enum Kind : uint16_t { WHOLE = 1, FIRST = 2, MORE = 3, SKIP = 4 }; // FIRST: the length of the message comes before its bytes

struct Record {
    uint32_t size; // of what follows
    uint16_t queue, kind;
    uint32_t parts; // of the message: it begins with their sizes, 8 bytes each
    uint32_t unused;
};
static_assert(sizeof(Record) == ALIGNMENT);

// A message on its way out: the sizes of its parts, then the parts.
class Outgoing {
  public:
    void add(const char *at, size_t size) {
        spans_.push_back({at, size});
        sizes_.push_back(size);
        bytes_ += size;
    }
    size_t bytes() const { return bytes_; } // of the parts
    size_t total() const { return bytes_ + sizes_.size() * sizeof(uint64_t); }
    uint32_t parts() const { return static_cast<uint32_t>(sizes_.size()); }
    void copy(char *to, size_t size); // the next ones
    void rewind() { span_ = offset_ = 0, table_ = 0; }

  private:
    struct Span {
        const char *at;
        size_t size;
    };
    std::vector<Span> spans_;
    std::vector<uint64_t> sizes_;
    size_t bytes_ = 0, table_ = 0, span_ = 0, offset_ = 0;
};

class Writer {
  public:
    enum class Room { YES, NO, BROKEN };
    explicit Writer(char *at) : words_(*reinterpret_cast<Words *>(at)), data_(at + WORDS_BYTES) {}

    // the next record, with room for `size` bytes behind it
    Room reserve(size_t size, Record *&record);
    void publish();
    // After `reserve` has found no room: until there is some, or something was disturbed. Returns errno as futex_wait.
    int wait(double deadline);
    void disturb();

  private:
    Room room(uint64_t needed);
    void restart();
    uint64_t at() const { return (tail_ - origin_) % RING_BYTES; }

    Words &words_;
    char *data_;
    uint64_t tail_ = 0, head_ = 0, next_ = 0; // head_: as last seen; next_: tail once what was reserved is published
    uint64_t origin_ = 0, highest_ = 0;       // highest_: offset up to which the ring was used since it was restarted
    uint64_t restart_ = RESTART_BYTES;        // offset at which to look whether the ring is empty
    uint64_t stalled_ = UINT64_MAX;           // head of a receiver that takes nothing: while it stays, all of the ring is used
    uint64_t full_ = UINT64_MAX;              // head when there was no room: none overtakes who waits, or has waited, for some
    uint64_t needed_ = 0;                     // by what found none
};

// A message that has arrived, whole: the sizes of its parts add up to its size.
struct Arrived {
    int source = 0;
    uint16_t queue = 0;
    uint32_t parts = 0;
    size_t size = 0;
    Buffer bytes;
};

class Reader {
  public:
    // CHUNKS: of a long message there is more, or may be soon; who holds a lock lets others have it in between
    enum class Found { MESSAGE, NOTHING, CHUNKS, BROKEN };
    Reader(char *at, size_t max_bytes) : words_(*reinterpret_cast<Words *>(at)), data_(at + WORDS_BYTES), max_bytes_(max_bytes) {}

    Found next(Arrived &into, bool quick); // quick: only short messages are
    void done();         // with what was found: the sender may use its place
    void finish();       // nothing that is sent from now on is read: the sender is lost
    bool empty() const { return (finished_ ? tail_ : words_.tail.load(std::memory_order_seq_cst)) == head_; }
    void disturb();      // the sender looks again, if it waits for room
    void drop_partial() { partial_ = Arrived(); }
    const char *why() const { return why_; } // it is broken

  private:
    void look();
    Found peek(Record &record, const char *&data);
    Found broken(const char *why);
    bool start(Arrived &into, const Record &record, uint64_t total);
    bool adds_up(const Arrived &message) const;

    Words &words_;
    char *data_;
    size_t max_bytes_;
    uint64_t head_ = 0, tail_ = 0, origin_ = 0; // the last two: as last seen
    Arrived partial_;              // `size` of it is what has arrived
    size_t expected_ = 0;
    const char *why_ = nullptr;
    bool finished_ = false;
};

constexpr size_t RING_SPAN = WORDS_BYTES + RING_BYTES;

} // namespace resilin::rpc
