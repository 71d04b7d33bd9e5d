"""The example configs are complete: each evaluates a checkpoint of the demo graph."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.commands import REPOSITORY, metrics_of, run_main
from tests.kit.projects import write_demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    write_demo(folder)
    return folder / "demo"


def test_no_config_of_the_demo_hides_a_package() -> None:
    # Python looks in the folder of a program first, and its processes in that of PyTorch-BigGraph's config file.
    configs = {path.stem for path in (REPOSITORY / "pbgeval" / "examples" / "demo_graph").glob("*.py")}

    assert configs == {"eval", "pbg_config"}
    assert not configs & {"pbgeval", "torch", "torchbiggraph", *sys.stdlib_module_names}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "setting"),
    [
        ("eval.py", "sample_edges=100"),
        ("pbg_config.py", "sample_edges=100"),
        ("pbg_config.py", "pbg_semantics=True"),
    ],
)
def test_an_example_config_runs(config: str, setting: str, demo: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    run = ("run", f"{config}", "--output", str(output), "-p", setting, "--workers", "1")

    assert run_main(*run, cwd=demo).status == 0
    document = metrics_of(output)
    assert document["complete"]
    assert 0 < document["metrics"]["both.realistic.mean_reciprocal_rank"] <= 1
