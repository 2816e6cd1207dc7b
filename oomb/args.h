/* args.h: the one table of options. Parsing, --help, the defaults and the printed configuration
   all read it, so they cannot disagree. */
#ifndef OOMB_ARGS_H
#define OOMB_ARGS_H

#include "hf_config.h"

#include <limits.h>

typedef enum { OPTION_TEXT, OPTION_COUNT, OPTION_REAL, OPTION_CHOICE, OPTION_FLAG } OptionKind;

/* Whether a checkpoint keeps the option: --resume goes on with those of RUN, and refuses to change those of POSITION,
   without which the place in the data means another place. THIS_TIME is not kept. */
typedef enum { RUN, POSITION, THIS_TIME } OptionScope;

typedef struct {
    const char *name;
    char letter; /* 0: none */
    OptionKind kind;
    void *value;         /* const char * for TEXT, double for REAL, else int; holds the default before parsing */
    int least;           /* OPTION_COUNT: the smallest that makes sense; OPTION_TEXT: 0 if it may be empty */
    const char *choices; /* OPTION_CHOICE: "exact|none", value is the index; else what --help shows */
    OptionScope scope;
    const char *help;
} Option;

/* Fills the table with pointers into c; returns the number of options. */
static inline int options_table(TrainConfig *c, Option *out) {
    const Option table[] = {
        {"data", 0, OPTION_TEXT, &c->data, 1, "FILES", RUN,
         "text read as bytes, or .bin token files; 'dir/*.bin' for many; or recall, the generated task"},
        {"val", 0, OPTION_TEXT, &c->val, 0, "FILES", RUN,
         "validation data; without it the last tenth of --data, if that holds a sequence"},
        {"model", 0, OPTION_TEXT, &c->model, 1, "MODEL", RUN,
         "a preset (see below) with random weights, or the directory of a Hugging Face model"},
        {"seq-len", 'T', OPTION_COUNT, &c->T, 1, "N", POSITION, "tokens per sequence: the whole context"},
        {"batch", 'B', OPTION_COUNT, &c->B, 1, "N", RUN, "sequences side by side"},
        {"chunk", 0, OPTION_COUNT, &c->chunk_size, 1, "N", RUN, "tokens per chunk; N >= seq-len is one chunk"},
        {"page", 0, OPTION_COUNT, &c->P, 1, "N", RUN,
         "tokens per page; must divide a chunk that is shorter than seq-len"},
        {"carry", 0, OPTION_CHOICE, &c->carry, 0, "exact|none", RUN, "gradients of keys and values across chunk edges"},
        {"recompute", 0, OPTION_CHOICE, &c->recompute, 0, "chunk|layer", RUN,
         "activations kept in the backward: all layers', or one layer's"},
        {"grad-accum", 0, OPTION_COUNT, &c->grad_accum, 1, "N", RUN, "batches summed into one step"},
        {"steps", 'n', OPTION_COUNT, &c->steps, 0, "N", RUN, "optimizer steps, those before --resume included"},
        {"lr", 0, OPTION_REAL, &c->lr, 0, "X", RUN, "peak learning rate"},
        {"warmup", 0, OPTION_COUNT, &c->warmup, 0, "N", RUN, "steps of linear warm-up"},
        {"schedule", 0, OPTION_CHOICE, &c->schedule, 0, "cosine|constant", RUN,
         "after the warm-up: down to lr/10, or constant"},
        {"weight-decay", 0, OPTION_REAL, &c->weight_decay, 0, "X", RUN, "AdamW decay, on matrices only"},
        {"clip", 0, OPTION_REAL, &c->clip, 0, "X", RUN, "largest gradient norm; 0: no clipping"},
        {"seed", 0, OPTION_COUNT, &c->seed, 0, "N", POSITION, "of weights and data"},
        {"threads", 0, OPTION_COUNT, &c->threads, 0, "N", THIS_TIME,
         "0: one per processor that this process may use; the result is the same for any number"},
        {"val-every", 0, OPTION_COUNT, &c->val_every, 0, "N", RUN,
         "validate every N steps and at the end; 0: at the end only"},
        {"val-seqs", 0, OPTION_COUNT, &c->val_seqs, 0, "N", RUN,
         "most validation sequences to use; 0: never validate, hold nothing out"},
        {"recall-distance", 0, OPTION_COUNT, &c->recall_distance, 0, "N", RUN,
         "least tokens from fact to question, at most seq-len / 4; 0: one chunk"},
        {"out", 0, OPTION_TEXT, &c->out, 1, "DIR", THIS_TIME,
         "where checkpoints go: at the end, on Ctrl-C, and as --save-every says; DIR/model is the model for other "
         "programs"},
        {"save-every", 0, OPTION_COUNT, &c->save_every, 0, "N", RUN, "a checkpoint every N steps; 0: at the end only"},
        {"keep", 0, OPTION_COUNT, &c->keep, 0, "N", RUN, "newest checkpoints to keep; 0: all"},
        {"resume", 0, OPTION_FLAG, &c->resume, 0, "", THIS_TIME,
         "go on from the newest checkpoint of --out, with its options where none are given"},
        {"prompt", 0, OPTION_TEXT, &c->prompt, 0, "TEXT", RUN,
         "write a sample that continues it, at the end; token ids if the data are not text"},
        {"sample-every", 0, OPTION_COUNT, &c->sample_every, 0, "N", RUN, "a sample every N steps; 0: at the end only"},
        {"sample-len", 0, OPTION_COUNT, &c->sample_len, 0, "N", RUN,
         "tokens of a sample; 0: up to 256, as --seq-len has room"},
        {"temperature", 0, OPTION_REAL, &c->temperature, 0, "X", RUN, "of samples; 0: always the likeliest token"},
        {"top-k", 0, OPTION_COUNT, &c->top_k, 0, "N", RUN, "sample among the N likeliest tokens; 0: among all"},
        {"log", 0, OPTION_TEXT, &c->log, 1, "FILE", RUN,
         "one JSON object per step, validation and sample; with --out it is DIR/log.jsonl"},
        {"dump", 0, OPTION_TEXT, &c->dump, 1, "FILE", THIS_TIME,
         "write every intermediate of the first step's first batch as safetensors; see dev/compare_dumps"},
        {"rope-theta", 0, OPTION_REAL, &c->rope_theta, 0, "X", RUN, "base of RoPE's frequencies; 0: the model's own"},
        {"rope-scaling", 0, OPTION_TEXT, &c->rope_scaling, 0, "KIND:N", RUN,
         "stretch RoPE N-fold: yarn:4, linear:2, llama3:8, or none; yarn:4:32768 says from which context"},
        {"save-dtype", 0, OPTION_CHOICE, &c->save_dtype, 0, "same|f32|bf16|f16", RUN,
         "of the weights in DIR/model; same: as they came, f32 if they began here"},
        {"plan", 0, OPTION_FLAG, &c->plan, 0, "", THIS_TIME,
         "print memory, flops and bytes of such a run, and allocate and train nothing"},
    };
    int n = sizeof table / sizeof table[0];
    static_assert(sizeof table / sizeof table[0] <= MAX_OPTIONS, "raise MAX_OPTIONS");
    memcpy(out, table, sizeof table);
    return n;
}

