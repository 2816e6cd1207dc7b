/* test_oomb.c: the CPU program against mathematics.

   Built twice from this one file, with train_oomb.c inside:
     test_oomb          floatX = float: bits, bounds, data, the command line
     test_oomb_double   floatX = double: every gradient against differences, every schedule
                        against the one-chunk run, to 1e-10

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
#define gemm gemm_counted

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

// ----------------------------------------------------------------------------------------------
// ops: gradients in double against 4-point differences, at several scales of the input

/* An op under test: out = f(in...), and the gradients of sum(dout * out) with respect to each in. */
enum { MAX_IN = 3 };
typedef struct {
    int num_in;
    const char *in_name[MAX_IN];
    int adds[MAX_IN]; /* the backward must add to this gradient; else it must write it */
    floatX *in[MAX_IN], *din[MAX_IN];
    size_t n[MAX_IN];
    floatX *out, *dout;
    size_t nout;
} Op;

static Op op; /* the one under test: C has no closures */

static void op_begin(size_t nout, Rng *r) {
    memset(&op, 0, sizeof op);
    op.nout = nout;
    op.out = random_floats(nout, 1, r);
    op.dout = random_floats(nout, 1, r);
}

static floatX *op_input(const char *name, size_t n, double scale, int adds, Rng *r) {
    int i = op.num_in++;
    op.in_name[i] = name;
    op.adds[i] = adds;
    op.n[i] = n;
    op.in[i] = random_floats(n, scale, r);
    op.din[i] = (floatX *)xcalloc(n + 64, sizeof(floatX));
    return op.in[i];
}

static void op_end(void) {
    for (int i = 0; i < op.num_in; i++) {
        free(op.in[i]);
        free(op.din[i]);
    }
    free(op.out);
    free(op.dout);
}

static double op_value(void (*forward)(void)) {
    forward();
    double sum = 0;
    for (size_t i = 0; i < op.nout; i++) sum += (double)op.out[i] * (double)op.dout[i];
    return sum;
}

/* f'(x) = (8 (f(x+h) - f(x-h)) - (f(x+2h) - f(x-2h))) / 12h + O(h^4). With h = 1e-3 of the input's scale both
   the h^4 term and the rounding of f (1e-16 / h) are below 1e-11 of the function's size, so 1e-8 of the largest
   gradient leaves room for ill-conditioned elements and none for a wrong formula. */
static void op_check(const char *name, double scale, void (*forward)(void), void (*backward)(void)) {
    forward();
    for (int k = 0; k < op.num_in; k++) { /* what stands there before: to be added to, or to be overwritten */
        for (size_t i = 0; i < op.n[k]; i++) op.din[k][i] = op.adds[k] ? (floatX)0.5 : (floatX)NAN;
    }
    backward();
    for (int k = 0; k < op.num_in; k++) {
        for (size_t i = 0; op.adds[k] && i < op.n[k]; i++) op.din[k][i] -= (floatX)0.5;
    }
    for (int k = 0; is_double && k < op.num_in; k++) {
        double largest = 1e-6, worst = 0;
        size_t worst_at = 0;
        for (size_t i = 0; i < op.n[k]; i++) largest = fmax(largest, fabs((double)op.din[k][i]));
        for (size_t i = 0; i < op.n[k]; i++) {
            floatX *x = &op.in[k][i], x0 = *x, h = (floatX)(1e-3 * scale);
            double f[4];
            const int at[4] = {1, -1, 2, -2};
            for (int j = 0; j < 4; j++) {
                *x = x0 + at[j] * h;
                f[j] = op_value(forward);
            }
            *x = x0;
            double numeric = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * (double)h);
            double error = fabs(numeric - (double)op.din[k][i]) / largest;
            if (!isfinite(error)) error = INFINITY;
            if (error > worst) {
                worst = error;
                worst_at = i;
            }
        }
        check(worst < 1e-8, "%s at scale %g: d%s[%zu] is off by %.2e of the largest", name, scale, op.in_name[k],
              worst_at, worst);
    }
    forward(); /* leaves the output of the inputs as they are */
}

static struct {
    int B, T, t0, Tc, C, OC, NH, NKV, HD, P, rows, V, Vp, layernorm, bias, accumulate;
    floatX *mean, *rstd, *cosine, *sine;
    int *tokens, *guesses;
} d; /* dimensions and saved values of the op under test */

static void f_embedding(void) { embedding_forward(op.out, d.tokens, op.in[0], op.in[1], d.B, d.T, d.t0, d.Tc, d.C); }
static void b_embedding(void) {
    embedding_backward(op.din[0], op.din[1], op.dout, d.tokens, d.B, d.T, d.t0, d.Tc, d.C);
}

static void test_embedding(void) {
    Rng r = rng_stream(1, 1, 1);
    d.B = 2, d.T = 9, d.t0 = 3, d.Tc = 5, d.C = 70;
    int tokens[18];
    for (int i = 0; i < 18; i++) tokens[i] = (int)rng_below(&r, 4); /* repeated ids: their gradients add up */
    d.tokens = tokens;
    op_begin((size_t)d.B * d.Tc * d.C, &r);
    const floatX *wte = op_input("wte", 4 * 70, 1, 1, &r), *wpe = op_input("wpe", 9 * 70, 1, 1, &r);
    op_check("embedding", 1, f_embedding, b_embedding);
    for (int b = 0; b < 2; b++) {
        for (int i = 0; i < 5 * 70; i++) {
            const int t = 3 + i / 70, c = i % 70;
            check(op.out[b * 5 * 70 + i] == wte[tokens[b * 9 + t] * 70 + c] + wpe[t * 70 + c],
                  "embedding: sequence %d, position %d, channel %d", b, t, c);
        }
    }
    op_end();
}

static void f_norm(void) {
    norm_forward(op.out, d.layernorm ? d.mean : NULL, d.rstd, op.in[0], op.in[1], d.layernorm ? op.in[2] : NULL, d.rows,
                 d.C, 1e-5);
}
static void b_norm(void) {
    norm_backward(op.din[0], op.din[1], d.layernorm ? op.din[2] : NULL, op.dout, op.in[0], op.in[1],
                  d.layernorm ? d.mean : NULL, d.rstd, d.rows, d.C, d.accumulate);
}

static void test_norm(void) {
    const double scales[] = {1e-2, 1, 100};
    for (int layernorm = 0; layernorm < 2; layernorm++) {
        for (int s = 0; s < 3; s++) {
            Rng r = rng_stream(2, layernorm, s);
            d.rows = 3, d.C = s == 1 ? 67 : 24, d.layernorm = layernorm, d.accumulate = s != 0;
            op_begin((size_t)d.rows * d.C, &r);
            op_input("x", (size_t)d.rows * d.C, scales[s], d.accumulate, &r);
            op_input("w", d.C, scales[s], 1, &r);
            if (layernorm) op_input("b", d.C, scales[s], 1, &r);
            d.mean = random_floats(d.rows, 0, &r);
            d.rstd = random_floats(d.rows, 0, &r);
            op_check(layernorm ? "layernorm" : "rmsnorm", scales[s], f_norm, b_norm);
            free(d.mean);
            free(d.rstd);
            op_end();
        }
    }
}

static void f_matmul(void) {
    matmul_forward(op.out, op.in[0], op.in[1], d.bias ? op.in[2] : NULL, d.rows, d.C, d.OC, 0);
}
static void b_matmul(void) {
    matmul_backward(op.din[0], op.din[1], d.bias ? op.din[2] : NULL, op.dout, op.in[0], op.in[1], d.rows, d.C, d.OC,
                    d.accumulate);
}

static void test_matmul(void) {
    const double scales[] = {1, 0.01, 100, 1};
    for (int s = 0; s < 4; s++) {
        Rng r = rng_stream(3, s, 0);
        d.rows = s == 0 ? 1 : 14, d.C = 9 + 8 * s, d.OC = 33 - s, d.bias = s & 1, d.accumulate = s >> 1;
        op_begin((size_t)d.rows * d.OC, &r);
        op_input("x", (size_t)d.rows * d.C, scales[s], d.accumulate, &r);
        op_input("w", (size_t)d.OC * d.C, scales[s], 1, &r);
        if (d.bias) op_input("bias", d.OC, scales[s], 1, &r);
        op_check("matmul", scales[s], f_matmul, b_matmul);
        op_end();
    }
}

static void f_rope(void) {
    memcpy(op.out, op.in[0], op.nout * sizeof(floatX));
    rope_forward(op.out, d.cosine, d.sine, d.B, d.Tc, d.NH, d.HD);
}
static void b_rope(void) {
    memcpy(op.din[0], op.dout, op.nout * sizeof(floatX));
    rope_backward(op.din[0], d.cosine, d.sine, d.B, d.Tc, d.NH, d.HD);
}

static void test_rope(void) {
    Rng r = rng_stream(4, 0, 0);
    d.B = 2, d.Tc = 5, d.NH = 3, d.HD = 10;
    d.cosine = random_floats(25, 0, &r);
    d.sine = random_floats(25, 0, &r);
    rope_table(d.cosine, d.sine, 1000003, d.Tc, d.HD, 10000);
    double angle = 1000005 * pow(10000, -2.0 * 3 / 10);
    check(fabs(d.cosine[2 * 5 + 3] - cos(angle)) < 1e-7 && fabs(d.sine[2 * 5 + 3] - sin(angle)) < 1e-7,
          "rope_table: position 1000005, pair 3");
    op_begin((size_t)d.B * d.Tc * d.NH * d.HD, &r);
    const floatX *x = op_input("x", op.nout, 1, 0, &r);
    op_check("rope", 1, f_rope, b_rope);
    /* channel i turns with channel i + HD/2, by + the angle, as Hugging Face's rotate_half has it */
    for (int i = 0; i < 5; i++) {
        const floatX *u = x + (size_t)(2 * 3 + 1) * 10, *v = op.out + (size_t)(2 * 3 + 1) * 10; /* token 2, head 1 */
        const double a = 1000005 * pow(10000, -2.0 * i / 10), want = (double)u[i] * cos(a) - (double)u[i + 5] * sin(a);
        const double other = (double)u[i + 5] * cos(a) + (double)u[i] * sin(a);
        check(fabs(v[i] - want) < 1e-6 && fabs(v[i + 5] - other) < 1e-6, "rope: pair %d is (%g, %g), not (%g, %g)", i,
              (double)v[i], (double)v[i + 5], want, other);
    }
    op_end();
    free(d.cosine);
    free(d.sine);
}

static void f_gelu(void) { gelu_forward(op.out, op.in[0], op.nout); }
static void b_gelu(void) { gelu_backward(op.din[0], op.dout, op.in[0], op.nout); }
static void f_swiglu(void) { swiglu_forward(op.out, op.in[0], op.in[1], op.nout); }
static void b_swiglu(void) { swiglu_backward(op.din[0], op.din[1], op.dout, op.in[0], op.in[1], op.nout); }

static void test_activation(void) {
    const double scales[] = {0.01, 1, 20};
    for (int s = 0; s < 3; s++) {
        Rng r = rng_stream(5, s, 0);
        op_begin(45, &r);
        op_input("up", 45, scales[s], 0, &r);
        /* the fifth derivative of a sigmoid is of order 1 whatever the input's scale: keep h small */
        op_check("gelu", fmin(scales[s], 1), f_gelu, b_gelu);
        op_end();
        op_begin(45, &r);
        const floatX *gate = op_input("gate", 45, scales[s], 0, &r), *up = op_input("up", 45, scales[s], 0, &r);
        op_check("swiglu", fmin(scales[s], 1), f_swiglu, b_swiglu);
        for (int i = 0; i < 45; i++) {
            const double want = (double)gate[i] / (1 + exp(-(double)gate[i])) * (double)up[i];
            check(fabs(op.out[i] - want) < (is_double ? 1e-13 : 1e-6) * (1 + fabs(want)), "swiglu: %.9g, not %.9g",
                  (double)op.out[i], want);
        }
        op_end();
    }
    /* the tanh form, by its textbook formula; erf's differs by up to 5e-4 */
    const double tolerance = is_double ? 1e-14 : 1e-6;
    for (double x = -6; x <= 6; x += 0.125) {
        floatX in = (floatX)x, out;
        gelu_forward(&out, &in, 1);
        double want = 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        check(fabs(out - want) < tolerance, "gelu(%g) is %.9g, not %.9g", x, (double)out, want);
    }
    const floatX far[] = {-1e4f, -100, 100, 1e4f};
    floatX out[4], one[4] = {1, 1, 1, 1}, dg[4], du[4];
    gelu_forward(out, far, 4);
    check(out[0] == 0 && out[1] == 0 && out[2] == 100 && out[3] == (floatX)1e4f, "gelu far from zero: %g %g %g %g",
          (double)out[0], (double)out[1], (double)out[2], (double)out[3]);
    swiglu_forward(out, far, one, 4);
    check(fabs(out[0]) < 1e-30 && fabs(out[1]) < 1e-30 && out[3] == (floatX)1e4f, "swiglu far from zero");
    swiglu_backward(dg, du, one, far, one, 4);
    check(fabs(dg[0]) < 1e-30 && dg[3] == 1 && du[3] == (floatX)1e4f, "swiglu_backward far from zero");
}

static void f_classifier(void) {
    static floatX logits[8 * 64];
    memcpy(logits, op.in[0], (size_t)d.rows * d.Vp * sizeof(floatX));
    classifier(op.out, d.guesses, logits, d.tokens, d.rows, d.V, d.Vp, 0);
}
static void b_classifier(void) {
    floatX losses[8];
    memcpy(op.din[0], op.in[0], (size_t)d.rows * d.Vp * sizeof(floatX));
    classifier(losses, d.guesses, op.din[0], d.tokens, d.rows, d.V, d.Vp, (floatX)0.25);
}

static void test_classifier(void) {
    const double scales[] = {0.1, 1, 30};
    for (int s = 0; s < 3; s++) {
        Rng r = rng_stream(6, s, 0);
        int targets[8] = {3, TARGET_MASKED, 0, 40, 17, TARGET_MASKED, 5, 5}, guesses[8];
        d.rows = 8, d.V = 41, d.Vp = 64, d.tokens = targets, d.guesses = guesses;
        op_begin(8, &r);
        for (int i = 0; i < 8; i++) op.dout[i] = (floatX)0.25;
        floatX *logits = op_input("logits", 8 * 64, scales[s], 0, &r);
        for (int row = 0; row < 8; row++) {
            for (int c = 41; c < 64; c++) logits[row * 64 + c] = 1000; /* padding must not be seen */
        }
        op_check("classifier", fmin(scales[s], 1), f_classifier, b_classifier);
        for (int row = 0; row < 8; row++) { /* the loss by its formula */
            double top = -INFINITY, sum = 0;
            for (int c = 0; c < 41; c++) top = fmax(top, (double)logits[row * 64 + c]);
            for (int c = 0; c < 41; c++) sum += exp((double)logits[row * 64 + c] - top);
            const double want =
                targets[row] == TARGET_MASKED ? 0 : top + log(sum) - (double)logits[row * 64 + targets[row]];
            check(fabs(op.out[row] - want) < (is_double ? 1e-12 : 2e-6 * (1 + fabs(top))),
                  "classifier: loss of row %d is %.9g, not %.9g", row, (double)op.out[row], want);
        }
        check(guesses[1] == -1 && op.out[1] == 0 && op.din[0][64] == 0,
              "classifier: a masked row has no loss, gradient or guess");
        int best = 0;
        for (int c = 1; c < 41; c++) best = logits[c] > logits[best] ? c : best;
        check(guesses[0] == best, "classifier: guess %d, not %d", guesses[0], best);
        op_end();
    }
}

/* Attention of a chunk at t0 over pages. Inputs: q (B, Tc, NH, HD) of the chunk; k, v (B, end, NKV, HD) of all tokens up to
   its end, which go into pages. Slots are handed out so that a sequence's pages lie scattered, and every pool
   starts as NaN. */
static struct {
    floatX *kpages, *vpages, *dkpages, *dvpages, *lse, *delta, *scratch;
    PageTable pages;
    size_t pool;
} at;

static void attention_begin(int B, int t0, int Tc, int NH, int NKV, int HD, int P, double scale, Rng *r) {
    d.B = B, d.t0 = t0, d.Tc = Tc, d.NH = NH, d.NKV = NKV, d.HD = HD, d.P = P;
    const int end = t0 + Tc, NP = (int)ceil_div(end, P);
    pages_init(&at.pages, 1, B, NP, P, B * NP, B * NP);
    for (int p = NP - 1; p >= 0; p--) {
        for (int b = 0; b < B; b++) page_alloc(&at.pages, 0, b, p);
    }
    pages_alloc_grad_range(&at.pages, 0, 0, NP);
    at.pool = (size_t)B * NP * NKV * P * HD;
    floatX **pools[] = {&at.kpages, &at.vpages, &at.dkpages, &at.dvpages};
    for (int i = 0; i < 4; i++) {
        *pools[i] = random_floats(at.pool, 0, r);
        memset(*pools[i], 0xFF, at.pool * sizeof(floatX));
    }
    at.lse = random_floats((size_t)B * NH * Tc, 0, r);
    at.delta = random_floats((size_t)B * NH * Tc, 0, r);
    at.scratch = random_floats(attention_scratch_size(P, NH / NKV, HD) * max_threads(), 0, r);
    op_begin((size_t)B * Tc * NH * HD, r);
    op_input("q", op.nout, scale, 0, r);
    op_input("k", (size_t)B * end * NKV * HD, scale, 0, r);
    op_input("v", (size_t)B * end * NKV * HD, 1, 0, r);
}

static void attention_end(void) {
    pages_destroy(&at.pages);
    floatX *all[] = {at.kpages, at.vpages, at.dkpages, at.dvpages, at.lse, at.delta, at.scratch};
    for (int i = 0; i < 7; i++) free(all[i]);
    op_end();
}

static void f_attention(void) {
    page_write(at.kpages, at.vpages, op.in[1], op.in[2], &at.pages, 0, 0, d.t0 + d.Tc, d.NKV, d.HD);
    attention_forward(op.out, at.lse, op.in[0], at.kpages, at.vpages, &at.pages, 0, d.t0, d.Tc, d.NH, d.NKV, d.HD,
                      at.scratch);
}

static void b_attention(void) {
    memset(at.pages.dkv_fresh, 1, (size_t)d.B * at.pages.max_NP);
    attention_backward(op.din[0], at.dkpages, at.dvpages, at.delta, op.dout, op.out, at.lse, op.in[0], at.kpages,
                       at.vpages, &at.pages, 0, 0, d.t0, d.Tc, d.NH, d.NKV, d.HD, at.scratch);
    page_read(op.din[1], op.din[2], at.dkpages, at.dvpages, &at.pages, at.pages.dkv_slot, 0, 0, d.t0 + d.Tc, d.NKV,
              d.HD);
}

/* {B, t0, Tc, NH, NKV, HD, P}: GQA ratios 1, 2, 3, 7, 8; head sizes with and without padding; a short last page; a page
   larger than the chunk's rows; chunks deep in the sequence and at its start; a group of over ATTENTION_ROWS heads. */
static const int attention_shapes[][7] = {
    {2, 0, 11, 2, 2, 6, 4},   {1, 12, 7, 2, 1, 8, 4},  {2, 6, 9, 6, 2, 4, 3},  {1, 8, 9, 7, 1, 2, 8},
    {1, 10, 5, 3, 1, 40, 5},  {1, 0, 70, 1, 1, 4, 16}, {1, 3, 3, 4, 4, 16, 1}, {1, 16, 5, 2, 1, 64, 16},
    {1, 64, 3, 70, 1, 2, 32}, {2, 4, 6, 16, 2, 4, 4},
};

static void test_attention_gradient(void) {
    const double scales[] = {0.3, 1, 3};
    for (int i = 0; i < COUNT(attention_shapes); i++) {
        for (int s = 0; s < 3; s++) {
            const int *a = attention_shapes[i];
            Rng r = rng_stream(7, i, s);
            char name[96];
            snprintf(name, sizeof name, "attention B%d t0 %d Tc %d NH %d NKV %d HD %d P %d", a[0], a[1], a[2], a[3],
                     a[4], a[5], a[6]);
            attention_begin(a[0], a[1], a[2], a[3], a[4], a[5], a[6], scales[s], &r);
            op_check(name, scales[s] / 3, f_attention, b_attention);
            attention_end();
        }
    }
}

/* The forward against the formula, in double with a full row of scores. `scale` up to scores of 6e4 and more: an online
   softmax that forgets its maximum overflows there. In float a score s of size S carries an error of about
   S * sqrt(HD) * 2^-24, which moves the weights by as much; 8 times that is the bound, and 1e-6 where S is small. */
static void test_attention_forward(void) {
    const double scales[] = {1, 8, 250};
    double largest_of_all = 0;
    for (int i = 0; i < COUNT(attention_shapes); i++) {
        for (int s = 0; s < 3; s++) {
            const int *a = attention_shapes[i];
            Rng r = rng_stream(8, i, s);
            attention_begin(a[0], a[1], a[2], a[3], a[4], a[5], a[6], scales[s], &r);
            f_attention();
            const int end = d.t0 + d.Tc, G = d.NH / d.NKV;
            double worst = 0, largest = 1, *score = (double *)xcalloc(end, sizeof(double));
            for (int row = 0; row < d.B * d.Tc * d.NH; row++) {
                const int h = row % d.NH, t = row / d.NH % d.Tc, b = row / d.NH / d.Tc, seen = d.t0 + t + 1;
                double top = -INFINITY, sum = 0;
                for (int j = 0; j < seen; j++) {
                    double x = 0;
                    for (int c = 0; c < d.HD; c++)
                        x += (double)op.in[0][(size_t)row * d.HD + c] *
                             op.in[1][(((size_t)b * end + j) * d.NKV + h / G) * d.HD + c];
                    score[j] = x / sqrt(d.HD);
                    top = fmax(top, score[j]);
                    largest = fmax(largest, fabs(score[j]));
                }
                for (int j = 0; j < seen; j++) sum += exp(score[j] - top);
                for (int c = 0; c < d.HD; c++) {
                    double want = 0;
                    for (int j = 0; j < seen; j++)
                        want +=
                            exp(score[j] - top) / sum * op.in[2][(((size_t)b * end + j) * d.NKV + h / G) * d.HD + c];
                    worst = fmax(worst, fabs((double)op.out[(size_t)row * d.HD + c] - want));
                    if (!isfinite(op.out[(size_t)row * d.HD + c])) worst = INFINITY;
                }
                double lse = at.lse[((size_t)b * d.NH + h) * d.Tc + t];
                worst = isfinite(lse) ? fmax(worst, fabs(lse - top - log(sum)) / largest) : INFINITY;
            }
            largest_of_all = fmax(largest_of_all, largest);
            double bound = is_double ? 1e-9 : 1e-6 + 8 * largest * sqrt(d.HD) * 6e-8;
            check(worst < bound, "shape %d, scores up to %.3g: off by %.2e, bound %.2e", i, largest, worst, bound);
            b_attention();
            for (size_t k = 0; k < op.nout; k++) worst = isfinite(op.din[0][k]) ? worst : INFINITY;
            for (size_t k = 0; k < op.n[1]; k++)
                worst = isfinite(op.din[1][k]) && isfinite(op.din[2][k]) ? worst : INFINITY;
            check(isfinite(worst), "shape %d, scores up to %.3g: a gradient is not finite", i, largest);
            free(score);
            attention_end();
        }
    }
    check(largest_of_all > 6e4, "the largest score was %g only", largest_of_all);
}

