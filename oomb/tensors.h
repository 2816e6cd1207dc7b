/* tensors.h: THE table of parameters. What exists, its shape, how it starts, whether it decays,
   what it is called elsewhere: all of it stands here and nowhere else.

   A weight matrix is (rows, cols) = (outputs, inputs), as in PyTorch's nn.Linear. In memory the
   model-wide tensors of the front come first, then layer after layer (a layer is one contiguous
   block), then those of the back. Gradients, m and v have the same layout. */
#ifndef OOMB_TENSORS_H
#define OOMB_TENSORS_H

#include "config.h"

typedef enum {
    WTE,
    WPE, /* front: embeddings of tokens and positions */
    LN1W,
    LN1B,
    WQ,
    BQ,
    WK,
    BK,
    WV,
    BV,
    QNORMW,
    KNORMW,
    WO,
    BO, /* a layer's attention */
    LN2W,
    LN2B,
    WGATE,
    BGATE,
    WUP,
    BUP,
    WDOWN,
    BDOWN, /* a layer's MLP */
    LNFW,
    LNFB,
    WHEAD, /* back: final norm, untied head */
    NUM_TENSORS
} TensorId;

typedef struct {
    const char *name;               /* wq; its gradient is dwq */
    const char *hf_gpt2, *hf_llama; /* Hugging Face names; %d is the layer. GPT-2 fuses wq, wk, wv in one */
    int per_layer;
    size_t rows, cols;          /* rows 0: this model does not have it */
    int decay;                  /* weight decay: matrices only */
    double init_mean, init_std; /* starts as normal(mean, std) */
} TensorInfo;

/* Fills t[0 .. NUM_TENSORS-1] for a model. The order is that of TensorId. */
static inline void tensors_describe(const ModelConfig *m, TensorInfo *t) {
    const size_t Vp = (size_t)m->Vp, C = (size_t)m->C, F = (size_t)m->F, HD = (size_t)m->HD;
    const size_t QD = (size_t)m->NH * HD, KD = (size_t)m->NKV * HD;
    const size_t learned = m->pos == POS_LEARNED ? (size_t)m->max_T : 0, ln = m->norm == NORM_LAYERNORM;
    const size_t qkv_bias = m->qkv_bias != 0, o_bias = m->o_bias != 0, mlp_bias = m->mlp_bias != 0,
                 qk_norm = m->qk_norm != 0, gated = m->mlp == MLP_SWIGLU;
    const double std = m->init_std;
    const double res = std / sqrt(2.0 * m->L); /* GPT-2: what adds to the residual stream starts smaller */
    const TensorInfo table[NUM_TENSORS] = {
        {"wte", "transformer.wte.weight", "model.embed_tokens.weight", 0, Vp, C, 1, 0, std},
        {"wpe", "transformer.wpe.weight", "", 0, learned, C, 1, 0, std},
        {"ln1w", "transformer.h.%d.ln_1.weight", "model.layers.%d.input_layernorm.weight", 1, 1, C, 0, 1, 0},
        {"ln1b", "transformer.h.%d.ln_1.bias", "", 1, ln, C, 0, 0, 0},
        {"wq", "transformer.h.%d.attn.c_attn.weight", "model.layers.%d.self_attn.q_proj.weight", 1, QD, C, 1, 0, std},
        {"bq", "transformer.h.%d.attn.c_attn.bias", "model.layers.%d.self_attn.q_proj.bias", 1, qkv_bias, QD, 0, 0, 0},
        {"wk", "transformer.h.%d.attn.c_attn.weight", "model.layers.%d.self_attn.k_proj.weight", 1, KD, C, 1, 0, std},
        {"bk", "transformer.h.%d.attn.c_attn.bias", "model.layers.%d.self_attn.k_proj.bias", 1, qkv_bias, KD, 0, 0, 0},
        {"wv", "transformer.h.%d.attn.c_attn.weight", "model.layers.%d.self_attn.v_proj.weight", 1, KD, C, 1, 0, std},
        {"bv", "transformer.h.%d.attn.c_attn.bias", "model.layers.%d.self_attn.v_proj.bias", 1, qkv_bias, KD, 0, 0, 0},
        {"qnormw", "", "model.layers.%d.self_attn.q_norm.weight", 1, qk_norm, HD, 0, 1, 0},
        {"knormw", "", "model.layers.%d.self_attn.k_norm.weight", 1, qk_norm, HD, 0, 1, 0},
        {"wo", "transformer.h.%d.attn.c_proj.weight", "model.layers.%d.self_attn.o_proj.weight", 1, C, QD, 1, 0, res},
        {"bo", "transformer.h.%d.attn.c_proj.bias", "model.layers.%d.self_attn.o_proj.bias", 1, o_bias, C, 0, 0, 0},
        {"ln2w", "transformer.h.%d.ln_2.weight", "model.layers.%d.post_attention_layernorm.weight", 1, 1, C, 0, 1, 0},
        {"ln2b", "transformer.h.%d.ln_2.bias", "", 1, ln, C, 0, 0, 0},
        {"wgate", "", "model.layers.%d.mlp.gate_proj.weight", 1, gated ? F : 0, C, 1, 0, std},
        {"bgate", "", "model.layers.%d.mlp.gate_proj.bias", 1, gated && mlp_bias, F, 0, 0, 0},
        {"wup", "transformer.h.%d.mlp.c_fc.weight", "model.layers.%d.mlp.up_proj.weight", 1, F, C, 1, 0, std},
        {"bup", "transformer.h.%d.mlp.c_fc.bias", "model.layers.%d.mlp.up_proj.bias", 1, mlp_bias, F, 0, 0, 0},
        {"wdown", "transformer.h.%d.mlp.c_proj.weight", "model.layers.%d.mlp.down_proj.weight", 1, C, F, 1, 0, res},
        {"bdown", "transformer.h.%d.mlp.c_proj.bias", "model.layers.%d.mlp.down_proj.bias", 1, mlp_bias, C, 0, 0, 0},
        {"lnfw", "transformer.ln_f.weight", "model.norm.weight", 0, 1, C, 0, 1, 0},
        {"lnfb", "transformer.ln_f.bias", "", 0, ln, C, 0, 0, 0},
        {"whead", "lm_head.weight", "lm_head.weight", 0, m->tied ? 0 : Vp, C, 1, 0, std},
    };
    memcpy(t, table, sizeof table);
}

