#!/usr/bin/env python3
"""Texts to token files (.bin) that train_oomb reads with --data.

    dev/data/prepare.py --model DIR --out data/train notes.txt chats.jsonl ...
    dev/data/prepare.py --model DIR --ids "Once upon a time"

--model is the directory of a Hugging Face model: its tokenizer.json makes the ids (the package `tokenizers` is needed), with
the tokens that it puts around a text, and the model's end-of-text token closes every document. `--tokenizer bytes` needs
no package: ids 0 .. 255 are bytes, 256 begins a document, as train_oomb reads text itself.

A file *.jsonl has one JSON object per line, which is one document: its field "text", and in a field "unscored" may stand
spans of that text, [[begin, end], ...] in characters: the model sees them and is not trained to predict them. Any other
file is one document of UTF-8 text, and is held in memory as a whole.

Writes OUT_0000.bin, OUT_0001.bin, ... of at most --shard-tokens tokens: 256 words of 32 bits (magic, version, number of
tokens, zeros), then ids of 16 bits (magic 20240520, version 1), or of 32 if the vocabulary or a span needs them (magic
20240801, version 7): the top bit of an id means that the token is not scored.

A shard is written under another name, synced, and all are renamed when the last is whole: what has a name ending in .bin
is complete. When anything fails, no shard of this run is left and the exit status is not 0.
"""
import argparse
import array
import bisect
import glob
import json
import os
import struct
import sys
import time

NOT_SCORED = 1 << 31
BATCH_BYTES = 1 << 20  # of documents that are tokenized at once, on all processors


def fail(message):
    sys.exit(f"error: {message}")


def read_json(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError) as e:
        fail(f"{path}: {e}")


def read_object(directory, name):
    path = os.path.join(directory, name)
    value = read_json(path)
    if not isinstance(value, dict):
        fail(f"{path}: must be an object")
    return value


class Bytes:
    """Ids are bytes; an encoding has the offsets of each byte's character, as those of the package have."""

    vocabulary = 257
    begin, end = [256], []

    @staticmethod
    def encode(texts):
        for text in texts:
            ids, offsets = [], []
            for i, character in enumerate(text):
                for byte in character.encode():
                    ids.append(byte)
                    offsets.append((i, i + 1))
            yield ids, offsets


def untrimmed(x):
    """A tokenizer whose offsets tell all characters of a token, its spaces too; the ids are the same."""
    if isinstance(x, dict):
        return {key: False if key == "trim_offsets" else untrimmed(y) for key, y in x.items()}
    return [untrimmed(y) for y in x] if isinstance(x, list) else x


class FromFile:
    """A tokenizer.json."""

    begin, end = [], []

    def __init__(self, path):
        if not os.path.isfile(path):
            fail(f"{path}: no such file; a tokenizer.json is needed, or --tokenizer bytes")
        try:
            from tokenizers import Tokenizer
        except ImportError:
            fail("the Python package `tokenizers` is needed: pip install tokenizers")
        try:
            self.tokenizer = Tokenizer.from_str(json.dumps(untrimmed(read_json(path))))
        except Exception as e:  # the package has no class of its own for this
            fail(f"{path}: {e}")
        self.tokenizer.no_truncation()  # a file may ask for it, for other purposes
        self.tokenizer.no_padding()
        self.ids = self.tokenizer.get_vocab(with_added_tokens=True)
        self.vocabulary = max(self.ids.values()) + 1

    def encode(self, texts):
        for e in self.tokenizer.encode_batch(texts):
            yield e.ids, e.offsets


def end_of_text(directory, tokenizer):
    """The ids of the model's end token: by its name in tokenizer_config.json, else from config.json."""
    end = read_object(directory, "config.json").get("eos_token_id")
    end = end[0] if isinstance(end, list) and end else end
    if os.path.exists(os.path.join(directory, "tokenizer_config.json")):
        name = read_object(directory, "tokenizer_config.json").get("eos_token")
        name = name.get("content") if isinstance(name, dict) else name
        end = tokenizer.ids.get(name, end) if isinstance(name, str) else end
    if type(end) is not int or not 0 <= end < NOT_SCORED:
        fail(f"{directory}: neither config.json nor tokenizer_config.json has an end-of-text token; give --end ID, or --end none")
    return [end]