/* AdamW against its definition, three steps, in double. */
static void test_adamw(void) {
    Rng r = rng_stream(9, 0, 0);
    floatX *w = random_floats(70, 1, &r), *m = random_floats(70, 0, &r), *v = random_floats(70, 0, &r),
           *g = random_floats(70, 1, &r);
    double w0[70], m0[70] = {0}, v0[70] = {0};
    for (int i = 0; i < 70; i++) w0[i] = w[i];
    for (int step = 1; step <= 3; step++) {
        adamw_update(w, m, v, g, 70, 0.01, 0.1, 0.5, step);
        for (int i = 0; i < 70; i++) {
            double gi = 0.5 * (double)g[i];
            m0[i] = 0.9 * m0[i] + 0.1 * gi;
            v0[i] = 0.95 * v0[i] + 0.05 * gi * gi;
            w0[i] -= 0.01 * 0.1 * w0[i] +
                     0.01 * (m0[i] / (1 - pow(0.9, step))) / (sqrt(v0[i] / (1 - pow(0.95, step))) + 1e-8);
            check(fabs(w[i] - w0[i]) < (is_double ? 1e-13 : 2e-6), "step %d: w[%d] is %.9g, not %.9g", step, i,
                  (double)w[i], w0[i]);
        }
    }
    free(w), free(m), free(v), free(g);
}

// ----------------------------------------------------------------------------------------------
// the CPU's building blocks

/* vec_exp within 2 ulp of double's exp over all of float's range; exact at the ends. */
static void test_vec_exp(void) {
    double worst = 0, worst_at = 0;
    for (int i = 0; !is_double && i < 3000000; i++) {
        float x = (float)(-87.29 + i * (87.29 + 88.69) / 3e6);
        double want = exp((double)x), got = vec_exp(vec_set(x))[VL - 1];
        float near = (float)want;
        double error = fabs(got - want) / (double)(nextafterf(near, INFINITY) - near);
        if (error > worst) worst = error, worst_at = x;
    }
    check(worst <= 2, "vec_exp(%g) is %.2f ulp off", worst_at, worst);
    vecX ends = vec_exp(vec_set(-INFINITY));
    check(ends[0] == 0, "exp(-inf) is %g", (double)ends[0]);
    check(vec_exp(vec_set(INFINITY))[0] == (floatX)INFINITY, "exp(inf)");
    check(vec_exp(vec_set(0))[0] == 1, "exp(0)");
    check(isnan(vec_exp(vec_set((floatX)NAN))[0]), "exp(NaN) must stay NaN");
}

/* gemm against three loops in double: all transposes, sizes around the register tile and the cache blocks. In
   float an element is a chain of K multiply-adds of terms of size 1: error below K * 2^-24 per unit, times 2. */
static void test_gemm(void) {
    const int sizes[][3] = {{1, 1, 1},    {1, 50, 7},    {13, 33, 20},  {12, 64, 256},
                            {31, 7, 300}, {200, 40, 33}, {5, 530, 257}, {67, 65, 1}};
    for (int i = 0; i < COUNT(sizes); i++) {
        const int M = sizes[i][0], N = sizes[i][1], K = sizes[i][2];
        for (int mode = 0; mode < 8; mode++) {
            const int ta = mode & 1, tb = mode >> 1 & 1, beta = mode >> 2;
            Rng r = rng_stream(10, i, mode);
            const size_t lda = (ta ? M : K) + 3, ldb = (tb ? K : N) + 1, ldc = N + 2;
            floatX *A = random_floats((ta ? K : M) * lda, 1, &r), *B = random_floats((tb ? N : K) * ldb, 1, &r),
                   *C = random_floats(M * ldc, 1, &r);
            double *want = (double *)xcalloc((size_t)M * N, sizeof(double)), worst = 0;
            for (int m = 0; m < M; m++) {
                for (int n = 0; n < N; n++) {
                    double sum = 0;
                    for (int k = 0; k < K; k++)
                        sum += (double)A[ta ? k * lda + m : m * lda + k] * (double)B[tb ? n * ldb + k : k * ldb + n];
                    want[(size_t)m * N + n] = 0.5 * sum + (beta ? (double)C[m * ldc + n] : 0);
                    if (!beta) C[m * ldc + n] = (floatX)NAN; /* beta = 0 must not read C */
                }
            }
            floatX outside = C[N];
            gemm(ta, tb, M, N, K, (floatX)0.5, A, lda, B, ldb, (floatX)beta, C, ldc);
            for (int m = 0; m < M; m++) {
                for (int n = 0; n < N; n++)
                    worst = fmax(worst, isnan(C[m * ldc + n]) ? INFINITY
                                                              : fabs((double)C[m * ldc + n] - want[(size_t)m * N + n]));
            }
            double bound = is_double ? 1e-13 * K : 2 * 6e-8 * K + 1e-6;
            check(worst < bound, "gemm %d x %d x %d, ta %d, tb %d, beta %d: off by %.2e", M, N, K, ta, tb, beta, worst);
            check(memcmp(&outside, &C[N], sizeof outside) == 0, "gemm %d x %d x %d wrote between the rows of C", M, N,
                  K);
            free(A), free(B), free(C), free(want);
        }
    }
}

/* An element's bits depend on its row, its column and K alone: any part of the product equals the whole. */
static void test_gemm_bits(void) {
    Rng r = rng_stream(11, 0, 0);
    const int M = 61, N = 93, K = 300;
    floatX *A = random_floats((size_t)M * K, 1, &r), *B = random_floats((size_t)K * N, 1, &r);
    floatX *C = random_floats((size_t)M * N, 0, &r), *D = random_floats((size_t)M * N, 0, &r);
    gemm(0, 0, M, N, K, 1, A, K, B, N, 0, C, N);
    for (int trial = 0; trial < 30; trial++) {
        int m = (int)rng_below(&r, M), n = (int)rng_below(&r, N), h = 1 + (int)rng_below(&r, M - m),
            w = 1 + (int)rng_below(&r, N - n);
        gemm(0, 0, h, w, K, 1, A + (size_t)m * K, K, B + n, N, 0, D, N);
        for (int i = 0; i < h; i++)
            check(memcmp(D + i * N, C + (size_t)(m + i) * N + n, w * sizeof(floatX)) == 0,
                  "rows %d+%d, columns %d+%d: row %d differs", m, h, n, w, i);
    }
    free(A), free(B), free(C), free(D);
}

// ----------------------------------------------------------------------------------------------
// models: the whole gradient

typedef enum { FAMILY_GPT2, FAMILY_LLAMA, FAMILY_QWEN2, FAMILY_QWEN3, NUM_FAMILIES } Family;
static const char *const family_names[] = {"gpt2", "llama", "qwen2", "qwen3"};

/* Tiny models of every family: three layers, odd sizes, a head size that does not follow from C, padded vocabulary.
   qwen3 has QKV biases too, which the real one has not, and an untied head. */
static ModelConfig tiny_config(Family family, int G) {
    ModelConfig m;
    memset(&m, 0, sizeof m);
    m.V = 37, m.Vp = 64, m.L = 3, m.C = 10, m.NKV = G >= 7 ? 1 : 2, m.NH = m.NKV * G, m.HD = 6, m.F = 14;
    m.norm = family == FAMILY_GPT2 ? NORM_LAYERNORM : NORM_RMSNORM;
    m.pos = family == FAMILY_GPT2 ? POS_LEARNED : POS_ROPE;
    m.mlp = family == FAMILY_GPT2 ? MLP_GELU : MLP_SWIGLU;
    m.max_T = family == FAMILY_GPT2 ? 128 : 0;
    m.bias = family == FAMILY_GPT2;
    m.qkv_bias = family != FAMILY_LLAMA;
    m.qk_norm = family == FAMILY_QWEN3;
    m.tied = family != FAMILY_QWEN3;
    m.norm_eps = 1e-5, m.rope_theta = 100, m.init_std = 0.4;
    return m;
}

static TrainConfig tiny_run(int T, int B, int chunk_size, int P) {
    TrainConfig run = train_config(&presets[0]);
    run.T = T, run.B = B, run.chunk_size = chunk_size, run.P = P, run.grad_accum = 1;
    return run;
}

/* A model with weights of every kind away from 0 and 1, a batch with masked targets, everything allocated. */
typedef struct {
    Model m;
    Memory mem;
    Batch batch;
    Progress progress;
} Trial;

static Trial *trial_new(const ModelConfig *config, const TrainConfig *run) {
    Trial *t = (Trial *)xcalloc(1, sizeof(Trial));
    model_alloc(&t->m, &t->mem, config, run);
    batch_alloc(&t->batch, &t->mem, config, run);
    memory_poison(&t->mem);
    model_init(&t->m, 7);
    Rng r = rng_stream(12, 0, 0);
    for (int id = 0; id < NUM_TENSORS; id++) { /* biases and norm weights too */
        for (int l = 0; l < tensor_copies(t->m.tensors, config->L, id); l++) {
            floatX *w = tensor(&t->m, t->m.params, (TensorId)id, l);
            for (size_t i = 0; !t->m.tensors[id].decay && i < tensor_size(t->m.tensors, id); i++)
                w[i] += (floatX)(0.3 * rng_normal(&r));
        }
    }
    for (size_t i = 0; i < t->m.num_params; i++)
        t->m.params[i] = (floatX)(float)t->m.params[i]; /* the same in both builds */
    for (size_t i = 0; i < t->batch.per_batch * run->grad_accum; i++) {
        t->batch.inputs[i] = (int)rng_below(&r, config->V);
        t->batch.targets[i] = rng_below(&r, 5) == 0 ? TARGET_MASKED : (int)rng_below(&r, config->V);
    }
    return t;
}

static void trial_free(Trial *t) {
    model_free(&t->m);
    memory_free_all(&t->mem);
    free(t);
}

static double trial_gradients(Trial *t) { return step_gradients(&t->m, &t->batch, &t->progress); }

static double largest_of(const floatX *g, size_t n) {
    double x = 0;
    for (size_t i = 0; i < n; i++) x = fmax(x, fabs((double)g[i]));
    return x;
}

/* Largest difference of two gradients, tensor by tensor, relative to the tensor's largest element. A bias is measured
   with its matrix, of which it is one more column (with input 1): alone, bk without RoPE has a gradient of
   exactly zero, because a constant added to all keys leaves a softmax as it is. Names the worst tensor. */
static double gradient_difference(const Model *m, const floatX *a, const floatX *b, const char **name) {
    double worst = 0;
    *name = "none";
    for (int id = 0; id < NUM_TENSORS; id++) {
        const size_t n = tensor_size(m->tensors, id);
        for (int l = 0; l < tensor_copies(m->tensors, m->config.L, id); l++) {
            const size_t o = tensor_offset(m->tensors, m->config.L, id, l);
            double largest = fmax(largest_of(b + o, n), 1e-30), off = 0;
            if (m->tensors[id].name[0] == 'b')
                largest = fmax(largest, largest_of(b + tensor_offset(m->tensors, m->config.L, id - 1, l),
                                                   tensor_size(m->tensors, id - 1)));
            for (size_t i = 0; i < n; i++)
                off = isfinite(a[o + i]) && isfinite(b[o + i]) ? fmax(off, fabs((double)a[o + i] - (double)b[o + i]))
                                                               : INFINITY;
            if (off / largest > worst) worst = off / largest, *name = m->tensors[id].name;
        }
    }
    return worst;
}

/* The one-chunk run against the loss itself: every tensor of every layer, along a random direction and at two single
   elements, by 4-point differences. A step has length 2e-4 whatever the tensor's size: the loss is of order 1, so its
   rounding enters as 1e-16 / h = 1e-11, and the h^4 term stays below that. */
static void test_model_gradient(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        const int ratios[] = {1, 2, 3, 7, 8};
        for (int g = 0; g < 5; g++) {
            const int G = ratios[g];
            const ModelConfig config = tiny_config((Family)family, G);
            const TrainConfig run = tiny_run(21, 2, 21 * 8, 8);
            Trial *t = trial_new(&config, &run);
            Model *m = &t->m;
            trial_gradients(t);
            floatX *g = (floatX *)xcalloc(m->num_params, sizeof(floatX)),
                   *w0 = (floatX *)xcalloc(m->num_params, sizeof(floatX));
            memcpy(g, m->grads, m->num_params * sizeof(floatX));
            memcpy(w0, m->params, m->num_params * sizeof(floatX));
            const double scored = (double)count_scored(t->batch.targets, t->batch.per_batch);
            Rng r = rng_stream(13, family, G);
            for (int id = 0; id < NUM_TENSORS; id++) {
                const size_t n = tensor_size(m->tensors, id);
                for (int l = 0; l < tensor_copies(m->tensors, config.L, id); l++) {
                    const size_t o = tensor_offset(m->tensors, config.L, id, l);
                    for (int trial = 0; trial < 3; trial++) {
                        floatX *dir = random_floats(n, 1, &r);
                        size_t one = rng_below(&r, id == WTE || id == WHEAD ? (size_t)config.V * config.C : n);
                        for (size_t i = 0; trial && i < n; i++) dir[i] = i == one;
                        double slope = 0, f[4];
                        for (size_t i = 0; i < n; i++) slope += (double)dir[i] * (double)g[o + i];
                        const double h = 2e-4 / sqrt((double)vec_dot(dir, dir, n));
                        const int step[4] = {1, -1, 2, -2};
                        for (int j = 0; j < 4; j++) {
                            for (size_t i = 0; i < n; i++)
                                m->params[o + i] = w0[o + i] + (floatX)(step[j] * h) * dir[i];
                            f[j] = sequence_step(m, t->batch.inputs, t->batch.targets, 0, 0, NULL, NULL, &t->progress) /
                                   scored;
                        }
                        memcpy(m->params + o, w0 + o, n * sizeof(floatX));
                        double numeric = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
                        check(fabs(numeric - slope) < 1e-8 * (1 + fabs(slope)),
                              "%s G %d: %s of layer %d: difference %.12g, gradient %.12g", family_names[family], G,
                              m->tensors[id].name, l, numeric, slope);
                        free(dir);
                    }
                }
            }
            free(g), free(w0);
            trial_free(t);
        }
    }
}

/* Every schedule against the one-chunk, one-page run: chunk {P, 2P, 3P, 5P, >= T} x P {1, 7, 16} x T {below one page, odd,
   multiple of all, one more} x families x GQA ratios. double: 1e-10. float: a gradient is a sum of at most B * T terms
   that went through some 30 roundings each; two orders of the same sum differ by a few sqrt(B T) * 2^-24 of its largest
   element when terms do not cancel, and we allow a factor 20 for those that do: 20 * sqrt(194) * 6e-8 = 1.7e-5. The
   scale in gradient_difference is the largest element, so this is tight: a missing page shows up at 1e-2. */
static void test_schedule_sweep(void) {
    const int pages[] = {1, 7, 16}, ratios[] = {1, 2, 3, 7};
    const double bound = is_double ? 1e-10 : 1.7e-5;
    double worst_of_all = 0;
    for (int family = 0; family < NUM_FAMILIES; family++) {
        for (int g = 0; g < 4; g++) {
            for (int p = 0; p < 3; p++) {
                const int P = pages[p], lengths[] = {P > 1 ? P - 1 : 1, (5 * P + P / 2) | 1, 6 * P, 6 * P + 1};
                for (int i = 0; i < 4; i++) {
                    const int T = lengths[i], chunks[] = {P, 2 * P, 3 * P, 5 * P, (int)round_up(T, P)};
                    const ModelConfig config = tiny_config((Family)family, ratios[g]);
                    TrainConfig run = tiny_run(T, 2, T, T);
                    Trial *ref = trial_new(&config, &run);
                    const double loss = trial_gradients(ref);
                    floatX *each = random_floats(2 * T, 0, &(Rng){1}), *ref_each = random_floats(2 * T, 0, &(Rng){1});
                    sequence_step(&ref->m, ref->batch.inputs, ref->batch.targets, 0, 0, ref_each, NULL, &ref->progress);
                    for (int c = 0; c < 5; c++) {
                        run = tiny_run(T, 2, chunks[c], P);
                        Trial *t = trial_new(&config, &run);
                        const char *name;
                        const double l = trial_gradients(t),
                                     off = gradient_difference(&t->m, t->m.grads, ref->m.grads, &name);
                        worst_of_all = fmax(worst_of_all, off);
                        check(off < bound && fabs(l - loss) < bound,
                              "%s G %d, T %d, chunk %d, page %d: %s off by %.2e, loss %.12g, not %.12g",
                              family_names[family], ratios[g], T, chunks[c], P, name, off, l, loss);
                        check(pages_in_use(&t->m.pages) == 0, "pages left in use");
                        sequence_step(&t->m, t->batch.inputs, t->batch.targets, 0, 0, each, NULL, &t->progress);
                        double token = 0;
                        for (int k = 0; k < 2 * T; k++)
                            token = fmax(token, fabs((double)each[k] - (double)ref_each[k]));
                        check(token < bound, "%s G %d, T %d, chunk %d, page %d: a token's loss is off by %.2e",
                              family_names[family], ratios[g], T, chunks[c], P, token);
                        trial_free(t);
                    }
                    free(each), free(ref_each);
                    trial_free(ref);
                }
            }
        }
    }
    printf("    worst difference from the one-chunk run: %.2e (bound %.1e)\n", worst_of_all, bound);
}

/* T = 2049, chunk 512: the target at each chunk's edge is scored once, with the whole sequence's gradient. */
static void test_chunk_edges(void) {
    ModelConfig config = tiny_config(FAMILY_LLAMA, 2);
    config.L = 2;
    TrainConfig run = tiny_run(2048, 1, 2048, 64);
    Trial *one = trial_new(&config, &run);
    run.chunk_size = 512;
    Trial *four = trial_new(&config, &run);
    run.chunk_size = 448; /* a short last chunk */
    Trial *five = trial_new(&config, &run);
    const char *name;
    const double loss = trial_gradients(one), l4 = trial_gradients(four), l5 = trial_gradients(five);
    /* float: the argument of schedule_sweep with T = 2048 terms: 20 * sqrt(2048) * 6e-8 */
    const double bound = is_double ? 1e-10 : 5.4e-5,
                 off4 = gradient_difference(&one->m, four->m.grads, one->m.grads, &name),
                 off5 = gradient_difference(&one->m, five->m.grads, one->m.grads, &name);
    check(fabs(l4 - loss) < bound && fabs(l5 - loss) < bound && off4 < bound && off5 < bound,
          "losses %.12g, %.12g, %.12g; gradients off by %.2e, %.2e", loss, l4, l5, off4, off5);
    trial_free(one), trial_free(four), trial_free(five);
}

/* The float program against the double one, over the same weights and tokens: the double build of this file prints its
   gradient, this one reads it. Bound: as between two orders of a sum (schedule_sweep), for the errors are the same kind. */
#ifndef DOUBLE_TESTS
#define DOUBLE_TESTS "./test_oomb_double"
#endif

static Trial *reference_trial(int family) {
    const ModelConfig config = tiny_config((Family)family, 3);
    const TrainConfig run = tiny_run(97, 2, 32, 16);
    return trial_new(&config, &run);
}

static int print_gradient(int family) {
    Trial *t = reference_trial(family);
    printf("%.17g\n", trial_gradients(t));
    for (size_t i = 0; i < t->m.num_params; i++) printf("%.17g\n", (double)t->m.grads[i]);
    trial_free(t);
    return 0;
}

static void test_float_against_double(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        char command[200];
        snprintf(command, sizeof command, "%s --print-gradient %d", DOUBLE_TESTS, family);
        FILE *p = popen(command, "r");
        if (!p) die("popen: %s", strerror(errno));
        Trial *t = reference_trial(family);
        const double loss = trial_gradients(t);
        double want = NAN, worst = 0;
        int read = fscanf(p, "%lf", &want) == 1;
        check(read && fabs(loss - want) < 1e-6 * want, "%s: loss %.9g, in double %.12g", family_names[family], loss,
              want);
        floatX *g = (floatX *)xcalloc(t->m.num_params, sizeof(floatX));
        for (size_t i = 0; i < t->m.num_params; i++) {
            read &= fscanf(p, "%lf", &want) == 1;
            g[i] = (floatX)want;
        }
        const char *name;
        worst = gradient_difference(&t->m, t->m.grads, g, &name);
        check(pclose(p) == 0 && read, "%s: cannot read the gradient of %s; `make test_oomb_double` first",
              family_names[family], command);
        check(worst < 1.7e-5, "%s: %s is off by %.2e from double", family_names[family], name, worst);
        printf("    %s: float is off by %.2e from double\n", family_names[family], worst);
        free(g);
        trial_free(t);
    }
}

/* Runs the same step twice, the second time changed; every bit of loss and gradient must be the same. */
static void check_same_bits(const char *what, Trial *a, Trial *b) {
    const double la = trial_gradients(a), lb = trial_gradients(b);
    check(isfinite(la) && la == lb, "%s: loss %.17g against %.17g", what, la, lb);
    check(isfinite(grad_norm(a->m.norm_partial, a->m.grads, a->m.num_params)), "%s: the gradient is not finite", what);
    check(memcmp(a->m.grads, b->m.grads, a->m.num_params * sizeof(floatX)) == 0, "%s: gradients differ", what);
}

static void test_bits_recompute(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        const ModelConfig config = tiny_config((Family)family, 2);
        for (int chunk = 8; chunk <= 128; chunk *= 4) {
            TrainConfig run = tiny_run(97, 2, chunk, 8);
            Trial *a = trial_new(&config, &run);
            run.recompute = RECOMPUTE_LAYER;
            Trial *b = trial_new(&config, &run);
            check_same_bits(family_names[family], a, b);
            /* recomputing takes no page twice: every pool was filled to the last slot and no further */
            const PageTable *pa = &a->m.pages, *pb = &b->m.pages;
            check(pa->kv.peak == pa->kv.capacity && pa->dkv.peak == pa->dkv.capacity &&
                      pb->kv.peak == pb->kv.capacity && pb->dkv.peak == pb->dkv.capacity &&
                      pa->kv.capacity == config.L * 2 * 13,
                  "chunk %d: K, V peak %d of %d, dK, dV peak %d of %d", chunk, pa->kv.peak, pa->kv.capacity,
                  pa->dkv.peak, pa->dkv.capacity);
            trial_free(a), trial_free(b);
        }
    }
}

