"""Operations on torch's tensors.

Two ways lead to a kernel. In eager mode a call goes straight to it, with an autograd.Function where
gradients are wanted: passing through torch's dispatcher would take longer than starting the kernel.
Everything else (torch.compile, export, fake tensors, function transforms, dispatch modes) takes the
ops of `torch.ops.millrace`, which _ops_library.py registers.

Outputs and scratch are torch's, made on the current stream; nothing waits for the device, and
nothing is copied to it: every call can be captured in a CUDA graph."""
from __future__ import annotations

from . import _ops_library
from ._ops_torch_attention import attention
from ._ops_torch_rows import norm_residual, sample

__all__ = ["attention", "norm_residual", "sample"]

_ops_library.register()
