"""The result of an evaluation: its figures by any of their names, its tables, and what differs from run to run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from itertools import product
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from attrs import evolve, field, frozen

from pbgeval.errors import OutputError
from pbgeval.metrics.breakdowns import BREAKDOWN_FILES
from pbgeval.metrics.estimates import LEVEL
from pbgeval.metrics.names import resolve
from pbgeval.metrics.registry import Value, metric_key
from pbgeval.notation import Bucket
from pbgeval.ranking.chunks import CandidatePolicy
from pbgeval.report.shape import RUN as RUN_SHAPE
from pbgeval.report.shape import shape_of
from pbgeval.report.tables import DataTable, Table, data_frame, read_csv, to_html, to_terminal, to_text
from pbgeval.stats.ranks import RankType
from pbgeval.storage.json_files import parse_json
from pbgeval.storage.left_out import num_left_out
from pbgeval.storage.shapes import Shape, misfits
from pbgeval.storage.text import did_you_mean, json_text, one_line, plural, read_bytes

if TYPE_CHECKING:
    import pandas
    from rich.console import Group


# Figures of a report -> (side, rank type, metric, value) by PyKEEN's keys, and the data frame of them.
SIDES = ("head", "tail", "relation", "both")
COLUMNS = ("Side", "Rank_type", "Metric", "Value")
# PyKEEN's own keys, but for those of a k. It has one key for adjusted hits at any k, and so the last one's value.
PYKEEN_METRICS = (
    "arithmetic_mean_rank",
    "inverse_arithmetic_mean_rank",
    "geometric_mean_rank",
    "inverse_geometric_mean_rank",
    "harmonic_mean_rank",
    "inverse_harmonic_mean_rank",
    "median_rank",
    "inverse_median_rank",
    "standard_deviation",
    "variance",
    "median_absolute_deviation",
    "count",
    "adjusted_arithmetic_mean_rank",
    "adjusted_arithmetic_mean_rank_index",
    "adjusted_geometric_mean_rank_index",
    "adjusted_inverse_harmonic_mean_rank",
    "z_arithmetic_mean_rank",
    "z_geometric_mean_rank",
    "z_inverse_harmonic_mean_rank",
)
OF_LAST_CUTOFF = ("adjusted_hits_at_", "z_hits_at_")
_HITS = "both.realistic.hits_at_"

Item: TypeAlias = tuple[tuple[str, str, str], float]


def cutoffs_of(figures: Mapping[str, Value]) -> list[int]:
    """Return the k of hits at k that a report has, in order."""
    digits = (key.removeprefix(_HITS) for key in figures if key.startswith(_HITS))
    return sorted(map(int, filter(str.isdecimal, digits)))


def items_of(figures: Mapping[str, Value], hits_at: Sequence[int]) -> Iterator[Item]:
    """Yield (side, rank type, metric) and value, of the sides that were evaluated; NaN where one is undefined.

    Args:
        figures: by the report's own keys.
        hits_at: the k of hits at k, the last of which stands for adjusted hits.
    """
    names = {
        **{metric: metric_key(metric) for metric in PYKEEN_METRICS},
        **{name: name for prefix in ("hits_at_", *OF_LAST_CUTOFF) for name in (f"{prefix}{k}" for k in hits_at)},
        **{f"{prefix}k": f"{prefix}{k}" for prefix in OF_LAST_CUTOFF for k in hits_at[-1:]},  # the last, if any
    }
    for (name, ours), rank_type, side in product(names.items(), RankType, SIDES):
        key = f"{side}.{rank_type.value}.{ours}"
        if key in figures:
            value = figures[key]
            yield (side, rank_type.value, name), float("nan") if value is None else value


def frame_of(items: Iterable[Item]) -> pandas.DataFrame:
    """Return a row per figure: Side, Rank_type, Metric, Value.

    Raises:
        OutputError: pandas is not installed.
    """
    return data_frame([(*key, value) for key, value in items], COLUMNS)


SCHEMA_VERSION = 2
METRICS, RUN = "metrics.json", "run.json"
CONFIG_SUFFIXES = (".py", ".json")
MAX_NAMED = 3  # folders that may have been meant
BUCKETS, HISTOGRAM = "buckets", "rank_histogram"  # tables, as those of breakdowns: files of these names and .csv
TABLES = (BUCKETS, HISTOGRAM, *(file.removesuffix(".csv") for file in BREAKDOWN_FILES.values()))
Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[Row]
_TITLES = {
    **dict.fromkeys(("metrics", "raw_metrics"), "Unfiltered"),  # the former print as such where nothing is filtered
    "time_filtered_metrics": "Time-aware filter",
    **dict.fromkeys(("macro_metrics", "topk_metrics"), "Macro average over query keys"),
    "relation_macro_metrics": "Macro average over relations",
}
_REASONS = {
    **dict.fromkeys(("metrics", "raw_metrics"), " yet: the run is not complete; run the same command again to resume"),
    "time_filtered_metrics": "; evaluate with time_window",
    "topk_metrics": "; evaluate with topk_metrics",
    "macro_metrics": ", because query keys were not counted",
    "relation_macro_metrics": ", because relations were not counted",
}


@frozen(eq=False, repr=False)
class Figures(Mapping[str, Value]):
    """Figures by the report's keys, and by any other name: `figures["mrr"]`, `figures["both.realistic.hits@10"]`.

    They print as the table of the usual ones.
    """

    by_key: Mapping[str, Value]
    headline: str  # the rank type that a name without one means
    title: str = "Figures"

    def __getitem__(self, name: str) -> Value:
        """Return a figure; None where it is undefined.

        Raises:
            KeyError: no such metric; the message names the nearest.
        """
        return self.by_key[resolve(name, self.headline, self.by_key.keys())]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_key)

    def __len__(self) -> int:
        return len(self.by_key)

    def __repr__(self) -> str:
        table = import_module("pbgeval.report.figures").headline_of(
            Report({"metrics": self.by_key, "headline": self.headline, "intervals": {}})
        )
        shown = f"{len(table.rows) * (len(table.columns) - 1)} of {len(self)} figures"
        return to_text(evolve(table, title=f"{self.title}: {shown}, {self.headline} ranks"))


@frozen(eq=False)
class SavedTables(Mapping[str, Rows]):
    """The tables of an output directory, each read when it is first used."""

    folder: Path
    _read: dict[str, Rows] = field(factory=dict, init=False)

    def __getitem__(self, name: str) -> Rows:
        if name not in self:
            raise KeyError(name)
        if name not in self._read:
            self._read[name] = read_csv(self.folder / f"{name}.csv")
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in TABLES and (self.folder / f"{name}.csv").exists()

    def __iter__(self) -> Iterator[str]:
        return (name for name in TABLES if name in self)

    def __len__(self) -> int:
        return len(list(iter(self)))


@frozen(eq=False, repr=False)
class Report:
    """A finished evaluation. It prints as the table of its headline metrics, in a notebook too."""

    document: Mapping[str, Any]  # the content of metrics.json: the same for equal runs
    run: Mapping[str, Any] = field(factory=dict)  # of run.json: what may differ, such as hosts and times
    rows: Mapping[str, Rows] = field(factory=dict)  # of each table, by name
    path: Path | None = None  # the output directory

    def __getitem__(self, name: str) -> Value:
        """Return a metric: `report["mrr"]`, `report["both.realistic.hits@10"]`; None where it is undefined.

        Raises:
            KeyError: no such metric; the message names the nearest.
        """
        return self._figures("metrics")[name]

    @property
    def raw(self) -> Figures:
        """The metrics without a filter: those of the report itself where nothing is filtered."""
        return self._figures("raw_metrics" if "raw_metrics" in self.document else "metrics")

    @property
    def time_filtered(self) -> Figures:
        """The metrics of the time-aware filter.

        Raises:
            OutputError: this report has none.
        """
        return self._figures("time_filtered_metrics")

    @property
    def macro(self) -> Figures:
        """The averages in which every query key weighs the same.

        Raises:
            OutputError: this report has none.
        """
        return self._figures("macro_metrics")

    @property
    def relation_macro(self) -> Figures:
        """The averages in which every relation weighs the same.

        Raises:
            OutputError: this report has none.
        """
        return self._figures("relation_macro_metrics")

    @property
    def topk(self) -> Figures:
        """The means over query keys of `topk_metrics`: `report.topk["recall@10"]`.

        Raises:
            OutputError: this report has none.
        """
        return self._figures("topk_metrics")

    def _figures(self, key: str) -> Figures:
        figures = self.document.get(key)
        if figures is None:
            raise OutputError(f"{key}: this report has none{_REASONS[key]}")
        return Figures(figures.get("macro_metrics", figures), self.document["headline"], _TITLES[key])

    @property
    def intervals(self) -> Mapping[str, Mapping[str, float]]:
        """Standard error and 95% interval of the metrics that are estimated."""
        return dict(self.document["intervals"])

    @property
    def tables(self) -> tuple[str, ...]:
        """The names that `table` takes."""
        return tuple(self.rows)

    def table(self, name: str) -> Table:
        """Return a table: buckets, rank_histogram, relations, and those of other `breakdowns`.

        Raises:
            OutputError: there is no such table, or its file is not as it was written.
        """
        if name not in self.rows:
            near = BREAKDOWN_FILES.get(name, name).removesuffix(".csv")
            near = near if near in self.rows else next(iter(get_close_matches(name, self.tables, n=1)), "")
            hint = f"; did you mean {near!r}?" if near else ""
            known = ", ".join(self.tables) or "none, as the run is not complete"
            raise OutputError(f"no table {name!r} in this report: expected one of {known}{hint}")
        rows = self.rows[name]
        return Table(rows, partial(self._made("figures").rows_table, name, rows, self.document["headline"]))

    @staticmethod
    def _made(module: str) -> Any:  # noqa: ANN401
        """Return a module that is made of reports, and so imports this one."""
        return import_module(f"pbgeval.report.{module}")

    def shown(self) -> list[DataTable]:
        """Return the tables that are printed: the headline metrics and the sections that were asked for."""
        figures = self._made("figures")
        sections = (figures.estimates_by_side, figures.popularity_of, figures.topk_of)
        return [figures.final_table(self), *(table for of in sections for table in of(self.document))]

    def _with_warnings(self) -> list[DataTable]:
        first, *others = self.shown()
        warnings = (f"Warning: {warning}." for warning in warnings_of(self.document))
        return [evolve(first, note="\n".join(filter(None, (first.note, *warnings)))), *others]

    def __repr__(self) -> str:
        has_figures = "metrics" in self.document
        return "\n\n".join(map(to_text, self._with_warnings())) if has_figures else "a report without figures yet"

    def __rich__(self) -> Group:
        from rich.console import Group

        return Group(*map(to_terminal, self._with_warnings()))

    def _repr_html_(self) -> str:
        return "".join(map(to_html, self._with_warnings()))

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the content of metrics.json."""
        return dict(json.loads(self.to_json()))

    def to_json(self) -> str:
        """Return the content of metrics.json: sorted keys, shortest round-trip floats, no NaN."""
        return json_text(self.document)

    def to_df(self, *, macro: bool = False) -> pandas.DataFrame:
        """Return the rank metrics that PyKEEN knows as its data frame: Side, Rank_type, Metric (its keys), Value.

        Args:
            macro: the averages in which every query key weighs the same.

        Raises:
            OutputError: pandas is not installed, or there are no macro averages.
        """
        figures = self._figures("macro_metrics" if macro else "metrics")
        return frame_of(items_of(figures.by_key, cutoffs_of(figures)))

    def recompute(
        self,
        *,
        hits_at: Iterable[int] | None = None,
        filter: str | None = None,  # noqa: A002 - the word of metrics.json
        headline: str | None = None,
        edge_paths: Sequence[str | PathLike[str]] | None = None,
        train_paths: Sequence[str | PathLike[str]] | None = None,
        keep: Callable[[int, Bucket, np.ndarray, np.ndarray, np.ndarray], np.ndarray] | None = None,
        breakdowns: Sequence[str] = (),
        relation_groups: Mapping[str, Iterable[int]] | None = None,
        metrics: Sequence[str] | None = None,
        topk_metrics: bool = False,
    ) -> Report:
        """Compute other figures of this run, or those of a part of its edges, from the ranks of `save_ranks`.

        Nothing is scored. Without arguments the metrics are this report's to the bit, but for what needs scores:
        `auc` is None, `loss` and `intervals` are left out, and so are diagnostics that ranks files do not hold (None).
        An edge counts if it was ranked on at least one side: files do not tell edges that nobody may rank on either
        side from edges that the run dropped, so `num_edges`, `num_queries_outside` and frequencies of query keys
        leave out the former too.

        Args:
            hits_at: cut-offs of hits at k; default: those of the run.
            filter: "raw" or "filtered"; default: as here. Filtered figures have raw ones beside them.
            headline: a rank type; default: as here.
            edge_paths: folders or files of the evaluated edges, as the run has them. What follows needs them, and so do
                the macro averages, which are None without.
            train_paths: folders of training edges, for popularity and topk_metrics: those of the run, if it had any.
            keep: (index of the edge path, bucket, lhs, rel, rhs) -> bool, all arrays with an element per edge, int64,
                entities as rows of their partitions: only edges where it is true count. It is asked once per edge.
            breakdowns: of relation, entity_types, groups, popularity. Relations are called as in relations.csv of the
                run; those that it does not have, by their ids.
            relation_groups: ids of the relations of each group.
            metrics: families or names, as the key of the config; default: as here, and hits at `hits_at`.
            topk_metrics: also the section `topk_metrics` of filtered lists, without what follows from `save_topk`.

        Raises:
            ValueError: an argument is wrong in itself, or lacks another.
            OutputError: there is no output directory, it has no ranks, those of another run, or no filtered ones.
            StorageError: a file is missing or damaged, or edges are not those of the run.
            DataError: an id in the edges is out of range.
        """
        recomputing = self._made("recompute")
        report: Report = recomputing.recompute(
            self,
            recomputing.ReportQuery(
                hits_at=hits_at,
                filter=filter,
                headline=headline,
                edge_paths=edge_paths,
                train_paths=train_paths,
                keep=keep,
                breakdowns=breakdowns,
                relation_groups=relation_groups,
                metrics=metrics,
                topk_metrics=topk_metrics,
            ),
        )
        return report

    @classmethod
    def read(cls, folder: Path | str) -> Report:
        """Read everything that an evaluation wrote; a table is read when it is first used.

        Raises:
            OutputError: there is no metrics.json, or a file is not one of ours.
        """
        path = Path(folder) / METRICS
        if not path.exists():
            raise OutputError(f"{folder}: {no_result(Path(folder))}")
        document = _read_object(path)
        if "schema_version" not in document:
            raise OutputError(f"{path}: expected a result of pbgeval, got other JSON")
        version = document["schema_version"]
        if version != SCHEMA_VERSION:
            raise OutputError(
                f"{path}: expected schema_version {SCHEMA_VERSION}, got {version}; evaluate again with this version"
            )
        _check_shape(path, document, shape_of(document))
        run_path = Path(folder) / RUN
        run = _read_object(run_path) if run_path.exists() else {}
        _check_shape(run_path, run, RUN_SHAPE)
        return cls(document, run, SavedTables(Path(folder)), Path(folder))


