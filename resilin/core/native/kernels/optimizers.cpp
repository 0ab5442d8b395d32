// Optimizer steps over lists of arrays, one pass over memory for each parameter.
#include "optimizers.hpp"
#include "binding/kernels.hpp"

#include <cmath>

namespace resilin {
namespace {

struct Sgd {
    float lr, momentum, undamped, decay, sign;
    bool nesterov, first;
};

RESILIN_SIMD void sgd_plain(float *__restrict p, const float *__restrict g, int64_t n, const Sgd &s) {
    for (int64_t i = 0; i < n; i++) p[i] -= s.lr * pull(g[i], p[i], s.sign, s.decay);
}

RESILIN_SIMD void sgd_momentum(float *__restrict p, const float *__restrict g, float *__restrict m, int64_t n,
                               const Sgd &s) {
    const float keep = s.first ? 0.0f : s.momentum, take = s.first ? 1.0f : s.undamped;
    for (int64_t i = 0; i < n; i++) {
        const float d = pull(g[i], p[i], s.sign, s.decay);
        // on the first step the buffer's content does not count, whatever it is
        const float b = (s.first ? 0.0f : m[i] * keep) + d * take;
        m[i] = b;
        p[i] -= s.lr * (s.nesterov ? d + s.momentum * b : b);
    }
}

bool sgd(nb::handle params, nb::handle grads, nb::handle bufs, double lr, double momentum, double dampening,
         double decay, bool nesterov, bool maximize, bool first) {
    Work work;
    if (!line_up({params, grads, bufs}, work)) return false;
    const Sgd s{static_cast<float>(lr),    static_cast<float>(momentum), static_cast<float>(1 - dampening),
                static_cast<float>(decay), maximize ? -1.0f : 1.0f,      nesterov,
                first};
    run(work.pieces, [&](const Piece &x) {
        if (x.data[2])
            sgd_momentum(x.data[0], x.data[1], x.data[2], x.n, s);
        else
            sgd_plain(x.data[0], x.data[1], x.n, s);
    });
    return true;
}

struct Adam {
    float shrink, decay, take1, keep2, take2, inv_root, eps, rate, sign;
};

template <bool Top> RESILIN_INLINE void adam_span(const Piece &x, const Adam &a) {
    float *__restrict p = x.data[0];
    const float *__restrict g = x.data[1];
    float *__restrict m = x.data[2];
    float *__restrict v = x.data[3];
    float *__restrict top = x.data[4];
    for (int64_t i = 0; i < x.n; i++) {
        const float q = p[i] * a.shrink;
        const float d = pull(g[i], p[i], a.sign, a.decay);
        const float m1 = m[i] + (d - m[i]) * a.take1;
        const float v1 = v[i] * a.keep2 + d * a.take2 * d;
        m[i] = m1;
        v[i] = v1;
        float w = v1;
        if (Top) {
            w = top[i] < v1 ? v1 : top[i];
            top[i] = w;
        }
        p[i] = q - m1 / (std::sqrt(w) * a.inv_root + a.eps) * a.rate;
    }
}
RESILIN_SIMD void adam_plain(const Piece &x, const Adam &a) { adam_span<false>(x, a); }
RESILIN_SIMD void adam_top(const Piece &x, const Adam &a) { adam_span<true>(x, a); }

bool adam(nb::handle params, nb::handle grads, nb::handle m, nb::handle v, nb::handle top, int64_t step, double lr,
          double beta1, double beta2, double eps, double decay, bool decoupled, bool maximize) {
    Work work;
    if (!line_up({params, grads, m, v, top}, work)) return false;
    const double t = static_cast<double>(step);
    const Adam a{static_cast<float>(decoupled ? 1 - lr * decay : 1.0),
                 static_cast<float>(decoupled ? 0.0 : decay),
                 static_cast<float>(1 - beta1),
                 static_cast<float>(beta2),
                 static_cast<float>(1 - beta2),
                 static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, t))),
                 static_cast<float>(eps),
                 static_cast<float>(lr / (1 - std::pow(beta1, t))),
                 maximize ? -1.0f : 1.0f};
    run(work.pieces, [&](const Piece &x) { x.data[4] ? adam_top(x, a) : adam_plain(x, a); });
    return true;
}

} // namespace

void bind_optimizers(nb::module_ &m) {
    m.def("sgd", &sgd, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
          nb::arg(), nb::arg());
    m.def("adam", &adam, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
          nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
}

} // namespace resilin
