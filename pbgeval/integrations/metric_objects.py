"""Metric objects for other people's evaluation loops, in the shape of torchmetrics: update, compute, reset.

    ranks = RankMetric(hits_at=(1, 10))
    for scores, true in batches:  # (queries, candidates), and the column of each query's true candidate
        ranks.update(scores, true)
    ranks.compute()["mrr"], ranks.compute()["expected.hits@10"]

    RankMetric().eval({"y_pred_pos": positive, "y_pred_neg": negative})  # the input of OGB's and TGB's evaluators

    top = TopKMetric(10)  # the arguments of PyTorch Geometric's LinkPredMetric
    top.update(pred_index_mat, edge_label_index)
    top.compute()["ndcg"]

Ranks know of ties. What is kept are int64 sums, so memory does not grow with the number of updates, and the figures
have the same bits however queries are divided into batches and processes. Where the caller has started
torch.distributed, `compute` adds up all processes; every process must call it. None of these libraries is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pbgeval.cluster.team import gather_over_processes
from pbgeval.errors import ConfigError, DataError
from pbgeval.metrics.names import OF_LISTS
from pbgeval.metrics.summary import all_rank_metrics
from pbgeval.metrics.topk_metrics import AnswerPlaces, exact_sum
from pbgeval.notation import distinct
from pbgeval.report.report import Figures
from pbgeval.stats.histograms import RankHistograms
from pbgeval.stats.query_metrics import QUERIES, ratio
from pbgeval.stats.rank_stats import FRACTION_BITS, RankStats, StatsLayout
from pbgeval.stats.rank_types import RankType
from pbgeval.stats.ranks import IndexLists, RankCounts, from_scores
from pbgeval.storage.text import one_line

Numbers = Tensor | np.ndarray | Sequence[Any]
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_DTYPES = (torch.bool, *_INTEGERS, torch.float16, torch.bfloat16, torch.float32, torch.float64)


class RankMetric:
    """The rank of every true candidate among the candidates of its query, and all metrics of these ranks."""

    def __init__(self, hits_at: Iterable[int] = (1, 3, 10)) -> None:
        cutoffs = {_whole("hits_at", k) for k in hits_at} if isinstance(hits_at, Iterable) else set()
        if not cutoffs:
            raise ConfigError(f"hits_at: expected a list of whole numbers from 1, got {hits_at}")
        self.hits_at = tuple(sorted(cutoffs))
        self.reset()

    def __repr__(self) -> str:
        return f"RankMetric(hits_at={self.hits_at}) of {self.num_queries} queries"

    @property
    def num_queries(self) -> int:
        """Queries so far, in this process."""
        return self._sums[0].total(QUERIES)

    def reset(self) -> None:
        """Forget all queries."""
        self._sums = RankStats.zero(StatsLayout(self.hits_at)), RankHistograms.zero()

    def update(
        self,
        preds: Numbers,
        target: Numbers,
        indexes: Numbers | None = None,
        *,
        excluded: Tensor | np.ndarray | IndexLists | None = None,
    ) -> None:
        """Add queries.

        Args:
            preds: scores, higher is better: (queries, candidates), or (n,) in any order with `indexes`.
            target: the column of each query's true candidate, integers (queries,). Or which scores are of true
                candidates, bool or 0 and 1, of the shape of `preds`: each of them is a query, and is ranked among the
                candidates of its row that are not true. A row without one adds nothing.
            indexes: of scores (n,): the row that each belongs to, integers, as torchmetrics has it. All scores of a
                row must come in one call.
            excluded: with columns as `target`: candidates that do not compete, for example known answers; a bool mask
                (queries, candidates) or lists of columns. The true column may be among them; it always competes.

        Raises:
            DataError: the shapes do not fit, an index is out of range, or a score that is compared is NaN.
        """
        scores, true = _tensor("preds", preds), _tensor("target", target)
        if indexes is None and scores.ndim == 2 and true.ndim == 1:
            try:
                counts = from_scores(scores, true, excluded).counts()
            except ValueError as error:
                raise DataError(f"RankMetric.update: {error}".replace("true_index", "target")) from None
        elif excluded is not None:
            raise DataError(
                "RankMetric.update: excluded goes with a target of one column for each row; leave out cells"
            )
        else:
            counts = _counts_of_marked(*_cells(scores, true, None if indexes is None else _tensor("indexes", indexes)))
        self._add(*self._sums_of(counts))

    def compute(self) -> Figures:
        """Return every rank metric over all processes, by any of its names: `["mrr"]`, `["pessimistic.hits@10"]`.

        A metric is None where it is undefined, as all are without queries.
        """
        stats, histograms = zip(*_gathered(self.hits_at, self._sums), strict=True)
        figures = all_rank_metrics(reduce(add, stats), reduce(add, histograms))
        return Figures({f"both.{name}": value for name, value in figures.items()}, RankType.REALISTIC.value)

    def merge_state(self, other: RankMetric) -> None:
        """Add the queries of another metric with the same cutoffs.

        Raises:
            ConfigError: it is no RankMetric, or its cutoffs are others.
        """
        _check_alike(self, other)
        if self.hits_at != other.hits_at:
            raise ConfigError(f"merge_state: expected hits_at = {list(self.hits_at)}, got {list(other.hits_at)}")
        self._add(*other._sums)

    def eval(self, input_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Return what OGB's and TGB's `Evaluator.eval` return for the same dictionary; updates nothing.

        Args:
            input_dict: `y_pred_pos`, scores of true edges (queries,); `y_pred_neg`, those of their negatives (queries,
                negatives), or of negatives that all queries share (negatives,).

        Returns:
            `mrr` and `hits@k` of these queries. With negatives for each query, ranks are realistic, and OGB's lists
            come with them (`mrr_list`, `hits@k_list`: float64, one number per query). With shared ones ranks are
            pessimistic, as in OGB: a true edge must score higher than the k-th best negative; or realistic, as in
            TGB, whose dictionary has a key `eval_metric`.

        Raises:
            DataError: a key is missing, the shapes do not fit, or a score is NaN.
        """
        if not isinstance(input_dict, Mapping):
            raise DataError(
                f"eval: expected a dictionary of y_pred_pos and y_pred_neg, got {one_line(repr(input_dict))}"
            )
        missing = [key for key in ("y_pred_pos", "y_pred_neg") if key not in input_dict]
        if missing:
            raise DataError(f"eval: the dictionary has no {missing[0]}; it has {', '.join(map(str, input_dict))}")
        true_Q, others = (_tensor(name, input_dict[name]) for name in ("y_pred_pos", "y_pred_neg"))
        true_Q = true_Q.flatten()
        if others.ndim not in (1, 2) or (others.ndim == 2 and len(others) != len(true_Q)):
            raise DataError(
                f"eval: y_pred_neg: expected shape ({len(true_Q)}, negatives) or (negatives,), "
                f"got {tuple(others.shape)}"
            )
        for name, of in (("y_pred_pos", true_Q), ("y_pred_neg", others)):
            if bool(of.isnan().any()):
                raise DataError(f"eval: {name}: a score is NaN, which cannot be ranked")
        dtype = _comparable(torch.promote_types(true_Q.dtype, others.dtype))
        sorted_QC = others.to(dtype).sort(dim=-1).values
        true_Q1 = true_Q.to(dtype) if others.ndim == 1 else true_Q.to(dtype)[:, None]
        below_Q, not_above_Q = (
            torch.searchsorted(sorted_QC, true_Q1.contiguous(), right=right).flatten() for right in (False, True)
        )
        competing_Q = torch.full_like(below_Q, others.shape[-1])
        counts = RankCounts(competing_Q - not_above_Q, not_above_Q - below_Q, competing_Q)
        figures = all_rank_metrics(*self._sums_of(counts))
        is_ogb = others.ndim == 1 and "eval_metric" not in input_dict
        rank_type = RankType.PESSIMISTIC if is_ogb else RankType.REALISTIC
        names = {"mrr": "mean_reciprocal_rank"} | {f"hits@{k}": f"hits_at_{k}" for k in self.hits_at}
        found: dict[str, Any] = {name: figures[f"{rank_type.value}.{key}"] for name, key in names.items()}
        if others.ndim == 2:
            rank_Q = counts.doubled_rank(rank_type).double() / 2
            found |= {"mrr_list": 1 / rank_Q} | {f"hits@{k}_list": (rank_Q <= k).double() for k in self.hits_at}
        return found

    def _sums_of(self, counts: RankCounts) -> tuple[RankStats, RankHistograms]:
        counts = counts.cpu()
        return RankStats.from_queries(StatsLayout(self.hits_at), counts), RankHistograms.from_queries(counts)

    def _add(self, stats: RankStats, histograms: RankHistograms) -> None:
        self._sums = self._sums[0] + stats, self._sums[1] + histograms


