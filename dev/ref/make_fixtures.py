#!/usr/bin/env python3
"""Tiny random models of each family and what transformers computes with them: dev/ref/fixtures, for test_oomb.c.

    dev/ref/make_fixtures.py [DIR]        needs torch and transformers; see requirements.txt

A fixture is a Hugging Face model directory, as transformers saves it, with one file more, reference.safetensors:

    inputs, targets   (B, T) a batch; -100: not scored
    loss              of it
    logits            (B, T, vocabulary)
    grad.NAME         the gradient of every parameter, in float64
    step10.NAME       every parameter after 10 steps of AdamW on this batch

and beside the fixtures rope.safetensors: frequencies of RoPE scalings of real models.

Everything is computed in float64: where transformers asks for float32 (in norms, softmax and RoPE) it gets float64.
Weights are random, biases and norms too, and never 0 or 1: a tensor that is forgotten or swapped shows.
"""
import glob
import json
import os
import sys
from contextlib import contextmanager

import torch
import transformers
from safetensors.torch import load_file, save_file

PAGE = 4  # of the tests: T is no multiple of it
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8}
DECAY = 0.1  # on matrices
STEPS = 10

# Odd sizes; GQA ratios 1, 3, 7; every kind of RoPE scaling once, with positions far beyond the original context.
LLAMA = dict(vocab_size=37, hidden_size=14, intermediate_size=18, num_hidden_layers=2, rms_norm_eps=1e-5)
FIXTURES = {
    "gpt2": dict(
        config=("GPT2Config", dict(vocab_size=37, n_positions=32, n_embd=12, n_layer=2, n_head=3, n_inner=20,
                                   bos_token_id=None, eos_token_id=None)),
        T=29, dtype="float32"),
    "llama-llama3": dict(
        config=("LlamaConfig", dict(LLAMA, hidden_size=18, num_attention_heads=6, num_key_value_heads=2, head_dim=6, attention_bias=True,
                                    mlp_bias=True, tie_word_embeddings=True, max_position_embeddings=128,
                                    rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0,
                                                     "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                     "original_max_position_embeddings": 16})),
        T=47, dtype="bfloat16"),
    "llama-linear": dict(
        config=("LlamaConfig", dict(LLAMA, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=False,
                                    head_dim=8, max_position_embeddings=64,
                                    rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5})),
        T=31, dtype="float16", old_rope=True),
    "mistral": dict(
        config=("MistralConfig", dict(LLAMA, num_attention_heads=7, num_key_value_heads=1, head_dim=4,
                                      sliding_window=64, max_position_embeddings=64)),
        T=45, dtype="bfloat16"),
    "qwen2-yarn": dict(
        config=("Qwen2Config", dict(LLAMA, hidden_size=18, num_attention_heads=3, num_key_value_heads=1,
                                    tie_word_embeddings=True, max_position_embeddings=16,
                                    rope_parameters={"rope_type": "yarn", "rope_theta": 300.0, "factor": 4.0,
                                                     "original_max_position_embeddings": 16, "beta_fast": 4.0,
                                                     "beta_slow": 1.0})),
        T=47, dtype="bfloat16"),
    "qwen3": dict(
        config=("Qwen3Config", dict(LLAMA, num_attention_heads=6, num_key_value_heads=2, head_dim=6, attention_bias=True,
                                    max_position_embeddings=64, tie_word_embeddings=False)),
        T=45, dtype="float32", shards=True),
}

# RoPE of models that people train: head size, theta, scaling.
ROPES = {
    "llama-3.1-8b": (128, 500000.0, 131072, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                             "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "llama-3.2-1b": (64, 500000.0, 131072, {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                                            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "qwen2.5-7b-yarn": (128, 1000000.0, 32768, {"rope_type": "yarn", "factor": 4.0,
                                                "original_max_position_embeddings": 32768}),
    "yarn-untruncated": (64, 150000.0, 131072, {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                                "truncate": False, "original_max_position_embeddings": 4096}),
    "yarn-mscale": (64, 10000.0, 163840, {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.8,
                                          "original_max_position_embeddings": 4096}),
    "yarn-clamped": (64, 100.0, 262144, {"rope_type": "yarn", "factor": 2.0, "beta_fast": 4000.0, "beta_slow": 1.0,
                                         "original_max_position_embeddings": 131072}),
    "linear": (128, 10000.0, 16384, {"rope_type": "linear", "factor": 4.0}),
}


