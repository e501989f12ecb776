"""What calls give back."""
from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Sequence

from . import _core
from ._paths import Path, text_of
from ._progress import Told

if TYPE_CHECKING:
    import pandas


class TokenLogprob(NamedTuple):
    """A token and its log-probability before temperature and truncation.

    - top: the most probable ones, as (id, logprob)
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Text(str):
    """The text of a generation: a `str` that knows how it was made.

    - ids: without the prompt; with the end token where one came
    - confidence: of each, by the unfiltered softmax; none where blocks are filled in
    - logprobs: of each, where they were asked for
    - stop_reason: "length", "end_of_text", "stop_string" or "context_full"
    - seed: that makes the same text again
    - tokens_per_second: after the first token
    - bytes_per_second: read from memory while doing so
    - passes: over blocks, of models that fill in tokens
    """

    ids: list[int]
    confidence: list[float]
    logprobs: list[TokenLogprob]
    stop_reason: str
    seed: int
    prompt_tokens: int
    tokens_per_second: float
    bytes_per_second: float
    passes: int

    @classmethod
    def _of(cls, made: dict[str, Any], seed: int) -> Text:
        out = cls(made.pop("text").decode("utf-8", "replace"))
        logprobs = made.pop("logprobs")
        out.logprobs = [TokenLogprob(id, logprob, tuple(top))
                        for id, (logprob, top) in zip(made["ids"], logprobs)]
        out.seed = seed
        out.__dict__.update(made)
        return out


def wait(*all_pending: _core.Pending, told: Told | None = None) -> None:
    """Until all have ended. The interpreter looks for Ctrl-C between two waits."""
    done = -1
    try:
        for pending in all_pending:
            while not pending.wait(0.05):
                if told is not None:
                    done = _tell(told, done, all_pending)
            pending.check()
        if told is not None:
            _tell(told, done, all_pending)
    except BaseException:
        stop(*all_pending)
        raise


def _tell(told: Told, before: int, all_pending: Sequence[_core.Pending]) -> int:
    """Says how many have ended, where that is news."""
    done = sum(pending.ended() for pending in all_pending)
    if done != before:
        told("generating", done, len(all_pending))
    return done


def stop(*all_pending: _core.Pending) -> None:
    """Ends all of them, together."""
    for pending in all_pending:
        pending.cancel()
    for pending in all_pending:
        pending.stop()


class Stream:
    """Text as it is made: an iterator of pieces, each of whole characters.

    The generation goes on, read or not; `close()`, the end of a `with`, or dropping the
    stream ends it. `result` has the whole text once the last piece was read.
    """

    def __init__(self, pending: _core.Pending, seed: int) -> None:
        self._pending: _core.Pending | None = pending
        self._seed = seed
        self.result: Text | None = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while True:
            piece = self._poll(0.05)
            if piece is None:
                raise StopIteration
            if piece:
                return piece

    def _poll(self, seconds: float) -> str | None:
        """What has come in that time; None at the end."""
        pending = self._pending
        if pending is None:
            return None
        try:
            pending.wait(seconds, True)
        except BaseException:
            self.close()
            raise
        ended = pending.ended()  # before the text is taken: nothing comes after the end
        piece = pending.text().decode("utf-8", "replace")
        if piece or not ended:
            return piece
        self._pending = None
        self.result = Text._of(pending.made(), self._seed)
        return None

    def close(self) -> None:
        """Ends the generation, if it is still going on."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.stop()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """How well a model predicts a text.

    - tokens: predicted ones
    - bytes: of text that those cover
    - nll: natural log, mean over tokens
    - cut: documents that were longer than the context
    - passes: of models that fill in tokens
    - bound_nll: ... the bound they are trained by, nats per token
    """

    documents: int
    tokens: int
    bytes: int
    nll: float
    perplexity: float
    bits_per_byte: float
    cut: int
    seconds: float
    passes: int | None
    bound_nll: float | None


@dataclasses.dataclass(frozen=True)
class Info:
    """What is known of an open model.

    - context: positions of a text
    - device: "cpu" or "cuda"
    - max_sequences: texts that are made together
    - fills_in: whether it fills in tokens instead of making them one after another
    - notes: what a user should know about how the source was read
    """

    source: str
    format: str
    family: str
    parameters: int
    layers: int
    dim: int
    vocab: int
    context: int
    device: str
    threads: int
    max_sequences: int
    fills_in: bool
    notes: list[str]
    load_seconds: float


class Profile:
    """A generation, written down stage by stage."""

    def __init__(self, core: _core.Profile, seed: int) -> None:
        self._core = core
        self.text = Text._of(core.made(), seed)
        self.summary = core.summary  #: one line: rates, bytes, share of the memory's bandwidth

    def table(self) -> str:
        """The stages of each phase beside what the machine can do, for people; also printed by
        `print(profile)`."""
        return self._core.table()

    __str__ = table

    def save_html(self, path: Path) -> None:
        """A page with the timeline, the tables and the roofline."""
        self._core.save_html(text_of(path))

    def save_trace(self, path: Path) -> None:
        """A trace for Perfetto or chrome://tracing."""
        self._core.save_trace(text_of(path))

    def records(self) -> list[dict[str, Any]]:
        """One dict per stage: phase, stage, calls, seconds, share, bytes, flops, gb_s, gflop_s,
        roof, of_ceiling."""
        return self._core.records()

    def to_pandas(self) -> pandas.DataFrame:
        """`records()` as a DataFrame; needs pandas."""
        import pandas

        return pandas.DataFrame.from_records(self.records())