/* Large enough that every parallel loop and every matrix product is divided between threads (see FEW, and gemm). */
static void test_bits_threads(void) {
    set_threads(2);
    if (max_threads() == 1) printf("    skipped: built without OpenMP\n");
    for (int family = 0; family < NUM_FAMILIES && max_threads() > 1; family++) {
        ModelConfig config = tiny_config((Family)family, 2);
        config.C = 96, config.F = 200, config.V = 301, config.Vp = 320, config.HD = 32, config.L = 2, config.max_T *= 8;
        const TrainConfig run = tiny_run(613, 2, 320, 16);
        check(2 * 320 * config.NKV * config.HD > FEW, "the smallest loop is not divided: raise its size with FEW");
        set_threads(1);
        Trial *a = trial_new(&config, &run);
        trial_gradients(a);
        const double norm = step_update(&a->m, 0.01, 0.1, 1, 1);
        const int counts[] = {2, 4, 7};
        for (int i = 0; i < 3; i++) {
            set_threads(counts[i]);
            Trial *b = trial_new(&config, &run);
            trial_gradients(b);
            check(memcmp(a->m.grads, b->m.grads, a->m.num_params * sizeof(floatX)) == 0, "%s: %d threads differ from 1",
                  family_names[family], counts[i]);
            check(norm == step_update(&b->m, 0.01, 0.1, 1, 1), "%s: grad_norm with %d threads", family_names[family],
                  counts[i]);
            check(memcmp(a->m.params, b->m.params, a->m.num_params * sizeof(floatX)) == 0,
                  "%s: the update with %d threads differs", family_names[family], counts[i]);
            trial_free(b);
        }
        trial_free(a);
    }
    set_threads(1);
}

/* Nothing that is not written in a step may reach its result: all scratch and all pages are NaN before it. */
static void test_bits_poison(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        for (int carry = CARRY_EXACT; carry <= CARRY_NONE; carry++) {
            const ModelConfig config = tiny_config((Family)family, 3);
            TrainConfig run = tiny_run(45, 2, 16, 8);
            run.carry = carry;
            Trial *a = trial_new(&config, &run), *b = trial_new(&config, &run);
            for (size_t i = 0; i < b->m.num_params; i++) b->m.grads[i] = (floatX)NAN;
            trial_gradients(a);
            memory_poison(&b->mem);
            check_same_bits(family_names[family], a, b); /* a's second step, on warm buffers, against b's first */
            trial_free(a), trial_free(b);
        }
    }
}

/* Batch A, then B, then A again: both A are the same. A validation runs between, through the same buffers. */
static void test_bits_aba(void) {
    const ModelConfig config = tiny_config(FAMILY_LLAMA, 2);
    const TrainConfig run = tiny_run(61, 2, 16, 8);
    Trial *t = trial_new(&config, &run), *fresh = trial_new(&config, &run);
    trial_gradients(t);
    for (size_t i = 0; i < t->batch.per_batch; i++) t->batch.inputs[i] = (t->batch.inputs[i] + 5) % config.V;
    trial_gradients(t);
    sequence_step(&t->m, t->batch.inputs, t->batch.targets, 0, 0, NULL, NULL, &t->progress); /* and a validation */
    memcpy(t->batch.inputs, fresh->batch.inputs, t->batch.per_batch * sizeof(int));
    check_same_bits("A, B, A", t, fresh);
    trial_free(t), trial_free(fresh);
}

/* Validation sees the losses that training sees, bit for bit, for any schedule of the same pages. */
static void test_bits_forward(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        const ModelConfig config = tiny_config((Family)family, 2);
        const int pages[] = {1, 7, 16};
        double first = 0;
        for (int i = 0; i < 12; i++) {
            const int P = pages[i / 4], chunk = P * (1 << i % 4);
            const TrainConfig run = tiny_run(61, 1, chunk, P);
            Trial *t = trial_new(&config, &run);
            floatX *train = random_floats(61, 0, &(Rng){1}), *val = random_floats(61, 0, &(Rng){1});
            sequence_step(&t->m, t->batch.inputs, t->batch.targets, 1, 1, train, NULL, &t->progress);
            double sum = sequence_step(&t->m, t->batch.inputs, t->batch.targets, 0, 0, val, NULL, &t->progress);
            check(memcmp(train, val, 61 * sizeof(floatX)) == 0, "%s, chunk %d: training and validation losses differ",
                  family_names[family], chunk);
            if (chunk == P) first = sum;
            check(sum == first, "%s: chunk %d changes the bits of the loss: %.17g, not %.17g", family_names[family],
                  chunk, sum, first);
            free(train), free(val);
            trial_free(t);
        }
    }
}

/* Causality: another token at j changes no loss before j - 1, not by one bit, in any chunk layout. (The loss at
   j - 1 changes through its target alone, which is held fixed here, so that one must not change either.) */
static void test_causal(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        const ModelConfig config = tiny_config((Family)family, 2);
        const int layout[][2] = {{1, 1}, {7, 7}, {21, 7}, {16, 16}, {32, 16}, {64, 64}, {8, 2}};
        for (int k = 0; k < COUNT(layout); k++) {
            const int chunk = layout[k][0];
            const TrainConfig run = tiny_run(50, 1, chunk, layout[k][1]);
            Trial *t = trial_new(&config, &run);
            for (int i = 0; i < 50; i++) t->batch.targets[i] = i % config.V;
            floatX before[50], after[50];
            sequence_step(&t->m, t->batch.inputs, t->batch.targets, 0, 0, before, NULL, &t->progress);
            for (int j = 0; j < 50; j += 7) {
                const int old = t->batch.inputs[j];
                t->batch.inputs[j] = (old + 1) % config.V;
                sequence_step(&t->m, t->batch.inputs, t->batch.targets, 0, 0, after, NULL, &t->progress);
                check(memcmp(before, after, j * sizeof(floatX)) == 0, "%s, chunk %d: token %d reaches losses before it",
                      family_names[family], chunk, j);
                check(before[j] != after[j] && before[49] != after[49],
                      "%s, chunk %d: token %d does not reach the losses after it", family_names[family], chunk, j);
                t->batch.inputs[j] = old;
            }
            trial_free(t);
        }
    }
}

/* --carry none: the gradient of each chunk's loss with the keys and values of earlier chunks held constant, summed over
   chunks. By 4-point differences of exactly that: earlier chunks' pages are made with the unmoved weights, then the chunk
   alone is run with the moved ones. */
static void test_carry_none_gradient(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        const ModelConfig config = tiny_config((Family)family, 2);
        TrainConfig run = tiny_run(21, 2, 8, 4);
        run.carry = CARRY_NONE;
        Trial *t = trial_new(&config, &run);
        Model *m = &t->m;
        trial_gradients(t);
        floatX *w0 = (floatX *)xcalloc(m->num_params, sizeof(floatX));
        memcpy(w0, m->params, m->num_params * sizeof(floatX));
        const double scored = (double)count_scored(t->batch.targets, t->batch.per_batch), h = 1e-4;
        const int step[4] = {1, -1, 2, -2};
        Rng r = rng_stream(14, family, 0);
        for (int id = 0; id < NUM_TENSORS; id++) {
            const size_t n = tensor_size(m->tensors, id);
            for (int l = 0; l < tensor_copies(m->tensors, config.L, id); l++) {
                const size_t o = tensor_offset(m->tensors, config.L, id, l);
                floatX *dir = random_floats(n, 1, &r);
                double slope = 0, f[4] = {0};
                for (size_t i = 0; i < n; i++) slope += (double)dir[i] * (double)m->grads[o + i];
                for (int ck = 0; ck < m->N; ck++) {
                    const ChunkRange range = chunks_range(m->T, m->chunk_size, ck);
                    const ChunkStep s = {PASS_FORWARD, 0, config.L, ck, 1};
                    for (int j = 0; j < 5; j++) { /* four moved, then the unmoved one, whose pages stay */
                        for (size_t i = 0; i < n; i++)
                            m->params[o + i] = w0[o + i] + (j < 4 ? (floatX)(step[j] * h) * dir[i] : 0);
                        chunk_forward(m, &s, range, t->batch.inputs, t->batch.targets);
                        for (int i = 0; j < 4 && i < m->B * range.Tc; i++) f[j] += (double)m->losses[i] / scored;
                        if (j < 4)
                            pages_free_range(&m->pages, 0, config.L, range.t0 / m->P,
                                             (int)ceil_div(range.t0 + range.Tc, m->P));
                    }
                }
                pages_free_range(&m->pages, 0, config.L, 0, m->pages.max_NP);
                const double numeric = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
                check(fabs(numeric - slope) < 1e-8 * (1 + fabs(slope)),
                      "%s: %s of layer %d: difference %.12g, gradient %.12g", family_names[family], m->tensors[id].name,
                      l, numeric, slope);
                free(dir);
            }
        }
        free(w0);
        trial_free(t);
    }
}

/* With one chunk nothing crosses an edge: both modes give the same bits. With several they must not. */
static void test_carry_modes(void) {
    const ModelConfig config = tiny_config(FAMILY_LLAMA, 2);
    for (int chunk = 16; chunk <= 64; chunk *= 2) {
        TrainConfig run = tiny_run(61, 2, chunk, 8);
        Trial *exact = trial_new(&config, &run);
        run.carry = CARRY_NONE;
        Trial *none = trial_new(&config, &run);
        const char *name;
        const double le = trial_gradients(exact), ln = trial_gradients(none),
                     off = gradient_difference(&none->m, none->m.grads, exact->m.grads, &name);
        check(le == ln || fabs(le - ln) < 1e-6 * le, "chunk %d: carry changes the loss: %.9g, %.9g", chunk, le,
              ln); /* chunks are summed in another order */
        check(chunk == 64 ? off == 0 : off > 1e-3, "chunk %d: carry none differs from exact by %.2e", chunk, off);
        trial_free(exact), trial_free(none);
    }
}

/* The mean is over the scored targets of the whole step, however it is split: 8 x 1, 4 x 2, 1 x 8 sequences with unequal
   counts, one of them wholly masked. Same loss, gradient, norm, and weights after a clipped update. */
static void test_accumulation(void) {
    const ModelConfig config = tiny_config(FAMILY_QWEN3, 2);
    const int splits[][2] = {{1, 8}, {2, 4}, {8, 1}, {4, 2}};
    const double bound = is_double ? 1e-12 : 1e-5; /* float: as in schedule_sweep */
    Trial *first = NULL;
    double loss0 = 0, norm0 = 0;
    for (int i = 0; i < 4; i++) {
        TrainConfig run = tiny_run(29, splits[i][1], 8, 8);
        run.grad_accum = splits[i][0];
        Trial *t = trial_new(&config, &run);
        for (int s = 0; s < 8; s++) {
            for (int k = 0; k < 29; k++) {
                if (k < 3 * s || s == 5) t->batch.targets[s * 29 + k] = TARGET_MASKED;
            }
        }
        const double loss = trial_gradients(t), norm = grad_norm(t->m.norm_partial, t->m.grads, t->m.num_params);
        const char *name;
        if (!first) {
            first = t, loss0 = loss, norm0 = norm;
            check(norm > 0.2, "the gradient is there: norm %g", norm);
            step_update(&t->m, 0.01, 0.1, 0.1, 1);
            continue;
        }
        check(fabs(loss - loss0) < bound && fabs(norm - norm0) < bound * norm0,
              "%d x %d: loss %.12g, not %.12g; norm %.12g, not %.12g", splits[i][0], splits[i][1], loss, loss0, norm,
              norm0);
        const double off = gradient_difference(&t->m, t->m.grads, first->m.grads, &name);
        check(off < bound, "%d x %d: gradient of %s off by %.2e", splits[i][0], splits[i][1], name, off);
        step_update(&t->m, 0.01, 0.1, 0.1, 1);
        /* AdamW's first step is lr * sign(gradient): where that is rounding alone, a weight may go either way */
        size_t differ = 0;
        for (size_t k = 0; k < t->m.num_params; k++) {
            differ += fabs((double)t->m.m[k] - (double)first->m.m[k]) > bound;
            differ += fabs((double)t->m.grads[k]) > 1e3 * bound &&
                      fabs((double)t->m.params[k] - (double)first->m.params[k]) > bound;
        }
        check(differ == 0, "%d x %d: m or the weights differ in %zu places after the update", splits[i][0],
              splits[i][1], differ);
        trial_free(t);
    }
    trial_free(first);
}

/* Nothing scored: in one chunk, or at all. Zeros, never NaN. */
static void test_masked(void) {
    const ModelConfig config = tiny_config(FAMILY_LLAMA, 2);
    const TrainConfig run = tiny_run(40, 1, 8, 8);
    Trial *t = trial_new(&config, &run), *one;
    for (int i = 16; i < 24; i++) t->batch.targets[i] = TARGET_MASKED; /* chunk 2, wholly */
    const TrainConfig whole = tiny_run(40, 1, 40, 40);
    one = trial_new(&config, &whole);
    for (int i = 16; i < 24; i++) one->batch.targets[i] = TARGET_MASKED;
    const char *name;
    const double a = trial_gradients(t), b = trial_gradients(one),
                 off = gradient_difference(&t->m, t->m.grads, one->m.grads, &name);
    check(fabs(a - b) < 1e-5 && off < (is_double ? 1e-10 : 1.7e-5), "a masked chunk: loss %g, %g, %s off by %.2e", a, b,
          name, off);
    for (int i = 0; i < 40; i++) t->batch.targets[i] = TARGET_MASKED;
    const double loss = trial_gradients(t);
    size_t nonzero = 0;
    for (size_t i = 0; i < t->m.num_params; i++) nonzero += t->m.grads[i] != 0;
    check(loss == 0 && nonzero == 0, "all masked: loss %g, %zu gradients not zero", loss, nonzero);
    floatX before = t->m.params[5];
    check(step_update(&t->m, 0.01, 0, 1, 1) == 0 && t->m.params[5] == before, "all masked: the update moves nothing");
    trial_free(t), trial_free(one);
}

/* Epsilon is the config's: where it is as large as the squared activations, by the formula; and a model heeds it. */
static void test_norm_eps(void) {
    const double eps[] = {1e-5, 1e-6};
    for (int i = 0; i < 4; i++) {
        Rng r = rng_stream(20, 0, 0);
        floatX *x = random_floats(40, 1e-3, &r), w[40], out[40], mean, rstd;
        double mu = 0, square = 0;
        for (int c = 0; c < 40; c++) {
            w[c] = 2;
            mu += i < 2 ? (double)x[c] / 40 : 0; /* layernorm, then rmsnorm */
        }
        for (int c = 0; c < 40; c++) square += ((double)x[c] - mu) * ((double)x[c] - mu) / 40;
        norm_forward(out, i < 2 ? &mean : NULL, &rstd, x, w, NULL, 1, 40, eps[i % 2]);
        for (int c = 0; c < 40; c++) {
            const double want = 2 * ((double)x[c] - mu) / sqrt(square + eps[i % 2]);
            check(fabs(out[c] - want) < (is_double ? 1e-13 : 1e-6), "%s, eps %g: %.9g, not %.9g",
                  i < 2 ? "layernorm" : "rmsnorm", eps[i % 2], (double)out[c], want);
        }
        free(x);
    }
    ModelConfig config = tiny_config(FAMILY_LLAMA, 1);
    const TrainConfig run = tiny_run(16, 1, 8, 8);
    double loss[2];
    for (int i = 0; i < 2; i++) {
        config.norm_eps = eps[i];
        Trial *t = trial_new(&config, &run);
        floatX *wte = tensor(&t->m, t->m.params, WTE, 0);
        for (size_t k = 0; k < (size_t)config.Vp * config.C; k++) wte[k] *= (floatX)1e-3;
        loss[i] = trial_gradients(t);
        trial_free(t);
    }
    check(loss[0] != loss[1], "the model does not look at norm_eps");
}

/* What page_write puts into pages is what was given, head by head, and zero past the end of a short page. */
static void test_page_write(void) {
    Rng r = rng_stream(21, 0, 0);
    attention_begin(2, 8, 7, 4, 2, 6, 8, 1, &r); /* 15 tokens in two pages; the pools are NaN so far */
    page_write(at.kpages, at.vpages, op.in[1], op.in[2], &at.pages, 0, 0, 15, 2, 6);
    for (int b = 0; b < 2; b++) {
        for (int t = 0; t < 16; t++) {
            for (int h = 0; h < 2; h++) {
                const size_t tile = page_tile(at.pages.kv_slot[b * 2 + t / 8], h, 2, 8, 6) + (size_t)(t % 8) * 6;
                for (int c = 0; c < 6; c++) {
                    const size_t from = (((size_t)b * 15 + t) * 2 + h) * 6 + c;
                    check(at.kpages[tile + c] == (t < 15 ? op.in[1][from] : 0) &&
                              at.vpages[tile + c] == (t < 15 ? op.in[2][from] : 0),
                          "sequence %d, token %d, head %d", b, t, h);
                }
            }
        }
    }
    attention_end();
}

/* A gradient of true norm 10 clipped to 1 is the gradient divided by 10; below the limit nothing is scaled; 0 is off. */
static void test_clip(void) {
    const ModelConfig config = tiny_config(FAMILY_LLAMA, 1);
    const TrainConfig run = tiny_run(16, 1, 8, 8);
    const double clips[] = {1, 20, 0}, wants[] = {0.1, 1, 1};
    for (int i = 0; i < 3; i++) {
        Trial *t = trial_new(&config, &run);
        Rng r = rng_stream(15, 0, 0);
        for (size_t k = 0; k < t->m.num_params; k++) t->m.grads[k] = (floatX)rng_normal(&r);
        double norm = grad_norm(t->m.norm_partial, t->m.grads, t->m.num_params), naive = 0;
        for (size_t k = 0; k < t->m.num_params; k++) naive += (double)t->m.grads[k] * (double)t->m.grads[k];
        check(fabs(norm / sqrt(naive) - 1) < 1e-6, "grad_norm %.9g, not %.9g", norm, sqrt(naive));
        for (size_t k = 0; k < t->m.num_params; k++) t->m.grads[k] *= (floatX)(10 / norm);
        norm = step_update(&t->m, 0.01, 0, clips[i], 1);
        check(fabs(norm - 10) < 1e-4, "the norm reported is the one before clipping: %g", norm);
        double ratio =
            (double)t->m.m[3] / (0.1 * (double)t->m.grads[3]); /* m after one step is 0.1 times the gradient used */
        check(fabs(ratio - wants[i]) < 1e-5, "clip %g: scaled by %.7g, not %g", clips[i], ratio, wants[i]);
        trial_free(t);
    }
}

/* Decay reaches matrices only: with a zero gradient they shrink by lr * decay, norms and biases stay. */
static void test_decay(void) {
    const ModelConfig config = tiny_config(FAMILY_GPT2, 1);
    const TrainConfig run = tiny_run(16, 1, 8, 8);
    Trial *t = trial_new(&config, &run), *old = trial_new(&config, &run);
    memset(t->m.grads, 0, t->m.num_params * sizeof(floatX));
    step_update(&t->m, 0.5, 0.1, 1, 1);
    for (int id = 0; id < NUM_TENSORS; id++) {
        const TensorInfo *info = &t->m.tensors[id];
        if (!info->rows) continue;
        const double was = tensor(&old->m, old->m.params, (TensorId)id, 0)[0],
                     is = tensor(&t->m, t->m.params, (TensorId)id, 0)[0];
        const int matrix = strchr("w", info->name[0]) && info->rows > 1;
        check(fabs(is - was * (matrix ? 0.95 : 1)) < 1e-6, "%s went from %g to %g", info->name, was, is);
    }
    trial_free(t), trial_free(old);
}

// ----------------------------------------------------------------------------------------------
// tables and plans: integers only

static void test_tensors(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        const ModelConfig config = tiny_config((Family)family, 2);
        TensorInfo t[NUM_TENSORS];
        tensors_describe(&config, t);
        const size_t total = tensors_total(t, config.L);
        uint8_t *owner = (uint8_t *)xcalloc(total, 1);
        for (int id = 0; id < NUM_TENSORS; id++) {
            for (int l = 0; l < tensor_copies(t, config.L, id); l++) {
                for (size_t i = 0; i < tensor_size(t, id); i++) owner[tensor_offset(t, config.L, id, l) + i]++;
            }
        }
        size_t wrong = 0;
        for (size_t i = 0; i < total; i++) wrong += owner[i] != 1;
        check(wrong == 0, "%s: %zu elements belong to no tensor or to several", family_names[family], wrong);
        free(owner);
    }
    const struct {
        const char *preset;
        size_t params;
    } known[] = {{"gpt2", 124439808},
                 {"llama-15m", 15191712}, /* stories15M */
                 {"qwen2.5-0.5b", 494032768},
                 {"qwen2.5-7b", 7615616512},
                 {"qwen3-0.6b", 596049920}}; /* the published counts */
    for (int i = 0; i < COUNT(known); i++) {
        ModelConfig m = model_config(preset_find(known[i].preset));
        TensorInfo t[NUM_TENSORS];
        tensors_describe(&m, t);
        size_t n = tensors_total(t, m.L) - (size_t)(m.Vp - m.V) * m.C * (m.tied ? 1 : 2);
        check(n == known[i].params, "%s has %zu parameters, not %zu", known[i].preset, n, known[i].params);
    }
}

/* Every chunk is filled before a later one attends to it, goes back after all later ones, and each exactly once. */
static void test_schedule(void) {
    ChunkStep s[64];
    for (int N = 1; N <= 9; N++) {
        int n = chunks_schedule_train(s, N, 3, CARRY_EXACT), written[9] = {0}, back[9] = {0};
        check(n == 2 * N - 1 && (size_t)n <= chunks_max_steps(N), "exact, %d chunks: %d steps", N, n);
        for (int i = 0; i < n; i++) {
            for (int ck = 0; ck < s[i].ck; ck++)
                check(written[ck] == 1, "exact: chunk %d runs before chunk %d has its pages", s[i].ck, ck);
            check(s[i].write_kv != written[s[i].ck],
                  "exact: chunk %d writes its pages twice, or reads what is not there", s[i].ck);
            written[s[i].ck] = 1;
            if (s[i].pass != PASS_BACKWARD) continue;
            for (int ck = s[i].ck + 1; ck < N; ck++)
                check(back[ck] == 1, "exact: chunk %d goes back before chunk %d", s[i].ck, ck);
            check(back[s[i].ck]++ == 0, "exact: chunk %d goes back twice", s[i].ck);
        }
        for (int i = 0; i < n; i++)
            check(!(s[i].pass == PASS_FILL && s[i].ck == N - 1), "exact: the last chunk is filled");
        n = chunks_schedule_train(s, N, 3, CARRY_NONE);
        for (int i = 0; i < n; i++)
            check(s[i].ck == i && s[i].pass == PASS_BACKWARD && s[i].write_kv, "none: step %d", i);
        check(n == N && chunks_schedule_forward(s, N, 3) == N && s[0].pass == PASS_FORWARD,
              "none and forward: %d steps", n);
    }
    int covered = 0;
    for (int ck = 0; ck < chunks_count(2049, 512); ck++) covered += chunks_range(2049, 512, ck).Tc;
    check(chunks_count(2049, 512) == 5 && covered == 2049 && chunks_range(2049, 512, 4).Tc == 1, "T 2049, chunk 512");
}