def no_result(folder: Path, expected: str = METRICS) -> str:
    """Return why a path without a result is not an output directory, and which path may have been meant."""
    if folder.name == METRICS and folder.is_file():
        return f"this is a file; give its folder, {str(folder.parent)!r}"
    if folder.suffix in CONFIG_SUFFIXES and folder.is_file():
        return "this is a config file; give the output directory of its run"
    if not folder.is_dir():
        return ("this is not an output directory" if folder.exists() else "no such output directory") + (
            did_you_mean(folder, os.path.isdir) or "; give the output directory of a run"
        )
    inner = [repr(str(place)) for place in sorted(folder.iterdir()) if (place / METRICS).is_file()]
    hint = f"did you mean {' or '.join(inner[:MAX_NAMED])}?" if inner else "give the output directory of a run"
    return f"no {expected} in this folder; {hint}"


def _read_object(path: Path) -> dict[str, Any]:
    try:
        document = parse_json(read_bytes(path))
    except OSError as error:
        raise OutputError(f"{path}: expected a result of pbgeval, got: {error.strerror or error}") from error
    except ValueError as error:
        raise OutputError(f"{path}: expected a result of pbgeval, got no JSON: {one_line(error)}") from error
    if not isinstance(document, dict):
        raise OutputError(f"{path}: expected a result of pbgeval, got other JSON")
    return document


