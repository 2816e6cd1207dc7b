/* train_oomb.c: trains GPT-2, LLaMA and Qwen style models on sequences of any length in the memory of
   one chunk plus the pages, on a CPU. It is also the oracle of the CUDA program: same parts, same
   names, same order.

   Dimensions: B sequences of T tokens; C channels; V (padded Vp) vocabulary; L layers; NH query
   heads, NKV key/value heads, head size HD, G = NH / NKV; F MLP width; chunks of chunk_size tokens,
   this one from position t0 on with Tc tokens; pages of P tokens. BTc stands for B * Tc.

   The algorithm, for one batch of sequences (sequence_step):

     fill, chunk 0 .. N-2             each layer: K, V of the chunk into its pages;
                                      attention over all pages so far; next layer.
                                      Nothing else is kept.
     backward, chunk N-1 .. 0         1. the same forward again, now keeping activations
                                         (K, V are in the pages, except for the last chunk)
                                      2. loss, in slices of tokens
                                      3. layers in reverse; attention adds to dK, dV of every
                                         page that the chunk attended to
                                      4. all later chunks have already done so: the chunk's own
                                         dK, dV are complete, and go on into wk, wv and x
                                      5. its pages are given back

   This is the exact gradient of the whole sequence. What is held at once: activations of one
   chunk, and K, V, dK, dV of every token.

   Order of the file: the ops in data-flow order, each backward under its forward; the model and
   its memory; a layer forward and backward, as mirror images; a chunk; a sequence; a step; main.

   Write modes of the backward ops: parameter gradients +=; the residual stream's gradient +=;
   other activation gradients = (unless an argument `accumulate` says otherwise); dK, dV pages: the
   first touch writes, later touches add.

   Repeatable bits: every sum has an order fixed by the shapes. Threads divide rows, columns, heads
   or pages between them, never a sum. */
#include "kernels/gemm.h"
#include "oomb/checkpoint.h"
#include "oomb/dataloader.h"
#include "oomb/logger.h"
#include "oomb/memory.h"
#include "oomb/pages.h"
#include "oomb/rope.h"
#include "oomb/safetensors.h"
#include "oomb/sampler.h"
#include "oomb/session.h"
#include "oomb/tensors.h"

#include <signal.h>

enum {
    COLUMN_BLOCK = 64, /* columns that one thread takes of a sum over rows */
    FEW = 16384,       /* elements up to which an elementwise loop is done sooner than other threads wake */
};

// ----------------------------------------------------------------------------------------------
// embedding: x = wte[token] + wpe[position]

/* x (B, Tc, C) =; inputs (B, T), of which columns t0 .. t0+Tc-1 are read; wte (Vp, C);
   wpe (max_T, C), or NULL with RoPE. */
static void embedding_forward(floatX *x, const int *inputs, const floatX *wte, const floatX *wpe, int B, int T, int t0,
                              int Tc, int C) {
#pragma omp parallel for collapse(2) if ((size_t)B * Tc * C > FEW)
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < Tc; t++) {
            floatX *out = x + ((size_t)b * Tc + t) * C;
            const floatX *token = wte + (size_t)inputs[(size_t)b * T + t0 + t] * C;
            memcpy(out, token, (size_t)C * sizeof(floatX));
            if (!wpe) continue;
            const floatX *position = wpe + (size_t)(t0 + t) * C;
            for (int c = 0; c < C; c++) out[c] += position[c];
        }
    }
}

/* dwte += and dwpe +=, from dx (B, Tc, C). Two rows may hold the same token, so threads divide the
   columns and each goes through the rows in order. */
static void embedding_backward(floatX *dwte, floatX *dwpe, const floatX *dx, const int *inputs, int B, int T, int t0,
                               int Tc, int C) {
#pragma omp parallel for if ((size_t)B * Tc * C > FEW)
    for (int c0 = 0; c0 < C; c0 += COLUMN_BLOCK) {
        int c1 = c0 + COLUMN_BLOCK < C ? c0 + COLUMN_BLOCK : C;
        for (int b = 0; b < B; b++) {
            for (int t = 0; t < Tc; t++) {
                const floatX *d = dx + ((size_t)b * Tc + t) * C;
                floatX *dtoken = dwte + (size_t)inputs[(size_t)b * T + t0 + t] * C;
                for (int c = c0; c < c1; c++) dtoken[c] += d[c];
                if (!dwpe) continue;
                floatX *dposition = dwpe + (size_t)(t0 + t) * C;
                for (int c = c0; c < c1; c++) dposition[c] += d[c];
            }
        }
    }
}

// ----------------------------------------------------------------------------------------------
// norm: layernorm (Ba et al. 2016) or, without a mean, rmsnorm (Zhang and Sennrich 2019)

/* out (rows, C) = (x - mean) * rstd * w + b. Saves mean (rows) and rstd (rows). mean NULL: rmsnorm,
   rstd = 1 / sqrt(average of x^2 + eps). b may be NULL. */
static void norm_forward(floatX *out, floatX *mean, floatX *rstd, const floatX *x, const floatX *w, const floatX *b,
                         size_t rows, int C, double eps) {
#pragma omp parallel for if (rows * C > FEW)
    for (size_t r = 0; r < rows; r++) {
        const floatX *xr = x + r * C;
        floatX *o = out + r * C;
        floatX mu = mean ? vec_sum(xr, C) / C : 0;
        floatX s = 1 / (floatX)sqrt((double)(vec_spread(xr, mu, C) / C) + eps);
        for (int c = 0; c < C; c++) o[c] = (xr[c] - mu) * s * w[c] + (b ? b[c] : 0);
        if (mean) mean[r] = mu;
        rstd[r] = s;
    }
}

/* dx (rows, C) += if accumulate, else = (then dx may be dout itself); dw +=, db +=.
   With xhat = (x - mean) * rstd, out = xhat * w + b:
     dxhat = dout * w;  dx = rstd * (dxhat - [average of dxhat] - xhat * average of dxhat * xhat),
   the bracket for layernorm only. */
static void norm_backward(floatX *dx, floatX *dw, floatX *db, const floatX *dout, const floatX *x, const floatX *w,
                          const floatX *mean, const floatX *rstd, size_t rows, int C, int accumulate) {
#pragma omp parallel for if (rows * C > FEW)
    for (int c0 = 0; c0 < C; c0 += COLUMN_BLOCK) {
        int n = c0 + COLUMN_BLOCK < C ? COLUMN_BLOCK : C - c0;
        floatX sw[COLUMN_BLOCK] = {0}, sb[COLUMN_BLOCK] = {0};
        for (size_t r = 0; r < rows; r++) {
            const floatX *d = dout + r * C + c0, *xr = x + r * C + c0;
            floatX mu = mean ? mean[r] : 0, s = rstd[r];
            for (int c = 0; c < n; c++) {
                sw[c] += d[c] * ((xr[c] - mu) * s);
                sb[c] += d[c];
            }
        }
        for (int c = 0; c < n; c++) dw[c0 + c] += sw[c];
        for (int c = 0; db && c < n; c++) db[c0 + c] += sb[c];
    }
#pragma omp parallel for if (rows * C > FEW)
    for (size_t r = 0; r < rows; r++) {
        const floatX *d = dout + r * C, *xr = x + r * C;
        floatX *o = dx + r * C;
        floatX mu = mean ? mean[r] : 0, s = rstd[r];
        vecX vs = {0}, vp = {0}; /* lane sums of dxhat and dxhat * xhat */
        for (int c = 0; c < C; c += VL) {
            size_t n = C - c;
            vecX dxhat = vec_load_part(d + c, n) * vec_load_part(w + c, n);
            vs += dxhat;
            vp += dxhat * ((vec_load_part(xr + c, n) - mu) * s);
        }
        floatX a = 0, p = 0;
        for (int j = 0; j < VL; j++) {
            a += vs[j];
            p += vp[j];
        }
        a = mean ? a / C : 0;
        p /= C;
        for (int c = 0; c < C; c++) {
            floatX g = s * (d[c] * w[c] - a - (xr[c] - mu) * s * p);
            o[c] = accumulate ? o[c] + g : g;
        }
    }
}

// ----------------------------------------------------------------------------------------------
// matmul: out = x w^T + residual + bias

/* out (rows, OC) = x (rows, C) w (OC, C)^T + residual (rows, OC, or NULL) + bias (OC, or NULL) */
static void matmul_forward(floatX *out, const floatX *x, const floatX *w, const floatX *residual, const floatX *bias,
                           size_t rows, int C, int OC) {
    gemm_add(0, 1, rows, OC, C, x, C, w, C,
             (GemmOut){1, residual ? 1 : 0, residual ? residual : out, bias, OC, out, OC});
}

/* dx (rows, C) = or += (accumulate) dout w; dw (OC, C) += dout^T x; dbias (OC, or NULL) += sum over rows of
   dout. The residual's gradient is dout itself. */
static void matmul_backward(floatX *dx, floatX *dw, floatX *dbias, const floatX *dout, const floatX *x, const floatX *w,
                            size_t rows, int C, int OC, int accumulate) {
    gemm(0, 0, rows, C, OC, 1, dout, OC, w, C, accumulate, dx, C);
    gemm(1, 0, OC, C, rows, 1, dout, OC, x, C, 1, dw, C);
    if (!dbias) return;
#pragma omp parallel for if (rows * OC > FEW)
    for (int c0 = 0; c0 < OC; c0 += COLUMN_BLOCK) {
        int n = c0 + COLUMN_BLOCK < OC ? COLUMN_BLOCK : OC - c0;
        floatX sum[COLUMN_BLOCK] = {0};
        for (size_t r = 0; r < rows; r++) {
            for (int c = 0; c < n; c++) sum[c] += dout[r * OC + c0 + c];
        }
        for (int c = 0; c < n; c++) dbias[c0 + c] += sum[c];
    }
}

// ----------------------------------------------------------------------------------------------
// rope: rotary positions (Su et al. 2021), channel i paired with channel i + HD/2 (as in LLaMA's
// Hugging Face weights)

/* cosine, sine (Tc, HD / 2) = of position * frequency of the pair, for positions t0 .. t0+Tc-1, times the magnitude of
   the scaling. In double: a float angle loses a radian's digits beyond a few million tokens. */
static void rope_table(floatX *cosine, floatX *sine, int t0, int Tc, int HD, double theta, const RopeScaling *scaling) {
    const int half = HD / 2;
    const double magnitude = rope_magnitude(scaling);
#pragma omp parallel for
    for (int i = 0; i < half; i++) {
        const double frequency = rope_frequency(scaling, theta, HD, i);
        for (int t = 0; t < Tc; t++) {
            const double angle = (t0 + t) * frequency;
            cosine[(size_t)t * half + i] = (floatX)(cos(angle) * magnitude);
            sine[(size_t)t * half + i] = (floatX)(sin(angle) * magnitude);
        }
    }
}

/* Turns every pair of channels of x (B, Tc, heads, HD) by direction (1 or -1) times its position's angle. */
static void rope_turn(floatX *x, const floatX *cosine, const floatX *sine, floatX direction, int B, int Tc, int heads,
                      int HD) {
    int half = HD / 2;
#pragma omp parallel for if ((size_t)B * Tc * heads * HD > FEW)
    for (size_t r = 0; r < (size_t)B * Tc; r++) {
        const floatX *co = cosine + r % Tc * half, *si = sine + r % Tc * half;
        for (int h = 0; h < heads; h++) {
            floatX *a = x + (r * heads + h) * HD, *b = a + half;
            for (int i = 0; i < half; i++) {
                floatX u = a[i], v = b[i], s = direction * si[i];
                a[i] = u * co[i] - v * s;
                b[i] = v * co[i] + u * s;
            }
        }
    }
}

/* x (B, Tc, heads, HD), in place. */
static void rope_forward(floatX *x, const floatX *cosine, const floatX *sine, int B, int Tc, int heads, int HD) {
    rope_turn(x, cosine, sine, 1, B, Tc, heads, HD);
}

/* dx (B, Tc, heads, HD), in place: the transpose. The angle changes sign; a scale in the tables
   (YaRN has one) stays. */
static void rope_backward(floatX *dx, const floatX *cosine, const floatX *sine, int B, int Tc, int heads, int HD) {
    rope_turn(dx, cosine, sine, -1, B, Tc, heads, HD);
}

// ----------------------------------------------------------------------------------------------
// pages: the chunk's keys and values into their pages, and the gradients out of theirs

/* Head h of a page: (P, HD), contiguous. A pool is (slots, NKV, P, HD). */
static inline size_t page_tile(int slot, int h, int NKV, int P, int HD) {
    assert(slot >= 0); /* an absent page is a bug in the schedule, never a buffer of zeros */
    return ((size_t)slot * NKV + h) * P * HD;
}

/* Positions t0 .. t0+Tc-1 of layer l in kpages, vpages = k, v (B, Tc, NKV, HD). What stands before t0 in its page
   (sampling goes on there) stays; rows past the end of a short page become zero: a masked weight of 0 times
   whatever was there could be NaN. */
static void page_write(floatX *kpages, floatX *vpages, const floatX *k, const floatX *v, const PageTable *pages, int l,
                       int t0, int Tc, int NKV, int HD) {
    const int P = pages->P, p0 = t0 / P, n = (int)ceil_div((size_t)t0 + Tc, P) - p0;
    const size_t row = (size_t)HD * sizeof(floatX);
#pragma omp parallel for collapse(3) if ((size_t)pages->B * Tc * NKV * HD > FEW)
    for (int b = 0; b < pages->B; b++) {
        for (int p = 0; p < n; p++) {
            for (int h = 0; h < NKV; h++) {
                size_t tile = page_tile(pages->kv_slot[pages_row(pages, l, b) + p0 + p], h, NKV, P, HD);
                for (int j = p == 0 ? t0 % P : 0; j < P; j++) {
                    int t = p * P + j - t0 % P;
                    size_t from = (((size_t)b * Tc + t) * NKV + h) * HD, to = tile + (size_t)j * HD;
                    if (t < Tc) {
                        memcpy(kpages + to, k + from, row);
                        memcpy(vpages + to, v + from, row);
                    } else {
                        memset(kpages + to, 0, row);
                        memset(vpages + to, 0, row);
                    }
                }
            }
        }
    }
}

/* k, v (B, Tc, NKV, HD) = the chunk's pages of layer l in kpages, vpages; or the same for the gradients. slots: the
   pair of pools that is meant, pages->kv_slot or pages->dkv_slot. */
static void page_read(floatX *k, floatX *v, const floatX *kpages, const floatX *vpages, const PageTable *pages,
                      const int *slots, int l, int t0, int Tc, int NKV, int HD) {
    const int P = pages->P, p0 = t0 / P;
    const size_t row = (size_t)HD * sizeof(floatX);
#pragma omp parallel for collapse(2) if ((size_t)pages->B * Tc * NKV * HD > FEW)
    for (int b = 0; b < pages->B; b++) {
        for (int t = 0; t < Tc; t++) {
            for (int h = 0; h < NKV; h++) {
                size_t tile = page_tile(slots[pages_row(pages, l, b) + p0 + t / P], h, NKV, P, HD);
                size_t from = tile + (size_t)(t % P) * HD, to = (((size_t)b * Tc + t) * NKV + h) * HD;
                memcpy(k + to, kpages + from, row);
                memcpy(v + to, vpages + from, row);
            }
        }
    }
}

