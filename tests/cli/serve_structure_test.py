"""millrace serve: answers constrained to a schema, tool calls, biases and penalties."""
import json

import driver
from beginnings import Beginning
from serving import CHAT, START, Shared

PATH = "/v1/chat/completions"
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "age", "tags"],
          "properties": {"name": {"type": "string", "maxLength": 6},
                         "age": {"type": "integer", "minimum": 0, "maximum": 150},
                         "tags": {"type": "array", "maxItems": 3,
                                  "items": {"enum": ["red", "green", None, 7]}},
                         "when": {"type": "string", "format": "date"}}}
PLACE = {"type": "object", "properties": {"place": {"enum": ["hill", "lake"]}},
         "required": ["place"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "walk", "description": "Go.",
                                           "parameters": PLACE}},
         {"type": "function", "function": {"name": "stay"}}]
CLAUDE_TOOLS = [{"name": "walk", "description": "Go.", "input_schema": PLACE},
                {"name": "stay", "input_schema": {"type": "object", "properties": {}}}]


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


class Structure(Shared):
    arguments = ("--sequences", 8, "--log", "none")

    def chat(self, **more):
        return self.server.ok(PATH, {"messages": CHAT, "max_tokens": 120, "seed": 1, **more})

    def check_fits(self, text):
        value = json.loads(text)
        self.assertLessEqual({"name", "age", "tags"}, set(value))
        self.check_members(value)

    def check_members(self, value):
        self.assertLessEqual(set(value), {"name", "age", "tags", "when"})
        self.assertLessEqual(len(value.get("name", "")), 6, value)
        self.assertIn(value.get("age", 0), range(151), value)
        self.assertTrue(all(tag in ("red", "green", None, 7) for tag in value.get("tags", ())), value)
        self.assertLessEqual(len(value.get("tags", ())), 3)

    def check_calls(self, message, cut=False):
        """The names of its calls, after checking their arguments; the last call may be incomplete
        if the text was cut off."""
        calls = [call["function"] for call in message.get("tool_calls", ())]
        for i, call in enumerate(calls):
            made = Beginning(call["arguments"])
            self.assertTrue(made.whole or (cut and i + 1 == len(calls)), calls)
            arguments = made.value or {}
            self.assertLessEqual(set(arguments), {"place"} if call["name"] == "walk" else set())
            self.assertIn(arguments.get("place", "hill"), ("hill", "lake"))
            if made.whole and call["name"] == "walk":
                self.assertIn("place", arguments)
        if not calls:  # a list cut off before its first call is text
            self.assertTrue(cut)
            Beginning(message["content"])
        return {call["name"] for call in calls}

    def test_schemas(self):
        for seed in range(6):
            whole = self.chat(response_format=schema_format(SCHEMA), seed=seed, n=3)
            for choice in whole["choices"]:
                self.assertEqual(choice["finish_reason"], "stop")
                self.check_fits(choice["message"]["content"])
            text = whole["choices"][0]["message"]["content"]
            for tokens in (1, 2, 3, 5, 8, 13):
                [cut] = self.chat(response_format=schema_format(SCHEMA), seed=seed,
                                  max_tokens=tokens)["choices"]
                self.assertEqual(cut["finish_reason"], "length")
                begun = cut["message"]["content"]
                self.assertTrue(begun and text.startswith(begun), (begun, text))
                self.check_members(Beginning(begun).value)
        # Choice i has seed + i, constrained or not.
        self.assertEqual(self.chat(response_format=schema_format(SCHEMA), seed=7)["choices"][0],
                         {**whole["choices"][2], "index": 0})
        cold = self.chat(response_format=schema_format(SCHEMA), temperature=0)
        self.check_fits(cold["choices"][0]["message"]["content"])
        events = self.server.events(PATH, {
            "messages": CHAT, "max_tokens": 120, "seed": 5, "stream": True,
            "response_format": schema_format(SCHEMA)})[:-1]
        deltas = [json.loads(data)["choices"][0] for _, data in events]
        self.assertEqual("".join(d["delta"].get("content", "") for d in deltas),
                         whole["choices"][0]["message"]["content"])
        self.assertEqual(deltas[-1]["finish_reason"], "stop")

    def test_json_objects(self):
        cut = 0
        for seed in range(6):
            made = self.chat(response_format={"type": "json_object"}, seed=seed)["choices"][0]
            self.assertTrue(made["message"]["content"].startswith("{"))
            if made["finish_reason"] == "stop":
                self.assertIsInstance(json.loads(made["message"]["content"]), dict)
            else:
                cut += 1
                self.assertEqual(made["finish_reason"], "length")
                self.assertIsInstance(Beginning(made["message"]["content"]).value, dict)
        self.assertLess(cut, 6)
        for seed in range(6):
            made = self.chat(response_format={"type": "json_object"}, seed=seed, max_tokens=9)
            self.assertIsInstance(Beginning(made["choices"][0]["message"]["content"]).value, dict)
        text = self.chat(response_format={"type": "text"}, max_tokens=8)["choices"][0]["message"]
        self.assertEqual(text, self.chat(max_tokens=8)["choices"][0]["message"])

    def test_the_text_does_not_feel_others(self):
        asked = {"response_format": schema_format(SCHEMA), "logprobs": False}
        alone = self.chat(**asked)["choices"][0]["message"]
        long = self.server.connection()
        long.request("POST", "/v1/completions", json.dumps({
            "prompt": START, "max_tokens": 400, "ignore_eos": True, "n": 4}))
        self.assertEqual(self.chat(**asked)["choices"][0]["message"], alone)
        self.assertEqual(long.getresponse().status, 200)
        long.close()

    def test_logprobs_of_bound_texts(self):
        made = self.chat(response_format=schema_format(PLACE), logprobs=True,
                         top_logprobs=2)["choices"][0]
        plain = self.chat(response_format=schema_format(PLACE))["choices"][0]
        self.assertEqual(made["message"], plain["message"])
        self.assertEqual("".join(t["token"] for t in made["logprobs"]["content"]),
                         made["message"]["content"])

    def test_tool_calls(self):
        asked = {"tools": TOOLS, "tool_choice": "required"}
        names = set()
        for seed in range(8):
            made = self.chat(**asked, seed=seed)["choices"][0]
            if made["finish_reason"] == "length":  # many calls
                names |= self.check_calls(made["message"], cut=True)
            else:
                self.assertEqual((made["finish_reason"], made["message"]["content"]),
                                 ("tool_calls", None))
                names |= self.check_calls(made["message"])
            for tokens in (4, 12, 20, 28):
                [cut] = self.chat(**asked, seed=seed, max_tokens=tokens)["choices"]
                self.check_calls(cut["message"], cut=cut["finish_reason"] == "length")
        self.assertLessEqual(names, {"walk", "stay"})
        self.assertTrue(names)
        named = {"type": "function", "function": {"name": "walk"}}
        whole = self.chat(tools=TOOLS, tool_choice=named)["choices"][0]
        [call] = whole["message"]["tool_calls"]
        self.assertEqual(call["function"]["name"], "walk")
        events = self.server.events(PATH, {
            "messages": CHAT, "max_tokens": 120, "seed": 1, "stream": True, "tools": TOOLS,
            "tool_choice": named})[:-1]
        deltas = [json.loads(data)["choices"][0] for _, data in events]
        pieces = [d["delta"]["tool_calls"][0] for d in deltas if "tool_calls" in d["delta"]]
        self.assertEqual((pieces[0]["type"], pieces[0]["function"]),
                         ("function", {"name": "walk", "arguments": ""}))
        self.assertRegex(pieces[0]["id"], "^[0-9A-Za-z]{9}$")
        self.assertEqual({p["index"] for p in pieces}, {0})
        self.assertEqual("".join(p["function"]["arguments"] for p in pieces),
                         call["function"]["arguments"])
        self.assertEqual("".join(d["delta"].get("content") or "" for d in deltas), "")
        self.assertEqual(deltas[-1]["finish_reason"], "tool_calls")

    def test_a_text_beside_tools(self):
        # The first token of a call is banned, so that the answer is text.
        bans = {str(self.server.ok("/tokenize", {"content": "a" + begin})["tokens"][-1]): -100
                for begin in "{["}
        made = self.chat(tools=TOOLS, max_tokens=10, logit_bias=bans)["choices"][0]
        self.assertNotIn("tool_calls", made["message"])
        self.assertTrue(made["message"]["content"])
        events = self.server.events(PATH, {
            "messages": CHAT, "max_tokens": 10, "seed": 1, "stream": True, "tools": TOOLS,
            "logit_bias": bans})[:-1]
        self.assertEqual("".join(json.loads(data)["choices"][0]["delta"].get("content", "")
                                 for _, data in events), made["message"]["content"])
        none = self.chat(tools=TOOLS, tool_choice="none", max_tokens=10)["choices"][0]
        self.assertEqual(none["message"], self.chat(max_tokens=10)["choices"][0]["message"])

    def test_a_format_beside_tools(self):
        asked = {"tools": TOOLS, "response_format": schema_format(SCHEMA)}
        texts = 0
        for seed in range(8):
            made = self.chat(**asked, seed=seed)["choices"][0]
            if made["finish_reason"] == "stop":
                self.check_fits(made["message"]["content"])
                texts += 1
            elif made["finish_reason"] == "tool_calls":
                self.check_calls(made["message"])
            events = self.server.events(PATH, {
                "messages": CHAT, "max_tokens": 120, "seed": seed, "stream": True, **asked})[:-1]
            self.assertEqual("".join(json.loads(data)["choices"][0]["delta"].get("content", "")
                                     for _, data in events), made["message"]["content"] or "")
        self.assertTrue(texts)
        # An answer that begins with a bracket can only be a list of calls.
        brace = self.server.ok("/tokenize", {"content": "a{"})["tokens"][-1]
        made = self.chat(**asked, logit_bias={str(brace): -100})["choices"][0]
        self.check_calls(made["message"], cut=made["finish_reason"] == "length")

    def test_fields_of_other_servers(self):
        for seed in range(4):
            for field in ({"guided_choice": ["hill", "lake"]}, {"guided_regex": "hill|lake"},
                          {"structured_outputs": {"choice": ["hill", "lake"]}},
                          {"structured_outputs": {"regex": "(hill|lake)"}}):
                made = self.chat(**field, seed=seed)["choices"][0]
                self.assertIn(made["message"]["content"], ("hill", "lake"))
                self.assertEqual(made["finish_reason"], "stop")
            for field in ({"guided_json": PLACE}, {"guided_json": json.dumps(PLACE)},
                          {"json_schema": PLACE}, {"structured_outputs": {"json": PLACE}},
                          {"response_format": {"type": "json_object", "schema": PLACE}}):
                made = self.server.ok("/v1/completions", {
                    "prompt": START, "max_tokens": 40, "seed": seed, **field})["choices"][0]
                self.assertIn(json.loads(made["text"])["place"], ("hill", "lake"))

    def test_conversations_with_tools(self):
        call = {"id": "a1", "type": "function", "function": {
            "name": "walk", "arguments": "{\"place\": \"hill\"}"}}
        talk = [*CHAT, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "a1", "content": "It was dark."}]
        prompt = self.server.ok("/apply-template", {"messages": talk, "tools": TOOLS})["prompt"]
        for part in ("{\"name\": \"walk\", \"arguments\": {\"place\":\"hill\"}}",
                     "Result of walk:\nIt was dark.", "\"description\":\"Go.\""):
            self.assertIn(part, prompt)
        claude = [*CHAT, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "a1", "name": "walk", "input": {"place": "hill"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a1",
                                          "content": [{"type": "text", "text": "It was dark."}]}]}]
        made = self.server.ok("/v1/messages", {"messages": claude, "max_tokens": 8, "seed": 1})
        same = self.server.ok(PATH, {"messages": talk, "max_tokens": 8, "seed": 1})
        self.assertEqual(made["content"][0]["text"], same["choices"][0]["message"]["content"])

    def test_messages_with_tools(self):
        asked = {"messages": CHAT, "max_tokens": 120, "seed": 1, "tools": CLAUDE_TOOLS,
                 "tool_choice": {"type": "tool", "name": "walk"}}
        whole = self.server.ok("/v1/messages", asked)
        self.assertEqual(whole["stop_reason"], "tool_use")
        [block] = whole["content"]
        self.assertEqual((block["type"], block["name"]), ("tool_use", "walk"))
        events = [json.loads(data) for _, data in self.server.events("/v1/messages",
                                                                     {**asked, "stream": True})]
        begin = [e for e in events if e["type"] == "content_block_start"]
        self.assertEqual([(e["content_block"]["type"], e["content_block"]["input"])
                          for e in begin], [("tool_use", {})])
        self.assertEqual(json.loads("".join(e["delta"]["partial_json"] for e in events
                                            if e["type"] == "content_block_delta")), block["input"])
        self.assertEqual(events[-2]["delta"]["stop_reason"], "tool_use")
        self.assertEqual(self.server.ok("/v1/messages/count_tokens", {
            "messages": CHAT, "tools": CLAUDE_TOOLS, "tool_choice": asked["tool_choice"]})[
                "input_tokens"], whole["usage"]["input_tokens"])

    def test_biases_and_penalties(self):
        def text(**more):
            return self.server.ok("/v1/completions", {
                "prompt": START, "max_tokens": 12, "temperature": 0, "ignore_eos": True,
                **more})["choices"][0]["text"]

        def tokens(found):
            return self.server.ok("/tokenize", {"content": found})["tokens"]

        plain = text()
        cat = self.server.ok("/tokenize", {"content": " cat"})["tokens"][-1]
        forced = text(logit_bias={str(cat): 100})
        self.assertEqual(forced, self.server.ok("/detokenize", {"tokens": [cat] * 12})["content"])
        first = tokens(plain)[0]
        self.assertNotEqual(tokens(text(logit_bias={str(first): -100}))[0], first)
        # How often a token occurs in a greedy text.
        def most(**more):
            drawn = self.server.ok("/v1/completions", {
                "prompt": START, "max_tokens": 80, "temperature": 0, "ignore_eos": True,
                "logprobs": 0, **more})["choices"][0]["logprobs"]["tokens"]
            return max(drawn.count(token) for token in set(drawn))

        for penalty in ("presence_penalty", "frequency_penalty"):
            self.assertNotEqual(text(max_tokens=80, **{penalty: 2}), text(max_tokens=80), penalty)
        self.assertGreater(most(frequency_penalty=-2), 2 * most())
        # A bias repeats a token until the penalty outweighs it.
        self.assertEqual(most(logit_bias={str(cat): 30}), 80)
        self.assertEqual(most(logit_bias={str(cat): 30}, presence_penalty=2), 80)
        self.assertLess(most(logit_bias={str(cat): 30}, frequency_penalty=2), 40)
        self.assertEqual(text(presence_penalty=0, frequency_penalty=0, logit_bias={}), plain)
        self.assertEqual(text(logit_bias={str(cat): 0}), plain)

    def test_bans_give_way_to_schemas(self):
        brace = self.server.ok("/tokenize", {"content": "a{"})["tokens"][-1]
        made = self.chat(response_format=schema_format(PLACE), logit_bias={str(brace): -100})
        self.assertIn(json.loads(made["choices"][0]["message"]["content"])["place"],
                      ("hill", "lake"))

    def test_what_is_wrong_is_named(self):
        for more, param in (
                ({"logit_bias": {"x": 1}}, "logit_bias"), ({"logit_bias": {"-1": 1}}, "logit_bias"),
                ({"logit_bias": {"4096": 1}}, "logit_bias"), ({"logit_bias": {"07": 1}}, "logit_bias"),
                ({"logit_bias": {"7": 101}}, "logit_bias"), ({"logit_bias": {"7": "a"}}, "logit_bias"),
                ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
                ({"presence_penalty": 3}, "presence_penalty"),
                ({"frequency_penalty": "a"}, "frequency_penalty"),
                ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
                ({"response_format": schema_format({"type": "object", "properties": {
                    "x": {"type": "string", "pattern": "(?=a)"}}})},
                 "response_format.json_schema.schema.properties.x.pattern"),
                ({"response_format": schema_format({"not": {}})},
                 "response_format.json_schema.schema.not"),
                ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
                ({"response_format": schema_format({"type": "object", "additionalProperties": True}),
                  "tools": TOOLS}, "response_format.json_schema.schema"),
                ({"tools": [{}]}, "tools.0.type"), ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
                ({"tools": TOOLS * 65}, "tools"), ({"tool_choice": "required"}, "tool_choice"),
                ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice"),
                ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
                 "tool_choice.function.name")):
            self.refused(400, PATH, {"messages": CHAT, **more}, param)
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}
        for message, param in (
                ({"role": "tool", "content": "a"}, "messages[0].tool_call_id"),
                ({"role": "assistant", "tool_calls": [call]},
                 "messages[0].tool_calls[0].function.arguments"),
                ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
                ({"role": "assistant", "tool_calls": []}, "messages[0].content")):
            self.refused(400, PATH, {"messages": [message]}, param)
        for more, param in (
                ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
                ({"tools": [{"type": "web_search_20250305", "name": "f"}]}, "tools.0.type"),
                ({"tools": CLAUDE_TOOLS, "tool_choice": {"type": "x"}}, "tool_choice.type"),
                ({"tools": CLAUDE_TOOLS, "tool_choice": {"type": "tool", "name": "x"}},
                 "tool_choice.name"),
                ({"tool_choice": {"type": "any"}}, "tool_choice"),
                ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]},
                 "messages[0].content[0]")):
            self.refused(400, "/v1/messages", {"messages": CHAT, "max_tokens": 3, **more}, param)


