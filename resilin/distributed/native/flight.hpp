// The native writer of the flight recorder's file, whose format and reference are _base/flight.py and flight_record.py. Its methods hold the
// GIL and never wait: that is what makes them atomic among the threads of the process.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace resilin::dist {

constexpr size_t FLIGHT_HEADER_BYTES = 256;

struct Record {
    uint64_t number; // of the call, from 1; 0 while the record is being filled
    uint8_t state, described;
    uint8_t unused[2];
    int32_t rank, size, root;
    int64_t generation, sequence;
    uint64_t key;
    int64_t shape[8];
    double made, started, ended;
    char what[24], dtype[12], op[12], group[56], line[144];
    int64_t tag; // of a message
    char by[32]; // the function of the library that was called
    int32_t shards; // of a sum along a tree
    uint8_t spare[4];
};
static_assert(sizeof(Record) == 432);

// The ring of this process.
class Flight {
  public:
    // map: the file, writable. inside: the path of the library. kinds, ops: names by code. dtypes: numpy dtype -> name
    Flight(nanobind::handle map, std::string inside, std::vector<std::string> kinds, std::vector<std::string> ops, nanobind::dict dtypes);
    ~Flight();
    Flight(const Flight &) = delete;
    Flight &operator=(const Flight &) = delete;

    // a copy of `fresh`, with tag, number, time and who called what; returns its number, 0 once stopped
    uint64_t begin(const Record &fresh, int64_t tag = 0);
    // what no reader would believe is an error: see flight_record.py
    void start(uint64_t number, int64_t sequence);
    void describe(uint64_t number, nanobind::handle dtype, nanobind::handle shape, nanobind::handle op, int root, int shards);
    void end(uint64_t number, bool failed);
    void stop() { stopped_ = true; } // a forked child must not write into its parent's file

    const std::string &kind(int code) const { return kinds_.at(static_cast<size_t>(code)); }

  private:
    struct Where { // a place in a program
        PyCodeObject *code;
        int instruction;
        bool operator==(const Where &other) const { return code == other.code && instruction == other.instruction; }
    };
    struct Hash {
        size_t operator()(const Where &where) const { return reinterpret_cast<size_t>(where.code) / 16 * 31 + static_cast<size_t>(where.instruction); }
    };
    struct Line {
        bool inside; // the library itself
        char text[sizeof Record::line];
        char name[sizeof Record::by]; // of the function
    };
    struct Caller {
        const Line *from; // the place in the program
        char by[sizeof Record::by];
    };

    Record *held(uint64_t number);
    Caller caller();
    const Line &line(PyFrameObject *frame, PyCodeObject *code);
    void forget_lines();

    Py_buffer map_{};
    Record *records_ = nullptr;
    uint64_t capacity_ = 0, number_ = 0;
    bool stopped_ = false;
    std::string inside_;
    std::vector<std::string> kinds_, ops_;
    nanobind::dict dtypes_;
    std::unordered_map<Where, Line, Hash> lines_; // owns a reference to each code
};

// One recorded call.
struct FlightEntry {
    nanobind::object owner; // of `flight`
    Flight *flight;
    uint64_t number;
};

// The calls of one rank of one group.
class FlightLog {
  public:
    FlightLog(nanobind::object owner, nanobind::bytes group, uint64_t key, int64_t generation, int rank, int size);
    FlightEntry collective(int kind);
    FlightEntry mark(nanobind::bytes what);
    FlightEntry message(nanobind::bytes what, nanobind::handle array, int peer, int64_t tag);

  private:
    nanobind::object owner_; // of `flight_`
    Flight *flight_;
    Record fresh_{};
};

void bind_flight(nanobind::module_ &m);

} // namespace resilin::dist
