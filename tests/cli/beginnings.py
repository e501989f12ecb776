"""JSON cut off anywhere: whether it is the beginning of some value, and its complete part."""
import json
import re

CHARACTERS = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*'
STRING = re.compile(CHARACTERS + '"')
CUT_STRING = re.compile(CHARACTERS + r"(?:\\(?:u[0-9a-fA-F]{0,3})?)?")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
CUT_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?)?")


class Cut(Exception):
    """The text ends here."""


class Beginning:
    """Raises ValueError if no JSON begins like `text`. `value` is the complete part of it: strings,
    numbers, keys and words that were cut off are left out; None if nothing remains."""

    def __init__(self, text):
        self.text, self.at, self.value, self.whole = text, 0, None, False
        try:
            self.read(self.keep)
        except Cut:
            return
        if self.text[self.at:].strip(" \t\r\n"):
            raise self.wrong("the end")
        self.whole = True

    def keep(self, value):
        self.value = value

    def wrong(self, wanted):
        return ValueError(f"no {wanted} at byte {self.at}: {self.text!r}")

    def peek(self):
        while self.text[self.at:self.at + 1] in tuple(" \t\r\n"):
            self.at += 1
        if self.at == len(self.text):
            raise Cut
        return self.text[self.at]

    def skip(self, wanted):
        found = self.peek()
        if found not in wanted:
            raise self.wrong(f"one of {wanted}")
        self.at += 1
        return found

    def scalar(self, whole, cut, wanted):
        if cut.fullmatch(self.text, self.at):  # a number at the end may be incomplete
            raise Cut
        match = whole.match(self.text, self.at)
        if not match:
            raise self.wrong(wanted)
        self.at = match.end()
        return json.loads(match[0])

    def read(self, keep):
        """Lists and objects are stored when they begin, so that their content is kept if they are
        cut off."""
        first = self.peek()
        if first in "{[":
            self.at += 1
            made = {} if first == "{" else []
            keep(made)
            self.read_entries(made)
        elif first == '"':
            keep(self.scalar(STRING, CUT_STRING, "string"))
        elif first in "tfn":
            word = {"t": "true", "f": "false", "n": "null"}[first]
            rest = self.text[self.at:self.at + len(word)]
            if rest != word:
                raise Cut if word.startswith(rest) and len(self.text) == self.at + len(rest) \
                    else self.wrong(word)
            self.at += len(word)
            keep(json.loads(word))
        else:
            keep(self.scalar(NUMBER, CUT_NUMBER, "value"))

    def read_entries(self, made):
        is_object = isinstance(made, dict)
        last = "}" if is_object else "]"
        if self.peek() == last:
            self.at += 1
            return
        while True:
            if is_object:
                if self.peek() != '"':
                    raise self.wrong("key")
                key = self.scalar(STRING, CUT_STRING, "key")
                self.skip(":")
                self.read(lambda value, key=key: made.__setitem__(key, value))
            else:
                self.read(made.append)
            if self.skip("," + last) == last:
                return