def _tensor(name: str, values: Numbers) -> Tensor:
    try:
        if isinstance(values, np.ndarray):  # torch takes no other order of bytes, nor an axis that runs backwards
            values = np.asarray(values, values.dtype.newbyteorder("="), order="C")
        tensor = torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name}: expected numbers, got {type(values).__name__}: {error}") from None
    if tensor.dtype not in _DTYPES or tensor.layout is not torch.strided or tensor.is_meta:
        form = "" if tensor.layout is torch.strided else f" {tensor.layout}"
        raise DataError(f"{name}: expected real numbers, got {tensor.dtype}{form} on {tensor.device}")
    return tensor


def _comparable(dtype: torch.dtype) -> torch.dtype:
    """Return the type to compare in; float64 would round integers."""
    return torch.float64 if dtype.is_floating_point else torch.int64


def _check_alike(metric: object, other: object) -> None:
    if type(other) is not type(metric):
        raise ConfigError(f"merge_state: expected a {type(metric).__name__}, got {one_line(repr(other))}")


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value < 1 << 62:
        raise ConfigError(f"{name}: expected a whole number from 1, got {value!r}")
    return int(value)


def _gathered(settings: object, sums: Any) -> list[Any]:  # noqa: ANN401 - of either metric
    """Return the sums of all processes after checking that their metrics are alike."""
    gathered = gather_over_processes((settings, sums))
    unlike = [other for other, _ in gathered if other != settings]
    if unlike:
        raise ConfigError(f"compute: the metrics of all processes must be alike, found {settings} and {unlike[0]}")
    return [found for _, found in gathered]


