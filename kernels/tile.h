/* tile.h: the innermost level of the matrix product: tiles of C that live in registers.

   gemm_tile is a small product of its own, for operands that are in cache already: the page tiles of attention. */
#ifndef KERNELS_TILE_H
#define KERNELS_TILE_H

#include "pack.h"

#include <assert.h>

/* Register tile. 32 vector registers hold 12 x 2 vectors of C, 2 of B and one of A; with 16
   registers (AVX2, SSE) it is 6 x 2. */
#if VEC_BYTES == 64 || defined(__aarch64__)
#define GEMM_MR 12
#else
#define GEMM_MR 6
#endif
#define GEMM_NR (2 * VL)

/* What becomes of a product: C = alpha product + beta D + bias. D may be C itself; beta = 0 never reads it. bias: one
   row for all rows of C, or NULL. */
typedef struct {
    floatX alpha, beta;
    const floatX *D, *bias;
    size_t ldd;
    floatX *C;
    size_t ldc;
} GemmOut;

/* c: m rows of nv vectors, each a product that is done. m and nv are constants where this is inlined. */
__attribute__((always_inline)) static inline void gemm_finish(int m, int nv, const vecX *c, const GemmOut *out) {
    const GemmOut copy = *out, *o = &copy; /* a store to C cannot change it */
    UNROLL
    for (int i = 0; i < m * nv; i++) {
        const size_t row = i / nv, column = i % nv * VL;
        vecX r = o->alpha * c[i];
        if (o->beta != 0) r += o->beta * vec_load(o->D + row * o->ldd + column);
        if (o->bias) r += vec_load(o->bias + column);
        vec_store(o->C + row * o->ldc + column, r);
    }
}

/* The register tile: m rows, nv vectors of columns. A's element (i, k) is A[k * cs + i * rs]; row k of B starts at
   B + k * ldb, and stands in panels of NR columns, `panel` apart. m and nv are constants where this is inlined, so the
   loops over them unroll and the tile stays in registers. */
__attribute__((always_inline)) static inline void gemm_kernel(int m, int nv, size_t K, const floatX *A, size_t rs,
                                                              size_t cs, const floatX *B, size_t ldb, size_t panel,
                                                              const GemmOut *o) {
    vecX c[GEMM_MR * 2];
    UNROLL
    for (int i = 0; i < m * nv; i++) {
        c[i] = (vecX){0};
        __builtin_prefetch(o->D + i / nv * o->ldd + i % nv * VL); /* on its way while the product is made */
    }
    /* every third row has a pointer of its own: twelve strides would not fit into the address registers */
    const floatX *a0 = A, *a3 = A + 3 * rs, *a6 = A + 6 * rs, *a9 = A + 9 * rs;
    for (size_t k = 0; k < K; k++, B += ldb, a0 += cs, a3 += cs, a6 += cs, a9 += cs) {
        vecX b[8];
        UNROLL
        for (int v = 0; v < nv; v++) b[v] = vec_load(B + v / 2 * panel + v % 2 * VL);
        UNROLL
        for (int i = 0; i < m; i++) {
            const vecX a = vec_set((i < 3 ? a0 : i < 6 ? a3 : i < 9 ? a6 : a9)[i % 3 * rs]);
            UNROLL
            for (int v = 0; v < nv; v++) c[i * nv + v] += a * b[v];
        }
    }
    gemm_finish(m, nv, c, o);
}

/* One row, and VL columns of a B that stands transposed, n of them there: transposed in registers, once, it need not
   be packed. The same chains as in gemm_kernel. */
static void gemm_dots(size_t K, const floatX *A, const floatX *B, size_t ldb, size_t n, const GemmOut *o) {
    vecX c = {0}, b[VL];
    for (size_t k = 0; k < K; k += VL) {
        const size_t from = pack_square_at(k, K), rows = K - from < (size_t)VL ? K - from : VL;
        pack_square(b, B + from, ldb, n, rows);
        if (from == k && rows == (size_t)VL) {
            UNROLL
            for (size_t r = 0; r < (size_t)VL; r++) c += vec_set(A[(k + r) * GEMM_MR]) * b[r];
        } else {
            for (size_t r = k - from; r < rows; r++) c += vec_set(A[(from + r) * GEMM_MR]) * b[r];
        }
    }
    gemm_finish(1, 1, &c, o);
}

