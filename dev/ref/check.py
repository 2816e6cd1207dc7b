#!/usr/bin/env python3
"""`make ref`: train_oomb against transformers, as it is installed now.

1. The fixtures, made again, are those that are committed.
2. One step of every fixture: each tensor between the modules, each gradient, by name, in float64 and in float32.
3. What train_oomb writes loads in transformers without a missing or an unexpected key, and gives the same logits:
   as it came in, after training, with another RoPE scaling, in another dtype, and begun here.

Prints a line per check; the exit status is 1 if one fails.
"""
import glob
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import torch
import transformers
from make_fixtures import FIXTURES, PAGE, in_double, load, make_all
from safetensors.torch import load_file

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
COMMITTED = os.path.join(HERE, "fixtures")
failures = 0


def report(ok, what):
    global failures
    failures += not ok
    print(f"{'ok    ' if ok else 'FAILED'} {what}", flush=True)


def run(*words, expect=0):
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if expect is not None and done.returncode != expect:
        report(False, f"{' '.join(words)}: status {done.returncode}\n{done.stdout}")
    return done


def write_tokens(path, count, vocabulary):
    """Random ids, a fifth of them not scored."""
    r = random.Random(count)
    ids = [r.randrange(vocabulary) | (1 << 31 if r.random() < 0.2 else 0) for _ in range(count)]
    with open(path, "wb") as f:
        f.write(struct.pack("<3I", 20240801, 7, count).ljust(1024, b"\0") + struct.pack(f"<{count}I", *ids))


def weights(directory):
    tensors = {}
    for path in sorted(glob.glob(os.path.join(directory, "model*.safetensors"))):
        tensors.update(load_file(path))
    return tensors


def check_fixtures(temporary):
    made = os.path.join(temporary, "fixtures")
    make_all(made)
    for name in FIXTURES:
        a, b = os.path.join(COMMITTED, name), os.path.join(made, name)
        x, y = weights(a), weights(b)
        same = x.keys() == y.keys() and all(torch.equal(x[key], y[key]) for key in x)
        x, y = load_file(os.path.join(a, "reference.safetensors")), load_file(os.path.join(b, "reference.safetensors"))
        off = max(((x[key].double() - y[key].double()).abs().max() / x[key].double().abs().max().clamp(min=1e-30)).item()
                  for key in x if "c_attn.bias" not in key) if x.keys() == y.keys() else float("inf")
        bound = 1e-6  # what is stored as float32; loss and gradients agree to 1e-13
        configs = [json.load(open(os.path.join(d, "config.json"))) for d in (a, b)]
        for config in configs:
            config.pop("transformers_version")
        report(same and off < bound and configs[0] == configs[1],
               f"fixture {name}, made again: weights {'equal' if same else 'DIFFER'}, references off by {off:.1e}, "
               f"config {'equal' if configs[0] == configs[1] else 'DIFFERS'}")


def check_dumps(temporary):
    for name, spec in FIXTURES.items():
        T, directory = spec["T"], os.path.join(COMMITTED, name)
        tokens, theirs, ours = (os.path.join(temporary, x) for x in ("tokens.bin", "theirs", "ours"))
        write_tokens(tokens, T + 1, spec["config"][1]["vocab_size"])
        run(sys.executable, os.path.join(HERE, "dump_transformers.py"), directory, tokens, theirs)
        common = ["--model", directory, "--data", tokens, "-T", str(T), "-n", "1", "--val-seqs", "0", "--dump", ours]
        for program, bound in (("./train_oomb_double", ["--bound", "1e-9"]), ("./train_oomb", [])):
            for chunk in (PAGE, 3 * PAGE, 64):
                run(program, *common, "--page", str(PAGE), "--chunk", str(chunk))
                compared = run("dev/compare_dumps", ours, theirs, "--common", *bound, expect=None)
                report(compared.returncode == 0,
                       f"{name}, {program[2:]}, chunks of {chunk}: {compared.stdout.strip().splitlines()[-1]}")
        if name != "gpt2":  # a check that cannot fail is none
            run("./train_oomb_double", *common, "--rope-theta", "77")
            compared = run("dev/compare_dumps", ours, theirs, "--common", "--bound", "1e-9", expect=None)
            report(compared.returncode == 1 and "the first is cosine" in compared.stdout,
                   f"{name}, with another theta: {compared.stdout.strip().splitlines()[-1]}")


