"""Metric objects against counting one by one, and against sums in one go."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.errors import ConfigError, DataError
from pbgeval.integrations.metric_objects import RankMetric, TopKMetric
from tests.kit.groups import join, start_workers
from tests.kit.refusals import fault_of
from tests.reference import rank_by_sorting
from tests.unit.test_topk_metrics import of_order

SCORES = st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 0.25, 1.0, 2.0, math.inf])


def ranks_by_hand(rows: list[list[tuple[float, bool]]]) -> list[tuple[int, int, int]]:
    """Return (optimistic rank, pessimistic rank, candidates) of each true candidate among those that are not true."""
    found = []
    for row in rows:
        wrong = [score for score, is_true in row if not is_true]
        found += [(*rank_by_sorting(score, wrong), 1 + len(wrong)) for score, is_true in row if is_true]
    return found


@given(st.lists(st.lists(st.tuples(SCORES, st.booleans()), max_size=6), max_size=8), st.randoms(use_true_random=False))
def test_marked_candidates_in_any_order_are_ranked_as_by_hand(
    rows: list[list[tuple[float, bool]]], order: np.random.Generator
) -> None:
    cells = [(score, is_true, row - 3) for row, of_row in enumerate(rows) for score, is_true in of_row]
    order.shuffle(cells)
    metric, ranks = RankMetric((1, 2)), ranks_by_hand(rows)

    scores, is_true, row = zip(*cells, strict=True) if cells else ((), (), ())
    metric.update(
        torch.tensor(scores, dtype=torch.float64), torch.tensor(is_true, dtype=torch.bool), torch.tensor(row).long()
    )
    found = metric.compute()

    assert len(ranks) == metric.num_queries
    if not ranks:
        assert found["mrr"] is None
        return
    expected = {
        "optimistic.mrr": sum(Fraction(1, best) for best, _, _ in ranks) / len(ranks),
        "pessimistic.mrr": sum(Fraction(1, worst) for _, worst, _ in ranks) / len(ranks),
        "mrr": sum(Fraction(2, best + worst) for best, worst, _ in ranks) / len(ranks),
        "hits@1": Fraction(sum(best + worst <= 2 for best, worst, _ in ranks), len(ranks)),
        "expected.hits@2": sum(
            Fraction(min(max(3 - best, 0), worst - best + 1), worst - best + 1) for best, worst, _ in ranks
        )
        / len(ranks),
        "mean_rank": Fraction(sum(best + worst for best, worst, _ in ranks), 2 * len(ranks)),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-14)


def test_metrics_and_figures_print_briefly() -> None:
    ranks, top = RankMetric(hits_at=[1, 10]), TopKMetric(3, num_items=9)
    ranks.update([[1.0, 3.0, 2.0]], [2])
    top.update([[4, 5]], ([0], [4]))

    figures = ranks.compute()
    assert len(figures) >= 89  # none is lost; a new metric may come
    lines = repr(figures).splitlines()
    assert (repr(ranks), repr(top), lines[0].partition(f" of {len(figures)} ")[2]) == (
        "RankMetric(hits_at=(1, 10)) of 1 queries",
        "TopKMetric(3, num_items=9) of 1 users",
        "figures, realistic ranks",
    )
    assert ["mean reciprocal rank", "0.5000"] in [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]


def test_what_is_excluded_does_not_compete() -> None:
    metric = RankMetric()

    metric.update(torch.tensor([[3.0, 2.0, 1.0, float("nan")]]), torch.tensor([2]), excluded=[[0, 2, 3]])

    assert metric.compute()["mean_rank"] == 2


def test_dictionaries_of_ogb_and_tgb_rank_each_query_among_its_negatives() -> None:
    positive, negative = torch.tensor([1.0, 2.0, 0.0]), torch.tensor([[1.0, 0.0], [3.0, 2.0], [-1.0, -2.0]])

    found = RankMetric((1, 2)).eval({"y_pred_pos": positive, "y_pred_neg": negative, "eval_metric": ["mrr"]})

    assert (
        pytest.approx(found["mrr_list"].tolist()),
        found["hits@1_list"].tolist(),
        found["hits@2_list"].tolist(),
        pytest.approx(found["mrr"]),
        pytest.approx(found["hits@1"]),
    ) == ([1 / 1.5, 1 / 2.5, 1.0], [0.0, 0.0, 1.0], [1.0, 0.0, 1.0], (1 / 1.5 + 1 / 2.5 + 1) / 3, 1 / 3)


def test_shared_negatives_count_hits_of_those_that_beat_the_k_th() -> None:
    """As OGB has it; TGB, whose dictionary names its metrics, takes the middle of ties."""
    given = {"y_pred_pos": [1.0, 2.0, 3.0], "y_pred_neg": [1.0, 0.0, 3.0, 3.0]}
    found, of_tgb = RankMetric((2,)).eval(given), RankMetric((2,)).eval(given | {"eval_metric": ["mrr"]})

    assert [("mrr_list" in of, of["hits@2"], pytest.approx(of["mrr"])) for of in (found, of_tgb)] == [
        (False, 0, (1 / 4 + 1 / 3 + 1 / 3) / 3),
        (False, 1 / 3, (1 / 3.5 + 1 / 3 + 1 / 2) / 3),
    ]


def top_k_by_hand(items: list[list[int]], right: list[set[int]], k: int) -> dict[str, float | None]:
    """Return the means over users with right items."""
    figures = [
        of_order(tuple(item in wanted for item in listed), len(wanted), k)
        for listed, wanted in zip(items, right, strict=True)
        if wanted
    ]
    return {name: sum(of[name] for of in figures) / len(figures) if figures else None for name in TopKMetric(1)._sums}


@given(
    st.lists(st.tuples(st.permutations(range(6)), st.sets(st.integers(0, 7), max_size=7)), min_size=1, max_size=8),
    st.integers(1, 8),
    st.integers(1, 3),
)
def test_recommendations_are_judged_as_by_hand_in_any_batches(
    users: list[tuple[list[int], set[int]]], k: int, batch: int
) -> None:
    items, right = [of for of, _ in users], [of for _, of in users]
    metric = TopKMetric(k, num_items=8)

    for begin in range(0, len(users), batch):
        pairs = [(user, item) for user, of in enumerate(right[begin : begin + batch]) for item in of]
        metric.update(items[begin : begin + batch], torch.tensor([*pairs, *pairs[:1]]).long().reshape(-1, 2).T)
    found = metric.compute()

    assert min(k, 6) / 8 <= found.pop("coverage") <= 6 / 8  # type: ignore[operator]
    for name, value in top_k_by_hand(items, right, k).items():
        assert found[name] == (None if value is None else pytest.approx(value, rel=1e-12)), name


def _of_a_process(folder: Path) -> None:
    dist.init_process_group("gloo")
    metric, top = RankMetric(), TopKMetric(2, 9)
    _add_part(metric, top, slice(dist.get_rank(), None, 2))
    torch.save((dict(metric.compute()), top.compute()), folder / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()


def _add_part(metric: RankMetric, top: TopKMetric, part: slice) -> None:
    generator = torch.Generator().manual_seed(5)
    scores, true = torch.randint(0, 4, (31, 7), generator=generator), torch.randint(0, 7, (31,), generator=generator)
    metric.update(scores[part], true[part])
    items = torch.rand((31, 7), generator=generator).argsort(1)[part]
    top.update(items, torch.stack([torch.arange(len(items)), true[part]]))


@pytest.mark.slow
def test_processes_add_up_to_the_same_bits(tmp_path: Path) -> None:
    metric, top = RankMetric(), TopKMetric(2, 9)
    _add_part(metric, top, slice(None))

    join(start_workers(2, 1, _of_a_process, tmp_path))

    for process in range(2):
        assert (dict(metric.compute()), top.compute()) == torch.load(tmp_path / f"{process}.pt", weights_only=True)


def test_what_is_kept_does_not_grow_with_the_number_of_updates() -> None:
    metric, generator = RankMetric(), torch.Generator().manual_seed(1)
    scores, true = torch.rand((64, 50), generator=generator), torch.randint(0, 50, (64,), generator=generator)

    metric.update(scores, true)
    after_one = len(pickle.dumps(vars(metric)))
    for _ in range(50):
        metric.update(scores, true)

    assert (51 * 64, len(pickle.dumps(vars(metric)))) == (metric.num_queries, after_one)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (({"y_pred_pos": pos} | neg,), message)
            for pos, neg, message in (
                ([1.0], {}, "the dictionary has no y_pred_neg; it has y_pred_pos"),
                ([1.0], {"y_pred_neg": [[1.0], [2.0]]}, "y_pred_neg: expected shape (1, negatives)"),
                ([float("nan")], {"y_pred_neg": [[1.0]]}, "y_pred_pos: a score is NaN"),
            )
        ),
        ((5,), "eval: expected a dictionary of y_pred_pos and y_pred_neg, got 5"),
        (([[1.0, 2.0]], [0], None, 3), "excluded: expected a bool mask (1, 2) or lists, got 3"),
        (([[1.0, float("nan")]], [0]), "row 0: the score of candidate 1 is NaN"),
        (([[1.0, 2.0]], [2]), "target, row 0: 2 is not one of the 2 candidates"),
        (([[1.0, 2.0]], [[True]]), "do not fit"),
        (([1.0, 2.0], [1, 0]), "(n,) with indexes"),
        (([1.0, 2.0], [1, 0], [0.5, 0.5]), "indexes: expected integers"),
        (([1.0, float("nan")], [1, 0], [0, 0]), "preds: a score is NaN"),
        ((["a", "b"], [1, 0]), "preds: expected numbers"),
        ((torch.ones(1, 2, dtype=torch.complex64), [0]), "expected real numbers"),
        ((torch.eye(2).to_sparse(), [0, 0]), "expected real numbers, got torch.float32 torch.sparse_coo on cpu"),
    ],
)
def test_what_cannot_be_ranked_is_refused(arguments: tuple[object, ...], message: str) -> None:
    metric = RankMetric()

    def call() -> None:
        given: Any = arguments
        if len(given) == 1:
            metric.eval(*given)
        else:
            metric.update(*given[:3], excluded=given[3] if len(given) > 3 else None)

    assert message in fault_of(call, DataError)
    assert not metric.num_queries


@pytest.mark.parametrize(
    ("items", "right", "message"),
    [
        ([[1, 1]], [[0], [1]], "row 0 recommends an item twice"),
        ([[1, 9]], [[0], [1]], "expected items from -1 to 4, got 1 to 9"),
        ([[1, 2]], [[0], [-1]], "expected items from 0 to 4"),
        ([[1, 2]], [[1], [1]], "expected rows of pred_index_mat, 0 to 0"),
        ([[1, 2]], [[0, 0], [1]], "expected pairs, got 2 users and 1 items"),
        ([[1.0, 2.0]], [[0], [1]], "pred_index_mat: expected integers with 2 axes"),
        ([[1, 2]], [[0], [1], [2]], "edge_label_index: expected two rows"),
        ([[]], [[0], [1]], "pred_index_mat: expected at least one column, got none"),
    ],
)
def test_recommendations_that_cannot_be_judged_are_refused(items: list[list[int]], right: Any, message: str) -> None:
    metric = TopKMetric(2, num_items=5)

    assert message in fault_of(lambda: metric.update(items, right), DataError)
    assert metric.compute()["recall"] is None


def test_an_empty_list_stands_for_no_recommendation() -> None:
    metric = TopKMetric(2)

    metric.update([[-1, -1], [3, -1]], ([0, 1], [3, 3]))

    assert (metric.compute()["recall"], metric.compute()["precision"]) == (0.5, 0.25)


def test_ids_of_items_may_be_any_integers() -> None:
    items, right = torch.tensor([[0]] * 4 + [[2**62 - 1]]), [[4], [0]]
    metric, huge = TopKMetric(1), TopKMetric(10**7)  # whose memory does not follow k

    metric.update(items, right)
    huge.update([[2**63 - 1, 5], [2, 9]], [[0, 1], [2**63 - 1, 3]])

    assert (metric.compute()["recall"], huge.compute()["recall"]) == (0.0, 0.5)


def test_integers_are_compared_as_they_are() -> None:
    scores = torch.tensor([[2**53, 2**53 + 1]])
    by_column, by_mask = RankMetric(), RankMetric()

    by_column.update(scores, [0])
    by_mask.update(scores, [[1, 0]])

    of_pairs = RankMetric().eval({"y_pred_pos": scores[0, :1], "y_pred_neg": scores[:, 1:]})
    assert 0.5 == by_column.compute()["mrr"] == by_mask.compute()["mrr"] == of_pairs["mrr"]


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        *((RankMetric, (of,), "hits_at") for of in ((), (0, 1), 5, "12", (1.5,), (True,), (2**70,), (float("nan"),))),
        *((TopKMetric, (k,), "k: expected a whole number from 1") for k in (0, 2.5, "3", None, True)),
        (TopKMetric, (1, -1), "num_items: expected a whole number from 1"),
    ],
)
def test_cutoffs_are_whole_numbers_from_1(kind: Any, arguments: tuple[Any, ...], message: str) -> None:
    assert message in fault_of(lambda: kind(*arguments), ConfigError)


@pytest.mark.parametrize(
    ("metric", "other", "message"),
    [
        (
            RankMetric(),
            TopKMetric(3),
            "merge_state: expected a RankMetric, got TopKMetric(3, num_items=None) of 0 users",
        ),
        (RankMetric(), None, "merge_state: expected a RankMetric, got None"),
        (RankMetric((1,)), RankMetric((2,)), "hits_at"),
        (TopKMetric(3), RankMetric(), "merge_state: expected a TopKMetric, got RankMetric("),
        (TopKMetric(3), TopKMetric(3, 9), "expected k = 3, num_items = None, got k = 3, num_items = 9"),
    ],
)
def test_metrics_that_are_not_alike_are_not_merged(metric: Any, other: Any, message: str) -> None:
    assert message in fault_of(lambda: metric.merge_state(other), ConfigError)


def test_parts_are_merged_to_the_same_bits() -> None:
    whole, merged, rest = ((RankMetric(), TopKMetric(2, 9)) for _ in range(3))
    for of, part in ((whole, slice(None)), (merged, slice(0, 11)), (rest, slice(11, None))):
        _add_part(*of, part)

    for into, more in zip(merged, rest, strict=True):
        into.merge_state(more)

    assert [dict(of.compute()) for of in whole] == [dict(of.compute()) for of in merged]


@pytest.mark.parametrize("lying", [lambda of: of.astype(">f4"), np.asfortranarray, lambda of: of[::-1].copy()[::-1]])
def test_arrays_of_numpy_may_lie_in_any_way(lying: Callable[[np.ndarray], np.ndarray]) -> None:
    metric = RankMetric()

    metric.update(lying(np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 0.0]], np.float32)), np.array([1, 0], ">i4")[::-1])

    assert metric.compute()["mean_rank"] == 1


def test_metrics_of_all_processes_must_be_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(of_this: tuple[object, object]) -> list[tuple[object, object]]:
        return [of_this, ((7, None), of_this[1])]

    monkeypatch.setattr("pbgeval.integrations.metric_objects.gather_over_processes", gather)

    for metric in (RankMetric(), TopKMetric(2)):
        with pytest.raises(ConfigError, match=r"the metrics of all processes must be alike, found .* and \(7, None\)"):
            metric.compute()
