"""The example configs are complete: each evaluates a checkpoint of the demo graph."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.commands import REPOSITORY, metrics_of, run_main
from tests.kit.projects import write_demo


def test_no_config_of_the_demo_hides_a_package() -> None:
    # Python looks in the folder of a program first, and its processes in that of PyTorch-BigGraph's config file.
    configs = {path.stem for path in (REPOSITORY / "pbgeval" / "examples" / "demo_graph").glob("*.py")}

    assert configs == {"eval", "pbg_config"}
    assert not configs & {"pbgeval", "torch", "torchbiggraph", *sys.stdlib_module_names}


@pytest.mark.slow
def test_the_config_of_pytorch_biggraph_runs(tmp_path: Path) -> None:
    """The other one is run by README.md: test_pages_run.py."""
    write_demo(tmp_path)
    run = ("run", "pbg_config.py", "--output", "output", "-p", "pbg_semantics=True", "--workers", "1")

    assert run_main(*run, cwd=tmp_path / "demo").status == 0
    document = metrics_of(tmp_path / "demo" / "output")
    assert document["complete"]
    assert 0 < document["metrics"]["both.realistic.mean_reciprocal_rank"] <= 1
