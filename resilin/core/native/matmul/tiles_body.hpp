// A tile of C in registers, for a file that defines `Vector<T>` (type, lanes, load, store, broadcast, fma, add) in an
// anonymous namespace and has told the compiler its instruction set. No other header may be included after that: inline
// functions of the standard library, compiled for that set, could be the ones that the linker keeps for everybody.

namespace {

constexpr int64_t AHEAD = 16; // steps: about as long as the second cache takes to answer, several times over

template <class T, int Height, int Vectors> void tile(const Multiplicands<T> &of) {
    using V = Vector<T>;
    constexpr int width = Vectors * V::lanes;
    typename V::type sum[Height][Vectors];
#pragma GCC unroll 16
    for (int i = 0; i < Height; i++)
#pragma GCC unroll 2
        for (int j = 0; j < Vectors; j++) sum[i][j] = V::broadcast(T(0));
    if (of.scaled && of.plus) // far away: a gradient's sum
#pragma GCC unroll 16
        for (int i = 0; i < Height; i++)
#pragma GCC unroll 2
            for (int j = 0; j < Vectors; j++) __builtin_prefetch(of.plus + i * of.ld_plus + j * V::lanes, 1);
    const T *a = of.a, *b = of.b;
    const int64_t a_lane = of.a_lane, a_step = of.a_step, b_step = of.b_step;
    for (int64_t p = 0; p < of.depth; p++, a += a_step, b += b_step) {
        __builtin_prefetch(b + AHEAD * b_step);
        if (Vectors == 2) __builtin_prefetch(b + AHEAD * b_step + V::lanes);
        typename V::type right[Vectors];
#pragma GCC unroll 2
        for (int j = 0; j < Vectors; j++) right[j] = V::load(b + j * V::lanes);
#pragma GCC unroll 16
        for (int i = 0; i < Height; i++) {
            const typename V::type left = V::broadcast(a[i * a_lane]);
#pragma GCC unroll 2
            for (int j = 0; j < Vectors; j++) sum[i][j] = V::fma(left, right[j], sum[i][j]);
        }
    }
    if (of.scaled) {
        const typename V::type scale = V::broadcast(of.scale);
#pragma GCC unroll 16
        for (int i = 0; i < Height; i++)
#pragma GCC unroll 2
            for (int j = 0; j < Vectors; j++) sum[i][j] = V::multiply(scale, sum[i][j]);
    }
    if (of.columns == width) {
#pragma GCC unroll 16
        for (int i = 0; i < Height; i++)
#pragma GCC unroll 2
            for (int j = 0; j < Vectors; j++) {
                const T *plus = of.plus + i * of.ld_plus + j * V::lanes;
                V::store(of.c + i * of.ldc + j * V::lanes, of.plus ? V::add(V::load(plus), sum[i][j]) : sum[i][j]);
            }
        return;
    }
    alignas(64) T row[width];
#pragma GCC unroll 16
    for (int i = 0; i < Height; i++) {
#pragma GCC unroll 2
        for (int j = 0; j < Vectors; j++) V::store(row + j * V::lanes, sum[i][j]);
        for (int64_t j = 0; j < of.columns; j++)
            of.c[i * of.ldc + j] = of.plus ? of.plus[i * of.ld_plus + j] + row[j] : row[j];
    }
}

template <class T, int Vectors, int... H> struct Heights {
    static constexpr Tile<T> of[] = {&tile<T, H, Vectors>...};
};

// The sums of one chain of fused multiply-adds from zero; a and b move on.
template <class T, int Height, int Vectors>
__attribute__((always_inline)) inline void add_chain(const T *&a, const T *&b, const Multiplicands<T> &of, int64_t steps,
                                                     typename Vector<T>::type (&sum)[Height][Vectors]) {
    using V = Vector<T>;
#pragma GCC unroll 16
    for (int i = 0; i < Height; i++)
#pragma GCC unroll 2
        for (int j = 0; j < Vectors; j++) sum[i][j] = V::broadcast(T(0));
    for (int64_t p = 0; p < steps; p++, a += of.a_step, b += of.b_step) {
        __builtin_prefetch(b + AHEAD * of.b_step);
        if (Vectors == 2) __builtin_prefetch(b + AHEAD * of.b_step + V::lanes);
        typename V::type right[Vectors];
#pragma GCC unroll 2
        for (int j = 0; j < Vectors; j++) right[j] = V::load(b + j * V::lanes);
#pragma GCC unroll 16
        for (int i = 0; i < Height; i++) {
            const typename V::type left = V::broadcast(a[i * of.a_lane]);
#pragma GCC unroll 2
            for (int j = 0; j < Vectors; j++) sum[i][j] = V::fma(left, right[j], sum[i][j]);
        }
    }
}

// A tile of bfloat16: to each sum, those of a group's even steps and of its odd ones, added to one another. A step of a
// chain is `Elements` of its elements. `of.depth` counts elements.
template <class T, int Height, int Vectors, int Elements> void split_tile(const Multiplicands<T> &of) {
    using V = Vector<T>;
    constexpr int width = Vectors * V::lanes;
    alignas(64) T total[Height][width];
    const bool whole = of.columns == width;
    for (int i = 0; i < Height; i++) {
        const T *plus = of.plus + i * of.ld_plus;
        for (int j = 0; j < Vectors; j++)
            V::store(&total[i][j * V::lanes], of.plus && whole ? V::load(plus + j * V::lanes) : V::broadcast(T(0)));
        for (int64_t j = 0; j < of.columns && of.plus && !whole; j++) total[i][j] = plus[j];
    }
    const T *a = of.a, *b = of.b;
    alignas(64) T even[Height][width];
    for (int64_t p = 0; p < of.depth; p += GROUP_STEPS) {
        const int64_t steps = of.depth - p < GROUP_STEPS ? of.depth - p : GROUP_STEPS;
        typename V::type sum[Height][Vectors];
        add_chain<T, Height, Vectors>(a, b, of, ((steps + 1) / 2 + Elements - 1) / Elements, sum);
#pragma GCC unroll 16
        for (int i = 0; i < Height; i++)
#pragma GCC unroll 2
            for (int j = 0; j < Vectors; j++) V::store(&even[i][j * V::lanes], sum[i][j]);
        asm volatile("" : : "r"(even), "r"(total) : "memory"); // they are memory: registers are for one chain
        add_chain<T, Height, Vectors>(a, b, of, (steps / 2 + Elements - 1) / Elements, sum);
#pragma GCC unroll 16
        for (int i = 0; i < Height; i++)
#pragma GCC unroll 2
            for (int j = 0; j < Vectors; j++) {
                T *to = &total[i][j * V::lanes];
                V::store(to, V::add(V::load(to), V::add(V::load(&even[i][j * V::lanes]), sum[i][j])));
            }
        asm volatile("" : : "r"(even), "r"(total) : "memory");
    }
    for (int i = 0; i < Height; i++) {
        for (int j = 0; j < Vectors && whole; j++)
            V::store(of.c + i * of.ldc + j * V::lanes, V::load(&total[i][j * V::lanes]));
        for (int64_t j = 0; j < of.columns && !whole; j++) of.c[i * of.ldc + j] = total[i][j];
    }
}

template <class T, int Vectors, int Elements, int... H> struct SplitHeights {
    static constexpr Tile<T> of[] = {&split_tile<T, H, Vectors, Elements>...};
};

// What a tile of Spread makes of its sums.
template <class T, int Height, int Vectors>
__attribute__((always_inline)) inline void store_spread(const Spread<T> &of, typename Vector<T>::type (&sum)[Height][Vectors]) {
    using V = Vector<T>;
#pragma GCC unroll 16
    for (int i = 0; i < Height; i++)
#pragma GCC unroll 2
        for (int j = 0; j < Vectors; j++) {
            T *to = of.c[j] + i * of.ldc;
            if (of.columns[j] == V::lanes) {
                V::store(to, of.add ? V::add(V::load(to), sum[i][j]) : of.bias ? V::add(V::broadcast(of.bias[i]), sum[i][j]) : sum[i][j]);
                continue;
            }
            alignas(64) T row[V::lanes];
            V::store(row, sum[i][j]);
            for (int64_t q = 0; q < of.columns[j]; q++) to[q] = of.add ? to[q] + row[q] : of.bias ? of.bias[i] + row[q] : row[q];
        }
}

template <class T, int Height, int Vectors> void spread_tile(const Spread<T> &of) {
    using V = Vector<T>;
    typename V::type sum[Height][Vectors];
#pragma GCC unroll 16
    for (int i = 0; i < Height; i++)
#pragma GCC unroll 2
        for (int j = 0; j < Vectors; j++) sum[i][j] = V::broadcast(T(0));
    const T *a = of.a, *b0 = of.b[0], *b1 = of.b[Vectors - 1];
    const int64_t a_lane = of.a_lane, a_step = of.a_step, *offset = of.offset, *end = offset + of.depth;
    for (; offset < end; offset++, a += a_step) {
        typename V::type right[Vectors];
        right[0] = V::load(b0 + *offset);
        if (Vectors == 2) right[Vectors - 1] = V::load(b1 + *offset);
#pragma GCC unroll 16
        for (int i = 0; i < Height; i++) {
            const typename V::type left = V::broadcast(a[i * a_lane]);
#pragma GCC unroll 2
            for (int j = 0; j < Vectors; j++) sum[i][j] = V::fma(left, right[j], sum[i][j]);
        }
    }
    store_spread<T, Height, Vectors>(of, sum);
}

template <class T, int Vectors, int... H> struct SpreadHeights {
    static constexpr SpreadTile<T> of[] = {&spread_tile<T, H, Vectors>...};
};

// The same of groups: both chains of one are in registers.
template <class T, int Height, int Vectors> void split_spread_tile(const Spread<T> &of) {
    using V = Vector<T>;
    alignas(64) T total[Height][Vectors * V::lanes];
    for (int i = 0; i < Height; i++)
        for (int j = 0; j < Vectors; j++) {
            T *row = &total[i][j * V::lanes];
            V::store(row, V::broadcast(of.bias ? of.bias[i] : T(0)));
            for (int64_t q = 0; q < of.columns[j] && of.add; q++) row[q] = of.c[j][i * of.ldc + q];
        }
    const T *a = of.a, *b0 = of.b[0], *b1 = of.b[Vectors - 1];
    const int64_t *offset = of.offset;
    for (int64_t group = 0; group < of.groups + of.last_groups; group++) {
        const int64_t steps = group < of.groups ? of.steps : of.last_steps;
        const T *odd = a + steps * Height;
        typename V::type sum[2][Height][Vectors];
#pragma GCC unroll 2
        for (int k = 0; k < 2; k++)
#pragma GCC unroll 16
            for (int i = 0; i < Height; i++)
#pragma GCC unroll 2
                for (int j = 0; j < Vectors; j++) sum[k][i][j] = V::broadcast(T(0));
        for (int64_t p = 0; p < steps; p++, a += Height, odd += Height) {
            const int64_t at[2] = {offset[p], offset[steps + p]};
#pragma GCC unroll 2
            for (int k = 0; k < 2; k++) {
                typename V::type right[Vectors];
                right[0] = V::load(b0 + at[k]);
                if (Vectors == 2) right[Vectors - 1] = V::load(b1 + at[k]);
#pragma GCC unroll 16
                for (int i = 0; i < Height; i++) {
                    const typename V::type left = V::broadcast(k ? odd[i] : a[i]);
#pragma GCC unroll 2
                    for (int j = 0; j < Vectors; j++) sum[k][i][j] = V::fma(left, right[j], sum[k][i][j]);
                }
            }
        }
        a = odd;
        offset += 2 * steps;
#pragma GCC unroll 16
        for (int i = 0; i < Height; i++)
#pragma GCC unroll 2
            for (int j = 0; j < Vectors; j++) {
                T *to = &total[i][j * V::lanes];
                V::store(to, V::add(V::load(to), V::add(sum[0][i][j], sum[1][i][j])));
            }
        asm volatile("" : : "r"(total) : "memory"); // it is memory: registers are for the chains
    }
    for (int i = 0; i < Height; i++)
        for (int j = 0; j < Vectors; j++) {
            T *to = of.c[j] + i * of.ldc;
            if (of.columns[j] == V::lanes) V::store(to, V::load(&total[i][j * V::lanes]));
            else
                for (int64_t q = 0; q < of.columns[j]; q++) to[q] = total[i][j * V::lanes + q];
        }
}

template <class T, int Vectors, int... H> struct SplitSpreadHeights {
    static constexpr SpreadTile<T> of[] = {&split_spread_tile<T, H, Vectors>...};
};

} // namespace
