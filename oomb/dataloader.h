/* dataloader.h: where sequences come from. Two kinds for now: a text file read as bytes, and
   the generated recall task.

   A sample is one whole context: T inputs and T targets. Samples are numbered 0, 1, 2, ... from
   the start of training and depend on (seed, number) alone, so that a run's position in its data
   is one integer. */
#ifndef OOMB_DATALOADER_H
#define OOMB_DATALOADER_H

#include "rng.h"
#include "util.h"

typedef enum { DATA_BYTES, DATA_RECALL } DataKind;

enum { TARGET_MASKED = -100 }; /* a target that is not scored */

/* Text: tokens 0..255 are bytes; 256 stands before the first byte of the file, so that every
   byte of it can be predicted. A file of n bytes is a stream of n + 1 tokens. */
enum { BYTES_START = 256, BYTES_V = 257 };

/* Recall. A fact is a single token that means (key, value); each key has one fact in a sequence.
   A question is a key token; its target, the value, is the only thing scored, and it stands at
   least `distance` tokens after the fact. The value is what must be predicted, but it is not shown in the
   input after its question: otherwise a key asked for again could be answered from its last answer,
   and distance would not be distance. */
enum {
    RECALL_KEYS = 16,
    RECALL_VALUES = 16,
    RECALL_FILLERS = 16,
    RECALL_KEY0 = RECALL_KEYS * RECALL_VALUES, /* facts come first: key * VALUES + value */
    RECALL_VALUE0 = RECALL_KEY0 + RECALL_KEYS,
    RECALL_FILLER0 = RECALL_VALUE0 + RECALL_VALUES,
    RECALL_V = RECALL_FILLER0 + RECALL_FILLERS,
    RECALL_TOKENS_PER_QUESTION = 8, /* T / 8 questions */
};

typedef struct {
    DataKind kind;
    int V, T;
    uint64_t seed;
    /* bytes: the tokens first .. first + count - 1 of the stream, cut into samples of T */
    const char *path;
    FILE *file;
    uint64_t first, count;
    uint64_t samples; /* per epoch */
    uint32_t *order;  /* (samples) of the epoch in `epoch`; NULL: in file order */
    uint64_t epoch;
    unsigned char *bytes; /* (T + 1) */
    /* recall */
    int distance;
} Data;

/* Tokens first .. first + count - 1 of a text file. shuffle: every epoch has its own order. */
static inline Data data_open_bytes(const char *path, int T, uint64_t first, uint64_t count, int shuffle,
                                   uint64_t seed) {
    Data d;
    uint64_t size;
    memset(&d, 0, sizeof d);
    d.kind = DATA_BYTES;
    d.V = BYTES_V;
    d.T = T;
    d.seed = seed;
    d.path = path;
    d.file = xopen_read(path, &size);
    d.first = first;
    d.count = count;
    d.samples = count > 0 ? (count - 1) / (uint64_t)T : 0;
    d.epoch = UINT64_MAX;
    if (d.samples > UINT32_MAX)
        die("%s: %llu samples of %d tokens are more than can be shuffled; use a larger --seq-len", path,
            (unsigned long long)d.samples, T);
    if (shuffle) d.order = (uint32_t *)xcalloc((size_t)d.samples, sizeof(uint32_t));
    d.bytes = (unsigned char *)xcalloc((size_t)T + 1, 1);
    return d;
}

static inline Data data_open_recall(int T, int distance, uint64_t seed) {
    Data d;
    memset(&d, 0, sizeof d);
    d.kind = DATA_RECALL;
    d.V = RECALL_V;
    d.T = T;
    d.seed = seed;
    d.distance = distance;
    d.samples = UINT64_MAX;
    if (T < 128) die("--seq-len %d: the recall task needs at least 128 tokens for its facts and questions", T);
    if (distance > T / 4)
        die("--data recall: a question stands at least %d tokens after its fact (--recall-distance, or else one "
            "--chunk), "
            "which leaves no room in --seq-len %d; at most a quarter of it, like --recall-distance %d",
            distance, T, T / 16);
    return d;
}

