"""Training."""
from __future__ import annotations

import json
import pathlib
import warnings
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, TypedDict, Union

from . import _core
from ._call import call
from ._model import Model
from ._paths import Path, text_of
from ._progress import Progress, Shown

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from numpy.typing import NDArray
    from typing_extensions import Unpack


OnStep = Callable[[Dict[str, Any]], object]


class TrainOptions(TypedDict, total=False):
    """What a training run may be asked: the options of `millrace train`, whose help says more.

    - model: "llama", "mistral", "qwen2", "qwen3", "gpt2" or "gpt-neox" ("llama")
    - dim: width of the residual stream (256)
    - layers: (6)
    - heads: attention heads (8)
    - kv_heads: heads of keys and values (`heads`)
    - head_dim: size of a head (`dim / heads`)
    - hidden: width of the MLP (the family's default)
    - context: positions of the model (`seq`)
    - tied: whether the LM head is the embedding table (the family's default)
    - init: start from this model instead of a new one
    - data: a folder made by `millrace.data.pack`
    - out: the run's folder: checkpoints, metrics.jsonl, report.html
    - resume: resume this run from its newest checkpoint, bit for bit
    - steps: of the optimizer (1000)
    - batch: sequences per pass (32)
    - seq: tokens per sequence (256)
    - accumulate: passes per step (1)
    - bos: begin every sequence with the tokenizer's beginning-of-text token
    - objective: "ar": the next token; "diffusion": unknown tokens of a block ("ar")
    - block: diffusion: tokens per block (16)
    - diffusion_weight: diffusion: how a masked token counts, "1/t" or "none" ("1/t")
    - lr: learning rate after the warm-up (0.001; 0.0001 with `init`)
    - min_lr: ... at the end (`lr / 10`)
    - warmup: warm-up steps (a twentieth of `steps`, at most 1000)
    - schedule: "cosine", "wsd" or "constant" ("cosine")
    - decay: wsd: share of the steps, at the end, in which the rate falls (0.2)
    - weight_decay: AdamW's weight decay; not for norms and biases (0.1)
    - beta1: AdamW's (0.9)
    - beta2: AdamW's (0.95)
    - clip: maximum norm of the gradient; 0: no limit (1)
    - masters: type of the matrices between steps, "f32" or "bf16" ("f32")
    - seed: of the weights, the order of the data, diffusion's masks (1)
    - max_skips: steps in a row without a finite gradient after which the run stops (10)
    - eval_every: steps between validations; 0: at the end (100)
    - eval_batches: batches per validation; 0: all (32)
    - save_every: steps between checkpoints; 0: at the end (500)
    - sample_every: steps between samples; 0: at the end (500)
    - sample_tokens: length of a sample; 0: none (120)
    - prompt: what samples begin with
    - keep: checkpoints to keep; 0: all (3)
    - recompute: what to recompute in the backward: "none", "light" or "full" ("none")
    - prefetch: batches read ahead; 0: none (2)
    - device: "auto", "cpu" or "cuda" ("auto")
    - threads: of the CPU; 0: all cores (0)
    - grains: parts that a step is summed from: a power of two (1)
    - zero: of several ranks, as are the next: what they shard (0)
    - pipeline: stages to divide the layers into (1)
    - micro_batches: parts of a step that go through the stages
    - pipeline_schedule: "1f1b" or "gpipe" ("1f1b")
    - reduce: "exact" or "fast" ("exact")
    - bucket: MiB of gradients sent at a time (25)
    """

    model: str
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    context: int
    tied: Union[bool, str]
    init: Path
    data: Path
    out: Path
    resume: Path
    steps: int
    batch: int
    seq: int
    accumulate: int
    bos: bool
    objective: str
    block: int
    diffusion_weight: str
    lr: float
    min_lr: float
    warmup: int
    schedule: str
    decay: float
    weight_decay: float
    beta1: float
    beta2: float
    clip: float
    masters: str
    seed: int
    max_skips: int
    eval_every: int
    eval_batches: int
    save_every: int
    sample_every: int
    sample_tokens: int
    prompt: str
    keep: int
    recompute: str
    prefetch: int
    device: str
    threads: int
    grains: int
    zero: int
    pipeline: int
    micro_batches: int
    pipeline_schedule: str
    reduce: str
    bucket: float


class Sample(NamedTuple):
    """A text that the model made on the way."""

    step: int
    text: str


