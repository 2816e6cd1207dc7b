/* bench_ops.c: the ops of train_oomb.c that are not matrix products, each against its limit.

   Usage: bench_ops [-t THREADS] [-r ROUNDS]     (scripts/bench_cpu.sh runs it)

   Attention against the matrix product: flops of the causal pairs (two products forward, five backward) over the speed
   of gemm, 1024 x 1024 x 1024, taken in the same rounds. The others against a copy of the same bytes: what they read
   and write, over the speed of memcpy on as many threads. Medians of the rounds, and of the ratios round by round. */
#define TESTING
#include "../../train_oomb.c"
#include "bench.h"

enum { COPY = 1 << 24, GEMM = 1024 }; /* floats of the copy, 64 MB; the sides of the product */

static float *copy_from, *copy_to, *gemm_a, *gemm_b, *gemm_c;

/* bytes per second, read and written */
static double copy_speed(void) {
    const double start = bench_now();
    enum { BLOCK = 1 << 16 };
#pragma omp parallel for schedule(static)
    for (int i = 0; i < COPY; i += BLOCK) memcpy(copy_to + i, copy_from + i, BLOCK * sizeof(float));
    return 2.0 * COPY * sizeof(float) / (bench_now() - start);
}

static double gemm_speed(void) {
    const double start = bench_now();
    for (int i = 0; i < 4; i++) gemm(0, 1, GEMM, GEMM, GEMM, 1, gemm_a, GEMM, gemm_b, GEMM, 0, gemm_c, GEMM);
    return 4 * 2.0 * GEMM * GEMM * GEMM / (bench_now() - start);
}

static int rounds = 7;

/* name; work: what a call does, in flops or bytes; seconds of a call in each round, and the limit's speed in it */
static void report(const char *name, double work, const double *seconds, const double *limit, const char *unit) {
    double speeds[99], ratios[99];
    for (int r = 0; r < rounds; r++) {
        speeds[r] = work / seconds[r];
        ratios[r] = speeds[r] / limit[r];
    }
    const double speed = bench_median(speeds, rounds), ratio = bench_median(ratios, rounds);
    printf("%-44s %8.1f %s %6.2f (%.2f to %.2f)\n", name, speed * 1e-9, unit, ratio, ratios[0], ratios[rounds - 1]);
    fflush(stdout);
}

/* Attention of one layer over the last chunk of T tokens, forward and backward. */
static void bench_attention(int NH, int NKV, int HD, int T, int Tc) {
    const int P = 64, NP = T / P, t0 = T - Tc;
    const size_t QD = (size_t)NH * HD, KD = (size_t)NKV * HD, pool = (size_t)NP * NKV * P * HD;
    PageTable pages;
    pages_init(&pages, 1, 1, NP, P, NP, NP);
    pages_alloc_range(&pages, 0, 1, 0, NP);
    pages_alloc_grad_range(&pages, 0, 0, NP);
    floatX *q = bench_floats(Tc * QD, 1), *k = bench_floats(T * KD, 1), *v = bench_floats(T * KD, 1),
           *attn = bench_floats(Tc * QD, 0), *dattn = bench_floats(Tc * QD, 1), *dq = bench_floats(Tc * QD, 0),
           *lse = bench_floats((size_t)NH * Tc, 0), *delta = bench_floats((size_t)NH * Tc, 0),
           *kpages = bench_floats(pool, 0), *vpages = bench_floats(pool, 0), *dkpages = bench_floats(pool, 0),
           *dvpages = bench_floats(pool, 0),
           *scratch = bench_floats(attention_scratch_size(P, NH / NKV, HD) * max_threads(), 0),
           *ds = bench_floats(attention_ds_size(max_threads(), 1, NH, NKV, Tc, P, NP), 0);
    page_write(kpages, vpages, k, v, &pages, 0, 0, T, NKV, HD);
    double forward[99], backward[99], limit[99];
    for (int r = -1; r < rounds; r++) {
        double start = bench_now();
        attention_forward(attn, lse, q, kpages, vpages, &pages, 0, t0, Tc, NH, NKV, HD, scratch);
        if (r >= 0) forward[r] = bench_now() - start;
        start = bench_now();
        attention_backward(dq, dkpages, dvpages, delta, ds, dattn, attn, lse, q, kpages, vpages, &pages, 0, 0, t0, Tc,
                           NH, NKV, HD, scratch);
        if (r >= 0) backward[r] = bench_now() - start, limit[r] = gemm_speed();
    }
    const double product = 2.0 * HD * NH * Tc * (t0 + 0.5 * (Tc + 1));
    char name[96];
    snprintf(name, sizeof name, "attention, head size %d, %d of %d: forward", HD, Tc, T);
    report(name, 2 * product, forward, limit, "GFLOP/s");
    snprintf(name, sizeof name, "attention, head size %d, %d of %d: backward", HD, Tc, T);
    report(name, 5 * product, backward, limit, "GFLOP/s");
    floatX *all[] = {q, k, v, attn, dattn, dq, lse, delta, kpages, vpages, dkpages, dvpages, scratch, ds};
    for (int i = 0; i < COUNT(all); i++) free(all[i]);
    pages_destroy(&pages);
}

