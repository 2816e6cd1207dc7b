/* session.h: a run around its steps: options, data, prompt, log, and the checkpoint that it goes on from. What both
   programs decide before they touch a tensor, and what they tell the user about it. Steps, samples and the saving of
   tensors are the programs' own. */
#ifndef OOMB_SESSION_H
#define OOMB_SESSION_H

#include "args.h"
#include "checkpoint.h"
#include "dataloader.h"
#include "hf_model.h"
#include "logger.h"
#include "sampler.h"
#include "tensors.h"
#include "tokenizer.h"

typedef struct {
    TrainConfig run;
    ModelConfig config;
    HfModel hf; /* of --model DIR, or what DIR/model will be; nothing with --plan, which needs no weights */
    TokenFiles train_files, val_files;
    Data train, val;
    int val_sequences;        /* 0: no validation */
    Tokenizer tokenizer;      /* of --model DIR, for samples */
    int prompt, sample_total; /* tokens of the prompt, and with the sample; 0: no samples */
    Logger log;
    RunState at;
    int lock;    /* on the directory of --out, held until the process ends */
    int resumed; /* the step of the checkpoint that this run goes on from; -1: from the start */
    SavedState saved;
    char log_path[MAX_PATH_BYTES];
} Session;

/* The options of a checkpoint against those of the run that goes on from it. */
static inline void session_check_saved(const Session *s) {
    TrainConfig old = train_config(&presets[0]), now = s->run;
    Option was[MAX_OPTIONS], is[MAX_OPTIONS];
    const char *value;
    old.data = ""; /* options that are not saved were empty */
    options_table(&old, was);
    for (int i = 0; i < s->saved.count; i++) { /* without a look at the old --model, which may have moved */
        char *word[] = {s->saved.options[i]};
        int at = 0;
        const Option *o = option_next(was, options_table(&old, was), 1, word, &at, &value);
        option_parse(o, value);
    }
    for (int i = 0; i < NUM_CONFIG_FIELDS; i++) {
        if (config_get(&s->config, i) != s->saved.model[i])
            die("--resume: the checkpoint's model has %s = %g, but %s has %g; take the --model, --rope-theta and "
                "--rope-scaling that it was trained with",
                config_fields[i].name, s->saved.model[i], s->run.model, config_get(&s->config, i));
    }
    const int n = options_table(&old, was);
    options_table(&now, is);
    for (int i = 0; i < n; i++) {
        char a[MAX_VALUE], b[MAX_VALUE];
        option_format(&was[i], a, sizeof a);
        option_format(&is[i], b, sizeof b);
        if (was[i].scope == THIS_TIME || strcmp(a, b) == 0) continue;
        if (was[i].scope == POSITION)
            die("--%s %s: the checkpoint has %s, and its position in the data counts on it; leave the option out, or "
                "start anew in another --out",
                is[i].name, b, a);
        printf("resume: --%s is %s, and was %s before\n", is[i].name, *b ? b : "(none)", *a ? a : "(none)");
    }
    const int had = old.recall_distance ? old.recall_distance : old.chunk_size,
              has = now.recall_distance ? now.recall_distance : now.chunk_size;
    if (strcmp(now.data, "recall") == 0 && had != has)
        die("--resume: the checkpoint's recall task has facts at least %d tokens away, and not %d (one --chunk, if not "
            "said otherwise); add --recall-distance %d",
            had, has, had);
}

/* Only options that belong to a run may come from a file. */
static inline void session_check_names(const SavedState *saved, const char *path) {
    TrainConfig c;
    Option table[MAX_OPTIONS];
    const int n = options_table(&c, table);
    for (int i = 0; i < saved->count; i++) {
        const char *name = saved->options[i] + 2;
        const size_t length = strcspn(name, "=");
        int k = 0;
        while (k < n && (strlen(table[k].name) != length || strncmp(table[k].name, name, length) != 0)) k++;
        if (k == n || table[k].scope == THIS_TIME)
            die("%s/state.json: \"%.*s\" is no option that a checkpoint keeps", path, (int)length, name);
    }
}

