#include "elementwise/half_blocks.hpp"
#include "kernels/halves.hpp"

#include <algorithm>
#include <cmath>

namespace resilin {
namespace {

uint16_t bits_at(const char *at) {
    uint16_t bits;
    std::memcpy(&bits, at, sizeof(bits));
    return bits;
}

} // namespace

void round_to_half(double value, bool float16, float *out) {
    float nearest = static_cast<float>(value);
    if (std::isfinite(nearest) && nearest != value) { // to the odd one of both neighbours, so that it is rounded once
        uint32_t bits = bit_cast<uint32_t>(nearest);
        if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) bits--;
        nearest = bit_cast<float>(bits | 1);
    }
    *out = float16 ? from_half(half_of(nearest)) : from_bfloat(bfloat_of(nearest));
}

void HalfBlocks::run(char **at, npy_intp n, const npy_intp *steps) const {
    alignas(64) float in[2][HALF_BLOCK], out[HALF_BLOCK];
    const auto convert = float16 ? unpack_half : unpack_bfloat;
    const auto round = float16 ? pack_half : pack_bfloat;
    char *given[3];
    npy_intp strides[3];
    for (int i = 0; i < inputs; i++) {
        strides[i] = wide[i] || !steps[i] ? 0 : static_cast<npy_intp>(sizeof(float));
        given[i] = wide[i] ? at[i] : reinterpret_cast<char *>(in[i]);
        if (!wide[i] && !steps[i]) convert(reinterpret_cast<const uint16_t *>(at[i]), 0, 1, in[i]);
    }
    const npy_intp step = steps[inputs];
    strides[inputs] = rounds ? static_cast<npy_intp>(sizeof(float)) : step;
    for (npy_intp first = 0; first < n; first += HALF_BLOCK) {
        const npy_intp count = std::min(HALF_BLOCK, n - first);
        for (int i = 0; i < inputs; i++) {
            if (!strides[i]) continue;
            const char *from = at[i] + first * steps[i];
            if (steps[i] == sizeof(uint16_t)) convert(reinterpret_cast<const uint16_t *>(from), 0, count, in[i]);
            else
                for (npy_intp k = 0; k < count; k++, from += steps[i])
                    in[i][k] = float16 ? from_half(bits_at(from)) : from_bfloat(bits_at(from));
        }
        char *to = at[inputs] + first * step;
        given[inputs] = rounds ? reinterpret_cast<char *>(out) : to;
        loop(given, &count, strides, data);
        if (!rounds) continue;
        if (step == sizeof(uint16_t)) round(out, 0, count, reinterpret_cast<uint16_t *>(to));
        else
            for (npy_intp k = 0; k < count; k++, to += step) {
                const uint16_t bits = float16 ? half_of(out[k]) : bfloat_of(out[k]);
                std::memcpy(to, &bits, sizeof(bits));
            }
    }
}

} // namespace resilin
