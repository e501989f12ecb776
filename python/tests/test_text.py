"""Texts: the same as the program's, alone, streamed, in a batch and in a conversation."""
import asyncio
import json
import os
import shutil
import subprocess

import pytest

import millrace as mr
from conftest import DEVICE


@pytest.mark.parametrize("prompt, seed, words, options", [
    ("Once upon a time", 7, [], {}),
    ("", 3, ["--temp", "0"], {"temperature": 0}),
    ("One day", 11, ["--top-k", "5", "--top-p", "0.7", "--min-p", "0", "--repeat-penalty", "1.3"],
     {"top_k": 5, "top_p": 0.7, "min_p": 0, "repeat_penalty": 1.3}),
    ("The dog", 5, ["--stop", "."], {"stop": "."}),
    ("Ça va, 你好", 1, ["--ignore-eos"], {"ignore_eos": True}),
    ("Once", 2, ["--repeat-penalty", "1.2", "--repeat-last-n", "-1", "--min-tokens", "20", "--stop", "e"],
     {"repeat_penalty": 1.2, "repeat_window": -1, "min_tokens": 20, "stop": "e"}),
    ("Once", 4, ["--stop-id", "13", "--stop-id", "260"], {"stop_ids": (13, 260)}),
])
def test_texts_are_those_of_the_program(model, program, prompt, seed, words, options):
    said = json.loads(program("run", "-p", prompt, "-n", "60", "--seed", str(seed), "--json",
                              *words))
    text = model.generate(prompt, max_tokens=60, seed=seed, **options)
    assert (text, text.ids, text.stop_reason) == (said["text"], said["ids"], said["stop_reason"])
    assert text.prompt_tokens == said["prompt_tokens"]


def test_defaults_are_those_of_the_program(model, program):
    said = json.loads(program("run", "-p", "Once", "--seed", "2", "--json"))
    assert model.generate("Once", seed=2).ids == said["ids"]


def test_a_seed_that_is_drawn_makes_the_same_text_again(model):
    text = model.generate("Once", max_tokens=30)
    assert model.generate("Once", max_tokens=30, seed=text.seed) == text
    assert model.generate("Once", max_tokens=30).seed != text.seed


def test_a_text_is_a_str_with_confidence_and_logprobs(model):
    text = model.generate("Once upon a time", max_tokens=12, seed=1, logprobs=3)
    assert isinstance(text, str) and text.startswith(",")
    assert len(text.ids) == len(text.confidence) == len(text.logprobs) == 12
    plain = model.generate("Once upon a time", max_tokens=12, seed=1)
    assert plain == text and plain.logprobs == []
    for id, entry in zip(text.ids, text.logprobs):
        assert entry.id == id and entry.logprob <= 0 and len(entry.top) == 3
        assert [p for _, p in entry.top] == sorted((p for _, p in entry.top), reverse=True)


def test_prompts_may_be_ids_and_bytes(model):
    ids = model.tokenize("Once upon a time")
    expected = model.generate("Once upon a time", max_tokens=9, seed=4)
    assert model.generate(ids, max_tokens=9, seed=4) == expected
    assert model.generate(tuple(ids), max_tokens=9, seed=4) == expected
    assert model.generate(b"Once upon a time", max_tokens=9, seed=4) == expected


def test_max_tokens_of_none_and_of_all(model):
    nothing = model.generate("Once", max_tokens=0, seed=1)
    assert nothing == "" and nothing.ids == []
    text = model.generate("Once", max_tokens=-1, seed=1, ignore_eos=True)
    assert text.stop_reason == "context_full"
    assert len(text.ids) + text.prompt_tokens == model.info.context + 1


def test_a_stream_has_the_same_text(model):
    expected = model.generate("Once", max_tokens=80, seed=6)
    stream = model.stream("Once", max_tokens=80, seed=6)
    pieces = list(stream)
    assert len(pieces) > 1 and "".join(pieces) == expected
    assert stream.result == expected and stream.result.ids == expected.ids
    assert list(stream) == []


def test_a_stream_ends_when_it_is_closed_or_dropped(model):
    with model.stream("Once", max_tokens=-1, ignore_eos=True) as stream:
        next(stream)
    assert list(stream) == [] and stream.result is None
    for _ in range(3 * model.info.max_sequences):  # more than can be open at a time
        next(model.stream("Once", max_tokens=-1, ignore_eos=True))
    assert model.generate("Once", max_tokens=5, seed=1).stop_reason == "length"


