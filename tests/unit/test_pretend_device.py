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


def test_tensors_know_where_they_are():
    x = torch.arange(3.0)

    assert torch.device("cpu") == x.device
    assert DEVICE == x.to(DEVICE).device == torch.zeros(2, device=DEVICE).device == (x.to(DEVICE) + 1)[:2].device
    assert torch.device("cpu") == x.to(DEVICE).cpu().device == x.to(DEVICE).to("cpu").device
    assert DEVICE == torch.zeros_like(x.to(DEVICE)).device == x.to(DEVICE).double().new_empty(3).device
    assert [0.0, 1.0, 2.0] == x.to(DEVICE).tolist()


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


def test_what_torch_allows_is_allowed():
    cpu, gpu = torch.arange(3.0), torch.arange(3.0, device=DEVICE)
    cpu[:] = gpu * 2
    gpu[1:] = cpu[1:]

    assert [0.0, 2.0, 4.0] == gpu[torch.arange(3)].tolist() == gpu.cpu().numpy().tolist()
    assert [1.0, 3.0, 5.0] == (gpu + torch.tensor(1.0)).tolist()
    assert bool((gpu == gpu).all())
