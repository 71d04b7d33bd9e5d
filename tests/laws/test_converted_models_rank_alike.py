"""A model in memory, in place and converted to partitions has the same ranks, but for near-ties of rounded scores."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from pbgeval import Edges, EvalConfig, edge_scorer, evaluate, load_config
from pbgeval.importing.model import EdgeFiles, import_model
from pbgeval.models.opening import open_model
from pbgeval.notation import Bucket, Side
from pbgeval.storage.row_files import RANK_COLUMNS
from tests.contracts.scorer_contract import assert_ranks, evaluated, some_edges
from tests.examples import crossed
from tests.kit.commands import lacking, run_main
from tests.kit.names import buckets_in, unknown_in
from tests.saved_ranks import read_ranks
from tests.systems_reference import DGLKE, DglkeFolder, LibkgeCheckpoint, write_labels

NUM_ENTITIES = 41
BORDERS = [0, 13, 27]  # of three partitions
ROUNDED = ("TransE_l2", "TransE", "RotatE")


def write_edges(folder: Path) -> dict[str, Path]:
    paths = {name: folder / f"{name}.npy" for name in ("test", "train")}
    for path, number in zip(paths.values(), (20, 90), strict=True):
        np.save(path, np.array(some_edges(NUM_ENTITIES, 4, number, seed=number)))
    return paths


def ranks_of_rows(output: Path, edges: np.ndarray, borders: list[int]) -> dict[tuple[int, Side], tuple[int, ...]]:
    """The counts of each edge's queries, wherever its bucket has put it."""
    buckets_E = np.stack([np.searchsorted(borders, edges[:, column], "right") - 1 for column in (0, 2)], axis=1)
    found = {}
    for bucket in np.unique(buckets_E, axis=0).tolist():
        rows = np.flatnonzero((buckets_E == bucket).all(axis=1)).tolist()
        for side, columns in read_ranks(output, 0, Bucket(*bucket)).columns.items():
            of_rows = zip(*(columns[name].tolist() for name in RANK_COLUMNS), strict=True)
            found |= {(row, side): counts for row, counts in zip(rows, of_rows, strict=True)}
    return found


@pytest.mark.one_case
@pytest.mark.parametrize("name", crossed(DGLKE, quick=2))
def test_in_place_in_memory_and_in_three_partitions_ranks_are_equal(name: str, tmp_path: Path) -> None:
    model, paths = DglkeFolder(tmp_path / "model", name, labels=True), write_edges(tmp_path)
    test, train = (np.load(path) for path in paths.values())
    import_model(
        open_model(model.folder), tmp_path / "converted", 3, EdgeFiles({name: [path] for name, path in paths.items()})
    )
    scores = [[[model.score(lhs, rel, rhs) for rhs in range(41)] for rel in range(4)] for lhs in range(41)]
    table = torch.tensor(scores, dtype=torch.float64)
    scorer = edge_scorer(lambda lhs, rel, rhs: table[lhs, rel, rhs], num_entities=41, num_relations=4)

    report = evaluated(model.folder, {}, test.tolist(), train.tolist(), tmp_path / "in_place")
    converted_config = load_config(tmp_path / "converted" / "eval.py", ["save_ranks=True"])
    converted = evaluate(converted_config, output=tmp_path / "out", workers=1)
    in_memory = evaluate(
        EvalConfig(candidates="all", save_ranks=True),
        output=tmp_path / "memory",
        model=scorer,
        edges=Edges(test, train=[train]),
    )

    of_parts = ranks_of_rows(tmp_path / "out", test, BORDERS)
    assert ranks_of_rows(tmp_path / "in_place", test, [0]) == of_parts  # the same rows and the same kernels
    keys = ("metrics", "raw_metrics", "macro_metrics", "relation_macro_metrics")
    assert {key: report.document[key] for key in keys} == {key: converted.document[key] for key in keys}
    edges, known = ([tuple(edge) for edge in of.tolist()] for of in (test, train))
    assert_ranks(tmp_path / "memory", edges, model.score, NUM_ENTITIES, known)
    if name in ROUNDED:
        assert_ranks(tmp_path / "in_place", edges, model.score, NUM_ENTITIES, known, 1e-4)
    else:
        mean_ranks = {of.document["metrics"]["both.realistic.mean_rank"] for of in (in_memory, converted)}
        assert (of_parts, len(mean_ranks)) == (ranks_of_rows(tmp_path / "memory", test, [0]), 1)


def test_edges_with_times_are_filtered_by_time_as_in_place(tmp_path: Path) -> None:
    LibkgeCheckpoint(tmp_path / "x.pt", "complex")
    source, paths = np.random.default_rng(5), {name: tmp_path / f"{name}.npy" for name in ("test", "train")}
    for path, number in zip(paths.values(), (30, 300), strict=True):
        np.save(path, source.integers(0, (3, 3, 37, 6), (number, 4)))
    files = EdgeFiles({name: [path] for name, path in paths.items()})
    import_model(open_model(tmp_path / "x.pt"), tmp_path / "converted", 3, files)

    test, train = map(str, paths.values())
    config = EvalConfig(
        model=str(tmp_path / "x.pt"), edge_paths=[test], filter_paths=[train], candidates="all", time_window=1
    )
    in_place = evaluate(config, workers=1)
    converted = evaluate(load_config(tmp_path / "converted" / "eval.py", ["time_window=1"]), workers=1)

    for name in ("metrics", "time_filtered_metrics"):
        assert converted.document[name] == in_place.document[name]
    assert converted.time_filtered["mrr"] < converted["mrr"]


