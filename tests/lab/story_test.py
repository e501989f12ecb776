"""millrace-lab story: write, check, floor and distance."""
import json

import driver


class Story(driver.CliTest):
    def test_stories(self):
        target = self.folder / "stories.txt"
        got = self.ok_json(driver.LAB, "story", "write", "--stories", 20, "--seed", 5, "--out", target)
        text = target.read_text()
        self.assertEqual(got["bytes"], len(text))
        self.assertEqual(text.count("<|endoftext|>"), 20)
        self.assertGreater(got["entropy_nats_per_story"], 1)
        self.assertGreater(got["grammar"]["words"], 3000)
        again = self.ok(driver.LAB, "story", "write", "--stories", 20, "--seed", 5, "--out", "-")
        self.assertEqual(again.out, text)
        self.assertIn("entropy", again.err)
        other = self.ok(driver.LAB, "story", "write", "--stories", 20, "--seed", 6, "--out", "-")
        self.assertNotEqual(other.out, text)
        # A file is only replaced with --force.
        self.fails(2, driver.LAB, "story", "write", "--stories", 1, "--out", target,
                   says=["stories.txt: this file already exists", "--force"])
        self.assertEqual(target.read_text(), text)
        self.assertIn("entropy", self.ok(driver.LAB, "story", "write", "--stories", 1, "--out", target,
                                         "--force").out)
        self.assertLess(len(target.read_text()), len(text))

    def test_check(self):
        target = self.folder / "stories.txt"
        made = self.ok_json(driver.LAB, "story", "write", "--stories", 30, "--seed", 5, "--out", target)
        got = self.ok_json(driver.LAB, "story", "check", target)
        self.assertEqual([got[k] for k in ("stories", "well_formed", "by_grammar")], [30, 30, 30])
        self.assertAlmostEqual(got["mean_nats_by_grammar"], made["mean_nats_per_story"], places=6)
        self.assertEqual(got["bad"], [])
        stories = target.read_text().split("\n<|endoftext|>\n")
        stories[3] = stories[3][:200]
        target.write_text("\n<|endoftext|>\n".join(stories))
        got = self.ok_json(driver.LAB, "story", "check", target)
        self.assertEqual([got[k] for k in ("stories", "well_formed", "by_grammar")], [30, 29, 29])
        self.assertEqual(got["faults"]["unfinished"], 1)
        self.assertEqual(got["bad"][0]["story"], 3)
        text = self.ok(driver.LAB, "story", "check", target).out
        self.assertIn("29 well-formed (96.67%)", text)
        self.assertIn("story 3: unfinished", text)

    def test_check_errors(self):
        blank = self.folder / "blank.txt"
        blank.write_text("\n<|endoftext|>\n")
        self.fails(1, driver.LAB, "story", "check", blank, says="no story")
        self.fails(1, driver.LAB, "story", "check", self.folder / "none.txt", says="none.txt")
        self.fails(1, driver.LAB, "story", "check", self.folder, says="directory")
        self.fails(2, driver.LAB, "story", "check", says="FILE is required")

    def test_write_errors(self):
        self.fails(2, driver.LAB, "story", says=("write", "check"))
        self.fails(2, driver.LAB, "story", "write", says="--out")
        self.fails(2, driver.LAB, "story", "write", "--stories", "0", "--out", "x", says="--stories")
        self.fails(1, driver.LAB, "story", "write", "--stories", "3", "--out", self.folder, says="directory")
        self.fails(1, driver.LAB, "story", "write", "--stories", "3", "--out", self.folder / "no" / "x")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_floor(self):
        stories, tok, data = self.folder / "stories.txt", self.folder / "tok", self.folder / "data"
        made = self.ok_json(driver.LAB, "story", "write", "--stories", 30, "--seed", 5, "--out", stories)
        self.ok("tokenizer", "train", "--data", stories, "--vocab", 300, "--out", tok)
        packed = self.ok_json("data", "pack", "--data", stories, "--tokenizer", tok, "--out", data,
                              "--val", 0)
        got = self.ok_json(driver.LAB, "story", "floor", data)
        self.assertEqual(got["stories"], 30)
        self.assertAlmostEqual(got["nats_per_story"], made["mean_nats_per_story"], places=6)
        # The split begins with an end token, which is no story's.
        self.assertAlmostEqual(got["nats_per_token"] * (packed["train"]["tokens"] - 1),
                               30 * got["nats_per_story"], places=4)
        self.assertIn(f"{got['nats_per_token']:.4f} nats per token",
                      self.ok(driver.LAB, "story", "floor", data).out)
        stories.write_text("A text of another kind.")
        self.ok("data", "pack", "--data", stories, "--tokenizer", tok, "--out", data, "--force",
                "--split", "", "--val", 0)
        self.fails(1, driver.LAB, "story", "floor", data, says=("data", "grammar"))
        self.fails(1, driver.LAB, "story", "floor", tok, says="data.json")

    def test_distance(self):
        stories, evaluated = self.folder / "stories.txt", self.folder / "eval.json"
        made = self.ok_json(driver.LAB, "story", "write", "--stories", 3, "--seed", 5, "--out", stories)
        ask = ("eval", "storyteller", "--text", stories, "--split", "<|endoftext|>")
        got = self.ok_json(*ask, "--ends")
        evaluated.write_text(json.dumps(got))
        distance = self.ok_json(driver.LAB, "story", "distance", stories, evaluated)
        self.assertEqual(distance["stories"], 3)
        self.assertAlmostEqual(distance["nats_per_story"], made["mean_nats_per_story"], places=6)
        self.assertAlmostEqual(distance["distance"],
                               got["nats_per_document"] - distance["nats_per_story"], delta=1e-6)
        self.assertGreater(distance["distance"], 0)
        self.assertGreater(distance["standard_error"], 0)
        piped = self.ok(driver.LAB, "story", "distance", stories, "-", stdin=evaluated.read_bytes())
        self.assertIn(f"{distance['distance']:.3f} +- ", piped.out)
        # The first stories alone were evaluated.
        evaluated.write_text(json.dumps(self.ok_json(*ask, "--ends", "--limit", 2)))
        self.assertEqual(self.ok_json(driver.LAB, "story", "distance", stories, evaluated)["stories"], 2)
        # Without the ends, or of stories that are cut, there is nothing to compare.
        for more in ((), ("--ends", "--ctx", 40)):
            evaluated.write_text(json.dumps(self.ok_json(*ask, *more)))
            self.fails(1, driver.LAB, "story", "distance", stories, evaluated,
                       says=("eval.json", "document_nats", "--ends"))
        evaluated.write_text('{"document_nats": [1, 2, 3, 4]}')
        self.fails(1, driver.LAB, "story", "distance", stories, evaluated,
                   says=("stories.txt", "3 stories for 4"))
        evaluated.write_text("no JSON")
        self.fails(1, driver.LAB, "story", "distance", stories, evaluated, says="eval.json")
        stories.write_text("A text of another kind.")
        evaluated.write_text('{"document_nats": [1]}')
        self.fails(1, driver.LAB, "story", "distance", stories, evaluated, says="grammar")


if __name__ == "__main__":
    driver.main()
