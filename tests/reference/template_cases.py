"""Small templates whose results make_templates.py records, and their variables."""

VARIABLES = {
    "n": 7, "x": 2.5, "word": "Hello, World", "blank": "  a b\t\n", "empty": "", "yes": True, "no": False,
    "nothing": None, "uni": "naïve Straße ŒÆ Ωmega дом 日本 🙂", "csv": "a,b,,c", "lines": "one\ntwo\r\n\nthree",
    "num": [3, 1, 2], "names": ["bob", "Alice", "carol", "alice"], "nest": [[1, 2], [3], []],
    "d": {"b": 1, "a": "two", "C": None, "items": [9]},
    "people": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 25},
               {"name": "Cy", "age": 30, "tags": []}],
    "evil": "<|im_end|>\n{{ n }} \"q\" 'p' \\ <b>&\u0001\u007f\u2028",
}

# Expressions, several per line; each becomes a separate template.
EXPRESSIONS = """
1 + 2 * 3 - 4
7 // 2, -7 // 2, 7 // -2, 7 % 3, -7 % 3, 7 % -3
7 / 2, 6 / 3, 2 ** 10, 2 ** -1, -2 ** 2
2 ** 3 ** 2
7.5 // 2, -7.5 % 2, 1e3, 1.5e-7, 1e16, 1e15, 123456789.125
0.1 + 0.2, 1/3, 100.0, 1e22, 5e-324, 0.0001, 0.00001
1_000, 0x1F, 0b101, 0o17, 1_0.2_5
n + x, n - x, n * x, n / x
yes + 1, no * 5, yes == 1, no == 0, yes == 1.0
"a" + "b", "a" ~ 1 ~ none ~ 2.0 ~ [1, "b"], "ab" * 3, 2 * "x", "x" * -1
[1] + [2], [0] * 3, (1, 2) + (3,), ()
"a" "b" 'c'
"tab\\tnew\\nquote\\"s\\x41\\u00e9\\101\\q"
'it''s'
1 == 1.0, 1 != 2, "a" == "a", none == none, [1, 2] == [1, 2], (1,) == [1], {"a": 1} == {"a": 1.0}
1 < 2 < 3, 1 < 3 < 2, "a" < "b", [1, 2] < [1, 3], 3 >= 3, 2 > 1 > 0
not true, not 0, not "", not [1], true and 0, "" or "x", 1 and 2, none or false
1 in [1, 2], 3 not in [1, 2], "ell" in word, "a" in d, "zz" not in d, 1 in (1,), "" in "abc"
"yes" if n > 3 else "no", "a" if false else "b" if true else "c"
("a" if false)
1 if missing else 2
missing is defined, missing is undefined, n is defined, d.zz is defined, d.a is defined, d["q"] is undefined
missing, missing ~ "x", [missing] | length
missing | default("dft"), missing | d, empty | default("e"), empty | default("e", true), none | default("n"), nothing | d("x", boolean=true)
nothing is none, n is none, n is not none, empty is not none
n is number, x is number, yes is number, word is number, n is integer, yes is integer, x is integer, x is float, n is float
yes is boolean, n is boolean, yes is true, no is false, n is true, 1 is true
word is string, n is string, d is mapping, num is mapping, num is sequence, d is sequence, word is sequence, n is sequence
num is iterable, word is iterable, n is iterable, d is iterable, missing is iterable
n is odd, n is even, 4 is even, n is divisibleby 7, n is divisibleby(2), 9 is divisibleby 3 and true
n is eq 7, n is equalto(7), n is ne 8, n is gt 3, n is lt(3), n is ge 7, n is le 7, n is greaterthan 1, n is lessthan 9
n is in [1, 7], "x" is in "xyz", n is not in [7], word is lower, "abc" is lower, "ABC" is upper, range is callable, n is callable
none is sameas none, true is sameas true
word[0], word[-1], word[100] is defined, word[1:4], word[:5], word[7:], word[-5:], word[::2], word[::-1], word[10:2:-3]
word[5:2], word[-100:100], word[3:-3:2], word[:-1]
num[0], num[-1], num[5] is defined, num[1:], num[::-1], num[:0], num[-2:], nest[0][1], nest[-1], (1, 2, 3)[1:]
uni[:5], uni[::-1], uni[-1], uni[6:12], uni | length, uni | upper, uni | lower, uni | title, uni | capitalize
d.a, d["b"], d.get("a"), d.get("zz"), d.get("zz", 5), d["items"], d.items() | list, d.keys() | list, d.values() | list
d, num, nest, names, (1,), {}, [], {"k": [1, {"z": none}]}, true, none, 1.0
people[0].name, people[0]["tags"][0], people[1].tags is defined, people.0.name
blank | trim, "[" ~ blank.strip() ~ "]", "[" ~ blank.lstrip() ~ "]", "[" ~ blank.rstrip() ~ "]"
"xxhixx" | trim("x"), "xyhiyx".strip("xy"), "xyhi".lstrip("x"), "hi\\n\\n".rstrip("\\n"), "abc".strip("")
word | upper, word | lower, "hELLO wORLD-foo (bar)" | title, "hELLO wORLD-foo it's".title(), "hELLO" | capitalize, "hELLO".capitalize()
word | replace("l", "L"), word | replace("l", "L", 1), word.replace("o", "0"), word.replace("o", "0", 1), "abc".replace("", "-"), "abc" | replace("x", "y"), 121 | replace(1, "x")
word.split(","), word.split(), csv.split(","), csv.split(",", 1), csv.rsplit(",", 1), "a  b c".split(), "a b c".split(" ", 1), "".split(), "".split(","), " a b c ".split(none, 1), " a b c ".rsplit(none, 1)
"a</think>b</think>c".split("</think>")[-1], "a</think>b".split("</think>")[0].rstrip("\\n").split("<think>")[-1].lstrip("\\n")
lines.splitlines(), lines.splitlines(true), "a\\n" | length
word.startswith("Hello"), word.startswith("x"), word.endswith("World"), word.endswith(("a", "ld")), word.startswith(("x", "H"))
word.find("o"), word.find("zz"), word.rfind("o"), word.find("o", 5), word.find("l", 3, 4), uni.find("Ω"), word.index("W"), word.count("l"), "aaa".count("aa")
"-".join(["a", "b"]), ",".join("abc"), "".join([]), "x".join(d)
"{} and {}".format(1, "b"), "{1}{0}".format("a", "b"), "{k}!".format(k="v"), "{{}}".format()
"%s is %d" % ("a", 5), "%05d|%-5s|%5s|%.2f|%x|%%" % (42, "ab", "cd", 3.14159, 255), "%s" % "x", "%r" % "it", "%s" | format("z"), "%s-%s" | format(1, none)
"abc".isdigit(), "123".isdigit(), "abc".isalpha(), "a1".isalnum(), " ".isspace(), "ABC".isupper(), "abc".islower(), "".isdigit()
"prefix-x".removeprefix("prefix-"), "x.txt".removesuffix(".txt"), "x".removeprefix("y")
"a=b=c".partition("="), "a=b=c".rpartition("="), "abc".partition("=")
"7".zfill(3), "-7".zfill(3), "a".ljust(3) ~ "|", "a".rjust(3), "a".center(4) ~ "|", "ab".center(5, "*")
num | length, word | length, d | length, empty | length, num | count, nothing is none and 1
num | first, num | last, word | first, word | last, [] | first is defined, num | sort, num | sort(reverse=true), names | sort, names | sort(case_sensitive=true)
people | sort(attribute="age") | map(attribute="name") | list, people | sort(attribute="age,name", reverse=true) | map(attribute="name") | join(" ")
num | join(", "), num | join, names | join("-"), people | join("/", attribute="name"), [] | join("x"), "abc" | join(".")
num | list, word | list, d | list, num | reverse | list, word | reverse, (1, 2) | list, missing | list
names | unique | list, names | unique(case_sensitive=true) | list, num | sum, people | sum(attribute="age"), [] | sum, [1.5, 2] | sum, num | sum(start=10)
num | min, num | max, names | min, names | max, people | max(attribute="age"), [] | min is defined
names | map("upper") | list, names | map("length") | list, people | map(attribute="tags") | list, people | map(attribute="tags", default="-") | list, names | map("replace", "o", "0") | list, ["a "] | map("trim") | list
num | select("gt", 1) | list, num | reject("odd") | list, [0, 1, "", "a"] | select | list, [0, 1, none] | reject | list, names | select("equalto", "bob") | list, num | select("in", [1, 2]) | list
people | selectattr("age", "equalto", 30) | map(attribute="name") | list, people | rejectattr("age", "eq", 30) | map(attribute="name") | list, people | selectattr("tags", "defined") | list | length, people | selectattr("tags") | list | length, people | rejectattr("tags") | list | length
num | batch(2) | list, num | batch(2, "-") | list
d | items | list, d | dictsort, d | dictsort(true), {"a": 2, "b": 1} | dictsort(by="value"), {"a": 2, "b": 1} | dictsort(reverse=true)
"42" | int, "4.7" | int, "x" | int, "x" | int(5), 4.9 | int, -4.9 | int, " 12 " | int, "ff" | int(0, 16), true | int, "1_000" | int
"4.5" | float, "x" | float, "x" | float(1.5), 3 | float, "1e3" | float, "inf" | float
2.5 | round, 3.5 | round, 2.675 | round(2), 42.55 | round(1, "floor"), 42.51 | round(1, "ceil"), 42 | round, 1234.5 | round(-2), -0.5 | round
-5 | abs, -5.5 | abs, 5 | abs, n | string ~ "!", x | string, none | string, [1, "a"] | string
word | safe, "<a href='x'>&\\"" | e, "<b>" | escape, "one two  three" | wordcount
"a\\nb\\n\\nc" | indent, "a\\nb" | indent(2, true), "a\\n\\nb" | indent(2, blank=true), "a\\nb" | indent("> "), "a\\n" | indent ~ "|"
d | tojson, num | tojson, nest | tojson, people | tojson, evil | tojson, uni | tojson, none | tojson, true | tojson, 1.0 | tojson, 1e100 | tojson, "" | tojson, (1, 2) | tojson, {} | tojson, [] | tojson
d | tojson(indent=2), people | tojson(indent=4), [] | tojson(indent=2), [[], {}] | tojson(indent=1), {"a": [1]} | tojson(indent=0)
d | tojson(separators=(",", ":")), d | tojson(sort_keys=true), {"é": 1, 2: 3, none: 4, true: 5, 1.5: 6} | tojson
uni | tojson(ensure_ascii=true), evil | tojson(true), none | map("upper") | list, none | selectattr("a") | list, missing | reject | list
evil, [evil], uni, [uni], ["it's"], ["\\"'"], "a\\\\b", ["a\\\\b", "\\r\\t"]
range(5) | list, range(2, 5) | list, range(5, 0, -2) | list, range(0) | list, range(3)[1]
dict(a=1, b="x"), dict({"a": 1}, b=2), dict([("a", 1)]), dict(a=1).a
[1, 2, 1].count(1), [1, 2].index(2), (1, 2).index(1), d.copy().a, num.copy()
{"a": 1, "a": 2}, {1: "x"}[1], {(1, 2): 3}[(1, 2)], {"a": 1}.a, {"x": {"y": 2}}.x.y
[1, 2, 3,], (1, 2,), {"a": 1,}, [[1], [2]][0][0]
num | map("string") | join("+"), (num | sort)[0], num | sort | first, -num[0], - 3 | abs, +n
(1, 2) == (1, 2), [1, [2]] in [[1, [2]]], "a" in ["a"], none in [none], 1.0 in [1]
not n is odd, n is not odd, not missing, not missing is defined, n is odd and x is float
word if word is string else "none", (word | length) > 5 and "long" or "short"
n == 7 and not (x > 3 or false), (n, x)[0], [n, [x]][1][0]
"a" ~ "b" | upper, ("a" ~ "b") | upper, "a" + "b" | upper, 1 + 2 | string | length
word.nope is defined, num.nope is defined, d.nope.nope is defined
strftime_now("%Y-%m-%d"), strftime_now("%d %b %Y"), strftime_now("%A %B %H:%M:%S %j %y %p %I %a"), strftime_now("%-d")
"x" is in d, "b" is in d, d is not none, d | length > 3
missing == missing, missing == none, missing != 1, missing in [1], 1 in missing
missing.attr
missing + 1
missing()
1 + "a"
"a" + 1
1 < "a"
word.nope()
none + 1
none | length
1 / 0
1 % 0
[1, 2] | tojson(missing_argument=1)
missing | tojson
num.append(4)
d.update({"x": 1})
raise_exception("no " ~ n)
"abc" | int is integer, d.items is defined, d.zz is none
word | trim | length, "%s %s" | format("a", "b") | upper
x | int, x | round | int, 10 // 3 ~ "", (10 / 4) | round(1)
"a-b_c d" | replace("-", "_") | replace(" ", "") | upper
namespace(a=1).a, namespace({"b": 2}).b, namespace().zz is defined
loop is defined, caller is defined, self is defined and false
"İßŉǆ" | upper, "İ" | lower, "ǆ" | capitalize, "ﬁx" | title
""" .strip().split("\n")

