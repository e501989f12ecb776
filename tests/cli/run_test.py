"""millrace run: streaming, prompts of every kind, sampling, stops, Ctrl-C, the summary."""
import json
import os
import signal
import subprocess

import driver

MODEL = driver.REFERENCE / "llama2"

GREEDY = ("Once upon a time, there was a little girl named Lily. She loved to play outside in the "
          "park. One day, she saw a big, red ball. She wanted to play with it, but it was too "
          "high.\nLily's mom said, \"Lily, let's go to the park.\" Lily was sad and didn't know "
          "what to do. She said, \"I want to play with your ball, but I can't find it.\"")


class Run(driver.CliTest):
    def run_json(self, *arguments, **kwargs):
        return self.ok_json("run", MODEL, "--temp", 0, *arguments, **kwargs)

    def test_json_has_text_ids_timing_and_ledger(self):
        got = self.run_json("-p", "Once upon", "-n", 12, "--ignore-eos", env=driver.MEASURED)
        self.assertEqual(len(got["ids"]), 12)
        self.assertEqual(got["prompt"], "Once upon")
        self.assertEqual(got["prompt_tokens"], len(got["prompt_ids"]))
        self.assertEqual(got["decode_steps"], 11)
        self.assertEqual(got["stop_reason"], "length")
        for key in ("tok_s", "gb_s", "read_bandwidth_gb_s", "percent_of_bandwidth",
                    "bytes_per_token", "prefill_tok_s"):
            self.assertGreater(got[key], 0, key)
        linear = got["ledger"]["decode"]["linear"]
        self.assertGreater(linear["flops"], 0)
        self.assertEqual(got["ledger"]["decode"]["host_to_device_bytes"], 0)

    def test_a_quiet_run_measures_nothing(self):
        """Measuring the memory takes 64 MiB or more, the model 0.5 MB."""
        def peak(*arguments):
            process = subprocess.Popen([driver.BIN, "run", str(MODEL), "-p", "Once", "-n", "4", "--json",
                                        *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                       env={**os.environ, **driver.MEASURED})
            said = json.loads(process.stdout.read())
            _, status, usage = os.wait4(process.pid, 0)
            process.stdout.close()
            process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, 0)
            return said, usage.ru_maxrss << 10
        quiet, bytes_ = peak("-q")
        self.assertIsNone(quiet["read_bandwidth_gb_s"])
        self.assertIsNone(quiet["percent_of_bandwidth"])
        said, measured = peak("-q", "--roofline")  # which asks for it
        self.assertGreater(said["read_bandwidth_gb_s"], 0)
        self.assertGreater(measured - bytes_, 50 << 20)

    def test_the_speed_of_the_memory_can_be_stated(self):
        words = ("run", MODEL, "-p", "Once", "-n", 4, "--ignore-eos")
        got = self.ok_json(*words, env={"MILLRACE_READ_RATE": "12.5GB/s"})
        self.assertEqual(got["read_bandwidth_gb_s"], 12.5)
        self.assertAlmostEqual(got["percent_of_bandwidth"], 100 * got["gb_s"] / 12.5)
        for wrong in ("fast", "-3GB/s", "0GB/s", "12.5"):
            self.fails(2, *words, env={"MILLRACE_READ_RATE": wrong},
                       says=["MILLRACE_READ_RATE", "Gb/s"])
        # A roofline is held against what was measured.
        self.assertNotEqual(
            self.ok_json(*words, "--roofline", env={"MILLRACE_READ_RATE": "1MB/s"})["read_bandwidth_gb_s"],
            0.001)

    def test_text_is_the_prompt_and_what_json_says(self):
        arguments = ["run", MODEL, "--temp", 0, "-n", 12, "-p", "Once upon"]
        text = self.ok_json(*arguments)["text"]
        self.assertEqual(self.ok(*arguments).out, "Once upon" + text + "\n")
        self.assertEqual(self.ok(*arguments, "--no-echo").out, text + "\n")

    def test_summary_is_one_line_on_standard_error(self):
        err = self.ok("run", MODEL, "-p", "Once", "-n", 8, "--ignore-eos").err
        self.assertEqual(err.count("\n"), 1, err)
        for word in ("tok/s", "GB/s", "%", "per token", "seed"):
            self.assertIn(word, err)
        self.assertEqual(self.ok("run", MODEL, "-p", "Once", "-n", 8, "--quiet").err, "")
        table = self.ok("run", MODEL, "-p", "Once", "-n", 8, "--verbose").err
        self.assertRegex(table, r"op +calls +ms +share")
        self.assertIn("linear", table)

    def test_a_prompt_that_is_too_long_is_told_what_takes_it(self):
        prompt = ("run", "storyteller", "-n", 4, "-q", "-p", "The little dog ran. " * 200)
        self.fails(1, *prompt, says=["does not fit into the context of 512", "--context streaming"])
        self.ok(*prompt, "--context", "streaming")

    def test_same_seed_same_text_whatever_the_threads(self):
        def ids(*more):
            return self.ok_json("run", MODEL, "-p", "Once", "-n", 24, "--temp", 1.5, "--top-k", 0,
                                "--top-p", 1, "--min-p", 0, "--ignore-eos", *more)["ids"]
        self.assertEqual(ids("--seed", 7, "--threads", 1), ids("--seed", 7, "--threads", 2))
        self.assertNotEqual(ids("--seed", 7), ids("--seed", 8))
        self.assertEqual(len(ids("--repeat-penalty", 1.1)), 24)

    def test_where_a_text_ends(self):
        sampled = ["run", MODEL, "-p", "Once", "-n", 20, "--temp", 1.5, "--seed", 7, "--ignore-eos"]
        whole = self.ok_json(*sampled)["ids"]
        stop = whole[6]
        first = whole.index(stop)
        other = next(id for id in range(3, 288) if id not in whole)
        got = self.ok_json(*sampled, "--stop-id", other, "--stop-id", stop)
        self.assertEqual((got["stop_reason"], got["ids"]), ("end_of_text", whole[:first + 1]))
        late = self.ok_json(*sampled, "--stop-id", stop, "--min-tokens", first + 3)["ids"]
        self.assertEqual(late[:first], whole[:first])
        self.assertNotIn(stop, late[:first + 3])
        self.assertGreaterEqual(len(late), first + 3)
        # A batch has the same.
        many = self.ok(*sampled, "--stop-id", stop, "--min-tokens", first + 3, "--count", 2, "--json").out
        self.assertEqual(json.loads(many.splitlines()[0])["ids"], late)
        self.fails(1, *sampled, "--stop-id", 100000, says="vocabulary")
        self.fails(2, *sampled, "--min-tokens", -1, says="--min-tokens")

    def test_penalties_have_llama_cpps_names_too(self):
        words = ["run", MODEL, "-p", "Once", "-n", 40, "--temp", 0, "--ignore-eos"]
        whole = self.ok_json(*words, "--repeat-penalty", 1.5, "--repeat-window", 1000)["ids"]
        self.assertEqual(self.ok_json(*words, "--repetition-penalty", 1.5, "--repeat-last-n", -1)["ids"],
                         whole)
        self.assertNotEqual(self.ok_json(*words, "--repeat-penalty", 1.5, "--repeat-last-n", 2)["ids"],
                            whole)

    def test_several_texts_have_the_next_seeds(self):
        sampled = ["run", MODEL, "-p", "Once", "-n", 8, "--temp", 1.5, "--ignore-eos"]
        each = [self.ok_json(*sampled, "--seed", seed)["text"] for seed in (7, 8, 9)]
        many = self.ok(*sampled, "--seed", 7, "--count", 3)
        self.assertEqual(many.out, "".join(f"Once{text}\n<|endoftext|>\n" for text in each))
        self.assertRegex(many.err, r"; 21 tokens in [\d.]+ s; prompts \d+ tokens; loaded in [\d.]+ s; "
                                   "seed 7 and on, 3 texts")
        lines = self.ok(*sampled, "--seed", 7, "--count", 3, "--json").out.splitlines()
        self.assertNotIn("ledger", lines[0])  # the bytes of a pass are those of all texts in it
        self.assertEqual([json.loads(line)["text"] for line in lines], each)
        self.assertEqual([json.loads(line)["seed"] for line in lines], [7, 8, 9])
        self.fails(2, *sampled, "--count", 0, says="--count")

    def test_prompts_from_file_and_standard_input(self):
        path = self.folder / "prompt.txt"
        path.write_text("Once upon a time")
        want = self.run_json("-p", "Once upon a time", "-n", 4)["ids"]
        self.assertEqual(self.run_json("--prompt-file", path, "-n", 4)["ids"], want)
        self.assertEqual(self.run_json("-p", "-", "-n", 4, stdin=b"Once upon a time")["ids"], want)
        self.fails(2, "run", MODEL, "-p", "x", "--prompt-file", path, says="--prompt-file")
        self.fails(1, "run", MODEL, "--prompt-file", self.folder / "none.txt", says="none.txt")

    def test_empty_and_binary_prompts(self):
        self.assertEqual(len(self.run_json("-p", "", "-n", 4, "--ignore-eos")["ids"]), 4)
        self.assertEqual(len(self.run_json("-n", 4, "--ignore-eos")["ids"]), 4)
        blob = bytes(range(256)) * 2
        got = self.run_json("-p", "-", "-n", 4, "--ctx", 2000, stdin=blob)
        self.assertGreater(got["prompt_tokens"], 1)
        self.assertEqual(self.ok("run", MODEL, "-p", "-", "-n", 2, "--ctx", 2000, "--temp", 0,
                                 stdin=blob).raw[:512], blob)

    def test_nothing_to_make(self):
        self.assertEqual(self.run_json("-p", "Once", "-n", 0)["ids"], [])

    def test_a_prompt_longer_than_the_context(self):
        self.fails(1, "run", MODEL, "-p", "word " * 300, "--ctx", 64,
                   says=["prompt", "64", "--ctx", "tokens"])

    def test_too_large_a_context_is_refused_before_the_weights_are_made(self):
        """random:stories-110m:f32 has 0.5 GB of weights; the error must need next to none."""
        for model, says in (("random:stories-110m:f32", "KV cache"), ("random:gpt2:f32", "--ctx")):
            with subprocess.Popen([driver.BIN, "run", model, "-p", "x", "--ctx", str((1 << 30) - 1)],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                out, err = process.stdout.read(), process.stderr.read().decode()
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, 1 if "gpt2" in model else 3, err)
            self.assertEqual(out, b"")
            self.assertIn(says, err)
            self.assertEqual(err.count("\n"), 1, err)
            self.assertLess(usage.ru_maxrss, 200 << 10)  # KiB

    def test_fills_the_context_and_stops(self):
        got = self.run_json("-p", "Once", "-n", -1, "--ctx", 40, "--ignore-eos")
        self.assertEqual(got["stop_reason"], "context_full")
        self.assertLessEqual(got["prompt_tokens"] + got["decode_steps"], 40)

    def test_says_that_a_full_context_cut_the_text_short(self):
        full = "note: the context of 40 tokens is full; --context streaming goes on\n"

        def said(prompt, tokens, *options):
            return self.ok("run", MODEL, "-p", prompt, "-n", tokens, "--ctx", 40, "--ignore-eos", *options).err

        for prompt in ("Once", ""):  # "": the beginning-of-text token alone
            self.assertTrue(said(prompt, 60).startswith(full))
            self.assertEqual(said(prompt, 60, "-q"), "")
            self.assertEqual(self.run_json("-p", prompt, "-n", 60, "--ctx", 40, "--ignore-eos")["stop_reason"],
                             "context_full")
        self.assertIn(full, said("Once", 60, "--count", 2))
        for tokens, *options in ((30,), (-1,), (60, "--context", "streaming")):
            self.assertNotIn("is full", said("Once", tokens, *options))

    def test_stop_strings_end_the_text(self):
        whole = self.run_json("-p", "Once", "-n", 40, "--ignore-eos")["text"]
        middle = whole[len(whole) // 2:][:3]
        got = self.run_json("-p", "Once", "-n", 40, "--ignore-eos", "--stop", "never-there",
                            "--stop", middle)
        self.assertEqual(got["stop_reason"], "stop_string")
        self.assertEqual(got["text"], whole[:whole.index(middle)])

    def test_wrong_options(self):
        for option, value in (("--temp", "-1"), ("--top-p", "2"), ("--top-k", "x"), ("--tokens", "-5"),
                              ("--kv-type", "q8_0"), ("--ctx", "-3"), ("--seed", "x")):
            self.fails(2, "run", MODEL, option, value, says=[option, "millrace run --help"])

    def test_f16_cache(self):
        self.assertEqual(len(self.run_json("-p", "Once", "-n", 6, "--ignore-eos", "--kv-type",
                                           "f16")["ids"]), 6)

    def test_a_model_without_tokenizer(self):
        self.fails(1, "run", driver.REFERENCE / "mistral", "-p", "x", says="--tokenizer")

    def test_environment_names_the_default_model(self):
        got = self.ok_json("run", "-p", "Once", "-n", 3, env={"MILLRACE_MODEL": str(MODEL)})
        self.assertEqual(got["model"], str(MODEL))

    def test_text_streams_and_ctrl_c_ends_it_with_the_summary(self):
        process = subprocess.Popen(
            [driver.BIN, "run", str(MODEL), "-p", "Once", "-n", "-1", "--ctx", "200000",
             "--ignore-eos"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        first = os.read(process.stdout.fileno(), 10)  # available before the end
        self.assertTrue(first)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        note, summary, end = err.split(b"\n")
        self.assertIn(b"note: --ctx 200000", note)
        self.assertIn(b"tok/s", summary)
        self.assertEqual(end, b"")

    def test_a_reader_that_leaves_ends_it_quietly(self):
        process = subprocess.Popen(
            [driver.BIN, "run", str(MODEL), "-p", "Once", "-n", "-1", "--ctx", "200000",
             "--ignore-eos"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        self.assertEqual(process.wait(timeout=60), 0)
        self.assertRegex(process.stderr.read(), rb"^note: --ctx 200000 .*\n$")
        process.stderr.close()

    def test_full_output(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([driver.BIN, "run", str(MODEL), "-p", "Once", "-n", "4"],
                                  stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count(b"\n"), 1, done.stderr)

    def test_greedy_text_of_stories260k(self):
        got = self.ok_json("run", *self.stories(), "--temp", 0, "-n", 200, "-p", "")
        self.assertTrue(got["text"].startswith(GREEDY), got["text"])


if __name__ == "__main__":
    driver.main()