static void test_pages(void) {
    PageTable t;
    pages_init(&t, 2, 1, 3, 4, 6, 6);
    pages_alloc_range(&t, 0, 2, 0, 3);
    int seen[6] = {0};
    for (int i = 0; i < 6; i++) seen[t.kv_slot[i]]++;
    for (int i = 0; i < 6; i++) check(seen[i] == 1, "slot %d is used %d times", i, seen[i]);
    const int last = t.kv_slot[pages_row(&t, 1, 0) + 2];
    page_free(&t, 1, 0, 2);
    page_alloc(&t, 1, 0, 2);
    check(t.kv_slot[pages_row(&t, 1, 0) + 2] == last, "the slot given back last is taken first");
    page_alloc_grad(&t, 0, 0, 1);
    check(t.dkv_fresh[1] == 1 && t.dkv_slot[1] == 0 && t.dkv_slot[0] == -1,
          "a gradient page is fresh at first, and only where it was asked for");
    t.dkv_fresh[1] = 0;
    page_alloc_grad(&t, 0, 0, 1);
    check(t.dkv_fresh[1] == 0, "asking again does not make it fresh");
    page_free_grad(&t, 0, 0, 1);
    pages_free_range(&t, 0, 2, 0, 3);
    check(pages_in_use(&t) == 0 && t.kv.peak == 6 && t.dkv.peak == 1, "in use %d, peaks %d and %d", pages_in_use(&t),
          t.kv.peak, t.dkv.peak);
    pages_destroy(&t);
}

static void test_lr(void) {
    check(schedule_lr(SCHEDULE_COSINE, 2, 1, 4, 100) == 0.5 && schedule_lr(SCHEDULE_COSINE, 2, 4, 4, 100) == 2,
          "warm-up is linear to lr");
    check(fabs(schedule_lr(SCHEDULE_COSINE, 2, 52, 4, 100) - 1.1) < 1e-12 &&
              fabs(schedule_lr(SCHEDULE_COSINE, 2, 100, 4, 100) - 0.2) < 1e-12,
          "cosine: half way and the end");
    check(schedule_lr(SCHEDULE_CONSTANT, 2, 77, 4, 100) == 2 && schedule_lr(SCHEDULE_CONSTANT, 2, 1, 0, 100) == 2,
          "constant");
}

// ----------------------------------------------------------------------------------------------
// data

static char scratch_dir[200];

static const char *scratch_path(const char *name) {
    static char path[4][256];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, 256, "%s/%s", scratch_dir, name);
    return p;
}

static const char *write_file(const char *name, size_t bytes) {
    const char *path = scratch_path(name);
    FILE *f = fopen(path, "wb");
    for (size_t i = 0; f && i < bytes; i++) fputc((int)(i * i / 7 % 251), f);
    if (!f || fclose(f) != 0) die("%s: cannot write", path);
    return path;
}

/* What die() leaves unfreed is no leak: out before a sanitizer looks. */
static void leave(void) { _exit(1); }

/* Runs f in a process of its own; it must end with status 1 and an error that says all of says (up to 3). */
static void check_dies(const char *what, void (*f)(void *), void *arg, const char *const *says) {
    char text[4096] = "";
    int to[2];
    fflush(stdout);
    if (pipe(to) != 0) die("pipe: %s", strerror(errno));
    const pid_t child = fork();
    if (child == 0) {
        dup2(to[1], 2);
        atexit(leave);
        f(arg);
        _exit(0);
    }
    close(to[1]);
    size_t n = 0;
    for (ssize_t got; n < sizeof text - 1 && (got = read(to[0], text + n, sizeof text - 1 - n)) > 0;) n += (size_t)got;
    close(to[0]);
    int status = 0;
    waitpid(child, &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 1 && strncmp(text, "error: ", 7) == 0 && strchr(text, '\n') &&
              !strchr(text, '\n')[1],
          "%s: status %d, and says: %s", what, WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), text);
    for (int i = 0; i < 3 && says[i]; i++)
        check(strstr(text, says[i]) != NULL, "%s: does not say \"%s\" but: %s", what, says[i], text);
}

/* A token file: header words 0 .. 2, then n ids of `width` bytes, then `extra` more (or fewer) bytes. */
static const char *write_tokens(const char *name, uint32_t magic, uint32_t version, uint32_t count, int width,
                                const uint32_t *ids, size_t n, int extra) {
    const char *path = scratch_path(name);
    uint32_t header[256] = {magic, version, count};
    FILE *f = fopen(path, "wb");
    if (!f) die("%s: cannot write", path);
    fwrite(header, 4, 256, f);
    for (size_t i = 0; i < n; i++) fwrite(&ids[i], (size_t)width, 1, f);
    for (int i = 0; i < extra; i++) fputc(0, f);
    const long size = ftell(f) + (extra < 0 ? extra : 0);
    if (fclose(f) != 0 || truncate(path, size) != 0) die("%s: cannot write", path);
    return path;
}

/* Every token of the stream is an input once and a target once per epoch; epochs differ; the first token is the start. */
static void test_data_bytes(void) {
    const int T = 10, n = 1037;
    TokenFiles files = files_open("--data", write_file("bytes", n));
    Data d1 = data_open_files(&files, T, 0, n + 1, 1, 3), flat = data_open_files(&files, T, 0, n + 1, 0, 0);
    int in[10], out[10], seen[103] = {0}, moved = 0;
    check(files.kind == DATA_BYTES && files.count == (uint64_t)n + 1 && d1.samples == 103,
          "%d tokens make %llu samples", n + 1, (unsigned long long)d1.samples);
    for (int i = 0; i < 103; i++) {
        data_sample(&flat, i, in, out, NULL);
        for (int t = 0; t < T; t++) {
            const int at = i * T + t; /* token of the stream; byte at - 1 of the file */
            const int want = at ? (int)((size_t)(at - 1) * (at - 1) / 7 % 251) : BYTES_START;
            check(in[t] == want && out[t] == (int)((size_t)at * at / 7 % 251), "token %d: %d -> %d", at, in[t], out[t]);
        }
    }
    for (int epoch = 0; epoch < 3; epoch++) {
        for (int i = 0; i < 103; i++) {
            data_sample(&d1, epoch * 103 + i, in, out, NULL);
            seen[d1.order[i]]++;
            moved += d1.order[i] != (uint32_t)i;
        }
    }
    for (int epoch = 0; epoch < 2; epoch++) { /* the next one has another order */
        uint32_t order[103];
        int same = 0;
        data_sample(&d1, epoch * 103, in, out, NULL);
        memcpy(order, d1.order, sizeof order);
        data_sample(&d1, epoch * 103 + 103, in, out, NULL);
        for (int i = 0; i < 103; i++) same += order[i] == d1.order[i];
        check(same < 20, "epochs %d and %d have %d of 103 samples at the same place", epoch, epoch + 1, same);
    }
    for (int i = 0; i < 103; i++) check(seen[i] == 3, "sample %d came %d times in 3 epochs", i, seen[i]);
    check(moved > 250, "shuffled: %d of 309 moved", moved);
    data_close(&d1), data_close(&flat);
    Data part = data_open_files(&files, T, 500, 100, 0, 0); /* a range: tokens 500 .. 599 */
    data_sample(&part, 0, in, out, NULL);
    check(part.samples == 9 && in[0] == (int)(499u * 499 / 7 % 251), "a range of the stream");
    data_close(&part), files_close(&files);
}

/* Shards of both widths, and texts, as one stream: windows of every length from every place, across every edge, masks
   included. Documents are packed: what separates them is a token like others. */
static void test_data_shards(void) {
    const size_t counts[] = {1, 700, 2, 1, 333};
    uint32_t ids[1037];
    int want[1037], out[1037];
    Rng r = rng_stream(21, 0, 0);
    uint64_t masked = 0;
    for (size_t k = 0, at = 0; k < 5; at += counts[k++]) {
        char name[32];
        const int wide = k % 2;
        for (size_t i = at; i < at + counts[k]; i++) {
            ids[i] = (uint32_t)rng_below(&r, 50000);
            if (wide && rng_below(&r, 4) == 0) ids[i] = rng_below(&r, 2) ? (uint32_t)-1 : (uint32_t)-100;
            want[i] = ids[i] > 50000 ? TARGET_MASKED : (int)ids[i];
            masked += want[i] == TARGET_MASKED;
        }
        snprintf(name, sizeof name, "part_%zu.bin", k);
        write_tokens(name, wide ? 20240801 : 20240520, wide ? 7 : 1, (uint32_t)counts[k], wide ? 4 : 2, ids + at,
                     counts[k], 0);
    }
    TokenFiles f = files_open("--data", scratch_path("part_*.bin"));
    files_check(&f, 50000);
    check(f.kind == DATA_TOKENS && f.num_shards == 5 && f.count == 1037 && f.masked == masked && masked > 50,
          "%d shards, %llu tokens, %llu masked", f.num_shards, (unsigned long long)f.count,
          (unsigned long long)f.masked);
    for (int trial = 0; trial < 3000; trial++) {
        const size_t from = rng_below(&r, 1037), n = 1 + rng_below(&r, 1037 - from);
        files_read(&f, from, n, out);
        check(memcmp(out, want + from, n * sizeof(int)) == 0, "tokens %zu .. %zu are wrong", from, from + n - 1);
    }
    Data d = data_open_files(&f, 100, 0, f.count, 1, 1);
    int in[100], target[100], seen = 0;
    for (uint64_t i = 0; i < d.samples; i++) {
        data_sample(&d, i, in, target, NULL);
        const int at = (int)d.order[i] * 100;
        for (int t = 0; t < 100; t++)
            seen += in[t] == (want[at + t] == TARGET_MASKED ? 0 : want[at + t]) && target[t] == want[at + t + 1];
    }
    check(d.samples == 10 && seen == 1000, "a masked id is no target, and token 0 as an input: %d of 1000", seen);
    data_close(&d), files_close(&f);

    write_file("text_a", 5), write_file("text_b", 3); /* each text begins with a start token */
    f = files_open("--data", scratch_path("text_?"));
    files_read(&f, 0, 10, out);
    const int text[] = {BYTES_START, 0, 0, 0, 1, 2, BYTES_START, 0, 0, 0};
    check(f.count == 10 && memcmp(out, text, sizeof text) == 0, "two texts as one stream");
    files_close(&f);
    write_file("odd[1].txt", 9); /* a name that looks like a pattern is a name */
    f = files_open("--data", scratch_path("odd[1].txt"));
    check(f.count == 10, "odd[1].txt");
    files_close(&f);
}

static void die_of_files(void *path) {
    TokenFiles f = files_open("--data", (const char *)path);
    files_check(&f, 1000); /* before anything is read to train on */
}

/* Every way in which a token file can be broken: one line that says which file, where, and what. */
static void test_data_hostile(void) {
    uint32_t ids[40];
    for (uint32_t i = 0; i < 40; i++) ids[i] = 10 * i;
    const uint32_t V_id = 1000, huge = 0x80000000u, mask16 = 0xFFFF;
    const struct {
        const char *name;
        uint32_t magic, version, count;
        int width;
        const uint32_t *bad; /* planted at token 7 */
        int extra;
        const char *says[3];
    } cases[] = {
        {"magic.bin", 1234, 1, 40, 2, NULL, 0, {"magic.bin", "this one with 1234", "20240520"}},
        {"version16.bin", 20240520, 2, 40, 2, NULL, 0, {"version16.bin", "version 2", "version 1"}},
        {"version32.bin", 20240801, 1, 40, 4, NULL, 0, {"version32.bin", "version 1", "version 7"}},
        {"short.bin", 20240520, 1, 40, 2, NULL, -1, {"short.bin", "1104 bytes", "1103"}},
        {"long.bin", 20240520, 1, 40, 2, NULL, 1, {"long.bin", "1104 bytes", "1105"}},
        {"count.bin", 20240801, 7, 0xFFFFFFFFu, 4, NULL, 0, {"count.bin", "4294967295 tokens", "17179870204"}},
        {"fewer.bin", 20240801, 7, 39, 4, NULL, 0, {"fewer.bin", "39 tokens", "1184"}},
        {"none.bin", 20240520, 1, 0, 2, NULL, 0, {"none.bin", "without tokens"}},
        {"id16.bin", 20240520, 1, 40, 2, &V_id, 0, {"id16.bin: token 7 (byte 1038)", "id 1000", "999"}},
        {"id32.bin", 20240801, 7, 40, 4, &V_id, 0, {"id32.bin: token 7 (byte 1052)", "id 1000", "999"}},
        {"huge32.bin", 20240801, 7, 40, 4, &huge, 0, {"huge32.bin: token 7 (byte 1052)", "id 2147483648"}},
        {"mask16.bin", 20240520, 1, 40, 2, &mask16, 0, {"mask16.bin: token 7", "id 65535"}},
        {"renamed.txt",
         20240520,
         1,
         40,
         2,
         NULL,
         -1,
         {"renamed.txt", "1104 bytes"}}, /* the magic counts, not the name */
    };
    for (int i = 0; i < COUNT(cases); i++) {
        uint32_t planted[40];
        memcpy(planted, ids, sizeof ids);
        if (cases[i].bad) planted[7] = *cases[i].bad;
        const char *path = write_tokens(cases[i].name, cases[i].magic, cases[i].version, cases[i].count, cases[i].width,
                                        planted, cases[i].count ? 40 : 0, cases[i].extra);
        check_dies(cases[i].name, die_of_files, (void *)path, cases[i].says);
    }
    const char *header = write_tokens("header.bin", 20240520, 1, 0, 2, ids, 0, -4);
    check_dies("half a header", die_of_files, (void *)header, (const char *[3]){"header.bin", "1020 bytes", "1024"});
    check_dies("an empty file", die_of_files, (void *)write_file("empty.bin", 0),
               (const char *[3]){"empty.bin", "0 bytes"});
    check_dies("an empty text", die_of_files, (void *)write_file("empty.txt", 0),
               (const char *[3]){"empty.txt", "empty"});
    check_dies("no match", die_of_files, (void *)scratch_path("nothing_*.bin"),
               (const char *[3]){"nothing_*.bin", "no file"});
    check_dies("a directory", die_of_files, (void *)scratch_path(""), (const char *[3]){"not a regular file"});
    check_dies("no such file", die_of_files, (void *)scratch_path("gone.bin"),
               (const char *[3]){"gone.bin", "No such file"});
    write_tokens("mix_a.bin", 20240520, 1, 40, 2, ids, 40, 0), write_file("mix_b.txt", 30);
    check_dies("text and ids", die_of_files, (void *)scratch_path("mix_*"),
               (const char *[3]){"mix_b.txt is text", "mix_a.bin"});
}

static void die_of_change(void *path) { /* the file changes after it was checked */
    int out[8];
    TokenFiles f = files_open("--data", (const char *)path);
    files_check(&f, 1000);
    const uint32_t bad = 5000;
    const int fd = open((const char *)path, O_WRONLY);
    if (write_at(fd, TOKENS_HEADER + 2 * 3, &bad, 2) != 0) _exit(2);
    close(fd);
    files_read(&f, 0, 8, out);
}

/* Files beyond 2 and 4 GiB: what lies past those offsets is read, and a bad id there is found. */
static void test_data_large(void) {
    const uint64_t count[2] = {2200000000u, 1100000000u}; /* 4.4 GB each, all but a few blocks of it a hole */
    uint32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint32_t many[20000] = {0};
    const char *changed = write_tokens("changed.bin", 20240520, 1, 20000, 2, many, 20000, 0);
    check_dies("a file that changes", die_of_change, (void *)changed,
               (const char *[3]){"changed.bin: token 3", "id 5000"});
    for (int wide = 0; wide < 2; wide++) {
        const int width = wide ? 4 : 2;
        const char *path = write_tokens(wide ? "large32.bin" : "large16.bin", wide ? 20240801 : 20240520, wide ? 7 : 1,
                                        (uint32_t)count[wide], width, ids, 0, 0);
        const int fd = open(path, O_WRONLY);
        if (truncate(path, (off_t)(TOKENS_HEADER + count[wide] * (uint64_t)width)) != 0) {
            printf("    skipped: no file of 4.4 GB here: %s\n", strerror(errno));
            close(fd);
            return;
        }
        const uint64_t at[] = {((uint64_t)1 << 31) / width, ((uint64_t)1 << 32) / width, count[wide] - 3};
        for (int i = 0; i < 3; i++) {
            for (uint32_t k = 0; k < 6; k++) { /* around the offset of 2 and 4 GiB, and at the end */
                const uint32_t id = 100 * (uint32_t)(i + 1) + k;
                if (write_at(fd, TOKENS_HEADER + (at[i] - 3 + k) * (uint64_t)width, &id, (size_t)width))
                    die("%s", path);
            }
        }
        TokenFiles f = files_open("--data", path);
        f.V = 1000;
        for (int i = 0; i < 3; i++) {
            int out[6] = {0};
            files_read(&f, at[i] - 3, 6, out);
            for (int k = 0; k < 6; k++)
                check(out[k] == 100 * (i + 1) + k, "token %llu + %d is %d", (unsigned long long)at[i] - 3, k, out[k]);
        }
        Data d = data_open_files(&f, 1 << 20, 0, f.count, 0, 0); /* through sample numbers too */
        int *in = (int *)xcalloc(1 << 20, sizeof(int)), *target = (int *)xcalloc(1 << 20, sizeof(int));
        data_sample(&d, at[1] >> 20, in, target, NULL);
        check(in[at[1] & 0xFFFFF] == 203 && target[at[1] & 0xFFFFF] == 204, "the sample past 4 GiB begins with %d",
              in[at[1] & 0xFFFFF]);
        free(in), free(target);
        data_close(&d), files_close(&f);
        close(fd);
        if (!wide) {
            const uint32_t bad = 1001;
            const int again = open(path, O_WRONLY);
            if (write_at(again, TOKENS_HEADER + (at[1] + 5) * 2, &bad, 2)) die("%s", path);
            close(again);
            check_dies("an id past 4 GiB", die_of_files, (void *)path,
                       (const char *[3]){"large16.bin: token 2147483653 (byte 4294968330)", "id 1001"});
        }
        remove(path);
    }
    const char *path = write_file("large.txt", 10); /* text: token i is byte i - 1 */
    const uint64_t far = ((uint64_t)1 << 32) + 12345;
    const int fd = open(path, O_WRONLY);
    if (write_at(fd, far, "xyz", 3)) die("%s", path);
    close(fd);
    TokenFiles f = files_open("--data", path);
    int out[3];
    files_read(&f, far + 1, 3, out);
    check(f.count == far + 4 && out[0] == 'x' && out[2] == 'z', "a text past 4 GiB: %d %d %d", out[0], out[1], out[2]);
    files_close(&f);
    remove(path);
}

/* The promises of the recall task, over many sequences: one fact per key, every question at least `distance` after its
   fact and answered by it, nothing else scored, the answer never in the input. */
static void test_data_recall(void) {
    const int T = 512;
    int in[512], out[512], far[512];
    for (int distance = 1; distance <= 128; distance *= 2) {
        Data r = data_open_recall(T, distance, 5);
        for (int n = 0; n < 50; n++) {
            data_sample(&r, n, in, out, far);
            int fact[RECALL_KEYS], facts = 0, questions = 0;
            for (int t = 0; t < T; t++) {
                if (in[t] >= RECALL_KEY0) continue;
                fact[in[t] / RECALL_VALUES] = t;
                facts++;
            }
            check(facts == RECALL_KEYS, "%d facts", facts);
            for (int t = 0; t < T; t++) {
                const int key = in[t] - RECALL_KEY0;
                check(in[t] < RECALL_VALUE0 || (in[t] >= RECALL_FILLER0 && in[t] < RECALL_V), "position %d shows %d", t,
                      in[t]);
                if (key < 0 || key >= RECALL_KEYS) {
                    check(out[t] == TARGET_MASKED, "position %d is no question but scored", t);
                    continue;
                }
                questions++;
                check(far[t] == t - fact[key] && far[t] >= distance, "question at %d, fact at %d, distance %d", t,
                      fact[key], far[t]);
                check(out[t] - RECALL_VALUE0 == in[fact[key]] % RECALL_VALUES, "question at %d: answer %d", t, out[t]);
            }
            check(questions == T / RECALL_TOKENS_PER_QUESTION, "%d questions", questions);
        }
        int again[512], other[512];
        data_sample(&r, 7, again, out, NULL);
        data_sample(&r, 8, other, out, NULL);
        data_sample(&r, 7, in, out, NULL);
        check(memcmp(in, again, sizeof in) == 0 && memcmp(in, other, sizeof in) != 0,
              "a sample is a function of its number");
        data_close(&r);
    }
}

/* Validation through a batch that the sequences do not fill: each is counted once, by position and by distance. */
static void test_validate(void) {
    ModelConfig config = tiny_config(FAMILY_LLAMA, 2);
    config.V = RECALL_V, config.Vp = 320;
    const TrainConfig run = tiny_run(128, 2, 32, 16);
    Trial *t = trial_new(&config, &run);
    Data r = data_open_recall(128, 32, 5);
    const Validation three = validate(&t->m, &r, &t->batch, 3), four = validate(&t->m, &r, &t->batch, 4);
    long at = 0, asked = 0;
    double sum = 0;
    for (int i = 0; i < BUCKETS; i++) {
        at += three.at_position[i];
        asked += three.asked[i];
        sum += three.by_position[i];
        check(three.correct[i] <= three.asked[i], "bucket %d: %.0f of %ld are correct", i, three.correct[i],
              three.asked[i]);
    }
    check(three.scored == 48 && at == 48 && asked == 48 && four.scored == 64,
          "scored %ld, by position %ld, by distance %ld", three.scored, at, asked);
    check(fabs(sum - three.loss) < 1e-5 * sum && four.loss > three.loss, "losses by position add up to %g, not %g", sum,
          three.loss);
    check(three.asked[bucket(31)] == 0 && three.asked[bucket(64)] > 0, "distances begin at 32");
    check(bucket(0) == 0 && bucket(1) == 1 && bucket(2) == 2 && bucket(3) == 2 && bucket(4) == 3 && bucket(4095) == 12,
          "power-of-two buckets");
    data_close(&r);
    trial_free(t);
}