class Beginnings(driver.CliTest):
    """The check of cut-off texts can fail."""

    def test_what_begins_json(self):
        whole = '{"a": [1, -2.5e+3, true, null, "x\\u00e9\\n"], "b": {"c": {}}, "d": []} '
        for end in range(len(whole) + 1):
            made = Beginning(whole[:end])
            self.assertEqual(made.whole, end >= len(whole) - 1, whole[:end])
        self.assertEqual(made.value, json.loads(whole))
        self.assertEqual(Beginning('{"a": [1, 2, tr').value, {"a": [1, 2]})
        self.assertEqual(Beginning('{"a": "b", "c": "d').value, {"a": "b"})
        self.assertEqual(Beginning("[12, 13").value, [12])
        for text in ("}", "{]", "{a", '{"a" 1', '{"a",', '{"a":}', '{"a":1,}', "[1 2", "[,", "[1,]", "tru ",
                     "trx", "01", "-a", "1.e", "--", '"\n', '"\\x', '"\\u00g', "{} x", "nul}"):
            with self.assertRaises(ValueError, msg=text):
                Beginning(text)


class Tagged(Shared):
    """A template that lists tools, and asks for <tool_call> around calls."""
    arguments = ("--sequences", 4, "--log", "none", "--chat-template",
                 driver.REFERENCE / "templates" / "qwen3.jinja")

    def test_calls(self):
        asked = {"messages": CHAT, "tools": TOOLS, "max_tokens": 80, "seed": 1,
                 "parallel_tool_calls": False}
        prompt = self.server.ok("/apply-template", {"messages": CHAT, "tools": TOOLS})["prompt"]
        self.assertIn("<tools>\n{\"type\": \"function\"", prompt)
        for choice in ("required", {"type": "function", "function": {"name": "walk"}}):
            whole = self.server.ok(PATH, {**asked, "tool_choice": choice})["choices"][0]
            self.assertEqual((whole["finish_reason"], whole["message"]["content"]),
                             ("tool_calls", None))
            calls = whole["message"]["tool_calls"]
            events = self.server.events(PATH, {**asked, "tool_choice": choice, "stream": True})[:-1]
            found = [""] * len(calls)
            for _, data in events:
                delta = json.loads(data)["choices"][0]["delta"]
                self.assertFalse(delta.get("content"))
                for call in delta.get("tool_calls", ()):
                    found[call["index"]] += call["function"]["arguments"]
            self.assertEqual(found, [call["function"]["arguments"] for call in calls])
        # The next turn, with calls and results as the template writes them.
        talk = [*CHAT, {**whole["message"], "role": "assistant"},
                {"role": "tool", "tool_call_id": calls[0]["id"], "content": "dark <|im_end|>"}]
        prompt = self.server.ok("/apply-template", {"messages": talk})["prompt"]
        self.assertIn("<tool_call>\n{\"name\": \"walk\", \"arguments\": {\"place\": ", prompt)
        self.assertIn("<tool_response>\ndark <|im_end|>\n</tool_response>", prompt)

    def test_texts(self):
        asked = {"messages": CHAT, "tools": TOOLS, "max_tokens": 30, "seed": 1}
        whole = self.server.ok(PATH, asked)["choices"][0]["message"]
        events = self.server.events(PATH, {**asked, "stream": True})[:-1]
        deltas = [json.loads(data)["choices"][0]["delta"] for _, data in events]
        self.assertEqual("".join(d.get("content") or "" for d in deltas), whole["content"])
        self.assertNotIn("tool_calls", whole)


if __name__ == "__main__":
    driver.main()
