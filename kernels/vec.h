/* vec.h: the CPU's number type, one SIMD register of it, and the few vector functions
   that the ops share: exp, max, ordered sums.

   Written with the vector extensions of gcc and clang, so one source serves AVX-512, AVX2,
   NEON and plain SSE. Every sum here has an order that depends on the length alone. */
#ifndef KERNELS_VEC_H
#define KERNELS_VEC_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* floatX: float in the program; double in the second build of the tests, where gradients
   are held against mathematics. */
#ifdef FLOATX_DOUBLE
typedef double floatX;
typedef int64_t intX; /* the integer of the same width: masks of a vector comparison */
#else
typedef float floatX;
typedef int32_t intX;
#endif

#if defined(__AVX512F__)
#define VEC_BYTES 64
#elif defined(__AVX__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif
#define VL (VEC_BYTES / (int)sizeof(floatX)) /* lanes of a vector */

typedef floatX vecX __attribute__((vector_size(VEC_BYTES)));
typedef intX vecI __attribute__((vector_size(VEC_BYTES)));
/* the same register, loaded from any address that is aligned for one floatX */
typedef floatX vecU __attribute__((vector_size(VEC_BYTES), aligned(sizeof(floatX)), may_alias));

static inline vecX vec_load(const floatX *p) { return *(const vecU *)p; }
static inline void vec_store(floatX *p, vecX v) { *(vecU *)p = v; }
/* all lanes s: s - 0 is s for every s, -0 too, so this is a broadcast and no arithmetic */
static inline vecX vec_set(floatX s) { return s - (vecX){0}; }

/* lanes where mask is all ones from a, where it is zero from b */
static inline vecX vec_select(vecI mask, vecX a, vecX b) { return (vecX)((mask & (vecI)a) | (~mask & (vecI)b)); }
static inline vecX vec_max(vecX a, vecX b) { return vec_select(a > b, a, b); }

/* The first n lanes (all, from n = VL on), the others zero. The tail of a row thus goes through the same
   vector code as the rest, and a value does not depend on where in the row it stands. */
static inline vecX vec_load_part(const floatX *p, size_t n) {
    if (n >= (size_t)VL) return vec_load(p);
    vecX v = {0};
    memcpy(&v, p, n * sizeof(floatX));
    return v;
}
static inline void vec_store_part(floatX *p, vecX v, size_t n) {
    if (n >= (size_t)VL) vec_store(p, v);
    else memcpy(p, &v, n * sizeof(floatX));
}

/* exp(x), each lane. float: x = n ln2 + r with |r| <= ln2/2 (ln2 in two pieces, Cody and Waite),
   e^r by its Taylor polynomial of degree 7 (remainder < 5e-9 relative), times 2^n through the
   exponent bits. Error at most 2 ulp (tested against double over the whole range); 0 below
   -87.3 (no subnormals), inf above 88.7, NaN for NaN. double: libm. */
static inline vecX vec_exp(vecX x) {
#ifdef FLOATX_DOUBLE
    for (int i = 0; i < VL; i++) x[i] = exp(x[i]);
    return x;
#else
    const float log2e = 1.44269504f, ln2_hi = 0.693359375f, ln2_lo = -2.12194440e-4f;
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    vecX lo = vec_set(-87.3f), hi = vec_set(88.7f);
    vecX c = vec_select(x > lo, x, lo); /* NaN becomes lo here and is put back at the end */
    c = vec_select(c < hi, c, hi);
    vecX shifted = c * log2e + magic;
    vecX n = shifted - magic;
    vecX r = c - n * ln2_hi;
    r = r - n * ln2_lo;
    vecX p = vec_set(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    /* 2^n in two halves: n = 128 alone would overflow the exponent field */
    vecI ni = (vecI)shifted - (vecI)vec_set(magic), half = ni >> 1;
    vecX s1 = (vecX)((half + 127) << 23), s2 = (vecX)((ni - half + 127) << 23);
    vecX y = p * s1 * s2;
    y = vec_select(x < lo, vec_set(0), y);
    y = vec_select(x > hi, vec_set(INFINITY), y);
    return vec_select(x != x, x, y);
#endif
}

/* sum over i < n of a[i] * b[i]; lane j adds elements j, j + VL, ... and the lanes are added
   in order at the end */
static inline floatX vec_dot(const floatX *a, const floatX *b, size_t n) {
    vecX s = {0};
    for (size_t i = 0; i < n; i += VL) s += vec_load_part(a + i, n - i) * vec_load_part(b + i, n - i);
    floatX sum = 0;
    for (int j = 0; j < VL; j++) sum += s[j];
    return sum;
}

/* sum over i < n of a[i], in the same order */
static inline floatX vec_sum(const floatX *a, size_t n) {
    vecX s = {0};
    for (size_t i = 0; i < n; i += VL) s += vec_load_part(a + i, n - i);
    floatX sum = 0;
    for (int j = 0; j < VL; j++) sum += s[j];
    return sum;
}

#endif
