"""millrace profile, and run --roofline."""
import json
import shutil

import driver

PROMPT = ("-p", "Once upon a time", "--seed", 1)


class Profile(driver.CliTest):
    def test_writes_a_trace_and_a_page(self):
        trace, page = self.folder / "out.json", self.folder / "out.html"
        text = self.ok("profile", *PROMPT, "-n", 8, "--trace", trace, "--html", page).out
        for part in ("decode:", "prefill:", "qkv", "attention", "head", "sample", "all stages",
                     "between stages", "ceilings measured here", str(trace), str(page)):
            self.assertIn(part, text)
        events = json.loads(trace.read_text())["traceEvents"]
        timed = [event for event in events if event["ph"] != "M"]
        self.assertEqual(timed, sorted(timed, key=lambda event: event["ts"]))
        names = {event["name"] for event in timed if event["ph"] == "X"}
        self.assertLessEqual({"load", "prefill", "decode", "sample", "print", "qkv", "attention",
                              "out", "up", "down", "head"}, names)
        host = [event for event in timed if event["ph"] == "X" and event["tid"] == 1]
        self.assertEqual(sum(event["name"] == "decode" for event in host), 7)
        shown = driver.Page(page)
        self.assertEqual([one["phase"] for one in shown.sections("roofline")], ["prefill", "decode"])
        self.assertEqual(len(shown.sections("timeline")[0]["tracks"]), 2)
        self.assertIn("Once upon a time", shown.text)
        self.assertEqual(shown.elsewhere, [])

    def test_stages_add_up(self):
        got = self.ok_json("profile", *PROMPT, "-n", 8)
        self.assertEqual(len(got["ids"]), 8)
        self.assertEqual(got["device"], "cpu")
        decode = got["roofline"]["decode"]
        self.assertEqual((decode["steps"], decode["tokens"]), (7, 7))
        layers = self.ok_json("info")["model"]["layers"]
        stages = {stage["stage"]: stage for stage in decode["stages"]}
        for name in ("qkv", "attention", "out", "up", "down"):
            self.assertEqual(stages[name]["calls"], 7 * layers, name)
        self.assertEqual(stages["head"]["calls"], 7)
        for stage in stages.values():
            self.assertGreaterEqual(stage["seconds"], 0)
            self.assertGreater(stage["bytes"], 0)
        total = sum(stage["seconds"] for stage in stages.values())
        self.assertAlmostEqual(total, decode["all"]["seconds"], places=9)
        self.assertAlmostEqual(total + decode["gap_seconds"] + decode["outside_seconds"],
                               decode["seconds"], places=9)
        self.assertAlmostEqual(sum(stage["share"] for stage in stages.values()),
                               decode["all"]["share"], places=9)
        for key in ("read_gb_s", "f32_gflop_s", "int8_gflop_s"):
            self.assertGreater(decode["ceilings"][key], 0.1, key)
        # Products of the bundled model's 8-bit weights; attention is in f32.
        self.assertEqual(stages["up"]["int8_flops"], stages["up"]["flops"])
        self.assertEqual(stages["attention"]["int8_flops"], 0)
        self.assertLessEqual({stage["roof"] for stage in stages.values()},
                             {"memory", "f32", "int8", ""})
        # On the CPU nothing is copied to a device.
        self.assertEqual(decode["host_to_device_bytes_per_token"], 0)
        self.assertEqual(decode["device_to_host_bytes_per_token"], 0)

    def test_watching_changes_nothing(self):
        plain = self.ok_json("run", *PROMPT, "-n", 12)
        watched = self.ok_json("run", *PROMPT, "-n", 12, "--roofline")
        profiled = self.ok_json("profile", *PROMPT, "-n", 12)
        self.assertEqual(plain["ids"], watched["ids"])
        self.assertEqual(plain["ids"], profiled["ids"])
        self.assertNotIn("roofline", plain)
        # The sum over stages equals the sum over ops.
        for phase in ("prefill", "decode"):
            ops = watched["ledger"][phase]
            sums = watched["roofline"][phase]["all"]
            moved = sum(op["bytes_read"] + op["bytes_written"] for op in ops.values()
                        if isinstance(op, dict))
            self.assertAlmostEqual(moved, sums["bytes"], delta=256)

    def test_steps_that_stream(self):
        model = driver.REFERENCE / "llama2"  # a context of 64
        stream = ["profile", model, *PROMPT, "--ignore-eos", "--context", "streaming", "--window"]
        ask = [*stream, 40, "-n", 200]
        got = self.ok_json(*ask)
        self.assertEqual(len(got["ids"]), 200)
        self.assertEqual(got["evicted"], got["prompt_tokens"] + 200 - 1 - 44)
        self.assertEqual(got["ids"], self.ok_json("run", *ask[1:])["ids"])
        decode = got["roofline"]["decode"]
        self.assertEqual((decode["steps"], decode["tokens"]), (199, 199))

        page = self.folder / "out.html"

        def attention(window, tokens):
            line = self.ok_json(*stream, window, "-n", tokens, "--html", page)["roofline"]["decode"]
            return next(s["bytes"] for s in line["stages"] if s["stage"] == "attention")

        # A step reads sinks and window, and nothing more of a longer text.
        bytes_of = {n: attention(40, n) for n in (200, 300, 400)}
        self.assertEqual(bytes_of[400] - bytes_of[300], bytes_of[300] - bytes_of[200])
        self.assertGreater(attention(60, 200), bytes_of[200])
        said = self.ok(*ask).out
        self.assertIn(f"{got['evicted']} tokens left the window", said)
        self.assertIn("left the window", driver.Page(page).text)
        self.fails(2, "profile", model, *PROMPT, "--window", 8, says="--context streaming")
        self.fails(1, "profile", driver.REFERENCE / "gpt2", *PROMPT, "--context", "streaming",
                   says="learned positions")

    def test_roofline_of_a_run_is_on_standard_error(self):
        result = self.ok("run", *PROMPT, "-n", 4, "--roofline")
        self.assertIn("all stages", result.err)
        self.assertNotIn("all stages", result.out)
        quiet = self.ok("run", *PROMPT, "-n", 4, "--roofline", "--quiet")
        self.assertIn("all stages", quiet.err)
        self.assertNotIn("seed", quiet.err)

    def test_errors(self):
        self.fails(1, "profile", "nosuch.gguf", *PROMPT, says="nosuch.gguf")
        missing = self.folder / "no" / "folder" / "t.json"
        self.fails(1, "profile", *PROMPT, "-n", 2, "--trace", missing, says=str(missing))
        self.fails(1, "profile", *PROMPT, "-n", 2, "--html", missing, says=str(missing))
        self.fails(2, "profile", "--trace", says="--trace")

    def test_a_report_replaces_nothing_but_a_report(self):
        model, page, trace = (self.folder / name for name in ("m.gguf", "p.html", "t.json"))
        shutil.copy(driver.SOURCE / "models" / "storyteller.gguf", model)
        page.write_text("<!doctype html>\n<html><title>mine</title></html>")
        trace.write_text('{"displayTimeUnit": "ns", "traceEvents": []}')
        pages = (page.read_bytes(), trace.read_bytes())
        before = model.read_bytes()
        for option, file in (("--html", model), ("--trace", model), ("--html", page), ("--trace", trace)):
            self.fails(2, "profile", model, *PROMPT, "-n", 2, option, file,
                       says=f"{file}: this file exists and is not a report of millrace")
        self.assertEqual(model.read_bytes(), before)
        self.assertEqual((page.read_bytes(), trace.read_bytes()), pages)
        both = self.folder / "both"
        self.fails(2, "profile", *PROMPT, "-n", 2, "--html", both, "--trace",
                   self.folder / "." / "both", says="is the file of --trace")
        self.assertFalse(both.exists())
        page.unlink()
        trace.write_text("")  # an empty file holds nothing, and a report is replaced
        for _ in range(2):
            self.ok("profile", *PROMPT, "-n", 2, "--html", page, "--trace", trace)


if __name__ == "__main__":
    driver.main()
