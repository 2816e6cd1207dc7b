/* chunks.h: the schedule of one sequence, as data. Both programs execute the list that is made
   here and decide nothing about order themselves.

   A step runs the layers l0 .. l1-1 (a group) over one chunk. There is one group of all layers
   for now; a schedule of several groups is more steps in the same list. */
#ifndef OOMB_CHUNKS_H
#define OOMB_CHUNKS_H

#include "util.h"

typedef enum {
    PASS_FORWARD,  /* run the chunk through the layers and keep the output: validation */
    PASS_FILL,     /* run the chunk for its pages only */
    PASS_BACKWARD, /* recompute the chunk, then go back through it */
} Pass;
static const char *const pass_names[] = {"forward", "fill", "backward"};

typedef enum {
    CARRY_EXACT, /* dK, dV cross chunk edges: the gradient of the whole sequence */
    CARRY_NONE,  /* dK, dV stop at the chunk's edge, as in Transformer-XL */
} Carry;

typedef struct {
    Pass pass;
    int l0, l1;   /* layers of the group */
    int ck;       /* chunk index */
    int write_kv; /* this step projects K, V and writes the chunk's pages (else: they are there) */
} ChunkStep;

/* Tokens of sequence length T in chunks of chunk_size; the last may be short. */
typedef struct {
    int t0, Tc; /* first absolute position, tokens */
} ChunkRange;

static inline int chunks_count(int T, int chunk_size) { return (int)ceil_div((size_t)T, (size_t)chunk_size); }

static inline ChunkRange chunks_range(int T, int chunk_size, int ck) {
    ChunkRange r;
    r.t0 = ck * chunk_size;
    r.Tc = T - r.t0 < chunk_size ? T - r.t0 : chunk_size;
    return r;
}

/* Training needs at most 2N - 1 steps, validation N. */
static inline size_t chunks_max_steps(int N) { return 2 * (size_t)N - 1; }

/* Pages before and with the chunk: its own are t0 / P .. chunks_pages_end() - 1. */
static inline int chunks_pages_end(ChunkRange range, int P) {
    return (int)ceil_div((size_t)range.t0 + (size_t)range.Tc, (size_t)P);
}

/* Writes the steps of one training sequence of N chunks through L layers; returns their number.

   exact: fill 0 .. N-2 in order, so that every chunk but the last has its K, V in pages; then
   backward N-1 .. 0, so that when a chunk is reached, all later chunks have added to its dK, dV.
   The last chunk is not filled: it is the first to go back and writes its pages then.

   none: no gradient crosses a chunk edge, so each chunk goes forward and back in order. */
static inline int chunks_schedule_train(ChunkStep *steps, int N, int L, Carry carry) {
    int n = 0;
    if (carry == CARRY_NONE) {
        for (int ck = 0; ck < N; ck++) {
            ChunkStep s = {PASS_BACKWARD, 0, L, ck, 1};
            steps[n++] = s;
        }
        return n;
    }
    for (int ck = 0; ck < N - 1; ck++) {
        ChunkStep s = {PASS_FILL, 0, L, ck, 1};
        steps[n++] = s;
    }
    for (int ck = N - 1; ck >= 0; ck--) {
        ChunkStep s = {PASS_BACKWARD, 0, L, ck, ck == N - 1};
        steps[n++] = s;
    }
    return n;
}

static inline int chunks_schedule_forward(ChunkStep *steps, int N, int L) {
    for (int ck = 0; ck < N; ck++) {
        ChunkStep s = {PASS_FORWARD, 0, L, ck, 1};
        steps[ck] = s;
    }
    return N;
}

#endif