class Shards:
    """Collects ids and writes full shards; finish() gives all of them their names."""

    def __init__(self, out, vocabulary, shard_tokens):
        self.out, self.wide, self.shard_tokens = out, vocabulary > 1 << 16, shard_tokens
        self.ids = array.array("I")
        assert self.ids.itemsize == 4 and sys.byteorder == "little"
        self.paths, self.named, self.tokens, self.largest = [], [], 0, 0

    def add(self, ids):
        self.ids.extend(ids)
        while len(self.ids) >= self.shard_tokens:
            self.write(self.ids[: self.shard_tokens])
            self.ids = self.ids[self.shard_tokens :]

    def write(self, ids):
        path = f"{self.out}_{len(self.paths):04d}.bin"
        self.paths.append(path)
        wide = self.wide or max(ids) >= 1 << 16
        with open(path + ".writing", "wb") as f:
            f.write(struct.pack("<3I", *((20240801, 7) if wide else (20240520, 1)), len(ids)).ljust(1024, b"\0"))
            (ids if wide else array.array("H", ids)).tofile(f)
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


def check_spans(spans, text, where):
    """The spans, sorted and whole, or an error."""
    if not isinstance(spans, list):
        fail(f"{where}: must be a list of spans, [[begin, end], ...]")
    for span in spans:
        if not (isinstance(span, list) and len(span) == 2 and all(type(x) is int for x in span)
                and 0 <= span[0] <= span[1] <= len(text)):
            fail(f"{where}: {json.dumps(span)} is no span [begin, end] of a text of {len(text)} characters")
    spans = sorted(span for span in spans if span[0] < span[1])
    for before, after in zip(spans, spans[1:]):
        if after[0] < before[1]:
            fail(f"{where}: the spans {before} and {after} overlap")
    return spans


def mark(ids, offsets, spans):
    """Ids of tokens that have a character in a span get the top bit."""
    if not spans:
        return ids
    marked = []
    ends = [end for _, end in spans]
    for id, (begin, end) in zip(ids, offsets):
        k = bisect.bisect_right(ends, begin)  # the first span that ends behind `begin`
        marked.append(id | NOT_SCORED if end > begin and k < len(spans) and spans[k][0] < end else id)
    return marked


def documents(path, args, done):
    """(text, spans) of each document of a file; done(bytes) tells how much has been read."""
    if not path.endswith(".jsonl"):
        with open(path, encoding="utf-8-sig", newline="") as f:  # a mark of the encoding is no text
            try:
                text = f.read()
            except UnicodeDecodeError as e:
                fail(f"{path}: {e}")
        done(os.path.getsize(path))
        yield text, []
        return
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            done(len(line))
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                record = json.loads(line.decode("utf-8"))
            except ValueError as e:
                fail(f"{where}: {e}")
            text = record.get(args.text) if isinstance(record, dict) else None
            if not isinstance(text, str):
                fail(f'{where}: has no string "{args.text}" (--text names the field)')
            try:
                text.encode()
            except UnicodeEncodeError:
                fail(f'{where}: "{args.text}" has half a surrogate pair, which is no character')
            spans = record.get(args.unscored)
            yield text, check_spans([] if spans is None else spans, text, f'{where}, "{args.unscored}"')


class Progress:
    def __init__(self, paths):
        self.total, self.read, self.shown, self.start = sum(map(os.path.getsize, paths)), 0, 0, time.time()

    def show(self, shards):
        now = time.time()
        if not sys.stderr.isatty() or now - self.shown < 0.5:
            return
        share = self.read / max(self.total, 1)
        bar = "#" * int(30 * share)
        tokens = shards.tokens + len(shards.ids)
        print(f"\r  [{bar:30}] {100 * share:3.0f} %  {tokens} tokens, {tokens / max(now - self.start, 1e-3):.0f}/s   ",
              end="", file=sys.stderr)
        self.shown = now

    def end(self):
        if self.shown:
            print("\r" + " " * 78 + "\r", end="", file=sys.stderr)


def tokenize(args, tokenizer, shards):
    """All documents into shards; returns counts."""
    progress = Progress(args.texts)
    count = {"documents": 0, "empty": 0, "not scored": 0}
    batch, size = [], 0

    def read(n):
        progress.read += n

    def flush():
        for (text, spans), (ids, offsets) in zip(batch, tokenizer.encode([text for text, _ in batch])):
            ids = mark(ids, offsets, spans)
            count["not scored"] += sum(id >= NOT_SCORED for id in ids) if spans else 0
            end = tokenizer.end if ids and ids[-1:] != tokenizer.end else []
            shards.add(tokenizer.begin + list(ids) + end)
        progress.show(shards)
        batch.clear()

    for path in args.texts:
        for text, spans in documents(path, args, read):
            if not text:
                count["empty"] += 1
                continue
            count["documents"] += 1
            batch.append((text, spans))
            size += len(text)
            if size >= BATCH_BYTES:
                flush()
                size = 0
    flush()
    progress.end()
    return count


