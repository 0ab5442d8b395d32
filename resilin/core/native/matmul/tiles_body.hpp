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

} // namespace
