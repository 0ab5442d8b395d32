// A tile of C in registers, for a file that defines `Vector<T>` (type, lanes, load, store, broadcast, fma, add) in an
// anonymous namespace and has told the compiler its instruction set. No other header may be included after that: inline
// functions of the standard library, compiled for that set, could be the ones that the linker keeps for everybody.

namespace {

template <class T, int Height, int Vectors>
void tile(const T *a, const T *b, int64_t depth, T *c, int64_t ldc, int64_t columns, bool add) {
    using V = Vector<T>;
    constexpr int width = Vectors * V::lanes;
    typename V::type sum[Height][Vectors];
#pragma GCC unroll 16
    for (int i = 0; i < Height; i++)
#pragma GCC unroll 2
        for (int j = 0; j < Vectors; j++) sum[i][j] = V::broadcast(T(0));
    for (int64_t p = 0; p < depth; p++, a += Height, b += width) {
        typename V::type right[Vectors];
#pragma GCC unroll 2
        for (int j = 0; j < Vectors; j++) right[j] = V::load(b + j * V::lanes);
#pragma GCC unroll 16
        for (int i = 0; i < Height; i++) {
            const typename V::type left = V::broadcast(a[i]);
#pragma GCC unroll 2
            for (int j = 0; j < Vectors; j++) sum[i][j] = V::fma(left, right[j], sum[i][j]);
        }
    }
    if (columns == width) {
#pragma GCC unroll 16
        for (int i = 0; i < Height; i++)
#pragma GCC unroll 2
            for (int j = 0; j < Vectors; j++) {
                T *to = c + i * ldc + j * V::lanes;
                V::store(to, add ? V::add(V::load(to), sum[i][j]) : sum[i][j]);
            }
        return;
    }
    alignas(64) T row[width];
#pragma GCC unroll 16
    for (int i = 0; i < Height; i++) {
#pragma GCC unroll 2
        for (int j = 0; j < Vectors; j++) V::store(row + j * V::lanes, sum[i][j]);
        T *to = c + i * ldc;
        for (int64_t j = 0; j < columns; j++) to[j] = add ? to[j] + row[j] : row[j];
    }
}

template <class T, int Vectors, int... H> struct Heights {
    static constexpr Tile<T> of[] = {&tile<T, H, Vectors>...};
};

} // namespace