/* The ops that go over memory: buffers of 64 MB, beyond any cache that two cores have to themselves. */
static floatX *x[7];
static int *targets;
enum { OPS = 8, WIDTH = 1024, ROWS = COPY / WIDTH, HEADS = 16 };

static double run_op(int op) { /* returns the bytes it must read and write */
    const double n = (double)COPY * sizeof(floatX);
    switch (op) {
    case 0: adamw_update(x[0], x[1], x[2], x[3], COPY, 1e-4, 0.1, 1, 10); return 7 * n;
    case 1: norm_forward(x[0], x[4], x[5], x[1], x[6], x[6], ROWS, WIDTH, 1e-5); return 2 * n;
    case 2: norm_backward(x[0], x[3], x[3] + WIDTH, x[1], x[2], x[6], x[4], x[5], ROWS, WIDTH, 1); return 4 * n;
    case 3: swiglu_forward(x[0], x[1], x[2], COPY); return 3 * n;
    case 4: swiglu_backward(x[0], x[3], x[1], x[2], x[4], COPY); return 5 * n;
    case 5: gelu_forward(x[0], x[1], COPY); return 2 * n;
    case 6: rope_forward(x[0], x[1], x[2], 1, ROWS, HEADS, WIDTH / HEADS); return (2 + 1.0 / HEADS) * n;
    case 7: classifier(x[1], targets, x[0], targets + ROWS, COPY / 32768, 32768, 32768, (floatX)1e-3); return 2 * n;
    }
    return 0;
}

static void bench_memory(void) {
    static const char *const names[OPS] = {"AdamW",
                                           "layernorm, forward",
                                           "layernorm, backward",
                                           "SwiGLU, forward",
                                           "SwiGLU, backward",
                                           "GELU, forward",
                                           "RoPE",
                                           "classifier, 32768 classes"};
    for (int i = 0; i < COUNT(x); i++) x[i] = bench_floats(COPY, 0.5);
    for (int i = 0; i < COPY; i++) x[2][i] = fabsf(x[2][i]); /* v of AdamW */
    targets = (int *)xcalloc(2 * ROWS, sizeof *targets);
    for (int op = 0; op < OPS; op++) {
        double seconds[99], limit[99], bytes = 0;
        for (int r = -1; r < rounds; r++) {
            const double start = bench_now();
            bytes = run_op(op);
            if (r >= 0) seconds[r] = bench_now() - start, limit[r] = copy_speed();
        }
        report(names[op], bytes, seconds, limit, "GB/s   ");
    }
}

int main(int argc, char **argv) {
    int threads = max_threads();
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-t") && i + 1 < argc) threads = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-r") && i + 1 < argc) rounds = atoi(argv[++i]);
        else die("usage: bench_ops [-t THREADS] [-r ROUNDS]");
    }
    if (rounds < 1 || rounds > 99 || threads < 1) die("bench_ops: -r is 1 .. 99, -t at least 1");
    set_threads(threads);
    copy_from = bench_floats(COPY, 1), copy_to = bench_floats(COPY, 0);
    gemm_a = bench_floats(GEMM * GEMM, 1), gemm_b = bench_floats(GEMM * GEMM, 1), gemm_c = bench_floats(GEMM * GEMM, 0);
    double gemms[99], copies[99];
    for (int r = 0; r < rounds; r++) gemms[r] = gemm_speed(), copies[r] = copy_speed();
    printf("%d thread%s; gemm %.0f GFLOP/s, copy %.1f GB/s\n", threads, threads > 1 ? "s" : "",
           bench_median(gemms, rounds) * 1e-9, bench_median(copies, rounds) * 1e-9);
    bench_attention(4, 2, 64, 8192, 512);
    bench_attention(4, 2, 128, 8192, 512);
    bench_attention(12, 12, 64, 1024, 1024);
    bench_attention(4, 2, 32, 8192, 512);
    bench_memory();
    return 0;
}
