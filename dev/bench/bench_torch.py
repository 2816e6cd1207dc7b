"""Training steps in PyTorch: the peer of scripts/bench_cpu.sh.

Usage: bench_torch.py MODEL B T STEPS --tokens FILE.bin [--checkpoint] [--threads N]     MODEL: a preset below

The presets of that name with random weights, and the tokens of FILE (uint16, as llm.c writes them): forward, backward,
clipping, fused AdamW. Attention is the fused kernel of torch.nn.functional.scaled_dot_product_attention. --checkpoint
makes each layer's activations again in the backward. Prints the milliseconds of every step but the first, and the
process's peak memory in bytes. Needs PyTorch 2.9 or so: older ones have no fused attention with fewer key/value heads
on a CPU, and end with an error."""

import argparse
import resource
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

PRESETS = {  # as in oomb/config.h: V, L, C, NH, NKV, F
    "gpt2": (50257, 12, 768, 12, 12, 3072),
    "llama-3m": (512, 4, 256, 4, 2, 704),
    "llama-15m": (32000, 6, 288, 6, 6, 768),
}


class Layer(nn.Module):
    def __init__(self, llama, C, NH, NKV, width):
        super().__init__()
        self.llama, self.NH, self.NKV, self.HD = llama, NH, NKV, C // NH
        norm = nn.RMSNorm if llama else nn.LayerNorm
        self.ln1, self.ln2 = norm(C, eps=1e-5), norm(C, eps=1e-5)
        self.qkv = nn.Linear(C, C + 2 * NKV * self.HD, bias=not llama)
        self.out = nn.Linear(C, C, bias=not llama)
        self.up = nn.Linear(C, 2 * width if llama else width, bias=not llama)
        self.down = nn.Linear(width, C, bias=not llama)

    def forward(self, x, cosine, sine):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).split([C, self.NKV * self.HD, self.NKV * self.HD], dim=-1)
        q, k, v = (y.view(B, T, -1, self.HD).transpose(1, 2) for y in (q, k, v))
        if self.llama:
            turn = lambda y: y * cosine + torch.cat((-y[..., self.HD // 2 :], y[..., : self.HD // 2]), -1) * sine
            q, k = turn(q), turn(k)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # the fused one, or an error
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.NH != self.NKV)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        h = self.up(self.ln2(x))
        if self.llama:
            gate, up = h.chunk(2, dim=-1)
            h = F.silu(gate) * up
        else:
            h = F.gelu(h, approximate="tanh")
        return x + self.down(h)


class Model(nn.Module):
    def __init__(self, name, T):
        super().__init__()
        V, L, C, NH, NKV, width = PRESETS[name]
        self.llama = name != "gpt2"
        self.wte = nn.Embedding(V, C)
        self.wpe = None if self.llama else nn.Embedding(max(T, 1024), C)
        self.layers = nn.ModuleList(Layer(self.llama, C, NH, NKV, width) for _ in range(L))
        self.lnf = (nn.RMSNorm if self.llama else nn.LayerNorm)(C, eps=1e-5)
        HD = C // NH
        angles = torch.outer(torch.arange(T), 10000.0 ** (-torch.arange(0, HD, 2) / HD)).repeat(1, 2)
        self.cosine, self.sine = angles.cos(), angles.sin()
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets, again):
        x = self.wte(ids)
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(ids.shape[1]))
        for layer in self.layers:
            if again:
                x = checkpoint(layer, x, self.cosine, self.sine, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x, self.cosine, self.sine)
        logits = F.linear(self.lnf(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", choices=PRESETS)
    p.add_argument("B", type=int)
    p.add_argument("T", type=int)
    p.add_argument("steps", type=int)
    p.add_argument("--tokens", required=True)
    p.add_argument("--checkpoint", action="store_true")
    p.add_argument("--threads", type=int, default=0)
    a = p.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model = Model(a.model, a.T)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.from_numpy(np.fromfile(a.tokens, dtype=np.uint16, offset=1024).astype(np.int64))
    times = []
    for step in range(a.steps + 1):
        at = step * a.B * a.T % (len(ids) - a.B * a.T)
        inputs, targets = (ids[at + i : at + i + a.B * a.T].view(a.B, a.T) for i in (0, 1))
        start = time.perf_counter()
        loss = model(inputs, targets, a.checkpoint)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        times.append((time.perf_counter() - start) * 1e3)
    print(" ".join(f"{t:.1f}" for t in times[1:]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    main()
