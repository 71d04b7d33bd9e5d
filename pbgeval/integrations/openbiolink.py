"""OpenBioLink's way to evaluate: a subclass with `score_batch`, a loader of its datasets -> its metrics, our ranks.

    from pbgeval.integrations.openbiolink import DataLoader, Evaluator

    class Mine(Evaluator):
        def score_batch(self, batch): ...

    Mine(DataLoader("HQ_DIR")).evaluate(batch_size=100)   # {"hits@1": ..., "hits@3": ..., "hits@10": ..., "mrr": ...}

OpenBioLink is not imported. What its own evaluators get wrong (docs/guides/other_systems.md) is right here.
"""

from __future__ import annotations

import math
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.errors import DataError, ScorerError, StorageError
from pbgeval.importing.edge_names import edge_names
from pbgeval.metrics.given import RankMetrics, from_ranks
from pbgeval.models.labels import read_labels
from pbgeval.notation import ENDS, EntityNumbering, Side
from pbgeval.ranking.keys import EdgeColumns, QueryKeys
from pbgeval.ranking.known_answers import KnownAnswers, PairStore, SemiJoin
from pbgeval.scoring.block_scorer import checked_scores
from pbgeval.stats.ranks import RankCounts, from_scores
from pbgeval.storage.edge_columns import ColumnForm
from pbgeval.storage.edge_text import EdgeText, Names
from pbgeval.storage.edges import Edges

# What `score_batch` returns, by either of OpenBioLink's contracts -> scores of each side, checked.

_AGREES = 1e-5  # relative: two kernels' float32 scores of one edge
_CONTRACTS = {
    2: ("head scores", "tail scores"),
    4: ("true scores of heads", "head scores", "true scores of tails", "tail scores"),
}


def batch_scores(
    score_batch: Callable[[Tensor], Any], batch_b3: Tensor, num_entities: int, name: str
) -> Mapping[Side, tuple[Tensor, int]]:
    """Ask for the scores of a batch.

    Where a contract gives true scores apart, they come from another kernel than those of candidates, as a rule: then
    identical candidates would not tie. So the true score is the one among the candidates' if the two agree but for
    rounding; a ranking file has none there (for example 0), and then the one given separately counts.

    Returns:
        By side: scores (b, N) of every entity, the true one's in its place; and in how many rows it was not there.

    Raises:
        ScorerError: it returns neither two arrays of scores nor four, or of other shapes.
    """
    found = score_batch(batch_b3.clone())
    where = f"{name}.score_batch"
    size = len(batch_b3)
    is_tuple = isinstance(found, tuple | list)
    names = _CONTRACTS.get(len(found)) if is_tuple else None
    if names is None:
        got = f"a tuple of {len(found)}" if is_tuple else type(found).__name__
        raise ScorerError(f"{where}: expected (head scores, tail scores) or four of them, got {got}")
    parts = {}
    for name, part in zip(names, found, strict=True):
        shape = (size,) if name.startswith("true") else (size, num_entities)
        # Exact in float64, so that true scores of another type compare as they are.
        parts[name] = checked_scores(part, f"{where}: {name} of a batch of {size}", shape).double()
    return {
        side: _with_true_scores(parts[f"{side.label} scores"], parts.get(f"true scores of {side.label}s"), true_b)
        for side, true_b in ((Side.LHS, batch_b3[:, 0]), (Side.RHS, batch_b3[:, 2]))
    }