// ----------------------------------------------------------------------------------------------
// attention over pages (online softmax: Milakov and Gimelshein 2018; tiles and backward as in
// FlashAttention-2, Dao 2023). No T x T matrix: scores exist for a tile of queries and one page at a time, and
// their gradient for the chunk and a block of pages.
//
// Forward: a query tile packs the G heads that share a key/value head: row r is query r / G, head r % G, so
// that each key tile serves the whole group; scores are kept transposed, (keys, rows): a vector then spans
// queries, and max, sum and exp need no shuffles.
//
// Backward: KV-stationary. The owner of a page goes over the chunk's queries, keeps the page's dK, dV in cache,
// and leaves ds of a block of pages to the owners of the queries, who add ds K to dQ, pages in ascending order.
// So every product is made once, and every sum has one owner and one order.

enum { ATTENTION_ROWS = 64 }; /* rows of a query tile, unless the group alone has more */

static inline int tile_queries(int G) { return G < ATTENTION_ROWS ? ATTENTION_ROWS / G : 1; }

/* Elements of scratch that one thread of the loops below needs. */
static size_t attention_scratch_size(int P, int G, int HD) {
    size_t R = round_up((size_t)tile_queries(G) * G, VL), D = round_up(HD, VL), Pp = round_up(P, VL);
    size_t forward = R * 2 * HD + R * P + R * D + R * 3 + D * P;
    size_t dkv = 2 * Pp * HD + ATTENTION_ROWS * Pp + 2 * P * D + 2 * ATTENTION_ROWS * D;
    size_t dq = ATTENTION_ROWS * D + P * D;
    return round_up(max_size(forward, max_size(dkv, dq)), 64 / sizeof(floatX));
}

/* The backward keeps ds of so many elements: of a unit, which is a page and a key/value head, for each thread, and of
   more while that is little. No bit depends on it. */
static size_t attention_ds_size(int threads, int B, int NH, int NKV, int Tc, int P, int NP) {
    const size_t unit = (size_t)Tc * (NH / NKV) * round_up(P, VL);
    return min_size(max_size((size_t)threads << 18, threads * unit), unit * B * NKV * NP);
}

/* n elements off the front of *stack */
static inline floatX *take(floatX **stack, size_t n) {
    floatX *p = *stack;
    *stack += n;
    return p;
}

/* to (n, D) = n rows of HD elements, `stride` apart, next to each other and with zeros up to D: gemm_tile's B operand.
   Rows NH * HD apart may all fall into the same few places of a cache. */
static void tile_copy(floatX *to, size_t D, const floatX *rows, size_t stride, size_t n, size_t HD) {
    for (size_t i = 0; i < n; i++, to += D, rows += stride) {
        memcpy(to, rows, HD * sizeof(floatX));
        for (size_t d = HD; d < D; d++) to[d] = 0;
    }
}

/* A page's tile (n, HD) as gemm_tile's B operand, whose rows are whole vectors: itself if they are, else a copy. */
static const floatX *tile_pad(floatX *copy, const floatX *rows, size_t n, size_t HD) {
    const size_t D = round_up(HD, VL);
    if (D == HD) return rows;
    tile_copy(copy, D, rows, HD, n, HD);
    return copy;
}

/* attn (B, Tc, NH, HD) = softmax(scale q k^T) v, causal, over pages 0 .. the chunk's last;
   lse (B, NH, Tc) = log of the sum of exp(scale q k). q (B, Tc, NH, HD). Pages are visited in ascending order
   and the running maximum, sum and output are left unnormalised until the end. */
static void attention_forward(floatX *attn, floatX *lse, const floatX *q, const floatX *kpages, const floatX *vpages,
                              const PageTable *pages, int l, int t0, int Tc, int NH, int NKV, int HD, floatX *scratch) {
    const int P = pages->P, G = NH / NKV, QT = tile_queries(G), tiles = (int)ceil_div(Tc, QT);
    const size_t R = round_up((size_t)QT * G, VL), D = round_up(HD, VL);
    const size_t scratch_size = attention_scratch_size(P, G, HD);
    const floatX scale = (floatX)(1 / sqrt((double)HD));
#pragma omp parallel for collapse(3) schedule(dynamic)
    for (int b = 0; b < pages->B; b++) {
        for (int h = 0; h < NKV; h++) {
            for (int tile = tiles - 1; tile >= 0; tile--) { /* the longest first */
                floatX *s = scratch + thread_id() * scratch_size;
                floatX *rows = take(&s, R * HD), *qT = take(&s, HD * R), *sT = take(&s, P * R), *o = take(&s, R * D),
                       *m = take(&s, R), *sum = take(&s, R), *carry = take(&s, R), *vcopy = take(&s, P * D);
                const int t = tile * QT, n = Tc - t < QT ? Tc - t : QT, first = t0 + t, last = first + n - 1;
                const size_t used = (size_t)n * G;
                tile_copy(rows, (size_t)G * HD, q + (((size_t)b * Tc + t) * NH + (size_t)h * G) * HD, (size_t)NH * HD,
                          n, (size_t)G * HD);
                pack_panels(qT, R, rows, HD, 1, used, HD);
                memset(o, 0, R * D * sizeof(floatX));
                for (size_t r = 0; r < R; r++) {
                    m[r] = -INFINITY;
                    sum[r] = 0;
                }
                for (int p = 0; p <= last / P; p++) {
                    const int slot = pages->kv_slot[pages_row(pages, l, b) + p];
                    const int keys =
                        last - p * P + 1 < P ? last - p * P + 1 : P; /* later ones are masked for all rows */
                    const floatX *K = kpages + page_tile(slot, h, NKV, P, HD),
                                 *V = vpages + page_tile(slot, h, NKV, P, HD);
                    gemm_tile(keys, R, HD, scale, K, HD, 1, qT, R, 0, sT, R);
                    for (int j = 0; j < keys; j++) { /* rows of queries before the key see nothing of it */
                        for (size_t r = 0; (int64_t)r < ((int64_t)p * P + j - first) * G && r < R; r++)
                            sT[j * R + r] = -INFINITY;
                    }
                    int moved = 0;
                    for (size_t r = 0; r < R; r += VL) {
                        const vecX old = vec_load(m + r);
                        vecX top = old, total = {0};
                        for (int j = 0; j < keys; j++) top = vec_max(vec_load(sT + j * R + r), top);
                        const vecX base = vec_select(top > -INFINITY, top, vec_set(0)); /* no key seen yet */
                        for (int j = 0; j < keys; j++) {
                            vecX e = vec_exp(vec_load(sT + j * R + r) - base);
                            vec_store(sT + j * R + r, e);
                            total += e;
                        }
                        const vecX c = vec_exp(old - base);
                        vec_store(m + r, top);
                        vec_store(sum + r, vec_load(sum + r) * c + total);
                        vec_store(carry + r, c);
                    }
                    for (size_t r = 0; r < used; r++) moved |= carry[r] != 1;
                    for (size_t r = 0; moved && r < used; r++) {
                        for (size_t d = 0; d < D; d++) o[r * D + d] *= carry[r];
                    }
                    gemm_tile(used, D, keys, 1, sT, 1, R, tile_pad(vcopy, V, keys, HD), D, 1, o, D);
                }
                for (size_t r = 0; r < used; r++) {
                    const size_t query = t + r / G, head = h * G + r % G;
                    floatX *out = attn + (((size_t)b * Tc + query) * NH + head) * HD;
                    for (int d = 0; d < HD; d++) out[d] = o[r * D + d] / sum[r];
                    lse[((size_t)b * NH + head) * Tc + query] = m[r] + (floatX)log((double)sum[r]);
                }
            }
        }
    }
}

/* delta (B, NH, Tc) = sum over d of dattn * attn: what the softmax's backward subtracts. */
static void attention_delta(floatX *delta, const floatX *dattn, const floatX *attn, int B, int Tc, int NH, int HD) {
#pragma omp parallel for collapse(2) if ((size_t)B * Tc * NH * HD > FEW)
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < Tc; t++) {
            for (int h = 0; h < NH; h++) {
                size_t row = (((size_t)b * Tc + t) * NH + h) * HD;
                delta[((size_t)b * NH + h) * Tc + t] = vec_dot(dattn + row, attn + row, HD);
            }
        }
    }
}

/* prob, ds (n, Pp): on entry the scaled scores and dout v^T of n queries from position t on and a page of P keys from
   position `key` on; on return
     prob = exp(s - lse), zero for keys after the query;  ds = scale * prob * (dprob - delta).  lse, delta (n). */
static void attention_ds(floatX *prob, floatX *ds, const floatX *lse, const floatX *delta, floatX scale, int64_t t,
                         int n, int64_t key, int P, size_t Pp) {
    for (int r = 0; r < n; r++, prob += Pp, ds += Pp) {
        const int64_t seen = t + r + 1 - key; /* keys of the page that this query sees */
        for (size_t j = 0; j < Pp; j += VL) vec_store(prob + j, vec_exp(vec_load(prob + j) - lse[r]));
        for (int64_t j = seen > 0 ? seen : 0; j < P; j++) prob[j] = 0;
        for (size_t j = 0; j < Pp; j += VL)
            vec_store(ds + j, scale * vec_load(prob + j) * (vec_load(ds + j) - delta[r]));
    }
}

/* One page and key/value head h of sequence b: dkpages, dvpages, and for the dQ of this page ds (G, Tc, Pp), from the
   first query tile that sees the page on.   dv = prob^T dout;  dk = ds^T q, ds with the scale in it. with_dkv 0: only ds. */
static void attention_backward_page(floatX *dkpages, floatX *dvpages, floatX *ds, const floatX *dattn, const floatX *q,
                                    const floatX *lse, const floatX *delta, const floatX *kpages, const floatX *vpages,
                                    const PageTable *pages, int l, int b, int p, int h, int with_dkv, int t0, int Tc,
                                    int NH, int NKV, int HD, floatX *s) {
    const int P = pages->P, G = NH / NKV;
    const size_t Pp = round_up(P, VL), D = round_up(HD, VL), stride = (size_t)NH * HD;
    const floatX scale = (floatX)(1 / sqrt((double)HD));
    floatX *kT = take(&s, HD * Pp), *vT = take(&s, HD * Pp), *prob = take(&s, ATTENTION_ROWS * Pp),
           *dk = take(&s, P * D), *dv = take(&s, P * D), *Q = take(&s, ATTENTION_ROWS * D),
           *dO = take(&s, ATTENTION_ROWS * D);
    const size_t i = pages_row(pages, l, b) + p, tile = page_tile(pages->kv_slot[i], h, NKV, P, HD);
    pack_panels(kT, Pp, kpages + tile, HD, 1, P, HD);
    pack_panels(vT, Pp, vpages + tile, HD, 1, P, HD);
    memset(dk, 0, P * D * sizeof(floatX));
    memset(dv, 0, P * D * sizeof(floatX));
    const int64_t first_key = (int64_t)p * P;
    const int from = first_key > t0 ? (int)(first_key - t0) / ATTENTION_ROWS * ATTENTION_ROWS : 0;
    for (int g = 0; g < G; g++) {
        for (int t = from; t < Tc; t += ATTENTION_ROWS) {
            const int n = Tc - t < ATTENTION_ROWS ? Tc - t : ATTENTION_ROWS, head = h * G + g;
            const size_t at = ((size_t)b * Tc + t) * stride + (size_t)head * HD,
                         saved = ((size_t)b * NH + head) * Tc + t;
            floatX *ds_tile = ds + ((size_t)g * Tc + t) * Pp;
            tile_copy(Q, D, q + at, stride, n, HD);
            tile_copy(dO, D, dattn + at, stride, n, HD);
            gemm_tile(n, Pp, HD, scale, Q, D, 1, kT, Pp, 0, prob, Pp);
            gemm_tile(n, Pp, HD, 1, dO, D, 1, vT, Pp, 0, ds_tile, Pp);
            attention_ds(prob, ds_tile, lse + saved, delta + saved, scale, (int64_t)t0 + t, n, first_key, P, Pp);
            if (!with_dkv) continue;
            gemm_tile(P, D, n, 1, prob, 1, Pp, dO, D, 1, dv, D);
            gemm_tile(P, D, n, 1, ds_tile, 1, Pp, Q, D, 1, dk, D);
        }
    }
    if (!with_dkv) return;
    const size_t out = page_tile(pages->dkv_slot[i], h, NKV, P, HD);
    for (int j = 0; j < P; j++) {
        floatX *dkrow = dkpages + out + (size_t)j * HD, *dvrow = dvpages + out + (size_t)j * HD;
        for (int d = 0; d < HD; d++) {
            dkrow[d] = dk[j * D + d] + (pages->dkv_fresh[i] ? 0 : dkrow[d]);
            dvrow[d] = dv[j * D + d] + (pages->dkv_fresh[i] ? 0 : dvrow[d]);
        }
    }
}

/* dq of one query tile and head: = in the first block, += after, from pages pa .. pz-1 with their ds, (pages, G, Tc, Pp)
   from ds on.   dq = ds k */
static void attention_backward_dq(floatX *dq, const floatX *ds, const floatX *kpages, const PageTable *pages, int l,
                                  int b, int h, int g, int t, int pa, int pz, int t0, int Tc, int NH, int NKV, int HD,
                                  floatX *s) {
    const int P = pages->P, G = NH / NKV, n = Tc - t < ATTENTION_ROWS ? Tc - t : ATTENTION_ROWS;
    const size_t Pp = round_up(P, VL), D = round_up(HD, VL), stride = (size_t)NH * HD;
    const int64_t last = (int64_t)t0 + t + n - 1;
    floatX *sum = take(&s, ATTENTION_ROWS * D), *kcopy = take(&s, P * D),
           *rows = dq + ((size_t)b * Tc + t) * stride + (size_t)(h * G + g) * HD;
    if (pa == 0) memset(sum, 0, n * D * sizeof(floatX));
    else tile_copy(sum, D, rows, stride, n, HD);
    for (int p = pa; p < pz && (int64_t)p * P <= last; p++) {
        const int keys = last - (int64_t)p * P + 1 < P ? (int)(last - (int64_t)p * P + 1) : P;
        const floatX *K = kpages + page_tile(pages->kv_slot[pages_row(pages, l, b) + p], h, NKV, P, HD);
        gemm_tile(n, D, keys, 1, ds + (((size_t)(p - pa) * G + g) * Tc + t) * Pp, Pp, 1, tile_pad(kcopy, K, keys, HD),
                  D, 1, sum, D);
    }
    for (int r = 0; r < n; r++) memcpy(rows + r * stride, sum + r * D, HD * sizeof(floatX));
}

/* dq (B, Tc, NH, HD) =; dkpages, dvpages of pages p0 .. the chunk's last: = if fresh, else +=, and fresh no
   longer. delta (B, NH, Tc) and ds (attention_ds_size) are scratch. attn and lse as attention_forward saved them. */
