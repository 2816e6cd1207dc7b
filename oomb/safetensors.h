/* safetensors.h: reads and writes safetensors files (the format of Hugging Face's library of that name):

     8 bytes   length of the header, little endian
     header    JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}, padded
               with spaces; "__metadata__" may hold strings
     data      the tensors; offsets count from here; together they cover the data without gaps

   A file that breaks any of this ends the program with one line. Nothing is allocated by a size that the file
   claims and does not have. The writer leaves room for the header, writes data in any order, and the
   header last: a dump does not know its tensors in advance. */
#ifndef OOMB_SAFETENSORS_H
#define OOMB_SAFETENSORS_H

#include "json.h"
#include "util.h"

#include <inttypes.h>
#include <math.h>
#include <sys/mman.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the files that are read and written are little endian");

enum {
    SAFE_NAME = 128,         /* bytes of a name with its end */
    SAFE_DIMS = 8,           /* dimensions of a tensor */
    SAFE_ENTRY = 256,        /* header bytes that the writer leaves for each tensor */
    SAFE_HEADER = 100000000, /* the longest header that the format allows */
};

typedef enum {
    SAFE_F64,
    SAFE_F32,
    SAFE_F16,
    SAFE_BF16,
    SAFE_I64,
    SAFE_I32,
    SAFE_I16,
    SAFE_I8,
    SAFE_U64,
    SAFE_U32,
    SAFE_U16,
    SAFE_U8,
    SAFE_BOOL,
    SAFE_F8_E4M3,
    SAFE_F8_E5M2,
    SAFE_NUM_TYPES
} SafeType;
static const struct {
    const char *name;
    int bytes;
} safe_types[SAFE_NUM_TYPES] = {
    {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},  {"I32", 4},     {"I16", 2},     {"I8", 1},
    {"U64", 8}, {"U32", 4}, {"U16", 2}, {"U8", 1},   {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1},
};

typedef struct {
    char name[SAFE_NAME];
    SafeType type;
    int dims;
    uint64_t shape[SAFE_DIMS];
    uint64_t begin, end; /* bytes, from the start of the data */
} SafeTensor;

typedef struct {
    const char *path;
    FILE *file;
    uint64_t data; /* offset of the data in the file */
    int count;
    SafeTensor *tensors; /* (count) in the order of their data */
    int *by_name;        /* (count) indices, sorted by name */
} SafeFile;

/* ------------------------------------------------------------------------------------------- reading */

/* One tensor's object. Unknown keys are skipped: they do not change what the data mean. */
static inline void safe_read_entry(Json *j, SafeTensor *t, const char *path) {
    char key[32], type[16] = "";
    int have_shape = 0, offsets = 0;
    t->type = SAFE_NUM_TYPES;
    for (json_open(j, '{'); json_key(j, key, sizeof key);) {
        if (strcmp(key, "dtype") == 0) {
            json_string(j, type, sizeof type);
        } else if (strcmp(key, "shape") == 0) {
            have_shape = 1;
            t->dims = 0;
            for (json_open(j, '['); json_item(j);) {
                if (t->dims == SAFE_DIMS) die("%s: tensor %s has more than %d dimensions", path, t->name, SAFE_DIMS);
                json_u64(j, &t->shape[t->dims++]);
            }
        } else if (strcmp(key, "data_offsets") == 0) {
            for (json_open(j, '['); json_item(j); offsets++) {
                uint64_t x = 0;
                json_u64(j, &x);
                *(offsets == 0 ? &t->begin : &t->end) = x;
            }
        } else {
            json_skip(j);
        }
    }
    if (j->error) return;
    for (int i = 0; i < SAFE_NUM_TYPES; i++) {
        if (strcmp(type, safe_types[i].name) == 0) t->type = (SafeType)i;
    }
    if (t->type == SAFE_NUM_TYPES)
        die("%s: tensor %s has the dtype \"%s\", which is unknown here", path, t->name, type);
    if (!have_shape || offsets != 2) die("%s: tensor %s needs one shape and two data_offsets", path, t->name);
}