// ----------------------------------------------------------------------------------------------
// files: JSON and safetensors

/* 1 if the text is one whole value; its numbers and strings on the way go into what a caller would read. */
static int json_accepts(const char *text) {
    Json j = json_begin(text, strlen(text));
    json_skip(&j);
    return json_end(&j);
}

static void test_json(void) {
    const char *const good[] = {"0",
                                "-1.5e+10",
                                "\"\"",
                                "[]",
                                "{}",
                                " [ 1 , [2,{\"a\":null}] , true ] ",
                                "{\"a\":{\"b\":[false,3]},\"c\":\"\\\"]}\"}"};
    const char *const bad[] = {"",    "01",        "-",     "1.",        "1e",       "+1",         ".5",
                               "nul", "[1,]",      "[1 2]", "{\"a\"}",   "{\"a\":}", "{\"a\":1,}", "{a:1}",
                               "[",   "{\"a\":1",  "\"abc", "\"abc\\\"", "[1]]",     "1 2",        "{\"a\":1]",
                               "[1}", "[\"a\":1]", "NaN",   "Infinity",  "{,}"};
    for (int i = 0; i < COUNT(good); i++) check(json_accepts(good[i]), "refused: %s", good[i]);
    for (int i = 0; i < COUNT(bad); i++) check(!json_accepts(bad[i]), "accepted: %s", bad[i]);
    char deep[400], text[16], key[16];
    memset(deep, '[', sizeof deep);
    deep[199] = 0;
    check(!json_accepts(deep), "200 open brackets");

    const char *all =
        "{\"x\": -12.5e1, \"n\":18446744073709551615, \"s\":\"a\\u00e9\\ud83d\\ude00\\n\\\"\",\"l\":[1,2,3]}";
    Json j = json_begin(all, strlen(all));
    double x = 0;
    uint64_t n = 0, sum = 0;
    for (json_open(&j, '{'); json_key(&j, key, sizeof key);) {
        if (*key == 'x') json_double(&j, &x);
        else if (*key == 'n') json_u64(&j, &n);
        else if (*key == 's') json_string(&j, text, sizeof text);
        else
            for (json_open(&j, '['); json_item(&j); sum += n) json_u64(&j, &n);
    }
    check(json_end(&j) && x == -125 && sum == 6 && strcmp(text, "a\xC3\xA9\xF0\x9F\x98\x80\n\"") == 0,
          "%g, %llu, %s: %s", x, (unsigned long long)sum, text, j.error ? j.error : "");
    const char *const not_u64[] = {"-1", "1.5", "18446744073709551616", "1e3"};
    for (int i = 0; i < COUNT(not_u64); i++) {
        j = json_begin(not_u64[i], strlen(not_u64[i]));
        check(!json_u64(&j, &n), "%s is taken for a whole number", not_u64[i]);
    }
    const char *const not_string[] = {"\"0123456789abcdef\"", "\"\\x\"", "\"\\u12\"", "\"\\ud83d\"",
                                      "\"\\u0000\"",          "\"\t\"",  "3"};
    for (int i = 0; i < COUNT(not_string); i++) {
        j = json_begin(not_string[i], strlen(not_string[i]));
        check(!json_string(&j, text, sizeof text), "%s is taken for a string of 15 bytes", not_string[i]);
    }
    for (size_t cut = 0; cut < strlen(all); cut++) { /* a file that was cut anywhere is refused and read no further */
        char *part = (char *)malloc(cut + 1);
        memcpy(part, all, cut);
        j = json_begin(part, cut);
        json_skip(&j);
        check(!json_end(&j), "accepted: %.*s", (int)cut, part);
        free(part);
    }
}

/* A safetensors file of this header and this many bytes of data. */
static const char *write_safetensors(const char *name, uint64_t length, const char *header, size_t data) {
    const char *path = scratch_path(name);
    FILE *f = fopen(path, "wb");
    if (!f) die("%s: cannot write", path);
    fwrite(&length, 8, 1, f);
    fputs(header, f);
    for (size_t i = 0; i < data; i++) fputc((int)i, f);
    fclose(f);
    return path;
}

static void die_of_safetensors(void *path) { safe_open((const char *)path); }

