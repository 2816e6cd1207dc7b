/* bench.h: the clock and the medians of the benchmarks. */
#ifndef BENCH_H
#define BENCH_H

#include "../../oomb/util.h"

#include <time.h>

static inline double bench_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int bench_by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* The median of x (n), which comes back sorted. */
static inline double bench_median(double *x, int n) {
    qsort(x, n, sizeof *x, bench_by_value);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* n floats from -1 to 1, as the program has them: at the beginning of a cache line, and touched. scale 0: zeros. */
static inline float *bench_floats(size_t n, float scale) {
    float *x = (float *)aligned_alloc(64, round_up(n * sizeof *x, 64));
    unsigned seed = 1;
    if (!x) die("out of memory: %zu floats", n);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = scale * ((float)(int)(seed >> 8) * 0x1p-23f - 1);
    }
    return x;
}

#endif