def test_the_command_converts_and_the_config_it_writes_evaluates(tmp_path: Path) -> None:
    LibkgeCheckpoint(tmp_path / "x.pt", "complex", reciprocal=True)
    write_labels(tmp_path / "entity_ids.del", [f"e{index}" for index in range(37)])
    write_labels(tmp_path / "relation_ids.del", ["likes", "knows", "is a"])
    (tmp_path / "test.del").write_text("0\t1\t2\n36\t2\t0\n5\t0\t5\n")
    (tmp_path / "train.tsv").write_text("e0\tknows\te3\ne1\tis a\te2\n")
    arguments = ["import-model", "x.pt", "--output", "converted", "--partitions", "4"]

    printed = run_main(*arguments, "--edges", "test=test.del", cwd=tmp_path).out
    labelled = ["--edges", "train=train.tsv", "--entities", "entity_ids.del", "--relations", "relation_ids.del"]
    assert run_main(*arguments[:3], "labelled", *labelled, cwd=tmp_path).status == 0
    done = run_main("--config", "converted/eval.py", "--workers", "1", "--output", "out", cwd=tmp_path)

    sizes = "37 entities of dimension 8 in 4 partitions, 3 relations (libkge)"
    assert not lacking(printed, sizes, "3 edges of test.del")
    assert (done.status, lacking(done.out, "3 edges, unfiltered")) == (0, [])
    assert buckets_in(tmp_path / "labelled" / "train") == {(0, 0): [(0, 1, 3), (1, 2, 2)]}
    assert '    "likes",\n' in (tmp_path / "converted" / "entity" / "dynamic_rel_names.json").read_text()


