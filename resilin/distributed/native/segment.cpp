#include "segment.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "copy.hpp"
#include "phases.hpp"
#include "post.hpp"
#include "signals.hpp"
#include "waiting.hpp"

namespace resilin::dist {
namespace {

constexpr uint32_t MAGIC = 0x52534431; // "RSD1"
constexpr size_t LINE_BYTES = 64;      // pieces in a slot start at one
constexpr double MOVED_BYTES_S = 4e9;  // a slow rank's copying, two cores at once: benchmarks/results/collectives.md
constexpr double LONGEST_AWAKE_S = 2e-3; // a wake-up costs some 50 us: nothing, beside a call that takes longer than this

} // namespace

Mapping::~Mapping() { munmap(at, size); }

size_t Segment::bytes(int ranks) { return inboxes_at(ranks) + sizeof(Inbox) * static_cast<size_t>(ranks); }

size_t Segment::inboxes_at(int ranks) { return sizeof(Header) + sizeof(Slot) * static_cast<size_t>(ranks); }

Segment::Segment(int fd, int rank, int ranks, size_t inline_bytes) : rank_(rank), ranks_(ranks), size_(bytes(ranks)) {
    if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks) throw std::invalid_argument("rank or ranks out of range");
    if (inline_bytes > INLINE_BYTES) throw std::invalid_argument("more than a slot holds");
    const bool create = inline_bytes != 0;
    if (create && ftruncate(fd, static_cast<off_t>(size_)) != 0) throw std::runtime_error("no memory for the control segment");
    struct stat info;
    if (fstat(fd, &info) != 0 || static_cast<size_t>(info.st_size) < size_) throw std::runtime_error("control segment too short");
    void *at = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) throw std::runtime_error("cannot map the control segment");
    mapping_ = std::make_shared<Mapping>(static_cast<char *>(at), size_);
    header_ = static_cast<Header *>(at);
    slots_ = reinterpret_cast<Slot *>(static_cast<char *>(at) + sizeof(Header));
    if (create) { // a fresh memfd is zero: every counter starts right
        header_->ranks = static_cast<uint32_t>(ranks);
        header_->inline_bytes = inline_bytes;
        header_->magic = MAGIC;
    } else if (header_->magic != MAGIC || header_->ranks != static_cast<uint32_t>(ranks) || header_->inline_bytes > INLINE_BYTES) {
        throw std::runtime_error("not a control segment for this group");
    }
}

Segment::~Segment() { close(); }

void Segment::close() {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (!header_) return;
    header_ = nullptr;
    mapping_.reset();
    arenas_.clear();
}

void Segment::wake() {
    header_->event.fetch_add(1, std::memory_order_seq_cst);
    if (header_->sleepers.load(std::memory_order_seq_cst) != 0)
        futex_wake(&header_->event);
}

void Segment::abort(uint32_t code, int rank, int dead) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (!header_) return;
    if (dead >= 0 && dead < ranks_) slots_[dead].touching.store(0, std::memory_order_seq_cst);
    uint64_t none = 0;
    header_->abort.compare_exchange_strong(none, uint64_t{code} << 32 | static_cast<uint32_t>(rank + 1));
    header_->event.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&header_->event);
}

// The last step of every call that failed: see the class.
Status Segment::settle(Status status) {
    if (status != ABORTED && status != TIMEOUT) return status;
    if (status == TIMEOUT) abort(STOPPED, rank_, -1);
    settle();
    return status;
}

