/* dataloader.h: where sequences come from. Text files read as bytes, files of token ids, and the generated
   recall task.

   Files are one stream of tokens, in the order of their names: a window of it may begin in one file and end in the
   next. Documents are packed: a window is cut wherever it falls, attention does not stop at the end of a document, and
   every target is scored that is not masked by its id.

   A sample is one whole context: T inputs and T targets. Samples are numbered 0, 1, 2, ... from
   the start of training and depend on (seed, number) alone, so that a run's position in its data
   is one integer. */
#ifndef OOMB_DATALOADER_H
#define OOMB_DATALOADER_H

#include "rng.h"
#include "util.h"

#include <glob.h>
#include <inttypes.h>

typedef enum { DATA_BYTES, DATA_TOKENS, DATA_RECALL } DataKind;

enum { TARGET_MASKED = -100 }; /* a target that is not scored */

/* A token of the stream: an id; TARGET_MASKED; or another number below 0, an id with its top bit set: seen, not scored. */
static inline int token_input(int x) { return x >= 0 ? x : x == TARGET_MASKED ? 0 : x & INT32_MAX; }
static inline int token_target(int x) { return x >= 0 ? x : TARGET_MASKED; }

/* Text: tokens 0..255 are bytes; 256 stands before the first byte of each file, so that every
   byte of it can be predicted. A file of n bytes is n + 1 tokens. */
enum { BYTES_START = 256, BYTES_V = 257 };

/* Token files, as llm.c writes them: 256 words of 32 bits (magic, version, number of tokens, zeros), then ids of 16 or
   32 bits. In those of 32, the top bit says that the token is seen and not scored: a prompt that is to be read and not to be
   learned. An id of -100 or -1 is not scored either and is no token; as an input it is read as token 0. */
enum { TOKENS_HEADER = 256 * 4, TOKENS_BLOCK = 1 << 14 };
static const struct {
    uint32_t magic, version;
    int width; /* bytes per token */
} token_formats[] = {{20240520, 1, 2}, {20240801, 7, 4}};

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
    char *path;
    int width;      /* bytes per token; 1 is text: token 0 is BYTES_START, token i is byte i - 1 */
    uint64_t first; /* its first token, counted through the stream */
    uint64_t count; /* its tokens */
} Shard;

typedef struct {
    DataKind kind; /* DATA_BYTES or DATA_TOKENS */
    Shard *shards; /* (num_shards) */
    int num_shards;
    uint64_t count, masked; /* tokens of the stream; how many of them are not scored (set by files_check) */
    int V;                  /* ids are below it */
    int open;               /* the shard that `file` reads, -1: none. One at a time: there may be thousands */
    FILE *file;
    unsigned char *block; /* (TOKENS_BLOCK * 4) */
} TokenFiles;

typedef struct {
    DataKind kind;
    int V, T;
    uint64_t seed;
    /* files: the tokens first .. first + count - 1 of the stream, cut into samples of T */
    TokenFiles *files;
    uint64_t first, count;
    uint64_t samples; /* per epoch */
    uint32_t *order;  /* (samples) of the epoch in `epoch`; NULL: in the order of the stream */
    uint64_t epoch;
    int *window; /* (T + 1) */
    /* recall */
    int distance;
} Data;

/* ------------------------------------------------------------------------------------------- files */

/* Whether a file is text or token ids, and that its size is what its header says. */
static inline Shard shard_open(const char *path) {
    Shard s;
    uint64_t bytes;
    uint32_t header[3] = {0};
    FILE *f = xopen_read(path, &bytes);
    xread_at(f, path, 0, header, min_size(sizeof header, (size_t)bytes));
    fclose(f);
    const size_t n = strlen(path);
    const char *name = n > 4 ? path + n - 4 : path;
    int format = -1;
    for (int i = 0; i < 2; i++) {
        if (header[0] == token_formats[i].magic) format = i;
    }
    memset(&s, 0, sizeof s);
    s.path = (char *)xcalloc(n + 1, 1);
    memcpy(s.path, path, n);
    if (format < 0 && strcmp(name, ".bin") != 0) { /* any other file is text */
        if (bytes == 0) die("%s: the file is empty", path);
        s.width = 1;
        s.count = bytes + 1;
        return s;
    }
    if (bytes < TOKENS_HEADER)
        die("%s: %" PRIu64 " bytes, but the header of a token file has %d; write the file again", path, bytes,
            TOKENS_HEADER);
    if (format < 0)
        die("%s: a .bin is a file of tokens and begins with %" PRIu32 " or %" PRIu32 ", but this one with %" PRIu32
            "; to train on its bytes, give it another name",
            path, token_formats[0].magic, token_formats[1].magic, header[0]);
    if (header[1] != token_formats[format].version)
        die("%s: version %" PRIu32 " of the token format %" PRIu32 ", but this program reads version %" PRIu32, path,
            header[1], header[0], token_formats[format].version);
    s.width = token_formats[format].width;
    s.count = header[2];
    if (s.count == 0) die("%s: a token file without tokens", path);
    const uint64_t want = TOKENS_HEADER + s.count * (uint64_t)s.width;
    if (bytes != want)
        die("%s: its header promises %" PRIu64 " tokens of %d bytes, which makes a file of %" PRIu64
            " bytes, but it has %" PRIu64 "; copy or write it again",
            path, s.count, s.width, want, bytes);
    return s;
}

