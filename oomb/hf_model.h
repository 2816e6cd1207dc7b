/* hf_model.h: the weights of a Hugging Face model directory, where they are and what they are called.

     DIR/config.json                        see hf_config.h
     DIR/model.safetensors                  or model.safetensors.index.json and the shards that it names
     DIR/tokenizer.json, ...                copied when a model is written

   hf_open() checks every name, shape and dtype against the model before a weight is read. A tensor of a file is then a
   grid of rows and columns of which each program copies pieces to and from its own parameters: hf_run() says where they
   belong. GPT-2 keeps its matrices transposed, and wq, wk, wv in one.

   A model directory is written beside the old one and takes its place in two renames: DIR/.writing-model, DIR/model,
   DIR/.deleting-model. */
#ifndef OOMB_HF_MODEL_H
#define OOMB_HF_MODEL_H

#include "checkpoint.h"
#include "hf_config.h"
#include "safetensors.h"
#include "tensors.h"

enum {
    HF_WINDOW = 1 << 16,      /* elements that are read or written at a time */
    HF_MAX_FILES = 512,       /* shards; all are open at once */
    HF_MAX_PARTS = 3,         /* our tensors in one of theirs */
    HF_INDEX_BYTES = 1 << 26, /* of an index, at most */
};

/* One of their tensors. */
typedef struct {
    char name[SAFE_NAME];
    int dims;                           /* 1 or 2 */
    uint64_t rows, cols;                /* one row if dims is 1 */
    int transposed;                     /* our matrices, transposed */
    int parts, id[HF_MAX_PARTS], layer; /* side by side along the columns */
    int copy;                           /* a tied head that stands in the file too: never read, written again */
    SafeType type;
    int file, index; /* where it is: SafeFile, SafeTensor */
} HfTensor;

typedef struct {
    char dir[MAX_PATH_BYTES]; /* "": a preset; there are no files */
    char config_path[MAX_PATH_BYTES];
    HfType type;
    char *config; /* (config_bytes) the text of config.json */
    size_t config_bytes;
    SafeFile *files; /* (num_files) */
    char **paths;
    int num_files;
    HfTensor *tensors; /* (count) */
    int count;
} HfModel;

/* ------------------------------------------------------------------------------------------- names and shapes */

/* Appends tensor id of layer l to the list, or makes it a part of the one that has its name. prefix: whether names begin
   with "model." or "transformer."; those of a model without head do not. */
static inline void hf_add(HfModel *h, const ModelConfig *m, const TensorInfo *t, int id, int l, int prefix) {
    const int gpt2 = hf_type_of(m) == HF_GPT2;
    const char *format = gpt2 ? t[id].hf_gpt2 : t[id].hf_llama, *first = gpt2 ? "transformer." : "model.";
    char name[SAFE_NAME];
    if (!prefix && strncmp(format, first, strlen(first)) == 0) format += strlen(first);
    snprintf(name, sizeof name, format, l);
    HfTensor *x = NULL;
    for (int i = h->count - 1; i >= 0 && !x && h->tensors[i].layer == l; i--) {
        if (strcmp(h->tensors[i].name, name) == 0) x = &h->tensors[i];
    }
    if (!x) {
        x = &h->tensors[h->count++];
        memset(x, 0, sizeof *x);
        memcpy(x->name, name, sizeof name);
        x->layer = l;
        x->dims = t[id].decay ? 2 : 1; /* all matrices decay */
        x->type = SAFE_F32;
        x->transposed = gpt2 && x->dims == 2 && t[id].per_layer;
        x->rows = x->transposed ? t[id].cols : id == WTE || id == WHEAD ? (uint64_t)m->V : t[id].rows;
    }
    x->id[x->parts++] = id;
    x->cols += x->transposed ? t[id].rows : t[id].cols;
}

/* The tensors that model m has, in the order of our parameters. */
static inline void hf_list(HfModel *h, const ModelConfig *m, int prefix) {
    TensorInfo t[NUM_TENSORS];
    tensors_describe(m, t);
    if (!h->tensors) h->tensors = (HfTensor *)xcalloc((size_t)m->L * NUM_TENSORS + NUM_TENSORS, sizeof(HfTensor));
    h->count = 0;
    for (int part = 0; part < 3; part++) { /* front, layers, back */
        for (int l = 0; l < (part == 1 ? m->L : 1); l++) {
            for (int id = 0; id < NUM_TENSORS; id++) {
                const int of = t[id].per_layer ? 1 : id < LN1W ? 0 : 2;
                if (of == part && t[id].rows) hf_add(h, m, t, id, l, prefix);
            }
        }
    }
}

