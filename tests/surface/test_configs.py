"""The example configs are complete: each evaluates a checkpoint of the demo graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.commands import metrics_of, run_main
from tests.kit.projects import write_demo


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "setting"),
    [
        ("eval.py", "sample_edges=100"),
        ("torchbiggraph.py", "sample_edges=100"),
        ("torchbiggraph.py", "pbg_semantics=True"),
    ],
)
def test_an_example_config_runs(config: str, setting: str, tmp_path: Path) -> None:
    write_demo(tmp_path)
    run = ("run", f"../configs/demo/{config}", "--output", "output", "-p", setting, "--workers", "1")

    assert run_main(*run, cwd=tmp_path / "demo").status == 0
    document = metrics_of(tmp_path / "demo" / "output")
    assert document["complete"]
    assert 0 < document["metrics"]["both.realistic.mean_reciprocal_rank"] <= 1