def _cells(scores: Tensor, true: Tensor, row: Tensor | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Check cells; return their scores, whether each is true, and their rows, all (n,)."""
    where, shape = "RankMetric.update", tuple(scores.shape)
    if true.shape != scores.shape or scores.ndim != (2 if row is None else 1):
        raise DataError(
            f"{where}: preds of shape {shape} and target of shape {tuple(true.shape)} do not fit: expected (queries, "
            "candidates) and (queries,), twice (queries, candidates), or twice (n,) with indexes"
        )
    if row is None:
        row = torch.arange(len(scores), device=scores.device)[:, None].expand_as(scores)
    elif row.shape != scores.shape or row.is_floating_point() or row.dtype is torch.bool:
        raise DataError(f"{where}: indexes: expected integers of shape {shape}, got {row.dtype} {tuple(row.shape)}")
    if ((true != 0) & (true != 1)).any():
        raise DataError(f"{where}: target: expected bool, or 0 and 1, in the shape of preds")
    if scores.isnan().any():
        raise DataError(f"{where}: preds: a score is NaN, which cannot be ranked")
    scores_N, true_N, row_N = (of.reshape(-1).cpu() for of in (scores, true, row))
    return scores_N.to(_comparable(scores.dtype)).numpy(), true_N.bool().numpy(), row_N.long().numpy()


def _counts_of_marked(scores_N: np.ndarray, true_N: np.ndarray, row_N: np.ndarray) -> RankCounts:
    """Count for each true cell the cells of its row that are not true."""
    # A number for each cell that orders rows and, within a row, scores; 0 stands below the scores of a row.
    level_N = 1 + np.unique(scores_N, return_inverse=True)[1]
    row_N = np.unique(row_N, return_inverse=True)[1] * (len(row_N) + 1)
    wrong = np.sort((row_N + level_N)[~true_N])
    row_P, cell_P = row_N[true_N], (row_N + level_N)[true_N]
    before_row, row_end = (np.searchsorted(wrong, of) for of in (row_P, row_P + len(row_N) + 1))
    before_tie, tie_end = (np.searchsorted(wrong, cell_P, side) for side in ("left", "right"))
    return RankCounts(*(torch.from_numpy(of) for of in (row_end - tie_end, tie_end - before_tie, row_end - before_row)))


class TopKMetric:
    """What the first k recommended items of each user hold of the items that are right: means over users."""

    def __init__(self, k: int, num_items: int | None = None) -> None:
        """Start with no users; `num_items` gives the share of all items that is recommended to any user."""
        self.k = _whole("k", k)
        self.num_items = None if num_items is None else _whole("num_items", num_items)
        self.reset()

    def __repr__(self) -> str:
        return f"TopKMetric({self.k}, num_items={self.num_items}) of {self._num_users} users"

    def reset(self) -> None:
        """Forget all users."""
        self._sums = dict.fromkeys(OF_LISTS, 0)
        self._num_users = 0
        self._is_recommended = np.zeros(self.num_items or 0, bool)

    def update(self, pred_index_mat: Numbers, edge_label_index: Numbers | tuple[Numbers, Numbers]) -> None:
        """Add users; those without right items count for coverage alone, as in PyTorch Geometric.

        Args:
            pred_index_mat: items, best first, integers (users, at least 1); no item twice in a row. -1 stands for none.
            edge_label_index: (row of the user, right item), integers (2, right items); pairs given twice count once.

        Raises:
            DataError: the shapes do not fit, an index is out of range, or an item is recommended twice to one user.
        """
        items_Qk = _integers("pred_index_mat", pred_index_mat, 2)[:, : self.k]
        if not items_Qk.shape[1]:
            raise DataError("pred_index_mat: expected at least one column, got none; -1 stands for no item")
        try:
            user, item = edge_label_index
        except (TypeError, ValueError):
            raise DataError("edge_label_index: expected two rows: rows of users, and right items") from None
        user_E, item_E = (_integers("edge_label_index", of, 1) for of in (user, item))
        if len(user_E) != len(item_E):
            raise DataError(f"edge_label_index: expected pairs, got {len(user_E)} users and {len(item_E)} items")
        if user_E.size and not 0 <= user_E.min() <= user_E.max() < len(items_Qk):
            raise DataError(f"edge_label_index: expected rows of pred_index_mat, 0 to {len(items_Qk) - 1}")
        most = np.iinfo(np.int64).max if self.num_items is None else self.num_items - 1
        for name, of, least in (("pred_index_mat", items_Qk, -1), ("edge_label_index", item_E, 0)):
            if of.size and not least <= of.min() <= of.max() <= most:
                raise DataError(f"{name}: expected items from {least} to {most}, got {of.min()} to {of.max()}")
        sorted_Qk = np.sort(items_Qk, axis=1)
        is_repeated_Q = ((sorted_Qk[:, 1:] == sorted_Qk[:, :-1]) & (sorted_Qk[:, 1:] >= 0)).any(axis=1)
        if is_repeated_Q.any():
            raise DataError(f"pred_index_mat: row {int(np.argmax(is_repeated_Q))} recommends an item twice")
        items = distinct(np.append(items_Qk, item_E))  # their places, as ids can be any integers
        width = len(items) + 1
        right_E = distinct(user_E * width + np.searchsorted(items, item_E))
        num_right_Q = np.bincount(right_E // width, minlength=len(items_Qk))
        place_Qk = np.arange(len(items_Qk))[:, None] * width + np.searchsorted(items, items_Qk)
        is_hit_Qk = np.isin(place_Qk, right_E) & (items_Qk >= 0)
        asked_Q = num_right_Q > 0
        user_P, before_P = np.nonzero(is_hit_Qk[asked_Q])
        alone_P = np.ones_like(user_P)  # an order is given, so each hit is at one place
        values = AnswerPlaces(num_right_Q[asked_Q], user_P, before_P, alone_P, alone_P).values(self.k)
        self._sums = {name: total + exact_sum(values[name]) for name, total in self._sums.items()}
        self._num_users += int(asked_Q.sum())
        if self.num_items is not None:
            self._is_recommended[items_Qk[items_Qk >= 0]] = True

    def merge_state(self, other: TopKMetric) -> None:
        """Add the users of another metric with the same settings.

        Raises:
            ConfigError: it is no TopKMetric, or its settings are others.
        """
        _check_alike(self, other)
        if (self.k, self.num_items) != (other.k, other.num_items):
            expected, found = (f"k = {of.k}, num_items = {of.num_items}" for of in (self, other))
            raise ConfigError(f"merge_state: expected {expected}, got {found}")
        self._sums = {name: total + other._sums[name] for name, total in self._sums.items()}
        self._num_users += other._num_users
        self._is_recommended = self._is_recommended | other._is_recommended

    def compute(self) -> dict[str, float | None]:
        """Return recall, precision, f1, map, ndcg, mrr, hit_ratio, and coverage where the number of items is known.

        Each is a mean over the users of all processes that have right items, None without any; coverage is the share
        of all items.
        """
        sums, counts, recommended = zip(
            *_gathered((self.k, self.num_items), (self._sums, self._num_users, self._is_recommended)), strict=True
        )
        num_terms = sum(counts) << FRACTION_BITS
        num_recommended = int(np.any(recommended, axis=0).sum())
        return {
            **{name: ratio(sum(part[name] for part in sums), num_terms) for name in self._sums},
            **({} if self.num_items is None else {"coverage": ratio(num_recommended, self.num_items)}),
        }


def _integers(name: str, values: Numbers, ndim: int) -> np.ndarray:
    tensor = _tensor(name, values)
    if tensor.numel() == 0:
        tensor = tensor.long()  # an empty list has no type
    if tensor.ndim != ndim or tensor.is_floating_point() or tensor.dtype is torch.bool:
        raise DataError(
            f"{name}: expected integers with {ndim} axes, got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    return tensor.long().cpu().numpy()