/* The stream of all files that `pattern` names: a path, or a pattern of the shell. option: for errors. */
static inline TokenFiles files_open(const char *option, const char *pattern) {
    TokenFiles f;
    struct stat st;
    glob_t found;
    memset(&f, 0, sizeof f);
    memset(&found, 0, sizeof found);
    f.open = -1;
    f.V = BYTES_V;
    const int literal = stat(pattern, &st) == 0 || !strpbrk(pattern, "*?["); /* a name may hold a bracket */
    if (!literal && glob(pattern, 0, NULL, &found) != 0) die("%s %s: no file has such a name", option, pattern);
    f.num_shards = literal ? 1 : (int)found.gl_pathc;
    f.shards = (Shard *)xcalloc((size_t)f.num_shards, sizeof(Shard));
    for (int i = 0; i < f.num_shards; i++) {
        Shard *s = &f.shards[i];
        *s = shard_open(literal ? pattern : found.gl_pathv[i]);
        s->first = f.count;
        f.count += s->count;
        if ((s->width == 1) != (f.shards[0].width == 1))
            die("%s %s: %s is text and %s holds token ids; train on one or the other", option, pattern,
                s->width == 1 ? s->path : f.shards[0].path, s->width == 1 ? f.shards[0].path : s->path);
    }
    if (!literal) globfree(&found);
    f.kind = f.shards[0].width == 1 ? DATA_BYTES : DATA_TOKENS;
    f.block = (unsigned char *)xcalloc(TOKENS_BLOCK, 4);
    return f;
}

static inline void files_close(TokenFiles *f) {
    if (f->file) fclose(f->file);
    for (int i = 0; i < f->num_shards; i++) free(f->shards[i].path);
    free(f->shards);
    free(f->block);
    memset(f, 0, sizeof *f);
}

/* Raw bytes of tokens at .. at + n - 1 of a shard (n <= TOKENS_BLOCK) into f->block; text without its start token. */
static inline void shard_read(TokenFiles *f, int shard, uint64_t at, size_t n) {
    const Shard *s = &f->shards[shard];
    if (f->open != shard) {
        uint64_t bytes;
        if (f->file) fclose(f->file);
        f->file = xopen_read(s->path, &bytes);
        f->open = shard;
    }
    xread_at(f->file, s->path, s->width == 1 ? at - 1 : TOKENS_HEADER + at * (uint64_t)s->width, f->block,
             n * (size_t)s->width);
}

/* Token i of f->block as a token of the stream; what is no id below V comes back as INT32_MAX. */
static inline int block_token(const TokenFiles *f, int width, size_t i) {
    uint16_t id16;
    uint32_t id32;
    if (width == 1) return f->block[i];
    if (width == 2) {
        memcpy(&id16, f->block + 2 * i, 2);
        return id16 < f->V ? id16 : INT32_MAX;
    }
    memcpy(&id32, f->block + 4 * i, 4);
    if (id32 == (uint32_t)-100 || id32 == (uint32_t)-1) return TARGET_MASKED;
    return (id32 & INT32_MAX) < (uint32_t)f->V ? (int)id32 : INT32_MAX;
}

__attribute__((noreturn)) static inline void token_refused(const TokenFiles *f, const Shard *s, uint64_t at, size_t i) {
    uint32_t id = 0;
    memcpy(&id, f->block + (size_t)s->width * i, (size_t)s->width);
    id &= INT32_MAX;
    die("%s: token %" PRIu64 " (byte %" PRIu64 ") has the id %" PRIu32
        ", but the vocabulary of the model ends at %d; is it the --model that the file was made for?",
        s->path, at + i, TOKENS_HEADER + (at + i) * (uint64_t)s->width, id, f->V - 1);
}

/* Whether one of the first n tokens of f->block is no id below V and no mask; counts the masks. Without branches: a
   billion ids are checked at the speed of reading them. */
static inline int block_check(TokenFiles *f, int width, size_t n) {
    const uint16_t *id16 = (const uint16_t *)(const void *)f->block;
    const uint32_t *id32 = (const uint32_t *)(const void *)f->block;
    const uint32_t V = (uint32_t)f->V;
    uint32_t bad = 0, masked = 0;
    for (size_t i = 0; width == 2 && i < n; i++) bad |= id16[i] >= V;
    for (size_t i = 0; width == 4 && i < n; i++) {
        const uint32_t mask = (id32[i] == (uint32_t)-1) | (id32[i] == (uint32_t)-100);
        masked += id32[i] >> 31;
        bad |= ((id32[i] & INT32_MAX) >= V) & ~mask;
    }
    f->masked += masked;
    return bad & 1;
}

