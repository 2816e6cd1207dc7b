/* hf_config.h: config.json of a Hugging Face model directory. What it says about the mathematics becomes a ModelConfig;
   what would change the mathematics and is not supported is refused by name; and the file can be written again with
   what a run has changed, everything else as it was.

   The rules (which keys count for which model_type, what holds where a key is missing, the spellings of RoPE scaling
   that versions of transformers have written) are those of transformers 5. */
#ifndef OOMB_HF_CONFIG_H
#define OOMB_HF_CONFIG_H

#include "config.h"
#include "json.h"
#include "rope.h"

enum {
    HF_CONFIG_BYTES = 1 << 20, /* of a config.json, at most */
    HF_KEY = 64,               /* bytes of a key, with its end */
    HF_TEXT = 64,              /* the same of a string that matters; longer ones do not */
    HF_KEYS = 512,             /* of one object */
};

typedef enum { HF_GPT2, HF_LLAMA, HF_MISTRAL, HF_QWEN2, HF_QWEN3, HF_NUM_TYPES } HfType;
static const char *const hf_types[HF_NUM_TYPES] = {"gpt2", "llama", "mistral", "qwen2", "qwen3"};

typedef enum { HF_NULL, HF_BOOL, HF_NUMBER, HF_STRING, HF_OBJECT, HF_ARRAY } HfKind;
static const char *const hf_kinds[] = {"null", "true or false", "a number", "a string", "an object", "an array"};

typedef struct {
    char key[HF_KEY];
    HfKind kind;
    double number;      /* HF_NUMBER, HF_BOOL */
    char text[HF_TEXT]; /* HF_STRING */
    size_t from, to;    /* the value's bytes in the file */
    int used;
} HfEntry;

/* A JSON object: its entries in the order of the file. */
typedef struct {
    const char *path, *text; /* of the whole file */
    size_t bytes, end;       /* of the file; the place of the closing brace */
    const char *where;       /* "" or "rope_scaling.": how messages name a key */
    HfEntry *entries;        /* (count) */
    int count;
} HfObject;

/* ------------------------------------------------------------------------------------------- objects */

/* The value at hand into e. */
static inline void hf_read_value(Json *j, HfEntry *e) {
    const char c = json_peek(j);
    e->from = json_at(j);
    if (c == '"') {
        char long_text[4096];
        e->kind = HF_STRING;
        if (json_string(j, long_text, sizeof long_text))
            snprintf(e->text, sizeof e->text, "%.*s", (int)sizeof e->text - 1, long_text);
    } else if (c == '{' || c == '[' || c == 't' || c == 'f' || c == 'n') {
        e->kind = c == '{' ? HF_OBJECT : c == '[' ? HF_ARRAY : c == 'n' ? HF_NULL : HF_BOOL;
        e->number = c == 't';
        json_skip(j);
    } else {
        e->kind = HF_NUMBER;
        json_double(j, &e->number);
    }
    e->to = json_at(j);
}

/* The object at bytes from .. to of text. Ends the program when it is none, or has a key twice. */
static inline HfObject hf_object(const char *path, const char *where, const char *text, size_t from, size_t to) {
    HfObject o;
    HfEntry e;
    memset(&o, 0, sizeof o);
    o.path = path;
    o.where = where;
    o.text = text;
    o.bytes = to;
    Json j = json_begin(text, to);
    j.at = text + from;
    for (json_open(&j, '{'); memset(&e, 0, sizeof e), json_key(&j, e.key, sizeof e.key);) {
        hf_read_value(&j, &e);
        for (int i = 0; i < o.count; i++) {
            if (strcmp(o.entries[i].key, e.key) == 0) die("%s: the key \"%s%s\" stands twice", path, where, e.key);
        }
        if (o.count == HF_KEYS) die("%s: more than %d keys", path, HF_KEYS);
        if (o.count % 64 == 0) o.entries = (HfEntry *)xrealloc(o.entries, (size_t)o.count + 64, sizeof e);
        o.entries[o.count++] = e;
    }
    o.end = json_at(&j) - (j.error ? 0 : 1);
    if (!json_end(&j)) die("%s: byte %zu: %s", path, json_at(&j), j.error);
    return o;
}

