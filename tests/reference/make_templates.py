#!/usr/bin/env python3
"""Records what jinja2, set up as transformers does, makes of the templates in templates/ and of the
small ones in template_cases.py.

usage: python3 -m venv V && V/bin/pip install jinja2==3.1.6 && V/bin/python tests/reference/make_templates.py

Writes templates/expected.json, which tests/text/jinja_reference_test.cpp replays.
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
    except Exception as error:  # whatever Python says about it
        return {"error": f"{type(error).__name__}: {error}"}


def expressions(line):
    """What stands between the commas of a line, outside of brackets and strings."""
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
                variables = {**about["tokens"], "messages": talk["messages"],
                             "add_generation_prompt": prompt, **talk.get("more", {})}
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
    failed = [t for t in talks if "error" in t]
    print(f"{len(small)} small templates, {sum('error' in s for s in small)} of them errors; "
          f"{len(talks)} renderings, {len(failed)} errors: {failed[:5]}")


if __name__ == "__main__":
    main()