def _check_shape(path: Path, document: Mapping[str, Any], shape: Shape) -> None:
    """Refuse a file that is not as it was written, so that readers need not look again.

    Raises:
        OutputError: says what is wrong, and where.
    """
    for misfit in misfits(document, shape):
        raise OutputError(f"{path}: {misfit}; the file was edited or damaged: copy it again, or evaluate again")


# A finished report -> what its reader should know before quoting a figure, a line each.

MUCH_TIED = 0.01  # share of its candidates that tie with a true entity, on average
MUCH_REPEATED = 0.1  # share of the evaluated edges; fewer are a matter of chance in dense graphs


def warnings_of(document: Mapping[str, Any]) -> list[str]:
    """Return warnings about ties, leaked and repeated edges, and what was not drawn; none for a sound evaluation."""
    if not document["complete"]:
        return []
    if not document["num_edges"]:
        return ["no edges to evaluate, so the figures are undefined: the evaluated edges are empty, or all left out"]
    warnings = []
    diagnosis, metrics = document["diagnostics"]["both"], document["metrics"]
    ties, candidates = diagnosis.get("mean_num_ties"), diagnosis["num_candidates"]["mean"]
    if ties and candidates and ties > MUCH_TIED * (candidates - 1):
        best, worst = (metrics.get(f"both.{of_type}.mean_reciprocal_rank") for of_type in ("optimistic", "pessimistic"))
        so = (
            ""  # where the report does not have it
            if best is None or worst is None
            else f", so tie-breaking alone moves MRR from {worst:.4f} (pessimistic) to {best:.4f} (optimistic)"
        )
        warnings.append(
            f"on average {ties:.4g} of {candidates:.4g} candidates have exactly the score of the true entity{so}. "
            "Usual causes are untrained entities, a collapsed model, and scores that saturate or are clamped or rounded"
        )
    edges = {name: number or 0 for name, number in (document.get("edge_diagnostics") or {}).items()}
    leaked, repeated, unseen = (edges.get(f"num_{name}", 0) for name in ("in_training", "repeated", "entities_unseen"))
    num_edges, num_entities = edges.get("num_edges", 0), edges.get("num_entities", 0)
    without_draws = (document.get("estimates") or {}).get("num_queries_without_draws") or 0
    lost = num_left_out(document, "filter_paths", "train_paths")
    found = [
        (lost > 0, f"imports left out {plural(lost, 'known edge')} with unknown names, so they are not filtered out"),
        (
            leaked > 0,
            f"{leaked:,} of {num_edges:,} evaluated edges are also in train_paths, so the model may have been trained "
            "on them and the figures may be too good",
        ),
        (
            repeated > MUCH_REPEATED * num_edges,
            f"{repeated:,} of {num_edges:,} evaluated edges repeat another one, and each copy counts as a query",
        ),
        (
            unseen > 0,
            f"{unseen:,} of {num_entities:,} evaluated entities never occur in train_paths, so their vectors are "
            "untrained",
        ),
        (
            without_draws > 0,
            f"{without_draws:,} queries have no estimate because none of their competitors was drawn; raise "
            "num_uniform_negs",
        ),
    ]
    return [*warnings, *(warning for applies, warning in found if applies)]


