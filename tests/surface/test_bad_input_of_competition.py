"""Bad input about who competes and what is kept: a line per fault, exit status 1, nothing written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from pbgeval.notation import Bucket
from tests import pbg_files
from tests.surface.test_bad_input import refused, refused_once
from tests.tiny_checkpoint import TinyCase

ALL = ("-p", "candidates=all")


@pytest.fixture
def case(tmp_path: Path) -> TinyCase:
    return TinyCase.write(tmp_path / "case")


def write_candidates(case: TinyCase, *, less_rows: int = 0, bad_id: int | None = None, with_all: bool = True) -> None:
    folder = case.root / "given"
    folder.mkdir()
    for path in sorted((case.root / "edges").glob("edges_*.h5"))[: None if with_all else -1]:
        with h5py.File(path) as edges:
            num_edges = len(edges["rel"]) - less_rows
        with h5py.File(folder / path.name.replace("edges", "candidates"), "w") as file:
            for side in ("head", "tail"):
                ids = np.zeros((num_edges, 3), np.int64)
                if bad_id is not None:
                    ids[1, 2] = bad_id
                file[side] = ids
                file[f"{side}_partition"] = np.zeros_like(ids)


@pytest.mark.parametrize("key", ["filter_paths", "train_paths"])
def test_known_edges_of_another_number_of_partitions(case: TinyCase, key: str) -> None:
    shutil.copytree(case.root / "edges", case.root / "known")
    pbg_files.write_edges(case.root / "known", Bucket(3, 0), [0], [0], [0])

    fault = refused_once(case, *ALL, "-p", f"{key}=known")

    assert "known: expected only edges_<l>_<r>.h5 with l in 0..2 and r in 0..2, found edges_3_0.h5" in fault


@pytest.mark.parametrize(("column", "value"), [("lhs", 99), ("rel", 7), ("rhs", -1)])
@pytest.mark.parametrize("candidates", ["all", "partition", "sampled"])
def test_a_known_edge_out_of_range(case: TinyCase, column: str, value: int, candidates: str) -> None:
    shutil.copytree(case.root / "edges", case.root / "known")
    with h5py.File(case.root / "known" / "edges_1_0.h5", "r+") as file:
        file[column][4] = value

    fault = refused_once(case, "-p", f"candidates={candidates}", "-p", "filter_paths=known")

    assert f"known/edges_1_0.h5: dataset {column}, row 4: expected an id in 0.." in fault
    assert f"got {value}" in fault


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("restrict_relations=nobody", ("restrict_relations", "nobody")),
        ("restrict_entities=user:0:99", ("restrict_entities", "99")),
        ("restrict_entities=user:7:0", ("restrict_entities", "7")),
        ("restrict_entities=alice", ("restrict_entities", "alice")),
        ("head_candidates=user:0:17", ("head_candidates", "17")),
    ],
)
def test_a_name_of_nothing(case: TinyCase, override: str, parts: tuple[str, ...]) -> None:
    fault = refused_once(case, *ALL, "-p", override)

    for part in parts:
        assert part in fault


def test_several_unknown_names_come_at_once(case: TinyCase) -> None:
    faults = refused(case, *ALL, "-p", "restrict_entities=alice,bob", "-p", "restrict_relations=nobody")

    assert 3 == len(faults)


def test_a_known_name_is_offered_for_a_misspelt_one(case: TinyCase) -> None:
    assert "knows" in refused_once(case, *ALL, "-p", "restrict_relations=know")


def test_a_group_of_an_unknown_relation(case: TinyCase) -> None:
    (case.root / "groups.json").write_text(json.dumps({"good": ["knows"], "bad": ["hates"]}))

    fault = refused_once(case, *ALL, "-p", "breakdowns=groups", "-p", "relation_groups=groups.json")

    assert "hates" in fault


def test_given_candidates_that_are_not_aligned(case: TinyCase) -> None:
    write_candidates(case, less_rows=1)

    faults = refused(case, "-p", "candidate_path=given")

    assert 9 == len(faults)
    assert "candidates_0_0.h5" in faults[0]
    assert "aligned" in faults[0]


@pytest.mark.parametrize("bad_id", [99, -1])
def test_given_candidates_out_of_range(case: TinyCase, bad_id: int) -> None:
    write_candidates(case, bad_id=bad_id)

    fault = refused(case, "-p", "candidate_path=given")[0]

    assert "candidates_0_0.h5: dataset head: row 1, column 2: expected a row of its partition" in fault
    assert f"found {bad_id}" in fault


def test_a_missing_file_of_candidates(case: TinyCase) -> None:
    write_candidates(case, with_all=False)

    assert "candidates_2_2.h5" in refused_once(case, "-p", "candidate_path=given")


def test_too_little_memory_says_how_much_is_needed(case: TinyCase) -> None:
    fault = refused_once(case, *ALL, "-p", "max_memory=10MB")

    assert fault.startswith("max_memory: expected at least ")
    assert "got 10MB" in fault