def test_errors_of_a_stream_come_with_its_first_piece(model):
    with pytest.raises(mr.InputError, match="does not fit into the context of 512"):
        next(model.stream("Once " * 600))


def test_a_batch_has_the_texts_of_each_alone(model):
    prompts = ["Once upon a time", "One day", "", "The little dog", "Once upon a time"] * 8
    texts = model.generate_batch(prompts, max_tokens=40, seed=100)
    assert len(texts) == 40 > model.info.max_sequences
    for i in (0, 1, 2, 3, 4, 17, 39):
        alone = model.generate(prompts[i], max_tokens=40, seed=100 + i)
        assert (texts[i], texts[i].ids, texts[i].seed) == (alone, alone.ids, 100 + i)
    assert texts[0] != texts[4]
    assert model.generate_batch([]) == []


def test_one_bad_prompt_of_a_batch_ends_the_batch_alone(model):
    with pytest.raises(mr.InputError, match="context"):
        model.generate_batch(["Once", "Once " * 600, "Once"], max_tokens=20)
    assert len(model.generate("Once", max_tokens=3).ids) == 3


def test_async_streams_run_side_by_side(model):
    async def tell(seed):
        return "".join([piece async for piece in model.astream("Once", max_tokens=40, seed=seed)])

    async def all_of_them():
        return await asyncio.gather(*(tell(seed) for seed in range(6)))

    told = asyncio.run(all_of_them())
    assert told == [model.generate("Once", max_tokens=40, seed=seed) for seed in range(6)]


def test_an_async_stream_can_be_left(model):
    async def some():
        async for piece in model.astream("Once", max_tokens=-1, ignore_eos=True):
            return piece

    assert asyncio.run(some())
    assert len(model.generate("Once", max_tokens=3).ids) == 3


def test_chat_answers_as_the_program_does(model, program, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}{{ mark }} {{ m.content }}\n"
                        "{% endfor %}assistant:")
    said = subprocess.run(
        [os.environ["MILLRACE_BIN"], "chat", "--device", DEVICE, "--json", "--seed", "9", "-n", "25",
         "--system", "Tell stories.", "--chat-template", str(template), "--template-arg",
         'mark="!"'], input="Hello you\n", capture_output=True, text=True, check=True).stdout
    answer = model.chat([{"role": "system", "content": "Tell stories."},
                         {"role": "user", "content": "Hello you"}], seed=9, max_tokens=25,
                        template_file=template, template_args={"mark": "!"})
    expected = json.loads(said)
    assert answer == expected["content"] and answer.prompt_tokens == expected["prompt_tokens"]
    # Also the format of a model without a template, which chat has to be asked for.
    said = subprocess.run([os.environ["MILLRACE_BIN"], "chat", "--device", DEVICE, "--json",
                           "--chat-template", "plain", "--seed", "9", "-n", "25"], input="Hi\n", capture_output=True, text=True,
                          check=True).stdout
    assert model.chat([{"role": "user", "content": "Hi"}], seed=9,
                      max_tokens=25) == json.loads(said)["content"]


def test_variables_that_break_the_template_are_an_error(source, tmp_path):
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / "tests/reference/llama2" / name, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% if n is defined %}{{ n + 1 }}{% endif %}{{ messages[0].content }}")
    talk = [{"role": "user", "content": "Hi"}]
    with mr.Model(tmp_path, device="cpu", threads=1) as tiny:
        assert tiny.chat(talk, max_tokens=1).prompt_tokens > 0
        assert tiny.chat(talk, max_tokens=1, template_args={"n": 1}).prompt_tokens > 0
        with pytest.raises(mr.InputError, match="chat template: line 1"):
            tiny.chat(talk, max_tokens=1, template_args={"n": "a"})


def test_a_conversation_that_is_none(model):
    with pytest.raises(mr.UsageError, match="role"):
        model.chat([{"role": "captain", "content": "Hi"}])
    with pytest.raises(mr.InputError, match="no.jinja"):
        model.chat([{"role": "user", "content": "Hi"}], template_file="no.jinja")
