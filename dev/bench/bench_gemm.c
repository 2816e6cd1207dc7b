/* bench_gemm.c: kernels/gemm.h against a BLAS, on the matrix products of a training step.

   Usage: bench_gemm [-t THREADS] [-r ROUNDS] [BLAS.so]     (scripts/bench_cpu.sh runs it)

   For every layer shape (OC, C) and number of tokens M, the three products of a step: forward out = x w^T, input
   gradient dx = dout w, weight gradient dw += dout^T x. Ours and theirs take turns, a round each; a number is the
   median over the rounds, and so is the ratio, taken round by round. Results are compared as well: a fast wrong
   product is worth nothing. Without BLAS.so only ours is timed.

   The BLAS is loaded while running, so that nothing needs its headers; it must have cblas_sgemm. Take a build of it
   that uses the same OpenMP library as this program: two pools of threads that spin disturb each other. */
#define _GNU_SOURCE
#include "../../kernels/gemm.h"
#include "bench.h"

#include <dlfcn.h>

typedef void (*Sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                      const float *b, int ldb, float beta, float *c, int ldc);

static Sgemm blas;

typedef struct {
    const char *name;
    int ta, tb;
    size_t M, N, K;
    float beta;
} Product;

static void run(const Product *p, int theirs, const float *A, const float *B, float *C) {
    const size_t lda = p->ta ? p->M : p->K, ldb = p->tb ? p->K : p->N;
    if (!theirs) gemm(p->ta, p->tb, p->M, p->N, p->K, 1, A, lda, B, ldb, p->beta, C, p->N);
    else
        blas(101, p->ta ? 112 : 111, p->tb ? 112 : 111, (int)p->M, (int)p->N, (int)p->K, 1, A, (int)lda, B, (int)ldb,
             p->beta, C, (int)p->N);
}

/* seconds of one call, the mean of some */
static double time_calls(const Product *p, int theirs, const float *A, const float *B, float *C, int calls) {
    double start = bench_now();
    for (int i = 0; i < calls; i++) run(p, theirs, A, B, C);
    return (bench_now() - start) / calls;
}

/* Largest difference of a few thousand elements of C from the other's, relative to sqrt(K), the size of an element. */
static double difference(const float *a, const float *b, size_t n, size_t K) {
    double worst = 0;
    for (size_t i = 0; i < n; i += n / 5000 + 1) {
        const double off = fabs((double)a[i] - b[i]);
        worst = off <= worst ? worst : off; /* NaN, too, is worse */
    }
    return worst / sqrt((double)K);
}

int main(int argc, char **argv) {
    int rounds = 7, threads = max_threads();
    const char *library = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-t") && i + 1 < argc) threads = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-r") && i + 1 < argc) rounds = atoi(argv[++i]);
        else if (argv[i][0] != '-') library = argv[i];
        else die("usage: bench_gemm [-t THREADS] [-r ROUNDS] [BLAS.so]");
    }
    if (rounds < 1 || rounds > 99 || threads < 1) die("bench_gemm: -r is 1 .. 99, -t at least 1");
    set_threads(threads);
    if (library) {
        void *handle = dlopen(library, RTLD_NOW);
        if (!handle) die("%s", dlerror());
        *(void **)&blas = dlsym(handle, "cblas_sgemm");
        if (!blas) die("%s has no cblas_sgemm", library);
        void (*blas_threads)(int);
        *(void **)&blas_threads = dlsym(handle, "openblas_set_num_threads");
        if (blas_threads) blas_threads(threads);
        char *(*config)(void);
        *(void **)&config = dlsym(handle, "openblas_get_config");
        if (config) printf("%s\n", config());
    }
    static const size_t tokens[] = {1, 256, 1024, 4096};
    static const size_t layers[][2] = {{768, 768}, {2304, 768}, {3072, 768}, {768, 3072}, {50304, 768},
                                       {256, 256}, {1024, 256}, {512, 256},  {257, 131}};
    double log_sum = 0, lowest = INFINITY;
    int count = 0;
    printf("%d thread%s\n%6s %6s %6s  %-15s %9s %9s %7s %s\n", threads, threads > 1 ? "s" : "", "M", "OC", "C",
           "product", "GFLOP/s", blas ? "BLAS" : "", blas ? "ratio" : "", blas ? "(lowest to highest round)" : "");
    for (size_t m = 0; m < sizeof tokens / sizeof *tokens; m++) {
        for (size_t l = 0; l < sizeof layers / sizeof *layers; l++) {
            const size_t M = tokens[m], OC = layers[l][0], K = layers[l][1];
            float *x = bench_floats(M * K, 1), *w = bench_floats(OC * K, 1), *dout = bench_floats(M * OC, 1);
            float *C = bench_floats(max_size(max_size(M * OC, M * K), OC * K), 0), *other = NULL;
            if (blas) other = bench_floats(max_size(max_size(M * OC, M * K), OC * K), 0);
            const Product products[] = {{"forward", 0, 1, M, OC, K, 0},
                                        {"input gradient", 0, 0, M, K, OC, 0},
                                        {"weight gradient", 1, 0, OC, K, M, 1}};
            for (int i = 0; i < 3; i++) {
                const Product *p = &products[i];
                const float *A = i == 0 ? x : dout, *B = i == 2 ? x : w;
                double ours[99], theirs[99], ratios[99];
                const double flops = 2.0 * (double)(M * OC * K);
                memset(C, 0, p->M * p->N * sizeof *C);
                run(p, 0, A, B, C);
                if (blas) {
                    memset(other, 0, p->M * p->N * sizeof *C);
                    run(p, 1, A, B, other);
                    if (!(difference(C, other, p->M * p->N, p->K) <= 1e-5)) die("%s: the results differ", p->name);
                }
                const int calls = (int)fmax(1, 0.004 / time_calls(p, 0, A, B, C, 1));
                for (int r = 0; r < rounds; r++) {
                    if (blas && r % 2)
                        theirs[r] = time_calls(p, 1, A, B, other, calls); /* now one first, now the other */
                    ours[r] = time_calls(p, 0, A, B, C, calls);
                    if (!blas) continue;
                    if (r % 2 == 0) theirs[r] = time_calls(p, 1, A, B, other, calls);
                    ratios[r] = theirs[r] / ours[r];
                }
                printf("%6zu %6zu %6zu  %-15s %9.1f", M, OC, K, p->name, flops / bench_median(ours, rounds) * 1e-9);
                if (blas) {
                    double ratio = bench_median(ratios, rounds);
                    printf(" %9.1f %7.2f (%.2f to %.2f)", flops / bench_median(theirs, rounds) * 1e-9, ratio, ratios[0],
                           ratios[rounds - 1]);
                    log_sum += log(ratio);
                    lowest = fmin(lowest, ratio);
                    count++;
                }
                printf("\n");
                fflush(stdout);
            }
            free(x), free(w), free(dout), free(C), free(other);
        }
    }
    if (blas) printf("ratio: geometric mean %.3f, lowest %.2f\n", exp(log_sum / count), lowest);
}
