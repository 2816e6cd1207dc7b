/* config.h: what a model is (ModelConfig), what a run is (TrainConfig), the presets, and the
   checks that every run passes before anything is allocated. */
#ifndef OOMB_CONFIG_H
#define OOMB_CONFIG_H

#include "chunks.h"
#include "schedule.h"
#include "util.h"

typedef enum { NORM_LAYERNORM, NORM_RMSNORM } NormKind;
typedef enum { POS_LEARNED, POS_ROPE } PosKind;
typedef enum { MLP_GELU, MLP_SWIGLU } MlpKind;

/* What a trained model's RoPE does beyond the context that it was first trained for; rope_frequency() has the formulas. */
typedef enum { ROPE_NONE, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN } RopeKind;
static const char *const rope_kinds[] = {"none", "linear", "llama3", "yarn"};

typedef struct {
    RopeKind kind;
    int original;     /* tokens of the context before scaling (llama3, yarn) */
    double factor;    /* that it is stretched by */
    double low, high; /* turns in the original context: pairs below `low` are stretched wholly, above `high` not at all.
                         llama3: low_freq_factor, high_freq_factor; yarn: beta_slow, beta_fast */
    double magnitude; /* of the rotated vectors (yarn: attention_factor) */
    int truncate;     /* yarn: the bounds are whole pairs */
} RopeScaling;

/* GPT-2, LLaMA, Qwen2 and Qwen3 are values of this struct, not code paths. */
typedef struct {
    int V, Vp;   /* vocabulary; rows of wte and whead (V rounded up to 64, the rest zero and never scored) */
    int L, C;    /* layers, channels */
    int NH, NKV; /* query heads, key/value heads: head h reads key/value head h / (NH / NKV) */
    int HD, F;   /* head size (NH * HD need not be C), MLP width */
    int max_T;   /* learned positions: rows of their table; RoPE: the context that the model is made for, 0 unknown */
    int window;  /* tokens that attention may look back, 0: all. Only sequences that do not notice are accepted */
    NormKind norm;
    PosKind pos;
    MlpKind mlp;
    int qkv_bias; /* biases on wq, wk, wv */
    int o_bias;   /* a bias on wo */
    int mlp_bias; /* biases in the MLP */
    int qk_norm;  /* rmsnorm of each head of q and k before RoPE */
    int tied;     /* the head is wte */
    double norm_eps, rope_theta;
    double init_std;
    RopeScaling rope;
} ModelConfig;

/* Its fields by name, for files. */
typedef struct {
    const char *name;
    size_t offset;
    int real; /* a double, else an int */
} ConfigField;

static const ConfigField config_fields[] = {
    {"V", offsetof(ModelConfig, V), 0},
    {"L", offsetof(ModelConfig, L), 0},
    {"C", offsetof(ModelConfig, C), 0},
    {"NH", offsetof(ModelConfig, NH), 0},
    {"NKV", offsetof(ModelConfig, NKV), 0},
    {"HD", offsetof(ModelConfig, HD), 0},
    {"F", offsetof(ModelConfig, F), 0},
    {"max_T", offsetof(ModelConfig, max_T), 0},
    {"norm", offsetof(ModelConfig, norm), 0},
    {"pos", offsetof(ModelConfig, pos), 0},
    {"mlp", offsetof(ModelConfig, mlp), 0},
    {"window", offsetof(ModelConfig, window), 0},
    {"qkv_bias", offsetof(ModelConfig, qkv_bias), 0},
    {"o_bias", offsetof(ModelConfig, o_bias), 0},
    {"mlp_bias", offsetof(ModelConfig, mlp_bias), 0},
    {"qk_norm", offsetof(ModelConfig, qk_norm), 0},
    {"tied", offsetof(ModelConfig, tied), 0},
    {"norm_eps", offsetof(ModelConfig, norm_eps), 1},
    {"rope_theta", offsetof(ModelConfig, rope_theta), 1},
    {"rope_kind", offsetof(ModelConfig, rope.kind), 0},
    {"rope_original", offsetof(ModelConfig, rope.original), 0},
    {"rope_factor", offsetof(ModelConfig, rope.factor), 1},
    {"rope_low", offsetof(ModelConfig, rope.low), 1},
    {"rope_high", offsetof(ModelConfig, rope.high), 1},
    {"rope_magnitude", offsetof(ModelConfig, rope.magnitude), 1},
    {"rope_truncate", offsetof(ModelConfig, rope.truncate), 0},
};
enum { NUM_CONFIG_FIELDS = sizeof config_fields / sizeof config_fields[0] };

