/* tokenizer.h: the vocabulary of a model directory (tokenizer.json), to show as text what a model wrote. The way back, from
   text to ids, is dev/data/prepare.py.

   Understood are the two kinds of vocabulary, of BPE or Unigram, that the models of this program have: byte-level (GPT-2, LLaMA 3, Qwen),
   where each character of a token stands for a byte; and byte-fallback (LLaMA 2, Mistral), where U+2581 stands for a space and
   <0x0A> for a byte. */
#ifndef OOMB_TOKENIZER_H
#define OOMB_TOKENIZER_H

#include "json.h"
#include "util.h"

enum {
    TOKENIZER_FILE = 1 << 28, /* bytes of a tokenizer.json, at most */
    TOKENIZER_IDS = 1 << 24,
    TOKENIZER_TEXT = 1 << 14, /* bytes of a token, with its end */
};

typedef enum { TOKENIZER_UNKNOWN, TOKENIZER_BYTE_LEVEL, TOKENIZER_BYTE_FALLBACK } TokenizerKind;

typedef struct {
    TokenizerKind kind;
    int count;       /* ids are below it; 0: no vocabulary */
    uint32_t *begin; /* (count) where in text each id's bytes are; 0: it has none */
    char *text;      /* each token's bytes, led by their number in 2 bytes */
    size_t used, room;
    int vocab; /* it has been read, and not only what was added to it */
    int strip; /* one space at the start of a text was not there */
} Tokenizer;

/* The byte that code point c stands for in a byte-level token; -1: none. Printable Latin-1 stands for itself, the other
   bytes follow from U+0100 on, in their order (the table of GPT-2's encoder). */
static inline int token_byte(uint32_t c) {
    static int16_t of[324];
    static int known;
    if (!known) {
        int next = 256;
        for (int i = 0; i < 324; i++) of[i] = -1;
        for (int b = 0; b < 256; b++) {
            const int itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
            of[itself ? b : next++] = (int16_t)b;
        }
        known = 1;
    }
    return c < 324 ? of[c] : -1;
}

/* Next code point of well-formed UTF-8 at *p; 0 at the end, or when it is not well formed. */
static inline uint32_t utf8_next(const char **p) {
    const unsigned char *s = (const unsigned char *)*p;
    const int n = s[0] < 0x80 ? 1 : s[0] < 0xC0 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    uint32_t c = n == 1 ? s[0] : n ? s[0] & (0x7F >> n) : 0;
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3F);
    }
    if (c) *p += n;
    return c;
}

/* The bytes of a token of the vocabulary into out (of at least strlen(token) bytes); returns their number. */
static inline size_t token_decode(TokenizerKind kind, const char *token, char *out) {
    size_t n = 0;
    unsigned byte;
    char end;
    if (kind == TOKENIZER_BYTE_FALLBACK && strlen(token) == 6 && sscanf(token, "<0x%2X%c", &byte, &end) == 2 &&
        end == '>') {
        out[0] = (char)byte;
        return 1;
    }
    for (const char *p = token; *p;) {
        const char *before = p;
        const uint32_t c = utf8_next(&p);
        const int b = kind == TOKENIZER_BYTE_LEVEL ? token_byte(c) : -1;
        if (c == 0) p++; /* not UTF-8: as it is */
        if (kind == TOKENIZER_BYTE_FALLBACK && c == 0x2581) out[n++] = ' ';
        else if (b >= 0) out[n++] = (char)b;
        else
            while (before < p) out[n++] = *before++;
    }
    return n;
}

/* Id `id` means these n bytes. */
static inline void tokenizer_add(Tokenizer *t, uint64_t id, const char *bytes, size_t n) {
    if (id >= (uint64_t)t->count) {
        const int count = (int)id + 1;
        const size_t want = round_up((size_t)count, 4096), have = round_up((size_t)t->count, 4096);
        if (want > have) t->begin = (uint32_t *)xrealloc(t->begin, want, sizeof *t->begin);
        memset(t->begin + t->count, 0, (size_t)(count - t->count) * sizeof *t->begin);
        t->count = count;
    }
    if (t->used == 0) t->used = 1; /* 0 means that there is none */
    if (t->used + n + 2 > t->room) {
        t->room = 2 * t->room + n + 4096;
        t->text = (char *)xrealloc(t->text, t->room, 1);
    }
    t->begin[id] = (uint32_t)t->used;
    t->text[t->used++] = (char)(n & 0xFF);
    t->text[t->used++] = (char)(n >> 8);
    memcpy(t->text + t->used, bytes, n);
    t->used += n;
}

/* The bytes of an id, *n of them; none for an id that the vocabulary does not have. */
static inline const char *tokenizer_bytes(const Tokenizer *t, int id, size_t *n) {
    static const char nothing[] = "";
    *n = 0;
    if (id < 0 || id >= t->count || t->begin[id] == 0) return nothing;
    const unsigned char *at = (const unsigned char *)t->text + t->begin[id];
    *n = (size_t)at[0] | (size_t)at[1] << 8;
    return (const char *)at + 2;
}

static inline void tokenizer_id_check(const char *path, const char *token, uint64_t id) {
    if (id >= TOKENIZER_IDS)
        die("%s: token \"%.40s\" has the id %llu; at most %d", path, token, (unsigned long long)id, TOKENIZER_IDS - 1);
}

