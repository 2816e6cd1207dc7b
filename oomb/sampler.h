/* sampler.h: chooses the next token from logits, and prints text that a model wrote. */
#ifndef OOMB_SAMPLER_H
#define OOMB_SAMPLER_H

#include "rng.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    float p;
    int id;
} Candidate;

typedef struct {
    double temperature; /* 0: the likeliest token */
    int top_k;          /* 0: among all */
} Sampler;

/* The likelier first; of two alike, the lower id: the choice is a function of the logits. */
static inline int candidate_compare(const void *a, const void *b) {
    const Candidate *x = (const Candidate *)a, *y = (const Candidate *)b;
    if (x->p != y->p) return x->p > y->p ? -1 : 1;
    return x->id - y->id;
}

/* A token with probability proportional to exp(logit / temperature) among the top_k likeliest. c (V): the logits in .p,
   ids 0 .. V-1 in .id; scratch afterwards. */
static inline int sampler_pick(const Sampler *s, Candidate *c, int V, Rng *rng) {
    int n = s->top_k > 0 && s->top_k < V ? s->top_k : V, best = 0;
    for (int i = 1; i < V; i++) best = c[i].p > c[best].p ? i : best;
    if (s->temperature == 0) return c[best].id;
    const double top = (double)c[best].p;
    if (n < V) qsort(c, (size_t)V, sizeof *c, candidate_compare);
    double sum = 0;
    for (int i = 0; i < n; i++) sum += exp(((double)c[i].p - top) / s->temperature);
    double left = rng_uniform(rng) * sum;
    for (int i = 0; i < n; i++) {
        left -= exp(((double)c[i].p - top) / s->temperature);
        if (left < 0) return c[i].id;
    }
    return c[n - 1].id; /* rounding has left a trace of `left` */
}

/* Bytes of the UTF-8 character at text[0 .. n-1]; 0 if there is none. */
static inline int utf8_length(const unsigned char *text, int n) {
    const int length = text[0] < 0x80   ? 1
                       : text[0] < 0xC2 ? 0
                       : text[0] < 0xE0 ? 2
                       : text[0] < 0xF0 ? 3
                       : text[0] < 0xF5 ? 4
                                        : 0;
    if (length > n) return 0;
    for (int i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80) return 0;
    }
    if ((text[0] == 0xE0 && text[1] < 0xA0) || (text[0] == 0xED && text[1] >= 0xA0) ||
        (text[0] == 0xF0 && text[1] < 0x90) || (text[0] == 0xF4 && text[1] >= 0x90))
        return 0; /* too long a spelling, half a surrogate pair, beyond Unicode */
    return length;
}

/* n bytes, of which those that a terminal could take for a command, or that are no text, as \xNN. */
static inline void print_text(FILE *out, const unsigned char *text, int n) {
    for (int i = 0; i < n;) {
        const int length = utf8_length(text + i, n - i);
        const int control = (text[i] < 0x20 && text[i] != '\n' && text[i] != '\t') || text[i] == 0x7F ||
                            (length == 2 && text[i] == 0xC2 && text[i + 1] < 0xA0);
        if (length == 0 || control) fprintf(out, "\\x%02x", text[i]);
        else fwrite(text + i, 1, (size_t)length, out);
        i += length > 0 && !control ? length : 1;
    }
}

#endif
