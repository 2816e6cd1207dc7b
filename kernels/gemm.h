/* gemm.h: the CPU's matrix product, C = alpha op(A) op(B) + beta C, all matrices row-major.

   Three levels, after Goto and van de Geijn (2008):
     gemm_kernel  an MR x NR tile of C lives in registers; one column of A and one row of B
                  make MR x NR multiply-adds, over and over, K times
     gemm_block   packs blocks of A and B so that the kernel reads memory in a straight line:
                  a B block stays in L2, one NR-wide panel of it in L1, A panels stream past
     gemm         splits C between threads

   gemm_tile is the kernel without packing, for operands that are in cache already: the page
   tiles of attention.

   Bits: an element of C is one chain of multiply-adds over k in ascending order, cut every KC.
   It depends on its row of A, its column of B and K alone: not on M, N, the position of the
   element, or the number of threads. The rest of the program leans on that: a row computed
   in the fill pass, in the recompute, in any chunk, by any thread, has the same bits. */
#ifndef KERNELS_GEMM_H
#define KERNELS_GEMM_H

#include "vec.h"

#include <assert.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* Register tile. 32 vector registers hold 12 x 2 vectors of C, 2 of B and one of A; with 16
   registers (AVX2, SSE) it is 6 x 2. */
#if VEC_BYTES == 64 || defined(__aarch64__)
#define GEMM_MR 12
#else
#define GEMM_MR 6
#endif
#define GEMM_NR (2 * VL)
/* Cache blocks: packed A (MC x KC) and B (KC x NC) take 192 KB and 512 KB in float, together
   less than a 1 MB L2; KC x NR is 32 KB with AVX-512, less than L1. */
#define GEMM_KC 256
#define GEMM_MC 192
#define GEMM_NC 512

#define GEMM_PACK_BYTES (sizeof(floatX) * (GEMM_MC * GEMM_KC + GEMM_KC * GEMM_NC)) /* per thread */