/* Its elements; ends the program when shape and offsets do not say the same. */
static inline uint64_t safe_elements(const SafeTensor *t, const char *path) {
    uint64_t n = 1, bytes = 0;
    int overflow = 0;
    for (int i = 0; i < t->dims; i++) overflow |= __builtin_mul_overflow(n, t->shape[i], &n);
    overflow |= __builtin_mul_overflow(n, (uint64_t)safe_types[t->type].bytes, &bytes);
    if (overflow || t->end < t->begin || t->end - t->begin != bytes)
        die("%s: tensor %s: data_offsets %" PRIu64 " .. %" PRIu64 " do not hold its shape", path, t->name, t->begin,
            t->end);
    return n;
}

static inline int safe_compare_begin(const void *a, const void *b) {
    const SafeTensor *s = (const SafeTensor *)a, *t = (const SafeTensor *)b;
    if (s->begin != t->begin) return s->begin < t->begin ? -1 : 1;
    return s->end < t->end ? -1 : s->end > t->end; /* an empty tensor before its neighbour */
}

typedef struct {
    const char *name;
    int index;
} SafeName;

static inline int safe_compare_name(const void *a, const void *b) {
    return strcmp(((const SafeName *)a)->name, ((const SafeName *)b)->name);
}

/* Sorts by data and by name; refuses gaps, overlaps, and a name that stands twice. */
static inline void safe_index(SafeFile *f, uint64_t data_bytes) {
    uint64_t at = 0;
    if (f->count) qsort(f->tensors, (size_t)f->count, sizeof *f->tensors, safe_compare_begin);
    SafeName *names = (SafeName *)xcalloc((size_t)f->count, sizeof *names);
    for (int i = 0; i < f->count; i++) {
        const SafeTensor *t = &f->tensors[i];
        if (t->begin != at)
            die("%s: tensor %s begins at byte %" PRIu64 " of the data, but the one before it ends at %" PRIu64, f->path,
                t->name, t->begin, at);
        at = t->end;
        names[i].name = t->name;
        names[i].index = i;
    }
    if (at != data_bytes)
        die("%s: the tensors end at byte %" PRIu64 " of the data, the file at %" PRIu64 "; was it cut or appended to?",
            f->path, at, data_bytes);
    qsort(names, (size_t)f->count, sizeof *names, safe_compare_name);
    f->by_name = (int *)xcalloc((size_t)f->count, sizeof(int));
    for (int i = 0; i < f->count; i++) {
        if (i && strcmp(names[i].name, names[i - 1].name) == 0)
            die("%s: tensor %s stands twice", f->path, names[i].name);
        f->by_name[i] = names[i].index;
    }
    free(names);
}

static inline SafeFile safe_open(const char *path) {
    SafeFile f;
    uint64_t bytes, n = 0;
    int capacity = 0;
    memset(&f, 0, sizeof f);
    f.path = path;
    f.file = xopen_read(path, &bytes);
    if (bytes < 8) die("%s: %" PRIu64 " bytes are too few for a safetensors file", path, bytes);
    xread_at(f.file, path, 0, &n, 8);
    if (n > SAFE_HEADER || n > bytes - 8)
        die("%s: its first 8 bytes promise a header of %" PRIu64 " bytes, but %" PRIu64
            " follow; not a safetensors file?",
            path, n, bytes - 8);
    char *header = (char *)xcalloc((size_t)n + 1, 1);
    xread_at(f.file, path, 8, header, (size_t)n);
    f.data = 8 + n;
    Json j = json_begin(header, (size_t)n);
    SafeTensor t;
    for (json_open(&j, '{'); memset(&t, 0, sizeof t), json_key(&j, t.name, sizeof t.name);) {
        if (strcmp(t.name, "__metadata__") == 0) {
            json_skip(&j);
            continue;
        }
        safe_read_entry(&j, &t, path);
        if (j.error) break;
        safe_elements(&t, path);
        if (f.count == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            f.tensors = (SafeTensor *)xrealloc(f.tensors, (size_t)capacity, sizeof t);
        }
        f.tensors[f.count++] = t;
    }
    if (!json_end(&j)) die("%s: header, byte %zu: %s", path, json_at(&j), j.error);
    free(header);
    safe_index(&f, bytes - f.data);
    return f;
}

