#!/usr/bin/env python3
"""Makes the models of models.py and the tokenizers of tokenizer_cases.py, runs transformers and
tokenizers on them, and writes recorded.json. With --check it compares with the recorded results
instead, and fails if they differ. --tokenizers leaves the models as they are recorded, and needs
neither torch nor transformers.

usage: python3 -m venv V && V/bin/pip install -r tests/compat/requirements.txt &&
       V/bin/python tests/compat/record.py [--check] [--tokenizers]"""
import argparse
import json
import math
import pathlib
import sys
import tempfile

import tokenizers

import models
import tokenizer_cases
import tokenizer_random

RECORDED = pathlib.Path(__file__).parent / "recorded.json"
TOKENS = 24  # generated tokens
SEEDS = range(120)  # of random tokenizers


def ask_model(folder, options):
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True)
    wrong = {key: sorted(map(str, value)) for key, value in info.items() if value}
    if options.get("tie") == "same":  # a second copy of a tied head is not an error
        wrong = {key: value for key, value in wrong.items() if value != ["lm_head.weight"]}
    if wrong:
        raise SystemExit(f"{folder}: transformers and models.py differ: {wrong}")
    model.eval()
    ids = list(models.TEXT.encode())
    with torch.no_grad():
        scores = model(torch.tensor([ids])).logits.double().log_softmax(-1)[0]
        nll = -scores[:-1].gather(1, torch.tensor(ids[1:])[:, None]).mean().item()
        # Without a cache, whose layout follows sliding_window even if attention does not.
        ends = model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        row, greedy, lead = ids[:20], [], math.inf
        while len(greedy) < TOKENS and not (greedy and greedy[-1] in ends):
            logits = model(torch.tensor([row]), use_cache=False).logits[0, -1].double()
            top = logits.topk(2)
            # A small lead of the first choice over the second is not reliable.
            lead = min(lead, (top.values[0] - top.values[1]).item())
            greedy.append(top.indices[0].item())
            row.append(greedy[-1])
    return {"class": type(model).__name__, "nll": round(nll, 9), "greedy": greedy,
            "lead": round(lead, 9)}


def ask_tokenizer(case, texts):
    """The ids of every text, and what they decode to."""
    reader = tokenizers.Tokenizer.from_str(json.dumps(case))
    ids = [reader.encode(text, add_special_tokens=True).ids for text in texts]
    return ids, [reader.decode(row, skip_special_tokens=True) for row in ids]


def record(old):
    """Without the models if old results are given."""
    out = {"models": {}, "tokenizers_of": {}, "decoded": {}, "random": {}}
    if old:
        out = {"transformers": old["transformers"], **out, "models": old["models"]}
    else:
        import transformers
        out = {"transformers": transformers.__version__, **out}
    out["tokenizers"] = tokenizers.__version__
    with tempfile.TemporaryDirectory() as folder:
        for name, (config, options) in models.CASES.items() if not old else ():
            path = models.write(pathlib.Path(folder) / name, name, config, options)
            out["models"][name] = ask_model(path, options)
            print(name, out["models"][name]["nll"], file=sys.stderr)
        for name, (config, case) in models.SAME.items() if not old else ():
            path = models.write_same(pathlib.Path(folder) / name, config, case)
            found, expected = ask_model(path, models.CASES[case][1]), out["models"][case]
            if found != expected:
                raise SystemExit(f"{name} is not {case} in other words: {found}, {expected}")
    for name, case in tokenizer_cases.cases().items():
        out["tokenizers_of"][name], out["decoded"][name] = ask_tokenizer(
            case, tokenizer_cases.TEXTS)
    for seed in SEEDS:
        try:
            ids, texts = ask_tokenizer(*tokenizer_random.case(seed))
        except BaseException as error:  # a panic of the library
            print(f"random {seed}: {error}", file=sys.stderr)
            continue
        out["random"][str(seed)] = {"ids": ids, "decoded": texts}
    return out


def differences(old, new):
    for kind in ("models", "tokenizers_of", "decoded", "random"):
        for name in sorted(old[kind].keys() | new[kind].keys()):
            a, b = old[kind].get(name), new[kind].get(name)
            if a is None or b is None:
                yield f"{name}: recorded or asked for alone"
            elif kind != "models":
                if a != b:
                    yield f"{kind} {name}: other ids or texts"
            elif abs(a["nll"] - b["nll"]) > 1e-6 * abs(a["nll"]):
                yield f"{name}: NLL {a['nll']} is now {b['nll']}"
            elif a["greedy"] != b["greedy"] and min(a["lead"], b["lead"]) > 1e-4:
                yield f"{name}: other greedy ids"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--tokenizers", action="store_true")
    options = arguments.parse_args()
    old = json.loads(RECORDED.read_text())
    made = record(old if options.tokenizers else None)
    if not options.check:
        RECORDED.write_text(json.dumps(made, indent=None, separators=(",", ":"))
                            .replace('},"', '},\n"') + "\n")
        return 0
    found = list(differences(old, made))
    for line in found:
        print(line, file=sys.stderr)
    count = len(made["tokenizers_of"]) + len(made["random"])
    print(f"{len(made['models'])} models, {count} tokenizers: "
          f"{len(found)} differ from recorded.json", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
