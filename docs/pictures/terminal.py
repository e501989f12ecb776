#!/usr/bin/env python3
"""The terminal picture of the README, from a real run.

    terminal.py record PROGRAM   runs the program and writes terminal.json: what it printed, and when
    terminal.py draw             writes terminal.svg from terminal.json
    terminal.py check            fails where terminal.svg is not what draw would write

The picture plays the recording slowed down (SLOWED): the story comes in 15 ms. The table of the
prompt (prefill) is left out.
"""
import html
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
RECORD, PICTURE = HERE / "terminal.json", HERE / "terminal.svg"
ARGUMENTS = ["run", "-p", "Once upon a time", "-n", "58", "--seed", "1", "--roofline"]
SHOWN = "$ millrace run -p 'Once upon a time' -n 58 --seed 1 --roofline"
COLUMNS, SLOWED = 100, 200
WIDTH, LINE, LEFT, TOP = 7.22, 16.5, 16, 46  # of a letter and a line of 12 px, margins; px
STORY, TABLE, NOTE, COMMAND = "#e6e1d8", "#9fb3c8", "#e0a458", "#7fc8a9"


def record(program):
    """Pieces of the text with the seconds since the first one, then the tables."""
    run = subprocess.Popen([program, *ARGUMENTS], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    pieces, start = [], None
    while piece := os.read(run.stdout.fileno(), 4096):
        now = time.monotonic()
        start = start or now
        pieces.append([round(now - start, 5), piece.decode()])
    tables = run.stderr.read().decode()
    if run.wait() != 0:
        sys.exit(f"terminal.py: {program} failed: {tables}")
    # One table is enough for a picture: the one of decode, and the closing line.
    RECORD.write_text(json.dumps({"pieces": pieces, "tables": "decode:" + tables.split("decode:")[1]},
                                 indent=0) + "\n")


def rows_of(pieces):
    """Lines of at most COLUMNS letters, each a list of (seconds, text); words stay whole."""
    words, rows, used = [], [[]], 0
    for when, text in pieces:
        for i, part in enumerate(text.replace("\n", " \n ").split(" ")):
            words.append((when, (" " if i else "") + part))
    for when, word in words:
        if "\n" in word or used + len(word) > COLUMNS:
            rows.append([])
            used, word = 0, word.strip()
        if word.strip() or used:
            rows[-1].append((when, word))
            used += len(word)
    return [row for row in rows if row]


def draw(record):
    rows = rows_of(record["pieces"])
    end = record["pieces"][-1][0] * SLOWED + 0.6
    lines = [([(0, SHOWN)], COMMAND)] + [([(w * SLOWED + 0.4, t) for w, t in row], STORY) for row in rows]
    for i, text in enumerate(record["tables"].rstrip().split("\n")):
        colour = NOTE if " tok/s, " in text or text.startswith("decode:") else TABLE
        while text:
            cut = text.rfind(" ", 0, COLUMNS + 8) if len(text) > COLUMNS + 8 else len(text)
            lines.append(([(end + 0.03 * i, text[:cut])], colour))
            text = text[cut:].strip()
    width = round(2 * LEFT + WIDTH * (COLUMNS + 8))
    height = round(TOP + LINE * len(lines) + 12)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
           f'height="{height}" role="img" aria-label="A story told by millrace run, and where the '
           'time of its tokens went">',
           "<style>text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
           "white-space:pre}.p{animation:in .01s backwards}@keyframes in{from{opacity:0}}"
           "@media(prefers-reduced-motion:reduce){.p{animation:none}}</style>",
           f'<rect width="{width}" height="{height}" rx="8" fill="#1b1f24"/>',
           '<circle cx="20" cy="18" r="5" fill="#e0665a"/><circle cx="38" cy="18" r="5" fill="#e0a458"/>'
           '<circle cx="56" cy="18" r="5" fill="#7fc8a9"/>',
           f'<text x="{width - LEFT}" y="22" text-anchor="end" fill="#6b7682">real output without the '
           f'prompt\'s table, slowed {SLOWED} times</text>']
    for i, (row, colour) in enumerate(lines):
        spans = "".join(f'<tspan class="p" style="animation-delay:{when:.2f}s">{html.escape(text)}</tspan>'
                        for when, text in row)
        out.append(f'<text x="{LEFT}" y="{TOP + LINE * i:.1f}" fill="{colour}" xml:space="preserve">'
                   f'{spans}</text>')
    return "\n".join(out) + "\n</svg>\n"


def main():
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what == "record" and len(sys.argv) == 3:
        record(sys.argv[2])
    elif what == "draw":
        PICTURE.write_text(draw(json.loads(RECORD.read_text())))
    elif what == "check":
        if PICTURE.read_text() != draw(json.loads(RECORD.read_text())):
            sys.exit("terminal.py: terminal.svg is not what terminal.json gives; run terminal.py draw")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
