"""`compare` tells the same edges from others, whatever form they have: an array, a .npy file, text, buckets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pbgeval import Edges, EvalConfig, Report, compare, evaluate
from pbgeval.errors import OutputError, StorageError
from pbgeval.report.run_differences import differences_of
from tests.kit import pbg_files

NUM_ENTITIES, NUM_RELATIONS, NUM_EDGES = 30, 3, 200
POLICIES = ("all", "partition", "sampled")
Table = np.ndarray  # int64 (E, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of vectors by name."""
    root = tmp_path_factory.mktemp("doors")
    source = np.random.default_rng(3)
    (root / "model").mkdir()
    for name, number in (("entity", NUM_ENTITIES), ("relation", NUM_RELATIONS)):
        np.save(root / "model" / f"{name}.npy", source.normal(size=(number, 4)).astype(np.float32))
    for name, number in (("entities", NUM_ENTITIES), ("relations", NUM_RELATIONS)):
        (root / "model" / f"{name}.tsv").write_text("".join(f"{name} {index}\n" for index in range(number)))
    (root / "model" / "model.json").write_text('{"model": "distmult"}')
    return root


def edges_of(seed: int) -> Table:
    source = np.random.default_rng(seed)
    return np.stack([source.integers(0, high, NUM_EDGES) for high in (NUM_ENTITIES, NUM_RELATIONS, NUM_ENTITIES)], 1)


EDGES = edges_of(0)
KNOWN = np.concatenate([edges_of(1), EDGES[:20]])


def as_npy(edges: Table, path: Path) -> Path:
    np.save(path.with_suffix(".npy"), edges)
    return path.with_suffix(".npy")


def as_text(edges: Table, path: Path) -> Path:
    lines = (f"entities {lhs}\trelations {rel}\tentities {rhs}\n" for lhs, rel, rhs in edges)
    path.with_suffix(".tsv").write_text("".join(lines))
    return path.with_suffix(".tsv")


def as_buckets(edges: Table, path: Path, **layout: Any) -> Path:
    pbg_files.write_edges(path, (0, 0), *edges.T, **layout)
    return path


def as_packed(edges: Table, path: Path) -> Path:
    return as_buckets(edges, path, layout=pbg_files.LAYOUTS["gzip_shuffle"], dtype="<i4")


FORMS: dict[str, Callable[[Table, Path], Path] | None] = {
    "array": None,
    "npy": as_npy,
    "text": as_text,
    "buckets": as_buckets,
    "packed": as_packed,
}


def run(folder: Path, output: Path, form: str, edges: Table = EDGES, known: Table = KNOWN, **keys: Any) -> Path:
    keys = {"model": str(folder / "model"), "save_ranks": True, "num_batch_negs": 5, "num_uniform_negs": 5} | keys
    write, given = FORMS[form], None
    output.parent.mkdir(parents=True, exist_ok=True)
    if write is None:
        given = Edges(edges, known=[known])
    else:
        for key, of_key in (("edge_paths", edges), ("filter_paths", known)):
            keys[key] = [str(write(of_key, output.with_name(f"{output.name}-{key}")))]
    evaluate(EvalConfig(**keys), edges=given, output=output, workers=1, device="cpu")
    return output


def evaluated(output: Path) -> dict[str, Any]:
    return json.loads((output / "metrics.json").read_text())["provenance"]["evaluated"]


def refusal(a: Path, b: Path) -> str:
    with pytest.raises(OutputError) as refused:
        compare(a, b)
    (fault,) = refused.value.faults
    return fault


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_edges_are_the_same_in_every_form(folder: Path, tmp_path: Path, policy: str) -> None:
    outputs = [run(folder, tmp_path / form, form, candidates=policy) for form in FORMS]

    assert len({json.dumps(evaluated(output)) for output in outputs}) == 1
    for a, b in combinations(outputs, 2):
        found = compare(a, b)
        assert {of.difference for of in found.differences} == {0.0}
        assert (found.clusters, len(found.relations), found.num_queries) == ("key", NUM_RELATIONS, 2 * NUM_EDGES)


