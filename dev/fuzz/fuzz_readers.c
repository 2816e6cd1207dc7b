/* fuzz_readers: libFuzzer on what reads files of strangers: token files, safetensors, state.json, JSON, config.json,
   tokenizer.json, the index of shards, and a whole model directory.

     make fuzz                  a minute (FUZZ_SECONDS=60), with AddressSanitizer and UBSan; needs clang
     dev/fuzz/fuzz_readers F    one input again

   The first byte chooses the reader; the others are the file, or (so that the fuzzer need not guess magic numbers and
   lengths) what stands behind a header that is made here. die() ends a reader by longjmp instead of exit; what the
   reader had allocated and opened by then is given back here, so that only true leaks are left. */
#include <errno.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static jmp_buf back;
static FILE *quiet; /* where errors go */

enum { HELD = 512 }; /* more than the largest reader needs */
static void *held[HELD];
static FILE *opened[HELD];

__attribute__((noreturn)) static void fuzz_exit(int code) {
    (void)code;
    longjmp(back, 1);
}
static void *hold(void *old, void *p) {
    for (int i = 0; i < HELD; i++) {
        if (held[i] != old) continue;
        held[i] = p;
        return p;
    }
    abort(); /* more than any reader needs */
}
static void *fuzz_calloc(size_t n, size_t size) { return hold(NULL, calloc(n, size)); }
static void *fuzz_realloc(void *p, size_t size) { return hold(p, realloc(p, size)); }
static void fuzz_free(void *p) {
    if (p) hold(p, NULL);
    free(p);
}
static FILE *fuzz_fopen(const char *path, const char *mode) {
    for (int i = 0; i < HELD; i++) {
        if (!opened[i]) return opened[i] = fopen(path, mode);
    }
    abort();
}
static int fuzz_fclose(FILE *f) {
    for (int i = 0; i < HELD; i++) {
        if (opened[i] == f) opened[i] = NULL;
    }
    return fclose(f);
}

#define exit fuzz_exit
#define calloc fuzz_calloc
#define realloc fuzz_realloc
#define free fuzz_free
#define fopen fuzz_fopen
#define fclose fuzz_fclose
#undef stderr
#define stderr quiet
#include "../../oomb/checkpoint.h"
#include "../../oomb/dataloader.h"
#include "../../oomb/hf_model.h"
#include "../../oomb/safetensors.h"
#include "../../oomb/tokenizer.h"

static int file = -1; /* in memory */
static char path[64];

static void put(size_t at, const void *data, size_t n) {
    if (pwrite(file, data, n, (off_t)at) != (ssize_t)n) abort();
}

static void read_tokens(void) {
    int out[512];
    TokenFiles f = files_open("--data", path);
    files_check(&f, 300);
    for (uint64_t from = 0; from < f.count; from += 1 + from / 2) {
        const size_t n = min_size(512, (size_t)(f.count - from));
        files_read(&f, from, n, out);
        for (size_t i = 0; i < n; i++) {
            const int input = token_input(out[i]), target = token_target(out[i]);
            if (input < 0 || input >= 300 || (target != TARGET_MASKED && target != input)) abort();
        }
    }
    files_close(&f);
}

static void read_safetensors(void) {
    SafeFile f = safe_open(path);
    uint64_t at = 0;
    for (int i = 0; i < f.count; i++) {
        const SafeTensor *t = &f.tensors[i];
        double x[64];
        if (safe_find(&f, t->name) != t || t->begin != at) abort();
        at = t->end;
        const uint64_t n = safe_elements(t, path);
        for (uint64_t k = 0; k < n; k += 64) safe_read_doubles(&f, t, k, min_size(64, (size_t)(n - k)), x);
    }
    safe_close(&f);
}

static void read_state(const uint8_t *data, size_t n) {
    SavedState s = state_parse("state.json", (const char *)data, n);
    state_free(&s);
}

static void read_json(const uint8_t *data, size_t n) {
    Json j = json_begin((const char *)data, n);
    json_skip(&j);
    json_end(&j);
    if (j.at < j.begin || j.at > j.end) abort();
}

/* A config that is accepted is a model whose sizes do not overflow, and is read again from what is written of it. */
static void read_config(const uint8_t *data, size_t n) {
    HfType type;
    TensorInfo t[NUM_TENSORS];
    ModelConfig m = hf_config_parse("config.json", (const char *)data, n, &type, 0);
    tensors_describe(&m, t);
    if (tensors_total(t, m.L) > (size_t)1 << 60) abort();
    for (int i = 0; m.pos == POS_ROPE && i < m.HD / 2 && i < 64; i++) {
        if (isnan(rope_frequency(&m.rope, m.rope_theta, m.HD, i))) abort();
    }
    char *out = NULL;
    size_t bytes;
    FILE *f = open_memstream(&out, &bytes);
    if (m.pos == POS_ROPE && m.max_T < INT32_MAX) m.max_T++;
    hf_config_write(f, "config.json", (const char *)data, n, &m, "float32");
    fclose(f);
    hold(NULL, out);
    const ModelConfig again = hf_config_parse("written", out, bytes, &type, 0);
    for (int i = 0; i < NUM_CONFIG_FIELDS; i++) {
        const double a = config_get(&m, i), b = config_get(&again, i);
        if (a != b && fabs(a - b) > 1e-12 * fabs(a)) abort();
    }
    fuzz_free(out);
}

