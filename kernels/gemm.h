/* gemm.h: the CPU's matrix product, C = alpha op(A) op(B) + beta C, all matrices row-major.

   Three levels, after Goto and van de Geijn (2008):
     gemm_kernel  (tile.h) a tile of C, MR x NR, lives in registers; one column of A and one row of B
                  make MR x NR multiply-adds, over and over, K times
     gemm_block   packs blocks of A and B (pack.h) so that the kernel reads memory in a straight line:
                  A panels stay in L2, one NR-wide panel of B is near while they pass
     gemm_add     splits C between threads; C = alpha op(A) op(B) + beta D + bias. gemm is that with D = C.

   Bits: an element of C is one chain of multiply-adds over k in ascending order, cut into pieces
   of at most KC. It depends on its row of A, its column of B and K alone: not on M, N, the position
   of the element, or the number of threads. The rest of the program leans on that: a row computed
   in the fill pass, in the recompute, in any chunk, by any thread, has the same bits. That holds for
   alpha = 1 and beta = 0 or 1: with other factors a compiler may round the last step once or twice. */
#ifndef KERNELS_GEMM_H
#define KERNELS_GEMM_H

#include "threads.h"
#include "tile.h"

#include <assert.h>

/* Cache blocks. Packed A (MC x KC) is 288 KB in float, which leaves most of a 1 MB L2 to what streams past; of packed B
   (KC x NC) one panel is read again and again. A longer KC means fewer visits to C. */
#define GEMM_KC 512
#define GEMM_MC 144
#define GEMM_NC 512
static_assert(GEMM_MC % GEMM_MR == 0 && GEMM_NC % (8 * VL) == 0, "blocks are whole tiles, of the widest too");
#define GEMM_PACK_BYTES (sizeof(floatX) * (GEMM_MC * GEMM_KC + GEMM_KC * GEMM_NC + 2 * VL)) /* per thread */
#define GEMM_SERIAL (1 << 17) /* multiplications that one thread does sooner than others wake */
#define GEMM_PACK_COST 16     /* of packing an element of an operand, in multiplications */

/* The arguments of gemm(), with op() as strides: element (i, k) of op(A) is A[i * rsa + k * csa]; (k, j) of op(B) is
   B[k * rsb + j * csb]. */
typedef struct {
    const floatX *A, *B;
    size_t rsa, csa, rsb, csb, K;
    GemmOut out;
} GemmArgs;

/* Where a tile finds its operands: A packed; B as in gemm_kernel, or with dots as in gemm_dots. */
typedef struct {
    const floatX *A, *B;
    size_t ldb, panel;
    int dots;
} GemmTile;

/* A tile of C at (i, j): m rows, n columns, kc terms of each chain from the k-th on. */
static void gemm_to(const GemmArgs *g, size_t i, size_t j, size_t k, size_t m, size_t n, size_t kc, const GemmTile *t) {
    GemmOut o = g->out;
    o.C += i * o.ldc + j;
    o.D += i * o.ldd + j;
    if (o.bias) o.bias += j;
    if (k > 0) o = (GemmOut){o.alpha, 1, o.C, NULL, o.ldc, o.C, o.ldc};
    const int nv = n <= (size_t)VL ? 1 : gemm_vectors(m);
    const size_t width = (size_t)nv * VL;
    /* the right edge: the same kernel on a copy, so that the bits are the same */
    floatX edge[GEMM_MR * GEMM_NR], bias[8 * VL];
    GemmOut e = {o.alpha, o.beta, edge, o.bias ? bias : NULL, width, edge, width};
    if (n < width) {
        memset(edge, 0, sizeof edge);
        for (size_t r = 0; o.beta != 0 && r < m; r++) memcpy(edge + r * width, o.D + r * o.ldd, n * sizeof(floatX));
        if (o.bias) memcpy(bias, o.bias, n * sizeof(floatX));
    }
    if (t->dots) gemm_dots(kc, t->A, t->B, t->ldb, n, n < width ? &e : &o);
    else gemm_packed(m, nv, kc, t->A, t->B, t->ldb, t->panel, n < width ? &e : &o);
    for (size_t r = 0; n < width && r < m; r++) memcpy(o.C + r * o.ldc, edge + r * width, n * sizeof(floatX));
}

/* K = 1 and B a row: C is the largest of the three, and gone through row by row. The same steps as in gemm_kernel. */
static void gemm_outer(const GemmArgs *g, size_t m0, size_t m1, size_t n0, size_t n1) {
    for (size_t i = m0; i < m1; i++) {
        const vecX a = vec_set(g->A[i * g->rsa]);
        GemmOut o = g->out;
        o.C += i * o.ldc;
        o.D += i * o.ldd;
        size_t j = n0;
        for (; o.beta != 0 && !o.bias && j + VL <= n1; j += VL) { /* dw += dout^T x, but for its edge: nothing to ask */
            vecX c = {0};
            c += a * vec_load(g->B + j);
            c *= o.alpha;
            c += o.beta * vec_load(o.D + j);
            vec_store(o.C + j, c);
        }
        for (; j < n1; j += VL) {
            vecX c = {0};
            c += a * vec_load_part(g->B + j, n1 - j);
            c *= o.alpha;
            if (o.beta != 0) c += o.beta * vec_load_part(o.D + j, n1 - j);
            if (o.bias) c += vec_load_part(o.bias + j, n1 - j);
            vec_store_part(o.C + j, c, n1 - j);
        }
    }
}

