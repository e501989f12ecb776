"""A terminal emulator for the escape codes that the program uses, and a runner."""
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import unicodedata

import driver

CODES = re.compile(r"\x1b(?:\[([?0-9;]*)([A-Za-z@])|([78D]))")


class Screen:
    """Lines that scroll off the top are kept. Where terminals differ, it takes the worse behaviour:
    a full line keeps the cursor on its last character until the next one comes, and moving or
    restoring the cursor forgets that the line is full."""

    def __init__(self, columns, rows=24):
        self.columns, self.rows = columns, rows
        self.lines = [[] for _ in range(rows)]
        self.soft = set()  # rows that go on in the next one: nothing but the border ended them
        self.row = self.column = 0  # the row counts from the first kept line
        self.full = False
        self.saved = (0, 0)  # row on the screen, column
        self.looks = []  # the text whenever a shade was drawn, which is an unknown place of a block

    def top(self):
        return len(self.lines) - self.rows

    def text(self):
        lines = ["".join(cell for cell in line).rstrip() for line in self.lines]
        return "\n".join(lines).rstrip("\n")

    def down(self):
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])
        self.full = False

    def put(self, character):
        if unicodedata.combining(character):
            cell = self.column if self.full else self.column - 1
            line = self.lines[self.row]
            while 0 < cell < len(line) and line[cell] == "":  # the second half of a wide one
                cell -= 1
            if 0 <= cell < len(line):
                line[cell] += character
            return
        wide = 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if self.full or self.column + wide > self.columns:
            self.soft.add(self.row)
            self.down()
            self.column = 0
        line = self.lines[self.row]
        line.extend(" " * (self.column + wide - len(line)))
        line[self.column:self.column + wide] = [character, ""][:wide]
        self.full = self.column + wide == self.columns
        self.column = min(self.column + wide, self.columns - 1)
        if character == "░":
            self.looks.append(self.text())

    def obey(self, numbers, letter, single):
        if letter == "m" or (numbers or "").startswith("?"):
            return
        line = self.lines[self.row]
        if letter == "A":
            self.row = max(self.row - int(numbers or 1), self.top())
        elif letter == "C":
            self.column = min(self.column + int(numbers or 1), self.columns - 1)
        elif letter == "D":
            self.column = max(self.column - int(numbers or 1), 0)
        elif letter == "G":
            self.column = int(numbers or 1) - 1
        elif letter == "K" and numbers in ("", "0"):
            del line[self.column:]
            self.soft.discard(self.row)
        elif letter == "P":
            del line[self.column:self.column + int(numbers or 1)]
        elif letter == "@":
            line[self.column:self.column] = [" "] * int(numbers or 1)
            del line[self.columns:]
        elif letter == "J" and numbers in ("", "0"):
            del self.lines[self.row][self.column:]
            for line in self.lines[self.row + 1:]:
                line.clear()
            self.soft = {row for row in self.soft if row < self.row}
        elif single == "D":
            self.down()
        elif single == "7":
            self.saved = (self.row - self.top(), self.column)
        elif single == "8":
            self.row, self.column = self.saved[0] + self.top(), self.saved[1]
        else:
            raise AssertionError(f"an escape code that the screen does not know: {letter or single}")
        self.full = False

    def resize(self, columns):
        """Breaks long lines anew, as most terminals do; the cursor stays with its character."""
        joined, cursor = [], None
        for row, line in enumerate(self.lines):
            if row - 1 not in self.soft:
                joined.append([])
            if row == self.row:
                cursor = len(joined) - 1, len(joined[-1]) + self.column + self.full
            joined[-1] += line
        while len(joined) > cursor[0] + 1 and not joined[-1]:
            joined.pop()
        self.columns, self.lines, self.soft = columns, [], set()
        for number, line in enumerate(joined):
            begin = 0
            while True:
                end = min(begin + columns, len(line))
                if end < len(line) and line[end] == "":  # a wide one is not cut in two
                    end -= 1
                self.lines.append(line[begin:end])
                if cursor[0] == number and begin <= cursor[1] and (
                        cursor[1] < end or end == len(line)):
                    self.row = len(self.lines) - 1
                    self.column = min(cursor[1] - begin, columns - 1)
                    self.full = False
                if end == len(line):
                    break
                self.soft.add(len(self.lines) - 1)
                begin = end
        self.lines += [[] for _ in range(self.rows - len(self.lines))]
        return self

    def feed(self, text):
        at = 0
        while at < len(text):
            code = CODES.match(text, at)
            if code:
                self.obey(*code.groups())
                at = code.end()
                continue
            character, at = text[at], at + 1
            if character == "\n":
                self.down()
            elif character == "\r":
                self.column, self.full = 0, False
            elif character == "\b":
                self.column, self.full = max(self.column - 1, 0), False
            elif character == "\a":
                continue
            elif character == "\t":
                self.column = min(self.column // 8 * 8 + 8, self.columns - 1)
            elif character >= " ":
                self.put(character)
            else:
                raise AssertionError(f"{character!r} on a terminal")
        return self


def show(columns, *arguments, rows=24):
    """Runs the program with a terminal of `columns` columns as its standard output; returns the
    screen."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen([driver.BIN, *map(str, arguments)], stdin=subprocess.DEVNULL,
                               stdout=theirs, stderr=subprocess.PIPE,
                               env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux: the program has ended
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    _, said = process.communicate(timeout=60)
    if process.returncode != 0:
        raise AssertionError(f"millrace {arguments}: {said!r}")
    return Screen(columns, rows).feed(seen.decode("utf-8", "replace"))


def told(columns, *arguments, rows=24, narrower=None, after=3):
    """What the program writes to a terminal of `columns` columns as its standard error. `narrower`:
    the columns that it has once the program has drawn over a line `after` times."""
    ours, theirs = pty.openpty()

    def resize(wide):
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, wide, 0, 0))

    resize(columns)
    process = subprocess.Popen([driver.BIN, *map(str, arguments)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=theirs,
                               env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    before, seen = b"", b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux: the program has ended
            break
        if not piece:
            break
        seen += piece
        if narrower and not before and seen.count(b"\r\x1b[K") >= after:
            resize(narrower)
            before = seen
    os.close(ours)
    if process.wait(60) != 0:
        raise AssertionError(f"millrace {arguments}: {seen!r}")
    return (before.decode("utf-8", "replace"), seen[len(before):].decode("utf-8", "replace"))