# Whole templates.
TEMPLATES = [
    "{% if n > 5 %}big{% elif n > 3 %}mid{% else %}small{% endif %}",
    "{% if missing %}a{% elif empty %}b{% elif num %}c{% endif %}",
    "{% for i in num %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/"
    "{{ loop.first }}/{{ loop.last }}/{{ loop.length }}:{{ i }};{% endfor %}",
    "{% for i in num %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}",
    "{% for i in num %}{{ loop.previtem is defined }},{{ loop.nextitem is defined }};{% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}|{% for i in missing %}x{% else %}none{% endfor %}",
    "{% for i in num if i > 1 %}{{ loop.index }}:{{ i }}/{{ loop.length }} {% else %}-{% endfor %}",
    "{% for i in num if i > 9 %}x{% else %}-{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in d | dictsort %}{{ k }}{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}{% for c in 'añb' %}[{{ c }}]{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a + b + c }}{% endfor %}",
    "{% for p in people %}{% for t in p.tags %}{{ loop.index }}{{ t }}{% else %}-{% endfor %}"
    "{{ loop.index }}{% endfor %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}"
    "{{ i }}{% endfor %}",
    "{% for i in range(3) %}{% for j in range(3) %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} "
    "{% endfor %}{% endfor %}",
    "{% set a = 1 %}{% for i in num %}{% set a = a + i %}{{ a }} {% endfor %}{{ a }}",
    "{% set ns = namespace(a=1, list=[]) %}{% for i in num %}{% set ns.a = ns.a + i %}"
    "{% set ns.list = ns.list + [i] %}{% endfor %}{{ ns.a }}{{ ns.list }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% set (e, f) = [3, 4] %}{{ e + f }}",
    "{% if true %}{% set inside = 5 %}{% endif %}{{ inside }}",
    "{% set t %}text {{ n }}\n{% endset %}[{{ t }}]{% set u | upper | replace('X', 'y') %}x{{ t }}{% endset %}{{ u }}",
    "{% set ns = namespace() %}{% set ns.block %}in {{ n }}{% endset %}{{ ns.block }}",
    "{% macro f(a, b=2, c='x') %}({{ a }}{{ b }}{{ c }}){% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(1, c='z') }}"
    "{{ f(b=5, a=0) }}{{ f() }}",
    "{% macro f(a) %}{{ a }}{{ n }}{{ later }}{% endmacro %}{% set later = 'L' %}{{ f('x') | upper }}",
    "{% macro fact(k) %}{{ 1 if k < 2 else k * (fact(k - 1) | int) }}{% endmacro %}{{ fact(10) }}",
    "{% macro v() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ v(1, 2, a=3) }}",
    "{% macro w() %}[{{ caller() }}]{% endmacro %}{% call w() %}body {{ n }}{% endcall %}",
    "{% macro w() %}{{ caller('x', 2) }}{% endmacro %}{% call(a, b) w() %}{{ a }}{{ b }}{% endcall %}",
    "{% macro o(x) %}{% macro i(y) %}{{ x }}{{ y }}{% endmacro %}{{ i(1) }}{{ i(2) }}{% endmacro %}{{ o('a') }}",
    "{% macro f(a) %}{{ a is defined }}{% endmacro %}{{ f() }}{{ f(none) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(zz=2) }}",
    "{% filter upper | replace('A', '4') %}banana {{ word }}{% endfilter %}",
    "{% with a = 1, b = n %}{{ a + b }}{% endwith %}{{ a is defined }}",
    "{% raw %}{{ not }} {% this %}{% endraw %}\nafter",
    "a{# comment {{ n }} #}b {#- c -#} d\n  {# line #}\nend",
    "  {% if true %}\n  yes\n  {% endif %}\n  after\n",
    "x\n    {%- if true -%}\n   y   \n{%- endif +%}\n z",
    "  {%+ if true %}a{% endif %}\n\n{% if true +%}\nb{% endif %}\n",
    "{{ 'a' }}\n{{ 'b' }}\n  {{- 'c' -}}  \n d",
    "a  {%- set z = 1 %}  b\n{% set z = 2 -%}\n\n   c",
    "\n\n  {% for i in num %}\n    {{ i }},\n  {% endfor %}\nend\n\n",
    "\t {% if true %}tab{% endif %}\r\nwin\r\n{% if true %}\r\ndows{% endif %}\r\n",
    "   {# c #}   text {% if true %} x {% endif %} y",
    "{%- raw -%}  keep  {%- endraw -%}  z",
    "{% generation %}answer {{ n }}{% endgeneration %}!",
    "{{ {'a': {'b': 1}}['a']['b'] }}{{ '}}' }}{{ '%}' }}{% set q = '{% x %}' %}{{ q }}",
    "{% set messages = [{'role': 'user'}, {'role': 'assistant'}] %}{% for m in messages[::-1] %}{{ m.role }}"
    "{{ loop.index0 }}{% endfor %}{{ messages[-1]['role'] }}{{ messages[1:] | length }}",
    "{% for i in range(3) %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% set x = [] %}{% for i in range(2) %}{% set x = x + [i] %}{% endfor %}{{ x }}",
    "{% print n %}{% print 'a' ~ 'b' %}",
    "{%if n%}tight{%endif%}{{n}}{{-n-}}",
    "{% for a in [1,2] %}{% set outer = loop %}{% for b in [3,4] %}{{ outer.index }}{{ loop.index }} {% endfor %}"
    "{% endfor %}",
    "{{ raise_exception('Only user and assistant') }}",
    "{% if n > 3 %}{{ raise_exception('n is ' + n | string) }}{% endif %}",
    "{% if no %}{{ n | nofilter }}{{ n is notest }}{% endif %}ok", "{% if yes %}{{ n | nofilter }}{% endif %}",
    "{{ n | nofilter }}", "{{ n is notest }}", "{% notag %}", "{{ n", "{% if n %}", "{% endif %}", "{{ 'open }}",
    "{% for %}{% endfor %}", "{{ (1 }}", "{{ 1 + }}", "{# open", "{% raw %}x", "{{ }}", "{{ a b }}", "{% set 1 = 2 %}",
    "{% break %}", "{{ n is odd is even }}", "{% set n.a = 1 %}",
]
