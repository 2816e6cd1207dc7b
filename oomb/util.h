/* util.h: what every file needs: an error that ends the program, checked files with 64-bit
   offsets, time, memory of the process, sizes as text. */
#ifndef OOMB_UTIL_H
#define OOMB_UTIL_H

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* Files beyond 2 GiB: on a 32-bit system this needs -D_FILE_OFFSET_BITS=64, as the Makefile gives. */
static_assert(sizeof(off_t) == 8, "file offsets must have 64 bits");

/* Ends the program with status 1 and one line: what, where, which value, what to do. */
__attribute__((format(printf, 1, 2), noreturn)) static inline void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fprintf(stderr, "error: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

/* What was printed has arrived, or the program ends with an error. */
static inline void check_stdout(void) {
    if (fflush(stdout) != 0 || ferror(stdout)) die("standard output: cannot write: %s", strerror(errno));
}

enum { MAX_PATH_BYTES = 4096 }; /* of a path with its end; longer ones are refused */

static inline size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
static inline size_t round_up(size_t a, size_t b) { return ceil_div(a, b) * b; }
static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

/* Small tables. Large memory goes through memory.h, where it has a name. */
static inline void *xcalloc(size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size ? size : 1);
    if (!p) die("out of memory: %zu x %zu bytes for a table", count, size);
    return p;
}

static inline void *xrealloc(void *p, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || !(p = realloc(p, bytes ? bytes : 1)))
        die("out of memory: %zu x %zu bytes for a table", count, size);
    return p;
}

/* Opens a regular file for reading and returns its size in bytes. */
static inline FILE *xopen_read(const char *path, uint64_t *bytes) {
    struct stat st; /* before it is opened: opening a pipe would wait for a writer */
    if (stat(path, &st) != 0) die("%s: cannot open for reading: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) die("%s: not a regular file; give a file, or many as a pattern in quotes", path);
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st) != 0) die("%s: cannot open for reading: %s", path, strerror(errno));
    *bytes = (uint64_t)st.st_size;
    return f;
}

/* Makes a directory and those above it. Returns 1 if it made it, 0 if it was there, -1 with errno if it cannot. */
static inline int make_directories(const char *path) {
    char part[MAX_PATH_BYTES];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part) {
        errno = ENAMETOOLONG;
        return -1;
    }
    for (char *p = part + 1; *part && *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return -1;
        *p = '/';
    }
    return mkdir(part, 0777) == 0 ? 1 : errno == EEXIST ? 0 : -1;
}

/* Exactly `bytes` bytes from `offset`, or an error that says where. */
static inline void xread_at(FILE *f, const char *path, uint64_t offset, void *dst, size_t bytes) {
    if (fseeko(f, (off_t)offset, SEEK_SET) != 0) {
        die("%s: cannot seek to byte %llu: %s", path, (unsigned long long)offset, strerror(errno));
    }
    size_t got = fread(dst, 1, bytes, f);
    if (got != bytes) {
        die("%s: wanted %zu bytes at offset %llu, got %zu; was the file cut while in use?", path, bytes,
            (unsigned long long)offset, got);
    }
}

/* All of a file of at most `limit` bytes, with a 0 behind it; *bytes: its length. The caller frees. */
static inline char *xread_text(const char *path, uint64_t limit, size_t *bytes) {
    uint64_t n;
    FILE *f = xopen_read(path, &n);
    if (n > limit)
        die("%s: %llu bytes; such a file has %llu at most", path, (unsigned long long)n, (unsigned long long)limit);
    char *text = (char *)xcalloc((size_t)n + 1, 1);
    xread_at(f, path, 0, text, (size_t)n);
    fclose(f);
    *bytes = (size_t)n;
    return text;
}