# The conditions under which the figures of a report hold, in words: which edges, which candidates, which intervals.


def title_of(report: Report) -> str:
    """Return what was evaluated, in a few words; for an unfinished run, what is done so far."""
    document = report.document
    if "diagnostics" not in document:
        return f"{edges_told(document)}, {_filter(document)}"
    spread = candidates_of(document)
    against = f"each ranked against {spread}, the true entity included" if spread else "no queries"
    return f"{edges_told(document)}, {_filter(document)}, {against}"


def tags_of(report: Report) -> list[str]:
    """Return the conditions of the figures, a few words each."""
    document = report.document
    if "metrics" not in document:
        return []
    candidates = candidates_of(document) or "no queries" if "diagnostics" in document else ""
    version = (document.get("provenance") or {}).get("checkpoint_version")
    told = "" if version is None else f"checkpoint version {version}"
    return [*filter(None, (edges_told(document), _filter(document), f"{document['headline']} ranks", candidates, told))]


def _filter(document: Mapping[str, Any]) -> str:
    return "filtered" if document["filter"] == "filtered" else "unfiltered"


def edges_told(document: Mapping[str, Any]) -> str:
    """Return how many edges were evaluated, so far or in the end, and of how many where they are a sample."""
    edges, sample, lost = plural(document["num_edges"], "edge"), part_of(document), num_left_out(document, "edge_paths")
    given = document.get("num_edges_before_restrictions")
    notes = [
        *([f"of {given:,} before restrictions"] if given is not None else []),
        *([f"{lost:,} more were left out, as their names are unknown"] if lost else []),
    ]
    without = f" ({'; '.join(notes)})" if notes else ""
    if "diagnostics" not in document:
        return f"{edges} so far{without}"
    if sample is None:
        return f"{edges}{without}"
    told = f"a sample of {sample['num_units']:,} of {sample['population']:,} {sample['unit']}s"
    is_told = (sample["unit"], sample["num_units"]) == ("edge", document["num_edges"])
    return f"{told if is_told else f'{edges} ({told})'}{without}"


