"""Two finished runs with saved ranks -> how they differ on the same queries, with intervals and p-values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import attrs
from attrs import evolve, frozen

from pbgeval.errors import ConfigError, OutputError
from pbgeval.metrics.names import SIDES, UnknownMetricError, split
from pbgeval.metrics.paired import Difference, GroupDifferences, PairedMetric, differences, holm
from pbgeval.metrics.registry import find_metric
from pbgeval.notation import Side
from pbgeval.ranking import RANK_TYPE_SYNONYMS
from pbgeval.report.paired_runs import PairedRuns, sampled_lists
from pbgeval.report.report import Report
from pbgeval.report.sameness import differences_of
from pbgeval.report.saved_run import SavedRun
from pbgeval.stats.paired import PairedStats

CLUSTERS = ("key", "edge")
USUAL = ("mean_rank", "mean_reciprocal_rank")
HITS = "hits_at_"


@frozen
class RelationDifferences:
    """The differences of one relation's queries."""

    relation: str
    relation_id: int
    num_queries: int
    differences: tuple[Difference, ...]


@frozen(eq=False)
class Comparison:
    """How run B differs from run A."""

    a: str
    b: str
    side: str  # head, tail, both
    rank_type: str
    filter: str  # raw, filtered
    unit: str  # edge, chunk: what was drawn together
    clusters: str  # key: queries of one key are one cluster too; edge: units alone
    num_queries: int
    differences: tuple[Difference, ...]  # corrected for their number
    relations: tuple[RelationDifferences, ...]  # each metric corrected for the number of relations; none without edges

    def __getitem__(self, name: str) -> Difference:
        """Return the difference in a metric, by any of its names.

        Raises:
            KeyError: it was not compared.
        """
        key = split(name).metric
        for difference in self.differences:
            if difference.metric == key:
                return difference
        compared = ", ".join(difference.metric for difference in self.differences)
        raise UnknownMetricError(f"no metric '{name}' in this comparison: expected one of {compared}")

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        return attrs.asdict(self)


def compare(
    a: Report | str | PathLike[str],
    b: Report | str | PathLike[str],
    *,
    edge_paths: Sequence[str | PathLike[str]] | None = None,
    metrics: Sequence[str] | None = None,
    side: str = "both",
    rank_type: str = "realistic",
    filter: str | None = None,  # noqa: A002 - the word of metrics.json
    clusters: str = "key",
) -> Comparison:
    """Compare two runs query by query; a difference is that of B less that of A.

    Nothing is scored; memory does not follow the number of edges. `docs/compare.md` says what the figures mean.

    Args:
        a: the output directory of a finished run with `save_ranks`, or its report.
        b: likewise, of the same queries, filters and candidates.
        edge_paths: folders of the evaluated edges, in the order of the runs; default: where run A, or B, found them.
        metrics: mean_rank, mean_reciprocal_rank, hits_at_k by any of their names; default: these, k as in either run.
        side: head, tail or both.
        rank_type: of the ranks.
        filter: "raw" or "filtered"; default: filtered if the runs are.
        clusters: "key": queries of one key depend on each other, as do those of an edge; "edge": only the latter, which
            needs no edges (unless lists are sampled) and then tells nothing of relations.

    Raises:
        ConfigError: an argument is wrong in itself.
        OutputError: a run is unfinished or has no ranks, or they differ in more than the model; says in what.
        StorageError: a file is missing or damaged.
    """
    chosen = [_metric(name) for name in metrics or ()]
    _check("side", side, SIDES)
    _check("rank_type", rank_type, RANK_TYPE_SYNONYMS)
    _check("filter", filter or "raw", ("raw", "filtered"))
    _check("clusters", clusters, CLUSTERS)
    reports = [of if isinstance(of, Report) else Report.read(Path(of)) for of in (a, b)]
    runs = [SavedRun.open(report, None) for report in reports]
    filtered = _check_same(reports, runs, filter)
    settings, facts = reports[0].document["provenance"]["settings"], runs[0].facts
    lists = sampled_lists(settings)
    if clusters == "key" or (lists is not None and not facts.dynamic):  # chunks are cut by relation
        runs[0] = SavedRun.open(reports[0], _edge_paths(reports, edge_paths))
    pair = PairedRuns(
        runs[0],
        runs[1],
        sides=_sides(SIDES[side], facts.sides),
        filtered=filtered,
        rank_type=RANK_TYPE_SYNONYMS[rank_type],
        metrics=chosen or _usual({*facts.hits_at, *runs[1].facts.hits_at}),
        lists=lists,
        num_slices=settings.get("workers") or 1,
        with_keys=clusters == "key" and not facts.featurized,
    )
    stats = PairedStats(len(pair.metrics), len(pair.sides), pair.with_keys)
    for block in pair.blocks():
        stats.add(block)
    return _comparison(pair, stats, side=SIDES[side])


