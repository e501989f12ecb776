"""Common clients against a server with the bundled storyteller: openai, anthropic, LangChain, curl.
Only the form of the texts is tested, not their content."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
from typing import Literal

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from serving import START, Server  # noqa: E402

import anthropic  # noqa: E402
import openai  # noqa: E402
from langchain_core.messages import HumanMessage, ToolMessage  # noqa: E402
from langchain_openai import ChatOpenAI, OpenAIEmbeddings  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402

MODEL = "storyteller"
TALK = [{"role": "user", "content": "Tell me of a cat."}]
PLACE = {"type": "object", "properties": {"place": {"enum": ["hill", "lake"]}},
         "required": ["place"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "walk", "description": "Go.",
                                           "parameters": PLACE}}]
CLAUDE_TOOLS = [{"name": "walk", "description": "Go.", "input_schema": PLACE}]


class Cat(BaseModel):
    name: str = Field(max_length=8)
    mood: Literal["happy", "sad"]
    age: int = Field(ge=0, le=20)


class Attempts:
    """Times of a client's requests and answers, what it was told, and how long it chose to wait."""

    def __init__(self, refused):
        self.asked, self.answered, self.chosen = [], [], []
        self.refused = refused  # called when it is
        self.hooks = {"request": [lambda _: self.asked.append(time.monotonic())],
                      "response": [self.answer]}

    def answer(self, response):
        if response.status_code == 429:
            self.refused()
        self.answered.append((time.monotonic(), response.status_code,
                              float(response.headers.get("retry-after-ms", "nan")) / 1000))

    def watch(self):
        """Notes what this thread's client gives to time.sleep()."""
        sleep, own = time.sleep, threading.current_thread()

        def noted(seconds):
            if threading.current_thread() is own:
                self.chosen.append(seconds)
            sleep(seconds)

        return unittest.mock.patch("time.sleep", noted)


class ClientTest(unittest.TestCase):
    arguments = ("--sequences", 8, "--log", "none")

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.arguments)
        cls.url = f"http://{cls.server.host}:{cls.server.port}"

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        if code != 0:
            raise AssertionError(f"exit code {code}: {b''.join(cls.server.err)!r}")

    def openai(self, **more):
        more = {"api_key": "none", "max_retries": 0, "timeout": 30, **more}
        client = openai.OpenAI(base_url=self.url + "/v1", **more)
        self.addCleanup(client.close)
        return client

    def anthropic(self, **more):
        more = {"api_key": "none", "max_retries": 0, "timeout": 30, **more}
        client = anthropic.Anthropic(base_url=self.url, **more)
        self.addCleanup(client.close)
        return client


