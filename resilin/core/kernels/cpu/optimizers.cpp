// Optimizer steps over lists of arrays, one pass over memory for each parameter.
#include "array.hpp"
#include "kernels.hpp"
#include "parallel.hpp"
#include "simd.hpp"

#include <cmath>
#include <vector>

namespace resilin {
namespace {

constexpr int MAX_LISTS = 5;
constexpr int64_t BLOCK = 16 << 10; // elements a thread takes at once

struct Piece {
    float *data[MAX_LISTS];
    int64_t n;
};

// The blocks of a step, and what must live as long as they are used.
struct Work {
    std::vector<Piece> pieces;
    std::vector<nb::object> copies; // strided gradients made contiguous
};

// Lines up the arrays of all lists and cuts them into blocks; false when one of them is not plain writable float32
// (gradients are only read: they may be strided).
bool line_up(std::initializer_list<nb::handle> lists, Work &work) {
    std::vector<nb::object> fast;
    for (nb::handle list : lists)
        fast.push_back(list.is_none() ? nb::none() : nb::steal(PySequence_Fast(list.ptr(), "expected a sequence")));
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast[0].ptr());
    for (const nb::object &list : fast)
        if (!list.is_none() && PySequence_Fast_GET_SIZE(list.ptr()) != count) return false;
    for (Py_ssize_t i = 0; i < count; i++) {
        Piece piece{};
        for (size_t k = 0; k < fast.size(); k++) {
            if (fast[k].is_none()) continue;
            PyObject *item = PySequence_Fast_GET_ITEM(fast[k].ptr(), i);
            if (!PyArray_Check(item)) return false;
            ExactArray array{reinterpret_cast<PyArrayObject *>(item)};
            if (k == 1 && PyArray_TYPE(array.array) == NPY_FLOAT32 && !array.is<float>()) {
                work.copies.push_back(nb::steal(PyArray_FROM_OF(item, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_NOTSWAPPED)));
                if (!work.copies.back().ptr()) throw nb::python_error();
                array.array = reinterpret_cast<PyArrayObject *>(work.copies.back().ptr());
            }
            if (k == 1 ? !array.is<float>() : !array.is_writable<float>()) return false;
            if (k == 0)
                piece.n = array.size();
            else if (array.size() != piece.n)
                return false;
            piece.data[k] = array.data<float>();
        }
        for (int64_t at = 0; at < piece.n; at += BLOCK) {
            Piece block{};
            for (int k = 0; k < MAX_LISTS; k++) block.data[k] = piece.data[k] ? piece.data[k] + at : nullptr;
            block.n = std::min(BLOCK, piece.n - at);
            work.pieces.push_back(block);
        }
    }
    return true;
}

template <class Step> void run(const std::vector<Piece> &pieces, Step step) {
    const auto blocks = static_cast<int64_t>(pieces.size());
    WithoutGil free(blocks * BLOCK);
    parallel_rows(blocks, BLOCK, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) step(pieces[static_cast<size_t>(i)]);
    });
}

struct Sgd {
    float lr, momentum, undamped, decay, sign;
    bool nesterov, first;
};

RESILIN_SIMD void sgd_plain(float *__restrict p, const float *__restrict g, int64_t n, const Sgd &s) {
    for (int64_t i = 0; i < n; i++) p[i] -= s.lr * (s.sign * g[i] + s.decay * p[i]);
}

RESILIN_SIMD void sgd_momentum(float *__restrict p, const float *__restrict g, float *__restrict m, int64_t n,
                               const Sgd &s) {
    const float keep = s.first ? 0.0f : s.momentum, take = s.first ? 1.0f : s.undamped;
    const float by_g = s.nesterov ? 1.0f : 0.0f, by_m = s.nesterov ? s.momentum : 1.0f;
    for (int64_t i = 0; i < n; i++) {
        const float d = s.sign * g[i] + s.decay * p[i];
        // on the first step the buffer's content does not count, whatever it is
        const float b = (s.first ? 0.0f : m[i] * keep) + d * take;
        m[i] = b;
        p[i] -= s.lr * (by_g * d + by_m * b);
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
        const float d = a.sign * g[i] + a.decay * p[i];
        const float m1 = m[i] + (d - m[i]) * a.take1;
        const float v1 = v[i] * a.keep2 + d * d * a.take2;
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
