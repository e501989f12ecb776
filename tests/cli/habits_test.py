"""Habits from other programs: pipes as prompts, other names of options, quiet JSON,
log-probabilities."""
import json
import math
import os
import pty
import subprocess
import threading

import driver

MODEL = driver.REFERENCE / "llama2"
GREEDY = ("--temp", 0, "-n", 6, "--ignore-eos")


class Prompts(driver.CliTest):
    def setUp(self):
        super().setUp()
        self.want = self.ok_json("run", MODEL, "-p", "Once upon", *GREEDY)

    def prompt_of(self, **kwargs):
        """The prompt of a run without -p."""
        done = subprocess.run([driver.BIN, "run", str(MODEL), *map(str, GREEDY), "--json"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, **kwargs)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["prompt"]

    def test_a_pipe_is_the_prompt(self):
        for command in ("run", "profile"):
            got = self.ok_json(command, MODEL, *GREEDY, stdin=b"Once upon\n")
            self.assertEqual((got["prompt"], got["ids"]), ("Once upon", self.want["ids"]))
        # If -p or a file is given, standard input is not read.
        self.assertEqual(self.ok_json("run", MODEL, "-p", "Once upon", *GREEDY,
                                      stdin=b"Something")["ids"], self.want["ids"])
        path = self.folder / "prompt.txt"
        path.write_text("Once upon")
        self.assertEqual(self.ok_json("run", MODEL, "--prompt-file", path, *GREEDY,
                                      stdin=b"Something")["ids"], self.want["ids"])

    def test_one_newline_at_the_end_is_dropped(self):
        for text, prompt in ((b"a\n", "a"), (b"a", "a"), (b"a\n\n", "a\n"), (b"\n", ""),
                             (b"a\nb\n", "a\nb"), (b"a\r\n", "a"), (b"a\r\nb\r\n\r\n", "a\r\nb\r\n"),
                             (b"a\r", "a\r"), (b"\r\n", "")):
            for option in ((), ("-p", "-")):
                got = self.ok_json("run", MODEL, *option, *GREEDY, stdin=text)
                self.assertEqual(got["prompt"], prompt)
        # A prompt on the command line is taken literally.
        self.assertEqual(self.ok_json("run", MODEL, "-p", "a\n", *GREEDY)["prompt"], "a\n")

    def test_no_input_is_no_prompt(self):
        self.assertEqual(self.prompt_of(stdin=subprocess.DEVNULL), "")
        self.assertEqual(self.prompt_of(input=b""), "")
        self.assertEqual(self.prompt_of(preexec_fn=lambda: os.close(0)), "")
        with open("/dev/zero", "rb") as zero:  # a device, without an end
            self.assertEqual(self.prompt_of(stdin=zero), "")
        path = self.folder / "prompt.txt"
        path.write_text("from a file\n")
        with open(path, "rb") as file:
            self.assertEqual(self.prompt_of(stdin=file), "from a file")

    def test_a_terminal_is_not_read(self):
        ours, theirs = pty.openpty()
        try:
            os.write(ours, b"typed ahead\n")
            self.assertEqual(self.prompt_of(stdin=theirs), "")
        finally:
            os.close(ours)
            os.close(theirs)

    def test_a_pipe_that_says_nothing_is_waited_for_aloud(self):
        read, write = os.pipe()
        process = subprocess.Popen([driver.BIN, "run", str(MODEL), *map(str, GREEDY), "--json"],
                                   stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.close(read)
        self.assertIn(b"waiting for a prompt from standard input", process.stderr.readline())
        os.write(write, b"Once upon\n")
        os.close(write)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(json.loads(out)["ids"], self.want["ids"])

    def fifo(self, text):
        path = self.folder / "fifo"
        os.mkfifo(path)
        writer = threading.Thread(target=lambda: path.write_text(text))
        writer.start()
        self.addCleanup(writer.join)
        return path

    def test_texts_may_be_pipes(self):
        got = self.ok_json("run", MODEL, "--prompt-file", self.fifo("Once upon"), *GREEDY)
        self.assertEqual(got["ids"], self.want["ids"])

    def test_a_text_to_evaluate_may_be_a_pipe(self):
        text = "Once upon a time there was a cat. " * 5
        path = self.folder / "text.txt"
        path.write_text(text)
        want = self.ok_json("eval", MODEL, "--text", path, "-c", 256)["nll"]
        self.assertEqual(self.ok_json("eval", MODEL, "--text", self.fifo(text), "-c", 256)["nll"], want)

    def test_a_text_to_tokenize_may_be_a_pipe(self):
        want = self.ok("tokenize", MODEL, "--text", "Once upon", "--ids").out
        self.assertEqual(self.ok("tokenize", MODEL, "--file", self.fifo("Once upon"), "--ids").out, want)

    def test_stories_to_check_may_be_a_pipe(self):
        stories = self.ok(driver.LAB, "story", "write", "--stories", 3, "--out", "-").out
        self.assertEqual(self.ok_json(driver.LAB, "story", "check", self.fifo(stories))["stories"], 3)


    def test_a_prompt_needs_no_option(self):
        for command in ("run", "profile"):
            got = self.ok_json(command, MODEL, "Once upon", *GREEDY, stdin=b"Something")
            self.assertEqual((got["prompt"], got["ids"]), ("Once upon", self.want["ids"]))
            self.assertEqual(self.ok_json(command, "-m", MODEL, "Once upon", *GREEDY)["ids"],
                             self.want["ids"])
        self.assertEqual(self.ok_json("run", MODEL, "", *GREEDY, stdin=b"Something")["prompt"], "")
        self.assertEqual(self.ok_json("run", MODEL, "-", *GREEDY, stdin=b"Once\n")["prompt"], "Once")
        self.assertEqual(self.ok("run", MODEL, *GREEDY, "--json", "--", "-5 degrees").json()["prompt"],
                         "-5 degrees")
        self.fails(2, "run", MODEL, "Once", "upon", says=("not expected: upon", "in quotes"))
        self.fails(2, "run", MODEL, "Once", "-p", "upon", says="more than once")
        self.fails(2, "run", MODEL, "Once", "--prompt-file", "a.txt", says="--prompt-file")
        self.fails(1, "run", "Once upon a time", says="a prompt is given with -p")

    def test_a_piped_text_needs_no_option(self):
        want = self.ok("tokenize", MODEL, "--text", "Once upon\n", "--ids").out
        self.assertEqual(self.ok("tokenize", MODEL, "--ids", stdin=b"Once upon\n").out, want)
        text = b"Once upon a time there was a cat. " * 3
        want = self.ok_json("eval", MODEL, "--text", "-", stdin=text)["nll"]
        self.assertEqual(self.ok_json("eval", MODEL, stdin=text)["nll"], want)
        for command in ("tokenize", "eval"):
            self.fails(2, command, MODEL, stdin=b"", says=("--text", "required", "piped"))
            done = subprocess.run([driver.BIN, command, str(MODEL)], stdin=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, timeout=60)
            self.assertEqual(done.returncode, 2)


class Names(driver.CliTest):
    def test_options_of_other_programs_are_answered(self):
        for typed, says in ((("-ngl", 99), "--device"), (("-ngl99",), "--device"),
                            (("--gpu-layers", 99), "--device"), (("--n-gpu-layers=9",), "--device"),
                            (("-hf", "owner/name"), "millrace pull OWNER/NAME"),
                            (("--hf-repo", "owner/name"), "millrace pull OWNER/NAME"),
                            (("-hff", "file.gguf"), "millrace pull OWNER/NAME:FILE"),
                            (("-cnv",), "millrace chat MODEL"), (("-no-cnv",), "millrace chat MODEL"),
                            (("--conversation",), "millrace chat MODEL"),
                            (("-f", "prompt.txt"), "--prompt-file")):
            given = str(typed[0]).split("=")[0].rstrip("0123456789")
            self.fails(2, "run", MODEL, *typed, says=(f"millrace: {given}: is not an option here", says))
            self.fails(2, "run", *typed, MODEL, "-p", "x", says=says)
        self.fails(2, "chat", "-f", "prompt.txt", says=("millrace: -f: is not", "--prompt-file"))
        self.fails(2, "-hf", "owner/name", says=("millrace: -hf: is not", "millrace pull OWNER/NAME"))
        # A value may look like one, and other options begin alike.
        self.assertEqual(self.ok_json("run", MODEL, "--prompt=-hf", *GREEDY)["prompt"], "-hf")
        self.fails(2, "run", MODEL, "-fa", says="-fa: unknown option")
        self.assertIn("Usage", self.ok("run", "-h").out)

    def test_an_option_before_its_command(self):
        self.fails(2, "--json", "run", says="--json: an option comes after its command; "
                                            "millrace run --json")
        self.fails(2, "--temp=0", "run", MODEL, says="millrace run --temp")
        self.fails(2, "--jsn", says="--jsn")
        self.assertIn("millrace", self.ok("--version").out)

    def test_a_misspelt_model(self):
        for given, near in (("storytellr", "storyteller"), ("Storyteller", "storyteller"),
                            ("storyteller-difusion", "storyteller-diffusion")):
            self.fails(1, "run", given, "-p", "x", says=f"did you mean {near}?")
        self.fails(1, "run", "llama", says="or name a bundled model: storyteller")

    def test_other_names(self):
        want = self.ok_json("run", MODEL, "-p", "Once", "-n", 5, "--temp", 0.7, "--seed", 3, "--ctx", 60,
                            "--threads", 1)
        for arguments in (("-m", MODEL, "-c", 60, "-t", 1), ("--model", MODEL, "-c60", "-t1"),
                          (f"--model={MODEL}", "--ctx=60", "--threads=1")):
            got = self.ok_json("run", *arguments, "-p", "Once", "--max-tokens", 5, "--temperature",
                               0.7, "--seed", 3)
            self.assertEqual(got["ids"], want["ids"])
            self.assertEqual((got["model"], got["threads"]), (str(MODEL), 1))
        self.assertEqual(self.ok_json("info", "-m", MODEL, "-c", 50)["memory_plan"]["ctx"], 50)
        self.assertEqual(self.ok_json("tokenize", "-m", MODEL, "--text", "a")["vocab"],
                         self.ok_json("tokenize", MODEL, "--text", "a")["vocab"])
        self.fails(2, "run", MODEL, "-m", MODEL, "-p", "x")  # only one of the two
        bench = ("bench", "decode", MODEL, "--prompt", 4, "--reps", 1, "--warmup", 0)
        self.assertEqual(self.ok_json(*bench, "--max-tokens", 5)["steps"], 5)

    def test_a_name_that_is_empty(self):
        """"$MODEL" with the variable unset must not select another model."""
        for command in ("run", "chat", "info", "tokenize", "profile"):
            for model in (("",), ("-m", ""), ("--model", "")):
                self.fails(2, command, *model, says=("is empty", f"'millrace {command} --help'"))
        self.fails(2, driver.LAB, "sampler", "", says="is empty")
        self.fails(2, "bench", "decode", "", says="is empty")
        for arguments in (("run", MODEL, "--tokenizer", ""), ("run", MODEL, "--prompt-file", ""),
                          ("chat", MODEL, "--chat-template", ""), ("tokenize", MODEL, "--file", ""),
                          ("profile", MODEL, "--html", ""), ("train", "--init", ""),
                          ("train", "--resume", "")):
            self.fails(2, *arguments, says=f"{arguments[-2]}: is empty: name one, or leave it out")

    def test_types_in_any_case(self):
        out = self.folder / "a.gguf"
        for given, type_ in (("F16", "f16"), ("Bf16", "bf16"), ("f32", "f32")):
            self.ok("convert", MODEL, out, "--type", given, "--force")
            self.assertIn(type_, self.ok_json("info", out)["model"]["weight_bytes_by_type"])
        self.assertEqual(len(self.ok_json("run", MODEL, "-p", "a", *GREEDY, "--kv-type", "F16",
                                          "--device", "CPU")["ids"]), 6)
        self.assertIn("q8_0", " ".join(self.ok_json("info", "random:stories-42m:Q8_0")["model"]
                                       ["weight_bytes_by_type"]))
        self.fails(2, "info", "random:stories-42m:Q9_0", says="Q9_0")

    def test_a_context_beyond_the_training_is_said_once(self):
        for command in (("run", "-p", "a", "-n", "2"), ("chat", "-n", "2")):
            result = self.ok(command[0], MODEL, *command[1:], "-c", 300, stdin=b"Hello\nAnd you?\n")
            self.assertEqual(result.err.count("note: --ctx 300 is more than the 64 positions"), 1)
        for context in (64, 0):
            self.assertNotIn("trained", self.ok("run", MODEL, "-p", "a", "-n", 2, "-c", context).err)


class Json(driver.CliTest):
    def test_json_is_quiet(self):
        result = self.ok("run", MODEL, "-p", "Once", *GREEDY, "--json")
        self.assertEqual((result.err, result.out.count("\n")), ("", 1))
        aloud = self.ok("run", MODEL, "-p", "Once", *GREEDY, "--json", "--verbose")
        self.assertIn("tok/s", aloud.err)
        self.assertEqual(json.loads(aloud.out)["ids"], result.json()["ids"])
        self.assertIn("tok/s", self.ok("run", MODEL, "-p", "Once", *GREEDY).err)

    def test_logprobs(self):
        sampled = ("run", "-p", "Once", "-n", 12, "--seed", 4, "--temp", 1.5, "--repeat-penalty", 1.2)
        want = self.ok_json(*sampled)
        self.assertNotIn("logprobs", want)
        got = self.ok_json(*sampled, "--logprobs", 5)
        self.assertEqual((got["ids"], got["text"]), (want["ids"], want["text"]))  # asking changes nothing
        self.assertEqual([token["id"] for token in got["logprobs"]], want["ids"])
        for token in got["logprobs"]:
            self.assertLess(token["logprob"], 0)
            self.assertEqual(len(token["top"]), 5)
            tops = [other["logprob"] for other in token["top"]]
            self.assertEqual(tops, sorted(tops, reverse=True))
            self.assertLessEqual(sum(map(math.exp, tops)), 1 + 1e-9)
            self.assertLessEqual(token["logprob"], tops[0])
        self.assertEqual("".join(token["token"] for token in got["logprobs"]), got["text"])
        # The model's own, regardless of the temperature.
        cold = self.ok_json("run", "-p", "Once", *GREEDY, "--logprobs", 1)
        for token in cold["logprobs"]:
            self.assertEqual(token["top"][0]["id"], token["id"])
            self.assertEqual(token["top"][0]["logprob"], token["logprob"])
        none = self.ok_json(*sampled, "--logprobs", 0)
        self.assertEqual([token["top"] for token in none["logprobs"]], [[]] * 12)

    def test_logprobs_of_no_token(self):
        for count in (1, 2):
            lines = self.ok("run", MODEL, "-p", "Once", "-n", 0, "--json", "--logprobs", 3, "--count",
                            count).out.splitlines()
            self.assertEqual([json.loads(line)["logprobs"] for line in lines], [[]] * count)

    def test_logprobs_have_the_bytes_of_tokens(self):
        # At a high temperature, an untrained model also draws parts of characters.
        got = self.ok_json("run", MODEL, "-p", "Once", "-n", 200, "--ignore-eos", "--seed", 1, "--temp",
                           50, "--top-k", 0, "--top-p", 1, "--logprobs", 2)
        entries = got["logprobs"] + [other for token in got["logprobs"] for other in token["top"]]
        for entry in entries:
            self.assertEqual(bytes(entry["bytes"]).decode("utf-8", "replace"), entry["token"])
        parts = {tuple(entry["bytes"]) for entry in entries if entry["token"] == "\ufffd"}
        self.assertGreater(len(parts), 1)  # "token" does not distinguish them
        made = [byte for token in got["logprobs"] if token["token"] != "<unk>" for byte in token["bytes"]]
        self.assertEqual([byte for byte in made if byte < 128],
                         [ord(c) for c in got["text"] if ord(c) < 128])

    def test_logprobs_of_several_texts(self):
        sampled = ("run", MODEL, "-p", "Once", "-n", 6, "--ignore-eos", "--logprobs", 2, "--json")
        lines = [json.loads(line) for line in
                 self.ok(*sampled, "--seed", 7, "--count", 3).out.splitlines()]
        for i, line in enumerate(lines):
            alone = self.ok(*sampled, "--seed", 7 + i).json()
            self.assertEqual(line["logprobs"], alone["logprobs"])

    def test_logprobs_are_those_of_eval(self):
        made = self.ok_json("run", "-p", "Once", *GREEDY, "--logprobs", 0)

        def nats(written):
            got = self.ok_json("eval", "--text", "-", stdin=written.encode())
            return got["nll"] * got["tokens"], got["tokens"]

        ids = self.ok_json("tokenize", "--text", "Once" + made["text"])["ids"]
        self.assertEqual(ids, made["prompt_ids"] + made["ids"])
        whole, tokens = nats("Once" + made["text"])
        before, fewer = nats("Once")
        self.assertEqual(tokens - fewer, len(made["ids"]))
        self.assertAlmostEqual(-sum(token["logprob"] for token in made["logprobs"]), whole - before,
                               places=3)

    def test_logprobs_that_cannot_be(self):
        self.fails(2, "run", MODEL, "-p", "a", "--logprobs", 3, says=("--logprobs", "--json"))
        for count in (-1, 21):
            self.fails(2, "run", MODEL, "-p", "a", "--json", "--logprobs", count,
                       says="--logprobs: must be from 0 to 20")


if __name__ == "__main__":
    driver.main()
