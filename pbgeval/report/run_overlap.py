"""Two runs' saved ranks and lists of the same queries -> how far they find the same answers and the same candidates.

Rank-biased overlap is the extrapolated one of Webber, Moffat and Zobel (A Similarity Measure for Indefinite Rankings,
2010, equation 32): the first places weigh more, and lists are assumed to go on as they are in their last place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from attrs import define, frozen

from pbgeval.errors import StorageError
from pbgeval.notation import Bucket, Side, WorkUnit
from pbgeval.report.paired_runs import PairedRuns
from pbgeval.results.saved_run import ROW_BITS, SavedRun
from pbgeval.stats.query_metrics import hits_at
from pbgeval.storage.row_files import QueryFile, open_query_file, query_path

PERSISTENCE = 0.9  # the first 10 places have 86% of the weight
_PAIRS_AT_A_TIME = 1 << 22  # of places of two lists, in memory


@frozen
class Overlap:
    """What two runs have in common; None: nothing to compare."""

    cutoff: int  # of the answers
    answers: float | None  # share of the answers that either run ranks at most at the cutoff which both do
    num_lists: int  # pairs of saved lists that were compared
    depth: int  # places that were compared; 0: not both runs have lists
    candidates: float | None  # share of the first `depth` candidates that two lists have in common, mean over queries
    rank_biased: float | None  # rank-biased overlap of two lists, mean over queries


@define(eq=False)
class RunOverlaps:
    """Sums over all queries, of any two of some runs."""

    cutoff: int
    num_both_NN: np.ndarray  # int64: answers that both find; on the diagonal, that the run finds
    num_lists_NN: np.ndarray  # int64: pairs of lists
    depth_NN: np.ndarray  # int64
    common_NN: np.ndarray  # float64: sums over pairs of lists
    biased_NN: np.ndarray

    @classmethod
    def of_runs(cls, paired: PairedRuns, cutoff: int) -> RunOverlaps:
        """Read all ranks, and all lists that were saved, once.

        Raises:
            StorageError: a file is damaged, or a query of one run is not that of the others.
        """
        shape = len(paired.runs), len(paired.runs)
        sums = cls(cutoff, *(np.zeros(shape, np.int64) for _ in range(3)), *(np.zeros(shape) for _ in range(2)))
        lists = [_open_lists(run) for run in paired.runs]
        for rows in paired.runs[0].row_ranges():
            files = [None if of is None else of[rows.path_index, rows.bucket] for of in lists]
            for side in paired.sides:
                sums._add_answers(paired, rows, side)
                sums._add_lists([None if of is None or side not in of.sides else of for of in files], rows, side)
        return sums

    def between(self, a: int, b: int) -> Overlap:
        """Return the overlap of two runs."""
        num_both, num_lists = int(self.num_both_NN[a, b]), int(self.num_lists_NN[a, b])
        num_either = int(self.num_both_NN[a, a] + self.num_both_NN[b, b]) - num_both
        return Overlap(
            self.cutoff,
            num_both / num_either if num_either else None,
            num_lists,
            int(self.depth_NN[a, b]),
            float(self.common_NN[a, b]) / num_lists if num_lists else None,
            float(self.biased_NN[a, b]) / num_lists if num_lists else None,
        )

    def _add_answers(self, paired: PairedRuns, rows: WorkUnit, side: Side) -> None:
        counts = paired.counts(rows, side, range(len(paired.runs)))
        at = np.flatnonzero(counts[0]["num_candidates"] > 0)
        is_found_NQ = np.stack([paired.values([hits_at(self.cutoff)], of, at)[0] for of in counts]).astype(np.float64)
        self.num_both_NN += (is_found_NQ @ is_found_NQ.T).astype(np.int64)  # sums of a block are exact

    def _add_lists(self, files: Sequence[QueryFile | None], rows: WorkUnit, side: Side) -> None:
        saved = [(number, file) for number, file in enumerate(files) if file is not None]
        if len(saved) < 2:
            return
        step = max(1, _PAIRS_AT_A_TIME // max(_length(file) for _, file in saved) ** 2)
        for start in range(rows.start, rows.stop, step):
            stop = min(start + step, rows.stop)
            entities = [(number, _entities(file.read_side(side, start, stop))) for number, file in saved]
            for (a, a_EK), (b, b_EK) in combinations(entities, 2):
                k = min(a_EK.shape[1], b_EK.shape[1])
                common_E, biased_E = overlaps(a_EK[:, :k], b_EK[:, :k])
                self.depth_NN[a, b] = self.depth_NN[b, a] = k
                for sums, of in (
                    (self.num_lists_NN, len(common_E)),
                    (self.common_NN, common_E.sum()),
                    (self.biased_NN, biased_E.sum()),
                ):
                    sums[a, b] += of
                    sums[b, a] += of


def overlaps(a_EK: np.ndarray, b_EK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, of each two lists that are not empty, the share of candidates in common and the rank-biased overlap.

    Args:
        a_EK: the candidates of some lists, the best first; -1 behind the last one of a list.
        b_EK: other lists for the same queries.
    """
    length_E = np.minimum((a_EK >= 0).sum(1), (b_EK >= 0).sum(1))
    a_EK, b_EK, length_E = (of[length_E > 0] for of in (a_EK, b_EK, length_E))
    num, k = a_EK.shape
    place_K = np.arange(k)
    is_same_EKK = (a_EK[:, :, None] == b_EK[:, None, :]) & (a_EK >= 0)[:, :, None]
    query, of_a, of_b = np.nonzero(is_same_EKK)
    common_EK = np.zeros((num, k), np.int64)  # candidates that both lists have in their first places
    np.add.at(common_EK, (query, np.maximum(of_a, of_b)), 1)
    common_EK = common_EK.cumsum(1)
    agreement_EK = common_EK / (place_K + 1.0)
    weight_EK = PERSISTENCE**place_K * (place_K < length_E[:, None])
    last_E = agreement_EK[np.arange(num), length_E - 1]
    return last_E, last_E * PERSISTENCE**length_E + (1.0 - PERSISTENCE) * (agreement_EK * weight_EK).sum(1)


def _open_lists(run: SavedRun) -> Mapping[tuple[int, Bucket], QueryFile] | None:
    """Return the lists of a run; None: it did not save them.

    Raises:
        StorageError: a file is damaged, or of another run.
    """
    if not all(query_path(run.folder, "topk", *place).exists() for place in run.ranks):
        return None
    files = {place: open_query_file(run.folder, "topk", *place) for place in run.ranks}
    for file in files.values():
        if file.digest != run.facts.digest:
            raise StorageError(f"{file.path}: expected lists of this run, found those of another one; evaluate again")
    return files


def _length(lists: QueryFile) -> int:
    (k,) = lists.layouts[f"{lists.sides[0].label}/entity"].row_shape or (1,)
    return k


def _entities(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the candidates of each list, int64 (E, K), -1 where there are fewer."""
    return np.where(columns["entity"] < 0, -1, columns["partition"] << ROW_BITS | columns["entity"])


def mean_overlap(of: Sequence[Overlap]) -> Overlap:
    """Return the mean of some overlaps, at least one, such as those of any two runs of two groups."""

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    return Overlap(
        of[0].cutoff,
        mean([one.answers for one in of]),
        sum(one.num_lists for one in of),
        min(one.depth for one in of),
        mean([one.candidates for one in of]),
        mean([one.rank_biased for one in of]),
    )