static inline void hf_object_free(HfObject *o) {
    free(o->entries);
    memset(o, 0, sizeof *o);
}

/* NULL if there is none. What was asked for is known: hf_report_unknown() names the rest. */
static inline HfEntry *hf_find(HfObject *o, const char *key) {
    for (int i = 0; i < o->count; i++) {
        if (strcmp(o->entries[i].key, key) != 0) continue;
        o->entries[i].used = 1;
        return &o->entries[i];
    }
    return NULL;
}

/* The entry if it is there and of this kind, NULL if it is missing or null. */
static inline const HfEntry *hf_expect(HfObject *o, const char *key, HfKind kind) {
    const HfEntry *e = hf_find(o, key);
    if (!e || e->kind == HF_NULL) return NULL;
    if (e->kind != kind)
        die("%s: \"%s%s\" is %s, but must be %s", o->path, o->where, key, hf_kinds[e->kind], hf_kinds[kind]);
    return e;
}

/* A whole number from `least` on; `otherwise` where it is missing or null, and -1 there: it must be given. */
static inline int hf_int(HfObject *o, const char *key, int least, int otherwise) {
    const HfEntry *e = hf_expect(o, key, HF_NUMBER);
    if (!e && otherwise < 0) die("%s: the key \"%s%s\" is missing", o->path, o->where, key);
    if (!e) return otherwise;
    if (!(e->number >= least && e->number <= INT32_MAX) || e->number != floor(e->number))
        die("%s: \"%s%s\" is %.*s; must be a whole number from %d to %d", o->path, o->where, key,
            (int)(e->to - e->from), o->text + e->from, least, INT32_MAX);
    return (int)e->number;
}

static inline double hf_real(HfObject *o, const char *key, double otherwise) {
    const HfEntry *e = hf_expect(o, key, HF_NUMBER);
    if (e && !isfinite(e->number)) die("%s: \"%s%s\" is too large", o->path, o->where, key);
    return e ? e->number : otherwise;
}

static inline int hf_bool(HfObject *o, const char *key, int otherwise) {
    const HfEntry *e = hf_expect(o, key, HF_BOOL);
    return e ? e->number != 0 : otherwise;
}

/* ------------------------------------------------------------------------------------------- RoPE */

/* Keys of a RoPE object whose meaning is known here; another one may change the mathematics. */
static inline void hf_check_rope_keys(const HfObject *o) {
    static const char *const harmless[] = {"type", "rope_type", "rope_theta", "finetuned"};
    for (int i = 0; i < o->count; i++) {
        int known = o->entries[i].used;
        for (size_t k = 0; k < sizeof harmless / sizeof harmless[0]; k++)
            known |= strcmp(o->entries[i].key, harmless[k]) == 0;
        if (!known)
            die("%s: \"%s%s\" is not known here and may change the mathematics; remove it if it does not", o->path,
                o->where, o->entries[i].key);
    }
}

/* attention_factor of YaRN: given, or from mscale and mscale_all_dim, or from the factor. */
static inline double hf_yarn_magnitude(HfObject *o, double factor) {
    const double given = hf_real(o, "attention_factor", 0), some = hf_real(o, "mscale", 0),
                 all = hf_real(o, "mscale_all_dim", 0), log_factor = factor > 1 ? 0.1 * log(factor) : 0;
    if (given != 0) return given;
    return some != 0 && all != 0 ? (some * log_factor + 1) / (all * log_factor + 1) : rope_yarn_magnitude(factor);
}

/* The scaling that object o asks for. original: the context before it if the top of the config says so, which prevails,
   else 0; context: that of the config. */