static void attention_backward(floatX *dq, floatX *dkpages, floatX *dvpages, floatX *delta, floatX *ds,
                               const floatX *dattn, const floatX *attn, const floatX *lse, const floatX *q,
                               const floatX *kpages, const floatX *vpages, PageTable *pages, int l, int p0, int t0,
                               int Tc, int NH, int NKV, int HD, floatX *scratch) {
    const int P = pages->P, G = NH / NKV, NP = (int)ceil_div((size_t)t0 + Tc, P), pairs = pages->B * NKV,
              tiles = (int)ceil_div(Tc, ATTENTION_ROWS);
    const size_t scratch_size = attention_scratch_size(P, G, HD), unit = (size_t)G * Tc * round_up(P, VL);
    /* A block: some pages of one (sequence, key/value head) pair, or all pages of several pairs, as ds has room. Whole
       rounds of the threads, if it is more than one. */
    const int threads = max_threads(), room = (int)(attention_ds_size(threads, pages->B, NH, NKV, Tc, P, NP) / unit),
              fit = room > threads ? room / threads * threads : room, block = fit < NP ? fit : NP,
              at_once = fit / block;
    attention_delta(delta, dattn, attn, pages->B, Tc, NH, HD);
    for (int pair = 0; pair < pairs; pair += at_once) {
        const int pair_end = pair + at_once < pairs ? pair + at_once : pairs;
        for (int pa = 0; pa < NP; pa += block) {
            const int pz = pa + block < NP ? pa + block : NP;
#pragma omp parallel
            {
                floatX *s = scratch + thread_id() * scratch_size;
#pragma omp for collapse(2) schedule(dynamic)
                for (int p = pa; p < pz; p++) {
                    for (int i = pair; i < pair_end; i++) {
                        const int b = i / NKV, h = i % NKV;
                        attention_backward_page(dkpages, dvpages, ds + ((size_t)(i - pair) * block + (p - pa)) * unit,
                                                dattn, q, lse, delta, kpages, vpages, pages, l, b, p, h, p >= p0, t0,
                                                Tc, NH, NKV, HD, s);
                    }
                }
#pragma omp for collapse(3) schedule(dynamic)
                for (int i = pair; i < pair_end; i++) {
                    for (int g = 0; g < G; g++) {
                        for (int tile = tiles - 1; tile >= 0; tile--) { /* the longest first */
                            const int b = i / NKV, h = i % NKV;
                            attention_backward_dq(dq, ds + (size_t)(i - pair) * block * unit, kpages, pages, l, b, h, g,
                                                  tile * ATTENTION_ROWS, pa, pz, t0, Tc, NH, NKV, HD, s);
                        }
                    }
                }
            }
        }
    }
    for (int b = 0; b < pages->B; b++) {
        for (int p = p0; p < NP; p++) pages->dkv_fresh[pages_row(pages, l, b) + p] = 0;
    }
}

// ----------------------------------------------------------------------------------------------
// activation. Both are x * sigmoid(something): silu(x) = x sigmoid(x), and the tanh form of GELU
// (Hendrycks and Gimpel 2016) is x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3), because
// (1 + tanh u) / 2 = sigmoid(2 u).

static const floatX GELU_A = (floatX)1.5957691216057308 /* 2 sqrt(2 / pi) */, GELU_B = (floatX)0.044715;

static inline vecX vec_sigmoid(vecX x) { return 1 / (1 + vec_exp(-x)); }

/* act (n) = up * sigmoid(2 u) */
static void gelu_forward(floatX *act, const floatX *up, size_t n) {
#pragma omp parallel for if (n > FEW)
    for (size_t i = 0; i < n; i += VL) {
        size_t k = n - i;
        vecX x = vec_load_part(up + i, k);
        vec_store_part(act + i, x * vec_sigmoid(GELU_A * (x + GELU_B * x * x * x)), k);
    }
}

/* dup (n) = dact * (sig + x sig (1 - sig) * 2 u') */
static void gelu_backward(floatX *dup, const floatX *dact, const floatX *up, size_t n) {
#pragma omp parallel for if (n > FEW)
    for (size_t i = 0; i < n; i += VL) {
        size_t k = n - i;
        vecX x = vec_load_part(up + i, k);
        vecX sig = vec_sigmoid(GELU_A * (x + GELU_B * x * x * x));
        vecX slope = GELU_A * (1 + 3 * GELU_B * x * x);
        vec_store_part(dup + i, vec_load_part(dact + i, k) * (sig + x * sig * (1 - sig) * slope), k);
    }
}

/* act (n) = silu(gate) * up */
static void swiglu_forward(floatX *act, const floatX *gate, const floatX *up, size_t n) {
#pragma omp parallel for if (n > FEW)
    for (size_t i = 0; i < n; i += VL) {
        size_t k = n - i;
        vecX g = vec_load_part(gate + i, k);
        vec_store_part(act + i, g * vec_sigmoid(g) * vec_load_part(up + i, k), k);
    }
}

/* dgate (n) = dact * up * (sig + gate sig (1 - sig));  dup (n) = dact * silu(gate) */
static void swiglu_backward(floatX *dgate, floatX *dup, const floatX *dact, const floatX *gate, const floatX *up,
                            size_t n) {
#pragma omp parallel for if (n > FEW)
    for (size_t i = 0; i < n; i += VL) {
        size_t k = n - i;
        vecX g = vec_load_part(gate + i, k), sig = vec_sigmoid(g), d = vec_load_part(dact + i, k);
        vec_store_part(dgate + i, d * vec_load_part(up + i, k) * (sig + g * sig * (1 - sig)), k);
        vec_store_part(dup + i, d * g * sig, k);
    }
}

// ----------------------------------------------------------------------------------------------
// classifier: cross-entropy of a slice of rows

/* losses (rows) = log sum exp(logits) - logits[target], 0 for a masked target; guesses (rows) = the id
   of the largest logit. logits (rows, Vp), of which V count, become their gradient in place:
   dlogits = (softmax - onehot) * dloss, zero for masked rows and in columns V .. Vp-1. With dloss 0 they are
   left as they are. */
static void classifier(floatX *losses, int *guesses, floatX *logits, const int *targets, size_t rows, int V, int Vp,
                       floatX dloss) {
#pragma omp parallel for if (rows * Vp > FEW)
    for (size_t r = 0; r < rows; r++) {
        floatX *z = logits + r * Vp;
        const int target = targets[r];
        int best = 0;
        if (target == TARGET_MASKED) {
            losses[r] = 0;
            guesses[r] = -1;
            if (dloss != 0) memset(z, 0, (size_t)Vp * sizeof(floatX));
            continue;
        }
        assert(target >= 0 && target < V);
        const floatX top = vec_largest(z, V), at_target = z[target];
        enum { BLOCK = 256 }; /* whose largest tells soon whether it is there */
        while (best + BLOCK < V && vec_largest(z + best, BLOCK) != top) best += BLOCK;
        while (best + 1 < V && z[best] != top) best++;
        vecX lanes = {0};
        floatX sum = 0;
        int c = 0;
        for (; c + VL <= V; c += VL) {
            const vecX e = vec_exp(vec_load(z + c) - top);
            lanes += e;
            if (dloss != 0) vec_store(z + c, e);
        }
        for (int j = 0; j < VL; j++) sum += lanes[j];
        for (; c < V; c++) { /* the last few, in the vector code as well */
            const floatX e = vec_exp(vec_set(z[c] - top))[0];
            sum += e;
            if (dloss != 0) z[c] = e;
        }
        losses[r] = (floatX)log((double)sum) + top - at_target;
        guesses[r] = best;
        if (dloss == 0) continue;
        const floatX factor = dloss / sum;
        for (int i = 0; i < V; i++) z[i] *= factor;
        z[target] -= dloss;
        memset(z + V, 0, (size_t)(Vp - V) * sizeof(floatX));
    }
}

// ----------------------------------------------------------------------------------------------
// optimizer

enum {
    OPTIMIZER_BLOCK = 8192
}; /* elements that a thread takes at once: a constant, so that nothing depends on threads */

/* The Euclidean norm of g (n). partial: ceil(n / OPTIMIZER_BLOCK) doubles of scratch. */
static double grad_norm(double *partial, const floatX *g, size_t n) {
    size_t blocks = ceil_div(n, OPTIMIZER_BLOCK);
#pragma omp parallel for if (n > FEW)
    for (size_t i = 0; i < blocks; i++) {
        size_t k = min_size(OPTIMIZER_BLOCK, n - i * OPTIMIZER_BLOCK);
        partial[i] = (double)vec_dot(g + i * OPTIMIZER_BLOCK, g + i * OPTIMIZER_BLOCK, k);
    }
    double sum = 0;
    for (size_t i = 0; i < blocks; i++) sum += partial[i];
    return sqrt(sum);
}

static inline floatX square_root(floatX x) { return sizeof x == 4 ? (floatX)sqrtf((float)x) : (floatX)sqrt((double)x); }

static const double ADAM_BETA1 = 0.9, ADAM_BETA2 = 0.95, ADAM_EPS = 1e-8;

/* AdamW (Loshchilov and Hutter 2019) on w (n), with m and v (n) in place. step counts from 1; the
   gradient is g * gscale. */
static void adamw_update(floatX *w, floatX *m, floatX *v, const floatX *g, size_t n, double lr, double weight_decay,
                         double gscale, int step) {
    const floatX b1 = (floatX)ADAM_BETA1, b2 = (floatX)ADAM_BETA2, eps = (floatX)ADAM_EPS, scale = (floatX)gscale;
    const floatX rate = (floatX)(lr / (1 - pow(ADAM_BETA1, step))), keep = (floatX)(1 - lr * weight_decay);
    const floatX correct2 = (floatX)(1 / (1 - pow(ADAM_BETA2, step)));
#pragma omp parallel for if (n > FEW)
    for (size_t block = 0; block < n; block += OPTIMIZER_BLOCK) {
        for (size_t i = block; i < min_size(n, block + OPTIMIZER_BLOCK); i++) {
            floatX d = g[i] * scale;
            m[i] = b1 * m[i] + (1 - b1) * d;
            v[i] = b2 * v[i] + (1 - b2) * d * d;
            w[i] = w[i] * keep - rate * m[i] / (square_root(v[i] * correct2) + eps);
        }
    }
}

// ----------------------------------------------------------------------------------------------
// the model and its memory

/* Activations of one layer for a chunk: what layer_backward needs of layer_forward. BTc = B * Tc rows. */
typedef struct {
    floatX *x;                   // (BTc, C) the layer's input, on the residual stream
    floatX *mean1, *rstd1, *ln1; // (BTc) (BTc) (BTc, C)
    floatX *qraw, *rstdq;        // (BTc, NH, HD) (BTc, NH)    before the norm of q; qk_norm only
    floatX *kraw, *rstdk;        // (BTc, NKV, HD) (BTc, NKV)  the same of k
    floatX *q;                   // (BTc, NH, HD) after RoPE
    floatX *attn, *lse;          // (BTc, NH, HD) (B, NH, Tc)
    floatX *xmid;                // (BTc, C) after attention, on the residual stream
    floatX *mean2, *rstd2, *ln2; // (BTc) (BTc) (BTc, C)
    floatX *gate, *up, *act;     // (BTc, F) each; gate with swiglu only
} LayerActs;

/* --dump: every intermediate of one step goes into a safetensors file as it is made. */
typedef struct {
    SafeWriter file;
    char path[MAX_PATH_BYTES]; /* the file under its temporary name */
} Dump;

typedef struct {
    ModelConfig config;
    int T, B, chunk_size, P, N; // N chunks
    Carry carry;
    Recompute recompute;

    TensorInfo tensors[NUM_TENSORS];
    size_t num_params;
    floatX *params, *grads, *m, *v; // (num_params) each, laid out as tensors.h says

    PageTable pages;
    floatX *kpages, *vpages, *dkpages, *dvpages; // (slots, NKV, P, HD)

    LayerActs *acts;             // (L); with --recompute layer all but x are one layer's buffers, shared
    floatX *xlast;               // (BTc, C) the last layer's output
    floatX *meanf, *rstdf, *lnf; // (BTc) (BTc) (BTc, C) final norm
    floatX *kchunk, *vchunk;     // (BTc, NKV, HD) on their way into pages
    floatX *cosine, *sine;       // (chunk_size, HD / 2)
    floatX *logits;              // (head_rows, Vp)
    int head_rows;               // tokens per slice of the loss head
    int *head_targets;           // (BTc) targets in the chunk's row order
    floatX *losses;              // (BTc) of the chunk, 0 where masked
    int *guesses;                // (BTc) largest logit, -1 where masked

    floatX *dx;                 // (BTc, C) gradient of the residual stream
    floatX *dnorm;              // (BTc, C) gradient of a norm's output
    floatX *dq, *dattn;         // (BTc, NH, HD)
    floatX *dk, *dv;            // (BTc, NKV, HD)
    floatX *delta;              // (B, NH, Tc)
    floatX *dgate, *dup, *dact; // (BTc, F)
    floatX *attention_scratch;  // per thread
    floatX *ds;                 // (pages of a block, G, Tc, P)
    double *norm_partial;       // (num_params / OPTIMIZER_BLOCK, rounded up)

    ChunkStep *schedule; // (chunks_max_steps(N))
    Dump *dump;          // NULL: not now
} Model;

/* A buffer of floatX: where its pointer goes, its name in the ledger, its elements (0: not needed). */
typedef struct {
    floatX **ptr;
    const char *name;
    size_t n;
} Buffer;

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

static void buffers_alloc(Memory *mem, const char *group, const char *option, Lifetime lifetime, const Buffer *table,
                          int count) {
    for (int i = 0; i < count; i++) {
        *table[i].ptr =
            (floatX *)memory_alloc(mem, group, table[i].name, option, TIER_HOST, lifetime, table[i].n, sizeof(floatX));
    }
}

/* The fields of LayerActs: elements per token (0: this model has none), and whether the heads come before the tokens,
   as (B, width, Tc), instead of (B, Tc, width). */
typedef struct {
    const char *name;
    size_t field, width;
    int heads_first;
} ActField;

enum { NUM_ACTS = 18 };

static void acts_describe(const ModelConfig *c, ActField *out) {
    const size_t C = c->C, QD = (size_t)c->NH * c->HD, KD = (size_t)c->NKV * c->HD, F = c->F;
    const size_t layernorm = c->norm == NORM_LAYERNORM, swiglu = c->mlp == MLP_SWIGLU, qk_norm = c->qk_norm != 0;
    const ActField table[NUM_ACTS] = {
        {"x", offsetof(LayerActs, x), C, 0},
        {"mean1", offsetof(LayerActs, mean1), layernorm, 0},
        {"rstd1", offsetof(LayerActs, rstd1), 1, 0},
        {"ln1", offsetof(LayerActs, ln1), C, 0},
        {"qraw", offsetof(LayerActs, qraw), qk_norm * QD, 0},
        {"rstdq", offsetof(LayerActs, rstdq), qk_norm * c->NH, 0},
        {"kraw", offsetof(LayerActs, kraw), qk_norm * KD, 0},
        {"rstdk", offsetof(LayerActs, rstdk), qk_norm * c->NKV, 0},
        {"q", offsetof(LayerActs, q), QD, 0},
        {"attn", offsetof(LayerActs, attn), QD, 0},
        {"lse", offsetof(LayerActs, lse), c->NH, 1},
        {"xmid", offsetof(LayerActs, xmid), C, 0},
        {"mean2", offsetof(LayerActs, mean2), layernorm, 0},
        {"rstd2", offsetof(LayerActs, rstd2), 1, 0},
        {"ln2", offsetof(LayerActs, ln2), C, 0},
        {"gate", offsetof(LayerActs, gate), swiglu * F, 0},
        {"up", offsetof(LayerActs, up), F, 0},
        {"act", offsetof(LayerActs, act), F, 0},
    };
    memcpy(out, table, sizeof table);
}

static floatX **acts_field(LayerActs *a, const ActField *f) { return (floatX **)((char *)a + f->field); }

static const char *const CHUNK_GROUP = "activations of a chunk", *const CHUNK_OPTION =
                                                                     "--chunk, --batch, --recompute layer";

