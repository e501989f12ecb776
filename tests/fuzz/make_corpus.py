#!/usr/bin/env python3
"""Makes the fuzz corpora of the three model formats: small good files, and bad ones of each kind.

Run: python3 make_corpus.py. Standard library only; the output is deterministic and is kept.
"""
import json
import pathlib
import random
import struct

HERE = pathlib.Path(__file__).parent / "corpus"


def u32(*v):
    return struct.pack(f"<{len(v)}I", *v)


def u64(*v):
    return struct.pack(f"<{len(v)}Q", *v)


def f32(*v):
    return struct.pack(f"<{len(v)}f", *v)


def pad(data, alignment):
    return data + bytes(-len(data) % alignment)


# --- GGUF ------------------------------------------------------------------------------------------
def text(s):
    raw = s.encode()
    return u64(len(raw)) + raw


def entry(key, kind, value):
    return text(key) + u32(kind) + value


def gguf(entries, infos, data=b"", version=3, alignment=32, tensors=None, values=None):
    head = b"GGUF" + u32(version)
    head += u64(len(infos) if tensors is None else tensors, len(entries) if values is None else values)
    head += b"".join(entries) + b"".join(infos)
    return pad(head, alignment) + data if infos else head + data


def info(name, dims, kind, offset):
    return text(name) + u32(len(dims)) + u64(*dims) + u32(kind) + u64(offset)


def make_gguf():
    values = [
        entry("general.architecture", 8, text("llama")),
        entry("llama.block_count", 4, u32(1)),
        entry("llama.rope.freq_base", 6, f32(10000.0)),
        entry("llama.i64", 11, struct.pack("<q", -3)),
        entry("llama.f64", 12, struct.pack("<d", 1e-5)),
        entry("tokenizer.ggml.add_bos_token", 7, b"\1"),
        entry("tokenizer.ggml.tokens", 9, u32(8) + u64(3) + text("<s>") + text("a") + text("")),
        entry("tokenizer.ggml.scores", 9, u32(6) + u64(3) + f32(0, -1, -2)),
        entry("tokenizer.ggml.token_type", 9, u32(5) + u64(3) + u32(3, 1, 1)),
        entry("nested", 9, u32(9) + u64(2) + u32(0) + u64(2) + b"\1\2" + u32(7) + u64(1) + b"\1"),
    ]
    # Every readable type, a row of 32 or 256.
    kinds = [(0, 32, 128), (1, 32, 64), (30, 32, 64), (8, 32, 34), (2, 32, 18), (3, 32, 20), (6, 32, 22),
             (7, 32, 24), (12, 256, 144), (13, 256, 176), (14, 256, 210)]
    infos, data = [], b""
    for i, (kind, row, size) in enumerate(kinds):
        infos.append(info(f"blk.0.w{i}.weight", [row], kind, len(data)))
        data = pad(data + bytes(range(size % 256)) + bytes(size - size % 256), 32)
    one = [info("w", [3, 2], 0, 0)]
    huge = 1 << 62
    return {
        "good_all_types": gguf(values, infos, data),
        "good_v2": gguf(values[:3], one, bytes(24), version=2),
        "good_vocab": gguf(values, []),
        "good_alignment": gguf([entry("general.alignment", 4, u32(64))], one, bytes(24), alignment=64),
        "bad_truncated_head": gguf(values, infos, data)[:20],
        "bad_truncated_values": gguf(values, infos, data)[:200],
        "bad_truncated_data": gguf(values, infos, data)[:-40],
        "bad_magic": b"GGML" + gguf(values, [])[4:],
        "bad_version": gguf(values, [], version=99),
        "bad_big_endian": gguf(values, [], version=0x03000000),
        "bad_value_count": gguf(values, [], values=huge),
        "bad_tensor_count": gguf(values, [], tensors=(1 << 64) - 1),
        "bad_key_length": gguf([u64(huge) + b"abc"], []),
        "bad_string_length": gguf([entry("k", 8, u64((1 << 64) - 8) + b"abc")], []),
        "bad_array_length": gguf([entry("k", 9, u32(12) + u64(1 << 61) + bytes(16))], []),
        "bad_array_nesting": gguf([entry("k", 9, (u32(9) + u64(1)) * 300)], []),
        "bad_array_type": gguf([entry("k", 9, u32(77) + u64(1))], []),
        "bad_duplicate_key": gguf([values[0], values[0]], []),
        "bad_duplicate_tensor": gguf([], one * 2, bytes(64)),
        "bad_alignment_zero": gguf([entry("general.alignment", 4, u32(0))], one, bytes(24)),
        "bad_alignment_huge": gguf([entry("general.alignment", 10, u64(1 << 63))], one, bytes(24)),
        "bad_dims_wrap": gguf([], [info("w", [1 << 32, 1 << 32], 0, 0)], bytes(64)),
        "bad_dims_zero": gguf([], [info("w", [0], 0, 0)], bytes(64)),
        "bad_dims_count": gguf([], [info("w", [1] * 9, 0, 0)], bytes(64)),
        "bad_offset_wrap": gguf([], [info("w", [4], 0, (1 << 64) - 32)], bytes(64)),
        "bad_overlap": gguf([], [info("a", [16], 0, 0), info("b", [16], 0, 32)], bytes(128)),
        "bad_type": gguf([], [info("w", [4], 1234, 0)], bytes(64)),
        "bad_block": gguf([], [info("w", [33], 8, 0)], bytes(64)),
    }


