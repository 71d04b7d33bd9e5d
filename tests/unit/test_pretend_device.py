"""The test double for a GPU refuses what a GPU refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.pretend_device import DEVICE, DeviceError, PretendDevice


@pytest.fixture(autouse=True)
def device():
    with PretendDevice():
        yield


@pytest.mark.parametrize(
    "mistake",
    [
        lambda cpu, gpu: cpu + gpu,
        lambda cpu, gpu: torch.cat([gpu, cpu]),
        lambda cpu, gpu: gpu.numpy(),
        lambda cpu, gpu: np.asarray(gpu),
        lambda cpu, gpu: cpu[gpu.long()],
        lambda cpu, gpu: gpu.index_select(0, cpu.long()),
        lambda cpu, gpu: gpu.__setitem__(gpu.long(), cpu),
        lambda cpu, gpu: torch.gt(gpu, gpu, out=torch.empty(3)),
    ],
)
def test_mistakes_are_refused(mistake):
    with pytest.raises(DeviceError):
        mistake(torch.arange(3.0), torch.arange(3.0, device=DEVICE))
