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
    // Every fifth lane of `a` has a register, the others lie so many bytes behind it, up to six about the third: a register
    // for each would be spilled, and reloaded in every step. Nor should a step have more instructions than it must: CPUs
    // that take four at a time have no place for others beside twelve sums.
    constexpr bool about = Height == 6;
    constexpr int bases = about ? 1 : (Height + 4) / 5;
    const int64_t a_step = of.a_step, b_step = of.b_step;
    int64_t one = of.a_lane * static_cast<int64_t>(sizeof(T)), three = 3 * one, back = -one, twice_back = -2 * one;
    int64_t ahead = AHEAD * b_step * static_cast<int64_t>(sizeof(T));
    asm("" : "+r"(one), "+r"(three), "+r"(back), "+r"(twice_back), "+r"(ahead)); // the compiler would join them again
    const T *a[bases], *b = of.b;
#pragma GCC unroll 3
    for (int k = 0; k < bases; k++) a[k] = of.a + (about ? 2 : 5 * k) * of.a_lane;
    for (int64_t p = of.depth; p > 0; p--, b += b_step) {
        const char *later = reinterpret_cast<const char *>(b) + ahead;
        __builtin_prefetch(later);
        if (width * sizeof(T) > 64) __builtin_prefetch(later + V::lanes * sizeof(T));
        typename V::type right[Vectors];
#pragma GCC unroll 2
        for (int j = 0; j < Vectors; j++) right[j] = V::load(b + j * V::lanes);
#pragma GCC unroll 3
        for (int k = 0; k < bases; k++) asm("" : "+r"(a[k]));
#pragma GCC unroll 16
        for (int i = 0; i < Height; i++) {
            const int lanes = about ? i - 2 : i % 5;
            const char *lane = reinterpret_cast<const char *>(a[about ? 0 : i / 5]) +
                               (lanes == 3 ? three : lanes == -1 ? back : lanes == -2 ? twice_back : lanes * one);
            const typename V::type left = V::broadcast(*reinterpret_cast<const T *>(lane));
#pragma GCC unroll 2
            for (int j = 0; j < Vectors; j++) sum[i][j] = V::fma(left, right[j], sum[i][j]);
        }
#pragma GCC unroll 3
        for (int k = 0; k < bases; k++) a[k] += a_step;
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

// The sums of one chain of fused multiply-adds from zero; a and b, which are packed, move on.
template <class T, int Rows, int Vectors>
__attribute__((always_inline)) inline void add_chain(const T *&a, const T *&b, int64_t a_step, int64_t steps,
                                                     typename Vector<T>::type (&sum)[Rows][Vectors]) {
    using V = Vector<T>;
    constexpr int width = Vectors * V::lanes;
#pragma GCC unroll 16
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < Vectors; j++) sum[i][j] = V::broadcast(T(0));
    for (int64_t p = 0; p < steps; p++, a += a_step, b += width) {
        __builtin_prefetch(b + AHEAD * width);
        if (Vectors == 2) __builtin_prefetch(b + AHEAD * width + V::lanes);
        typename V::type right[Vectors];
#pragma GCC unroll 2
        for (int j = 0; j < Vectors; j++) right[j] = V::load(b + j * V::lanes);
#pragma GCC unroll 16
        for (int i = 0; i < Rows; i++) {
            const typename V::type left = V::broadcast(a[i]);
#pragma GCC unroll 2
            for (int j = 0; j < Vectors; j++) sum[i][j] = V::fma(left, right[j], sum[i][j]);
        }
    }
}

// Rows [First, First + Rows) of a tile of bfloat16: to each sum, those of a group's even steps and of its odd ones, added to
// one another. A step of a chain is `Elements` of its elements. `of.depth` counts elements. The sums of both chains stay in
// registers where `Both` fit, else those of the first wait in memory.
template <class T, int First, int Rows, int Vectors, int Elements, bool Both>
__attribute__((always_inline)) inline void split_rows(const Multiplicands<T> &of) {
    using V = Vector<T>;
    constexpr int width = Vectors * V::lanes;
    alignas(64) T total[Rows][width];
    const bool whole = of.columns == width;
    for (int i = 0; i < Rows; i++) {
        const T *plus = of.plus + (First + i) * of.ld_plus;
        for (int j = 0; j < Vectors; j++)
            V::store(&total[i][j * V::lanes], of.plus && whole ? V::load(plus + j * V::lanes) : V::broadcast(T(0)));
        for (int64_t j = 0; j < of.columns && of.plus && !whole; j++) total[i][j] = plus[j];
    }
    const T *a = of.a + First, *b = of.b;
    alignas(64) T waiting[Both ? 1 : Rows][width];
    for (int64_t p = 0; p < of.depth; p += GROUP_STEPS) {
        const int64_t steps = of.depth - p < GROUP_STEPS ? of.depth - p : GROUP_STEPS;
        typename V::type even[Rows][Vectors], odd[Rows][Vectors];
        add_chain<T, Rows, Vectors>(a, b, of.a_step, ((steps + 1) / 2 + Elements - 1) / Elements, even);
        if constexpr (!Both) {
#pragma GCC unroll 16
            for (int i = 0; i < Rows; i++)
#pragma GCC unroll 2
                for (int j = 0; j < Vectors; j++) V::store(&waiting[i][j * V::lanes], even[i][j]);
            asm volatile("" : : "r"(waiting) : "memory"); // it is memory: registers are for one chain
        }
        add_chain<T, Rows, Vectors>(a, b, of.a_step, (steps / 2 + Elements - 1) / Elements, odd);
#pragma GCC unroll 16
        for (int i = 0; i < Rows; i++)
#pragma GCC unroll 2
            for (int j = 0; j < Vectors; j++) {
                T *to = &total[i][j * V::lanes];
                if constexpr (!Both) even[i][j] = V::load(&waiting[i][j * V::lanes]);
                V::store(to, V::add(V::load(to), V::add(even[i][j], odd[i][j])));
            }
        asm volatile("" : : "r"(total) : "memory"); // as above
    }
    for (int i = 0; i < Rows; i++) {
        T *c = of.c + (First + i) * of.ldc;
        for (int j = 0; j < Vectors && whole; j++) V::store(c + j * V::lanes, V::load(&total[i][j * V::lanes]));
        for (int64_t j = 0; j < of.columns && !whole; j++) c[j] = total[i][j];
    }
}

