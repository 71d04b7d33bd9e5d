"""The same code on a GPU: ranks may differ from the CPU's only where scores nearly tie; exact ones may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pbgeval import evaluate, load_config
from tests.kit.case import TinyCase

LOSS, FILTERED, EXACT = "compute_loss=True", "filter_paths={folder}/edges", "precision=exact"
WAYS = [
    [LOSS],
    ["candidates=partition", LOSS],
    ["pbg_semantics=True", LOSS],
    ["candidates=all", FILTERED],
    [EXACT, LOSS],
    ["candidates=all", EXACT, FILTERED],
]


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("overrides", WAYS)
def test_a_gpu_gives_the_figures_of_the_cpu(tmp_path: Path, dynamic: bool, overrides: list[str]) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    case = TinyCase.write(tmp_path / "case", dynamic=dynamic, edges_per_bucket=60)
    settings = ["precision=float32", *(override.format(folder=case.root) for override in overrides)]
    on_cpu, on_gpu = (
        evaluate(
            load_config(case.config, settings),
            output=tmp_path / device,
            workers=1,
            device=device,
        )
        for device in ("cpu", "cuda")
    )

    if EXACT in overrides:
        for document in (on_cpu.document, on_gpu.document):
            document["metrics"].pop("both.loss", None)  # its exponentials are the hardware's
        assert on_cpu.document["metrics"] == on_gpu.document["metrics"]
        return
    for key, value in on_cpu.document["metrics"].items():
        assert value == pytest.approx(on_gpu.document["metrics"][key], rel=1e-3, abs=1e-3), key
