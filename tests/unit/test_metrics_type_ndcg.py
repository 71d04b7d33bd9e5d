"""Lists of types -> NDCG: the published figures, the vectors, and the sums of slow gains."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from pbgeval.metrics.ndcg import TypeProtocol, evaluate_types
from pbgeval.metrics.taxonomy import Taxonomy
from pbgeval.models.type_lists import read_type_lists
from tests.unit.test_taxonomy import DATA, slow_distance

TAXONOMY = Taxonomy.read(DATA / "taxonomy.tsv")
LINES = [line.split("\t") for line in (DATA / "taxonomy.tsv").read_text().splitlines()[2:]]
PARENTS = {name: [parent] for name, _, parent in LINES}
DEPTHS = {"thing": 0, **{name: int(depth) for name, depth, _ in LINES}}


def slow_gain(name: str, true: list[str], is_exponential: bool, base: float) -> float:
    distances = [slow_distance(name, one, PARENTS, DEPTHS) for one in true if {name, one} <= {*PARENTS}]
    return max((base**-of if is_exponential else 1 - of / 7 for of in distances if of is not None), default=0.0)


def test_the_published_figures_and_the_cases_that_were_left_open() -> None:
    truth, ranking = read_type_lists(DATA / "truth.tsv"), read_type_lists(DATA / "ranking.tsv")

    found = evaluate_types(TAXONOMY, truth, ranking, [3])

    expected = [1.0, 0.583, 0.719, 0.754, 0.0, 0.0, None, None]
    assert [None if value is None else round(value, 3) for value in found.of_cutoff[3]] == expected
    assert found.mean(3) == pytest.approx(3.0561 / 6, abs=1e-4)
    assert found.counts == {
        "num_queries": 8,
        "num_undefined": 2,
        "num_missing": 1,
        "num_unasked": 1,
        "num_unknown_true_types": 1,
        "num_unknown_listed_types": 1,
        "num_roots_listed": 0,
        "num_repeated_types": 0,
        "num_on_one_branch": 0,
    }


def test_root_and_repeated_types_gain_nothing_and_are_counted() -> None:
    truth = {"a": ["person", "statesman"], "b": ["thing"]}
    ranking = {"a": ["person", "thing", "person", "statesman"], "b": ["thing"]}

    found = evaluate_types(TAXONOMY, truth, ranking, [3])

    without = evaluate_types(TAXONOMY, truth, {"a": ["person", "unknown", "statesman"]}, [3])
    assert (without.of_cutoff[3], None) == (found.of_cutoff[3], found.of_cutoff[3][1])
    assert tuple(
        found.counts[name] for name in ("num_roots_listed", "num_repeated_types", "num_on_one_branch", "num_undefined")
    ) == (2, 1, 1, 1)


def test_without_queries_there_is_no_mean() -> None:
    assert None is evaluate_types(TAXONOMY, {}, {"a": ["person"]}).mean(10)


def slow_dcg(gains: list[float], k: int, is_jk: bool) -> float:
    discounts = {p: math.log2(p) if is_jk and p > 1 else 1.0 if is_jk else math.log2(p + 1) for p in range(1, k + 1)}
    return sum(gain / discounts[p] for p, gain in enumerate(gains[:k], 1))


@pytest.mark.parametrize("is_jk", [False, True])
@pytest.mark.parametrize("is_exponential", [False, True])
def test_lists_are_worth_the_gains_of_their_places(is_exponential: bool, is_jk: bool) -> None:
    source = random.Random(3)
    names = [*PARENTS, "thing", "nonsense"]
    truth, ranking = (
        {str(query): source.sample(names, source.randint(1, most)) for query in range(40)} for most in (4, 12)
    )
    protocol = TypeProtocol("exponential" if is_exponential else "linear", "jk" if is_jk else "standard")

    found = evaluate_types(TAXONOMY, truth, ranking, [1, 7], protocol)

    for query, true in truth.items():
        gain = {name: slow_gain(name, true, is_exponential, 2.0) for name in names}
        for k in (1, 7):
            best = slow_dcg(sorted(gain.values(), reverse=True), k, is_jk)
            share = slow_dcg([gain[name] for name in ranking[query]], k, is_jk) / best if best else None
            assert found.of_cutoff[k][int(query)] == pytest.approx(share)


@pytest.mark.reference
def test_every_case_of_the_vectors_is_equal(reference_path: Path) -> None:
    vectors = json.loads((reference_path / "vectors" / "type_ndcg.json").read_text())
    taxonomy = Taxonomy.read(reference_path / "vectors" / "type_taxonomy.tsv")
    passes_one = {"root_in_system_ranking_exceeds_one", "duplicates_exceed_one"}
    assert {len(case["ndcg"]) for case in vectors["cases"]} == {8}
    for case in vectors["cases"]:
        of_cases = {"q": case["ground_truth"]}, {"q": case["system_ranking"]}
        for key, of_key in case["ndcg"].items():
            gain, k = key.split("@")
            for name, discount in (("seed_log2_p", "jk"), ("standard_log2_p_plus_1", "standard")):
                published = evaluate_types(
                    taxonomy, *of_cases, [int(k)], TypeProtocol(gain, discount, as_published=True)
                )
                assert published.mean(int(k)) == pytest.approx(of_key[name], rel=1e-12, abs=0), (case["name"], key)
                ours = evaluate_types(taxonomy, *of_cases, [int(k)], TypeProtocol(gain, discount)).mean(int(k))
                assert ours <= 1.0
                assert case["name"] in passes_one or published.mean(int(k)) == ours
