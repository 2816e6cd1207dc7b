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

/* before a loop of constant length, at most 24, over what should be registers: its steps one after the other */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 24")
#endif

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

/* vec_zip_lo, vec_zip_hi: a0 b0 a1 b1 ... of the lower halves of a and b, of the upper halves */
#if defined(__clang__) || __GNUC__ >= 12
#define VEC_SHUFFLE __builtin_shufflevector
#else
#define VEC_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vecI){__VA_ARGS__})
#endif
#if VEC_BYTES == 64 && !defined(FLOATX_DOUBLE)
static inline vecX vec_zip_lo(vecX a, vecX b) {
    return VEC_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
static inline vecX vec_zip_hi(vecX a, vecX b) {
    return VEC_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif VEC_BYTES == 64 || (VEC_BYTES == 32 && !defined(FLOATX_DOUBLE))
static inline vecX vec_zip_lo(vecX a, vecX b) { return VEC_SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
static inline vecX vec_zip_hi(vecX a, vecX b) { return VEC_SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#elif VEC_BYTES == 32 || !defined(FLOATX_DOUBLE)
static inline vecX vec_zip_lo(vecX a, vecX b) { return VEC_SHUFFLE(a, b, 0, 4, 1, 5); }
static inline vecX vec_zip_hi(vecX a, vecX b) { return VEC_SHUFFLE(a, b, 2, 6, 3, 7); }
#else
static inline vecX vec_zip_lo(vecX a, vecX b) { return VEC_SHUFFLE(a, b, 0, 2); }
static inline vecX vec_zip_hi(vecX a, vecX b) { return VEC_SHUFFLE(a, b, 1, 3); }
#endif

/* v (VL vectors) = its transpose as a VL x VL matrix: zipping the upper half of the rows with the lower, log2(VL)
   times (a perfect shuffle of rows each time) */
__attribute__((always_inline)) static inline void vec_transpose(vecX *v) {
    vecX t[VL];
    UNROLL
    for (int step = 1; step < VL; step *= 2) {
        UNROLL
        for (int i = 0; i < VL / 2; i++) {
            t[2 * i] = vec_zip_lo(v[i], v[i + VL / 2]);
            t[2 * i + 1] = vec_zip_hi(v[i], v[i + VL / 2]);
        }
        UNROLL
        for (int i = 0; i < VL; i++) v[i] = t[i];
    }
}

/* exp(x), each lane. float: x = n ln2 + r with |r| <= ln2/2 (ln2 in two pieces, Cody and Waite), e^r by a polynomial of
   degree 6 (1 + r + r^2 q(r), q fitted for the least relative error: 3.1e-9), and n added to the exponent bits. Error
   below 1 ulp (tested against double over the whole range); 0 below -87.3 (no subnormals), inf above 88.7, NaN for NaN.
   double: libm. */
static inline vecX vec_exp(vecX x) {
#ifdef FLOATX_DOUBLE
    for (int i = 0; i < VL; i++) x[i] = exp(x[i]);
    return x;
#else
    const float log2e = 1.44269504f, ln2_hi = 0.693359375f, ln2_lo = -2.12194440e-4f;
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, which stands in the lowest bits */
    const vecX shifted = x * log2e + magic, n = shifted - magic;
    vecX r = x - n * ln2_hi;
    r = r - n * ln2_lo;
    vecX p = vec_set(0.00138145f);
    p = p * r + 0.00836875f;
    p = p * r + 0.04166839f;
    p = p * r + 0.1666652f;
    p = p * r + 0.49999993f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    typedef uint32_t vecB __attribute__((vector_size(VEC_BYTES))); /* bits, which may overflow */
    vecX y = (vecX)((vecB)p + ((vecB)shifted << 23));
    y = (vecX)((vecI)y & ~(x < -87.3f));
    return vec_select(x <= 88.7f, y, x * INFINITY); /* NaN compares as false */
#endif
}

/* The sum of four vectors of partial sums, lanes in order. */
static inline floatX vec_lanes(const vecX *s) {
    const vecX v = (s[0] + s[1]) + (s[2] + s[3]);
    floatX sum = 0;
    for (int j = 0; j < VL; j++) sum += v[j];
    return sum;
}

/* sum over i < n of a[i] * b[i]: four vectors of sums, so that an addition need not wait for the one before; element i
   goes to lane i % VL of vector i / VL % 4, and they are added up as vec_lanes does */
static inline floatX vec_dot(const floatX *a, const floatX *b, size_t n) {
    vecX s[4] = {{0}, {0}, {0}, {0}};
    size_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        UNROLL
        for (int u = 0; u < 4; u++) s[u] += vec_load(a + i + u * VL) * vec_load(b + i + u * VL);
    }
    for (int u = 0; u < 4 && i < n; i += VL, u++) s[u] += vec_load_part(a + i, n - i) * vec_load_part(b + i, n - i);
    return vec_lanes(s);
}

/* sum over i < n of a[i], in the same order */
static inline floatX vec_sum(const floatX *a, size_t n) {
    vecX s[4] = {{0}, {0}, {0}, {0}};
    size_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        UNROLL
        for (int u = 0; u < 4; u++) s[u] += vec_load(a + i + u * VL);
    }
    for (int u = 0; u < 4 && i < n; i += VL, u++) s[u] += vec_load_part(a + i, n - i);
    return vec_lanes(s);
}

/* sum over i < n of (a[i] - mean)^2, in the same order, but for the last n % VL elements, which come one by one */
static inline floatX vec_spread(const floatX *a, floatX mean, size_t n) {
    vecX s[4] = {{0}, {0}, {0}, {0}};
    size_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        UNROLL
        for (int u = 0; u < 4; u++) s[u] += (vec_load(a + i + u * VL) - mean) * (vec_load(a + i + u * VL) - mean);
    }
    for (int u = 0; u < 4 && i + VL <= n; i += VL, u++) s[u] += (vec_load(a + i) - mean) * (vec_load(a + i) - mean);
    floatX sum = vec_lanes(s);
    for (; i < n; i++) sum += (a[i] - mean) * (a[i] - mean);
    return sum;
}

/* the largest of a[i], i < n, n > 0; a NaN is passed over unless it is the first */
static inline floatX vec_largest(const floatX *a, int n) {
    vecX v = vec_set(a[0]);
    int i = 0;
    for (; i + VL <= n; i += VL) v = vec_max(vec_load(a + i), v);
    floatX top = a[0];
    for (int j = 0; j < VL; j++) top = v[j] > top ? v[j] : top;
    for (; i < n; i++) top = a[i] > top ? a[i] : top;
    return top;
}

#endif