/* Rows m0..m1 and columns n0..n1 of C, by one thread. */
static void gemm_block(const GemmArgs *g, size_t m0, size_t m1, size_t n0, size_t n1) {
    static __thread floatX pa[GEMM_MC * GEMM_KC + VL] __attribute__((aligned(64)));
    static __thread floatX pb[GEMM_KC * GEMM_NC + VL] __attribute__((aligned(64)));
    const size_t pieces = gemm_ceil(g->K, GEMM_KC), step = pieces ? gemm_ceil(g->K, pieces) : 1;
    /* Rows of one panel need B once: its columns are used where they are, but for those at the right edge. */
    const int once = m1 - m0 <= GEMM_MR, dots = m1 - m0 == 1 && g->csb != 1;
    for (size_t jc = n0; jc < n1; jc += GEMM_NC) {
        const size_t nc = gemm_min(n1 - jc, GEMM_NC), wide = VL * gemm_vectors(m1 - m0);
        const size_t there = dots ? nc : once && g->csb == 1 ? nc / wide * wide : 0;
        for (size_t pc = 0; pc < g->K || pc == 0; pc += step) {
            const size_t kc = gemm_min(g->K - pc, step);
            const floatX *B = g->B + pc * g->rsb + jc * g->csb;
            pack_panels(pb + there * kc, GEMM_NR, B + there * g->csb, g->csb, g->rsb, nc - there, kc);
            for (size_t ic = m0; ic < m1; ic += GEMM_MC) {
                const size_t mc = gemm_min(m1 - ic, GEMM_MC);
                const floatX *A = g->A + ic * g->rsa + pc * g->csa;
                if (mc > 1) pack_panels(pa, GEMM_MR, A, g->rsa, g->csa, mc, kc);
                for (size_t k = 0; mc == 1 && k < kc; k++) pa[k * GEMM_MR] = A[k * g->csa];
                for (size_t j = 0, step_j = dots ? VL : GEMM_NR; j < nc; j += step_j) {
                    for (size_t i = 0; i < mc; i += GEMM_MR) {
                        const size_t m = gemm_min(mc - i, GEMM_MR), width = dots ? VL : VL * gemm_vectors(m);
                        if (j % width != 0) continue; /* a short last row tile is wider, and has been here */
                        GemmTile t = {pa + i * kc, pb + j * kc, GEMM_NR, GEMM_NR * kc, dots};
                        if (j < there) t.B = B + j * g->csb, t.ldb = dots ? g->csb : g->rsb, t.panel = GEMM_NR;
                        gemm_to(g, ic + i, jc + j, pc, m, gemm_min(nc - j, width), kc, &t);
                    }
                }
            }
        }
    }
}

/* C = alpha op(A) op(B) + beta D + bias, the rest as for gemm(). */
static inline void gemm_add(int ta, int tb, size_t M, size_t N, size_t K, const floatX *A, size_t lda, const floatX *B,
                            size_t ldb, GemmOut out) {
    const GemmArgs g = {A, B, ta ? 1 : lda, ta ? lda : 1, tb ? 1 : ldb, tb ? ldb : 1, K, out};
    if (M == 0 || N == 0) return;
    /* A product too small to pay for waking the other threads stays on this one. Otherwise a grid of them, of the least
       work for each: whole register tiles, and packing. */
    const size_t threads = M * N * K < GEMM_SERIAL ? 1 : (size_t)max_threads();
    size_t rows = M, columns = N;
    double least = INFINITY;
    for (size_t t = 1; t <= threads; t++) {
        if (threads % t != 0) continue;
        const size_t r = gemm_ceil(gemm_ceil(M, t), GEMM_MR) * GEMM_MR,
                     c = gemm_ceil(gemm_ceil(N, threads / t), GEMM_NR) * GEMM_NR;
        const double work = (double)r * (double)c + GEMM_PACK_COST * (double)(r + c);
        if (work < least) least = work, rows = r, columns = c;
    }
    void (*const block)(const GemmArgs *, size_t, size_t, size_t, size_t) =
        K == 1 && g.csb == 1 ? gemm_outer : gemm_block;
    const size_t across = gemm_ceil(N, columns), parts = gemm_ceil(M, rows) * across;
    if (parts <= 1) {
        block(&g, 0, M, 0, N);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (size_t p = 0; p < parts; p++) {
        const size_t m0 = p / across * rows, n0 = p % across * columns;
        block(&g, m0, gemm_min(m0 + rows, M), n0, gemm_min(n0 + columns, N));
    }
}

/* C (M, N) = alpha op(A) op(B) + beta C; lda, ldb, ldc are the distances between rows as stored.
   op(A) is (M, K): A itself, or with ta != 0 the transpose of A stored as (K, M). The same for
   op(B), (K, N), and tb. beta = 0 never reads C. */
static inline void gemm(int ta, int tb, size_t M, size_t N, size_t K, floatX alpha, const floatX *A, size_t lda,
                        const floatX *B, size_t ldb, floatX beta, floatX *C, size_t ldc) {
    gemm_add(ta, tb, M, N, K, A, lda, B, ldb, (GemmOut){alpha, beta, C, NULL, ldc, C, ldc});
}

#endif
