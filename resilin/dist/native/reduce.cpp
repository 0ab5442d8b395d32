// The loops work on blocks that stay in the first-level cache: an accumulator takes the block of each source in rank
// order, then goes to each destination. So memory is read once per source and written once per destination.
#include "reduce.hpp"

#include <cmath>
#include <complex>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__)
#define RESILIN_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define RESILIN_CLONES
#endif

namespace resilin::dist {
namespace {

constexpr size_t BLOCK_BYTES = 8192;

struct Half { uint16_t bits; };
struct Bfloat { uint16_t bits; };
using C64 = std::complex<float>;
using C128 = std::complex<double>;

inline float to_float(Bfloat x) {
    uint32_t bits = uint32_t{x.bits} << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

inline Bfloat to_bfloat(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16; // to nearest, ties to even
    const uint32_t quiet = (bits >> 16) | 0x40u;
    return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded)};
}

// float16 by integer arithmetic without branches that depend on the value (so that loops vectorize)
inline float to_float(Half x) {
    const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16, rest = x.bits & 0x7fffu;
    uint32_t normal = (rest << 13) + (112u << 23);
    normal = rest >= 0x7c00u ? normal + (112u << 23) : normal;
    float tiny = static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f; // subnormal: rest * 2^-24 is exact
    uint32_t tiny_bits;
    std::memcpy(&tiny_bits, &tiny, 4);
    const uint32_t bits = sign | (rest < 0x400u ? tiny_bits : normal);
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

inline Half to_half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
    const uint32_t normal = (rest + 0xfffu + ((rest >> 13) & 1u) - (112u << 23)) >> 13;
    float magnitude;
    std::memcpy(&magnitude, &rest, 4);
    const float shifted = magnitude + 0.5f; // adds 2^-1: the last place of the sum is 2^-24, float16's smallest step
    uint32_t shifted_bits;
    std::memcpy(&shifted_bits, &shifted, 4);
    const uint32_t subnormal = shifted_bits - 0x3f000000u;
    uint32_t out = rest < (113u << 23) ? subnormal : normal;
    out = rest >= 0x477ff000u ? 0x7c00u : out; // rounds beyond the largest: infinity
    out = rest > 0x7f800000u ? 0x7e00u : out;  // NaN
    return {static_cast<uint16_t>(sign | out)};
}

// storage type -> the type it is accumulated in
template <class T> struct Wide { using type = T; };
template <> struct Wide<Half> { using type = float; };
template <> struct Wide<Bfloat> { using type = float; };

template <class A, class T> inline A load(const T &x) {
    if constexpr (std::is_same_v<A, T>) return x;
    else return to_float(x);
}
inline Half store(float x, Half) { return to_half(x); }
inline Bfloat store(float x, Bfloat) { return to_bfloat(x); }
template <class T> inline T store(T x, T) { return x; }

template <Op OP, class A> inline A combine(A a, A b) {
    if constexpr (OP == SUM || OP == AVG) {
        if constexpr (std::is_same_v<A, bool>) return a || b;
        else return static_cast<A>(a + b);
    } else if constexpr (OP == PRODUCT) {
        if constexpr (std::is_same_v<A, bool>) return a && b;
        else return static_cast<A>(a * b);
    } else if constexpr (OP == MIN) {
        return b < a || b != b ? b : a; // a NaN on either side wins, as in numpy
    } else if constexpr (OP == MAX) {
        return b > a || b != b ? b : a;
    } else if constexpr (OP == BAND) {
        return a & b;
    } else if constexpr (OP == BOR) {
        return a | b;
    } else {
        return a ^ b;
    }
}

template <class A> inline A divide(A a, int n) {
    if constexpr (std::is_same_v<A, bool>) return a;
    else if constexpr (std::is_integral_v<A>) return static_cast<A>(a / static_cast<std::conditional_t<std::is_signed_v<A>, int64_t, uint64_t>>(n));
    else if constexpr (std::is_floating_point_v<A>) return a / static_cast<A>(n);
    else return a / static_cast<typename A::value_type>(n);
}

// The four loops below are inlined into `run`, which exists once per dtype, op and instruction set.
template <class A, class T> [[gnu::always_inline]] inline void load_block(A *__restrict acc, const T *__restrict x, size_t n) {
    for (size_t i = 0; i < n; i++) acc[i] = load<A>(x[i]);
}
template <Op OP, class A, class T> [[gnu::always_inline]] inline void add_block(A *__restrict acc, const T *__restrict x, size_t n) {
    for (size_t i = 0; i < n; i++) acc[i] = combine<OP>(acc[i], load<A>(x[i]));
}
template <class A> [[gnu::always_inline]] inline void divide_block(A *acc, size_t n, int by) {
    for (size_t i = 0; i < n; i++) acc[i] = divide(acc[i], by);
}
template <class A, class T> [[gnu::always_inline]] inline void store_block(T *__restrict out, const A *__restrict acc, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = store(acc[i], T{});
}

// two sources that are also the two destinations: all_reduce of two ranks, without the detour through an accumulator
template <Op OP, class T> [[gnu::always_inline]] inline void pair(T *a, T *b, size_t n) {
#pragma GCC ivdep
    for (size_t i = 0; i < n; i++) {
        T sum = combine<OP>(a[i], b[i]);
        if constexpr (OP == AVG) sum = divide(sum, 2);
        a[i] = sum;
        b[i] = sum;
    }
}

template <Op OP, class T>
[[gnu::always_inline]] inline void run(const char *const *srcs, int n_srcs, char *const *dsts, int n_dsts, size_t count) {
    using A = typename Wide<T>::type;
    if constexpr (std::is_same_v<A, T>) {
        if (n_srcs == 2 && n_dsts == 2 && srcs[0] == dsts[0] && srcs[1] == dsts[1] && dsts[0] != dsts[1]) {
            pair<OP>(reinterpret_cast<T *>(dsts[0]), reinterpret_cast<T *>(dsts[1]), count);
            return;
        }
    }
    constexpr size_t STEP = BLOCK_BYTES / sizeof(A);
    alignas(64) char memory[BLOCK_BYTES];
    A *acc = reinterpret_cast<A *>(memory);
    for (size_t at = 0; at < count; at += STEP) {
        const size_t n = count - at < STEP ? count - at : STEP;
        load_block<A>(acc, reinterpret_cast<const T *>(srcs[0]) + at, n);
        for (int s = 1; s < n_srcs; s++) add_block<OP, A>(acc, reinterpret_cast<const T *>(srcs[s]) + at, n);
        if constexpr (OP == AVG) divide_block(acc, n, n_srcs);
        for (int d = 0; d < n_dsts; d++) store_block(reinterpret_cast<T *>(dsts[d]) + at, acc, n);
    }
}

#define ARGS const char *const *srcs, int n_srcs, char *const *dsts, int n_dsts, size_t count
using Loop = void (*)(ARGS);

#define LOOP(op, name, type)                                                                                           \
    RESILIN_CLONES void op##_##name(ARGS) { run<op, type>(srcs, n_srcs, dsts, n_dsts, count); }
#define ARITHMETIC(name, type) LOOP(SUM, name, type) LOOP(AVG, name, type) LOOP(PRODUCT, name, type)
#define ORDER(name, type) LOOP(MIN, name, type) LOOP(MAX, name, type)
#define BITWISE(name, type) LOOP(BAND, name, type) LOOP(BOR, name, type) LOOP(BXOR, name, type)
#define INTEGER(name, type) ARITHMETIC(name, type) ORDER(name, type) BITWISE(name, type)

INTEGER(b8, bool)
INTEGER(u8, uint8_t)
INTEGER(i8, int8_t)
INTEGER(u16, uint16_t)
INTEGER(i16, int16_t)
INTEGER(u32, uint32_t)
INTEGER(i32, int32_t)
INTEGER(u64, uint64_t)
INTEGER(i64, int64_t)
ARITHMETIC(f16, Half) ORDER(f16, Half)
ARITHMETIC(bf16, Bfloat) ORDER(bf16, Bfloat)
ARITHMETIC(f32, float) ORDER(f32, float)
ARITHMETIC(f64, double) ORDER(f64, double)
ARITHMETIC(c64, C64)
ARITHMETIC(c128, C128)

#define ROW_INTEGER(name) {SUM_##name, AVG_##name, PRODUCT_##name, MIN_##name, MAX_##name, BAND_##name, BOR_##name, BXOR_##name}
#define ROW_FLOAT(name) {SUM_##name, AVG_##name, PRODUCT_##name, MIN_##name, MAX_##name, nullptr, nullptr, nullptr}
#define ROW_COMPLEX(name) {SUM_##name, AVG_##name, PRODUCT_##name, nullptr, nullptr, nullptr, nullptr, nullptr}

const Loop LOOPS[][8] = {
    ROW_INTEGER(b8), ROW_INTEGER(u8), ROW_INTEGER(i8), ROW_INTEGER(u16), ROW_INTEGER(i16),
    ROW_INTEGER(u32), ROW_INTEGER(i32), ROW_INTEGER(u64), ROW_INTEGER(i64), ROW_FLOAT(f16),
    ROW_FLOAT(bf16), ROW_FLOAT(f32), ROW_FLOAT(f64), ROW_COMPLEX(c64), ROW_COMPLEX(c128),
};
constexpr size_t SIZES[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16};
constexpr int DTYPES = sizeof(SIZES) / sizeof(SIZES[0]);

} // namespace

size_t item_size(int dtype) { return dtype >= 0 && dtype < DTYPES ? SIZES[dtype] : 0; }

bool reduce(int dtype, Op op, ARGS) {
    if (op == PREMUL_SUM) op = SUM; // the factors are in the terms already
    if (dtype < 0 || dtype >= DTYPES || op < SUM || op > BXOR || !LOOPS[dtype][op]) return false;
    LOOPS[dtype][op](srcs, n_srcs, dsts, n_dsts, count);
    return true;
}

} // namespace resilin::dist