static inline RopeScaling hf_rope_scaling(HfObject *o, int original, int context) {
    RopeScaling s;
    memset(&s, 0, sizeof s);
    const HfEntry *type = hf_expect(o, "rope_type", HF_STRING);
    if (!type) type = hf_expect(o, "type", HF_STRING);
    const char *name = type ? type->text : "default";
    if (strcmp(name, "default") == 0) name = "none";
    int kind = 0;
    while (kind <= ROPE_YARN && strcmp(name, rope_kinds[kind]) != 0) kind++;
    if (kind > ROPE_YARN)
        die("%s: \"%srope_type\" is \"%s\"; default, linear, llama3 and yarn are supported", o->path, o->where, name);
    s.kind = (RopeKind)kind;
    if (kind == ROPE_NONE) return s;
    s.factor = hf_real(o, "factor", 0);
    if (kind != ROPE_LINEAR) {
        const int inside = hf_int(o, "original_max_position_embeddings", 1, context);
        s.original = original ? original : inside;
        s.low = hf_real(o, kind == ROPE_YARN ? "beta_slow" : "low_freq_factor", 0);
        s.high = hf_real(o, kind == ROPE_YARN ? "beta_fast" : "high_freq_factor", 0);
    }
    if (kind == ROPE_YARN) {
        if (s.factor == 0) s.factor = (double)context / s.original;
        if (s.low == 0) s.low = 1; /* as transformers: 0 means not given */
        if (s.high == 0) s.high = 32;
        s.magnitude = hf_yarn_magnitude(o, s.factor);
        s.truncate = hf_bool(o, "truncate", 1);
    }
    return s;
}

/* theta and scaling, from "rope_scaling" (old) or "rope_parameters" (new, where theta stands inside, and which may hold an
   object for each kind of layer if the model has kinds). sliding: it has layers of both. */
static inline void hf_rope(HfObject *config, ModelConfig *m, int kinds, int sliding) {
    const HfEntry *newer = hf_expect(config, "rope_parameters", HF_OBJECT),
                  *e = hf_expect(config, "rope_scaling", HF_OBJECT);
    if (e) { /* an empty one says nothing */
        HfObject old = hf_object(config->path, "rope_scaling.", config->text, e->from, e->to);
        if (old.count == 0) e = NULL;
        hf_object_free(&old);
    }
    m->rope_theta = hf_real(config, "rope_theta", 10000);
    double part = hf_real(config, "partial_rotary_factor", 1);
    const int original = hf_int(config, "original_max_position_embeddings", 1, 0);
    const char *where = e ? "rope_scaling." : "rope_parameters.";
    if (!e) e = newer;
    if (e) {
        HfObject o = hf_object(config->path, where, config->text, e->from, e->to);
        const HfEntry *full = kinds ? hf_expect(&o, "full_attention", HF_OBJECT) : NULL;
        if (full) {
            if (sliding) die("%s: RoPE of its own for sliding layers is not supported", config->path);
            const size_t from = full->from, to = full->to;
            hf_object_free(&o);
            o = hf_object(config->path, "rope_parameters.full_attention.", config->text, from, to);
        }
        m->rope = hf_rope_scaling(&o, original, m->max_T);
        m->rope_theta = hf_real(&o, "rope_theta", m->rope_theta);
        part = hf_real(&o, "partial_rotary_factor", part);
        hf_check_rope_keys(&o);
        hf_object_free(&o);
        if (m->rope.kind == ROPE_YARN && m->rope.original * m->rope.factor > m->max_T)
            m->max_T = (int)fmin(m->rope.original * m->rope.factor, INT32_MAX);
    }
    if (part != 1)
        die("%s: \"partial_rotary_factor\" is %g: RoPE on a part of the channels is not supported", config->path, part);
}

/* ------------------------------------------------------------------------------------------- models */

/* Ends the program unless the key is missing, null or one of the two names. */
static inline void hf_check_activation(HfObject *o, const char *key, const char *name, const char *alias) {
    const HfEntry *e = hf_expect(o, key, HF_STRING);
    if (e && strcmp(e->text, name) != 0 && strcmp(e->text, alias) != 0)
        die("%s: \"%s\" is \"%s\"; of a %s model only \"%s\" is supported", o->path, key, e->text,
            hf_expect(o, "model_type", HF_STRING)->text, name);
}

static inline void hf_refuse_if(HfObject *o, const char *key, int unless) {
    if (hf_bool(o, key, unless) != unless)
        die("%s: \"%s\" is %s, which is not supported", o->path, key, unless ? "false" : "true");
}

