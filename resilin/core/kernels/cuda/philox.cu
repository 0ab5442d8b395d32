// Random numbers by Philox4x32-10 where they are wanted. Twin: kernels/cuda/philox.py; reference: kernels/philox.py, and
// for the normal ones native/kernels/philox.cpp, whose steps these are: fused where fmaf() says so, so the bits are the
// same. A thread makes the numbers of a counter's block of four words; number i of a draw lies in block i / EACH.

#include "elements.cuh"
#include "faults.cuh"

// The four words of counter `number`.
struct Words {
    unsigned word[4];

    __device__ __forceinline__ Words(unsigned long long seed, unsigned long long stream, unsigned long long number) {
        unsigned a = static_cast<unsigned>(number), b = static_cast<unsigned>(number >> 32);
        unsigned c = static_cast<unsigned>(stream), d = static_cast<unsigned>(stream >> 32);
        unsigned k0 = static_cast<unsigned>(seed), k1 = static_cast<unsigned>(seed >> 32);
        for (int round = 0; round < 10; ++round) {
            const unsigned long long p = 0xD2511F53ull * a, q = 0xCD9E8D57ull * c;
            a = static_cast<unsigned>(q >> 32) ^ b ^ k0;
            b = static_cast<unsigned>(q);
            c = static_cast<unsigned>(p >> 32) ^ d ^ k1;
            d = static_cast<unsigned>(p);
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        word[0] = a;
        word[1] = b;
        word[2] = c;
        word[3] = d;
    }
};

// In [0, 1), of the upper BITS of a word.
template <int BITS> __device__ __forceinline__ float unit(unsigned word) {
    return static_cast<float>(word >> (32 - BITS)) * (1.0f / (1 << BITS));
}

// Of a block: EACH numbers of [0, 1), of as many bits as T's significand has, so that none is rounded to 1.
template <typename T> struct Uniform;
template <> struct Uniform<float> {
    static constexpr int EACH = 4;
    __device__ __forceinline__ static float of(const Words& words, int i) { return unit<24>(words.word[i]); }
};
template <> struct Uniform<__half> {
    static constexpr int EACH = 4;
    __device__ __forceinline__ static __half of(const Words& words, int i) {
        return __float2half_rn(unit<11>(words.word[i]));
    }
};
template <> struct Uniform<__nv_bfloat16> {
    static constexpr int EACH = 4;
    __device__ __forceinline__ static __nv_bfloat16 of(const Words& words, int i) {
        return __float2bfloat16_rn(unit<8>(words.word[i]));
    }
};
template <> struct Uniform<double> {
    static constexpr int EACH = 2;
    __device__ __forceinline__ static double of(const Words& words, int i) {
        const unsigned long long high = words.word[2 * i + 1];
        return static_cast<double>((high << 32 | words.word[2 * i]) >> 11) * (1.0 / (1ull << 53));
    }
};

// The blocks that a thread makes of a draw of n numbers, EACH of a block.
#define FOR_EACH_DRAWN(EACH, n)                                                                               \
    for (long long block = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x; block * (EACH) < (n);  \
         block += gridDim.x * static_cast<long long>(THREADS))

template <typename T>
__global__ void uniform(T* __restrict__ out, long long n, unsigned long long seed, unsigned long long stream,
                        unsigned long long offset) {
    constexpr int EACH = Uniform<T>::EACH;
    FOR_EACH_DRAWN(EACH, n) {
        const Words words(seed, stream, offset + block);
        for (int i = 0; i < EACH && block * EACH + i < n; ++i) out[block * EACH + i] = Uniform<T>::of(words, i);
    }
}

// 0 with probability p, else `scale`.
__global__ void dropout_mask(float* __restrict__ out, long long n, unsigned long long seed, unsigned long long stream,
                             unsigned long long offset, float p, float scale) {
    FOR_EACH_DRAWN(4, n) {
        const Words words(seed, stream, offset + block);
        for (int i = 0; i < 4 && block * 4 + i < n; ++i)
            out[block * 4 + i] = unit<24>(words.word[i]) >= p ? scale : 0.0f;
    }
}

// 1 with the probability that stands in `chance` (where it is null, p), else 0. What is no probability is noted.
template <typename T, typename A>
__global__ void bernoulli(const T* __restrict__ chance, double p, T* __restrict__ out, long long n,
                          unsigned long long seed, unsigned long long stream, unsigned long long offset,
                          long long* __restrict__ fault, long long code) {
    FOR_EACH_DRAWN(4, n) {
        const Words words(seed, stream, offset + block);
        for (int i = 0; i < 4 && block * 4 + i < n; ++i) {
            const long long place = block * 4 + i;
            const float u = unit<24>(words.word[i]);
            bool one = u < p;
            if (chance) {
                const A own = widened(chance[place]);
                if (!(own >= 0 && own <= 1)) note(fault, code, 0);
                one = u < own;
            }
            out[place] = Narrow<T>::of(static_cast<A>(one ? 1 : 0));
        }
    }
}

// Natural logarithm of a positive normal number.
__device__ __forceinline__ float logarithm(float x) {
    const int bits = __float_as_int(x);
    int e = (bits >> 23) - 126;
    float m = __int_as_float((bits & 0x007FFFFF) | 0x3F000000);
    const bool low = m < 0.707106781f;
    e = low ? e - 1 : e;
    m = (low ? m + m : m) - 1.0f;
    const float z = m * m;
    float p = 7.0376836292e-2f;
    p = fmaf(p, m, -1.1514610310e-1f);
    p = fmaf(p, m, 1.1676998740e-1f);
    p = fmaf(p, m, -1.2420140846e-1f);
    p = fmaf(p, m, 1.4249322787e-1f);
    p = fmaf(p, m, -1.6668057665e-1f);
    p = fmaf(p, m, 2.0000714765e-1f);
    p = fmaf(p, m, -2.4999993993e-1f);
    p = fmaf(p, m, 3.3333331174e-1f);
    const float fe = static_cast<float>(e);
    const float y = fmaf(-0.5f, z, fmaf(fe, -2.12194440e-4f, p * m * z));
    return fmaf(fe, 0.693359375f, m + y);
}

// Box-Muller: numbers 2i and 2i + 1 of the same two words.
__global__ void normal(float* __restrict__ out, long long n, unsigned long long seed, unsigned long long stream,
                       unsigned long long offset) {
    FOR_EACH_DRAWN(4, n) {
        const Words words(seed, stream, offset + block);
        for (int half = 0; half < 4; half += 2) {
            const float u = 1.0f - unit<24>(words.word[half]), turn = 4.0f * unit<24>(words.word[half + 1]);
            const float radius = sqrtf(-2.0f * logarithm(u));
            const float shifter = 12582912.0f;
            const float rounded = turn + shifter;
            const int quarter = __float_as_int(rounded);
            const float r = (turn - (rounded - shifter)) * 1.57079632679489662f, z = r * r;
            float s = fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f);
            s = fmaf(s * z, r, r);
            float c = fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f);
            c = fmaf(fmaf(fmaf(c, z, 4.166664568298827e-2f), z, -0.5f), z, 1.0f);
            const bool odd = quarter & 1;
            const float cosine = odd ? s : c, sine = odd ? c : s;
            const long long place = block * 4 + half;
            if (place < n) out[place] = radius * (((quarter + 1) & 2) ? -cosine : cosine);
            if (place + 1 < n) out[place + 1] = radius * ((quarter & 2) ? -sine : sine);
        }
    }
}