/* Row r of part p of x: element k of the columns that begin at `column` is element offset + k * stride of our tensor
   x->id[p], layer x->layer. */
typedef struct {
    uint64_t column, count;
    size_t offset, stride;
} HfRun;

static inline HfRun hf_run(const HfTensor *x, const TensorInfo *t, int p, uint64_t r) {
    HfRun run = {0, 0, 0, 0};
    for (int i = 0; i <= p; i++) {
        run.column += run.count;
        run.count = x->transposed ? t[x->id[i]].rows : t[x->id[i]].cols;
    }
    run.offset = x->transposed ? (size_t)r : (size_t)r * t[x->id[p]].cols;
    run.stride = x->transposed ? t[x->id[p]].cols : 1;
    return run;
}

/* Rows of x in a window, at least one. */
static inline uint64_t hf_window_rows(const HfTensor *x) { return x->cols < HF_WINDOW ? HF_WINDOW / x->cols : 1; }

/* Elements of the largest window: what a buffer for hf_read() must hold. */
static inline size_t hf_window_size(const ModelConfig *m) {
    const size_t widest = max_size(3 * max_size((size_t)m->C, (size_t)m->NH * (size_t)m->HD), (size_t)m->F);
    return max_size(HF_WINDOW, widest);
}

/* ------------------------------------------------------------------------------------------- opening */

/* What a model directory has beside config and weights that the one made from it needs too. */
static inline int hf_is_companion(const char *name) {
    static const char *const begins[] = {"tokenizer",    "vocab",         "merges.txt",        "special_tokens_map",
                                         "added_tokens", "chat_template", "generation_config", "tekken.json",
                                         "LICENSE",      "License",       "USE_POLICY",        "NOTICE"};
    for (size_t i = 0; i < sizeof begins / sizeof begins[0]; i++) {
        if (strncmp(name, begins[i], strlen(begins[i])) == 0) return 1;
    }
    return 0;
}

/* They are copied hours later: that they cannot be read is said now. */
static inline void hf_check_companions(const HfModel *h) {
    char path[MAX_PATH_BYTES];
    DIR *d = opendir(h->dir);
    if (!d) die("--model %s: cannot list the directory: %s", h->dir, strerror(errno));
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        path_join(path, h->dir, e->d_name);
        if (hf_is_companion(e->d_name) && access(path, R_OK) != 0)
            die("%s: cannot be read, and belongs to the model: %s", path, strerror(errno));
    }
    closedir(d);
}

static inline void hf_add_file(HfModel *h, const char *name) {
    char path[MAX_PATH_BYTES];
    path_join(path, h->dir, name);
    if (h->num_files == HF_MAX_FILES) die("--model %s: more than %d files of weights", h->dir, HF_MAX_FILES);
    if (access(path, F_OK) != 0)
        die("%s: %s, but the index of %s names it; complete the download", path, strerror(errno), h->dir);
    const int i = h->num_files++;
    h->paths = (char **)xrealloc(h->paths, (size_t)i + 1, sizeof(char *));
    h->files = (SafeFile *)xrealloc(h->files, (size_t)i + 1, sizeof(SafeFile));
    h->paths[i] = (char *)xcalloc(strlen(path) + 1, 1);
    memcpy(h->paths[i], path, strlen(path));
    h->files[i] = safe_open(h->paths[i]);
}