@pytest.mark.parametrize("policy", ["all", *(pytest.param(of, marks=pytest.mark.slow) for of in POLICIES[1:])])
def test_edges_and_known_edges_that_differ_are_told(folder: Path, tmp_path: Path, policy: str) -> None:
    changed = [EDGES.copy() for _ in range(3)]
    changed[0][100, 2] = (changed[0][100, 2] + 1) % NUM_ENTITIES
    changed[1][[100, 101], 0] = changed[1][[101, 100], 0]
    changed[2][100] = changed[2][101]
    changed += [np.concatenate([EDGES, EDGES[:1]]), EDGES[:-1]]
    a = run(folder, tmp_path / "a", "buckets", candidates=policy)

    for at, edges in enumerate(changed):
        b = run(folder, tmp_path / f"changed {at}", "array", edges, candidates=policy)
        assert "they evaluated different edges, or number entities or relations differently: edge_paths[0]" in (
            refusal(a, b)
        )
    shuffled = run(folder, tmp_path / "shuffled", "npy", EDGES[::-1], candidates=policy)
    assert ": they evaluated the same edges in another order: edge_paths[0];" in refusal(a, shuffled)
    for known in (KNOWN[:-1], np.concatenate([EDGES, KNOWN[::-1], KNOWN[:9]])):  # evaluated edges are known in any case
        assert compare(a, run(folder, tmp_path / f"known {len(known)}", "text", known=known, candidates=policy))
    other = run(folder, tmp_path / "other known", "array", known=edges_of(5), candidates=policy)
    assert ": filter_paths differ: the same queries have other known answers;" in refusal(a, other)


def test_edges_are_read_where_they_are_left_and_as_any_run_has_them(folder: Path, tmp_path: Path) -> None:
    a, b = (run(folder, tmp_path / name, form, candidates="all") for name, form in (("a", "buckets"), ("b", "text")))
    given = compare(a, b, edge_paths=[tmp_path / "b-edge_paths.tsv"])  # B's form, and A comes first
    assert str(given) == str(compare(a, b))

    shutil.rmtree(tmp_path / "a-edge_paths")
    assert str(given) == str(compare(a, b))
    other = as_npy(EDGES[::-1], tmp_path / "other")
    with pytest.raises(StorageError, match=r"other.npy: expected the edges that were evaluated as edge path 0"):
        compare(a, b, edge_paths=[other])


def test_a_sample_of_edges_and_restrictions_have_digests_of_what_is_evaluated(folder: Path, tmp_path: Path) -> None:
    for policy in POLICIES:
        for name, keys in (("sample", {"sample_edges": 60}), ("restricted", {"restrict_relations": ["relations 1"]})):
            a = run(folder, tmp_path / policy / name / "a", "buckets", candidates=policy, **keys)
            b = run(folder, tmp_path / policy / name / "b", "array", candidates=policy, **keys)
            rows = Report.read(a).document["num_edges"]
            assert 0 < rows < NUM_EDGES
            assert evaluated(a) == evaluated(b)
            assert {of.difference for of in compare(a, b).differences} == {0.0}
    whole = run(folder, tmp_path / "whole", "buckets", candidates="all")
    assert evaluated(whole)["edges"] != evaluated(tmp_path / "all" / "restricted" / "a")["edges"]


def test_files_tell_known_edges_that_choose_candidates_and_edges_of_features(folder: Path, tmp_path: Path) -> None:
    keys = {"candidates": "all", "type_constraint": "observed"}
    a = run(folder, tmp_path / "a", "buckets", **keys)
    other = edges_of(5)
    told = ": filter_paths and train_paths differ: 1 only in A, 1 only in B"
    assert f"{told};" in refusal(a, run(folder, tmp_path / "b", "npy", known=other, **keys)).replace(" (", ";")
    # Entities that are features have no numbers, and so no digests.
    given, unlike = (json.loads((a / "metrics.json").read_text())["provenance"] for _ in range(2))
    del given["evaluated"], unlike["evaluated"]
    assert differences_of(given, unlike, filtered=True) == []
    unlike["data"]["edges"][0]["0_0"] = "another"
    unlike["data"]["filter"] = []
    assert differences_of(given, unlike, filtered=True) == [
        "they evaluated different edges: edge_paths[0], bucket 0_0",
        "filter_paths and train_paths differ: 1 only in A, 0 only in B (the same edges in an array, a .npy file and "
        "another file count as different; give both runs one form)",
    ]
