/* args.h: the one table of options. Parsing, --help, the defaults and the printed configuration
   all read it, so they cannot disagree. */
#ifndef OOMB_ARGS_H
#define OOMB_ARGS_H

#include "config.h"

#include <limits.h>

typedef enum { OPTION_TEXT, OPTION_COUNT, OPTION_REAL, OPTION_CHOICE } OptionKind;

typedef struct {
    const char *name;
    char letter; /* 0: none */
    OptionKind kind;
    void *value;         /* const char *, int, double or int; holds the default before parsing */
    int least;           /* OPTION_COUNT: the smallest that makes sense */
    const char *choices; /* OPTION_CHOICE: "exact|none", value is the index; else what --help shows */
    const char *help;
} Option;

enum { MAX_OPTIONS = 32 };

/* Fills the table with pointers into c; returns the number of options. */
static inline int options_table(TrainConfig *c, Option *out) {
    const Option table[] = {
        {"data", 0, OPTION_TEXT, &c->data, 0, "FILE", "text file, read as bytes; or recall, the generated task"},
        {"val", 0, OPTION_TEXT, &c->val, 0, "FILE",
         "validation text; without it the last tenth of --data, if that holds a sequence"},
        {"model", 0, OPTION_TEXT, &c->model, 0, "PRESET", "see below"},
        {"seq-len", 'T', OPTION_COUNT, &c->T, 1, "N", "tokens per sequence: the whole context"},
        {"batch", 'B', OPTION_COUNT, &c->B, 1, "N", "sequences side by side"},
        {"chunk", 0, OPTION_COUNT, &c->chunk_size, 1, "N", "tokens per chunk; N >= seq-len is one chunk"},
        {"page", 0, OPTION_COUNT, &c->P, 1, "N", "tokens per page; must divide a chunk that is shorter than seq-len"},
        {"carry", 0, OPTION_CHOICE, &c->carry, 0, "exact|none", "gradients of keys and values across chunk edges"},
        {"recompute", 0, OPTION_CHOICE, &c->recompute, 0, "chunk|layer",
         "activations kept in the backward: all layers', or one layer's"},
        {"grad-accum", 0, OPTION_COUNT, &c->grad_accum, 1, "N", "batches summed into one step"},
        {"steps", 'n', OPTION_COUNT, &c->steps, 0, "N", "optimizer steps"},
        {"lr", 0, OPTION_REAL, &c->lr, 0, "X", "peak learning rate"},
        {"warmup", 0, OPTION_COUNT, &c->warmup, 0, "N", "steps of linear warm-up"},
        {"schedule", 0, OPTION_CHOICE, &c->schedule, 0, "cosine|constant",
         "after the warm-up: down to lr/10, or constant"},
        {"weight-decay", 0, OPTION_REAL, &c->weight_decay, 0, "X", "AdamW decay, on matrices only"},
        {"clip", 0, OPTION_REAL, &c->clip, 0, "X", "largest gradient norm; 0: no clipping"},
        {"seed", 0, OPTION_COUNT, &c->seed, 0, "N", "of weights and data"},
        {"threads", 0, OPTION_COUNT, &c->threads, 0, "N",
         "0: what OpenMP chooses; the result is the same for any number"},
        {"val-every", 0, OPTION_COUNT, &c->val_every, 0, "N",
         "validate every N steps and at the end; 0: at the end only"},
        {"val-seqs", 0, OPTION_COUNT, &c->val_seqs, 0, "N",
         "most validation sequences to use; 0: never validate, hold nothing out"},
        {"recall-distance", 0, OPTION_COUNT, &c->recall_distance, 0, "N",
         "least tokens from fact to question, at most seq-len / 4; 0: one chunk"},
        {"log", 0, OPTION_TEXT, &c->log, 0, "FILE", "one JSON object per step and per validation"},
    };
    int n = sizeof table / sizeof table[0];
    memcpy(out, table, sizeof table);
    return n;
}

/* The value as the command line would give it. */
static inline void option_format(const Option *o, char *text, size_t size) {
    if (o->kind == OPTION_TEXT) snprintf(text, size, "%s", *(const char **)o->value);
    if (o->kind == OPTION_COUNT) snprintf(text, size, "%d", *(int *)o->value);
    if (o->kind == OPTION_REAL) snprintf(text, size, "%g", *(double *)o->value);
    if (o->kind == OPTION_CHOICE) {
        const char *s = o->choices;
        for (int i = *(int *)o->value; i > 0; i--) s = strchr(s, '|') + 1;
        snprintf(text, size, "%.*s", (int)strcspn(s, "|"), s);
    }
}

static inline void option_parse(const Option *o, const char *text) {
    char *end;
    if (o->kind == OPTION_TEXT) {
        if (*text == 0) die("--%s: empty; give %s, or leave the option out", o->name, o->choices);
        *(const char **)o->value = text;
    }
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
    if (!found) die("%s: no such option; --help lists them", word);
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
        char left[64], value[160];
        option_format(&table[k], value, sizeof value);
        if (table[k].letter)
            snprintf(left, sizeof left, "--%s, -%c %s", table[k].name, table[k].letter, table[k].choices);
        else snprintf(left, sizeof left, "--%s %s", table[k].name, table[k].choices);
        fprintf(out, "  %-28s %s%s%s%s\n", left, table[k].help, *value ? " [" : "", value, *value ? "]" : "");
    }
    fprintf(out, "  %-28s this text, with the defaults of the chosen --model\n\n", "--help, -h");
    fprintf(out, "Whole numbers take K (x 1024) and M (x 1024 x 1024).\n\nmodels (--model), with their own defaults "
                 "for the options above:\n");
    for (int i = 0; i < NUM_PRESETS; i++) {
        fprintf(out, "  %-10s %-40s T %d, batch %d, chunk %d\n", presets[i].name, presets[i].about, presets[i].T,
                presets[i].B, presets[i].chunk_size);
    }
    fprintf(out, "Without --model: recall for --data recall, tiny for a text file.\n");
}

/* Reads the command line. Two sweeps: --data and --model choose the preset, whose values are the
   defaults of everything else. Returns the model; ends the program on --help and on bad input. */
static inline ModelConfig options_read(int argc, char **argv, TrainConfig *c) {
    Option table[MAX_OPTIONS];
    const Preset *preset = &presets[0];
    int help = 0;
    for (int sweep = 0; sweep < 2; sweep++) {
        *c = train_config(preset);
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
        preset = preset_find(model);
        if (sweep == 1 && help) {
            *c = train_config(preset);
            options_help(table, n, stdout);
            exit(0);
        }
    }
    return model_config(preset);
}

/* The configuration of the run, four options to a line. */
static inline void options_print(TrainConfig *c, FILE *out) {
    Option table[MAX_OPTIONS];
    int n = options_table(c, table), column = 0;
    for (int k = 0; k < n; k++) {
        char value[160];
        option_format(&table[k], value, sizeof value);
        if (!*value) continue;
        int width = fprintf(out, "%s%s %s", column ? "" : "  ", table[k].name, value);
        column = (column + 1) % 4;
        fprintf(out, "%*s", column && width < 24 ? 24 - width : 1, column ? "" : "\n");
    }
    if (column) fprintf(out, "\n");
}

#endif
