#!/usr/bin/env python3
"""Records what transformers does with every key of config.json, for tests/model/config_keys_test.cpp:
keys.json. Walked are, for each configuration class that millrace supports, all keys of all of these
classes, the names that their models read, and all keys that millrace accepts. Needs no torch: what
a model would read is taken from the source of transformers. With --check it compares with the
recorded results instead, and fails if they differ.

usage: python3 -m venv V && V/bin/pip install -r tests/compat/requirements.txt &&
       V/bin/python tests/compat/record_keys.py [--check]"""
import argparse
import ast
import copy
import dataclasses
import inspect
import json
import pathlib
import re
import sys

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import models

HERE = pathlib.Path(__file__).parent
RECORDED = HERE / "keys.json"
ACCEPTED = HERE.parents[1] / "src" / "model" / "io" / "known_key_lists.h"
PACKAGE = pathlib.Path(transformers.__file__).parent

WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN = {**models.YARN, "beta_fast": 3.0, "beta_slow": 0.5}
# Configurations to change key by key: some keys matter only beside others.
BASES = {
    "llama": [models.llama(), models.llama(rope_scaling=LINEAR),
              models.llama(rope_scaling=models.LLAMA3), models.llama(rope_scaling=YARN)],
    "mistral": [models.mistral(sliding_window=8), models.mistral(sliding_window=None)],
    "qwen2": [models.qwen2(), models.qwen2(**WINDOWS)],
    "qwen3": [models.qwen3(), models.qwen3(**WINDOWS)],
    "gpt2": [models.gpt2()],
    "gpt_neox": [models.neox(), models.neox(rope_scaling=LINEAR)],
}

# Attributes that models read and that change no output of a causal language model.
REASONS = {
    "attention_dropout": "dropout is off at inference",
    "hidden_dropout": "dropout is off at inference",
    "attn_pdrop": "dropout is off at inference",
    "embd_pdrop": "dropout is off at inference",
    "resid_pdrop": "dropout is off at inference",
    "initializer_range": "for new weights only",
    "initializer_factor": "for new weights only",
    "init_std": "for new weights only",
    "gradient_checkpointing": "in training only",
    "_attn_implementation": "another kernel for the same function",
    "_attn_implementation_internal": "another kernel for the same function",
    "reorder_and_upcast_attn": "the precision of a sum",
    "dtype": "the type that weights are rounded to; millrace takes them as the file has them",
    "_name_or_path": "where the model came from",
    "name_or_path": "where the model came from",
    "distributed_config": "how a model is spread over devices",
    "architectures": "which class a task takes; tests/model/load_huggingface_test.cpp",
    "base_model_tp_plan": "how a model is spread over devices",
    "base_model_pp_plan": "how a model is spread over devices",
    "bos_token_id": "begins a text if there is no prompt; the tokenizer has its own",
    "pad_token_id": "fills up batches",
    "sep_token_id": "is for other tasks",
}
# Models fail without a number here.
NEEDED = {"hidden_size", "n_embd", "num_hidden_layers", "n_layer", "num_attention_heads", "n_head",
          "max_position_embeddings", "n_positions", "head_dim", "vocab_size"}
# Read by code that is not read here: the quantiser, generation.
ALSO_READ = {"quantization_config", "eos_token_id"}
OTHER_TASKS = re.compile("ForSequence|ForToken|ForQuestion|ForMultiple|DoubleHeads|SequenceSummary")
# Not keys of a file, but arguments and internal names; and the two that choose the class.
NOT_WALKED = {"model_type", "architectures", "transformers_version"}


# --- What models read ----------------------------------------------------------------------------

def is_config(node):
    return (isinstance(node, ast.Name) and node.id in ("config", "text_config")) or \
        (isinstance(node, ast.Attribute) and node.attr == "config")