class Metrics(list[dict[str, Any]]):
    """One dict per step, as in metrics.jsonl: step, loss, lr, grad_norm, tokens_per_second,
    data_wait_seconds, skipped, seconds, and where there are any val_loss, bits_per_byte and masked.
    """

    def column(self, name: str) -> NDArray[np.float64]:
        """f64 [steps]: one number of every step, NaN where a step has none."""
        import numpy as np

        values = [step.get(name) for step in self]
        if self and all(value is None for value in values):
            known = sorted({key for step in self for key in step})
            raise KeyError(f"{name}: no step has it; there are {', '.join(known)}")
        return np.array([np.nan if value is None else value for value in values], np.float64)

    def to_numpy(self) -> dict[str, NDArray[np.float64]]:
        """Every column under its name."""
        return {name: self.column(name) for name in {key: 0 for step in self for key in step}}

    def to_pandas(self) -> pandas.DataFrame:
        """One row per step, with `step` as its index; needs pandas."""
        import pandas

        return pandas.DataFrame.from_records(list(self)).set_index("step")


class Run:
    """A training run: the folder that `train` or `millrace train` has made.

    `result` is what `millrace train --json` prints (empty where the folder was only opened), with
    loss, val_loss, bits_per_byte, tokens_per_second, parameters; `samples` and `notes` are what
    came on the way.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = pathlib.Path(text_of(folder, "folder"))
        self.result: dict[str, Any] = {}
        self.samples: list[Sample] = []
        self.notes: list[str] = []
        if not self.folder.is_dir():
            raise _core.InputError(f"{self.folder}: no such folder")

    @property
    def metrics(self) -> Metrics:
        """What the run has written down of every step, read anew each time."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            raise _core.InputError(f"{path}: no such file; this is not the folder of a run")
        out = Metrics()
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
            try:
                out.append(json.loads(line))
            except ValueError:
                raise _core.InputError(f"{path}: line {number}: is not a step of a run") from None
        return out

    @property
    def checkpoint(self) -> pathlib.Path | None:
        """The folder of the newest checkpoint; none before the first."""
        saved = {int(path.name[5:]): path for path in (self.folder / "checkpoints").glob("step-*")
                 if path.name[5:].isdigit()}
        return saved[max(saved)] if saved else None

    @property
    def report(self) -> pathlib.Path:
        """The page with the curves."""
        return self.folder / "report.html"

    def model(self, **given: Any) -> Model:
        """The model of the newest checkpoint, opened; takes what `Model` takes."""
        return Model(self.folder, **given)

    def resume(self, *, progress: Progress = None, on_step: OnStep | None = None,
               **options: Unpack[TrainOptions]) -> Run:
        """Goes on where the run was: `train(resume=...)`."""
        options["resume"] = self.folder
        return train(progress=progress, on_step=on_step, **options)

    def __repr__(self) -> str:
        return f"<millrace.Run {self.folder}>"


def train(*, progress: Progress = None, on_step: OnStep | None = None,
          **options: Unpack[TrainOptions]) -> Run:
    """Trains a model on packed text, or goes on with a run (`resume`). Options are those of
    `millrace train` with `_` for `-`; `help(millrace.TrainOptions)` lists them.

    progress: called as progress(what, done, total), or True for a bar. on_step: called with the
    metrics of every step. If either raises, the last step is saved first. Ctrl-C finishes the step,
    saves and raises KeyboardInterrupt: `train(resume=...)` goes on, bit for bit.

    >>> import millrace as mr, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with open(f"{folder}/texts.txt", "w") as file:
    ...     _ = file.write("A cat sat by the mill.<|endoftext|>The wheel turned.<|endoftext|>" * 50)
    >>> packed = mr.data.pack(data=f"{folder}/texts.txt", tokenizer="storyteller", out=f"{folder}/data")
    >>> run = mr.train(dim=32, layers=1, heads=2, data=packed.path, out=f"{folder}/run", steps=3,
    ...                batch=2, seq=32, device="cpu", sample_tokens=0)
    >>> [step["step"] for step in run.metrics]
    [1, 2, 3]
    >>> with run.model(device="cpu") as m:
    ...     len(m.generate("Once", max_tokens=4, ignore_eos=True).ids)
    4
    """
    samples: list[Sample] = []
    notes: list[str] = []
    shown = Shown(progress)

    def tell(kind: str, number: int, text: bytes) -> None:
        if kind == "step":
            step = json.loads(text)
            if on_step is not None:
                on_step(step)
            if shown.bar is not None and step["loss"] is not None:
                shown.bar.note(loss=f"{step['loss']:.4f}")
            if shown.told is not None:
                shown.told("training", step["step"], number)
        elif kind == "sample":
            samples.append(Sample(number, text.decode("utf-8", "replace")))
        else:
            notes.append(text.decode("utf-8", "replace"))
            warnings.warn(notes[-1], RuntimeWarning, stacklevel=4)

    result = call("train", ["train"], options, shown, tell)
    run = Run(result["run"])
    run.result, run.samples, run.notes = result, samples, notes
    return run
