"""Check a result against its checkpoint and its edges.

Rank metrics must follow from the saved ranks to the last bit, and ranks must be those of the checkpoint: a random
sample of edges is ranked again in exact precision. The test is sequential: it goes on until it has seen enough.
If at least a share of the edges has wrong ranks, it finds that but for the stated probability, and it rejects an honest
result with at most the same probability (Ville's inequality for the likelihood ratio, at any number of looks).
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve, frozen

from pbgeval.config import EvalConfig, check_config, load_config
from pbgeval.config.precision import obstacle_to_exact, precision_of
from pbgeval.errors import ConfigError, OutputError
from pbgeval.evaluation import evaluate, inputs_of_config
from pbgeval.inputs.edge_sample import BucketUnits, EdgeSample
from pbgeval.inputs.edges import EdgeNumberer, kept_rows
from pbgeval.inputs.names import relation_groups
from pbgeval.inputs.opening import Inputs
from pbgeval.inputs.provenance import provenance_of
from pbgeval.metrics import classification
from pbgeval.metrics.breakdown_names import POPULARITY
from pbgeval.metrics.registry import find_metric
from pbgeval.metrics.topk_metrics import TOPK_METRICS
from pbgeval.notation import Bucket, WorkUnit, values_between
from pbgeval.progress import Observer
from pbgeval.results.output import IMPORTED
from pbgeval.results.recompute import BREAKDOWNS, ReportQuery, recompute, with_sections
from pbgeval.results.result import HISTOGRAM, Result
from pbgeval.results.saved_run import SavedRun
from pbgeval.storage.json_files import digest_of
from pbgeval.storage.text import one_line
from pbgeval.storage.writing import temporary_folder

LEAST = 1e-12  # of the share of wrong ranks that is found, and of the probability of a wrong answer
ROUNDING = 0.1  # of that share: ranks that may differ between machines where precision is not exact
METRICS = ("metrics", "raw_metrics", "macro_metrics", "relation_macro_metrics")
OF_CHECKPOINT = ("data.embeddings", "data.model", "checkpoint_version")  # where checkpoints differ
ABSENT = "nothing"  # as messages call it


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
        evidence += num_different * math.log(self.share / self.honest) if num_different else 0.0
        return None if abs(evidence) < math.log(1 / self.error) else evidence < 0


def verify(
    result: str | PathLike[str],
    config: str | PathLike[str],
    *,
    overrides: Iterable[str],
    share: float,
    error: float,
    seed: int | None,
    workers: int | None,
    device: str,
    observer: Observer,
) -> Verification:
    """Check a finished result with saved ranks against the checkpoint and the edges that it names.

    Where negatives are sampled, or edges were, all of them are ranked again: the seed of the result decides both.

    Args:
        result: output directory.
        config: config file of the run, with paths of the checkpoint and the edges.
        overrides: as in `evaluate`.
        share: of the edges, with wrong ranks, that is to be found, between 0 and 1.
        error: probability of either wrong answer, at most.
        seed: of the sample; None: an unpredictable one.
        workers: as in `evaluate`.
        device: as in `evaluate`.
        observer: as in `evaluate`.

    Raises:
        EvalError: the result has no ranks, or checkpoint, edges or settings are not those that it names.
    """
    for name, value in (("share", share), ("error", error)):
        if not LEAST <= value < 1:
            raise ConfigError(f"{name}: expected a number from {LEAST} to less than 1, got {value}")
    report = Result.read(Path(result))
    saved = SavedRun.open(report, None)
    loaded = load_config(config, overrides)
    seed = secrets.randbits(31) if seed is None else seed
    made = [Path(result) / IMPORTED, Path(result).parent / IMPORTED]
    with temporary_folder() as folder, inputs_of_config(loaded, folder / "output", made) as inputs:
        _check_provenance(report, inputs, Path(result), Path(config))
        observer.step("computing the figures from the saved ranks")
        num_figures, fault = _figures_of_ranks(report, inputs, saved)
        if fault is not None:
            return Verification(num_figures, 0, 0, seed, fault)
        numberer = EdgeNumberer(inputs)
        kept = {(index, bucket): kept_rows(numberer, inputs.buckets[index][bucket]) for index, bucket in saved.ranks}
        of = inputs.config  # where the result fixes the sample of edges
        is_fixed = of.samples_edges or of.pbg_semantics or "sampled" in inputs.candidates or inputs.featurized
    again = _Again(loaded, saved, kept, is_fixed, workers, device, observer)
    honest = 0.0 if precision_of(loaded) == "exact" else ROUNDING * share
    test = SequentialTest(share, error, honest)
    num_wanted = again.num_edges if is_fixed else test.first_look
    while True:
        num_edges, num_different, fault = again.look(num_wanted, seed)
        is_last = is_fixed or num_wanted >= again.num_edges  # there is no more to see
        can_be_true = num_different <= honest * num_edges if is_last else test.decide(num_edges, num_different)
        if can_be_true is not None:
            return Verification(num_figures, num_edges, num_different, seed, None if can_be_true else fault)
        num_wanted *= 2


def _check_provenance(report: Result, inputs: Inputs, result: Path, path: Path) -> None:
    """Refuse a checkpoint, edges or settings that are not those of the result."""
    claimed, found = report.document["provenance"], provenance_of(inputs)
    facts = {"headline": inputs.config.headline, "filter": "filtered" if inputs.config.filtered else "raw"}
    pairs = [
        *_differences({key: claimed.get(key) for key in found}, found),
        *_differences({key: report.document.get(key) for key in facts}, facts),
    ]
    pairs = pairs or [*_differences({"digest": claimed.get("digest")}, {"digest": digest_of(found)})]
    if pairs:
        unlike = sorted(
            where if where.startswith("data") else f"{where}: {own}, in the result {theirs}"
            for where, theirs, own in pairs
        )
        shown = ", ".join(unlike[:3]) + (f" and {len(unlike) - 3} more" if len(unlike) > 3 else "")
        is_of_checkpoint = all(where.startswith(OF_CHECKPOINT) for where, _, _ in pairs)
        others = "another checkpoint" if is_of_checkpoint else "other settings or edges"
        raise OutputError(
            f"{path}: {result} was made with {others} ({shown}); give the config and the -p options of that run"
        )


def _differences(claimed: Any, found: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:  # noqa: ANN401 - JSON
    """Yield the places where two documents differ, with both values."""
    if isinstance(claimed, dict) and isinstance(found, dict):
        for key in sorted(claimed.keys() | found.keys()):
            yield from _differences(claimed.get(key, ABSENT), found.get(key, ABSENT), f"{where}.{key}".lstrip("."))
    elif isinstance(claimed, list) and isinstance(found, list) and len(claimed) == len(found):
        for index, pair in enumerate(zip(claimed, found, strict=True)):
            yield from _differences(*pair, f"{where}[{index}]")
    elif claimed != found:
        yield where, claimed, found


def _figures_of_ranks(report: Result, inputs: Inputs, saved: SavedRun) -> tuple[int, str | None]:
    """Return the number of figures that follow from the saved ranks, and the first fault."""
    config = inputs.config
    files = {(index, bucket): file for index, of in enumerate(inputs.buckets) for bucket, file in of.items()}
    for key, ranks in saved.ranks.items():
        if ranks.num_rows != files[key].num_edges:
            return 0, f"{ranks.path} has {ranks.num_rows} rows, and its bucket {files[key].num_edges} edges"
    breakdowns = [name for name in config.breakdowns if name in BREAKDOWNS and name != POPULARITY]
    recomputed = recompute(
        report,
        ReportQuery(
            breakdowns=breakdowns,
            relation_groups=relation_groups(config, inputs.num_relations, inputs.model)
            if "groups" in breakdowns
            else None,
            edge_paths=config.edge_paths,
        ),
        evolve(saved, edges=files),
    )
    # Ranks do not tell edges that may not be ranked from those that were left out, so counts of edges may differ.
    all_ranked = config.type_constraint != "observed" and not (config.head_candidates or config.tail_candidates)
    tables = [name for name in recomputed.rows if name in report.rows and (all_ranked or name == HISTOGRAM)]
    claimed, found = (_figures(of, tables, all_ranked=all_ranked) for of in (report, recomputed))
    follows = with_sections(report, inputs.buckets, inputs.training_buckets).document
    for section in (POPULARITY, TOPK_METRICS):
        claimed[section], found[section] = report.document.get(section), json.loads(json.dumps(follows.get(section)))
    for where, told, true in _differences(claimed, found):
        name = where.rpartition(".")[2]
        if true == ABSENT:
            is_unknown = name == "loss" and config.compute_loss
        elif name in METRICS:
            is_unknown = told is None and name == "macro_metrics"  # the run did not count keys
        else:  # of scores, or not saved
            is_unknown = name in classification.NAMES or (true is None and find_metric(name) is None)
        if not is_unknown:
            return 0, f"{where} is {one_line(told)}, and follows from the saved ranks as {one_line(true)}"
    return sum(value is not None for part in METRICS for value in (found.get(part) or {}).values()), None


def _figures(report: Result, tables: Iterable[str], *, all_ranked: bool) -> dict[str, Any]:
    """Return the parts of a report that follow from ranks and edges."""
    document, counts = report.document, ("num_edges", "diagnostics") if all_ranked else ()
    parts = {part: document.get(part) for part in (*METRICS, *counts) if all_ranked or part != "macro_metrics"}
    keys = ("num_edges", "metrics") if all_ranked else ("metrics",)
    return {
        **parts,
        "num_queries": document.get("num_queries"),
        "edge_paths": [{key: path.get(key) for key in keys} for path in document["edge_paths"]],
        **{name: [dict(row) for row in report.rows[name]] for name in tables},
    }


@frozen(eq=False)
class _Again:
    """The run of a result, on samples of its edges."""

    config: EvalConfig
    saved: SavedRun
    kept: Mapping[tuple[int, Bucket], np.ndarray | None]  # rows that restrictions leave, None for all
    is_fixed: bool
    workers: int | None
    device: str
    observer: Observer

    @property
    def num_edges(self) -> int:
        """All that may be ranked."""
        return sum(num_edges for *_, num_edges in self._population())

    def _population(self) -> list[BucketUnits]:
        return [
            (*key, self.saved.ranks[key].num_rows if rows is None else len(rows)) for key, rows in self.kept.items()
        ]

    def look(self, num_wanted: int, seed: int) -> tuple[int, int, str | None]:
        """Rank edges again; return their number, how many differ, and the first that does."""
        sample, drawn = {}, None
        if not self.is_fixed and num_wanted < self.num_edges:
            sample = {"sample_edges": num_wanted, "seed": seed}
            drawn = EdgeSample.of_size(self._population(), num_wanted, seed)
        of_run = precision_of(self.config)
        precision = "exact" if obstacle_to_exact(self.config) is None else of_run
        counted, differing = self._compare({**sample, "precision": precision}, drawn)
        if differing and precision != of_run:  # rounding as it was is honest, too
            also = self._compare(sample, drawn)[1]
            differing = {edge: text for edge, text in differing.items() if edge in also}
        return counted, len(differing), differing[min(differing)] if differing else None

    def _compare(self, changes: dict[str, Any], drawn: EdgeSample | None) -> tuple[int, dict[tuple[Any, ...], str]]:
        plain = {"breakdowns": (), "sinks": (), "source": None, "save_topk": None, "topk_metrics": False}
        config = check_config(evolve(self.config, **{"save_ranks": True, **plain, **changes}))
        how = "in exact precision" if precision_of(config) == "exact" else "as the run did"
        self.observer.step(f"ranking {changes.get('sample_edges', self.num_edges):,} edges again {how}")
        num_edges = 0
        differing = dict[tuple[Any, ...], str]()
        with temporary_folder() as folder:
            report = evaluate(
                config, output=folder / "again", workers=self.workers, device=self.device, observer=self.observer
            )
            again = SavedRun.open(report, None)
            for rows in again.row_ranges():
                looked_E = self._looked_at(rows, drawn)
                sides = {
                    side: [run.read_counts(rows, side) for run in (self.saved, again)] for side in again.facts.sides
                }
                ranked_E = np.logical_or.reduce([of["num_candidates"] > 0 for both in sides.values() for of in both])
                num_edges += int((looked_E & ranked_E).sum())
                for side, (claimed, found) in sides.items():
                    unlike_E = looked_E & np.logical_or.reduce([claimed[name] != found[name] for name in found])
                    for row in np.flatnonzero(unlike_E).tolist():
                        edge = (rows.path_index, rows.bucket, rows.start + row)
                        told, true = (_text_of(of, row) for of in (claimed, found))
                        differing[edge] = (
                            f"bucket {rows.bucket.lhs}_{rows.bucket.rhs}, row {edge[2]}, {side.label}: the result says "
                            f"{told}, the checkpoint gives {true}"
                        )
        return num_edges, differing

    def _looked_at(self, rows: WorkUnit, drawn: EdgeSample | None) -> np.ndarray:
        """Return which edges of a block to compare, bool (E,)."""
        kept, num_rows = self.kept[rows[:2]], rows.num_edges
        if drawn is None:
            return np.ones(num_rows, bool)
        units, _ = drawn.draw(*rows[:2])
        looked_E = np.full(num_rows, kept is not None)
        for row_n, is_looked_at in ((kept, False), (units if kept is None else kept[units], True)):
            if row_n is not None:
                looked_E[values_between(row_n, rows.start, rows.stop) - rows.start] = is_looked_at
        return looked_E


def _text_of(columns: Mapping[str, np.ndarray], row: int) -> str:
    better, tied, candidates = (columns[name][row] for name in ("better", "tied", "num_candidates"))
    return f"{better} better, {tied} tied" + (f" of {candidates}" if candidates else " and no rank")