class OpenAi(ClientTest):
    def setUp(self):
        self.client = self.openai()
        self.chat = self.client.chat.completions

    def test_chat(self):
        asked = {"model": MODEL, "messages": TALK, "max_completion_tokens": 12, "seed": 1}
        whole = self.chat.create(**asked)
        text = whole.choices[0].message.content
        self.assertTrue(text)
        self.assertEqual(whole.usage.total_tokens,
                         whole.usage.prompt_tokens + whole.usage.completion_tokens)
        with self.chat.create(**asked, stream=True,
                              stream_options={"include_usage": True}) as stream:
            chunks = list(stream)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), text)
        self.assertEqual(chunks[-1].usage, whole.usage)
        self.assertEqual([m.id for m in self.client.models.list()], [MODEL])
        many = self.chat.create(**asked, n=3, logprobs=True, top_logprobs=2).choices
        self.assertEqual(many[0].message.content, text)
        self.assertEqual(len(many[2].logprobs.content[0].top_logprobs), 2)
        old = self.client.completions.create(model=MODEL, prompt=START, max_tokens=5, echo=True)
        self.assertTrue(old.choices[0].text.startswith(START))

    def test_sampling(self):
        asked = {"model": MODEL, "messages": TALK, "max_completion_tokens": 8, "temperature": 0}
        plain = self.chat.create(**asked).choices[0].message.content
        ids = self.server.ok("/tokenize", {"content": " cat"})["tokens"]
        forced = self.chat.create(**asked, logit_bias={str(ids[0]): 100}).choices[0].message
        self.assertEqual(forced.content, self.server.ok("/detokenize", {
            "tokens": [ids[0]] * 8})["content"])
        self.assertNotEqual(forced.content, plain)
        other = self.chat.create(**asked, logit_bias={str(ids[0]): 100}, frequency_penalty=2,
                                 presence_penalty=2)
        self.assertTrue(other.choices[0].message.content)

    def test_prompts_have_logprobs(self):
        ids = self.server.ok("/tokenize", {"content": START})["tokens"]
        made = self.client.completions.create(
            model=MODEL, prompt=ids, max_tokens=0, echo=True, logprobs=1,
            extra_body={"prompt_logprobs": 0}).choices[0]
        self.assertEqual((made.text, len(made.logprobs.tokens)), (START, len(ids)))
        self.assertEqual(made.logprobs.token_logprobs[0], None)
        self.assertEqual([entry[str(id)]["logprob"] for id, entry in zip(ids, made.prompt_logprobs)
                          if entry], made.logprobs.token_logprobs[1:])

    def test_schema(self):
        asked = {"model": MODEL, "messages": TALK, "max_completion_tokens": 100}
        for seed in range(4):
            made = self.chat.parse(**asked, response_format=Cat, seed=seed).choices[0]
            self.assertIsInstance(made.message.parsed, Cat)
            self.assertEqual(made.finish_reason, "stop")
        with self.chat.stream(**asked, response_format=Cat, seed=5) as stream:
            for _ in stream:
                pass
            self.assertIsInstance(stream.get_final_completion().choices[0].message.parsed, Cat)
        plain = self.chat.create(**asked, n=3, seed=1, response_format={
            "type": "json_schema", "json_schema": {"name": "place", "schema": PLACE}})
        for choice in plain.choices:
            self.assertIn(json.loads(choice.message.content)["place"], ("hill", "lake"))

    def test_tools(self):
        asked = {"model": MODEL, "messages": TALK, "tools": TOOLS, "max_completion_tokens": 100,
                 "seed": 1, "parallel_tool_calls": False}
        for choice in ("required", {"type": "function", "function": {"name": "walk"}}):
            made = self.chat.create(**asked, tool_choice=choice).choices[0]
            self.assertEqual((made.finish_reason, made.message.content), ("tool_calls", None))
            [call] = made.message.tool_calls
            self.assertEqual((call.type, call.function.name), ("function", "walk"))
            self.assertIn(json.loads(call.function.arguments)["place"], ("hill", "lake"))
        with self.chat.stream(**asked, tool_choice=choice) as stream:
            pieces = [e for e in stream if e.type == "tool_calls.function.arguments.delta"]
            final = stream.get_final_completion().choices[0]
        self.assertEqual("".join(p.arguments_delta for p in pieces), call.function.arguments)
        self.assertEqual((final.finish_reason, final.message.tool_calls[0].function.arguments),
                         ("tool_calls", call.function.arguments))
        talk = [*TALK, made.message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": call.id, "content": "It was dark."}]
        after = self.chat.create(**{**asked, "messages": talk}, tool_choice="none").choices[0]
        self.assertIsNone(after.message.tool_calls)
        self.assertTrue(after.message.content)
        free = self.chat.create(**asked, tool_choice="auto").choices[0].message
        self.assertTrue(free.content or free.tool_calls)

    def test_embeddings(self):
        packed = self.client.embeddings.create(model=MODEL, input=["The cat", START])  # base64
        plain = self.client.embeddings.create(model=MODEL, input=["The cat", START],
                                              encoding_format="float")
        for a, b in zip(packed.data, plain.data):
            self.assertLess(max(abs(x - y) for x, y in zip(a.embedding, b.embedding)), 1e-6)
            self.assertAlmostEqual(sum(x * x for x in a.embedding), 1, places=4)
        ids = self.server.ok("/tokenize", {"content": START, "add_special": True})["tokens"]
        same = self.client.embeddings.create(model=MODEL, input=[ids], encoding_format="float")
        self.assertEqual(same.data[0].embedding, plain.data[1].embedding)

    def test_errors(self):
        def fails(kind, param, **more):
            asked = {"model": MODEL, "messages": TALK, "max_completion_tokens": 2, **more}
            with self.assertRaises(kind) as caught:
                self.chat.create(**asked)
            self.assertEqual(caught.exception.param, param)

        bad = openai.BadRequestError
        fails(bad, "temperature", temperature=-1)
        fails(bad, "logit_bias", logit_bias={"99999999": 1})
        fails(bad, "response_format.json_schema.schema.properties.x.type", response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": {
                "type": "object", "properties": {"x": {"type": "number of sheep"}}}}})
        fails(bad, "tool_choice", tool_choice="required")
        fails(bad, "messages[0].role", messages=[{"role": "cat", "content": "Mew"}])
        fails(openai.NotFoundError, "model", model="gpt-4")
        fails(bad, "messages", messages=[{"role": "user", "content": "word " * 4000}])


