#include "collectives.hpp"

#include <algorithm>

#include "copy.hpp"
#include "phases.hpp"

namespace resilin::dist {
namespace {

constexpr size_t LINE_BYTES = 64;
constexpr size_t STREAM_MIN_BYTES = 12 << 20; // copied by all ranks in one call: from here on caches only cost

} // namespace

Status Collectives::run(Job job, double deadline, double spin_s) {
    job_ = std::move(job);
    misfits_.clear();
    at_.assign(static_cast<size_t>(segment_.ranks()), nullptr);
    if (job_.mine.kind == ALL_TO_ALL)
        for (size_t r = 0; r < job_.inputs.size(); r++) job_.inputs[r].expected = job_.outputs[r].size;
    std::vector<Piece> shown = job_.inputs;
    shown.insert(shown.end(), job_.targets.begin(), job_.targets.end());
    const Status met = segment_.exchange(
        job_.mine, shown.data(), static_cast<int>(shown.size()), deadline, spin_s, job_.stage ? IN_STAGE : IN_ARENA);
    if (met != OK) return met;
    shared_ = staged_ = false;
    for (int r = 0; r < segment_.ranks(); r++) {
        shared_ |= segment_.side(r).shared != IN_SLOTS;
        staged_ |= segment_.side(r).shared == IN_STAGE;
    }
    return resume(deadline, spin_s);
}

// Nothing was touched while an arena is missing: the work can be done from its start.
Status Collectives::resume(double deadline, double spin_s) {
    deadline_ = deadline;
    spin_s_ = spin_s;
    const Status done = work();
    return done != OK || !shared_ ? done : segment_.barrier(deadline, spin_s, moved());
}

// The most bytes that a rank reads and writes in this call, as far as this one can tell.
size_t Collectives::moved() const {
    size_t bytes = 0;
    for (const Piece &input : job_.inputs) bytes += input.size;
    for (const Output &output : job_.outputs) bytes += output.size;
    return job_.mine.kind == GATHER && job_.outputs.empty() ? bytes * at_.size() : bytes;
}

Status Collectives::work() {
    switch (job_.mine.kind) {
    case ALL_REDUCE: return all_reduce();
    case REDUCE: return reduce();
    case REDUCE_SCATTER: return reduce_scatter();
    case BROADCAST: return broadcast();
    case ALL_GATHER: return all_gather();
    case GATHER: return gather();
    case SCATTER: return scatter();
    case ALL_TO_ALL: return all_to_all();
    default: return OK; // a barrier has no work
    }
}

// Where input `index` of `rank` lies, into at_[rank]; false when its arena is missing.
bool Collectives::find(int rank, size_t index) {
    char *&at = at_[static_cast<size_t>(rank)];
    const bool own = rank == segment_.rank() && !job_.inputs[index].in_slot(); // its targets nobody looks for
    at = own ? job_.inputs[index].data : segment_.locate(rank, index);
    return at != nullptr;
}

// All ranks' tensors to one: `count` elements in rank order.
Status Collectives::combine(char *into, size_t count) {
    const bool known = dist::reduce(job_.mine.dtype, static_cast<Op>(job_.mine.op), at_.data(), segment_.ranks(), &into, 1, count);
    reached("data");
    return known ? OK : MISMATCH;
}

// This rank's slice of the `count` elements at at_, reduced in rank order, written to those of `targets`.
Status Collectives::share(const std::vector<int> &targets, size_t count) {
    const size_t item = item_size(job_.mine.dtype);
    const size_t line = LINE_BYTES / item, lines = (count + line - 1) / line; // whole cache lines for each rank
    const auto n = static_cast<size_t>(segment_.ranks()), me = static_cast<size_t>(segment_.rank());
    const size_t start = me * lines / n * line, stop = std::min((me + 1) * lines / n * line, count);
    if (start >= stop) return OK;
    std::vector<char *> to;
    for (char *&at : at_) at += start * item;
    for (const int rank : targets) to.push_back(at_[static_cast<size_t>(rank)]);
    return segment_.write(job_.mine.dtype, static_cast<Op>(job_.mine.op), at_.data(), static_cast<int>(n), to.data(),
                          static_cast<int>(to.size()), stop - start);
}

Status Collectives::all_reduce() {
    if (staged_) return all_reduce_staged();
    std::vector<int> everybody;
    for (int r = 0; r < segment_.ranks(); r++) {
        if (!find(r, 0)) return MISSING;
        everybody.push_back(r);
    }
    const size_t count = job_.inputs[0].size / item_size(job_.mine.dtype);
    return shared_ ? share(everybody, count) : combine(job_.inputs[0].data, count);
}

// Piece by piece, so that the copies stay in the caches: while a piece is reduced the next one is in the other half of
// the stage, and a half is filled again after its rank has emptied it. One barrier for each piece.
Status Collectives::all_reduce_staged() {
    const size_t item = item_size(job_.mine.dtype), size = job_.inputs[0].size;
    const auto me = static_cast<size_t>(segment_.rank());
    std::vector<int> everybody;
    for (int r = 0; r < segment_.ranks(); r++) {
        if (!find(r, 0)) return MISSING;
        everybody.push_back(r);
    }
    if (job_.stage) at_[me] = job_.stage;
    const std::vector<char *> base = at_;
    const auto half = [](size_t at) { return at / STAGE_BYTES % 2 * STAGE_BYTES; };
    const auto piece = [&](size_t at) { return std::min(STAGE_BYTES, size - at); };
    const auto load = [&](size_t at) {
        if (job_.stage && at < size) copy(job_.stage + half(at), job_.inputs[0].data + at, piece(at), false);
    };
    load(0);
    Status status = segment_.barrier(deadline_, spin_s_);
    for (size_t at = 0; status == OK && at < size; at += STAGE_BYTES) {
        load(at + STAGE_BYTES);
        for (size_t r = 0; r < base.size(); r++)
            at_[r] = base[r] + (segment_.side(static_cast<int>(r)).shared == IN_STAGE ? half(at) : at);
        status = share(everybody, piece(at) / item);
        if (status == OK) status = segment_.barrier(deadline_, spin_s_, 2 * piece(at));
        if (status == OK && job_.stage) copy(job_.inputs[0].data + at, job_.stage + half(at), piece(at), false);
    }
    return status;
}

Status Collectives::reduce() {
    for (int r = 0; r < segment_.ranks(); r++)
        if (!find(r, 0)) return MISSING;
    if (shared_) return share({job_.mine.root}, job_.inputs[0].size / item_size(job_.mine.dtype));
    if (segment_.rank() != job_.mine.root) return OK;
    return combine(job_.inputs[0].data, job_.inputs[0].size / item_size(job_.mine.dtype));
}

Status Collectives::reduce_scatter() {
    for (int r = 0; r < segment_.ranks(); r++)
        if (!find(r, static_cast<size_t>(segment_.rank()))) return MISSING;
    return combine(job_.outputs[0].data, job_.outputs[0].size / item_size(job_.mine.dtype));
}

// Each receiver copies from the root. Into those that can be written by peers the root copies the end, as much as leaves
// the same for all ranks.
Status Collectives::broadcast() {
    const int root = job_.mine.root;
    const size_t n = at_.size(), size = segment_.rank() == root ? job_.inputs[0].size : job_.outputs[0].size;
    const size_t cut = (size - size / n) / LINE_BYTES * LINE_BYTES;
    const bool stream = size * n >= STREAM_MIN_BYTES;
    if (segment_.rank() != root) {
        if (!find(root, 0)) return MISSING;
        copy(job_.outputs[0].data, at_[static_cast<size_t>(root)], job_.targets.empty() ? size : cut, stream);
        reached("data");
        return OK;
    }
    for (int r = 0; r < segment_.ranks(); r++)
        if (r != root && segment_.side(r).n_regions && !find(r, 0)) return MISSING;
    Status status = OK;
    for (size_t step = 1; step < n && status == OK; step++) {
        const size_t r = (static_cast<size_t>(root) + step) % n;
        if (at_[r]) status = segment_.push(at_[r] + cut, job_.inputs[0].data + cut, size - cut, stream);
    }
    return status;
}

Status Collectives::all_gather() {
    for (int r = 0; r < segment_.ranks(); r++)
        if (!find(r, 0)) return MISSING;
    const size_t n = at_.size();
    for (size_t step = 0; step < n; step++) { // each rank starts at another peer, so that they do not queue
        const size_t r = (static_cast<size_t>(segment_.rank()) + step) % n;
        copy(job_.outputs[r].data, at_[r], job_.outputs[r].size, job_.outputs[r].size * n * n >= STREAM_MIN_BYTES);
        reached("data");
    }
    return OK;
}

// The root copies what everybody has; where peers can write into its outputs each brings its own part.
Status Collectives::gather() {
    const size_t n = at_.size(), me = static_cast<size_t>(segment_.rank());
    const int root = job_.mine.root;
    const bool brought = segment_.side(root).n_regions > 1, stream = job_.inputs[0].size * n >= STREAM_MIN_BYTES;
    if (segment_.rank() != root) {
        if (!brought) return OK;
        if (!find(root, 1 + me)) return MISSING;
        return segment_.push(at_[static_cast<size_t>(root)], job_.inputs[0].data, job_.inputs[0].size, stream);
    }
    for (int r = 0; r < segment_.ranks(); r++)
        if ((r == root || !brought) && !find(r, 0)) return MISSING;
    for (size_t r = 0; r < n; r++) {
        if (!at_[r]) continue;
        copy(job_.outputs[r].data, at_[r], job_.outputs[r].size, stream);
        reached("data");
    }
    return OK;
}

Status Collectives::scatter() {
    const int root = job_.mine.root;
    if (!find(root, static_cast<size_t>(segment_.rank()))) return MISSING;
    const Output &out = job_.outputs[0];
    copy(out.data, at_[static_cast<size_t>(root)], out.size, out.size * at_.size() >= STREAM_MIN_BYTES);
    reached("data");
    return OK;
}

// Every rank looks at all pairs, so that all of them find the same.
void Collectives::find_misfits() {
    misfits_.clear(); // of a call that is resumed
    for (int from = 0; from < segment_.ranks(); from++) {
        for (int to = 0; to < segment_.ranks(); to++) {
            const size_t sent = segment_.side(from).regions[to].size, expected = segment_.side(to).regions[from].expected;
            if (sent != expected) misfits_.push_back({from, to, sent, expected});
        }
    }
}

Status Collectives::all_to_all() {
    const size_t n = at_.size(), me = static_cast<size_t>(segment_.rank());
    find_misfits();
    if (!misfits_.empty()) return OK;
    size_t copied = 0;
    for (size_t r = 0; r < n; r++) {
        if (!find(static_cast<int>(r), me)) return MISSING;
        copied += job_.outputs[r].size;
    }
    for (size_t step = 0; step < n; step++) {
        const size_t r = (me + step) % n;
        copy(job_.outputs[r].data, at_[r], job_.outputs[r].size, copied * n >= STREAM_MIN_BYTES);
        reached("data");
    }
    return OK;
}

} // namespace resilin::dist
