"""What is measured while a model trains, as lines of JSON: PyTorch-BigGraph's `training_stats.json`, and ours in it.

A line is a visit to a bucket, or the summary of a pass over all buckets. PBG's keys mean what they mean there
(PBG.md section 3); what we add stands under the one key `pbgeval`, so a reader of PBG's files reads ours too, and
`read_history` reads both. docs/formats.md describes every key.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, get_args

from attrs import asdict, astuple, define, field, fields, frozen

from pbgeval.errors import ConfigError, OutputError, StorageError
from pbgeval.notation import Bucket
from pbgeval.sinks import Log, LoggedRun, missing_tensorboard, open_tensorboard
from pbgeval.storage.shapes import COUNT, FLAG, NUMBER, TEXT, Keys, Leaf, OrNull, misfits
from pbgeval.storage.text import plural, read_bytes, unreadable
from pbgeval.storage.writing import append_line, make_folder

FILE_NAME = "training_stats.json"
LOGGER = logging.getLogger("pbgeval.monitor")
MAX_SHOWN = 10  # passes that a history prints
VERSION = 1  # of what stands under `pbgeval`
OURS = "pbgeval"
TOLERANCE = 0.1  # share of the metric below which a change is no cause for alarm
AVERAGE = "eval_stats_chunk_avg"  # the key that tells the summary of a pass from a visit
KEYS = ("epoch_idx", "edge_path_idx", "edge_chunk_idx")
FIGURES = ("stats", "eval_stats_before", "eval_stats_after")

# PBG's names of metrics of ranks -> ours
PBG_NAMES = {
    "pos_rank": "mean_rank",
    "mrr": "mean_reciprocal_rank",
    "r1": "hits_at_1",
    "r10": "hits_at_10",
    "r50": "hits_at_50",
}

Values = Mapping[str, float | int | None]
_MANY_PAIRS = 20  # of which chance lets no more than one run in a million lose all


@frozen
class Estimate:
    """A metric of held-out edges, or a difference of two, with its standard error."""

    value: float | None  # None: undefined on this sample
    standard_error: float | None  # None: the sample does not tell


@frozen(order=True)
class PassKey:
    """A pass over all buckets: PBG trains on each chunk of each edge path in turn."""

    epoch: int
    edge_path: int = 0
    edge_chunk: int = 0

    def __str__(self) -> str:
        chunk = f", path {self.edge_path}, chunk {self.edge_chunk}" * bool(self.edge_path or self.edge_chunk)
        return f"{self.epoch}{chunk}"


@frozen
class PbgFigures:
    """Metrics of some edges, under PBG's names: loss, pos_rank, mrr, r1, r10, r50, auc, whichever there are."""

    count: int  # edges
    metrics: Values = field(factory=dict)

    @property
    def shows_nan(self) -> bool:
        """Whether scores were NaN: a figure is, or all edges rank first (no candidate compares as better) at AUC 0.

        Half of PBG's random pairs, one per edge, are right if all edges truly rank first: AUC 0 has probability
        2^-count at most.
        """
        ranks_all_first = self.metrics.get("mrr") == 1 and self.metrics.get("auc") == 0 and self.count >= _MANY_PAIRS
        return ranks_all_first or any(isinstance(of, float) and math.isnan(of) for of in self.metrics.values())


@frozen
class VisitDetails:
    """What we add to a visit. Keys of metrics are those of metrics.json, `<side>.<rank type>.<metric>`."""

    diverged: bool = False  # the model could not be ranked, before or after
    reason: str | None = None  # why not
    worker: int = 0
    before: Values = field(factory=dict)  # of the held-out edges
    after: Values = field(factory=dict)
    training: Values | None = None  # of as many training edges, after; None: not measured
    gap: Mapping[str, Estimate] = field(factory=dict)  # after - before on the same edges and negatives
    generalization: Mapping[str, Estimate] = field(factory=dict)  # training - held-out edges, both after
    cluster: str = "edge"  # what the standard errors take for independent: edge or chunk
    num_clusters: int = 0
    seconds: float = 0.0  # that measuring took
    candidates: float | None = None  # of a query of the held-out edges, on average
    mrr_by_chance: float | None = None  # of their lists, H(n) / n each
    digest: int | None = None  # of the held-out edges and the settings; None: no edges, or an earlier version's record
    settings: Mapping[str, Any] = field(factory=dict)  # that change figures, by the names of `Monitor`'s arguments