@contextmanager
def in_double():
    """While this lasts, float32 means float64 to everyone who asks torch for it."""
    kept = torch.float32, torch.float, torch.Tensor.float, torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = kept[:3]
        torch.set_default_dtype(kept[3])


def load(directory):
    """The model of a directory in float64, its RoPE tables too; to be used in_double()."""
    weights = {}
    for path in glob.glob(os.path.join(directory, "model*.safetensors")):
        weights.update(load_file(path))
    config = transformers.AutoConfig.from_pretrained(directory)
    with in_double():
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float64, attn_implementation="eager").eval()
        assert all(p.dtype == torch.float64 for p in model.parameters())
        missing, unexpected = model.load_state_dict({k: x.double() for k, x in weights.items()}, strict=False)
        assert not unexpected and missing == ["lm_head.weight"] * config.tie_word_embeddings, (missing, unexpected)
        model.tie_weights()
    return model


def loss_of(model, inputs, targets):
    logits = model(input_ids=inputs).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100), logits


def make_model(name, spec, directory, random):
    """Random weights in the fixture's dtype, saved as transformers saves."""
    kind, keys = spec["config"]
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**keys))
    model = model.to(getattr(torch, spec["dtype"]))
    with torch.no_grad():
        for key, p in model.named_parameters():
            x = torch.randn(p.shape, generator=random, dtype=torch.float64)
            norm = "norm" in key or "ln_" in key
            p.copy_(1 + 0.3 * x if norm and key.endswith("weight") else 0.3 * x)
    options = {"max_shard_size": "9KB"} if spec.get("shards") else {}
    model.save_pretrained(directory, **options)
    if spec.get("old_rope"):  # as transformers 4 wrote it
        path = os.path.join(directory, "config.json")
        with open(path) as f:
            config = json.load(f)
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
        config["torch_dtype"] = config.pop("dtype")
        with open(path, "w") as f:
            json.dump(config, f, indent=2, sort_keys=True)
            f.write("\n")


def make_reference(directory, T, vocabulary, random):
    tensors = {}
    model = load(directory)
    with in_double():
        inputs = torch.randint(0, vocabulary, (2, T), generator=random)
        targets = torch.randint(0, vocabulary, (2, T), generator=random)
        targets[torch.rand(2, T, generator=random) < 0.2] = -100
        loss, logits = loss_of(model, inputs, targets)
        loss.backward()
        tensors["inputs"], tensors["targets"] = inputs.int(), targets.int()
        tensors["loss"], tensors["logits"] = loss.detach(), logits.detach()
        for key, p in model.named_parameters():
            tensors["grad." + key] = p.grad.clone()
        groups = [{"params": [p for p in model.parameters() if (p.dim() > 1) == matrix], "weight_decay": DECAY * matrix}
                  for matrix in (False, True)]
        optimizer = torch.optim.AdamW(groups, **ADAMW)
        for step in range(STEPS):
            optimizer.step()
            if step + 1 == STEPS:
                break
            optimizer.zero_grad()
            loss_of(model, inputs, targets)[0].backward()
        after = {"step10." + key: p.detach().clone() for key, p in model.named_parameters()}
    tensors["logits"] = tensors["logits"].to(torch.float32)
    tensors.update({key: x.to(torch.float32) for key, x in after.items()})
    save_file({key: x.contiguous() for key, x in tensors.items()}, os.path.join(directory, "reference.safetensors"))


def make_ropes(path):
    tensors = {}
    for name, (head, theta, context, rope) in ROPES.items():
        config = transformers.LlamaConfig(head_dim=head, max_position_embeddings=context,
                                          rope_parameters={"rope_theta": theta, **rope})
        with in_double():
            frequencies, magnitude = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
        tensors[name + ".frequencies"] = frequencies
        tensors[name + ".magnitude"] = torch.tensor([magnitude], dtype=torch.float64)
    save_file(tensors, path)


def make_all(out):
    for number, (name, spec) in enumerate(FIXTURES.items()):
        random = torch.Generator().manual_seed(1000 + number)
        directory = os.path.join(out, name)
        os.makedirs(directory, exist_ok=True)
        make_model(name, spec, directory, random)
        make_reference(directory, spec["T"], spec["config"][1]["vocab_size"], random)
        generation = os.path.join(directory, "generation_config.json")
        if os.path.exists(generation):
            os.remove(generation)
    make_ropes(os.path.join(out, "rope.safetensors"))
    with open(os.path.join(out, "versions.json"), "w") as f:
        json.dump({"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}, f, indent=2)
        f.write("\n")


if __name__ == "__main__":
    torch.manual_seed(1)
    make_all(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures"))
