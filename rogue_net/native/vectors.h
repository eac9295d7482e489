/* Vectors of numbers, and what is computed with them; included by blocks.c once for each width.

   BYTES is the size of a vector and OF(name) a name for this width. Every number is computed by the same operations
   in the same order, whatever the width. */

typedef float OF(vec) __attribute__((vector_size(BYTES)));
typedef float OF(loose) __attribute__((vector_size(BYTES), aligned(4), may_alias)); /* a vec anywhere in memory */
typedef int32_t OF(ivec) __attribute__((vector_size(BYTES)));
#define VEC OF(vec)
#define IVEC OF(ivec)
enum { OF(LANES) = BYTES / sizeof(float) };

INLINE VEC OF(load)(const float *from) { return *(const OF(loose) *)from; }
INLINE void OF(store)(float *to, VEC x) { *(OF(loose) *)to = x; }
INLINE VEC OF(all)(float x) {
    VEC same;
    for (int i = 0; i < OF(LANES); i++) same[i] = x;
    return same;
}
INLINE VEC OF(choose)(IVEC where, VEC a, VEC b) {
    return (VEC)(((IVEC)a & where) | ((IVEC)b & ~where));
}
INLINE VEC OF(smaller)(VEC a, VEC b) { return OF(choose)(a < b, a, b); }
INLINE VEC OF(larger)(VEC a, VEC b) { return OF(choose)(a > b, a, b); }

/* e**x for x up to 88: 2**k times a Taylor series around 0, whose rest is below 1e-8 for |r| <= log(2) / 2. */
INLINE VEC OF(exponential)(VEC x) {
    x = OF(larger)(x, OF(all)(-87.0f));
    const float magic = 12582912.0f; /* 1.5 * 2**23: what is added to it is rounded to whole numbers */
    VEC k = (x * 1.44269504f + magic) - magic;
    VEC r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    VEC p = OF(all)(1.0f / 5040);
    p = p * r + (1.0f / 720);
    p = p * r + (1.0f / 120);
    p = p * r + (1.0f / 24);
    p = p * r + (1.0f / 6);
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    IVEC exponent = (__builtin_convertvector(k, IVEC) + 127) << 23;
    return p * (VEC)exponent;
}

/* Of a softmax, before it is divided by the sum: 0 where the score is -infinity. */
INLINE VEC OF(weight_of_score)(VEC score, float top, float scale) {
    VEC weight = OF(exponential)((score - top) * scale);
    return OF(choose)(score == OF(all)(-INFINITY), OF(all)(0.0f), weight);
}

/* The distribution function of the normal distribution, and its density: what GELU is made of. Below 0 the former is
   half the complement of the error function, exp(-z**2) times a rational function of z that is fitted to a relative
   error of 5e-9, so that tails keep their digits. */
INLINE void OF(normal)(VEC x, VEC *cdf, VEC *density) {
    VEC z = (VEC)((IVEC)x & 0x7fffffff) * 0.70710678f;
    VEC e = OF(exponential)(-z * z);
    z = OF(smaller)(z, OF(all)(9.5f));
    VEC up = OF(all)(0.032252706587314606f);
    up = up * z + 0.2266218662261963f;
    up = up * z + 0.7261477112770081f;
    up = up * z + 1.2331902980804443f;
    up = up * z + 1.0f;
    VEC down = OF(all)(0.05716564506292343f);
    down = down * z + 0.4017058312892914f;
    down = down * z + 1.3151839971542358f;
    down = down * z + 2.390885591506958f;
    down = down * z + 2.361569881439209f;
    down = down * z + 1.0f;
    VEC below = 0.5f * e * up / down;
    *cdf = OF(choose)(x > 0.0f, 1.0f - below, below);
    *density = 0.39894228f * e;
}

INLINE VEC OF(gelu)(VEC x) {
    VEC cdf, density;
    OF(normal)(x, &cdf, &density);
    return x * cdf;
}

/* c = from + bias + a b for `rows` <= 6 rows and `vecs` <= 2 vectors of columns. */
INLINE void OF(product_tile)(int rows, int vecs, int64_t depth, const float *a, ptrdiff_t a_row, ptrdiff_t a_col,
                             const float *b, ptrdiff_t b_row, const float *from, ptrdiff_t from_row,
                             const float *bias, float *c, ptrdiff_t c_row) {
    const VEC zero = OF(all)(0.0f);
    VEC sum[6][2];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vecs; j++) sum[i][j] = zero;
    for (int64_t k = 0; k < depth; k++) {
        VEC b0 = OF(load)(b + k * b_row), b1 = b0;
        if (vecs > 1) b1 = OF(load)(b + k * b_row + OF(LANES));
        for (int i = 0; i < rows; i++) {
            float x = a[i * a_row + k * a_col];
            sum[i][0] += x * b0;
            if (vecs > 1) sum[i][1] += x * b1;
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vecs; j++) {
            VEC more = zero; /* added last, as it may be large: less is rounded off */
            if (bias) more = OF(load)(bias + j * OF(LANES));
            if (from) more += OF(load)(from + i * from_row + j * OF(LANES));
            OF(store)(c + i * c_row + j * OF(LANES), sum[i][j] + more);
        }
}

#undef VEC
#undef IVEC
#undef BYTES
#undef OF
