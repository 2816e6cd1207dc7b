#!/usr/bin/env python3
"""One training step of transformers as a dump that dev/compare_dumps compares with that of train_oomb --dump.

    dev/ref/dump_transformers.py MODEL TOKENS.bin OUT.safetensors

MODEL is a Hugging Face directory, TOKENS.bin a token file of T + 1 tokens: one sequence, one step without its update. What
passes between the modules is caught by hooks, in float64, and gets the names of train_oomb.c: layer.0.ln1.t0 is (B, T, width),
gradients of parameters are (rows, cols), split and transposed as there.
"""
import struct
import sys

import torch
from make_fixtures import in_double, load, loss_of
from safetensors.torch import save_file

NOT_SCORED = 1 << 31


def read_tokens(path):
    """Inputs and targets (1, T) of a token file; -100: not scored."""
    with open(path, "rb") as f:
        magic, version, count = struct.unpack("<3I", f.read(1024)[:12])
        assert (magic, version) in ((20240520, 1), (20240801, 7)), f"{path}: no token file"
        if count > 1 << 16:
            sys.exit(f"error: {path}: {count} tokens in one sequence; give a file of the T + 1 tokens of one step")
        ids = struct.unpack(f"<{count}{'H' if magic == 20240520 else 'I'}", f.read())
    inputs = [x % NOT_SCORED if x < 0xFFFFFF9C else 0 for x in ids[:-1]]
    targets = [x if x < NOT_SCORED else -100 for x in ids[1:]]
    return torch.tensor([inputs]), torch.tensor([targets])


class Dump:
    """Tensors by name, in the order of the computation. catch() also takes the gradient, when it comes."""

    def __init__(self):
        self.values, self.gradients = {}, {}

    def catch(self, name, x, gradient=None, heads=False):
        """x (B, T, width), or with heads (B, heads, T, size); gradient: its name, if it is wanted."""
        def rows(y):
            y = y.transpose(1, 2).flatten(2) if heads else y
            return y.detach().clone().contiguous()
        self.values[name] = rows(x)
        if gradient:
            x.register_hook(lambda g: self.gradients.__setitem__(gradient, rows(g)))

    def save(self, path, vocabulary):
        out = {}
        for name, x in list(self.values.items()) + list(self.gradients.items()):
            if name.endswith("logits") and x.shape[-1] % 64:  # train_oomb pads its vocabulary
                x = torch.nn.functional.pad(x, (0, 64 - vocabulary % 64))
            out[name if x.dim() == 2 else name + ".t0"] = x.contiguous()
        save_file(out, path)


def hook_llama(model, dump):
    """Modules of llama, mistral, qwen2 and qwen3 have the same names."""
    module = sys.modules[type(model).__module__]
    for l, layer in enumerate(model.model.layers):
        name, attention, mlp = f"layer.{l}.", layer.self_attn, layer.mlp
        dump_in = lambda key, gradient=None, name=name: (
            lambda m, x: dump.catch(name + key, x[0], gradient and name + gradient))
        dump_out = lambda key, gradient=None, heads=False, name=name: (
            lambda m, x, y: dump.catch(name + key, y, gradient and name + gradient, heads))
        layer.input_layernorm.register_forward_pre_hook(dump_in("x", "dx"))
        layer.input_layernorm.register_forward_hook(dump_out("ln1", "dln1"))
        attention.v_proj.register_forward_hook(dump_out("v", "dv"))
        if hasattr(attention, "q_norm"):
            attention.q_proj.register_forward_hook(dump_out("qraw", "dqraw"))
            attention.k_proj.register_forward_hook(dump_out("kraw", "dkraw"))
        attention.o_proj.register_forward_pre_hook(dump_in("attn", "dattn"))
        layer.post_attention_layernorm.register_forward_pre_hook(dump_in("xmid", "dxmid"))
        layer.post_attention_layernorm.register_forward_hook(dump_out("ln2", "dln2"))
        mlp.gate_proj.register_forward_hook(dump_out("gate", "dgate"))
        mlp.up_proj.register_forward_hook(dump_out("up", "dup"))
        mlp.down_proj.register_forward_pre_hook(dump_in("act", "dact"))
    rotate, layer = module.apply_rotary_pos_emb, [0]

    def rotate_and_catch(q, k, cosine, sine, *rest, **more):
        q, k = rotate(q, k, cosine, sine, *rest, **more)
        if layer[0] == 0:
            half = cosine.shape[-1] // 2
            dump.values["cosine"], dump.values["sine"] = cosine[:, :, :half].clone(), sine[:, :, :half].clone()
        dump.catch(f"layer.{layer[0]}.q", q, f"layer.{layer[0]}.dq", heads=True)
        dump.catch(f"layer.{layer[0]}.k", k, f"layer.{layer[0]}.dk", heads=True)
        layer[0] += 1
        return q, k

    module.apply_rotary_pos_emb = rotate_and_catch
    hook_end(model.model.norm, model.lm_head, dump)