/* The value as the command line would give it. */
static inline void option_format(const Option *o, char *text, size_t size) {
    if (o->kind == OPTION_TEXT) snprintf(text, size, "%s", *(const char **)o->value);
    if (o->kind == OPTION_COUNT) snprintf(text, size, "%d", *(int *)o->value);
    if (o->kind == OPTION_FLAG) snprintf(text, size, "%s", *(int *)o->value ? "yes" : "");
    if (o->kind == OPTION_REAL) snprintf(text, size, "%s", text_real(*(double *)o->value).text);
    if (o->kind == OPTION_CHOICE) {
        const char *s = o->choices;
        for (int i = *(int *)o->value; i > 0; i--) s = strchr(s, '|') + 1;
        snprintf(text, size, "%.*s", (int)strcspn(s, "|"), s);
    }
}

static inline void option_parse(const Option *o, const char *text) {
    char *end;
    if (o->kind == OPTION_TEXT) {
        if (*text == 0 && o->least) die("--%s: empty; give %s, or leave the option out", o->name, o->choices);
        if (strlen(text) >= MAX_VALUE) die("--%s: %zu bytes; at most %d", o->name, strlen(text), MAX_VALUE - 1);
        *(const char **)o->value = text;
    }
    if (o->kind == OPTION_FLAG) *(int *)o->value = 1;
    if (o->kind == OPTION_COUNT) {
        errno = 0;
        long long n = strtoll(text, &end, 10);
        const int digits = end != text;
        const long long unit = *end == 'K' || *end == 'k' ? 1 << 10 : *end == 'M' || *end == 'm' ? 1 << 20 : 1;
        if (unit > 1) end++;
        if (!digits || *end) die("--%s %s: not a whole number; like 512, 4K or 1M", o->name, text);
        if (errno || n > INT_MAX / unit) die("--%s %s: too large; at most %d", o->name, text, INT_MAX);
        if (n < 0 || n * unit < o->least) die("--%s %s: must be at least %d", o->name, text, o->least);
        *(int *)o->value = (int)(n * unit);
    }
    if (o->kind == OPTION_REAL) {
        double x = strtod(text, &end);
        if (end == text || *end || x != x || x - x != 0)
            die("--%s %s: not a number; like 0.001 or 1e-3", o->name, text);
        *(double *)o->value = x;
    }
    if (o->kind == OPTION_CHOICE) {
        int i = 0;
        for (const char *s = o->choices;; s++, i++) {
            size_t n = strcspn(s, "|");
            if (strlen(text) == n && memcmp(s, text, n) == 0) break;
            s += n;
            if (!*s) die("--%s %s: must be one of %s", o->name, text, o->choices);
        }
        *(int *)o->value = i;
    }
}

