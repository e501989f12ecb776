"""What torch_decode.py and torch_prefill.py share: shapes with random weights, clocks, ceilings.

Nothing is downloaded: configurations are made here, weights are random.
"""
import argparse
import contextlib
import inspect
import json
import os
import statistics
import sys
import time
import traceback

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

try:
    import torch  # noqa: E402
    import transformers  # noqa: E402
except ImportError as missing:  # one line: the caller explains the rest
    sys.exit(f"{sys.executable}: {missing}")

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def llama(hidden, inner, layers, heads, vocab, context):
    return transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, vocab_size=vocab,
        max_position_embeddings=context)


def neox(hidden, inner, layers, heads, vocab, context, rotary_pct=0.25, parallel=True):
    return transformers.GPTNeoXConfig(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, vocab_size=vocab, max_position_embeddings=context,
        use_parallel_residual=parallel, rotary_pct=rotary_pct)


# name: (configuration, type it is measured in)
MODELS = {
    "llama-2-7b": (lambda: llama(4096, 11008, 32, 32, 32000, 4096), "bf16"),
    "pythia-2.8b": (lambda: neox(2560, 10240, 32, 32, 50304, 2304), "bf16"),
    "stories-110m": (lambda: llama(768, 2048, 12, 12, 32000, 2304), "f16"),
    # to try the scripts without a GPU
    "tiny": (lambda: llama(64, 128, 2, 4, 100, 2304), "f32"),
    "tiny-neox": (lambda: neox(64, 128, 2, 4, 100, 2304), "f32"),
}


SHAPE = "neox:HIDDEN:INNER:LAYERS:HEADS:VOCAB:CONTEXT:ROTARY:PARALLEL"


def shape_of(text, dtype):
    """An entry of MODELS for a shape as `millrace-lab fusion` writes it: ROTARY elements of a
    head turn, PARALLEL is 1 or 0."""
    family, *numbers = text.split(":")
    if family != "neox" or len(numbers) != 8 or not all(n.isdigit() for n in numbers):
        raise ValueError(f"{text}: a shape is {SHAPE}")
    *sizes, rotary, parallel = map(int, numbers)
    return lambda: neox(*sizes, rotary * sizes[3] / sizes[0], bool(parallel)), dtype


def make(name, device):
    config, dtype = MODELS[name]
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config(), dtype=DTYPES[dtype], attn_implementation="sdpa")
    return model.eval().requires_grad_(False)


def forward_arguments(model, ids, positions, cache, last_only=False):
    """Arguments of model(): versions differ in whether they want the cache's positions too."""
    names = inspect.signature(model.forward).parameters
    out = {"input_ids": ids, "position_ids": positions.unsqueeze(0), "past_key_values": cache,
           "use_cache": True}
    if "cache_position" in names:
        out["cache_position"] = positions
    if last_only and "logits_to_keep" in names:
        out["logits_to_keep"] = 1
    return out


def emit(**fields):
    print(json.dumps(fields), flush=True)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(device, body):
    """How long body() takes until the device has finished."""
    synchronize(device)
    if device != "cuda":
        start = time.perf_counter()
        body()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    body()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


def median_seconds(device, body, repetitions, warmup=2):
    for _ in range(warmup):
        body()
    return statistics.median(seconds(device, body) for _ in range(repetitions))


def ceilings(device):
    """What this machine gives any engine, measured now."""
    small = device != "cuda"
    x = torch.randn((1 << 20) if small else (1 << 29), device=device)  # 2 GiB
    y = torch.empty_like(x)
    t = median_seconds(device, lambda: y.copy_(x), 10)
    emit(part="ceilings", what="copy, read + write", tb_s=2 * x.nbytes / t / 1e12)
    t = median_seconds(device, lambda: x.sum(), 10)
    emit(part="ceilings", what="read (sum)", tb_s=x.nbytes / t / 1e12)
    del x, y
    for size in (64,) if small else (4096, 8192):
        a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
        t = median_seconds(device, lambda: a @ b, 20)
        emit(part="ceilings", what=f"bf16 product {size}", tflop_s=2 * size**3 / t / 1e12)


@contextlib.contextmanager
def guarded(**fields):
    """A part that fails says so and lets the others run."""
    start = time.perf_counter()
    try:
        yield
    except Exception as error:  # a library may throw anything
        traceback.print_exc(file=sys.stderr)
        emit(**fields, error=f"{type(error).__name__}: {error}".splitlines()[0][:300])
    finally:
        print(f"{fields}: {time.perf_counter() - start:.1f} s in all", file=sys.stderr)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def parse(description, parts, more=lambda parser: None):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--parts", default=",".join(parts),
                        help="comma-separated, in this order (default: %(default)s)")
    parser.add_argument("--models", default="llama-2-7b,pythia-2.8b,stories-110m",
                        help=f"of {', '.join(MODELS)} (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=60,
                        help="seconds after which no further part is started (default: 60)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", help=f"a model of one's own instead of --models: {SHAPE}")
    parser.add_argument("--type", default="bf16", choices=DTYPES, help="of --shape")
    more(parser)
    args = parser.parse_args()
    if args.shape:
        try:
            MODELS[args.shape] = shape_of(args.shape, args.type)
        except ValueError as error:
            parser.error(str(error))
        args.models = args.shape
    args.parts, args.models = args.parts.split(","), args.models.split(",")
    for given, known in (args.parts, parts), (args.models, MODELS):
        for name in given:
            if name not in known:
                parser.error(f"{name}: unknown; there are {', '.join(known)}")
    return args


def run(args, per_model):
    """per_model: part -> function(args, model name, model). `ceilings` needs no model."""
    start = time.perf_counter()
    emit(part="about", torch=torch.__version__, transformers=transformers.__version__,
         device=torch.cuda.get_device_name() if args.device == "cuda" else "cpu")

    def in_time(**fields):
        if time.perf_counter() - start < args.budget:
            return True
        emit(**fields, skipped=f"more than {args.budget:.0f} s have passed; see --budget, --parts")
        return False

    if "ceilings" in args.parts:
        with guarded(part="ceilings"):
            ceilings(args.device)
    # Parts before models: quick parts of all models come first.
    for part in args.parts:
        for name in args.models if part in per_model else ():
            if not in_time(part=part, model=name):
                continue
            model = None
            with guarded(part=part, model=name), torch.no_grad():
                model = make(name, args.device)
                per_model[part](args, name, model)
            del model
