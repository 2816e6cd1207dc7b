#!/usr/bin/env python3
"""Text files to token files (.bin) that train_oomb reads with --data.

    dev/data/tokenize_text.py --tokenizer tokenizer.json --out data/train text1.txt text2.txt ...
    dev/data/tokenize_text.py --tokenizer bytes --out data/train book.txt

--tokenizer: a tokenizer.json as Hugging Face models have it (needs the package `tokenizers`), or `bytes`, which needs
nothing (ids 0 .. 255; train_oomb reads text itself, this is for shards). Each file is one document; with
--separator ID that id is put before each. Writes OUT_0000.bin, OUT_0001.bin, ... of at most --shard-tokens tokens:
256 words of 32 bits (magic, version, number of tokens, zeros), then ids of 16 bits if the vocabulary allows
(magic 20240520, version 1), else of 32 (magic 20240801, version 7).

A shard is written under another name, synced and renamed when it is whole: what has a name ending in .bin is
complete. When anything fails, no shard of this run is left and the exit status is not 0.
"""
import argparse
import array
import glob
import os
import struct
import sys


def fail(message):
    sys.exit(f"error: {message}")


def load_tokenizer(name):
    """Returns (encode, vocabulary size)."""
    if name == "bytes":
        return lambda text: list(text.encode()), 256
    if not os.path.isfile(name):
        fail(f"--tokenizer {name}: no such file; a tokenizer.json, or `bytes`")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        fail("--tokenizer FILE needs the Python package `tokenizers`: pip install tokenizers")
    try:
        tokenizer = Tokenizer.from_file(name)
    except Exception as e:  # the package has no class of its own for this
        fail(f"--tokenizer {name}: {e}")
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.get_vocab_size()


class Shards:
    """Collects ids and writes full shards; finish() gives all of them their names."""

    def __init__(self, out, width, shard_tokens):
        self.out, self.width, self.shard_tokens = out, width, shard_tokens
        self.ids = array.array("H" if width == 2 else "I")
        assert self.ids.itemsize == width and sys.byteorder == "little"
        self.paths, self.named, self.tokens = [], [], 0

    def add(self, ids):
        self.ids.extend(ids)
        while len(self.ids) >= self.shard_tokens:
            self.write(self.ids[: self.shard_tokens])
            self.ids = self.ids[self.shard_tokens :]

    def write(self, ids):
        path = f"{self.out}_{len(self.paths):04d}.bin"
        self.paths.append(path)
        magic, version = (20240520, 1) if self.width == 2 else (20240801, 7)
        with open(path + ".writing", "wb") as f:
            f.write(struct.pack("<3I", magic, version, len(ids)).ljust(1024, b"\0"))
            ids.tofile(f)
            f.flush()
            os.fsync(f.fileno())
        self.tokens += len(ids)

    def finish(self):
        if self.ids:
            self.write(self.ids)
        if not self.paths:
            fail("the texts hold no tokens")
        for path in self.paths:
            os.rename(path + ".writing", path)
            self.named.append(path)

    def abandon(self):
        """Removes what this run has written, and nothing else."""
        for name in [path + ".writing" for path in self.paths] + self.named:
            if os.path.exists(name):
                os.remove(name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tokenizer", required=True, metavar="FILE", help="a tokenizer.json, or `bytes`")
    parser.add_argument("--out", required=True, metavar="PREFIX", help="shards are PREFIX_0000.bin and so on")
    parser.add_argument("--shard-tokens", type=int, default=100_000_000, metavar="N", help="tokens per shard [100000000]")
    parser.add_argument("--separator", type=int, metavar="ID", help="id to put before each text [none]")
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="files of UTF-8 text")
    args = parser.parse_args()
    if not 1 <= args.shard_tokens < 2**31:
        fail(f"--shard-tokens {args.shard_tokens}: must be from 1 to {2**31 - 1}")
    encode, vocabulary = load_tokenizer(args.tokenizer)
    largest = max(vocabulary - 1, args.separator or 0)
    if args.separator is not None and not 0 <= args.separator < 2**31:
        fail(f"--separator {args.separator}: must be a token id")
    there = sorted(glob.glob(glob.escape(args.out) + "_[0-9]*.bin"))
    if there:
        fail(f"{there[0]}: is there already, and would be taken for a shard of this run; give another --out")
    try:
        os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
    except OSError as e:
        fail(f"--out {args.out}: {e}")
    shards = Shards(args.out, 2 if largest < 2**16 else 4, args.shard_tokens)
    try:
        for path in args.texts:
            with open(path, encoding="utf-8", newline="") as f:
                text = f.read()
            shards.add(([] if args.separator is None else [args.separator]) + encode(text))
        shards.finish()
    except (OSError, UnicodeDecodeError) as e:
        shards.abandon()
        fail(f"{getattr(e, 'filename', None) or path}: {e}")
    except BaseException:
        shards.abandon()
        raise
    print(f"{shards.tokens} tokens of {shards.width * 8} bits, ids below {largest + 1}, in {len(shards.paths)} file{'s' if len(shards.paths) > 1 else ''}: "
          f"{shards.paths[0]}{' ...' if len(shards.paths) > 1 else ''}")


if __name__ == "__main__":
    main()
