"""The example configs are complete: each evaluates a small graph in the demo's layout."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pbgeval import evaluate, load_config

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGS = sorted((REPOSITORY / "configs").glob("*.py"))
sys.path.insert(0, str(REPOSITORY / "scripts"))
build_demo_graph = importlib.import_module("build_demo_graph")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with configs/ and a small demo/, trained for an epoch."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(REPOSITORY / "configs", folder / "configs", ignore=shutil.ignore_patterns("__pycache__"))
    functions = [build_demo_graph.Entity("function", f"f{i:03}") for i in range(60)]
    classes = [build_demo_graph.Entity("class", f"c{i}") for i in range(5)]
    edges = [build_demo_graph.Edge(one, "calls", functions[(i + 1) % 60]) for i, one in enumerate(functions)]
    edges += [build_demo_graph.Edge(one, "raises", classes[i % 5]) for i, one in enumerate(functions)]
    build_demo_graph.write_graph(folder / "demo", edges, num_partitions=2, min_entities=20, seed=0)
    train = [sys.executable, REPOSITORY / "scripts" / "train_demo.py", "--graph", folder / "demo", "--epochs", "1"]
    subprocess.run(train, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_an_example_config_runs(config: Path, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout / "demo")

    report = evaluate(load_config(checkout / "configs" / config.name), output=tmp_path / "output", workers=1)

    assert report.document["complete"]
    assert 0 < report["mrr"] <= 1
    assert len(report.document["edge_paths"]) == len(load_config(checkout / "configs" / config.name).edge_paths)


def test_there_are_examples_of_every_kind_of_config() -> None:
    assert {"sampled", "partition", "pytorch_biggraph"} <= {path.stem for path in CONFIGS}