def our_logits(directory, T, vocabulary, temporary):
    """Inputs, and the logits of train_oomb for a model directory."""
    tokens, dump = os.path.join(temporary, "tokens.bin"), os.path.join(temporary, "dump")
    write_tokens(tokens, T + 1, vocabulary)
    run("./train_oomb", "--model", directory, "--data", tokens, "-T", str(T), "-n", "1", "--val-seqs", "0", "--page", "8",
        "--chunk", "16", "--dump", dump)
    tensors = load_file(dump)
    def join(key):
        pieces = sorted((int(name.rsplit(".t", 1)[1]), x) for name, x in tensors.items() if name.rsplit(".t", 1)[0] == key)
        return torch.cat([x for _, x in pieces], 1)
    return join("inputs")[..., 0].long(), join("logits")[..., :vocabulary]


def check_export(what, temporary, T, *options):
    """train_oomb with these options writes a model; transformers loads it."""
    out = tempfile.mkdtemp(dir=temporary)
    run("./train_oomb", *options, "--out", out)
    directory = os.path.join(out, "model")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    keys = sum(len(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    inputs, ours = our_logits(directory, T, model.config.vocab_size, temporary)
    with torch.no_grad():
        theirs = model(input_ids=inputs).logits.double()
    off = ((ours.double() - theirs).abs().max() / theirs.abs().max()).item()
    report(keys == 0 and off < 1e-4, f"{what}: {keys} missing, unexpected or mismatched keys, logits off by {off:.1e}")
    return directory


def check_exports(temporary):
    tokens = os.path.join(temporary, "train.bin")
    for name, spec in FIXTURES.items():
        directory, T = os.path.join(COMMITTED, name), spec["T"]
        back = check_export(f"{name}, in and out", temporary, T, "--model", directory, "-n", "0")
        x, y = weights(directory), weights(back)
        report(x.keys() == y.keys() and all(x[key].dtype == y[key].dtype and torch.equal(x[key], y[key]) for key in x),
               f"{name}: every tensor as it was")
        write_tokens(tokens, 400, spec["config"][1]["vocab_size"])
        trained = ["--model", directory, "--data", tokens, "-T", str(T), "-n", "3", "--lr", "1e-3", "--val-seqs", "0"]
        check_export(f"{name}, trained", temporary, T, *trained)
        check_export(f"{name}, trained, in float32", temporary, T, *trained, "--save-dtype", "f32")
    for name, scaling in (("qwen3", "yarn:4"), ("mistral", "linear:2"), ("llama-linear", "llama3:8:26"), ("llama-llama3", "none"),
                          ("llama-linear", "yarn:3:20"), ("qwen2-yarn", "linear:1.5")):
        check_export(f"{name} with --rope-scaling {scaling}, beyond its context", temporary, 60 if name == "mistral" else 150,
                     "--model", os.path.join(COMMITTED, name), "-n", "0", "--rope-scaling", scaling)
    check_export("qwen3 with --rope-theta 1e6", temporary, 60, "--model", os.path.join(COMMITTED, "qwen3"), "-n", "0", "--rope-theta", "1e6")
    text = os.path.join(ROOT, "train_oomb.c")
    for preset, data, chunk in (("recall", "recall", "32"), ("tiny", text, "64")):
        check_export(f"the preset {preset}, begun here", temporary, 128, "--model", preset, "--data", data, "--val-seqs", "0",
                     "-n", "1", "-T", "128", "--chunk", chunk, "--page", "32")


def main():
    torch.manual_seed(1)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}; fixtures: "
          f"{json.load(open(os.path.join(COMMITTED, 'versions.json')))}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        check_fixtures(temporary)
        check_dumps(temporary)
        check_exports(temporary)
    print(f"{failures} failed")
    sys.exit(failures != 0)


if __name__ == "__main__":
    main()
