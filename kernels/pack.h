/* pack.h: an operand of the matrix product, copied into the order in which the register tile reads it. */
#ifndef KERNELS_PACK_H
#define KERNELS_PACK_H

#include "vec.h"

/* v (VL vectors) = VL rows of src, `across` apart, as columns: lane r of v[k] is src[r * across + k]. Only rows r < n
   and columns k < K are read, the others are zero. */
__attribute__((always_inline)) static inline void pack_square(vecX *v, const floatX *src, size_t across, size_t n,
                                                              size_t K) {
    UNROLL
    for (size_t r = 0; r < (size_t)VL; r++) v[r] = r < n ? vec_load_part(src + r * across, K) : (vecX){0};
    vec_transpose(v);
}

/* Where the square that holds column k of K begins: the last one ends at K, if K has a whole one, so that no row is
   loaded in part. */
static inline size_t pack_square_at(size_t k, size_t K) { return K - k < (size_t)VL && K >= (size_t)VL ? K - VL : k; }

/* dst = panels of W columns, each (K, W), of src: element (k, j) is src[j * across + k * down] for j < n, zero beyond,
   to the end of the last panel. Both operands are packed with this: W = MR rows of A, W = NR columns of B. across or
   down is 1. Up to VL elements behind the last panel are written. */
__attribute__((always_inline)) static inline void pack_panels(floatX *dst, size_t W, const floatX *src, size_t across,
                                                              size_t down, size_t n, size_t K) {
    if (across == 1) { /* rows, 8 at a time, cut into panels */
        for (size_t k0 = 0; k0 < K; k0 += 8) {
            for (size_t j = 0; j < n; j += W) {
                for (size_t k = k0; k < K && k < k0 + 8; k++) {
                    floatX *to = dst + j * K + k * W;
                    const floatX *from = src + k * down + j;
                    if (n - j >= W) memcpy(to, from, W * sizeof(floatX));
                    for (size_t i = 0; n - j < W && i < W; i++) to[i] = i < n - j ? from[i] : 0;
                }
            }
        }
        return;
    }
    /* A transpose: VL rows, a few cache lines of each while the next lines are fetched, then the next VL rows. From the
       right, so that what is written beyond a panel's row, into the beginning of the next, is written over. */
    enum { AHEAD = 4 * VL };
    for (size_t j = 0; j < n; j += W, dst += W * K, src += W * across) {
        const size_t w = n - j < W ? n - j : W;
        for (size_t k0 = 0; k0 < K; k0 += AHEAD) {
            for (size_t i = (W - 1) / VL * VL;; i -= VL) {
                for (size_t next = k0; next < K && next < k0 + AHEAD; next += VL) {
                    const size_t k = pack_square_at(next, K), rows = K - k < (size_t)VL ? K - k : VL;
                    vecX v[VL];
                    for (size_t r = i; r < w && r < i + VL; r++) __builtin_prefetch(src + r * across + k + AHEAD);
                    pack_square(v, src + i * across + k, across, i < w ? w - i : 0, rows);
                    UNROLL
                    for (size_t r = 0; r < (size_t)VL; r++) {
                        if (r < rows) vec_store(dst + (k + r) * W + i, v[r]);
                    }
                }
                if (i == 0) break;
            }
        }
    }
}

#endif
