/* checkpoint.h: the directory that --out names, and how it stays whole.

     DIR/step-00000010/weights.safetensors     parameters
                       optimizer.safetensors   AdamW m and v
                       state.json              step, data position, model, options
     DIR/log.jsonl                             the log, unless --log says otherwise
     DIR/model                                 the model for other programs, at the end: hf_model.h

   A checkpoint is written into DIR/.writing-00000010, each file is fsynced, then the directory, then it gets its
   name in one rename, then DIR is fsynced. What has a name "step-..." is therefore complete, at whatever moment the
   machine stops. It goes the same way backwards: renamed to .deleting-..., then removed. What a killed run has left of
   these is swept away at the next start. A lock on DIR keeps a second run out; it ends with the process.

   This file knows directories and state.json; the program writes the tensors in between. */
#ifndef OOMB_CHECKPOINT_H
#define OOMB_CHECKPOINT_H

#include "config.h"
#include "json.h"

#include <dirent.h>
#include <inttypes.h>
#include <sys/file.h>
#include <sys/statvfs.h>

enum { STATE_FORMAT = 2, STATE_BYTES = 1 << 20 };

/* Where a run is. Every random number is a function of the seed and one of these counters. */
typedef struct {
    int step;             /* optimizer steps done */
    uint64_t sample;      /* sequences read: the position in the data */
    uint64_t tokens;      /* tokens trained on */
    uint64_t data_tokens; /* tokens of the training data, 0 for the recall task */
    uint64_t data_hash;   /* files_hash() of it; another number is other data */
} RunState;

static inline void path_join(char *out, const char *dir, const char *name) {
    if (snprintf(out, MAX_PATH_BYTES, "%s/%s", dir, name) >= MAX_PATH_BYTES)
        die("%s/%s: the path is too long", dir, name);
}

/* fsync of a directory: the names in it. Returns 0 or an errno. */
static inline int directory_sync(const char *path) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? errno : close_durably(fd, 0);
}

/* A directory of plain files, and the files in it; what cannot be removed is left. Of a symbolic link only the link: the
   files that it leads to are someone's who put them elsewhere. */
static inline void directory_remove(const char *path) {
    char file[MAX_PATH_BYTES];
    struct stat st;
    const int there = lstat(path, &st) == 0;
    if (there && S_ISLNK(st.st_mode)) unlink(path);
    DIR *d = there && S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        path_join(file, path, e->d_name);
        unlink(file);
    }
    if (d) closedir(d);
    rmdir(path);
}

/* The step behind `prefix` in a name of this directory; -1 if it is another name. */
static inline int checkpoint_step_of(const char *name, const char *prefix) {
    const size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0 || strlen(name + n) < 8 || strlen(name + n) > 10) return -1;
    for (const char *p = name + n; *p; p++) {
        if (*p < '0' || *p > '9') return -1;
    }
    const long step = strtol(name + n, NULL, 10);
    return step <= INT32_MAX ? (int)step : -1;
}

static inline void checkpoint_path(char *out, const char *dir, const char *prefix, int step) {
    char name[64];
    snprintf(name, sizeof name, "%s%08d", prefix, step);
    path_join(out, dir, name);
}

/* The newest checkpoint of dir older than step `before`; -1: none, or no such directory. */
static inline int checkpoint_latest(const char *dir, int before) {
    int latest = -1;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        const int step = checkpoint_step_of(e->d_name, "step-");
        if (step < before && step > latest) latest = step;
    }
    if (d) closedir(d);
    return latest;
}

/* Makes dir (and what is above it) if it is not there, locks it for this process, and removes what a killed run has left half done.
   Returns its descriptor. */
