#!/usr/bin/env python3
"""Every command with too little memory: it works, or reports it and exits with 3. Never a
signal."""
import concurrent.futures
import http.client
import json
import math
import os
import pathlib
import resource
import socket
import struct
import tempfile
import unittest

import driver
from driver import REFERENCE, SOURCE, millrace
from serving import START, Server
from train_test import QUIET, SHAPE, pack_stories

MIB = 1 << 20
# MiB above what the program and its libraries take; with the last, everything works.
LIMITS = [*range(2, 46, 7), *range(46, 100, 12), 160, 620]
# The same range in other steps, for commands that read the large vocabulary.
FINE = [*range(4, 90, 4), 130, 180, 400]
# For a server that gets this many bodies of 8 MB; with the last, it takes all of them.
SERVER, BODIES = (180, 240, 300, 700), 24


def address_limit(mib):
    limit = (mib * MIB, mib * MIB)
    return lambda: resource.setrlimit(resource.RLIMIT_AS, limit)


def run_within(mib, *words, **kwargs):
    return millrace(*words, preexec_fn=address_limit(mib), **kwargs)


def least():
    """The smallest limit with which the program starts."""
    low, high = 1, 2048
    while low < high:
        middle = (low + high) // 2
        try:
            starts = run_within(middle, "--version").code == 0
        except OSError:
            starts = False
        low, high = (low, middle) if starts else (middle + 1, high)
    return low


def large_tokenizer(folder):
    """A tokenizer.json of 60,000 tokens, 6 MB: read while memory runs out."""
    vocab = json.loads((REFERENCE / "gpt2" / "tokenizer.json").read_text())
    ids = vocab["model"]["vocab"]
    while len(ids) < 60000:
        ids.setdefault(f"made-{len(ids):060}", len(ids))
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(vocab))
    return folder / "tokenizer.json"


