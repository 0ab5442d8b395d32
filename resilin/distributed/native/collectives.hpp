// The collectives of one host, on top of a control segment: who reads what from whom.
//
//   publish descriptor and tensors ── barrier ── work on everybody's memory ── barrier, where it was not in the slots
//
// Ranks read one another's inputs and write their own outputs. Into memory of peers write, guarded as Segment says: each
// rank its slice in all_reduce and reduce; in large broadcasts and gathers whoever would be idle, where it finds targets.
#pragma once

#include <utility>
#include <vector>

#include "segment.hpp"

namespace resilin::dist {

// as wire/frames.py numbers them
enum Kind : int { BARRIER, ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, GATHER, SCATTER, ALL_TO_ALL, TREE_ALL_REDUCE };

struct Output {
    char *data;
    size_t size;
};

struct Job {
    Descriptor mine;             // its kind says what to do; dtype, op and root belong to it
    std::vector<Piece> inputs;   // all_reduce: the tensor; reduce_scatter, scatter, all_to_all: one for each rank
    char *stage = nullptr;       // all_reduce of memory that peers cannot map: 2 * STAGE_BYTES that they can
    std::vector<Output> outputs; // all_gather, gather, all_to_all: one from each rank; none for all_reduce and reduce
    std::vector<Piece> targets;  // broadcast, gather: the outputs again, where peers may write into them
};

class Collectives {
  public:
    explicit Collectives(Segment &segment) : segment_(segment) {}

    Segment &segment() { return segment_; }
    // OK, or as Segment's calls. MISSING: an arena of a peer has not arrived yet; `resume` after it has.
    Status run(Job job, double deadline, double spin_s);
    Status resume(double deadline, double spin_s);
    // all_to_all pairs that did not fit in the last call, of all ranks: then nothing was copied anywhere
    struct Misfit { int from, to; size_t sent, expected; };
    const std::vector<Misfit> &misfits() const { return misfits_; }

  private:
    Status work();
    size_t moved() const;
    Status all_reduce();
    Status all_reduce_staged();
    Status reduce();
    Status reduce_scatter();
    Status broadcast();
    Status gather();
    Status all_gather();
    Status scatter();
    Status all_to_all();
    void find_misfits();
    bool find(int rank, size_t index);
    Status share(const std::vector<int> &targets, size_t count);
    Status combine(char *into, size_t count);

    Segment &segment_;
    Job job_;
    double deadline_ = 0, spin_s_ = 0;
    bool shared_ = false; // some rank published memory outside the slots
    bool staged_ = false; // some rank published a stage
    std::vector<char *> at_; // of the pieces that `find` found, by rank
    std::vector<Misfit> misfits_;
};

} // namespace resilin::dist