/* {"type": ..., "decoders": [...]}: sets kind and strip. */
static inline void tokenizer_read_decoder(Json *j, Tokenizer *t, int depth) {
    char key[64], text[256];
    if (json_peek(j) != '{') {
        json_skip(j);
        return;
    }
    char type[64] = "";
    for (json_open(j, '{'); json_key(j, key, sizeof key);) {
        if (strcmp(key, "type") == 0 && json_peek(j) == '"') {
            json_string(j, text, sizeof text);
            snprintf(type, sizeof type, "%.63s", text);
        } else if (strcmp(key, "decoders") == 0 && depth == 0) {
            for (json_open(j, '['); json_item(j);) tokenizer_read_decoder(j, t, 1);
        } else {
            json_skip(j);
        }
    }
    if (strcmp(type, "ByteLevel") == 0) t->kind = TOKENIZER_BYTE_LEVEL;
    if (strcmp(type, "ByteFallback") == 0 || strcmp(type, "Metaspace") == 0) t->kind = TOKENIZER_BYTE_FALLBACK;
    if (strcmp(type, "Strip") == 0 || strcmp(type, "Metaspace") == 0) t->strip = 1;
}

/* [{"id": 0, "content": "<s>"}, ...]: these stand for themselves, whatever the kind. */
static inline void tokenizer_read_added(Json *j, Tokenizer *t, const char *path, char *token) {
    char key[64];
    for (json_open(j, '['); json_item(j);) {
        uint64_t id = UINT64_MAX;
        *token = 0;
        for (json_open(j, '{'); json_key(j, key, sizeof key);) {
            if (strcmp(key, "id") == 0) json_u64(j, &id);
            else if (strcmp(key, "content") == 0) json_string(j, token, TOKENIZER_TEXT);
            else json_skip(j);
        }
        if (j->error) return;
        tokenizer_id_check(path, token, id);
        tokenizer_add(t, id, token, strlen(token));
    }
}

/* {"vocab": {"token": id, ...}} (BPE), or [["token", score], ...] (Unigram), where ids count from 0. */
static inline void tokenizer_read_model(Json *j, Tokenizer *t, const char *path, char *token, char *bytes) {
    char key[64];
    for (json_open(j, '{'); json_key(j, key, sizeof key);) {
        if (strcmp(key, "vocab") != 0) {
            json_skip(j);
            continue;
        }
        t->vocab = 1;
        if (json_peek(j) == '[') {
            uint64_t id = 0;
            for (json_open(j, '['); json_item(j); id++) {
                double score;
                if (!json_open(j, '[') || !json_item(j) || !json_string(j, token, TOKENIZER_TEXT) || !json_item(j) ||
                    !json_double(j, &score) || json_item(j)) {
                    json_fail(j, "a token with its score is missing");
                    return;
                }
                tokenizer_id_check(path, token, id);
                tokenizer_add(t, id, bytes, token_decode(t->kind, token, bytes));
            }
            continue;
        }
        for (json_open(j, '{'); json_key(j, token, TOKENIZER_TEXT);) {
            uint64_t id = 0;
            if (!json_u64(j, &id)) return;
            tokenizer_id_check(path, token, id);
            tokenizer_add(t, id, bytes, token_decode(t->kind, token, bytes));
        }
    }
}

/* From the text of a tokenizer.json. The decoder is read first: it says what the vocabulary means. kind is TOKENIZER_UNKNOWN
   if it is one of those that are not understood. */
static inline Tokenizer tokenizer_parse(const char *path, const char *text, size_t bytes) {
    Tokenizer t;
    char key[64], *token = (char *)xcalloc(TOKENIZER_TEXT, 2);
    memset(&t, 0, sizeof t);
    for (int sweep = 0; sweep < 3; sweep++) {
        Json j = json_begin(text, bytes);
        for (json_open(&j, '{'); json_key(&j, key, sizeof key);) {
            if (sweep == 0 && strcmp(key, "decoder") == 0) tokenizer_read_decoder(&j, &t, 0);
            else if (sweep == 1 && strcmp(key, "model") == 0 && json_peek(&j) == '{')
                tokenizer_read_model(&j, &t, path, token, token + TOKENIZER_TEXT);
            else if (sweep == 2 && strcmp(key, "added_tokens") == 0 && json_peek(&j) == '[')
                tokenizer_read_added(&j, &t, path, token);
            else json_skip(&j);
        }
        if (!json_end(&j)) die("%s: byte %zu: %s", path, json_at(&j), j.error);
        if (t.kind == TOKENIZER_UNKNOWN) break;
    }
    free(token);
    if (t.count == 0 || !t.vocab) t.kind = TOKENIZER_UNKNOWN;
    return t;
}

/* DIR/tokenizer.json; without one, or if it is not understood, a tokenizer of kind TOKENIZER_UNKNOWN. */
static inline Tokenizer tokenizer_open(const char *dir) {
    Tokenizer t;
    char path[MAX_PATH_BYTES];
    size_t bytes;
    memset(&t, 0, sizeof t);
    if (snprintf(path, sizeof path, "%s/tokenizer.json", dir) >= (int)sizeof path || access(path, F_OK) != 0) return t;
    char *text = xread_text(path, TOKENIZER_FILE, &bytes);
    t = tokenizer_parse(path, text, bytes);
    free(text);
    return t;
}

static inline size_t tokenizer_memory(const Tokenizer *t) {
    return t->room + round_up((size_t)t->count, 4096) * sizeof *t->begin;
}

/* out (as many bytes as it takes, or NULL) = the text of n ids; returns its bytes. */
static inline size_t tokenizer_decode(const Tokenizer *t, const int *ids, int n, unsigned char *out) {
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        size_t length;
        const char *bytes = tokenizer_bytes(t, ids[i], &length);
        const size_t skip = i == 0 && t->strip && length && *bytes == ' ';
        if (out) memcpy(out + total, bytes + skip, length - skip);
        total += length - skip;
    }
    return total;
}

static inline void tokenizer_close(Tokenizer *t) {
    free(t->begin);
    free(t->text);
    memset(t, 0, sizeof *t);
}

#endif
