/* json.h: reads JSON (RFC 8259) from memory, a value at a time and in order, and allocates nothing. Also
   writes strings.

   The first fault is remembered in `error`; every call after it returns 0 and changes nothing, so a reader
   checks once, at the end:

     Json j = json_begin(text, n);
     for (json_open(&j, '{'); json_key(&j, key, sizeof key);) {
         if (strcmp(key, "step") == 0) json_u64(&j, &step);
         else json_skip(&j);
     }
     if (!json_end(&j)) die("%s: byte %zu: %s", path, json_at(&j), j.error);

   Numbers beyond what the caller asks for, and keys or strings longer than the caller's buffer, are faults. */
#ifndef OOMB_JSON_H
#define OOMB_JSON_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JSON_MAX_DEPTH = 64 };

typedef struct {
    const char *begin, *at, *end;
    const char *error; /* NULL: none so far */
    int first;         /* just after an opening bracket: no comma is due */
    int depth;
} Json;

static inline Json json_begin(const char *text, size_t n) {
    Json j = {text, text, text + n, NULL, 1, 0};
    return j;
}

static inline size_t json_at(const Json *j) { return (size_t)(j->at - j->begin); }

static inline int json_fail(Json *j, const char *error) {
    if (!j->error) j->error = error;
    return 0;
}

/* The next byte that is not white space, or 0 at the end; it is not consumed. */
static inline char json_peek(Json *j) {
    if (j->error) return 0;
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\t' || *j->at == '\n' || *j->at == '\r')) j->at++;
    return j->at < j->end ? *j->at : 0;
}

/* bracket: '{' or '[' */
static inline int json_open(Json *j, char bracket) {
    if (json_peek(j) != bracket) return json_fail(j, bracket == '{' ? "an object is missing" : "an array is missing");
    if (++j->depth > JSON_MAX_DEPTH) return json_fail(j, "nested too deep");
    j->at++;
    j->first = 1;
    return 1;
}

/* Consumes the closing bracket and returns 0, or the comma before another element and returns 1. */
static inline int json_more(Json *j, char close) {
    const char c = json_peek(j);
    if (j->error) return 0;
    if (c == close) {
        j->at++;
        j->depth--;
        j->first = 0;
        return 0;
    }
    if (!j->first) {
        if (c != ',') return json_fail(j, "a comma or a closing bracket is missing");
        j->at++;
    }
    j->first = 0;
    return 1;
}

/* [ value, value ]: 1 while there is another element, which the caller must then read or skip. */
static inline int json_item(Json *j) { return json_more(j, ']'); }

/* Four hexadecimal digits; -1 when there are none. */
static inline int json_hex(Json *j) {
    int x = 0;
    if (j->end - j->at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        const char c = *j->at++;
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return -1;
        x = x * 16 + digit;
    }
    return x;
}

/* The code point behind \u as UTF-8 in out (4); returns its bytes, 0 on a fault. */
static inline int json_unicode(Json *j, char *out) {
    long x = json_hex(j);
    if (x >= 0xD800 && x < 0xDC00) { /* the first half of a surrogate pair */
        if (j->end - j->at < 2 || j->at[0] != '\\' || j->at[1] != 'u') return 0;
        j->at += 2;
        const long low = json_hex(j);
        if (low < 0xDC00 || low > 0xDFFF) return 0;
        x = 0x10000 + ((x - 0xD800) << 10) + (low - 0xDC00);
    }
    if (x <= 0 || (x >= 0xD800 && x < 0xE000)) return 0; /* a C string cannot hold 0 */
    const int n = x < 0x80 ? 1 : x < 0x800 ? 2 : x < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, x >>= 6) out[i] = (char)(0x80 | (x & 0x3F));
    out[0] = (char)(n == 1 ? x : (0xF00 >> n & 0xFF) | x);
    return n;
}

/* out (size) = the string, unescaped and terminated. */
static inline int json_string(Json *j, char *out, size_t size) {
    size_t n = 0;
    if (json_peek(j) != '"') return json_fail(j, "a string is missing");
    j->at++;
    for (;;) {
        char bytes[4];
        int count = 1;
        if (j->at == j->end) return json_fail(j, "a string does not end");
        const char c = *j->at++;
        if (c == '"') break;
        if ((unsigned char)c < 0x20) return json_fail(j, "a control character in a string");
        bytes[0] = c;
        if (c == '\\') {
            static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
            if (j->at == j->end) return json_fail(j, "a string does not end");
            const char escape = *j->at++, *known = escape ? strchr(from, escape) : NULL;
            if (escape == 'u') count = json_unicode(j, bytes);
            else if (known) bytes[0] = to[known - from];
            else count = 0;
            if (count == 0) return json_fail(j, "an unknown escape in a string");
        }
        if (n + (size_t)count >= size) return json_fail(j, "a string is too long");
        memcpy(out + n, bytes, (size_t)count);
        n += (size_t)count;
    }
    out[n] = 0;
    return 1;
}

