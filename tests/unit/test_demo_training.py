"""scripts/train_demo.py: it learns, and its checkpoints are PyTorch-BigGraph's."""

import importlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from pbgeval.monitor.records import read_history
from tests.kit.commands import run_main

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
train_demo = importlib.import_module("train_demo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A graph that can be learned: function i calls those after it, and raises the class of its remainder."""
    folder = tmp_path_factory.mktemp("graph")
    edges = [(f"f{i:03}", "calls", f"f{(i + step) % 120:03}") for i in range(120) for step in (1, 2, 3)]
    edges += [(f"f{i:03}", "raises", f"c{i % 5}") for i in range(120)]
    (folder / "train.tsv").write_text("".join("\t".join(edge) + "\n" for edge in edges))
    (folder / "types.tsv").write_text("calls\tfunction\tfunction\nraises\tfunction\tclass\n")
    flags = ("--types", "types.tsv", "--partitions", "function=2", "--edges", "train=train.tsv", "--quiet")
    done = run_main("import-graph", "--output", "graph", *flags, cwd=folder)
    assert done.status == 0, done.err
    return folder / "graph"


@pytest.fixture(scope="module")
def trained(folder):
    command = [sys.executable, SCRIPTS / "train_demo.py", "--graph", folder, "--types", folder.parent / "types.tsv"]
    subprocess.run([*command, "--epochs", "2"], check=True, capture_output=True)
    return folder


def load(folder: Path):
    return train_demo.load_graph(folder, folder.parent / "types.tsv")


def train(folder: Path, num_epochs: int) -> tuple:
    graph = load(folder)
    generator = torch.Generator().manual_seed(7)
    model = train_demo.Model(graph.num_rows, 2, 8, generator)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    losses = [train_demo.train_epoch(model, graph, optimizer, generator) for _ in range(num_epochs)]
    return model, losses


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_the_loss_falls_and_a_seed_gives_one_model(folder):
    model, losses = train(folder, 25)
    same_model, same_losses = train(folder, 25)

    assert losses[-1] < 0.8 * losses[0]
    assert losses == same_losses
    assert torch.equal(model.entities_ND, same_model.entities_ND)


@pytest.mark.slow
def test_edges_point_to_the_rows_of_their_entities(folder):
    graph = load(folder)

    names = [None] * graph.num_rows
    for (entity_type, partition), start in graph.first_row.items():
        path = folder / "entity" / f"entity_names_{entity_type}_{partition}.json"
        for row, name in enumerate(json.loads(path.read_text())):
            names[start + row] = name
    assert len(graph.edges_E3) == 480
    for lhs, rel, rhs in graph.edges_E3.tolist():
        caller = int(names[lhs][1:])
        called = [f"f{(caller + step) % 120:03}" for step in (1, 2, 3)]
        assert names[rhs] in (called if rel == 0 else [f"c{caller % 5}"])


@pytest.mark.slow
def test_the_operator_is_a_complex_product_and_has_its_adjoint():
    generator = torch.Generator().manual_seed(0)
    model = train_demo.Model(1, 3, 6, generator)
    with torch.no_grad():
        model.real_RD.normal_(generator=generator)
        model.imag_RD.normal_(generator=generator)
    lhs, rhs = torch.randn(2, 4, 6, generator=generator)
    relations = torch.tensor([0, 1, 2, 1])

    transformed = model.transform(rhs, relations, adjoint=False)
    product = torch.complex(*rhs.chunk(2, dim=-1)) * torch.complex(model.real_RD, model.imag_RD)[relations]
    moved = (model.transform(lhs, relations, adjoint=True) * rhs).sum(dim=-1)

    torch.testing.assert_close(torch.cat((product.real, product.imag), dim=-1), transformed)
    torch.testing.assert_close((lhs * transformed).sum(dim=-1), moved)


@pytest.mark.slow
def test_the_checkpoint_is_that_of_torchbiggraph(trained):
    checkpoint = trained / "checkpoint"

    assert (checkpoint / "checkpoint_version.txt").read_text() == "2\n"
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["entities"]["function"] == {"num_partitions": 2}
    assert all((checkpoint / path).is_dir() for path in (config["entity_path"], *config["edge_paths"]))
    for entity_type, partition, size in (("class", 0, 5), ("function", 0, 60), ("function", 1, 60)):
        with h5py.File(checkpoint / f"embeddings_{entity_type}_{partition}.v2.h5") as file:
            rows_ND = file["embeddings"][:]
            assert (1, (size, config["dimension"])) == (file.attrs["format_version"], rows_ND.shape)
            assert (np.float32, True) == (rows_ND.dtype, np.isfinite(rows_ND).all())
    with h5py.File(checkpoint / "model.v2.h5") as file:
        assert file.attrs["format_version"] == 1
        for relation, parameter in itertools.product((0, 1), ("real", "imag")):
            dataset = file[f"model/relations/{relation}/operator/rhs/{parameter}"]
            assert ((config["dimension"] // 2,), np.float32) == (dataset.shape, dataset.dtype)
            assert dataset.attrs["state_dict_key"] == f"rhs_operators.{relation}.{parameter}"


@pytest.mark.slow
def test_another_output_folder_gets_the_same_checkpoint(trained, tmp_path):
    command = [sys.executable, SCRIPTS / "train_demo.py", "--graph", trained, "--types", trained.parent / "types.tsv"]
    subprocess.run([*command, "--epochs", "2", "--output", tmp_path / "x"], check=True, capture_output=True)

    checkpoints = [folder / "checkpoint" for folder in (trained, tmp_path / "x")]
    names = [sorted(path.name for path in folder.iterdir()) for folder in checkpoints]
    assert names[0] == names[1]
    config = json.loads((checkpoints[1] / "config.json").read_text())
    assert (checkpoints[1] / config["entity_path"]).samefile(trained / "entity")
    assert (checkpoints[1] / config["edge_paths"][0]).samefile(trained / "train")
    assert (tmp_path / "x" / "monitor" / "training_stats.json").is_file()


@pytest.mark.slow
def test_a_share_of_the_edges_is_held_out_and_watched(trained, tmp_path):
    history = read_history(trained / "monitor", pytest.fail)
    graph = load(trained)
    _, rest = train_demo.make_monitor(graph, tmp_path, 0.05, 0)

    assert (len(history.passes), len(graph.edges_E3) - history.passes[0].average.count) == (2, len(rest.edges_E3))
    first, last = (of.details for of in history.passes)
    assert first.before != first.after
    assert first.after == last.before
