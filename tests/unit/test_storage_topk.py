"""The best candidates of each query, as HDF5 and as a table with names."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from pbgeval.errors import OutputError
from pbgeval.notation import ENDS, Bucket, Side
from pbgeval.storage import entities as labels_module
from pbgeval.storage import topk as topk_module
from pbgeval.storage.edges import BucketFile, find_buckets
from pbgeval.storage.entities import EntityLabels
from pbgeval.storage.row_files import QueryFile, create_query_file
from pbgeval.storage.topk import (
    TABLE_COLUMNS,
    Vocabulary,
    write_topk_table,
)
from tests.kit.pbg_files import write_edges
from tests.kit.refusals import fault_of

BUCKET = Bucket(0, 1)
SIZES = {("user", 0): 3, ("user", 1): 2, ("item", 0): 4}
NAMES = {("user", 0): ["ann", "bob", "cy"], ("user", 1): ["dee", "eve"]}
SIDES = tuple(ENDS)


def vocabulary(folder: Path, names: dict[tuple[str, int], list[str]] = NAMES, budget_bytes: int = 10**6) -> Vocabulary:
    for (entity_type, partition), of_partition in names.items():
        (folder / f"entity_names_{entity_type}_{partition}.json").write_text(json.dumps(of_partition))
    return Vocabulary(
        EntityLabels(folder, SIZES, budget_bytes),
        relations=["likes", "knows"],
        types=[("user", "item"), ("user", "user")],
        num_partitions={"user": 2, "item": 1},
    )


def edges(folder: Path) -> BucketFile:
    """Ann likes item 3, cy knows eve, bob knows dee."""
    write_edges(folder / "edges", BUCKET, [0, 2, 1], [0, 1, 1], [3, 1, 0])
    return find_buckets(folder / "edges", 2, 2)[BUCKET]


def best(
    entities: list[list[int]], partitions: list[list[int]], scores: list[list[float]], known: object = 0
) -> dict[str, np.ndarray]:
    shape = np.shape(entities)
    return {
        "entity": np.array(entities, np.int64),
        "partition": np.array(partitions, np.int64),
        "score": np.array(scores, np.float64),
        "known": np.broadcast_to(np.array(known, bool), shape),
    }


def create(folder: Path, num_edges: int = 3, k: int = 2, sides: tuple[Side, ...] = SIDES) -> QueryFile:
    return create_query_file(folder, "topk", 0, BUCKET, num_edges, sides, "abc", k=k)


def table(path: Path) -> list[list[str]]:
    lines = path.read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    return [line.split("\t") for line in lines]


@pytest.mark.parametrize("cells_at_a_time", [1, 4, 10**6])
def test_the_table_has_a_line_per_candidate_with_names_where_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells_at_a_time: int
) -> None:
    monkeypatch.setattr(topk_module, "_CELLS_AT_A_TIME", cells_at_a_time)
    file = create(tmp_path)
    heads = best(
        [[0, 1], [1, 1], [-1, -1]], [[0, 1], [1, 0], [-1, -1]], [[2.5, -0.1], [math.inf, 1e-9], [math.nan] * 2]
    )
    tails = best([[3, 0], [1, -1], [1, 0]], [[0, 0], [1, -1], [0, 1]], [[1, 1], [-3, math.nan], [0.1, 0]], [0, 1])
    file.write_side(Side.LHS, 0, heads)
    file.write_side(Side.RHS, 0, tails)

    path = write_topk_table(file, edges(tmp_path), vocabulary(tmp_path))

    assert tmp_path / "topk" / "0" / "topk_0_1.tsv" == path
    assert [" ".join(row) for row in table(path)] == [
        "row side head relation tail place candidate score known is_true",
        "0 head ann likes item:0:3 1 ann 2.5 0 1",
        "0 head ann likes item:0:3 2 eve -0.1 0 0",
        "0 tail ann likes item:0:3 1 item:0:3 1.0 0 1",
        "0 tail ann likes item:0:3 2 item:0:0 1.0 1 0",
        "1 head cy knows eve 1 eve inf 0 0",
        "1 head cy knows eve 2 bob 1e-09 0 0",
        "1 tail cy knows eve 1 eve -3.0 0 1",
        "2 tail bob knows dee 1 bob 0.1 0 0",
        "2 tail bob knows dee 2 dee 0.0 1 1",
    ]
    assert sorted(found.name for found in path.parent.iterdir()) == ["topk_0_1.h5", "topk_0_1.tsv"]


def test_names_that_would_break_the_table_are_escaped(tmp_path: Path) -> None:
    odd = ["a\tb\nc", "back\\slash\r", "é\ud800 \u2028"]
    file = create(tmp_path, k=1, sides=(Side.LHS,))
    file.write_side(Side.LHS, 0, best([[0], [1], [2]], [[0]] * 3, [[0.0]] * 3))

    rows = table(write_topk_table(file, edges(tmp_path), vocabulary(tmp_path, {("user", 0): odd})))[1:]
    assert [len(TABLE_COLUMNS)] * 3 == [len(row) for row in rows]
    assert (odd[:2], "é\\\\ud800 \u2028") == ([ast.literal_eval(f"'{row[6]}'") for row in rows[:2]], rows[2][6])


def test_dynamic_relations_share_one_pair_of_types(tmp_path: Path) -> None:
    write_edges(tmp_path / "edges", BUCKET, [0], [5], [1])
    words = Vocabulary(EntityLabels(tmp_path, SIZES), [str(rel) for rel in range(6)], [("user", "user")], {"user": 2})
    file = create(tmp_path, num_edges=1, k=1, sides=(Side.LHS,))
    file.write_side(Side.LHS, 0, best([[0]], [[0]], [[0.5]]))

    path = write_topk_table(file, find_buckets(tmp_path / "edges", 2, 2)[BUCKET], words)
    assert " ".join(table(path)[1]) == "0 head user:0:0 5 user:1:1 1 user:0:0 0.5 0 1"


@pytest.mark.parametrize("budget_bytes", [0, 60, 10**6])
def test_names_are_right_whatever_is_kept_of_them_and_read_once_if_all_fit(tmp_path: Path, budget_bytes: int) -> None:
    partitions, rows = np.array([1, 0, 1, 0]), np.array([1, 2, 0, 2])
    with mock.patch.object(labels_module, "read_entity_names", side_effect=labels_module.read_entity_names) as read:
        entities = vocabulary(tmp_path, budget_bytes=budget_bytes).entities
        for _ in range(3):
            assert (
                entities.look_up("user", partitions, rows),
                entities.look_up("item", np.array([0]), np.array([3])),
                entities.look_up("item", partitions[:0], rows[:0]),
            ) == (["eve", "cy", "dee", "cy"], ["item:0:3"], [])

    assert (read.call_count == 3) == (budget_bytes == 10**6)


def test_names_of_another_graph_and_files_that_cannot_be_written_are_faults(tmp_path: Path) -> None:
    file = create(tmp_path)
    file.write_side(Side.LHS, 0, best([[0, 0]], [[0, 0]], [[0.5, 0.5]]))
    (tmp_path / "other").write_text("")

    def write_table(names: dict[tuple[str, int], list[str]] = NAMES) -> object:
        return write_topk_table(file, edges(tmp_path), vocabulary(tmp_path, names))

    fault = fault_of(lambda: write_table({("user", 0): ["ann", "bob"]}))
    assert "entity_names_user_0.json: expected 3 names, one per entity, found 2; " in fault
    assert [path.name for path in file.path.parent.iterdir()] == ["topk_0_1.h5"]
    file.path.with_suffix(".tsv").mkdir()
    assert "topk_0_1.tsv: cannot write this file: Is a directory" in fault_of(write_table)
    assert "topk_0_1.h5: cannot write this file: Not a dir" in fault_of(lambda: create(tmp_path / "other"), OutputError)