static inline double config_get(const ModelConfig *m, int field) {
    const char *at = (const char *)m + config_fields[field].offset;
    return config_fields[field].real ? *(const double *)at : *(const int *)at;
}

enum {
    MAX_THREADS = 1024,
    MAX_WIDTH = 1 << 20, /* channels, MLP width, heads x head size: no product of sizes may overflow */
    MAX_LAYERS = 1 << 12,
    MAX_STRETCH = 1 << 20, /* factor of a RoPE scaling */
    MAX_OPTIONS = 48,      /* of a run, on the command line and in a checkpoint */
    MAX_VALUE = 4096,      /* bytes of an option's value with its end; longer ones are refused */
};

typedef enum { RECOMPUTE_CHUNK, RECOMPUTE_LAYER } Recompute;

typedef struct {
    const char *data, *val, *model, *log, *out, *prompt, *dump; /* "" when not given */
    int T, B, chunk_size, P;
    int carry;     /* Carry */
    int recompute; /* Recompute */
    int grad_accum, steps;
    double lr;
    int warmup;
    int schedule; /* ScheduleKind */
    double weight_decay, clip;
    int seed, threads, val_every, val_seqs, recall_distance;
    int save_every, keep, resume;
    int sample_every, sample_len, top_k;
    double temperature;
    int plan;
    double rope_theta;        /* 0: the model's own */
    const char *rope_scaling; /* "" the model's own; see rope_set_scaling() */
    int save_dtype;           /* HfSave */
} TrainConfig;

typedef struct {
    const char *name, *about;
    ModelConfig model;
    int T, B, chunk_size, P, steps, warmup;
    double lr, weight_decay;
} Preset;

/* The order of the initializers is the order of the fields above. */
static const Preset presets[] = {
    {"recall",
     "0.2M, LLaMA: the generated recall task",
     {304,      0,          2, 64, 4, 2, 32, 192,  0,       0,   NORM_RMSNORM,
      POS_ROPE, MLP_SWIGLU, 0, 0,  0, 0, 0,  1e-5, 10000.0, 0.1, {ROPE_NONE, 0, 0, 0, 0, 0, 0}},
     512,
     8,
     32,
     32,
     800,
     20,
     4e-3,
     0.1},
    {"tiny",
     "1.0M, LLaMA: text as bytes",
     {257,      0,          4, 128, 4, 2, 32, 512,  0,       0,    NORM_RMSNORM,
      POS_ROPE, MLP_SWIGLU, 0, 0,   0, 0, 1,  1e-5, 10000.0, 0.05, {ROPE_NONE, 0, 0, 0, 0, 0, 0}},
     4096,
     1,
     512,
     64,
     200,
     20,
     3e-3,
     0.1},
    {"gpt2",
     "124M, GPT-2",
     {50257,       0,        12, 768, 12, 12, 64, 3072, 1024, 0,    NORM_LAYERNORM,
      POS_LEARNED, MLP_GELU, 1,  1,   1,  0,  1,  1e-5, 0.0,  0.02, {ROPE_NONE, 0, 0, 0, 0, 0, 0}},
     1024,
     4,
     256,
     64,
     100,
     20,
     6e-4,
     0.1},
    {"llama-3m",
     "3M, LLaMA: the model of the benchmarks",
     {512,      0,          4, 256, 4, 2, 64, 704,  0,       0,    NORM_RMSNORM,
      POS_ROPE, MLP_SWIGLU, 0, 0,   0, 0, 1,  1e-5, 10000.0, 0.05, {ROPE_NONE, 0, 0, 0, 0, 0, 0}},
     8192,
     1,
     512,
     64,
     100,
     20,
     1e-3,
     0.1},
    {"llama-15m",
     "15M, LLaMA of the stories15M shape",
     {32000,    0,          6, 288, 6, 6, 48, 768,  0,       0,    NORM_RMSNORM,
      POS_ROPE, MLP_SWIGLU, 0, 0,   0, 0, 1,  1e-5, 10000.0, 0.02, {ROPE_NONE, 0, 0, 0, 0, 0, 0}},
     2048,
     4,
     512,
     64,
     100,
     20,
     1e-3,
     0.1},
    {"qwen2.5-0.5b",
     "494M, Qwen2",
     {151936,   0,          24, 896, 14, 2, 64, 4864, 0,   0,    NORM_RMSNORM,
      POS_ROPE, MLP_SWIGLU, 1,  0,   0,  0, 1,  1e-6, 1e6, 0.02, {ROPE_NONE, 0, 0, 0, 0, 0, 0}},
     4096,
     1,
     512,
     64,
     100,
     10,
     3e-4,
     0.1},
    {"qwen2.5-7b",
     "7.6B, Qwen2",
     {152064,   0,          28, 3584, 28, 4, 128, 18944, 0,   0,    NORM_RMSNORM,
      POS_ROPE, MLP_SWIGLU, 1,  0,    0,  0, 0,   1e-6,  1e6, 0.02, {ROPE_NONE, 0, 0, 0, 0, 0, 0}},
     4096,
     1,
     512,
     64,
     100,
     10,
     1e-4,
     0.1},
    {"qwen3-0.6b",
     "596M, Qwen3",
     {151936,   0,          28, 1024, 16, 8, 128, 3072, 0,   0,    NORM_RMSNORM,
      POS_ROPE, MLP_SWIGLU, 0,  0,    0,  1, 1,   1e-6, 1e6, 0.02, {ROPE_NONE, 0, 0, 0, 0, 0, 0}},
     4096,
     1,
     512,
     64,
     100,
     10,
     3e-4,
     0.1},
};
enum { NUM_PRESETS = sizeof presets / sizeof presets[0] };

