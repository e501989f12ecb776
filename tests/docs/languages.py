#!/usr/bin/env python3
"""Checks that a page and its Chinese version say the same: README.md and README.zh.md, docs/NAME.md
and docs/zh/NAME.md. Section by section they have the same headings' levels, commands, formulas, names
in code, tables, lists, paragraphs, links and figures. Comments of commands are translated: of these only the
figures are compared. Also checks the Chinese pages' typography, and that they use the terms of the glossary in
docs/zh/index.md.

    languages.py ROOT          check the pages below ROOT
    languages.py --self-test   check the checks, with samples of faults
"""
import collections
import os
import pathlib
import re
import sys

GLOSSARY_TITLE = "术语表"
HAN = r"[\u4e00-\u9fff]"
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
FENCE = re.compile(r"^\s*(```|~~~)")
HEADING = re.compile(r"^(#{1,6})\s+(.*)")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]+)\)")
TAG = re.compile(r"</?[A-Za-z][^<>]*>")
# A commit, or a number with its % or unit. Digits of names (f32, H200) follow a letter: NAME has those.
FIGURE = re.compile(
    r"(?<![A-Za-z0-9_])(?:(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7}(?![A-Za-z0-9_])|"
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:e[+-]?\d+)?"
    r"(?:%|\s?(?:[kMGT]i?B(?:/s)?|[MG]b/s|tok/s|[GT]FLOP/s|[num]?s|[MG]Hz|W)(?![A-Za-z0-9_/]))?)")

NAME = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z]+_?\d[A-Za-z0-9_]*")


class Section:
    def __init__(self, level, title):
        self.level, self.title, self.items = level, title, 0
        self.commands = []  # one string per fenced block, without comments
        self.comments = ""  # the comments in these blocks
        self.formulas = []  # lines of indented blocks
        self.tables = []    # each a list of rows, each a list of cells
        self.prose = ""     # all other lines

    def texts(self):
        return [self.title, self.prose] + [cell for table in self.tables for row in table for cell in row]


def split_cells(row):
    """The cells of a table's row; a | inside of code separates nothing."""
    hidden = CODE.sub(lambda span: span[0].replace("|", "\0"), row.strip().replace("\\|", "\0"))
    return [cell.strip().replace("\0", "|") for cell in hidden.strip("|").split("|")]


def add_fence(section, block):
    commands = []
    for line in block:
        command, _, comment = re.sub(r"(?:^|\s+)# ", "\0", line, count=1).partition("\0")
        commands.append(command.rstrip())
        section.comments += comment + "\n"
    section.commands.append("\n".join(commands))


def parse(text):
    sections, fence, in_list, in_table, before = [Section(0, "the top")], None, False, False, ""
    for line in COMMENT.sub("", text).splitlines():
        section, heading = sections[-1], HEADING.match(line)
        row = False
        if FENCE.match(line):
            if fence is None:
                fence = []
            else:
                add_fence(section, fence)
                fence = None
        elif fence is not None:
            fence.append(line)
        elif heading:
            sections.append(Section(len(heading[1]), heading[2]))
            in_list = False
        elif line.strip().startswith("|"):
            row = True
            if not in_table:
                section.tables.append([])
            section.tables[-1].append(split_cells(line))
        elif line.startswith("    ") and not in_list and before in ("", "formula"):
            section.formulas.append(" ".join(line.split()))
        else:
            if ITEM.match(line):
                section.items += 1
                in_list = True
            elif line and not line.startswith(" "):
                in_list = False
            section.prose += ITEM.sub("", line) + "\n"
        in_table = row
        formula = section.formulas and line.startswith("    ")
        before = "formula" if formula else line.strip()
    return sections


def plain(text):
    """The text without code, without the targets of links and without HTML."""
    return TAG.sub(" ", LINK.sub(lambda link: link[1], CODE.sub(" ", text)))


def figures(text):
    wide = {ord("０") + digit: str(digit) for digit in range(10)}
    return collections.Counter(re.sub(r"[,\s]", "", figure)
                               for figure in FIGURE.findall(plain(text).translate(wide)))


def code_spans(section):
    return collections.Counter({" ".join(span[1].split()) for text in section.texts() for span in CODE.findall(text)})


def names(section):
    return collections.Counter({name for text in section.texts() for name in NAME.findall(plain(text))
                                if not FIGURE.fullmatch(name)})


def paragraphs(section):
    return len([block for block in re.split(r"\n\s*\n", section.prose) if block.strip()])


def english_of(name):
    """The name of a page's English version: docs/zh/x.md is docs/x.md."""
    return re.sub(r"^docs/zh/", "docs/", re.sub(r"^README\.zh\.md$", "README.md", name))