def hook_gpt2(model, dump):
    for l, layer in enumerate(model.transformer.h):
        name, C = f"layer.{l}.", model.config.n_embd
        dump_in = lambda key, gradient=None, name=name: (
            lambda m, x: dump.catch(name + key, x[0], gradient and name + gradient))
        dump_out = lambda key, gradient=None, name=name: (
            lambda m, x, y: dump.catch(name + key, y, gradient and name + gradient))

        def dump_qkv(m, x, y, name=name, C=C):
            for i, part in enumerate("qkv"):
                dump.values[name + part] = y[..., i * C : (i + 1) * C].detach().clone()
            y.register_hook(lambda g: [dump.gradients.__setitem__(name + "d" + part, g[..., i * C : (i + 1) * C].clone())
                                       for i, part in enumerate("qkv")][0])

        layer.ln_1.register_forward_pre_hook(dump_in("x", "dx"))
        layer.ln_1.register_forward_hook(dump_out("ln1", "dln1"))
        layer.attn.c_attn.register_forward_hook(dump_qkv)
        layer.attn.c_proj.register_forward_pre_hook(dump_in("attn", "dattn"))
        layer.ln_2.register_forward_pre_hook(dump_in("xmid", "dxmid"))
        layer.ln_2.register_forward_hook(dump_out("ln2", "dln2"))
        layer.mlp.c_fc.register_forward_hook(dump_out("up", "dup"))
        layer.mlp.c_proj.register_forward_pre_hook(dump_in("act", "dact"))
    hook_end(model.transformer.ln_f, model.lm_head, dump)


def hook_end(norm, head, dump):
    norm.register_forward_pre_hook(lambda m, x: dump.catch("xlast", x[0], "dxlast"))
    norm.register_forward_hook(lambda m, x, y: dump.catch("lnf", y, "dlnf"))
    head.register_forward_hook(lambda m, x, y: dump.catch("logits", y, "dlogits"))


NAMES = {  # of a layer's parameters, in both families
    "input_layernorm": "ln1", "post_attention_layernorm": "ln2", "self_attn.q_proj": "q", "self_attn.k_proj": "k",
    "self_attn.v_proj": "v", "self_attn.q_norm": "qnorm", "self_attn.k_norm": "knorm", "self_attn.o_proj": "o",
    "mlp.gate_proj": "gate", "mlp.up_proj": "up", "mlp.down_proj": "down", "ln_1": "ln1", "ln_2": "ln2",
    "attn.c_proj": "o", "mlp.c_fc": "up", "mlp.c_proj": "down",
}  # fmt: skip


def dump_parameters(model, dump):
    """Gradients under our names: of a matrix of Conv1D transposed, of its fused one in three."""
    def put(name, g):
        dump.gradients[name] = (g if g.dim() == 2 else g[None]).clone()

    top = {"model.embed_tokens.weight": "dwte", "transformer.wte.weight": "dwte", "transformer.wpe.weight": "dwpe",
           "model.norm.weight": "dlnfw", "transformer.ln_f.weight": "dlnfw", "transformer.ln_f.bias": "dlnfb",
           "lm_head.weight": "dwhead"}
    for key, p in model.named_parameters():
        if key in top:
            g = p.grad
            if top[key] in ("dwte", "dwhead"):
                g = torch.nn.functional.pad(g, (0, 0, 0, -g.shape[0] % 64))
            put(top[key], g)
            continue
        number, module = key.replace("model.layers.", "").replace("transformer.h.", "").split(".", 1)
        module, kind = module.rsplit(".", 1)
        g = p.grad.T if key.startswith("transformer.") and p.dim() == 2 else p.grad
        kind = "b" if kind == "bias" else "w"
        if module == "attn.c_attn":
            for part, piece in zip("qkv", g.chunk(3, 0)):
                put(f"layer.{number}.d{kind}{part}", piece)
        else:
            name = NAMES[module]
            put(f"layer.{number}.d{name}{kind}" if "ln" in name or "norm" in name else f"layer.{number}.d{kind}{name}", g)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    directory, tokens, out = sys.argv[1:]
    inputs, targets = read_tokens(tokens)
    model, dump = load(directory), Dump()
    with in_double():
        dump.values["inputs"], dump.values["targets"] = inputs[..., None].int(), targets[..., None].int()
        (hook_gpt2 if model.config.model_type == "gpt2" else hook_llama)(model, dump)
        loss, _ = loss_of(model, inputs, targets)
        loss.backward()
        dump_parameters(model, dump)
    dump.save(out, model.config.vocab_size)
    print(f"loss {loss.item():.9f}, {len(dump.values) + len(dump.gradients)} tensors in {out}")


if __name__ == "__main__":
    main()
