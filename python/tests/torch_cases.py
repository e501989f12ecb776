"""Tensors and devices for the tests of mr.ops on torch."""
import pytest
import torch

import millrace as mr

GPU = torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not GPU, reason="there is no GPU"))]


@pytest.fixture(params=DEVICES)
def device(request):
    mr.ops.set_threads(2)
    return request.param


def drawn(*shape, device="cpu", dtype=torch.float32, seed=0):
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return made.to(device=device, dtype=dtype)