def _with_true_scores(scores_bN: Tensor, given_b: Tensor | None, true_b: Tensor) -> tuple[Tensor, int]:
    """Insert true scores that come separately; return in how many rows they differed."""
    if given_b is None:
        return scores_bN, 0
    true_b1 = true_b.to(scores_bN.device).unsqueeze(1)
    own_b, given_b = scores_bN.gather(1, true_b1).squeeze(1), given_b.to(scores_bN.device)
    finite_bN = torch.where(torch.isfinite(scores_bN), scores_bN, 0.0)
    # Of a sum that cancels, rounding is relative to its terms, which a row's largest score stands for; a 0 may be the
    # filling of a ranking file's row, and a small confidence must not be taken for it.
    allowed_b = _AGREES * torch.where(own_b == 0, given_b.abs(), finite_bN.abs().amax(1))
    agrees_b = (own_b == given_b) | ((own_b - given_b).abs() <= allowed_b)
    return scores_bN.scatter(1, true_b1, torch.where(agrees_b, own_b, given_b).unsqueeze(1)), int((~agrees_b).sum())


# Scores of a batch of edges and known answers -> ranks of both sides -> metrics. Exclusion is by identity.


def known_answers(
    evaluated_E3: Tensor, known_K3: Tensor, num_entities: int
) -> dict[Side, tuple[QueryKeys, KnownAnswers]]:
    """Return the keys of evaluated queries and their known answers, by side."""
    evaluated = EdgeColumns(*evaluated_E3.numpy().T)
    keys = {side: QueryKeys.of_edges(side, evaluated, num_entities) for side in ENDS}
    pairs = PairStore(EntityNumbering.from_sizes({("all", 0): num_entities}), sys.maxsize, scratch=None)
    SemiJoin(keys, pairs.add).feed(EdgeColumns(*known_K3.numpy().T))
    return {side: (keys[side], pairs.pairs(side, 0).in_rows()) for side in ENDS}


def rank_side(
    side: Side, batch: np.ndarray, scores_bN: Tensor, known: tuple[QueryKeys, KnownAnswers] | None
) -> RankCounts:
    """Rank the true entities of a batch among those that are no known answers.

    Args:
        side: that is hidden.
        batch: edges, int64 (b, 3).
        scores_bN: of that side, higher is better.
        known: keys and known answers of that side; None: all entities compete.

    Raises:
        DataError: a score that is compared is not a number; names edge and entity.
    """
    true_b = side.pick(batch[:, 0], batch[:, 2])
    excluded_bN = np.zeros(scores_bN.shape, np.bool_)
    if known is not None:
        keys, answers = known
        found = answers.select(keys.index_of(batch[:, 1], side.pick(batch[:, 2], batch[:, 0])))
        excluded_bN[found.key_P, found.entity_id_P] = True
    excluded_bN[np.arange(len(batch)), true_b] = False
    undefined = np.argwhere(torch.isnan(scores_bN).cpu().numpy() & ~excluded_bN)
    if len(undefined):
        row, entity = undefined[0].tolist()
        entity_name = "the true entity" if entity == true_b[row] else f"entity {entity}"
        raise DataError(
            f"score_batch: expected a number for {entity_name} as {side.label} of edge {tuple(batch[row].tolist())}, "
            "got NaN"
        )
    return from_scores(scores_bN, torch.from_numpy(true_b), excluded_bN).counts().cpu()


@frozen(eq=False)
class EdgeRanks:
    """The ranks of all test edges, in their order."""

    of_side: Mapping[Side, RankCounts]
    num_dropped: int  # test edges that have labels without a number, and are not ranked
    num_without_true: int  # queries whose candidates' scores do not hold the true entity's, as in a ranking file's rows

    @property
    def num_all_tied(self) -> int:
        """The queries whose true entity ties with every competitor, as an edge does that a file lacks."""
        return sum(
            int(((of.tied_Q == of.num_competitors_Q) & (of.num_competitors_Q > 0)).sum())
            for of in self.of_side.values()
        )

    def metrics(self, side: Side | None = None) -> RankMetrics:
        """Return every metric of every rank type: of the queries that hide a side, or of both sides pooled."""
        counts = RankCounts.concatenate([self.of_side[one] for one in ([side] if side else ENDS)])
        optimistic_Q = 1 + counts.better_Q
        return from_ranks(optimistic_Q, optimistic_Q + counts.tied_Q, 1 + counts.num_competitors_Q)