/* What it keeps in memory. */
static inline size_t data_bytes_held(const Data *d) {
    return d->kind == DATA_RECALL ? 0 : (size_t)d->T + 1 + (d->order ? (size_t)d->samples * sizeof(uint32_t) : 0);
}

static inline void data_close(Data *d) {
    if (d->file) fclose(d->file);
    free(d->order);
    free(d->bytes);
    memset(d, 0, sizeof *d);
}

/* T + 1 tokens of the stream from token `from` on. */
static inline void data_read_bytes(Data *d, uint64_t from, int *inputs, int *targets) {
    size_t n = (size_t)d->T + 1, skip = from == 0; /* token 0 is BYTES_START, token i is byte i - 1 */
    xread_at(d->file, d->path, from - 1 + skip, d->bytes + skip, n - skip);
    for (size_t i = 0; i < n; i++) {
        int token = skip && i == 0 ? (int)BYTES_START : (int)d->bytes[i];
        if (i < n - 1) inputs[i] = token;
        if (i > 0) targets[i - 1] = token;
    }
}

static inline void data_shuffle(Data *d, uint64_t epoch) {
    Rng r = rng_stream(d->seed, 0x6461746173687566u, epoch);
    for (uint64_t i = 0; i < d->samples; i++) d->order[i] = (uint32_t)i;
    for (uint64_t i = d->samples; i > 1; i--) { /* Fisher and Yates */
        uint64_t j = rng_below(&r, i);
        uint32_t swap = d->order[i - 1];
        d->order[i - 1] = d->order[j];
        d->order[j] = swap;
    }
    d->epoch = epoch;
}

/* distances (T), or NULL: written at scored positions, tokens from the fact to the question. */
static inline void data_make_recall(Data *d, uint64_t number, int *inputs, int *targets, int *distances) {
    Rng r = rng_stream(d->seed, 0x726563616c6cu, number);
    const int T = d->T, last_fact = T - 2 * d->distance; /* facts stand before it, so that each can be asked for */
    int fact_at[RECALL_KEYS], value[RECALL_KEYS];
    for (int t = 0; t < T; t++) {
        inputs[t] = RECALL_FILLER0 + (int)rng_below(&r, RECALL_FILLERS);
        targets[t] = TARGET_MASKED;
    }
    for (int k = 0; k < RECALL_KEYS; k++) {
        do fact_at[k] = (int)rng_below(&r, (uint64_t)last_fact);
        while (inputs[fact_at[k]] < RECALL_FILLER0);
        value[k] = (int)rng_below(&r, RECALL_VALUES);
        inputs[fact_at[k]] = k * RECALL_VALUES + value[k];
    }
    /* At most 1/8 of the positions are questions and 16 are facts, so a free one is found soon. */
    for (int q = 0; q < T / RECALL_TOKENS_PER_QUESTION; q++) {
        int k, t;
        do {
            k = (int)rng_below(&r, RECALL_KEYS);
            int earliest = fact_at[k] + d->distance;
            t = earliest + (int)rng_below(&r, (uint64_t)(T - earliest));
        } while (inputs[t] < RECALL_FILLER0);
        inputs[t] = RECALL_KEY0 + k;
        targets[t] = RECALL_VALUE0 + value[k];
        if (distances) distances[t] = t - fact_at[k];
    }
}

/* Sample `number` of the training stream: inputs (T), targets (T; TARGET_MASKED: not scored),
   distances (T, or NULL; see data_make_recall). */
static inline void data_sample(Data *d, uint64_t number, int *inputs, int *targets, int *distances) {
    if (d->kind == DATA_RECALL) {
        data_make_recall(d, number, inputs, targets, distances);
        return;
    }
    uint64_t epoch = number / d->samples, i = number % d->samples;
    if (d->order) {
        if (d->epoch != epoch) data_shuffle(d, epoch);
        i = d->order[i];
    }
    data_read_bytes(d, d->first + i * (uint64_t)d->T, inputs, targets);
}

#endif
