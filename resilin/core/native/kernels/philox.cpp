// Philox4x32-10 (Salmon et al., SC'11): counter = (offset + block, stream), key = seed; values are functions of their
// position alone, so any thread may make any of them.
#include "binding/array.hpp"
#include "binding/kernels.hpp"
#include "memory/parallel.hpp"
#include "simd.hpp"

namespace resilin {
namespace {

constexpr int64_t CHUNK_BLOCKS = 128, CHUNK = 4 * CHUNK_BLOCKS; // words made at once; fits the first-level cache

struct Source {
    uint64_t seed, stream, offset;
};

// the CHUNK words from block `first` (relative to the offset) on
RESILIN_SIMD void make_words(const Source &source, int64_t first, uint32_t *out) {
    uint32_t a[CHUNK_BLOCKS], b[CHUNK_BLOCKS], c[CHUNK_BLOCKS], d[CHUNK_BLOCKS];
    const uint64_t base = source.offset + static_cast<uint64_t>(first);
    for (int64_t i = 0; i < CHUNK_BLOCKS; i++) {
        const uint64_t number = base + static_cast<uint64_t>(i);
        a[i] = static_cast<uint32_t>(number);
        b[i] = static_cast<uint32_t>(number >> 32);
        c[i] = static_cast<uint32_t>(source.stream);
        d[i] = static_cast<uint32_t>(source.stream >> 32);
    }
    uint32_t k0 = static_cast<uint32_t>(source.seed), k1 = static_cast<uint32_t>(source.seed >> 32);
    for (int round = 0; round < 10; round++) {
        for (int64_t i = 0; i < CHUNK_BLOCKS; i++) {
            const uint64_t p = uint64_t{0xD2511F53} * a[i], q = uint64_t{0xCD9E8D57} * c[i];
            a[i] = static_cast<uint32_t>(q >> 32) ^ b[i] ^ k0;
            b[i] = static_cast<uint32_t>(q);
            c[i] = static_cast<uint32_t>(p >> 32) ^ d[i] ^ k1;
            d[i] = static_cast<uint32_t>(p);
        }
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    for (int64_t i = 0; i < CHUNK_BLOCKS; i++) {
        out[4 * i] = a[i];
        out[4 * i + 1] = b[i];
        out[4 * i + 2] = c[i];
        out[4 * i + 3] = d[i];
    }
}

RESILIN_INLINE float unit(uint32_t word) { return static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24f; }

RESILIN_SIMD void to_uniform(const uint32_t *words, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = unit(words[i]);
}

RESILIN_SIMD void to_mask(const uint32_t *words, int64_t n, float p, float scale, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = unit(words[i]) >= p ? scale : 0.0f;
}

// Box-Muller; the angle 2 pi u is reduced exactly to a quarter turn (polynomials: Cephes, sinf and cosf)
RESILIN_SIMD void to_normal(const uint32_t *words, float *out) {
    for (int64_t i = 0; i < CHUNK / 2; i++) {
        const float u = 1.0f - unit(words[2 * i]), turn = 4.0f * unit(words[2 * i + 1]);
        const float radius = __builtin_sqrtf(-2.0f * log_(u));
        const float shifter = 12582912.0f;
        const float rounded = turn + shifter;
        const int32_t quarter = bit_cast<int32_t>(rounded);
        const float r = (turn - (rounded - shifter)) * 1.57079632679489662f, z = r * r;
        const float sin = fma(polynomial(z, -1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f) * z, r, r);
        const float cos = polynomial(z, 2.443315711809948e-5f, -1.388731625493765e-3f, 4.166664568298827e-2f, -0.5f, 1.0f);
        const bool odd = quarter & 1;
        const float c = odd ? sin : cos, s = odd ? cos : sin;
        out[2 * i] = radius * (((quarter + 1) & 2) ? -c : c);
        out[2 * i + 1] = radius * ((quarter & 2) ? -s : s);
    }
}

// fill(words, n, at): n values of the result from position `at` on, out of CHUNK words
template <class Fill> void draw(const Source &source, int64_t count, int words_each, Fill fill) {
    WithoutGil free(count);
    const int64_t step = CHUNK / words_each, chunks = (count + step - 1) / step;
    parallel_rows(chunks, CHUNK, [&](int64_t begin, int64_t end) {
        alignas(64) uint32_t words[CHUNK];
        for (int64_t i = begin; i < end; i++) {
            make_words(source, i * CHUNK_BLOCKS, words);
            fill(words, std::min(step, count - i * step), i * step);
        }
    });
}

nb::object bits(uint64_t seed, uint64_t stream, uint64_t offset, int64_t count) {
    NewArray<uint32_t> out({static_cast<npy_intp>(count)});
    draw(Source{seed, stream, offset}, count, 1, [&](const uint32_t *words, int64_t n, int64_t at) {
        std::memcpy(out.data + at, words, static_cast<size_t>(n) * sizeof(uint32_t));
    });
    return out.object;
}

nb::object uniform(uint64_t seed, uint64_t stream, uint64_t offset, int64_t count, bool wide) {
    const Source source{seed, stream, offset};
    if (!wide) {
        NewArray<float> out({static_cast<npy_intp>(count)});
        draw(source, count, 1, [&](const uint32_t *words, int64_t n, int64_t at) { to_uniform(words, n, out.data + at); });
        return out.object;
    }
    NewArray<double> out({static_cast<npy_intp>(count)});
    draw(source, count, 2, [&](const uint32_t *words, int64_t n, int64_t at) {
        for (int64_t i = 0; i < n; i++) {
            const uint64_t word = uint64_t{words[2 * i + 1]} << 32 | words[2 * i];
            out.data[at + i] = static_cast<double>(word >> 11) * 0x1p-53;
        }
    });
    return out.object;
}

// from `low` on, `span` <= 2^32 of them: the upper half of the product with a random word of 64 bits
RESILIN_SIMD void to_integers(const uint32_t *words, int64_t n, int64_t low, uint64_t span, int64_t *out) {
    for (int64_t i = 0; i < n; i++) {
        const uint64_t lower = words[2 * i + 1] * span >> 32;
        out[i] = static_cast<int64_t>(static_cast<uint64_t>(low) + ((words[2 * i] * span + lower) >> 32));
    }
}

nb::object integers(uint64_t seed, uint64_t stream, uint64_t offset, int64_t count, int64_t low, uint64_t span) {
    NewArray<int64_t> out({static_cast<npy_intp>(count)});
    draw(Source{seed, stream, offset}, count, 2, [&](const uint32_t *words, int64_t n, int64_t at) {
        to_integers(words, n, low, span, out.data + at);
    });
    return out.object;
}

nb::object normal(uint64_t seed, uint64_t stream, uint64_t offset, int64_t count) {
    NewArray<float> out({static_cast<npy_intp>(count)});
    draw(Source{seed, stream, offset}, count, 1, [&](const uint32_t *words, int64_t n, int64_t at) {
        float values[CHUNK];
        to_normal(words, values);
        std::memcpy(out.data + at, values, static_cast<size_t>(n) * sizeof(float));
    });
    return out.object;
}

nb::object dropout(uint64_t seed, uint64_t stream, uint64_t offset, int64_t count, double p) {
    NewArray<float> out({static_cast<npy_intp>(count)});
    const float scale = p < 1.0 ? static_cast<float>(1.0 / (1.0 - p)) : 0.0f;
    draw(Source{seed, stream, offset}, count, 1, [&](const uint32_t *words, int64_t n, int64_t at) {
        to_mask(words, n, static_cast<float>(p), scale, out.data + at);
    });
    return out.object;
}

} // namespace

void bind_philox(nb::module_ &m) {
    m.def("philox_bits", &bits);
    m.def("philox_uniform", &uniform);
    m.def("philox_integers", &integers);
    m.def("philox_normal", &normal);
    m.def("philox_dropout", &dropout);
}

} // namespace resilin
