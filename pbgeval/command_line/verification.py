"""A result, its checkpoint and its edges -> whether the figures of the result can be true.

Rank metrics must follow from the saved ranks to the last bit, and ranks must be those of the checkpoint: a random
sample of edges is ranked again in certified precision. The test is sequential: it goes on until it has seen enough.
If at least a share of the edges has wrong ranks, it finds that but for the stated probability, and it rejects an honest
result with at most the same probability (Ville's inequality for the likelihood ratio, at any number of looks).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve, frozen

from pbgeval.config import EvalConfig, check_config, load_config
from pbgeval.errors import ConfigError, OutputError
from pbgeval.evaluation import evaluate, provenance_of_config
from pbgeval.progress import Observer
from pbgeval.report.report import Report
from pbgeval.report.saved_run import SavedRun
from pbgeval.storage.writing import temporary_folder

SHARE = 0.001  # of the edges, with wrong ranks, that is found
ERROR = 0.001  # probability of either wrong answer, at most
ROUNDING = 0.1  # of that share: ranks that may differ between machines where precision is not certified


@frozen
class Verification:
    """What was checked, and what is wrong."""

    num_figures: int  # that follow from the saved ranks
    num_edges: int  # ranked again
    num_different: int  # of them, with a rank that is not the saved one
    seed: int  # of the sample
    fault: str | None  # why the figures cannot be true; None: they can


@frozen
class SequentialTest:
    """Honest results against those in which a share of the edges has wrong ranks."""

    share: float
    error: float
    honest: float  # share that may differ in an honest result

    @property
    def first_look(self) -> int:
        """Edges after which an honest result without a difference is accepted."""
        return math.ceil(math.log(1 / self.error) / math.log((1 - self.honest) / (1 - self.share)))

    def decide(self, num_edges: int, num_different: int) -> bool | None:
        """Return whether the result can be true; None: look at more edges."""
        if num_different and not self.honest:
            return False
        evidence = (num_edges - num_different) * math.log((1 - self.share) / (1 - self.honest))
        if num_different:
            evidence += num_different * math.log(self.share / self.honest)
        if abs(evidence) < math.log(1 / self.error):
            return None
        return evidence < 0


def verify(
    result: str | PathLike[str],
    config: str | PathLike[str],
    *,
    overrides: Iterable[str] = (),
    share: float = SHARE,
    error: float = ERROR,
    seed: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    observer: Observer | None = None,
) -> Verification:
    """Check a finished result with saved ranks against the checkpoint and the edges that it names.

    Where negatives are sampled, or edges were, all of them are ranked again: the seed of the result decides both.

    Args:
        result: output directory.
        config: config file of the run, with paths of the checkpoint and the edges.
        overrides: as in `evaluate`.
        share: of the edges, with wrong ranks, that is to be found, between 0 and 1.
        error: probability of either wrong answer, at most.
        seed: of the sample. Default: an unpredictable one.
        workers: as in `evaluate`.
        device: as in `evaluate`.
        observer: as in `evaluate`.

    Raises:
        EvalError: the result has no ranks, or checkpoint, edges or settings are not those that it names.
    """
    for name, value in (("share", share), ("error", error)):
        if not 0 < value < 1:
            raise ConfigError(f"{name}: expected a number between 0 and 1, got {value}")
    report = Report.read(Path(result))
    saved = SavedRun.open(report, None)
    loaded = load_config(config, overrides)
    _check_provenance(report, loaded, Path(result), Path(config))
    seed = secrets.randbits(31) if seed is None else seed
    num_figures, fault = _figures_of_ranks(report)
    if fault is not None:
        return Verification(num_figures, 0, 0, seed, fault)
    again = _Again(loaded, saved, workers, device, observer or Observer())
    honest = 0.0 if loaded.precision == "certified" else ROUNDING * share
    test = SequentialTest(share, error, honest)
    num_wanted = again.num_edges if again.is_fixed else test.first_look
    while True:
        num_edges, num_different, fault = again.look(num_wanted, seed)
        can_be_true = test.decide(num_edges, num_different)
        if again.is_fixed or num_wanted >= again.num_edges:  # there is no more to see
            can_be_true = num_different <= honest * num_edges
        if can_be_true is not None:
            return Verification(num_figures, num_edges, num_different, seed, None if can_be_true else fault)
        num_wanted *= 2


def _check_provenance(report: Report, config: EvalConfig, result: Path, path: Path) -> None:
    """Refuse a checkpoint, edges or settings that are not those of the result."""
    claimed = report.document["provenance"]
    found = provenance_of_config(config)
    unlike = sorted(set(_differences({key: claimed.get(key) for key in found}, found, "")))
    if unlike:
        shown = ", ".join(unlike[:3]) + (f" and {len(unlike) - 3} more" if len(unlike) > 3 else "")
        raise OutputError(
            f"{path}: this is not what {result} was made of: {shown}; give the config of that run, and its -p options"
        )


def _differences(claimed: Any, found: Any, where: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    if isinstance(claimed, dict) and isinstance(found, dict):
        for key in claimed.keys() | found.keys():
            yield from _differences(claimed.get(key), found.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(claimed, list) and isinstance(found, list) and len(claimed) == len(found):
        for index, pair in enumerate(zip(claimed, found, strict=True)):
            yield from _differences(*pair, f"{where}[{index}]")
    elif claimed != found:
        yield where if where.startswith("data") else f"{where} ({found}, there {claimed})"


def _figures_of_ranks(report: Report) -> tuple[int, str | None]:
    """Return how many figures follow from the saved ranks, and the first that does not."""
    recomputed, num_figures = report.recompute().document, 0
    for part in ("metrics", "raw_metrics"):
        for name, value in (recomputed.get(part) or {}).items():
            claimed = (report.document.get(part) or {}).get(name)
            if value is not None and claimed != value:
                return num_figures, f"{part}: {name} is {claimed}, and follows from the saved ranks as {value}"
            num_figures += value is not None
    return num_figures, None


@frozen(eq=False)
class _Again:
    """The run of a result, on samples of its edges."""

    config: EvalConfig
    saved: SavedRun
    workers: int | None
    device: str
    observer: Observer

    @property
    def is_fixed(self) -> bool:
        """Whether the seed of the result decides what is ranked."""
        is_sampled = self.config.sample_edges is not None or self.config.target_error is not None
        return is_sampled or any(self.config.candidates_of(of) == "sampled" for of in self.config.relations)

    @property
    def num_edges(self) -> int:
        return sum(file.num_edges for file in self.saved.ranks.values())

    def look(self, num_wanted: int, seed: int) -> tuple[int, int, str | None]:
        """Rank edges again; return how many there were, how many differ, and the first that does."""
        sample = {} if self.is_fixed or num_wanted >= self.num_edges else {"sample_edges": num_wanted, "seed": seed}
        counted, differing = self._compare({**sample, "precision": "certified"})
        if differing and self.config.precision != "certified":  # rounding as it was is honest, too
            also = self._compare(sample)[1]
            differing = {edge: text for edge, text in differing.items() if edge in also}
        first = min(differing, default=None)
        return counted, len(differing), None if first is None else differing[first]

    def _compare(self, changes: dict[str, Any]) -> tuple[int, dict[tuple[Any, ...], str]]:
        plain: dict[str, Any] = {"save_ranks": True, "save_topk": None, "breakdowns": (), "sinks": (), "source": None}
        config = evolve(self.config, **plain, **changes)
        try:
            config = check_config(config)
        except ConfigError:
            if config.precision == self.config.precision:
                raise
            return self._compare({**changes, "precision": self.config.precision})  # it cannot be certified
        num_edges = 0
        differing: dict[tuple[Any, ...], str] = {}
        with temporary_folder() as folder:
            output = folder / "again"
            report = evaluate(config, output=output, workers=self.workers, device=self.device, observer=self.observer)
            again = SavedRun.open(report, None)
            for rows in again.row_ranges():
                sides = [(side, again.read_counts(rows, side)) for side in again.facts.sides]
                ranked_E = np.logical_or.reduce([of["num_candidates"] > 0 for _, of in sides])
                num_edges += int(ranked_E.sum())
                for side, found in sides:
                    claimed = self.saved.read_counts(rows, side)
                    unlike_E = ranked_E & np.logical_or.reduce([claimed[name] != found[name] for name in found])
                    for row in np.flatnonzero(unlike_E).tolist():
                        edge = (rows.path_index, rows.bucket, rows.start + row)
                        told, true = (f"{of['better'][row]} better, {of['tied'][row]} tied" for of in (claimed, found))
                        where = f"bucket {rows.bucket.lhs}_{rows.bucket.rhs}, row {edge[2]}, {side.label}"
                        differing[edge] = f"{where}: the result says {told}, the checkpoint gives {true}"
        return num_edges, differing