static inline int checkpoint_open_dir(const char *dir) {
    char path[MAX_PATH_BYTES];
    const int made = make_directories(dir);
    if (made < 0) die("--out %s: cannot make the directory: %s", dir, strerror(errno));
    if (made) {
        path_join(path, dir, "..");
        directory_sync(path); /* its own name; where that cannot be done, the check below says so */
    }
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) die("--out %s: cannot open the directory: %s", dir, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        die("--out %s: %s", dir, errno == EWOULDBLOCK ? "another run is writing there" : strerror(errno));
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        if (checkpoint_step_of(e->d_name, ".writing-") < 0 && checkpoint_step_of(e->d_name, ".deleting-") < 0) continue;
        path_join(path, dir, e->d_name);
        directory_remove(path);
    }
    if (d) closedir(d);
    path_join(path, dir, ".writing-00000000"); /* before the first step, not after hours */
    if (mkdir(path, 0777) != 0 || rmdir(path) != 0) die("--out %s: cannot write there: %s", dir, strerror(errno));
    const int error = directory_sync(dir);
    if (error) die("--out %s: cannot sync the directory: %s; give one on another disk", dir, strerror(error));
    return fd;
}

/* path = a new directory to write the checkpoint of `step` into. Returns 0 or an errno. */
static inline int checkpoint_begin(char *path, const char *dir, int step) {
    checkpoint_path(path, dir, ".writing-", step);
    return mkdir(path, 0777) == 0 ? 0 : errno;
}

/* The directory that checkpoint_begin() made, filled and its files synced, becomes the checkpoint. With an error from
   before, or one here, it is removed. Returns 0 or the errno. */
static inline int checkpoint_commit(const char *dir, int step, int error) {
    char from[MAX_PATH_BYTES], to[MAX_PATH_BYTES];
    checkpoint_path(from, dir, ".writing-", step);
    checkpoint_path(to, dir, "step-", step);
    if (!error) error = directory_sync(from);
    if (!error && rename(from, to) != 0) error = errno;
    if (error) directory_remove(from);
    else error = directory_sync(dir);
    return error;
}

/* Removes all but the newest `keep` checkpoints (0: keeps all). */
static inline void checkpoint_prune(const char *dir, int keep) {
    char from[MAX_PATH_BYTES], to[MAX_PATH_BYTES];
    int step = INT32_MAX;
    for (int i = 0; keep && i < keep && step >= 0; i++) step = checkpoint_latest(dir, step);
    while (keep && step >= 0 && (step = checkpoint_latest(dir, step)) >= 0) {
        checkpoint_path(from, dir, "step-", step);
        checkpoint_path(to, dir, ".deleting-", step);
        if (rename(from, to) != 0 || directory_sync(dir) != 0)
            continue; /* its name must be gone before its files are */
        directory_remove(to);
    }
}

/* Bytes that are free where dir is; UINT64_MAX when the system does not say. */
static inline uint64_t checkpoint_space(const char *dir) {
    struct statvfs s;
    return statvfs(dir, &s) == 0 ? (uint64_t)s.f_bavail * s.f_frsize : UINT64_MAX;
}