/* All of data to `offset` of fd. Returns 0, or the errno of what went wrong. */
static inline int write_at(int fd, uint64_t offset, const void *data, size_t bytes) {
    for (const char *p = (const char *)data; bytes > 0;) {
        ssize_t n = pwrite(fd, p, min_size(bytes, (size_t)1 << 30), (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : ENOSPC;
        p += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* fsync and close, whatever `error` happened before. Returns the first fault. */
static inline int close_durably(int fd, int error) {
    if (!error && fsync(fd) != 0) error = errno;
    if (close(fd) != 0 && !error) error = errno;
    return error;
}

static inline double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* The first number behind `key` in a small text file like those of /proc; `missing` if there is none. */
static inline uint64_t read_number(const char *path, const char *key, uint64_t missing) {
    char line[256];
    FILE *f = fopen(path, "r");
    uint64_t value = missing;
    while (f && value == missing && fgets(line, sizeof line, f)) {
        char *end, *at = line + strlen(key);
        if (strncmp(line, key, strlen(key)) != 0) continue;
        uint64_t n = strtoull(at, &end, 10);
        if (end != at) value = n;
    }
    if (f) fclose(f);
    return value;
}

/* The most memory this process has had resident so far, in bytes. Linux: VmHWM, since ru_maxrss there
   remembers the process that started this one. */
static inline size_t peak_rss_bytes(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
#ifdef __APPLE__
    return (size_t)r.ru_maxrss; /* in bytes there, in kilobytes everywhere else */
#else
    return (size_t)read_number("/proc/self/status", "VmHWM:", (uint64_t)r.ru_maxrss) * 1024;
#endif
}

/* The least value that `file` ("memory.max"; "cpu.max" with its period as a second number) has in this process's control
   group and those above it, rounded up; UINT64_MAX: no limit. root and self: where the system shows groups and
   the name of this process's. */
static inline uint64_t cgroup_limit(const char *root, const char *self, const char *file) {
    char group[1024] = "", line[1024], path[MAX_PATH_BYTES];
    uint64_t least = UINT64_MAX;
    FILE *f = fopen(self, "r");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "0::/", 4) == 0)
            snprintf(group, sizeof group, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    }
    if (f) fclose(f);
    for (;;) {
        unsigned long long value, period = 1;
        snprintf(path, sizeof path, "%s%s/%s", root, group, file);
        f = fopen(path, "r");
        if (f && fscanf(f, "%llu %llu", &value, &period) >= 1 && period > 0 && ceil_div(value, period) < least)
            least = ceil_div(value, period);
        if (f) fclose(f);
        if (!*group) return least;
        *strrchr(group, '/') = 0;
    }
}

/* Processors that this process may keep busy in a container; UINT64_MAX: no limit. */
static inline uint64_t cpu_limit(void) {
    uint64_t v2 = cgroup_limit("/sys/fs/cgroup", "/proc/self/cgroup", "cpu.max");
    uint64_t quota = read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "", UINT64_MAX); /* -1: none */
    uint64_t period = read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "", 0);
    uint64_t v1 = period && quota < UINT64_MAX ? ceil_div(quota, period) : UINT64_MAX;
    return v1 < v2 ? v1 : v2;
}

/* The memory that this process could have at most: the machine's, or less in a container. */
static inline size_t machine_bytes(void) {
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t v2 = cgroup_limit("/sys/fs/cgroup", "/proc/self/cgroup", "memory.max");
    uint64_t v1 = read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", "", UINT64_MAX);
    if (v2 < machine) machine = v2;
    return (size_t)(v1 < machine ? v1 : machine);
}

/* What of it others are not using at the moment; SIZE_MAX where the system does not say. */
static inline size_t unused_bytes(void) {
    uint64_t kilobytes = read_number("/proc/meminfo", "MemAvailable:", UINT64_MAX);
    return kilobytes == UINT64_MAX ? SIZE_MAX : (size_t)kilobytes * 1024;
}

/* Whether two paths name one existing file. */
static inline int same_file(const char *a, const char *b) {
    struct stat sa, sb;
    return stat(a, &sa) == 0 && stat(b, &sb) == 0 && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

typedef struct {
    char text[32];
} Text;

/* "768 B", "12.3 MB": powers of 1024. */
static inline Text text_bytes(double bytes) {
    static const char *const unit[] = {"B", "KB", "MB", "GB", "TB", "PB"};
    Text t;
    int u = 0;
    while (bytes >= 1024 && u < 5) {
        bytes /= 1024;
        u++;
    }
    snprintf(t.text, sizeof t.text, u ? "%.1f %s" : "%.0f %s", bytes, unit[u]);
    return t;
}

/* "1.23 GFLOP" and so on: powers of 1000. */
static inline Text text_flops(double flops) {
    static const char *const unit[] = {"FLOP", "KFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP"};
    Text t;
    int u = 0;
    while (flops >= 1000 && u < 7) {
        flops /= 1000;
        u++;
    }
    snprintf(t.text, sizeof t.text, "%.3g %s", flops, unit[u]);
    return t;
}

/* A number as short as it can be and still be the same number. */
static inline Text text_real(double x) {
    Text t;
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(t.text, sizeof t.text, "%.*g", digits, x);
        if (strtod(t.text, NULL) == x) break;
    }
    return t;
}

/* "85 s", "3 min 05 s", "2 h 10 min" */
static inline Text text_seconds(double seconds) {
    Text t;
    long s = (long)(seconds + 0.5);
    if (s < 120) snprintf(t.text, sizeof t.text, "%ld s", s);
    else if (s < 7200) snprintf(t.text, sizeof t.text, "%ld min %02ld s", s / 60, s % 60);
    else snprintf(t.text, sizeof t.text, "%ld h %02ld min", s / 3600, s / 60 % 60);
    return t;
}

#endif