def test_edges_with_unknown_labels_are_skipped_counted_and_listed(tmp_path: Path) -> None:
    LibkgeCheckpoint(tmp_path / "x.pt", "complex")
    write_labels(tmp_path / "entities", [f"e{index}" for index in range(37)])
    write_labels(tmp_path / "relations", ["likes", "knows", "is a"])
    (tmp_path / "test.tsv").write_text("e0\tknows\te3\nnew\tknows\te1\ne1\teats\tnew\ne1\tis a\te2\n")
    labels = ["--edges", "test=test.tsv", "--entities", "entities", "--relations", "relations"]

    lines = run_main("import-model", "x.pt", "--output", "converted", *labels, cwd=tmp_path).out.splitlines()
    skipped = "converted/test/unknown.tsv: 2 edges skipped (1 unknown entity and 1 unknown relation)"
    assert not lacking(lines, "converted/test: 2 edges of test.tsv", skipped)
    unknown = {("entity:all", "new"): 1, ("relation", "eats"): 1}
    assert unknown_in(tmp_path / "converted" / "test" / "unknown.tsv") == unknown
    assert buckets_in(tmp_path / "converted" / "test") == {(0, 0): [(0, 1, 3), (1, 2, 2)]}


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--partitions", "38"], "--partitions 38: must be from 1 to 37, the number of entities"),
        (["--edges", "test"], "--edges test: expected NAME=FILE, for example test=test.tsv"),
        (["--edges", "checkpoint=test.txt"], "--edges checkpoint: checkpoint cannot be the name of a folder of edges"),
        (["--edge-columns", "hht"], "--edge-columns hht: expected h, r and t once each"),
        (["--edges", "test=absent.txt"], "absent.txt: cannot read this file of edges: No such file or directory"),
        (["--edges", "test=two.txt"], "two.txt:2: expected 3 columns separated by tabs, found 2; set --edge-columns"),
        (["--edges", "test=four.txt"], "four.txt:1: expected 3 columns separated by tabs, found 4; set --edge-columns"),
        (
            ["--edges", "test=spaces.txt"],
            "spaces.txt:1: expected 3 columns separated by tabs, found 1; columns must be",
        ),
        (
            ["--edges", "test=far.txt"],
            "--edges test: 1 of 2 edges have ids that the model lacks (1 unknown entity, for example entity '37' of "
            "type all): x.pt has 37 rows: ids 0 to 36",
        ),
        (
            ["--edges", "test=far.txt", "--edge-columns", "htr"],
            "--edges test: 1 of 2 edges have ids that the model lacks (1 unknown relation, for example relation '37'): "
            "x.pt has 3 rows: ids 0 to 2; the columns are read as head, tail, relation (--edge-columns changes this)",
        ),
        (
            ["--edges", "test=words.txt"],
            "test: none of 1 edges has all of its names in the dictionary x.pt; for example, relation 'b' is missing "
            "(x.pt has 3 rows: ids 0 to 2); the columns are read as head, relation, tail (--edge-columns",
        ),
        (
            ["--edges", "test=near.txt", "--entities", "labels", "--unknown", "refuse"],
            "--edges test: 1 of 2 edges have names that are not in x.pt (1 unknown entity, for example entity 'e36x' "
            "of type all; did you mean 'e36'?); --unknown skip leaves such edges out",
        ),
        (["--edges", "test=neer.txt"], "neer.txt: cannot read this file of edges: No such file or directory; did you"),
        (["--edges", "test=empty.txt"], "empty.txt: there are no edges in this file"),
        (["--edges", "test=edges.json"], "edges.json: unknown extension '.json'; edges are read from .tsv"),
        (
            ["--edges", "test=far.txt", "--edges", "test=far.npy"],
            "--edges test: .npy and .del files have numbers of rows",
        ),
        (
            ["--edges", "test=far.npy", "--edges", "test=timed.npy"],
            "timed.npy: expected 3 columns as in far.npy, got 4",
        ),
        (["--edges", "test=early.npy"], "early.npy: edge 1: the time is not an integer from 0 to 2^63 - 1"),
        (["--entities", "few"], "few: 1 label for 37 ids, and none for id 1"),
        (
            ["--edges", "test=far.txt", "--entities", "twice"],
            "twice:2: expected each label once, found 'x' again, as in line 1",
        ),
        (["--entities", "words.txt"], "words.txt:1: expected id<TAB>label"),
    ],
)
def test_what_cannot_be_converted_is_one_line(arguments: list[str], fault: str, tmp_path: Path) -> None:
    LibkgeCheckpoint(tmp_path / "x.pt", "complex")
    write_labels(tmp_path / "labels", [f"e{index}" for index in range(37)])
    write_labels(tmp_path / "few", ["x"])
    write_labels(tmp_path / "twice", ["x"] * 37)
    files = {
        "two": "0\t1\t2\n1\t2\n",
        "four": "0\t1\t2\t3\n",
        "spaces": "0 1 2\n",
        "far": "0\t1\t2\n0\t2\t37\n",
        "words": "a\tb\tc\n",
        "near": "e1\t0\te2\ne36x\t0\te1\n",
        "empty": "",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.txt").write_text(text)
    (tmp_path / "edges.json").write_text("{}")
    for name, edges in (("far", [[0, 0, 0]]), ("timed", [[0, 0, 0, 3]]), ("early", [[0, 0, 0, 3], [0, 0, 0, -1]])):
        np.save(tmp_path / f"{name}.npy", np.array(edges))

    command = ("import-model", "x.pt", "--quiet", "--output", "converted")
    assert run_main(*command, *arguments, cwd=tmp_path).fault.startswith(fault)
    assert not (tmp_path / "converted").exists()


def test_a_folder_with_files_is_not_written_to(tmp_path: Path) -> None:
    LibkgeCheckpoint(tmp_path / "x.pt", "complex")
    (tmp_path / "converted").mkdir()
    (tmp_path / "converted" / "mine").write_text("x")

    done = run_main("import-model", "x.pt", "--output", "converted", cwd=tmp_path)

    assert done.err.startswith("converted: the folder is not empty; choose a new or empty one")
    assert [path.name for path in (tmp_path / "converted").iterdir()] == ["mine"]


@pytest.mark.parametrize("at_a_time", [1, 3, 1000])
@pytest.mark.parametrize("num_partitions", [1, 2, 5])
@pytest.mark.parametrize("suffix", [".npy", ".txt", "_with_time.npy"])
def test_buckets_hold_the_edges_in_their_order_whatever_the_blocks(
    at_a_time: int, num_partitions: int, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pbgeval.importing.model.EDGES_AT_A_TIME", at_a_time)
    model = LibkgeCheckpoint(tmp_path / "x.pt", "complex")
    size = len(model.entity)
    halves = [some_edges(size, 3, 20, seed=seed) for seed in (3, 4)]
    paths = [tmp_path / f"{name}{suffix}" for name in ("first", "second")]
    for path, edges in zip(paths, halves, strict=True):
        if suffix == "_with_time.npy":
            edges[:] = [(*edge, 2**53 + 1 - at) for at, edge in enumerate(edges)]
        if suffix != ".txt":
            np.save(path, np.array(edges, np.int32 if suffix == ".npy" else np.int64))
        else:
            path.write_text("".join(f"{lhs}\t{rel}\t{rhs}\r\n" for lhs, rel, rhs in edges))

    import_model(open_model(tmp_path / "x.pt"), tmp_path / "converted", num_partitions, EdgeFiles({"test": paths}))

    starts = [size * part // num_partitions for part in range(num_partitions + 1)]
    expected = defaultdict(list)
    for lhs, rel, rhs, *time in [*halves[0], *halves[1]]:
        left, right = (max(part for part in range(num_partitions) if starts[part] <= at) for at in (lhs, rhs))
        expected[left, right].append((lhs - starts[left], rel, rhs - starts[right], *time))
    assert expected == buckets_in(tmp_path / "converted" / "test")