DATA = "train_test_data"
FILES = {"training": "train_sample.csv", "validation": "val_sample.csv", "testing": "test_sample.csv"}


class DataLoader:
    """A dataset of OpenBioLink on disk; nothing is downloaded."""

    def __init__(
        self,
        name: str | Path = "HQ_DIR",
        root: str | Path = "datasets",
        entity_to_id_path: str | Path | None = None,
        relation_to_id_path: str | Path | None = None,
    ) -> None:
        """Read a dataset, and warn of edges that were dropped because labels of theirs have no number.

        Args:
            name: its folder, or the name of one in `root`.
            root: the folder of datasets; the two may change places, as they did in OpenBioLink 0.1.4.
            entity_to_id_path: `id<TAB>label` a line; None: the sorted labels of the training edges.
            relation_to_id_path: the same for relations.

        Raises:
            StorageError: a file is missing or of the wrong form.
        """
        folders = [Path(name), Path(root) / name, Path(name) / root]
        folder = next((one for one in folders if (one / DATA).is_dir()), folders[1])
        if not (folder / DATA).is_dir():
            raise StorageError(f"{folder}: expected a dataset of OpenBioLink, a folder with {DATA}, found none")
        paths = {split: folder / DATA / name for split, name in FILES.items()}
        missing = next((path for path in paths.values() if not path.is_file()), None)
        if missing is not None:
            raise StorageError(f"{missing}: expected a file of OpenBioLink's dataset (record 3834052), found none")
        given = [
            None if path is None else _numbered_by_file(Path(path)) for path in (entity_to_id_path, relation_to_id_path)
        ]
        by_training = _numbered_by_training(paths["training"]) if None in given else ({}, {})
        self.entity_to_id, self.relation_to_id = (
            numbers if chosen is None else chosen for chosen, numbers in zip(given, by_training, strict=True)
        )
        self.num_entities, self.num_relations = len(self.entity_to_id), len(self.relation_to_id)
        found = {split: _edges(path, self.entity_to_id, self.relation_to_id) for split, path in paths.items()}
        self.training, self.validation, self.testing = (edges for edges, _ in found.values())  # int64 (n, 3): h, r, t
        self.num_dropped = {split: number for split, (_, number) in found.items()}  # edges with a label without number
        if any(self.num_dropped.values()):
            counts = ", ".join(f"{number} of {split}" for split, number in self.num_dropped.items() if number)
            warnings.warn(
                f"{folder}: edges with labels that have no number were dropped: {counts}; they are neither ranked "
                "nor known",
                stacklevel=2,
            )

    @property
    def all(self) -> Tensor:
        """All edges, int64 (n, 3): training, testing, validation."""
        return torch.cat([self.training, self.testing, self.validation])

    @property
    def edges(self) -> Edges:
        """The edges for `pbgeval.evaluate(config, model=..., edges=loader.edges)`, with any model."""
        return Edges(self.testing, known=[self.validation], train=[self.training])

    def get_test_batches(self, batch_size: int = 100) -> tuple[int, Iterator[Tensor]]:
        """Return how many batches there are, and the batches; the last one may be short."""
        return math.ceil(len(self.testing) / batch_size), iter(torch.split(self.testing, batch_size))