def links(section, page, translated):
    """The targets of a section's links by their English names, those between the two versions left out.
    What is translated has headings of its own, so that anchors there cannot be compared."""
    found = collections.Counter()
    for text in section.texts():
        for _, target in LINK.findall(CODE.sub(" ", text)):
            path, _, anchor = target.partition("#")
            if "://" in target:
                found[target] += 1
                continue
            name = english_of(os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page)
            if path and name == english_of(page):
                continue
            found[name + ("#" + anchor if anchor and name not in translated else "")] += 1
    return found


def difference(english, chinese):
    """What two multisets do not share, as words; empty where they are equal."""
    parts = [("only in English", english - chinese), ("only in Chinese", chinese - english)]
    return "; ".join(f"{where}: {', '.join(sorted(map(str, rest.elements())))}" for where, rest in parts if rest)


def compare_tables(english, chinese):
    if len(english) != len(chinese):
        yield f"{len(english)} tables in English, {len(chinese)} in Chinese"
        return
    for number, (left, right) in enumerate(zip(english, chinese), 1):
        shapes = [[len(row) for row in table] for table in (left, right)]
        if shapes[0] != shapes[1]:
            yield f"table {number}: rows and columns differ: {shapes[0]} and {shapes[1]}"
            continue
        for y, (left_row, right_row) in enumerate(zip(left, right), 1):
            for x, (a, b) in enumerate(zip(left_row, right_row), 1):
                if says := difference(figures(a), figures(b)):
                    yield f"table {number}, line {y}, column {x}: {says}"


def compare_sections(english, chinese, pages, translated):
    if english.commands != chinese.commands:
        yield f"commands differ:\n{english.commands}\n{chinese.commands}"
    if english.formulas != chinese.formulas:
        yield f"formulas differ: {difference(*(collections.Counter(s.formulas) for s in (english, chinese)))}"
    counts = {"items of lists": (english.items, chinese.items),
              "paragraphs": (paragraphs(english), paragraphs(chinese))}
    for what, (left, right) in counts.items():
        if left != right:
            yield f"{left} {what} in English, {right} in Chinese"
    pairs = {"code": [code_spans(s) for s in (english, chinese)],
             "names": [names(s) for s in (english, chinese)],
             "links": [links(s, page, translated) for s, page in zip((english, chinese), pages)],
             "figures": [figures(s.title + "\n" + s.prose) for s in (english, chinese)],
             "figures in comments of commands": [figures(s.comments) for s in (english, chinese)]}
    for what, (left, right) in pairs.items():
        if says := difference(left, right):
            yield f"{what}: {says}"
    yield from compare_tables(english.tables, chinese.tables)


def compare(english, chinese, pages=("docs/x.md", "docs/zh/x.md"), translated=()):
    """The faults of two texts that should say the same, each with its section."""
    left, right = parse(english), parse(chinese)
    levels = [["#" * s.level + " " + s.title for s in sections[1:]] for sections in (left, right)]
    if [s.level for s in left] != [s.level for s in right]:
        return [f"{pages[1]}: the headings' levels differ: {levels[0]} and {levels[1]}"]
    faults = [f"{pages[1]}, \"{b.title}\": {fault}" for a, b in zip(left, right)
              for fault in compare_sections(a, b, pages, translated)]
    if COMMENT.findall(english) != COMMENT.findall(chinese):
        faults.append(f"{pages[1]}: comments in HTML differ (commands that are not run are marked by these)")
    return faults


def avoided(index):
    """The words that the glossary names in its third column, each with the term to use."""
    return {word: row[1] for section in parse(index) if section.title == GLOSSARY_TITLE
            for table in section.tables for row in table[2:] if row[2:] and row[2] for word in row[2].split("、")}


