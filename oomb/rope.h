/* rope.h: the angles of rotary positions (Su et al. 2021) and the ways to stretch them beyond the context that a model
   was trained for. In double, for both programs: a frequency is computed once per pair and chunk. */
#ifndef OOMB_ROPE_H
#define OOMB_ROPE_H

#include "config.h"

#include <math.h>

static const double TWO_PI = 6.283185307179586477;

/* The share of its own frequency that pair i keeps; the rest becomes frequency / factor. turns: what it turns in the
   original context. */
static inline double rope_share(const RopeScaling *s, double theta, int HD, int i, double turns) {
    if (s->kind == ROPE_LINEAR) return 0;
    if (s->kind == ROPE_LLAMA3) return fmin(fmax((turns - s->low) / (s->high - s->low), 0), 1);
    /* YaRN (Peng et al. 2023) is linear in the pair instead, between the pairs that make `high` and `low` turns */
    double first = HD * log(s->original / (s->high * TWO_PI)) / (2 * log(theta)),
           last = HD * log(s->original / (s->low * TWO_PI)) / (2 * log(theta));
    if (s->truncate) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0);
    last = fmin(last, HD - 1);
    if (first == last) last += 0.001; /* as transformers does */
    return 1 - fmin(fmax((i - first) / (last - first), 0), 1);
}

/* Radians per position of pair i (channels i and i + HD/2) of HD / 2: theta^(-2i / HD), scaled. */
static inline double rope_frequency(const RopeScaling *s, double theta, int HD, int i) {
    const double own = pow(theta, -2.0 * i / HD);
    if (s->kind == ROPE_NONE) return own;
    const double share = rope_share(s, theta, HD, i, s->original * own / TWO_PI);
    return own * share + own / s->factor * (1 - share);
}

/* What rotated queries and keys are multiplied by. */
static inline double rope_magnitude(const RopeScaling *s) { return s->kind == ROPE_YARN ? s->magnitude : 1; }

/* The context of a model before any scaling; 0: it does not say. */
static inline int rope_original(const ModelConfig *m) {
    return m->rope.kind == ROPE_NONE ? m->max_T : m->rope.kind == ROPE_LINEAR ? 0 : m->rope.original;
}

/* YaRN's magnitude where a config does not give it. */
static inline double rope_yarn_magnitude(double factor) { return factor <= 1 ? 1 : 0.1 * log(factor) + 1; }

/* "yarn:4", "yarn:4:32768", "linear:2", "llama3:8", "none": the scaling of model m from now on, instead of the one that
   it has. What is stretched is the context before any scaling: the one given, or the one that the model says. A model with
   linear scaling says it nowhere. */
static inline void rope_set_scaling(ModelConfig *m, const char *text) {
    const size_t n = strcspn(text, ":");
    int kind = 0;
    while (kind <= ROPE_YARN && (strlen(rope_kinds[kind]) != n || strncmp(rope_kinds[kind], text, n) != 0)) kind++;
    if (kind > ROPE_YARN || (kind == ROPE_NONE && text[n]))
        die("--rope-scaling %s: must be none, or linear, llama3 or yarn with a factor, like yarn:4", text);
    RopeScaling s = {(RopeKind)kind, rope_original(m), 0, 0, 0, 0, 0};
    if (kind == ROPE_NONE) {
        if (s.original) m->max_T = s.original;
        s.original = 0;
        m->rope = s;
        return;
    }
    char *end = (char *)text + n;
    if (text[n]) s.factor = strtod(text + n + 1, &end);
    const int factor = end != text + n + 1 && s.factor >= 1 && s.factor <= MAX_STRETCH;
    long original = s.original;
    if (factor && *end == ':') {
        const char *from = end + 1;
        original = strtol(from, &end, 10);
        const long unit = *end == 'K' || *end == 'k' ? 1 << 10 : *end == 'M' || *end == 'm' ? 1 << 20 : 1;
        if (end == from || original < 1 || original > INT32_MAX / unit) original = 0, end = (char *)from;
        else if (unit > 1) original *= unit, end++;
    }
    if (!factor || *end)
        die("--rope-scaling %s: must be a kind, a factor of 1 or more, and if need be the context before: yarn:4:32768",
            text);
    if (original == 0)
        die("--rope-scaling %s: the model does not say for what context it was made before any scaling; add it, like "
            "%.*s:%g:4096",
            text, (int)n, text, s.factor);
    s.original = (int)original;
    s.low = 1;
    s.high = kind == ROPE_YARN ? 32 : 4;
    s.magnitude = kind == ROPE_YARN ? rope_yarn_magnitude(s.factor) : 0;
    s.truncate = kind == ROPE_YARN;
    m->max_T = (int)fmin(s.original * s.factor, INT32_MAX);
    if (kind == ROPE_LINEAR) s.original = 0, s.low = s.high = 0;
    m->rope = s;
}

#endif