# What a pass says about overfitting to buckets (decision 0017)
Verdict: TypeAlias = Literal[
    "needs_3_visits",  # some bucket was visited fewer than three times, or there is but one
    "no_bucket_overfitting",  # with confidence the gap is within the tolerance
    "shrinking",  # with confidence the gap is smaller than at the visits before
    "bucket_overfitting",  # with confidence what is gained is lost again (or the reverse), more than the tolerance
    "undecided",
]


@frozen
class PassDetails:
    """What we add to the summary of a pass; `verdict` is decision 0017's."""

    num_buckets: int = 0  # with held-out edges
    num_diverged: int = 0  # visits
    before: Values = field(factory=dict)
    after: Values = field(factory=dict)
    training: Values | None = None
    gap: Mapping[str, Estimate] = field(factory=dict)
    generalization: Mapping[str, Estimate] = field(factory=dict)
    verdict: Verdict = "needs_3_visits"
    lost: float | None = None  # of what the last pass gained in a bucket, until its visit in this one
    level: float | None = None  # at which this verdict was tested
    best_pass: int | None = None  # the epoch to keep so far, by the mean reciprocal rank after the visits
    best_mrr: float | None = None  # its mean reciprocal rank
    fall: Estimate | None = None  # best_mrr - that of this pass, on the same edges; None: they were not followed
    fall_clusters: int = 0  # whose differences its standard error comes from
    tolerance: float = TOLERANCE


def verdict_in_words(verdict: Verdict) -> str:
    """Return a verdict about buckets as it is printed."""
    return verdict.replace("_", " ")


@frozen
class VisitRecord:
    """One visit to one bucket."""

    key: PassKey
    bucket: Bucket
    index: int  # running number of the visit
    stats: PbgFigures | None  # of the training itself, as the trainer reports it
    before: PbgFigures | None  # None: nothing is held out
    after: PbgFigures | None
    details: VisitDetails | None = None  # None: written by PBG

    @property
    def diverged(self) -> bool:
        """Whether the model could not be ranked, before or after; PBG ranks NaN as if it were the best score."""
        if self.details is not None and self.details.diverged:
            return True
        return any(of is not None and of.shows_nan for of in (self.stats, self.before, self.after))

    @property
    def edges(self) -> int | None:
        """What tells the edges that were measured from others: a digest, in PBG's records their number; None: none."""
        if self.details is not None and self.details.digest is not None:
            return self.details.digest
        return None if self.after is None else self.after.count

    def to_json(self) -> dict[str, Any]:
        """Return the line as a dictionary, in PBG's order."""
        return {
            "lhs_partition": self.bucket.lhs,
            "rhs_partition": self.bucket.rhs,
            "index": self.index,
            **{
                name: of and asdict(of) for name, of in zip(FIGURES, (self.stats, self.before, self.after), strict=True)
            },
            **dict(zip(KEYS, astuple(self.key), strict=True)),
            **_ours(self.details),
        }


@frozen(repr=False)
class PassRecord:
    """The summary of a pass. It prints as a line, for a training loop."""

    key: PassKey
    index: int  # of its last visit
    average: PbgFigures | None  # ours: after; PBG's: before
    details: PassDetails | None = None  # None: written by PBG

    def __repr__(self) -> str:
        """Return the mean reciprocal rank before and after the visits, the gap, and what they tell."""
        details, epoch = self.details or PassDetails(), f"epoch {self.key}"
        name = next((key for key in details.gap if key.endswith(".mean_reciprocal_rank")), "")
        gap = details.gap.get(name, Estimate(None, None))
        before, after, training = (of.get(name) for of in (details.before, details.after, details.training or {}))
        if before is None or after is None or gap.value is None:
            diverged = ", because the model diverged" * bool(details.num_diverged)
            why = diverged or ": no edge was held out; raise eval_fraction" * (self.details is not None)
            return f"{epoch}: no figures of held-out edges{why}{self._epoch_to_keep()}"
        told = f"MRR of held-out edges {before:.4f} before and {after:.4f} after the visits"
        told += "" if training is None else f", {training:.4f} of training edges"
        error = "" if gap.standard_error is None else f" ± {gap.standard_error:.4f}"
        change = f"{gap.value:+.4f}".replace("-", "−")
        verdict = f"; {verdict_in_words(details.verdict)}" if details.num_buckets > 1 else ""
        verdict = "; the model diverged" if details.num_diverged else verdict
        return f"{epoch}: {told}; gap {change}{error}{verdict}{self._epoch_to_keep(after)}"

    def _epoch_to_keep(self, after: float = 0.0) -> str:
        if self.details is None or self.details.best_mrr is None:
            return ""
        kept = f"; keep epoch {self.details.best_pass} ({self.details.best_mrr:.4f})"
        is_better = after > self.details.best_mrr and not self.details.num_diverged
        return kept + f", as epoch {self.key} is at most 0.2% better" * is_better

    def to_json(self) -> dict[str, Any]:
        """Return the line as a dictionary, in PBG's order."""
        return {
            **dict(zip(KEYS, astuple(self.key), strict=True)),
            "index": self.index,
            AVERAGE: self.average and asdict(self.average),
            **_ours(self.details),
        }