/* acts (L): x for every layer; the rest for every layer, or with --recompute layer once for all. */
static void acts_alloc(LayerActs *acts, const ModelConfig *c, Memory *mem, size_t BTc, Recompute recompute) {
    ActField table[NUM_ACTS];
    acts_describe(c, table);
    for (int i = 0; i < NUM_ACTS; i++) {
        size_t copies = recompute == RECOMPUTE_CHUNK || i == 0 ? (size_t)c->L : 1, n = BTc * table[i].width;
        floatX *base;
        Buffer b = {&base, table[i].name, copies * n};
        buffers_alloc(mem, CHUNK_GROUP, CHUNK_OPTION, MEMORY_SCRATCH, &b, 1);
        for (int l = 0; l < c->L; l++) *acts_field(&acts[l], &table[i]) = base ? base + (copies > 1 ? l * n : 0) : NULL;
    }
}

/* Everything a run holds, by name, in mem. */
static void model_alloc(Model *m, Memory *mem, const ModelConfig *config, const TrainConfig *run) {
    memset(m, 0, sizeof *m);
    const ModelConfig *c = &m->config;
    m->config = *config;
    m->T = run->T;
    m->B = run->B;
    m->P = run->P;
    m->chunk_size = chunk_capacity(run);
    m->N = chunks_count(m->T, m->chunk_size);
    m->carry = (Carry)run->carry;
    m->recompute = (Recompute)run->recompute;
    tensors_describe(c, m->tensors);
    m->num_params = tensors_total(m->tensors, c->L);

    const size_t n = m->num_params, C = c->C, F = c->F, P = m->P;
    const size_t QD = (size_t)c->NH * c->HD, KD = (size_t)c->NKV * c->HD;
    const size_t BTc = (size_t)m->B * min_size(m->chunk_size, m->T), threads = max_threads();
    const Buffer weights[] = {{&m->params, "params", n}};
    const Buffer gradients[] = {{&m->grads, "grads", n}};
    const Buffer optimizer[] = {{&m->m, "m", n}, {&m->v, "v", n}};
    buffers_alloc(mem, "parameters", "--model", MEMORY_KEPT, weights, COUNT(weights));
    buffers_alloc(mem, "gradients", "--model", MEMORY_KEPT, gradients, COUNT(gradients));
    buffers_alloc(mem, "AdamW m, v", "--model", MEMORY_KEPT, optimizer, COUNT(optimizer));

    /* K, V of every page of the sequence. dK, dV: layer_backward takes a layer's gradient pages and gives the
       chunk's own back, so the most there are is when the last chunk reaches layer 0; with carry none there are
       never more than one chunk's in one layer. */
    const size_t NP = ceil_div(m->T, P), page = KD * P, slots = NP * m->B * c->L;
    const size_t own = min_size(NP, m->chunk_size / P), last = NP - (size_t)(m->N - 1) * own;
    const size_t dslots = m->B * (m->carry == CARRY_EXACT ? (c->L - 1) * (NP - last) + NP : own);
    const Buffer kv[] = {{&m->kpages, "kpages", slots * page}, {&m->vpages, "vpages", slots * page}};
    const Buffer dkv[] = {{&m->dkpages, "dkpages", dslots * page}, {&m->dvpages, "dvpages", dslots * page}};
    buffers_alloc(mem, "pages: K, V", "--seq-len, --batch, --page", MEMORY_SCRATCH, kv, COUNT(kv));
    buffers_alloc(mem, "pages: dK, dV", "--seq-len, --batch, --page", MEMORY_SCRATCH, dkv, COUNT(dkv));
    memory_note(mem, "page table, schedule", "pages", "--page, --chunk", TIER_HOST, MEMORY_KEPT,
                pages_table_bytes(c->L, m->B, (int)NP, (int)slots, (int)dslots));
    m->schedule = (ChunkStep *)memory_alloc(mem, "page table, schedule", "schedule", "--page, --chunk", TIER_HOST,
                                            MEMORY_KEPT, chunks_max_steps(m->N), sizeof(ChunkStep));
    if (!mem->plan_only) pages_init(&m->pages, c->L, m->B, (int)NP, m->P, (int)slots, (int)dslots);

    m->acts = (LayerActs *)xcalloc(c->L, sizeof(LayerActs));
    acts_alloc(m->acts, c, mem, BTc, m->recompute);
    m->head_rows = (int)min_size(BTc, max_size(16, min_size(256, ((size_t)1 << 24) / c->Vp)));
    const size_t layernorm = c->norm == NORM_LAYERNORM, rope = c->pos == POS_ROPE, swiglu = c->mlp == MLP_SWIGLU;
    const size_t angles = rope * min_size(m->chunk_size, m->T) * (c->HD / 2);
    const Buffer chunk[] = {
        {&m->xlast, "xlast", BTc * C},    {&m->meanf, "meanf", layernorm * BTc},
        {&m->rstdf, "rstdf", BTc},        {&m->lnf, "lnf", BTc * C},
        {&m->kchunk, "kchunk", BTc * KD}, {&m->vchunk, "vchunk", BTc * KD},
        {&m->cosine, "cosine", angles},   {&m->sine, "sine", angles},
        {&m->losses, "losses", BTc},
    };
    const Buffer backward[] = {
        {&m->dx, "dx", BTc * C},           {&m->dnorm, "dnorm", BTc * C},
        {&m->dq, "dq", BTc * QD},          {&m->dattn, "dattn", BTc * QD},
        {&m->dk, "dk", BTc * KD},          {&m->dv, "dv", BTc * KD},
        {&m->delta, "delta", BTc * c->NH}, {&m->dgate, "dgate", swiglu * BTc * F},
        {&m->dup, "dup", BTc * F},         {&m->dact, "dact", BTc * F},
    };
    const size_t tiles = threads * attention_scratch_size(m->P, c->NH / c->NKV, c->HD);
    const Buffer head[] = {{&m->logits, "logits", (size_t)m->head_rows * c->Vp}};
    const size_t ds = attention_ds_size((int)threads, m->B, c->NH, c->NKV, (int)(BTc / m->B), m->P, (int)NP);
    const Buffer attention[] = {{&m->attention_scratch, "attention_scratch", tiles}, {&m->ds, "ds", ds}};
    buffers_alloc(mem, CHUNK_GROUP, CHUNK_OPTION, MEMORY_SCRATCH, chunk, COUNT(chunk));
    buffers_alloc(mem, "gradients of activations", "--chunk, --batch", MEMORY_SCRATCH, backward, COUNT(backward));
    buffers_alloc(mem, "logits of a slice", "--model", MEMORY_SCRATCH, head, COUNT(head));
    buffers_alloc(mem, "attention tiles", "--chunk, --threads", MEMORY_SCRATCH, attention, COUNT(attention));
    m->head_targets = (int *)memory_alloc(mem, CHUNK_GROUP, "head_targets", CHUNK_OPTION, TIER_HOST, MEMORY_SCRATCH,
                                          BTc, sizeof(int));
    m->guesses =
        (int *)memory_alloc(mem, CHUNK_GROUP, "guesses", CHUNK_OPTION, TIER_HOST, MEMORY_SCRATCH, BTc, sizeof(int));
    m->norm_partial = (double *)memory_alloc(mem, "gradients", "norm_partial", "--model", TIER_HOST, MEMORY_SCRATCH,
                                             ceil_div(n, OPTIMIZER_BLOCK), sizeof(double));
    memory_note(mem, "matrix product packing", "gemm", "--threads", TIER_HOST, MEMORY_KEPT, threads * GEMM_PACK_BYTES);
}

/* What model_alloc made outside the ledger; memory_free_all() frees the rest. */
static void model_free(Model *m) {
    pages_destroy(&m->pages);
    free(m->acts);
}

/* Tensor id of layer l (0 for a model-wide one) in params, grads, m or v; NULL if the model has none. */
static floatX *tensor(const Model *m, floatX *base, TensorId id, int l) {
    return m->tensors[id].rows ? base + tensor_offset(m->tensors, m->config.L, id, l) : NULL;
}

/* Starting values: every (tensor, layer) has its own stream of random numbers, by the tensor's name; the padded rows of
   the vocabulary stay zero. Clears m and v. */
static void model_init(Model *m, int seed) {
    const ModelConfig *c = &m->config;
    for (int id = 0; id < NUM_TENSORS; id++) {
        const TensorInfo *t = &m->tensors[id];
        for (int l = 0; l < tensor_copies(m->tensors, c->L, id); l++) {
            floatX *w = tensor(m, m->params, (TensorId)id, l);
            Rng r = rng_stream((uint64_t)seed, rng_name(t->name), (uint64_t)l);
            size_t used = id == WTE || id == WHEAD ? (size_t)c->V * t->cols : tensor_size(m->tensors, id);
            for (size_t i = 0; i < tensor_size(m->tensors, id); i++) {
                w[i] = i >= used ? 0 : (floatX)(t->init_mean + (t->init_std > 0 ? t->init_std * rng_normal(&r) : 0));
            }
        }
    }
    memset(m->m, 0, m->num_params * sizeof(floatX));
    memset(m->v, 0, m->num_params * sizeof(floatX));
}

/* The parameters that layer l uses, or their gradients, by TensorId: view.w[WQ] is wq. NULL where the model
   has none. */
typedef struct {
    floatX *w[NUM_TENSORS];
} LayerView;

static LayerView layer_view(const Model *m, floatX *base, int l) {
    LayerView view;
    for (int id = 0; id < NUM_TENSORS; id++) view.w[id] = tensor(m, base, (TensorId)id, l);
    return view;
}

// ----------------------------------------------------------------------------------------------
// dump: what a debugger wants to see of a step. Names are those of this file, with the layer and the chunk's first
// position: "layer.3.q.t512". Shapes are (B, Tc, width), gradients of parameters (rows, cols).

static const SafeType FLOATX_TYPE = sizeof(floatX) == 4 ? SAFE_F32 : SAFE_F64;

/* Reserves "layer.<l>.<name>.t<t0>", (B, Tc, width); l -1: no layer. Returns its place in the file. */
static uint64_t dump_add(Model *m, const char *name, SafeType type, int l, ChunkRange range, int B, size_t width) {
    char full[SAFE_NAME], layer[32] = "";
    const uint64_t shape[] = {(uint64_t)B, (uint64_t)range.Tc, width};
    if (l >= 0) snprintf(layer, sizeof layer, "layer.%d.", l);
    snprintf(full, sizeof full, "%s%s.t%d", layer, name, range.t0);
    return safe_add(&m->dump->file, full, type, 3, shape);
}

/* x (B, Tc, width), when a dump is being made */
static void dump_rows(Model *m, const char *name, int l, ChunkRange range, const floatX *x, size_t width) {
    if (!m->dump || !x) return;
    const uint64_t at = dump_add(m, name, FLOATX_TYPE, l, range, m->B, width);
    safe_write_at(&m->dump->file, at, x, (size_t)m->B * range.Tc * width * sizeof(floatX));
}

/* x (B, heads, Tc), written as (B, Tc, heads): the tokens of a dump are always its second dimension */
static void dump_heads(Model *m, const char *name, int l, ChunkRange range, const floatX *x, int heads) {
    if (!m->dump || !x) return;
    const size_t Tc = range.Tc, n = (size_t)m->B * Tc * heads;
    floatX *rows = (floatX *)xcalloc(n, sizeof(floatX));
    for (size_t i = 0; i < n; i++) rows[i] = x[(i / heads / Tc * heads + i % heads) * Tc + i / heads % Tc];
    dump_rows(m, name, l, range, rows, heads);
    free(rows);
}

/* x (Tc, width), the same for all sequences: written as (1, Tc, width) */
static void dump_table(Model *m, const char *name, ChunkRange range, const floatX *x, size_t width) {
    if (!m->dump || !x) return;
    const uint64_t at = dump_add(m, name, FLOATX_TYPE, -1, range, 1, width);
    safe_write_at(&m->dump->file, at, x, range.Tc * width * sizeof(floatX));
}

/* columns t0 .. t0+Tc-1 of x (B, T) */
static void dump_ids(Model *m, const char *name, ChunkRange range, const int *x) {
    if (!m->dump) return;
    const uint64_t at = dump_add(m, name, SAFE_I32, -1, range, m->B, 1);
    const size_t row = (size_t)range.Tc * sizeof(int);
    for (int b = 0; b < m->B; b++) safe_write_at(&m->dump->file, at + b * row, x + (size_t)b * m->T + range.t0, row);
}

/* Layer l's activations, and its K, V out of their pages, where the fill may have written them. */
static void dump_layer(Model *m, int l, ChunkRange range) {
    const ModelConfig *c = &m->config;
    ActField table[NUM_ACTS];
    if (!m->dump) return;
    acts_describe(c, table);
    for (int i = 0; i < NUM_ACTS; i++) {
        const floatX *x = *acts_field(&m->acts[l], &table[i]);
        if (table[i].heads_first) dump_heads(m, table[i].name, l, range, x, (int)table[i].width);
        else dump_rows(m, table[i].name, l, range, x, table[i].width);
        if (strcmp(table[i].name, "q") != 0) continue; /* the order of the file is that of the computation */
        page_read(m->kchunk, m->vchunk, m->kpages, m->vpages, &m->pages, m->pages.kv_slot, l, range.t0, range.Tc,
                  c->NKV, c->HD);
        dump_rows(m, "k", l, range, m->kchunk, (size_t)c->NKV * c->HD);
        dump_rows(m, "v", l, range, m->vchunk, (size_t)c->NKV * c->HD);
    }
}

static void dump_params(Model *m) {
    for (int id = 0; m->dump && id < NUM_TENSORS; id++) {
        const uint64_t shape[] = {m->tensors[id].rows, m->tensors[id].cols};
        for (int l = 0; l < tensor_copies(m->tensors, m->config.L, id); l++) {
            char full[SAFE_NAME], layer[32] = "";
            if (m->tensors[id].per_layer) snprintf(layer, sizeof layer, "layer.%d.", l);
            snprintf(full, sizeof full, "%sd%s", layer, m->tensors[id].name);
            const uint64_t at = safe_add(&m->dump->file, full, FLOATX_TYPE, 2, shape);
            safe_write_at(&m->dump->file, at, tensor(m, m->grads, (TensorId)id, l),
                          shape[0] * shape[1] * sizeof(floatX));
        }
    }
}

/* Tensors of a whole dump, at most. */
static size_t dump_max_tensors(const Model *m) {
    const size_t per_layer = NUM_ACTS + 2 /* k, v */ + 14 /* layer_backward */, per_chunk = 16;
    return m->N * (m->config.L * per_layer + per_chunk) + (size_t)m->config.L * NUM_TENSORS;
}

// ----------------------------------------------------------------------------------------------
// a layer, forward and backward: two lists of the same calls, mirrored

/* What a forward does about the chunk's keys and values. */
typedef enum {
    KV_WRITE, /* project them and write their pages */
    KV_THERE, /* the pages hold them already */
    KV_ONLY,  /* project and write them, and stop: the last layer of a fill */
} KvMode;

