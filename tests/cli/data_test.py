"""millrace data storybook."""
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

    def test_errors(self):
        self.fails(2, "data", says="storybook")
        self.fails(2, "data", "storybook", says="--out")
        self.fails(2, "data", "storybook", "--stories", "0", "--out", "x", says="--stories")
        self.fails(1, "data", "storybook", "--stories", "3", "--out", self.folder, says="directory")
        self.fails(1, "data", "storybook", "--stories", "3", "--out", self.folder / "no" / "x")
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    driver.main()
