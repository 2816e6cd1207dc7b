#!/usr/bin/env python3
"""Writes dev/fuzz/seeds: inputs from which `make fuzz` starts, small and whole, one for each kind of file.

Each begins with three bytes, as fuzz_readers.c reads them: the reader, flags (1: ids of 32 bits), and how far a promise
is from the truth or how many bytes of data follow a header.
"""
import os

U16 = b"".join((i % 300).to_bytes(2, "little") for i in range(40))
U32 = b"".join(x.to_bytes(4, "little") for x in (1, 2, 0xFFFFFFFF, 299, 0xFFFFFF9C, 5))


def model_seed():
    """The header of the model that fuzz_readers.c asks for; its data are zeros, as many as follow."""
    shapes = {"model.embed_tokens.weight": [3, 4], "model.norm.weight": [4]}
    for name, shape in {"input_layernorm": [4], "post_attention_layernorm": [4], "self_attn.q_proj": [4, 4],
                        "self_attn.k_proj": [2, 4], "self_attn.v_proj": [2, 4], "self_attn.o_proj": [4, 4],
                        "mlp.gate_proj": [2, 4], "mlp.up_proj": [2, 4], "mlp.down_proj": [4, 2]}.items():  # fmt: skip
        shapes[f"model.layers.0.{name}.weight"] = shape
    entries, at = [], 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape + [1])[1]
        entries.append(f'"{name}":{{"dtype":"BF16","shape":{shape},"data_offsets":[{at},{at + size}]}}')
        at += size
    return ("{" + ",".join(entries) + "}").encode()


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
    "config_gpt2": bytes([6, 0, 0])
    + b'{"model_type":"gpt2","vocab_size":37,"n_embd":12,"n_layer":2,"n_head":3,"n_positions":32,"n_inner":null}',
    "config_llama": bytes([6, 0, 0])
    + b'{"model_type":"llama","vocab_size":37,"hidden_size":12,"intermediate_size":20,"num_hidden_layers":2,"dtype":"bfloat16",'
    + b'"num_attention_heads":3,"head_dim":4,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,'
    + b'"high_freq_factor":4.0,"original_max_position_embeddings":8192},"rope_theta":500000.0,"tie_word_embeddings":true}',
    "config_qwen2": bytes([6, 0, 0])
    + b'{"model_type":"qwen2","vocab_size":9,"hidden_size":8,"intermediate_size":8,"num_hidden_layers":2,"num_attention_heads":2,'
    + b'"num_key_value_heads":1,"use_sliding_window":true,"sliding_window":7,"layer_types":["full_attention","sliding_attention"],'
    + b'"max_position_embeddings":64,"rope_parameters":{"rope_type":"yarn","factor":4.0,"rope_theta":100.0,"mscale":1.0,'
    + b'"mscale_all_dim":0.5,"beta_fast":4,"truncate":false}}',
    "tokenizer_level": bytes([7, 0, 0])
    + b'{"decoder":{"type":"ByteLevel"},"added_tokens":[{"id":5,"content":"<s>"}],"model":{"vocab":{"a":0,"\\u0120b":1}}}',
    "tokenizer_fallback": bytes([7, 0, 0])
    + b'{"decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Strip"}]},'
    + b'"model":{"vocab":{"<0x41>":0,"\\u2581x":3}}}',
    "index": bytes([8, 0, 0]) + b'{"metadata":{"total_size":1},"weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors"}}',
    "model": bytes([9, 0, 0]) + model_seed(),
}
directory = os.path.join(os.path.dirname(os.path.abspath(__file__)), "seeds")
os.makedirs(directory, exist_ok=True)
for name, data in seeds.items():
    with open(os.path.join(directory, name), "wb") as f:
        f.write(data)