class Evaluator(ABC):
    """Ranks the test edges of a dataset by the scores that a subclass returns."""

    def __init__(self, dl: DataLoader, higher_is_better: bool = True) -> None:
        self.dl = dl
        self.higher_is_better = higher_is_better
        self.entities = torch.arange(dl.num_entities)
        self.relations = torch.arange(dl.num_relations)
        self.num_neg = dl.num_entities  # N below

    @abstractmethod
    def score_batch(self, batch: Tensor) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the scores of test edges, int64 (b, 3): head, relation, tail.

        Returns:
            Either (head scores, tail scores), each (b, N): of every entity as head, and as tail. Or
            (true scores, head scores, true scores, tail scores), the true ones (b,): then the others may hold anything
            at the true entity.
        """

    def evaluate(self, batch_size: int = 100, cpu: int = -1, filtering: bool = True) -> dict[str, float]:
        """Return OpenBioLink's metrics: hits@1, hits@3, hits@10 and mrr of pessimistic ranks, both sides pooled.

        Args:
            batch_size: edges per call of `score_batch`; changes no number.
            cpu: accepted and not used: `score_batch` is called in this process, whatever torch does with its threads.
            filtering: whether known answers (training, validation, testing) do not compete. False for scores of a
                ranking file that is filtered already.

        Raises:
            ScorerError: `score_batch` returns what are no scores of the batch.
            DataError: a score that is compared is not a number; there is nothing to rank.
        """
        metrics = self.rank(batch_size, filtering).metrics()
        found = ((name, metrics[f"pessimistic.{name}"]) for name in ("hits@1", "hits@3", "hits@10", "mrr"))
        return {name: float(value) for name, value in found if value is not None}

    def rank(self, batch_size: int = 100, filtering: bool = True) -> EdgeRanks:
        """Rank the test edges: every rank type, every metric, each side, and counts of doubtful scores.

        Args:
            batch_size: as `evaluate`.
            filtering: as `evaluate`.

        Raises:
            EvalError: as `evaluate`.
        """
        if not len(self.dl.testing):
            raise DataError("testing: no edges to rank")
        if batch_size < 1:
            raise DataError(f"batch_size: expected a number from 1, got {batch_size}")
        known = known_answers(self.dl.testing, self.dl.all, self.num_neg) if filtering else {}
        counts: dict[Side, list[RankCounts]] = {side: [] for side in ENDS}
        num_without_true = 0
        for batch_b3 in self.dl.get_test_batches(batch_size)[1]:
            with torch.no_grad():
                scores = batch_scores(self.score_batch, batch_b3, self.num_neg, type(self).__name__)
            for side, (scores_bN, num_without) in scores.items():
                higher_bN = scores_bN if self.higher_is_better else -scores_bN
                counts[side].append(rank_side(side, batch_b3.numpy(), higher_bN, known.get(side)))
                num_without_true += num_without
        return EdgeRanks(
            {side: RankCounts.concatenate(parts) for side, parts in counts.items()},
            self.dl.num_dropped["testing"],
            num_without_true,
        )


def _names(path: Path) -> Iterator[Names]:
    """Yield the names of a file's edges: head, relation and tail first, as pandas writes them."""
    width = EdgeText.num_columns(path, ColumnForm(delimiter="\t", flag=""))
    form = ColumnForm("hrt".ljust(width, "_"), delimiter="\t", flag="")
    return edge_names(path, form, lambda warning: warnings.warn(warning, stacklevel=2))


def _numbered_by_training(path: Path) -> tuple[dict[str, int], ...]:
    entities, relations = set[str](), set[str]()
    for heads, labels, tails in _names(path):
        entities.update(heads, tails)
        relations.update(labels)
    return tuple({label: index for index, label in enumerate(sorted(found))} for found in (entities, relations))


def _numbered_by_file(path: Path) -> dict[str, int]:
    return {label: index for index, label in enumerate(read_labels(path))}


def _edges(path: Path, entities: Mapping[str, int], relations: Mapping[str, int]) -> tuple[Tensor, int]:
    blocks = [
        np.stack([_numbers(entities, heads), _numbers(relations, labels), _numbers(entities, tails)], axis=1)
        for heads, labels, tails in _names(path)
    ]
    edges_E3 = np.concatenate(blocks)
    is_numbered_E = (edges_E3 >= 0).all(axis=1)
    return torch.from_numpy(edges_E3[is_numbered_E]), int((~is_numbered_E).sum())


def _numbers(numbers: Mapping[str, int], names: Sequence[str]) -> np.ndarray:
    return np.fromiter((numbers.get(name, -1) for name in names), np.int64, len(names))