/* The command line; with --resume, the options of the newest checkpoint stand before it. */
static inline void session_options(Session *s, int argc, char **argv) {
    char path[MAX_PATH_BYTES];
    s->config = options_read(argc, argv, &s->run);
    s->resumed = s->lock = -1;
    if (s->run.plan && s->run.resume) die("--plan: plans a run from its options; leave --resume out");
    if (!s->run.resume || !*s->run.out) {
        options_apply(&s->run, &s->config);
        return;
    }
    if (access(s->run.out, F_OK) != 0)
        die("--resume: %s: %s; to begin a run there, leave --resume out", s->run.out, strerror(errno));
    s->lock = checkpoint_open_dir(s->run.out); /* first: another run may be about to save */
    s->resumed = checkpoint_latest(s->run.out, INT32_MAX);
    if (s->resumed < 0) {
        int data = 0; /* a wrong directory must not begin the default run */
        for (int i = 1; i < argc; i++) data |= strcmp(argv[i], "--data") == 0 || strncmp(argv[i], "--data=", 7) == 0;
        if (!data)
            die("--resume: %s has no checkpoint; to begin a run there, give its options, at least --data", s->run.out);
        printf("resume: %s has no checkpoint yet; from the start\n", s->run.out);
        options_apply(&s->run, &s->config);
        return;
    }
    checkpoint_path(path, s->run.out, "step-", s->resumed);
    s->saved = state_read(path);
    session_check_names(&s->saved, path);
    if (s->saved.run.step != s->resumed) die("%s: its state.json is of step %d", path, s->saved.run.step);
    char **words = (char **)xcalloc((size_t)argc + s->saved.count, sizeof(char *));
    memcpy(words + 1, s->saved.options, (size_t)s->saved.count * sizeof(char *));
    memcpy(words + 1 + s->saved.count, argv + 1, ((size_t)argc - 1) * sizeof(char *));
    words[0] = argv[0];
    s->config = options_read(argc + s->saved.count, words, &s->run);
    options_apply(&s->run, &s->config);
    free(words);
    session_check_saved(s);
    s->at = s->saved.run;
}

/* The directory of --model: everything about it is checked before anything is allocated. */
static inline void session_open_model(Session *s) {
    const TrainConfig *run = &s->run;
    const ModelConfig *m = &s->config;
    if (model_is_directory(run)) {
        char path[MAX_PATH_BYTES];
        size_t bytes;
        HfType type;
        path_join(path, run->model, "config.json");
        char *text = hf_config_read(path, &bytes);
        hf_config_parse(path, text, bytes, &type, 1);
        free(text);
    }
    if (model_is_directory(run) && run->steps > 0 && !*run->out && !run->plan)
        fprintf(stderr, "note: without --out DIR the trained model is not kept\n");
    if (m->pos == POS_ROPE && m->max_T && run->T > m->max_T && run->rope_theta == 0) {
        const int original = rope_original(m);
        fprintf(stderr, "warning: --seq-len %d: the model is made for %d tokens, positions beyond are new to it",
                run->T, m->max_T);
        if (original && run->T / original < MAX_STRETCH)
            fprintf(stderr, "; --rope-scaling yarn:%d would stretch its range",
                    (int)ceil_div((size_t)run->T, (size_t)original));
        fprintf(stderr, "\n");
    }
    if (run->plan) return;
    s->hf = model_is_directory(run) ? hf_open(run->model, m) : hf_new(m);
}

/* "BF16", or "BF16 and F32" */
static inline void session_report_weights(const HfModel *h) {
    size_t of[SAFE_NUM_TYPES] = {0};
    const char *between = "";
    printf("weights: %s, %d tensors in %d file%s, ", h->dir, h->count, h->num_files, h->num_files > 1 ? "s" : "");
    for (int i = 0; i < h->count; i++) of[h->tensors[i].type]++;
    for (int t = 0; t < SAFE_NUM_TYPES; t++) {
        if (of[t]) printf("%s%s", between, safe_types[t].name), between = " and ";
    }
}

static inline void session_report_files(const TokenFiles *f, const char *name, int checked) {
    printf("%s", name);
    if (f->num_shards > 1) printf(", %d files", f->num_shards);
    printf(", %" PRIu64 " tokens", f->count);
    if (f->kind == DATA_TOKENS && checked) printf(", %" PRIu64 " of them not scored", f->masked);
}

/* Text is bytes, and means something only to a model of bytes. */
static inline void session_check_text(const Session *s, const char *option, const char *path) {
    const TrainConfig *run = &s->run;
    if (!model_is_directory(run)) return;
    if (hf_has_tokenizer(run->model))
        die("%s %s: is text, but %s has a tokenizer of its own; make token files: dev/data/prepare.py --model %s "
            "--out NAME %s",
            option, path, run->model, run->model, path);
    if (s->config.V != BYTES_V)
        die("%s %s: is text, but the vocabulary of %d of %s is no vocabulary of bytes (%d), and it has no "
            "tokenizer; give token files",
            option, path, s->config.V, run->model, BYTES_V);
}

