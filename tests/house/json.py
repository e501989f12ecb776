#!/usr/bin/env python3
"""Checks that JSON is parsed in one place, src/formats/json.cpp, whose reader has limits."""
import pathlib
import re
import sys

READER = "src/formats/json.cpp"
# Uses of nlohmann's parser: its functions by name, and >> into one of its values.
PARSES = re.compile(r"json\w*\s*(<[^>]*>)?\s*::\s*(parse|sax_parse|accept|from_\w+)\b|"
                    r"\bsax_parse\s*\(|_json\b.*>>|>>\s*\w*json\b", re.IGNORECASE)
# The pattern does not see a value of the library under another name, so only these files may
# include its whole header, for writing. Others use formats/json.h for reading.
WRITERS = {"src/cli/json.h", "src/formats/json.cpp", "src/formats/safetensors.cpp",
           "src/model/io/convert_huggingface.cpp",
           "src/model/io/generation.cpp", "src/observe/page.cpp",
           "src/observe/roofline.cpp", "src/observe/run_report.cpp", "src/observe/trace.cpp",
           "src/text/tokenizer_json_writer.cpp",
           "src/train/options.cpp", "src/train/state_file.cpp"}
HEADER = re.compile(r"#include\s*<nlohmann/json\.hpp>")
# Lines that the patterns must match.
SEEN = ["auto j = json::parse(text);", "nlohmann::json::parse(t)", "ordered_json::parse(in)",
        "nlohmann::ordered_json::parse(text)", "basic_json<>::parse(t)", "json::sax_parse(t, &h)",
        "nlohmann::json::from_cbor(b)", "in >> my_json;", "if (json::accept(t))"]
NOT_SEEN = ["JsonDocument::parse(text, file)", "json.dump()", "parse_json_like(x)"]


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    wrong, reader_seen = [], False
    wrong += [f"the pattern does not see: {line}" for line in SEEN if not PARSES.search(line)]
    wrong += [f"the pattern sees: {line}" for line in NOT_SEEN
              if PARSES.search(line) and "JsonDocument" not in line]
    for folder in ("src", "include", "bench", "examples"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in {".h", ".cpp", ".cu", ".cuh", ".inl"}:
                continue
            name = path.relative_to(root).as_posix()
            for number, line in enumerate(path.read_text().splitlines(), 1):
                code = line.split("//")[0].replace("JsonDocument::parse", "")
                if HEADER.search(code) and name not in WRITERS:
                    wrong.append(f"{name}:{number}: only writers have nlohmann's header")
                if not PARSES.search(code):
                    continue
                if name == READER:
                    reader_seen = True
                else:
                    wrong.append(f"{name}:{number}: parses JSON past formats/json.h: {line.strip()}")
    if not reader_seen:
        wrong.append(f"{READER}: nothing in it parses JSON; is this check out of date?")
    print("\n".join(wrong) or f"JSON is parsed in {READER} alone")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