/* NULL if there is none of that name. */
static inline const Preset *preset_find(const char *name) {
    for (int i = 0; i < NUM_PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) return &presets[i];
    }
    return NULL;
}

static inline ModelConfig model_config(const Preset *preset) {
    ModelConfig m = preset->model;
    m.Vp = (int)round_up((size_t)m.V, 64);
    return m;
}

/* What stands in every option before the command line is read. */
static inline TrainConfig train_config(const Preset *preset) {
    TrainConfig c;
    c.data = "recall";
    c.val = c.log = c.out = c.prompt = c.dump = "";
    c.model = preset->name;
    c.T = preset->T;
    c.B = preset->B;
    c.chunk_size = preset->chunk_size;
    c.P = preset->P;
    c.carry = CARRY_EXACT;
    c.recompute = RECOMPUTE_CHUNK;
    c.grad_accum = 1;
    c.steps = preset->steps;
    c.lr = preset->lr;
    c.warmup = preset->warmup;
    c.schedule = SCHEDULE_COSINE;
    c.weight_decay = preset->weight_decay;
    c.clip = 1.0;
    c.seed = 1;
    c.threads = 0;
    c.val_every = 0;
    c.val_seqs = 16;
    c.recall_distance = 0;
    c.save_every = 0;
    c.keep = 2;
    c.resume = 0;
    c.sample_every = 0;
    c.sample_len = 0;
    c.top_k = 0;
    c.temperature = 1.0;
    c.plan = 0;
    c.rope_theta = 0;
    c.rope_scaling = "";
    c.save_dtype = 0;
    return c;
}

/* Ends the program when the mathematics of the model could not be what the config says. what: its name, for errors. */
static inline void model_config_check(const char *what, const ModelConfig *m) {
    if (m->V < 1 || m->L < 1 || m->C < 1 || m->NH < 1 || m->NKV < 1 || m->HD < 1 || m->F < 1) {
        die("%s: V %d, L %d, C %d, NH %d, NKV %d, HD %d, F %d: all must be at least 1", what, m->V, m->L, m->C, m->NH,
            m->NKV, m->HD, m->F);
    }
    if ((int64_t)m->NH * m->HD > MAX_WIDTH || m->C > MAX_WIDTH || m->F > MAX_WIDTH || m->L > MAX_LAYERS)
        die("%s: L %d, C %d, NH %d, HD %d, F %d: a width may be %d at most, and there may be %d layers", what, m->L,
            m->C, m->NH, m->HD, m->F, MAX_WIDTH, MAX_LAYERS);
    if (m->NH % m->NKV) die("%s: %d query heads cannot share %d key/value heads evenly", what, m->NH, m->NKV);
    if (m->pos == POS_ROPE && m->HD % 2) die("%s: RoPE turns pairs of channels; head size %d is odd", what, m->HD);
    if (m->pos == POS_ROPE && !(m->rope_theta > 1)) die("%s: rope_theta %g; must be over 1", what, m->rope_theta);
    if (m->rope.kind != ROPE_NONE && !(m->rope.factor >= 1))
        die("%s: RoPE scaling %s by a factor of %g; must be at least 1", what, rope_kinds[m->rope.kind],
            m->rope.factor);
    if (m->rope.kind >= ROPE_LLAMA3 && (m->rope.original < 1 || !(m->rope.low > 0) || !(m->rope.high > m->rope.low)))
        die("%s: RoPE scaling %s from a context of %d with bounds %g and %g; needs a context, and bounds in "
            "ascending order",
            what, rope_kinds[m->rope.kind], m->rope.original, m->rope.low, m->rope.high);
    if (m->rope.kind == ROPE_YARN && !(m->rope.magnitude > 0))
        die("%s: yarn with an attention factor of %g; must be over 0", what, m->rope.magnitude);
    if (m->pos == POS_LEARNED && m->max_T < 1)
        die("%s: learned positions need a table, but max_T is %d", what, m->max_T);
    if (m->Vp < m->V) die("%s: Vp %d is less than V %d", what, m->Vp, m->V);
}

