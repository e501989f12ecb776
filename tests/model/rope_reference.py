#!/usr/bin/env python3
"""Writes rope_reference.json: rotary frequencies as transformers computes them (in f32).

    pip install torch transformers
    python3 tests/model/rope_reference.py
"""
import json
import pathlib

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

CASES = [
    ("plain", 64, 10000.0, 4096, {"rope_type": "default"}),
    ("plain_far", 128, 1000000.0, 32768, {"rope_type": "default"}),
    ("linear", 64, 10000.0, 16384, {"rope_type": "linear", "factor": 4.0}),
    ("llama31", 128, 500000.0, 131072, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
     "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    ("llama32", 64, 500000.0, 131072, {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
     "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    ("yarn", 128, 1000000.0, 131072, {"rope_type": "yarn", "factor": 4.0,
     "original_max_position_embeddings": 32768}),
    ("yarn_betas", 16, 10000.0, 256, {"rope_type": "yarn", "factor": 4.0, "beta_fast": 2.0,
     "beta_slow": 0.25, "attention_factor": 1.25, "original_max_position_embeddings": 64}),
    # low == high, an edge case of the ramp.
    ("yarn_narrow", 4, 10000.0, 128, {"rope_type": "yarn", "factor": 2.0, "beta_fast": 0.5,
     "beta_slow": 0.5, "original_max_position_embeddings": 2}),
]


def main():
    out = []
    for name, head_dim, theta, context, rope in CASES:
        config = LlamaConfig(hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim,
                             max_position_embeddings=context,
                             rope_parameters={**rope, "rope_theta": theta})
        kind = rope["rope_type"]
        if kind == "default":
            inv_freq, magnitude = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
        else:
            inv_freq, magnitude = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        out.append({"name": name, "head_dim": head_dim, "theta": theta, "rope": rope,
                    "inv_freq": [float(x) for x in inv_freq], "magnitude": float(magnitude)})
    text = "[\n" + ",\n".join(json.dumps(case) for case in out) + "\n]\n"
    pathlib.Path(__file__).with_suffix(".json").write_text(text)


if __name__ == "__main__":
    main()