/* The files that an index names, and that each tensor is where it says. path: the index, for errors. */
static inline void hf_read_index(HfModel *h, const char *path, const char *text, size_t bytes) {
    char key[SAFE_NAME], name[SAFE_NAME], (*names)[SAFE_NAME] = NULL;
    int maps = 0, first = h->num_files;
    Json j = json_begin(text, bytes);
    for (json_open(&j, '{'); json_key(&j, key, sizeof key);) {
        if (strcmp(key, "weight_map") != 0) {
            json_skip(&j);
            continue;
        }
        if (maps++) die("%s: the key \"weight_map\" stands twice", path);
        for (json_open(&j, '{'); json_key(&j, key, sizeof key) && json_string(&j, name, sizeof name);) {
            const size_t n = strlen(name), end = sizeof ".safetensors" - 1;
            if (strchr(name, '/') || n <= end || strcmp(name + n - end, ".safetensors") != 0)
                die("%s: tensor %s is in \"%s\", which is no file name of safetensors", path, key, name);
            int i = first;
            while (i < h->num_files && strcmp(names[i - first], name) != 0) i++;
            if (i == h->num_files) {
                hf_add_file(h, name);
                names = (char(*)[SAFE_NAME])xrealloc(names, (size_t)(i - first) + 1, SAFE_NAME);
                memcpy(names[i - first], name, SAFE_NAME);
            }
            if (!safe_find(&h->files[i], key))
                die("%s: %s should have the tensor %s, and has not; complete the download", path, name, key);
        }
    }
    if (!json_end(&j)) die("%s: byte %zu: %s", path, json_at(&j), j.error);
    if (!maps || h->num_files == first) die("%s: names no file of weights", path);
    free(names);
}

static inline void hf_open_files(HfModel *h) {
    char path[MAX_PATH_BYTES];
    path_join(path, h->dir, "model.safetensors");
    if (access(path, F_OK) == 0) {
        hf_add_file(h, "model.safetensors");
        return;
    }
    path_join(path, h->dir, "model.safetensors.index.json");
    if (access(path, F_OK) != 0) {
        char old[MAX_PATH_BYTES];
        path_join(old, h->dir, "pytorch_model.bin");
        die("--model %s: has neither model.safetensors nor model.safetensors.index.json%s", h->dir,
            access(old, F_OK) == 0 ? "; a pytorch_model.bin is a program and not read: save it as safetensors" : "");
    }
    size_t bytes;
    char *text = xread_text(path, HF_INDEX_BYTES, &bytes);
    hf_read_index(h, path, text, bytes);
    free(text);
}

static inline const SafeTensor *hf_find_tensor(const HfModel *h, const char *name, int *file) {
    for (int i = 0; i < h->num_files; i++) {
        const SafeTensor *t = safe_find(&h->files[i], name);
        *file = i;
        if (t) return t;
    }
    return NULL;
}

/* Where x is; ends the program unless it is there, in a dtype that is read, in its shape. */
static inline void hf_locate(HfModel *h, HfTensor *x) {
    const SafeTensor *t = hf_find_tensor(h, x->name, &x->file);
    if (!t) die("--model %s: the tensor %s is missing", h->dir, x->name);
    const SafeFile *f = &h->files[x->file];
    x->index = (int)(t - f->tensors);
    x->type = t->type;
    if (t->type != SAFE_F32 && t->type != SAFE_F16 && t->type != SAFE_BF16)
        die("%s: tensor %s is %s; F32, BF16 and F16 are read%s", f->path, x->name, safe_types[t->type].name,
            t->type == SAFE_F64 ? "" : ", quantised weights are not");
    const int shape = x->dims == 1 ? t->dims == 1 && t->shape[0] == x->cols
                                   : t->dims == 2 && t->shape[0] == x->rows && t->shape[1] == x->cols;
    if (shape) return;
    char is[SAFE_DIMS * 24] = "", want[64];
    for (int i = 0; i < t->dims; i++)
        snprintf(is + strlen(is), sizeof is - strlen(is), "%s%" PRIu64, i ? " x " : "", t->shape[i]);
    if (x->dims == 1) snprintf(want, sizeof want, "%" PRIu64, x->cols);
    else snprintf(want, sizeof want, "%" PRIu64 " x %" PRIu64, x->rows, x->cols);
    die("%s: tensor %s is %s, but the config makes it %s", f->path, x->name, t->dims ? is : "a single number", want);
}

/* Tensors that files hold beside the parameters: masks and frequencies, which are computed. */
static inline int hf_ignored(const char *name) {
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    const size_t n = strlen(name);
    for (int i = 0; i < 3; i++) {
        if (n > strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0) return 1;
    }
    return 0;
}