static inline void hf_gpt2(HfObject *o, ModelConfig *m) {
    m->C = hf_int(o, "n_embd", 1, -1);
    m->L = hf_int(o, "n_layer", 1, -1);
    m->NH = m->NKV = hf_int(o, "n_head", 1, -1);
    m->max_T = hf_int(o, "n_positions", 1, 1024);
    if (m->C > INT32_MAX / 4) die("%s: \"n_embd\" is %d: too large", o->path, m->C);
    m->F = hf_int(o, "n_inner", 1, 4 * m->C);
    if (m->C % m->NH) die("%s: %d channels cannot be divided among %d heads", o->path, m->C, m->NH);
    m->HD = m->C / m->NH;
    m->norm = NORM_LAYERNORM;
    m->pos = POS_LEARNED;
    m->mlp = MLP_GELU;
    m->norm_eps = hf_real(o, "layer_norm_epsilon", 1e-5);
    m->qkv_bias = m->o_bias = m->mlp_bias = 1;
    m->tied = hf_bool(o, "tie_word_embeddings", 1);
    hf_check_activation(o, "activation_function", "gelu_new", "gelu_pytorch_tanh");
    hf_refuse_if(o, "scale_attn_weights", 1);
    hf_refuse_if(o, "scale_attn_by_inverse_layer_idx", 0);
    hf_refuse_if(o, "add_cross_attention", 0);
}

/* Tokens that attention may look back in the sliding layers of a model; 0: there are none. */
static inline int hf_sliding_window(HfObject *o, HfType type, int L) {
    int sliding = type == HF_MISTRAL;
    const HfEntry *e = hf_find(o, "sliding_window");
    const int window = type == HF_LLAMA || (e && e->kind == HF_NULL) ? 0 : hf_int(o, "sliding_window", 1, 4096);
    const HfEntry *types = hf_expect(o, "layer_types", HF_ARRAY);
    const int first = hf_int(o, "max_window_layers", 0, 28);
    if (type == HF_QWEN2 || type == HF_QWEN3) {
        if (!hf_bool(o, "use_sliding_window", 0)) return 0;
        sliding = first < L;
    }
    if (types && (type == HF_QWEN2 || type == HF_QWEN3)) {
        char name[HF_TEXT];
        Json j = json_begin(o->text, types->to);
        j.at = o->text + types->from;
        sliding = 0;
        for (json_open(&j, '['); json_item(&j) && json_string(&j, name, sizeof name);) {
            if (strcmp(name, "sliding_attention") == 0) sliding = 1;
            else if (strcmp(name, "full_attention") != 0)
                die("%s: \"layer_types\" has \"%s\"; full_attention and sliding_attention are known", o->path, name);
        }
        if (!json_end(&j)) die("%s: \"layer_types\": %s", o->path, j.error);
    }
    return sliding ? window : 0;
}

static inline void hf_llama(HfObject *o, HfType type, ModelConfig *m) {
    static const int context[] = {0, 2048, 131072, 32768, 32768}, kv_heads[] = {0, 0, 8, 32, 32};
    m->C = hf_int(o, "hidden_size", 1, -1);
    m->F = hf_int(o, "intermediate_size", 1, -1);
    m->L = hf_int(o, "num_hidden_layers", 1, -1);
    m->NH = hf_int(o, "num_attention_heads", 1, -1);
    const HfEntry *kv = hf_find(o, "num_key_value_heads");
    m->NKV = hf_int(o, "num_key_value_heads", 1, kv || !kv_heads[type] ? m->NH : kv_heads[type]);
    const HfEntry *head = hf_find(o, "head_dim");
    m->HD = hf_int(o, "head_dim", 1, type == HF_QWEN3 && !head ? 128 : m->C / m->NH);
    m->max_T = hf_int(o, "max_position_embeddings", 1, context[type]);
    m->norm = NORM_RMSNORM;
    m->pos = POS_ROPE;
    m->mlp = MLP_SWIGLU;
    m->norm_eps = hf_real(o, "rms_norm_eps", 1e-6);
    const int bias = hf_bool(o, "attention_bias", 0);
    m->qkv_bias = type == HF_QWEN2 || ((type == HF_LLAMA || type == HF_QWEN3) && bias);
    m->o_bias = type != HF_QWEN2 && m->qkv_bias;
    m->mlp_bias = type == HF_LLAMA && hf_bool(o, "mlp_bias", 0);
    m->qk_norm = type == HF_QWEN3;
    m->tied = hf_bool(o, "tie_word_embeddings", 0);
    m->window = hf_sliding_window(o, type, m->L);
    hf_check_activation(o, "hidden_act", "silu", "swish");
    hf_rope(o, m, type == HF_QWEN2 || type == HF_QWEN3 || hf_find(o, "layer_types"), m->window != 0);
}

