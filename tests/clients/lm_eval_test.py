"""EleutherAI's lm-eval against a server: tasks of local files agree with `millrace eval`."""
import json
import math
import os
import pathlib
import sys
import tempfile
import unittest

FOLDER = tempfile.TemporaryDirectory()
os.environ.update(HF_HOME=FOLDER.name, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1",
                  TOKENIZERS_PARALLELISM="false")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import driver  # noqa: E402
from serving import Server  # noqa: E402

import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

MODEL = driver.REFERENCE / "llama2"
CONTEXT = 256
# Without its backend lm-eval would take this tokenizer for the server's, and begin texts twice.
OWN = {"tokenizer": str(MODEL), "tokenizer_backend": "huggingface"}
TEXTS = ["Once upon a time there was a cat.", "The end.", "A dog saw the red scarf.\n\nIt was café 你好.",
         "x", "It went on. " * 5]
CHOICES = [("Once upon a", [" time", " dog", " scarf"]), ("The little", [" dog ran", " cat"]),
           ("It was", [" 你好", " dark", " x y z", " time"])]

ROLLING = """task: stories
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}, {metric: byte_perplexity}]
"""
CHOICE = """task: choices
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: choices
doc_to_target: 0
target_delimiter: ""
metric_list: [{metric: acc}]
"""


class LmEval(driver.CliTest):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ctx", CONTEXT, "--sequences", 4, "--log", "none", model=[MODEL])
        cls.files = pathlib.Path(FOLDER.name)
        for name, rows, task in (
                ("rolling", [{"text": text} for text in TEXTS], ROLLING),
                ("choice", [{"text": text, "choices": c} for text, c in CHOICES], CHOICE)):
            data = cls.files / f"{name}.jsonl"
            data.write_text("".join(json.dumps(row) + "\n" for row in rows))
            (cls.files / f"{name}.yaml").write_text(task % data)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        if code != 0:
            raise AssertionError(f"exit code {code}: {b''.join(cls.server.err)!r}")

    def samples(self, task, batch_size=1, **more):
        """Of every document the log-likelihoods that lm-eval has of it, and its metrics."""
        model = {"model": "llama2", "max_length": CONTEXT,
                 "base_url": f"http://{self.server.host}:{self.server.port}/v1/completions", **more}
        made = lm_eval.simple_evaluate(
            model="local-completions", model_args=model, tasks=[task], bootstrap_iters=0,
            batch_size=batch_size, log_samples=True,
            task_manager=TaskManager(include_path=str(self.files), include_defaults=False))
        self.assertEqual(made["n-samples"][task]["effective"], len(made["samples"][task]))
        return [s["resps"] for s in made["samples"][task]], made["results"][task]

    def nats(self, text):
        """The negative log-likelihood of a text, by `millrace eval`."""
        made = self.ok_json("eval", MODEL, "--text", "-", "--ctx", CONTEXT, stdin=text.encode())
        return made["nll"] * made["tokens"]

    def test_perplexity(self):
        want = [self.nats(text) for text in TEXTS]
        # The server's tokens, then the library's.
        for more in ({}, OWN, {**OWN, "batch_size": 8}, {"num_concurrent": 4}):
            got, results = self.samples("stories", **more)
            for [[nats]], nll, text in zip(got, want, TEXTS):
                self.assertAlmostEqual(-float(nats), nll, delta=1e-4 * nll, msg=text)
            size = sum(len(text.encode()) for text in TEXTS)
            self.assertAlmostEqual(results["bits_per_byte,none"], sum(want) / size / math.log(2),
                                   delta=1e-4)

    def test_choices(self):
        for more in ({}, {"batch_size": 8}, {"num_concurrent": 4}):
            got, results = self.samples("choices", **OWN, add_bos_token=True, **more)
            right = 0
            for answers, (text, choices) in zip(got, CHOICES):
                before = self.nats(text)
                want = [self.nats(text + choice) - before for choice in choices]
                for [[nats, greedy]], nll in zip(answers, want):
                    self.assertAlmostEqual(-float(nats), nll, delta=1e-3)
                    self.assertIn(str(greedy), ("True", "False"))
                right += min(want) == want[0]
            self.assertAlmostEqual(results["acc,none"], right / len(CHOICES))


if __name__ == "__main__":
    driver.main()
