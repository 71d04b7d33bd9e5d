"""Figures from saved ranks: those of the evaluation to the bit, and any cut of them equals a slow reference."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbgeval import EvalConfig, Report, evaluate
from pbgeval.errors import DataError, EvalError, OutputError, StorageError
from pbgeval.notation import Bucket
from pbgeval.report.summary import summary_of
from pbgeval.results import saved_run
from pbgeval.results.output import OutputDirectory, digest_of
from pbgeval.storage.row_files import RANK_COLUMNS
from tests.examples import examples
from tests.kit import pbg_files
from tests.kit.graphs import Relation, TinyGraph, tiny_graphs
from tests.kit.on_disk import write_graph
from tests.null_owner import null_owner

NOT_SAVED = ("num_queries_topped_up", "num_copies_excluded", "num_undefined_losses")

few = settings(max_examples=examples(6), suppress_health_check=list(HealthCheck))


def without_scores(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key.split(".")[-1] not in ("auc", "loss")}


def comparable(report: Report, *, with_macro: bool = True) -> list[Any]:
    """All of a report that ranks determine."""
    document = report.document
    diagnostics = {
        label: {name: value for name, value in of_label.items() if name not in NOT_SAVED}
        for label, of_label in document["diagnostics"].items()
    }
    paths = [{**of_path, "metrics": without_scores(of_path["metrics"])} for of_path in document["edge_paths"]]
    macro = [document["macro_metrics"], document["relation_macro_metrics"]] if with_macro else []
    return [
        [document[key] for key in ("schema_version", "complete", "filter", "headline", "num_edges", "num_queries")],
        without_scores(document["metrics"]),
        without_scores(document.get("raw_metrics", {})),
        paths,
        diagnostics,
        *macro,
        # A bucket without edges has a row where it has a file, and some of the edges alone have fewer files.
        [without_scores(row) for row in report.rows["buckets"] if row["num_edges"]],
        list(report.rows["rank_histogram"]),
    ]


def as_text(rows: tuple[Mapping[str, Any], ...]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


CANDIDATES: dict[str, dict[str, Any]] = {
    "all": {},
    "partition": {},
    "sampled": {"num_batch_negs": 2, "num_uniform_negs": 3},
}
TABLES = {"relation": "relations", "entity_types": "entity_types", "groups": "relation_groups"}


@pytest.mark.slow
@few
@pytest.mark.parametrize("candidates", CANDIDATES)
@given(graph=tiny_graphs(max_edges=12, max_partitions=2), draw=st.data())
def test_the_same_question_has_the_same_answer_to_the_bit(candidates: str, graph: TinyGraph, draw: st.DataObject):
    """Asked of the whole run, and of some edges as if those had been evaluated alone, read in small blocks."""
    filtered = candidates != "sampled"
    names = [str(rel) if graph.dynamic else relation.name for rel, relation in enumerate(graph.relations)]
    groups = {"a": [0], "b": draw.draw(st.lists(st.sampled_from(range(len(names))), min_size=1, unique=True))}
    keys: dict[str, Any] = {
        "candidates": candidates,
        "save_ranks": True,
        "compute_loss": draw.draw(st.booleans(), "loss") and candidates != "all",
        "breakdowns": list(TABLES),
        "hits_at": [3, 1],
        "relation_prediction": filtered and draw.draw(st.booleans(), "relations"),
        **CANDIDATES[candidates],
        **draw.draw(st.sampled_from([{}, {"disable_lhs_negs": True}, {"disable_rhs_negs": True}])),
    }
    paths = [graph.buckets] * draw.draw(st.integers(1, 2), "edge paths")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "groups.json").write_text(json.dumps({key: [names[rel] for rel in of] for key, of in groups.items()}))
        keys["relation_groups"] = str(folder / "groups.json")
        known = [graph.buckets] if filtered else []
        config = write_graph(graph, folder / "data", more_edge_paths=paths[1:], filter_edges=known, **keys)
        evaluated = evaluate(config, output=folder / "out", workers=1, device="cpu")
        question = {"edge_paths": config.edge_paths, "breakdowns": list(TABLES), "relation_groups": groups}
        for report in (evaluated, Report.read(folder / "out")):
            found, alone = report.recompute(**question), report.recompute()

            assert_the_same(evaluated, found)
            assert {None} == {value for key, value in found.document["metrics"].items() if key.endswith(".auc")}
            assert "both.loss" not in found.document["metrics"]
            assert {found.document["diagnostics"]["both"][name] for name in NOT_SAVED} == {None}
            assert (comparable(evaluated, with_macro=False), None, None, ("buckets", "rank_histogram")) == (
                comparable(alone, with_macro=False),
                alone.document["macro_metrics"],
                alone.document["relation_macro_metrics"],
                alone.tables,
            )
        if not filtered:
            return
        kept = draw.draw(st.sets(st.sampled_from([*edges_of(graph), None])), "kept edges")
        hits_at = draw.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True))
        with_known = draw.draw(st.booleans(), "filtered")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(saved_run, "ROWS_AT_A_TIME", draw.draw(st.sampled_from([1, 2, 5]), "rows"))
            cut = evaluated.recompute(
                keep=keep_of(kept), hits_at=hits_at, filter="filtered" if with_known else "raw", **question
            )
        few_edges = {bucket: [e for e in edges if (bucket, *e) in kept] for bucket, edges in graph.buckets.items()}
        config = write_graph(
            replace(graph, buckets=few_edges),
            folder / "cut",
            more_edge_paths=[few_edges] * (len(paths) - 1),
            filter_edges=known if with_known else [],
            **keys | {"hits_at": hits_at},
        )
        assert_the_same(evaluate(config, output=folder / "out of cut", workers=1, device="cpu"), cut)
        assert found.document["provenance"]["digest"] != cut.document["provenance"]["digest"]


def assert_the_same(evaluated: Report, found: Report) -> None:
    assert comparable(evaluated) == comparable(found)
    for name in TABLES.values():
        assert [*evaluated.rows[name]] == [*found.rows[name]]
        assert (evaluated.path / f"{name}.csv").read_text() == as_text(found.rows[name])


def edges_of(graph: TinyGraph) -> list[tuple[Any, ...]]:
    return [(bucket, *edge) for bucket, edges in graph.buckets.items() for edge in edges]


def keep_of(kept: set[Any]) -> Callable[..., np.ndarray]:
    def keep(path: int, bucket: Bucket, lhs: np.ndarray, rel: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        assert {np.dtype(np.int64)} == {array.dtype for array in (lhs, rel, rhs)}
        return np.array([(bucket, *edge) in kept for edge in np.stack([lhs, rel, rhs], 1).tolist()], bool)

    return keep


# A graph whose saved counts are set by the tests

USERS, TAGS = (4, 3), (5,)
RELATIONS = (("user", "user"), ("user", "tag"), ("tag", "user"))
TYPES = {"user": USERS, "tag": TAGS}
EDGES: list[dict[tuple[int, int], list[tuple[int, int, int]]]] = [
    {
        (0, 0): [(0, 0, 1), (0, 0, 2), (1, 1, 4), (3, 2, 1), (0, 0, 1), (3, 2, 1)],
        (0, 1): [(0, 0, 0), (0, 1, 4), (3, 2, 1)],
        (1, 0): [(0, 0, 1)],
        (1, 1): [],
    },
    {(0, 0): [(0, 0, 2), (3, 2, 1)], (0, 1): [], (1, 0): [(0, 1, 0), (4, 2, 3), (0, 1, 4)], (1, 1): [(2, 1, 1)]},
]
PLACES = [
    (path_index, bucket, row)
    for path_index, buckets in enumerate(EDGES)
    for bucket in sorted(buckets)
    for row in range(len(buckets[bucket]))
]


def tiny_graph() -> TinyGraph:
    rows = np.random.default_rng(3).integers(-4, 5, (20, 4)) / 4
    taken = iter(rows.tolist())
    return TinyGraph(
        relations=[Relation(f"r\r\n{i}", lhs, rhs, "none", {}, {}) for i, (lhs, rhs) in enumerate(RELATIONS)],
        embeddings={name: [[next(taken) for _ in range(n)] for n in sizes] for name, sizes in TYPES.items()},
        global_embeddings={},
        buckets=EDGES[0],
    )


class SavedCase(NamedTuple):
    config: EvalConfig
    output: Path

    @classmethod
    def write(cls, folder: Path, **more: Any) -> SavedCase:
        keys: dict[str, Any] = {"candidates": "all", "filter_edges": [EDGES[1]], "hits_at": [1, 2]}
        keys |= {"save_ranks": True, **more}
        config = write_graph(tiny_graph(), folder / "data", more_edge_paths=[EDGES[1]], **keys)
        evaluate(config, output=folder / "out", workers=1, device="cpu")
        return cls(config, folder / "out")

    @property
    def report(self) -> Report:
        return Report.read(self.output)

    def path(self, path_index: int = 0, bucket: tuple[int, int] = (0, 0)) -> Path:
        return self.output / "ranks" / str(path_index) / f"ranks_{bucket[0]}_{bucket[1]}.h5"

    def set_counts(self, queries: Mapping[tuple[str, int], Counts]) -> None:
        """Replace the saved counts of every query."""
        for path_index, buckets in enumerate(EDGES):
            for bucket, edges in buckets.items():
                if not edges:
                    continue
                with h5py.File(self.path(path_index, bucket), "r+") as file:
                    for side in file:
                        at = [queries[side, PLACES.index((path_index, bucket, row))] for row in range(len(edges))]
                        for index, column in enumerate(RANK_COLUMNS):
                            file[side][column][:] = [counts[index] for counts in at]


class Counts(NamedTuple):
    """As RANK_COLUMNS."""

    better: int
    tied: int
    num_candidates: int
    excluded_better: int
    excluded_tied: int
    num_excluded: int


@st.composite
def saved_counts(draw: st.DrawFn) -> Counts:
    if draw(st.integers(0, 3)) == 0:
        return Counts(0, 0, 0, 0, 0, 0)
    sizes = st.one_of(st.integers(0, 3), st.integers(0, 1 << 33))
    better, tied, beaten = draw(sizes), draw(sizes), draw(sizes)
    known = [draw(st.integers(0, min(size, draw(sizes)))) for size in (better, tied, beaten)]
    return Counts(better, tied, better + tied + beaten + 1, known[0], known[1], sum(known))


QUERIES = st.fixed_dictionaries({(side, at): saved_counts() for side in ("head", "tail") for at in range(len(PLACES))})


def key_of(side: str, at: int) -> tuple[Any, ...]:
    path_index, bucket, row = PLACES[at]
    lhs, rel, rhs = EDGES[path_index][bucket][row]
    name = RELATIONS[rel][1 if side == "head" else 0]
    partition = bucket[1 if side == "head" else 0] if len(TYPES[name]) > 1 else 0
    return side, rel, name, partition, rhs if side == "head" else lhs


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedCase:
    return SavedCase.write(tmp_path_factory.mktemp("saved"))


def test_a_keep_that_draws_lots_is_asked_once_so_key_counts_and_figures_agree(saved: SavedCase):
    generator = np.random.default_rng(0)
    saved.set_counts({(side, at): Counts(at, 0, 50, 0, 0, 0) for side in ("head", "tail") for at in range(len(PLACES))})
    drawn: list[bool] = []

    def keep(path: int, bucket: Bucket, lhs: np.ndarray, rel: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        drawn.extend((generator.random(len(rel)) < 0.5).tolist())
        return np.array(drawn[-len(rel) :])

    document = saved.report.recompute(edge_paths=saved.config.edge_paths, keep=keep).document

    kept = {at for at, is_kept in enumerate(drawn) if is_kept}
    assert (len(PLACES), len(kept)) == (len(drawn), document["num_edges"])
    frequency = Counter(key_of("tail", at) for at in kept)
    weight = {at: Fraction(1, frequency[key_of("tail", at)]) for at in kept}
    mean_rank = sum(weight[at] * (1 + at) for at in kept) / sum(weight.values())
    assert float(mean_rank) == document["macro_metrics"]["tail.realistic.mean_rank"]


def test_what_was_asked_is_in_the_provenance_and_its_digest(saved: SavedCase):
    report = saved.report
    digest = report.document["provenance"]["digest"]
    found = report.recompute(hits_at=[7, 2, 7], filter="raw", headline="best")
    provenance = dict(found.document["provenance"])

    assert {
        "digest": digest,
        "edges": None,
        "filter": "raw",
        "headline": "optimistic",
        "hits_at": [2, 7],
        "breakdowns": [],
        "metrics": ["auc", "rank"],
    } == provenance["recomputed"]
    its_digest = provenance.pop("digest")
    assert digest_of(provenance) == its_digest != digest
    assert report.run == found.run["evaluation"]
    assert (found["hits@7"], found.path) == (found.document["metrics"]["both.optimistic.hits_at_7"], None)
    json.loads(found.to_json())


def test_a_recomputed_report_can_be_written_and_read_again(saved: SavedCase, tmp_path: Path):
    report = saved.report.recompute(edge_paths=saved.config.edge_paths, breakdowns=["relation"])
    output = OutputDirectory(tmp_path / "cut", null_owner())
    output.claim(report.document["provenance"], lambda: None, overwrite=False)
    output.write(report, summary_of(report.document))

    assert report.to_dict() == Report.read(tmp_path / "cut").to_dict()


def test_a_raw_run_has_no_filtered_figures(tmp_path: Path):
    case = SavedCase.write(tmp_path, filter_edges=[])

    assert "raw_metrics" not in case.report.recompute(filter="raw").document
    with pytest.raises(ValueError, match="metrics: nothing of loss follows from saved ranks; evaluate again"):
        case.report.recompute(metrics=["loss"])
    with pytest.raises(OutputError, match="expected a filtered run, found a raw one"):
        case.report.recompute(filter="filtered")


def test_relations_without_a_row_in_relations_csv_are_called_by_their_ids(tmp_path: Path):
    case = SavedCase.write(tmp_path, breakdowns=[])

    rows = case.report.recompute(edge_paths=case.config.edge_paths, breakdowns=["relation"]).rows["relations"]

    assert [(str(rel), rel, *types) for rel, types in enumerate(RELATIONS)] == [
        (row["relation"], row["relation_id"], row["lhs_type"], row["rhs_type"]) for row in rows
    ]
    (case.output / "relations.csv").write_text("relation,id\na,b\n")
    with pytest.raises(OutputError, match=r"as an evaluation writes it, got: no column relation_id; evaluate"):
        case.report.recompute(edge_paths=case.config.edge_paths, breakdowns=["relation"])


def test_queries_whose_answer_may_not_compete_are_left_out_as_in_the_evaluation(tmp_path: Path):
    """Here every edge is ranked on the other side, so the evaluation's counts are found too."""
    case = SavedCase.write(tmp_path, head_candidates=["user:0:0", "user:1:0", "tag:0:3"])
    evaluated = case.report
    found = evaluated.recompute(edge_paths=case.config.edge_paths)

    assert found.document["diagnostics"]["head"]["num_queries_outside"] > 0
    for key in ("num_edges", "macro_metrics", "relation_macro_metrics"):
        assert evaluated.document[key] == found.document[key]
    assert without_scores(evaluated.document["metrics"]) == without_scores(found.document["metrics"])


