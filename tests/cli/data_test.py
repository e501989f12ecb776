"""millrace data storybook and data check."""
import driver


class Data(driver.CliTest):
    def test_stories(self):
        target = self.folder / "stories.txt"
        got = self.ok_json("data", "storybook", "--stories", 20, "--seed", 5, "--out", target)
        text = target.read_text()
        self.assertEqual(got["bytes"], len(text))
        self.assertEqual(text.count("<|endoftext|>"), 20)
        self.assertGreater(got["entropy_nats_per_story"], 1)
        again = self.ok("data", "storybook", "--stories", 20, "--seed", 5, "--out", "-")
        self.assertEqual(again.out, text)
        self.assertIn("entropy", again.err)
        other = self.ok("data", "storybook", "--stories", 20, "--seed", 6, "--out", "-")
        self.assertNotEqual(other.out, text)
        self.assertIn("entropy", self.ok("data", "storybook", "--stories", 1, "--out", target).out)

    def test_check(self):
        target = self.folder / "stories.txt"
        made = self.ok_json("data", "storybook", "--stories", 30, "--seed", 5, "--out", target)
        got = self.ok_json("data", "check", target)
        self.assertEqual([got[k] for k in ("stories", "well_formed", "by_grammar")], [30, 30, 30])
        self.assertAlmostEqual(got["mean_nats_by_grammar"], made["mean_nats_per_story"], places=6)
        self.assertEqual(got["bad"], [])
        stories = target.read_text().split("\n<|endoftext|>\n")
        stories[3] = stories[3][:200]
        target.write_text("\n<|endoftext|>\n".join(stories))
        got = self.ok_json("data", "check", target)
        self.assertEqual([got[k] for k in ("stories", "well_formed", "by_grammar")], [30, 29, 29])
        self.assertEqual(got["faults"]["unfinished"], 1)
        self.assertEqual(got["bad"][0]["story"], 3)
        text = self.ok("data", "check", target).out
        self.assertIn("29 well-formed (96.67%)", text)
        self.assertIn("story 3: unfinished", text)

    def test_check_errors(self):
        blank = self.folder / "blank.txt"
        blank.write_text("\n<|endoftext|>\n")
        self.fails(1, "data", "check", blank, says="no story")
        self.fails(1, "data", "check", self.folder / "none.txt", says="none.txt")
        self.fails(1, "data", "check", self.folder, says="directory")
        self.fails(2, "data", "check", says="file")

    def test_errors(self):
        self.fails(2, "data", says="storybook")
        self.fails(2, "data", "storybook", says="--out")
        self.fails(2, "data", "storybook", "--stories", "0", "--out", "x", says="--stories")
        self.fails(1, "data", "storybook", "--stories", "3", "--out", self.folder, says="directory")
        self.fails(1, "data", "storybook", "--stories", "3", "--out", self.folder / "no" / "x")
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    driver.main()