/* Elements of tensor id in one layer (or in the model, if it is not per layer). */
static inline size_t tensor_size(const TensorInfo *t, int id) { return t[id].rows * t[id].cols; }

/* How often tensor id exists: once per layer, once, or not at all. */
static inline int tensor_copies(const TensorInfo *t, int L, int id) {
    return !t[id].rows ? 0 : t[id].per_layer ? L : 1;
}

/* Elements before tensor `id` of layer `l` (l is ignored for a model-wide tensor). Call with
   NUM_TENSORS for the number of all parameters. */
static inline size_t tensor_offset(const TensorInfo *t, int L, int id, int l) {
    size_t before = 0, layer = 0;
    for (int i = 0; i < NUM_TENSORS; i++) {
        if (t[i].per_layer) layer += tensor_size(t, i);
    }
    int in_layer = id < NUM_TENSORS && t[id].per_layer;
    for (int i = 0; i < id; i++) {
        if (t[i].per_layer == in_layer) before += tensor_size(t, i);
        else if (in_layer && i < LN1W) before += tensor_size(t, i); /* the front stands before all layers */
    }
    if (in_layer) return before + (size_t)l * layer;
    return id > LN1W ? before + (size_t)L * layer : before;
}

/* Its name in our own files: "wte", "layer.3.wq". */
static inline void tensor_name(const TensorInfo *t, int id, int l, char *out, size_t size) {
    if (t[id].per_layer) snprintf(out, size, "layer.%d.%s", l, t[id].name);
    else snprintf(out, size, "%s", t[id].name);
}

static inline size_t tensors_total(const TensorInfo *t, int L) { return tensor_offset(t, L, NUM_TENSORS, 0); }

#endif
