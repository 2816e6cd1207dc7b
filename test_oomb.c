/* test_oomb.c: the CPU program against mathematics.

   Built twice from this one file, with train_oomb.c inside:
     test_oomb          floatX = float: bits, bounds, data, the command line
     test_oomb_double   floatX = double: every gradient against differences, every schedule
                        against the one-chunk run, to 1e-10

   The tests stand in dev/test, by subject; this file has what all of them share, their list and main.

   `./test_oomb` runs all tests of its build and ends with "N passed, N failed". `./test_oomb gemm` runs those
   whose name contains gemm, `./test_oomb -gemm` all others. A failure says what, where, and both values. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* The system calls that write a checkpoint, counted: number fault_at fails as on a full disk, or is where the machine
   stops. The names below make the program call these. */
static int fault_at, fault_count, fault_stops;
static char fault_trace[4096]; /* a letter for each call that was made */
static int fault_here(char letter) {
    if (++fault_count != fault_at) {
        if (fault_count < (int)sizeof fault_trace) fault_trace[fault_count - 1] = letter, fault_trace[fault_count] = 0;
        return 0;
    }
    if (fault_stops) _exit(9);
    errno = ENOSPC;
    return 1;
}
static int fault_open(const char *path, int flags, ...) { return fault_here('o') ? -1 : open(path, flags, 0666); }
static int fault_mkdir(const char *path, mode_t mode) { return fault_here('m') ? -1 : mkdir(path, mode); }
static int fault_rename(const char *a, const char *b) { return fault_here('r') ? -1 : rename(a, b); }
static int fault_unlink(const char *path) { return fault_here('u') ? -1 : unlink(path); }
static int fault_rmdir(const char *path) { return fault_here('d') ? -1 : rmdir(path); }
static int fault_fsync(int fd) { return fault_here('s') ? -1 : fsync(fd); }
static ssize_t fault_pwrite(int fd, const void *p, size_t n, off_t at) {
    if (fault_at == fault_count + 1) n = n > 1 ? (size_t)pwrite(fd, p, n / 2, at) : n; /* half of it had been written */
    return fault_here('w') ? -1 : pwrite(fd, p, n, at);
}
#define open fault_open
#define mkdir fault_mkdir
#define rename fault_rename
#define unlink fault_unlink
#define rmdir fault_rmdir
#define fsync fault_fsync
#define pwrite fault_pwrite

