#!/usr/bin/env python3
"""Writes src/text/unicode_tables.cpp from Python's unicodedata.

usage: tools/unicode_tables.py > src/text/unicode_tables.cpp

The package `unicodedata2`, where installed, goes before Python's own older tables: Hugging Face
tokenizers use Unicode 16, and so does the file in the repository (unicodedata2 16.0.0).
"""
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

LAST = 0x110000


def classes():
    """Ranges [first, last] of letters (L), numbers (N) and white space, in code point order."""
    white = {0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F,
             0x205F, 0x3000} | set(range(0x2000, 0x200B))
    out = []
    for cp in range(LAST):
        category = unicodedata.category(chr(cp))
        kind = ("space" if cp in white else "letter" if category[0] == "L"
                else "number" if category[0] == "N" else None)
        if kind is None:
            continue
        if out and out[-1][2] == kind and out[-1][1] == cp - 1:
            out[-1][1] = cp
        else:
            out.append([cp, cp, kind])
    return out


def words():
    """Ranges of \\w (UTS 18, annex C): letters and what else is alphabetic, marks, decimal digits,
    connectors, joiners. Of what is alphabetic, Python does not know the circled letters."""
    also = {0x200C, 0x200D, *range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A),
            *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A)}
    out = []
    for cp in range(LAST):
        category = unicodedata.category(chr(cp))
        if not (category[0] in "LM" or category in ("Nd", "Nl", "Pc") or cp in also):
            continue
        if out and out[-1][1] == cp - 1:
            out[-1][1] = cp
        else:
            out.append([cp, cp])
    return out


def combining():
    """Ranges of one canonical combining class other than 0."""
    out = []
    for cp in range(LAST):
        ccc = unicodedata.combining(chr(cp))
        if not ccc:
            continue
        if out and out[-1][2] == ccc and out[-1][1] == cp - 1:
            out[-1][1] = cp
        else:
            out.append([cp, cp, ccc])
    return out


def decompositions():
    """(code point, first, second or 0) of every canonical mapping; Hangul is arithmetic."""
    out = []
    for cp in range(LAST):
        mapping = unicodedata.decomposition(chr(cp))
        if mapping and not mapping.startswith("<"):
            parts = [int(p, 16) for p in mapping.split()]
            out.append((cp, parts[0], parts[1] if len(parts) == 2 else 0))
    return out


def compositions(pairs):
    """(first, second, composed): canonical pairs that NFC puts together again."""
    out = []
    for cp, first, second in pairs:
        if second and unicodedata.normalize("NFC", chr(first) + chr(second)) == chr(cp):
            out.append((first, second, cp))
    return sorted(out)


def table(kind, name, rows):
    print(f"const {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        item = " {" + ", ".join(str(v) if isinstance(v, str) else hex(v) for v in row) + "},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")
    print(f"const std::size_t {name}_size = sizeof({name}) / sizeof({name}[0]);\n")


def main():
    pairs = decompositions()
    print(f"// Unicode {unicodedata.unidata_version}. Written by tools/unicode_tables.py; "
          "do not edit.")
    print('#include "text/unicode_tables.h"\n')
    print("// clang-format off")
    print("namespace mr::text::tables {\n")
    print("namespace {\nconstexpr auto letter = CharClass::letter;\n"
          "constexpr auto number = CharClass::number;\n"
          "constexpr auto space = CharClass::space;\n}  // namespace\n")
    table("ClassRange", "kClasses", classes())
    table("WordRange", "kWords", words())
    table("CombiningRange", "kCombining", combining())
    table("Decomposition", "kDecompositions", pairs)
    table("Composition", "kCompositions", compositions(pairs))
    print("}  // namespace mr::text::tables")
    print("// clang-format on")


if __name__ == "__main__":
    sys.exit(main())