def reads_of(nodes):
    """Names of the attributes of configurations that the code reads."""
    out = set()
    for node in (inner for top in nodes for inner in ast.walk(top)):
        if isinstance(node, ast.Attribute) and is_config(node.value):
            out.add(node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and \
                node.func.id in ("getattr", "hasattr") and is_config(node.args[0]) and \
                isinstance(node.args[1], ast.Constant):
            out.add(node.args[1].value)
    return out


def source_of(path):
    return ast.parse((PACKAGE / path).read_text())


def reads_of_family(family):
    module = source_of(f"models/{family}/modeling_{family}.py")
    out = reads_of(n for n in module.body
                   if not (isinstance(n, ast.ClassDef) and OTHER_TASKS.search(n.name)))
    # The masks that it makes.
    taken = {alias.name for n in module.body if isinstance(n, ast.ImportFrom)
             and n.module == "masking_utils" for alias in n.names}
    out |= reads_of(n for n in source_of("masking_utils.py").body
                    if isinstance(n, ast.FunctionDef) and n.name in taken)
    # What it asks there about layers is whether it may compile.
    out |= reads_of([source_of("modeling_utils.py")]) - {"layer_types", "sliding_window"}
    if any(isinstance(n, ast.ImportFrom) and n.module == "modeling_rope_utils"
           for n in module.body):
        out |= reads_of([source_of("modeling_rope_utils.py")])
    return out | ALSO_READ


def rope_reads(family):
    """What the kinds of rotary positions read: {kind: names in rope_parameters}."""
    pattern = re.compile(r"rope_parameters(?:_dict)?(?:\.get\(|\[)\"(\w+)\"")
    out = {}
    for kind, name in (("default", None), ("linear", "_compute_linear_scaling_rope_parameters"),
                       ("llama3", "_compute_llama3_parameters"),
                       ("yarn", "_compute_yarn_parameters")):
        text = (PACKAGE / ("modeling_rope_utils.py" if name else
                           f"models/{family}/modeling_{family}.py")).read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and \
                    node.name == (name or "compute_default_rope_parameters"):
                out[kind] = set(pattern.findall(ast.get_source_segment(text, node)))
        assert name is None or "rope_theta" in out[kind], kind
    return out


def seen_rope(value, reads):
    """rope_parameters without what has no effect."""
    if not isinstance(value, dict):
        return value
    kind = value.get("rope_type", "default")
    if kind not in reads:
        return value
    needed = {"rope_theta"} | ({"factor"} if kind in ("linear", "llama3") else set())
    if "partial_rotary_factor" in value:
        needed |= {"partial_rotary_factor"} & reads[kind]
    for name in needed:
        if value.get(name) is None:
            raise ValueError(f"a model fails without {name}")
    out = {name: value[name] for name in sorted(reads[kind]) if value.get(name) is not None}
    if out.get("partial_rotary_factor") == 1:
        del out["partial_rotary_factor"]
    if kind == "yarn":
        out = {**out, "beta_fast": out.get("beta_fast") or 32, "beta_slow": out.get("beta_slow") or 1,
               "truncate": value.get("truncate", True)}
        if "attention_factor" in out or not (out.get("mscale") and out.get("mscale_all_dim")):
            out.pop("mscale", None), out.pop("mscale_all_dim", None)
    return {"rope_type": kind, **out}


# --- Keys and values -----------------------------------------------------------------------------

WIDTHS, HEADS, LAYERS, CONTEXTS = [64, 16], [2, 8, 1], [1, 3], [128, 300]
ACTIVATIONS = ["relu", "gelu", "gelu_new", "silu", "quick_gelu"]
ROPES = [{}, {"rope_type": "default", "rope_theta": 77.0}, LINEAR, models.LLAMA3, YARN,
         {"type": "linear", "factor": 4.0}, {"rope_type": "dynamic", "factor": 2.0},
         {"rope_type": "proportional", "factor": 2.0},
         {"rope_type": "default", "partial_rotary_factor": 0.5},
         {"full_attention": {"rope_type": "default", "rope_theta": 77.0}}]
VALUES = {
    "vocab_size": [300], "hidden_size": WIDTHS, "n_embd": WIDTHS, "num_attention_heads": HEADS,
    "n_head": HEADS, "num_hidden_layers": LAYERS, "n_layer": LAYERS, "num_key_value_heads": [1, 4],
    "head_dim": [4, 8, 16, 32], "intermediate_size": [40], "n_inner": [40],
    "max_position_embeddings": CONTEXTS, "n_positions": CONTEXTS, "hidden_act": ACTIVATIONS,
    "activation_function": ACTIVATIONS, "rope_theta": [500.0, 20000], "rotary_emb_base": [500, 2e4],
    "rotary_pct": [0.5, 1.0], "partial_rotary_factor": [0.5, 1.0],
    "original_max_position_embeddings": [16], "sliding_window": [0, 1, 4, 300],
    "max_window_layers": [0, 1, 5],
    "layer_types": [["full_attention"] * 2, ["sliding_attention"] * 2,
                    ["sliding_attention", "full_attention"], ["linear_attention"] * 2],
    "rope_scaling": ROPES, "rope_parameters": ROPES, "eos_token_id": [3, [3, 4]],
    "quantization_config": [{"quant_method": "gptq", "bits": 4}],
    "per_layer_config": [{"0": {"intermediate_size": 40}}],
    "id2label": [{"0": "a"}], "label2id": [{"a": 0}], "pruned_heads": [{"0": [1]}],
    "rms_norm_eps": [0.25, 0.0], "layer_norm_eps": [0.25], "layer_norm_epsilon": [0.25],
    "dtype": ["float16"], "torch_dtype": ["float16"],
}
INNER = {"factor": [4.0], "rope_theta": [77.0], "partial_rotary_factor": [0.5, 1.0],
         "original_max_position_embeddings": [16], "low_freq_factor": [2.0],
         "high_freq_factor": [8.0], "beta_fast": [0, 4.0], "beta_slow": [0, 0.25],
         "mscale": [1.2], "mscale_all_dim": [0.7], "attention_factor": [1.5], "truncate": [False],
         "rope_type": ["default", "linear", "llama3", "yarn", "longrope"], "finetuned": [True],
         "type": ["linear", "yarn"]}


def values_of(key, default):
    if key in VALUES:
        return VALUES[key] + [None]
    if isinstance(default, bool):
        return [True, False]
    if isinstance(default, (int, float)):
        return [0, 1, default + 1, 0.5]
    return ["x"] if isinstance(default, str) else [3, True]


def accepted_keys():
    """Keys of config.json in millrace's own lists."""
    text = ACCEPTED.read_text()
    out = set()
    for name in ("kConfigKeys", "kHarmlessConfigKeys", "kNeutralConfigKeys"):
        body = re.search(rf"{name}\[\] = {{(.*?)\n}};", text, re.DOTALL).group(1)
        out |= set(re.findall(r'"([^"]+)"', body))
    return out


def class_of(family):
    found = CONFIG_MAPPING[family]
    fields = {f.name: None if f.default in (dataclasses.MISSING, None) else f.default
              for f in dataclasses.fields(found)}
    old = set(re.findall(r'kwargs\.(?:pop|get)\(\s*"(\w+)"', inspect.getsource(found)))
    return found, fields, set(found.attribute_map) | old


# --- Effects -------------------------------------------------------------------------------------

MISSING = "missing"


def seen(found, config, reads, ropes):
    """What a model reads of the configuration; None: transformers refuses it."""
    try:
        made = found(**{k: v for k, v in copy.deepcopy(config).items() if k != "model_type"})
        return what_is_read(made, reads, ropes)
    except Exception:  # pylint: disable=broad-except
        return None


def windows(made):
    """The window of every layer; a window as long as the context is none."""
    width = made.sliding_window
    types = getattr(made, "layer_types", None) if made.model_type != "mistral" else None
    if width is None and "sliding_attention" in (types or ()):
        raise ValueError("a model fails without sliding_window")
    if width is not None and width >= made.max_position_embeddings:
        width = None
    return [width if kind == "sliding_attention" else None if kind == "full_attention" else kind
            for kind in types or ["sliding_attention"] * made.num_hidden_layers]


def what_is_read(made, reads, ropes):
    out = {}
    if "sliding_window" in reads:
        out["sliding_window"] = windows(made)
        reads = reads - {"sliding_window", "layer_types"}
    for name in sorted(reads):
        try:
            value = getattr(made, name, MISSING)
        except (AttributeError, ValueError, RuntimeError):  # layers have their own
            value = MISSING
        if name == "rope_parameters":
            value = seen_rope(value, ropes)
        if name == "per_layer_config":
            value = "some" if made.is_heterogeneous else MISSING
        if name == "head_dim" and (value == MISSING or
                                   value is None and made.model_type == "gpt_neox"):
            value = made.hidden_size // made.num_attention_heads
        if value is None and name in NEEDED:
            raise ValueError(f"a model fails without {name}")
        if value is None and name == "quantization_config":
            value = MISSING
        if not callable(value):
            out[name] = value
    return json.loads(json.dumps(out, default=str))


def effect(before, after):
    """[attribute: new value], or "refused"."""
    if after is None:
        return "refused"
    return {name: after[name] for name in after
            if after[name] != before[name] and name not in REASONS}


def record():
    classes = {family: class_of(family) for family in BASES}
    reads = {family: reads_of_family(family) for family in BASES}
    keys = accepted_keys() | {key for _, fields, more in classes.values() for key in (*fields, *more)}
    keys |= {name for names in reads.values() for name in names
             if not hasattr(transformers.PreTrainedConfig, name) or name in VALUES}
    keys |= {"rope_scaling", "rope_theta", "torch_dtype", "per_layer_config", "num_labels",
             "output_attentions", "attn_implementation", "name_or_path", "partial_rotary_factor"}
    keys -= NOT_WALKED
    used, out = set(), {"transformers": transformers.__version__, "reasons": REASONS,
                        "keys": sorted(keys), "families": {}}
    for family, bases in BASES.items():
        found, fields, _ = classes[family]
        ropes, rows = rope_reads(family), {}
        for at, base in enumerate(bases):
            before = seen(found, base, reads[family], ropes)

            def walk(key, value, config):
                after = seen(found, config, reads[family], ropes)
                used.update({n for n in after or () if after[n] != before[n]} & REASONS.keys())
                changed = effect(before, after)
                rows.setdefault(key, []).append([at, value, *([changed] if changed else [])])

            for key in sorted(keys):
                for value in values_of(key, fields.get(key)):
                    if key in base and base[key] == value and type(base[key]) is type(value):
                        continue
                    walk(key, value, {**base, key: value})
            for key, values in INNER.items() if base.get("rope_scaling") else ():
                for value in values + [None]:
                    walk(f"rope_scaling.{key}", value,
                         {**base, "rope_scaling": {**base["rope_scaling"], key: value}})
        # What has no effect in any is kept for the first.
        cases = {key: row if any(len(case) > 2 for case in row) else [c for c in row if c[0] == 0]
                 for key, row in rows.items()}
        out["families"][family] = {"class": found.__name__, "bases": bases, "cases": cases}
    unused = REASONS.keys() - used - {"architectures"}
    assert not unused, f"reasons that no key needs: {sorted(unused)}"
    return out


def text_of(made):
    return json.dumps(made, separators=(",", ":")).replace(']],"', ']],\n"') + "\n"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--check", action="store_true")
    check = arguments.parse_args().check
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    made = record()
    if not check:
        RECORDED.write_text(text_of(made))
        return 0
    old = json.loads(RECORDED.read_text())
    made = json.loads(text_of(made))
    count = sum(len(row) for f in made["families"].values() for row in f["cases"].values())
    bad = [(name, key) for name, family in made["families"].items() for key in family["cases"]
           if family["cases"][key] != old["families"].get(name, {}).get("cases", {}).get(key)]
    for name, key in bad:
        print(f"{name}: {key}", file=sys.stderr)
    same = not bad and made["keys"] == old["keys"]
    print(f"{count} configurations of transformers {made['transformers']}: "
          f"{'as recorded' if same else f'{len(bad)} keys differ from keys.json'}", file=sys.stderr)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
