// Few items are put where as many others are before them; more are sorted by their digits, the lowest first.
#include "items.hpp"

namespace resilin {
namespace {

constexpr int64_t SHORT = 192;     // items; below, comparing each with each is faster
constexpr int64_t LONG = 1 << 13;  // items from which on longer digits pay,
constexpr int64_t FAR = 1 << 19;   // and from which on writing to so many places at a time does not
constexpr int BLOCK = 64;          // items that are compared with one at a time

// before[i]: how many of n keys are less than the i-th. Both are as long as blocks are.
RESILIN_SIMD void count_before(const int32_t *keys, int64_t n, int32_t *before) {
    for (int64_t block = 0; block < n; block += BLOCK) {
        int32_t count[BLOCK] = {};
        for (int64_t j = 0; j < n; j++) {
            const int32_t key = keys[j];
            for (int i = 0; i < BLOCK; i++) count[i] += keys[block + i] > key;
        }
        std::copy_n(count, BLOCK, before + block);
    }
}

void sort_few(const uint64_t *items, uint64_t *to, int64_t n) {
    int32_t keys[SHORT], before[SHORT];
    for (int64_t i = 0; i < n; i++) keys[i] = static_cast<int32_t>((items[i] >> 32) ^ 0x80000000u);
    for (int64_t i = n; i % BLOCK; i++) keys[i] = 0;
    count_before(keys, n, before);
    uint8_t equal[SHORT] = {}; // how many were met that as many are before
    for (int64_t i = 0; i < n; i++) to[before[i] + equal[before[i]]++] = items[i];
}

struct Digits {
    int width, passes;
    Digits(int64_t n, int bits) {
        const int widest = n < LONG || n >= FAR ? 8 : 11;
        passes = (bits + widest - 1) / widest;
        width = passes ? (bits + passes - 1) / passes : 0;
    }
    int64_t values() const { return int64_t{1} << width; }
    RESILIN_INLINE int64_t of(uint64_t item, int pass) const {
        return static_cast<int64_t>(item >> (32 + pass * width) & (static_cast<uint64_t>(values()) - 1));
    }
};

template <int PASSES> void count_digits(const uint64_t *items, int64_t n, const Digits digits, uint32_t *counts) {
    const int64_t values = digits.values();
    for (int64_t i = 0; i < n; i++) {
        const uint64_t item = items[i];
        for (int pass = 0; pass < PASSES; pass++) counts[pass * values + digits.of(item, pass)]++;
    }
}

// Each count becomes where its digit starts; false where all have one digit.
bool starts_of(uint32_t *counts, int64_t values, int64_t pieces, int64_t n) {
    uint32_t next = 0;
    for (int64_t value = 0; value < values; value++) {
        const uint32_t first = next;
        for (int64_t piece = 0; piece < pieces; piece++) {
            uint32_t &start = counts[piece * values + value];
            next += start;
            start = next - start;
        }
        if (next - first == static_cast<uint64_t>(n)) return false;
    }
    return true;
}

void move_by_digit(const uint64_t *from, uint64_t *to, int64_t begin, int64_t end, const Digits digits, int pass,
                   uint32_t *start) {
    for (int64_t i = begin; i < end; i++) {
        const uint64_t item = from[i];
        to[start[digits.of(item, pass)]++] = item;
    }
}

uint64_t *sort_by_digits(uint64_t *items, uint64_t *spare, int64_t n, const Digits digits) {
    std::vector<uint32_t> counts(static_cast<size_t>(digits.passes * digits.values()));
    constexpr decltype(&count_digits<1>) count[] = {count_digits<1>, count_digits<2>, count_digits<3>, count_digits<4>};
    count[digits.passes - 1](items, n, digits, counts.data());
    for (int pass = 0; pass < digits.passes; pass++) {
        uint32_t *start = counts.data() + pass * digits.values();
        if (!starts_of(start, digits.values(), 1, n)) continue;
        move_by_digit(items, spare, 0, n, digits, pass, start);
        std::swap(items, spare);
    }
    return items;
}

// The pieces of the row in their order, so that equal ones keep theirs.
uint64_t *sort_in_pieces(uint64_t *items, uint64_t *spare, int64_t n, const Digits digits, int64_t pieces) {
    std::vector<uint32_t> starts(static_cast<size_t>(pieces * digits.values()));
    for (int pass = 0; pass < digits.passes; pass++) {
        run_pieces(pieces, [&](int64_t piece) {
            uint32_t *count = starts.data() + piece * digits.values();
            std::fill_n(count, digits.values(), 0u);
            for (int64_t i = n * piece / pieces; i < n * (piece + 1) / pieces; i++) count[digits.of(items[i], pass)]++;
        });
        if (!starts_of(starts.data(), digits.values(), pieces, n)) continue;
        run_pieces(pieces, [&](int64_t piece) {
            uint32_t *start = starts.data() + piece * digits.values();
            move_by_digit(items, spare, n * piece / pieces, n * (piece + 1) / pieces, digits, pass, start);
        });
        std::swap(items, spare);
    }
    return items;
}

} // namespace

uint64_t *sort_items(uint64_t *items, uint64_t *spare, int64_t n, int bits, int64_t pieces) {
    if (n < 2 || !bits) return items;
    if (n <= SHORT) {
        sort_few(items, spare, n);
        return spare;
    }
    const Digits digits(n, bits);
    return pieces > 1 ? sort_in_pieces(items, spare, n, digits, pieces) : sort_by_digits(items, spare, n, digits);
}

} // namespace resilin
