"""pbgeval.examples.training: its files. That it learns is seen in the table of tests/surface/test_quickstart.py."""

import itertools
import json
import re
from pathlib import Path

import h5py
import pytest

from pbgeval.examples import training
from pbgeval.monitor.records import read_history
from tests.kit.commands import run_main
from tests.kit.groups import run_script


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A graph that can be learned: function i calls those after it, and raises the class of its remainder."""
    folder = tmp_path_factory.mktemp("graph")
    edges = [(f"f{i:03}", "calls", f"f{(i + step) % 120:03}") for i in range(120) for step in (1, 2, 3)]
    edges += [(f"f{i:03}", "raises", f"c{i % 5}") for i in range(120)]
    (folder / "train.tsv").write_text("".join("\t".join(edge) + "\n" for edge in edges))
    (folder / "types.tsv").write_text("calls\tfunction\tfunction\nraises\tfunction\tclass\n")
    flags = ("--types", "types.tsv", "--partitions", "function=2", "--edges", "train=train.tsv", "--quiet")
    assert run_main("import-graph", "--output", "graph", *flags, cwd=folder).printed == ""
    return folder / "graph"


@pytest.fixture(scope="module")
def trained(folder):
    train(folder)
    return folder


def train(folder: Path, *flags) -> None:
    graph = ("--graph", folder, "--types", folder.parent / "types.tsv")
    run_script(Path(training.__file__), *graph, "--epochs", 2, *flags, cwd=folder)


def load(folder: Path):
    return training.load_graph(folder, folder.parent / "types.tsv")


@pytest.mark.slow
def test_the_checkpoint_is_that_of_torchbiggraph(trained):
    checkpoint = trained / "checkpoint"
    config = json.loads((checkpoint / "config.json").read_text())

    lines = dict(re.findall(r"^  (\S.*?)  +(.+)$", run_main("inspect", ".", cwd=checkpoint).printed, re.MULTILINE))
    half = f"{config['dimension'] // 2} values for 2 relations"
    expected = {
        "kind": "checkpoint",
        "version": "2",
        "type class": f"5 entities in 1 partition; dimension {config['dimension']}, float32",
        "type function": f"120 entities in 2 partitions of 60; dimension {config['dimension']}, float32",
        "parameters": f"operator/rhs/imag: {half}; operator/rhs/real: {half}",
    }
    assert expected.items() <= lines.items()
    assert config["entities"]["function"] == {"num_partitions": 2}
    assert all((checkpoint / path).is_dir() for path in (config["entity_path"], *config["edge_paths"]))
    with h5py.File(checkpoint / "model.v2.h5") as file:
        for relation, parameter in itertools.product((0, 1), ("real", "imag")):
            dataset = file[f"model/relations/{relation}/operator/rhs/{parameter}"]
            assert dataset.attrs["state_dict_key"] == f"rhs_operators.{relation}.{parameter}"


@pytest.mark.slow
def test_another_output_folder_gets_the_same_checkpoint(trained, tmp_path):
    train(trained, "--output", tmp_path / "x")

    checkpoint = tmp_path / "x" / "checkpoint"
    assert {path.name for path in (trained / "checkpoint").iterdir()} == {path.name for path in checkpoint.iterdir()}
    config = json.loads((checkpoint / "config.json").read_text())
    assert (checkpoint / config["entity_path"]).resolve() == (trained / "entity").resolve()
    assert (checkpoint / config["edge_paths"][0]).resolve() == (trained / "train").resolve()
    assert (tmp_path / "x" / "monitor" / "training_stats.json").is_file()


@pytest.mark.slow
def test_a_share_of_the_edges_is_held_out_and_watched(trained, tmp_path):
    history = read_history(trained / "monitor", pytest.fail)
    graph = load(trained)
    _, rest = training.make_monitor(graph, tmp_path, 0.05, 0)

    assert (len(history.passes), len(graph.edges_E3) - history.passes[0].average.count) == (2, len(rest.edges_E3))
    first, last = (of.details for of in history.passes)
    assert first.before != first.after
    assert first.after == last.before