/* next (BTc, C) = layer l of acts[l].x; leaves what layer_backward needs in acts[l]. */
static void layer_forward(Model *m, int l, ChunkRange range, KvMode kv, floatX *next) {
    const ModelConfig *c = &m->config;
    const int B = m->B, Tc = range.Tc, C = c->C, NH = c->NH, NKV = c->NKV, HD = c->HD, F = c->F, QD = NH * HD,
              KD = NKV * HD;
    const size_t BTc = (size_t)B * Tc;
    const LayerView view = layer_view(m, m->params, l);
    floatX *const *w = view.w;
    LayerActs *a = &m->acts[l];

    norm_forward(a->ln1, a->mean1, a->rstd1, a->x, w[LN1W], w[LN1B], BTc, C, c->norm_eps);
    if (kv != KV_THERE || c->qk_norm) { /* the norm of k needs in its backward what went into it */
        matmul_forward(c->qk_norm ? a->kraw : m->kchunk, a->ln1, w[WK], NULL, w[BK], BTc, C, KD);
        if (c->qk_norm) norm_forward(m->kchunk, NULL, a->rstdk, a->kraw, w[KNORMW], NULL, BTc * NKV, HD, c->norm_eps);
    }
    if (kv != KV_THERE) {
        if (c->pos == POS_ROPE) rope_forward(m->kchunk, m->cosine, m->sine, B, Tc, NKV, HD);
        matmul_forward(m->vchunk, a->ln1, w[WV], NULL, w[BV], BTc, C, KD);
        page_write(m->kpages, m->vpages, m->kchunk, m->vchunk, &m->pages, l, range.t0, Tc, NKV, HD);
    }
    if (kv == KV_ONLY) return;

    matmul_forward(c->qk_norm ? a->qraw : a->q, a->ln1, w[WQ], NULL, w[BQ], BTc, C, QD);
    if (c->qk_norm) norm_forward(a->q, NULL, a->rstdq, a->qraw, w[QNORMW], NULL, BTc * NH, HD, c->norm_eps);
    if (c->pos == POS_ROPE) rope_forward(a->q, m->cosine, m->sine, B, Tc, NH, HD);
    attention_forward(a->attn, a->lse, a->q, m->kpages, m->vpages, &m->pages, l, range.t0, Tc, NH, NKV, HD,
                      m->attention_scratch);

    matmul_forward(a->xmid, a->attn, w[WO], a->x, w[BO], BTc, QD, C);
    norm_forward(a->ln2, a->mean2, a->rstd2, a->xmid, w[LN2W], w[LN2B], BTc, C, c->norm_eps);
    if (c->mlp == MLP_SWIGLU) matmul_forward(a->gate, a->ln2, w[WGATE], NULL, w[BGATE], BTc, C, F);
    matmul_forward(a->up, a->ln2, w[WUP], NULL, w[BUP], BTc, C, F);
    if (c->mlp == MLP_SWIGLU) swiglu_forward(a->act, a->gate, a->up, BTc * F);
    else gelu_forward(a->act, a->up, BTc * F);
    matmul_forward(next, a->act, w[WDOWN], a->xmid, w[BDOWN], BTc, F, C);
}

/* m->dx (BTc, C): gradient of layer l's output -> gradient of its input. Parameter gradients +=. Gives back the
   chunk's pages of this layer: later chunks have been here before, and earlier ones never look at them. */
static void layer_backward(Model *m, int l, ChunkRange range) {
    const ModelConfig *c = &m->config;
    const int B = m->B, Tc = range.Tc, C = c->C, NH = c->NH, NKV = c->NKV, HD = c->HD, F = c->F, QD = NH * HD,
              KD = NKV * HD;
    const size_t BTc = (size_t)B * Tc;
    const LayerView view = layer_view(m, m->params, l), dview = layer_view(m, m->grads, l);
    floatX *const *w = view.w, *const *dw = dview.w;
    const LayerActs *a = &m->acts[l];
    /* the chunk's own pages are p_own .. p_end-1; gradients go to p_grad .. p_end-1 */
    const int p_own = range.t0 / m->P, p_end = chunks_pages_end(range, m->P),
              p_grad = m->carry == CARRY_EXACT ? 0 : p_own;

    /* next = xmid + act wdown^T: m->dx is the gradient of both terms */
    matmul_backward(m->dact, dw[WDOWN], dw[BDOWN], m->dx, a->act, w[WDOWN], BTc, F, C, 0);
    dump_rows(m, "dact", l, range, m->dact, F);
    if (c->mlp == MLP_SWIGLU) swiglu_backward(m->dgate, m->dup, m->dact, a->gate, a->up, BTc * F);
    else gelu_backward(m->dup, m->dact, a->up, BTc * F);
    dump_rows(m, "dgate", l, range, m->dgate, F);
    dump_rows(m, "dup", l, range, m->dup, F);
    matmul_backward(m->dnorm, dw[WUP], dw[BUP], m->dup, a->ln2, w[WUP], BTc, C, F, 0);
    if (c->mlp == MLP_SWIGLU) matmul_backward(m->dnorm, dw[WGATE], dw[BGATE], m->dgate, a->ln2, w[WGATE], BTc, C, F, 1);
    dump_rows(m, "dln2", l, range, m->dnorm, C);
    norm_backward(m->dx, dw[LN2W], dw[LN2B], m->dnorm, a->xmid, w[LN2W], a->mean2, a->rstd2, BTc, C, 1);
    dump_rows(m, "dxmid", l, range, m->dx, C);

    /* xmid = x + attn wo^T */
    matmul_backward(m->dattn, dw[WO], dw[BO], m->dx, a->attn, w[WO], BTc, QD, C, 0);
    dump_rows(m, "dattn", l, range, m->dattn, QD);
    pages_alloc_grad_range(&m->pages, l, p_grad, p_end);
    attention_backward(m->dq, m->dkpages, m->dvpages, m->delta, m->ds, m->dattn, a->attn, a->lse, a->q, m->kpages,
                       m->vpages, &m->pages, l, p_grad, range.t0, Tc, NH, NKV, HD, m->attention_scratch);
    dump_heads(m, "delta", l, range, m->delta, NH);
    dump_rows(m, "dq", l, range, m->dq, QD);
    if (c->pos == POS_ROPE) rope_backward(m->dq, m->cosine, m->sine, B, Tc, NH, HD);
    if (c->qk_norm) norm_backward(m->dq, dw[QNORMW], NULL, m->dq, a->qraw, w[QNORMW], NULL, a->rstdq, BTc * NH, HD, 0);
    dump_rows(m, "dqraw", l, range, m->dq, QD);
    matmul_backward(m->dnorm, dw[WQ], dw[BQ], m->dq, a->ln1, w[WQ], BTc, C, QD, 0);

    /* all later chunks have added to the chunk's own dK, dV: they are complete */
    page_read(m->dk, m->dv, m->dkpages, m->dvpages, &m->pages, m->pages.dkv_slot, l, range.t0, Tc, NKV, HD);
    dump_rows(m, "dk", l, range, m->dk, KD);
    dump_rows(m, "dv", l, range, m->dv, KD);
    matmul_backward(m->dnorm, dw[WV], dw[BV], m->dv, a->ln1, w[WV], BTc, C, KD, 1);
    if (c->pos == POS_ROPE) rope_backward(m->dk, m->cosine, m->sine, B, Tc, NKV, HD);
    if (c->qk_norm) norm_backward(m->dk, dw[KNORMW], NULL, m->dk, a->kraw, w[KNORMW], NULL, a->rstdk, BTc * NKV, HD, 0);
    dump_rows(m, "dkraw", l, range, m->dk, KD);
    matmul_backward(m->dnorm, dw[WK], dw[BK], m->dk, a->ln1, w[WK], BTc, C, KD, 1);
    dump_rows(m, "dln1", l, range, m->dnorm, C);
    norm_backward(m->dx, dw[LN1W], dw[LN1B], m->dnorm, a->x, w[LN1W], a->mean1, a->rstd1, BTc, C, 1);
    dump_rows(m, "dx", l, range, m->dx, C);

    pages_free_grad_range(&m->pages, l, p_own, p_end);
    if (m->carry == CARRY_EXACT) pages_free_range(&m->pages, l, l + 1, p_own, p_end);
}

// ----------------------------------------------------------------------------------------------
// a chunk

/* Where layer l's output goes: the next layer's input. */
static floatX *layer_output(const Model *m, int l) { return l + 1 < m->config.L ? m->acts[l + 1].x : m->xlast; }

/* Embedding and the step's layers, forward. In a fill the last layer stops after its K, V. */
static void chunk_layers(Model *m, const ChunkStep *s, ChunkRange range, const int *inputs) {
    const ModelConfig *c = &m->config;
    if (s->write_kv) { /* a page that an earlier token has begun is there already: sampling */
        pages_alloc_range(&m->pages, s->l0, s->l1, (int)ceil_div(range.t0, m->P), chunks_pages_end(range, m->P));
    }
    if (c->pos == POS_ROPE) rope_table(m->cosine, m->sine, range.t0, range.Tc, c->HD, c->rope_theta, &c->rope);
    if (s->l0 == 0) {
        embedding_forward(m->acts[0].x, inputs, tensor(m, m->params, WTE, 0), tensor(m, m->params, WPE, 0), m->B, m->T,
                          range.t0, range.Tc, c->C);
    }
    if (s->pass == PASS_BACKWARD) {
        dump_table(m, "cosine", range, m->cosine, c->HD / 2);
        dump_table(m, "sine", range, m->sine, c->HD / 2);
    }
    for (int l = s->l0; l < s->l1; l++) {
        KvMode kv = !s->write_kv ? KV_THERE : s->pass == PASS_FILL && l == s->l1 - 1 ? KV_ONLY : KV_WRITE;
        layer_forward(m, l, range, kv, layer_output(m, l));
        if (s->pass == PASS_BACKWARD) dump_layer(m, l, range); /* the fill has made the same before */
    }
}

/* Final norm, then the head in slices of tokens: logits, losses, with dloss != 0 their gradient, next slice. Fills
   m->losses and m->guesses; with dloss also m->dx =, and the gradients of lnfw, lnfb and the head +=.
   targets (B, T). */
static void loss_head(Model *m, ChunkRange range, const int *targets, floatX dloss) {
    const ModelConfig *c = &m->config;
    const int C = c->C, Vp = c->Vp;
    const size_t BTc = (size_t)m->B * range.Tc;
    const TensorId head = c->tied ? WTE : WHEAD;
    const floatX *whead = tensor(m, m->params, head, 0), *lnfw = tensor(m, m->params, LNFW, 0);
    for (int b = 0; b < m->B; b++) {
        memcpy(m->head_targets + (size_t)b * range.Tc, targets + (size_t)b * m->T + range.t0,
               (size_t)range.Tc * sizeof(int));
    }
    norm_forward(m->lnf, m->meanf, m->rstdf, m->xlast, lnfw, tensor(m, m->params, LNFB, 0), BTc, C, c->norm_eps);
    dump_rows(m, "xlast", -1, range, m->xlast, C);
    dump_rows(m, "meanf", -1, range, m->meanf, 1);
    dump_rows(m, "rstdf", -1, range, m->rstdf, 1);
    dump_rows(m, "lnf", -1, range, m->lnf, C);
    const uint64_t logits_at = m->dump ? dump_add(m, "logits", FLOATX_TYPE, -1, range, m->B, Vp) : 0,
                   dlogits_at = m->dump ? dump_add(m, "dlogits", FLOATX_TYPE, -1, range, m->B, Vp) : 0;
    for (size_t r = 0; r < BTc; r += m->head_rows) {
        size_t rows = min_size(m->head_rows, BTc - r);
        matmul_forward(m->logits, m->lnf + r * C, whead, NULL, NULL, rows, C, Vp);
        const size_t row = Vp * sizeof(floatX);
        if (m->dump) safe_write_at(&m->dump->file, logits_at + r * row, m->logits, rows * row);
        classifier(m->losses + r, m->guesses + r, m->logits, m->head_targets + r, rows, c->V, Vp, dloss);
        if (m->dump) safe_write_at(&m->dump->file, dlogits_at + r * row, m->logits, rows * row);
        if (dloss == 0) continue;
        matmul_backward(m->dnorm + r * C, tensor(m, m->grads, head, 0), NULL, m->logits, m->lnf + r * C, whead, rows, C,
                        Vp, 0);
    }
    dump_rows(m, "losses", -1, range, m->losses, 1);
    if (dloss == 0) return;
    dump_rows(m, "dlnf", -1, range, m->dnorm, C);
    norm_backward(m->dx, tensor(m, m->grads, LNFW, 0), tensor(m, m->grads, LNFB, 0), m->dnorm, m->xlast, lnfw, m->meanf,
                  m->rstdf, BTc, C, 0);
    dump_rows(m, "dxlast", -1, range, m->dx, C);
}

static void chunk_fill(Model *m, const ChunkStep *s, ChunkRange range, const int *inputs) {
    chunk_layers(m, s, range, inputs);
}

static void chunk_forward(Model *m, const ChunkStep *s, ChunkRange range, const int *inputs, const int *targets) {
    chunk_layers(m, s, range, inputs);
    loss_head(m, range, targets, 0);
}

/* dloss: 1 / scored targets of the whole global batch. */
static void chunk_backward(Model *m, const ChunkStep *s, ChunkRange range, const int *inputs, const int *targets,
                           floatX dloss) {
    dump_ids(m, "inputs", range, inputs);
    chunk_layers(m, s, range, inputs);
    dump_ids(m, "targets", range, targets);
    loss_head(m, range, targets, dloss);
    for (int l = s->l1 - 1; l >= s->l0; l--) {
        /* One layer's buffers: the forward left the last layer's activations there, the others are made again. */
        if (m->recompute == RECOMPUTE_LAYER && l < s->l1 - 1) layer_forward(m, l, range, KV_THERE, layer_output(m, l));
        layer_backward(m, l, range);
    }
    if (s->l0 == 0) {
        embedding_backward(tensor(m, m->grads, WTE, 0), tensor(m, m->grads, WPE, 0), m->dx, inputs, m->B, m->T,
                           range.t0, range.Tc, m->config.C);
    }
}

// ----------------------------------------------------------------------------------------------
// a sequence

/* What a pass over a chunk does: floating point operations (2 for a multiply and add) of the matrix products and of
   attention, and the bytes that no schedule can avoid moving when only a chunk stays near: parameters (and their
   gradients) once per chunk, pages as often as a loop goes over them. */
typedef struct {
    double products, attention, param_bytes, pages_read, pages_written;
} Work;

typedef enum { WORK_FORWARD, WORK_BACKWARD, WORK_KINDS } WorkKind; /* of a step: its forward, and what comes after it */

static void work_add(Work *sum, const Work *w) {
    sum->products += w->products;
    sum->attention += w->attention;
    sum->param_bytes += w->param_bytes;
    sum->pages_read += w->pages_read;
    sum->pages_written += w->pages_written;
}

/* Query-key pairs of the chunk in one head: with the pages before it, or within it. */
static double work_pairs(const Model *m, ChunkRange range, int before) {
    return (double)m->B * range.Tc * ((before ? range.t0 : 0) + 0.5 * (range.Tc + 1));
}

/* layer_forward over `layers` layers. */
static Work work_layers(const Model *m, ChunkRange range, KvMode kv, int layers) {
    const ModelConfig *c = &m->config;
    const double C = c->C, QD = (double)c->NH * c->HD, KD = (double)c->NKV * c->HD, BTc = (double)m->B * range.Tc;
    const double page = 2.0 * m->B * m->P * KD * sizeof(floatX), end = chunks_pages_end(range, m->P);
    const double mlp = (c->mlp == MLP_SWIGLU ? 3 : 2) * C * c->F;
    const double kv_weights = kv != KV_THERE ? 2 * C * KD : c->qk_norm ? C * KD : 0;
    const double weights = kv_weights + (kv == KV_ONLY ? 0 : 2 * C * QD + mlp);
    Work w = {0};
    w.products = layers * 2 * BTc * weights;
    w.param_bytes = layers * weights * sizeof(floatX);
    if (kv != KV_THERE) w.pages_written = layers * page * (end - range.t0 / m->P);
    if (kv == KV_ONLY) return w;
    w.attention = layers * 4 * c->HD * (double)c->NH * work_pairs(m, range, 1);
    w.pages_read = layers * page * end;
    return w;
}

