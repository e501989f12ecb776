#!/usr/bin/env python3
"""Writes src/text/case_tables.cpp from the case mappings of Python's strings.

usage: tools/case_tables.py > src/text/case_tables.cpp
"""
import unicodedata


def ranges(mapping):
    """[first, last, step, delta] of the code points that `mapping` takes to another single one."""
    out = []
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        mapped = mapping(chr(code))
        if len(mapped) != 1 or mapped == chr(code):
            continue
        delta = ord(mapped) - code
        last = out[-1] if out else None
        if last and last[3] == delta and last[0] == last[1] and code - last[1] <= 2:
            last[1], last[2] = code, code - last[0]
        elif last and last[3] == delta and last[0] != last[1] and code - last[1] == last[2]:
            last[1] = code
        else:
            out.append([code, code, 1, delta])
    return out


def words(mapping, wanted):
    return [(code, mapping(chr(code))) for code in range(0x110000)
            if not 0xD800 <= code < 0xE000 and wanted(chr(code))]


def escaped(text):
    return "".join(f"\\x{byte:02X}" for byte in text.encode())


def print_table(kind, name, rows):
    print(f"const {kind} {name}[] = {{")
    for i in range(0, len(rows), 4):
        print("    " + " ".join(row + "," for row in rows[i:i + 4]))
    print("};")
    print(f"const std::size_t {name}_size = std::size({name});")
    print()


def main():
    print("// Written by tools/case_tables.py; do not edit. Unicode " + unicodedata.unidata_version + ".")
    print('#include "text/case_tables.h"\n')
    print("#include <iterator>\n")
    print("namespace mr::text::tables {\n")
    print("// clang-format off")
    for name, mapping in (("kUpper", str.upper), ("kLower", str.lower)):
        print_table("CaseRange", name,
                    [f"{{0x{a:X}, 0x{b:X}, {s}, {d}}}" for a, b, s, d in ranges(mapping)])
    for name, mapping, wanted in (
            ("kUpperWords", str.upper, lambda c: len(c.upper()) > 1),
            ("kLowerWords", str.lower, lambda c: len(c.lower()) > 1),
            ("kTitleWords", str.title, lambda c: c.title() != c.upper())):
        print_table("CaseWords", name,
                    [f'{{0x{code:X}, "{escaped(text)}"}}' for code, text in words(mapping, wanted)])
    print("// clang-format on")
    print("\n}  // namespace mr::text::tables")


if __name__ == "__main__":
    main()
