from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pbgeval import edge_scorer, evaluate_triples
from pbgeval.metrics.auc import pooled_auc
from pbgeval.notation import Bucket, Side
from pbgeval.ranking import auc_sampling
from pbgeval.ranking.auc_sampling import FIRST_POSITION_WORD, AucSampling
from pbgeval.ranking.query_group_state import CellSample
from pbgeval.stats.groups import ScorePool, SortedPool, sortable_int32
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated

NUM_SEEDS = 200
NUM_QUERIES = 1500  # of each length


def words(of: AucSampling, seed: int, rows: Sequence[int]) -> torch.Tensor | None:
    return of.words(seed, (0, Bucket(0, 0)), Side.RHS, np.array(rows, np.int64))


@pytest.mark.parametrize(
    ("sizes", "rates", "words_of_cells"),
    [
        ((auc_sampling.EXACT_CELLS - 10, 10, 1000), (1.0, 1.0), None),  # small: compared whole
        ((1 << 30, 1 << 22, 256), (2.0**-12, 2.0**-2), 1),
        ((1 << 30, 1000, 1 << 20), (2.0**-12, 1.0), 257),
        ((1 << 30, 1 << 10, 1 << 12), (2.0**-12, 1.0), 2),
        ((100, auc_sampling.EXACT_CELLS, 7), (0.5, 2.0**-4), 4),
    ],
)
def test_rates_are_those_that_give_samples_of_the_wanted_size(sizes, rates, words_of_cells):
    of = AucSampling.of_size(*sizes)

    num_words = 0 if words_of_cells is None else FIRST_POSITION_WORD + words_of_cells
    assert (of.exact, of.competing_rate, of.true_rate) == (words_of_cells is None, *rates)
    assert (of.words_per_row, words(of, 1, range(5)) is None) == (num_words, of.exact)


@pytest.mark.parametrize(
    ("num_cells", "rate"),
    [(1 << 20, 1.0), (auc_sampling.EXACT_CELLS, 1.0), (auc_sampling.EXACT_CELLS + 1, 0.0), (1 << 40, 0.0)],
)
def test_of_lists_beside_those_compared_whole_all_cells_are_kept_or_none(num_cells, rate):
    of = AucSampling.of_size(1000, 10, 100).of_cells(num_cells, 50)

    assert (of.exact, of.competing_rate, of.true_rate) == (rate == 1, rate, rate)


def test_words_belong_to_rows_whatever_the_block():
    of = AucSampling(0.3, 0.5, 5)
    whole = words(of, 9, range(20))

    for rows in ([0], [3, 4, 5, 6, 7, 8], [19], [0, 7, 19], []):
        np.testing.assert_array_equal(whole[rows], words(of, 9, rows))


@pytest.mark.parametrize("length", [1, 7, 40, 100])
def test_cells_are_drawn_at_the_rate_and_evenly(length):
    """The number per query is the expected one rounded up or down; positions are uniform."""
    of = AucSampling(0.05, 0.25, FIRST_POSITION_WORD + 6)
    num_queries = 40_000
    words_QW = words(of, length, range(num_queries))

    query, candidate = of.cells(words_QW, length)

    expected = 0.05 * length
    per_query = np.bincount(query.numpy(), minlength=num_queries)
    assert set(per_query.tolist()) <= {int(expected), int(expected) + 1}
    assert abs(per_query.mean() - expected) < 5 * 0.5 / np.sqrt(num_queries)
    assert 0 <= int(candidate.min()) <= int(candidate.max()) < length
    at = np.bincount(candidate.numpy(), minlength=length)
    assert np.abs(at - len(candidate) / length).max() < 5 * np.sqrt(len(candidate) / length)
    kept = of.true_is_kept(words_QW).double().mean().item()
    assert abs(kept - 0.25) < 5 * np.sqrt(0.25 * 0.75 / num_queries)


