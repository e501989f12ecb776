"""The model: everything that is asked of the engine goes through it."""
from __future__ import annotations

import atexit
import json
import operator
import os
import random
import warnings
import weakref
from typing import (TYPE_CHECKING, Any, AsyncIterator, Iterable, Mapping, Sequence, TypedDict,
                    Union)

from . import _core
from ._paths import Path, text_of
from ._progress import Progress, Shown
from ._results import Evaluation, Info, Profile, Stream, Text, stop, wait

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Unpack

Prompt = Union[str, bytes, Sequence[int]]


class Message(TypedDict):
    """A message of a conversation."""

    role: str
    content: str


class Options(TypedDict, total=False):
    """What a generation may be asked; what is left out is as for `millrace run`.

    - max_tokens: generate at most N tokens (256); -1: until the context is full
    - temperature: (0.8); 0: always the most probable token
    - top_k: sample from the N most probable tokens (40); 0: all
    - top_p: sample from the most probable tokens with this total probability (0.95); 1: all
    - min_p: drop tokens below this share of the best one's probability (0.05); 0: none
    - repeat_penalty: above 1 recent tokens become less probable (1)
    - repeat_window: tokens that the penalty looks back (64); -1: all
    - seed: same seed, same text; default: random
    - stop: the text ends before any of these
    - stop_ids: tokens that end the text, besides the model's own
    - min_tokens: tokens before which nothing ends the text (0)
    - ignore_eos: continue past the end-of-text token
    - logprobs: log-probabilities of every token and of so many most probable ones (0 to 20)
    - block: diffusion models: tokens per block (the model's)
    - steps: ... passes per block (one per token)
    - remask: ... "sequential", "static", "dynamic" or "entropy" ("dynamic")
    - threshold: ... confidence above which "dynamic" settles a token (0.9)
    - entropy_bound: ... total entropy, in nats, of a pass with "entropy" (0.35)
    - confidence: ... "max" or "drawn" ("max")
    - prefix_cache: ... full attention: cache what lies before a block; approximate
    - use_gpu_sampler: ... False: one thread of the CPU draws, from copied logits (True)
    """

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_window: int
    seed: int
    stop: Union[str, Sequence[str]]
    stop_ids: Sequence[int]
    min_tokens: int
    ignore_eos: bool
    logprobs: int
    block: int
    steps: int
    remask: str
    threshold: float
    entropy_bound: float
    confidence: str
    prefix_cache: bool
    use_gpu_sampler: bool


_KNOWN = frozenset(Options.__annotations__)
_DECODER = frozenset(("block", "steps", "remask", "threshold", "entropy_bound", "confidence",
                      "prefix_cache", "use_gpu_sampler"))  # what an evaluation may be asked
_open_models: weakref.WeakSet[Model] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for model in list(_open_models):
        model.close()