/* The head over the chunk's tokens: one product forward; two backward, which also read and write the gradient. */
static Work work_head(const Model *m, ChunkRange range, int backward) {
    const double head = (double)m->config.C * m->config.Vp;
    Work w = {0};
    w.products = (backward ? 2 : 1) * 2.0 * m->B * range.Tc * head;
    w.param_bytes = (backward ? 3 : 1) * head * sizeof(floatX);
    return w;
}

/* layer_backward over all layers. dK, dV of pages that a later chunk has begun are read and written, others
   written; K, V are read for ds, dK, dV, and K again for dQ; in the end the chunk reads its own dK, dV. */
static Work work_backward(const Model *m, ChunkRange range) {
    const ModelConfig *c = &m->config;
    const int L = c->L, exact = m->carry == CARRY_EXACT, last = range.t0 + range.Tc == m->T;
    const double C = c->C, QD = (double)c->NH * c->HD, KD = (double)c->NKV * c->HD, BTc = (double)m->B * range.Tc;
    const double page = 2.0 * m->B * m->P * KD * sizeof(floatX), end = chunks_pages_end(range, m->P);
    const double own = end - range.t0 / m->P, touched = exact ? end : own;
    const double weights = 2 * C * KD + 2 * C * QD + (c->mlp == MLP_SWIGLU ? 3 : 2) * C * c->F;
    Work w = {0};
    w.products = L * 4 * BTc * weights;
    w.param_bytes = L * 3 * weights * sizeof(floatX); /* read the weights, read and write their gradients */
    w.attention = L * 2.0 * c->HD * c->NH * (2 * work_pairs(m, range, exact) + 3 * work_pairs(m, range, 1));
    w.pages_read = L * page * (1.5 * end + (exact && !last ? touched : 0) + own);
    w.pages_written = L * page * touched;
    return w;
}

/* What one step of the schedule does, in its forward and after it. */
static void step_work(const Model *m, const ChunkStep *s, Work *w) {
    const ChunkRange range = chunks_range(m->T, m->chunk_size, s->ck);
    const int L = s->l1 - s->l0;
    Work part;
    memset(w, 0, WORK_KINDS * sizeof *w);
    if (s->pass == PASS_FILL) {
        w[WORK_FORWARD] = work_layers(m, range, KV_WRITE, L - 1);
        part = work_layers(m, range, KV_ONLY, 1);
    } else {
        w[WORK_FORWARD] = work_layers(m, range, s->write_kv ? KV_WRITE : KV_THERE, L);
        part = work_head(m, range, 0);
    }
    work_add(&w[WORK_FORWARD], &part);
    if (s->pass != PASS_BACKWARD) return;
    w[WORK_BACKWARD] = work_head(m, range, 1);
    part = work_backward(m, range);
    work_add(&w[WORK_BACKWARD], &part);
    if (m->recompute == RECOMPUTE_CHUNK) return;
    part = work_layers(m, range, KV_THERE, L - 1);
    work_add(&w[WORK_FORWARD], &part);
}

/* Flops of a step, for the time left. */
static double step_cost(const Model *m, const ChunkStep *s) {
    Work w[WORK_KINDS];
    double sum = 0;
    step_work(m, s, w);
    for (int i = 0; i < WORK_KINDS; i++) sum += w[i].products + w[i].attention;
    return sum;
}

/* Fills m->schedule for one sequence; returns the number of steps. */
static int sequence_schedule(Model *m, int train) {
    return train ? chunks_schedule_train(m->schedule, m->N, m->config.L, m->carry)
                 : chunks_schedule_forward(m->schedule, m->N, m->config.L);
}

static double sequence_cost(Model *m, int train) {
    double total = 0;
    for (int i = 0, n = sequence_schedule(m, train); i < n; i++) total += step_cost(m, &m->schedule[i]);
    return total;
}

/* Flops that the gradient itself takes, whatever the schedule: one forward, and the backward without the scores, which
   attention's backward makes a second time. What is done beyond is recompute. */
static double sequence_model_cost(const Model *m) {
    double total = 0;
    for (int ck = 0; ck < m->N; ck++) {
        const ChunkRange range = chunks_range(m->T, m->chunk_size, ck);
        const Work part[] = {work_layers(m, range, KV_WRITE, m->config.L), work_head(m, range, 0),
                             work_head(m, range, 1), work_backward(m, range)};
        for (int i = 0; i < COUNT(part); i++) total += part[i].products + part[i].attention;
        total -= m->config.L * 2.0 * m->config.HD * m->config.NH * work_pairs(m, range, 1);
    }
    return total;
}

/* Runs the schedule over B sequences: inputs, targets (B, T). train: gradients += with dloss = 1 / scored
   targets of the global batch; else forward only. Losses and guesses go to losses, guesses (B, T) where
   these are not NULL. Returns the sum of the losses. */
static double sequence_step(Model *m, const int *inputs, const int *targets, int train, floatX dloss, floatX *losses,
                            int *guesses, Progress *progress) {
    const int n = sequence_schedule(m, train);
    double sum = 0;
    for (int i = 0; i < n; i++) {
        const ChunkStep *s = &m->schedule[i];
        const ChunkRange range = chunks_range(m->T, m->chunk_size, s->ck);
        if (s->pass == PASS_FILL) chunk_fill(m, s, range, inputs);
        if (s->pass == PASS_FORWARD) chunk_forward(m, s, range, inputs, targets);
        if (s->pass == PASS_BACKWARD) chunk_backward(m, s, range, inputs, targets, dloss);
        for (int b = 0; s->pass != PASS_FILL && b < m->B; b++) {
            const size_t from = (size_t)b * range.Tc, to = (size_t)b * m->T + range.t0;
            for (int t = 0; t < range.Tc; t++) sum += (double)m->losses[from + t];
            if (losses) memcpy(losses + to, m->losses + from, (size_t)range.Tc * sizeof(floatX));
            if (guesses) memcpy(guesses + to, m->guesses + from, (size_t)range.Tc * sizeof(int));
        }
        progress_update(progress, step_cost(m, s), pass_names[s->pass], s->ck, m->N);
    }
    /* An exact backward has given every page back chunk by chunk; otherwise K, V are still there. */
    if (!train || m->carry == CARRY_NONE) pages_free_range(&m->pages, 0, m->config.L, 0, m->pages.max_NP);
    assert(pages_in_use(&m->pages) == 0);
    return sum;
}

// ----------------------------------------------------------------------------------------------
// a training step

/* The batches of one step, all at once: the number of scored targets of the whole step must be known before
   the first backward. */
typedef struct {
    int *inputs, *targets; // (grad_accum, B, T)
    int *distances;        // (B, T) recall, validation only
    floatX *losses;        // (B, T) validation only
    int *guesses;          // (B, T) validation only
    int *sample;           // (T) sampling only
    Candidate *candidates; // (V) sampling only
    int grad_accum;
    size_t per_batch; // B * T
} Batch;

static void batch_alloc(Batch *s, Memory *mem, const ModelConfig *config, const TrainConfig *run) {
    const char *group = "tokens and targets", *option = "--seq-len, --batch, --grad-accum";
    s->grad_accum = run->grad_accum;
    s->per_batch = (size_t)run->B * run->T;
    const size_t n = s->per_batch * run->grad_accum;
    s->inputs = (int *)memory_alloc(mem, group, "inputs", option, TIER_HOST, MEMORY_KEPT, n, sizeof(int));
    s->targets = (int *)memory_alloc(mem, group, "targets", option, TIER_HOST, MEMORY_KEPT, n, sizeof(int));
    if (*run->prompt || run->sample_every) {
        s->sample = (int *)memory_alloc(mem, group, "sample", option, TIER_HOST, MEMORY_KEPT, run->T, sizeof(int));
        s->candidates = (Candidate *)memory_alloc(mem, group, "candidates", "--model", TIER_HOST, MEMORY_KEPT,
                                                  config->V, sizeof(Candidate));
    }
    if (run->val_seqs == 0) return;
    s->distances =
        (int *)memory_alloc(mem, group, "distances", option, TIER_HOST, MEMORY_KEPT, s->per_batch, sizeof(int));
    s->losses =
        (floatX *)memory_alloc(mem, group, "losses", option, TIER_HOST, MEMORY_KEPT, s->per_batch, sizeof(floatX));
    s->guesses = (int *)memory_alloc(mem, group, "guesses", option, TIER_HOST, MEMORY_KEPT, s->per_batch, sizeof(int));
}

static size_t count_scored(const int *targets, size_t n) {
    size_t scored = 0;
    for (size_t i = 0; i < n; i++) scored += targets[i] != TARGET_MASKED;
    return scored;
}

/* grads = gradient of the mean loss over all scored targets of the step. Returns that mean; 0 if none is scored. */
static double step_gradients(Model *m, const Batch *s, Progress *progress) {
    const size_t scored = count_scored(s->targets, s->per_batch * s->grad_accum);
    const floatX dloss = scored ? 1 / (floatX)scored : 0;
    double sum = 0;
    Dump *dump = m->dump;
    memset(m->grads, 0, m->num_params * sizeof(floatX));
    for (int i = 0; scored && i < s->grad_accum; i++) {
        const size_t at = i * s->per_batch;
        m->dump = i == 0 ? dump : NULL; /* the first batch, and the gradients of all */
        sum += sequence_step(m, s->inputs + at, s->targets + at, 1, dloss, NULL, NULL, progress);
    }
    m->dump = dump;
    dump_params(m);
    return scored ? sum / (double)scored : 0;
}

/* AdamW with the gradient clipped to norm `clip` (0: not clipped); step counts from 1. Returns the norm before
   clipping. Ends the program when it is not finite, before a weight has changed. */
static double step_update(Model *m, double lr, double weight_decay, double clip, int step) {
    const double norm = grad_norm(m->norm_partial, m->grads, m->num_params);
    const int L = m->config.L;
    for (int id = 0; id < NUM_TENSORS && !isfinite(norm); id++) {
        const TensorInfo *t = &m->tensors[id];
        for (int l = 0; l < tensor_copies(m->tensors, L, id); l++) {
            const floatX *g = tensor(m, m->grads, (TensorId)id, l);
            for (size_t i = 0; i < tensor_size(m->tensors, id); i++) {
                if (!isfinite(g[i]))
                    die("step %d: the gradient of %s, layer %d, element %zu is %g; weights are those of step %d. Try a "
                        "lower --lr or a longer --warmup",
                        step, t->name, l, i, (double)g[i], step - 1);
            }
        }
    }
    if (!isfinite(norm))
        die("step %d: the gradient norm overflows; weights are those of step %d. Try a lower --lr or a longer --warmup",
            step, step - 1);
    const double gscale = clip > 0 && norm > clip ? clip / norm : 1;
    for (int id = 0; id < NUM_TENSORS; id++) {
        const TensorInfo *t = &m->tensors[id];
        for (int l = 0; l < tensor_copies(m->tensors, L, id); l++) {
            adamw_update(tensor(m, m->params, (TensorId)id, l), tensor(m, m->m, (TensorId)id, l),
                         tensor(m, m->v, (TensorId)id, l), tensor(m, m->grads, (TensorId)id, l),
                         tensor_size(m->tensors, id), lr, t->decay ? weight_decay : 0, gscale, step);
        }
    }
    return norm;
}

// ----------------------------------------------------------------------------------------------
// validation

enum { BUCKETS = 33 }; /* bucket 0 holds 0; bucket i holds 2^(i-1) .. 2^i - 1 */

static int bucket(unsigned x) { return x ? 32 - __builtin_clz(x) : 0; }

typedef struct {
    double loss, by_position[BUCKETS]; /* sums of losses */
    long scored, at_position[BUCKETS];
    double correct[BUCKETS]; /* recall: right guesses and questions, by distance */
    long asked[BUCKETS];
    int sequences;
} Validation;

/* The losses of the first `sequences` samples of d, through PASS_FORWARD over every chunk. */
static Validation validate(Model *m, Data *d, Batch *s, int sequences) {
    Validation v;
    memset(&v, 0, sizeof v);
    v.sequences = sequences;
    const size_t T = m->T;
    for (int first = 0; first < sequences; first += m->B) {
        for (int b = 0; b < m->B; b++) { /* rows past the last sequence repeat it, unscored */
            int i = first + b < sequences ? first + b : sequences - 1;
            data_sample(d, (uint64_t)i, s->inputs + b * T, s->targets + b * T, s->distances + b * T);
            for (size_t t = 0; first + b >= sequences && t < T; t++) s->targets[b * T + t] = TARGET_MASKED;
        }
        Progress progress = progress_start(sequence_cost(m, 0), (double)s->per_batch);
        v.loss += sequence_step(m, s->inputs, s->targets, 0, 0, s->losses, s->guesses, &progress);
        progress_end(&progress);
        for (size_t i = 0; i < s->per_batch; i++) {
            if (s->targets[i] == TARGET_MASKED) continue;
            int position = bucket((unsigned)(i % T));
            v.scored++;
            v.by_position[position] += (double)s->losses[i];
            v.at_position[position]++;
            if (d->kind != DATA_RECALL) continue;
            v.asked[bucket((unsigned)s->distances[i])]++;
            v.correct[bucket((unsigned)s->distances[i])] += s->guesses[i] == s->targets[i];
        }
    }
    return v;
}

// ----------------------------------------------------------------------------------------------
// sampling: PASS_FORWARD with one token at a time, in the pages and buffers of training

/* m->logits (1, Vp) = those of the last of Tc tokens. */
static void last_logits(Model *m, int Tc) {
    const ModelConfig *c = &m->config;
    norm_forward(m->lnf, m->meanf, m->rstdf, m->xlast + (size_t)(Tc - 1) * c->C, tensor(m, m->params, LNFW, 0),
                 tensor(m, m->params, LNFB, 0), 1, c->C, c->norm_eps);
    matmul_forward(m->logits, m->lnf, tensor(m, m->params, c->tied ? WTE : WHEAD, 0), NULL, NULL, 1, c->C, c->Vp);
}

/* Writes tokens[prompt .. total-1], each drawn after all before it. tokens (total), 1 <= prompt < total <= m->T;
   candidates (V) is scratch. Between steps every page is free, so the sample takes what it needs and gives all of it
   back. Training gets other slots for its pages then, but slots do not enter into any number. */
static void sample_tokens(Model *m, int *tokens, int prompt, int total, const Sampler *sampler, Rng *rng,
                          Candidate *candidates) {
    assert(prompt >= 1 && prompt < total && total <= m->T);
    Model one = *m; /* the same memory, seen as one sequence */
    one.B = one.pages.B = 1;
    one.T = total;
    for (int t = 0; t < total - 1;) {
        const ChunkRange range = {t, t < prompt ? (int)min_size(m->chunk_size, prompt - t) : 1};
        const ChunkStep step = {PASS_FORWARD, 0, m->config.L, 0, 1};
        chunk_layers(&one, &step, range, tokens);
        t += range.Tc;
        if (t < prompt) continue;
        last_logits(&one, range.Tc);
        for (int i = 0; i < m->config.V; i++) {
            candidates[i].id = i;
            candidates[i].p = (float)one.logits[i];
        }
        tokens[t] = sampler_pick(sampler, candidates, m->config.V, rng);
    }
    pages_free_range(&one.pages, 0, m->config.L, 0, (int)ceil_div(total - 1, m->P));
    assert(pages_in_use(&one.pages) == 0);
}

