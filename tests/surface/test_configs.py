"""The example configs are complete: each evaluates a checkpoint of the demo graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.commands import flags, metrics_of, run_main
from tests.kit.projects import write_demo

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "configs" / "demo"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    write_demo(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ("eval.py", ["sample_edges=100"]),
        ("torchbiggraph.py", ["sample_edges=100"]),
        ("torchbiggraph.py", ["pbg_semantics=True"]),
    ],
)
def test_an_example_config_runs(config: str, settings: list[str], checkout: Path, tmp_path: Path) -> None:
    arguments = ("--config", checkout / "configs" / "demo" / config, "--output", tmp_path / "output", *flags(settings))

    done = run_main(*arguments, "--workers", "1", cwd=checkout / "demo")

    assert done.status == 0, done.err
    document = metrics_of(tmp_path / "output")
    assert document["complete"]
    assert 0 < document["metrics"]["both.realistic.mean_reciprocal_rank"] <= 1
