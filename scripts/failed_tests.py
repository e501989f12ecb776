#!/usr/bin/env python3
"""Prints the end of each failed test's output, after `ctest` has printed everything: the cause is then at
the end, however many tests passed.

usage: failed_tests.py BUILD     BUILD: the folder that ctest ran in"""
import pathlib
import re
import sys

LINES = 40  # of each test
TESTS = 10


def outputs(log):
    """The output of each test, by name."""
    found = {}
    parts = re.split(r"^\d+/\d+ Testing: (.+)\n\d+/\d+ Test: ", log, flags=re.MULTILINE)
    for name, part in zip(parts[1::2], parts[2::2]):
        output = part.partition("\nOutput:\n")[2].partition("\n")[2]
        before, end, _ = output.rpartition("<end of output>")
        found[name] = before if end else output
    return found


def main():
    folder = pathlib.Path(sys.argv[1]) / "Testing" / "Temporary"
    try:
        names = [line.partition(":")[2] for line in (folder / "LastTestsFailed.log").read_text().splitlines()]
        found = outputs((folder / "LastTest.log").read_text(errors="replace"))
    except OSError as error:
        print(f"the failed tests are not known: {error}")
        return
    for name in names[:TESTS]:
        lines = found.get(name, "").rstrip().splitlines()
        print(f"\n==== {name}{f', the last {LINES} lines' if len(lines) > LINES else ''}")
        print("\n".join(lines[-LINES:]) or "(no output)")
    if len(names) > TESTS:
        print(f"\n{len(names) - TESTS} more failed: {' '.join(names[TESTS:])}")


if __name__ == "__main__":
    main()