# --- safetensors -------------------------------------------------------------------------------------
def safetensors(header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return u64(len(raw) if length is None else length) + raw + data


def make_safetensors():
    def t(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    good = {"__metadata__": {"format": "pt"}, "a": t("F32", [2, 3], 0, 24), "b": t("BF16", [4], 24, 32),
            "c": t("F16", [], 32, 34), "d": t("I64", [0, 5], 34, 34), "e": t("BOOL", [2], 34, 36)}
    w = t("F32", [2], 0, 8)
    return {
        "good_types": safetensors(good, bytes(range(36))),
        "good_empty": safetensors({}),
        "bad_truncated": safetensors(good, bytes(30)),
        "bad_trailing": safetensors(good, bytes(40)),
        "bad_short": b"\x10\0\0",
        "bad_length": safetensors(good, bytes(36), length=(1 << 64) - 8),
        "bad_length_file": safetensors(good, bytes(36), length=5000),
        "bad_json": safetensors(b'{"a": '),
        "bad_json_depth": safetensors(b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}"),
        "bad_json_array": safetensors(b"[1, 2]"),
        "bad_json_utf8": safetensors(b'{"\xff\xfe": 1}'),
        "bad_json_twice": safetensors(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                                      b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
        "bad_entry": safetensors({"w": 3}),
        "bad_no_dtype": safetensors({"w": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
        "bad_dtype": safetensors({"w": t("F8_E4M3", [8], 0, 8)}, bytes(8)),
        "bad_shape_text": safetensors({"w": t("F32", ["2"], 0, 8)}, bytes(8)),
        "bad_shape_negative": safetensors({"w": t("F32", [-2], 0, 8)}, bytes(8)),
        "bad_shape_float": safetensors({"w": t("F32", [2.0], 0, 8)}, bytes(8)),
        "bad_shape_wrap": safetensors({"w": t("F32", [1 << 32, 1 << 32], 0, 8)}, bytes(8)),
        "bad_shape_rank": safetensors({"w": t("F32", [1] * 7 + [2], 0, 8)}, bytes(8)),
        "bad_shape_bytes": safetensors({"w": t("F32", [3], 0, 8)}, bytes(8)),
        "bad_offsets_order": safetensors({"w": t("F32", [2], 8, 0)}, bytes(8)),
        "bad_offsets_end": safetensors({"w": t("F32", [2], 1 << 63, (1 << 63) + 8)}, bytes(8)),
        "bad_offsets_one": safetensors({"w": {"dtype": "F32", "shape": [2], "data_offsets": [8]}}, bytes(8)),
        "bad_overlap": safetensors({"w": w, "v": t("F32", [2], 4, 12)}, bytes(12)),
        "bad_gap": safetensors({"w": w, "v": t("F32", [2], 12, 20)}, bytes(20)),
        "bad_metadata": safetensors({"__metadata__": {"a": 1}, "w": w}, bytes(8)),
    }


# --- llama2.c ----------------------------------------------------------------------------------------
DIM, HIDDEN, LAYERS, HEADS, KV, VOCAB, SEQ = 8, 16, 2, 2, 1, 10, 4


def sizes(dim=DIM, hidden=HIDDEN, layers=LAYERS, heads=HEADS, kv=KV, vocab=VOCAB, seq=SEQ):
    return struct.pack("<7i", dim, hidden, layers, heads, kv, vocab, seq)


def make_llama2c():
    rng = random.Random(3)
    kv_dim = DIM // HEADS * KV
    norms = (2 * LAYERS + 1) * DIM
    counts = [VOCAB * DIM] + [DIM * DIM] * 2 * LAYERS + [DIM * kv_dim] * 2 * LAYERS + [DIM * HIDDEN] * 3 * LAYERS
    floats = f32(*(rng.uniform(-1, 1) for _ in range(norms + sum(counts))))
    rotary = bytes(4 * SEQ * DIM // HEADS)
    output = bytes(4 * VOCAB * DIM)

    def v1(version=1, shared=1, group=None, head=None):
        raw = u32(0x616B3432, version) + (head or sizes()) + bytes([shared])
        return (raw + (struct.pack("<i", group) if group is not None else b"")).ljust(256, b"\0")

    group = 8
    int8 = bytes(4 * norms)
    for count in counts:
        int8 += bytes(rng.randrange(256) for _ in range(count)) + f32(*([0.01] * (count // group)))
    v0 = sizes() + floats + rotary
    return {
        "good_v0": v0,
        "good_v0_untied": sizes(vocab=-VOCAB) + floats + rotary + output,
        "good_v1": v1() + floats,
        "good_v1_untied": v1(shared=0) + floats + output,
        "good_v2": v1(2, 1, group) + int8,
        "bad_short": v0[:11],
        "bad_truncated": v0[:-8],
        "bad_trailing": v0 + bytes(4),
        "bad_untied_length": sizes(vocab=-VOCAB) + floats + rotary,
        "bad_zero_dim": sizes(dim=0) + floats,
        "bad_negative_layers": sizes(layers=-1) + floats,
        "bad_zero_heads": sizes(heads=0) + floats,
        "bad_heads": sizes(heads=3) + floats,
        "bad_kv_heads": sizes(kv=3) + floats,
        "bad_huge": struct.pack("<7i", *[2**31 - 1] * 7) + bytes(64),
        "bad_wrap": sizes(dim=2**30, heads=1, kv=1, hidden=2**30, layers=2**30) + bytes(64),
        "bad_vocab_min": sizes(vocab=-(2**31)) + floats,
        "bad_version": v1(3) + floats,
        "bad_shared": v1(1, 7) + floats,
        "bad_head_only": v1()[:100],
        "bad_group_zero": v1(2, 1, 0) + int8,
        "bad_group_negative": v1(2, 1, -8) + int8,
        "bad_group_division": v1(2, 1, 7) + int8,
        "bad_v2_truncated": v1(2, 1, group) + int8[:-1],
    }


def main():
    for name, files in {"gguf": make_gguf(), "safetensors": make_safetensors(), "llama2c": make_llama2c()}.items():
        folder = HERE / name
        folder.mkdir(parents=True, exist_ok=True)
        for stem, data in files.items():
            (folder / f"{stem}.bin").write_bytes(data)
        print(f"{folder}: {len(files)} files, {sum(map(len, files.values()))} bytes")


if __name__ == "__main__":
    main()