/* "--name VALUE", "--name=VALUE" or "-l VALUE" at argv[*i]: finds the option, moves *i to its last
   word, returns the value. */
static inline const Option *option_next(const Option *table, int n, int argc, char **argv, int *i, const char **value) {
    const char *word = argv[*i];
    const Option *found = NULL;
    *value = NULL;
    for (int k = 0; k < n && !found; k++) {
        size_t length = strlen(table[k].name);
        if (word[0] == '-' && word[1] == table[k].letter && word[1] && !word[2]) found = &table[k];
        if (strncmp(word, "--", 2) == 0 && strncmp(word + 2, table[k].name, length) == 0) {
            if (word[2 + length] == 0) found = &table[k];
            if (word[2 + length] == '=') {
                found = &table[k];
                *value = word + 3 + length;
            }
        }
    }
    if (!found && *word != '-') die("%s: no such option (a pattern of files needs quotes); --help lists them", word);
    if (!found) die("%s: no such option; --help lists them", word);
    if (found->kind == OPTION_FLAG) {
        if (*value) die("%s: --%s takes no value", word, found->name);
        *value = "yes";
    }
    if (!*value) {
        if (*i + 1 >= argc) die("%s: needs a value, like %s %s", word, word, found->choices);
        *value = argv[++*i];
    }
    return found;
}

static inline void options_help(const Option *table, int n, FILE *out) {
    fprintf(out, "usage: train_oomb [options]\n\n"
                 "Trains a language model at context lengths that do not fit in memory otherwise:\n"
                 "chunk by chunk, with exact gradients through paged keys and values.\n\n");
    for (int k = 0; k < n; k++) {
        char left[64], value[MAX_VALUE];
        option_format(&table[k], value, sizeof value);
        if (table[k].letter)
            snprintf(left, sizeof left, "--%s, -%c %s", table[k].name, table[k].letter, table[k].choices);
        else if (table[k].kind == OPTION_FLAG) snprintf(left, sizeof left, "--%s", table[k].name);
        else snprintf(left, sizeof left, "--%s %s", table[k].name, table[k].choices);
        fprintf(out, "  %-28s %s%s%s%s\n", left, table[k].help, *value ? " [" : "", value, *value ? "]" : "");
    }
    fprintf(out, "  %-28s this text, with the defaults of the chosen --model\n\n", "--help, -h");
    fprintf(out, "Whole numbers take K (x 1024) and M (x 1024 x 1024).\n\nmodels (--model), with their own defaults "
                 "for the options above:\n");
    for (int i = 0; i < NUM_PRESETS; i++) {
        fprintf(out, "  %-12s %-40s T %d, batch %d, chunk %d\n", presets[i].name, presets[i].about, presets[i].T,
                presets[i].B, presets[i].chunk_size);
    }
    fprintf(out, "Without --model: recall for --data recall, tiny for files. A directory has config.json and\n"
                 "model.safetensors, of the type gpt2, llama, mistral, qwen2 or qwen3.\n");
}