def _number(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is an int, not {type(value).__name__}") from None


def _bytes(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass")
    raise TypeError(f"a text is a str or bytes, not {type(text).__name__}")


def _options(given: Mapping[str, Any], seed: int) -> _core.Options:
    out = _core.Options()
    out.seed = seed
    for name, value in given.items():
        if name not in _KNOWN:
            raise TypeError(f"{name!r} is not a generation option; the options are "
                            + ", ".join(sorted(_KNOWN)))
        if name == "seed" or value is None:
            continue
        if name == "stop" and isinstance(value, str):
            value = [value]
        try:
            setattr(out, name, list(value) if name in ("stop", "stop_ids") else value)
        except TypeError:
            raise TypeError(f"{name} = {value!r}: has the wrong type for this option, or is out of range; help(millrace.Options) lists them") from None
    return out


def _seed(given: Mapping[str, Any]) -> int:
    seed = given.get("seed")
    if seed is None:
        return random.SystemRandom().getrandbits(32)
    number = _number("seed", seed)
    if not 0 <= number < 1 << 64:
        raise _core.UsageError(f"seed = {number}: is not from 0 to 2^64 - 1")
    return number


class Model:
    """A model that is open, with an engine of its own.

    path: a GGUF file, a Hugging Face folder, a llama2.c .bin, `random:SHAPE[:TYPE]`, or the name of
    a bundled model ("storyteller", "storyteller-diffusion"); the storyteller where there is none.
    device: "auto" (what MILLRACE_DEVICE says, else the GPU if it can), "cpu" or "cuda". ctx: positions of a text, 0 for as many as
    the model has. max_sequences: texts that are made together. pool: tokens that the cache holds
    over all of them, 0 for what fits. progress: called as progress(what, done, total) while the
    model is loaded, or True for a bar (tqdm's, where it is installed).

    Any number of threads may call one model: their texts are made side by side, each as if alone.

    >>> import millrace as mr
    >>> m = mr.Model(device="cpu")
    >>> m.info.family
    'llama'
    >>> m.close()
    """

    def __init__(self, path: Path | None = None, device: str = "auto", *, tokenizer: Path = "",
                 threads: int = 0, ctx: int = 0, max_sequences: int = 16, pool: int = 0,
                 kv_type: str = "auto", ignore_keys: Iterable[str] = (), check_nan: bool = False,
                 progress: Progress = None) -> None:
        if device == "auto":
            device = os.environ.get("MILLRACE_DEVICE") or "auto"
        for name, value, known in (("device", device, ("auto", "cpu", "cuda")),
                                   ("kv_type", kv_type, ("auto", "f32", "f16", "bf16"))):
            if value not in known:
                raise _core.UsageError(f"{name} = {value}: is not supported; use "
                                       + ", ".join(known))
        for name, number, least in (("threads", threads, 0), ("ctx", ctx, 0), ("pool", pool, 0),
                                    ("max_sequences", max_sequences, 1)):
            if not least <= _number(name, number) < 1 << 30:
                raise _core.UsageError(f"{name} = {number}: must be {least} or more")
        if path is not None and not os.fspath(path):
            raise _core.UsageError("path: is empty; leave it out for the bundled model")
        keys = [ignore_keys] if isinstance(ignore_keys, str) else list(ignore_keys)
        if not all(isinstance(key, str) for key in keys):
            raise TypeError("ignore_keys: are names, each a str")
        with Shown(progress) as shown:
            self._core = _core.open(text_of(path or ""), device, threads, ctx, pool, kv_type,
                                    text_of(tokenizer, "tokenizer"), keys, bool(check_nan),
                                    max_sequences, shown.told)
        if device == "auto" and (why := _core.gpu_passed_over()):
            warnings.warn(f"computing on the CPU; the GPU is not used: {why}", RuntimeWarning,
                          stacklevel=2)
        self.info = Info(**self._core.info())
        _open_models.add(self)

    def close(self) -> None:
        """Frees the engine and the weights. Calls of other threads end with a UsageError."""
        if hasattr(self, "_core"):
            self._core.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self.info.device if self._core.is_open() else "closed"
        return f"<millrace.Model {self.info.source} ({state})>"

    # ---- text --------------------------------------------------------------------------------

    def generate(self, prompt: Prompt = "", **options: Unpack[Options]) -> Text:
        """Continues a prompt: a text, or token ids. An empty one begins a text.

        >>> import millrace as mr
        >>> m = mr.Model(device="cpu")
        >>> text = m.generate("Once upon a time", max_tokens=20, seed=7)
        >>> text == m.generate("Once upon a time", max_tokens=20, seed=7)
        True
        >>> len(text.ids), text.stop_reason
        (20, 'length')
        """
        seed = _seed(options)
        pending = self._core.generate(self._ids(prompt), _options(options, seed), False)
        wait(pending)
        return Text._of(pending.made(), seed)

    def stream(self, prompt: Prompt = "", **options: Unpack[Options]) -> Stream:
        """As `generate`, piece by piece as the text is made.

        >>> import millrace as mr
        >>> m = mr.Model(device="cpu")
        >>> pieces = list(m.stream("Once", max_tokens=10, seed=1))
        >>> "".join(pieces) == m.generate("Once", max_tokens=10, seed=1)
        True
        """
        seed = _seed(options)
        return Stream(self._core.generate(self._ids(prompt), _options(options, seed), True), seed)

    async def astream(self, prompt: Prompt = "", **options: Unpack[Options]) -> AsyncIterator[str]:
        """As `stream`, for `async for`.

        >>> import asyncio, millrace as mr
        >>> m = mr.Model(device="cpu")
        >>> async def tell():
        ...     return "".join([piece async for piece in m.astream("Once", max_tokens=10, seed=1)])
        >>> asyncio.run(tell()) == m.generate("Once", max_tokens=10, seed=1)
        True
        """
        import asyncio

        loop = asyncio.get_running_loop()
        with self.stream(prompt, **options) as stream:
            while True:
                piece = await loop.run_in_executor(None, stream._poll, 0.05)
                if piece is None:
                    return
                if piece:
                    yield piece

    def generate_batch(self, prompts: Iterable[Prompt], *, progress: Progress = None,
                       **options: Unpack[Options]) -> list[Text]:
        """A text for each prompt, made side by side; prompt i has the seed `seed + i`.

        Up to `max_sequences` texts are in the engine at a time, and others join as these end. Each
        has the bits that it has alone. progress: as of `Model`, with the texts that have ended.

        >>> import millrace as mr
        >>> m = mr.Model(device="cpu")
        >>> texts = m.generate_batch(["Once", "One day"], max_tokens=8, seed=3)
        >>> texts[1] == m.generate("One day", max_tokens=8, seed=4)
        True
        """
        if isinstance(prompts, (str, bytes)):
            raise TypeError("prompts are several; generate() takes one")
        first = _seed(options)
        pending: list[_core.Pending] = []
        seeds: list[int] = []
        try:
            for i, prompt in enumerate(prompts):
                seeds.append((first + i) % (1 << 64))
                pending.append(self._core.generate(self._ids(prompt), _options(options, seeds[i]),
                                                   False))
            with Shown(progress) as shown:
                wait(*pending, told=shown.told)
        except BaseException:
            stop(*pending)
            raise
        return [Text._of(asked.made(), seed) for asked, seed in zip(pending, seeds)]

    def chat(self, messages: Sequence[Message], *, template_file: Path = "",
             template_args: Mapping[str, Any] | None = None, parse_special: bool = False,
             **options: Unpack[Options]) -> Text:
        """The answer to a conversation, written by the model's own template or the file's.

        >>> import millrace as mr
        >>> m = mr.Model(device="cpu")
        >>> answer = m.chat([{"role": "user", "content": "Hi"}], max_tokens=8, seed=1)
        >>> answer.prompt_tokens > 1
        True
        """
        try:
            pairs = [(_bytes(message["role"]), _bytes(message["content"])) for message in messages]
        except (TypeError, KeyError):
            raise TypeError('messages are dicts as {"role": "user", "content": "Hi"}, both of them '
                            "str") from None
        arguments = [f"{name}={json.dumps(value)}" for name, value in (template_args or {}).items()]
        ids, stops = self._core.chat_prompt(pairs, text_of(template_file, "template_file"),
                                            arguments, parse_special)
        seed = _seed(options)
        asked = _options(options, seed)
        asked.stop = [*asked.stop, *(stop.decode() for stop in stops)]
        pending = self._core.generate(ids, asked, False)
        wait(pending)
        return Text._of(pending.made(), seed)

    # ---- tokens and numbers ------------------------------------------------------------------

    def tokenize(self, text: str | bytes, special: bool = True) -> list[int]:
        """Token ids; `special`: with those that begin a text, and with special tokens in the text
        read as such.

        >>> import millrace as mr
        >>> m = mr.Model(device="cpu")
        >>> m.detokenize(m.tokenize("Once upon a time"))
        'Once upon a time'
        """
        return self._core.encode(_bytes(text), bool(special))

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of ids; what special tokens are called is left out."""
        return self._core.decode(self._known(ids)).decode("utf-8", "replace")

    def logits(self, ids: ArrayLike, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """f32 [ids, vocab]: row i says what follows ids[: i + 1]. They are written into `out` where
        one is given, and an int32 array is read where it lies.

        >>> import millrace as mr
        >>> m = mr.Model(device="cpu")
        >>> ids = m.tokenize("Once upon a")
        >>> rows = m.logits(ids)
        >>> rows.shape == (len(ids), m.info.vocab)
        True
        """
        import numpy as np

        given = np.asarray(ids)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise TypeError(f"ids are one row of integers, not {given.dtype} {given.shape}")
        if given.size and not 0 <= int(given.min()) <= int(given.max()) < self.info.vocab:
            raise self._unknown()
        tokens = np.ascontiguousarray(given, dtype=np.int32)
        shape = (tokens.size, self.info.vocab)
        if out is None:
            out = np.empty(shape, dtype=np.float32)
        elif (not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != np.float32
              or not out.flags.c_contiguous or not out.flags.writeable):
            raise TypeError(f"out is a writable contiguous float32 array of shape {shape}")
        wait(self._core.logits(tokens, out))
        return out

    def embed(self, texts: str | Iterable[str], *, pool: str = "mean",
              normalize: bool = True) -> NDArray[np.float32]:
        """f32 [texts, dim], or [dim] for one text: what the model's head reads, as the mean over
        the tokens or of the last one (`pool`), of length 1 where `normalize`.

        >>> import millrace as mr
        >>> m = mr.Model(device="cpu")
        >>> a, b = m.embed(["The cat was happy.", "The dog was happy."])
        >>> float(a @ b) > 0.5
        True
        """
        import numpy as np

        if pool not in ("mean", "last"):
            raise _core.UsageError(f"pool = {pool}: is not supported; use mean or last")
        one = isinstance(texts, str)
        all_texts = [texts] if isinstance(texts, str) else texts
        ids = [self._core.encode_prompt(_bytes(text)) for text in all_texts]
        out = np.zeros((len(ids), self.info.dim), dtype=np.float32)
        if ids:
            wait(self._core.embed(ids, pool == "last", out))
        if normalize:
            out /= np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-30)
        return out[0] if one else out

    def eval(self, text: str | bytes, *, split: str | bytes = "", limit: int = 0, ends: bool = False,
             bound: int | None = None, **options: Unpack[Options]) -> Evaluation:
        """How well the model predicts a text, cut into documents at `split` where it is given.
        Of a model that fills in tokens: under its decoder, and by `bound` rates of masking (4).

        >>> import millrace as mr
        >>> m = mr.Model(device="cpu")
        >>> m.eval(m.generate(max_tokens=80, seed=1)).perplexity < 20
        True
        """
        result = _core.EvalResult()
        others = sorted(set(options) & _KNOWN - _DECODER)
        if others:
            raise _core.UsageError(f"{others[0]}: is of a generation; an evaluation draws nothing")
        for name, number in (("limit", limit), ("bound", 0 if bound is None else bound)):
            if not 0 <= _number(name, number) < 1 << 31:
                raise _core.UsageError(f"{name} = {number}: must be 0 or more, below 2^31")
        wait(self._core.eval(_bytes(text), _bytes(split), limit, bool(ends), bound,
                             _options(options, 0), result))
        return Evaluation(**result.values(self.info.fills_in, bound != 0))

    def profile(self, prompt: str | bytes = "", **options: Unpack[Options]) -> Profile:
        """A generation with every stage timed; the engine does nothing else meanwhile. 32 tokens
        where `max_tokens` is left out.

        >>> import millrace as mr
        >>> m = mr.Model(device="cpu")
        >>> p = m.profile("Once", max_tokens=8, seed=1)
        >>> sorted({record["phase"] for record in p.records()})
        ['decode', 'prefill']
        """
        seed = _seed(options)
        result = _core.Profile()
        asked = _options(options, seed)
        if asked.max_tokens is None:
            asked.max_tokens = 32
        wait(self._core.profile(_bytes(prompt), asked, result))
        return Profile(result, seed)

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, (str, bytes)):
            return self._core.encode_prompt(_bytes(prompt))
        ids = self._known(prompt)
        if not ids:
            raise _core.InputError('prompt: has no token; give one at least, or "" to begin a text')
        return ids

    def _known(self, ids: Iterable[int]) -> list[int]:
        """Ids of tokens that the model has."""
        try:
            out = [operator.index(id) for id in ids]
        except TypeError:
            raise TypeError(f"{type(ids).__name__}: is neither a text nor token ids") from None
        if any(not 0 <= id < self.info.vocab for id in out):
            raise self._unknown()
        return out

    def _unknown(self) -> _core.InputError:
        return _core.InputError(f"ids: are not all tokens of the model, which has 0 to "
                                f"{self.info.vocab - 1}")
