/* fuzz_readers: libFuzzer on what reads files of strangers: token files, safetensors, state.json, JSON.

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

enum { HELD = 256 }; /* more than the largest reader needs: state_parse() has MAX_OPTIONS */
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
#include "../../oomb/safetensors.h"

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
            if (out[i] != TARGET_MASKED && (out[i] < 0 || out[i] >= 300)) abort();
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (file < 0) {
        quiet = fopen("/dev/null", "w");
        memset(opened, 0, sizeof opened); /* that one stays */
        file = memfd_create("input", 0);
        if (file < 0 || !quiet) abort();
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    if (n < 3 || ftruncate(file, 0) != 0) return 0;
    const int kind = data[0] % 6, width = data[1] & 1 ? 4 : 2;
    const int8_t off = (int8_t)data[2]; /* how far a promise is from the truth; mostly 0 */
    data += 3, n -= 3;
    if (kind == 0) { /* ids behind a header */
        const uint32_t header[256] = {width == 4 ? 20240801 : 20240520, width == 4 ? 7 : 1,
                                      (uint32_t)(n / (size_t)width) + (uint32_t)(off > 100 ? off : 0)};
        put(0, header, sizeof header);
        put(sizeof header, data, n / (size_t)width * (size_t)width);
    } else if (kind == 2) { /* a header of JSON, and some data */
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
        else read_json(data, n);
    }
    for (int i = 0; i < HELD; i++) {
        if (opened[i]) fuzz_fclose(opened[i]);
        if (held[i]) fuzz_free(held[i]);
    }
    return 0;
}
