"""millrace pull, from a hub of the tests' own (hub.py), and models that were downloaded before."""
import hashlib
import os
import pathlib
import pty
import re
import resource
import shutil
import signal
import subprocess
import time
import unittest

import driver
import hub
from screen import Screen

PULL = pathlib.Path(driver.BIN).parent / "millrace-pull"
STORY = driver.SOURCE / "models" / "storyteller.gguf"
RUN = ("-p", "Once upon a time", "-n", 20, "--seed", 1, "-q")
FOLDER = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")


class HubTest(driver.CliTest):
    def setUp(self):
        super().setUp()
        self.home = self.folder / "home"
        self.cache = self.home / ".cache" / "huggingface" / "hub"
        # Nothing of whoever runs the tests: no tokens, caches or proxies.
        for name in list(os.environ):
            if re.fullmatch(r"(?i)(HF_|HUGGING|TRANSFORMERS_|LLAMA_|XDG_CACHE|MILLRACE_MODEL|.*_proxy$|"
                            r"SSL_CERT|CURL_CA|REQUESTS_CA).*", name):
                old = os.environ.pop(name)
                self.addCleanup(os.environ.__setitem__, name, old)
        self.env = {"HOME": str(self.home)}

    def put(self, path, data):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def snapshot(self, name, commit, files, main=True):
        """What huggingface_hub leaves."""
        folder = self.cache / f"models--{name.replace('/', '--')}"
        for path, data in files.items():
            blob = hashlib.sha256(data).hexdigest()
            self.put(folder / "blobs" / blob, data)
            link = folder / "snapshots" / commit / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(folder / "blobs" / blob, link.parent))
        if main:
            self.put(folder / "refs" / "main", commit.encode())
        return folder

    def story(self, model):
        return self.ok("run", model, *RUN, env=self.env).out