void Segment::settle() {
    const double until = now() + SETTLE_S;
    for (int r = 0; r < ranks_; r++) {
        while (slots_[r].touching.load(std::memory_order_seq_cst) != 0 && now() < until) {
            const timespec moment{0, 50'000};
            nanosleep(&moment, nullptr);
        }
    }
}

Status Segment::barrier(double deadline, double spin_s, size_t moved) {
    reached("moved");
    if (spin_s > 0) spin_s = std::max(spin_s, std::min(static_cast<double>(moved) / MOVED_BYTES_S, LONGEST_AWAKE_S));
    return settle(enter(deadline, spin_s, leaving_));
}

Status Segment::enter(double deadline, double spin_s, Awake &awake) {
    if (aborted()) return ABORTED; // a rank that aborts in a barrier has arrived: it must not complete it for others
    const uint64_t number = ++count_;
    slots_[rank_].arrived.store(number, std::memory_order_release);
    const uint64_t arrivals = header_->arrivals.fetch_add(1, std::memory_order_acq_rel) + 1;
    if (arrivals == number * static_cast<uint64_t>(ranks_)) {
        header_->epoch.store(number, std::memory_order_seq_cst);
        wake();
        reached("arrived");
        return OK;
    }
    reached("arrived");
    return wait(number, deadline, spin_s, awake);
}

// The abort word is read before the epoch: a rank that completed this barrier and then left or died must not fail it.
Status Segment::wait(uint64_t number, double deadline, double spin_s, Awake &awake) {
    const auto look = [&]() -> int {
        const bool abort = header_->abort.load(std::memory_order_acquire) != 0;
        if (header_->epoch.load(std::memory_order_seq_cst) >= number) return OK;
        return abort ? ABORTED : -1;
    };
    const auto done = [&] { return header_->epoch.load(std::memory_order_acquire) >= number; };
    if (awake.wait(crowded, spin_s, done, [&] { return aborted() != 0; })) return OK;
    for (;;) {
        const uint32_t event = header_->event.load(std::memory_order_seq_cst);
        header_->sleepers.fetch_add(1, std::memory_order_seq_cst);
        int status = look();
        int why = 0;
        if (status < 0) why = futex_wait(&header_->event, event, deadline);
        header_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
        if (status < 0) status = look();
        if (status >= 0) return static_cast<Status>(status);
        if (why == ETIMEDOUT || now() >= deadline) return TIMEOUT;
        if (why == EINTR) check_signals();
    }
}

bool Segment::same_descriptors() {
    for (int r = 1; r < ranks_; r++) {
        if (std::memcmp(&side(0).descriptor, &side(r).descriptor, sizeof(Descriptor)) != 0) {
            mismatched_ = r;
            return false;
        }
    }
    return true;
}

Status Segment::exchange(const Descriptor &mine, const Piece *pieces, int n, double deadline, double spin_s, Shared as) {
    const Status met = settle(meet(mine, pieces, n, deadline, spin_s, as));
    if (met == OK) reached("agreed");
    return met;
}

Status Segment::meet(const Descriptor &mine, const Piece *pieces, int n, double deadline, double spin_s, Shared as) {
    round_++;
    Side &side = slots_[rank_].side[round_ & 1];
    if (compare) side.descriptor = mine;
    side.n_regions = static_cast<uint32_t>(n);
    side.shared = IN_SLOTS;
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        const Piece &piece = pieces[i];
        const size_t shown = as == IN_STAGE ? 2 * STAGE_BYTES : piece.size;
        side.regions[i] = {piece.arena, piece.in_slot() ? at : piece.offset, shown, piece.expected};
        if (piece.in_slot()) {
            if (piece.size) std::memcpy(side.payload + at, piece.data, piece.size);
            at += (piece.size + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
        } else {
            side.shared = as;
        }
    }
    const Status met = enter(deadline, spin_s, arriving_);
    if (met != OK) return met;
    return !compare || same_descriptors() ? OK : MISMATCH;
}

char *Segment::locate(int rank, size_t index) {
    const Side &published = side(rank);
    const Region &region = published.regions[index];
    if (region.arena == IN_SLOT) return const_cast<char *>(published.payload) + region.offset;
    missing_ = {rank, region.arena};
    return address(rank, region.arena, region.offset, region.size);
}

// block(at, n) for all of `count` in steps, while nobody has aborted; MISMATCH once it says false.
// `touching` is set before the abort word is read, and a rank that leaves sets the word before it reads `touching`: one
// of the two sees the other, in the single order of sequentially consistent accesses.
template <class Block> Status Segment::guarded(size_t count, size_t step, Block block) {
    std::atomic<uint32_t> &touching = slots_[rank_].touching;
    for (size_t at = 0; at < count; at += step) {
        touching.store(1, std::memory_order_seq_cst);
        const bool stop = header_->abort.load(std::memory_order_seq_cst) != 0;
        const bool known = stop || block(at, std::min(step, count - at));
        touching.store(0, std::memory_order_release);
        if (stop) return settle(ABORTED);
        if (!known) return MISMATCH;
        reached("data");
    }
    return OK;
}

Status Segment::write(int dtype, Op op, const char *const *srcs, int n_srcs, char *const *dsts, int n_dsts, size_t count) {
    const size_t item = item_size(dtype);
    const char *from[MAX_RANKS];
    char *to[MAX_RANKS];
    return guarded(count, GUARD_BYTES / std::max<size_t>(item, 1), [&](size_t at, size_t n) {
        for (int s = 0; s < n_srcs; s++) from[s] = srcs[s] + at * item;
        for (int d = 0; d < n_dsts; d++) to[d] = dsts[d] + at * item;
        return reduce(dtype, op, from, n_srcs, to, n_dsts, n);
    });
}

Status Segment::push(char *dst, const char *src, size_t size, bool stream) {
    return guarded(size, GUARD_BYTES, [&](size_t at, size_t n) {
        copy(dst + at, src + at, n, stream);
        return true;
    });
}

std::vector<int> Segment::late() const {
    std::vector<int> ranks;
    for (int r = 0; r < ranks_; r++)
        if (slots_[r].arrived.load(std::memory_order_acquire) < count_) ranks.push_back(r);
    return ranks;
}

namespace {

constexpr size_t HUGE_BYTES = 2 << 20;

// `size` bytes of a file from a multiple of 2 MiB on: pages that its owner has made huge are so here. Null: no room.
char *map_aligned(int fd, size_t size) {
    const size_t whole = size + HUGE_BYTES;
    void *free = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (free == MAP_FAILED) return nullptr;
    char *const begin = static_cast<char *>(free), *const end = begin + whole;
    char *const at = begin + (HUGE_BYTES - reinterpret_cast<uintptr_t>(begin) % HUGE_BYTES) % HUGE_BYTES;
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), length = (size + page - 1) / page * page;
    if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        munmap(free, whole);
        return nullptr;
    }
    if (at != begin) munmap(begin, static_cast<size_t>(at - begin));
    if (at + length != end) munmap(at + length, static_cast<size_t>(end - at - length));
    madvise(at, size, MADV_HUGEPAGE); // advice: without huge pages for shared memory nothing is lost
    return at;
}

} // namespace