def part_of(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what is known of the sample; None where all edges were evaluated."""
    sample: Mapping[str, Any] | None = document.get("sample")
    return sample if sample and sample["num_units"] < sample["population"] else None


def candidates_of(document: Mapping[str, Any]) -> str:
    """Return against how many candidates queries were ranked; empty if there are no queries."""
    of_sides = document["diagnostics"]
    relation = _range(of_sides["relation"]) if "relation" in of_sides else ""
    spread = _range(of_sides["both"])
    return f"{spread} candidates{f' (relations: {relation})' if relation else ''}" if spread else ""


def _range(diagnosis: Mapping[str, Any]) -> str:
    ends = dict.fromkeys(diagnosis["num_candidates"][end] for end in ("min", "max"))
    return " to ".join(f"{end:,}" for end in ends if end is not None)


def cautions_of(document: Mapping[str, Any]) -> str:
    """Return what sets the figures apart from those of all edges and all candidates, in one line; empty if nothing."""
    estimated = "" if part_of(document) is None else f"the figures are estimates from {edges_told(document)}"
    policies = {relation.get("candidates") for relation in settings_of(document).get("relations") or ()}
    sampled = "candidates were sampled, so ranks are not those among all entities"
    return "; ".join(filter(None, [estimated, sampled if CandidatePolicy.SAMPLED.value in policies else ""]))


def settings_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of the config that the figures depend on."""
    return (document.get("provenance") or {}).get("settings") or {}


def interval_name(document: Mapping[str, Any]) -> str:
    """Return what the intervals of a sample of edges are called."""
    level = (document.get("sample") or {"level": LEVEL}).get("level", LEVEL)
    return "interval, corrected for repeated looks:" if level > LEVEL else "95%\u00a0interval"
