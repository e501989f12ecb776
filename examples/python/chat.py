"""Talk with a model: a line of yours, a line of the model's. Ctrl-D ends it.

    python chat.py MODEL --system "Answer in one sentence."
"""
import argparse
import sys

import millrace as mr


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a GGUF file or a folder; else the storyteller")
    parser.add_argument("--system", help="what the model is told first")
    parser.add_argument("--max-tokens", type=int, default=120)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()

    messages = [{"role": "system", "content": given.system}] if given.system else []
    with mr.Model(given.model) as model:
        print(f"{model.info.family}, {model.info.parameters / 1e6:.1f} M parameters, on the "
              f"{model.info.device}", file=sys.stderr)
        while True:
            try:
                line = input("you: " if sys.stdin.isatty() else "")
            except EOFError:
                return
            messages.append({"role": "user", "content": line})
            # Only the new part of the conversation is computed: the rest is in the cache.
            try:
                answer = model.chat(messages, max_tokens=given.max_tokens,
                                    temperature=given.temperature, seed=given.seed)
            except KeyboardInterrupt:  # ends the answer; the model can continue
                messages.pop()
                continue
            messages.append({"role": "assistant", "content": str(answer)})
            print(answer.strip())


if __name__ == "__main__":
    main()