// ----------------------------------------------------------------------------------------------
// checkpoints: the tensors of one (what lies around them is in oomb/checkpoint.h)

/* All parameters of bases[0 .. count-1], named prefix + name, into a file. Returns 0 or an errno. */
static int tensors_save(const Model *m, const char *path, int count, const char *const *prefix, floatX *const *bases) {
    const int L = m->config.L;
    SafeWriter w = safe_create(path, (size_t)count * NUM_TENSORS * L);
    for (int i = 0; i < count; i++) {
        for (int id = 0; id < NUM_TENSORS; id++) {
            const uint64_t shape[] = {m->tensors[id].rows, m->tensors[id].cols};
            for (int l = 0; l < tensor_copies(m->tensors, L, id); l++) {
                char name[SAFE_NAME];
                const int n = snprintf(name, sizeof name, "%s", prefix[i]);
                tensor_name(m->tensors, id, l, name + n, sizeof name - n);
                safe_write_at(&w, safe_add(&w, name, FLOATX_TYPE, 2, shape), tensor(m, bases[i], (TensorId)id, l),
                              shape[0] * shape[1] * sizeof(floatX));
            }
        }
    }
    return safe_finish(&w);
}

/* The reverse. Ends the program unless the file has exactly the tensors of this model, in this precision. */
static void tensors_load(const Model *m, const char *path, int count, const char *const *prefix, floatX *const *bases) {
    const int L = m->config.L;
    int wanted = 0;
    SafeFile f = safe_open(path);
    for (int i = 0; i < count; i++) {
        for (int id = 0; id < NUM_TENSORS; id++) {
            const uint64_t rows = m->tensors[id].rows, cols = m->tensors[id].cols;
            for (int l = 0; l < tensor_copies(m->tensors, L, id); l++, wanted++) {
                char name[SAFE_NAME];
                const int n = snprintf(name, sizeof name, "%s", prefix[i]);
                tensor_name(m->tensors, id, l, name + n, sizeof name - n);
                const SafeTensor *t = safe_find(&f, name);
                if (!t) die("%s: tensor %s is missing; the checkpoint is of another model, or damaged", path, name);
                if (t->type != FLOATX_TYPE)
                    die("%s: tensor %s is %s, but this program computes in %s", path, name, safe_types[t->type].name,
                        safe_types[FLOATX_TYPE].name);
                if (t->dims != 2 || t->shape[0] != rows || t->shape[1] != cols)
                    die("%s: tensor %s is not %" PRIu64 " x %" PRIu64 "; the checkpoint is of another model", path,
                        name, rows, cols);
                safe_read(&f, t, tensor(m, bases[i], (TensorId)id, l));
            }
        }
    }
    if (f.count != wanted)
        die("%s: %d tensors, but the model has %d; the checkpoint is of another model", path, f.count, wanted);
    safe_close(&f);
}

static const char *const WEIGHTS_FILE = "weights.safetensors", *const OPTIMIZER_FILE = "optimizer.safetensors";
static const char *const weights_prefix[] = {""}, *const optimizer_prefix[] = {"m.", "v."};

/* Writes the checkpoint of s->step below dir and forgets all but the newest `keep`. options: pairs for state.json.
   Returns 0 or an errno; whatever happens, the checkpoints that were there before are intact. */
static int checkpoint_save(const Model *m, const char *dir, const RunState *s, const char *const (*options)[2],
                           int count, int keep) {
    char path[MAX_PATH_BYTES], file[MAX_PATH_BYTES];
    floatX *const weights[] = {m->params}, *const optimizer[] = {m->m, m->v};
    int error = checkpoint_begin(path, dir, s->step);
    if (error) return error;
    path_join(file, path, WEIGHTS_FILE);
    error = tensors_save(m, file, 1, weights_prefix, weights);
    path_join(file, path, OPTIMIZER_FILE);
    if (!error) error = tensors_save(m, file, 2, optimizer_prefix, optimizer);
    if (!error) error = state_write(path, s, &m->config, options, count);
    error = checkpoint_commit(dir, s->step, error);
    if (!error) checkpoint_prune(dir, keep);
    return error;
}

/* Parameters, m and v from the checkpoint in directory path. */
static void checkpoint_load(const Model *m, const char *path) {
    char file[MAX_PATH_BYTES];
    floatX *const weights[] = {m->params}, *const optimizer[] = {m->m, m->v};
    path_join(file, path, WEIGHTS_FILE);
    tensors_load(m, file, 1, weights_prefix, weights);
    path_join(file, path, OPTIMIZER_FILE);
    tensors_load(m, file, 2, optimizer_prefix, optimizer);
}

// ----------------------------------------------------------------------------------------------
// models of other programs: Hugging Face directories, in and out (names and shapes are in oomb/hf_model.h)

/* Parameters from the files of h; m and v become zero. windows: (max_threads(), hf_window_size()). */
static void hf_load(Model *m, const HfModel *h, float *windows) {
    const size_t room = hf_window_size(&m->config);
    const size_t V = m->config.V, C = m->config.C, padding = (m->config.Vp - V) * C;
    memset(tensor(m, m->params, WTE, 0) + V * C, 0, padding * sizeof(floatX));
    if (!m->config.tied) memset(tensor(m, m->params, WHEAD, 0) + V * C, 0, padding * sizeof(floatX));
    memset(m->m, 0, m->num_params * sizeof(floatX));
    memset(m->v, 0, m->num_params * sizeof(floatX));
    for (int i = 0; i < h->count; i++) {
        const HfTensor *x = &h->tensors[i];
        const uint64_t step = hf_window_rows(x), n = ceil_div(x->rows, step);
#pragma omp parallel for if (n > 1)
        for (uint64_t j = 0; j < n; j++) {
            float *window = windows + thread_id() * room;
            const uint64_t first = j * step, rows = x->rows - first < step ? x->rows - first : step;
            if (x->copy) continue;
            hf_read(h, x, first, rows, window);
            for (int p = 0; p < x->parts; p++) {
                floatX *w = tensor(m, m->params, (TensorId)x->id[p], x->layer);
                for (uint64_t r = 0; r < rows; r++) {
                    const HfRun run = hf_run(x, m->tensors, p, first + r);
                    const float *from = window + r * x->cols + run.column;
                    for (uint64_t k = 0; k < run.count; k++) w[run.offset + k * run.stride] = (floatX)from[k];
                }
            }
        }
        file_progress("loading", i, h->count);
    }
}

/* The same the other way, into a file at path. windows: 2 of them. Returns 0 or an errno: ERANGE when a weight of *large is
   too large for its dtype. */
static int hf_save_weights(const Model *m, const HfModel *h, const char *path, HfSave save, float *windows,
                           const HfTensor **large) {
    unsigned char *raw = (unsigned char *)(windows + hf_window_size(&m->config));
    SafeWriter w = safe_create(path, (size_t)h->count + 1);
    safe_metadata(&w, "format", "pt");
    for (int i = 0; i < h->count; i++) {
        const HfTensor *x = &h->tensors[i];
        const SafeType type = hf_save_type(x, save);
        const uint64_t shape[] = {x->rows, x->cols}, step = hf_window_rows(x);
        uint64_t at = safe_add(&w, x->name, type, x->dims, x->dims == 1 ? &x->cols : shape);
        for (uint64_t first = 0; first < x->rows; first += step) {
            const uint64_t rows = x->rows - first < step ? x->rows - first : step;
            for (int p = 0; p < x->parts; p++) {
                const floatX *from = tensor(m, m->params, (TensorId)x->id[p], x->layer);
                for (uint64_t r = 0; r < rows; r++) {
                    const HfRun run = hf_run(x, m->tensors, p, first + r);
                    float *to = windows + r * x->cols + run.column;
                    for (uint64_t k = 0; k < run.count; k++) to[k] = (float)from[run.offset + k * run.stride];
                }
            }
            const size_t n = (size_t)(rows * x->cols), bytes = n * (size_t)safe_types[type].bytes;
            if (hf_encode(windows, n, type, raw) > 0) {
                w.error = ERANGE;
                *large = x;
            }
            safe_write_at(&w, at, raw, bytes);
            at += bytes;
        }
        file_progress("saving", i, h->count);
    }
    return safe_finish(&w);
}

/* DIR/model: config, weights, tokenizer. T: the longest sequence that the model was trained on, 0: none. Returns 0 or an
   errno; then DIR/model is as it was. */
static int hf_save(const Model *m, const HfModel *h, const char *dir, int T, HfSave save, float *windows) {
    char path[MAX_PATH_BYTES], file[MAX_PATH_BYTES];
    ModelConfig config = m->config;
    const HfTensor *large = NULL;
    if (config.pos == POS_ROPE && config.max_T < T) config.max_T = T;
    hf_save_recover(dir);
    hf_check_target(h, dir);
    int error = hf_save_begin(path, dir);
    if (error) return error;
    path_join(file, path, "model.safetensors");
    error = hf_save_weights(m, h, file, save, windows, &large);
    if (!error) error = hf_copy_companions(h, path);
    if (!error) error = hf_save_config(h, path, &config, save);
    error = hf_save_commit(dir, error);
    if (large)
        die("--out %s: a weight of %s is too large for %s; give --save-dtype f32%s", dir, large->name,
            safe_types[hf_save_type(large, save)].name, hf_save_type(large, save) == SAFE_F16 ? ", or bf16" : "");
    return error;
}

// ----------------------------------------------------------------------------------------------
// main

#ifndef TESTING

static unsigned bucket_from(int i) { return i ? 1u << (i - 1) : 0; }
static unsigned bucket_to(int i, int T) { return i ? (unsigned)min_size((1ull << i) - 1, (size_t)T - 1) : 0; }

/* "label a-b: mean ..." for the buckets that have any, six to a line; the same as an array into the log. */
static void report_buckets(Logger *log, const char *label, const char *key, const char *value, const double *sums,
                           const long *counts, int T) {
    printf("  %s:", label);
    logger_key(log, key);
    for (int i = 0, n = 0; i < BUCKETS; i++) {
        if (!counts[i]) continue;
        const unsigned from = bucket_from(i), to = bucket_to(i, T);
        const double mean = sums[i] / (double)counts[i];
        printf("%s %u", n && n % 6 == 0 ? "\n                   " : "", from);
        if (to > from) printf("-%u", to);
        printf(": %.3f", mean);
        if (log->file)
            fprintf(log->file, "%c{\"from\":%u,\"to\":%u,\"count\":%ld,\"%s\":", n ? ',' : '[', from, to, counts[i],
                    value);
        logger_value(log, mean);
        if (log->file) fprintf(log->file, "}");
        n++;
    }
    if (log->file) fprintf(log->file, "]");
    printf("\n");
}

static void validation_report(const Validation *v, const Data *d, int step, double ms, Logger *log) {
    if (v->scored == 0) {
        printf("val  %5d | no target of the validation data is scored\n", step);
        return;
    }
    const double mean = v->loss / (double)v->scored;
    printf("val  %5d | loss %.4f", step, mean);
    if (d->kind == DATA_BYTES) printf(" | %.3f bits per byte", mean / 0.69314718055994531);
    printf(" | %ld targets in %d sequences | %.1f s\n", v->scored, v->sequences, ms * 1e-3);
    logger_number(log, "step", step);
    logger_number(log, "val_loss", mean);
    report_buckets(log, "loss by position", "val_by_position", "loss", v->by_position, v->at_position, d->T);
    if (d->kind == DATA_RECALL)
        report_buckets(log, "recall by distance", "recall_by_distance", "accuracy", v->correct, v->asked, d->T);
    logger_end(log);
    fflush(stdout);
    if (!isfinite(mean))
        die("step %d: the validation loss is %g: the weights are no longer good. Try a lower --lr or a longer --warmup",
            step, mean);
}

static volatile sig_atomic_t stop_signal; /* set by Ctrl-C: save after this step and end */

/* The second Ctrl-C ends the program at once; but not one within a second of the first: `timeout`, and launchers like it,
   send a signal to the program and to its group. */
static void on_signal(int number) {
    static const char text[] = "\nstopping after this step, with a checkpoint; once more to stop at once\n";
    static volatile double first;
    const int saved = errno;
    if (stop_signal && now_ms() - first > 1000) {
        signal(number, SIG_DFL);
        raise(number);
    }
    if (!stop_signal) {
        first = now_ms();
        if (write(2, text, sizeof text - 1) < 0) first = now_ms(); /* not printf(): this is a handler */
        stop_signal = number;
    }
    errno = saved;
}

/* on: Ctrl-C and SIGTERM stop after a step; else at once, as at the start and after the last step. */
static void catch_signals(int on) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on ? on_signal : SIG_DFL;
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* All memory of a run, in the order of the table. program: bytes of the process before. */
static void run_alloc(Model *m, Batch *batch, float **windows, Memory *mem, const Session *s, const TrainConfig *run,
                      size_t program) {
    const size_t files = model_is_directory(run) || *run->out ? max_size(2, (size_t)max_threads()) : 0;
    memory_note(mem, "program and libraries", "process", "", TIER_HOST, MEMORY_KEPT, program);
    model_alloc(m, mem, &s->config, run);
    batch_alloc(batch, mem, &s->config, run);
    *windows = (float *)memory_alloc(mem, "windows into model files", "windows", "--threads", TIER_HOST, MEMORY_SCRATCH,
                                     files * hf_window_size(&s->config), sizeof(float));
    memory_note(mem, "tokens and targets", "data", "", TIER_HOST, MEMORY_KEPT,
                data_bytes_held(&s->train) + data_bytes_held(&s->val) + tokenizer_memory(&s->tokenizer));
}

/* The ledger of a run and its Model without memory: filled by the calls that will allocate. */
static void plan_memory(Memory *mem, Model *m, const Session *s, const TrainConfig *run, size_t program) {
    Batch batch;
    float *windows;
    mem->plan_only = 1;
    run_alloc(m, &batch, &windows, mem, s, run, program);
    free(m->acts);
}

/* The run as ordinary training holds it. */
static TrainConfig one_chunk(TrainConfig run) {
    run.chunk_size = run.T;
    run.carry = CARRY_EXACT;
    run.recompute = RECOMPUTE_CHUNK;
    return run;
}

static void work_scale(Work *w, double factor) {
    w->products *= factor;
    w->attention *= factor;
    w->param_bytes *= factor;
    w->pages_read *= factor;
    w->pages_written *= factor;
}

static void report_work_line(const char *name, double chunks, const Work *w) {
    printf("  %-29s %6.0f  %11s  %11s  %10s  %10s  %10s\n", name, chunks, text_flops(w->products).text,
           text_flops(w->attention).text, text_bytes(w->param_bytes).text, text_bytes(w->pages_read).text,
           text_bytes(w->pages_written).text);
}