static inline HfType hf_model_type(HfObject *o) {
    const HfEntry *type = hf_expect(o, "model_type", HF_STRING);
    if (!type) die("%s: the key \"model_type\" is missing; is this the config.json of a language model?", o->path);
    int t = 0;
    while (t < HF_NUM_TYPES && strcmp(type->text, hf_types[t]) != 0) t++;
    if (t == HF_NUM_TYPES)
        die("%s: models of the type \"%s\" are not supported; gpt2, llama, mistral, qwen2 and qwen3 are", o->path,
            type->text);
    hf_refuse_if(o, "is_causal", 1);
    if (hf_expect(o, "per_layer_config", HF_OBJECT)) die("%s: \"per_layer_config\" is not supported", o->path);
    if (hf_expect(o, "quantization_config", HF_OBJECT))
        die("%s: the weights are quantised (\"quantization_config\"); train from the model that it was made from",
            o->path);
    return (HfType)t;
}

/* Keys that are known not to change what is computed here: dropout is never applied. */
static const char *const hf_harmless[] = {
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_pdrop",
    "auto_map",
    "bos_token_id",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "is_decoder",
    "label2id",
    "n_ctx",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "reorder_and_upcast_attn",
    "resid_pdrop",
    "return_dict",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "use_mrope",
    "chunk_size_feed_forward",
    "use_sliding_window",
    "unsloth_version",
    "unsloth_fixed",
};

/* Says which keys played no part: a reader may know better. */
static inline void hf_report_unknown(const HfObject *o) {
    int n = 0;
    for (int i = 0; i < o->count; i++) {
        int known = o->entries[i].used;
        for (size_t k = 0; k < sizeof hf_harmless / sizeof hf_harmless[0]; k++)
            known |= strcmp(o->entries[i].key, hf_harmless[k]) == 0;
        if (!known)
            fprintf(stderr, "%s%s",
                    n++ ? ", " : "note: config.json has keys that are not known here: ", o->entries[i].key);
    }
    if (n) fprintf(stderr, "\n");
}

/* The model that the text of a config.json describes. */
static inline ModelConfig hf_config_parse(const char *path, const char *text, size_t bytes, HfType *type, int report) {
    ModelConfig m;
    memset(&m, 0, sizeof m);
    HfObject o = hf_object(path, "", text, 0, bytes);
    *type = hf_model_type(&o);
    m.V = hf_int(&o, "vocab_size", 1, -1);
    if (m.V > INT32_MAX - 63) die("%s: \"vocab_size\" is %d: too large", path, m.V);
    m.Vp = (int)round_up((size_t)m.V, 64);
    m.init_std = 0.02;
    if (*type == HF_GPT2) hf_gpt2(&o, &m);
    else hf_llama(&o, *type, &m);
    if (!(m.norm_eps >= 0)) die("%s: the epsilon of the norms is %g; must be 0 or more", path, m.norm_eps);
    model_config_check(path, &m);
    if (report) hf_report_unknown(&o);
    hf_object_free(&o);
    return m;
}

/* The text of DIR/config.json; the caller frees it. */
static inline char *hf_config_read(const char *path, size_t *bytes) { return xread_text(path, HF_CONFIG_BYTES, bytes); }

/* ------------------------------------------------------------------------------------------- writing */

typedef struct {
    const char *key;
    char value[512];   /* JSON */
    int only_if_there; /* else it is added at the end */
} HfChange;

