#!/usr/bin/env python3
"""run --show-denoising: the final terminal content equals the plain output, letter for letter."""
import driver
from screen import Screen, show

RUN = ["run", "storyteller-diffusion", "-q", "--seed", 1]
WIDTHS = (20, 40, 79, 80, 81)


class DenoisingTest(driver.CliTest):
    def same(self, *arguments, columns, rows=24, tokens=120):
        run = [*RUN, "-n", tokens, *arguments]
        plain = self.ok(*run).out
        expected = Screen(columns, rows).feed(plain.replace("\n", "\r\n"))
        screen = show(columns, *run, "--show-denoising", rows=rows)
        self.assertEqual(screen.text(), expected.text())
        # Neither one line more nor one less.
        self.assertEqual((screen.row, screen.column), (expected.row, expected.column))
        return screen

    def test_the_screen_of_the_emulator(self):
        screen = Screen(4, 3).feed("abcd")
        self.assertEqual((screen.text(), screen.column, screen.full), ("abcd", 3, True))
        self.assertEqual(screen.feed("e").text(), "abcd\ne")
        # The loss of a character that the view must avoid.
        lost = Screen(4, 3).feed("abcd\x1bD\x1bD\x1b[2A\x1b7\x1b[J")
        self.assertEqual(lost.text(), "abc")
        self.assertEqual(Screen(4, 3).feed("abc日").text(), "abc\n日")
        scrolled = Screen(4, 2).feed("a\r\nb\x1bD\x1b[A\x1b7cd\x1b8\x1b[Je")
        self.assertEqual(scrolled.text(), "a\nbe")

    def test_no_letter_is_lost_at_any_width(self):
        for columns in WIDTHS:
            with self.subTest(columns=columns):
                self.same("-p", "Once upon a time", columns=columns)
        # The line of a reported loss.
        self.same("-p", "Once upon a time", tokens=300, columns=80)

    def test_a_line_may_be_full_at_any_block(self):
        # The prompt grows by a column each time, so that every remainder of a line occurs.
        for length in range(1, 21):
            with self.subTest(length=length):
                self.same("-p", "x" * length, "--ignore-eos", tokens=24, columns=20)
        # Full lines in the prompt, and one with a tab.
        self.same("-p", "x" * 20 + "\n" + "y" * 40, tokens=8, columns=20)
        self.same("-p", "a\tb", tokens=24, columns=20)

    def test_wide_characters(self):
        for columns in WIDTHS:
            for lead in ("", "x"):
                with self.subTest(columns=columns, lead=lead):
                    self.same("-p", lead + "日本語の話。" * 7, tokens=60, columns=columns)

    def test_a_screen_that_scrolls(self):
        self.same("-p", "Once", columns=20, rows=5)
        self.same("-p", "Once", "--no-echo", columns=40)

    def test_the_prompt_is_there_while_the_first_block_clears_up(self):
        screen = self.same("-p", "Once upon a time", columns=80)
        self.assertTrue(screen.looks)
        for look in screen.looks:
            self.assertTrue(look.startswith("Once upon a time"), look)
        hidden = self.same("-p", "Once upon a time", "--no-echo", columns=80)
        self.assertFalse(hidden.looks[0].startswith("Once"), hidden.looks[0])

    def test_lines_that_fill_the_terminal(self):
        # Neither newlines in a story nor the one after it leave an empty line.
        prompt = "Once upon a time"
        story = self.ok(*RUN, "-n", 500, "-p", prompt).out.rstrip("\n")
        for columns in sorted({len(line) for line in story.split("\n")}):
            with self.subTest(columns=columns):
                self.same("-p", prompt, tokens=500, columns=columns)
        # A finished story: only its end follows.
        last = len(story.split("\n")[-1])
        screen = show(last, *RUN, "-n", 8, "--temp", 0, "-p", story, "--show-denoising", rows=60)
        expected = Screen(last, 60).feed(story.replace("\n", "\r\n") + "\r\n")
        self.assertTrue(screen.looks)
        self.assertEqual((screen.text(), screen.row), (expected.text(), expected.row))


if __name__ == "__main__":
    driver.main()