/* --val from files. */
static inline void session_open_val(Session *s) {
    const TrainConfig *run = &s->run;
    const uint64_t T = (uint64_t)run->T;
    s->val_files = files_open("--val", run->val);
    if (s->val_files.kind == DATA_TOKENS) s->val_files.V = s->config.V;
    else session_check_text(s, "--val", run->val);
    if (s->val_files.count < T + 1)
        die("--val %s: %" PRIu64 " tokens, but one sequence needs %" PRIu64, run->val, s->val_files.count, T + 1);
    if (!run->plan) files_check(&s->val_files, s->config.V);
    s->val = data_open_files(&s->val_files, run->T, 0, s->val_files.count, 0, 0);
}

/* How much of the validation data is used. */
static inline void session_report_val(Session *s) {
    const TrainConfig *run = &s->run;
    s->val_sequences = (int)min_size((size_t)run->val_seqs, (size_t)s->val.samples);
    if (!s->val_sequences) {
        printf("validation: none%s\n",
               run->val_seqs ? "; the last tenth of the data does not hold one sequence, give --val" : "");
        return;
    }
    printf("validation: ");
    if (*run->val) session_report_files(&s->val_files, run->val, !run->plan);
    else printf("the last tenth of it");
    printf(", %d of %" PRIu64 " sequences\n", s->val_sequences, s->val.samples);
}

/* --data and --val from files; without --val the last tenth of the data is held out. */
static inline void session_open_files(Session *s) {
    const TrainConfig *run = &s->run;
    const uint64_t T = (uint64_t)run->T, need = (uint64_t)run->B * T + 1;
    s->train_files = files_open("--data", run->data);
    if (s->train_files.kind == DATA_TOKENS) s->train_files.V = s->config.V;
    const uint64_t tokens = s->train_files.count;
    if (s->train_files.kind == DATA_BYTES) session_check_text(s, "--data", run->data);
    uint64_t held = *run->val || run->val_seqs == 0 ? 0 : tokens / 10;
    if (held < T + 1 || tokens - held < need) held = 0; /* too short to be worth a sequence */
    if (tokens - held < need)
        die("--data %s: %" PRIu64 " tokens, but a batch of %d x %d needs %" PRIu64
            "; use a smaller --seq-len or --batch",
            run->data, tokens, run->B, run->T, need);
    if (*run->val) {
        session_open_val(s);
        if (s->val_files.kind != s->train_files.kind)
            die("--val %s: --data and --val must both be text, or both token ids", run->val);
    }
    if (!run->plan) files_check(&s->train_files, s->config.V);
    if (s->train_files.masked == tokens) die("--data %s: no token is scored: there is nothing to train on", run->data);
    s->train = data_open_files(&s->train_files, run->T, 0, tokens - held, 1, (uint64_t)run->seed);
    if (held) s->val = data_open_files(&s->train_files, run->T, tokens - held, held, 0, 0);
    printf("data: ");
    session_report_files(&s->train_files, run->data, !run->plan);
    printf("; training on %" PRIu64 ": %" PRIu64 " sequences, %" PRIu64 " tokens at the end unused\n", s->train.count,
           s->train.samples, s->train.count - 1 - s->train.samples * T);
    session_report_val(s);
}

