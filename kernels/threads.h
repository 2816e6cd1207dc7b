/* threads.h: how many threads there are, with OpenMP or without. */
#ifndef KERNELS_THREADS_H
#define KERNELS_THREADS_H

#ifdef _OPENMP
#include <omp.h>
#endif

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

#endif