/* Reads every token once: each id must be below V. Counts the masked ones. */
static inline void files_check(TokenFiles *f, int V) {
    const double start = now_ms();
    double shown = start;
    f->masked = 0;
    if (f->kind == DATA_BYTES) return;
    f->V = V;
    for (int k = 0; k < f->num_shards; k++) {
        const Shard *s = &f->shards[k];
        for (uint64_t at = 0; at < s->count; at += TOKENS_BLOCK) {
            const size_t n = min_size(TOKENS_BLOCK, (size_t)(s->count - at));
            shard_read(f, k, at, n);
            const int bad = block_check(f, s->width, n);
            for (size_t i = 0; bad && i < n; i++) {
                if (block_token(f, s->width, i) == INT32_MAX) token_refused(f, s, at, i);
            }
            if (isatty(2) && now_ms() - shown > 1000) {
                shown = now_ms();
                fprintf(stderr, "\r  checking tokens: %.0f %%   ",
                        100.0 * (double)(s->first + at + n) / (double)f->count);
            }
        }
    }
    if (shown > start) fprintf(stderr, "\r%*s\r", 40, "");
}

/* A number that says whether files are the same data: FNV-1a over each one's width, count, first and last block. */
static inline uint64_t files_hash(TokenFiles *f) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (int k = 0; k < f->num_shards; k++) {
        const Shard *s = &f->shards[k];
        const uint64_t text = s->width == 1, n = min_size(TOKENS_BLOCK, (size_t)(s->count - text));
        const uint64_t facts[2] = {(uint64_t)s->width, s->count};
        for (int part = 0; part < 3; part++) {
            if (part) shard_read(f, k, part == 1 ? text : s->count - n, (size_t)n);
            const unsigned char *bytes = part ? f->block : (const unsigned char *)facts;
            const size_t count = part ? (size_t)n * (size_t)s->width : sizeof facts;
            for (size_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * 0x100000001B3u;
        }
    }
    return hash;
}

/* out (n) = tokens from .. from + n - 1 of the stream. */
static inline void files_read(TokenFiles *f, uint64_t from, size_t n, int *out) {
    int low = 0; /* the shard that holds `from`: the last that begins at or before it */
    for (int high = f->num_shards; high - low > 1;) {
        const int middle = (low + high) / 2;
        if (f->shards[middle].first <= from) low = middle;
        else high = middle;
    }
    for (int k = low; n > 0; k++) {
        const Shard *s = &f->shards[k];
        uint64_t at = from - s->first;
        for (; n > 0 && at < s->count;) {
            if (s->width == 1 && at == 0) {
                *out++ = BYTES_START;
                from++, at++, n--;
                continue;
            }
            const size_t m = min_size(min_size(n, TOKENS_BLOCK), (size_t)(s->count - at));
            shard_read(f, k, at, m);
            for (size_t i = 0; i < m; i++) {
                out[i] = block_token(f, s->width, i);
                if (out[i] == INT32_MAX) token_refused(f, s, at, i); /* changed since it was checked */
            }
            out += m, from += m, at += m, n -= m;
        }
    }
}

/* ------------------------------------------------------------------------------------------- samples */

/* Tokens first .. first + count - 1 of the files, which must stay open. shuffle: every epoch has its own order. */
static inline Data data_open_files(TokenFiles *files, int T, uint64_t first, uint64_t count, int shuffle,
                                   uint64_t seed) {
    Data d;
    memset(&d, 0, sizeof d);
    d.kind = files->kind;
    d.V = files->V;
    d.T = T;
    d.seed = seed;
    d.files = files;
    d.first = first;
    d.count = count;
    d.samples = count > 0 ? (count - 1) / (uint64_t)T : 0;
    d.epoch = UINT64_MAX;
    if (d.samples > UINT32_MAX)
        die("%s: %" PRIu64 " samples of %d tokens are more than can be shuffled; use a larger --seq-len",
            files->shards[0].path, d.samples, T);
    if (shuffle) d.order = (uint32_t *)xcalloc((size_t)d.samples, sizeof(uint32_t));
    d.window = (int *)xcalloc((size_t)T + 1, sizeof(int));
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
    if (d->kind == DATA_RECALL) return 0;
    return ((size_t)d->T + 1) * sizeof(int) + (d->order ? (size_t)d->samples * sizeof(uint32_t) : 0) +
           (size_t)TOKENS_BLOCK * 4;
}

static inline void data_close(Data *d) {
    free(d->order);
    free(d->window);
    memset(d, 0, sizeof *d);
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
    files_read(d->files, d->first + i * (uint64_t)d->T, (size_t)d->T + 1, d->window);
    for (int t = 0; t < d->T; t++) {
        inputs[t] = token_input(d->window[t]);
        targets[t] = token_target(d->window[t + 1]);
    }
}

#endif