/* The model of a Hugging Face directory, with defaults that suit its training further. */
static inline Preset hf_preset(const char *dir) {
    char path[MAX_PATH_BYTES];
    size_t bytes;
    HfType type;
    Preset p = {dir, "", presets[0].model, 4096, 1, 512, 64, 100, 10, 1e-5, 0.1};
    if (snprintf(path, sizeof path, "%s/config.json", dir) >= (int)sizeof path)
        die("--model %s: the path is too long", dir);
    char *text = hf_config_read(path, &bytes);
    p.model = hf_config_parse(path, text, bytes, &type, 0);
    free(text);
    if (p.model.max_T && p.T > p.model.max_T) p.T = p.model.max_T;
    if (p.model.window && p.T > p.model.window) p.T = p.model.window;
    return p;
}

/* What --model names. */
static inline Preset model_preset(const char *name) {
    struct stat st;
    char config[MAX_PATH_BYTES];
    const Preset *preset = preset_find(name);
    const int directory = stat(name, &st) == 0 && S_ISDIR(st.st_mode);
    if (preset && directory && snprintf(config, sizeof config, "%s/config.json", name) < (int)sizeof config &&
        access(config, F_OK) == 0)
        die("--model %s: is a preset and a directory here; give ./%s for the directory, or rename it", name, name);
    if (preset) return *preset;
    if (directory) return hf_preset(name);
    char names[256] = "";
    for (int i = 0; i < NUM_PRESETS; i++) {
        strncat(names, i ? ", " : "", sizeof names - strlen(names) - 1);
        strncat(names, presets[i].name, sizeof names - strlen(names) - 1);
    }
    die("--model %s: neither a directory nor a preset; presets are %s", name, names);
}

/* Whether --model is the directory of a trained model. */
static inline int model_is_directory(const TrainConfig *c) { return preset_find(c->model) == NULL; }

/* Reads the command line. Two sweeps: --data and --model choose the preset, whose values are the
   defaults of everything else. Returns the model, before options_apply(); ends the program on --help and on bad input. */
static inline ModelConfig options_read(int argc, char **argv, TrainConfig *c) {
    Option table[MAX_OPTIONS];
    Preset preset = presets[0];
    int help = 0;
    for (int sweep = 0; sweep < 2; sweep++) {
        *c = train_config(&preset);
        if (model_is_directory(c)) c->data = "";
        int n = options_table(c, table);
        const char *value, *model = NULL;
        for (int i = 1; i < argc; i++) {
            if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
                help = 1;
                continue;
            }
            const Option *o = option_next(table, n, argc, argv, &i, &value);
            option_parse(o, value);
            if (o->value == &c->model) model = value;
        }
        if (!model) model = strcmp(c->data, "recall") == 0 ? "recall" : "tiny";
        preset = model_preset(model);
        if (sweep == 1 && help) {
            *c = train_config(&preset);
            if (model_is_directory(c)) c->data = "";
            options_help(table, n, stdout);
            check_stdout();
            exit(0);
        }
    }
    return model_config(&preset);
}

/* The model with what the run's options change about it. */
static inline void options_apply(const TrainConfig *c, ModelConfig *m) {
    if (c->rope_theta != 0) m->rope_theta = c->rope_theta;
    if (*c->rope_scaling) rope_set_scaling(m, c->rope_scaling);
}

/* The configuration of the run, four options to a line. */
static inline void options_print(TrainConfig *c, FILE *out) {
    Option table[MAX_OPTIONS];
    int n = options_table(c, table), column = 0;
    for (int k = 0; k < n; k++) {
        char value[MAX_VALUE];
        option_format(&table[k], value, sizeof value);
        if (!*value) continue;
        int width = fprintf(out, "%s%s %s", column ? "" : "  ", table[k].name, value);
        column = (column + 1) % 4;
        fprintf(out, "%*s", column && width < 24 ? 24 - width : 1, column ? "" : "\n");
    }
    if (column) fprintf(out, "\n");
}

#endif
