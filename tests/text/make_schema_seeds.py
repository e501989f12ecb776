#!/usr/bin/env python3
"""Writes the seeds of the fuzzer of JSON schemas: each keyword in a small one, and hostile ones."""
import json
import pathlib

OUT = pathlib.Path(__file__).parent / "../fuzz/corpus/schema"
SEEDS = {
    "types": {"type": ["string", "null", "integer"], "title": "t"},
    "string": {"type": "string", "minLength": 1, "maxLength": 5, "nullable": True},
    "pattern": {"type": "string", "pattern": "^(?:[a-z\u00e9]{2,3}|\\d+\\.\\u0041)?x*$"},
    "search": {"type": "string", "pattern": "(ab|c){2}[^\\s\"]", "maxLength": 9},
    "format": {"type": "array", "items": {"type": "string", "format": "date"}},
    "integer": {"type": "integer", "minimum": -17, "maximum": 1234},
    "number": {"type": "number", "exclusiveMinimum": -0.25, "maximum": 10.5},
    "whole": {"type": "number", "exclusiveMaximum": 3},
    "between": {"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 0},
    "equal": {"minimum": 2, "maximum": 2},
    "adjacent": {"type": "integer", "exclusiveMinimum": -1, "maximum": 1, "format": "int32"},
    "huge": {"type": "number", "minimum": -1e300, "maximum": 18446744073709551616},
    "counted": {"type": "array", "items": {"type": "string", "maxLength": 1e20, "minLength": 1.0},
                "minItems": 0, "maxItems": 18446744073709551616, "x-order": 1},
    "coded": {"$ref": "#/$defs/a%20b~1c", "$defs": {"a b/c": {"type": "string", "format": "ipv6"}}},
    "values": {"enum": ["a", "ab", 1, -2.5, None, True, [1], {"k": "v"}]},
    "const": {"const": "x\"\n"},
    "list": {"type": "array", "prefixItems": [{"const": 1}, {"type": "null"}], "items": False,
             "minItems": 1, "maxItems": 7},
    "object": {"type": "object", "properties": {"a": {"type": "string"}, "b\u00e9": {}},
               "required": ["a"], "additionalProperties": {"type": "integer"}},
    "strict": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
               "additionalProperties": False},
    "any": {"anyOf": [{"type": "string"}, {"oneOf": [{"const": 1}, {"const": 2}]}]},
    "all": {"allOf": [{"type": "object", "properties": {"a": {"minimum": 3}}},
                      {"properties": {"a": {"type": "integer"}, "b": True}, "required": ["b"]}]},
    "tree": {"$ref": "#/$defs/n", "$defs": {"n": {
        "type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"},
                                                            {"type": "null"}]}},
        "required": ["next"]}}},
    "endless": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "itself": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    "doubling": {"allOf": [{"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}] * 5,
                 "$defs": {"a": {"anyOf": [{"type": "null"}, {"type": "string"}]}}},
    "counts": {"type": "string", "pattern": "((a{9}){9}){9}b*"},
    "large": {"type": "string", "pattern": "(a|b)*a(a|b){14}"},
    "anything": {},
}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for name, schema in SEEDS.items():
        (OUT / f"{name}.json").write_text(json.dumps(schema, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