def large_model(folder):
    """A Llama of one small layer with that vocabulary, its weights all zero."""
    large_tokenizer(folder)
    vocab, dim, hidden = 60000, 16, 32
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab,
        "hidden_size": dim, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": hidden, "max_position_embeddings": 64, "tie_word_embeddings": True}))
    shapes = {"model.embed_tokens": [vocab, dim], "model.norm": [dim]}
    for name, shape in {"self_attn.q_proj": [dim, dim], "self_attn.k_proj": [dim, dim],
                        "self_attn.v_proj": [dim, dim], "self_attn.o_proj": [dim, dim],
                        "mlp.gate_proj": [hidden, dim], "mlp.up_proj": [hidden, dim],
                        "mlp.down_proj": [dim, hidden], "input_layernorm": [dim],
                        "post_attention_layernorm": [dim]}.items():
        shapes[f"model.layers.0.{name}"] = shape
    header, size = {}, 0
    for name, shape in shapes.items():
        begin, size = size, size + 4 * math.prod(shape)
        header[f"{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, size]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))


@unittest.skipIf(os.environ.get("MILLRACE_SANITIZE"), "sanitizers take terabytes of addresses")
class Memory(driver.CliTest):
    @classmethod
    def setUpClass(cls):
        made = tempfile.TemporaryDirectory(prefix="millrace-memory-")
        cls.addClassCleanup(made.cleanup)
        base = pathlib.Path(made.name)
        cls.text, cls.tok, cls.data = pack_stories(base)
        cls.large = large_tokenizer(base / "large")
        cls.least = least()

    def one(self, mib, command):
        number = f"{mib}-{abs(hash(command))}"
        words = [str(word).replace("OUT", str(self.folder / number)) for word in command]
        return run_within(self.least + mib, *words, stdin=b"Hello\n/exit\n")

    def sweep(self, limits, *command, last=0):
        """`last`: the command's exit code with enough memory."""
        seen = {}
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            runs = {mib: pool.submit(self.one, mib, command) for mib in limits}
        for mib, run in runs.items():
            result = run.result()
            with self.subTest(command=command[0], mib=mib):
                self.assertIn(result.code, (last, 3), f"{command}, {mib} MiB: {result.err}")
                if result.code == 3:
                    self.assertRegex(result.err, "(?i)memory|threads", f"{command}, {mib} MiB")
            seen[mib] = result.code
        self.assertEqual(seen[max(limits)], last, f"{command}: {seen}")

    def test_models(self):
        llama = REFERENCE / "llama2"
        for command in (("info", llama), ("run", llama, "-p", "Once", "-n", "3"),
                        ("run", "-p", "Once", "-n", "3"), ("chat", llama, "-n", "3"),
                        ("eval", llama, "--text", REFERENCE / "README.md", "--split", "\n", "--limit", "1"),
                        ("convert", llama, "OUT.gguf"),
                        ("profile", llama, "-p", "Once", "-n", "3", "--html", "OUT.html"),
                        ("convert", SOURCE / "models" / "storyteller.gguf", "OUT")):
            self.sweep(LIMITS, *command)

    def test_large_vocabulary(self):
        self.sweep(FINE, "tokenize", "--tokenizer", self.large, "--text", "made", "--ids")
        # Writing one: a tree of JSON, whose destructor allocates.
        large_model(self.folder / "large")
        gguf = self.folder / "large.gguf"
        self.ok("convert", self.folder / "large", gguf)
        self.sweep(FINE, "convert", gguf, "OUT")

    def test_training(self):
        for command in ((driver.LAB, "story", "write", "--stories", "10", "--seed", "1", "--out", "OUT.txt"),
                        ("tokenizer", "train", "--data", self.text, "--vocab", "280", "--out",
                         "OUT"),
                        ("data", "pack", "--data", self.text, "--tokenizer", self.tok, "--out",
                         "OUT"),
                        (driver.LAB, "story", "check", self.text),
                        ("train", *SHAPE, *QUIET, "--steps", "2", "--save-every", "1", "--data",
                         self.data, "--out", "OUT")):
            self.sweep(LIMITS, *command)

    def attacked(self, mib):
        """Sends a server more bodies than it has memory for, all without their last bytes. Returns
        how many of their connections it ended."""
        # One arena: glibc reserves 64 MiB of addresses for each further one, keeps them after all
        # memory was freed, and the limit is one of addresses.
        server = Server("--sequences", 2, preexec_fn=address_limit(self.least + mib),
                        env={"MALLOC_ARENA_MAX": "1"})
        self.addCleanup(server.stop)
        wires, ended, size = [], 0, 8_300_000
        for _ in range(BODIES):
            try:
                wires.append(wire := socket.create_connection((server.host, server.port), driver.HANG))
                wire.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                             b"Content-Length: %d\r\n\r\n" % size + b"x" * (size - 1))
            except OSError:
                ended += 1
        for wire in wires:
            wire.close()
        self.assertTrue(server.wait_until(lambda: self.answers(server)), f"{mib} MiB: {server.err}")
        self.assertEqual(server.stop(), 0, f"{mib} MiB: {server.err}")
        return ended

    def answers(self, server):
        self.assertIsNone(server.process.poll(), server.err)
        try:
            server.ok("/v1/completions", {"prompt": START, "max_tokens": 3})
            return server.ok("/health") == {"status": "ok"}
        except (AssertionError, OSError, http.client.HTTPException):
            return False  # no memory for this connection yet

    def test_server(self):
        ended = [self.attacked(mib) for mib in SERVER]
        self.assertGreater(ended[0], 0, ended)
        self.assertEqual(ended[-1], 0, ended)

    def test_threads(self):
        result = self.one(140, ("run", "-p", "Once", "-n", "3", "--threads", "200"))
        self.assertEqual(result.code, 3, result.err)
        self.assertRegex(result.err, "threads = 200: only .* use fewer --threads, or raise the limit")


if __name__ == "__main__":
    driver.main()
