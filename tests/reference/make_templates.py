#!/usr/bin/env python3
"""Records what jinja2, set up as transformers does, makes of the templates in templates/ and of the
small ones in template_cases.py.

usage: python3 -m venv V && V/bin/pip install jinja2==3.1.6 && V/bin/python tests/reference/make_templates.py

Writes templates/expected.json, which tests/text/jinja_reference_test.cpp replays, and the seeds of the
fuzzer, tests/fuzz/corpus/jinja.
"""
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox

import template_cases
import template_talks

HERE = pathlib.Path(__file__).resolve().parent / "templates"
NOW = datetime.datetime(2024, 7, 26, 9, 5, 3)


class Generation(jinja2.ext.Extension):
    """{% generation %} prints its body."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Raised(Exception):
    pass


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def record(env, source, variables):
    """{"text": ...}, {"refused": message} or {"error": message}."""
    try:
        return {"text": env.from_string(source).render(**variables)}
    except Raised as error:
        return {"refused": str(error)}
    except Exception as error:  # any Python error
        return {"error": f"{type(error).__name__}: {error}"}


def expressions(line):
    """Splits a line at commas outside brackets and strings."""
    out, open_brackets, quote = [""], 0, None
    for i, c in enumerate(line):
        if quote:
            quote = None if c == quote and line[i - 1] != "\\" else quote
        elif c in "'\"":
            quote = c
        open_brackets += (c in "([{") - (c in ")]}") if not quote else 0
        if c == "," and not quote and not open_brackets:
            out.append("")
        else:
            out[-1] += c
    return [e.strip() for e in out]


# Templates that would run, nest or grow without end.
HOSTILE = {
    "steps": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "recursion": "{% macro f(x) %}{{ f(x + 1) }}{% endmacro %}{{ f(0) }}",
    "text": "{% set n = namespace(t='x') %}{% for i in range(99) %}{% set n.t = n.t ~ n.t %}{% endfor %}{{ n.t }}",
    "repeat": "{{ 'x' * 9999999999999 }}{{ [0] * 9999999999999 }}",
    "lists": "{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}",
    "shared": "{% set n = namespace(l=[]) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}"
              "{{ n.l == n.l }}{{ n.l | tojson }}",
    "cycle": "{% set n = namespace() %}{% set n.n = n %}{% set n.l = [n] %}{{ n.l == [n] }}{{ n.l }}",
    "loops": "{% set n = namespace(l=[1]) %}{% for i in range(999) %}{% for j in n.l %}{% set n.l = [loop] %}"
             "{% endfor %}{% endfor %}",
    "macros": "{% set n = namespace(f=[]) %}{% for i in range(99) %}{% macro m() %}{{ i }}{% endmacro %}"
              "{% set n.f = n.f + [m] %}{% endfor %}{{ n.f[0]() }}{{ n.f[98]() }}",
    "methods": "{% set n = namespace(m='') %}{% for i in range(999) %}{% set n.m = [n.m].count %}{% endfor %}",
    "brackets": "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
    "sum": "{{ 1" + "+1" * 5000 + " }}",
    "chain": "{{ x" + ".a" * 5000 + " }}{{ x" + "|trim" * 5000 + " }}",
    "nested": "{% if 1 %}" * 500 + "{% endif %}" * 500,
    "elif": "{% if 0 %}" + "{% elif 0 %}" * 3000 + "{% endif %}",
    "not": "{{ " + "not " * 5000 + "1 }}{{ " + "-" * 5000 + "1 }}",
    "integers": "{{ 9223372036854775807 + 1 }}{{ (-9223372036854775807 - 1) // -1 }}{{ 3 ** 999 }}",
    "slice": "{{ 'abc'[::-9223372036854775807 - 1] }}{{ [1][9223372036854775807:] }}{{ 'abc'[-9223372036854775807:] }}",
    "format": "{{ '%999999999d' % 1 }}{{ '%.99999f' % 1.0 }}{{ '{0}{'.format(1) }}{{ '%' % 1 }}",
    "bytes": "\udcff{{ '\udcfe\udcff'[1] ~ '\udcf0\udc9f'.upper() }}{{ ['\udcc3'] }}",
}


def write_corpus():
    folder = HERE.parents[1] / "fuzz" / "corpus" / "jinja"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    files = {f"hostile_{name}": source for name, source in HOSTILE.items()}
    for name in template_talks.MODELS:
        files[f"model_{name}"] = (HERE / f"{name}.jinja").read_text(encoding="utf-8")
    small = ["{{ " + line + " }}" for line in template_cases.EXPRESSIONS] + template_cases.TEMPLATES
    for i in range(0, len(small), 8):
        files[f"small_{i // 8:02}"] = "\n".join(small[i:i + 8])
    for name, source in files.items():
        (folder / f"{name}.jinja").write_bytes(source.encode("utf-8", "surrogateescape"))


def main():
    env = environment()
    small = []
    alone = [e for line in template_cases.EXPRESSIONS for e in expressions(line)]
    for source in ["{{ " + e + " }}" for e in alone] + template_cases.TEMPLATES:
        small.append({"source": source, **record(env, source, template_cases.VARIABLES)})
    talks = []
    for name, about in template_talks.MODELS.items():
        source = (HERE / f"{name}.jinja").read_text(encoding="utf-8")
        for talk in template_talks.TALKS:
            if not set(talk.get("needs", [])) <= set(about.get("knows", [])):
                continue
            for prompt in (True, False):
                # transformers always passes tools and documents, as None if there are none.
                variables = {**about["tokens"], "messages": talk["messages"], "tools": None,
                             "documents": None, "add_generation_prompt": prompt, **talk.get("more", {})}
                talks.append({"model": name, "talk": talk["name"], "prompt": prompt,
                              **record(env, source, variables)})
    out = {"now": NOW.isoformat(), "jinja2": jinja2.__version__, "variables": template_cases.VARIABLES,
           "small": small, "models": template_talks.MODELS,
           "talks": {t["name"]: t for t in template_talks.TALKS}, "renderings": talks}
    with open(HERE / "expected.json", "w", encoding="ascii") as file:
        def lines(key):
            return f' "{key}": [\n' + ",\n".join("  " + json.dumps(x) for x in out[key]) + "\n ]"
        head = [f' "{key}": {json.dumps(out[key])}'
                for key in ("now", "jinja2", "variables", "models", "talks")]
        file.write("{\n" + ",\n".join(head + [lines("small"), lines("renderings")]) + "\n}\n")
    write_corpus()
    failed = [t for t in talks if "error" in t]
    print(f"{len(small)} small templates, {sum('error' in s for s in small)} of them errors; "
          f"{len(talks)} renderings, {len(failed)} errors: {failed[:5]}")


if __name__ == "__main__":
    main()