static void test_safetensors(void) {
    const char *path = scratch_path("round.safetensors");
    const uint64_t shapes[3][3] = {{2, 3, 4}, {5, 1, 1}, {0, 7, 1}};
    const double f64[5] = {1, -2.5, 1e300, 0, 3};
    float f32[24];
    for (int i = 0; i < 24; i++) f32[i] = (float)i / 7;
    SafeWriter w = safe_create(path, 5); /* the data in another order than the names */
    const uint64_t at_a = safe_add(&w, "b", SAFE_F32, 3, shapes[0]), at_b = safe_add(&w, "a", SAFE_F64, 1, shapes[1]);
    safe_add(&w, "empty", SAFE_I32, 2, shapes[2]);
    const uint16_t halves[6] = {0x3C00, 0xC100, 0x0001, 0x7C00, 0x3F80, 0xC020};
    const uint64_t three[1] = {3};
    const uint64_t at_h = safe_add(&w, "half", SAFE_F16, 1, three), at_bf = safe_add(&w, "bf", SAFE_BF16, 1, three);
    safe_write_at(&w, at_bf, halves + 3, 6);
    safe_write_at(&w, at_h, halves, 6);
    safe_write_at(&w, at_b, f64, sizeof f64);
    safe_write_at(&w, at_a, f32, sizeof f32);
    check(safe_finish(&w) == 0 && at_a % 64 == 0, "cannot write");
    SafeFile f = safe_open(path);
    const SafeTensor *a = safe_find(&f, "a"), *b = safe_find(&f, "b"), *e = safe_find(&f, "empty"),
                     *h = safe_find(&f, "half"), *bf = safe_find(&f, "bf");
    double d[24] = {0};
    float back[24] = {0};
    check(f.count == 5 && a && b && e && h && bf && !safe_find(&f, "c") && !safe_find(&f, ""), "%d tensors", f.count);
    safe_read(&f, b, back);
    check(b->type == SAFE_F32 && b->dims == 3 && b->shape[2] == 4 && memcmp(back, f32, sizeof f32) == 0, "tensor b");
    safe_read_doubles(&f, b, 3, 20, d);
    check(d[0] == (double)f32[3] && d[19] == (double)f32[22], "a part of b, as doubles");
    safe_read_doubles(&f, a, 0, 5, d);
    check(a->shape[0] == 5 && memcmp(d, f64, sizeof f64) == 0 && e->begin == e->end, "tensors a and empty");
    safe_read_doubles(&f, h, 0, 3, d);
    check(d[0] == 1 && d[1] == -2.5 && d[2] == 0x1p-24, "half: %g %g %g", d[0], d[1], d[2]);
    safe_read_doubles(&f, bf, 0, 3, d);
    check(d[0] > 1e36 && d[1] == 1 && d[2] == -2.5, "bfloat16: %g %g %g", d[0], d[1], d[2]);
    safe_close(&f);

    const struct {
        const char *header;
        int data; /* bytes behind it */
        const char *says[3];
    } bad[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, {"end at byte 8", "file at 7"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, {"end at byte 8", "file at 9"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, {"tensor a", "0 .. 8", "shape"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, {"tensor a", "8 .. 0"}},
        {"{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, {"tensor a", "\"F31\"", "unknown"}},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, {"tensor a", "one shape"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, {"tensor a", "two data_offsets"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}",
         0,
         {"tensor a", "shape"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}",
         0,
         {"tensor a", "shape"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, {"header, byte", "whole number"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}",
         4,
         {"tensor a", "more than 8"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_"
         "offsets\":[1,3]}}",
         3,
         {"tensor b", "begins at byte 1", "ends at 2"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_"
         "offsets\":[3,5]}}",
         5,
         {"tensor b", "begins at byte 3", "ends at 2"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_"
         "offsets\":[1,2]}}",
         2,
         {"tensor a", "twice"}},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}", 1, {"header, byte"}},
        {"[]", 0, {"header, byte 0", "object"}},
        {"{} x", 0, {"header, byte 3", "more text"}},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        path = write_safetensors("bad.safetensors", strlen(bad[i].header), bad[i].header, (size_t)bad[i].data);
        check_dies(bad[i].header, die_of_safetensors, (void *)path, bad[i].says);
    }
    const char *promise[3] = {"bad.safetensors", "promise a header of", "2 follow"};
    path = write_safetensors("bad.safetensors", (uint64_t)1 << 62, "{}", 0);
    check_dies("a header of 4 EB", die_of_safetensors, (void *)path, promise);
    path = write_safetensors("bad.safetensors", 3, "{}", 0);
    check_dies("a header one byte too long", die_of_safetensors, (void *)path, promise);
    check_dies("7 bytes", die_of_safetensors, (void *)write_file("bad.safetensors", 7), (const char *[3]){"7 bytes"});
    const char *metadata = "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"shape\":[],\"dtype\":\"U8\",\"data_"
                           "offsets\":[0,1],\"new\":[{}]}}";
    f = safe_open(write_safetensors("good.safetensors", strlen(metadata), metadata, 1));
    check(f.count == 1 && f.tensors[0].dims == 0, "metadata and unknown keys are skipped");
    safe_close(&f);
}

// ----------------------------------------------------------------------------------------------
// checkpoints

static void remove_tree(const char *path) {
    char command[1000];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    if (system(command) != 0) die("%s: cannot remove", path);
}

static int count_entries(const char *path) {
    int n = 0;
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (d) closedir(d);
    return n;
}

static const char *saved_at;
static void die_of_load(void *trial) { checkpoint_load(&((Trial *)trial)->m, saved_at); }
static void die_of_state(void *path) { state_read((const char *)path); }

/* Another model is refused, by the name of what differs; and half a checkpoint. b: a model like the saved one. */
static void check_other_models(Trial *b, const ModelConfig *config, const TrainConfig *run, const char *file) {
    ModelConfig other = *config;
    saved_at = file;
    other.L = 2;
    Trial *fewer = trial_new(&other, run);
    check_dies("fewer layers", die_of_load, fewer, (const char *[3]){"weights.safetensors", "another model"});
    other.L = 4;
    Trial *more = trial_new(&other, run);
    check_dies("more layers", die_of_load, more, (const char *[3]){"layer.3.", "missing"});
    other = *config;
    other.F += 2;
    Trial *wider = trial_new(&other, run);
    check_dies("a wider MLP", die_of_load, wider, (const char *[3]){"layer.0.w", "another model"});
    char part[500];
    snprintf(part, sizeof part, "%s/optimizer.safetensors", file);
    if (truncate(part, 5000) != 0) die("%s", part);
    check_dies("half an optimizer", die_of_load, b, (const char *[3]){"optimizer.safetensors", "byte"});
    remove(part);
    check_dies("no optimizer state", die_of_load, b, (const char *[3]){"optimizer.safetensors", "No such file"});
    trial_free(fewer), trial_free(more), trial_free(wider);
}

/* What is saved comes back bit for bit, and only into the model it came from. */
static void test_checkpoint(void) {
    char dir[300], file[400];
    snprintf(dir, sizeof dir, "%s", scratch_path("checkpoint"));
    const char *const options[][2] = {{"data", "a \"quoted\\\" name\n"}, {"lr", "0.001"}};
    for (int family = 0; family < NUM_FAMILIES; family++) {
        const ModelConfig config = tiny_config((Family)family, 2);
        const TrainConfig run = tiny_run(16, 1, 8, 8);
        Trial *a = trial_new(&config, &run), *b = trial_new(&config, &run);
        const RunState state = {7, (uint64_t)1 << 40, 123, 456, UINT64_MAX};
        trial_gradients(a);
        step_update(&a->m, 0.01, 0.1, 1, 1);
        for (size_t i = 0; i < b->m.num_params; i++) b->m.params[i] = b->m.m[i] = b->m.v[i] = (floatX)NAN;
        remove_tree(dir);
        close(checkpoint_open_dir(dir));
        check(checkpoint_save(&a->m, dir, &state, options, 2, 2) == 0 && checkpoint_latest(dir, INT32_MAX) == 7,
              "cannot save");
        snprintf(file, sizeof file, "%s/step-00000007", dir);
        checkpoint_load(&b->m, file);
        check(memcmp(a->m.params, b->m.params, a->m.num_params * sizeof(floatX)) == 0 &&
                  memcmp(a->m.m, b->m.m, a->m.num_params * sizeof(floatX)) == 0 &&
                  memcmp(a->m.v, b->m.v, a->m.num_params * sizeof(floatX)) == 0,
              "%s: what comes back differs", family_names[family]);
        SavedState s = state_read(file);
        check(s.run.step == 7 && s.run.sample == (uint64_t)1 << 40 && s.run.tokens == 123 && s.run.data_tokens == 456 &&
                  s.run.data_hash == UINT64_MAX && s.count == 2 &&
                  strcmp(s.options[0], "--data=a \"quoted\\\" name\n") == 0,
              "state.json: step %d, %d options, %s", s.run.step, s.count, s.count ? s.options[0] : "");
        for (int i = 0; i < NUM_CONFIG_FIELDS; i++) {
            check(s.model[i] == config_get(&config, i), "state.json: %s is %g", config_fields[i].name, s.model[i]);
            if (!strcmp(config_fields[i].name, "norm_eps"))
                check(s.model[i] == config.norm_eps, "norm_eps is %g", s.model[i]);
        }
        state_free(&s);
        check_other_models(b, &config, &run, file);
        trial_free(a), trial_free(b);
    }
}

/* What a power cut would lose is on the disk before it has its name: each of the three files is opened, written and
   synced, then their directory; the rename, and the directory of that; then an old checkpoint goes the reverse way. */
static void test_checkpoint_order(void) {
    char dir[300];
    snprintf(dir, sizeof dir, "%s", scratch_path("checkpoint"));
    const char *const options[][2] = {{"lr", "0.001"}};
    const ModelConfig config = tiny_config(FAMILY_LLAMA, 2);
    const TrainConfig run = tiny_run(16, 1, 8, 8);
    Trial *t = trial_new(&config, &run);
    char short_trace[64] = "";
    remove_tree(dir);
    close(checkpoint_open_dir(dir));
    for (int step = 1; step <= 5; step++) {
        const RunState state = {step, 0, 0, 0, 0};
        fault_count = 0;
        check(checkpoint_save(&t->m, dir, &state, options, 1, 2) == 0, "cannot save step %d", step);
    }
    for (const char *c = fault_trace; *c; c++) { /* several writes in a row as one */
        const size_t n = strlen(short_trace);
        if ((*c != 'w' || n == 0 || short_trace[n - 1] != 'w') && n < sizeof short_trace - 1) short_trace[n] = *c;
    }
    check(strcmp(short_trace, "mowsowsowsosrosrosuuud") == 0, "the calls of a save are %s", short_trace);
    check(checkpoint_latest(dir, INT32_MAX) == 5 && checkpoint_latest(dir, 5) == 4 && checkpoint_latest(dir, 4) == -1 &&
              count_entries(dir) == 2,
          "--keep 2 keeps %d", count_entries(dir));
    const RunState state = {7, 0, 0, 0, 0};
    check(checkpoint_save(&t->m, dir, &state, options, 1, 0) == 0 && count_entries(dir) == 3, "--keep 0 keeps all");
    trial_free(t);
}

/* Every key of state.json must be there, once, and nothing of it may be cut off. */
static void test_checkpoint_state(void) {
    char dir[300], file[400];
    snprintf(dir, sizeof dir, "%s", scratch_path("state"));
    const char *const options[][2] = {{"data", "a"}, {"lr", "0.001"}};
    const ModelConfig config = tiny_config(FAMILY_LLAMA, 2);
    const RunState saved = {7, 1, 2, 3, 4};
    mkdir(dir, 0777);
    check(state_write(dir, &saved, &config, options, 2) == 0, "cannot write");
    snprintf(file, sizeof file, "%s/state.json", dir);
    FILE *f = fopen(file, "r");
    char text[4096];
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *const keys[] = {"format", "step", "sample", "tokens", "data_tokens", "data_hash", "model", "options"};
    for (int i = 0; i < 2 * COUNT(keys); i++) { /* one is missing, one is there twice */
        char quoted[32], changed[8192];
        snprintf(quoted, sizeof quoted, "\"%s\": ", keys[i / 2]);
        char *at = strstr(text, quoted), *end = at + strcspn(at, "\n");
        if (i / 2 == 7) end = strstr(at, "\n}\n") + 2; /* options: to its bracket */
        const int before = (int)(at - text), length = (int)(end - at), last = i / 2 == 7;
        if (i & 1) snprintf(changed, sizeof changed, "%.*s%.*s%s%s", before, text, length, at, last ? "," : "", at);
        else if (last) snprintf(changed, sizeof changed, "%.*s}", before - 2, text);
        else snprintf(changed, sizeof changed, "%.*s%s", before, text, end);
        f = fopen(file, "w");
        fputs(changed, f);
        fclose(f);
        check_dies(changed, die_of_state, dir,
                   (const char *[3]){"state.json: the key", keys[i / 2], i & 1 ? "twice" : "missing"});
    }
    f = fopen(file, "w");
    fputs(text, f);
    fclose(f);
    for (size_t cut = 0; cut < n - 1; cut += 1 + cut / 20) { /* without its last newline it is still whole */
        if (truncate(file, (off_t)(n - 2 - cut)) != 0) die("%s", file);
        check_dies("half a state.json", die_of_state, dir, (const char *[3]){"state.json"});
    }
}

/* The machine stops, or the disk is full, at every single system call of a save: afterwards there is a checkpoint, the old
   one or the new one, and it is whole. */
static void test_checkpoint_faults(void) {
    const ModelConfig config = tiny_config(FAMILY_QWEN3, 2);
    const TrainConfig run = tiny_run(16, 1, 8, 8);
    const char *const options[][2] = {{"lr", "0.001"}};
    Trial *t = trial_new(&config, &run), *back = trial_new(&config, &run);
    const size_t bytes = t->m.num_params * sizeof(floatX);
    for (size_t i = 0; i < t->m.num_params; i++) t->m.m[i] = t->m.v[i] = (floatX)i;
    floatX *first = (floatX *)xcalloc(t->m.num_params, sizeof(floatX));
    memcpy(first, t->m.params, bytes);
    for (int stops = 0; stops < 2; stops++) {
        int points = 0, kept_old = 0;
        for (int at = 1;; at++) {
            char dir[300], path[400];
            snprintf(dir, sizeof dir, "%s", scratch_path("faults"));
            remove_tree(dir);
            close(checkpoint_open_dir(dir));
            RunState state = {1, 10, 100, 0, 0};
            memcpy(t->m.params, first, bytes);
            check(checkpoint_save(&t->m, dir, &state, options, 1, 1) == 0, "the first checkpoint");
            fflush(stdout);
            const pid_t child = fork();
            if (child == 0) {
                state.step = 2;
                for (size_t i = 0; i < t->m.num_params; i++) t->m.params[i] += 1;
                fault_stops = stops;
                fault_count = 0;
                fault_at = at;
                const int error = checkpoint_save(&t->m, dir, &state, options, 1, 1);
                _exit(fault_count < at ? 77 : error ? 1 : 0);
            }
            int status = 0;
            waitpid(child, &status, 0);
            const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
            check(code == 77 || (stops ? code == 9 : code == 0 || code == 1), "call %d: status %d", at, code);
            const int latest = checkpoint_latest(dir, INT32_MAX);
            close(checkpoint_open_dir(dir)); /* the next start sweeps up */
            check(latest == 1 || latest == 2, "call %d: the newest checkpoint is of step %d", at, latest);
            check(code != 0 || latest == 2, "call %d: saved without an error, and is not there", at);
            check(count_entries(dir) <= 2 && checkpoint_latest(dir, INT32_MAX) == latest,
                  "call %d: %d entries are left", at, count_entries(dir));
            checkpoint_path(path, dir, "step-", latest);
            checkpoint_load(&back->m, path);
            SavedState s = state_read(path);
            int same = s.run.step == latest;
            for (size_t i = 0; i < t->m.num_params; i++)
                same &= back->m.params[i] == first[i] + (latest == 2) && back->m.v[i] == (floatX)i;
            check(same, "call %d: the checkpoint of step %d is not what was saved", at, latest);
            state_free(&s);
            kept_old += latest == 1;
            points = at - 1;
            if (code == 77 || failed_here) break;
        }
        check(points > 20 && kept_old > 10, "only %d calls, %d of them before the new checkpoint was there", points,
              kept_old);
        printf("    %s at each of %d system calls: %d times the old checkpoint is left, else the new one\n",
               stops ? "stopped" : "a full disk", points, kept_old);
    }
    free(first);
    trial_free(t), trial_free(back);
}

// ----------------------------------------------------------------------------------------------
// sampling

/* One token at a time is the same forward: after each token, the final activations are those of a whole forward, bit
   for bit; what is drawn without chance is what that forward finds likeliest. Training afterwards is unchanged. */
static void test_sample(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        for (int P = 1; P <= 16; P += 5) {
            const ModelConfig config = tiny_config((Family)family, 3);
            const int T = 45, V = config.V, C = config.C;
            TrainConfig run = tiny_run(T, 2, 2 * P, P);
            run.prompt = "1";
            Trial *t = trial_new(&config, &run);
            run = tiny_run(T, 1, T, P); /* the forward of a sequence in one chunk, with pages of the same size */
            Trial *whole = trial_new(&config, &run);
            Candidate *c = t->batch.candidates;
            const Sampler greedy = {0, 0};
            Rng rng = rng_stream(22, 0, 0);
            int tokens[45], guesses[45], targets[45], other[45];
            for (int i = 0; i < T; i++) tokens[i] = (int)rng_below(&rng, V), targets[i] = 0;
            const int prompt = 1 + (int)rng_below(&rng, min_size(3 * P, T - 1));
            memory_poison(&t->mem);
            sample_tokens(&t->m, tokens, prompt, T, &greedy, &rng, c);
            sequence_step(&whole->m, tokens, targets, 0, 0, NULL, guesses, &whole->progress);
            for (int i = prompt; i < T; i++)
                check(tokens[i] == guesses[i - 1], "%s, page %d: token %d is %d, not the likeliest, %d",
                      family_names[family], P, i, tokens[i], guesses[i - 1]);
            for (int n = 2; n < T; n += 7) { /* the last of n tokens, whether it came alone or with the prompt */
                memcpy(other, tokens, sizeof tokens);
                sample_tokens(&t->m, other, n / 2, n + 1, &greedy, &rng, c);
                if (n / 2 < prompt)
                    memcpy(other, tokens, sizeof tokens), sample_tokens(&t->m, other, n, n + 1, &greedy, &rng, c);
                check(memcmp(t->m.lnf, whole->m.lnf + (size_t)(n - 1) * C, C * sizeof(floatX)) == 0,
                      "%s, page %d: after %d tokens a sample is not where a forward is", family_names[family], P, n);
            }
            check(pages_in_use(&t->m.pages) == 0, "a sample keeps %d pages", pages_in_use(&t->m.pages));
            run = tiny_run(T, 2, 2 * P, P);
            Trial *fresh = trial_new(&config, &run);
            memcpy(t->batch.inputs, fresh->batch.inputs, sizeof(int) * 2 * T);
            check_same_bits("training after a sample", t, fresh);
            trial_free(t), trial_free(whole), trial_free(fresh);
        }
    }
}

/* Frequencies follow exp(logit / temperature); top_k and ties; text that is safe to print. */
static void test_sampler(void) {
    enum { V = 5, N = 200000 };
    const float logits[V] = {0, 1, 2, 1, -50};
    Candidate c[V];
    Rng rng = rng_stream(23, 0, 0);
    const Sampler samplers[] = {{1, 0}, {0.5, 0}, {1, 2}, {1, 3}, {1, 5}};
    for (int k = 0; k < COUNT(samplers); k++) {
        double p[V], sum = 0;
        int count[V] = {0};
        for (int i = 0; i < V; i++) { /* among the first two of logits 2, 1, 1 the tie goes to the lower id */
            const int in = samplers[k].top_k == 0 || samplers[k].top_k == 5 || i == 2 || i == 1 ||
                           (samplers[k].top_k == 3 && i == 3);
            p[i] = in ? exp((double)logits[i] / samplers[k].temperature) : 0;
            sum += p[i];
        }
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < V; i++) c[i].p = logits[i], c[i].id = i;
            count[sampler_pick(&samplers[k], c, V, &rng)]++;
        }
        for (int i = 0; i < V; i++) { /* 5 standard deviations of a binomial */
            const double want = p[i] / sum, bound = 5 * sqrt(want * (1 - want) / N) + 1e-9;
            check(fabs((double)count[i] / N - want) <= bound, "sampler %d: token %d has frequency %g, not %g", k, i,
                  (double)count[i] / N, want);
        }
    }
    const float extreme[3] = {1e30f, -1e30f, 1e30f};
    for (int i = 0; i < 3; i++) c[i].p = extreme[i], c[i].id = i;
    const Sampler cold = {1e-6, 0}, zero = {0, 0};
    check(sampler_pick(&zero, c, 3, &rng) == 0, "of two likeliest tokens the lower id");
    check(sampler_pick(&cold, c, 3, &rng) != 1, "a logit of -1e30 is drawn");

    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    const char *raw = "a\n\x1b[2J\x7f\xC3\xA9\xC2\x9B\xFF\xE2\x82\xAC\xED\xA0\x80\xC0\x80\xE2\x82";
    print_text(f, (const unsigned char *)raw, (int)strlen(raw));
    fclose(f);
    check(strcmp(text, "a\n\\x1b[2J\\x7f\xC3\xA9\\xc2\\x9b\\xff\xE2\x82\xAC\\xed\\xa0\\x80\\xc0\\x80\\xe2\\x82") == 0,
          "printed: %s", text);
    free(text);
}

// ----------------------------------------------------------------------------------------------
// plans

/* Flops of products are those of the schedule's matrix products, to the last one; pairs are those of causal attention. */
static void test_work(void) {
    for (int family = 0; family < NUM_FAMILIES; family++) {
        for (int i = 0; i < 16; i++) {
            const ModelConfig config = tiny_config((Family)family, 3);
            TrainConfig run = tiny_run(i & 1 ? 97 : 64, 2, i & 2 ? 16 : 128, 8);
            run.carry = i & 4 ? CARRY_NONE : CARRY_EXACT;
            run.recompute = i & 8 ? RECOMPUTE_LAYER : RECOMPUTE_CHUNK;
            Trial *t = trial_new(&config, &run);
            for (int train = 0; train < 2; train++) {
                double products = 0;
                gemm_flops = 0;
                if (train) trial_gradients(t);
                else sequence_step(&t->m, t->batch.inputs, t->batch.targets, 0, 0, NULL, NULL, &t->progress);
                for (int k = 0, n = sequence_schedule(&t->m, train); k < n; k++) {
                    Work w[WORK_KINDS];
                    step_work(&t->m, &t->m.schedule[k], w);
                    for (int j = 0; j < WORK_KINDS; j++) products += w[j].products;
                }
                check(products == gemm_flops, "%s, case %d, train %d: %g flops planned, %g done", family_names[family],
                      i, train, products, gemm_flops);
            }
            /* bytes, loop by loop: every layer of every pass touches each page once per loop over it */
            double read = 0, written = 0, bytes[2] = {0}, params = 0, param_bytes = 0;
            const double page = 2.0 * run.B * 8 * config.NKV * config.HD * sizeof(floatX);
            const double kv = 2.0 * config.C * config.NKV * config.HD,
                         rest = 2.0 * config.C * config.NH * config.HD +
                                (config.mlp == MLP_SWIGLU ? 3.0 : 2.0) * config.C * config.F,
                         head = (double)config.C * config.Vp;
            for (int k = 0, n = sequence_schedule(&t->m, 1); k < n; k++) {
                const ChunkStep *c = &t->m.schedule[k];
                Work w[WORK_KINDS];
                step_work(&t->m, c, w);
                for (int j = 0; j < WORK_KINDS; j++) {
                    bytes[0] += w[j].pages_read;
                    bytes[1] += w[j].pages_written;
                    param_bytes += w[j].param_bytes;
                }
                const ChunkRange range = chunks_range(run.T, t->m.chunk_size, c->ck);
                const int first = range.t0 / 8, end = chunks_pages_end(range, 8), back = c->pass == PASS_BACKWARD;
                for (int l = 0; l < config.L; l++) {
                    const int stops = !back && l == config.L - 1,
                              again = back && run.recompute == RECOMPUTE_LAYER && l < config.L - 1;
                    const double k_again = config.qk_norm ? kv / 2 : 0; /* the norm's backward wants k */
                    params += c->write_kv ? kv : k_again;
                    params += (stops ? 0 : rest) + (again ? rest + k_again : 0) + (back ? 3 * (kv + rest) : 0);
                    for (int p = 0; p < end; p++) {
                        const int own = p >= first, later = range.t0 + range.Tc < run.T,
                                  carried = run.carry == CARRY_EXACT;
                        written += page * (c->write_kv && own);       /* K, V */
                        read += page * (!stops + again);              /* attention_forward */
                        read += page * back * (1 + (carried || own)); /* dq; dkv over the same K, V */
                        read += page * (back && carried && later);    /* dK, dV that are added to */
                        written += page * (back && (carried || own)); /* dK, dV */
                        read += page * (back && own);                 /* the chunk's own, complete */
                    }
                }
                params += back ? 4 * head : 0;
            }
            check(bytes[0] == read && bytes[1] == written && param_bytes == params * sizeof(floatX),
                  "%s, case %d: %g bytes of pages read, %g written, %g of parameters; by loops %g, %g, %g",
                  family_names[family], i, bytes[0], bytes[1], param_bytes, read, written, params * sizeof(floatX));
            double pairs = 0, counted = 0;
            for (int ck = 0; ck < t->m.N; ck++) pairs += work_pairs(&t->m, chunks_range(run.T, t->m.chunk_size, ck), 1);
            for (int q = 0; q < run.T; q++) counted += 2.0 * (q + 1);
            check(pairs == counted, "%g pairs of query and key, not %g", pairs, counted);
            trial_free(t);
        }
    }
}

static void write_text(const char *name, const char *text) {
    FILE *f = fopen(scratch_path(name), "w");
    if (!f || fputs(text, f) < 0 || fclose(f) != 0) die("%s: cannot write", name);
}

/* Limits of a container, from files like those of the system: the least on the way up counts. */
static void test_cgroup(void) {
    char root[300], self[300];
    snprintf(root, sizeof root, "%s", scratch_path("cgroup"));
    snprintf(self, sizeof self, "%s", scratch_path("self"));
    mkdir(root, 0777), mkdir(scratch_path("cgroup/a"), 0777), mkdir(scratch_path("cgroup/a/b"), 0777);
    write_text("self", "3:cpu:/elsewhere\n0::/a/b\n");
    check(cgroup_limit(root, self, "cpu.max") == UINT64_MAX, "no files, no limit");
    write_text("cgroup/a/b/cpu.max", "max 100000\n");
    check(cgroup_limit(root, self, "cpu.max") == UINT64_MAX, "max is no limit");
    write_text("cgroup/a/cpu.max", "250000 100000\n");
    check(cgroup_limit(root, self, "cpu.max") == 3, "two and a half processors are three threads");
    write_text("cgroup/cpu.max", "150000 100000\n");
    write_text("cgroup/a/b/memory.max", "1000000\n");
    check(cgroup_limit(root, self, "cpu.max") == 2 && cgroup_limit(root, self, "memory.max") == 1000000,
          "the least counts");
    write_text("self", "0::/\n");
    check(cgroup_limit(root, self, "cpu.max") == 2, "at the root of a container");
    check(cgroup_limit(root, scratch_path("no such file"), "cpu.max") == 2, "no name of the group");
}

// ----------------------------------------------------------------------------------------------
// the program, as a user meets it

#ifndef PROGRAM
#define PROGRAM "./train_oomb"
#endif

/* Runs the program; returns its exit status and the first bytes of what it printed, errors included. */
static int run_program(const char *arguments, char *output, size_t size) {
    char command[1024];
    snprintf(command, sizeof command, "%s %s 2>&1", PROGRAM, arguments);
    FILE *p = popen(command, "r");
    if (!p) die("popen: %s", strerror(errno));
    size_t n = fread(output, 1, size - 1, p);
    output[n] = 0;
    while (fgetc(p) != EOF) continue;
    int status = pclose(p);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* file: one that test_bad_input makes, "" for none. LOG in the arguments: a file that must survive the refusal. */
static const struct {
    const char *arguments, *file, *says[3];
} bad_input[] = {
    {"--nonsense 3", "", {"--nonsense", "--help"}},
    {"stray", "", {"stray", "--help", "quotes"}},
    {"--lr", "", {"--lr", "needs a value"}},
    {"--lr fast", "", {"--lr fast", "not a number"}},
    {"--lr nan", "", {"--lr nan", "not a number"}},
    {"--lr -1", "", {"--lr -1", "0 or more"}},
    {"--chunk 4Q", "", {"--chunk 4Q", "whole number"}},
    {"--chunk 1.5", "", {"--chunk 1.5", "whole number"}},
    {"--steps K", "", {"--steps K", "whole number"}},
    {"--chunk -9223372036854775807K", "", {"--chunk -9223372036854775807K", "at least 1"}},
    {"--threads 100000", "", {"--threads 100000", "at most"}},
    {"--chunk 0", "", {"--chunk 0", "at least 1"}},
    {"--chunk -32", "", {"--chunk -32", "at least 1"}},
    {"-T 4000000000", "", {"--seq-len 4000000000", "too large"}},
    {"-T 4096M", "", {"--seq-len 4096M", "too large"}},
    {"-T 99999999999999999999", "", {"too large"}},
    {"--chunk 100", "", {"--chunk 100", "--page 32", "--chunk 128"}},
    {"--carry some", "", {"--carry some", "exact|none"}},
    {"--carry exac", "", {"--carry exac", "exact|none"}},
    {"--model gpt5", "", {"--model gpt5", "recall, tiny, gpt2"}},
    {"--model gpt2 -T 2048 --data", "small", {"--seq-len 2048", "1024"}},
    {"--chunk 256 --page 32", "", {"--recall-distance", "--seq-len 512"}},
    {"--chunk 512", "", {"--recall-distance", "one --chunk", "--seq-len 512"}},
    {"--page 100000", "", {"--page 100000", "--chunk 32"}},
    {"--val-every 1 --val-seqs 0", "", {"--val-seqs 0", "--val-every"}},
    {"-T 64 --chunk 8 --page 8", "", {"--seq-len 64", "128"}},
    {"--data", "missing", {"missing", "No such file"}},
    {"--data", "", {"--data", "needs a value"}},
    {"--data=", "", {"--data", "empty"}},
    {"--data", "dir", {"not a regular file"}},
    {"--data", "empty", {"/empty: the file is empty"}},
    {"-T 256 -B 2 --data", "exact", {"512 tokens", "needs 513"}},
    {"-T 50 --chunk 64 -n 1 --val /nonexistent --data", "small", {"/nonexistent", "No such file"}},
    {"-n 1 --log", "dir", {"--log", "cannot open"}},
    {"-n 1 --val x", "", {"--val x", "recall"}},
    {"--recall-distance 5 -T 50 --chunk 64 --data", "small", {"--recall-distance 5"}},
    {"--page 1 --chunk 1 --seq-len 2047M --model tiny --recall-distance 32", "", {"--page 1", "larger --page"}},
    {"-T 1024M --page 64 --chunk 64 -n 1", "", {"this run needs", "pages", "--seq-len"}},
    {"-n 3 --lr 1e30 --warmup 0 --clip 0", "", {"step", "gradient", "--lr"}},
    {"-T 50 --chunk 64 -n 1 --data LOG --log LOG", "", {"--log", "another name"}},
    {"--data /nonexistent --log LOG", "", {"/nonexistent"}},
    {"-T 50 --chunk 64 -n 1 --data LOG --dump LOG", "", {"--dump", "another name"}},
    {"--save-every 5", "", {"--save-every 5", "--out DIR"}},
    {"--resume", "", {"--resume", "--out DIR"}},
    {"--resume=yes --out x", "", {"--resume=yes", "takes no value"}},
    {"-n 1 --out LOG/a/b", "", {"--out", "/a/b: cannot make the directory: Not a directory"}},
    {"-n 1 --log LOG", "", {"--log", "not a log of this program"}},
    {"-n 1 --dump", "dir", {"--dump", "no regular file"}},
    {"-n 1 --dump", "fifo", {"--dump", "no regular file"}},
    {"-n 1 --out LOG", "", {"--out", "cannot open the directory"}},
    {"--sample-len 5", "", {"--sample-len 5", "--prompt"}},
    {"--top-k 5", "", {"--top-k 5", "--prompt"}},
    {"--temperature -1", "", {"--temperature -1", "0 (always the likeliest token) or more"}},
    {"--prompt", "", {"--prompt", "needs a value"}},
    {"--prompt hello", "", {"--prompt hello", "list of them", "below 304"}},
    {"--prompt 304", "", {"--prompt 304", "below 304"}},
    {"--sample-every 5", "", {"--sample-every", "--prompt 0"}},
    {"-T 50 --chunk 64 --prompt aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa --data",
     "small",
     {"53 tokens", "--seq-len 50"}},
    {"-T 50 --chunk 64 --prompt aaaa --sample-len 46 --data", "small", {"--sample-len 46", "room for 45"}},
    {"--dump x -n 0", "", {"--dump x", "--steps 0"}},
    {"--plan -T 50 --chunk 64 --data LOG --log LOG", "", {"--log", "another name"}},
    {"--plan --resume --out x", "", {"--plan", "leave --resume out"}},
    {"--plan -T 2147483647 --chunk 2147483647", "", {"--seq-len 2147483647", "whole pages"}},
    {"--keep 7", "", {"--keep 7", "--out DIR"}},
    {"--temperature 0.3", "", {"--temperature 0.3", "--prompt"}},
    {"-n 1 --log LOG --dump LOG", "", {"--dump", "the file of --log"}},
    {"-n 1 --data", "fifo", {"not a regular file"}},
    {"--plan -T 2048 --model gpt2", "", {"--seq-len 2048", "1024"}},
};

/* Bad input: exit status 1, and a last line that begins with "error:" and holds what the user must know. */
static void test_bad_input(void) {
    char dir[300], empty[300], small[300], exact[300], fifo[300], command[800], output[8192];
    snprintf(fifo, sizeof fifo, "%s", scratch_path("fifo"));
    if (mkfifo(fifo, 0666) != 0) die("%s: cannot make a pipe", fifo);
    snprintf(dir, sizeof dir, "%s", scratch_dir);
    snprintf(empty, sizeof empty, "%s", write_file("empty", 0));
    snprintf(small, sizeof small, "%s", write_file("small", 100));
    snprintf(exact, sizeof exact, "%s", write_file("exact", 511)); /* 512 tokens: one too few for 2 x 256 */
    for (int i = 0; i < COUNT(bad_input); i++) {
        const char *f = bad_input[i].file, *file = !strcmp(f, "dir")     ? dir
                                                   : !strcmp(f, "empty") ? empty
                                                   : !strcmp(f, "small") ? small
                                                   : !strcmp(f, "exact") ? exact
                                                   : !strcmp(f, "fifo")  ? fifo
                                                                         : f;
        snprintf(command, sizeof command, "%s %s", bad_input[i].arguments, file);
        for (char *at; (at = strstr(command, "LOG")) != NULL;) { /* a file that must survive the refusal */
            char rest[800];
            snprintf(rest, sizeof rest, "%s", at + 3);
            snprintf(at, sizeof command - (size_t)(at - command), "%s%s", small, rest);
        }
        const int status = run_program(command, output, sizeof output);
        char *line = strstr(output, "error: ");
        check(status == 1 && line && strchr(line, '\n') && !strchr(line, '\n')[1],
              "train_oomb %s: status %d, no last line with an error", command, status);
        for (int k = 0; k < 3 && bad_input[i].says[k]; k++)
            check(line && strstr(line, bad_input[i].says[k]), "train_oomb %s: the error does not say \"%s\": %s",
                  command, bad_input[i].says[k], line ? line : "");
    }
    const char *const prints[] = {"-n 1", "--plan", "--help"};
    for (int i = 0; access("/dev/full", W_OK) == 0 && i < COUNT(prints); i++) {
        snprintf(command, sizeof command, "%s >/dev/full", prints[i]);
        check(run_program(command, output, sizeof output) == 1, "%s: a full disk under standard output goes unseen",
              prints[i]);
    }
    struct stat st;
    check(stat(small, &st) == 0 && st.st_size == 100, "a refused run has touched the file that --log named");
}

/* --help names every option of the table, with the defaults of the model at hand, and exits with 0. */
static void test_help(void) {
    char output[16384];
    check(run_program("--help", output, sizeof output) == 0, "--help fails");
    TrainConfig c = train_config(&presets[0]);
    Option table[MAX_OPTIONS];
    const int n = options_table(&c, table);
    for (int i = 0; i < n; i++) {
        char name[64], value[200], shown[220] = "", line[400] = "";
        snprintf(name, sizeof name, "\n  --%s%s", table[i].name, table[i].letter ? "," : " ");
        option_format(&table[i], value, sizeof value);
        if (*value) snprintf(shown, sizeof shown, "[%s]", value);
        const char *at = strstr(output, name);
        if (at) snprintf(line, sizeof line, "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
        check(strstr(line, table[i].help) && strstr(line, shown), "--help on %s says \"%s\", not \"%s %s\"",
              table[i].name, line, table[i].help, shown);
    }
    for (int i = 0; i < NUM_PRESETS; i++)
        check(strstr(output, presets[i].name) != NULL, "--help does not name the preset %s", presets[i].name);
    check(run_program("--model gpt2 -h", output, sizeof output) == 0 && strstr(output, "whole context [1024]"),
          "--help with the defaults of gpt2");
}

/* The log of a run without what time and memory did to it. */
static char *read_log(const char *arguments) {
    char command[900], output[256];
    const char *path = scratch_path("log");
    snprintf(command, sizeof command, "%s --log %s", arguments, path);
    const int status = run_program(command, output, sizeof output);
    check(status == 0, "train_oomb %s: status %d", command, status);
    FILE *f = fopen(path, "r");
    char *text = (char *)xcalloc(1, 1 << 20), line[8192];
    while (f && fgets(line, sizeof line, f)) {
        char *ms = strstr(line, ",\"ms\":");
        if (ms) snprintf(ms, 3, "\n");
        strncat(text, line, (1 << 20) - strlen(text) - 1);
    }
    if (f) fclose(f);
    return text;
}

/* Whether two files are the same, byte for byte. */
static int same_bytes(const char *a, const char *b) {
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    int same = f && g, x = 0, y = 0;
    while (same && x != EOF) same = (x = fgetc(f)) == (y = fgetc(g));
    if (f) fclose(f);
    if (g) fclose(g);
    return same;
}

/* The checkpoints of a step in two directories, all three files. */
static void check_same_checkpoint(const char *what, const char *a, const char *b, int step, int state) {
    const char *const files[] = {"weights.safetensors", "optimizer.safetensors", "state.json"};
    for (int i = 0; i < 2 + state; i++) {
        char x[600], y[600];
        snprintf(x, sizeof x, "%s/step-%08d/%s", a, step, files[i]);
        snprintf(y, sizeof y, "%s/step-%08d/%s", b, step, files[i]);
        check(same_bytes(x, y), "%s: %s of step %d differs", what, files[i], step);
    }
}

/* The log in a directory without what time and memory did to it. The caller frees. */
static char *read_out_log(const char *dir) {
    char path[600], *line = NULL, *text = NULL;
    size_t room = 0, size = 0;
    snprintf(path, sizeof path, "%s/log.jsonl", dir);
    FILE *f = fopen(path, "r"), *to = open_memstream(&text, &size);
    while (f && getline(&line, &room, f) > 0) {
        char *ms = strstr(line, ",\"ms\":");
        if (ms) snprintf(ms, 3, "}\n");
        fputs(line, to);
    }
    if (f) fclose(f);
    fclose(to);
    free(line);
    return text;
}

static void check_same_log(const char *what, const char *a, const char *b) {
    char *x = read_out_log(a), *y = read_out_log(b);
    check(*x && strcmp(x, y) == 0, "%s: the logs differ:\n%s\nand\n%s", what, x, y);
    free(x), free(y);
}

static void run_ok(const char *what, const char *arguments) {
    char output[16384];
    const int status = run_program(arguments, output, sizeof output);
    check(status == 0, "%s: train_oomb %s: status %d: %s", what, arguments, status, output);
}

/* An option for two threads, where the program can have them. */
static const char *two_threads(void) {
    set_threads(2);
    const int threads = max_threads();
    set_threads(1);
    return threads == 2 ? "--threads 2" : "";
}

/* Three shards of 2,100 tokens: 32 sequences of 64, so that an epoch ends at step 16 of 2 sequences. */
static void write_shards(int masked) {
    uint32_t ids[900];
    Rng r = rng_stream(24, masked, 0);
    const int counts[] = {700, 500, 900};
    for (int k = 0; k < 3; k++) {
        char name[32];
        for (int i = 0; i < counts[k]; i++)
            ids[i] = masked && rng_below(&r, 5) == 0 ? (uint32_t)-100 : (uint32_t)rng_below(&r, 300);
        snprintf(name, sizeof name, "shard%d.bin", k);
        write_tokens(name, masked ? 20240801 : 20240520, masked ? 7 : 1, (uint32_t)counts[k], masked ? 4 : 2, ids,
                     (size_t)counts[k], 0);
    }
}

/* 20 steps against 10 + 10, over shard ends, an epoch's end (step 16) and inside warm-up (12 steps): the same log and the
   same checkpoint, to the last bit. Two whole runs write the same bytes too. Threads and samples change nothing. */
static void test_resume(void) {
    char a[300], b[300], base[900], command[1800], path[600];
    snprintf(a, sizeof a, "%s", scratch_path("resume_a")), snprintf(b, sizeof b, "%s", scratch_path("resume_b"));
    const char *const runs[][2] = {
        {"--data '%s/shard*.bin' --model recall -T 64 -B 2 --chunk 32 --page 16 --val-seqs 0", "--threads 1"},
        {"--data '%s/shard*.bin' --model recall -T 64 -B 1 --grad-accum 2 --chunk 32 --page 16 --val-every 5 --carry "
         "none",
         two_threads()},
        {"--data '%s/resume.txt' --model recall -T 50 -B 3 --chunk 16 --page 16 --val-every 3 --prompt ab "
         "--sample-every 4 --sample-len 9 "
         "--top-k 40 --recompute layer",
         ""},
        {"--data recall%.0s -T 128 -B 1 --chunk 32 --val-seqs 2 --val-every 4 --schedule constant", "--save-every 7"},
    };
    write_file("resume.txt", 4000);
    for (int i = 0; i < COUNT(runs); i++) {
        char data[500];
        write_shards(i & 1);
        remove_tree(a), remove_tree(b);
        snprintf(data, sizeof data, runs[i][0], scratch_dir);
        snprintf(base, sizeof base, "%s -n 20 --warmup 12 --save-every 5 --keep 0", data);
        snprintf(command, sizeof command, "%s --out %s", base, a);
        run_ok("20 steps", command);
        snprintf(command, sizeof command, "%s --out %s", base, b);
        run_ok("20 steps again", command);
        check_same_checkpoint("the same run twice", a, b, 20, 1);
        check_same_log("the same run twice", a, b);
        const int from = i == 2 ? 5 : 10; /* go back: newer checkpoints are gone, the log is too long */
        for (int step = from + 5; step <= 20; step += 5) {
            snprintf(path, sizeof path, "%s/step-%08d", b, step);
            remove_tree(path);
        }
        if (i == 1) { /* and its last line was cut off */
            snprintf(path, sizeof path, "%s/log.jsonl", b);
            if (truncate(path, 2000) != 0) die("%s", path);
        }
        snprintf(command, sizeof command, "--out %s --resume %s", b, runs[i][1]);
        run_ok("10 + 10 steps", command);
        check_same_checkpoint(data, a, b, 20, i != 3); /* there state.json has another --save-every */
        if (i != 1) check_same_log(data, a, b);
        char *log = read_out_log(b); /* of the line that was cut off nothing is left */
        int whole = 1;
        for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n"))
            whole &= strncmp(line, "{\"step\":", 8) == 0 && line[strlen(line) - 1] == '}';
        check(whole, "%s: the log has a broken line", data);
        free(log);
        run_ok("nothing left to do", command);
        if (i != 1) check_same_log("a run with nothing to do", a, b);
    }
}

/* Too few tokens for a batch, just enough, and none that is scored. */
static void test_data_sizes(void) {
    char output[16384], command[1800];
    const struct {
        int B;
        const char *says;
    } sizes[] = {{33, "2100 tokens, but a batch of 33 x 64 needs 2113"},
                 {32, "32 sequences, 51 tokens at the end unused"}}; /* 2100 = 1 + 32 * 64 + 51 */
    write_shards(0);
    for (int i = 0; i < 2; i++) {
        snprintf(command, sizeof command,
                 "--data '%s/shard*.bin' --model recall -T 64 -B %d --chunk 32 --page 16 -n 1 --val-seqs 0",
                 scratch_dir, sizes[i].B);
        check(run_program(command, output, sizeof output) == (i == 0) && strstr(output, sizes[i].says),
              "train_oomb %s: %s", command, output);
    }
    uint32_t ids[129] = {0}; /* a batch of 2 x 64 targets needs 129 tokens */
    for (int n = 128; n <= 129; n++) {
        write_tokens("exact.bin", 20240520, 1, (uint32_t)n, 2, ids, (size_t)n, 0);
        snprintf(command, sizeof command, "--data %s --model recall -T 64 -B 2 --chunk 32 --page 16 -n 1",
                 scratch_path("exact.bin"));
        check(run_program(command, output, sizeof output) == (n == 128) &&
                  strstr(output, n == 128 ? "128 tokens, but a batch of 2 x 64 needs 129"
                                          : "2 sequences, 0 tokens at the end unused"),
              "%d tokens for a batch of 128: %s", n, output);
    }
    for (int i = 0; i < 129; i++) ids[i] = (uint32_t)-1;
    write_tokens("masked.bin", 20240801, 7, 129, 4, ids, 129, 0);
    snprintf(command, sizeof command, "--data %s --model recall -T 64 -B 2 --chunk 32 --page 16 -n 1",
             scratch_path("masked.bin"));
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "every token is a masked target"),
          "nothing but masks: %s", output);
}

/* What a checkpoint does not allow, and what it does. */
static void test_resume_refused(void) {
    char a[300], output[16384], command[1800];
    write_shards(0);
    snprintf(a, sizeof a, "%s", scratch_path("refused/below/others"));
    snprintf(command, sizeof command,
             "--data '%s/shard*.bin' --model recall -T 64 -B 2 --chunk 32 --page 16 -n 4 --out %s", scratch_dir, a);
    run_ok("4 steps", command);
    const struct {
        const char *arguments, *says[2];
    } bad[] = {
        {"", {"step 4", "--resume"}},
        {"--resume --seed 2", {"--seed 2", "the checkpoint has 1"}},
        {"--resume -T 32", {"--seq-len 32", "the checkpoint has 64"}},
        {"--resume --model tiny --data recall", {"V = 304", "tiny has 257"}},
        {"--resume --data recall -T 64", {"--seq-len 64", "128"}},
        {"--resume --val SHARD", {"2100 tokens", "1890"}},
        {"--resume --data SHARD", {"630", "1890"}},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        char arguments[500];
        snprintf(arguments, sizeof arguments, "%s", bad[i].arguments);
        char *at = strstr(arguments, "SHARD");
        if (at) snprintf(at, sizeof arguments - (size_t)(at - arguments), "%s/shard0.bin", scratch_dir);
        snprintf(command, sizeof command, "--out %s %s", a, arguments);
        const int status = run_program(command, output, sizeof output);
        const char *error = strstr(output, "error: ");
        check(status == 1 && error && strstr(error, bad[i].says[0]) && strstr(error, bad[i].says[1]),
              "train_oomb %s: status %d: %s", command, status, error ? error : output);
    }
    snprintf(command, sizeof command, "--out %s --resume -n 6 --lr 0.001 --chunk 64", a);
    check(run_program(command, output, sizeof output) == 0 &&
              strstr(output, "resume: --lr is 0.001, and was 0.004 before") && strstr(output, "resume: step 4 of 6") &&
              strstr(output, "step     6/6"),
          "a longer run with another rate: %s", output);
    snprintf(command, sizeof command, "--out %s/none --resume", a);
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "No such file"),
          "a directory that is not there: %s", output);
    mkdir(scratch_path("begun"), 0777);
    snprintf(command, sizeof command, "--out %s --resume", scratch_path("begun"));
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "no checkpoint; to begin a run there"),
          "an empty directory: %s", output);
    snprintf(command, sizeof command, "--out %s --resume --data recall -n 1 -T 128 --val-seqs 0",
             scratch_path("begun"));
    check(run_program(command, output, sizeof output) == 0 && strstr(output, "no checkpoint yet; from the start"),
          "an empty directory: %s", output);
    write_file("notes", 100);
    snprintf(command, sizeof command, "--out %s --resume -n 9 --log %s", a, scratch_path("notes"));
    struct stat st;
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "not a log of this program") &&
              stat(scratch_path("notes"), &st) == 0 && st.st_size == 100,
          "a log that is none: %s", output);

    char log[400];
    snprintf(log, sizeof log, "%s/log.jsonl", a);
    const Logger other = logger_open(log, INT32_MAX);
    snprintf(command, sizeof command, "-n 1 --log %s", log);
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "another run is writing there"),
          "two runs in one log: %s", output);
    fclose(other.file);
    const int lock = checkpoint_open_dir(a); /* this process is the other run */
    snprintf(command, sizeof command, "--out %s --resume -n 9", a);
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "another run is writing there"),
          "two runs in one place: %s", output);
    close(lock);
}