def test_edges_that_restrictions_drop_count_nowhere(tmp_path: Path):
    case = SavedCase.write(tmp_path, restrict_relations=["rel:2"])
    found = case.report.recompute(edge_paths=case.config.edge_paths, breakdowns=["relation"])

    assert (
        sum(edge[1] == 2 for path in EDGES for edges in path.values() for edge in edges) == found.document["num_edges"]
    )
    for key in ("num_edges", "num_queries", "macro_metrics", "relation_macro_metrics"):
        assert case.report.document[key] == found.document[key]
    assert [row["relation_id"] for row in found.rows["relations"]] == [2]


def test_the_figures_of_a_sample_of_edges_are_still_called_so(saved: SavedCase):
    sample = {"unit": "edge", "num_units": 3}
    report = Report({**saved.report.document, "sample": sample}, path=saved.output)

    assert sample == report.recompute().document["sample"]
    assert "sample" not in saved.report.recompute().document


# Misuse


def keep_all(path: int, bucket: Bucket, lhs: np.ndarray, rel: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    return np.ones(len(rel), bool)


EDGE_FOLDERS = "edges of the case"
MISUSES: dict[str, tuple[dict[str, Any], str]] = {
    "a filter of another name": ({"filter": "both"}, "filter: expected 'raw' or 'filtered', got 'both'"),
    "a rank type of another name": ({"headline": "mean"}, "headline: expected .*realistic.*, got 'mean'"),
    "hits at 0": ({"hits_at": [1, 0]}, r"hits_at: expected ints from 1 to 2\*\*40, got 0"),
    "hits at one number": ({"hits_at": 20}, "hits_at: expected a list, got 20"),
    "keep without edges": ({"keep": keep_all}, "keep: needs edge_paths"),
    "a breakdown without edges": ({"breakdowns": ["relation"]}, "'relation' needs edge_paths"),
    "a breakdown of training edges": ({"breakdowns": ["cardinality"]}, "'cardinality' counts training edges"),
    "a breakdown of another name": (
        {"breakdowns": ["colour"]},
        "expected relation or .* or popularity, got",
    ),
    "popularity without training edges": (
        {"edge_paths": EDGE_FOLDERS, "breakdowns": ["popularity"]},
        "'popularity' needs train_paths",
    ),
    "the first k without edges": ({"topk_metrics": True}, "topk_metrics: needs edge_paths"),
    "training edges for nothing": ({"train_paths": ["x"]}, "train_paths: has no effect without 'popularity'"),
    "a folder too few": ({"edge_paths": ["x"]}, r"expected 2, in the order of the run \(edges0, edges1\), got 1"),
    "groups of nothing": ({"edge_paths": ["x", "y"], "breakdowns": ["groups"]}, "'groups' needs relation_groups"),
    "groups for nothing": ({"relation_groups": {"a": [0]}}, "has no effect without 'groups'"),
    "a group of names": (
        {"edge_paths": EDGE_FOLDERS, "breakdowns": ["groups"], "relation_groups": {"a": ["r0"]}},
        "relation_groups: expected {name: ids of relations}, got",
    ),
    "keep that answers in numbers": (
        {"edge_paths": EDGE_FOLDERS, "keep": lambda *_: np.ones(6)},
        r"keep: expected a bool for each of 6 edges, got float64 of shape \(6,\)",
    ),
}


@pytest.mark.parametrize("name", MISUSES)
def test_arguments_that_make_no_sense_are_refused_with_one_line(saved: SavedCase, name: str):
    arguments, message = MISUSES[name]
    if arguments.get("edge_paths") == EDGE_FOLDERS:
        arguments = {**arguments, "edge_paths": saved.config.edge_paths}

    with pytest.raises(ValueError, match=message) as refused:
        saved.report.recompute(**arguments)

    assert "\n" not in str(refused.value)


@pytest.fixture
def case(tmp_path: Path) -> Iterator[SavedCase]:
    return SavedCase.write(tmp_path)


def refused(case: SavedCase, kind: type[EvalError], message: str, **arguments: Any) -> None:
    with pytest.raises(kind, match=message) as raised:
        case.report.recompute(**arguments)
    assert "\n" not in str(raised.value)


def test_a_report_without_an_output_directory_has_no_ranks(saved: SavedCase):
    with pytest.raises(OutputError, match=r"this report has no output directory"):
        Report(saved.report.document).recompute()


def test_a_run_without_saved_ranks_is_refused(tmp_path: Path):
    refused(
        SavedCase.write(tmp_path, save_ranks=False),
        OutputError,
        r"has no ranks; evaluate again with save_ranks=True \(-p save_ranks=True\), and --overwrite",
    )


def test_a_run_that_is_unfinished_damaged_or_another_is_refused(case: SavedCase):
    document, metrics, whole = case.report.to_dict(), case.output / "metrics.json", case.path().read_bytes()
    with h5py.File(case.path(), "r+") as file:
        file.attrs["digest"] = "0" * 32
    refused(case, OutputError, r"ranks_0_0\.h5: expected ranks of this run .* found those of another \(digest 00000000")
    case.path().write_bytes(whole[: len(whole) // 2])
    refused(case, StorageError, "found a truncated one")
    case.path().unlink()
    refused(case, StorageError, r"ranks_0_0\.h5: expected an HDF5 file, found no such file")
    metrics.write_text(json.dumps({**document, "complete": False}))
    refused(case, OutputError, "expected a finished run, found an unfinished one")
    del document["provenance"]["settings"]["relations"]
    metrics.write_text(json.dumps(document))
    refused(case, OutputError, "expected the provenance of an evaluation")


IMPOSSIBLE = (
    Counts(-1, 0, 5, 0, 0, 0),
    Counts(3, 2, 5, 0, 0, 0),
    Counts(0, 0, -1, 0, 0, 0),
    Counts(1, 0, 0, 0, 0, 0),
    Counts(2, 0, 5, 3, 0, 3),
    Counts(2, 0, 5, 1, 0, 0),
    Counts(2, 1, 5, 0, 0, 3),
    Counts(2**62, 2**62, 2**63 - 1, 0, 0, 2**63 - 1),
)


def test_counts_that_no_query_has_are_refused(case: SavedCase):
    for counts in IMPOSSIBLE:
        with h5py.File(case.path(), "r+") as file:
            for column, value in counts._asdict().items():
                file["tail"][column][2] = value

        refused(case, StorageError, r"ranks_0_0\.h5: tail, row 2: expected counts of a query, found better")


def test_edges_that_are_not_those_of_the_run_are_refused(case: SavedCase):
    paths = case.config.edge_paths
    twice = [paths[1], paths[1]]
    refused(case, StorageError, "edges1: expected the edges that were evaluated as edge path 0", edge_paths=twice)
    pbg_files.write_edges(Path(paths[1]), (0, 1), [0], [0], [0])
    refused(
        case,
        StorageError,
        r"edge path 1 \(edges1\), found others, or another form of them, in bucket \(0, 1\)",
        edge_paths=paths,
    )
    refused(case, StorageError, "nowhere: no such file or folder", edge_paths=[paths[0], "nowhere"])


@pytest.mark.parametrize(("name", "values"), [("rel", [3, 0, 0, 0, 0, 0]), ("lhs", [-1, 0, 0, 0, 0, 0])])
def test_ids_out_of_range_are_refused(case: SavedCase, monkeypatch: pytest.MonkeyPatch, name: str, values: list[int]):
    """A fingerprint does not see every change of a large file."""
    with h5py.File(Path(case.config.edge_paths[0]) / "edges_0_0.h5", "r+") as file:
        file[name][:] = values
    fingerprints = iter(digest for of in case.report.document["provenance"]["data"]["edges"] for digest in of.values())
    monkeypatch.setattr(saved_run, "fingerprint", lambda _: next(fingerprints))

    message = rf"edges_0_0\.h5: dataset {name}, row 0: expected an id in 0"
    refused(case, DataError, message, edge_paths=case.config.edge_paths)