/* Nothing else may be there: an adapter, another head, a vision tower would be lost without a word. */
static inline void hf_refuse_unknown(const HfModel *h) {
    for (int f = 0; f < h->num_files; f++) {
        for (int i = 0; i < h->files[f].count; i++) {
            const char *name = h->files[f].tensors[i].name;
            int at = 0;
            while (at < h->count && strcmp(h->tensors[at].name, name) != 0) at++;
            if (at < h->count && h->tensors[at].file != f)
                die("--model %s: tensor %s stands in %s and in %s", h->dir, name, h->paths[h->tensors[at].file],
                    h->paths[f]);
            if (at == h->count && !hf_ignored(name))
                die("%s: tensor %s is no part of a %s model as the config describes it", h->paths[f], name,
                    hf_types[h->type]);
        }
    }
}

/* Whether two tensors hold the same numbers. */
static inline int hf_same_values(const HfModel *h, const HfTensor *a, const HfTensor *b) {
    double x[512], y[512];
    const SafeFile *f = &h->files[a->file], *g = &h->files[b->file];
    const uint64_t n = a->rows * a->cols;
    for (uint64_t at = 0; at < n; at += 512) {
        const size_t count = (size_t)(n - at < 512 ? n - at : 512);
        safe_read_doubles(f, &f->tensors[a->index], at, count, x);
        safe_read_doubles(g, &g->tensors[b->index], at, count, y);
        for (size_t i = 0; i < count; i++) {
            if (x[i] != y[i]) return 0;
        }
    }
    return 1;
}

/* The head of a tied model may stand in the file; then it must be the embedding. */
static inline void hf_check_head(HfModel *h, const ModelConfig *m) {
    int file;
    if (!m->tied || !hf_find_tensor(h, "lm_head.weight", &file)) return;
    HfTensor *x = &h->tensors[h->count++];
    *x = h->tensors[0]; /* wte */
    snprintf(x->name, sizeof x->name, "lm_head.weight");
    x->copy = 1;
    hf_locate(h, x);
    if (!hf_same_values(h, &h->tensors[0], x))
        die("--model %s: the config says that the head is the embedding (tie_word_embeddings), but lm_head.weight "
            "is not %s; set it to false to train both, or remove lm_head.weight",
            h->dir, h->tensors[0].name);
}

/* Finds every tensor of m in the files of h, and nothing else. */
static inline void hf_find_all(HfModel *h, const ModelConfig *m) {
    int file;
    hf_list(h, m, 1);
    if (!hf_find_tensor(h, h->tensors[0].name, &file)) {
        hf_list(h, m, 0); /* a model without head has no prefix */
        if (!hf_find_tensor(h, h->tensors[0].name, &file)) hf_list(h, m, 1);
    }
    for (int i = 0; i < h->count; i++) {
        if (!m->tied && h->tensors[i].id[0] == WHEAD && !hf_find_tensor(h, h->tensors[i].name, &file))
            die("--model %s: lm_head.weight is missing, and the config does not say that it is the embedding "
                "(tie_word_embeddings)",
                h->dir);
        hf_locate(h, &h->tensors[i]);
    }
    hf_check_head(h, m);
    hf_refuse_unknown(h);
}

/* Opens directory dir, whose config.json describes m. */
static inline HfModel hf_open(const char *dir, const ModelConfig *m) {
    HfModel h;
    memset(&h, 0, sizeof h);
    path_join(h.config_path, dir, "config.json");
    snprintf(h.dir, sizeof h.dir, "%s", dir);
    h.config = hf_config_read(h.config_path, &h.config_bytes);
    hf_config_parse(h.config_path, h.config, h.config_bytes, &h.type, 0);
    hf_check_companions(&h);
    hf_open_files(&h);
    hf_find_all(&h, m);
    return h;
}

/* The same for a model that comes from no directory. */
static inline HfModel hf_new(const ModelConfig *m) {
    HfModel h;
    memset(&h, 0, sizeof h);
    h.type = hf_type_of(m);
    hf_list(&h, m, 1);
    return h;
}

static inline void hf_close(HfModel *h) {
    for (int i = 0; i < h->num_files; i++) {
        safe_close(&h->files[i]);
        free(h->paths[i]);
    }
    free(h->files);
    free(h->paths);
    free(h->tensors);
    free(h->config);
    memset(h, 0, sizeof *h);
}

/* ------------------------------------------------------------------------------------------- values */