static void read_tokenizer(const uint8_t *data, size_t n) {
    Tokenizer t = tokenizer_parse("tokenizer.json", (const char *)data, n);
    for (int i = -1; i <= t.count && i < 300; i++) {
        const size_t length = tokenizer_decode(&t, &i, 1, NULL);
        unsigned char *out = (unsigned char *)fuzz_calloc(length + 1, 1);
        if (tokenizer_decode(&t, &i, 1, out) != length) abort();
        fuzz_free(out);
    }
    tokenizer_close(&t);
}

/* A directory with two shards, x-1 and x-2.safetensors, for the index to name. */
static char shards[200];

static void remove_shards(void) {
    char name[250];
    for (int i = 1; i < 3; i++) {
        snprintf(name, sizeof name, "%s/x-%d.safetensors", shards, i);
        unlink(name);
    }
    rmdir(shards);
}

static void make_shards(void) {
    const char *tmp = getenv("TMPDIR");
    snprintf(shards, sizeof shards, "%s/oomb-fuzz-XXXXXX", tmp && *tmp ? tmp : P_tmpdir);
    if (!mkdtemp(shards)) abort();
    atexit(remove_shards);
    for (int i = 1; i < 3; i++) {
        char name[250];
        const uint64_t one = 1;
        const float x = 1;
        snprintf(name, sizeof name, "%s/x-%d.safetensors", shards, i);
        SafeWriter w = safe_create(name, 1);
        safe_write_at(&w, safe_add(&w, i == 1 ? "a" : "b", SAFE_F32, 1, &one), &x, 4);
        if (safe_finish(&w)) abort();
    }
}

static void read_index(const uint8_t *data, size_t n) {
    static HfModel h;
    memset(&h, 0, sizeof h);
    snprintf(h.dir, sizeof h.dir, "%s", shards);
    hf_read_index(&h, "index", (const char *)data, n);
    hf_close(&h);
}

/* The input is model.safetensors of a tiny model: tensors that are accepted are read to the last one. */
static void read_model(void) {
    static HfModel h;
    const ModelConfig m = {3,        64,         1, 4, 2, 1, 2, 2,    8,   0, NORM_RMSNORM,
                           POS_ROPE, MLP_SWIGLU, 0, 0, 0, 0, 1, 1e-5, 100, 1, {ROPE_NONE, 0, 0, 0, 0, 0, 0}};
    static float window[HF_WINDOW];
    memset(&h, 0, sizeof h);
    h.paths = (char **)fuzz_calloc(1, sizeof(char *));
    h.files = (SafeFile *)fuzz_calloc(1, sizeof(SafeFile));
    h.paths[0] = (char *)fuzz_calloc(sizeof path, 1);
    memcpy(h.paths[0], path, sizeof path);
    h.files[0] = safe_open(h.paths[0]);
    h.num_files = 1;
    hf_find_all(&h, &m);
    for (int i = 0; i < h.count; i++) {
        if (!h.tensors[i].copy) hf_read(&h, &h.tensors[i], 0, h.tensors[i].rows, window);
    }
    hf_close(&h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (file < 0) {
        quiet = fopen("/dev/null", "w");
        make_shards();
        memset(opened, 0, sizeof opened); /* that one stays */
        memset(held, 0, sizeof held);
        file = memfd_create("input", 0);
        if (file < 0 || !quiet) abort();
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    if (n < 3 || ftruncate(file, 0) != 0) return 0;
    const int kind = data[0] % 10, width = data[1] & 1 ? 4 : 2;
    const int8_t off = (int8_t)data[2]; /* how far a promise is from the truth; mostly 0 */
    data += 3, n -= 3;
    if (kind == 0) { /* ids behind a header */
        const uint32_t header[256] = {width == 4 ? 20240801 : 20240520, width == 4 ? 7 : 1,
                                      (uint32_t)(n / (size_t)width) + (uint32_t)(off > 100 ? off : 0)};
        put(0, header, sizeof header);
        put(sizeof header, data, n / (size_t)width * (size_t)width);
    } else if (kind == 2 || kind == 9) { /* a header of JSON, and some data */
        const uint64_t length = n + (uint64_t)(off > 100 ? off : 0);
        put(0, &length, 8);
        put(8, data, n);
        if (ftruncate(file, (off_t)(8 + n + (size_t)(off > 0 ? off : 0))) != 0) abort();
    } else {
        put(0, data, n);
    }
    if (setjmp(back) == 0) {
        if (kind < 2) read_tokens();
        else if (kind < 4) read_safetensors();
        else if (kind == 4) read_state(data, n);
        else if (kind == 5) read_json(data, n);
        else if (kind == 6) read_config(data, n);
        else if (kind == 7) read_tokenizer(data, n);
        else if (kind == 8) read_index(data, n);
        else read_model();
    }
    for (int i = 0; i < HELD; i++) {
        if (opened[i]) fuzz_fclose(opened[i]);
        if (held[i]) fuzz_free(held[i]);
    }
    return 0;
}
