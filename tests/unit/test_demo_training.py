"""scripts/train_demo.py: it learns, and its checkpoints are PyTorch-BigGraph's."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from pbgeval.monitor.records import read_history

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
build_demo_graph = importlib.import_module("build_demo_graph")
train_demo = importlib.import_module("train_demo")
Edge, Entity = build_demo_graph.Edge, build_demo_graph.Entity


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A graph that can be learned: function i calls those after it, and raises the class of its remainder."""
    edges = []
    for i in range(120):
        caller = Entity("function", f"f{i:03}")
        edges += [Edge(caller, "calls", Entity("function", f"f{(i + step) % 120:03}")) for step in (1, 2, 3)]
        edges.append(Edge(caller, "raises", Entity("class", f"c{i % 5}")))
    folder = tmp_path_factory.mktemp("graph")
    build_demo_graph.write_graph(folder, edges, num_partitions=2, min_entities=50, seed=0)
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    """The folder after two runs of the program: the real one and the control."""
    for options in ([], ["--shuffle-relations"]):
        command = [sys.executable, SCRIPTS / "train_demo.py", "--graph", folder, "--epochs", "2", *options]
        subprocess.run(command, check=True, capture_output=True)
    return folder


def train(folder: Path, num_epochs: int) -> tuple:
    graph = train_demo.load_graph(folder)
    generator = torch.Generator().manual_seed(7)
    model = train_demo.Model(graph.num_rows, 2, 8, generator)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    losses = [
        train_demo.train_epoch(model, graph, graph.edges_E3[:, 1], optimizer, generator) for _ in range(num_epochs)
    ]
    return model, losses


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_the_loss_falls_and_a_seed_gives_one_model(folder):
    model, losses = train(folder, 25)
    same_model, same_losses = train(folder, 25)

    assert losses[-1] < 0.8 * losses[0]
    assert losses == same_losses
    assert torch.equal(model.entities_ND, same_model.entities_ND)


def test_edges_point_to_the_rows_of_their_entities(folder):
    graph = train_demo.load_graph(folder)

    names = [None] * graph.num_rows
    for (entity_type, partition), start in graph.first_row.items():
        part = json.loads((folder / "entity" / f"entity_names_{entity_type}_{partition}.json").read_text())
        names[start : start + len(part)] = part
    for lhs, rel, rhs in graph.edges_E3.tolist():
        caller = int(names[lhs][1:])
        called = [f"f{(caller + step) % 120:03}" for step in (1, 2, 3)]
        assert names[rhs] in (called if rel == 0 else [f"c{caller % 5}"])


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


@pytest.mark.parametrize(
    ("name", "version"), [("checkpoint", 2), ("checkpoint_shuffled", 2), ("checkpoint_untrained", 0)]
)
def test_checkpoints_are_those_of_torchbiggraph(trained, name, version):
    checkpoint = trained / name

    assert f"{version}\n" == (checkpoint / "checkpoint_version.txt").read_text()
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["entities"]["function"] == {"num_partitions": 2, "featurized": False, "dimension": None}
    assert all((checkpoint / path).is_dir() for path in (config["entity_path"], *config["edge_paths"]))
    for entity_type, partition, size in (("class", 0, 5), ("function", 0, 60), ("function", 1, 60)):
        with h5py.File(checkpoint / f"embeddings_{entity_type}_{partition}.v{version}.h5") as file:
            assert file.attrs["format_version"] == 1
            assert (size, config["dimension"]) == file["embeddings"].shape
            assert file["embeddings"].dtype == np.float32
            assert file["embeddings"].chunks is None
            assert np.isfinite(file["embeddings"][:]).all()
    with h5py.File(checkpoint / f"model.v{version}.h5") as file:
        assert file.attrs["format_version"] == 1
        for relation in (0, 1):
            for parameter in ("real", "imag"):
                dataset = file[f"model/relations/{relation}/operator/rhs/{parameter}"]
                assert (config["dimension"] // 2,) == dataset.shape
                assert f"rhs_operators.{relation}.{parameter}" == dataset.attrs["state_dict_key"]


@pytest.mark.slow  # with the tests above in another process, it would train anew
def test_the_three_checkpoints_differ(trained):
    tables = []
    for name in ("checkpoint.v2", "checkpoint_shuffled.v2", "checkpoint_untrained.v0"):
        folder, version = name.split(".")
        with h5py.File(trained / folder / f"embeddings_function_0.{version}.h5") as file:
            tables.append(file["embeddings"][:])

    assert not any(np.array_equal(tables[i], tables[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_the_config_has_every_key_of_torchbiggraph(trained):
    config = json.loads((trained / "checkpoint" / "config.json").read_text())

    keys = {"init_path", "eval_num_batch_negs", "distributed_init_method", "half_precision", "relation_lr", "verbose"}
    assert keys <= config.keys()
    assert len(config) == 45  # as many as torchbiggraph 1.0.1.dev0 writes


def test_a_share_of_the_edges_is_held_out_and_watched(trained):
    history = read_history(trained / "monitor", pytest.fail)
    graph = train_demo.load_graph(trained)
    _, rest = train_demo.monitor_of(graph, None, 0.05, 0)

    assert 2 == len(history.passes)
    assert len(graph.edges_E3) - history.passes[0].average.count == len(rest.edges_E3)
    first, last = (of.details for of in history.passes)
    assert first.before != first.after
    assert first.after == last.before
    assert [0.0] * 2 == [of.details.lost or 0.0 for of in history.passes]  # all buckets are trained at once


def test_without_a_holdout_all_edges_are_trained_on(folder):
    graph = train_demo.load_graph(folder)
    monitor, rest = train_demo.monitor_of(graph, None, 0.0, 0)

    assert not monitor.is_on
    assert torch.equal(graph.edges_E3, rest.edges_E3)