// A tile of bfloat16, in two parts where the chains of up to `Most` rows fit in registers together; 0: one chain does.
template <class T, int Height, int Vectors, int Elements, int Most> void split_tile(const Multiplicands<T> &of) {
    constexpr bool both = Most > 0;
    constexpr int upper = both && Height > Most ? (Height + 1) / 2 : Height;
    split_rows<T, 0, upper, Vectors, Elements, both>(of);
    if constexpr (upper < Height) split_rows<T, upper, Height - upper, Vectors, Elements, both>(of);
}

template <class T, int Vectors, int Elements, int Most, int... H> struct SplitHeights {
    static constexpr Tile<T> of[] = {&split_tile<T, H, Vectors, Elements, Most>...};
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
    const int64_t a_lane = of.a_lane, a_step = of.a_step;
    const Step *end = of.at + of.depth;
    for (int64_t r = 0; r < of.repeats; r++, a += of.a_repeat, b0 += of.b_repeat, b1 += of.b_repeat)
        for (const Step *step = of.at; step < end; step++) {
            typename V::type right[Vectors];
            right[0] = V::load(b0 + step->b);
            if (Vectors == 2) right[Vectors - 1] = V::load(b1 + step->b);
            const T *lanes = a + step->a * a_step;
#pragma GCC unroll 16
            for (int i = 0; i < Height; i++) {
                const typename V::type left = V::broadcast(lanes[i * a_lane]);
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
            T *row = &total[i][j * V::lanes], *c = of.c[j] + i * of.ldc;
            const bool whole = of.add && of.columns[j] == V::lanes;
            V::store(row, whole ? V::load(c) : V::broadcast(of.bias ? of.bias[i] : T(0)));
            for (int64_t q = 0; q < of.columns[j] && of.add && !whole; q++) row[q] = c[q];
        }
    const T *a = of.a, *b0 = of.b[0], *b1 = of.b[Vectors - 1];
    for (int64_t r = 0; r <= of.repeats; r++, a += of.a_repeat, b0 += of.b_repeat, b1 += of.b_repeat) {
        const bool whole = r < of.repeats;
        const int64_t groups = whole ? of.groups : of.last_groups, steps = whole ? of.steps : of.last_steps;
        const Step *at = whole ? of.at : of.at + 2 * of.groups * of.steps;
        for (int64_t group = 0; group < groups; group++, at += 2 * steps) {
            typename V::type sum[2][Height][Vectors];
#pragma GCC unroll 2
            for (int k = 0; k < 2; k++)
#pragma GCC unroll 16
                for (int i = 0; i < Height; i++)
#pragma GCC unroll 2
                    for (int j = 0; j < Vectors; j++) sum[k][i][j] = V::broadcast(T(0));
            for (int64_t p = 0; p < steps; p++) {
                const Step *chain[2] = {at + p, at + steps + p};
#pragma GCC unroll 2
                for (int k = 0; k < 2; k++) {
                    typename V::type right[Vectors];
                    right[0] = V::load(b0 + chain[k]->b);
                    if (Vectors == 2) right[Vectors - 1] = V::load(b1 + chain[k]->b);
                    const T *lanes = a + chain[k]->a * Height;
#pragma GCC unroll 16
                    for (int i = 0; i < Height; i++) {
                        const typename V::type left = V::broadcast(lanes[i]);
#pragma GCC unroll 2
                        for (int j = 0; j < Vectors; j++) sum[k][i][j] = V::fma(left, right[j], sum[k][i][j]);
                    }
                }
            }
#pragma GCC unroll 16
            for (int i = 0; i < Height; i++)
#pragma GCC unroll 2
                for (int j = 0; j < Vectors; j++) {
                    T *to = &total[i][j * V::lanes];
                    V::store(to, V::add(V::load(to), V::add(sum[0][i][j], sum[1][i][j])));
                }
            asm volatile("" : : "r"(total) : "memory"); // it is memory: registers are for the chains
        }
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
