// Memory is read once per source and written once per destination. A small accumulator takes each
// source in rank order, then goes to each destination: all of them are walked through side by side, because the processor
// fetches several sequences ahead at once, and from one alone gets half of the memory's bandwidth.
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

// elements of an accumulator: a cache line, more where they are converted and only a loop is worth vectorizing
template <class A, class T> constexpr size_t STEP = std::is_same_v<A, T> ? 64 / sizeof(A) : 64;

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

// `b` if `take`, else `a`, by masks: gcc makes a branch of a choice between floating-point numbers, and no vector of that
template <class A> inline A choose(bool take, A b, A a) {
    if constexpr (std::is_floating_point_v<A>) {
        using Bits = std::conditional_t<sizeof(A) == 4, uint32_t, uint64_t>;
        Bits of_a, of_b;
        std::memcpy(&of_a, &a, sizeof a);
        std::memcpy(&of_b, &b, sizeof b);
        const Bits mask = Bits{0} - Bits{take}, bits = (of_b & mask) | (of_a & ~mask);
        A out;
        std::memcpy(&out, &bits, sizeof out);
        return out;
    } else {
        return take ? b : a;
    }
}

template <Op OP, class A> inline A combine(A a, A b) {
    if constexpr (OP == SUM || OP == AVG) {
        if constexpr (std::is_same_v<A, bool>) return a || b;
        else return static_cast<A>(a + b);
    } else if constexpr (OP == PRODUCT) {
        if constexpr (std::is_same_v<A, bool>) return a && b;
        else return static_cast<A>(a * b);
    } else if constexpr (OP == MIN) {
        if constexpr (std::is_same_v<A, bool>) return a && b;
        else return choose((b < a) | (b != b), b, a); // a NaN on either side wins, as in numpy
    } else if constexpr (OP == MAX) {
        if constexpr (std::is_same_v<A, bool>) return a || b;
        else return choose((b > a) | (b != b), b, a);
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

// The loops below are inlined into `run`, which exists once per dtype, op and instruction set.
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

// N sources that are also the N destinations, as those of an all_reduce are: no accumulator but a register
template <Op OP, class T, size_t N> [[gnu::always_inline]] inline void in_place(char *const *at, size_t count) {
    using A = typename Wide<T>::type;
    T *x[N];
    for (size_t k = 0; k < N; k++) x[k] = reinterpret_cast<T *>(at[k]);
#pragma GCC ivdep
    for (size_t i = 0; i < count; i++) {
        A sum = load<A>(x[0][i]);
        for (size_t k = 1; k < N; k++) sum = combine<OP>(sum, load<A>(x[k][i]));
        if constexpr (OP == AVG) sum = divide(sum, static_cast<int>(N));
        for (size_t k = 0; k < N; k++) x[k][i] = store(sum, T{});
    }
}

// `n` is a constant where this is inlined for whole blocks, so that the accumulator stays in registers
template <Op OP, class T>
[[gnu::always_inline]] inline void block(const char *const *srcs, int n_srcs, char *const *dsts, int n_dsts, size_t at, size_t n) {
    using A = typename Wide<T>::type;
    A acc[STEP<A, T>];
    load_block<A>(acc, reinterpret_cast<const T *>(srcs[0]) + at, n);
    for (int s = 1; s < n_srcs; s++) add_block<OP, A>(acc, reinterpret_cast<const T *>(srcs[s]) + at, n);
    if constexpr (OP == AVG) divide_block(acc, n, n_srcs);
    for (int d = 0; d < n_dsts; d++) store_block(reinterpret_cast<T *>(dsts[d]) + at, acc, n);
}

inline bool same(const char *const *srcs, int n_srcs, char *const *dsts, int n_dsts) {
    bool equal = n_srcs == n_dsts;
    for (int k = 0; equal && k < n_srcs; k++) {
        equal = srcs[k] == dsts[k];
        for (int before = 0; equal && before < k; before++) equal = dsts[before] != dsts[k];
    }
    return equal;
}

template <Op OP, class T>
[[gnu::always_inline]] inline void run(const char *const *srcs, int n_srcs, char *const *dsts, int n_dsts, size_t count) {
    if (n_srcs >= 2 && n_srcs <= 4 && same(srcs, n_srcs, dsts, n_dsts)) {
        if (n_srcs == 2) in_place<OP, T, 2>(dsts, count);
        else if (n_srcs == 3) in_place<OP, T, 3>(dsts, count);
        else in_place<OP, T, 4>(dsts, count);
        return;
    }
    constexpr size_t step = STEP<typename Wide<T>::type, T>;
    size_t at = 0;
    for (; at + step <= count; at += step) block<OP, T>(srcs, n_srcs, dsts, n_dsts, at, step);
    if (at < count) block<OP, T>(srcs, n_srcs, dsts, n_dsts, at, count - at);
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