class Population:
    """Queries with lists of unlike lengths, and which of their scores a seed's sample holds."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.lengths = [8, 30, 100]
        self.true = [torch.randn(NUM_QUERIES, generator=generator).mul(4).round() / 4 + 0.6 for _ in self.lengths]
        self.scores = [
            torch.randn((NUM_QUERIES, size), generator=generator).mul(4).round() / 4 for size in self.lengths
        ]
        self.sampling = AucSampling(0.004, 0.1, FIRST_POSITION_WORD + 1)
        self.all = ScorePool(
            [sortable_int32(of) for of in self.true], [sortable_int32(of.flatten()) for of in self.scores]
        )

    def sample(self, seed: int) -> SortedPool:
        pool = ScorePool()
        words_QW = words(self.sampling, seed, range(NUM_QUERIES * len(self.lengths)))
        for part, (true, scores) in enumerate(zip(self.true, self.scores, strict=True)):
            of_part = words_QW[NUM_QUERIES * part : NUM_QUERIES * (part + 1)]
            pool.true.append(sortable_int32(true[self.sampling.true_is_kept(of_part)]))
            pool.competing.append(sortable_int32(scores[self.sampling.cells(of_part, scores.shape[1])]))
        return pool.sort()


def test_the_estimate_is_unbiased_its_interval_covers_and_its_standard_error_is_the_spread_over_seeds():
    """An upper estimate: true scores are a sample without replacement, taken for one with it."""
    population = Population()
    exact = pooled_auc([population.all.sort()], all_true=True, all_competing=True)
    samples = [pooled_auc([population.sample(seed)], all_true=False, all_competing=False) for seed in range(NUM_SEEDS)]
    mean, spread = np.mean([of.value for of in samples]), np.std([of.value for of in samples], ddof=1)

    assert exact.interval() is None
    assert abs(mean - exact.value) < 5 * spread / np.sqrt(NUM_SEEDS)
    covered = [of.interval()["low"] <= exact.value <= of.interval()["high"] for of in samples]
    assert 0.90 <= sum(covered) / NUM_SEEDS <= 0.99
    assert 0.85 < np.mean([of.standard_error for of in samples]) / spread < 1.3


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        ([3, 4, 5], [(0, 5), (1, 3), (2, 3)]),
        ([3], [(1, 3), (2, 3)]),
        ([4], []),
        ([4, 9], [(0, 5), (3, 9)]),
        ([10, 11], []),
    ],
)
def test_cells_of_a_range_of_candidates_are_found_from_its_first_to_its_last(
    candidates: list[int], expected: list[tuple[int, int]]
) -> None:
    cells = CellSample.by_entity_id(np.array([0, 3, 2, 1]), np.array([5, 9, 3, 3])).within(
        candidates[0], candidates[-1] + 1
    )

    assert list(zip(cells.query_P.tolist(), cells.entity_id_P.tolist(), strict=True)) == expected


SAMPLED = {"candidates": "sampled", "num_batch_negs": 20, "num_uniform_negs": 9}


@pytest.mark.parametrize(
    "settings",
    [
        {"candidates": "all"},
        {"candidates": "partition"},
        SAMPLED,
        SAMPLED | {"pbg_semantics": True, "workers": 1, "num_uniform_negs": 0},  # no copies, which would compete
    ],
)
def test_no_true_entity_competes_with_itself_where_a_model_scores_by_number(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """True scores are above all others, so the AUC of any sample is 1."""
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 0)
    heads = torch.arange(40)
    tails = (7 * heads + 3) % 40
    scorer = edge_scorer(lambda lhs, rel, rhs: (rhs == tails[lhs]).float() + 0 * rel, num_entities=40, num_relations=1)

    report = evaluate_triples(scorer, torch.stack([heads, 0 * heads, tails], 1), **settings)

    metrics = report.to_dict()["metrics"]
    assert {name: 1.0 for name in ("head.auc", "tail.auc", "both.auc")} == {
        name: value for name, value in metrics.items() if name.endswith(".auc")
    }


@pytest.mark.parametrize("candidates", ["all", "partition"])
def test_exact_ranks_sample_the_scores_that_float32_samples(
    candidates: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are made from pairs, not read from blocks."""
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 0)
    case = TinyCase.write(tmp_path, candidates=candidates)
    of_float32, exact = (evaluated(case, f"precision={of}", output=of)["metrics"] for of in ("float32", "exact"))

    names = ("head.auc", "tail.auc", "both.auc")
    assert {name: pytest.approx(of_float32[name], abs=1e-4) for name in names} == {name: exact[name] for name in names}