bool Segment::add_arena(int rank, uint64_t id, int fd, size_t size) {
    struct stat info;
    if (fstat(fd, &info) != 0 || static_cast<size_t>(info.st_size) < size || size == 0) return false;
    char *at = map_aligned(fd, size);
    if (!at) return false;
    auto made = std::make_shared<Mapping>(at, size);
    const std::lock_guard<std::mutex> guard(mutex_);
    if (!header_) return false;
    arenas_[{rank, id}] = std::move(made);
    return true;
}

size_t Segment::adopt(Segment &from, const std::vector<int> &ranks) {
    const std::scoped_lock guard(mutex_, from.mutex_);
    size_t count = 0;
    if (!header_ || &from == this) return 0;
    for (auto at = from.arenas_.begin(); at != from.arenas_.end();) {
        const auto [rank, id] = at->first;
        const int here = rank < static_cast<int>(ranks.size()) ? ranks[static_cast<size_t>(rank)] : -1;
        if (here < 0 || here >= ranks_ || here == rank_) {
            ++at;
            continue;
        }
        arenas_[{here, id}] = at->second;
        at = from.arenas_.erase(at);
        count++;
    }
    return count;
}

std::shared_ptr<Mapping> Segment::arena(int rank, uint64_t id) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto found = arenas_.find({rank, id});
    return found == arenas_.end() ? nullptr : found->second;
}

char *Segment::address(int rank, uint64_t id, uint64_t offset, size_t size) {
    const std::shared_ptr<Mapping> found = arena(rank, id);
    return found && found->holds(offset, size) ? found->at + offset : nullptr;
}

} // namespace resilin::dist
