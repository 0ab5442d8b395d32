// Tiles of AMX: tdpbf16ps multiplies 16 rows of a group by 16 columns, in the order of sums that product.hpp states. It
// takes subnormal numbers as zero and gives none.
#include "tiles.hpp"

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,amx-tile,amx-bf16")

namespace resilin {
namespace {

constexpr int64_t SIDE = 16, REGISTER = SIDE * SIDE; // floats

// What ldtilecfg reads: all registers of 16 rows of 64 bytes.
struct alignas(64) Configuration {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr Configuration CONFIGURATION{};

void enter() { _tile_loadconfig(&CONFIGURATION); }
void leave() { _tile_release(); }

// Registers 0 to 3 are sums (the second row of registers from 2 on), 4 and 5 of a, 6 and 7 of b.
template <int Down, int Across> void load_sums(const float *from, int64_t ld) {
    const int64_t stride = ld * static_cast<int64_t>(sizeof(float));
    _tile_loadd(0, from, stride);
    if constexpr (Across == 2) _tile_loadd(1, from + SIDE, stride);
    if constexpr (Down == 2) _tile_loadd(2, from + SIDE * ld, stride);
    if constexpr (Down == 2 && Across == 2) _tile_loadd(3, from + SIDE * ld + SIDE, stride);
}
template <int Down, int Across> void store_sums(float *to, int64_t ld) {
    const int64_t stride = ld * static_cast<int64_t>(sizeof(float));
    _tile_stored(0, to, stride);
    if constexpr (Across == 2) _tile_stored(1, to + SIDE, stride);
    if constexpr (Down == 2) _tile_stored(2, to + SIDE * ld, stride);
    if constexpr (Down == 2 && Across == 2) _tile_stored(3, to + SIDE * ld + SIDE, stride);
}

template <int Down, int Across> void tile(const Multiplicands<float> &of) {
    constexpr int64_t width = Across * SIDE;
    alignas(64) float spare[Down * SIDE * width]; // of sums that do not fill their registers
    const bool whole = of.rows == Down * SIDE && of.columns == width;
    if (!of.plus) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else if (whole) {
        load_sums<Down, Across>(of.plus, of.ld_plus);
    } else {
        for (int64_t i = 0; i < Down * SIDE; i++)
            for (int64_t j = 0; j < width; j++)
                spare[i * width + j] = i < of.rows && j < of.columns ? of.plus[i * of.ld_plus + j] : 0.0f;
        load_sums<Down, Across>(spare, width);
    }
    const float *a = of.a, *b = of.b;
    for (int64_t p = 0; p < of.depth; p += GROUP_STEPS, a += Down * REGISTER, b += Across * REGISTER) {
        _tile_loadd(6, b, 64);
        _tile_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (Across == 2) {
            _tile_loadd(7, b + REGISTER, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (Down == 2) {
            _tile_loadd(5, a + REGISTER, 64);
            _tile_dpbf16ps(2, 5, 6);
        }
        if constexpr (Down == 2 && Across == 2) _tile_dpbf16ps(3, 5, 7);
    }
    if (whole) return store_sums<Down, Across>(of.c, of.ldc);
    store_sums<Down, Across>(spare, width);
    for (int64_t i = 0; i < of.rows; i++)
        for (int64_t j = 0; j < of.columns; j++) of.c[i * of.ldc + j] = spare[i * width + j];
}

constexpr int64_t HEIGHT = 2 * SIDE;
template <int Across> struct Heights {
    Tile<float> of[HEIGHT];
    constexpr Heights() : of{} {
        for (int64_t i = 0; i < HEIGHT; i++) of[i] = i < SIDE ? &tile<1, Across> : &tile<2, Across>;
    }
};
constexpr Heights<2> WIDE;
constexpr Heights<1> NARROW;

} // namespace

const Tiles<float> &amx_tiles() {
    static constexpr Tiles<float> tiles{HEIGHT, HEIGHT, WIDE.of, NARROW.of, false, Layout::matrix, &enter, &leave};
    return tiles;
}

} // namespace resilin
#pragma GCC pop_options

namespace resilin {

bool has_amx() {
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    static const bool granted = __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
                                syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
    return granted;
}

} // namespace resilin
#else

namespace resilin {

bool has_amx() { return false; }
const Tiles<float> &amx_tiles() { return portable_split_tiles(); } // never asked for: this compiler knows no AMX

} // namespace resilin
#endif
