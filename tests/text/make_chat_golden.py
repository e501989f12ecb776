#!/usr/bin/env python3
"""Records the output of transformers' apply_chat_template for a few conversations.

usage: tests/text/make_chat_golden.py TEMPLATES TOKENIZER   (needs the Python package `transformers`)

TEMPLATES is a folder with the models' own chat templates as FORMAT.jinja (chatml, qwen2_5, llama2,
llama3, mistral, mistral_v1, mistral_v3, mistral_tekken), taken from their tokenizer_config.json;
TOKENIZER is any tokenizer.json. Writes tests/text/golden_chat.json, which holds the renderings and no
template. A conversation that a template refuses is left out for it.
"""
import glob
import json
import os
import sys

from transformers import PreTrainedTokenizerFast

SYSTEM = {"role": "system", "content": "Be brief."}
HI = {"role": "user", "content": "Hi"}
HELLO = {"role": "assistant", "content": "Hello!"}
CONVERSATIONS = [
    [HI],
    [SYSTEM, HI],
    [HI, HELLO, {"role": "user", "content": "Who are\nyou? \u65e5\u672c"}],
    [SYSTEM, HI, HELLO, {"role": "user", "content": "Bye"}],
    [HI, HELLO],
]


def main():
    cases = []
    for path in sorted(glob.glob(os.path.join(sys.argv[1], "*.jinja"))):
        name = os.path.splitext(os.path.basename(path))[0]
        bos, eos = ("<|begin_of_text|>", "<|eot_id|>") if name == "llama3" else ("<s>", "</s>")
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=sys.argv[2], bos_token=bos, eos_token=eos)
        with open(path, encoding="utf-8") as file:
            tokenizer.chat_template = file.read()
        for messages in CONVERSATIONS:
            # Later Mistral templates move the system message to the last question, which would make
            # every turn a new prompt; Qwen adds its own system message.
            users = sum(m["role"] == "user" for m in messages)
            if name in ("mistral_v3", "mistral_tekken") and SYSTEM in messages and users > 1:
                continue
            if name == "qwen2_5" and SYSTEM not in messages:
                continue
            prompt = messages[-1]["role"] == "user"
            try:
                text = tokenizer.apply_chat_template(messages, tokenize=False,
                                                     add_generation_prompt=prompt)
            except Exception as error:
                print(f"{name} refuses {messages}: {error}")
                continue
            cases.append({"format": name, "prompt": prompt, "messages": messages, "text": text})
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden_chat.json")
    with open(out, "w", encoding="ascii") as file:
        file.write("[\n" + ",\n".join(" " + json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
