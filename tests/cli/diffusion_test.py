#!/usr/bin/env python3
"""Diffusion models on the command line: run, chat, eval, profile and bench."""
import json
import pathlib
import tempfile

import driver
from driver import millrace
from train_test import QUIET, pack_stories, shape

AR = driver.SOURCE / "models" / "storyteller.gguf"


class DiffusionTest(driver.CliTest):
    @classmethod
    def setUpClass(cls):
        made = tempfile.TemporaryDirectory(prefix="millrace-fill-")
        cls.addClassCleanup(made.cleanup)
        base = pathlib.Path(made.name)
        _, _, data = pack_stories(base)
        run = base / "run"
        result = millrace("train", *shape(batch=4, seq=32), *QUIET, "--objective", "diffusion",
                          "--block", "8", "--steps", "20", "--data", data, "--out", run)
        assert result.code == 0, result.err
        cls.model = base / "model.gguf"
        result = millrace("convert", run, cls.model, "--type", "f32")
        assert result.code == 0, result.err
        cls.text = base / "text.txt"
        cls.text.write_text("Once there was a cat.<|endoftext|>A dog ran home.<|endoftext|>")

    def made(self, *more, count=20):
        result = self.ok_json("run", self.model, "-p", "Once", "-n", str(count), "--seed", "3",
                              "--ignore-eos", "--json", *more)
        self.assertEqual(len(result["ids"]), count)
        return result

    def refused(self, *command):
        result = millrace(*command)
        self.assertEqual(result.code, 2, result.err)
        lines = result.err.strip().splitlines()
        self.assertEqual(len(lines), 1, result.err)
        return lines[0]

    def test_every_strategy_makes_a_text(self):
        one = self.made("--remask", "static")
        self.assertGreaterEqual(one["passes"], 20)
        four = self.made("--remask", "static", "--steps", "2")
        self.assertLessEqual(four["passes"], 7)
        again = self.made("--remask", "static")
        self.assertEqual((again["ids"], again["text"]), (one["ids"], one["text"]))
        self.assertNotEqual(four["ids"], one["ids"])
        for more in (["--remask", "sequential"], ["--remask", "dynamic", "--threshold", "0.1"],
                     ["--remask", "entropy", "--entropy-bound", "3"], ["--block", "5"],
                     ["--confidence", "drawn"]):
            self.made(*more)
        # A number that is not a multiple of the block, and the mask is never part of the text.
        self.assertNotIn(280, self.made(count=13)["ids"])

    def test_the_bundled_model_is_near_the_entropy(self):
        stories = self.folder / "stories.txt"
        self.ok(driver.LAB, "story", "write", "--stories", 48, "--seed", 5, "--out", stories)
        got = self.ok_json("eval", "storyteller-diffusion", "--text", stories, "--split",
                           "<|endoftext|>", "--bound", 0)
        # The requirement is 1.0 nats per story at most at 2 tokens per pass; measured 0.62 over 300
        # stories (docs/bundled-model.md). Here there are fewer stories, so allow for the standard
        # error.
        book = self.ok_json(driver.LAB, "story", "distance", stories, "-",
                            stdin=json.dumps(got).encode())
        self.assertLess(book["standard_error"], 0.3)
        self.assertLess(book["distance"] - book["standard_error"], 1.0)
        self.assertGreater(got["tokens_per_pass"], 2)

    def test_the_bundled_model_writes_stories(self):
        own = self.folder / "own.txt"
        made = self.ok("run", "storyteller-diffusion", "--temp", 1, "--top-k", 0, "--top-p", 1,
                       "--min-p", 0, "-n", 500, "--count", 40, "--seed", 1, "-q")
        own.write_bytes(made.raw)
        census = self.ok_json(driver.LAB, "story", "check", own)
        self.assertEqual(census["stories"], 40)
        # The requirement is 80%; measured 93% of 200 (docs/bundled-model.md). The standard error of
        # 40 is 6%.
        self.assertGreaterEqual(census["well_formed"], 28)

    def test_what_is_said_of_passes_is_not_said_of_tokens(self):
        self.assertIn("of weights per pass", self.ok("info", self.model).out)
        said = millrace("run", self.model, "-p", "Once", "-n", "12", "--ignore-eos").err
        self.assertIn("; 12 tokens in ", said)
        self.assertNotIn(" steps in ", said)

    def test_json_counts_tokens_and_passes(self):
        ask = ["-p", "Once", "-n", 12, "--ignore-eos"]
        for command in ("run", "profile"):
            got = self.ok_json(command, self.model, *ask)
            self.assertNotIn("decode_steps", got)
            self.assertEqual(got["decode_tokens"], 12)
            self.assertAlmostEqual(got["tokens_per_pass"], 12 / got["passes"])
            one_by_one = self.ok_json(command, AR, *ask)
            self.assertEqual(one_by_one["decode_steps"], 11)
            for key in ("decode_tokens", "passes", "tokens_per_pass"):
                self.assertNotIn(key, one_by_one)
        many = self.ok("run", self.model, *ask, "--count", 2, "--json").out.splitlines()
        for got in map(json.loads, many):
            self.assertEqual(got["decode_tokens"], 12)
            self.assertGreater(got["passes"], 0)
            self.assertNotIn("decode_steps", got)
        self.assertEqual(len(many), 2)
        nothing = self.ok_json("run", self.model, "-p", "Once", "-n", 0)
        self.assertEqual((nothing["decode_tokens"], nothing["passes"], nothing["tokens_per_pass"]),
                         (0, 0, 0))

    def test_batches_are_measured(self):
        ask = ["bench", "batch", self.model, "--sequences", "1,3", "--prompt", 9, "-n", 24, "--json"]
        for steps, tokens in ((8, 1), (4, 2)):
            rows = self.ok_json(*ask, "--remask", "static", "--steps", steps)["rows"]
            self.assertEqual([row["output_tokens"] for row in rows], [24, 72])
            for row in rows:
                # A prompt that does not fill its last block leaves fewer places in it.
                self.assertAlmostEqual(row["tokens_per_pass"], tokens, delta=0.4)
        self.assertIn("--block", self.refused("bench", "batch", AR, "--block", 4))

    def test_many_texts_are_those_of_their_seeds(self):
        many = millrace("run", self.model, "-p", "Once", "-n", "16", "--seed", "5", "--count", "4",
                        "--ignore-eos", "-q").out
        alone = "".join(
            millrace("run", self.model, "-p", "Once", "-n", "16", "--seed", str(5 + i),
                     "--ignore-eos", "-q").out + "<|endoftext|>\n" for i in range(4))
        self.assertEqual(many, alone)

    def test_a_block_that_the_model_was_not_trained_for(self):
        note = "note: --block 16: the model was trained for blocks of 8 tokens"
        ask = [self.model, "-p", "Once", "-n", "8"]
        self.assertEqual(self.ok("run", *ask, "--block", "16").err.count(note), 1)
        self.assertEqual(self.ok("run", *ask, "--block", "16", "-q").err, "")
        for block in ("4", "8"):
            self.assertNotIn("note", self.ok("run", *ask, "--block", block).err)
        self.assertIn(note, self.ok("profile", *ask, "--block", "16").err)
        self.assertIn(note, self.ok("eval", self.model, "--text", self.text, "--block", "16").err)
        chat = self.ok("chat", self.model, "-n", "8", "--block", "16", stdin=b"Hello\n")
        self.assertEqual(chat.err.count(note), 1)

    def test_the_summary_tells_tokens_a_pass(self):
        result = millrace("run", self.model, "-p", "Once", "-n", "16", "--seed", "1")
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("tokens per pass", result.err)

    def test_eval_gives_both_numbers(self):
        result = self.ok_json("eval", self.model, "--text", self.text, "--split", "<|endoftext|>",
                              "--json", "--bound", "8")
        self.assertGreater(result["nll"], 0)
        self.assertGreater(result["bound_nll"], 0)
        self.assertGreater(result["tokens_per_pass"], 0.5)
        self.assertEqual(result["documents"], 2)
        again = self.ok_json("eval", self.model, "--text", self.text, "--split", "<|endoftext|>",
                             "--json", "--bound", "0")
        self.assertEqual(again["nll"], result["nll"])
        self.assertNotIn("bound_nll", again)
        self.assertNotIn("bound_standard_error", again)

    def test_eval_tells_how_sure_the_bound_is(self):
        ask = ["eval", self.model, "--text", self.text, "--split", "<|endoftext|>"]
        got = {rates: self.ok_json(*ask, "--bound", rates) for rates in (1, 4, 256)}
        self.assertNotIn("bound_standard_error", got[1])
        few, many = (got[rates]["bound_standard_error"] for rates in (4, 256))
        self.assertGreater(few, 4 * many)
        self.assertGreater(many, 0)
        self.assertLess(abs(got[4]["bound_nll"] - got[256]["bound_nll"]), 4 * few)
        self.assertIn(f"{got[4]['bound_nll']:.4f} +- {few:.4f} nats per token",
                      self.ok(*ask, "--bound", 4).out)
        self.assertNotIn("+-", self.ok(*ask, "--bound", 1).out.split("bound")[1])

    def test_profile_tells_passes_rows_and_tokens(self):
        page = self.folder / "page.html"
        ask = ["profile", self.model, "-p", "Once", "-n", "12", "--seed", "3", "--ignore-eos"]
        got = self.ok_json(*ask)
        decode = got["roofline"]["decode"]
        for key in ("decode_tokens", "passes", "tokens_per_pass"):
            self.assertEqual(decode[key], got[key])
        self.assertEqual((decode["steps"], decode["tokens"]), (decode["passes"], decode["rows"]))
        self.assertGreater(decode["rows"], 12)
        counts = (f"decode: {decode['passes']} passes, {decode['rows']} rows, 12 tokens "
                  f"({decode['tokens_per_pass']:.2f} per pass), ")
        self.assertIn(counts, self.ok(*ask, "--html", page).out)
        [shown] = [one for one in driver.Page(page).sections("roofline") if one["phase"] == "decode"]
        self.assertIn(f"decode: {shown['counts']}, ", counts)
        self.assertEqual(shown["passes"], decode["passes"])
        asked = self.ok("run", *ask[1:], "-q", "--roofline")
        self.assertIn(counts, asked.err)

    def test_profile_and_chat_take_such_a_model(self):
        result = millrace("profile", self.model, "-p", "Once", "-n", "8")
        self.assertEqual(result.code, 0, result.err)
        result = millrace("chat", self.model, "-n", "8", stdin=b"Hello\n")
        self.assertEqual(result.code, 0, result.err)

    def test_bench_diffusion(self):
        result = self.ok_json("bench", "diffusion", self.model, "--prompt", "8", "-n", "12",
                              "--blocks", "4,8", "--reps", "1", "--json")
        samplers = [rung["sampler"] for rung in result["rungs"]]
        self.assertEqual(samplers[0], "host")
        self.assertEqual(samplers.count("engine"), 9)
        names = [rung["rung"] for rung in result["rungs"]]
        self.assertEqual((names.count("1 token per pass"), names.count("2 tokens per pass")),
                         (2, 2))
        for rung in result["rungs"]:
            self.assertGreater(rung["tok_s"], 0)
            self.assertGreater(rung["pass"]["forward_ms"], 0)
            self.assertEqual(rung["pass"]["copies_ms"], 0)  # there is no device
        # Compared with the published figures of the experiment.
        ratios = result["against_the_cpu_sampler"]
        self.assertEqual(ratios["experiment"], {"sampler": 1.77, "fewer_steps": 3.19})
        speed_ups = [rung["speed_up"] for rung in result["rungs"]]
        self.assertIn(ratios["sampler"], speed_ups)
        self.assertIn(ratios["fewer_steps"], speed_ups)
        self.assertGreaterEqual(ratios["fewer_steps"], ratios["sampler"])

    def test_what_makes_no_sense_is_one_line(self):
        run = ["run", self.model, "-p", "x"]
        for words, said in (
                ([*run, "--block", "0"], "--block"),
                ([*run, "--block", "65"], "--block"),
                ([*run, "--steps", "9"], "--steps"),
                ([*run, "--threshold", "1.5"], "--threshold"),
                ([*run, "--remask", "static", "--threshold", "0.5"], "--threshold"),
                ([*run, "--remask", "best"], "--remask"),
                ([*run, "--prefix-cache"], "--prefix-cache"),
                ([*run, "--repeat-penalty", "1.2"], "--repeat-penalty"),
                ([*run, "--context", "streaming", "--window", "20"], "--context"),
                ([*run, "--show-denoising"], "terminal"),
                (["run", AR, "-p", "x", "--steps", "4"], "only applies to diffusion models"),
                (["eval", AR, "--text", self.text, "--block", "4"],
                 "only applies to diffusion models"),
                (["eval", AR, "--text", self.text, "--bound", "4"], "--bound: only applies to diffusion models"),
                (["eval", self.model, "--text", self.text, "--ends"],
                 "--ends: only applies to autoregressive models"),
                (["eval", self.model, "--text", self.text, "--confidence", "drawn"],
                 "--confidence"),
                (["eval", self.model, "--text", self.text, "--context", "window"], "--context"),
                (["bench", "decode", self.model], "bench diffusion"),
                ([driver.LAB, "context", self.model, "--tokens", "30", "--cap", "8"],
                 "bench diffusion"),
                (["bench", "diffusion", self.model, "--prefix-cache"], "--prefix-cache"),
                (["bench", "diffusion", AR], "bench decode")):
            with self.subTest(words=words[1:]):
                self.assertIn(said, self.refused(*words))


if __name__ == "__main__":
    driver.main()