/* Flops of the matrix products, counted where they are made. */
#include "kernels/gemm.h"
static double gemm_flops;
static void gemm_counted(int ta, int tb, size_t M, size_t N, size_t K, floatX alpha, const floatX *A, size_t lda,
                         const floatX *B, size_t ldb, floatX beta, floatX *C, size_t ldc) {
    gemm_flops += 2.0 * (double)M * (double)N * (double)K;
    gemm(ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
}
static void gemm_add_counted(int ta, int tb, size_t M, size_t N, size_t K, const floatX *A, size_t lda, const floatX *B,
                             size_t ldb, GemmOut out) {
    gemm_flops += 2.0 * (double)M * (double)N * (double)K;
    gemm_add(ta, tb, M, N, K, A, lda, B, ldb, out);
}
#define gemm gemm_counted
#define gemm_add gemm_add_counted

#define TESTING
#include "train_oomb.c"

static int passed, failed, failed_here; /* checks; failed_here: in the current test */

__attribute__((format(printf, 2, 3))) static int check(int ok, const char *format, ...) {
    passed += ok;
    failed += !ok;
    failed_here += !ok;
    if (ok || failed_here > 8) return ok; /* the first few tell the story */
    va_list args;
    va_start(args, format);
    printf("    FAILED: ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    return ok;
}

static const int is_double = sizeof(floatX) == 8;

static floatX *random_floats(size_t n, double scale, Rng *r) {
    floatX *x = (floatX *)xcalloc(n + 64, sizeof(floatX));
    for (size_t i = 0; i < n; i++) x[i] = (floatX)(scale * rng_normal(r));
    return x;
}

#include "dev/test/ops.h"
#include "dev/test/models.h"
#include "dev/test/data.h"
#include "dev/test/checkpoint.h"
#include "dev/test/plan.h"
#include "dev/test/program.h"
#include "dev/test/hf.h"

// ----------------------------------------------------------------------------------------------

typedef struct {
    const char *name;
    void (*run)(void);
    int builds; /* 1: float, 2: double, 3: both */
} Test;

static const Test tests[] = {
    {"vec_exp", test_vec_exp, 3},
    {"gemm", test_gemm, 3},
    {"gemm_add", test_gemm_add, 3},
    {"gemm_bits", test_gemm_bits, 3},
    {"pack", test_pack, 3},
    {"instructions", test_instructions, 1},
    {"embedding", test_embedding, 3},
    {"norm", test_norm, 3},
    {"matmul", test_matmul, 3},
    {"rope", test_rope, 3},
    {"activation", test_activation, 3},
    {"classifier", test_classifier, 3},
    {"attention_gradient", test_attention_gradient, 2},
    {"attention_forward", test_attention_forward, 3},
    {"attention_blocks", test_attention_blocks, 3},
    {"adamw", test_adamw, 3},
    {"model_gradient", test_model_gradient, 2},
    {"schedule_sweep", test_schedule_sweep, 3},
    {"chunk_edges", test_chunk_edges, 3},
    {"float_against_double", test_float_against_double, 1},
    {"bits_recompute", test_bits_recompute, 3},
    {"bits_threads", test_bits_threads, 3},
    {"bits_poison", test_bits_poison, 3},
    {"bits_aba", test_bits_aba, 3},
    {"bits_forward", test_bits_forward, 3},
    {"causal", test_causal, 3},
    {"carry_none_gradient", test_carry_none_gradient, 2},
    {"carry_modes", test_carry_modes, 3},
    {"accumulation", test_accumulation, 3},
    {"masked", test_masked, 3},
    {"norm_eps", test_norm_eps, 3},
    {"page_write", test_page_write, 3},
    {"clip", test_clip, 3},
    {"decay", test_decay, 3},
    {"tensors", test_tensors, 1},
    {"schedule", test_schedule, 1},
    {"pages", test_pages, 1},
    {"lr", test_lr, 1},
    {"data_bytes", test_data_bytes, 1},
    {"data_shards", test_data_shards, 1},
    {"data_hostile", test_data_hostile, 1},
    {"data_large", test_data_large, 1},
    {"data_recall", test_data_recall, 1},
    {"validate", test_validate, 3},
    {"json", test_json, 1},
    {"safetensors", test_safetensors, 1},
    {"checkpoint", test_checkpoint, 3},
    {"checkpoint_order", test_checkpoint_order, 1},
    {"checkpoint_state", test_checkpoint_state, 1},
    {"checkpoint_faults", test_checkpoint_faults, 1},
    {"hf_fixtures", test_hf_fixtures, 3},
    {"hf_rope", test_hf_rope, 1},
    {"hf_config_hostile", test_hf_config_hostile, 1},
    {"hf_config_defaults", test_hf_config_defaults, 1},
    {"hf_config_write", test_hf_config_write, 1},
    {"hf_scaling_option", test_hf_scaling_option, 1},
    {"hf_weights_hostile", test_hf_weights_hostile, 1},
    {"hf_head", test_hf_head, 1},
    {"hf_same_import", test_hf_same_import, 3},
    {"hf_half", test_hf_half, 1},
    {"hf_round_trip", test_hf_round_trip, 3},
    {"hf_save_faults", test_hf_save_faults, 1},
    {"tokenizer", test_tokenizer, 1},
    {"hf_run", test_hf_run, 1},
    {"hf_run_lengths", test_hf_run_lengths, 1},
    {"hf_run_refused", test_hf_run_refused, 1},
    {"hf_run_replaces", test_hf_run_replaces, 1},
    {"sample", test_sample, 3},
    {"sampler", test_sampler, 1},
    {"work", test_work, 3},
    {"cgroup", test_cgroup, 1},
    {"bad_input", test_bad_input, 1},
    {"help", test_help, 1},
    {"same_log", test_same_log, 1},
    {"data_sizes", test_data_sizes, 1},
    {"resume", test_resume, 1},
    {"resume_refused", test_resume_refused, 1},
    {"resume_nan", test_resume_nan, 1},
    {"resume_files", test_resume_files, 1},
    {"resume_values", test_resume_values, 1},
    {"kill", test_kill, 1},
    {"interrupt", test_interrupt, 1},
    {"full_disk", test_full_disk, 1},
    {"sample_run", test_sample_run, 1},
    {"dump", test_dump, 3},
    {"dump_run", test_dump_run, 1},
    {"memory_flat", test_memory_flat, 1},
    {"memory", test_memory, 1},
};

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 3 && strcmp(argv[1], "--print-gradient") == 0) return print_gradient(atoi(argv[2]));
    const char *tmp = getenv("TMPDIR");
    char scratch[150];
    snprintf(scratch, sizeof scratch, "%s/oomb-test-XXXXXX", tmp && *tmp ? tmp : P_tmpdir);
    if (!mkdtemp(scratch)) die("%s: cannot make a directory: %s", scratch, strerror(errno));
    set_threads(1); /* a test that wants more says so: the others take the same time on a busy machine */
    printf("test_oomb, floatX = %s\n", is_double ? "double" : "float");
    for (int i = 0; i < COUNT(tests); i++) {
        const char *only = argc > 1 ? argv[1] : "";
        const int named = strstr(tests[i].name, *only == '-' ? only + 1 : only) != NULL;
        if (!(tests[i].builds >> is_double & 1) || named == (*only == '-')) continue;
        snprintf(scratch_dir, sizeof scratch_dir, "%s/%s", scratch, tests[i].name); /* its own: no names to share */
        mkdir(scratch_dir, 0777);
        const double start = now_ms();
        failed_here = 0;
        tests[i].run();
        printf("  %-20s %s  %.1f s\n", tests[i].name, failed_here ? "FAILED" : "ok    ", (now_ms() - start) * 1e-3);
    }
    char clean[300];
    snprintf(clean, sizeof clean, "rm -r '%s'", scratch);
    if (system(clean) != 0) printf("%s: not removed\n", scratch);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
