"""A complete evaluation of small models, computed without us: every setting, every query's ranks, all averages."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from pbgeval import EvalConfig, Report, evaluate
from pbgeval.metrics.registry import metric_key
from pbgeval.notation import ENDS, Bucket
from tests.examples import crossed
from tests.kit.graphs import Relation, TinyGraph
from tests.kit.on_disk import write_graph
from tests.saved_ranks import read_ranks

MODELS = {"distmult": "diagonal", "distmult_exact_ties": "diagonal", "complex": "complex_diagonal"}
MODELS |= dict.fromkeys(("transe_l1", "transe_l1_exact_ties", "transe_l2"), "translation")
MODELS |= dict.fromkeys(("rotate_moduli", "rotate_l2"), "rotate")
COMPARATORS = {"transe_l1": "l1", "transe_l1_exact_ties": "l1", "transe_l2": "l2"}
COMPARATORS |= {"rotate_moduli": "complex_l1", "rotate_l2": "l2"}  # else dot
SETTINGS = (
    "raw",
    "filtered",
    "filtered_train_and_test_only",
    "filtered_restricted",
    "filtered_type_constrained",
    "sampled_given_negatives",
)
NAMES = {"arithmetic_mean_rank": "mean_rank", "inverse_harmonic_mean_rank": "mean_reciprocal_rank"}
# With weights 1 / f the reference misses "exactly half" for this model: a median of 4 where fractions give 4.5.
MEDIANS = ("median_rank", "inverse_median_rank", "median_absolute_deviation")


def params(operator: str, of_relation: np.ndarray, sign: int) -> dict[str, Any]:
    """The operator that acts on the left entities (1), on the right ones, for any query (-1), or on none (0)."""
    if not sign:
        return {}
    half = len(of_relation) // 2
    if operator == "complex_diagonal":
        return {"real": of_relation[:half].tolist(), "imag": (sign * of_relation[half:]).tolist()}
    if operator == "diagonal":
        return {"diagonal": of_relation.tolist()}
    return {"phase" if operator == "rotate" else "translation": (sign * of_relation).tolist()}


class Nations:
    """The graph, its entities permuted among partitions."""

    def __init__(self, source: Path, model: str, num_partitions: int, dynamic: bool) -> None:
        self.source, operator = source, MODELS[model]
        entity, of_relations = (np.load(source / f"{model}.{of}.npy") for of in ("entity", "relation"))
        numbers = list(range(len(entity)))
        random.Random(5).shuffle(numbers)
        members = [numbers[part::num_partitions] for part in range(num_partitions)]
        self.place = {number: (part, row) for part, of in enumerate(members) for row, number in enumerate(of)}
        relations = [
            Relation(f"r{at}", "ent", "ent", operator, *(params(operator, of, sign) for sign in (-1, dynamic)))
            for at, of in enumerate(of_relations)
        ]
        tables, comparator = {"ent": [entity[of].tolist() for of in members]}, COMPARATORS.get(model, "dot")
        self.graph = TinyGraph(relations, tables, {}, self.buckets("test"), dynamic=dynamic, comparator=comparator)

    def rows(self, name: str) -> dict[Bucket, list[int]]:
        """Return which triples of a split are in each bucket, in the order of rows."""
        rows: dict[Bucket, list[int]] = {}
        for index, (head, _, tail) in enumerate(np.load(self.source / f"{name}.npy").tolist()):
            rows.setdefault(Bucket(self.place[head][0], self.place[tail][0]), []).append(index)
        return rows

    def buckets(self, name: str) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
        triples = [(self.place[h][1], r, self.place[t][1]) for h, r, t in np.load(self.source / f"{name}.npy").tolist()]
        return {(*bucket,): [triples[index] for index in of_bucket] for bucket, of_bucket in self.rows(name).items()}

    def write_negatives(self, folder: Path) -> str:
        negatives = {side: np.load(self.source / f"negatives_{side}.npy") for side in ("head", "tail")}
        folder.mkdir(parents=True)
        for bucket, of_bucket in self.rows("test").items():
            with h5py.File(folder / f"candidates_{bucket.lhs}_{bucket.rhs}.h5", "w") as file:
                for side, of_side in negatives.items():
                    places = np.array([[self.place[n] for n in row] for row in of_side[of_bucket].tolist()])
                    file[side], file[f"{side}_partition"] = places[..., 1], places[..., 0]
        return str(folder)

    def config(self, folder: Path, setting: str, **keys: Any) -> EvalConfig:
        keys["candidates"] = "all"
        if setting == "sampled_given_negatives":
            keys |= {"candidate_path": self.write_negatives(folder / "candidates"), "candidates": None}
        if setting.startswith("filtered"):
            keys["train_edges"] = [self.buckets("train")]
        if setting.startswith("filtered") and setting != "filtered_train_and_test_only":
            keys["filter_edges"] = [self.buckets("valid")]
        if setting == "filtered_restricted":
            index = json.loads((self.source / "index.json").read_text())
            keys["restrict_entities"] = ["ent:{}:{}".format(*self.place[of]) for of in index["restrict_entities_to"]]
            prefix = "rel:" if self.graph.dynamic else "r"
            keys["restrict_relations"] = [f"{prefix}{relation}" for relation in index["restrict_relations_to"]]
        if setting == "filtered_type_constrained":
            keys["type_constraint"] = "observed"
        precision = "float64" if self.graph.relations[0].operator == "rotate" else "float32"
        return write_graph(self.graph, folder, precision=precision, hits_at=[1, 3, 5, 10, 50], save_ranks=True, **keys)


@pytest.mark.one_case
@pytest.mark.reference
@pytest.mark.parametrize(  # of either layout a third of the pairs, each model and each setting at least twice
    ("model", "setting", "num_partitions", "dynamic"),
    crossed(list(MODELS), SETTINGS, [(3, False), (1, True)], quick=3, thorough=3),
)
def test_a_complete_evaluation_equals_the_reference(
    model: str, setting: str, num_partitions: int, dynamic: bool, reference_path: Path, tmp_path: Path
) -> None:
    source = reference_path / "vectors" / "full_nations"
    nations = Nations(source, model, num_partitions, dynamic)
    more = {"breakdowns": ["relation", "cardinality"]} if setting == "filtered" else {}

    report = evaluate(nations.config(tmp_path, setting, **more), output=tmp_path / "output", workers=1)

    expected = json.loads((source / f"{model}.json").read_text())
    exact = "exact" in model
    of_exact_halves = MEDIANS if model == "transe_l2" and setting in ("raw", "filtered_train_and_test_only") else ()
    assert_averages(report.document, expected["settings"][setting], exact=exact, without_macro=of_exact_halves)
    ranks = np.load(source / f"{model}.ranks.npz")
    if any(name.startswith(f"{setting}.") for name in ranks.files):  # not of given candidates
        assert_ranks(nations, tmp_path / "output", ranks, setting)
    if setting == "filtered":
        assert_breakdowns(report, expected)


def assert_averages(
    document: Mapping[str, Any], expected: Mapping[str, Any], *, exact: bool, without_macro: tuple[str, ...]
) -> None:
    """Every metric there is, micro and macro; PyKEEN's macro averages count no queries."""
    assert document["num_edges"] == expected["n"]
    for ours, theirs, without in (("metrics", "micro", ()), ("macro_metrics", "macro", without_macro)):
        named = [(key.rpartition("."), value) for key, value in expected.get(theirs, {}).items() if value is not None]
        figures = {
            f"{of}.{metric_key(name)}": pytest.approx(value, rel=1e-7 if "z_geometric" in name else 1e-9, abs=1e-12)
            for (of, _, name), value in named
            if name not in without
        }
        assert {key: document[ours][key] for key in figures} == figures
        assert len(figures) >= 9 * 18 or theirs not in expected  # given candidates have no macro averages there
    for side, value in expected.get("auc", {}).items():
        # The pooled AUC compares scores of different queries, so the reference's float64 breaks ties of float32.
        closeness = {"rel": 1e-12} if exact else {"abs": 5e-4}
        assert value == pytest.approx(document["metrics"][f"{side}.auc"], **closeness), side


