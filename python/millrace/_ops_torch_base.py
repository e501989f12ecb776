"""What operations on torch's tensors have in common: checks, the device, the stream."""
from __future__ import annotations

import importlib
from typing import Any, Optional, Sequence

from . import _core
from ._ops_plan import wrong

torch: Any = importlib.import_module("torch")
forward_ad: Any = importlib.import_module("torch.autograd.forward_ad")

NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
PLAIN = (torch.Tensor, torch.nn.Parameter)  # no subclasses, which may behave differently
compiling = torch.compiler.is_compiling
grad_enabled = torch.is_grad_enabled
f32 = torch.float32
modes = torch._C._len_torch_dispatch_stack
transforms = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
_device_now = getattr(torch._C, "_cuda_getDevice", None) or torch.cuda.current_device
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_gpu: Optional[int] = None  # the GPU of this process


try:  # the allocator of compiled code: a quarter of the time of torch.empty
    _guards: Any = importlib.import_module("torch._C._dynamo.guards")
    _on_cpu, _on_cuda = _guards._empty_strided_cpu, _guards._empty_strided_cuda
except (ImportError, AttributeError):
    _on_cpu = _on_cuda = None


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor without gaps."""
    out, step = [], 1
    for size in reversed(shape):
        out.append(step)
        step *= max(size, 1)
    return tuple(reversed(out))


def empty(cuda: bool, shape: tuple[int, ...], stride: tuple[int, ...], dtype: Any) -> Any:
    """A new tensor without gaps, on the CPU or on the GPU of the process; stride: dense(shape)."""
    if not cuda:
        if _on_cpu is not None:
            return _on_cpu(shape, stride, dtype)
        return torch.empty(shape, dtype=dtype, device="cpu")
    if _on_cuda is not None and _device_now() == _gpu:
        return _on_cuda(shape, stride, dtype)
    return torch.empty(shape, dtype=dtype, device=f"cuda:{_gpu}")


def quick_empty(cuda: bool) -> Any:
    """What makes a tensor of (shape, stride, dtype) on the CPU, or on the current GPU; or None."""
    return _on_cuda if cuda else _on_cpu


def stream_of(index: int) -> int:
    if _raw_stream is not None:
        return int(_raw_stream(index))
    return int(torch.cuda.current_stream(index).cuda_stream)


def place_of(name: str, x: Any) -> bool:
    """Whether it lies on the GPU; the kernels know one."""
    global _gpu
    kind = x.device.type
    if kind == "cpu":
        return False
    if kind != "cuda" or torch.version.hip:
        raise wrong(f"{name} lies on {x.device}; operations take tensors on the CPU or on a GPU of "
                    f"NVIDIA")
    if not _core.cuda_built():
        raise _core.DeviceError(f"{name} lies on {x.device}, and this build has no CUDA; build "
                                f"where nvcc is, or move it to the CPU")
    if _gpu is None:
        _gpu = x.device.index
    if _gpu != x.device.index:
        raise _core.DeviceError(f"{name} lies on {x.device}, and this process computes on "
                                f"cuda:{_gpu} already; operations take one GPU per process")
    return True


def check(names: str, tensors: tuple[Any, ...], one_type: bool = True) -> str:
    """Throws what is wrong with tensors that belong together; gives the first one's type."""
    for name, x in zip(names.split(), tensors):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} is a tensor, as {names.split()[0]} is, not {type(x).__name__}")
        if x.layout != torch.strided:
            raise wrong(f"{name} is {x.layout}; operations take dense tensors")
        if x.device != tensors[0].device:
            raise wrong(f"{name} lies on {x.device}, {names.split()[0]} on {tensors[0].device}")
        if x.dtype not in NAMES:
            raise wrong(f"{name} is {x.dtype}; operations take float32, float16 or bfloat16")
        if one_type and x.dtype != tensors[0].dtype:
            raise wrong(f"{name} is {x.dtype}, {names.split()[0]} is {tensors[0].dtype}; they have "
                        f"one type")
    return NAMES[tensors[0].dtype]


def refuse_tangents(*tensors: Any) -> None:
    """Where forward_ad._current_level >= 0: forward-mode gradients would be lost without a word."""
    for x in tensors:
        if isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None:
            raise NotImplementedError("operations have no forward-mode gradients (dual tensors); "
                                      "use backward(), or torch's own operations")


def refuse_second() -> None:
    """For backward: gradients are recorded there where create_graph=True was given."""
    if grad_enabled():
        raise NotImplementedError("operations have no second derivatives: backward() and grad() "
                                  "with create_graph=True want torch's own operations")


def by_library(op: Any, *arguments: Any) -> Any:
    """An op of torch.ops.millrace; torch.func's words about it are none for its callers."""
    if compiling() or not transforms():
        return op(*arguments)
    try:
        return op(*arguments)
    except RuntimeError as error:
        if "functorch" not in str(error):
            raise
        raise NotImplementedError("operations take no torch.func.grad, vjp, jvp, jacrev or jacfwd; "
                                  "use torch.autograd.grad or backward()") from error


def run(cuda: bool, call: Any, *arguments: Any) -> None:
    """call(*arguments, stream), with the tensors' device as the current one."""
    if not cuda:
        call(*arguments, 0)
    elif _device_now() == _gpu:
        call(*arguments, stream_of(_gpu or 0))
    else:
        with torch.cuda.device(_gpu):
            call(*arguments, stream_of(_gpu or 0))


def readable(x: Any) -> Any:
    """Kernels of the GPU read 16 bytes at a time."""
    return x.clone(memory_format=torch.contiguous_format) if x.data_ptr() & 15 else x


def wide(x: Any) -> Any:
    return x.to(f32).contiguous()
