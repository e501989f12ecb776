"""Millrace from Python: open a model, make text, see where every byte went.

    >>> import millrace as mr
    >>> with mr.Model(device="cpu") as m:
    ...     print(m.generate("Once upon a time", max_tokens=5, seed=7).stop_reason)
    length

`docs/python.md` shows the rest.
"""
from . import data, ops
from ._core import DeviceError, Error, InputError, UsageError
from ._core import version as __version__
from ._model import Message, Model, Options
from ._results import Evaluation, Info, Profile, Stream, Text, TokenLogprob
from ._train import Metrics, Run, Sample, TrainOptions, train

__all__ = ["DeviceError", "Error", "Evaluation", "Info", "InputError", "Message", "Metrics",
           "Model", "Options", "Profile", "Run", "Sample", "Stream", "Text", "TokenLogprob",
           "TrainOptions", "UsageError", "__version__", "data", "ops", "train"]
