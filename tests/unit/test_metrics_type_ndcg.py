"""Lists of types -> NDCG: the published figures, the vectors, and a slow reference."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.metrics.ndcg import TypeProtocol, evaluate_types
from pbgeval.metrics.taxonomy import Taxonomy
from pbgeval.models.type_lists import read_type_lists
from tests.unit.test_gain_levels import slow_dcg
from tests.unit.test_taxonomy import DATA, slow_distance

TAXONOMY = Taxonomy.read(DATA / "taxonomy.tsv")
LINES = [line.split("\t") for line in (DATA / "taxonomy.tsv").read_text().splitlines()[2:]]
PARENTS = {name: [parent] for name, _, parent in LINES}
DEPTHS = {"thing": 0, **{name: int(depth) for name, depth, _ in LINES}}
NAMES = [*PARENTS, "thing", "unknown"]


def slow_gain(name: str, true: list[str], is_exponential: bool, base: float) -> float:
    best = 0.0
    for one in true:
        if name in PARENTS and one in PARENTS:
            distance = slow_distance(name, one, PARENTS, DEPTHS)
            if distance is not None:
                best = max(best, base**-distance if is_exponential else 1 - distance / 7)
    return best


def slow_ndcg(true: list[str], listed: list[str], k: int, is_exponential: bool, discount: str, base: float):
    once: list[str] = []
    for name in listed:
        if name not in once:
            once.append(name)
    ideal = sorted((slow_gain(name, true, is_exponential, base) for name in PARENTS), reverse=True)
    best = slow_dcg(ideal, k, discount)
    if best == 0:
        return None
    return slow_dcg([slow_gain(name, true, is_exponential, base) for name in once], k, discount) / best


lists = st.lists(st.sampled_from(NAMES), max_size=9)


@pytest.mark.slow
@given(
    st.lists(st.tuples(lists, lists), max_size=4),
    st.integers(1, 12),
    st.sampled_from(["linear", "exponential"]),
    st.sampled_from(["jk", "standard"]),
    st.sampled_from([2.0, 1.5]),
)
def test_ndcg_is_that_of_the_definition(queries, k, gain, discount, base):
    truth = {f"q{at}": true for at, (true, _) in enumerate(queries)}
    ranking = {f"q{at}": listed for at, (_, listed) in enumerate(queries)}

    found = evaluate_types(TAXONOMY, truth, ranking, [k], TypeProtocol(gain, discount, base))

    expected = [slow_ndcg(true, listed, k, gain == "exponential", discount, base) for true, listed in queries]
    assert [None if value is None else pytest.approx(value, rel=1e-12) for value in expected] == found.of_cutoff[k]
    defined = [value for value in expected if value is not None]
    mean = math.fsum(defined) / len(defined) if defined else None
    assert mean is None if mean is None else pytest.approx(mean) == found.mean(k)
    assert all(value is None or value <= 1 + 1e-12 for value in found.of_cutoff[k])


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


@pytest.mark.reference
def test_every_case_of_the_vectors_is_equal(reference_path: Path) -> None:
    vectors = json.loads((reference_path / "vectors" / "type_ndcg.json").read_text())
    taxonomy = Taxonomy.read(reference_path / "vectors" / "type_taxonomy.tsv")
    passes_one = {"root_in_system_ranking_exceeds_one", "duplicates_exceed_one"}
    num_compared = 0
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
                num_compared += 1
    assert len(vectors["cases"]) * 8 * 2 == num_compared
