"""What evaluated edges share with each other and with training edges."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from attrs import evolve

from pbgeval import edge_scorer, evaluate, evaluate_triples, load_config
from tests.kit.case import TinyCase

SCORER = edge_scorer(lambda lhs, rel, rhs: (lhs + rel - rhs).float(), num_entities=6, num_relations=2)
TEST = [(0, 0, 1), (0, 0, 1), (1, 0, 0), (4, 1, 5)]


@pytest.mark.parametrize(
    ("train", "num_in_training", "num_entities_unseen"),
    [
        ([(2, 1, 3)], 0, 4),
        ([(0, 1, 1)], 0, 2),  # another relation
        ([(0, 0, 1), (2, 0, 5)], 2, 1),
        ([*TEST, (3, 1, 2)], 4, 0),
    ],
)
def test_edges_and_entities_of_training_are_counted(
    train: list[tuple[int, int, int]], num_in_training: int, num_entities_unseen: int
) -> None:
    report = evaluate_triples(SCORER, TEST, train=[train])

    assert report.document["edge_diagnostics"] == {
        "num_edges": 4,
        "num_repeated": 1,
        "num_in_training": num_in_training,
        "num_entities": 4,
        "num_entities_unseen": num_entities_unseen,
    }


@pytest.mark.parametrize(
    "keys", [{"time_window": 0}, {"known_until": "query"}, {"breakdowns": ["time"], "time_bin": 2}]
)
@pytest.mark.parametrize("seed", range(4))
def test_a_fact_at_another_time_is_another_edge(seed: int, keys: dict[str, Any]) -> None:
    test, train, more = repeated_facts(seed)

    found = evaluate_triples(SCORER, test, train=[train, more], **keys).document["edge_diagnostics"]

    trained = {*map(tuple, [*train, *more])}
    assert (found["num_repeated"], found["num_in_training"]) == (
        len(test) - len({*map(tuple, test)}),
        sum(tuple(edge) in trained for edge in test),
    )
    triples = {edge[:3] for edge in trained}
    assert 0 < found["num_in_training"] < sum(tuple(edge[:3]) in triples for edge in test)


@pytest.mark.parametrize("seed", range(4))
def test_a_training_edge_without_a_time_is_the_same_at_any(seed: int) -> None:
    """Only where training edges need no times; without a use for times, an edge is its head, relation and tail."""
    test, train, more = repeated_facts(seed)
    without = [edge[:3] for edge in more]
    taking = edge_scorer(
        lambda lhs, rel, rhs, time: (lhs + rel - rhs).float(), num_entities=6, num_relations=2, takes_time=True
    )

    found, static = (
        evaluate_triples(scorer, test, train=[train, without]).document["edge_diagnostics"]
        for scorer in (taking, SCORER)
    )

    trained, timeless = {*map(tuple, train)}, {*map(tuple, without)}
    leaked = [tuple(edge) in trained or tuple(edge[:3]) in timeless for edge in test]
    triples = [tuple(edge[:3]) for edge in test]
    every = timeless | {edge[:3] for edge in trained}
    assert (found["num_repeated"], found["num_in_training"]) == (len(test) - len({*map(tuple, test)}), sum(leaked))
    assert (static["num_repeated"], static["num_in_training"]) == (
        len(test) - len({*triples}),
        sum(triple in every for triple in triples),
    )
    assert found["num_in_training"] < static["num_in_training"]


def repeated_facts(seed: int) -> list[list[list[int]]]:
    """Three lists of edges of few facts, at few times: many are equal, many at other times alone."""
    draw = random.Random(seed)
    facts = [[draw.randrange(6), draw.randrange(2), draw.randrange(6)] for _ in range(20)]
    return [[[*draw.choice(facts), draw.choice([0, 3, 4, 2**62])] for _ in range(size)] for size in (60, 20, 5)]


def test_folders_are_told_by_time_and_any_number_of_workers_counts_alike(tmp_path: Path) -> None:
    """Buckets of PyTorch-BigGraph; one of the two training folders has no times."""
    case = TinyCase.write(tmp_path / "case", dynamic=True)
    case.give_times()
    trained = TinyCase.write(tmp_path / "trained", dynamic=True)  # the same facts
    shutil.copytree(trained.root / "edges", tmp_path / "later")
    for at, path in enumerate(sorted((tmp_path / "later").glob("*.h5"))):
        with h5py.File(path, "r+") as file:
            file["time"] = np.arange(len(file["rel"])) % 4 + at % 2  # the times of the evaluated edges in every other
    timeless = tmp_path / "timeless"
    timeless.mkdir()
    [*_, last] = sorted((trained.root / "edges").glob("*.h5"))
    shutil.copy(last, timeless)
    edges = {path.name: edges_at_times(path) for path in sorted((case.root / "edges").glob("*.h5"))}
    later = {path.name: edges_at_times(path) for path in sorted((tmp_path / "later").glob("*.h5"))}
    leaked = {(name, edge) for name, of_file in later.items() for edge in of_file}
    num_leaked = sum(name == last.name or (name, edge) in leaked for name, of_file in edges.items() for edge in of_file)

    config = evolve(
        load_config(case.config),
        filter_paths=[],
        train_paths=[str(tmp_path / "later"), str(timeless)],
        breakdowns=["time"],
        time_bin=1,
        candidates="all",
    )
    found = [
        evaluate(config, output=tmp_path / str(workers), workers=workers, device="cpu").document["edge_diagnostics"]
        for workers in (1, 2)
    ]

    assert found[0] == found[1]
    every = [(name, edge) for name, of_file in edges.items() for edge in of_file]
    assert (found[0]["num_repeated"], found[0]["num_in_training"]) == (len(every) - len({*every}), num_leaked)
    assert 0 < num_leaked < len(every)


def edges_at_times(path: Path) -> list[tuple[int, ...]]:
    with h5py.File(path) as file:
        columns = [file[name][()].tolist() for name in ("lhs", "rel", "rhs", "time")]
    return list(zip(*columns, strict=True))
