"""What mkdocs needs besides its configuration (mkdocs.yml): the contents, from docs/index.md; the pages
beside docs/ that it lists; the anchors that GitHub has; and Markdown as GitHub reads it."""
import os
import pathlib
import re

from mkdocs.structure.files import File

# Pages of the repository's root that the site has too.
ROOT_PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md")
LINK = re.compile(r"\[([^\]\n]+)\]\(([^)#\s]+\.md)\)")
# A link that leaves docs/, as [text](../include/millrace/millrace.h).
OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)\s]+)\)")
ITEM = re.compile(r"^ {0,3}(?:[-*+]|\d+\.) ")


def slug(title, separator):
    """The anchor of a heading as GitHub makes it; tests/docs/pages.py has the same."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", separator)


def entries(page):
    """The pages that an index links to, each once, as mkdocs' navigation has them. A folder's own index
    becomes a section with its pages."""
    found, seen = [], {page.resolve()}
    for title, target in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        if path in seen or not path.is_file() or not path.is_relative_to(page.parent.resolve()):
            continue
        seen.add(path)
        found.append((title, path))
    return found


def is_root_page(path, docs):
    return path.name in ROOT_PAGES and path.parent == docs.resolve().parent


def navigation(docs):
    index = docs / "index.md"
    contents, section, listed = [{"Millrace": "index.md"}], None, set()
    pages = {path for _, path in entries(index)}
    for line in index.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = []
            contents.append({line[3:].strip(): section})
        if section is None:
            continue
        for title, target in LINK.findall(line):
            path = (docs / target).resolve()
            if is_root_page(path, docs):
                section.append({title: path.name})
            if path not in pages or path in listed:
                continue
            listed.add(path)
            name = path.relative_to(docs.resolve()).as_posix()
            below = [{name_below: sub.relative_to(docs.resolve()).as_posix()}
                     for name_below, sub in entries(path)] if path.name == "index.md" else []
            section.append({title: [name] + below if below else name})
    return [part for part in contents if list(part.values())[0]]


def on_config(config):
    docs = pathlib.Path(config["docs_dir"])
    config["nav"] = navigation(docs)
    config["mdx_configs"].setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files, config):
    docs = pathlib.Path(config["docs_dir"])
    for name in ROOT_PAGES:
        text = (docs.parent / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    docs = os.path.abspath(config["docs_dir"])
    here = os.path.dirname(os.path.join(docs, page.file.src_path))

    def outside(link):
        path = os.path.normpath(os.path.join(here, link[2].partition("#")[0]))
        if path.startswith(docs + os.sep):
            return link[0]
        name = os.path.relpath(path, os.path.dirname(docs))
        if name in ROOT_PAGES:
            return f"[{link[1]}]({os.path.relpath(os.path.join(docs, name), here)})"
        return f"`{name}`" if link[1].strip("`") == name else f"{link[1]} (`{name}`)"

    lines, fenced = [], False
    for line in OUTSIDE.sub(outside, markdown).split("\n"):
        # A list may follow a paragraph without an empty line, which Python's Markdown wants.
        if ITEM.match(line) and not fenced and lines and lines[-1].strip() and not in_list(lines):
            lines.append("")
        fenced ^= line.lstrip().startswith("```")
        lines.append(line)
    return "\n".join(lines)


def in_list(lines):
    """Whether the last paragraph, back to an empty line, has an item of a list."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if ITEM.match(line):
            return True
    return False