def token_option(text, name):
    if text == "none":
        return []
    if not (text.isascii() and text.isdigit()) or int(text) >= NOT_SCORED:
        fail(f"--{name} {text}: must be a token id, or none")
    return [int(text)]


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", metavar="DIR", help="a Hugging Face model: tokenizer.json and config.json are read")
    parser.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json alone, or `bytes`, instead of --model")
    parser.add_argument("--out", metavar="PREFIX", help="shards are PREFIX_0000.bin and so on")
    parser.add_argument("--shard-tokens", type=int, default=100_000_000, metavar="N", help="tokens per shard [100000000]")
    parser.add_argument("--begin", metavar="ID", help="put before each document, beside what the tokenizer does [none; bytes: 256]")
    parser.add_argument("--end", metavar="ID", help="put behind each document [the model's end-of-text token; bytes: none]")
    parser.add_argument("--text", default="text", metavar="FIELD", help="field of a .jsonl that is the document [text]")
    parser.add_argument("--unscored", default="unscored", metavar="FIELD", help="field of a .jsonl with spans that are not scored [unscored]")
    parser.add_argument("--ids", metavar="TEXT", help="print the ids of TEXT, for train_oomb --prompt, and write nothing")
    parser.add_argument("texts", nargs="*", metavar="FILE", help="text, or .jsonl")
    args = parser.parse_args()
    if bool(args.model) == bool(args.tokenizer):
        fail("give --model DIR or --tokenizer FILE, and not both")
    if args.ids is None and not (args.out and args.texts):
        fail("give --out PREFIX and files of text, or --ids TEXT")
    if args.ids is not None and (args.out or args.texts or args.end):
        fail("--ids only prints ids; leave --out, --end and files out")
    if args.model and not os.path.isdir(args.model):
        fail(f"--model {args.model}: no such directory")
    if args.out and args.out.endswith("/"):
        fail(f"--out {args.out}: must end in a name, like {args.out}train")
    if not 1 <= args.shard_tokens < 2**31:
        fail(f"--shard-tokens {args.shard_tokens}: must be from 1 to {2**31 - 1}")
    return args


def main():
    args = options()
    path = args.tokenizer or os.path.join(args.model, "tokenizer.json")
    tokenizer = Bytes() if path == "bytes" else FromFile(path)
    if args.begin is not None:
        tokenizer.begin = token_option(args.begin, "begin")
    if args.ids is not None:
        try:
            print(*tokenizer.begin, *next(iter(tokenizer.encode([args.ids])))[0])
        except UnicodeEncodeError:
            fail("--ids: the text is not UTF-8")
        return
    if args.end is not None:
        tokenizer.end = token_option(args.end, "end")
    elif args.model:
        tokenizer.end = end_of_text(args.model, tokenizer)
    elif path != "bytes":
        fail("--tokenizer FILE does not say which token ends a document: give --end ID, or --end none")
    vocabulary = max([tokenizer.vocabulary - 1] + tokenizer.begin + tokenizer.end) + 1
    if args.model:
        size = read_object(args.model, "config.json").get("vocab_size")
        if type(size) is not int or vocabulary > size:
            fail(f"{args.model}: its tokens have ids up to {vocabulary - 1}, but the vocabulary of its config.json has {size}")
    there = sorted(glob.glob(glob.escape(args.out) + "_[0-9]*.bin"))
    if there:
        fail(f"{there[0]}: is there already, and would be taken for a shard of this run; give another --out")
    try:
        os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
    except OSError as e:
        fail(f"--out {args.out}: {e}")
    shards = Shards(args.out, vocabulary, args.shard_tokens)
    try:
        count = tokenize(args, tokenizer, shards)
        shards.finish()
    except KeyboardInterrupt:
        shards.abandon()
        fail("interrupted; no shard is left")
    except OSError as e:
        shards.abandon()
        fail(f"{e.filename or args.out}: {e}")
    except BaseException:
        shards.abandon()
        raise
    print(f"{count['documents']} documents ({count['empty']} empty ones left out), {shards.tokens} tokens, {count['not scored']} of "
          f"them not scored, ids below {vocabulary}, in {len(shards.paths)} file{'s' if len(shards.paths) > 1 else ''}: "
          f"{shards.paths[0]}{' ...' if len(shards.paths) > 1 else ''}")


if __name__ == "__main__":
    main()