static inline void safe_close(SafeFile *f) {
    if (f->file) fclose(f->file);
    free(f->tensors);
    free(f->by_name);
    memset(f, 0, sizeof *f);
}

/* NULL if the file has no tensor of that name. */
static inline const SafeTensor *safe_find(const SafeFile *f, const char *name) {
    for (int low = 0, high = f->count; low < high;) {
        const int middle = (low + high) / 2;
        const SafeTensor *t = &f->tensors[f->by_name[middle]];
        const int order = strcmp(name, t->name);
        if (order == 0) return t;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

/* The whole tensor as it is, into dst. */
static inline void safe_read(const SafeFile *f, const SafeTensor *t, void *dst) {
    xread_at(f->file, f->path, f->data + t->begin, dst, (size_t)(t->end - t->begin));
}

/* Bytes from .. from + bytes - 1 of a tensor, mapped: they are read when they are looked at, and are not this
   process's memory for longer than the map is there. */
typedef struct {
    void *base;
    size_t length;
    const unsigned char *data;
} SafeMap;

static inline SafeMap safe_map(const SafeFile *f, const SafeTensor *t, uint64_t from, size_t bytes) {
    SafeMap m;
    struct stat st;
    const uint64_t at = f->data + t->begin + from, page = (uint64_t)sysconf(_SC_PAGESIZE), skip = at % page;
    if (fstat(fileno(f->file), &st) != 0 || (uint64_t)st.st_size < at + bytes)
        die("%s: tensor %s is no longer all there; was the file cut while in use?", f->path, t->name);
    m.length = (size_t)skip + bytes;
    m.base = mmap(NULL, m.length, PROT_READ, MAP_PRIVATE, fileno(f->file), (off_t)(at - skip));
    if (m.base == MAP_FAILED) die("%s: cannot map %zu bytes: %s", f->path, bytes, strerror(errno));
    m.data = (const unsigned char *)m.base + skip;
    return m;
}

static inline void safe_unmap(SafeMap *m) {
    munmap(m->base, m->length);
    m->base = NULL;
}

static inline float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline uint32_t bits_of_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

/* bfloat16 and IEEE half to float: exact. */
static inline float safe_bf16(uint16_t x) { return float_of_bits((uint32_t)x << 16); }

static inline float safe_f16(uint16_t x) {
    const uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 1023;
    if (exponent == 31) return float_of_bits(sign | 0x7F800000u | fraction << 13); /* infinity, NaN */
    if (exponent == 0) return (float)fraction * (sign ? -0x1p-24f : 0x1p-24f);
    return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

/* The reverse, rounded to the nearest, ties to even; what is too large becomes infinity. x is finite. */
static inline uint16_t safe_to_bf16(float x) {
    const uint32_t bits = bits_of_float(x);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static inline uint16_t safe_to_f16(float x) {
    const uint32_t bits = bits_of_float(x) & 0x7FFFFFFF;
    const uint16_t sign = (uint16_t)(bits_of_float(x) >> 16 & 0x8000);
    if (bits >= 0x477FF000) return sign | 0x7C00; /* from 65520 on */
    if (bits < 0x38800000) return (uint16_t)(sign | (uint16_t)rint((double)float_of_bits(bits) * 0x1p24));
    return (uint16_t)(sign | (((bits + 0xFFF + (bits >> 13 & 1)) >> 13) - (112 << 10)));
}

/* out (count) = elements first .. first + count - 1, as doubles. */
static inline void safe_read_doubles(const SafeFile *f, const SafeTensor *t, uint64_t first, size_t count,
                                     double *out) {
    const size_t size = (size_t)safe_types[t->type].bytes;
    unsigned char *raw = (unsigned char *)out + count * (8 - size); /* the tail of out: read in place, front to back */
    xread_at(f->file, f->path, f->data + t->begin + first * size, raw, count * size);
    for (size_t i = 0; i < count; i++, raw += size) {
        union {
            double f64;
            float f32;
            uint16_t u16;
            int64_t i64;
            int32_t i32;
            uint32_t u32;
            uint8_t u8;
        } x;
        memcpy(&x, raw, size);
        if (t->type == SAFE_F64) out[i] = x.f64;
        else if (t->type == SAFE_F32) out[i] = (double)x.f32;
        else if (t->type == SAFE_BF16) out[i] = (double)safe_bf16(x.u16);
        else if (t->type == SAFE_F16) out[i] = (double)safe_f16(x.u16);
        else if (t->type == SAFE_I64) out[i] = (double)x.i64;
        else if (t->type == SAFE_I32) out[i] = (double)x.i32;
        else if (t->type == SAFE_U32) out[i] = (double)x.u32;
        else if (t->type == SAFE_U16) out[i] = (double)x.u16;
        else if (t->type == SAFE_U8) out[i] = (double)x.u8;
        else die("%s: tensor %s: cannot compute with the dtype %s", f->path, t->name, safe_types[t->type].name);
    }
}

/* ------------------------------------------------------------------------------------------- writing */

/* A file being written. The first fault is kept in `error` (an errno) and later calls do nothing, so that the
   caller can clean up before it ends the program. */
typedef struct {
    int fd;
    int error;
    char *header; /* what stands in it so far */
    size_t length, room;
    uint64_t data; /* bytes of data reserved so far */
} SafeWriter;

static inline void safe_write_at(SafeWriter *w, uint64_t offset, const void *data, size_t bytes) {
    if (!w->error) w->error = write_at(w->fd, offset, data, bytes);
}

/* At most max_tensors will be added. */
static inline SafeWriter safe_create(const char *path, size_t max_tensors) {
    SafeWriter w;
    memset(&w, 0, sizeof w);
    w.room = round_up(max_tensors * SAFE_ENTRY + 2, 64) - 8; /* with the 8 bytes before it: data aligned to 64 */
    if (w.room > SAFE_HEADER)
        die("%s: %zu tensors are more than the header of a safetensors file can list", path, max_tensors);
    w.header = (char *)xcalloc(w.room, 1);
    memset(w.header, ' ', w.room);
    w.header[w.length++] = '{';
    w.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w.fd < 0) w.error = errno;
    return w;
}

/* A string that goes with the file, in the room of a tensor; before the first of them. transformers wants to read
   "format": "pt". */
static inline void safe_metadata(SafeWriter *w, const char *key, const char *value) {
    assert(w->length == 1);
    const int n = snprintf(w->header + 1, SAFE_ENTRY, "\"__metadata__\":{\"%s\":\"%s\"}", key, value);
    assert(n < SAFE_ENTRY && w->room >= SAFE_ENTRY);
    w->header[1 + n] = ' '; /* where snprintf ended it */
    w->length += (size_t)n;
}

/* Reserves the place of a tensor; returns the offset in the file where its data go. */
static inline uint64_t safe_add(SafeWriter *w, const char *name, SafeType type, int dims, const uint64_t *shape) {
    char entry[SAFE_ENTRY + 1];
    const uint64_t begin = w->data;
    uint64_t n = (uint64_t)safe_types[type].bytes;
    int at = snprintf(entry, sizeof entry, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", w->length > 1 ? "," : "", name,
                      safe_types[type].name);
    for (int i = 0; i < dims; i++) {
        n *= shape[i];
        at +=
            snprintf(entry + at, at < SAFE_ENTRY ? sizeof entry - (size_t)at : 0, "%s%" PRIu64, i ? "," : "", shape[i]);
    }
    at += snprintf(entry + at, at < SAFE_ENTRY ? sizeof entry - (size_t)at : 0,
                   "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, begin + n);
    if (at > SAFE_ENTRY || w->length + (size_t)at + 1 > w->room)
        die("tensor %s does not fit into the header that was reserved: raise max_tensors of safe_create()", name);
    memcpy(w->header + w->length, entry, (size_t)at);
    w->length += (size_t)at;
    w->data += n;
    return 8 + w->room + begin;
}

/* Header and data to the disk. Returns 0, or the errno of the first fault. */
static inline int safe_finish(SafeWriter *w) {
    const uint64_t n = w->room;
    w->header[w->length] = '}';
    safe_write_at(w, 0, &n, 8);
    safe_write_at(w, 8, w->header, w->room);
    if (w->fd >= 0) w->error = close_durably(w->fd, w->error);
    free(w->header);
    w->header = NULL;
    return w->error;
}

#endif