/* out (rows, x->cols) = rows r .. r + rows - 1 of x, exactly. Ends the program at a number that is not finite. */
static inline void hf_read(const HfModel *h, const HfTensor *x, uint64_t r, uint64_t rows, float *out) {
    const SafeFile *f = &h->files[x->file];
    const size_t size = (size_t)safe_types[x->type].bytes, n = (size_t)(rows * x->cols);
    SafeMap map = safe_map(f, &f->tensors[x->index], r * x->cols * size, n * size);
    int finite = 1;
    uint16_t half;
    for (size_t i = 0; x->type == SAFE_F32 && i < n; i++) memcpy(&out[i], map.data + 4 * i, 4);
    for (size_t i = 0; x->type == SAFE_BF16 && i < n; i++) {
        memcpy(&half, map.data + 2 * i, 2);
        out[i] = safe_bf16(half);
    }
    for (size_t i = 0; x->type == SAFE_F16 && i < n; i++) {
        memcpy(&half, map.data + 2 * i, 2);
        out[i] = safe_f16(half);
    }
    safe_unmap(&map);
    for (size_t i = 0; i < n; i++) finite &= (bits_of_float(out[i]) & 0x7F800000) != 0x7F800000;
    for (size_t i = 0; !finite && i < n; i++) {
        if (!isfinite(out[i]))
            die("%s: tensor %s, row %" PRIu64 ", column %" PRIu64
                " is %g; a model with such a weight cannot be trained",
                f->path, x->name, r + i / x->cols, (uint64_t)(i % x->cols), (double)out[i]);
    }
}

/* Whether the model in dir has a vocabulary of its own. */
static inline int hf_has_tokenizer(const char *dir) {
    static const char *const names[] = {"tokenizer.json", "tokenizer.model", "vocab.json"};
    char path[MAX_PATH_BYTES];
    for (int i = 0; i < 3; i++) {
        path_join(path, dir, names[i]);
        if (access(path, F_OK) == 0) return 1;
    }
    return 0;
}

/* What --save-dtype says; HF_SAVE_SAME: each tensor as it came. */
typedef enum { HF_SAVE_SAME, HF_SAVE_F32, HF_SAVE_BF16, HF_SAVE_F16 } HfSave;

/* The dtype in which x is written, and its name in config.json; NULL: the config has it right. */
static inline SafeType hf_save_type(const HfTensor *x, HfSave save) {
    return save == HF_SAVE_F32 ? SAFE_F32 : save == HF_SAVE_BF16 ? SAFE_BF16 : save == HF_SAVE_F16 ? SAFE_F16 : x->type;
}

static inline const char *hf_save_name(HfSave save) {
    static const char *const names[] = {NULL, "float32", "bfloat16", "float16"};
    return names[save];
}

/* in (n) in `type` to raw; the number of what was too large for it. */
static inline size_t hf_encode(const float *in, size_t n, SafeType type, unsigned char *raw) {
    size_t large = 0;
    for (size_t i = 0; i < n; i++) {
        if (type == SAFE_F32) {
            memcpy(raw + 4 * i, &in[i], 4);
        } else {
            const uint16_t half = type == SAFE_BF16 ? safe_to_bf16(in[i]) : safe_to_f16(in[i]);
            memcpy(raw + 2 * i, &half, 2);
            large += (half & 0x7FFF) == (type == SAFE_BF16 ? 0x7F80 : 0x7C00);
        }
    }
    return large;
}

/* Bytes of the weights when they are written. */
static inline double hf_bytes(const HfModel *h, HfSave save) {
    double sum = 0;
    for (int i = 0; i < h->count; i++) {
        const HfTensor *x = &h->tensors[i];
        sum += (double)x->rows * (double)x->cols * safe_types[hf_save_type(x, save)].bytes;
    }
    return sum;
}

/* ------------------------------------------------------------------------------------------- writing a directory */

/* Returns 0 or an errno. */
static inline int hf_copy_file(const char *from, const char *to) {
    static char block[1 << 16];
    const int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int error = in < 0 || out < 0 ? errno : 0;
    uint64_t at = 0;
    while (!error) {
        const ssize_t n = read(in, block, sizeof block);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) error = errno;
        if (n <= 0) break;
        error = write_at(out, at, block, (size_t)n);
        at += (uint64_t)n;
    }
    if (in >= 0) close(in);
    return out >= 0 ? close_durably(out, error) : error;
}