/* Opens what there is to train on and says what it is. */
static inline void session_open_data(Session *s) {
    const TrainConfig *run = &s->run;
    if (!*run->data) {
        if (run->steps > 0 && !run->plan)
            die("--data: what should %s be trained on? Give --data FILES (dev/data/prepare.py makes them), or --steps "
                "0",
                run->model);
        if (run->recall_distance) die("--recall-distance %d: only --data recall has distances", run->recall_distance);
        s->train.kind = s->config.V == BYTES_V && !hf_has_tokenizer(run->model) ? DATA_BYTES : DATA_TOKENS;
        if (*run->val) {
            session_open_val(s);
            session_report_val(s);
            s->train.kind = s->val_files.kind;
            s->train.V = s->val_files.V;
        }
        return;
    }
    if (strcmp(run->data, "recall") != 0) {
        if (run->recall_distance) die("--recall-distance %d: only --data recall has distances", run->recall_distance);
        session_open_files(s);
    } else {
        if (*run->val) die("--val %s: the recall task makes its own validation sequences; leave --val out", run->val);
        if (run->plan) { /* any model and length can be planned, without data */
            s->train.kind = DATA_RECALL;
            return;
        }
        const int distance = run->recall_distance ? run->recall_distance : run->chunk_size;
        s->train = data_open_recall(run->T, distance, (uint64_t)run->seed);
        s->val = data_open_recall(run->T, distance, ~(uint64_t)run->seed);
        s->val_sequences = run->val_seqs;
        printf("data: recall, %d facts and %d questions per sequence, at least %d tokens apart; guessing is right once "
               "in %d\n",
               RECALL_KEYS, run->T / RECALL_TOKENS_PER_QUESTION, distance, RECALL_VALUES);
    }
    if (s->train.V > s->config.V)
        die("--data %s: token ids up to %d, but --model %s has a vocabulary of %d; leave --model out, or take one with "
            "a larger vocabulary",
            run->data, s->train.V - 1, run->model, s->config.V);
    const uint64_t hash = s->train.kind == DATA_RECALL ? 0 : files_hash(&s->train_files);
    if (s->resumed >= 0 && s->at.data_tokens != s->train.count)
        die("--data %s: %" PRIu64 " tokens to train on, but the checkpoint was trained on %" PRIu64
            ": its position in them would be another place. Give the same --data, --val and --val-seqs, or start anew "
            "in another --out",
            run->data, s->train.count, s->at.data_tokens);
    if (s->resumed >= 0 && s->at.data_hash != hash)
        die("--data %s: as many tokens as the checkpoint was trained on, but other ones: its position in them would be "
            "another place. Give the same --data, or start anew in another --out",
            run->data);
    s->at.data_tokens = s->train.count;
    s->at.data_hash = hash;
}

/* The tokens of --prompt into out (NULL: only counts them): bytes after a start token, or the ids that it lists. */
static inline int session_prompt(const Session *s, int *out) {
    const char *text = s->run.prompt;
    int n = 0;
    if (s->train.kind == DATA_BYTES) {
        if (out) out[0] = BYTES_START;
        for (n = 1; *text; text++, n++) {
            if (out) out[n] = (unsigned char)*text;
        }
        return n;
    }
    for (;;) {
        char *end;
        while (*text == ' ' || *text == ',') text++;
        if (!*text) break;
        const long id = strtol(text, &end, 10);
        if (end == text || id < 0 || id >= s->config.V)
            die("--prompt %s: the data are token ids, so the prompt is a list of them, like '15 3 7', each below %d%s",
                s->run.prompt, s->config.V,
                model_is_directory(&s->run) ? "; dev/data/prepare.py --model DIR --ids TEXT makes one" : "");
        if (out) out[n] = (int)id;
        text = end;
        n++;
    }
    if (n == 0) die("--sample-every: the data are token ids: give a --prompt of at least one, like --prompt 0");
    return n;
}

static inline void session_plan_sample(Session *s) {
    const TrainConfig *run = &s->run;
    if (!*run->prompt && !run->sample_every) return;
    if (model_is_directory(run)) s->tokenizer = tokenizer_open(run->model);
    if (model_is_directory(run) && s->train.kind == DATA_TOKENS && s->tokenizer.kind == TOKENIZER_UNKNOWN)
        fprintf(stderr, "note: %s has no tokenizer.json, or one that is not understood here; samples are token ids\n",
                run->model);
    const int n = session_prompt(s, NULL);
    if (n >= run->T)
        die("--prompt: %d tokens leave no room for a sample in --seq-len %d; give a shorter prompt", n, run->T);
    if (run->sample_len > run->T - n)
        die("--sample-len %d: after %d tokens of prompt there is room for %d in --seq-len %d", run->sample_len, n,
            run->T - n, run->T);
    s->prompt = n;
    s->sample_total = run->sample_len ? n + run->sample_len : (int)min_size((size_t)run->T, (size_t)n + 256);
}

/* A file about to be written must not be one that is read. */
static inline void session_refuse_input(const Session *s, const char *option, const char *path) {
    char own[3][MAX_PATH_BYTES] = {"", "", ""};
    if (*s->hf.dir) {
        path_join(own[0], s->hf.dir, "config.json");
        path_join(own[1], s->hf.dir, "tokenizer.json");
        path_join(own[2], s->hf.dir, "model.safetensors.index.json");
    }
    for (int i = 0; *path && i < 3 + s->hf.num_files; i++) {
        if (same_file(path, i < 3 ? own[i] : s->hf.paths[i - 3]))
            die("%s %s: is a file of --model; give it another name", option, path);
    }
    for (int i = 0; *path && i < s->train_files.num_shards + s->val_files.num_shards; i++) {
        const int val = i - s->train_files.num_shards;
        const char *read = val < 0 ? s->train_files.shards[i].path : s->val_files.shards[val].path;
        if (same_file(path, read))
            die("%s %s: is a file that --data or --val reads; give it another name", option, path);
    }
}

