#!/usr/bin/env python3
"""Makes golden_quant.bin: blocks expanded and floats packed by llama.cpp's `gguf` Python package.

Needs: pip install gguf numpy. Run: python3 make_golden.py [OUT]. The output is deterministic.

A record: name (8 bytes, zero-padded), kind (u32: 0 expands blocks, 1 packs floats),
elements (u32), bytes (u32), the blocks' bytes, the elements as f32. Little-endian.
"""
import pathlib
import struct
import sys

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants

EXPAND = {  # type: (elements and bytes of a block, offsets of its f16 scales, blocks)
    "q8_0": (32, 34, [0], 4),
    "q4_0": (32, 18, [0], 4),
    "q4_1": (32, 20, [0, 2], 4),
    "q5_0": (32, 22, [0], 4),
    "q5_1": (32, 24, [0, 2], 4),
    "q4_k": (256, 144, [0, 2], 2),
    "q5_k": (256, 176, [0, 2], 2),
    "q6_k": (256, 210, [208], 2),
    "bf16": (1, 2, [], 64),
    "f16": (1, 2, [], 64),
}


def record(name, kind, data, floats):
    floats = np.ascontiguousarray(floats, dtype="<f4")
    head = struct.pack("<8sIII", name.encode(), kind, floats.size, len(data))
    return head + data + floats.tobytes()


def random_blocks(rng, size, scales, blocks):
    data = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
    for at in scales:  # random bytes would make some scales NaN
        scale = (rng.standard_normal(blocks) * 0.01).astype(np.float16)
        data[:, at : at + 2] = scale.view(np.uint8).reshape(blocks, 2)
    return data


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "golden_quant.bin")
    rng = np.random.default_rng(20)
    parts = []
    for name, (_, size, scales, blocks) in EXPAND.items():
        if name in ("bf16", "f16"):  # numbers, among them subnormal f16
            values = (rng.standard_normal(blocks) * 10.0 ** rng.integers(-7, 4, blocks)).astype(np.float32)
            data = quants.quantize(values, Type[name.upper()]).view(np.uint8)
        else:
            data = random_blocks(rng, size, scales, blocks).reshape(-1)
        floats = quants.dequantize(data, Type[name.upper()])
        parts.append(record(name, 0, data.tobytes(), floats))
    # Blocks of several magnitudes, one of zeros, one with a tie for the largest magnitude.
    values = (rng.standard_normal((8, 32)) * 10.0 ** rng.integers(-4, 3, (8, 1))).astype(np.float32)
    values[3] = 0
    values[5, 7], values[5, 20] = 4 * abs(values[5]).max(), -4 * abs(values[5]).max()
    for name in ("q8_0", "q4_0", "bf16", "f16"):
        data = quants.quantize(values, Type[name.upper()]).view(np.uint8)
        parts.append(record(name, 1, data.tobytes(), values))
    out.write_bytes(b"".join(parts))
    print(f"{out}: {len(parts)} records, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
