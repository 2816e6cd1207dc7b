/* logger.h: what a run shows: the JSON lines of --log, and the progress line inside a long step. */
#ifndef OOMB_LOGGER_H
#define OOMB_LOGGER_H

#include "util.h"

#include <math.h>

typedef struct {
    const char *path;
    FILE *file; /* NULL: no log */
    int fields; /* written in the current object */
} Logger;

static inline Logger logger_open(const char *path) {
    Logger g = {path, NULL, 0};
    if (*path) {
        g.file = fopen(path, "w");
        if (!g.file) die("--log %s: cannot open for writing: %s", path, strerror(errno));
    }
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

/* Ends the object; a log that cannot be written ends the run, for it would lie. */
static inline void logger_end(Logger *g) {
    if (!g->file) return;
    fprintf(g->file, "}\n");
    g->fields = 0;
    if (fflush(g->file) != 0) die("--log %s: cannot write: %s", g->path, strerror(errno));
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

#endif