def style(text, words={}):
    """Faults of a Chinese text's typography and terms, each with what is around it."""
    comments = [line for section in parse(text) for line in section.comments.splitlines() if line.strip()]
    yield from (f"a comment of a command that is not Chinese: {line}" for line in comments if not re.search(HAN, line))
    text = re.sub(r"^\s*(```|~~~).*?^\s*(```|~~~)", "", COMMENT.sub("", text), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^    .*", "", text, flags=re.MULTILINE)
    text = LINK.sub(lambda link: link[1] or "x", CODE.sub("x", "\n\n".join([text] + comments)))
    bare = text.replace("**", "")
    rules = [(bare, f"{HAN}[A-Za-z0-9]|[A-Za-z0-9%]{HAN}", "no space between Chinese and Latin"),
             (bare, f"{HAN}[,;:?!().]|[,;:?!()]{HAN}", "half-width punctuation beside Chinese"),
             (text, r" [，。；：、）]|[，。；：、（] (?=\S)", "a space beside full-width punctuation"),
             (bare, r"[０-９Ａ-Ｚａ-ｚ％]", "full-width letters or digits"),
             (bare, r"\d\s*[万亿]", "万 or 亿 behind a figure: write out its digits"),
             (bare, rf"({HAN}|[，。；：、）])\n(?!\d+\. )({HAN}|[（A-Za-z0-9])", "a line break inside of a paragraph")]
    for word in words:
        rules.append((bare, re.escape(word), f"{word}: the glossary has {words[word]}"))
    for where, pattern, fault in rules:
        for match in re.finditer(pattern, where):
            around = where[max(match.start() - 12, 0):match.end() + 12].replace("\n", "⏎")
            yield f"{fault}: ...{around}..."
    # Markdown closes bold behind punctuation only where a space or punctuation follows.
    for bold, following in re.findall(r"\*\*([^*\n]+)\*\*(?=(.?))", text):
        if re.search(r"[，。；：、）”%]$", bold) and re.match(f"{HAN}|[A-Za-z0-9]", following):
            yield f"bold that is not closed: **{bold}**{following}"


def has_link_to(text, page, other):
    """Whether one of the first lines links to the page's other version."""
    top = "\n".join(text.splitlines()[:10])
    return os.path.relpath(other, os.path.dirname(page) or ".") in [target for _, target in LINK.findall(top)]


def links_past_translation(text, page, translated):
    """Links of a Chinese page to the English version of a page that exists in Chinese, too."""
    for _, target in LINK.findall(CODE.sub(" ", text)):
        path = target.partition("#")[0]
        name = os.path.normpath(os.path.join(os.path.dirname(page), path))
        if "://" not in target and name in translated and name != english_of(page):
            yield f"{page}: links to {target}, which exists in Chinese"


def check_pair(root, english, chinese, translated, words):
    if not (root / english).is_file():
        return [f"{chinese}: there is no {english}"]
    texts = [(root / page).read_text(encoding="utf-8") for page in (english, chinese)]
    faults = [f"{page}: none of its first lines links to {other}"
              for text, page, other in zip(texts, (english, chinese), (chinese, english))
              if not has_link_to(text, page, other)]
    faults += compare(*texts, (english, chinese), translated)
    faults += [f"{chinese}: {fault}" for fault in style(texts[1], words)]
    return faults + list(links_past_translation(texts[1], chinese, translated))


def check_tree(root):
    names = [f"docs/zh/{path.name}" for path in sorted((root / "docs/zh").glob("*.md"))]
    if (root / "README.zh.md").is_file():
        names.append("README.zh.md")
    index_name = "docs/zh/index.md"  # a list of pages with a glossary, not a translation
    if index_name not in names or len(names) < 2:
        return ["docs/zh has no index.md, or no page beside it"], 0
    names.remove(index_name)
    index = (root / index_name).read_text(encoding="utf-8")
    words, translated = avoided(index), {english_of(name) for name in names}
    faults = [f"{index_name}: {fault}" for fault in style(index.partition("## " + GLOSSARY_TITLE)[0])]
    if not words:
        faults.append(f"{index_name}: no glossary found")
    listed = {target for _, target in LINK.findall(index)}
    for name in names:
        for page in (name, english_of(name)):
            if name.startswith("docs/") and os.path.relpath(page, "docs/zh") not in listed:
                faults.append(f"{index_name}: does not list {page}")
        faults += check_pair(root, english_of(name), name, translated, words)
    return faults, len(names)


# English, Chinese, and words of the fault that is to be found (None: these agree).
SAMPLES = [
    ("# A\n\n18,600 tokens in 4.66 ms, one by one.\n", "# 甲\n\n4.66 ms 内逐个处理 18600 个 token。\n", None),
    ("On 2026-11-15, 6845e87, H200, f32: 2x.\n", "2026 年 11 月 15 日，6845e87，H200，f32：2 倍。\n", None),
    ("# A\n\n18,600 tokens\n", "# 甲\n\n18,601 个 token\n", "only in English: 18600; only in Chinese: 18601"),
    ("It takes 5 ms.\n", "耗时 5 us。\n", "only in English: 5ms"),
    ("It takes 5%.\n", "占 5。\n", "only in English: 5%"),
    ("At 491e798.\n", "版本 491e799。\n", "491e798"),
    ("7 and 7.\n", "7。\n", "only in English: 7"),
    ("# A\n\n5\n\n## B\n\n6\n", "# 甲\n\n6\n\n## 乙\n\n5\n", '"甲": figures'),
    ("# A\n\n## B\n", "# 甲\n\n### 乙\n", "headings' levels differ"),
    ("```\nrun -n 5   # five, 5\n```\n", "```\nrun -n 5   # 五，5\n```\n", None),
    ("```\nrun -n 5\n```\n", "```\nrun -n 6\n```\n", "commands differ"),
    ("```\nrun -n 5   # five\n```\n", "```\nrun -n 6   # 五\n```\n", "commands differ"),
    ("```\n# first\nrun a#b\n```\n", "```\n# 首先\nrun a#b\n```\n", None),
    ("```\nrun a#b\n```\n", "```\nrun a#c\n```\n", "commands differ"),
    ("```\nrun   # 5\n```\n", "```\nrun   # 6\n```\n", "comments of commands"),
    ("```\nrun\n```\n", "run\n", "commands differ"),
    ("Let\n\n    l = a + 5\n", "令\n\n    l = a + 6\n", "formulas differ"),
    ("See `f(5)`.\n", "见 `f(6)`。\n", "code: only in English: f(5)"),
    ("See `f\ng 5`, 1. and\n2 more.\n", "见 `f g 5`，1. 以及 2 个。\n", None),
    ("1. a\n2. b\n", "1. 甲\n2. 乙\n", None),
    ("- a\n- b\n", "- 甲，乙\n", "2 items"),
    ("|a|b|\n|--|--|\n|1|2|\n", "|甲|乙|\n|--|--|\n|1|2|\n", None),
    ("|a|b|\n|--|--|\n|1|2|\n", "|甲|乙|\n|--|--|\n|2|1|\n", "table 1, line 3, column 1"),
    ("|a|b|\n|--|--|\n|1|2|\n", "|甲|\n|--|\n|1|\n", "rows and columns"),
    ("|a|b|\n|--|--|\n|1|`x|y`|\n", "|甲|乙|\n|--|--|\n|1|`x|y`|\n", None),
    ("[see](y.md#z9)\n", "[见](../y.md#z9)\n", None),
    ("[see](t.md#z)\n", "[见](t.md#甲)\n", None),
    ("[see](y.md#z)\n", "[见](../w.md#z)\n", "links: only in English: docs/y.md#z"),
    ("[see](y.md)\n", "见。\n", "links"),
    ("|a|\n|--|\n|1|\n", "|甲|\n|1|\n", "rows and columns"),
    ("On H200, sm_90a: q8_0.\n", "H200，sm_90a：q8_0。\n", None),
    ("On H200.\n", "L20 上。\n", "names: only in English: H200"),
    ("one\n\ntwo\n", "一，二\n", "2 paragraphs"),
    ("<!-- not run: x -->\n```\nrun\n```\n", "```\nrun\n```\n", "comments in HTML"),
]
STYLE_SAMPLES = [
    ("每步读 16 个字节（`x`），**显存**不变；见[此页](a.md)。\n\n- **权重**：`f32`\n", None),
    ("每步读16 个字节。", "no space"), ("用`x` 读。", "no space"), ("读权重, 再算。", "half-width"),
    ("读权重(一次)。", "half-width"), ("权重 ，再算。", "a space beside"), ("共 ４ 个。", "full-width letters"),
    ("共 3 万个。", "write out"), ("先读权重，\n再算。", "line break"), ("**权重。**先读。", "bold"),
    ("用页锁定内存。", "glossary"), ("```\nrun   # 读 16 个\n```\n", None),
    ("```\nrun   # read it\n```\n", "not Chinese"), ("```\nrun   # 读16 个\n```\n", "no space"),
]
GLOSSARY = "| a | b | 其他 |\n\n## 术语表\n\n| 英文 | 中文 | 不用 |\n|--|--|--|\n| pinned | 锁页内存 | 页锁定内存、固定内存 |\n"


def self_test():
    wrong = []
    words = avoided(GLOSSARY)
    if set(words) != {"页锁定内存", "固定内存"}:
        wrong.append(f"the glossary is read as {words}")
    for english, chinese, fault in SAMPLES:
        found = compare(english, chinese, translated={"docs/t.md"})
        if found if fault is None else fault not in "\n".join(found):
            wrong.append(f"{english!r}, {chinese!r}: found {found}, expected {fault}")
    for text, fault in STYLE_SAMPLES:
        found = list(style(text, words))
        if found if fault is None else fault not in "\n".join(found):
            wrong.append(f"{text!r}: found {found}, expected {fault}")
    if has_link_to("# x\n", "docs/x.md", "docs/zh/x.md") or not has_link_to(
            "[中文](zh/x.md)\n", "docs/x.md", "docs/zh/x.md"):
        wrong.append("the line that links to the other language is not seen")
    if not list(links_past_translation("[a](../t.md)", "docs/zh/x.md", {"docs/t.md"})):
        wrong.append("a link past a translation is not seen")
    return wrong, len(SAMPLES) + len(STYLE_SAMPLES)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    is_self_test = sys.argv[1] == "--self-test"
    faults, count = self_test() if is_self_test else check_tree(pathlib.Path(sys.argv[1]))
    print("\n".join(faults) or f"{count} {'samples' if is_self_test else 'pages'} as they should be")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
