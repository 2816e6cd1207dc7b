#!/usr/bin/env python3
"""Writes dev/fuzz/seeds: inputs from which `make fuzz` starts, small and whole, one for each kind of file.

Each begins with three bytes, as fuzz_readers.c reads them: the reader, flags (1: ids of 32 bits), and how far a promise
is from the truth or how many bytes of data follow a header.
"""
import os

U16 = b"".join((i % 300).to_bytes(2, "little") for i in range(40))
U32 = b"".join(x.to_bytes(4, "little") for x in (1, 2, 0xFFFFFFFF, 299, 0xFFFFFF9C, 5))
seeds = {
    "ids16": bytes([0, 0, 0]) + U16,
    "ids32": bytes([0, 1, 0]) + U32,
    "text": bytes([1, 0, 0]) + b"some text, read as bytes",
    "safetensors": bytes([2, 0, 12])
    + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    + b'"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[8,12]}}',
    "safetensors_metadata": bytes([2, 0, 1])
    + b'{"__metadata__":{"format":"pt"},"a":{"shape":[],"dtype":"U8","data_offsets":[0,1],"new":[{}]}}',
    "safetensors_dims": bytes([2, 0, 4])
    + b'{"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}',
    "state": bytes([4, 0, 0])
    + b'{"format": 2, "step": 20, "sample": 40, "tokens": 10240, "data_tokens": 7, "data_hash": 9, '
    + b'"model": {"V": 257, "norm_eps": 1e-05}, "options": {"data": "a\\u00e9", "lr": "0.003"}}',
    "json": bytes([5, 0, 0]) + b'{"a":[1,-2.5e+3,true,false,null,"x\\n\\ud83d\\ude00"],"b":{"c":{}}}',
}
directory = os.path.join(os.path.dirname(os.path.abspath(__file__)), "seeds")
os.makedirs(directory, exist_ok=True)
for name, data in seeds.items():
    with open(os.path.join(directory, name), "wb") as f:
        f.write(data)