def assert_ranks(nations: Nations, output: Path, expected: Any, setting: str) -> None:
    """Compare every query that the reference ranked; under a restriction it lists those that are left, in order."""
    of_test: dict[str, dict[int, tuple[int, int, int]]] = {"head": {}, "tail": {}}
    for bucket, of_bucket in nations.rows("test").items():
        ranks = read_ranks(output, 0, bucket)
        for side in ENDS:
            c = ranks.columns[side]
            is_filtered = setting.startswith("filtered")
            better = c["better"] - is_filtered * c["excluded_better"]
            tied = c["tied"] - is_filtered * c["excluded_tied"]
            competing = c["num_candidates"] - is_filtered * c["num_excluded"]
            for row, index in enumerate(of_bucket):
                if c["num_candidates"][row]:
                    triple = 1 + better[row], 1 + better[row] + tied[row], competing[row]
                    of_test[side.label][index] = tuple(map(int, triple))
    for side, ranks_of in of_test.items():
        ordered = np.array([ranks_of[index] for index in sorted(ranks_of)])
        for column, name in enumerate(("optimistic", "pessimistic", "num_candidates")):
            np.testing.assert_array_equal(expected[f"{setting}.{side}.{name}"], ordered[:, column], f"{side} {name}")


def assert_breakdowns(report: Report, expected: Mapping[str, Any]) -> None:
    of_relations = {NAMES.get(name, name): value for name, value in expected["mean_over_relations"].items()}
    assert_equal({"both": of_relations}, report.document["relation_macro_metrics"])
    for theirs, table, column in (
        ("per_relation", "relations", "relation_id"),
        ("per_relation_type", "cardinality", "cardinality"),
    ):
        rows = {str(row[column]): row for row in report.rows[table]}
        assert {*rows} == {*expected[theirs]}
        for group, of_group in expected[theirs].items():
            assert_equal(of_group, rows[group])


def assert_equal(expected: Mapping[str, Mapping[str, float]], found: Mapping[str, Any]) -> None:
    """The reference's metrics by side, by our keys."""
    figures = {f"{side}.realistic.{name}": value for side, of in expected.items() for name, value in of.items()}
    assert {key: found[key] for key in figures} == pytest.approx(figures, rel=1e-9)
