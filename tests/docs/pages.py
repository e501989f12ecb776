"""Markdown pages as the tests of this folder read them: their headings, links and fenced blocks."""
import dataclasses
import pathlib
import re

FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*([\w+-]*)")
COMMENT = re.compile(r"^\s*<!--\s*(.*?)\s*-->\s*$")
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
# [text](target), ![text](target) and [text](<target>), with a title behind the target or none.
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
CODE = re.compile(r"(?<!`)(`+)(?!`)((?:[^\n]|\n(?!\n))+?)(?<!`)\1(?!`)")
ANCHOR_TAG = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
SKIPPED = {".git", "build", "_deps", "node_modules", ".venv", ".pytest_cache"}


@dataclasses.dataclass
class Block:
    line: int       # of its fence, from 1
    language: str   # the word behind the fence, or ""
    mark: str       # the HTML comment directly above the fence, or ""
    text: str


@dataclasses.dataclass
class Page:
    path: pathlib.Path
    headings: list  # (level, text) in order
    links: list     # (line, target)
    blocks: list
    code: list      # (line, text) of code within sentences
    anchors: set    # what #... may name


def all_pages(root: pathlib.Path) -> list:
    """Every Markdown file below root, outside of build folders."""
    found = []
    for path in sorted(root.rglob("*.md")):
        parts = path.relative_to(root).parts[:-1]
        if not any(part in SKIPPED or part.startswith((".", "build")) for part in parts):
            found.append(path)
    return found


def slug(title: str) -> str:
    """The anchor of a heading, as GitHub makes it; mkdocs.yml has mkdocs make the same."""
    title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title.replace("`", ""))
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def read_page(path: pathlib.Path) -> Page:
    page = Page(path, [], [], [], [], set())
    mark, fence, block, prose = "", None, None, []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        edge = FENCE.match(line)
        if fence:
            if edge and edge[2].startswith(fence) and not edge[3]:
                fence = None
            else:
                block.text += line[len(indent):] if line.startswith(indent) else line
                block.text += "\n"
            continue
        if edge:
            indent, fence = edge[1], edge[2]
            block = Block(number, edge[3].lower(), mark, "")
            page.blocks.append(block)
        else:
            prose.append((number, line))
        comment = COMMENT.match(line)
        mark = comment[1] if comment else ""
    if fence:
        raise ValueError(f"{path}:{block.line}: the fence is not closed")
    add_prose(page, prose)
    return page


def add_prose(page: Page, lines: list) -> None:
    counts = {}
    for number, line in lines:
        heading = HEADING.match(line)
        if heading:
            page.headings.append((len(heading[1]), heading[2]))
            name = slug(heading[2])
            count = counts[name] = counts.get(name, -1) + 1
            page.anchors.add(f"{name}-{count}" if count else name)
        page.anchors.update(ANCHOR_TAG.findall(line))
    # A link may be broken over two lines, and code is no link: both are settled on the whole text.
    text = "\n".join(line for _, line in lines)
    starts, at = [], 0
    for number, line in lines:
        starts.append((at, number))
        at += len(line) + 1
    def line_of(place):
        return next(n for start, n in reversed(starts) if start <= place)

    page.code = [(line_of(m.start()), m[2].replace("\n", " ").strip()) for m in CODE.finditer(text)]
    text = CODE.sub(lambda m: "`" * len(m[0]) if "](" in m[0] else m[0], text)
    for link in LINK.finditer(text):
        page.links.append((line_of(link.start()), link[1]))