/* A gradient that is not finite ends the run; the checkpoint of the step before is kept, and is good. */
static void test_resume_nan(void) {
    char output[16384], command[1800], path[600];
    snprintf(command, sizeof command,
             "--out %s -n 9 -T 128 -B 1 --val-seqs 0 --save-every 1 --lr 1e30 --warmup 0 --clip 0",
             scratch_path("nan"));
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "the gradient of"),
          "no NaN at --lr 1e30: %s", output);
    const int kept = checkpoint_latest(scratch_path("nan"), INT32_MAX);
    checkpoint_path(path, scratch_path("nan"), "step-", kept);
    char find[64];
    snprintf(find, sizeof find, "error: step %d: the gradient", kept + 1);
    SavedState s = state_read(path);
    check(kept >= 1 && s.run.step == kept && strstr(output, find), "the checkpoint kept is of step %d: %s", kept,
          output);
    state_free(&s);
}

/* What a resume does to the log, and what it asks of data, the recall task and state.json. */
static void test_resume_files(void) {
    char output[16384], command[1800], path[600];
    write_shards(0);
    /* A checkpoint that cannot be loaded is refused before the log is touched. */
    snprintf(command, sizeof command,
             "--data '%s/shard*.bin' --model recall -T 64 -B 2 --chunk 32 --page 16 -n 4 --save-every 2 --val-seqs 0 "
             "--out %s/logged",
             scratch_dir, scratch_dir);
    run_ok("4 steps with a log", command);
    remove_tree(scratch_path("logged/step-00000004"));
    if (truncate(scratch_path("logged/step-00000002/weights.safetensors"), 1000) != 0)
        die("truncate: %s", strerror(errno));
    char *before = read_out_log(scratch_path("logged"));
    snprintf(command, sizeof command, "--out %s --resume", scratch_path("logged"));
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "weights.safetensors"),
          "half of the weights: %s", output);
    char *after = read_out_log(scratch_path("logged"));
    check(*before && strcmp(before, after) == 0, "a refused run has changed the log from\n%s to\n%s", before, after);
    free(before), free(after);

    /* What a power cut can leave at the end of a log; and other data of the same length. */
    snprintf(command, sizeof command,
             "--data '%s/shard*.bin' --model recall -T 64 -B 2 --chunk 32 --page 16 -n 4 --val-seqs 0 --out %s/cut",
             scratch_dir, scratch_dir);
    run_ok("4 steps", command);
    FILE *f = fopen(scratch_path("cut/log.jsonl"), "a");
    for (int i = 0; i < 300; i++) fputc(0, f);
    fclose(f);
    snprintf(command, sizeof command, "--out %s --resume -n 5", scratch_path("cut"));
    run_ok("zeros behind the log", command);
    before = read_out_log(scratch_path("cut"));
    check(strstr(before, "\n{\"step\":5,") && !strstr(before, "step\":6"), "the log after zeros: %s", before);
    free(before);
    const int fd = open(scratch_path("shard1.bin"), O_WRONLY);
    if (write_at(fd, 1024 + 100, "\x01\x00\x02", 3)) die("shard1.bin");
    close(fd);
    snprintf(command, sizeof command, "--out %s --resume -n 6", scratch_path("cut"));
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "as many tokens") &&
              strstr(output, "but other ones"),
          "other data: %s", output);
    write_shards(0);

    /* The recall task's distance is one chunk, unless it is said: another chunk asks for it, and that advice is good. */
    snprintf(command, sizeof command, "-n 2 -T 256 -B 1 --val-seqs 0 --out %s", scratch_path("distance"));
    run_ok("recall", command);
    snprintf(command, sizeof command, "--out %s --resume -n 3 --chunk 64", scratch_path("distance"));
    check(run_program(command, output, sizeof output) == 1 && strstr(output, "add --recall-distance 32"),
          "another chunk: %s", output);
    strcat(command, " --recall-distance 32");
    run_ok("another chunk, the same distance", command);

    /* Options that a checkpoint does not keep, in its state.json: refused, for they would write files. */
    snprintf(path, sizeof path, "%s/distance/step-00000003/state.json", scratch_dir);
    char *text = (char *)xcalloc(1, 8192);
    f = fopen(path, "r");
    if (!f || fread(text, 1, 8191, f) == 0) die("%s", path);
    fclose(f);
    char *options = strstr(text, "\"options\": {");
    f = fopen(path, "w");
    fprintf(f, "%.*s\"options\": {\"dump\": \"victim\",%s", (int)(options - text), text,
            options + strlen("\"options\": {"));
    fclose(f);
    snprintf(command, sizeof command, "--out %s --resume -n 4", scratch_path("distance"));
    check(run_program(command, output, sizeof output) == 1 &&
              strstr(output, "state.json: \"dump\" is no option that a checkpoint keeps"),
          "--dump in state.json: %s", output);
    free(text);
}

static void test_resume_values(void) {
    char command[1800];
    /* Long values come back whole; --log is kept; a log that is a pipe is left alone. */
    char prompt[2001] = "";
    memset(prompt, 'a', 2000);
    write_file("long.txt", 9000);
    snprintf(
        command, sizeof command,
        "--data %s -T 2048 -B 1 --chunk 64 -n 1 --val-seqs 0 --model recall --sample-len 3 --out %s --log %s --prompt ",
        scratch_path("long.txt"), scratch_path("long"), scratch_path("long.log"));
    char *all = (char *)xcalloc(1, 8192);
    snprintf(all, 8192, "%s%s %s", PROGRAM, "", command);
    strcat(strcat(all, prompt), " >/dev/null 2>&1");
    check(system(all) == 0, "a prompt of 2,000 bytes");
    snprintf(all, 8192, "%s --out %s --resume -n 2 >/dev/null 2>&1", PROGRAM, scratch_path("long"));
    check(system(all) == 0, "resumed with a prompt of 2,000 bytes");
    int samples = 0, tokens = 0;
    FILE *f = fopen(scratch_path("long.log"), "r");
    for (int c, in = 0; f && (c = fgetc(f)) != EOF;) {
        if (c == '[') in = 1, samples++;
        if (c == ']') in = 0;
        tokens += in && c == ',';
    }
    if (f) fclose(f);
    check(samples == 2 && tokens == 2 * 2003, "%d samples with %d commas in the log", samples, tokens);
    snprintf(all, 8192,
             "timeout 60 sh -c '%s --out %s --resume -n 3 --log %s >/dev/null & cat %s >/dev/null; wait $!' 2>&1",
             PROGRAM, scratch_path("long"), scratch_path("fifo2"), scratch_path("fifo2"));
    if (mkfifo(scratch_path("fifo2"), 0666) != 0) die("fifo2");
    check(system(all) == 0, "resumed with a log that is a pipe");
    free(all);
}

/* Runs a command of the shell, without waiting for it. */
static pid_t start(const char *command) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    return child;
}

/* Waits until the log of a run in dir is there and has more than this many bytes, but no longer than a minute. */
static void wait_for_log(const char *dir, off_t bytes) {
    char log[400];
    struct stat st;
    snprintf(log, sizeof log, "%s/log.jsonl", dir);
    for (int wait = 0; wait < 60000 && (stat(log, &st) != 0 || st.st_size < bytes); wait++) usleep(1000);
}

/* A run that saves every step, killed at 100 random moments: every resume goes on bit for bit. */
static void test_kill(void) {
    char a[300], b[300], base[900], command[1800];
    int kills = 0, runs = 0, in_save = 0, resumes = 0;
    double whole_ms =
        0; /* of a run that is left alone: a life lasts up to a tenth of it, so that there are some steps in it */
    const uint64_t seed =
        (uint64_t)getpid() * 1000003 + (uint64_t)time(NULL); /* other moments in every run of the test */
    Rng r = rng_stream(seed, 25, 0);
    while (kills < 100 && !failed_here) {
        snprintf(a, sizeof a, "%s", scratch_path("kill_a")), snprintf(b, sizeof b, "%s", scratch_path("kill_b"));
        remove_tree(a), remove_tree(b);
        snprintf(base, sizeof base,
                 "--data recall -n 120 -T 128 -B 1 --chunk 32 --val-seqs 1 --val-every 10 --save-every 1 --seed %d "
                 "--threads 1",
                 ++runs);
        snprintf(command, sizeof command, "%s --out %s", base, a);
        const double began = now_ms();
        run_ok("the run that is left alone", command);
        whole_ms = now_ms() - began;
        mkdir(b, 0777);
        snprintf(command, sizeof command, "exec %s %s --out %s --resume >/dev/null 2>&1", PROGRAM, base, b);
        for (int status = -1; status != 0 && !failed_here;) {
            const pid_t child = start(command);
            if (kills < 100) usleep((useconds_t)(1000 * (0.01 + 0.1 * rng_uniform(&r)) * whole_ms));
            if (kills < 100) kill(child, SIGKILL);
            waitpid(child, &status, 0);
            kills += WIFSIGNALED(status);
            resumes += checkpoint_latest(b, INT32_MAX) > 0;
            DIR *d = opendir(b);
            for (struct dirent *e; d && (e = readdir(d)) != NULL;)
                in_save += checkpoint_step_of(e->d_name, ".writing-") > 0;
            if (d) closedir(d);
            check(WIFSIGNALED(status) || status == 0, "after %d kills: the run ended with status %d", kills, status);
        }
        check_same_checkpoint("killed again and again", a, b, 120, 1);
        check_same_log("killed again and again", a, b);
    }
    check(resumes > 50 && in_save > 0, "%d lives ended with a checkpoint, %d in the middle of one", resumes, in_save);
    printf("    %d kills over %d runs, %d of them while a checkpoint was being written (moments from seed %llu)\n",
           kills, runs, in_save, (unsigned long long)seed);
}

/* Ctrl-C and SIGTERM: the step is finished, saved, and the run goes on later as if nothing had been. */
static void test_interrupt(void) {
    char a[300], b[300], command[1800];
    snprintf(a, sizeof a, "%s", scratch_path("int_a")), snprintf(b, sizeof b, "%s", scratch_path("int_b"));
    const char *base = "--data recall -n 400 -T 256 -B 1 --chunk 32 --val-seqs 1 --val-every 7 --threads 1";
    snprintf(command, sizeof command, "%s --out %s", base, a);
    run_ok("the run that is left alone", command);
    snprintf(command, sizeof command, "exec %s %s --out %s --resume >/dev/null 2>&1", PROGRAM, base, b);
    const int signals[] = {SIGINT, SIGTERM};
    mkdir(b, 0777);
    int reached = 0;
    for (int i = 0; i < 2; i++) {
        int status = 0;
        const pid_t child = start(command);
        wait_for_log(b, (i + 1) * 1500); /* until it has trained a few steps */
        kill(child, signals[i]);
        waitpid(child, &status, 0);
        const int latest = checkpoint_latest(b, INT32_MAX);
        check(WIFEXITED(status) && WEXITSTATUS(status) == 128 + signals[i], "signal %d: status %x", signals[i], status);
        check(latest > reached && latest < 400, "signal %d: the newest checkpoint is of step %d", signals[i], latest);
        reached = latest;
    }
    snprintf(command, sizeof command, "--out %s --resume --threads 1", b);
    run_ok("the rest", command);
    check_same_checkpoint("interrupted twice", a, b, 400, 1);
    check_same_log("interrupted twice", a, b);

    remove_tree(a); /* a second Ctrl-C within one long step ends the program at once */
    snprintf(command, sizeof command,
             "exec %s -n 9 -T 4096 -B 16 --chunk 256 --val-seqs 0 --threads 1 --out %s >/dev/null 2>%s", PROGRAM, a,
             scratch_path("said"));
    int status = 0;
    const pid_t child = start(command);
    wait_for_log(a, 0);
    struct stat said;
    for (int wait = 0; wait < 600 && (stat(scratch_path("said"), &said) != 0 || said.st_size == 0); wait++) {
        kill(child, wait ? 0 : SIGINT); /* until it has said that it will stop after this step */
        usleep(100000);
    }
    kill(child, SIGINT);
    waitpid(child, &status, 0);
    check(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT && checkpoint_latest(a, INT32_MAX) == -1,
          "two Ctrl-C: status %x", status);
}

/* A real full disk, and a read-only one: the run ends with one line, what was saved is intact, and goes on when there is
   room. Needs a file system of its own: unshare, where the system allows it. */