/* Opened last: it empties the file, which a run that is refused must not have done. */
static inline void session_open_log(Session *s) {
    if (*s->run.out && !*s->run.log) path_join(s->log_path, s->run.out, "log.jsonl");
    s->log = logger_open(*s->log_path ? s->log_path : s->run.log, s->resumed);
}

static inline void session_report_model(const ModelConfig *c, const TrainConfig *run, int threads) {
    TensorInfo t[NUM_TENSORS];
    tensors_describe(c, t);
    const size_t padding = (size_t)(c->Vp - c->V) * c->C * (c->tied ? 1 : 2), params = tensors_total(t, c->L) - padding;
    const int chunk_size = chunk_capacity(run), N = chunks_count(run->T, chunk_size);
    printf("model: %s, %.2fM parameters; %d layers, %d channels, %d heads of %d (%d for keys and values), MLP %d, "
           "vocabulary %d\n",
           run->model, (double)params * 1e-6, c->L, c->C, c->NH, c->HD, c->NKV, c->F, c->V);
    if (c->rope.kind != ROPE_NONE)
        printf("RoPE: theta %g, %s scaling by %g, for a context of %d\n", c->rope_theta, rope_kinds[c->rope.kind],
               c->rope.factor, c->max_T);
    printf("sequence: %d x %d tokens in %d chunk%s of %d; pages of %d tokens; %d thread%s\n\n", run->B, run->T, N,
           N > 1 ? "s" : "", chunk_size, run->P, threads, threads > 1 ? "s" : "");
}

/* --out: the directory, if no other run's checkpoints or model are there. (With --resume it is open already.) */
static inline void session_open_out(Session *s) {
    char path[MAX_PATH_BYTES];
    if (s->lock < 0) s->lock = checkpoint_open_dir(s->run.out);
    const int latest = checkpoint_latest(s->run.out, INT32_MAX);
    if (s->resumed < 0 && latest >= 0)
        die("--out %s: holds a checkpoint of step %d; add --resume to go on from it, or give another directory",
            s->run.out, latest);
    hf_save_recover(s->run.out);
    path_join(path, s->run.out, "model");
    hf_check_target(&s->hf, s->run.out);
    if (s->resumed < 0 && access(path, F_OK) == 0)
        die("--out %s: holds a model already, and no checkpoint that it belongs to; give another directory",
            s->run.out);
}

/* A sample of s->sample_total tokens, the prompt's first: as text if the data are text or the model has a vocabulary, else
   as ids. */
static inline void session_report_sample(Session *s, const int *tokens) {
    printf("sample %3d | ", s->at.step);
    if (s->train.kind == DATA_BYTES) {
        unsigned char *text = (unsigned char *)xcalloc((size_t)s->sample_total, 1);
        int n = 0;
        for (int i = 0; i < s->sample_total; i++) {
            if (tokens[i] < BYTES_START) text[n++] = (unsigned char)tokens[i];
        }
        print_text(stdout, text, n);
        free(text);
    } else if (s->tokenizer.kind != TOKENIZER_UNKNOWN) {
        const size_t n = tokenizer_decode(&s->tokenizer, tokens, s->sample_total, NULL);
        unsigned char *text = (unsigned char *)xcalloc(n + 1, 1);
        tokenizer_decode(&s->tokenizer, tokens, s->sample_total, text);
        print_text(stdout, text, (int)n);
        free(text);
    } else {
        for (int i = 0; i < s->sample_total; i++) printf(i == s->prompt ? " | %d" : " %d", tokens[i]);
    }
    printf("\n");
    fflush(stdout);
    logger_number(&s->log, "step", s->at.step);
    logger_integers(&s->log, "sample", tokens, s->sample_total);
    logger_end(&s->log);
}

static inline void session_close(Session *s) {
    logger_close(&s->log);
    data_close(&s->train);
    data_close(&s->val);
    files_close(&s->train_files);
    files_close(&s->val_files);
    state_free(&s->saved);
    hf_close(&s->hf);
    tokenizer_close(&s->tokenizer);
}

#endif