/* Vectors of the widest tile with m rows: the fewer rows, the more columns, to keep the multipliers busy. */
static inline int gemm_vectors(size_t m) { return m * 8 <= GEMM_MR * 2 ? 8 : m * 4 <= GEMM_MR * 2 ? 4 : 2; }

/* gemm_kernel for m and nv known only now. */
__attribute__((always_inline)) static inline void gemm_rows(size_t m, int nv, size_t K, const floatX *A, size_t rs,
                                                            size_t cs, const floatX *B, size_t ldb, size_t panel,
                                                            const GemmOut *o) {
    switch (m * 16 + nv) {
/* clang-format off */
#define GEMM_CASE(m, nv) case m * 16 + nv: gemm_kernel(m, nv, K, A, rs, cs, B, ldb, panel, o); break;
#define GEMM_CASES(m) GEMM_CASE(m, 1) GEMM_CASE(m, 2)
        GEMM_CASES(1) GEMM_CASES(2) GEMM_CASES(3) GEMM_CASES(4) GEMM_CASES(5) GEMM_CASES(6)
        GEMM_CASE(1, 4) GEMM_CASE(2, 4) GEMM_CASE(3, 4) GEMM_CASE(1, 8)
#if GEMM_MR == 12
        GEMM_CASES(7) GEMM_CASES(8) GEMM_CASES(9) GEMM_CASES(10) GEMM_CASES(11) GEMM_CASES(12)
        GEMM_CASE(4, 4) GEMM_CASE(5, 4) GEMM_CASE(6, 4) GEMM_CASE(2, 8) GEMM_CASE(3, 8)
#endif
    default: assert(!"gemm_rows: not a register tile");
        /* clang-format on */
    }
}

/* Compiled three times, with constants for strides: A packed; any A whose columns are contiguous; whose rows are. */
__attribute__((noinline)) static void gemm_packed(size_t m, int nv, size_t K, const floatX *A, const floatX *B,
                                                  size_t ldb, size_t panel, const GemmOut *o) {
    gemm_rows(m, nv, K, A, 1, GEMM_MR, B, ldb, panel, o);
}
__attribute__((noinline)) static void gemm_columns(size_t m, int nv, size_t K, const floatX *A, size_t cs,
                                                   const floatX *B, size_t ldb, const GemmOut *o) {
    gemm_rows(m, nv, K, A, 1, cs, B, ldb, 0, o);
}
__attribute__((noinline)) static void gemm_strided(size_t m, int nv, size_t K, const floatX *A, size_t rs,
                                                   const floatX *B, size_t ldb, const GemmOut *o) {
    gemm_rows(m, nv, K, A, rs, 1, B, ldb, 0, o);
}

static inline size_t gemm_ceil(size_t a, size_t b) { return (a + b - 1) / b; }
static inline size_t gemm_min(size_t a, size_t b) { return a < b ? a : b; }

/* C (M, N) = alpha A B + beta C for operands in cache: A's element (i, k) is A[k * cs + i * rs], B is
   (K, N) with rows ldb apart. N must be a multiple of VL; one thread. */
static inline void gemm_tile(size_t M, size_t N, size_t K, floatX alpha, const floatX *A, size_t rs, size_t cs,
                             const floatX *B, size_t ldb, floatX beta, floatX *C, size_t ldc) {
    assert(N % VL == 0 && (rs == 1 || cs == 1));
    const size_t tiles = gemm_ceil(M, GEMM_MR); /* of about the same height */
    for (size_t j = 0; j < N; j += GEMM_NR) {
        for (size_t t = 0; t < tiles; t++) {
            const size_t i = t * M / tiles, m = (t + 1) * M / tiles - i;
            const GemmOut o = {alpha, beta, C + i * ldc + j, NULL, ldc, C + i * ldc + j, ldc};
            const int nv = N - j < GEMM_NR ? 1 : 2;
            if (rs == 1) gemm_columns(m, nv, K, A + i, cs, B + j, ldb, &o);
            else gemm_strided(m, nv, K, A + i * rs, rs, B + j, ldb, &o);
        }
    }
}

#endif