class Downloaded(HubTest):
    """Found by name, whoever downloaded it. No hub is asked."""

    def test_by_huggingface_hub(self):
        story = STORY.read_bytes()
        self.snapshot("me/Tales-GGUF", "b" * 40, {"tales-Q8_0.gguf": story})
        expected = self.story("storyteller")
        self.assertEqual(self.story("me/Tales-GGUF"), expected)
        self.assertEqual(self.story("me/Tales-GGUF:q8_0"), expected)
        self.assertEqual(self.story("me/Tales-GGUF:tales-Q8_0.gguf"), expected)
        self.fails(1, "run", "me/Tales-GGUF:Q4_0", env=self.env,
                   says="'millrace pull me/Tales-GGUF:Q4_0' downloads it")
        # Other variables for the same place; commands other than run.
        for env in ({"HF_HOME": self.home / ".cache" / "huggingface"}, {"HF_HUB_CACHE": self.cache},
                    {"XDG_CACHE_HOME": self.home / ".cache"}, {"LLAMA_CACHE": self.cache}):
            elsewhere = {"HOME": "/nonexistent", **{k: str(v) for k, v in env.items()}}
            self.ok("tokenize", "me/Tales-GGUF", "--text", "Once", env=elsewhere)
        self.ok("convert", "me/Tales-GGUF", self.folder / "out.gguf", "--type", "q4_0", env=self.env)

    def test_a_folder_is_named_after_its_model(self):
        files = hub.folder_files(driver.REFERENCE / "llama2", FOLDER)
        self.snapshot("me/tiny", "c" * 40, files)
        self.assertEqual(self.ok_json("info", "me/tiny", env=self.env)["model"]["name"], "tiny")

    def test_what_is_not_whole_is_not_taken(self):
        files = hub.folder_files(driver.REFERENCE / "llama2", FOLDER)
        shards = hub.split_safetensors(files.pop("model.safetensors"))
        last = shards.pop("model-00002-of-00002.safetensors")
        folder = self.snapshot("me/half", "d" * 40, {**files, **shards})
        self.fails(1, "info", "me/half", env=self.env, says="millrace pull me/half")
        link = folder / "snapshots" / ("d" * 40) / "model-00002-of-00002.safetensors"
        link.symlink_to("../../blobs/gone")
        self.fails(1, "info", "me/half", env=self.env, says="millrace pull me/half")
        self.put(folder / "blobs" / "gone", last)
        self.ok("info", "me/half", env=self.env)

    def test_an_older_snapshot_serves_if_the_newest_has_none(self):
        self.snapshot("me/moved", "e" * 40, {"a-Q8_0.gguf": STORY.read_bytes()}, main=False)
        self.snapshot("me/moved", "f" * 40, {"README.md": b"moved"})
        self.ok("tokenize", "me/moved", "--text", "Once", env=self.env)

    def test_by_llama_cpp(self):
        flat = self.home / ".cache" / "llama.cpp"
        story = STORY.read_bytes()
        self.put(flat / "me_Tales-GGUF_tales-Q8_0.gguf", story)
        self.put(flat / "manifest=me=Tales-GGUF=latest.json", b"{}")
        self.assertEqual(self.story("me/Tales-GGUF"), self.story("storyteller"))
        # Another model's name begins with this one.
        self.put(flat / "me_Tales-GGUF_two_x-Q8_0.gguf", story)
        self.put(flat / "manifest=me=Tales-GGUF_two=latest.json", b"{}")
        self.assertEqual(self.story("me/Tales-GGUF:Q8_0"), self.story("storyteller"))
        self.put(flat / "me_cut_x-Q8_0.gguf.downloadInProgress", story)
        self.fails(1, "run", "me/cut", env=self.env, says="millrace pull me/cut")
        there = {"HOME": "/nonexistent", "LLAMA_CACHE": str(flat)}
        self.ok("tokenize", "me/Tales-GGUF", "--text", "Once", env=there)

    def test_a_path_comes_first(self):
        self.snapshot("me/tiny", "c" * 40, hub.folder_files(driver.REFERENCE / "llama2", FOLDER))
        self.put(self.folder / "me" / "tiny", b"no model")
        self.fails(1, "info", "me/tiny", env=self.env, cwd=self.folder, says="not a model that can be read")

    def test_the_program_cannot_call_out(self):
        if not shutil.which("readelf"):
            self.skipTest("no readelf (Debian: binutils)")
        needs = lambda path: subprocess.run(["readelf", "-d", path], check=True, text=True,
                                            stdout=subprocess.PIPE).stdout
        self.assertNotRegex(needs(driver.BIN), r"NEEDED.*lib(curl|ssl|crypto)")
        if PULL.exists():
            self.assertRegex(needs(PULL), r"NEEDED.*libcurl")

    def test_without_the_program_that_downloads(self):
        alone = self.folder / "millrace"
        shutil.copy(driver.BIN, alone)
        self.fails(1, "pull", "me/tiny", program=alone, env=self.env,
                   says=(f"{self.folder}/millrace-pull", "libcurl4-openssl-dev"))