/* Threads of the next parallel loop. One without OpenMP. */
static inline int max_threads(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}
/* 0: leave it to OpenMP. */
static inline void set_threads(int n) {
#ifdef _OPENMP
    if (n > 0) omp_set_num_threads(n);
#else
    (void)n;
#endif
}
static inline int thread_id(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

/* C (m, NR) = alpha A B + beta C. A's element (i, k) is A[i * rs + k * cs]; B's row k starts at
   B + k * ldb. m is a constant wherever this is inlined, so the loops over i unroll and the
   tile stays in registers. beta = 0 never reads C. */
__attribute__((always_inline)) static inline void gemm_kernel(int m, size_t K, floatX alpha, const floatX *A, size_t rs,
                                                              size_t cs, const floatX *B, size_t ldb, floatX beta,
                                                              floatX *C, size_t ldc) {
    vecX c0[12], c1[12];
#pragma GCC unroll 12
    for (int i = 0; i < m; i++) c0[i] = c1[i] = (vecX){0};
    for (size_t k = 0; k < K; k++, A += cs, B += ldb) {
        vecX b0 = vec_load(B), b1 = vec_load(B + VL);
#pragma GCC unroll 12
        for (int i = 0; i < m; i++) {
            vecX a = vec_set(A[i * rs]);
            c0[i] += a * b0;
            c1[i] += a * b1;
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < m; i++) {
        floatX *c = C + i * ldc;
        vecX r0 = alpha * c0[i], r1 = alpha * c1[i];
        if (beta != 0) {
            r0 += beta * vec_load(c);
            r1 += beta * vec_load(c + VL);
        }
        vec_store(c, r0);
        vec_store(c + VL, r1);
    }
}

/* gemm_kernel for a row count known only now. */
__attribute__((always_inline)) static inline void gemm_rows(int m, size_t K, floatX alpha, const floatX *A, size_t rs,
                                                            size_t cs, const floatX *B, size_t ldb, floatX beta,
                                                            floatX *C, size_t ldc) {
    switch (m) {
    case 1: gemm_kernel(1, K, alpha, A, rs, cs, B, ldb, beta, C, ldc); break;
    case 2: gemm_kernel(2, K, alpha, A, rs, cs, B, ldb, beta, C, ldc); break;
    case 3: gemm_kernel(3, K, alpha, A, rs, cs, B, ldb, beta, C, ldc); break;
    case 4: gemm_kernel(4, K, alpha, A, rs, cs, B, ldb, beta, C, ldc); break;
    case 5: gemm_kernel(5, K, alpha, A, rs, cs, B, ldb, beta, C, ldc); break;
    case 6: gemm_kernel(6, K, alpha, A, rs, cs, B, ldb, beta, C, ldc); break;
#if GEMM_MR == 12
    case 7: gemm_kernel(7, K, alpha, A, rs, cs, B, ldb, beta, C, ldc); break;
    case 8: gemm_kernel(8, K, alpha, A, rs, cs, B, ldb, beta, C, ldc); break;
    case 9: gemm_kernel(9, K, alpha, A, rs, cs, B, ldb, beta, C, ldc); break;
    case 10: gemm_kernel(10, K, alpha, A, rs, cs, B, ldb, beta, C, ldc); break;
    case 11: gemm_kernel(11, K, alpha, A, rs, cs, B, ldb, beta, C, ldc); break;
    case 12: gemm_kernel(12, K, alpha, A, rs, cs, B, ldb, beta, C, ldc); break;
#endif
    default: assert(!"gemm_rows: more rows than a register tile has");
    }
}

/* C (M, N) = A B + beta C for operands in cache: A's element (i, k) is A[i * rs + k * cs], B is
   (K, N) with rows ldb apart. N must be a multiple of GEMM_NR; one thread. */
static inline void gemm_tile(size_t M, size_t N, size_t K, const floatX *A, size_t rs, size_t cs, const floatX *B,
                             size_t ldb, floatX beta, floatX *C, size_t ldc) {
    assert(N % GEMM_NR == 0);
    for (size_t j = 0; j < N; j += GEMM_NR) {
        for (size_t i = 0; i < M; i += GEMM_MR) {
            int m = M - i < GEMM_MR ? (int)(M - i) : GEMM_MR;
            gemm_rows(m, K, 1, A + i * rs, rs, cs, B + j, ldb, beta, C + i * ldc + j, ldc);
        }
    }
}

/* dst (K, W) = a panel of src: element (k, j) is src[j * across + k * down] for j < n, zero for
   n <= j < W. Both operands are packed with this: W = MR rows of A, W = NR columns of B. */
static inline void gemm_pack_panel(floatX *dst, size_t W, const floatX *src, size_t across, size_t down, size_t n,
                                   size_t K) {
    if (n < W) memset(dst, 0, W * K * sizeof(floatX));
    if (across == 1) {
        for (size_t k = 0; k < K; k++) memcpy(dst + k * W, src + k * down, n * sizeof(floatX));
        return;
    }
    /* a transpose: 16 k at a time, so that what is read and what is written stay in L1 */
    for (size_t k0 = 0; k0 < K; k0 += 16) {
        size_t k1 = k0 + 16 < K ? k0 + 16 : K;
        for (size_t j = 0; j < n; j++) {
            for (size_t k = k0; k < k1; k++) dst[k * W + j] = src[j * across + k * down];
        }
    }
}

typedef struct {
    const floatX *A, *B;
    size_t rsa, csa, rsb,
        csb; /* element (i, k) of op(A) is A[i * rsa + k * csa]; of op(B), (k, j), B[k * rsb + j * csb] */
    floatX *C;
    size_t ldc, K;
    floatX alpha, beta;
} GemmArgs;

/* Rows m0..m1 and columns n0..n1 of C, by one thread. */
static void gemm_block(const GemmArgs *g, size_t m0, size_t m1, size_t n0, size_t n1) {
    static __thread floatX pa[GEMM_MC * GEMM_KC] __attribute__((aligned(64)));
    static __thread floatX pb[GEMM_KC * GEMM_NC] __attribute__((aligned(64)));
    for (size_t jc = n0; jc < n1; jc += GEMM_NC) {
        size_t nc = n1 - jc < GEMM_NC ? n1 - jc : GEMM_NC;
        for (size_t pc = 0; pc < g->K; pc += GEMM_KC) {
            size_t kc = g->K - pc < GEMM_KC ? g->K - pc : GEMM_KC;
            floatX beta = pc == 0 ? g->beta : 1;
            for (size_t j = 0; j < nc; j += GEMM_NR) {
                size_t n = nc - j < GEMM_NR ? nc - j : GEMM_NR;
                gemm_pack_panel(pb + j * kc, GEMM_NR, g->B + pc * g->rsb + (jc + j) * g->csb, g->csb, g->rsb, n, kc);
            }
            for (size_t ic = m0; ic < m1; ic += GEMM_MC) {
                size_t mc = m1 - ic < GEMM_MC ? m1 - ic : GEMM_MC;
                for (size_t i = 0; i < mc; i += GEMM_MR) {
                    size_t m = mc - i < GEMM_MR ? mc - i : GEMM_MR;
                    gemm_pack_panel(pa + i * kc, GEMM_MR, g->A + (ic + i) * g->rsa + pc * g->csa, g->rsa, g->csa, m,
                                    kc);
                }
                for (size_t j = 0; j < nc; j += GEMM_NR) {
                    size_t n = nc - j < GEMM_NR ? nc - j : GEMM_NR;
                    for (size_t i = 0; i < mc; i += GEMM_MR) {
                        int m = mc - i < GEMM_MR ? (int)(mc - i) : GEMM_MR;
                        floatX *c = g->C + (ic + i) * g->ldc + jc + j;
                        if (n == GEMM_NR) {
                            gemm_rows(m, kc, g->alpha, pa + i * kc, 1, GEMM_MR, pb + j * kc, GEMM_NR, beta, c, g->ldc);
                            continue;
                        }
                        /* the right edge: the same kernel on a copy, so that the bits are the same */
                        floatX edge[GEMM_MR * GEMM_NR] = {0};
                        if (beta != 0) {
                            for (int r = 0; r < m; r++) memcpy(edge + r * GEMM_NR, c + r * g->ldc, n * sizeof(floatX));
                        }
                        gemm_rows(m, kc, g->alpha, pa + i * kc, 1, GEMM_MR, pb + j * kc, GEMM_NR, beta, edge, GEMM_NR);
                        for (int r = 0; r < m; r++) memcpy(c + r * g->ldc, edge + r * GEMM_NR, n * sizeof(floatX));
                    }
                }
            }
        }
    }
}

/* C (M, N) = alpha op(A) op(B) + beta C; lda, ldb, ldc are the distances between rows as stored.
   op(A) is (M, K): A itself, or with ta != 0 the transpose of A stored as (K, M). The same for
   op(B), (K, N), and tb. beta = 0 never reads C. */
static inline void gemm(int ta, int tb, size_t M, size_t N, size_t K, floatX alpha, const floatX *A, size_t lda,
                        const floatX *B, size_t ldb, floatX beta, floatX *C, size_t ldc) {
    GemmArgs g = {A, B, ta ? 1 : lda, ta ? lda : 1, tb ? 1 : ldb, tb ? ldb : 1, C, ldc, K, alpha, beta};
    /* Along the longer side, in whole register tiles; a product too small to pay for waking
       the other threads stays on this one. */
    size_t threads = M * N * K < 1 << 20 ? 1 : (size_t)max_threads();
    size_t length = N >= M ? N : M, unit = N >= M ? GEMM_NR : GEMM_MR;
    size_t step = (length / threads + unit) / unit * unit;
    size_t parts = (length + step - 1) / step;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) if (parts > 1)
#endif
    for (size_t i = 0; i < parts; i++) {
        size_t from = i * step, to = from + step < length ? from + step : length;
        if (N >= M) gemm_block(&g, 0, M, from, to);
        else gemm_block(&g, from, to, 0, N);
    }
}

#endif