/* The same for the run: sizes that must fit each other. */
static inline void train_config_check(const TrainConfig *c, const ModelConfig *m) {
    model_config_check(c->model, m);
    if (m->pos == POS_LEARNED && c->T > m->max_T) {
        die("--seq-len %d: %s has a table of %d learned positions; use --seq-len %d, or a RoPE model (--model tiny, "
            "llama-15m) for longer sequences",
            c->T, c->model, m->max_T, m->max_T);
    }
    if (m->pos == POS_LEARNED && (*c->rope_scaling || c->rope_theta != 0))
        die("--rope-%s: %s has learned positions, no RoPE", *c->rope_scaling ? "scaling" : "theta", c->model);
    if (m->window && c->T > m->window)
        die("--seq-len %d: %s lets attention look back %d tokens only (sliding_window in its config.json), which this "
            "program cannot; use --seq-len %d, or set sliding_window to null there to train it with full attention",
            c->T, c->model, m->window, m->window);
    if (c->chunk_size < c->T && c->P > c->chunk_size)
        die("--page %d: larger than the chunk (--chunk %d); use a page that divides it", c->P, c->chunk_size);
    if (c->chunk_size < c->T && c->chunk_size % c->P)
        die("--chunk %d: not a multiple of the page (--page %d); the nearest that is: --chunk %zu", c->chunk_size, c->P,
            round_up((size_t)c->chunk_size, (size_t)c->P));
    if (c->val_seqs == 0 && (*c->val || c->val_every))
        die("--val-seqs 0: means never to validate, but --val or --val-every was given; leave one of them out");
    if (round_up((size_t)c->T, (size_t)c->P) > INT32_MAX)
        die("--seq-len %d: in whole pages of %d that is more than %d tokens", c->T, c->P, INT32_MAX);
    if ((double)c->B * c->T * c->grad_accum * m->L * MAX_WIDTH > 0x1p60)
        die("--seq-len %d: with --batch %d and --grad-accum %d that is more than any machine could hold", c->T, c->B,
            c->grad_accum);
    size_t pages = ceil_div((size_t)c->T, (size_t)c->P) * (size_t)c->B * (size_t)m->L;
    if (pages > INT32_MAX)
        die("--page %d: %zu pages are more than the table can number; use a larger --page", c->P, pages);
    if ((uint64_t)c->steps * (uint64_t)c->grad_accum * (uint64_t)c->B > (uint64_t)1 << 62)
        die("--steps %d: too many", c->steps);
    if (c->threads > MAX_THREADS) die("--threads %d: at most %d", c->threads, MAX_THREADS);
    if (!(c->lr >= 0)) die("--lr %g: must be 0 or more", c->lr);
    if (!(c->weight_decay >= 0)) die("--weight-decay %g: must be 0 or more", c->weight_decay);
    if (c->save_every && !*c->out) die("--save-every %d: where to? Give --out DIR", c->save_every);
    if (c->keep != 2 && !*c->out) die("--keep %d: there are no checkpoints; give --out DIR", c->keep);
    if (c->resume && !*c->out) die("--resume: from where? Give --out DIR");
    const int samples = c->sample_every || *c->prompt;
    if (c->sample_len && !samples)
        die("--sample-len %d: nothing asks for a sample; give --prompt or --sample-every", c->sample_len);
    if (c->top_k && !samples) die("--top-k %d: nothing asks for a sample; give --prompt or --sample-every", c->top_k);
    if (!(c->temperature >= 0)) die("--temperature %g: must be 0 (always the likeliest token) or more", c->temperature);
    if (c->temperature != 1 && !samples)
        die("--temperature %g: nothing asks for a sample; give --prompt or --sample-every", c->temperature);
    if (c->save_dtype && !*c->out) die("--save-dtype: where to? Give --out DIR");
    if (*c->dump && c->steps == 0) die("--dump %s: there is no step to write down with --steps 0", c->dump);
    if (!(c->clip >= 0)) die("--clip %g: must be 0 (no clipping) or more", c->clip);
}

/* A chunk of at least the sequence is one chunk: the sequence, in whole pages. */
static inline int chunk_capacity(const TrainConfig *run) {
    return run->chunk_size < run->T ? run->chunk_size : (int)round_up(run->T, run->P);
}

#endif
