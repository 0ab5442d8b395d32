// One step of a recurrent layer after its product: gates, cells and state in one pass, and the way back.
#include "array.hpp"
#include "kernels.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace resilin {
namespace {

// tanh within 2 ulp: a polynomial near 0 (coefficients: Cephes, tanhf), elsewhere by the logistic function of 2x
RESILIN_INLINE float tanh_(float x) {
    const float z = x * x;
    const float p = polynomial(z, -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,
                               -3.33332819422e-1f);
    const float e = exp_low(-2.0f * __builtin_fabsf(x));
    const float far = __builtin_copysignf((1.0f - e) / (1.0f + e), x);
    return z < 0.390625f ? fma(p * z, x, x) : far;
}

struct Lstm {
    float *gates;         // (n, 4H): i, f, g, o before their functions, then after
    const float *product; // (n, 4H)
    float *before, *tanh_c, *cell, *h; // (n, H)
};

RESILIN_SIMD void lstm_rows(const Lstm &s, int64_t begin, int64_t end, int64_t H) {
    for (int64_t row = begin; row < end; row++) {
        float *z = s.gates + row * 4 * H;
        const float *p = s.product + row * 4 * H;
        float *before = s.before + row * H, *tanh_c = s.tanh_c + row * H;
        float *cell = s.cell + row * H, *h = s.h + row * H;
#pragma GCC ivdep
        for (int64_t j = 0; j < H; j++) {
            const float i = logistic(z[j] + p[j]).value;
            const float f = logistic(z[H + j] + p[H + j]).value;
            const float g = tanh_(z[2 * H + j] + p[2 * H + j]);
            const float o = logistic(z[3 * H + j] + p[3 * H + j]).value;
            const float c = fma(f, cell[j], i * g);
            const float t = tanh_(c);
            z[j] = i;
            z[H + j] = f;
            z[2 * H + j] = g;
            z[3 * H + j] = o;
            before[j] = cell[j];
            cell[j] = c;
            tanh_c[j] = t;
            h[j] = o * t;
        }
    }
}

struct LstmBack {
    const float *gates, *before, *tanh_c, *dh;
    float *dc, *out; // dc (n, H) of the cells after, then before; out (n, 4H)
};

RESILIN_SIMD void lstm_rows_back(const LstmBack &s, int64_t begin, int64_t end, int64_t H) {
    for (int64_t row = begin; row < end; row++) {
        const float *z = s.gates + row * 4 * H, *before = s.before + row * H;
        const float *tanh_c = s.tanh_c + row * H, *dh = s.dh + row * H;
        float *dc = s.dc + row * H, *out = s.out + row * 4 * H;
#pragma GCC ivdep
        for (int64_t j = 0; j < H; j++) {
            const float i = z[j], f = z[H + j], g = z[2 * H + j], o = z[3 * H + j], t = tanh_c[j];
            const float d = dc[j] + dh[j] * o * (1.0f - t * t);
            out[j] = d * g * (i * (1.0f - i));
            out[H + j] = d * before[j] * (f * (1.0f - f));
            out[2 * H + j] = d * i * (1.0f - g * g);
            out[3 * H + j] = dh[j] * t * (o * (1.0f - o));
            dc[j] = d * f;
        }
    }
}

struct Gru {
    float *gates;                 // (n, 3H): r, u, candidate
    const float *product, *before; // (n, 3H), (n, H)
    float *share, *h;             // (n, H)
};

RESILIN_SIMD void gru_rows(const Gru &s, int64_t begin, int64_t end, int64_t H) {
    for (int64_t row = begin; row < end; row++) {
        float *z = s.gates + row * 3 * H;
        const float *p = s.product + row * 3 * H, *before = s.before + row * H;
        float *share = s.share + row * H, *h = s.h + row * H;
#pragma GCC ivdep
        for (int64_t j = 0; j < H; j++) {
            const float r = logistic(z[j] + p[j]).value;
            const float u = logistic(z[H + j] + p[H + j]).value;
            const float n = tanh_(fma(r, p[2 * H + j], z[2 * H + j]));
            z[j] = r;
            z[H + j] = u;
            z[2 * H + j] = n;
            share[j] = p[2 * H + j];
            h[j] = fma(u, before[j] - n, n);
        }
    }
}

struct GruBack {
    const float *gates, *before, *share, *dh;
    float *out, *out_h, *direct; // (n, 3H), (n, 3H), (n, H)
};

RESILIN_SIMD void gru_rows_back(const GruBack &s, int64_t begin, int64_t end, int64_t H) {
    for (int64_t row = begin; row < end; row++) {
        const float *z = s.gates + row * 3 * H, *before = s.before + row * H;
        const float *share = s.share + row * H, *dh = s.dh + row * H;
        float *out = s.out + row * 3 * H, *out_h = s.out_h + row * 3 * H, *direct = s.direct + row * H;
#pragma GCC ivdep
        for (int64_t j = 0; j < H; j++) {
            const float r = z[j], u = z[H + j], n = z[2 * H + j];
            const float dn = dh[j] * (1.0f - u) * (1.0f - n * n);
            const float du = dh[j] * (before[j] - n) * (u * (1.0f - u));
            const float dr = dn * share[j] * (r * (1.0f - r));
            out[j] = out_h[j] = dr;
            out[H + j] = out_h[H + j] = du;
            out[2 * H + j] = dn;
            out_h[2 * H + j] = dn * r;
            direct[j] = dh[j] * u;
        }
    }
}

// contiguous float matrices of n rows and `width` columns
bool fits(const ExactArray &a, int64_t n, int64_t width) {
    return a.is<float>() && a.ndim() == 2 && a.dim(0) == n && a.dim(1) == width;
}
bool fits_to_write(const ExactArray &a, int64_t n, int64_t width) {
    return fits(a, n, width) && a.is_writable<float>();
}

nb::object lstm(ExactArray gates, ExactArray product, ExactArray before, ExactArray tanh_c, ExactArray cell) {
    if (!cell || cell.ndim() != 2) return nb::none();
    const int64_t n = cell.dim(0), H = cell.dim(1);
    if (!fits_to_write(gates, n, 4 * H) || !fits(product, n, 4 * H) || !fits_to_write(before, n, H) ||
        !fits_to_write(tanh_c, n, H) || !fits_to_write(cell, n, H))
        return nb::none();
    NewArray<float> h(cell);
    const Lstm step{gates.data<float>(),  product.data<float>(), before.data<float>(),
                    tanh_c.data<float>(), cell.data<float>(),    h.data};
    {
        WithoutGil free(n * H);
        parallel_rows(n, 4 * H, [&](int64_t begin, int64_t end) { lstm_rows(step, begin, end, H); });
    }
    return h.object;
}

bool lstm_back(ExactArray gates, ExactArray before, ExactArray tanh_c, ExactArray dh, ExactArray dc, ExactArray out) {
    if (!dc || dc.ndim() != 2) return false;
    const int64_t n = dc.dim(0), H = dc.dim(1);
    if (!fits(gates, n, 4 * H) || !fits(before, n, H) || !fits(tanh_c, n, H) || !fits(dh, n, H) ||
        !fits_to_write(dc, n, H) || !fits_to_write(out, n, 4 * H))
        return false;
    const LstmBack step{gates.data<float>(), before.data<float>(), tanh_c.data<float>(),
                        dh.data<float>(),    dc.data<float>(),     out.data<float>()};
    WithoutGil free(n * H);
    parallel_rows(n, 4 * H, [&](int64_t begin, int64_t end) { lstm_rows_back(step, begin, end, H); });
    return true;
}

nb::object gru(ExactArray gates, ExactArray product, ExactArray before, ExactArray share) {
    if (!before || before.ndim() != 2) return nb::none();
    const int64_t n = before.dim(0), H = before.dim(1);
    if (!fits_to_write(gates, n, 3 * H) || !fits(product, n, 3 * H) || !fits(before, n, H) ||
        !fits_to_write(share, n, H))
        return nb::none();
    NewArray<float> h(before);
    const Gru step{gates.data<float>(), product.data<float>(), before.data<float>(), share.data<float>(), h.data};
    {
        WithoutGil free(n * H);
        parallel_rows(n, 3 * H, [&](int64_t begin, int64_t end) { gru_rows(step, begin, end, H); });
    }
    return h.object;
}

nb::object gru_back(ExactArray gates, ExactArray before, ExactArray share, ExactArray dh, ExactArray out,
                    ExactArray out_h) {
    if (!dh || dh.ndim() != 2) return nb::none();
    const int64_t n = dh.dim(0), H = dh.dim(1);
    if (!fits(gates, n, 3 * H) || !fits(before, n, H) || !fits(share, n, H) || !fits(dh, n, H) ||
        !fits_to_write(out, n, 3 * H) || !fits_to_write(out_h, n, 3 * H))
        return nb::none();
    NewArray<float> direct(dh);
    const GruBack step{gates.data<float>(), before.data<float>(), share.data<float>(), dh.data<float>(),
                       out.data<float>(),   out_h.data<float>(),  direct.data};
    {
        WithoutGil free(n * H);
        parallel_rows(n, 3 * H, [&](int64_t begin, int64_t end) { gru_rows_back(step, begin, end, H); });
    }
    return direct.object;
}

} // namespace

void bind_recurrent(nb::module_ &m) {
    m.def("lstm_step", &lstm);
    m.def("lstm_step_back", &lstm_back);
    m.def("gru_step", &gru);
    m.def("gru_step_back", &gru_back);
}

} // namespace resilin
