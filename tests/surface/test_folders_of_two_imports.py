"""Folders of two imports that have as many entities: the numbers of one mean other names in the other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pbgeval.storage.names_digests import NAMES_DIGESTS
from tests.kit.commands import Done, run_main
from tests.kit.names import write_tsv

ENTITIES, RELATIONS = "abcde", "rs"
EDGES = [("e", "s", "a"), ("d", "r", "b"), ("c", "s", "e"), ("b", "r", "d"), ("e", "s", "c"), ("a", "r", "d")]
EDGE_OPTIONS = ("--edges", "test=test.tsv")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted model, and the graph that import-graph makes of its edges: by degree, so in another order."""
    path = tmp_path_factory.mktemp("imports")
    source = np.random.default_rng(0)
    for name, labels, of in (("entity", ENTITIES, "entities"), ("relation", RELATIONS, "relations")):
        (path / "tables").mkdir(exist_ok=True)
        np.save(path / "tables" / f"{name}.npy", source.normal(size=(len(labels), 4)).astype(np.float32))
        (path / f"{of}.tsv").write_text("".join(f"{label}\n" for label in labels))
    (path / "tables" / "model.json").write_text('{"model": "complex"}')
    write_tsv(path / "test.tsv", EDGES)
    labels = ("--entities", "entities.tsv", "--relations", "relations.tsv")
    for command in (
        ("import-model", "tables", "--output", "model", *EDGE_OPTIONS, *labels),
        ("import-graph", "--output", "graph", *EDGE_OPTIONS),
        ("import-graph", "--output", "same", "--dictionary", "model/entity", *EDGE_OPTIONS),
    ):
        done = run_main(*command, cwd=path)
        assert done.status == 0, done.err
    assert {len(json.loads((path / of).read_text())) for of in NAMES} == {len(ENTITIES)}
    return path


NAMES = ("model/entity/entity_names_all_0.json", "graph/entity/entity_names_all_0.json")


def run(folder: Path, output: str, *overrides: str) -> Done:
    options = [part for text in overrides for part in ("-p", text)]
    return run_main("run", "model/eval.py", "--workers", "1", "--output", output, *options, cwd=folder)


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        (("entity_path=graph/entity", "edge_paths=graph/test"), ["graph/entity", "graph/test"]),
        (("edge_paths=graph/test",), ["graph/test"]),
        (("filter_paths=graph/test",), ["graph/test"]),
        (("dictionary_path=graph/entity", "edge_paths=test.tsv"), ["graph/entity"]),
    ],
)
def test_another_import_is_refused_in_a_line(overrides: tuple[str, ...], refused: list[str], folder: Path) -> None:
    done = run(folder, "refused", *overrides)

    assert done.status == 1
    folders = [fault.partition(": this folder is of another import than ")[0] for fault in done.faults]
    assert folders == [str(folder / name) for name in refused]
    assert all("it numbers entities of type all differently" in fault for fault in done.faults)


def test_folders_with_the_same_names_and_folders_without_digests_are_accepted(folder: Path) -> None:
    assert run(folder, "same_names", "edge_paths=same/test", "entity_path=same/../model/entity").status == 0
    assert run(folder, "own").status == 0
    (folder / "graph" / "test" / NAMES_DIGESTS).rename(folder / "kept")
    try:
        assert run(folder, "unknown", "edge_paths=graph/test").status == 0
    finally:
        (folder / "kept").rename(folder / "graph" / "test" / NAMES_DIGESTS)


def test_a_damaged_file_of_digests_is_named(folder: Path) -> None:
    path = folder / "same" / "test" / NAMES_DIGESTS
    path.write_text('{"entities": 3, "relations": null}')

    assert f"{NAMES_DIGESTS}: expected digests of names" in run(folder, "damaged", "edge_paths=same/test").fault