@unittest.skipUnless(PULL.exists(), "millrace-pull is not built (Debian: libcurl4-openssl-dev, libssl-dev)")
@unittest.skipUnless(shutil.which("openssl"), "no openssl to make an authority with")
class Pull(HubTest):
    def setUp(self):
        super().setUp()
        certificates = self.folder / "certificates"
        certificates.mkdir()
        self.hub = hub.Hub(certificates)
        self.addCleanup(self.hub.close)
        self.env.update(HF_ENDPOINT=self.hub.url, SSL_CERT_FILE=str(self.hub.ca))
        self.weights = STORY.read_bytes()
        self.hub.repositories["me/Tales-GGUF"] = hub.Repository(
            {"README.md": b"#", "tales-Q8_0.gguf": self.weights, "tales-F16.gguf": b"not asked for"})
        self.blob = (self.cache / "models--me--Tales-GGUF" / "blobs" /
                     hashlib.sha256(self.weights).hexdigest())

    def pull(self, name="me/Tales-GGUF:Q8_0", *options, **kwargs):
        return self.ok("pull", name, "--retry-wait", 0.02, *options, env=self.env, **kwargs).out.strip()

    def refused(self, *says, name="me/Tales-GGUF:Q8_0", options=(), code=1, env=None):
        return self.fails(code, "pull", name, "--retry-wait", 0.02, *options,
                          env={**self.env, **(env or {})}, says=says)

    def start(self):
        process = subprocess.Popen([driver.BIN, "pull", "me/Tales-GGUF:Q8_0"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env={**os.environ, **self.env})
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def on_terminal(self, name="me/Tales-GGUF:Q8_0", *options, until=None):
        """What it writes to a terminal. `until`: Ctrl-C once this was seen."""
        ours, theirs = pty.openpty()
        with open(ours, "rb", buffering=0) as terminal:
            process = subprocess.Popen([driver.BIN, "pull", name, *map(str, options)], stdout=subprocess.DEVNULL,
                                       stderr=theirs, env={**os.environ, **self.env, "TERM": "xterm"})
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            os.close(theirs)
            seen = ""
            while True:
                try:
                    seen += terminal.read(1 << 16).decode()
                except OSError:  # it has ended
                    break
                if until and re.search(until, seen):
                    process.send_signal(signal.SIGINT)
                    until = None
        self.assertIn(process.wait(), (0, 130), seen)
        return seen

    def partial(self):
        at = self.blob.with_name(self.blob.name + ".incomplete")
        return at.stat().st_size if at.exists() else 0

    def test_a_file_of_a_type(self):
        path = pathlib.Path(self.pull())
        self.assertEqual(path, self.cache / "models--me--Tales-GGUF" / "snapshots" / ("a" * 40) /
                         "tales-Q8_0.gguf")
        self.assertEqual(path.readlink(), pathlib.Path("../../blobs") / self.blob.name)
        self.assertEqual(path.read_bytes(), self.weights)
        self.assertEqual((self.cache / "models--me--Tales-GGUF" / "refs" / "main").read_text(), "a" * 40)
        self.assertEqual(self.story("me/Tales-GGUF"), self.story("storyteller"))
        self.assertEqual(len(self.hub.asked("large")), 1)
        self.pull()  # everything is here
        self.assertEqual(len(self.hub.asked("large")), 1)
        self.assertEqual(self.partial(), 0)

    def test_a_folder(self):
        files = hub.folder_files(driver.REFERENCE / "llama2", FOLDER)
        more = {"pytorch_model.bin": b"x", "consolidated.safetensors": b"x", "onnx/model.onnx": b"x"}
        self.hub.repositories["me/whole"] = hub.Repository({**files, **more})
        path = pathlib.Path(self.pull("me/whole"))
        self.assertEqual({one.name: one.read_bytes() for one in path.iterdir()}, files)
        shards = hub.split_safetensors(files.pop("model.safetensors"))
        self.hub.repositories["me/sharded"] = hub.Repository({**files, **shards, **more})
        path = pathlib.Path(self.pull("me/sharded"))
        self.assertEqual({one.name: one.read_bytes() for one in path.iterdir()}, {**files, **shards})
        self.assertEqual(self.ok("run", "me/sharded", *RUN, env=self.env).out,
                         self.ok("run", "me/whole", *RUN, env=self.env).out)

    def test_a_hub_that_lists_names_alone(self):
        self.hub.repositories["me/Tales-GGUF"].silent = True
        self.assertEqual(pathlib.Path(self.pull()).resolve(), self.blob)

    def test_a_model_that_has_another_name_now(self):
        self.hub.repositories["old/name"] = "me/Tales-GGUF"
        self.pull("old/name:Q8_0")
        self.ok("tokenize", "old/name", "--text", "Once", env=self.env)

    def test_parts_of_a_split_file(self):
        parts = {f"Q8_0/big-Q8_0-0000{n}-of-00003.gguf": bytes([n]) * 1000 for n in (1, 2, 3)}
        self.hub.repositories["me/big"] = hub.Repository(parts)
        first = pathlib.Path(self.pull("me/big:Q8_0"))
        self.assertEqual(first.name, "big-Q8_0-00001-of-00003.gguf")
        self.assertEqual({f"Q8_0/{one.name}": one.read_bytes() for one in first.parent.iterdir()}, parts)

    def test_an_empty_file(self):
        files = hub.folder_files(driver.REFERENCE / "llama2", FOLDER)
        self.hub.repositories["me/empty"] = hub.Repository({**files, "chat_template.jinja": b""})
        self.assertEqual((pathlib.Path(self.pull("me/empty")) / "chat_template.jinja").read_bytes(), b"")

    def test_a_cut_is_continued(self):
        self.hub.cut = [1 << 20, 2 << 20, 0, 0]
        self.assertEqual(pathlib.Path(self.pull()).read_bytes(), self.weights)
        first, *later = self.hub.asked("large")
        self.assertNotIn("Range", first.headers)
        begins = [int(re.fullmatch(r"bytes=(\d+)-", one.headers["Range"])[1]) for one in later]
        self.assertEqual(begins, [1 << 20, 3 << 20, 3 << 20, 3 << 20])
        # Of the host that has the bytes; and by the hub's permission, each time anew.
        self.assertEqual({one.headers["If-Range"] for one in later}, {f'"storage-{self.blob.name[:8]}"'})
        self.assertEqual(self.hub.sent, len(self.weights))
        self.assertEqual(len(self.hub.asked("hub", "resolve")), 5)

    def test_cuts_without_end(self):
        self.hub.cut = [1 << 20] + [0] * 20
        self.refused("give the command again", options=("--retries", 2))
        self.assertEqual(len(self.hub.asked("large")), 3)
        self.assertEqual(self.partial(), 1 << 20)

    def test_a_killed_one_is_continued(self):
        self.hub.pause = 0.02
        for sign in (signal.SIGKILL, signal.SIGINT):
            before = self.partial()
            process = self.start()
            self.assertTrue(driver.eventually(lambda: self.partial() > before + (1 << 18)))
            process.send_signal(sign)
            process.communicate()
            self.assertEqual(process.returncode, -9 if sign == signal.SIGKILL else 130)
            self.fails(1, "run", "me/Tales-GGUF", env=self.env, says="millrace pull")
        have = self.partial()
        self.hub.pause = 0
        self.assertEqual(pathlib.Path(self.pull()).read_bytes(), self.weights)
        self.assertEqual(self.hub.asked("large")[-1].headers["Range"], f"bytes={have}-")

    def test_damaged_bytes(self):
        self.hub.damage = 1
        self.refused("damaged on its way", self.blob.name)
        self.assertFalse(self.blob.exists())
        self.assertEqual(self.partial(), 0)
        self.fails(1, "run", "me/Tales-GGUF", env=self.env, says="millrace pull")
        self.pull()
        # A small one, of which the hub says git's hash.
        files = hub.folder_files(driver.REFERENCE / "llama2", FOLDER)
        entry = hub.Repository.entry
        wrong = hub.Repository(files)
        wrong.entry = lambda path: {**entry(wrong, path), **(
            {"blobId": "1" * 40} if path == "tokenizer.json" else {})}
        self.hub.repositories["me/wrong"] = wrong
        self.refused("tokenizer.json: damaged on its way", name="me/wrong")

    def test_a_beginning_of_something_else(self):
        for beginning in (b"x" * 1000, b"x" * len(self.weights), b"x" * (len(self.weights) + 1)):
            shutil.rmtree(self.cache, ignore_errors=True)
            self.put(self.blob.with_name(self.blob.name + ".incomplete"), beginning)
            self.assertEqual(pathlib.Path(self.pull()).read_bytes(), self.weights)

    def test_a_busy_hub(self):
        self.hub.busy = 2
        self.pull()
        self.hub.busy = 100
        self.refused("the hub answers 503", options=("--retries", 1))

    def test_a_hub_that_is_busy_at_a_file(self):
        self.hub.busy_part, self.hub.busy_status = "resolve", 429
        self.hub.busy = 2
        self.refused("too many requests", "try again later", options=("--retries", 1))
        self.hub.busy, self.hub.retry_after = 1, 1
        begin = time.monotonic()
        self.pull()
        self.assertGreaterEqual(time.monotonic() - begin, 1)
        # Where size and hash have to be asked for, too.
        self.hub.repositories["me/silent"] = hub.Repository({"a-Q8_0.gguf": b"1"})
        self.hub.repositories["me/silent"].silent = True
        self.hub.busy, self.hub.retry_after = 1, None
        self.pull("me/silent")

    def test_a_terminal_shows_what_it_waits_for(self):
        at = re.escape(self.hub.url.split("//")[1])
        self.hub.busy, self.hub.retry_after = 1, 3
        self.assertRegex(self.on_terminal(), "\r\x1b\\[Kwaiting 1 s: the hub is busy")
        shutil.rmtree(self.cache)
        self.hub.cut = [1 << 20]
        self.assertRegex(self.on_terminal("me/Tales-GGUF:Q8_0", "--retry-wait", 3), "Kwaiting 1 s: .+ [0-9]+ bytes")
        self.hub.busy = 1
        self.assertEqual(self.ok("pull", "me/Tales-GGUF", env=self.env).err, "")  # a pipe
        self.hub.slow = 4
        self.assertRegex(self.on_terminal(), f"Kasking {at}")
        self.hub.slow = 0
        self.blob.unlink()
        with open(self.blob.with_name(self.blob.name + ".incomplete"), "wb") as file:
            file.truncate(1 << 36)  # no blocks on the disk, and a minute to hash
        checking = "Kchecking what is here [0-9]+%"
        self.assertRegex(self.on_terminal(until=checking), f"(?s){checking}.*\r\x1b\\[K.*stopped")

    def test_a_terminal_shows_numbers(self):
        self.hub.slow, self.hub.pause = 1.5, 0.02
        drawn = re.findall("\x1b\\[K([^\r\x1b]+)", self.on_terminal())
        numbers = [line for line in drawn if " of 7" in line]
        # Nothing is known of the rate at first; the wait for the hub is no part of it.
        self.assertNotIn("left", "".join(numbers[:3]))
        self.assertRegex(numbers[-1], "MB/s +[0-9]+ s left")
        self.hub.slow = self.hub.pause = 0
        # A message has a row of its own, and there are no numbers before there is a sum.
        files = hub.folder_files(driver.REFERENCE / "llama2", ("config.json", "model.safetensors"))
        self.hub.repositories["me/bare"] = hub.Repository(files)
        seen = self.on_terminal("me/bare")
        self.assertNotIn("of 0.0 kB", seen)
        self.assertIn("me/bare has no tokenizer.json", Screen(120).feed(seen).text().split("\n")[0])
        self.assertTrue(Screen(120).feed(seen).text().startswith("note: "), seen)

    def test_a_damaged_file_is_repaired(self):
        path = pathlib.Path(self.pull())
        wrong = bytearray(self.weights)
        wrong[28] ^= 1  # the length of a name
        self.blob.write_bytes(wrong)
        self.fails(1, "run", "me/Tales-GGUF", *RUN, env=self.env, says="download it again (millrace pull --verify)")
        self.hub.requests.clear()
        self.pull()  # a name and a size: it does not look further
        self.assertEqual(self.blob.read_bytes(), wrong)
        result = self.ok("pull", "me/Tales-GGUF:Q8_0", "--verify", env=self.env)
        self.assertEqual(result.err, "note: tales-Q8_0.gguf is damaged: it is downloaded again\n")
        self.assertEqual(path.read_bytes(), self.weights)
        self.assertEqual(self.partial(), 0)
        self.assertEqual(self.ok("pull", "me/Tales-GGUF:Q8_0", "--verify", env=self.env).err, "")
        self.assertEqual(len(self.hub.asked("large")), 1)
        # Small files; and one of which the hub names no hash.
        files = hub.folder_files(driver.REFERENCE / "llama2", FOLDER)
        self.hub.repositories["me/whole"] = hub.Repository(files)
        path = pathlib.Path(self.pull("me/whole"))
        (path / "tokenizer.json").resolve().write_bytes(b"?" * len(files["tokenizer.json"]))
        self.pull("me/whole", "--verify")
        self.assertEqual({one.name: one.read_bytes() for one in path.iterdir()}, files)
        unnamed = hub.Repository({"a.txt": b"right"})
        unnamed.silent, unnamed.etag = True, lambda data: "v1"
        self.hub.repositories["me/unnamed"] = unnamed
        path = pathlib.Path(self.pull("me/unnamed:a.txt"))
        path.resolve().write_bytes(b"wrong")
        self.assertIn("cannot be checked", self.ok("pull", "me/unnamed:a.txt", "--verify", env=self.env).err)
        self.assertEqual(path.read_bytes(), b"right")

    def test_addresses(self):
        page = f"{self.hub.url}/me/Tales-GGUF"
        for address in (f"{page}/blob/main/tales-Q8_0.gguf", f"{page}:Q8_0", "https://hf.co/me/Tales-GGUF:Q8_0",
                        f"{page}/resolve/{'a' * 40}/tales-Q8_0.gguf?download=true"):
            self.assertEqual(pathlib.Path(self.pull(address)).name, "tales-Q8_0.gguf", address)
        self.pull("https://huggingface.co/me/Tales-GGUF/tree/main")
        self.refused("no such revision", name=f"{page}/tree/v9")
        self.pull(f"{page}/tree/v9", "--revision", "main")
        self.fails(1, "run", "hf.co/me/none/blob/main/a.gguf", env=self.env,
                   says="'millrace pull me/none:a.gguf' downloads")
        self.refused("is not OWNER/NAME", "--hub https://HOST", name="https://example.org/me/Tales-GGUF", code=2)

    def test_what_did_not_begin_does_not_continue(self):
        result = self.refused("localhost:1: ", options=("--hub", "https://localhost:1"))
        self.assertNotIn("give the command again", result.err)
        self.hub.slow = driver.HANG
        seen = self.on_terminal(until="Kasking")
        self.assertIn("stopped", seen)
        self.assertNotIn("continues", seen)

    def test_two_at_once(self):
        self.hub.pause = 0.01
        both = [self.start(), self.start()]
        said = [one.communicate(timeout=driver.HANG) for one in both]
        self.assertEqual([one.returncode for one in both], [0, 0], said)
        self.assertEqual(said[0][0], said[1][0])
        self.assertEqual(self.hub.sent, len(self.weights))
        self.assertEqual(self.blob.read_bytes(), self.weights)

    def test_refusals(self):
        repositories = self.hub.repositories
        self.refused("me/none", "no such model, or it is private or gated", name="me/none")
        self.refused("me/none", "has no such model", name="me/none", env={"HF_TOKEN": "right"})
        self.refused("no such revision", options=("--revision", "v9"))
        repositories["me/Tales-GGUF"].gated = True
        self.refused("is gated", f"accept them at {self.hub.url}/me/Tales-GGUF", "HF_TOKEN")
        self.refused("this token has no access", env={"HF_TOKEN": "wrong"})
        self.ok("pull", "me/Tales-GGUF:Q8_0", env={**self.env, "HF_TOKEN": "right"})
        repositories["me/torch"] = hub.Repository({"config.json": b"{}", "pytorch_model.bin": b"x"})
        self.refused("PyTorch's format alone", "safetensors and GGUF", name="me/torch")
        repositories["me/tiny"] = hub.Repository({"x-IQ2_XS.gguf": b"", "x-Q3_K_M.gguf": b""})
        self.refused("types that Millrace does not read", name="me/tiny")
        self.refused("IQ2_XS is a type of weights", name="me/tiny:IQ2_XS")
        self.refused("no file of this name or type", "tales-Q8_0", name="me/Tales-GGUF:Q5_0")
        repositories["me/text"] = hub.Repository({"README.md": b""})
        self.refused("no model that Millrace can read", name="me/text")
        for name in ("tales", "me/../x", "me/x:../y"):
            self.refused("is not OWNER/NAME", name=name, code=2)
        self.refused("--hub", options=("--hub", "ftp://localhost"), code=2)
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            for value in ("1", "true", "True", "Yes", "on"):
                self.refused(f"{name} = {value}", env={name: value}, code=2)
        self.ok("pull", "me/Tales-GGUF:Q8_0", env={**self.env, "HF_TOKEN": "right", "HF_HUB_OFFLINE": "0",
                                                  "TRANSFORMERS_OFFLINE": "1"})

    def test_an_architecture_is_refused_before_its_weights_come(self):
        files = {"config.json": b'{"model_type": "mamba", "architectures": ["MambaForCausalLM"]}',
                 "model.safetensors": b"x" * 1000}
        self.hub.repositories["me/mamba"] = hub.Repository(files)
        self.refused("mamba", "this architecture is not supported", name="me/mamba")
        self.assertEqual(self.hub.asked("large"), [])

    def test_certificates(self):
        nobody = {"SSL_CERT_FILE": ""}
        self.refused("is not trusted", "--ca", env=nobody)
        self.ok("pull", "me/Tales-GGUF:Q8_0", "--ca", self.hub.ca, env={**self.env, **nobody})
        self.refused("missing.pem", options=("--ca", self.folder / "missing.pem"))
        for name in ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
            self.ok("pull", "me/Tales-GGUF:Q8_0", env={**self.env, **nobody, name: str(self.hub.ca)})
        folder = self.folder / "authorities"
        folder.mkdir()
        named = subprocess.run(["openssl", "x509", "-in", self.hub.ca, "-noout", "-subject_hash"], check=True,
                               stdout=subprocess.PIPE, text=True).stdout.strip()
        shutil.copy(self.hub.ca, folder / f"{named}.0")
        self.ok("pull", "me/Tales-GGUF:Q8_0", env={**self.env, **nobody, "REQUESTS_CA_BUNDLE": str(folder)})
        self.refused("is not trusted", options=("--hub", self.hub.misnamed_url))

    def test_a_token_stays_with_the_hub(self):
        (self.home / ".cache" / "huggingface").mkdir(parents=True)
        (self.home / ".cache" / "huggingface" / "token").write_text("right\n")
        self.hub.repositories["me/Tales-GGUF"].private = True
        self.pull()
        self.assertEqual({one.headers.get("Authorization") for one in self.hub.asked("hub")}, {"Bearer right"})
        self.assertTrue(self.hub.asked("large"))
        for one in self.hub.asked("large"):
            self.assertNotIn("right", str(one.headers))
        # Nor is it sent where everybody can read it.
        result = driver.millrace("pull", "me/Tales-GGUF:Q8_0", "--hub", self.hub.plain_url, env=self.env)
        self.assertEqual(result.code, 1)
        self.assertIn("without the token", result.err)
        self.assertTrue(self.hub.asked("plain"))
        for one in self.hub.asked("plain"):
            self.assertNotIn("Authorization", one.headers)
        # A token is a word; what is none is not shown.
        result = self.refused("HF_TOKEN: holds no token", env={"HF_TOKEN": "se cret"})
        self.assertNotIn("cret", result.err)

    def test_a_redirect_to_no_encryption(self):
        self.hub.large_url = self.hub.plain_url
        self.refused("is not HTTPS")

    def test_a_proxy(self):
        self.env.update(HTTPS_PROXY=self.hub.proxy(), HF_TOKEN="right")
        self.pull()
        hosts = {one.split()[1] for one in self.hub.connects}
        self.assertEqual(hosts, {url.split("//")[1] for url in (self.hub.url, self.hub.large_url)})
        self.assertNotIn("right", str(self.hub.connects))
        shutil.rmtree(self.cache)
        self.hub.connects.clear()
        self.env.update(NO_PROXY="localhost")
        self.pull()
        self.assertEqual({one.split()[1] for one in self.hub.connects}, {self.hub.large_url.split("//")[1]})

    def test_a_full_disk(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
        done = subprocess.run([driver.BIN, "pull", "me/Tales-GGUF:Q8_0"], stderr=subprocess.PIPE, text=True,
                              env={**os.environ, **self.env}, preexec_fn=limit)
        self.assertEqual(done.returncode, 1)
        self.assertIn("make room, then give the same command again", done.stderr)
        self.assertEqual(self.partial(), 3 << 20)
        self.pull()
        self.assertEqual(self.hub.asked("large")[-1].headers["Range"], f"bytes={3 << 20}-")
        # A file larger than any disk is not begun.
        entry = hub.Repository.entry
        huge = hub.Repository({"a-Q8_0.gguf": b"x"})
        huge.entry = lambda path: {**entry(huge, path), "lfs": {"sha256": "1" * 64, "size": 1 << 49}}
        self.hub.repositories["me/huge"] = huge
        self.hub.requests.clear()
        self.refused("the disk has room for", name="me/huge")
        self.assertEqual(self.hub.asked("large"), [])

    def test_names_that_lead_elsewhere(self):
        files = hub.folder_files(driver.REFERENCE / "llama2", FOLDER)
        del files["model.safetensors"]
        self.hub.repositories["me/index"] = hub.Repository({
            **files, "model.safetensors.index.json": b'{"weight_map": {"a": "../../../../x.safetensors"}}'})
        self.refused("is not the name of a safetensors file beside it", name="me/index")
        self.hub.repositories["me/up"] = hub.Repository({"../../up-Q8_0.gguf": b"x", "/top-Q8_0.gguf": b"x"})
        self.refused("no model that Millrace can read", name="me/up")
        strange = hub.Repository({"a-Q8_0.gguf": b"x"}, commit="../../../x")
        self.hub.repositories["me/strange"] = strange
        self.refused("is not a hub's", name="me/strange")
        self.assertEqual([str(path) for path in self.folder.rglob("*up-Q8_0*")], [])


if __name__ == "__main__":
    driver.main()
