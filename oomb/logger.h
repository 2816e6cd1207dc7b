/* logger.h: what a run shows: the JSON lines of --log, and the progress line inside a long step. */
#ifndef OOMB_LOGGER_H
#define OOMB_LOGGER_H

#include "util.h"

#include <math.h>
#include <sys/file.h>

typedef struct {
    const char *path;
    FILE *file; /* NULL: no log */
    int fields; /* written in the current object */
} Logger;

/* A log that goes on after step `after`: what later steps left there, and what a crash left of a line, is dropped. A
   file that does not begin like a log is refused. */
static inline void logger_rewind(const char *path, int after) {
    static const char begins[] = "{\"step\":";
    char *line = NULL;
    size_t room = 0;
    off_t keep = 0;
    FILE *f = fopen(path, "r");
    if (!f) die("--log %s: cannot open for reading: %s", path, strerror(errno));
    for (ssize_t n; (n = getline(&line, &room, f)) > 0; keep += n) {
        const int log = strncmp(line, begins, min_size(sizeof begins - 1, (size_t)n)) == 0;
        if (!log && keep == 0 && line[0] != '{') die("--log %s: not a log of this program; give it another name", path);
        if (!log || line[n - 1] != '\n' || strtol(line + sizeof begins - 1, NULL, 10) > after) break;
    }
    free(line);
    fclose(f);
    if (truncate(path, keep) != 0) die("--log %s: cannot shorten it: %s", path, strerror(errno));
}

/* path "": no log. after: the step whose checkpoint the run goes on from; -1: a new log. Two runs in one file would be
   neither's log: a lock keeps the second out. A file that is no log is not emptied. */
static inline Logger logger_open(const char *path, int after) {
    Logger g = {path, NULL, 0};
    struct stat st;
    if (!*path) return g;
    g.file = fopen(path, "a");
    if (!g.file || fstat(fileno(g.file), &st) != 0) die("--log %s: cannot open for writing: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return g;
    if (flock(fileno(g.file), LOCK_EX | LOCK_NB) != 0) die("--log %s: another run is writing there", path);
    logger_rewind(path, after);
    return g;
}

/* The key of a field, after the comma or brace that it needs. */
static inline void logger_key(Logger *g, const char *key) {
    if (g->file) fprintf(g->file, "%s\"%s\":", g->fields++ ? "," : "{", key);
}

/* Seventeen digits give the double back bit for bit; JSON has no NaN, so that becomes null. */
static inline void logger_value(Logger *g, double x) {
    if (!g->file) return;
    if (isfinite(x)) fprintf(g->file, "%.17g", x);
    else fprintf(g->file, "null");
}

static inline void logger_number(Logger *g, const char *key, double x) {
    logger_key(g, key);
    logger_value(g, x);
}

static inline void logger_integers(Logger *g, const char *key, const int *x, int n) {
    logger_key(g, key);
    for (int i = 0; g->file && i < n; i++) fprintf(g->file, "%c%d", i ? ',' : '[', x[i]);
    if (g->file) fprintf(g->file, n ? "]" : "[]");
}

/* Ends the object; a log that cannot be written ends the run, for it would lie. */
static inline void logger_end(Logger *g) {
    if (!g->file) return;
    fprintf(g->file, "}\n");
    g->fields = 0;
    if (fflush(g->file) != 0) die("--log %s: cannot write: %s", g->path, strerror(errno));
}

/* What was written so far, to the disk. */
static inline void logger_sync(Logger *g) {
    if (g->file && fsync(fileno(g->file)) != 0 && errno != EINVAL && errno != ENOTSUP) /* a pipe has nothing to sync */
        die("--log %s: cannot write: %s", g->path, strerror(errno));
}

static inline void logger_close(Logger *g) {
    if (g->file && fclose(g->file) != 0) die("--log %s: cannot write: %s", g->path, strerror(errno));
    g->file = NULL;
}

/* One line on a terminal, rewritten in place, only for steps that take over a second. Work is counted in any unit
   that is proportional to time. */
typedef struct {
    int on;             /* stderr is a terminal */
    int shown;          /* there is something to wipe away */
    double start_ms;    /* of the step */
    double last_ms;     /* of the last update */
    double done, total; /* work */
    double tokens;      /* of the whole step */
} Progress;

static inline Progress progress_start(double total, double tokens) {
    Progress p;
    p.on = isatty(2);
    p.shown = 0;
    p.start_ms = p.last_ms = now_ms();
    p.done = 0;
    p.total = total;
    p.tokens = tokens;
    return p;
}

/* tokens/s is that of the step line: a token counts when all its passes are done, here in proportion. */
static inline void progress_update(Progress *p, double work, const char *pass, int chunk, int chunks) {
    double now = now_ms(), seconds = (now - p->start_ms) * 1e-3;
    p->done += work;
    if (!p->on || seconds < 1 || now - p->last_ms < 200) return;
    fprintf(stderr, "\r  %-8s chunk %d of %d | %.0f tokens/s | %s left   ", pass, chunk + 1, chunks,
            p->tokens * p->done / p->total / seconds, text_seconds(seconds * (p->total - p->done) / p->done).text);
    p->last_ms = now;
    p->shown = 1;
}

static inline void progress_end(Progress *p) {
    if (p->shown) fprintf(stderr, "\r%*s\r", 72, "");
    p->shown = 0;
}

/* How far the reading or writing of a file is, on a terminal: piece i of n is done. */
static inline void file_progress(const char *verb, int i, int n) {
    static double shown;
    if (!isatty(2) || (now_ms() - shown < 1000 && i + 1 < n)) return;
    if (i + 1 < n) fprintf(stderr, "\r  %s: %.0f %%   ", verb, 100.0 * (i + 1) / n);
    else fprintf(stderr, "\r%*s\r", 40, "");
    shown = now_ms();
}

#endif
