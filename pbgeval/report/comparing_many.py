"""Any number of finished runs of the same queries -> which of them differ, and how far seeds of one model do.

Every two runs are compared as `comparison` compares two, and all p-values are corrected together. Runs of one name are
one model that was trained with several seeds: a query's value is then its mean over them, and a difference counts as
significant only where it exceeds both what other edges and what other seeds would change.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from os import PathLike
from pathlib import Path
from types import ModuleType

from attrs import evolve

from pbgeval.errors import ConfigError, required
from pbgeval.metrics.paired import Difference, differences, holm
from pbgeval.metrics.student import two_sided_probability
from pbgeval.notation import grouped
from pbgeval.report.comparison import names_of_folders
from pbgeval.report.figures import model_of
from pbgeval.report.many_runs import GroupDifference, GroupFigure, GroupPair, ManyRuns, RunGroup
from pbgeval.report.paired_runs import CompareOptions, PairedRuns, scale_of
from pbgeval.report.run_differences import names_of_unlike
from pbgeval.report.run_overlap import RunOverlaps, mean_overlap
from pbgeval.results.result import Result
from pbgeval.results.saved_run import folder_of
from pbgeval.storage.left_out import num_left_out

Run = Result | str | PathLike[str]

_USUAL_CUTOFF = 10  # of the answers that runs have in common


def compare_runs(
    runs: Mapping[str, Run | Sequence[Run]] | Sequence[Run],
    *,
    edge_paths: Sequence[str | PathLike[str]] | None = None,
    metrics: Sequence[str] | None = None,
    side: str = "both",
    rank_type: str = "realistic",
    filter: str | None = None,  # noqa: A002 - the word of metrics.json
    clusters: str = "key",
) -> ManyRuns:
    """Compare any number of runs, each with each, query by query.

    Nothing is scored. `docs/results.md` says what the figures mean.

    Args:
        runs: output directories of finished runs with `save_ranks`, or their reports; by name, where a name may have
            several: seeds of one model.
        edge_paths: as for `compare`, like all that follow.
        metrics: to compare. All are corrected together, so fewer metrics find smaller differences.
        side: head, tail or both.
        rank_type: of the ranks.
        filter: "raw" or "filtered"; default: filtered if the runs are.
        clusters: "key" or "edge".

    Raises:
        ConfigError: an argument is wrong in itself, or networkx is not installed.
        OutputError: a run is unfinished or has no ranks, or they differ in more than the model; says in what.
        StorageError: a file is missing or damaged.

    Examples:
        >>> import pbgeval
        >>> found = pbgeval.compare_runs({"one": "results/run", "two": "results/other"}, metrics=["mrr"])
        >>> best, figure = found.ranked("mrr")[0]
        >>> figure.letters
        'a'
    """
    options = CompareOptions(edge_paths, metrics, side, rank_type, filter, clusters)
    if isinstance(runs, Mapping):
        return compare_groups({name: _listed(of) for name, of in runs.items()}, options)
    names = names_of([folder_of(run) if isinstance(run, Result) else run for run in runs])
    return compare_groups(grouped(zip(names, runs, strict=True)), options)


def _listed(runs: Run | Sequence[Run]) -> Sequence[Run]:
    return [runs] if isinstance(runs, Result | str | PathLike) else runs


def names_of(folders: Sequence[str | PathLike[str]]) -> list[str]:
    """Return what the runs of some folders are called.

    Raises:
        ConfigError: a path is given twice.
    """
    paths = [str(Path(folder)) for folder in folders]
    doubles = [path for path in paths if paths.count(path) > 1]
    if doubles:
        raise ConfigError(f"{doubles[0]} is given twice; give each run once")
    return names_of_folders(paths)


def compare_groups(groups: Mapping[str, Sequence[Run]], options: CompareOptions) -> ManyRuns:
    """Compare groups of runs as `compare_runs` does."""
    sizes = [len(runs) for runs in groups.values()]
    if sum(sizes) < 2 or not all(sizes):
        empty = [
            f"{name}: no result is given for this name" for name, size in zip(groups, sizes, strict=True) if not size
        ]
        raise ConfigError(*empty or [f"compare needs two results; {'one was' if sizes else 'none was'} given"])
    _import_networkx()  # what is missing is said before hours of work
    numbers = iter(range(sum(sizes)))
    paired = PairedRuns.open([run for runs in groups.values() for run in runs], options)
    return _ManyRunsBuilder(paired, {name: [next(numbers) for _ in runs] for name, runs in groups.items()}).build()


class _ManyRunsBuilder:
    """Compares groups of opened runs."""

    def __init__(self, paired: PairedRuns, groups: Mapping[str, Sequence[int]]) -> None:
        self._paired, self._groups = paired, groups
        cutoffs = sorted({k for run in paired.runs for k in run.facts.hits_at})
        cutoff = _USUAL_CUTOFF if _USUAL_CUTOFF in cutoffs or not cutoffs else cutoffs[-1]
        self._overlaps = RunOverlaps.of_runs(paired, cutoff)
        self._num_queries = 0

    def build(self) -> ManyRuns:
        paired = self._paired
        alone = {number: self._differences([], [number]) for number in range(len(paired.runs))}
        figures = {name: self._figures(numbers, alone) for name, numbers in self._groups.items()}
        pairs = self._pairs({name: [of.of_seeds for of in found] for name, found in figures.items()})
        letters = [
            _letters([(name, of[metric]) for name, of in figures.items()], metric, pairs)
            for metric in range(len(paired.metrics))
        ]
        settings = [of.document["provenance"]["settings"] for of in paired.reports]
        return ManyRuns(
            **paired.conditions,
            settings=tuple(names_of_unlike(settings)),
            left_out=tuple(
                f"{run.folder}: imports left out {num:,} evaluated edges, as their names are unknown"
                for run, report in zip(paired.runs, paired.reports, strict=True)
                if (num := num_left_out(report.document, "edge_paths"))
            ),
            num_queries=self._num_queries,
            groups=tuple(
                RunGroup(
                    name,
                    tuple(str(paired.runs[number].folder) for number in numbers),
                    tuple(model_of(paired.reports[number]) for number in numbers),
                    tuple(evolve(of, letters=letters[metric][name]) for metric, of in enumerate(figures[name])),
                    mean_overlap([self._overlaps.between(*two) for two in combinations(numbers, 2)])
                    if len(numbers) > 1
                    else None,
                )
                for name, numbers in self._groups.items()
            ),
            pairs=tuple(pairs),
            warnings=paired.warnings([name for name, numbers in self._groups.items() for _ in numbers]),
        )

    def _differences(self, a: Sequence[int], b: Sequence[int]) -> Sequence[Difference]:
        """Return how the means over some runs differ from those over others, or from 0."""
        stats = self._paired.stats(a, b, by_relation=False)
        found = differences(stats, self._paired.metrics, by_group=False, scale=scale_of(a, b))
        if not found:
            raise ConfigError("runs: no query was ranked")
        self._num_queries = found[0].num_queries
        return found[0].differences

    def _figures(self, numbers: Sequence[int], alone: Mapping[int, Sequence[Difference]]) -> list[GroupFigure]:
        together = alone[numbers[0]] if len(numbers) == 1 else self._differences([], numbers)
        found = []
        for metric, of in enumerate(together):
            of_seeds = tuple(alone[number][metric].b for number in numbers)
            deviation = statistics.stdev(of_seeds) if len(numbers) > 1 else None
            found.append(GroupFigure(of.metric, of.direction, of.b, deviation, of.standard_error, of_seeds, ""))
        return found

    def _pairs(self, of_seeds: Mapping[str, Sequence[tuple[float, ...]]]) -> list[GroupPair]:
        """Return all pairs of groups, corrected together."""
        pairs = []
        for (a, of_a), (b, of_b) in combinations(self._groups.items(), 2):
            found = []
            for metric, of in enumerate(self._differences(of_a, of_b)):
                p_seeds = welch(of_seeds[a][metric], of_seeds[b][metric])
                # Other edges and other seeds must both be excluded as the reason.
                p_value = of.p_value if of.p_value is None or p_seeds is None else max(of.p_value, p_seeds)
                found.append(GroupDifference(evolve(of, p_value=p_value), of.p_value, p_seeds))
            overlap = mean_overlap([self._overlaps.between(one, two) for one in of_a for two in of_b])
            pairs.append(GroupPair(a, b, tuple(found), overlap))
        return corrected(pairs)


def corrected(pairs: Sequence[GroupPair]) -> list[GroupPair]:
    """Correct the p-values of all pairs and metrics together."""
    found = iter(holm([of.difference for pair in pairs for of in pair.differences]))
    return [
        evolve(pair, differences=tuple(evolve(of, difference=next(found)) for of in pair.differences)) for pair in pairs
    ]


def welch(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the p-value of Welch's t-test on the figures of seeds; None: one of the two has a single figure."""
    if min(len(a), len(b)) < 2:
        return None
    if len({*a}) == len({*b}) == 1:  # nothing depends on the seed
        return 1.0 if a[0] == b[0] else 0.0
    variances = [statistics.variance(of) / len(of) for of in (a, b)]  # of the means
    parts = [variance**2 / (len(of) - 1) for variance, of in zip(variances, (a, b), strict=True)]
    t = (statistics.fmean(a) - statistics.fmean(b)) / math.sqrt(sum(variances))
    return two_sided_probability(t, sum(variances) ** 2 / sum(parts))


def _import_networkx() -> ModuleType:
    with required(ConfigError, "networkx is required to compare more than two runs", "networkx"):
        import networkx
    return networkx  # type: ignore[no-any-return]


def _letters(figures: Sequence[tuple[str, GroupFigure]], metric: int, pairs: Sequence[GroupPair]) -> dict[str, str]:
    """Return the letters of each group: two share one exactly if they do not differ significantly.

    A letter stands for a largest set of groups of which no two differ; the first is that of the best group.
    """
    ranked = [name for name, _ in sorted(figures, key=lambda one: -one[1].direction * one[1].mean)]
    networkx = _import_networkx()
    alike = networkx.Graph()
    alike.add_nodes_from(ranked)
    alike.add_edges_from((of.a, of.b) for of in pairs if not of.differences[metric].difference.is_significant)
    sets = sorted(sorted(map(ranked.index, of)) for of in networkx.find_cliques(alike))
    found = dict.fromkeys(ranked, "")
    for number, of in enumerate(sets):
        for place in of:
            found[ranked[place]] += _letter(number)
    return found


def _letter(number: int) -> str:
    """Return a, b, ..., z, (27), (28), ..."""
    return chr(ord("a") + number) if number < 26 else f"({number + 1})"