/* Tokenizer and other companions of h into directory path. Returns 0 or an errno. */
static inline int hf_copy_companions(const HfModel *h, const char *path) {
    char from[MAX_PATH_BYTES], to[MAX_PATH_BYTES];
    struct stat st;
    int error = 0;
    DIR *d = *h->dir ? opendir(h->dir) : NULL;
    if (*h->dir && !d) return errno;
    for (struct dirent *e; d && !error && (e = readdir(d)) != NULL;) {
        if (!hf_is_companion(e->d_name)) continue;
        path_join(from, h->dir, e->d_name);
        path_join(to, path, e->d_name);
        if (stat(from, &st) != 0) error = errno;
        else if (S_ISREG(st.st_mode)) error = hf_copy_file(from, to);
    }
    if (d) closedir(d);
    return error;
}

/* config.json in directory path. m->max_T: the context that the model is now for. Returns 0 or an errno. */
static inline int hf_save_config(const HfModel *h, const char *path, const ModelConfig *m, HfSave save) {
    char file[MAX_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    path_join(file, path, "config.json");
    FILE *f = open_memstream(&text, &bytes);
    if (!f) return errno;
    if (*h->dir) hf_config_write(f, h->config_path, h->config, h->config_bytes, m, hf_save_name(save));
    else hf_config_write_new(f, m, save == HF_SAVE_SAME ? "float32" : hf_save_name(save));
    if (fclose(f) != 0) return errno;
    const int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    const int error = fd < 0 ? errno : close_durably(fd, write_at(fd, 0, text, bytes));
    free(text);
    return error;
}

/* What a run that was killed has left of a save below dir: the old model gets its name back if it has lost it, the rest
   is removed. */
static inline void hf_save_recover(const char *dir) {
    char writing[MAX_PATH_BYTES], model[MAX_PATH_BYTES], old[MAX_PATH_BYTES];
    path_join(writing, dir, ".writing-model");
    path_join(model, dir, "model");
    path_join(old, dir, ".deleting-model");
    directory_remove(writing);
    if (access(model, F_OK) == 0 || rename(old, model) != 0) directory_remove(old);
}

/* DIR/model will be replaced, so it must be a model that this program wrote, and not the one that is read: h. */
static inline void hf_check_target(const HfModel *h, const char *dir) {
    char path[MAX_PATH_BYTES];
    struct stat st;
    path_join(path, dir, "model");
    if (lstat(path, &st) != 0) return;
    DIR *d = S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    if (!d) die("--out %s: %s is in the way of the model that will be written there; give another --out", dir, path);
    if (*h->dir && same_file(h->dir, path))
        die("--out %s: would replace the model that is read, %s; give another --out", dir, h->dir);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        const char *name = e->d_name;
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, "config.json") != 0 &&
            strcmp(name, "model.safetensors") != 0 && !hf_is_companion(name))
            die("--out %s: %s/%s is not of this program, and would be lost when the model is written; move it, or give "
                "another --out",
                dir, path, name);
    }
    closedir(d);
}

/* path = an empty directory for the coming model below dir. Returns 0 or an errno. */
static inline int hf_save_begin(char *path, const char *dir) {
    path_join(path, dir, ".writing-model");
    return mkdir(path, 0777) == 0 ? 0 : errno;
}

/* The directory that hf_save_begin() made becomes DIR/model. After an error it is removed, and DIR/model is as before.
   Returns 0 or the errno. */
static inline int hf_save_commit(const char *dir, int error) {
    char from[MAX_PATH_BYTES], to[MAX_PATH_BYTES], old[MAX_PATH_BYTES];
    path_join(from, dir, ".writing-model");
    path_join(to, dir, "model");
    path_join(old, dir, ".deleting-model");
    if (!error) error = directory_sync(from);
    const int had = !error && access(to, F_OK) == 0;
    if (had && rename(to, old) != 0) error = errno;
    if (!error && rename(from, to) != 0) {
        error = errno;
        if (had && rename(old, to) != 0) error = errno;
    }
    if (error) {
        directory_remove(from);
        return error;
    }
    error = directory_sync(dir);
    if (had) directory_remove(old);
    return error;
}

#endif
