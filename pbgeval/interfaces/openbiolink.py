"""OpenBioLink's way to evaluate: a subclass with `score_batch`, a loader of its datasets -> its metrics, our ranks.

    from pbgeval.interfaces.openbiolink import DataLoader, Evaluator

    class Mine(Evaluator):
        def score_batch(self, batch): ...

    Mine(DataLoader("HQ_DIR")).evaluate(batch_size=100)   # {"hits@1": ..., "hits@3": ..., "hits@10": ..., "mrr": ...}

OpenBioLink is not imported. What its own evaluators get wrong (docs/interfaces.md) is right here.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from pbgeval.adapters.openbiolink import DATA, read_openbiolink
from pbgeval.errors import DataError, StorageError
from pbgeval.interfaces.openbiolink_ranks import KnownAnswers, RankedEdges, rank_batch
from pbgeval.interfaces.openbiolink_scores import batch_scores
from pbgeval.storage.edge_arrays import Edges

HITS_AT = (1, 3, 10)


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
            relation_to_id_path: likewise.

        Raises:
            StorageError: a file is missing or not as it should be.
        """
        folders = [Path(name), Path(root) / name, Path(name) / root]
        folder = next((one for one in folders if (one / DATA).is_dir()), folders[1])
        if not (folder / DATA).is_dir():
            raise StorageError(f"{folder}: expected a dataset of OpenBioLink, a folder with {DATA}, found none")
        labels = [None if path is None else Path(path) for path in (entity_to_id_path, relation_to_id_path)]
        data = read_openbiolink(folder, *labels)
        self.entity_to_id, self.relation_to_id = dict(data.entity_to_id), dict(data.relation_to_id)
        self.num_entities, self.num_relations = len(data.entity_to_id), len(data.relation_to_id)
        # int64 (n, 3): head, relation, tail
        self.training, self.validation, self.testing = (data.splits[of] for of in ("training", "validation", "testing"))
        self.num_dropped = dict(data.num_dropped)  # by split: edges with a label that has no number
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
        return Edges(self.testing, filter=[self.validation], train=[self.training])

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
            Either (head scores, tail scores), each (b, N): of every entity in the place of the head, of the tail. Or
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
        names = [*(f"hits@{cutoff}" for cutoff in HITS_AT), "mrr"]
        found = {name: metrics[f"pessimistic.{name}"] for name in names}
        return {name: float(value) for name, value in found.items() if value is not None}

    def rank(self, batch_size: int = 100, filtering: bool = True) -> RankedEdges:
        """Rank the test edges: every rank type, every metric, each side, and what a reader must know of the scores.

        Args:
            batch_size: as `evaluate`.
            filtering: likewise.

        Raises:
            EvalError: likewise.
        """
        if not len(self.dl.testing):
            raise DataError("testing: expected edges to rank, got none")
        if batch_size < 1:
            raise DataError(f"batch_size: expected a number from 1, got {batch_size}")
        known = KnownAnswers.of_edges(self.dl.testing, self.dl.all, self.num_neg) if filtering else None
        ranked = []
        for batch_b3 in self.dl.get_test_batches(batch_size)[1]:
            with torch.no_grad():
                scores = batch_scores(self.score_batch, batch_b3, self.num_neg, type(self).__name__)
            ranked.append(rank_batch(batch_b3, scores, known, higher_is_better=self.higher_is_better))
        return RankedEdges.of_batches(ranked, self.dl.num_dropped["testing"])