/* What a step does, pass by pass, from the schedule that it would run. m is planned, not allocated. */
static void report_work(Model *m, int grad_accum, Logger *log) {
    Work sum[2][WORK_KINDS], total = {0}, step[WORK_KINDS]; /* [is a backward][kind] */
    double chunks[2] = {0, 0};
    memset(sum, 0, sizeof sum);
    m->schedule = (ChunkStep *)xcalloc(chunks_max_steps(m->N), sizeof(ChunkStep));
    for (int i = 0, n = sequence_schedule(m, 1); i < n; i++) {
        const int back = m->schedule[i].pass == PASS_BACKWARD;
        step_work(m, &m->schedule[i], step);
        chunks[back] += grad_accum;
        for (int k = 0; k < WORK_KINDS; k++) {
            work_scale(&step[k], grad_accum);
            work_add(&sum[back][k], &step[k]);
            work_add(&total, &step[k]);
        }
    }
    free(m->schedule);
    printf("%-31s %6s  %11s  %11s  %10s  %10s  %10s\n", "work of a step", "chunks", "products", "attention",
           "parameters", "pages read", "written");
    report_work_line("fill", chunks[0], &sum[0][WORK_FORWARD]);
    report_work_line("backward: forward again, head", chunks[1], &sum[1][WORK_FORWARD]);
    report_work_line("backward: gradients", chunks[1], &sum[1][WORK_BACKWARD]);
    report_work_line("total", chunks[0] + chunks[1], &total);
    const double model = sequence_model_cost(m) * grad_accum, all = total.products + total.attention;
    printf("Of the %s, %s are the model's own, %s recompute: layers and attention's scores made again.\n",
           text_flops(all).text, text_flops(model).text, text_flops(all - model).text);
    logger_number(log, "flops_products", total.products);
    logger_number(log, "flops_attention", total.attention);
    logger_number(log, "flops_model", model);
    logger_number(log, "param_bytes", total.param_bytes);
    logger_number(log, "pages_read", total.pages_read);
    logger_number(log, "pages_written", total.pages_written);
}

/* The memory table, before anything is allocated; with --plan also the work. */
static void report_plan(const Session *s, size_t program) {
    static Memory plan, one_pass;
    Model planned, ordinary;
    const TrainConfig *run = &s->run, whole = one_chunk(*run);
    plan_memory(&plan, &planned, s, run, program);
    plan_memory(&one_pass, &ordinary, s, &whole, program);
    session_report_model(&s->config, run, max_threads());
    memory_print(&plan, stdout);
    if (chunk_capacity(run) < run->T)
        printf("  %-32s %-7s %10s   with the activations of all tokens at once\n", "the same in one chunk",
               tier_names[TIER_HOST], text_bytes((double)memory_total(&one_pass, TIER_HOST)).text);
    printf("\n");
    if (run->plan) {
        Logger log = logger_open(run->log, INT32_MAX); /* behind what is there */
        report_work(&planned, run->grad_accum, &log);
        logger_number(&log, "host_bytes", (double)memory_total(&plan, TIER_HOST));
        logger_end(&log);
        logger_close(&log);
        if (memory_total(&plan, TIER_HOST) > machine_bytes())
            printf("\nThis machine has %s of memory: the run does not fit.\n",
                   text_bytes((double)machine_bytes()).text);
        return;
    }
    memory_check(&plan, TIER_HOST, machine_bytes());
    if (memory_total(&plan, TIER_HOST) > unused_bytes())
        fprintf(stderr, "warning: only %s of memory are unused at the moment\n",
                text_bytes((double)unused_bytes()).text);
}

/* A run and what it holds. */
typedef struct {
    Session session;
    Memory mem;
    Model m;
    Batch batch;
    float *windows; /* for model files */
    Dump dump;      /* its path is "" until it has begun */
} Run;

static void run_validation(Run *r) {
    Session *s = &r->session;
    const double start = now_ms();
    const Validation v = validate(&r->m, &s->val, &r->batch, s->val_sequences);
    validation_report(&v, &s->val, s->at.step, now_ms() - start, &s->log);
}

/* Continues --prompt. The random numbers belong to the step: a resumed run draws the same. */
static void run_sample(Run *r) {
    Session *s = &r->session;
    const Sampler sampler = {s->run.temperature, s->run.top_k};
    Rng rng = rng_stream((uint64_t)s->run.seed, 0x73616d706c65u, (uint64_t)s->at.step);
    int *tokens = r->batch.sample;
    session_prompt(s, tokens);
    sample_tokens(&r->m, tokens, s->prompt, s->sample_total, &sampler, &rng, r->batch.candidates);
    session_report_sample(s, tokens);
}

/* Bytes that a checkpoint takes: parameters, m and v. */
static double checkpoint_bytes(const Model *m) { return 3.0 * (double)m->num_params * sizeof(floatX); }

static void run_save(Run *r) {
    Session *s = &r->session;
    Option table[MAX_OPTIONS];
    static char values[MAX_OPTIONS][MAX_VALUE];
    const char *options[MAX_OPTIONS][2];
    int count = 0;
    const double start = now_ms();
    for (int i = 0, n = options_table(&s->run, table); i < n; i++) {
        option_format(&table[i], values[i], sizeof values[i]);
        if (table[i].scope == THIS_TIME || !*values[i]) continue;
        options[count][0] = table[i].name;
        options[count++][1] = values[i];
    }
    logger_sync(&s->log); /* a checkpoint must not be ahead of the log */
    const int error = checkpoint_save(&r->m, s->run.out, &s->at, options, count, s->run.keep);
    const int latest = checkpoint_latest(s->run.out, INT32_MAX);
    if (error && latest >= 0)
        die("--out %s: cannot save step %d: %s. The checkpoint of step %d is intact: --resume goes on from there",
            s->run.out, s->at.step, strerror(error), latest);
    if (error) die("--out %s: cannot save step %d: %s", s->run.out, s->at.step, strerror(error));
    printf("saved %4d | %s/step-%08d, %s in %.1f s\n", s->at.step, s->run.out, s->at.step,
           text_bytes(checkpoint_bytes(&r->m)).text, (now_ms() - start) * 1e-3);
}

/* The model for other programs, as it is now. */
static void run_save_model(Run *r) {
    Session *s = &r->session;
    const HfSave save = (HfSave)s->run.save_dtype;
    const double start = now_ms();
    const int trained = s->at.step > 0 || s->config.max_T == 0;
    const int error = hf_save(&r->m, &s->hf, s->run.out, trained ? s->run.T : 0, save, r->windows);
    if (error)
        die("--out %s: cannot write %s/model: %s%s", s->run.out, s->run.out, strerror(error),
            s->at.step ? "; the checkpoint is intact, --resume writes the model again" : "");
    printf("model: %s/model, %s in %.1f s\n", s->run.out, text_bytes(hf_bytes(&s->hf, save)).text,
           (now_ms() - start) * 1e-3);
}

/* The weights of --model DIR. */
static void run_load(Run *r) {
    const double start = now_ms();
    hf_load(&r->m, &r->session.hf, r->windows);
    session_report_weights(&r->session.hf);
    printf(", loaded in %.1f s\n", (now_ms() - start) * 1e-3);
}

/* A file for the intermediates of the coming step, under a temporary name until it is whole. */
static void dump_begin(Run *r, Dump *dump) {
    const Session *s = &r->session;
    struct stat st;
    if (snprintf(dump->path, sizeof dump->path, "%s.writing", s->run.dump) >= (int)sizeof dump->path)
        die("--dump %s: the path is too long", s->run.dump);
    if (lstat(s->run.dump, &st) == 0 && !S_ISREG(st.st_mode)) /* the rename at the end would replace it */
        die("--dump %s: is there already, and is no regular file; give another name", s->run.dump);
    dump->file = safe_create(dump->path, dump_max_tensors(&r->m));
    if (dump->file.error) die("--dump %s: cannot write: %s", s->run.dump, strerror(dump->file.error));
    r->m.dump = dump;
}

static void dump_end(Run *r, Dump *dump) {
    const Session *s = &r->session;
    const double bytes = (double)dump->file.data;
    int error = safe_finish(&dump->file);
    if (!error && rename(dump->path, s->run.dump) != 0) error = errno;
    if (error) {
        unlink(dump->path);
        die("--dump %s: cannot write: %s", s->run.dump, strerror(error));
    }
    printf("dump: %s, %s: every intermediate of step %d\n", s->run.dump, text_bytes(bytes).text, s->at.step + 1);
    r->m.dump = NULL;
}

/* The next optimizer step. */
static void run_step(Run *r) {
    Session *s = &r->session;
    const TrainConfig *run = &s->run;
    const int step = s->at.step + 1;
    const double per_step = (double)r->batch.per_batch * run->grad_accum;
    const double flops = sequence_cost(&r->m, 1) * run->grad_accum;
    Progress progress = progress_start(flops, per_step);
    for (size_t i = 0; i < (size_t)run->grad_accum * run->B; i++)
        data_sample(&s->train, s->at.sample++, r->batch.inputs + i * run->T, r->batch.targets + i * run->T, NULL);
    if (*run->dump && !*r->dump.path) dump_begin(r, &r->dump);
    const double lr = schedule_lr((ScheduleKind)run->schedule, run->lr, step, run->warmup, run->steps);
    const double loss = step_gradients(&r->m, &r->batch, &progress);
    if (r->m.dump) dump_end(r, &r->dump);
    const double norm = step_update(&r->m, lr, run->weight_decay, run->clip, step);
    const double ms = now_ms() - progress.start_ms;
    progress_end(&progress);
    s->at.step = step;
    s->at.tokens += r->batch.per_batch * run->grad_accum;
    printf("step %5d/%d | loss %.4f | lr %.2e | norm %7.4f | %.0f tokens/s | %.0f GFLOP/s | peak %s\n", step,
           run->steps, loss, lr, norm, per_step / ms * 1e3, flops / ms * 1e-6,
           text_bytes((double)peak_rss_bytes()).text);
    fflush(stdout);
    logger_number(&s->log, "step", step);
    logger_number(&s->log, "loss", loss);
    logger_number(&s->log, "lr", lr);
    logger_number(&s->log, "grad_norm", norm);
    logger_number(&s->log, "tokens", (double)s->at.tokens);
    logger_number(&s->log, "ms", ms);
    logger_number(&s->log, "flops", flops);
    logger_number(&s->log, "flops_model", sequence_model_cost(&r->m) * run->grad_accum);
    logger_number(&s->log, "peak_bytes", (double)peak_rss_bytes());
    logger_end(&s->log);
}

/* Steps until the last, or until Ctrl-C; what is due after each. Returns the signal, 0 at the end. */
static int run_steps(Run *r) {
    Session *s = &r->session;
    const TrainConfig *run = &s->run;
    while (s->at.step < run->steps) {
        run_step(r);
        const int step = s->at.step, last = step == run->steps;
        if (s->val_sequences && (last || (run->val_every && step % run->val_every == 0))) run_validation(r);
        if (s->sample_total && (last || (run->sample_every && step % run->sample_every == 0))) run_sample(r);
        const int stop = stop_signal; /* asked once: between saving and stopping it may change */
        if (*run->out && (last || stop || (run->save_every && step % run->save_every == 0))) run_save(r);
        if (stop) return stop;
    }
    return 0;
}

/* The table again, now beside what was measured. */
static void report_end(Run *r, uint64_t tokens, double ms) {
    const double planned = (double)memory_total(&r->mem, TIER_HOST), peak = (double)peak_rss_bytes();
    printf("\n");
    memory_print(&r->mem, stdout);
    printf("  %-32s %-7s %10s   measured (%+.1f %% of the total)\n\n", "peak of the process", tier_names[TIER_HOST],
           text_bytes(peak).text, 100 * (peak / planned - 1));
    const double flops = sequence_cost(&r->m, 1), model = sequence_model_cost(&r->m);
    printf("%" PRIu64 " tokens in %s; %.0f %% of the work was the model's own, the rest recompute\n", tokens,
           text_seconds(ms * 1e-3).text, 100 * model / flops);
}

/* Threads: what was asked for, else as many as OpenMP would start and the container allows. */
static void choose_threads(const TrainConfig *run) {
    set_threads(run->threads                ? run->threads
                : getenv("OMP_NUM_THREADS") ? 0
                                            : (int)min_size((size_t)max_threads(), (size_t)cpu_limit()));
    if (run->threads > max_threads())
        die("--threads %d: this program was built without OpenMP and has one thread; leave --threads out",
            run->threads);
    if (run->threads > sysconf(_SC_NPROCESSORS_ONLN))
        fprintf(stderr, "warning: --threads %d on %ld processors will be slow\n", run->threads,
                sysconf(_SC_NPROCESSORS_ONLN));
}

int main(int argc, char **argv) {
    static Run r;
    Session *s = &r.session;
    char path[MAX_PATH_BYTES];
    signal(SIGXFSZ, SIG_IGN);         /* a file that may not grow is an error of write(), with a message */
    setvbuf(stdout, NULL, _IOLBF, 0); /* a long first step must not hold back the table, in a pipe either */
    session_options(s, argc, argv);
    TrainConfig *run = &s->run;
    train_config_check(run, &s->config);
    choose_threads(run);
    options_print(run, stdout);
    session_open_model(s);
    session_open_data(s);
    session_plan_sample(s);
    session_refuse_input(s, "--dump", run->dump);
    session_refuse_input(s, "--log", run->log);
    if (*run->dump && (strcmp(run->dump, run->log) == 0 || same_file(run->dump, run->log)))
        die("--dump %s: is the file of --log; give it another name", run->dump);
    if (*run->dump && s->at.step >= run->steps)
        die("--dump %s: the checkpoint is of step %d already; a larger --steps would give a step to write down",
            run->dump, s->at.step);

    /* The table first, so that a run that does not fit is seen to be refused and why. */
    const size_t program = peak_rss_bytes();
    report_plan(s, program);
    if (run->plan) {
        check_stdout();
        return 0;
    }
    if (*run->out) session_open_out(s);
    run_alloc(&r.m, &r.batch, &r.windows, &r.mem, s, run, program);
    const double saved =
        *run->out ? (run->steps > 0) * checkpoint_bytes(&r.m) + hf_bytes(&s->hf, (HfSave)run->save_dtype) : 0;
    if (*run->out && (double)checkpoint_space(run->out) < saved)
        fprintf(stderr, "warning: --out %s: a checkpoint and the model take %s, but only %s are free\n", run->out,
                text_bytes(saved).text, text_bytes((double)checkpoint_space(run->out)).text);
    const int nothing_to_do =
        s->resumed >= 0 && s->at.step >= run->steps; /* then look at the model, and leave the log alone */
    if (s->resumed >= 0) {
        checkpoint_path(path, run->out, "step-", s->resumed);
        checkpoint_load(&r.m, path);
        printf("resume: step %d of %d, from %s%s\n", s->at.step, run->steps, path,
               nothing_to_do ? "; a larger --steps would train on" : "");
    } else if (model_is_directory(run)) {
        run_load(&r);
    } else {
        model_init(&r.m, run->seed);
    }
    if (*run->out && !nothing_to_do) catch_signals(1);
    if (!nothing_to_do) session_open_log(s);

    const double start = now_ms();
    const uint64_t tokens = s->at.tokens;
    const int first = s->at.step;
    const int stopped = run_steps(&r);
    if (s->at.step == first) { /* no step: the weights as they are */
        if (s->val_sequences) run_validation(&r);
        if (s->sample_total) run_sample(&r);
    } else {
        report_end(&r, s->at.tokens - tokens, now_ms() - start);
    }
    if (*run->out) {
        catch_signals(0);
        run_save_model(&r);
    }
    if (stopped)
        printf("stopped by signal %d after step %d; --out %s --resume goes on\n", stopped, s->at.step, run->out);
    session_close(s);
    model_free(&r.m);
    memory_free_all(&r.mem);
    check_stdout();
    return stopped ? 128 + stopped : 0;
}

#endif /* TESTING */