/* The object with changes[0 .. n-1], all else byte for byte as it was. */
static inline void hf_write_changed(FILE *f, const HfObject *o, const HfChange *changes, int n) {
    size_t at = 0;
    for (int i = 0; i < o->count; i++) {
        for (int k = 0; k < n; k++) {
            if (strcmp(o->entries[i].key, changes[k].key) != 0) continue;
            fwrite(o->text + at, 1, o->entries[i].from - at, f);
            fputs(changes[k].value, f);
            at = o->entries[i].to;
        }
    }
    size_t end = o->end; /* new keys follow the last value, before the white space in front of the brace */
    while (end > at && strchr(" \t\r\n", o->text[end - 1])) end--;
    fwrite(o->text + at, 1, end - at, f);
    int added = o->count;
    for (int k = 0; k < n; k++) {
        int there = changes[k].only_if_there;
        for (int i = 0; i < o->count; i++) there |= strcmp(o->entries[i].key, changes[k].key) == 0;
        if (!there) fprintf(f, "%s\n  \"%s\": %s", added++ ? "," : "", changes[k].key, changes[k].value);
    }
    fwrite(o->text + end, 1, o->bytes - end, f);
}

/* A real number for a reader that asks for a point or an exponent in it. */
static inline Text hf_number(double x) {
    Text t = text_real(x);
    if (!strpbrk(t.text, ".e")) strcat(t.text, ".0");
    return t;
}

/* The RoPE object of a config, with theta if it belongs inside. */
static inline void hf_rope_text(char *out, size_t size, const ModelConfig *m, int theta) {
    const RopeScaling *s = &m->rope;
    const char *kind = s->kind == ROPE_NONE ? "default" : rope_kinds[s->kind];
    int n = snprintf(out, size, "{\"rope_type\": \"%s\"", kind);
    if (theta) n += snprintf(out + n, size - (size_t)n, ", \"rope_theta\": %s", hf_number(m->rope_theta).text);
    if (s->kind != ROPE_NONE) n += snprintf(out + n, size - (size_t)n, ", \"factor\": %s", hf_number(s->factor).text);
    if (s->kind >= ROPE_LLAMA3)
        n += snprintf(out + n, size - (size_t)n, ", \"original_max_position_embeddings\": %d", s->original);
    if (s->kind == ROPE_LLAMA3)
        n += snprintf(out + n, size - (size_t)n, ", \"low_freq_factor\": %s, \"high_freq_factor\": %s",
                      hf_number(s->low).text, hf_number(s->high).text);
    if (s->kind == ROPE_YARN)
        n += snprintf(out + n, size - (size_t)n,
                      ", \"beta_slow\": %s, \"beta_fast\": %s, \"attention_factor\": %s, \"truncate\": %s",
                      hf_number(s->low).text, hf_number(s->high).text, hf_number(s->magnitude).text,
                      s->truncate ? "true" : "false");
    snprintf(out + n, size - (size_t)n, "}");
}

/* config.json of a model that came from one (text), as m is now: RoPE and context if they changed, and the dtype if the
   weights are no longer as they were (dtype NULL: they are). */