static void test_full_disk(void) {
    char output[16384], command[2400], dir[300], a[300];
    snprintf(dir, sizeof dir, "%s", scratch_path("disk")), snprintf(a, sizeof a, "%s", scratch_path("roomy"));
    mkdir(dir, 0777);
    snprintf(command, sizeof command, "unshare -rm sh -c 'mount -t tmpfs -o size=5m tmpfs %s' >/dev/null 2>&1", dir);
    if (system(command) != 0) {
        printf("    skipped: no file system of its own for a test here\n");
        return;
    }
    const char *base = "-n 8 -T 128 -B 1 --chunk 32 --val-seqs 0 --save-every 2 --keep 0 --threads 1";
    snprintf(command, sizeof command, "%s --out %s", base, a);
    run_ok("a disk with room", command);
    snprintf(command, sizeof command, /* a filler makes room when it goes; a remount is not allowed everywhere */
             "unshare -rm sh -c 'p=\"$PWD\"/%s; mount -t tmpfs -o size=9m tmpfs %s && cd %s || exit; "
             "dd if=/dev/zero of=filler bs=1024 count=4096 2>/dev/null; \"$p\" %s --out o; echo status $?; ls -A o; "
             "if mount -o remount,ro %s 2>/dev/null; then \"$p\" --out o --resume; echo read-only status $?; "
             "mount -o remount,rw %s; fi; rm filler; "
             "\"$p\" --out o --resume >/dev/null; echo last status $?; cp -r o %s/../disk_end' 2>&1",
             PROGRAM, dir, dir, base, dir, dir, dir);
    FILE *p = popen(command, "r");
    const size_t n = p ? fread(output, 1, sizeof output - 1, p) : 0;
    output[n] = 0;
    if (p) pclose(p);
    /* a limit on the size of files, as a shell can set it, is the same: one line, not a signal */
    char limited[16384];
    snprintf(command, sizeof command, "ulimit -f 200; exec %s -n 3 -T 128 -B 1 --val-seqs 0 --out %s/limited 2>&1",
             PROGRAM, dir);
    p = popen(command, "r");
    const size_t got = p ? fread(limited, 1, sizeof limited - 1, p) : 0;
    limited[got] = 0;
    const int limit = p ? pclose(p) : -1;
    check(WIFEXITED(limit) && WEXITSTATUS(limit) == 1 && strstr(limited, "cannot save step 3: File too large"),
          "a limit on files: status %x: %s", limit, limited);
    const char *full = strstr(
        output, "error: --out o: cannot save step 6: No space left on device. The checkpoint of step 4 is intact");
    const char *status = full ? strstr(full, "status 1\nlog.jsonl\nstep-00000002\nstep-00000004\n") : NULL;
    check(full && status && strstr(status, "last status 0\n"), "a full disk: %s", output);
    if (strstr(output, "read-only status")) {
        check(strstr(output, "error: --out o: cannot write there: Read-only file system\nread-only status 1\n") != NULL,
              "a read-only disk: %s", output);
    } else {
        printf("    skipped: a disk that becomes read-only, which is not allowed here\n");
    }
    check_same_checkpoint("after the disk was full", a, scratch_path("disk_end"), 8, 1);
    check_same_log("after the disk was full", a, scratch_path("disk_end"));
}

/* Samples change not a bit of training. They are in the log, and the same again with another number of threads. */
static void test_sample_run(void) {
    char a[300], b[300], command[1800], output[16384];
    write_file("sampled.txt", 5000);
    snprintf(a, sizeof a, "%s", scratch_path("sampled")), snprintf(b, sizeof b, "%s", scratch_path("plain"));
    const char *base = "-T 200 -B 2 --chunk 48 --page 16 -n 6 --save-every 3 --keep 0 --data";
    snprintf(command, sizeof command, "%s %s --out %s", base, scratch_path("sampled.txt"), b);
    run_ok("without samples", command);
    snprintf(command, sizeof command, "%s %s --out %s --sample-every 2 --prompt 'abc' --temperature 0.8 --top-k 50",
             base, scratch_path("sampled.txt"), a);
    check(run_program(command, output, sizeof output) == 0 && strstr(output, "sample   2 | abc") &&
              strstr(output, "sample   6 | abc"),
          "no samples: %s", output);
    check_same_checkpoint("with samples", a, b, 3, 0);
    check_same_checkpoint("with samples", a, b, 6, 0);
    char *with = read_out_log(a), *without = read_out_log(b), *kept = (char *)xcalloc(strlen(with) + 1, 1);
    int samples = 0, tokens = 0;
    for (char *line = strtok(with, "\n"); line; line = strtok(NULL, "\n")) {
        char *ids = strstr(line, "\"sample\":[256,97,98,99,");
        if (ids && ++samples == 1)
            for (char *c = ids; *c; c++) tokens += *c == ',';
        if (!ids) strcat(strcat(kept, line), "\n");
    }
    check(samples == 3 && tokens + 1 == 200 && strcmp(kept, without) == 0,
          "%d samples, the first of %d tokens; without them the log is\n%s", samples, tokens + 1, kept);
    free(with), free(without), free(kept);
    snprintf(command, sizeof command, "--out %s --resume %s --prompt xy --sample-len 5 --temperature 0", a,
             two_threads());
    char again[16384];
    check(run_program(command, output, sizeof output) == 0 && strstr(output, "sample   6 | xy") &&
              run_program(command, again, sizeof again) == 0,
          "a sample of a finished run: %s", output);
    const char *x = strstr(output, "sample "), *y = strstr(again, "sample ");
    check(x && y && strcmp(x, y) == 0, "two samples of one checkpoint: %s and %s", x, y);
    check(run_program("-T 128 -B 1 -n 1 --val-seqs 0 --prompt '1, 2 3' --sample-len 4", output, sizeof output) == 0 &&
              strstr(output, "sample   1 |  1 2 3 | "),
          "a sample of token ids: %s", output);
}

/* 2,000 steps with everything on: memory, file descriptors and pages stay where they are. */
static void test_memory_flat(void) {
    char command[1800], dir[300], log[400], fds[64];
    snprintf(dir, sizeof dir, "%s", scratch_path("flat")), snprintf(log, sizeof log, "%s/log.jsonl", dir);
    write_shards(1);
    snprintf(command, sizeof command,
             "exec %s --data '%s/shard*.bin' --model recall -n 2000 -T 64 -B 2 --chunk 32 --page 16 --val-every 20 "
             "--save-every 100 --prompt 1 "
             "--sample-every 50 --sample-len 20 --threads 1 --out %s >/dev/null 2>&1",
             PROGRAM, scratch_dir, dir);
    const pid_t child = start(command);
    int status = 0, most[2] = {0},
        looks = 0; /* descriptors, early and later: a leak grows, what is inherited does not */
    char log_now[400];
    struct stat st;
    snprintf(log_now, sizeof log_now, "%s", log);
    snprintf(fds, sizeof fds, "/proc/%d/fd", child);
    while (waitpid(child, &status, WNOHANG) == 0) {
        const int n = count_entries(fds);
        const int late = stat(log_now, &st) == 0 && st.st_size > 100000;
        most[late] = n > most[late] ? n : most[late];
        looks += n > 0;
        usleep(2000);
    }
    check(status == 0, "status %x", status);
    if (access("/proc/self/fd", F_OK) == 0)
        check(looks > 50 && most[0] > 0 && most[1] <= most[0], "at %d moments up to %d file descriptors, later %d",
              looks, most[0], most[1]);
    double peak[2] = {0};
    char line[8192];
    FILE *f = fopen(log, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "\"peak_bytes\":");
        const long step = strtol(line + strlen("{\"step\":"), NULL, 10);
        if (at && step == 200) peak[0] = strtod(at + strlen("\"peak_bytes\":"), NULL);
        if (at && step == 2000) peak[1] = strtod(at + strlen("\"peak_bytes\":"), NULL);
    }
    if (f) fclose(f);
    /* 64 KB: the C library's own buffers may settle late; a leak of 40 bytes a step would show */
    check(peak[0] > 0 && peak[1] <= peak[0] + 65536, "peak memory was %.0f bytes at step 200, %.0f at step 2000",
          peak[0], peak[1]);
    printf("    peak %.0f KB at step 200, %.0f KB at step 2000; at most %d and %d file descriptors\n", peak[0] / 1024,
           peak[1] / 1024, most[0], most[1]);
}

#ifndef COMPARE
#define COMPARE "dev/compare_dumps"
#endif

static int compare(const char *a, const char *b, char *output, size_t size) {
    char command[800];
    snprintf(command, sizeof command, "%s %s %s 2>&1", COMPARE, a, b);
    FILE *p = popen(command, "r");
    if (!p) die("popen: %s", strerror(errno));
    const size_t n = fread(output, 1, size - 1, p);
    output[n] = 0;
    while (fgetc(p) != EOF) continue;
    const int status = pclose(p);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void dump_trial(Trial *t, const char *path) {
    static Dump dump;
    dump.file = safe_create(path, dump_max_tensors(&t->m));
    t->m.dump = &dump;
    trial_gradients(t);
    t->m.dump = NULL;
    check(safe_finish(&dump.file) == 0, "%s: cannot write the dump", path);
}

/* One element of each tensor of dump a, of which f is the directory, is changed in turn: each is named. b: a dump that agrees. */
static void dump_change_elements(const SafeFile *f, const char *a, const char *b) {
    static char output[1 << 16];
    for (int i = 0; i < f->count; i++) {
        const SafeTensor *t = &f->tensors[i];
        double largest = 0;
        floatX x, y;
        floatX *all = (floatX *)xcalloc(t->end - t->begin, 1);
        char name[SAFE_NAME], says[300];
        snprintf(name, sizeof name, "%s", t->name);
        if (strstr(name, ".t0")) *strstr(name, ".t0") = 0;
        safe_read(f, t, all);
        const size_t n = (size_t)((t->end - t->begin) / sizeof(floatX)), at = n / 2;
        for (size_t k = 0; k < n; k++) largest = fmax(largest, fabs((double)all[k]));
        x = all[at];
        y = x + (floatX)(largest > 0 ? 1e-2 * largest : 1);
        check(largest > 0, "%s is zero", name);
        if (strncmp(name, "layer", 5) == 0 && strstr(name, ".db")) y = x + 1; /* measured with its matrix */
        free(all);
        if (t->type == SAFE_I32 && sizeof(floatX) == 8) continue; /* two of them to a floatX */
        if (i % 7 == 0) y = (floatX)NAN;
        if (t->type == SAFE_I32) y = x == 0 ? (floatX)1e-44 : 0; /* an id of 7, or 0 */
        const int fd = open(a, O_RDWR);
        if (write_at(fd, f->data + t->begin + at * sizeof(floatX), &y, sizeof y)) die("%s", a);
        snprintf(says, sizeof says, "1 diverge, the first is %s\n", name);
        check(compare(b, a, output, sizeof output) == 1 && strstr(output, says), "an error planted in %s: %s", name,
              strstr(output, "bound") ? strstr(output, "bound") : output);
        if (write_at(fd, f->data + t->begin + at * sizeof(floatX), &x, sizeof x)) die("%s", a);
        close(fd);
    }
}

/* An error in the computation of `plain`, which is `whole` but for it: what it touches first is named, not what
   inherits it. a: the dump of whole. b: a place for others. */
static void dump_change_model(Trial *whole, Trial *plain, const char *a, const char *b) {
    static char output[1 << 16];
    const ModelConfig config = whole->m.config;
    const struct {
        TensorId id;
        int l;
        const char *first;
    } planted[] = {{WTE, 0, "layer.0.x"},
                   {LN1W, 1, "layer.1.ln1"},
                   {WQ, 2, config.qk_norm ? "layer.2.qraw" : "layer.2.q"},
                   {WV, 1, "layer.1.v"},
                   {WK, 0, config.qk_norm ? "layer.0.kraw" : "layer.0.k"},
                   {WO, 2, "layer.2.xmid"},
                   {WUP, 1, "layer.1.up"},
                   {WDOWN, 2, "xlast"},
                   {LNFW, 0, "lnf"}};
    for (int i = 0; i < COUNT(planted); i++) {
        floatX *w = tensor(&plain->m, plain->m.params, planted[i].id, planted[i].l);
        const size_t n = tensor_size(plain->m.tensors, planted[i].id);
        const size_t used = planted[i].id == WTE ? (size_t)config.V * config.C : n;
        for (size_t k = 0; k < used; k++) w[k] *= (floatX)1.01;
        dump_trial(plain, b);
        char says[100];
        snprintf(says, sizeof says, "the first is %s\n", planted[i].first);
        check(compare(a, b, output, sizeof output) == 1 && strstr(output, says), "%s is 1 %% off: %s",
              whole->m.tensors[planted[i].id].name, strstr(output, "bound"));
        memcpy(w, tensor(&whole->m, whole->m.params, planted[i].id, planted[i].l), n * sizeof(floatX));
    }
    if (config.pos == POS_ROPE) {
        plain->m.config.rope_theta *= 1.01;
        dump_trial(plain, b);
        check(compare(a, b, output, sizeof output) == 1 && strstr(output, "the first is cosine\n"), "another theta: %s",
              strstr(output, "bound"));
        plain->m.config.rope_theta = config.rope_theta;
    }
    plain->batch.targets[5] = plain->batch.targets[5] == 3 ? 4 : 3;
    dump_trial(plain, b);
    check(compare(a, b, output, sizeof output) == 1 && strstr(output, "the first is targets\n"), "another target: %s",
          strstr(output, "bound"));
}

/* Dumps of one step by other schedules agree, tensor by tensor, for every family; a dump changes nothing. Every tensor
   that the step makes is there. Then one element of each tensor is changed, a tensor at a time: each is named. */
static void test_dump(void) {
    static char output[1 << 16];
    char a[300], b[300];
    snprintf(a, sizeof a, "%s", scratch_path("dump_a")), snprintf(b, sizeof b, "%s", scratch_path("dump_b"));
    for (int family = 0; family < NUM_FAMILIES; family++) {
        const ModelConfig config = tiny_config((Family)family, 3);
        const TrainConfig one = tiny_run(61, 2, 64, 64);
        Trial *whole = trial_new(&config, &one), *plain = trial_new(&config, &one);
        dump_trial(whole, a);
        trial_gradients(plain);
        check(memcmp(whole->m.grads, plain->m.grads, plain->m.num_params * sizeof(floatX)) == 0,
              "%s: a dump changes the gradient", family_names[family]);
        for (int i = 0; i < 4; i++) {
            TrainConfig run = tiny_run(61, 2, i & 1 ? 8 : 24, 8);
            run.recompute = i & 2 ? RECOMPUTE_LAYER : RECOMPUTE_CHUNK;
            Trial *t = trial_new(&config, &run);
            dump_trial(t, b);
            check(compare(a, b, output, sizeof output) == 0 && strstr(output, "none diverges"), "%s, chunk %d:\n%s",
                  family_names[family], run.chunk_size, output);
            trial_free(t);
        }
        /* per layer: activations in use, k, v, 11 to 12 gradients; of the model: ids, head, losses; parameters */
        ActField acts[NUM_ACTS];
        acts_describe(&config, acts);
        int want = 0;
        for (int i = 0; i < NUM_ACTS; i++) want += acts[i].width > 0;
        want = config.L * (want + 2 + 13 + (config.mlp == MLP_SWIGLU)) + 2 + 8 + (config.norm == NORM_LAYERNORM) +
               2 * (config.pos == POS_ROPE);
        for (int id = 0; id < NUM_TENSORS; id++) want += tensor_copies(whole->m.tensors, config.L, id);
        SafeFile f = safe_open(a);
        check(f.count == want, "%s: %d tensors in the dump, not %d", family_names[family], f.count, want);
        dump_change_elements(&f, a, b);
        safe_close(&f);
        dump_change_model(whole, plain, a, b);
        trial_free(whole), trial_free(plain);
    }
}

/* Dumps that cannot be compared, and --dump as a user meets it. */
static void test_dump_run(void) {
    static char output[1 << 16];
    char a[300], b[300];
    snprintf(a, sizeof a, "%s", scratch_path("dump_a")), snprintf(b, sizeof b, "%s", scratch_path("dump_b"));
    const TrainConfig longer = tiny_run(61, 2, 64, 64), shorter = tiny_run(60, 2, 64, 64);
    const ModelConfig config = tiny_config(FAMILY_LLAMA, 3);
    Trial *t = trial_new(&config, &shorter), *u = trial_new(&config, &longer);
    dump_trial(u, a);
    dump_trial(t, b);
    check(compare(a, b, output, sizeof output) == 1 && strstr(output, "other tokens"), "another length: %s", output);
    trial_free(t), trial_free(u);
    check(compare(a, "", output, sizeof output) == 2 && compare(a, "/nonexistent", output, sizeof output) == 2 &&
              compare(a, write_file("no dump", 100), output, sizeof output) == 2,
          "no second dump: %s", output);
    char command[800];
    snprintf(command, sizeof command, "--dump %s -n 2 -T 128 -B 1 --val-seqs 0", b);
    check(run_program(command, output, sizeof output) == 0 && strstr(output, "every intermediate of step 1"),
          "--dump: %s", output);
    SafeFile f = safe_open(b);
    check(safe_find(&f, "layer.1.dkraw.t96") && safe_find(&f, "layer.0.dwq") && safe_find(&f, "dlogits.t0"),
          "--dump lacks tensors");
    safe_close(&f);
    if (access("/dev/full", W_OK) == 0)
        check(run_program("--dump /nonexistent/d -n 1", output, sizeof output) == 1 &&
                  strstr(output, "--dump /nonexistent/d: cannot write"),
              "a dump into nowhere: %s", output);
}

/* A whole run is the same for any number of threads and either --recompute, and another seed is another run. */
static void test_same_log(void) {
    char text[600], base[700];
    snprintf(text, sizeof text, "%s", write_file("text", 5000));
    snprintf(base, sizeof base, "--data %s -T 300 -B 2 --chunk 160 --page 16 -n 3 --val-every 2 --grad-accum 2", text);
    const char *const more[] = {"--threads 2",       "--threads 1", "--threads 4",
                                "--recompute layer", "--seed 1",    "--seed 2"};
    char *first = NULL;
    set_threads(2);
    const int threads = max_threads();
    set_threads(1);
    if (threads == 1) printf("    threads skipped: built without OpenMP\n");
    for (int i = 0; i < COUNT(more); i++) {
        char command[800];
        if (threads == 1 && strstr(more[i], "threads")) continue;
        snprintf(command, sizeof command, "%s %s", base, more[i]);
        char *log = read_log(command);
        check(strstr(log, "val_by_position") && strstr(log, "grad_norm") && strstr(log, "\"tokens\":1200"),
              "the log lacks a key:\n%s", log);
        if (!first) {
            first = log;
            continue;
        }
        const int same = strcmp(first, log) == 0;
        check(same == (strcmp(more[i], "--seed 2") != 0), "%s: the log %s the first", more[i],
              same ? "equals" : "differs from");
        free(log);
    }
    free(first);
    char *recall = read_log("-n 1 -B 2 --val-seqs 3");
    check(strstr(recall, "\"recall_by_distance\":[{\"from\":32,\"to\":63,\"count\":") != NULL,
          "recall_by_distance is missing:\n%s", recall);
    free(recall);
}

static double log_number(const char *path, const char *key) {
    char line[4096] = "", find[64];
    FILE *f = fopen(path, "r");
    if (!f || !fgets(line, sizeof line, f)) line[0] = 0;
    if (f) fclose(f);
    snprintf(find, sizeof find, "\"%s\":", key);
    const char *at = strstr(line, find);
    return at ? strtod(at + strlen(find), NULL) : NAN;
}

/* The ledger is what is measured, in every mode; and peak memory grows with T by the pages, 1.05 times at most. Planned
   memory may be up to 5 % more than the peak (what was planned and not touched to the last page), and at most 1 % less (what
   the C library keeps for itself). */
static void test_memory(void) {
    char command[700], output[16384], text[300];
    snprintf(text, sizeof text, "%s", write_file("long", 17000));
    const char *const modes[] = {
        "-T 4096 --val-seqs 0",
        "-T 16384 --val-seqs 0",
        "-T 8192 --prompt a",
        "-T 4096 --val-seqs 1 -B 2",
        "-T 4096 --carry none",
        "-T 4096 --recompute layer",
        "-T 2048 --chunk 4096",
        "-T 2048 --chunk 2048 --recompute layer -B 2",
        "-T 256 --model gpt2 -B 1 --val-seqs 0",
        "-T 512 --model gpt2 -B 1 --val-seqs 0",
        "-T 1024 --model gpt2 -B 1 --val-seqs 0 --chunk 1024",
        "-T 512 --model llama-15m -B 1 --val-seqs 0",
        "-T 1024 --model llama-15m -B 1 --val-seqs 0",
        "-T 2048 --model llama-15m -B 1 --val-seqs 0",
    };
    double peak[2] = {0};
    for (int i = 0; i < COUNT(modes); i++) {
        const char *log = scratch_path("memory.jsonl");
        remove(log); /* a plan writes behind what is there */
        snprintf(command, sizeof command, "--plan --data %s -n 1 --log %s %s", text, log, modes[i]);
        int status = run_program(command, output, sizeof output);
        const double bytes = log_number(log, "host_bytes");
        check(status == 0 && strstr(output, "work of a step"), "train_oomb %s: status %d", command, status);
        snprintf(command, sizeof command, "--data %s -n 1 --log %s %s", text, log, modes[i]);
        status = run_program(command, output, sizeof output);
        const char *at = strstr(output, "measured (");
        const double off = at ? strtod(at + strlen("measured ("), NULL) : NAN,
                     plan = 100 * (log_number(log, "peak_bytes") / bytes - 1);
        check(status == 0 && off > -5 && off <= 1,
              "train_oomb %s: status %d, measured memory is %+.1f %% of the ledger", command, status, off);
        check(plan > -5 && plan <= 1, "train_oomb %s: measured memory is %+.1f %% of --plan", command, plan);
        if (i < 2) peak[i] = log_number(log, "peak_bytes");
    }
    /* What no machine here can hold is planned in the memory of the program: 1 GB of address space is enough. */
    const char *log = scratch_path("large.jsonl");
    snprintf(command, sizeof command,
             "sh -c 'ulimit -v 1000000; exec %s --plan --model qwen2.5-7b -T 4M --threads 1 --log %s' 2>&1", PROGRAM,
             log);
    FILE *p = popen(command, "r");
    output[p ? fread(output, 1, sizeof output - 1, p) : 0] = 0;
    const int planned = p ? pclose(p) : -1;
    /* 4M tokens x 28 layers x 4 heads of 128 x K, V, dK, dV x 4 bytes alone are 939 GB */
    check(planned == 0 && log_number(log, "host_bytes") > 939e9 && strstr(output, "the run does not fit"),
          "a plan beyond the machine: status %x, %g bytes: %s", planned, log_number(log, "host_bytes"), output);
    const ModelConfig m = model_config(preset_find("tiny"));
    const double page_bytes = 4.0 * m.L * m.NKV * m.HD * sizeof(float), slope = (peak[1] - peak[0]) / (16384 - 4096);
    check(slope < 1.05 * page_bytes && slope > 0.9 * page_bytes,
          "peak memory grows by %.0f bytes per token; the pages of a token are %.0f", slope, page_bytes);
    printf("    %.0f bytes per token, of which pages %.0f\n", slope, page_bytes);
}

// ----------------------------------------------------------------------------------------------

typedef struct {
    const char *name;
    void (*run)(void);
    int builds; /* 1: float, 2: double, 3: both */
} Test;

static const Test tests[] = {
    {"vec_exp", test_vec_exp, 3},
    {"gemm", test_gemm, 3},
    {"gemm_bits", test_gemm_bits, 3},
    {"embedding", test_embedding, 3},
    {"norm", test_norm, 3},
    {"matmul", test_matmul, 3},
    {"rope", test_rope, 3},
    {"activation", test_activation, 3},
    {"classifier", test_classifier, 3},
    {"attention_gradient", test_attention_gradient, 2},
    {"attention_forward", test_attention_forward, 3},
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
