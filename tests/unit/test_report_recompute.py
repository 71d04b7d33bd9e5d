"""Figures from saved ranks: those of the evaluation to the bit, and any cut of them equals a slow reference."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
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
from pbgeval.report import saved_run
from pbgeval.report.output import OutputDirectory, digest_of
from pbgeval.storage.row_files import RANK_COLUMNS
from tests.examples import examples
from tests.kit import pbg_files
from tests.kit.graphs import Relation, TinyGraph, tiny_graphs
from tests.kit.on_disk import write_graph
from tests.null_owner import null_owner

RANK_TYPES = ("optimistic", "realistic", "pessimistic")
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
        [without_scores(row) for row in report.rows["buckets"]],
        list(report.rows["rank_histogram"]),
    ]


def as_text(rows: tuple[Mapping[str, Any], ...]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


CANDIDATES = {
    "all, filtered": {"candidates": "all"},
    "partition, filtered": {"candidates": "partition"},
    "sampled": {"candidates": "sampled", "num_batch_negs": 2, "num_uniform_negs": 3},
}


@pytest.mark.slow
@few
@pytest.mark.parametrize("candidates", CANDIDATES)
@given(graph=tiny_graphs(max_edges=12, max_partitions=3), draw=st.data())
def test_the_same_question_has_the_same_answer_to_the_bit(candidates: str, graph: TinyGraph, draw: st.DataObject):
    filtered = {"filter_edges": [graph.buckets]} if "filtered" in candidates else {}
    more = [graph.buckets] if draw.draw(st.booleans(), "two edge paths") else []
    side = draw.draw(st.sampled_from([{}, {"disable_lhs_negs": True}, {"disable_rhs_negs": True}]))
    loss = draw.draw(st.booleans(), "loss") and CANDIDATES[candidates]["candidates"] != "all"
    with tempfile.TemporaryDirectory() as folder:
        config = write_graph(
            graph,
            Path(folder) / "data",
            more_edge_paths=more,
            save_ranks=True,
            compute_loss=loss,
            breakdowns=["relation", "entity_types"],
            hits_at=[3, 1],
            relation_prediction=candidates != "sampled" and draw.draw(st.booleans(), "relations"),
            **CANDIDATES[candidates],
            **filtered,
            **side,
        )
        output = Path(folder) / "out"
        evaluated = evaluate(config, output=output, workers=1, device="cpu")
        for report in (evaluated, Report.read(output)):
            found = report.recompute(edge_paths=config.edge_paths, breakdowns=["relation", "entity_types"])
            alone = report.recompute()

            assert comparable(evaluated) == comparable(found)
            for name in ("relations", "entity_types"):
                assert [*evaluated.rows[name]] == [*found.rows[name]]
                assert (output / f"{name}.csv").read_text() == as_text(found.rows[name])
        assert (comparable(evaluated, with_macro=False), None, None, ("buckets", "rank_histogram"), {None}) == (
            comparable(alone, with_macro=False),
            alone.document["macro_metrics"],
            alone.document["relation_macro_metrics"],
            alone.tables,
            {found.document["metrics"][key] for key in found.document["metrics"] if key.endswith(".auc")},
        )
        assert "both.loss" not in found.document["metrics"]
        assert {found.document["diagnostics"]["both"][name] for name in NOT_SAVED} == {None}


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


class Found(NamedTuple):
    """A ranked query of the reference."""

    side: str
    at: int
    better: int
    tied: int
    competing: int
    known: int

    @property
    def edge(self) -> tuple[int, int, int]:
        path_index, bucket, row = PLACES[self.at]
        return EDGES[path_index][bucket][row]

    @property
    def key(self) -> tuple[Any, ...]:
        """Side, relation, type, partition and row of what is known."""
        return key_of(self.side, self.at)

    def rank(self, kind: str) -> Fraction:
        return 1 + self.better + {"optimistic": 0, "realistic": Fraction(1, 2), "pessimistic": 1}[kind] * self.tied


def key_of(side: str, at: int) -> tuple[Any, ...]:
    path_index, bucket, row = PLACES[at]
    lhs, rel, rhs = EDGES[path_index][bucket][row]
    name = RELATIONS[rel][1 if side == "head" else 0]
    partition = bucket[1 if side == "head" else 0] if len(TYPES[name]) > 1 else 0
    return side, rel, name, partition, rhs if side == "head" else lhs


def reference_queries(queries: Mapping[tuple[str, int], Counts], kept: set[int], *, filtered: bool) -> list[Found]:
    found = []
    for (side, at), one in queries.items():
        if at in kept and one.num_candidates:
            known = one[3:] if filtered else (0, 0, 0)
            found.append(
                Found(side, at, one.better - known[0], one.tied - known[1], one.num_candidates - 1 - known[2], known[2])
            )
    return found


def mean(weighted: list[tuple[Fraction, Fraction]]) -> Fraction | None:
    return sum(w * x for w, x in weighted) / sum(w for w, _ in weighted) if weighted else None


def reference_metrics(
    queries: list[Found], cutoffs: tuple[int, ...], weight: Callable[[Found], Fraction] = lambda _: Fraction(1)
) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for label in ("head", "tail", "both"):
        of_label = [query for query in queries if label in ("both", query.side)]
        for kind in RANK_TYPES:
            ranks = [(weight(query), query.rank(kind)) for query in of_label]
            metrics[f"{label}.{kind}.count"] = len(of_label)
            metrics[f"{label}.{kind}.mean_rank"] = mean(ranks)
            metrics[f"{label}.{kind}.mean_reciprocal_rank"] = mean([(w, 1 / rank) for w, rank in ranks])
            for k in cutoffs:
                metrics[f"{label}.{kind}.hits_at_{k}"] = mean([(w, Fraction(rank <= k)) for w, rank in ranks])
        metrics[f"{label}.query_auc"] = mean(
            [
                (weight(query), 1 - (query.better + Fraction(query.tied, 2)) / query.competing)
                for query in of_label
                if query.competing
            ]
        )
    return metrics


def reference_relation_macro(queries: list[Found], cutoffs: tuple[int, ...]) -> dict[str, Any]:
    per_relation = [reference_metrics([q for q in queries if q.edge[1] == rel], cutoffs) for rel in range(3)]
    macro: dict[str, Any] = {}
    for key in per_relation[0]:
        values = [of[key] for of in per_relation]
        if key.endswith(".count"):
            macro[key] = sum(values)
        else:
            macro[key] = mean([(Fraction(1), value) for value in values if value is not None])
    return macro


def check(expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    assert set(expected) <= set(found)
    for key, value in expected.items():
        if value is None or key.endswith("count"):
            assert value == found[key], key
        else:  # each query's reciprocal or share is rounded to 2^-58
            assert float(value) == pytest.approx(found[key], rel=1e-15, abs=4e-16), key


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedCase:
    return SavedCase.write(tmp_path_factory.mktemp("saved"))


def keep_of(kept: set[int], asked: Counter[int]) -> Callable[..., np.ndarray]:
    """Keep edges by their place; blocks come in order, so places can be counted."""

    def keep(path_index: int, bucket: Bucket, lhs: np.ndarray, rel: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        at = sum(asked.values())
        for number, edge in enumerate(zip(lhs.tolist(), rel.tolist(), rhs.tolist(), strict=True)):
            of_path, of_bucket, row = PLACES[at + number]
            assert (of_path, of_bucket, EDGES[of_path][of_bucket][row]) == (path_index, bucket, edge)
            asked[at + number] += 1
        assert {np.dtype(np.int64)} == {array.dtype for array in (lhs, rel, rhs)}
        return np.array([at + number in kept for number in range(len(rel))], bool)

    return keep


@pytest.mark.slow
@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(
    queries=QUERIES,
    kept=st.sets(st.integers(0, len(PLACES) - 1)),
    filtered=st.booleans(),
    cutoffs=st.sets(st.integers(1, 12), max_size=3),
    rows=st.sampled_from([2, 5, 100]),
    overlap=st.lists(st.integers(0, 2), max_size=3),
)
def test_any_cut_of_any_counts_equals_the_reference(
    saved: SavedCase,
    queries: dict[tuple[str, int], Counts],
    kept: set[int],
    filtered: bool,
    cutoffs: set[int],
    rows: int,
    overlap: list[int],
):
    saved.set_counts(queries)
    asked: Counter[int] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved_run, "ROWS_AT_A_TIME", rows)
        report = saved.report.recompute(
            hits_at=cutoffs,
            filter="filtered" if filtered else "raw",
            headline="worst",
            edge_paths=saved.config.edge_paths,
            keep=keep_of(kept, asked),
            breakdowns=["relation", "groups"],
            relation_groups={"a": [2, 0], "b": overlap},
        )
    document = report.document
    sorted_cutoffs = tuple(sorted(cutoffs))
    expected = reference_queries(queries, kept, filtered=filtered)
    counted = {query.at for query in expected}

    assert Counter(range(len(PLACES))) == asked
    assert ("pessimistic", len(counted), len(expected)) == (
        document["headline"],
        document["num_edges"],
        document["num_queries"],
    )
    check(reference_metrics(expected, sorted_cutoffs), document["metrics"])
    assert filtered == ("raw_metrics" in document)
    if filtered:
        raw = reference_queries(queries, kept, filtered=False)
        check(reference_metrics(raw, sorted_cutoffs), document["raw_metrics"])
    for path_index, of_path in enumerate(document["edge_paths"]):
        own = [query for query in expected if PLACES[query.at][0] == path_index]
        assert (f"edges{path_index}", len({query.at for query in own})) == (of_path["path"], of_path["num_edges"])
        check(reference_metrics(own, sorted_cutoffs), of_path["metrics"])
    frequency = Counter(key_of(side, at) for side in ("head", "tail") for at in counted)
    over_keys = reference_metrics(expected, sorted_cutoffs, lambda query: Fraction(1, frequency[query.key]))
    check(over_keys, document["macro_metrics"])
    check(reference_relation_macro(expected, sorted_cutoffs), document["relation_macro_metrics"])
    check_tables(report, expected, sorted_cutoffs, {"a": {2, 0}, "b": set(overlap)})
    check_diagnostics(document["diagnostics"], expected, counted)
    check_buckets(report, expected, sorted_cutoffs)


def check_tables(
    report: Report, expected: list[Found], cutoffs: tuple[int, ...], groups: Mapping[str, set[int]]
) -> None:
    relations = report.rows["relations"]
    assert sorted({query.edge[1] for query in expected}) == [row["relation_id"] for row in relations]
    for row in relations:
        rel = row["relation_id"]
        assert (f"r\r\n{rel}", *RELATIONS[rel]) == (row["relation"], row["lhs_type"], row["rhs_type"])
        check(reference_metrics([query for query in expected if query.edge[1] == rel], cutoffs), row)
    of_group = {name: [query for query in expected if query.edge[1] in ids] for name, ids in groups.items()}
    rows = {row["group"]: row for row in report.rows["relation_groups"]}
    assert {name for name, queries in of_group.items() if queries} == set(rows)
    for name, row in rows.items():
        check(reference_metrics(of_group[name], cutoffs), row)


def check_diagnostics(diagnostics: Mapping[str, Any], expected: list[Found], counted: set[int]) -> None:
    for label, found in diagnostics.items():
        of_label = [query for query in expected if label in ("both", query.side)]
        candidates = [query.competing + 1 for query in of_label]
        assert {
            "num_queries": len(of_label),
            "num_candidates": {
                "min": min(candidates, default=None),
                "mean": sum(candidates) / len(candidates) if candidates else None,
                "max": max(candidates, default=None),
            },
            "num_tied_queries": sum(query.tied > 0 for query in of_label),
            "tied_share": sum(query.tied > 0 for query in of_label) / len(of_label) if of_label else None,
            "mean_num_ties": sum(query.tied for query in of_label) / len(of_label) if of_label else None,
            "num_queries_without_competitors": sum(query.competing == 0 for query in of_label),
            "num_queries_outside": len(counted) * (2 if label == "both" else 1) - len(of_label),
            "num_known_excluded": sum(query.known for query in of_label),
            **dict.fromkeys(NOT_SAVED),
        } == found


def check_buckets(report: Report, expected: list[Found], cutoffs: tuple[int, ...]) -> None:
    of_bucket = defaultdict(list)
    for query in expected:
        of_bucket[PLACES[query.at][:2]].append(query)
    assert [(path, lhs, rhs) for path in range(2) for lhs in range(2) for rhs in range(2)] == [
        (int(row["edge_path"][-1]), row["lhs_partition"], row["rhs_partition"]) for row in report.rows["buckets"]
    ]
    for row in report.rows["buckets"]:
        own = of_bucket[int(row["edge_path"][-1]), (row["lhs_partition"], row["rhs_partition"])]
        assert len({query.at for query in own}) == row["num_edges"]
        metrics = reference_metrics(own, cutoffs)
        check({key: metrics[key] for key in row if key in metrics}, row)


@pytest.mark.slow
def test_neither_blocks_nor_who_is_asked_first_change_a_byte(saved: SavedCase, monkeypatch: pytest.MonkeyPatch):
    def figures(keep: Callable[..., np.ndarray] | None) -> dict[str, Any]:
        report = saved.report.recompute(edge_paths=saved.config.edge_paths, keep=keep)
        return report.to_dict()

    def odd(path: int, bucket: Bucket, lhs: np.ndarray, rel: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        return (lhs + rhs) % 2 == 1

    whole = [figures(None), figures(odd)]
    for rows in (1, 3):
        monkeypatch.setattr(saved_run, "ROWS_AT_A_TIME", rows)
        assert whole == [figures(None), figures(odd)]
    assert whole[0]["provenance"] != whole[1]["provenance"]


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
    weighted = [(Fraction(1, frequency[key_of("tail", at)]), Fraction(1 + at)) for at in kept]
    assert float(mean(weighted)) == document["macro_metrics"]["tail.realistic.mean_rank"]


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
    output.claim(report.document["provenance"], overwrite=False)
    output.write(report)

    assert report.to_dict() == Report.read(tmp_path / "cut").to_dict()


def test_a_raw_run_has_no_filtered_figures(tmp_path: Path):
    case = SavedCase.write(tmp_path, filter_edges=[])

    assert "raw_metrics" not in case.report.recompute(filter="raw").document
    with pytest.raises(OutputError, match="expected a filtered run, found a raw one"):
        case.report.recompute(filter="filtered")


def test_relations_without_a_row_in_relations_csv_are_called_by_their_ids(tmp_path: Path):
    case = SavedCase.write(tmp_path, breakdowns=[])

    rows = case.report.recompute(edge_paths=case.config.edge_paths, breakdowns=["relation"]).rows["relations"]

    assert [(str(rel), rel, *types) for rel, types in enumerate(RELATIONS)] == [
        (row["relation"], row["relation_id"], row["lhs_type"], row["rhs_type"]) for row in rows
    ]
    (case.output / "relations.csv").write_text("relation,id\na,b\n")
    with pytest.raises(OutputError, match="columns relation and relation_id"):
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
    "hits at True": ({"hits_at": [True]}, r"hits_at: expected ints from 1 to 2\*\*40, got True"),
    "hits at a half": ({"hits_at": [1.5]}, "hits_at: expected ints .*, got 1.5"),
    "keep without edges": ({"keep": keep_all}, "keep: needs edge_paths"),
    "a breakdown without edges": ({"breakdowns": ["relation"]}, "'relation' needs edge_paths"),
    "a breakdown of training edges": ({"breakdowns": ["cardinality"]}, "'cardinality' counts training edges"),
    "a breakdown of another name": (
        {"breakdowns": ["colour"]},
        "expected relation or .* or popularity, got",
    ),
    "a breakdown without brackets": ({"breakdowns": "relation"}, "expected a list of names, got 'relation'"),
    "popularity without training edges": (
        {"edge_paths": EDGE_FOLDERS, "breakdowns": ["popularity"]},
        "'popularity' needs train_paths",
    ),
    "the first k without edges": ({"topk_metrics": True}, "topk_metrics: needs edge_paths"),
    "training edges for nothing": ({"train_paths": ["x"]}, "train_paths: has no effect without 'popularity'"),
    "a folder without brackets": ({"edge_paths": "edges"}, "expected a list of folders, got 'edges'"),
    "a folder too few": ({"edge_paths": ["x"]}, r"expected 2, in the order of the run \(edges0, edges1\), got 1"),
    "groups of nothing": ({"edge_paths": ["x", "y"], "breakdowns": ["groups"]}, "'groups' needs relation_groups"),
    "groups for nothing": ({"relation_groups": {"a": [0]}}, "has no effect without 'groups'"),
    "a group of names": (
        {"edge_paths": EDGE_FOLDERS, "breakdowns": ["groups"], "relation_groups": {"a": ["r0"]}},
        "relation_groups: expected {name: ids of relations}, got",
    ),
    "a relation beyond": (
        {"edge_paths": EDGE_FOLDERS, "breakdowns": ["groups"], "relation_groups": {"a": [3]}},
        "group 'a': expected ids of relations from 0 to 2, got 3",
    ),
    "keep that answers in numbers": (
        {"edge_paths": EDGE_FOLDERS, "keep": lambda *_: np.ones(6)},
        r"keep: expected a bool for each of 6 edges, got float64 of shape \(6,\)",
    ),
    "keep that answers for one": (
        {"edge_paths": EDGE_FOLDERS, "keep": lambda *_: np.True_},
        r"keep: expected a bool for each of 6 edges, got bool of shape \(\)",
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
    with pytest.raises(OutputError, match=r"expected a report with an output directory"):
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
    refused(case, StorageError, r"edge path 1 \(edges1\), found others in bucket \(0, 1\)", edge_paths=paths)
    refused(case, StorageError, "nowhere: no such folder", edge_paths=[paths[0], "nowhere"])


@pytest.mark.parametrize(("name", "values"), [("rel", [3, 0, 0, 0, 0, 0]), ("lhs", [-1, 0, 0, 0, 0, 0])])
def test_ids_out_of_range_are_refused(case: SavedCase, monkeypatch: pytest.MonkeyPatch, name: str, values: list[int]):
    """A fingerprint does not see every change of a large file."""
    with h5py.File(Path(case.config.edge_paths[0]) / "edges_0_0.h5", "r+") as file:
        file[name][:] = values
    fingerprints = iter(digest for of in case.report.document["provenance"]["data"]["edges"] for digest in of.values())
    monkeypatch.setattr(saved_run, "fingerprint", lambda _: next(fingerprints))

    message = rf"edges_0_0\.h5: dataset {name}, row 0: expected an id in 0"
    refused(case, DataError, message, edge_paths=case.config.edge_paths)