def _ours(details: VisitDetails | PassDetails | None) -> dict[str, Any]:
    return {} if details is None else {OURS: {"version": VERSION, **asdict(details)}}


# Of a model that has diverged, PBG writes NaN, which is kept, and Infinity, which is read as null.
_NOT_FINITE = {"NaN": math.nan}
_FIGURE = Leaf("a number", lambda value: NUMBER.fits(value) or (isinstance(value, float) and math.isnan(value)))
_FIGURES = Keys(others=OrNull(_FIGURE))
_COUNTED = OrNull(Keys({"count": COUNT}, {"metrics": OrNull(_FIGURES)}))
_ESTIMATE = Keys(dict.fromkeys(("value", "standard_error"), OrNull(_FIGURE)))
_ESTIMATES = Keys(others=_ESTIMATE)
_SHAPE = Keys(  # of the keys that are there; `_record_of` names those that are not
    optional={
        **dict.fromkeys((*KEYS, "index", "lhs_partition", "rhs_partition"), COUNT),
        **dict.fromkeys((AVERAGE, *FIGURES), _COUNTED),
        OURS: OrNull(
            Keys(
                optional={
                    "diverged": FLAG,
                    **dict.fromkeys(("num_buckets", "num_diverged", "num_clusters", "fall_clusters", "worker"), COUNT),
                    **dict.fromkeys(("before", "after"), _FIGURES),
                    **dict.fromkeys(("gap", "generalization"), _ESTIMATES),
                    "fall": OrNull(_ESTIMATE),
                    "training": OrNull(_FIGURES),
                    **dict.fromkeys(("lost", "level", "best_mrr", "candidates", "mrr_by_chance"), OrNull(_FIGURE)),
                    **dict.fromkeys(("best_pass", "digest"), OrNull(COUNT)),
                    "settings": Keys(),
                    "reason": OrNull(TEXT),
                    "tolerance": NUMBER,
                    **dict.fromkeys(("cluster", "verdict"), TEXT),
                    "seconds": _FIGURE,
                }
            )
        ),
    }
)


def _record_of(text: str) -> VisitRecord | PassRecord:
    """Return the record of a line, PBG's or ours; keys that are not known are passed over.

    Raises:
        StorageError: it is no JSON, or has not the keys of a record.
    """
    try:
        line = json.loads(text, parse_constant=_NOT_FINITE.get)
    except json.JSONDecodeError as error:
        raise StorageError(f"it is cut off or no JSON ({error.msg} at character {error.pos + 1})") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists without end
        raise StorageError(f"it is no JSON that can be read ({error})") from error
    if not isinstance(line, dict):
        raise StorageError(f"expected a JSON object, got {type(line).__name__}")
    for misfit in misfits(line, _SHAPE):
        raise StorageError(f"{misfit}; the line was edited or damaged")
    try:
        key = PassKey(*(int(line[name]) for name in KEYS))
        index = int(line["index"])
        if AVERAGE in line:
            return PassRecord(key, index, _figures_of(line[AVERAGE]), _details_of(PassDetails, line.get(OURS)))
        bucket = Bucket(int(line["lhs_partition"]), int(line["rhs_partition"]))
        stats, before, after = (_figures_of(line.get(name)) for name in FIGURES)
        return VisitRecord(key, bucket, index, stats, before, after, _details_of(VisitDetails, line.get(OURS)))
    except KeyError as error:
        raise StorageError(f"expected the key {error}, found {', '.join(line) or 'no keys'}") from error
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StorageError(f"expected the values of a record, got: {error}") from error


Details = TypeVar("Details", VisitDetails, PassDetails)


def _details_of(kind: type[Details], ours: Mapping[str, Any] | None) -> Details | None:
    if ours is None:
        return None
    known = {of.name: ours[of.name] for of in fields(kind) if of.name in ours}
    verdicts = get_args(Verdict)
    if known.get("verdict", verdicts[0]) not in verdicts:
        raise ValueError(f"the verdict {known['verdict']!r}, which is none of {', '.join(verdicts)}")
    for name in ("gap", "generalization"):
        known[name] = {key: Estimate(**of) for key, of in ours.get(name, {}).items()}
    if known.get("fall") is not None:
        known["fall"] = Estimate(**known["fall"])
    return kind(**known)