/* state.json in directory path. options: `count` pairs of name and value. Returns 0 or an errno. */
static inline int state_write(const char *path, const RunState *s, const ModelConfig *m,
                              const char *const (*options)[2], int count) {
    char file[MAX_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    path_join(file, path, "state.json");
    FILE *f = open_memstream(&text, &bytes);
    if (!f) return errno;
    fprintf(f,
            "{\n\"format\": %d,\n\"step\": %d,\n\"sample\": %" PRIu64 ",\n\"tokens\": %" PRIu64
            ",\n\"data_tokens\": %" PRIu64 ",\n\"data_hash\": %" PRIu64 ",\n\"model\": {",
            STATE_FORMAT, s->step, s->sample, s->tokens, s->data_tokens, s->data_hash);
    for (int i = 0; i < NUM_CONFIG_FIELDS; i++)
        fprintf(f, "%s\"%s\": %.17g", i ? ", " : "", config_fields[i].name, config_get(m, i));
    fprintf(f, "},\n\"options\": {");
    for (int i = 0; i < count; i++) {
        fprintf(f, "%s\n  ", i ? "," : "");
        json_write_string(f, options[i][0]);
        fprintf(f, ": ");
        json_write_string(f, options[i][1]);
    }
    fprintf(f, "\n}\n}\n");
    if (fclose(f) != 0) return errno;
    const int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    const int error = fd < 0 ? errno : close_durably(fd, write_at(fd, 0, text, bytes));
    free(text);
    return error;
}

/* What state_write() wrote. */
typedef struct {
    RunState run;
    double model[NUM_CONFIG_FIELDS]; /* NAN where the file has no such field */
    char **options;                  /* (count) "--name=value" */
    int count;
} SavedState;

/* From the text of a state.json; file: its name, for errors. Every key must be there, once. */
static inline SavedState state_parse(const char *file, const char *text, size_t bytes) {
    SavedState s;
    char key[64], value[MAX_VALUE];
    uint64_t format = 0, step = 0;
    struct {
        const char *key;
        uint64_t *number; /* NULL: an object */
        int seen;
    } keys[] = {{"format", &format, 0},
                {"step", &step, 0},
                {"sample", &s.run.sample, 0},
                {"tokens", &s.run.tokens, 0},
                {"data_tokens", &s.run.data_tokens, 0},
                {"data_hash", &s.run.data_hash, 0},
                {"model", NULL, 0},
                {"options", NULL, 0}};
    const int num_keys = sizeof keys / sizeof keys[0];
    memset(&s, 0, sizeof s);
    for (int i = 0; i < NUM_CONFIG_FIELDS; i++) s.model[i] = NAN;
    Json j = json_begin(text, bytes);
    for (json_open(&j, '{'); json_key(&j, key, sizeof key);) {
        int k = 0;
        while (k < num_keys && strcmp(key, keys[k].key) != 0) k++;
        if (k == num_keys) die("%s: unknown key \"%s\": written by a newer version?", file, key);
        if (keys[k].seen++) die("%s: the key \"%s\" stands twice", file, key);
        if (keys[k].number) {
            json_u64(&j, keys[k].number);
        } else if (strcmp(key, "model") == 0) {
            for (json_open(&j, '{'); json_key(&j, key, sizeof key);) {
                double x = NAN;
                json_double(&j, &x);
                for (int i = 0; i < NUM_CONFIG_FIELDS; i++) {
                    if (strcmp(key, config_fields[i].name) == 0) s.model[i] = x;
                }
            }
        } else {
            for (json_open(&j, '{'); json_key(&j, key, sizeof key);) {
                if (!json_string(&j, value, sizeof value)) break;
                if (s.count == MAX_OPTIONS) die("%s: more than %d options", file, MAX_OPTIONS);
                const size_t n = strlen(key) + strlen(value) + 4;
                s.options = (char **)xrealloc(s.options, (size_t)s.count + 1, sizeof(char *));
                s.options[s.count] = (char *)xcalloc(n, 1);
                snprintf(s.options[s.count++], n, "--%s=%s", key, value);
            }
        }
    }
    if (!json_end(&j)) die("%s: byte %zu: %s", file, json_at(&j), j.error);
    for (int k = 0; k < num_keys; k++) {
        if (!keys[k].seen) die("%s: the key \"%s\" is missing", file, keys[k].key);
    }
    if (format != STATE_FORMAT) die("%s: format %" PRIu64 "; this program reads format %d", file, format, STATE_FORMAT);
    if (step > INT32_MAX) die("%s: step %" PRIu64 " is too large", file, step);
    s.run.step = (int)step;
    return s;
}

/* From the checkpoint in directory path. */
static inline SavedState state_read(const char *path) {
    char file[MAX_PATH_BYTES];
    size_t bytes;
    path_join(file, path, "state.json");
    char *text = xread_text(file, STATE_BYTES, &bytes);
    const SavedState s = state_parse(file, text, bytes);
    free(text);
    return s;
}

static inline void state_free(SavedState *s) {
    for (int i = 0; i < s->count; i++) free(s->options[i]);
    free(s->options);
    memset(s, 0, sizeof *s);
}

#endif