/* { "key": value, ... }: reads the next key into key (size) and returns 1; 0 after the last. */
static inline int json_key(Json *j, char *key, size_t size) {
    if (!json_more(j, '}') || !json_string(j, key, size)) return 0;
    if (json_peek(j) != ':') return json_fail(j, "a colon is missing");
    j->at++;
    return 1;
}

/* text (64) = the characters of a number, by the grammar of JSON. */
static inline int json_number_text(Json *j, char *text) {
    json_peek(j);
    if (j->error) return 0;
    const char *p = j->at, *digits;
    if (p < j->end && *p == '-') p++;
    for (digits = p; p < j->end && *p >= '0' && *p <= '9';) p++;
    if (p == digits || (p - digits > 1 && *digits == '0')) return json_fail(j, "a number is missing");
    if (p < j->end && *p == '.') {
        for (digits = ++p; p < j->end && *p >= '0' && *p <= '9';) p++;
        if (p == digits) return json_fail(j, "a number without digits after its point");
    }
    if (p < j->end && (*p == 'e' || *p == 'E')) {
        p++;
        if (p < j->end && (*p == '+' || *p == '-')) p++;
        for (digits = p; p < j->end && *p >= '0' && *p <= '9';) p++;
        if (p == digits) return json_fail(j, "a number without digits in its exponent");
    }
    if (p - j->at > 63) return json_fail(j, "a number is too long");
    memcpy(text, j->at, (size_t)(p - j->at));
    text[p - j->at] = 0;
    j->at = p;
    return 1;
}

static inline int json_double(Json *j, double *x) {
    char text[64];
    if (!json_number_text(j, text)) return 0;
    *x = strtod(text, NULL);
    return 1;
}

/* A whole number from 0 on. */
static inline int json_u64(Json *j, uint64_t *x) {
    char text[64], *end;
    if (!json_number_text(j, text)) return 0;
    errno = 0;
    *x = strtoull(text, &end, 10);
    if (*end || errno || *text == '-') return json_fail(j, "not a whole number of 64 bits");
    return 1;
}

/* The string at hand, unread. */
static inline int json_skip_string(Json *j) {
    if (json_peek(j) != '"') return json_fail(j, "a string is missing");
    for (j->at++; j->at < j->end && *j->at != '"'; j->at++) {
        if (*j->at == '\\' && j->at + 1 < j->end) j->at++;
    }
    if (j->at == j->end) return json_fail(j, "a string does not end");
    j->at++;
    return 1;
}

/* Any value of any depth. */
static inline int json_skip(Json *j) {
    char text[64];
    const int outside = j->depth;
    char close[JSON_MAX_DEPTH + 1]; /* of the brackets that this call has opened */
    do {
        const char c = json_peek(j);
        if (c == '{' || c == '[') {
            if (!json_open(j, c)) return 0;
            close[j->depth - outside] = c == '{' ? '}' : ']';
        } else if (c == '"') {
            if (!json_skip_string(j)) return 0;
        } else if (c == 't' || c == 'f' || c == 'n') {
            const char *word = c == 't' ? "true" : c == 'f' ? "false" : "null";
            const size_t n = strlen(word);
            if ((size_t)(j->end - j->at) < n || memcmp(j->at, word, n) != 0) return json_fail(j, "a value is missing");
            j->at += n;
        } else if (!json_number_text(j, text)) {
            return json_fail(j, "a value is missing");
        }
        while (j->depth > outside) { /* on to the next value inside, or out */
            const char end = close[j->depth - outside];
            if (!json_more(j, end)) {
                if (j->error) return 0;
                continue;
            }
            if (end == '}') {
                if (!json_skip_string(j)) return 0;
                if (json_peek(j) != ':') return json_fail(j, "a colon is missing");
                j->at++;
            }
            break;
        }
    } while (j->depth > outside);
    return !j->error;
}

/* Whether all was read without a fault and nothing but white space is left. */
static inline int json_end(Json *j) {
    if (j->error) return 0;
    json_peek(j);
    return j->at == j->end ? 1 : json_fail(j, "more text after the end");
}

/* "text" with what JSON wants escaped. */
static inline void json_write_string(FILE *f, const char *text) {
    fputc('"', f);
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') fprintf(f, "\\%c", c);
        else if (c < 0x20) fprintf(f, "\\u%04x", c);
        else fputc(c, f);
    }
    fputc('"', f);
}

#endif