def _figures_of(value: Mapping[str, Any] | None) -> PbgFigures | None:
    return None if value is None else PbgFigures(int(value["count"]), dict(value.get("metrics") or {}))


# Records -> lines at the end of a file, one write each; a crash leaves at most a cut last line.


class RecordSink(Protocol):
    """What is handed each record of a training run as it is made."""

    def append(self, record: VisitRecord | PassRecord) -> None:
        """Take a record.

        Raises:
            OutputError: it cannot be written.
        """


@define
class StatsFile:
    """A file that one process appends to; it is made with the first record."""

    path: Path

    def append(self, record: VisitRecord | PassRecord) -> None:
        """Add a line.

        Raises:
            OutputError: it cannot be written (permissions, a full disk).
        """
        line = json.dumps(record.to_json(), allow_nan=False)
        make_folder(self.path.parent)
        # What a crash or a full disk has cut off must not swallow this line too.
        append_line(self.path, line if _ends_a_line(self.path) else f"\n{line}")


def _ends_a_line(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            return file.read(1) in (b"", b"\n")
    except FileNotFoundError:
        return True
    except OSError as error:
        raise OutputError(f"{path}: expected to add to this file, got: {error.strerror or error}") from error


# A `training_stats.json`, PyTorch-BigGraph's own or ours, or a folder with those of several workers -> records.
#
# A trainer that is killed leaves at most a cut line: it is passed over with a warning, wherever it stands, since the
# trainer that goes on writes below it.


@frozen(repr=False)
class History:
    """What a training run has recorded so far. It prints as the summaries of the last passes."""

    visits: tuple[VisitRecord, ...]  # in order of pass and index
    passes: tuple[PassRecord, ...]  # in order

    def __repr__(self) -> str:
        told = f"{plural(len(self.passes), 'pass', 'passes')}, {plural(len(self.visits), 'visit')} to buckets"
        return "\n".join([told, *map(repr, self.passes[-MAX_SHOWN:])])

    @property
    def passes_of_visits(self) -> dict[PassKey, tuple[VisitRecord, ...]]:
        """The visits of each pass, the last of each bucket: a run that went on after a crash repeats some."""
        found: dict[PassKey, dict[tuple[int, int], VisitRecord]] = {}
        for visit in self.visits:
            found.setdefault(visit.key, {})[visit.bucket] = visit
        return {key: tuple(visits.values()) for key, visits in found.items()}


def read_history(path: str | os.PathLike[str], warn: Callable[[str], None] = LOGGER.warning) -> History:
    """Read a file, or all files of a folder: that of worker 0, and those of others beside it.

    Passes that training has gone back behind, to begin anew or at a checkpoint, are left out.

    Args:
        path: a file of records, or the folder where it is (a checkpoint of PBG's, the `output` of a monitor).
        warn: is told of lines that are no records, a line each; default: the logger `pbgeval.monitor`.

    Raises:
        StorageError: there is no such file, it cannot be read, or not one line of it is a record.

    Examples:
        >>> import pbgeval
        >>> history = pbgeval.read_history("run/monitor")
        >>> len(history.visits) > 0
        True
    """
    path, main = Path(path), Path(path)
    others = []
    if path.is_dir():
        main, others = path / FILE_NAME, sorted(path.glob("training_stats.worker_*.json"))
    files = [_records(file, warn) for file in (*([main] if main.exists() or not others else []), *others)]
    restarts = [list(_restarts(records)) for records in files]
    of_any = [*chain(*restarts)]  # for workers of an earlier run alone
    kept = [
        record
        for records, own in zip(files, restarts, strict=True)
        for record in records
        if not any(key <= record.key and record.index < index for key, index in own or of_any)
    ]
    kept.sort(key=lambda record: (record.key, record.index if isinstance(record, VisitRecord) else 0))
    return History(
        tuple(record for record in kept if isinstance(record, VisitRecord)),
        tuple(record for record in kept if isinstance(record, PassRecord)),
    )


def _restarts(records: list[VisitRecord | PassRecord]) -> Iterator[tuple[PassKey, int]]:
    """Yield each visit, by its pass and number, with which training has gone back to a pass that was over."""
    done: set[PassKey] = set()
    for last, record in pairwise(records):
        if isinstance(last, PassRecord):
            done.add(last.key)
        if isinstance(record, VisitRecord) and (record.key in done or record.key.epoch < last.key.epoch):
            yield record.key, record.index
            done.clear()


def file_of_worker(folder: Path, worker: int) -> Path:
    """Return the file that a worker writes: no two append to one."""
    return folder / (FILE_NAME if worker == 0 else f"training_stats.worker_{worker}.json")


def _records(file: Path, warn: Callable[[str], None]) -> list[VisitRecord | PassRecord]:
    with unreadable(file, "expected the statistics of a training run, got"):
        text = read_bytes(file).decode(errors="replace")
    records = []
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    for number, line in lines:
        try:
            records.append(_record_of(line))
        except StorageError as error:
            warn(f"{file}: line {number} is passed over: {error}")
    if lines and not records:
        raise StorageError(f"{file}: expected a record of training per line, as PyTorch-BigGraph writes them, got none")
    return records


# Records -> named values, each at a step.
#
#     visit/<metric>/<before, after>              of each visit, at its running number; PBG's names of metrics
#     bucket_<l>_<r>/mrr/<before, after>          the same for the visits to one bucket
#     pass/<metric>/<before, after, training>     of each pass, at the number of its last visit; names of metrics.json
#     pass/<metric>/<gap, generalization>         the same, and `_error`: its standard error
#     pass/<diverged, lost>                       visits that diverged; what buckets have lost since their last visit
#
# Of a pass the figures of both sides together; of edge paths and chunks but the first with
# `path_<p>/chunk_<c>/` before.


_BOTH = "both."


def scalars_of(record: VisitRecord | PassRecord) -> dict[str, float]:
    """Return the values of a record by their names; what is undefined has none."""
    found: dict[str, float | int | None] = {}
    if isinstance(record, VisitRecord):
        for when, figures in (("before", record.before), ("after", record.after)):
            metrics = {} if figures is None else figures.metrics
            found |= {f"visit/{metric}/{when}": value for metric, value in metrics.items()}
            found[f"bucket_{record.bucket.lhs}_{record.bucket.rhs}/mrr/{when}"] = metrics.get("mrr")
    elif record.details is not None:
        details = record.details
        parts = {"before": details.before, "after": details.after, "training": details.training or {}}
        for name, differences in (("gap", details.gap), ("generalization", details.generalization)):
            parts[name] = {metric: of.value for metric, of in differences.items()}
            parts[f"{name}_error"] = {metric: of.standard_error for metric, of in differences.items()}
        found = {
            **{
                f"pass/{metric.removeprefix(_BOTH)}/{name}": value
                for name, values in parts.items()
                for metric, value in values.items()
                if metric.startswith(_BOTH)
            },
            "pass/diverged": details.num_diverged,
            "pass/lost": details.lost,
        }
    path, chunk = record.key.edge_path, record.key.edge_chunk
    prefix = f"path_{path}/chunk_{chunk}/" if path or chunk else ""
    return {prefix + name: value for name, value in found.items() if value is not None}


# Records of a training run -> values by step in TensorBoard.


@define(eq=False)
class TensorBoardSink:
    """A sink of a monitor: TensorBoard's event files, of which each process may write its own.

    Files are made with the first record.

    Raises:
        ConfigError: the package tensorboard is not there.

    Examples:
        >>> from pbgeval import ModelSchema, Monitor, MonitoredRelation, TensorBoardSink
        >>> schema = ModelSchema([MonitoredRelation("likes", "user", "item")], {"user": 4, "item": 1}, "dot")
        >>> monitor = Monitor(schema, "run/watched", sinks=[TensorBoardSink("run/events")])
    """

    folder: Path = field(converter=Path)
    _run: ExitStack = field(factory=ExitStack, init=False)

    def __attrs_post_init__(self) -> None:
        fault = missing_tensorboard()
        if fault is not None:
            raise ConfigError(f"{self.folder}: {fault}")

    def append(self, record: VisitRecord | PassRecord) -> None:
        """Write a record's values.

        Raises:
            OutputError: they cannot be written (permissions, a full disk).
        """
        self._log(record.index, scalars_of(record))

    def close(self) -> None:
        """End the run; nothing follows.

        Raises:
            OutputError: what is left cannot be written.
        """
        atexit.unregister(self.close)
        self._run.close()

    @cached_property
    def _log(self) -> Log:
        """What takes the values: open from the first record on."""
        atexit.register(self.close)  # trainers do not say when they end
        return self._run.enter_context(open_tensorboard(self.folder, LoggedRun("training")))
