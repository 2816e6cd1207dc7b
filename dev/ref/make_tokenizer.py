#!/usr/bin/env python3
"""Small vocabularies of the two kinds that oomb/tokenizer.h reads, and what was made with them, for scripts/check_data.sh.

    make_tokenizer.py byte-level|byte-fallback TEXT DIR     DIR/tokenizer.json and tokenizer_config.json
    make_tokenizer.py check DIR SHARD SPAN DOCUMENT ...     SHARD holds the documents (README.md: that file's text); what is
                                                            marked is SPAN
"""
import array
import json
import os
import sys

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers


def make(kind, text, directory):
    if kind == "byte-level":  # as GPT-2, LLaMA 3, Qwen
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        t.post_processor = processors.ByteLevel(trim_offsets=True)
        t.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["</s>"])
    else:  # as LLaMA 2, Mistral
        t = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, max_token_length=12,
                                      special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)])
    t.train([text], trainer)
    if kind == "byte-fallback":
        t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    t.enable_truncation(20)  # which must not be obeyed
    saved = json.loads(t.to_str())  # bytes are of the vocabulary alone; the trainer knows no other way to put them there
    saved["added_tokens"] = [x for x in saved["added_tokens"] if not x["content"].startswith("<0x")]
    with open(os.path.join(directory, "tokenizer.json"), "w") as f:
        json.dump(saved, f)
    with open(os.path.join(directory, "tokenizer_config.json"), "w") as f:
        json.dump({"eos_token": {"content": "</s>"} if kind == "byte-level" else "</s>"}, f)


def check(directory, shard, span, *documents):
    t = Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
    t.no_truncation()
    ids = array.array("I", open(shard, "rb").read()[1024:])
    end, begin = t.token_to_id("</s>"), t.token_to_id("<s>")
    parts, part = [], []
    for id in ids:
        part.append(id)
        if id == end:
            parts.append([x for x in part[:-1] if x != begin])
            part = []
    assert not part, "the last document has no end"
    texts = [open(d, encoding="utf-8").read() if d == "README.md" else d for d in documents]
    decoded = [t.decode([x % (1 << 31) for x in part]) for part in parts]
    assert decoded == texts, f"{len(parts)} documents: {[d[:40] for d in decoded]}"
    marked = t.decode([x % (1 << 31) for x in ids if x >> 31])
    assert marked.strip() == span, f"marked is {marked!r}"


if __name__ == "__main__":
    check(*sys.argv[2:]) if sys.argv[1] == "check" else make(*sys.argv[1:])