class Claude(ClientTest):
    def setUp(self):
        self.client = self.anthropic()
        self.messages = self.client.messages

    def test_chat(self):
        asked = {"model": MODEL, "messages": TALK, "max_tokens": 12, "system": "Be kind.",
                 "extra_body": {"seed": 1}}
        whole = self.messages.create(**asked)
        self.assertEqual(whole.role, "assistant")
        self.assertIn(whole.stop_reason, ("end_turn", "max_tokens"))
        with self.messages.stream(**asked) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual((final.content[0].text, final.stop_reason), (text, whole.stop_reason))
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)
        count = self.messages.count_tokens(model=MODEL, messages=TALK, system="Be kind.")
        self.assertEqual(count.input_tokens, whole.usage.input_tokens)

    def test_tools(self):
        asked = {"model": MODEL, "messages": TALK, "tools": CLAUDE_TOOLS, "max_tokens": 100,
                 "extra_body": {"seed": 1}}
        for choice in ({"type": "any", "disable_parallel_tool_use": True},
                       {"type": "tool", "name": "walk"}):
            made = self.messages.create(**asked, tool_choice=choice)
            self.assertEqual(made.stop_reason, "tool_use")
            [block] = made.content
            self.assertEqual((block.type, block.name), ("tool_use", "walk"))
            self.assertIn(block.input["place"], ("hill", "lake"))
        with self.messages.stream(**asked, tool_choice=choice) as stream:
            for _ in stream:
                pass
            final = stream.get_final_message()
        self.assertEqual((final.content[0].input, final.stop_reason), (block.input, "tool_use"))
        talk = [*TALK, {"role": "assistant", "content": [block.model_dump()]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id,
                                              "content": "It was dark."}]}]
        after = self.messages.create(**{**asked, "messages": talk}, tool_choice={"type": "none"})
        self.assertEqual([b.type for b in after.content], ["text"])
        thought = {"type": "thinking", "thinking": "Where to?", "signature": "none"}
        talk[1]["content"].insert(0, thought)
        same = self.messages.create(**{**asked, "messages": talk}, tool_choice={"type": "none"})
        self.assertEqual(same.content, after.content)
        count = self.messages.count_tokens(model=MODEL, messages=TALK, tools=CLAUDE_TOOLS)
        self.assertGreater(count.input_tokens,
                           self.messages.count_tokens(model=MODEL, messages=TALK).input_tokens)

    def test_schema(self):
        form = {"type": "json_schema", "schema": PLACE}
        made = self.messages.create(model=MODEL, messages=TALK, max_tokens=100, extra_body={
            "output_config": {"format": form, "effort": "low"}})
        self.assertIn(json.loads(made.content[0].text)["place"], ("hill", "lake"))

    def test_errors(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.messages.create(model=MODEL, messages=TALK, max_tokens=2,
                                 extra_body={"temperature": -1})
        self.assertEqual(caught.exception.body["error"]["param"], "temperature")
        with self.assertRaises(anthropic.NotFoundError):
            self.messages.create(model="claude", messages=TALK, max_tokens=2)


class LangChain(ClientTest):
    def setUp(self):
        self.model = ChatOpenAI(base_url=self.url + "/v1", api_key="none", model=MODEL, seed=1,
                                max_retries=0, max_tokens=100)

    def test_chat(self):
        model = self.model.bind(max_tokens=12)
        whole = model.invoke("Tell me of a cat.")
        self.assertTrue(whole.content)
        self.assertEqual("".join(c.content for c in model.stream("Tell me of a cat.")), whole.content)
        self.assertEqual(whole.usage_metadata["output_tokens"], 12)

    def test_tools(self):
        called = self.model.bind_tools(TOOLS, tool_choice="walk").invoke("Go.")
        [call] = called.tool_calls
        self.assertEqual((call["name"], set(call["args"])), ("walk", {"place"}))
        streamed = None
        for chunk in self.model.bind_tools(TOOLS, tool_choice="any").stream("Go."):
            streamed = chunk if streamed is None else streamed + chunk
        self.assertIn(streamed.tool_calls[0]["args"]["place"], ("hill", "lake"))
        after = self.model.invoke([HumanMessage("Go."), called,
                                   ToolMessage("It was dark.", tool_call_id=call["id"])])
        self.assertTrue(after.content)

    def test_schema(self):
        for method in ("json_schema", "function_calling"):
            made = self.model.with_structured_output(Cat, method=method).invoke("A cat.")
            self.assertIsInstance(made, Cat, method)

    def test_embeddings(self):
        # Without its own token count, for which it would download a tokenizer.
        embeddings = OpenAIEmbeddings(base_url=self.url + "/v1", api_key="none", model=MODEL,
                                      check_embedding_ctx_length=False)
        one, two = embeddings.embed_documents(["The cat", START])
        self.assertEqual(len(one), len(two))
        self.assertLess(max(abs(a - b) for a, b in zip(embeddings.embed_query(START), two)), 1e-6)


class Busy(ClientTest):
    """A server without room: clients come again when it says so."""
    arguments = ("--sequences", 1, "--queue", 1, "--log", "none")

    def setUp(self):
        """Sends more texts than there is room for, until the event is set."""
        self.enough = threading.Event()
        threads = [threading.Thread(target=self.fill) for _ in range(4)]
        for thread in threads:
            thread.start()
            self.addCleanup(thread.join)
        self.addCleanup(self.enough.set)

    def fill(self):
        while not self.enough.wait(0.01):
            self.server.ask("/v1/completions", {"prompt": START, "max_tokens": 400,
                                                "ignore_eos": True})

    def until(self, what):
        """The final result: there may be room by then."""
        for _ in range(100):
            found = what()
            if found:
                return found
        self.fail("the queue is never full")

    def refusal(self, kind, ask):
        try:
            ask()
        except kind as refused:
            return refused
        return None

    def check(self, attempts):
        """It asked again when the server had said, and not before. How much later it does is this
        machine's doing: what it chose to wait is compared instead."""
        *refused, (_, status, _) = attempts.answered
        self.assertEqual(status, 200)
        for (then, status, wait), again in zip(refused, attempts.asked[1:]):
            self.assertEqual(status, 429)
            self.assertGreater(again - then, wait - 0.05)
        self.assertEqual(attempts.chosen, [wait for _, _, wait in refused])

    def test_openai_waits(self):
        asked = {"model": MODEL, "prompt": START, "max_tokens": 1}
        client = self.openai()
        refused = self.until(lambda: self.refusal(
            openai.RateLimitError, lambda: client.completions.create(**asked)))
        self.assertEqual(refused.code, "queue_full")

        def patient():
            attempts = Attempts(self.enough.set)
            http = openai.DefaultHttpxClient(event_hooks=attempts.hooks)
            with attempts.watch():
                self.openai(max_retries=10, http_client=http).completions.create(**asked)
            return attempts if len(attempts.answered) > 1 else None

        self.check(self.until(patient))

    def test_anthropic_waits(self):
        asked = {"model": MODEL, "messages": TALK, "max_tokens": 1}
        client = self.anthropic()
        refused = self.until(lambda: self.refusal(
            anthropic.RateLimitError, lambda: client.messages.create(**asked)))
        self.assertEqual(refused.body["error"]["code"], "queue_full")

        def patient():
            attempts = Attempts(self.enough.set)
            http = anthropic.DefaultHttpxClient(event_hooks=attempts.hooks)
            with attempts.watch():
                self.anthropic(max_retries=10, http_client=http).messages.create(**asked)
            return attempts if len(attempts.answered) > 1 else None

        self.check(self.until(patient))


@unittest.skipUnless(shutil.which("curl"), "no curl")
class Curl(ClientTest):
    def curl(self, path, body, *more):
        data = [] if body is None else ["-d", json.dumps(body)]
        done = subprocess.run(
            ["curl", "-sS", "-N", "--max-time", "120", self.url + path, *data, *more],
            stdout=subprocess.PIPE, check=True)
        return done.stdout.decode()

    def test_curl(self):
        asked = {"messages": TALK, "max_tokens": 6, "seed": 1}
        whole = json.loads(self.curl("/v1/chat/completions", asked))
        text = whole["choices"][0]["message"]["content"]
        lines = self.curl("/v1/chat/completions", {**asked, "stream": True}).split("\n\n")
        self.assertEqual(lines[-2:], ["data: [DONE]", ""])
        deltas = [json.loads(line[len("data: "):])["choices"][0]["delta"] for line in lines[:-2]]
        self.assertEqual("".join(d.get("content", "") for d in deltas), text)
        called = json.loads(self.curl("/v1/chat/completions", {
            **asked, "max_tokens": 100, "tools": TOOLS, "tool_choice": "required"}))
        self.assertEqual(called["choices"][0]["finish_reason"], "tool_calls")
        refused = self.curl("/v1/chat/completions", {"messages": []}, "-w", "\n%{http_code}")
        body, status = refused.rsplit("\n", 1)
        self.assertEqual((status, json.loads(body)["error"]["param"]), ("400", "messages"))
        # A large body: curl first asks whether it may send it.
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"prompt": "a" * 3000000}, file)
            file.flush()
            long = self.curl("/v1/completions", None, "-d", "@" + file.name, "-w", "\n%{http_code}")
        self.assertEqual(long.rsplit("\n", 1)[1], "400")


if __name__ == "__main__":
    unittest.main(verbosity=2)