static inline void hf_config_write(FILE *f, const char *path, const char *text, size_t bytes, const ModelConfig *m,
                                   const char *dtype) {
    HfChange c[8];
    HfType type;
    int n = 0;
    memset(c, 0, sizeof c);
    const ModelConfig was = hf_config_parse(path, text, bytes, &type, 0);
    HfObject o = hf_object(path, "", text, 0, bytes);
    if (dtype) {
        const int old = hf_find(&o, "dtype") == NULL; /* torch_dtype until transformers 5 */
        c[n].key = "torch_dtype", c[n].only_if_there = !old;
        snprintf(c[n++].value, sizeof c[0].value, "\"%s\"", dtype);
        c[n].key = "dtype", c[n].only_if_there = 1;
        snprintf(c[n++].value, sizeof c[0].value, "\"%s\"", dtype);
    }
    const int context = m->pos == POS_ROPE && m->max_T != was.max_T;
    int rope = 0;
    for (int i = 0; i < NUM_CONFIG_FIELDS; i++)
        rope |= strncmp(config_fields[i].name, "rope", 4) == 0 && config_get(m, i) != config_get(&was, i);
    if (context) {
        c[n].key = "max_position_embeddings";
        snprintf(c[n++].value, sizeof c[0].value, "%d", m->max_T);
    }
    if (rope || (context && m->rope.kind >= ROPE_LLAMA3)) { /* where "original" may have been the context */
        /* in both spellings, if the file has the new one: readers of each year find what they know */
        const int none = m->rope.kind == ROPE_NONE;
        c[n].key = "original_max_position_embeddings", c[n].only_if_there = 1; /* at the top it would prevail */
        snprintf(c[n++].value, sizeof c[0].value, "%d", m->rope.original ? m->rope.original : was.max_T);
        c[n].key = "rope_parameters", c[n].only_if_there = 1;
        hf_rope_text(c[n++].value, sizeof c[0].value, m, 1);
        c[n].key = "rope_theta";
        snprintf(c[n++].value, sizeof c[0].value, "%s", hf_number(m->rope_theta).text);
        c[n].key = "rope_scaling", c[n].only_if_there = none;
        if (none) snprintf(c[n++].value, sizeof c[0].value, "null");
        else hf_rope_text(c[n++].value, sizeof c[0].value, m, 0);
    }
    hf_write_changed(f, &o, c, n);
    hf_object_free(&o);
}

/* Which of the types can say what m says; the names of tensors depend on it. */
static inline HfType hf_type_of(const ModelConfig *m) {
    if (m->pos == POS_LEARNED) return HF_GPT2;
    if (m->qk_norm) return HF_QWEN3;
    return m->qkv_bias && !m->o_bias ? HF_QWEN2 : HF_LLAMA;
}

/* config.json of a model that began here, from random weights. */
static inline void hf_config_write_new(FILE *f, const ModelConfig *m, const char *dtype) {
    static const char *const classes[] = {"GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM",
                                          "Qwen2ForCausalLM", "Qwen3ForCausalLM"};
    const HfType type = hf_type_of(m);
    fprintf(f, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n  \"torch_dtype\": \"%s\",\n",
            classes[type], hf_types[type], dtype);
    fprintf(f, "  \"bos_token_id\": null,\n  \"eos_token_id\": null,\n  \"vocab_size\": %d,\n", m->V);
    if (type == HF_GPT2) {
        fprintf(f,
                "  \"n_embd\": %d,\n  \"n_layer\": %d,\n  \"n_head\": %d,\n  \"n_inner\": %d,\n  \"n_positions\": %d,\n"
                "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": %s,\n",
                m->C, m->L, m->NH, m->F, m->max_T, hf_number(m->norm_eps).text);
    } else {
        char rope[512];
        hf_rope_text(rope, sizeof rope, m, 0);
        fprintf(f,
                "  \"hidden_size\": %d,\n  \"intermediate_size\": %d,\n  \"num_hidden_layers\": %d,\n"
                "  \"num_attention_heads\": %d,\n  \"num_key_value_heads\": %d,\n  \"head_dim\": %d,\n"
                "  \"hidden_act\": \"silu\",\n  \"max_position_embeddings\": %d,\n  \"rms_norm_eps\": %s,\n"
                "  \"rope_theta\": %s,\n  \"rope_scaling\": %s,\n",
                m->C, m->F, m->L, m->NH, m->NKV, m->HD, m->max_T, hf_number(m->norm_eps).text,
                hf_number(m->rope_theta).text, m->rope.kind == ROPE_NONE ? "null" : rope);
        if (type != HF_QWEN2) fprintf(f, "  \"attention_bias\": %s,\n", m->qkv_bias ? "true" : "false");
        if (type == HF_LLAMA) fprintf(f, "  \"mlp_bias\": %s,\n", m->mlp_bias ? "true" : "false");
        else fprintf(f, "  \"use_sliding_window\": false,\n");
    }
    fprintf(f, "  \"tie_word_embeddings\": %s\n}\n", m->tied ? "true" : "false");
}

#endif
