#!/usr/bin/env python3
"""Lines that are redrawn on a terminal: a row each, however narrow it is."""
import pathlib
import re
import tempfile
import unicodedata

import driver
from screen import Screen, told
from train_test import pack_stories

TRAIN = ("--dim 32 --layers 1 --heads 2 --batch 2 --seq 32 --threads 1 --sample-tokens 0 "
         "--eval-every 0 --eval-batches 1 --steps 600").split()


def width(text):
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c)
               for c in text)


def redrawn(text):
    """The lines that were drawn over another, without those that stayed."""
    return [line for line in re.split("\r\x1b\\[K", text)[1:] if "\n" not in line and line]


class ProgressTest(driver.CliTest):
    @classmethod
    def setUpClass(cls):
        made = tempfile.TemporaryDirectory(prefix="millrace-progress-")
        cls.addClassCleanup(made.cleanup)
        cls.text, cls.tok, cls.data = pack_stories(pathlib.Path(made.name))

    def check(self, columns, text, least=3):
        lines = redrawn(text)
        self.assertGreaterEqual(len(lines), least, text)
        for line in lines:
            self.assertLess(width(line), columns, "the cursor stays on its row")
        return lines

    def test_a_run_in_a_narrow_terminal(self):
        for columns in (120, 40, 20):
            _, text = told(columns, "train", *TRAIN, "--data", self.data, "--out",
                           self.folder / str(columns), rows=60)
            lines = self.check(columns, text)
            self.assertRegex(lines[0], "^checking the d[^%]*[0-9]%$")
            self.assertEqual("[#" in lines[0], columns > 60)
            for line in lines[1:]:
                self.assertRegex(line, "^step [0-9]+/600  lo")
                self.assertEqual("left" in line, columns == 120)
            rows = Screen(columns, 60).feed(text).text().split("\n")
            # The last step's line stays, and no other.
            self.assertEqual([row[:12] for row in rows if row.startswith("step ")],
                             ["step 600/600"], rows)

    def test_a_terminal_that_becomes_narrow(self):
        # Long enough for redraws after the sixth, on a fast machine too.
        before, after = told(120, "train", *TRAIN[:-1], 6000, "--data", self.data, "--out",
                             self.folder / "run", narrower=20, after=6)
        self.check(120, before)
        self.check(20, after.split("\r\x1b[K", 2)[-1], least=2)


if __name__ == "__main__":
    driver.main()