def _comparison(pair: PairedRuns, stats: PairedStats, *, side: str) -> Comparison:
    whole = differences(stats, pair.metrics, by_group=False)
    corrected: tuple[Difference, ...] = ()
    if whole:
        p_values = holm([of.p_value for of in whole[0].differences])
        corrected = tuple(evolve(of, p_holm=p) for of, p in zip(whole[0].differences, p_values, strict=True))
    return Comparison(
        a=str(pair.a.folder),
        b=str(pair.b.folder),
        side=side,
        rank_type=pair.rank_type.value,
        filter="filtered" if pair.filtered else "raw",
        unit="edge" if pair.lists is None else "chunk",
        clusters="key" if pair.with_keys else "edge",
        num_queries=sum(of.num_queries for of in whole),
        differences=corrected,
        relations=() if pair.a.edges is None else _relations(pair, differences(stats, pair.metrics, by_group=True)),
    )


def _relations(pair: PairedRuns, groups: Sequence[GroupDifferences]) -> tuple[RelationDifferences, ...]:
    names = pair.a.relation_names(max((of.group for of in groups), default=-1) + 1)
    columns = [holm([of.differences[number].p_value for of in groups]) for number in range(len(pair.metrics))]
    return tuple(
        RelationDifferences(
            names[of.group],
            of.group,
            of.num_queries,
            tuple(
                evolve(difference, p_holm=column[place])
                for difference, column in zip(of.differences, columns, strict=True)
            ),
        )
        for place, of in enumerate(groups)
    )


def _check(name: str, value: str, choices: Mapping[str, object] | Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")


def _metric(name: str) -> PairedMetric:
    parts = split(name)
    key, cutoff = parts.metric, parts.metric.removeprefix(HITS)
    if parts.side is None and parts.rank_type is None:
        if key in USUAL:
            return PairedMetric(key)
        if key.startswith(HITS) and cutoff.isdigit() and int(cutoff) >= 1 and find_metric(key) is not None:
            return PairedMetric(key, int(cutoff))
    raise ConfigError(
        f"metrics: expected {', '.join(USUAL)} or {HITS}k, got {name!r}; side and rank_type are arguments of their own"
    )


def _usual(cutoffs: set[int]) -> list[PairedMetric]:
    return [*map(PairedMetric, USUAL), *(PairedMetric(f"{HITS}{cutoff}", cutoff) for cutoff in sorted(cutoffs))]


def _sides(wanted: str, enabled: Sequence[Side]) -> tuple[Side, ...]:
    found = tuple(side for side in enabled if wanted in (side.label, "both"))
    if not found:
        raise ConfigError(
            f"side: expected {' or '.join(side.label for side in enabled)}, which were ranked, got {wanted!r}"
        )
    return found


def _check_same(reports: Sequence[Report], runs: Sequence[SavedRun], wanted: str | None) -> bool:
    """Return whether filtered figures are compared.

    Raises:
        OutputError: the runs differ in more than the model; a line each.
    """
    of_runs = [run.facts.filtered for run in runs]
    filtered = any(of_runs) if wanted is None else wanted == "filtered"
    provenance = [report.document["provenance"] for report in reports]
    found = differences_of(provenance[0], provenance[1], filtered=filtered)
    if filtered and not all(of_runs):
        found.append(
            "figures: " + ", ".join(f"{n} {'filtered' if of else 'raw'}" for n, of in zip("AB", of_runs, strict=True))
        )
    if found:
        raise OutputError(
            *(
                f"{runs[1].folder}: expected the queries, filters and candidates of {runs[0].folder}, found other "
                f"{line}; evaluate both alike"
                for line in found
            )
        )
    return filtered


def _edge_paths(reports: Sequence[Report], given: Sequence[str | PathLike[str]] | None) -> tuple[Path, ...]:
    """Return where the evaluated edges are: as given, or where one of the runs found them, if they are still there."""
    expected = len(reports[0].document["edge_paths"])
    if given is not None:
        if len(given) != expected:
            raise ConfigError(f"edge_paths: expected {expected}, in the order of the runs, got {len(given)}")
        return tuple(map(Path, given))
    for report in reports:
        noted = report.document["run"].get("edge_paths") or ()
        found = tuple((report.path or Path()) / path for path in noted)
        if len(found) == expected and all(path.exists() for path in found):
            return found
    raise OutputError(
        f"{reports[0].path}: expected the evaluated edges where they were (run.edge_paths of metrics.json), found none;"
        " give their folders by --edges, or compare without keys and relations by --clusters edge"
    )
